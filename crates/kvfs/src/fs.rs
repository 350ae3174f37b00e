//! The file system itself: opening, closing, and what every call begins with.

pub(crate) mod superseded;

use env::sync::atomic::{AtomicU64, Ordering};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Env;
use env::sync::{Mutex, RwLockWriteGuard};
use kvdb::{Batch, Durability, Kvdb, Scope, View};

use crate::attr::{Attr, FileKind, Ino, ROOT, Timestamp};
use crate::dirty_queue::DirtyQueue;
use crate::error::{Error, Result};
use crate::freeze_lock::{CallGuard, FreezeLock};
use crate::fs::superseded::Superseded;
use crate::inode::{Inode, InodeState};
use crate::inode_allocator::InodeAllocator;
use crate::inode_cache::InodeCache;
use crate::layout::{self, Attributes, Body, ImapKey, Layout, Numbers, Super};
use crate::lost::Lost;
use crate::reservation::INO_LIMIT;
use crate::space_account::SpaceAccount;
use crate::ticker::Ticker;

/// What a read does to the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never changed by reading.
    Never,
    /// As `relatime`: moves when it is not newer than the last change or older than a day. The new
    /// time is kept in memory and reaches the store only together with another change of the inode,
    /// so that reading causes no writes.
    Relative,
}

/// What [`FsOptions::zone_size`] is by default, bytes: that of BetrFS 0.2 (§4).
pub const ZONE_SIZE: u64 = 512 << 10;

/// How a file system is opened.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Nothing is changed, not even the orphan list.
    pub read_only: bool,
    /// Bytes of uncommitted data in all files together.
    pub write_buffer: usize,
    /// Bytes for inodes in memory that have nothing uncommitted.
    pub inode_memory: usize,
    /// A change is on disk at most this long after the call.
    pub flush_interval: Duration,
    /// What a read does to the access time.
    pub atime: Atime,
    /// Bytes of small files that a directory reserves inode numbers for, so that its files lie
    /// together in the store, in which everything sorts by these numbers. 0: files are numbered in
    /// the order in which they are made, wherever that is. `None`: as the file system was made, by
    /// default [`ZONE_SIZE`]. A file system is made with what is given here.
    pub zone_size: Option<u64>,
    /// Hard links one file may have.
    pub max_links: u32,
    /// Owner and permissions of the root directory when it is made.
    pub root_uid: u32,
    /// The group of the root directory when it is made.
    pub root_gid: u32,
    /// The permissions of the root directory when it is made.
    pub root_perm: u16,
}

impl Default for FsOptions {
    fn default() -> Self {
        FsOptions {
            read_only: false,
            write_buffer: 64 << 20,
            inode_memory: 16 << 20,
            flush_interval: Duration::from_secs(1),
            atime: Atime::Relative,
            zone_size: None,
            max_links: i32::MAX as u32,
            root_uid: 0,
            root_gid: 0,
            root_perm: 0o755,
        }
    }
}

/// Numbers about an open file system; the counters run from its opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Inodes in memory.
    pub inodes: u64,
    /// Bytes of data that are not committed yet.
    pub dirty_bytes: u64,
    /// Batches committed to the database.
    pub commits: u64,
    /// Pages put into batches.
    pub pages_written: u64,
    /// Of these, pages of which only the bytes that were written were put, since the others were
    /// not in memory.
    pub pages_patched: u64,
    /// Bytes that calls have written.
    pub bytes_written: u64,
    /// Bytes that calls have read.
    pub bytes_read: u64,
    /// The next inode number that will be given out.
    pub next_ino: u64,
    /// [`FsOptions::zone_size`] as it is in force; 0 of a view that makes nothing.
    pub zone_size: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub commits: AtomicU64,
    pub pages_written: AtomicU64,
    pub pages_patched: AtomicU64,
    pub bytes_written: AtomicU64,
    pub bytes_read: AtomicU64,
}

pub(crate) struct Core {
    pub db: Kvdb,
    /// Where this view reads and writes: everything it does to the store goes here.
    pub scope: Scope,
    /// Of a transaction's view: the file system that it began in.
    pub mainline: Option<Fs>,
    pub env: Arc<dyn Env>,
    pub layout: Layout,
    pub options: FsOptions,
    pub inode_cache: InodeCache,
    pub freeze_lock: FreezeLock,
    pub superseded: Superseded,
    pub inode_allocator: InodeAllocator,
    /// Held by every operation that locks more than one directory; see `inode`.
    pub tree: Mutex<()>,
    pub dirty: DirtyQueue,
    pub space: SpaceAccount,
    pub lost: Lost,
    pub hash_key: [u8; 16],
    pub counters: Counters,
    ticker: Arc<Ticker>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.ticker.stop();
    }
}

