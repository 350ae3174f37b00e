//! An inode in memory: its attributes, and what of it is not committed yet.
//!
//! Order of locks (each may be taken while holding those before it, never the other way):
//!
//! -  the freeze lock of a transaction's view (`freeze_lock`), the turn of the mainline's changes
//!    (`superseded`), the freeze lock of the mainline, in this order; a call takes only that of its
//!    own view, except for `commit_on_mainline` and the note of inode numbers, which enter the
//!    mainline from a transaction's view;
//! 0. the draining lock (`DirtyQueue`), of those who commit what others left dirty;
//! 1. the tree lock (`Core::tree`): every operation that locks more than one directory holds it, so
//!    that directories need no order among themselves;
//! 2. `state` of directories;
//! 3. `state` of other inodes, by ascending number;
//! 4. leaves, never held while taking another: a shard of the inode cache, the dirty queue,
//!    `listing`.
//!
//! Commits happen under the locks of the inodes they write, so that the store sees the states of an
//! inode in their order. Waiting for the disk (`Kvdb::sync`) happens under no lock.

use env::sync::atomic::{AtomicBool, AtomicU64};
use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use env::sync::{Mutex, RwLock};
use kvdb::{Batch, DictionaryId};

use crate::attr::{FileKind, Ino, Timestamp};
use crate::error::Error;
use crate::layout::{Attributes, Body, Xattrs};
use crate::listing::Listing;
use crate::partial_page::PartialPage;

pub(crate) struct Inode {
    pub ino: Ino,
    /// References that the kernel holds. Added to under `state` (shared is enough), so that an
    /// unlink sees all of them.
    pub references: AtomicU64,
    pub state: RwLock<InodeState>,
    pub load: Load,
    /// What keeps positions of a directory valid that was listed.
    pub listing: Mutex<Option<Box<Listing>>>,
}

/// How far an inode is that comes from the store. Set under the lock of the state, which is held
/// while it is loaded.
#[derive(Default)]
pub(crate) struct Load {
    /// Its state is not what the store has, or not yet.
    pub is_missing: AtomicBool,
    /// It never will be, and why, if that is so for others, too: this inode is left, and the next
    /// one of its number is loaded anew.
    pub failed: OnceLock<Option<Box<Error>>>,
}

/// What tells two inodes of one number apart, in states of the store that do not come from each
/// other: numbers are not given twice in one history, and no two inodes with the same number are
/// born in the same nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub kind: FileKind,
    pub birth: Timestamp,
}

impl Identity {
    pub fn of(attr: &Attributes) -> Identity {
        Identity { kind: attr.kind, birth: attr.btime }
    }
}

/// What the locks of an inode protect.
pub(crate) struct InodeState {
    pub attr: Attributes,
    pub xattrs: Option<Box<Xattrs>>,
    /// The node does not exist (any more): it was never found, or its last link and reference are
    /// gone.
    pub gone: bool,
    /// Something in memory is newer than in the store.
    pub dirty: bool,
    /// In the dirty queue.
    pub queued: bool,
    /// The content was changed while the file had no name.
    pub written_nameless: bool,
    /// A directory that a serializable transaction has read without a lock (see `locks`).
    pub read_unlocked: bool,
    /// The store may hold pages of this inode.
    pub stored: bool,
    /// The page behind the one that was read last by itself: who asks for it reads the file in
    /// order.
    pub next_page: AtomicU64,
    /// The store has an orphan record of this inode.
    pub orphaned: bool,
    /// Bytes this inode has in the account of dirty data.
    pub charged: usize,
    /// Content of a small file or symbolic link that is not committed yet. Committed content is not
    /// kept: one `get` brings it.
    pub inline: Option<Bytes>,
    /// Data of a large file that is not committed yet.
    pub buffer: Buffer,
}

