//! The engines under test with one small trait: the calls of a client, with keys and values as
//! slices. Anything else that an engine needs (a batch for each transaction, a buffer of its own)
//! is in its adapter. See `batch`.

mod batch;
mod fjall;
mod kvdb;
mod leveldb;
mod library;
mod lmdb;
mod redb;
mod rocksdb;

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

pub const MIB: u64 = 1 << 20;

/// The settings with which every engine is opened: the same memory and the same journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// A directory of its own.
    pub dir: PathBuf,
    /// Bytes for everything: write buffers and caches.
    pub memory: u64,
    /// Bytes of one write buffer (memtable); engines keep two.
    pub write_buffer: u64,
    /// If set, writes go to a journal that is not synced, otherwise to none.
    pub journal: bool,
    /// kvdb's stitching threshold, bytes; `None`: its default.
    pub stitch_at: Option<u64>,
    /// Values of at least this many bytes lie outside of kvdb's key blocks. `None` means its
    /// default.
    pub separate_at: Option<u32>,
    pub value_bytes: u64,
}

impl Settings {
    /// The memory that the two write buffers leave for caches.
    pub fn cache(&self) -> u64 {
        self.memory.saturating_sub(2 * self.write_buffer).max(8 * MIB)
    }
}

/// An open store.
pub trait Engine: Send + Sync {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;
    fn delete(&self, key: &[u8]) -> Result<()>;
    /// Deletes `[start, end)` with one command. Returns `false` if the engine has none.
    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<bool>;
    /// Passes the value to `seen` in place. Returns `false` if there is none.
    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Visits up to `limit` tuples from `start` on. Returns their number.
    fn scan(&self, start: &[u8], limit: u64, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;
    /// Commits what the adapter still holds back (an unfinished batch).
    fn finish(&self) -> Result<()> {
        Ok(())
    }
    /// Writes memtables out, if the engine has a command for it.
    fn flush(&self) -> Result<()>;
    /// Returns whether the engine reports background work. Engines without such a report are
    /// watched from outside.
    fn busy(&self) -> bool {
        false
    }
    /// Puts that make one transaction.
    fn batch(&self) -> u64 {
        1
    }
    /// The engine's own figures, for the curious.
    fn figures(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    fn close(self: Box<Self>) -> Result<()>;
}

/// All names, in the order of the tables.
pub const NAMES: &[&str] = &[
    "kvdb",
    "rocksdb",
    "rocksdb-universal",
    "rocksdb-blob",
    "rocksdb-new",
    "rocksdb-new-universal",
    "rocksdb-new-blob",
    "leveldb",
    "fjall",
    "fjall-kv",
    "redb",
    "lmdb",
];

/// The reason why a case is not possible for an engine, if it is not.
pub fn unfit(name: &str, journal: bool, value_bytes: u64) -> Option<String> {
    if !NAMES.contains(&name) {
        return Some(format!("no engine is called {name}; there are {}", NAMES.join(", ")));
    }
    if name.starts_with("rocksdb-new") && std::env::var_os(rocksdb::NEW).is_none() {
        return Some(format!("{} names no shared library", rocksdb::NEW));
    }
    let journal_can_be_off = name.starts_with("rocksdb") || name == "kvdb";
    if !journal && !journal_can_be_off {
        return Some("it cannot be run without a journal".into());
    }
    if value_bytes < 1024 && (name.ends_with("-blob") || name.ends_with("-kv")) {
        return Some(
            "values below 1 KiB are not separated, so it is the same as the engine without".into(),
        );
    }
    None
}

/// Returns whether an engine has range deletes.
pub fn deletes_ranges(name: &str) -> bool {
    name == "kvdb" || name.starts_with("rocksdb")
}

/// Opens the store in `settings.dir`, and creates it if necessary.
pub fn open(name: &str, settings: &Settings) -> Result<Box<dyn Engine>> {
    if let Some(why) = unfit(name, settings.journal, settings.value_bytes) {
        bail!("{name}: {why}");
    }
    std::fs::create_dir_all(&settings.dir)?;
    Ok(match name {
        "kvdb" => Box::new(kvdb::Store::open(settings)?),
        "leveldb" => Box::new(leveldb::Store::open(settings)?),
        "fjall" | "fjall-kv" => Box::new(fjall::Store::open(settings, name == "fjall-kv")?),
        "redb" => Box::new(redb::Store::open(settings)?),
        "lmdb" => Box::new(lmdb::Store::open(settings)?),
        _ => Box::new(rocksdb::Store::open(settings, name)?),
    })
}
