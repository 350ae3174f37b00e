//! The content of the files of one view: pages that wait in the buffers of inodes, and those in the
//! store. `data` calls this with the lock of the inode.

pub(crate) mod compress;
pub(crate) mod lost;
pub(crate) mod name_order;
mod read;
mod read_plan;
pub(crate) mod reading_ahead;

use env::sync::atomic::Ordering;

use bytes::Bytes;
use kvdb::{Scope, ScopeCursor};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::inode::partial_page::PartialPage;
use crate::inode::{DirtyPage, InodeState, Page};
use crate::layout::{self, Body, Layout, PAGE, blocks_of};

/// The file size up to which a page is read together with its neighbours on the device, which are
/// the rest of the file and other small files. A single page of a larger file is read alone, unless
/// the file is read in order.
const AROUND: u64 = 256 << 10;
/// The number of pages up to which a larger file is read without neighbours, too. It covers the
/// page size of a database. A sequential reader whose requests overtake one another requests more
/// pages at a time.
const PIECE: u64 = 16;

/// The stored content of the files of a view.
pub(crate) struct Pages {
    scope: Scope,
    layout: Layout,
}

impl Pages {
    /// Returns the content of the files in `scope`, which is in the dictionaries of `layout`.
    pub fn new(scope: Scope, layout: Layout) -> Pages {
        Pages { scope, layout }
    }

    /// Returns the current content of a page, waiting or stored, or `None` if the file does not
    /// have the page.
    pub fn page(&self, ino: Ino, state: &InodeState, block: u64) -> Result<Option<Bytes>> {
        Ok(match state.buffer.pages.get(&block).map(|dirty| &dirty.page) {
            Some(Page::Shared(b)) => Some(b.clone()),
            Some(Page::Own(v)) => Some(Bytes::copy_from_slice(v)),
            Some(Page::Part(part)) => Some(self.whole(ino, state, block, part)?.into()),
            None => self.stored_page(ino, state, block)?,
        })
    }

    /// Returns the whole page of which `part` holds changes; the rest is read from the store.
    pub fn whole(
        &self,
        ino: Ino,
        state: &InodeState,
        block: u64,
        part: &PartialPage,
    ) -> Result<Vec<u8>> {
        Ok(part.over(&self.stored_page(ino, state, block)?.unwrap_or_default()))
    }

    /// Returns the stored form of a page, unless it is cut off.
    pub fn stored_page(&self, ino: Ino, state: &InodeState, block: u64) -> Result<Option<Bytes>> {
        if !state.stored || block >= state.buffer.cut {
            return Ok(None);
        }
        let get = || self.scope.get(self.layout.dmap, &layout::page_key(ino, block));
        let in_order = state.next_page.swap(block + 1, Ordering::Relaxed) == block;
        // The neighbours of a page of a large file are mostly other pages of the same file.
        let page =
            if in_order || state.attr.size <= AROUND { get()? } else { kvdb::read_alone(get)? };
        if let Some(page) = &page {
            checked_page(ino, page)?;
        }
        Ok(page)
    }

    /// Runs `read`, which reads the blocks `[first, behind)` of a file. It reads them without their
    /// neighbours if those are other pages of a large file that is not read in order.
    fn read_piece<T>(
        &self,
        state: &InodeState,
        (first, behind): (u64, u64),
        read: impl FnOnce() -> T,
    ) -> T {
        let next = state.next_page.swap(behind, Ordering::Relaxed);
        // A sequential reader may ask again for the last page of the previous read.
        let in_order = first == next || first + 1 == next;
        if in_order || behind - first > PIECE || state.attr.size <= AROUND {
            read()
        } else {
            kvdb::read_alone(read)
        }
    }

    /// Puts a page into the buffer. The caller moves the size over the page afterwards: until then
    /// a page at or after the size is known not to exist.
    pub fn put(&self, state: &mut InodeState, block: u64, page: Page) {
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
        // A file without holes has every block below its end.
        let dense = *count == blocks;
        if new {
            *count += 1;
        } else if !dense {
            buffer.uncounted += 1;
        }
        buffer.pages.insert(block, DirtyPage { page, counted: new || dense });
    }

    /// Returns the number of blocks in `[from, to)` that are stored or waiting.
    pub fn between(&self, ino: Ino, state: &InodeState, from: u64, to: u64) -> Result<u64> {
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

    /// Makes the page count exact: looks up whether pages that were written without reading replace
    /// stored ones.
    pub fn count(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        if state.buffer.uncounted == 0 {
            return Ok(());
        }
        let Body::Paged(mut count) = state.attr.body else {
            return Err(Error::Corrupt {
                ino,
                what: "uncounted pages in a file without pages".into(),
            });
        };
        let uncounted = || {
            state.buffer.pages.iter().filter(|(_, dirty)| !dirty.counted).map(|(&block, _)| block)
        };
        let (first, last) = (uncounted().next().unwrap_or(0), uncounted().next_back().unwrap_or(0));
        let mut stored = self.stored_blocks(ino, first, last + 1)?;
        let mut next = stored.next_from(first)?;
        let mut new = Vec::with_capacity(state.buffer.uncounted);
        for block in uncounted() {
            if next.is_some_and(|n| n < block) {
                next = stored.next_from(block)?;
            }
            // A page above the cut is dead, even if the store still has it.
            if next != Some(block) || block >= state.buffer.cut {
                count += 1;
            }
            new.push(block);
        }
        for block in new {
            if let Some(dirty) = state.buffer.pages.get_mut(&block) {
                dirty.counted = true;
            }
        }
        state.buffer.uncounted = 0;
        state.attr.body = Body::Paged(count);
        Ok(())
    }

    /// Returns a walk over the blocks in `[from, to)` that have pages in the store, in order. No
    /// page is read.
    pub fn stored_blocks(&self, ino: Ino, from: u64, to: u64) -> Result<StoredBlocks> {
        let (start, end) = (layout::page_key(ino, from), layout::page_key(ino, to));
        let cursor = self.scope.cursor(self.layout.dmap, &start, &end)?.keys_only();
        Ok(StoredBlocks { cursor, ino, position: from })
    }
}

/// Checks the value of a page, which must not be longer than a page, and returns it.
fn checked_page(ino: Ino, page: &[u8]) -> Result<&[u8]> {
    if layout::is_lost_page(page.len() as u64) {
        return Err(Error::Corrupt { ino, what: "this part of its content is lost".into() });
    }
    if page.len() as u64 > PAGE {
        return Err(Error::Corrupt { ino, what: format!("a page of {} bytes", page.len()) });
    }
    Ok(page)
}

/// A walk over the page keys of a file.
pub(crate) struct StoredBlocks {
    cursor: ScopeCursor,
    ino: Ino,
    /// The cursor is before the first stored block at or above this position.
    position: u64,
}

impl StoredBlocks {
    pub fn next(&mut self) -> Result<Option<u64>> {
        let Some(tuple) = self.cursor.next()? else { return Ok(None) };
        let (_, block) = layout::decode_page_key(&tuple.key)?;
        self.position = block + 1;
        Ok(Some(block))
    }

    /// Returns the first stored block at or above `block`, which must not decrease between calls.
    pub fn next_from(&mut self, block: u64) -> Result<Option<u64>> {
        if block != self.position {
            self.cursor.seek(&layout::page_key(self.ino, block))?;
        }
        self.next()
    }
}
