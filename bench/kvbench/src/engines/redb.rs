//! redb: a copy-on-write B-tree in one file. Puts go in transactions of a thousand; one in 64 MiB
//! is durable, the others are not.

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use super::batch::{BATCH, Batcher};
use super::{Engine, Settings};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("bench");

pub struct Store {
    db: Database,
    waiting: Batcher,
}

impl Store {
    pub fn open(settings: &Settings) -> Result<Store> {
        // It has no write buffer in addition to its cache.
        let db = Database::builder()
            .set_cache_size(settings.memory as usize)
            .create(settings.dir.join("store.redb"))?;
        let store = Store { db, waiting: Batcher::default() };
        store.commit(&mut std::iter::empty(), true)?;
        Ok(store)
    }

    fn commit(
        &self,
        changes: &mut dyn Iterator<Item = (&[u8], Option<&[u8]>)>,
        sync: bool,
    ) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(if sync { Durability::Immediate } else { Durability::None })?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in changes {
                match value {
                    Some(value) => drop(table.insert(key, value)?),
                    None => drop(table.remove(key)?),
                }
            }
        }
        Ok(transaction.commit()?)
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
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let value = table.get(key)?;
        value.iter().for_each(|v| seen(v.value()));
        Ok(value.is_some())
    }

    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let mut n = 0;
        for tuple in table.range(start..)?.take(limit as usize) {
            let (key, value) = tuple?;
            seen(key.value(), value.value());
            n += 1;
        }
        Ok(n)
    }

    fn finish(&self) -> Result<()> {
        self.waiting.finish(|changes, sync| self.commit(changes, sync))
    }

    fn flush(&self) -> Result<()> {
        self.commit(&mut std::iter::empty(), true)
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}
