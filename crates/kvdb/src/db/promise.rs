//! Promises space for data that is not committed yet. A file system completes a write once it is in
//! memory, and commits it later. Other commits must not fill the store before that.

use env::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::db::Kvdb;
use crate::db::database::Database;
use crate::error::Result;

/// Space that the store keeps free for batches that take promised space
/// ([`Batch::takes_promised_space`](crate::Batch::takes_promised_space)). The owner checks with
/// [`Kvdb::space`] that there is enough space before it promises more. Dropping the `PromisedSpace`
/// releases the space.
#[derive(Default)]
pub struct PromisedSpace {
    /// The store, or `None` if the promised data will never be committed to a store.
    db: Option<Arc<Database>>,
    bytes: AtomicU64,
}

impl Kvdb {
    /// Makes an empty promise of space, for an owner that accepts data and commits it later.
    pub fn promised_space(&self) -> PromisedSpace {
        PromisedSpace { db: Some(self.db.clone()), bytes: AtomicU64::new(0) }
    }
}

impl PromisedSpace {
    /// Promises another `bytes` bytes.
    pub fn grow(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(db) = &self.db {
            db.engine.zones.promise(bytes);
        }
    }

    /// Makes the host allocate the space of all promises to the store, so that they are kept even
    /// if other programs fill the host's disk. Fails with [`Error::NoSpace`](crate::Error::NoSpace)
    /// if the host does not have enough space. Does nothing if the host cannot allocate space in
    /// advance.
    pub fn back(&self) -> Result<()> {
        self.db.as_ref().map_or(Ok(()), |db| Ok(db.engine.zones.back_promises()?))
    }

    /// Releases `bytes` bytes that were committed or never will be.
    pub fn shrink(&self, bytes: u64) {
        // Another call may already have released all of the space.
        if self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |had| had.checked_sub(bytes))
            .is_ok()
        {
            self.release(bytes);
        }
    }

    /// Releases all of the promised space, because none of its data will be committed any more.
    pub fn give_back(&self) {
        self.release(self.bytes.swap(0, Ordering::Relaxed));
    }

    fn release(&self, bytes: u64) {
        if let Some(db) = &self.db {
            db.engine.zones.release(bytes);
        }
    }
}

impl Drop for PromisedSpace {
    fn drop(&mut self) {
        self.give_back();
    }
}
