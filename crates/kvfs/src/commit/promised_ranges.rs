//! Finds the bytes that `fallocate` must promise space for, reserves it, and brings promises up to
//! date with the store. `promises` explains promises and how long they hold.

use env::sync::atomic::Ordering;

use crate::attr::{FileKind, Ino};
use crate::error::Result;
use crate::fs::Fs;
use crate::inode::InodeState;
use crate::layout::{self, Body, ImapKey, PAGE, blocks_of};
use crate::space::promises::Ranges;

impl Fs {
    /// Returns the ranges of `offset..end` that no page holds, waiting or stored.
    pub(crate) fn unwritten(
        &self,
        ino: Ino,
        state: &InodeState,
        offset: u64,
        end: u64,
    ) -> Result<Ranges> {
        let mut ranges = Ranges::default();
        ranges.add(offset, end);
        match state.attr.body {
            Body::Inline(have) => ranges.remove(0, u64::from(have)),
            // In a file without holes, all bytes before the end exist.
            Body::Paged(count) if count == blocks_of(state.attr.size) => {
                ranges.remove(0, state.attr.size);
            }
            Body::Paged(_) => {
                let (first, behind) = (offset / PAGE, blocks_of(end));
                for (block, _) in state.buffer.pages.range(first..behind) {
                    ranges.remove(block * PAGE, (block + 1) * PAGE);
                }
                if state.stored {
                    let behind = behind.min(state.buffer.cut);
                    self.remove_stored(ino, first, behind, &mut ranges)?;
                }
            }
        }
        Ok(ranges)
    }

    /// Removes from `from` the bytes of the stored pages `[first, behind)`.
    fn remove_stored(&self, ino: Ino, first: u64, behind: u64, from: &mut Ranges) -> Result<()> {
        let (start, end) = (layout::page_key(ino, first), layout::page_key(ino, behind));
        if start >= end {
            return Ok(());
        }
        let mut cursor = self.core.scope.cursor(self.core.layout.dmap, &start, &end)?;
        while let Some(tuple) = cursor.next()? {
            let (_, block) = layout::decode_page_key(&tuple.key)?;
            let length = (tuple.value_len() as u64).min(PAGE);
            from.remove(block * PAGE, block * PAGE + length);
        }
        Ok(())
    }

    /// Reserves space to promise these ranges, which no page holds. Fails with ENOSPC if the space
    /// is not available.
    pub(crate) fn reserve_for_promise(&self, ino: Ino, ranges: &Ranges) -> Result<()> {
        let have = self.core.promises.of(ino).unwrap_or_default();
        let mut both = have.clone();
        ranges.iter().for_each(|(from, to)| both.add(from, to));
        match both.pages() - have.pages().min(both.pages()) {
            0 => Ok(()),
            pages => self.reserve(pages.saturating_mul(PAGE)),
        }
    }

    /// Updates the promise of a file to the store's note, after a change that was not made through
    /// this view.
    pub(crate) fn follow_promise(&self, ino: Ino) -> Result<()> {
        let imap = self.core.layout.imap;
        let note = self.core.scope.get(imap, &layout::promise_key(ino))?;
        let noted = note.and_then(|note| Ranges::decode(&note)).unwrap_or_default();
        if noted.is_empty() && !self.core.promises.has(ino) {
            return Ok(());
        }
        let mut ranges = Ranges::default();
        if let Some(node) = self.core.scope.get(imap, &layout::node_key(ino))?
            && let (attr, ..) = layout::decode_node(ino, &node)?
            && attr.kind == FileKind::File
        {
            let state = InodeState::new(attr, None);
            for (from, to) in noted.iter() {
                let missing = self.unwritten(ino, &state, from, to)?;
                missing.iter().for_each(|(from, to)| ranges.add(from, to));
            }
        }
        self.core.promises.change(ino, |have| *have = ranges);
        Ok(())
    }

    /// Sets aside the space of all promises in the store: this view is the mainline.
    pub(crate) fn keep_all_promises(&self) -> Result<()> {
        self.core.promises.all.store(true, Ordering::Relaxed);
        self.follow_promises()?;
        if !self.core.promises.is_empty()
            && self.writable().is_ok()
            && let Err(e) = self.core.promises.back()
        {
            tracing::warn!("the host has no room for all that is promised to files: {e}");
        }
        Ok(())
    }

    /// Forgets the promises of files that were removed by ranges of their numbers.
    pub(crate) fn forget_promises_of_removed(&self) {
        if self.core.promises.is_empty() {
            return;
        }
        let files: Vec<Ino> = self.core.promises.files();
        for ino in files {
            let node = self.core.scope.get(self.core.layout.imap, &layout::node_key(ino));
            if self.core.inode_cache.get(ino).is_none() && matches!(node, Ok(None)) {
                self.core.promises.forget(ino);
            }
        }
    }

    /// Updates the promises of all files to the store's notes. Notes of removed files are ignored.
    pub(crate) fn follow_promises(&self) -> Result<()> {
        let mut files: Vec<Ino> = self.core.promises.files();
        if self.core.promises.all.load(Ordering::Relaxed) {
            let (start, end) = layout::promise_range();
            let mut cursor = self.core.scope.cursor(self.core.layout.imap, &start, &end)?;
            while let Some(tuple) = cursor.next()? {
                if let ImapKey::Promise(ino) = layout::decode_imap_key(&tuple.key)? {
                    files.push(ino);
                }
            }
        }
        files.into_iter().try_for_each(|ino| self.follow_promise(ino))
    }
}
