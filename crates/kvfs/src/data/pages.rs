//! The pages of a file, one by one: those that wait in its buffer, and those that the store has.

use env::sync::atomic::Ordering;

use bytes::Bytes;
use kvdb::ScopeCursor;

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::{DirtyPage, InodeState, Page};
use crate::layout::{self, Body, PAGE, blocks_of};
use crate::partial_page::PartialPage;

/// The size up to which the pages of a file are read together with their neighbours on the device:
/// these are the rest of the file, and other small files. A single page of a larger one is read
/// alone, unless the file is read in order.
const AROUND: u64 = 256 << 10;
/// So are this many pages of one: what a database takes for a page of its own. A reader in order
/// whose requests overtake one another asks for more at a time.
const PIECE: u64 = 16;

impl Fs {
    /// A page as it is now, waiting or stored; `None` where the file has none.
    pub(crate) fn page(&self, ino: Ino, state: &InodeState, block: u64) -> Result<Option<Bytes>> {
        Ok(match state.buffer.pages.get(&block).map(|dirty| &dirty.page) {
            Some(Page::Shared(b)) => Some(b.clone()),
            Some(Page::Own(v)) => Some(Bytes::copy_from_slice(v)),
            Some(Page::Part(part)) => Some(self.whole(ino, state, block, part)?.into()),
            None => self.stored_page(ino, state, block)?,
        })
    }

    /// The page that `part` is of, which is read for it.
    pub(super) fn whole(
        &self,
        ino: Ino,
        state: &InodeState,
        block: u64,
        part: &PartialPage,
    ) -> Result<Vec<u8>> {
        Ok(part.over(&self.stored_page(ino, state, block)?.unwrap_or_default()))
    }

    /// A page as the store has it, unless it is cut off.
    pub(crate) fn stored_page(
        &self,
        ino: Ino,
        state: &InodeState,
        block: u64,
    ) -> Result<Option<Bytes>> {
        if !state.stored || block >= state.buffer.cut {
            return Ok(None);
        }
        let get = || self.core.scope.get(self.core.layout.dmap, &layout::page_key(ino, block));
        let in_order = state.next_page.swap(block + 1, Ordering::Relaxed) == block;
        // The neighbours of a page of a large file are mostly other pages of it.
        let page =
            if in_order || state.attr.size <= AROUND { get()? } else { kvdb::read_alone(get)? };
        if let Some(page) = &page {
            checked_page(ino, page)?;
        }
        Ok(page)
    }

    /// Reads pages of a file, of which the blocks `[first, behind)` were asked for; alone where
    /// their neighbours are other pages of a large file, which is not read in order.
    pub(super) fn read_piece<T>(
        &self,
        state: &InodeState,
        (first, behind): (u64, u64),
        read: impl FnOnce() -> T,
    ) -> T {
        let next = state.next_page.swap(behind, Ordering::Relaxed);
        // The last page of the piece before may be asked for again.
        let in_order = first == next || first + 1 == next;
        if in_order || behind - first > PIECE || state.attr.size <= AROUND {
            read()
        } else {
            kvdb::read_alone(read)
        }
    }

    /// Puts a page into the buffer. Call before the size moves over it: what lies beyond the size
    /// is known not to exist.
    pub(crate) fn put_page(&self, state: &mut InodeState, block: u64, page: Page) {
        let Body::Paged(count) = &mut state.attr.body else {
            debug_assert!(false, "pages belong to paged files");
            return;
        };
        let buffer = &mut state.buffer;
        if let Some(dirty) = buffer.pages.get_mut(&block) {
            dirty.page = page;
            return;
        }
        let blocks = blocks_of(state.attr.size);
        let new = block >= blocks || block >= buffer.cut || !state.stored;
        // Without holes every block below the end exists.
        let dense = *count == blocks;
        if new {
            *count += 1;
        } else if !dense {
            buffer.uncounted += 1;
        }
        buffer.pages.insert(block, DirtyPage { page, counted: new || dense });
    }

    /// How many blocks of `[from, to)` are stored or waiting.
    pub(crate) fn pages_between(
        &self,
        ino: Ino,
        state: &InodeState,
        from: u64,
        to: u64,
    ) -> Result<u64> {
        let mut count = state.buffer.pages.range(from..to).count() as u64;
        if state.stored && from < to.min(state.buffer.cut) {
            let mut stored = self.stored_blocks(ino, from, to.min(state.buffer.cut))?;
            while let Some(block) = stored.next()? {
                if !state.buffer.pages.contains_key(&block) {
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// The blocks of `[from, to)` that the store has pages of, in order, without reading a page.
    pub(crate) fn stored_blocks(&self, ino: Ino, from: u64, to: u64) -> Result<StoredBlocks> {
        let (start, end) = (layout::page_key(ino, from), layout::page_key(ino, to));
        let cursor = self.core.scope.cursor(self.core.layout.dmap, &start, &end)?.keys_only();
        Ok(StoredBlocks { cursor, ino, position: from })
    }
}

/// The value of a page, which may not be longer than a page.
pub(super) fn checked_page(ino: Ino, page: &[u8]) -> Result<&[u8]> {
    if layout::is_lost_page(page.len() as u64) {
        return Err(Error::Corrupt { ino, what: "this part of its content is lost".into() });
    }
    if page.len() as u64 > PAGE {
        return Err(Error::Corrupt { ino, what: format!("a page of {} bytes", page.len()) });
    }
    Ok(page)
}

/// A walk over the page keys of one file.
pub(crate) struct StoredBlocks {
    cursor: ScopeCursor,
    ino: Ino,
    /// The cursor stands before the first stored block at or above this.
    position: u64,
}

impl StoredBlocks {
    pub fn next(&mut self) -> Result<Option<u64>> {
        let Some(tuple) = self.cursor.next()? else { return Ok(None) };
        let (_, block) = layout::decode_page_key(&tuple.key)?;
        self.position = block + 1;
        Ok(Some(block))
    }

    /// The first stored block at or above `block`, which does not go back.
    pub fn next_from(&mut self, block: u64) -> Result<Option<u64>> {
        if block != self.position {
            self.cursor.seek(&layout::page_key(self.ino, block))?;
        }
        self.next()
    }
}
