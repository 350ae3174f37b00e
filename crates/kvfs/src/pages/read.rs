//! Reads ranges of pages: those that wait in the buffer hide those in the store.

use bytes::Bytes;

use super::{Pages, checked_page};
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::inode::{DirtyPage, InodeState, Page};
use crate::layout::{self, Body, PAGE, blocks_of};

impl Pages {
    /// Returns up to `len` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, ino: Ino, state: &InodeState, offset: u64, len: u64) -> Result<Bytes> {
        let end = offset.saturating_add(len).min(state.attr.size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        if let Body::Inline(have) = state.attr.body {
            let have = u64::from(have);
            let mut data = Vec::new();
            if offset < have {
                let content = self.content(ino, state)?;
                if end <= have {
                    return Ok(content.slice(offset as usize..end as usize));
                }
                data.extend_from_slice(&content[offset as usize..]);
            }
            data.resize((end - offset) as usize, 0);
            return Ok(data.into());
        }
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        if first == last {
            let from = (offset % PAGE) as usize;
            let to = from + (end - offset) as usize;
            let page = self.page(ino, state, first)?.unwrap_or_default();
            if page.len() >= to {
                return Ok(page.slice(from..to));
            }
            let mut data = page.get(from..).unwrap_or_default().to_vec();
            data.resize(to - from, 0);
            return Ok(data.into());
        }
        let mut data = vec![0; (end - offset) as usize];
        self.read_into(ino, state, offset, &mut data)?;
        Ok(data.into())
    }

    /// Fills `room` with the stored and waiting pages from `offset` on, merging the two in order. A
    /// waiting page hides the stored page of its block.
    pub fn read_into(
        &self,
        ino: Ino,
        state: &InodeState,
        offset: u64,
        room: &mut [u8],
    ) -> Result<()> {
        let end = offset + room.len() as u64;
        let (first, behind) = (offset / PAGE, blocks_of(end));
        let mut waiting = state.buffer.pages.range(first..behind).peekable();
        let whole = |&(_, dirty): &(&u64, &DirtyPage)| dirty.page.is_whole();
        let all_waiting = !state.buffer.pages.is_empty()
            && state.buffer.pages.range(first..behind).filter(whole).count() as u64
                == behind - first;
        let stored = if all_waiting || !state.stored || first >= state.buffer.cut {
            Vec::new()
        } else {
            let (start, stop) =
                (layout::page_key(ino, first), layout::page_key(ino, behind.min(state.buffer.cut)));
            let scan = || {
                let dmap = self.layout.dmap;
                self.scope.scan(dmap, &start, &stop, (behind - first) as usize)
            };
            self.read_piece(state, (first, behind), scan)?
        };
        let mut stored = stored.into_iter().peekable();
        let mut filled = 0;
        loop {
            let stored_block = match stored.peek() {
                Some((key, _)) => Some(layout::decode_page_key(key)?.1),
                None => None,
            };
            let waiting_block = waiting.peek().map(|(block, _)| **block);
            let Some(block) = waiting_block.into_iter().chain(stored_block).min() else { break };
            let dirty = waiting.next_if(|(b, _)| **b == block);
            let page = if stored_block == Some(block) { stored.next() } else { None };
            let stored_bytes = || page.as_ref().map_or(Ok(&[][..]), |(_, v)| checked_page(ino, v));
            let joined;
            let bytes: &[u8] = match dirty.map(|(_, dirty)| &dirty.page) {
                Some(Page::Shared(b)) => b,
                Some(Page::Own(v)) => v,
                Some(Page::Part(part)) => {
                    joined = part.over(stored_bytes()?);
                    &joined
                }
                None => stored_bytes()?,
            };
            let start = block * PAGE;
            let skip = offset.saturating_sub(start) as usize;
            let take = (end - start).min(PAGE) as usize;
            let bytes = bytes.get(skip..bytes.len().min(take)).unwrap_or_default();
            // Zeroes the holes and the ends of short pages before this page.
            let at = (start.max(offset) - offset) as usize;
            room[filled..at].fill(0);
            filled = at + bytes.len();
            room[at..filled].copy_from_slice(bytes);
        }
        room[filled..].fill(0);
        Ok(())
    }

    /// Returns the inline content of an inode, from memory or from the store.
    pub fn content(&self, ino: Ino, state: &InodeState) -> Result<Bytes> {
        match (state.attr.body, &state.inline) {
            (Body::Paged(_) | Body::Inline(0), _) => Ok(Bytes::new()),
            (_, Some(content)) => Ok(content.clone()),
            (Body::Inline(len), None) => {
                let corrupt = |what: &str| Error::Corrupt { ino, what: what.into() };
                let value = self.scope.get(self.layout.imap, &layout::node_key(ino))?;
                let (_, _, content) = layout::decode_node(
                    ino,
                    &value.ok_or_else(|| corrupt("its node is missing"))?,
                )?;
                if content.len() != len as usize {
                    return Err(corrupt("its content changed in the store while it was open"));
                }
                Ok(content)
            }
        }
    }
}
