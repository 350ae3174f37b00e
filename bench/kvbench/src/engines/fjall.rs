//! fjall, plain and with its key-value separation.

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::{Engine, Settings};

pub struct Store {
    db: Database,
    tuples: Keyspace,
}

impl Store {
    pub fn open(settings: &Settings, separated: bool) -> Result<Store> {
        let db = Database::builder(&settings.dir).cache_size(settings.cache()).open()?;
        // Built without lz4, nothing is compressed; the separation's default is values of 1 KiB or
        // more.
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(settings.write_buffer)
                .with_kv_separation(separated.then(KvSeparationOptions::default))
        };
        let tuples = db.keyspace("bench", options)?;
        Ok(Store { db, tuples })
    }
}

impl Engine for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.tuples.insert(key, value)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.tuples.remove(key)?)
    }

    fn delete_range(&self, _: &[u8], _: &[u8]) -> Result<bool> {
        Ok(false)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.tuples.get(key)?;
        value.iter().for_each(|v| seen(v));
        Ok(value.is_some())
    }

    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut n = 0;
        for tuple in self.tuples.range(start.to_vec()..).take(limit as usize) {
            let (key, value) = tuple.into_inner()?;
            seen(&key, &value);
            n += 1;
        }
        Ok(n)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.tuples.rotate_memtable_and_wait()?)
    }

    fn busy(&self) -> bool {
        self.db.active_compactions() > 0 || self.db.outstanding_flushes() > 0
    }

    fn figures(&self) -> serde_json::Value {
        serde_json::json!({
            "merges": self.db.compactions_completed(), "merging_ms": self.db.time_compacting().as_millis() as u64,
            "tables": self.tuples.table_count(), "blob_files": self.tuples.blob_file_count(),
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }
}
