//! This project's engine: one dictionary in one file, one commit a put.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use env::Machine;
use kvdb::{Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::FileDevice;

use super::{Engine, Settings};

/// A scan of up to this many tuples requests them together, and a longer one uses a cursor.
const TOGETHER: u64 = 256;

pub struct Store {
    db: Kvdb,
    dictionary: DictionaryId,
}

impl Store {
    pub fn open(settings: &Settings) -> Result<Store> {
        let path = settings.dir.join("store.kvfs");
        let open = OpenOptions {
            memory: settings.memory as usize,
            journal: settings.journal,
            ..OpenOptions::default()
        };
        let machine = Arc::new(Machine::default());
        let db = if path.exists() {
            Kvdb::open(Arc::new(FileDevice::open(&path, false)?), machine, open)?.0
        } else {
            Kvdb::create(
                Arc::new(FileDevice::create(&path)?),
                machine,
                CreateOptions { open, ..CreateOptions::default() },
            )?
        };
        let default = DictionaryOptions::default();
        let options = DictionaryOptions {
            stitch_at: settings.stitch_at.unwrap_or(default.stitch_at),
            separate_at: settings.separate_at.unwrap_or(default.separate_at),
            ..default
        };
        let dictionary = match db.dictionary("bench") {
            Some(d) => d,
            None => db.create_dictionary("bench", options)?,
        };
        Ok(Store { db, dictionary })
    }
}

impl Engine for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put(self.dictionary, key, value, Durability::Buffered)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(self.dictionary, Bytes::copy_from_slice(key));
        Ok(self.db.commit(batch, Durability::Buffered)?)
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.delete_range(
            self.dictionary,
            Bytes::copy_from_slice(start),
            Bytes::copy_from_slice(end),
        );
        self.db.commit(batch, Durability::Buffered)?;
        Ok(true)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get(self.dictionary, key)?;
        value.iter().for_each(|v| seen(v));
        Ok(value.is_some())
    }

    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let view = self.db.view();
        if limit <= TOGETHER {
            let tuples = view.scan(self.dictionary, start, b"", limit as usize)?;
            tuples.iter().for_each(|(k, v)| seen(k, v));
            return Ok(tuples.len() as u64);
        }
        let mut n = 0;
        view.for_each(self.dictionary, start, b"", |k, v| {
            seen(k, v);
            n += 1;
            if n < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(n)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn busy(&self) -> bool {
        !self.db.stats().at_rest
    }

    fn figures(&self) -> serde_json::Value {
        let s = self.db.stats();
        let levels: Vec<usize> =
            s.dictionaries.iter().flat_map(|d| d.levels.iter().map(Vec::len)).collect();
        serde_json::json!({
            "flushes": s.flushes, "merges": s.compactions, "stitched_bytes": s.stitched_bytes, "merged_bytes": s.merged_bytes,
            "delays": s.delays, "delayed_ms": s.delayed_micros / 1000, "stops": s.stops, "runs_by_level": levels,
            "written_by_purpose": format!("{:?}", s.io), "bound_bytes": s.bound_bytes,
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}
