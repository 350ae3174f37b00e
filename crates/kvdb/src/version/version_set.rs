//! The current version and its changes. A change of the store's content is a list of manifest
//! edits. They are made durable in the manifest; then the next version and the snapshots are
//! derived from the new state of the manifest ([`Version::follow`], [`Snapshots::follow`]).
//! Memtables are not in the manifest and are changed by [`VersionSet::change`].
//!
//! The manifest becomes durable independently of the journal. An edit that changes the result of
//! reads must not become durable before the commits that precede it. Every caller that installs an
//! edit states why this order is kept ([`Order`]).
//!
//! A commit that changes the version itself (an ingest, a rollback, runs of a transaction) becomes
//! visible together with that version; see [`VersionSet::change_by_commit`]. All other commits
//! become visible by their number alone.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{ArcSwap, Guard};
use vt_tree::{BlockCache, Run, Seq};

use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::ids::RunId;
use crate::journal::record::Op;
use crate::lock_order::{MappedMutexGuard, Mutex, Rank};
use crate::manifest::{DictionaryState, Edit, Manifest, ManifestState};
use crate::version::read_snapshots::{PinnedVersion, ReadSnapshots};
use crate::version::snapshot_set::{Snapshot, Snapshots};
use crate::version::tree::{Levels, OpenRun, OpenRuns};
use crate::version::{Version, read};

/// The reason why an edit may become durable: if the edit survives a power failure, so do all
/// commits before it.
#[derive(Debug)]
pub(crate) enum Order {
    /// The edit only tells how and where data is stored. Reads return the same without it.
    OfPlaces,
    /// The edit refers to runs that also contain all earlier commits.
    OfRuns,
    /// The edit has a position among the commits, and all commits before it are durable.
    AfterCommits(CommitsSynced),
}

impl Order {
    /// Returns whether this reason is valid for the edit.
    fn allows(&self, edit: &Edit) -> bool {
        use Edit::{AddRun, DropRun, DropSegments, JournalStart, Options, Segment, Streams};
        match self {
            Order::OfPlaces => {
                matches!(edit, AddRun { .. } | DropRun { .. } | Streams(_) | Options(_))
            }
            Order::OfRuns => matches!(
                edit,
                AddRun { .. }
                    | Streams(_)
                    | JournalStart(_)
                    | DropSegments { .. }
                    | Segment(_)
                    | Edit::Snapshot { .. }
            ),
            Order::AfterCommits(_) => true,
        }
    }
}

/// Proof that the commits before an edit are durable. Only `commit::order` makes it.
#[derive(Debug)]
pub(crate) struct CommitsSynced(pub(crate) ());

/// A change of the store's content.
#[derive(Default)]
pub(crate) struct VersionEdit {
    pub edits: Vec<Edit>,
    /// The runs that the edits name and that the version may not have yet, keyed by their encoded
    /// roots.
    runs: HashMap<Bytes, Arc<Run>>,
}

impl VersionEdit {
    pub(crate) fn of(edits: impl IntoIterator<Item = Edit>) -> VersionEdit {
        VersionEdit { edits: edits.into_iter().collect(), runs: HashMap::new() }
    }

    /// Adds a run to a dictionary.
    pub(crate) fn add_run(&mut self, dict: DictionaryId, level: usize, id: RunId, run: &Arc<Run>) {
        let root = encode_run(run);
        self.runs.insert(root.clone(), run.clone());
        self.edits.push(Edit::AddRun { dict, level: level as u32, id, run: root });
    }

    /// Updates `version` to `state`, to which the edits have been applied.
    pub(crate) fn apply_to(&self, version: &mut Version, state: &ManifestState) -> Result<()> {
        version.follow(state, &mut named(&self.runs))
    }

    /// Registers a run that an edit refers to without adding it to a dictionary.
    pub(crate) fn knows(&mut self, root: Bytes, run: Arc<Run>) {
        self.runs.insert(root, run);
    }
}

/// Returns the encoded root of a run, as the manifest stores it.
pub(crate) fn encode_run(run: &Run) -> Bytes {
    let mut out = Vec::new();
    run.encode(&mut out);
    Bytes::from(out)
}

/// Returns a function that finds the runs named by an edit.
fn named(runs: &HashMap<Bytes, Arc<Run>>) -> impl FnMut(RunId, &Bytes) -> Result<Arc<Run>> {
    |id, root| {
        let run = runs.get(root).cloned();
        run.ok_or_else(|| Error::Invalid(format!("run {} was named without its run", id.0)))
    }
}

