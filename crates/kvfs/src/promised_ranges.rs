//! What is promised to a file by `fallocate`, as its calls and the store change it. What a promise
//! is, and for how long it holds: `promises`.

use env::sync::atomic::Ordering;
use kvdb::Batch;

use crate::attr::{Attr, FileKind, Ino};
use crate::error::Result;
use crate::fs::Fs;
use crate::inode::InodeState;
use crate::layout::{self, Body, ImapKey, PAGE, blocks_of};
use crate::promises::Ranges;

impl Fs {
    /// How many of the bytes that a write brings are promised no space yet; `None`: all are.
    pub(crate) fn not_promised(&self, ino: Ino, offset: u64, end: u64) -> Option<u64> {
        let promised = self.core.promises.pages_within(ino, offset, end);
        match promised == blocks_of(end) - offset / PAGE {
            true => None,
            false => Some((end - offset).saturating_sub(promised * PAGE)),
        }
    }

    /// The bytes of a range that no page holds, waiting or stored.
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
            // Without holes nothing is missing before the end.
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

    /// Takes out what the stored pages from `first` on hold.
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

    /// Fails with ENOSPC where the space of these ranges, which no page holds, can be promised
    /// no more.
    pub(crate) fn reserve_for_promise(&self, ino: Ino, ranges: &Ranges) -> Result<()> {
        let have = self.core.promises.of(ino).unwrap_or_default();
        let mut both = have.clone();
        ranges.iter().for_each(|(from, to)| both.add(from, to));
        match both.pages() - have.pages().min(both.pages()) {
            0 => Ok(()),
            pages => self.reserve(pages.saturating_mul(PAGE)),
        }
    }

    /// Promises space to ranges of a file, whose inode is locked; the note goes with its next
    /// commit.
    pub(crate) fn promise(&self, ino: Ino, state: &mut InodeState, ranges: &Ranges) {
        if !ranges.is_empty() {
            self.core.promises.change(ino, |have| {
                ranges.iter().for_each(|(from, to)| have.add(from, to));
            });
            state.buffer.promise_changed = true;
        }
    }

    /// These bytes are written now, and take the space that they have in the account of what is
    /// dirty.
    pub(crate) fn keep_promise(&self, ino: Ino, state: &mut InodeState, from: u64, to: u64) {
        if self.core.promises.pages_within(ino, from, to) > 0 {
            self.core.promises.change(ino, |ranges| ranges.remove(from, to));
            // The last of them takes the note away.
            state.buffer.promise_changed |= !self.core.promises.has(ino);
        }
    }

    /// These bytes are cut off, or become a hole.
    pub(crate) fn release_promise(&self, ino: Ino, state: &mut InodeState, from: u64, to: u64) {
        if self.core.promises.pages_within(ino, from, to) > 0 {
            self.core.promises.change(ino, |ranges| ranges.remove(from, to));
            state.buffer.promise_changed = true;
        }
    }

    /// Adds the note of what is promised to a file to its commit.
    pub(crate) fn stage_promise(&self, ino: Ino, links: u32, batch: &mut Batch) {
        let key = layout::promise_key(ino);
        match self.core.promises.of(ino).filter(|_| links > 0) {
            Some(ranges) => batch.put(self.core.layout.imap, key, ranges.encode()),
            None => batch.delete(self.core.layout.imap, key),
        }
    }

    /// Attributes with what is promised: it counts as taken.
    pub(crate) fn with_promise(&self, attr: Attr) -> Attr {
        match self.core.promises.pages_within(attr.ino, 0, u64::MAX) {
            0 => attr,
            pages => Attr { blocks: attr.blocks.saturating_add(pages * (PAGE / 512)), ..attr },
        }
    }

    /// Has what is promised to a file be what the store says, after a change that did not come
    /// through this view.
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

    /// Sets aside what is noted in the store: this is the mainline.
    pub(crate) fn keep_all_promises(&self) -> Result<()> {
        self.core.promises.all.store(true, Ordering::Relaxed);
        self.follow_promises()
    }

    /// Forgets what was promised to files that were removed by their numbers alone.
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

    /// The same for all files. Notes of files that are no more are of no account.
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
