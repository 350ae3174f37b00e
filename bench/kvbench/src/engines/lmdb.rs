//! LMDB: a copy-on-write B-tree, read through a memory map. Puts go in transactions of a thousand;
//! one in 64 MiB is synced.

use std::ops::Bound;

use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::batch::{BATCH, Batcher};
use super::{Engine, Settings};

/// Address space, not memory: more than any data set here takes.
const MAP_BYTES: usize = 256 << 30;

pub struct Store {
    env: Env,
    tuples: Database<Bytes, Bytes>,
    waiting: Batcher,
}

impl Store {
    pub fn open(settings: &Settings) -> Result<Store> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: the directory is this process's own, so no other process changes the mapped file
        // or opens it twice; a crash of the machine would leave scratch data broken, which is not
        // reads.
        let env = unsafe { options.flags(EnvFlags::NO_SYNC).open(&settings.dir)? };
        let mut transaction = env.write_txn()?;
        let tuples = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Store { env, tuples, waiting: Batcher::default() })
    }

    fn commit(
        &self,
        changes: &mut dyn Iterator<Item = (&[u8], Option<&[u8]>)>,
        sync: bool,
    ) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in changes {
            match value {
                Some(value) => self.tuples.put(&mut transaction, key, value)?,
                None => drop(self.tuples.delete(&mut transaction, key)?),
            }
        }
        transaction.commit()?;
        if sync {
            self.env.force_sync()?;
        }
        Ok(())
    }
}

impl Engine for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.waiting.add(key, Some(value), |changes, sync| self.commit(changes, sync))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.waiting.add(key, None, |changes, sync| self.commit(changes, sync))
    }

    fn delete_range(&self, _: &[u8], _: &[u8]) -> Result<bool> {
        Ok(false)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let transaction = self.env.read_txn()?;
        let value = self.tuples.get(&transaction, key)?;
        value.iter().for_each(|v| seen(v));
        Ok(value.is_some())
    }

    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let transaction = self.env.read_txn()?;
        // LMDB does not support an empty key.
        let from = if start.is_empty() { Bound::Unbounded } else { Bound::Included(start) };
        let from = (from, Bound::Unbounded);
        let mut n = 0;
        for tuple in self.tuples.range(&transaction, &from)?.take(limit as usize) {
            let (key, value) = tuple?;
            seen(key, value);
            n += 1;
        }
        Ok(n)
    }

    fn finish(&self) -> Result<()> {
        self.waiting.finish(|changes, sync| self.commit(changes, sync))
    }

    fn flush(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.force_sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}