/// Finds the runs named by an edit. A clone shares the levels of its snapshot, so a thousand clones
/// need the memory of one.
struct Named<'a> {
    runs: &'a HashMap<Bytes, Arc<Run>>,
    state: &'a ManifestState,
    snapshots: &'a Snapshots,
}

impl OpenRuns for Named<'_> {
    fn open(&mut self, id: RunId, root: &Bytes) -> Result<Arc<Run>> {
        named(self.runs)(id, root)
    }

    fn levels_like(&self, new: &DictionaryState) -> Option<Levels> {
        let origin = self.state.branches.get(&new.info.branch)?;
        let version = self.snapshots.get(origin)?.version();
        // The dictionaries of a clone have the same names as those of its snapshot.
        let tree = version.trees.get(&version.find("", &new.info.name)?)?;
        Arc::ptr_eq(&tree.entry.runs, &new.runs).then(|| tree.levels.clone())
    }
}

/// The current version, the newest visible commit, the snapshots, and the manifest.
pub(crate) struct VersionSet {
    cache: Arc<BlockCache>,
    health: Arc<Health>,
    current: ArcSwap<Version>,
    /// Held during one read-modify-write of `current`.
    changing: Mutex<()>,
    /// The newest visible commit.
    pub visible: AtomicU64,
    /// [`Version::came_with`] of the current version. It is stored before `visible`, so a reader
    /// that sees that commit also sees this number, and knows which version it needs.
    came_with: AtomicU64,
    /// The newest commit since the store was opened that is an edit of the manifest. It changes
    /// under the lock of the manifest.
    newest_edit: AtomicU64,
    pub read_snapshots: Arc<ReadSnapshots>,
    snapshots: Arc<Snapshots>,
    /// `None` if the store was opened for reading only.
    manifest: Mutex<Option<Manifest>>,
}

impl VersionSet {
    /// Makes the set. `visible` is the newest commit contained in `version`.
    pub(crate) fn new(
        cache: Arc<BlockCache>,
        health: Arc<Health>,
        version: Version,
        visible: Seq,
        manifest: Option<Manifest>,
        snapshots: Arc<Snapshots>,
    ) -> VersionSet {
        VersionSet {
            cache,
            health,
            current: ArcSwap::from_pointee(version),
            changing: Mutex::new(Rank::Version, ()),
            visible: AtomicU64::new(visible),
            came_with: AtomicU64::new(0),
            newest_edit: AtomicU64::new(0),
            read_snapshots: Arc::default(),
            snapshots,
            manifest: Mutex::new(Rank::Manifest, manifest),
        }
    }

    /// Returns the cache through which all versions are read.
    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Returns a short-lived reference to the current version.
    pub(crate) fn load(&self) -> Guard<Arc<Version>> {
        self.current.load()
    }

    /// Returns an owned reference to the current version.
    pub(crate) fn load_full(&self) -> Arc<Version> {
        self.current.load_full()
    }

    /// Returns the current version and a commit such that its runs contain all commits up to that
    /// one, and none later. Returns `None` if they also contain a later one, which is an edit of
    /// the manifest: then the caller has to flush once more.
    pub(crate) fn flushed_prefix(&self) -> Option<(Arc<Version>, Seq)> {
        // Flushes and edits change the version under the lock of the manifest.
        let manifest = self.manifest.lock();
        // Load this before checking the memtables: a visible commit is in one of them by then.
        let visible = self.visible.load(Ordering::Acquire);
        let version = self.current.load_full();
        let seq = match &*manifest {
            Some(manifest) if !version.is_flushed() => manifest.state().start.seq,
            _ => visible,
        };
        (self.newest_edit.load(Ordering::Acquire) <= seq).then_some((version, seq))
    }

