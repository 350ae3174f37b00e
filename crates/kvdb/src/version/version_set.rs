//! The current version and its changes. A change of the store's content is a list of edits: they
//! are made durable in the manifest, and the next version and the snapshots are derived from the
//! manifest's new state ([`Version::follow`], [`Snapshots::follow`]). Memtables are not in the
//! manifest and are changed by [`VersionSet::change`].
//!
//! The manifest is durable independently of the journal. An edit that changes the result of reads
//! must not become durable before the commits that precede it: every caller that installs an edit
//! states why this order is kept ([`Order`]).
//!
//! A commit that changes the version itself (an ingest, a rollback, runs of a transaction) becomes
//! visible together with that version, see [`VersionSet::change_by_commit`]; all other commits
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

/// The reason why an edit may become durable: if it survives a power cut, all commits before it
/// survive, too.
#[derive(Debug)]
pub(crate) enum Order {
    /// The edit only says how and where data is stored. Reads return the same without it.
    OfPlaces,
    /// The edit refers to runs that also contain all earlier commits.
    OfRuns,
    /// The edit is ordered among the commits, and those before it are durable.
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
    /// The runs that the edits name and that the version may not have yet, by their roots.
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

    /// Brings `version` in line with `state`, in which the edits are made.
    pub(crate) fn apply_to(&self, version: &mut Version, state: &ManifestState) -> Result<()> {
        version.follow(state, &mut named(&self.runs))
    }

    /// Registers a run that an edit refers to in another way than by adding it.
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

/// Opens the runs that an edit has named.
fn named(runs: &HashMap<Bytes, Arc<Run>>) -> impl FnMut(RunId, &Bytes) -> Result<Arc<Run>> {
    |id, root| {
        let run = runs.get(root).cloned();
        run.ok_or_else(|| Error::Invalid(format!("run {} was named without its run", id.0)))
    }
}

/// Opens the runs that an edit has named. A clone shares the levels of the snapshot that it was
/// made of, so a thousand clones hold them once.
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
        // The dictionaries of a clone have the names of those of its snapshot.
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
    /// The newest commit that readers see.
    pub visible: AtomicU64,
    /// [`Version::came_with`] of the current version. It is stored before `visible`, so a reader
    /// that sees such a commit knows that its version is installed.
    came_with: AtomicU64,
    /// The newest commit that is an edit of the manifest, since the store was opened. It changes
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

    /// Returns the current version for a short time.
    pub(crate) fn load(&self) -> Guard<Arc<Version>> {
        self.current.load()
    }

    /// Returns the current version, to be kept.
    pub(crate) fn load_full(&self) -> Arc<Version> {
        self.current.load_full()
    }

    /// Returns the current version and the newest commit that its runs contain together with all
    /// commits before. Returns `None` if they also contain a later one, which is an edit of the
    /// manifest: then everything has to be flushed once more.
    pub(crate) fn flushed_prefix(&self) -> Option<(Arc<Version>, Seq)> {
        // Flushes and edits change the version under the lock of the manifest.
        let manifest = self.manifest.lock();
        // Loaded before the look into the memtables: a visible commit is in one of them by then.
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

    /// Changes the parts of the version that are only in memory.
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

    /// Replaces the version by a changed one, and calls `then` before another thread can change it
    /// again.
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
        // Data that only the old version held is released here, outside of the lock.
        drop(old);
        Ok(done)
    }

    /// Changes the parts of the version that are only in memory by commit `seq`, which
    /// `make_visible` makes visible.
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

    /// Replaces the version by a changed one that came with commit `seq`, which `make_visible`
    /// makes visible. Number and version become visible atomically: no view has one without the
    /// other (see [`VersionSet::pin`]). Nothing between the two steps may wait for another thread,
    /// since views that are made at that time spin until both are done.
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

