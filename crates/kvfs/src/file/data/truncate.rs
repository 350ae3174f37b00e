//! Changes the size of files: the part that is cut off is removed from the buffer at once, and from
//! the store with the inode's next commit.

use std::sync::Arc;

use bytes::Bytes;

use super::MAX_SIZE;
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::{DirtyPage, Inode, InodeState, Page};
use crate::layout::{Body, PAGE, blocks_of};

impl Fs {
    /// Sets the size without committing the change. The range delete of the part that is cut off is
    /// committed with the inode.
    pub(crate) fn truncate(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        size: u64,
    ) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Error::TooLarge);
        }
        let old = state.attr.size;
        match state.attr.body {
            Body::Inline(have) if size < u64::from(have) => {
                state.inline = Some(Bytes::copy_from_slice(
                    &self.core.pages.content(inode.ino, state)?[..size as usize],
                ));
                state.attr.body = Body::Inline(size as u32);
            }
            Body::Paged(_) if size < old => self.cut(inode.ino, state, size)?,
            _ => {}
        }
        if size <= old {
            self.core.promises.release(inode.ino, state, size, u64::MAX);
        }
        state.attr.size = size;
        Ok(())
    }

    fn cut(&self, ino: Ino, state: &mut InodeState, size: u64) -> Result<()> {
        if size == 0 {
            state.buffer.pages.clear();
            state.buffer.uncounted = 0;
            state.buffer.cut = 0;
            state.attr.body = Body::Inline(0);
            state.inline = None;
            return Ok(());
        }
        self.core.pages.count(ino, state)?;
        let (kept, blocks) = (blocks_of(size), blocks_of(state.attr.size));
        let Body::Paged(count) = state.attr.body else { return Ok(()) };
        // Read all pages that are needed before anything changes.
        let count = if count == blocks {
            kept
        } else if kept <= blocks - kept {
            self.core.pages.between(ino, state, 0, kept)?
        } else {
            // In a damaged store there may be more pages than the node says.
            count.saturating_sub(self.core.pages.between(ino, state, kept, blocks)?)
        };
        // The page that contains the new end keeps only its first bytes.
        let rest = (size % PAGE) as usize;
        if rest > 0 {
            let block = kept - 1;
            let joined = match state.buffer.pages.get(&block).map(|dirty| &dirty.page) {
                Some(Page::Part(part)) => Some(self.core.pages.whole(ino, state, block, part)?),
                _ => None,
            };
            if let Some(dirty) = state.buffer.pages.get_mut(&block) {
                if let Some(joined) = joined {
                    dirty.page = Page::Own(joined);
                }
                match &mut dirty.page {
                    Page::Shared(b) => b.truncate(rest),
                    Page::Own(v) => v.truncate(rest),
                    Page::Part(_) => debug_assert!(false, "it was made whole"),
                }
            } else if let Some(page) = self.core.pages.stored_page(ino, state, block)?
                && page.len() > rest
            {
                let page = Page::Own(page[..rest].to_vec());
                state.buffer.pages.insert(block, DirtyPage { page, counted: true });
            }
        }
        state.buffer.pages.split_off(&kept);
        state.buffer.cut = state.buffer.cut.min(kept);
        state.attr.body = Body::Paged(count);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use kvdb::{Batch, Durability, Kvdb};

    use super::*;
    use crate::layout::{self, Attributes};
    use crate::{Caller, FileKind, FsOptions, ROOT, SetAttr};

    #[test]
    fn a_page_count_that_is_too_small_does_not_pass_below_zero() {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
        let caller = Caller::default();
        let ino = fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, caller).unwrap().ino;
        fs.write(ino, 0, &[7; 10 * PAGE as usize], Default::default()).unwrap();
        fs.shutdown().unwrap();
        let imap = fs.core.layout.imap;
        let node = db.get(imap, &layout::node_key(ino)).unwrap().unwrap();
        let (attr, ..) = layout::decode_node(ino, &node).unwrap();
        let short = Attributes { body: Body::Paged(1), ..attr };
        let mut batch = Batch::new();
        batch.put(imap, layout::node_key(ino), layout::encode_node(&short, None, b""));
        db.commit(batch, Durability::Buffered).unwrap();
        let fs = Fs::open(db, env, FsOptions::default()).unwrap();
        let size = 8 * PAGE;
        let cut = fs.setattr(ino, &SetAttr { size: Some(size), ..Default::default() }, caller);
        assert_eq!(cut.unwrap().size, size);
        fs.shutdown().unwrap();
        assert_eq!(fs.read(ino, 0, u32::MAX).unwrap()[..], vec![7; size as usize]);
    }
}