/// An open file system. Clones are the same file system. All calls may come from any thread.
///
/// Dropping it without [`Fs::shutdown`] loses what is not committed, as a kill would.
#[derive(Clone)]
pub struct Fs {
    pub(crate) core: Arc<Core>,
}

impl Fs {
    /// Opens the file system in `db`; makes it, with an empty root directory, when there is none.
    pub fn open(db: Kvdb, env: Arc<dyn Env>, options: FsOptions) -> Result<Fs> {
        let layout = match Layout::find(&db) {
            Some(layout) => layout,
            None if options.read_only => return Err(Error::ReadOnly),
            None => Layout::create(&db)?,
        };
        let fs = Fs::open_layout(db, "", layout, env, options)?;
        fs.start_ticker();
        Ok(fs)
    }

    /// The file system in these dictionaries of a branch. Nothing flushes by itself.
    pub(crate) fn open_layout(
        db: Kvdb,
        branch: &str,
        layout: Layout,
        env: Arc<dyn Env>,
        options: FsOptions,
    ) -> Result<Fs> {
        let Super { hash_key, zone_size } = match db.get(layout.imap, &layout::SUPER_KEY)? {
            Some(value) => {
                let record = Super::decode(&value)?;
                if !Super::is_current(&value) && !options.read_only {
                    let mut batch = Batch::new();
                    batch.put(layout.imap, layout::SUPER_KEY.to_vec(), record.encode());
                    db.commit(batch, kvdb::Durability::Buffered)?;
                }
                record
            }
            None if options.read_only => return Err(Error::ReadOnly),
            None => make(&db, &layout, &*env, &options)?,
        };
        let orphans = if options.read_only { 0 } else { empty_orphans(&db, &layout)? };
        let next = largest_ino(&db.view(), &layout)?
            .checked_add(1)
            .filter(|&n| n > ROOT && n < INO_LIMIT)
            .ok_or_else(|| Error::Corrupt {
                ino: u64::MAX,
                what: "an inode number that was never given out".into(),
            })?;
        // A snapshot may hold numbers that are no more, and a rollback brings them back under
        // whatever is open then.
        let (kept, reserved) =
            if options.read_only { (0, false) } else { largest_kept(&db, branch) };
        // A transaction that goes on from before has given numbers that nothing on the mainline has
        // yet.
        let taken =
            if options.read_only || !branch.is_empty() { 0 } else { largest_taken(&db, &layout) };
        // And one that cannot go on now has given some that nothing shows.
        let noted = noted(&db.view(), &layout)?;
        let found = next.max(kept + 1).max(taken + 1);
        let next = found.max(noted.map_or(0, |noted| noted.bound));
        let zone_size = options.zone_size.or(zone_size).unwrap_or(ZONE_SIZE);
        let options = FsOptions { zone_size: Some(zone_size), ..options };
        let numbers = InodeAllocator::from(next, zone_size);
        numbers.set_noted_below(noted.map_or(0, |noted| noted.bound));
        // Numbers that lie where they cannot were given elsewhere, and a snapshot from elsewhere
        // may have been rolled back to: what directories have reserved is not to be trusted.
        match noted {
            Some(noted) if found <= noted.bound && !reserved => {
                numbers.void_below(noted.first_reserved)
            }
            _ => numbers.void_reservations(),
        }
        let fs = Fs::without_mainline(
            db.clone(),
            Scope::Mainline(db),
            env,
            layout,
            hash_key,
            numbers,
            options,
        );
        // So that it is known from the start whether it is nearly full.
        fs.refill_space(0);
        let root = fs.inode(ROOT)?;
        if !root.state.read().is_dir() {
            return Err(Error::Corrupt { ino: ROOT, what: "the root is not a directory".into() });
        }
        tracing::info!(
            next_ino = next,
            orphans_removed = orphans,
            read_only = fs.core.options.read_only,
            "file system open"
        );
        Ok(fs)
    }

