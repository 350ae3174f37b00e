//! Inode numbers of an open file system: each is noted in the store before it is used. Which number
//! comes next is the business of [`crate::inode_allocator`]; what a store says of its numbers when
//! it is opened, that of [`crate::fs::counter`].

use std::ops::Range;

use kvdb::{Batch, Durability};

use super::Fs;
use crate::attr::Ino;
use crate::error::Result;
use crate::inode_allocator::Note;
use crate::layout::counter::{BOUND_KEY, branch_key, encode_number};
use crate::layout::{self, Attributes};

impl Fs {
    pub(crate) fn new_ino(&self) -> Result<Ino> {
        let ino = self.core.inode_allocator.take()?;
        self.note_numbers_below(ino.saturating_add(1))?;
        Ok(ino)
    }

    /// A number for something that is made in a directory, which is locked: near those of its other
    /// entries. What is left of the reservation goes into the store with the directory's node.
    pub(crate) fn new_ino_in(&self, dir: Ino, attr: &mut Attributes) -> Result<Ino> {
        let before = attr.reserved;
        let ino = self.core.inode_allocator.take_in(dir, &mut attr.reserved, attr.size)?;
        // All of it: a bound that lies within it would be passed by others after a restart.
        let end = attr.reserved.end.max(ino.saturating_add(1));
        self.note_numbers_below(end).inspect_err(|_| attr.reserved = before)?;
        Ok(ino)
    }

    /// Takes `count` numbers that follow one another.
    pub(crate) fn new_inos(&self, count: u64) -> Result<Range<Ino>> {
        let inos = self.core.inode_allocator.take_together(count)?;
        self.note_numbers_below(inos.end)?;
        Ok(inos)
    }

    /// In the journal the note comes before whatever is made with such a number, in a durable
    /// transaction, too. (That of a mark is written in a call of its branch, and so before or after
    /// a rollback of that.)
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

    /// Takes a snapshot. What directories have reserved is in it: when the branch goes back to it,
    /// numbers that were given out of that since must not be given again, even if nothing else is
    /// written before a kill. So these are given under another mark. No call is under way.
    pub(crate) fn under_another_mark<T>(&self, snapshot: impl FnOnce() -> Result<T>) -> Result<T> {
        self.core.inode_allocator.clear_mark();
        snapshot()
    }
}
