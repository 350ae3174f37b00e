//! An inode in memory: its attributes and its uncommitted changes.
//!
//! Lock order (each lock may be taken while holding those before it, never the other way round):
//!
//! - the freeze lock of a transaction's view (`freeze_lock`), the turn of the mainline's changes
//!   (`superseded`), the freeze lock of the mainline, in this order; a call takes only the freeze
//!   lock of its own view, except for `commit_on_mainline` and the note of inode numbers, which
//!   enter the mainline from a transaction's view;
//! 0. the draining lock (`DirtyQueue`), held by threads that commit dirty inodes of other threads;
//! 1. the tree lock (`Names::lock_tree`): every operation that locks more than one directory holds
//!    the tree lock, so directories need no lock order between them;
//! 2. `state` of directories;
//! 3. `state` of other inodes, by ascending number;
//! 4. leaves, never held while taking another: a shard of the inode cache, the dirty queue,
//!    `listing`.
//!
//! Inodes are committed under their locks, so that the store sees the states of an inode in order.
//! No lock is held while a thread waits for the disk (`Kvdb::sync`).

pub(crate) mod dirty_queue;
pub(crate) mod inode_allocator;
pub(crate) mod inode_cache;
pub(crate) mod inodes;
pub(crate) mod listing;
pub(crate) mod locks;
pub(crate) mod partial_page;
pub(crate) mod privileges;

use env::sync::atomic::{AtomicBool, AtomicU64};
use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use env::sync::{Mutex, RwLock};
use kvdb::{Batch, DictionaryId};

use self::listing::Listing;
use self::partial_page::PartialPage;
use crate::attr::{FileKind, Ino, Timestamp};
use crate::error::Error;
use crate::layout::{Attributes, Body, Xattrs};

pub(crate) struct Inode {
    pub ino: Ino,
    /// The number of references that the kernel holds. It is increased under `state` (shared is
    /// enough), so that an unlink sees all references.
    pub references: AtomicU64,
    pub state: RwLock<InodeState>,
    pub load: Load,
    /// The state that keeps the positions of a listed directory valid.
    pub listing: Mutex<Option<Box<Listing>>>,
}

/// The progress of loading an inode from the store. It is set under the lock of `state`, which is
/// held while the inode is loaded.
#[derive(Default)]
pub(crate) struct Load {
    /// The state is not loaded yet, or the load has failed.
    pub is_missing: AtomicBool,
    /// Set if the load has failed, with the error if it applies to waiting callers as well. The
    /// inode is dropped, and the next access to its number loads it again.
    pub failed: OnceLock<Option<Box<Error>>>,
}

/// Distinguishes two inodes of one number in states of the store that do not descend from each
/// other. Within one history a number is assigned only once, and no two inodes of the same number
/// are born in the same nanosecond.
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

/// The state of an inode that its lock protects.
pub(crate) struct InodeState {
    pub attr: Attributes,
    pub xattrs: Option<Box<Xattrs>>,
    /// The node does not exist: it was never found, or its last link and reference were removed.
    pub gone: bool,
    /// The state in memory is newer than the state in the store.
    pub dirty: bool,
    /// The inode is in the dirty queue.
    pub queued: bool,
    /// The content, or an extended attribute that is stored outside of the node, was changed while
    /// the file had no name.
    pub written_nameless: bool,
    /// A directory that a serializable transaction has read without a lock (see `locks`).
    pub read_unlocked: bool,
    /// The store may hold pages of this inode.
    pub stored: bool,
    /// The page that follows the last page that was read separately. A reader that requests this
    /// page next reads the file in order.
    pub next_page: AtomicU64,
    /// The store has an orphan record of this inode.
    pub orphaned: bool,
    /// The number of bytes charged to the account of dirty data.
    pub charged: usize,
    /// The uncommitted content of a small file or symbolic link. Committed content is not kept,
    /// because a single `get` reads it.
    pub inline: Option<Bytes>,
    /// The uncommitted data of a large file.
    pub buffer: Buffer,
}

/// The uncommitted changes of a file's data.
pub(crate) struct Buffer {
    pub pages: BTreeMap<u64, DirtyPage>,
    /// The first dead block. Pages in the store at and above this block are cut off, but the range
    /// delete is not committed yet.
    pub cut: u64,
    /// The number of pages in the buffer for which it is unknown whether the store, and so the page
    /// count, already has them.
    pub uncounted: usize,
    /// The file has lost its capability, but the value of the capability is still in the store
    /// under a separate key.
    pub lost_capability: bool,
    /// The file's promise differs from its note in the store.
    pub promise_changed: bool,
}

/// A page that waits to be committed.
pub(crate) struct DirtyPage {
    pub page: Page,
    /// The page count includes this page.
    pub counted: bool,
}

/// The bytes of a page. Bytes missing at its end are zero.
pub(crate) enum Page {
    /// A slice of the data of one write.
    Shared(Bytes),
    /// A page assembled from several writes.
    Own(Vec<u8>),
    /// The bytes that small writes have changed in a page that was not read. The page is below the
    /// cut.
    Part(PartialPage),
}

impl Page {
    /// Returns whether all bytes of the page are present.
    pub fn is_whole(&self) -> bool {
        !matches!(self, Page::Part(_))
    }

    /// Returns the page with `bytes` at `at`. A partial page must have room for them.
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

    /// Adds the page to a batch under this key; an owned page becomes shared without a copy.
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

    /// Returns the state of an inode that is not loaded yet, or does not exist.
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

    /// Returns whether the store may have values of extended attributes under separate keys.
    pub fn has_external_xattrs(&self) -> bool {
        self.buffer.lost_capability
            || self.xattrs.as_ref().is_some_and(|x| {
                x.values().any(|v| matches!(v, crate::layout::XattrValue::External(_)))
            })
    }
}