    /// Another view of the same branch. Costs microseconds, whatever there is to see.
    pub(crate) fn of_transaction(&self, scope: Scope, options: FsOptions) -> Fs {
        let core = &self.core;
        let (db, env, numbers) =
            (core.db.clone(), core.env.clone(), core.inode_allocator.for_transaction());
        Fs::build(Some(self.clone()), db, scope, env, core.layout, core.hash_key, numbers, options)
    }

    /// Removes orphans. None of them may be open.
    pub(crate) fn empty_orphans(&self) -> Result<usize> {
        let _call = self.enter()?;
        empty_orphans(&self.core.db, &self.core.layout)
    }

    pub(crate) fn without_mainline(
        db: Kvdb,
        scope: Scope,
        env: Arc<dyn Env>,
        layout: Layout,
        hash_key: [u8; 16],
        numbers: InodeAllocator,
        options: FsOptions,
    ) -> Fs {
        Fs::build(None, db, scope, env, layout, hash_key, numbers, options)
    }

    #[allow(clippy::too_many_arguments)]
    fn build(
        mainline: Option<Fs>,
        db: Kvdb,
        scope: Scope,
        env: Arc<dyn Env>,
        layout: Layout,
        hash_key: [u8; 16],
        numbers: InodeAllocator,
        options: FsOptions,
    ) -> Fs {
        let inode_cache = InodeCache::new(options.inode_memory);
        let space = SpaceAccount::new(db.promised_space());
        let core = Core {
            db,
            scope,
            mainline,
            env,
            layout,
            inode_cache,
            options,
            freeze_lock: FreezeLock::default(),
            superseded: Superseded::default(),
            inode_allocator: numbers,
            tree: Mutex::new(()),
            dirty: DirtyQueue::default(),
            space,
            lost: Lost::default(),
            hash_key,
            counters: Counters::default(),
            ticker: Arc::default(),
        };
        Fs { core: Arc::new(core) }
    }

    /// Commits and syncs everything, and stops the background thread. Calls after it still work,
    /// but nothing flushes by itself.
    pub fn shutdown(&self) -> Result<()> {
        self.core.ticker.stop();
        if self.core.options.read_only {
            return Ok(());
        }
        self.sync_all()
    }

    fn start_ticker(&self) {
        if self.core.env.inline() || self.core.options.read_only {
            return;
        }
        // What is older than half the interval is flushed every half interval: nothing gets older
        // than the interval.
        let pause = self.core.options.flush_interval / 2;
        let tick = |core: Arc<Core>| {
            let db = core.db.clone();
            let Err(e) = (Fs { core }).tick() else { return ControlFlow::Continue(()) };
            if e.is_locked() {
                tracing::debug!("dirty data waits for a transaction: {e}");
            } else if db.takes_writes().is_err() {
                // For good: what waits in memory is read from there until the store is opened
                // again.
                tracing::error!("what was written last is not on disk: {e}");
                return ControlFlow::Break(());
            } else {
                tracing::warn!("flushing dirty data failed, will be tried again: {e}");
            }
            ControlFlow::Continue(())
        };
        let ticker = &self.core.ticker;
        if let Err(e) = ticker.start("kvfs-flush", pause, Arc::downgrade(&self.core), tick) {
            tracing::warn!(
                "no thread for the flush interval, data is flushed by fsync and when the buffer is full: {e}"
            );
        }
    }

    /// The numbers as they are now.
    pub fn statistics(&self) -> Statistics {
        let c = &self.core.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Statistics {
            inodes: self.core.inode_cache.len() as u64,
            dirty_bytes: self.core.space.dirty_bytes() as u64,
            commits: get(&c.commits),
            pages_written: get(&c.pages_written),
            pages_patched: get(&c.pages_patched),
            bytes_written: get(&c.bytes_written),
            bytes_read: get(&c.bytes_read),
            next_ino: self.core.inode_allocator.next(),
            zone_size: self.core.options.zone_size.unwrap_or_default(),
        }
    }

    /// Of a transaction's view, also when it is over: who began it.
    pub fn user(&self) -> Option<u32> {
        match &self.core.scope {
            Scope::Transaction(transaction) => transaction.user(),
            Scope::Mainline(_) | Scope::Frozen(_) => None,
        }
    }