/// What is not committed of a file.
pub(crate) struct Buffer {
    pub pages: BTreeMap<u64, DirtyPage>,
    /// Pages in the store at and above this block are dead: cut off, but the range delete is not
    /// committed yet.
    pub cut: u64,
    /// The number of pages here of which it is unknown whether the store, and so the page count,
    /// has them already.
    pub uncounted: usize,
    /// The file has lost its capability, whose value the store still has under a key of its own.
    pub lost_capability: bool,
    /// What is promised to the file is not as its note in the store says.
    pub promise_changed: bool,
}

/// A page that awaits its commit.
pub(crate) struct DirtyPage {
    pub page: Page,
    /// The page count includes it.
    pub counted: bool,
}

/// The bytes of a page; what is missing at its end is zero.
pub(crate) enum Page {
    /// A part of what one write brought.
    Shared(Bytes),
    /// Put together from several writes.
    Own(Vec<u8>),
    /// What small writes have changed of a page that was not read; it lies below the cut.
    Part(PartialPage),
}

impl Page {
    /// Whether all its bytes are here.
    pub fn is_whole(&self) -> bool {
        !matches!(self, Page::Part(_))
    }

    /// This page with other bytes at `at`. Of a partial one, call if there is room for them.
    pub fn with(self, at: usize, bytes: &[u8]) -> Page {
        let mut page = match self {
            Page::Part(mut part) => {
                part.write(at, bytes);
                return Page::Part(part);
            }
            Page::Own(v) => v,
            Page::Shared(b) => {
                let mut copy = Vec::with_capacity(crate::layout::PAGE as usize);
                copy.extend_from_slice(&b);
                copy
            }
        };
        if page.len() < at + bytes.len() {
            page.resize(at + bytes.len(), 0);
        }
        page[at..at + bytes.len()].copy_from_slice(bytes);
        Page::Own(page)
    }

    /// Adds it to a batch as the page with this key; an own page becomes shared without a copy.
    pub fn stage(&mut self, batch: &mut Batch, dmap: DictionaryId, key: Bytes) {
        match self {
            Page::Shared(b) => batch.put(dmap, key, b.clone()),
            Page::Own(v) => {
                let shared = Bytes::from(std::mem::take(v));
                batch.put(dmap, key, shared.clone());
                *self = Page::Shared(shared);
            }
            Page::Part(part) => batch.update(dmap, key, part.update()),
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer {
            pages: BTreeMap::new(),
            cut: u64::MAX,
            uncounted: 0,
            lost_capability: false,
            promise_changed: false,
        }
    }
}

impl Inode {
    pub fn new(ino: Ino, state: InodeState, references: u64) -> Self {
        Inode {
            ino,
            references: AtomicU64::new(references),
            state: RwLock::new(state),
            load: Load::default(),
            listing: Mutex::new(None),
        }
    }
}

impl InodeState {
    pub fn new(attr: Attributes, xattrs: Option<Xattrs>) -> Self {
        let stored = matches!(attr.body, Body::Paged(1..));
        InodeState {
            attr,
            xattrs: xattrs.map(Box::new),
            gone: false,
            dirty: false,
            queued: false,
            written_nameless: false,
            read_unlocked: false,
            stored,
            next_page: AtomicU64::new(0),
            orphaned: false,
            charged: 0,
            inline: None,
            buffer: Buffer::default(),
        }
    }

    /// The state of an inode that is not loaded yet, or does not exist.
    pub fn absent() -> Self {
        let t = Timestamp::default();
        let attr = Attributes {
            kind: FileKind::File,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            body: Body::Inline(0),
            parent: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            reserved: Default::default(),
        };
        InodeState { gone: true, ..InodeState::new(attr, None) }
    }

    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Dir
    }

    /// The store may have values of extended attributes under keys of their own.
    pub fn has_external_xattrs(&self) -> bool {
        self.buffer.lost_capability
            || self.xattrs.as_ref().is_some_and(|x| {
                x.values().any(|v| matches!(v, crate::layout::XattrValue::External(_)))
            })
    }
}
