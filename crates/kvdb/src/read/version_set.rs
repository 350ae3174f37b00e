//! The version that is current, and how it changes. A change of what the store consists of is a
//! list of edits: they become durable in the manifest, and the next version and the snapshots
//! follow from what the manifest says then ([`Version::follow`], [`Snapshots::follow`]). What only
//! memory knows, the memtables, is changed by [`VersionSet::change`].
//!
//! The manifest is durable by itself. An edit that changes what a reader finds must not be, while a
//! commit before it is not: whoever installs an edit says why it keeps the order ([`Order`]).
//!
//! Commits that are a change of the version itself (an ingest, a rollback, runs of a transaction)
//! become visible with it, see [`VersionSet::change_by_commit`]; all others are seen by their
//! number alone.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use env::sync::atomic::{AtomicU64, Ordering};
use env::sync::{ArcSwap, Guard};
use vt_tree::{BlockCache, Run, Seq};
use zones::remote::TableHold;

use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::ids::RunId;
use crate::journal::record::Op;
use crate::lock_order::{MappedMutexGuard, Mutex, Rank};
use crate::manifest::{DictionaryState, Edit, Manifest, ManifestState};
use crate::read::read_snapshots::{PinnedVersion, ReadSnapshots};
use crate::read::snapshot_set::{Snapshot, Snapshots};
use crate::read::version::{Levels, OpenRun, OpenRuns, Version, read};
use crate::read::view::View;

/// Why an edit may become durable: wherever it is there after a power cut, all commits before it
/// are there, too.
#[derive(Debug)]
pub(crate) enum Order {
    /// It says how and where things are kept. A reader finds the same without it.
    OfPlaces,
    /// What it tells is in runs with all that was committed before.
    OfRuns,
    /// It has its place among the commits, and those before it are durable.
    AfterCommits(CommitsSynced),
}

impl Order {
    /// Returns whether edits of this kind keep the order for that reason.
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

/// The commits before an edit are durable. Made in `commit::order` alone.
#[derive(Debug)]
pub(crate) struct CommitsSynced(pub(crate) ());

/// A change of what the store consists of.
#[derive(Default)]
pub(crate) struct VersionEdit {
    pub edits: Vec<Edit>,
    /// The runs that the edits name and the version may not have yet, by their roots.
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

    /// Names a run that an edit refers to in another way than by its root.
    pub(crate) fn knows(&mut self, root: Bytes, run: Arc<Run>) {
        self.runs.insert(root, run);
    }
}

/// The manifest's form of a run: its root.
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

/// A clone of more dictionaries than this has levels of its own.
const LOOKED_THROUGH: usize = 64;

/// Opens the runs that an edit has named. A clone has the levels of the snapshot that it was made
/// of, so a thousand of them have them once.
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
        // Each of the dictionaries of a clone is looked for among all of them.
        if version.trees.len() > LOOKED_THROUGH {
            return None;
        }
        let like = version.trees.values().find(|tree| Arc::ptr_eq(&tree.entry.runs, &new.runs));
        like.map(|tree| tree.levels.clone())
    }
}

/// The current version, the newest commit that readers see, the snapshots, and the manifest.
pub(crate) struct VersionSet {
    cache: Arc<BlockCache>,
    health: Arc<Health>,
    current: ArcSwap<Version>,
    /// Held for the time of one read-change-store of `current`.
    changing: Mutex<()>,
    /// The newest commit that readers see.
    pub visible: AtomicU64,
    /// [`Version::came_with`] of the current version, stored before `visible` is: who sees such a
    /// commit knows that its version is there.
    came_with: AtomicU64,
    pub read_snapshots: Arc<ReadSnapshots>,
    snapshots: Arc<Snapshots>,
    /// `None`: opened for reading only.
    manifest: Mutex<Option<Manifest>>,
}