    /// Brings `version` and the snapshots in line with the manifest, to which edits have just been
    /// written. `runs` are the runs that the edits name. Returns the dropped snapshots.
    fn follow(
        &self,
        version: &mut Version,
        state: &ManifestState,
        runs: &HashMap<Bytes, Arc<Run>>,
    ) -> Result<Vec<Arc<Snapshot>>> {
        // The edits are in the manifest already: a version without them would differ from the one
        // that the next open finds, so an error is fatal.
        version
            .follow(state, &mut Named { runs, state, snapshots: &self.snapshots })
            .and_then(|()| self.snapshots.follow(state, version, &mut named(runs)))
            .map_err(|e| self.health.fail("changing the version", &e))
    }

    /// Makes the edits that `plan` returns durable, then changes the version and the snapshots
    /// accordingly. Space that they release becomes free only after the edits are durable.
    pub(crate) fn install(
        &self,
        order: Order,
        plan: impl FnOnce(&ManifestState) -> VersionEdit,
    ) -> Result<()> {
        self.install_and(order, plan, |_| ())
    }

    /// Makes the edits that `plan` returns durable, then changes the version accordingly, together
    /// with its parts that are only in memory, by `also`.
    pub(crate) fn install_and(
        &self,
        order: Order,
        plan: impl FnOnce(&ManifestState) -> VersionEdit,
        also: impl FnOnce(&mut Version),
    ) -> Result<()> {
        // Released outside of the lock.
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

    /// Atomically replaces the state of the manifest by `state`, and brings the version and the
    /// snapshots in line with it. `change` names the runs of that state.
    pub(crate) fn replace(&self, state: ManifestState, change: &VersionEdit) -> Result<()> {
        let mut manifest = self.manifest()?;
        manifest.replace(state)?;
        self.swap(|version| self.follow(version, manifest.state(), &change.runs).map(drop))
    }

    /// Makes `next` visible, the version of a state that was published, in a store that is open for
    /// reading only. `seq` is its newest commit. Returns the snapshots that the new state no longer
    /// has.
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

    /// Pins the newest commit in the version in which it is read: the two contain every commit up
    /// to the number that is pinned, and no newer one.
    pub(crate) fn pin(&self) -> PinnedVersion {
        self.pin_with(|| ())
    }

    /// Does the same as [`VersionSet::pin`]. A test passes `between` to act between its two steps.
    pub(crate) fn pin_with(&self, mut between: impl FnMut()) -> PinnedVersion {
        loop {
            // Load the version first: the content of its runs is visible already. If a commit has
            // installed a new version since, with runs or the first memtable of a dictionary, this
            // is detected below.
            let version = self.current.load_full();
            between();
            let pin = self.read_snapshots.pin(&self.visible);
            // A commit that came with a version must be read in that version and in no other.
            if self.came_with.load(Ordering::Acquire) == version.came_with
                && version.came_with <= pin.at
            {
                return PinnedVersion { version, pin };
            }
            // Such a commit is becoming visible right now.
            env::thread::yield_now();
        }
    }

    /// Returns the newest committed value. It acts as a view for one lookup, without pinning a
    /// commit.
    pub(crate) fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        // Load the version first. See `pin_with`.
        let version = self.current.load();
        let at = self.visible.load(Ordering::Acquire);
        let found = version.tree(dict)?.get(&self.cache, key, at)?;
        found.map(|value| read(&self.cache, value)).transpose()
    }

    /// Finds a dictionary by name in a branch.
    pub(crate) fn dictionary(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.current.load().find(branch, name)
    }

    /// Returns the commits before `newest` that views read, ascending. No view will begin to read
    /// any other commit before `newest`, which must be visible.
    pub(crate) fn read_by_views(&self, newest: Seq) -> Vec<Seq> {
        self.read_snapshots.before(newest)
    }

    /// Must be called before `changes` are added to the memtables of `version`. If they delete a
    /// range, the memtable drops older range tombstones that no view can distinguish from newer
    /// ones.
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