    /// The inode at `path` (from the root, however many slashes); adds no reference. Symbolic links
    /// on the way are followed, a last one is not.
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> {
        let mut at = self.getattr(ROOT)?;
        let mut names: Vec<Vec<u8>> = split_path(path);
        let mut links = 0;
        while let Some(name) = names.pop() {
            if at.kind != FileKind::Dir {
                return Err(Error::NotDirectory);
            }
            let next = self.find(at.ino, &name)?;
            if next.kind == FileKind::Symlink && !names.is_empty() {
                links += 1;
                if links > 40 {
                    return Err(Error::TooManySymlinks);
                }
                let target = self.readlink(next.ino)?;
                if target.first() == Some(&b'/') {
                    at = self.getattr(ROOT)?;
                }
                names.extend(split_path(&target));
            } else {
                at = next;
            }
        }
        Ok(at)
    }

    /// Looks a name up without adding a reference.
    fn find(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.lookup(parent, name)?;
        self.forget(attr.ino, 1);
        Ok(attr)
    }

    // --- what every call begins with
    // --------------------------------------------------------------------------------

    /// Takes the freeze lock for a call. ESTALE when the view is over.
    pub(crate) fn enter(&self) -> Result<CallGuard<'_>> {
        self.core.freeze_lock.enter()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.core.env.wall().into()
    }

    /// What every call that changes something begins with. A store that has failed takes nothing
    /// more: what would wait in memory could never be committed.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.core.options.read_only {
            Err(Error::ReadOnly)
        } else {
            Ok(self.core.db.takes_writes()?)
        }
    }

    pub(crate) fn new_ino(&self) -> Result<Ino> {
        let ino = self.core.inode_allocator.take();
        self.note_numbers_below(ino.saturating_add(1))?;
        Ok(ino)
    }

    /// A number for something that is made in a directory, which is locked: near those of its other
    /// entries. What is left of the reservation goes into the store with the directory's node.
    pub(crate) fn new_ino_in(&self, dir: Ino, attr: &mut Attributes) -> Result<Ino> {
        let ino = self.core.inode_allocator.take_in(dir, &mut attr.reserved, attr.size);
        self.note_numbers_below(ino.saturating_add(1))?;
        Ok(ino)
    }

    /// So many numbers, one behind the other.
    pub(crate) fn new_inos(&self, count: u64) -> Result<Range<Ino>> {
        let inos = self.core.inode_allocator.take_together(count);
        self.note_numbers_below(inos.end)?;
        Ok(inos)
    }

    /// In the journal the note comes before whatever is made with such a number, in a durable
    /// transaction, too.
    fn note_numbers_below(&self, end: Ino) -> Result<()> {
        if self.core.inode_allocator.is_noted(end) {
            return Ok(());
        }
        // A rollback, which takes the note back, comes before this or behind it. (A call of the
        // mainline is inside.)
        let _call = self.core.mainline.as_ref().map(Fs::enter).transpose()?;
        self.core.inode_allocator.note(end, |bound| {
            let mut batch = Batch::new();
            batch.put(
                self.core.layout.imap,
                layout::NUMBERS_KEY.to_vec(),
                layout::encode_numbers(self.core.inode_allocator.numbers(bound)),
            );
            self.core.mainline.as_ref().unwrap_or(self).apply(batch)
        })
    }

    /// Takes a snapshot in which all reservations are void: after a rollback to it, numbers that
    /// were given out of them since must not be given again, even if nothing else is written before
    /// a kill. The next number that is given here makes them valid again. No call is under way.
    pub(crate) fn without_reservations<T>(
        &self,
        snapshot: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let allocator = &self.core.inode_allocator;
        if let Some(bound) = allocator.noted() {
            let void = layout::encode_numbers(Numbers { bound, first_reserved: bound });
            let mut batch = Batch::new();
            batch.put(self.core.layout.imap, layout::NUMBERS_KEY.to_vec(), void);
            self.apply(batch)?;
            allocator.clear_noted();
        }
        snapshot()
    }

    /// The inode in memory, loaded if need be.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.core.inode_cache.get_or_load(ino, Error::Stale(ino), || {
            if ino == 0 {
                return Err(Error::Stale(ino));
            }
            let (imap, key) = (self.core.layout.imap, layout::node_key(ino));
            // A directory is not locked by being read (see `locks`), so whether it is one is found
            // out without a lock.
            if self.locking().is_some()
                && let Some(value) = self.core.scope.view()?.get(imap, &key)?
            {
                let (attr, xattrs, _) = layout::decode_node(ino, &value)?;
                if attr.kind == FileKind::Dir {
                    return Ok(InodeState { read_unlocked: true, ..InodeState::new(attr, xattrs) });
                }
            }
            self.lock_in_store(ino, false)?;
            let value = self.core.scope.get(imap, &key)?.ok_or(Error::Stale(ino))?;
            let (attr, xattrs, _) = layout::decode_node(ino, &value)?;
            Ok(InodeState::new(attr, xattrs))
        })
    }

    /// Locks an inode that must still exist, to change it.
    pub(crate) fn lock<'a>(&self, inode: &'a Inode) -> Result<RwLockWriteGuard<'a, InodeState>> {
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::Stale(inode.ino));
        }
        self.claim(inode.ino, &mut state)?;
        Ok(state)
    }

    /// Locks a directory that entries are to be added to or removed from.
    pub(crate) fn lock_dir<'a>(
        &self,
        inode: &'a Inode,
    ) -> Result<RwLockWriteGuard<'a, InodeState>> {
        let mut state = inode.state.write();
        if !state.gone {
            self.claim(inode.ino, &mut state)?;
        }
        match () {
            () if state.gone => Err(Error::NotFound),
            () if !state.is_dir() => Err(Error::NotDirectory),
            () if state.attr.nlink == 0 => Err(Error::NotFound),
            () => Ok(state),
        }
    }

    /// Makes these changes as one unit: on the mainline a commit of the store, in a transaction a
    /// change of its write set. Call under the freeze lock. On the mainline it fails with `Locked`
    /// instead of waiting for a lock (see `locks`).
    pub(crate) fn apply(&self, batch: Batch) -> Result<()> {
        self.core.counters.commits.fetch_add(1, Ordering::Relaxed);
        let commit = || self.core.scope.apply(batch, Durability::Buffered);
        match &self.core.scope {
            Scope::Mainline(_) => Ok(kvdb::without_lock_waits(commit)?),
            Scope::Transaction(_) | Scope::Frozen(_) => Ok(commit()?),
        }
    }

    /// The inline content of an inode, from memory or the store.
    pub(crate) fn content(&self, ino: Ino, state: &InodeState) -> Result<Bytes> {
        match (state.attr.body, &state.inline) {
            (Body::Paged(_) | Body::Inline(0), _) => Ok(Bytes::new()),
            (_, Some(content)) => Ok(content.clone()),
            (Body::Inline(len), None) => {
                let corrupt = |what: &str| Error::Corrupt { ino, what: what.into() };
                let value = self.core.scope.get(self.core.layout.imap, &layout::node_key(ino))?;
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

/// The names of a path, last first.
fn split_path(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec).collect()
}

/// Writes the file system's own record and the root directory; gives the hash key.
fn make(db: &Kvdb, layout: &Layout, env: &dyn Env, options: &FsOptions) -> Result<Super> {
    let mut hash_key = [0; 16];
    hash_key[..8].copy_from_slice(&env.random().to_le_bytes());
    hash_key[8..].copy_from_slice(&env.random().to_le_bytes());
    let record = Super { hash_key, zone_size: options.zone_size };
    let now = Timestamp::from(env.wall());
    let root = Attributes {
        kind: FileKind::Dir,
        perm: options.root_perm & 0o7777,
        nlink: 2,
        uid: options.root_uid,
        gid: options.root_gid,
        rdev: 0,
        size: 0,
        body: Body::Inline(0),
        parent: ROOT,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        reserved: Default::default(),
    };
    let mut batch = Batch::new();
    batch.put(layout.imap, layout::SUPER_KEY.to_vec(), record.encode());
    batch.put(layout.imap, layout::node_key(ROOT), layout::encode_node(&root, None, b""));
    db.commit(batch, Durability::Synced)?;
    Ok(record)
}

/// Removes the orphans that an unclean end has left behind.
fn empty_orphans(db: &Kvdb, layout: &Layout) -> Result<usize> {
    let (start, end) = layout::orphan_range();
    let mut cursor = db.view().cursor(layout.imap, &start, &end)?;
    let mut count = 0;
    while let Some(tuple) = cursor.next()? {
        let ImapKey::Orphan(ino) = layout::decode_imap_key(&tuple.key)? else { continue };
        let mut batch = Batch::new();
        stage_removal(layout, ino, &mut batch);
        batch.delete(layout.imap, tuple.key);
        db.commit(batch, Durability::Buffered)?;
        count += 1;
    }
    Ok(count)
}

/// Everything of an inode but its names and its orphan record.
pub(crate) fn stage_removal(layout: &Layout, ino: Ino, batch: &mut Batch) {
    let (start, end) = layout::node_range(ino);
    batch.delete_range(layout.imap, start.to_vec(), end.to_vec());
    batch.delete_range(
        layout.dmap,
        layout::page_key(ino, 0).to_vec(),
        layout::pages_end(ino).to_vec(),
    );
}

/// Extended attributes and pages of an inode.
pub(crate) fn stage_content_removal(layout: &Layout, ino: Ino, batch: &mut Batch) {
    let end = layout::node_range(ino).1;
    batch.delete_range(layout.imap, layout::xattr_key(ino, b"\0"), end.to_vec());
    batch.delete_range(
        layout.dmap,
        layout::page_key(ino, 0).to_vec(),
        layout::pages_end(ino).to_vec(),
    );
}

/// What a state says about the inode numbers that were given. Older stores say nothing; what is
/// malformed is passed by, and found by a check.
pub(crate) fn noted(view: &View, layout: &Layout) -> Result<Option<Numbers>> {
    Ok(view
        .get(layout.imap, &layout::NUMBERS_KEY)?
        .and_then(|value| layout::decode_numbers(&value)))
}

/// The largest inode number in any state that the branch can be rolled back to, and whether numbers
/// that directories have reserved would be valid in one. One that cannot be read, or has impossible
/// numbers, is passed by: the rollback to it says so.
pub(crate) fn largest_kept(db: &Kvdb, branch: &str) -> (Ino, bool) {
    let (mut largest, mut reserved) = (ROOT, false);
    for info in db.snapshots().into_iter().filter(|info| info.branch == branch) {
        let found = db.open_snapshot(&info.name).map_err(Error::from).and_then(|state| {
            let noted =
                Layout::of_state(&state).map(|layout| noted(&state, &layout)).transpose()?;
            Ok((largest_in(&state)?, noted.flatten()))
        });
        match found {
            Ok((ino, noted)) => {
                largest = largest.max(ino);
                reserved |= noted.is_some_and(|noted| noted.first_reserved < noted.bound);
            }
            Err(e) => tracing::warn!("snapshot {:?} cannot be rolled back to: {e}", info.name),
        }
    }
    (largest, reserved)
}

/// The largest inode number in an open transaction. One that cannot be read, or has impossible
/// numbers, is passed by: it cannot commit.
pub(crate) fn largest_taken(db: &Kvdb, layout: &Layout) -> Ino {
    let mut largest = ROOT;
    for info in db.transactions() {
        let found = db.transaction(info.id).and_then(|t| t.view()).map_err(Error::from);
        match found.and_then(|view| possible(largest_ino(&view, layout)?)) {
            Ok(ino) => largest = largest.max(ino),
            Err(e) => tracing::warn!("what transaction {} has made cannot be read: {e}", info.id),
        }
    }
    largest
}

fn possible(largest: Ino) -> Result<Ino> {
    if largest < INO_LIMIT - 1 {
        return Ok(largest);
    }
    Err(Error::Corrupt { ino: largest, what: "an inode number that was never given out".into() })
}

/// The largest inode number in a snapshot's state.
pub(crate) fn largest_in(state: &View) -> Result<Ino> {
    let Some(layout) = Layout::of_state(state) else { return Ok(ROOT) };
    possible(largest_ino(state, &layout)?)
}

/// The largest inode number in use: of the nodes, and of the pages too, so that no new file finds
/// old data under its number.
pub(crate) fn largest_ino(view: &View, layout: &Layout) -> Result<Ino> {
    let mut largest = ROOT;
    for dict in [layout.imap, layout.dmap] {
        let mut cursor = view.cursor(dict, &[], &[])?.keys_only();
        cursor.seek_to_end()?;
        if let Some(tuple) = cursor.prev()?
            && let Some((ino, _)) = tuple.key.split_first_chunk::<8>()
        {
            largest = largest.max(u64::from_be_bytes(*ino));
        }
    }
    Ok(largest)
}