impl VersionSet {
    /// `visible`: the newest commit that is in `version`.
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
            read_snapshots: Arc::default(),
            snapshots,
            manifest: Mutex::new(Rank::Manifest, manifest),
        }
    }

    /// The current version, for a moment.
    pub(crate) fn load(&self) -> Guard<Arc<Version>> {
        self.current.load()
    }

    /// The current version, to be kept.
    pub(crate) fn load_full(&self) -> Arc<Version> {
        self.current.load_full()
    }

    /// The manifest, for edits that versions do not show and to look at its state.
    pub(crate) fn manifest(&self) -> Result<MappedMutexGuard<'_, Manifest>> {
        let manifest = self.manifest.lock().some();
        manifest.ok_or_else(|| Error::ReadOnly("it was opened for reading only".into()))
    }

    /// Changes what only memory knows of the version.
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

    /// Replaces the version by a changed one, and does `then` before another thread can change it
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
        // What only the old version held is let go here, outside of the lock.
        drop(old);
        Ok(done)
    }

    /// Changes what only memory knows of the version, by commit `seq`; `make_visible` makes this
    /// commit visible.
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

    /// Replaces the version by a changed one that came with commit `seq`; `make_visible` makes this
    /// commit visible. Number and version become visible as one step: no view has one without the
    /// other (see [`VersionSet::view`]). Nothing may come between the two that waits for another
    /// thread, since views that are made at that time wait for it.
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

    /// Brings `version` and the snapshots in line with the manifest, into which edits have just
    /// been written. `runs`: those that the edits name. Gives the snapshots that were dropped.
    fn follow(
        &self,
        version: &mut Version,
        state: &ManifestState,
        runs: &HashMap<Bytes, Arc<Run>>,
    ) -> Result<Vec<Arc<Snapshot>>> {
        // The manifest has it: a version that does not would not be what the next open finds.
        version
            .follow(state, &mut Named { runs, state, snapshots: &self.snapshots })
            .and_then(|()| self.snapshots.follow(state, version, &mut named(runs)))
            .map_err(|e| self.health.fail("changing the version", &e))
    }

    /// Makes the edits that `plan` draws up durable, then changes the version and the snapshots
    /// accordingly. Whatever they let go of is free only after the edits are durable.
    pub(crate) fn install(
        &self,
        order: Order,
        plan: impl FnOnce(&ManifestState) -> VersionEdit,
    ) -> Result<()> {
        self.install_and(order, plan, |_| ())
    }

    /// Makes the edits that `plan` draws up durable, then changes the version accordingly, and by
    /// `also` what only memory knows of it.
    pub(crate) fn install_and(
        &self,
        order: Order,
        plan: impl FnOnce(&ManifestState) -> VersionEdit,
        also: impl FnOnce(&mut Version),
    ) -> Result<()> {
        // Let go of outside of the lock.
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

    /// Makes the edits that `plan` draws up for commit `seq` durable, and then the commit visible
    /// together with the version that follows from them. `logged` is done in between, when it has
    /// happened and is not visible yet. Gives the snapshots that were dropped, to be let go of
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

    /// The store as `state`, which is not the manifest's yet, would have it. `change` names its
    /// runs.
    pub(crate) fn preview(&self, state: &ManifestState, change: &VersionEdit) -> Result<View> {
        let mut view = self.view();
        let mut version = Version::clone(&view.version);
        version.follow(state, &mut named(&change.runs))?;
        view.version.version = Arc::new(version);
        Ok(view)
    }

    /// Makes `state` that of the manifest, whole or not at all, and brings the version and the
    /// snapshots in line with it. `change` names its runs.
    pub(crate) fn replace(&self, state: ManifestState, change: &VersionEdit) -> Result<()> {
        let mut manifest = self.manifest()?;
        manifest.replace(state)?;
        self.swap(|version| self.follow(version, manifest.state(), &change.runs).map(drop))
    }

    /// Opens a state that is not shown yet, as [`VersionSet::preview`] does, of which `seq` is the
    /// newest commit. `table` keeps the places of its zones.
    pub(crate) fn preview_published(
        &self,
        state: &ManifestState,
        (seq, table): (Seq, TableHold),
        open: &mut OpenRun<'_>,
    ) -> Result<View> {
        let mut view = self.view();
        let mut version = Version::clone(&view.version);
        version.follow(state, open)?;
        version.table = table;
        (view.at, view.version.version) = (seq, Arc::new(version));
        Ok(view)
    }

    /// Makes a state visible that [`VersionSet::preview_published`] has opened, of a store that is
    /// open for reading only. Returns the snapshots that it has no more.
    pub(crate) fn show_published(
        &self,
        state: &ManifestState,
        view: &View,
        open: &mut OpenRun<'_>,
    ) -> Result<Vec<Arc<Snapshot>>> {
        let gone = self.snapshots.follow(state, &view.version, open)?;
        let next = Version::clone(&view.version);
        let make_visible = |_: &Version| self.visible.store(view.at, Ordering::Release);
        self.change_by_commit(view.at, |version| *version = next, make_visible);
        Ok(gone)
    }

    /// The store as of the newest commit: it has every commit up to the number that it pins, and
    /// none that is newer.
    pub(crate) fn view(&self) -> View {
        self.view_with(|| ())
    }

    /// A view; `between` is what others do between its two steps.
    fn view_with(&self, mut between: impl FnMut()) -> View {
        loop {
            // The version first: what its runs hold is visible already. Where commits have brought
            // places of their own since, runs or the first memtable of a dictionary, one of them is
            // seen below.
            let version = self.current.load_full();
            between();
            let pin = self.read_snapshots.pin(&self.visible);
            // A commit that came with a version is seen in that version and no other.
            if self.came_with.load(Ordering::Acquire) == version.came_with
                && version.came_with <= pin.at
            {
                return View {
                    at: pin.at,
                    cache: self.cache.clone(),
                    version: PinnedVersion { version, _pin: pin },
                    write_set: None,
                    around: None,
                    of_transaction: false,
                    snapshot: None,
                };
            }
            // One of these is becoming visible right now.
            env::thread::yield_now();
        }
    }

    /// The newest committed value: a view for the time of one search, without pinning anything.
    pub(crate) fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        // The version first, see `view`.
        let version = self.current.load();
        let at = self.visible.load(Ordering::Acquire);
        let found = version.tree(dict)?.get(&self.cache, key, at)?;
        found.map(|value| read(&self.cache, value)).transpose()
    }

    /// The dictionary of that name in a branch.
    pub(crate) fn dictionary(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.current.load().find(branch, name)
    }

    /// The commits before `newest` that views read, ascending. No view comes to read another one
    /// before it. `newest` is visible.
    pub(crate) fn read_by_views(&self, newest: Seq) -> Vec<Seq> {
        self.read_snapshots.before(newest)
    }

    /// Call before `changes` enter the memtables of `version`. Where they delete a range, the
    /// memtable forgets older range tombstones that no view can tell from newer ones.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Batch, DictionaryOptions, Durability, Isolation, Kvdb};

    /// A view's two steps, with something that others do between them, which happens once: what it
    /// has is one state of the store.
    fn between(others: impl Fn(&Kvdb, DictionaryId)) {
        let db = Kvdb::in_memory();
        let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
        let put = |key: &str, value: &str| {
            db.put(d, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put")
        };
        put("a", "1");
        put("b", "1");
        db.snapshot("one").expect("made");
        db.flush().expect("flushed");
        put("a", "2");
        let done = Cell::new(false);
        let view = db.version_set().view_with(|| {
            if !done.replace(true) {
                others(&db, d);
                put("b", "behind");
            }
        });
        let read = |view: &View, key: &str| view.get(d, key.as_bytes()).expect("read");
        let now = db.view();
        if view.at == now.at {
            // It has the number of all that was done: then it has all of it.
            assert_eq!(
                ["a", "b"].map(|key| read(&view, key)),
                ["a", "b"].map(|key| read(&now, key)),
            );
        } else {
            assert_eq!(
                ["a", "b"].map(|key| read(&view, key)),
                [Some("2".into()), Some("1".into())],
            );
        }
    }

    #[test]
    fn a_view_and_a_rollback() {
        between(|db, _| db.rollback("one").expect("rolled back"));
    }

    #[test]
    fn a_view_and_an_ingest() {
        between(|db, d| _ = db.ingest(d, [("a", "ingested")]).expect("ingested"));
    }

    #[test]
    fn a_view_and_a_transaction_that_binds_runs() {
        between(|db, d| {
            let t = db.begin(Isolation::Snapshot).expect("begun");
            let mut bulk = t.bulk(d, &db.view()).expect("begun");
            bulk.push(b"a", b"bound").expect("pushed");
            t.adopt(bulk.finish().expect("written")).expect("adopted");
            t.commit(Durability::Buffered).expect("committed");
        });
    }

    /// A view has every commit up to its number, also those that came between its steps and went
    /// into memtables that its version did not have.
    #[test]
    fn a_view_and_what_goes_into_other_memtables() {
        let new_generation = |db: &Kvdb, d| {
            let generation = db.version_set().load().generation.number;
            db.pipeline().seal(generation).expect("sealed");
            db.put(d, b"a", b"3", Durability::Buffered).expect("put");
        };
        let new_dictionary = |db: &Kvdb, _| {
            let e = db.create_dictionary("e", DictionaryOptions::default()).expect("made");
            db.put(e, b"a", b"3", Durability::Buffered).expect("put");
        };
        type Others<'a> = &'a dyn Fn(&Kvdb, DictionaryId);
        // The first commit to a dictionary, and one to another that has a memtable already.
        let two_dictionaries = |db: &Kvdb, d| {
            let f = db.dictionary("f").expect("there");
            db.put(f, b"a", b"4", Durability::Buffered).expect("put");
            db.put(d, b"a", b"4", Durability::Buffered).expect("put");
        };
        let cases: [Others; 3] = [&new_generation, &new_dictionary, &two_dictionaries];
        for others in cases {
            let db = Kvdb::in_memory();
            let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
            db.create_dictionary("f", DictionaryOptions::default()).expect("made");
            let mut batch = Batch::new();
            batch.put(d, "a", "1");
            db.commit(batch, Durability::Buffered).expect("committed");
            let done = Cell::new(false);
            let view = db.version_set().view_with(|| {
                if !done.replace(true) {
                    others(&db, d);
                }
            });
            let now = db.view();
            assert_eq!(view.at, now.at);
            for dict in now.dictionaries() {
                let read = |view: &View| {
                    view.dictionary(&dict.name).map(|d| view.get(d, b"a").expect("read"))
                };
                assert_eq!(read(&view), read(&now), "dictionary {}", dict.name);
            }
        }
    }
}
