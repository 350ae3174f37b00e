//! Inode numbers of an open file system: each is noted in the store before it is used.
//! [`crate::inode::inode_allocator`] chooses the next number; [`crate::fs::counter`] reads the
//! notes when the store is opened.

use std::ops::Range;

use kvdb::{Batch, Durability};

use super::Fs;
use crate::attr::Ino;
use crate::error::Result;
use crate::inode::inode_allocator::Note;
use crate::layout::counter::{BOUND_KEY, branch_key, encode_number};
use crate::layout::{self, Attributes};

impl Fs {
    pub(crate) fn new_ino(&self) -> Result<Ino> {
        let ino = self.core.inode_allocator.take()?;
        self.note_numbers_below(ino.saturating_add(1))?;
        Ok(ino)
    }

    /// Returns a number for a new entry of a locked directory, near the numbers of its other
    /// entries. The rest of the reservation is stored with the directory's node.
    pub(crate) fn new_ino_in(&self, dir: Ino, attr: &mut Attributes) -> Result<Ino> {
        let before = attr.reserved;
        let ino = self.core.inode_allocator.take_in(dir, &mut attr.reserved, attr.size)?;
        // The whole reservation is noted, because after a restart other callers get numbers above
        // the noted bound.
        let end = attr.reserved.end.max(ino.saturating_add(1));
        self.note_numbers_below(end).inspect_err(|_| attr.reserved = before)?;
        Ok(ino)
    }

    /// Takes `count` consecutive numbers.
    pub(crate) fn new_inos(&self, count: u64) -> Result<Range<Ino>> {
        let inos = self.core.inode_allocator.take_together(count)?;
        self.note_numbers_below(inos.end)?;
        Ok(inos)
    }

    /// Notes in the store that numbers below `end` may be used. In the journal the note precedes
    /// everything that is made with such a number, even in a durable transaction. (The note of a
    /// mark is written in a call of its branch, and so before or after a rollback of that branch.)
    fn note_numbers_below(&self, end: Ino) -> Result<()> {
        let core = &self.core;
        if core.inode_allocator.is_noted(end) {
            return Ok(());
        }
        core.inode_allocator.note(end, |Note { bound, reserved }| {
            let Some(notes) = core.inode_allocator.counter().notes else { return Ok(()) };
            let mut batch = Batch::new();
            if let Some(bound) = bound {
                batch.put(notes, BOUND_KEY, encode_number(bound));
            }
            if let Some(reserved) = reserved {
                let imap = core.layout.imap;
                batch.put(notes, branch_key(imap), encode_number(reserved.mark));
                batch.put(imap, layout::RESERVED_KEY.to_vec(), reserved.encode());
            }
            let db = core.db.here()?;
            let commit = || db.commit(batch, Durability::Buffered);
            Ok(kvdb::without_lock_waits(commit)?)
        })
    }

    /// Takes a snapshot while no call is in progress. The snapshot contains the reservations of the
    /// directories. When the branch returns to the snapshot, numbers that were allocated from these
    /// reservations in the meantime must not be allocated again, even if nothing else is written
    /// before a kill. So later numbers are allocated under a different mark.
    pub(crate) fn under_another_mark<T>(&self, snapshot: impl FnOnce() -> Result<T>) -> Result<T> {
        self.core.inode_allocator.clear_mark();
        snapshot()
    }
}