    /// Locks the manifest, for edits that do not change the version and for reading its state.
    pub(crate) fn manifest(&self) -> Result<MappedMutexGuard<'_, Manifest>> {
        let manifest = self.manifest.lock().some();
        manifest.ok_or_else(|| Error::ReadOnly("it was opened for reading only".into()))
    }

    /// Changes the in-memory parts of the version.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Version)) {
        let change = |version: &mut Version| {
            change(version);
            Ok::<_, Infallible>(())
        };
        let Ok(()) = self.swap(change);
    }

    /// Replaces the version by a changed one.
    fn swap<E>(
        &self,
        change: impl FnOnce(&mut Version) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.swap_and(change, |_| ())
    }

    /// Replaces the version by a changed one, and calls `then` before another thread can change the
    /// version again.
    fn swap_and<T, E>(
        &self,
        change: impl FnOnce(&mut Version) -> std::result::Result<(), E>,
        then: impl FnOnce(&Version) -> T,
    ) -> std::result::Result<T, E> {
        let (old, done);
        {
            let _one = self.changing.lock();
            old = self.current.load_full();
            let mut next = (*old).clone();
            change(&mut next)?;
            let next = Arc::new(next);
            self.current.store(next.clone());
            done = then(&next);
        }
        // Release data that only the old version held outside of the lock.
        drop(old);
        Ok(done)
    }

    /// Changes the in-memory parts of the version by commit `seq`, which `make_visible` makes
    /// visible.
    pub(crate) fn change_by_commit<T>(
        &self,
        seq: Seq,
        change: impl FnOnce(&mut Version),
        make_visible: impl FnOnce(&Version) -> T,
    ) -> T {
        let change = |version: &mut Version| {
            change(version);
            Ok::<_, Infallible>(())
        };
        let Ok(shown) = self.swap_by_commit(seq, change, make_visible);
        shown
    }

    /// Replaces the version by a changed one that comes with commit `seq`, which `make_visible`
    /// makes visible. Number and version become visible atomically: no view has one without the
    /// other (see [`VersionSet::pin`]). Nothing between the two steps may wait for another thread,
    /// since concurrent calls of `pin` spin until both are done.
    fn swap_by_commit<T, E>(
        &self,
        seq: Seq,
        change: impl FnOnce(&mut Version) -> std::result::Result<(), E>,
        make_visible: impl FnOnce(&Version) -> T,
    ) -> std::result::Result<T, E> {
        let numbered = |version: &mut Version| {
            change(version)?;
            version.came_with = seq;
            Ok(())
        };
        self.swap_and(numbered, |version| {
            self.came_with.store(seq, Ordering::Release);
            make_visible(version)
        })
    }

    /// Updates `version` and the snapshots to the state of the manifest, to which edits have just
    /// been written. `runs` are the runs that the edits name. Returns the dropped snapshots.
    fn follow(
        &self,
        version: &mut Version,
        state: &ManifestState,
        runs: &HashMap<Bytes, Arc<Run>>,
    ) -> Result<Vec<Arc<Snapshot>>> {
        // The edits are in the manifest already. A version without them would differ from the one
        // that the next open finds, so an error is fatal.
        version
            .follow(state, &mut Named { runs, state, snapshots: &self.snapshots })
            .and_then(|()| self.snapshots.follow(state, version, &mut named(runs)))
            .map_err(|e| self.health.fail("changing the version", &e))
    }

    /// Makes the edits that `plan` returns durable, then changes the version and the snapshots
    /// accordingly. Space that the edits release becomes free only after they are durable.
    pub(crate) fn install(
        &self,
        order: Order,
        plan: impl FnOnce(&ManifestState) -> VersionEdit,
    ) -> Result<()> {
        self.install_and(order, plan, |_| ())
    }

    /// Makes the edits that `plan` returns durable, then changes the version accordingly. `also`
    /// changes its in-memory parts in the same step.
    pub(crate) fn install_and(
        &self,
        order: Order,
        plan: impl FnOnce(&ManifestState) -> VersionEdit,
        also: impl FnOnce(&mut Version),
    ) -> Result<()> {
        // Declared before the lock, so that the dropped snapshots are released after it.
        let mut gone = Vec::new();
        let mut manifest = self.manifest()?;
        let VersionEdit { edits, runs } = plan(manifest.state());
        debug_assert!(edits.iter().all(|edit| order.allows(edit)), "{order:?}: {edits:?}");
        manifest.commit(edits)?;
        self.swap(|version| {
            gone = self.follow(version, manifest.state(), &runs)?;
            also(version);
            Ok(())
        })
    }

    /// Makes the edits that `plan` returns for commit `seq` durable, and then makes the commit
    /// visible together with the resulting version. `logged` is called in between, when the commit
    /// is durable but not yet visible. Returns the dropped snapshots, which the caller must release
    /// outside of locks.
    pub(crate) fn install_commit<P, L>(
        &self,
        _: CommitsSynced,
        seq: Seq,
        pipeline: &mut P,
        plan: impl FnOnce(&ManifestState) -> Result<VersionEdit>,
        logged: impl FnOnce(&mut P) -> L,
        make_visible: impl FnOnce(&mut P, &Version),
    ) -> Result<Vec<Arc<Snapshot>>> {
        let mut manifest = self.manifest()?;
        let VersionEdit { edits, runs } = plan(manifest.state())?;
        manifest.commit(edits)?;
        self.newest_edit.store(seq, Ordering::Release);
        let logged = logged(pipeline);
        let mut gone = Vec::new();
        let change = |version: &mut Version| {
            gone = self.follow(version, manifest.state(), &runs)?;
            Ok::<_, Error>(())
        };
        self.swap_by_commit(seq, change, |version| make_visible(pipeline, version))?;
        drop(logged);
        Ok(gone)
    }

    /// Atomically replaces the state of the manifest by `state`, and updates the version and the
    /// snapshots to it. `change` has the runs of that state.
    pub(crate) fn replace(&self, state: ManifestState, change: &VersionEdit) -> Result<()> {
        let mut manifest = self.manifest()?;
        manifest.replace(state)?;
        self.swap(|version| self.follow(version, manifest.state(), &change.runs).map(drop))
    }

    /// Makes `next` visible, the version of a published state, in a store that is open for reading
    /// only. `seq` is its newest commit. Returns the snapshots that the new state no longer has.
    pub(crate) fn show_published(
        &self,
        state: &ManifestState,
        (seq, next): (Seq, &Version),
        open: &mut OpenRun<'_>,
    ) -> Result<Vec<Arc<Snapshot>>> {
        let gone = self.snapshots.follow(state, next, open)?;
        let next = next.clone();
        let make_visible = |_: &Version| self.visible.store(seq, Ordering::Release);
        self.change_by_commit(seq, |version| *version = next, make_visible);
        Ok(gone)
    }

    /// Pins the newest commit and the matching version: together they contain every commit up to
    /// the pinned number, and no later one.
    pub(crate) fn pin(&self) -> PinnedVersion {
        self.pin_with(|| ())
    }

    /// Implements [`VersionSet::pin`]. A test passes `between` to act between the two steps.
    pub(crate) fn pin_with(&self, mut between: impl FnMut()) -> PinnedVersion {
        loop {
            // Load the version first: the content of its runs is visible already. If a commit
            // installs a newer version in the meantime, with runs or the first memtable of a
            // dictionary, the check below detects it.
            let version = self.current.load_full();
            between();
            let pin = self.read_snapshots.pin(&self.visible);
            // A commit that came with a version must be read in that version or a later one, and
            // the version only together with the commit.
            if self.came_with.load(Ordering::Acquire) == version.came_with
                && version.came_with <= pin.at
            {
                return PinnedVersion { version, pin };
            }
            // A commit that comes with a version is just becoming visible.
            env::thread::yield_now();
        }
    }

    /// Returns the newest committed value. This is a view for a single lookup that pins no commit.
    pub(crate) fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        // Load the version before the visible commit, as in `pin_with`.
        let version = self.current.load();
        let at = self.visible.load(Ordering::Acquire);
        let found = version.tree(dict)?.get(&self.cache, key, at)?;
        found.map(|value| read(&self.cache, value)).transpose()
    }

    /// Finds a dictionary by name in a branch.
    pub(crate) fn dictionary(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.current.load().find(branch, name)
    }

    /// Returns the commits before `newest` that views read, ascending. `newest` must be visible, so
    /// that no view will begin to read any other commit before it.
    pub(crate) fn read_by_views(&self, newest: Seq) -> Vec<Seq> {
        self.read_snapshots.before(newest)
    }

    /// Drops range tombstones from the memtables of `version` that no view can distinguish from
    /// newer ones. Must be called before `changes` are added to these memtables; does nothing
    /// unless they delete a range.
    pub(crate) fn forget_tombstones<'a>(
        &self,
        version: &Version,
        changes: impl IntoIterator<Item = &'a (DictionaryId, Op)>,
    ) {
        let mut floor = None;
        let mut last = None;
        for (dict, op) in changes {
            if matches!(op, Op::DeleteRange(..)) && last != Some(*dict) {
                last = Some(*dict);
                let floor = *floor.get_or_insert_with(|| {
                    self.read_snapshots.floor(self.visible.load(Ordering::Acquire))
                });
                if let Some(layer) = version.active_of(*dict) {
                    layer.memtable.forget_tombstones(floor);
                }
            }
        }
    }
}
