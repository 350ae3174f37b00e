//! The in-memory set of snapshots: the version of each, and which of them wait for their flush. The
//! set follows the manifest ([`Snapshots::follow`]), except that the creator of a snapshot adds it
//! itself while it waits for its flush.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::ArcSwap;
use env::sync::Mutex;
use vt_tree::Seq;
use zones::ZoneId;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::{Label, RunId};
use crate::lock_order::{self, Rank};
use crate::manifest::{
    DictionaryState, Edit, ManifestState, OfBranch, SnapshotState, SnapshotStates,
};
use crate::version::generation::Generation;
use crate::version::tree::{OpenRun, Tree};
use crate::version::{Trees, Version};

/// A snapshot.
pub(crate) struct Snapshot {
    pub label: Label,
    /// An upper bound of dictionary numbers: the snapshot contains the dictionaries of its branch
    /// whose numbers are smaller.
    pub below: u32,
    /// The content: runs and, until the manifest contains the snapshot, memtables.
    version: ArcSwap<Version>,
}

impl Snapshot {
    pub(crate) fn version(&self) -> Arc<Version> {
        self.version.load_full()
    }

    pub(crate) fn edit(&self) -> Edit {
        Edit::Snapshot { label: self.label.clone(), below: self.below }
    }
}

/// The side of a commit that an internal snapshot shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

impl Side {
    fn prefix(self) -> &'static str {
        match self {
            Side::Before => ".before-",
            Side::After => ".after-",
        }
    }

    /// Returns the name of an internal snapshot. The two snapshots of a commit share the number
    /// `pair`.
    pub(crate) fn name(self, pair: u64, label: &str) -> String {
        format!("{}{pair:016x}-{label}", self.prefix())
    }

    /// Returns the label of the transaction, which is a part of such a name.
    pub(crate) fn label(name: &str) -> &str {
        name.splitn(3, '-').nth(2).unwrap_or("")
    }

    /// Returns the part of the name that the two snapshots of a commit share, or `None` if the name
    /// is not of this side.
    fn pair_of(self, name: &str) -> Option<&str> {
        name.strip_prefix(self.prefix())?.get(..16)
    }
}

#[derive(Default)]
struct All {
    by_name: BTreeMap<String, Arc<Snapshot>>,
    /// The snapshots in listing order: by date, then commit, then name.
    by_date: BTreeMap<(Duration, Seq, String), Arc<Snapshot>>,
    /// The last date assigned to a snapshot, and the clock's time when it was assigned.
    last_date: (Duration, Duration),
}

impl All {
    fn insert(&mut self, snapshot: &Arc<Snapshot>) {
        let Label { name, created, seq, .. } = &snapshot.label;
        if let Some(before) = self.by_name.insert(name.clone(), snapshot.clone()) {
            self.by_date.remove(&(before.label.created, before.label.seq, name.clone()));
        }
        self.by_date.insert((*created, *seq, name.clone()), snapshot.clone());
    }

    fn remove(&mut self, name: &str) -> Option<Arc<Snapshot>> {
        let gone = self.by_name.remove(name)?;
        self.by_date.remove(&(gone.label.created, gone.label.seq, name.into()));
        Some(gone)
    }
}

/// The dictionaries of a snapshot with their manifest entries.
type Like = (Trees, OfBranch);

pub(crate) struct Snapshots {
    /// Held while names are added or removed, and during changes of dictionaries that a snapshot
    /// waiting for its flush must not see.
    pub naming: lock_order::Mutex<()>,
    /// The snapshot entries of the manifest as of the last [`Snapshots::follow`].
    kept: lock_order::Mutex<SnapshotStates>,
    all: Mutex<All>,
    /// The snapshots that wait for the flush of a generation, oldest first.
    pending: Mutex<VecDeque<(u64, Arc<Snapshot>)>>,
    /// The generation used by versions without memtables.
    nothing: Arc<Generation>,
}

impl Snapshots {
    pub(crate) fn new() -> Snapshots {
        Snapshots {
            naming: lock_order::Mutex::new(Rank::Names, ()),
            kept: lock_order::Mutex::new(Rank::Snapshots, SnapshotStates::default()),
            all: Mutex::default(),
            pending: Mutex::default(),
            nothing: Generation::first(),
        }
    }

    /// Updates the set to the state of the manifest. This is the only place that applies edits to
    /// snapshots, at run time and at recovery. `version` follows the same state; `open` opens runs
    /// that neither `version` nor a snapshot has. Returns the dropped snapshots, so that the caller
    /// can release their runs outside of locks.
    pub(crate) fn follow(
        &self,
        state: &ManifestState,
        version: &Version,
        open: &mut OpenRun<'_>,
    ) -> Result<Vec<Arc<Snapshot>>> {
        let mut kept = self.kept.lock();
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        kept.difference(&state.snapshots, |name, before, entry| match (before, entry) {
            (Some(before), Some(entry)) if Arc::ptr_eq(before, entry) => {}
            (_, Some(entry)) => new.push(entry),
            (_, None) => gone.push(name),
        });
        // Snapshots share their common parts: each is derived from the previous snapshot of its
        // branch, and the first one from the current state of the branch. Only differences are
        // visited.
        let (mut known, mut like) = (HashMap::new(), HashMap::<&str, Like>::new());
        for entry in new {
            let there = self.get(&entry.label.name).filter(|there| there.label == entry.label);
            let before = there.as_ref().map(|there| there.version());
            let branch = &*entry.label.branch;
            let now = || (version.runs_of_branch(branch), state.dictionaries.of_branch(branch));
            let base = like.remove(branch).unwrap_or_else(now);
            let trees = self.trees_of(entry, base, before.as_deref(), version, &mut known, open)?;
            like.insert(branch, (trees.clone(), entry.dictionaries.clone()));
            let table = version.table.clone();
            let mut version =
                Version::of_snapshot(trees, entry.dictionaries.clone(), self.nothing.clone());
            version.table = table;
            match there {
                Some(snapshot) => {
                    snapshot.version.store(Arc::new(version));
                    let mut pending = self.pending.lock();
                    // The oldest snapshot is in front, so the search is short.
                    if let Some(at) = pending.iter().position(|(_, s)| Arc::ptr_eq(s, &snapshot)) {
                        pending.remove(at);
                    }
                }
                None => {
                    let (label, version) = (entry.label.clone(), ArcSwap::from_pointee(version));
                    let snapshot = Arc::new(Snapshot { label, below: 0, version });
                    self.all.lock().insert(&snapshot);
                }
            }
        }
        let gone: Vec<_> = gone.iter().filter_map(|name| self.all.lock().remove(name)).collect();
        *kept = state.snapshots.clone();
        Ok(gone)
    }

    /// Returns the dictionaries of the snapshot that the manifest describes by `entry`. Shares
    /// those of `like` that are the same.
    fn trees_of(
        &self,
        entry: &SnapshotState,
        like: Like,
        before: Option<&Version>,
        version: &Version,
        known: &mut HashMap<*const DictionaryState, Arc<Tree>>,
        open: &mut OpenRun<'_>,
    ) -> Result<Trees> {
        let (mut trees, like) = like;
        let mut changed = Vec::new();
        like.difference(&entry.dictionaries, |id, old, new| match (old, new) {
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => {}
            (_, new) => changed.push((*id, new)),
        });
        for (id, dictionary) in changed {
            let Some(dictionary) = dictionary else {
                trees.remove(&id);
                continue;
            };
            let tree = match known.get(&Arc::as_ptr(dictionary)) {
                Some(tree) => Arc::clone(tree),
                None => self.tree_of(id, dictionary, before, version, open)?,
            };
            known.insert(Arc::as_ptr(dictionary), tree.clone());
            trees.insert(id, tree);
        }
        Ok(trees)
    }

    /// Returns the dictionary that the manifest describes by `entry`, as the snapshot contains it.
    /// Shares runs that `version` or `before`, the previous version of the snapshot itself, already
    /// has.
    fn tree_of(
        &self,
        id: DictionaryId,
        entry: &Arc<DictionaryState>,
        before: Option<&Version>,
        version: &Version,
        open: &mut OpenRun<'_>,
    ) -> Result<Arc<Tree>> {
        let live = version.trees.get(&id);
        let same = live.filter(|live| Arc::ptr_eq(&live.entry, entry));
        let base = same.or_else(|| before.and_then(|before| before.trees.get(&id))).or(live);
        let new = || Tree::new(entry.info.clone());
        let mut tree = base.map_or_else(new, |base| base.without_layers());
        // These runs were flushed after the snapshot was made, and before its own data was.
        let of_live = |id: RunId, root: &Bytes| {
            let live = live.filter(|live| live.entry.runs.get(&id).is_some_and(|(_, r)| r == root));
            live?.runs().find(|p| p.id == id).map(|p| p.run.clone())
        };
        tree.follow(entry, &mut |id: RunId, root: &Bytes| {
            of_live(id, root).map_or_else(|| open.open(id, root), Ok)
        })?;
        Ok(Arc::new(tree))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.all.lock().by_name.get(name).cloned()
    }

    /// Returns the creation date for a snapshot that is made `now`: the first nanosecond from `now`
    /// on that no other snapshot has. The clock may not advance for a few milliseconds; distinct
    /// dates keep the listing in the order of creation within that time, too.
    pub(crate) fn next_date(&self, now: Duration) -> Duration {
        let mut all = self.all.lock();
        let (last, at) = all.last_date;
        // Dates up to `last` were assigned while the clock did not advance.
        let mut date = if at <= now && now <= last { last } else { now };
        let from = all.by_date.range((date, 0, String::new())..).map(|((created, ..), _)| *created);
        // The dates ascend, so the first gap ends the search.
        for taken in from {
            if taken > date {
                break;
            }
            date = taken + Duration::from_nanos(1);
        }
        all.last_date = (date, if at <= now && now <= last { at } else { now });
        date
    }

    /// Lists the snapshots, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Snapshot>> {
        self.all.lock().by_date.values().cloned().collect()
    }

    /// Returns the snapshots whose names begin with `prefix`, sorted by name.
    pub(crate) fn named(&self, prefix: &str) -> Vec<Arc<Snapshot>> {
        let all = self.all.lock();
        let from = all.by_name.range(prefix.to_owned()..);
        from.take_while(|(name, _)| name.starts_with(prefix)).map(|(_, s)| s.clone()).collect()
    }

    /// Returns the snapshots before and after each commit that can be undone, oldest first.
    pub(crate) fn around_commits(&self) -> Vec<[Arc<Snapshot>; 2]> {
        let own = self.around_any_commit();
        let pair = |side: Side, s: &Arc<Snapshot>| side.pair_of(&s.label.name).map(str::to_owned);
        let before = own.iter().filter_map(|s| Some((pair(Side::Before, s)?, s.clone())));
        let before: HashMap<String, Arc<Snapshot>> = before.collect();
        let both = |after: &Arc<Snapshot>| {
            Some([before.get(&pair(Side::After, after)?)?.clone(), after.clone()])
        };
        own.iter().filter_map(both).collect()
    }

    /// Returns the names of internal snapshots whose counterpart is missing, either after a crash
    /// or because a full store has dropped it.
    pub(crate) fn half_around_commits(&self) -> Vec<String> {
        let whole = self.around_commits();
        let whole: HashSet<&str> = whole.iter().flatten().map(|s| &*s.label.name).collect();
        let all = self.around_any_commit().into_iter().map(|s| s.label.name.clone());
        all.filter(|name| !whole.contains(&**name)).collect()
    }

    /// Returns all snapshots made around commits, oldest first.
    fn around_any_commit(&self) -> Vec<Arc<Snapshot>> {
        let all = self.all.lock();
        let of = |side: Side| {
            let from = all.by_name.range(side.prefix().to_owned()..);
            from.map(|(_, snapshot)| snapshot)
                .take_while(move |snapshot| snapshot.label.name.starts_with(side.prefix()))
        };
        let mut own: Vec<_> = of(Side::Before).chain(of(Side::After)).cloned().collect();
        own.retain(|s| {
            [Side::Before, Side::After].iter().any(|side| side.pair_of(&s.label.name).is_some())
        });
        own.sort_by(|a, b| {
            (a.label.created, a.label.seq, &a.label.name).cmp(&(
                b.label.created,
                b.label.seq,
                &b.label.name,
            ))
        });
        own
    }

    /// Returns the zones that contain data of a snapshot. Dictionaries that successive snapshots of
    /// a branch share are visited only once.
    pub(crate) fn zones(&self) -> BTreeSet<ZoneId> {
        let all: Vec<_> = self.list().into_iter().map(|s| (s.version(), s)).collect();
        let (mut zones, mut seen) = (BTreeSet::new(), HashSet::new());
        let nothing = Trees::default();
        let mut newest: HashMap<&str, &Trees> = HashMap::new();
        for (version, snapshot) in &all {
            let before = newest.insert(&snapshot.label.branch, &version.trees);
            before.unwrap_or(&nothing).difference(&version.trees, |_, _, new| {
                let runs = new.into_iter().flat_map(|tree| tree.runs());
                for fresh in runs.filter(|p| seen.insert(Arc::as_ptr(&p.run))) {
                    zones.extend(fresh.run.uses().iter().map(|(zone, _)| zone));
                }
            });
        }
        zones
    }

    /// Makes a snapshot of `version`, including its memtables, which no longer receive commits.
    pub(crate) fn of(&self, label: Label, below: u32, version: &Version) -> Arc<Snapshot> {
        let mut trees = version.of_branch(&label.branch);
        // Drop dictionaries with greater numbers: they were created later.
        while let Some((&id, _)) = trees.last_key_value()
            && id.0 >= below
        {
            trees.remove(&id);
        }
        let mut entries = version.entries.of_branch(&label.branch);
        entries.remove_from(below);
        let version = Version::of_snapshot(trees, entries, self.nothing.clone());
        Arc::new(Snapshot { label, below, version: ArcSwap::from_pointee(version) })
    }

    /// Makes the snapshot readable. It ends `generation`, and waits for the flush of that
    /// generation.
    pub(crate) fn begin(&self, generation: u64, snapshot: Arc<Snapshot>) {
        self.all.lock().insert(&snapshot);
        self.pending.lock().push_back((generation, snapshot));
    }

    /// Returns the snapshot that ends `generation` and waits for its flush.
    pub(crate) fn pending_at(&self, generation: u64) -> Option<Arc<Snapshot>> {
        self.pending.lock().iter().find(|(at, _)| *at == generation).map(|(_, s)| s.clone())
    }

    /// Returns the generations up to `last` whose flush a snapshot waits for, oldest first and at
    /// most `most` of them.
    pub(crate) fn pending_upto(&self, last: u64, most: usize) -> Vec<u64> {
        let pending = self.pending.lock();
        let upto = pending.iter().map(|(generation, _)| *generation).take_while(|g| *g <= last);
        upto.take(most).collect()
    }

    /// Returns the number of snapshots that wait for their flush.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.lock().len()
    }

    /// Returns the generation of the oldest snapshot that waits for its flush.
    pub(crate) fn next_pending(&self) -> Option<u64> {
        self.pending.lock().front().map(|(generation, _)| *generation)
    }
}

/// Returns a number greater than that of any dictionary in `version`.
pub(crate) fn above(version: &Version) -> u32 {
    version.trees.last_key_value().map_or(0, |(id, _)| id.0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use zones::MemoryDevice;

    use super::*;
    use crate::version::version_set::encode_run;
    use crate::{CreateOptions, Durability, Kvdb, OpenOptions, TransactionOptions};

    /// Checks that the set has exactly the snapshots of the manifest, each with the runs that the
    /// manifest names and without memtables.
    fn check(db: &Kvdb, after: &str) {
        let versions = db.version_set();
        let kept = match versions.manifest() {
            Ok(manifest) => manifest.state().snapshots.clone(),
            Err(e) => panic!("{after}: {e}"),
        };
        let set = db.snapshot_set().list();
        let mut names: Vec<&String> = set.iter().map(|snapshot| &snapshot.label.name).collect();
        names.sort();
        assert_eq!(names, kept.keys().collect::<Vec<_>>(), "{after}");
        for snapshot in set {
            let (entry, version) = (&kept[&snapshot.label.name], snapshot.version());
            assert_eq!(snapshot.label, entry.label, "{after}");
            assert!(version.trees.keys().eq(entry.dictionaries.keys()), "{after}");
            for (id, tree) in &version.trees {
                let has: BTreeMap<_, _> = tree
                    .by_level()
                    .map(|(level, p)| (p.id, (level as u32, encode_run(&p.run))))
                    .collect();
                assert_eq!(has, *entry.dictionaries[id].runs, "{after}");
                assert!(tree.layers.is_empty(), "{after}: it has memtables");
                assert_eq!(version.find("", &tree.info().name), Some(*id), "{after}: by its name");
            }
        }
    }

    #[test]
    fn the_set_follows_the_manifest() {
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), env.clone(), options).expect("made");
        let d = db.open_dictionary("d").expect("made");
        let many = |from: u32| (from..from + 100).map(|i| (i.to_be_bytes(), vec![7; 100]));
        let fill = |from| many(from).for_each(|(k, v)| d.insert(k.to_vec(), v).expect("put"));

        fill(0);
        db.snapshot("of memory").expect("made");
        assert!(db.snapshot_set().next_pending().is_some(), "it waits for its flush");
        db.flush().expect("flushed");
        check(&db, "a flush");
        db.snapshot("of runs").expect("made");
        check(&db, "a snapshot of runs");
        fill(50);
        db.flush().expect("flushed");
        db.compact(d.id()).expect("merged");
        check(&db, "a merge");
        db.snapshot("of more").expect("made");
        db.clone_snapshot("of runs", "what-if").expect("made");
        db.snapshot_of("what-if", "of a branch", Durability::Synced).expect("made");
        check(&db, "a branch");
        db.drop_snapshot("of memory").expect("dropped");
        check(&db, "a drop");
        let undoable = TransactionOptions { undoable: true, ..TransactionOptions::default() };
        let t = db.begin_with(undoable).expect("begun");
        t.put(d.id(), "a", "1").expect("put");
        t.commit(Durability::Synced).expect("committed");
        db.flush().expect("flushed");
        check(&db, "a commit that can be undone");
        assert_eq!(db.undoable_commits().len(), 1);
        db.rollback("of more").expect("rolled back");
        check(&db, "a rollback");
        assert_eq!(db.undoable_commits(), []);

        let mut sent = Vec::new();
        db.send("of runs", None, &mut sent, None).expect("sent");
        let other = Kvdb::in_memory();
        other.receive(&sent[..], &crate::ReceiveOptions::default()).expect("received");
        check(&other, "what was received");
        let view = other.open_snapshot("of runs").expect("there");
        assert_eq!(view.iter(view.dictionary("d").expect("there")).count(), 100);

        db.close().expect("closed");
        drop((d, db));
        let (db, _) = Kvdb::open(device, env, open).expect("opened");
        check(&db, "another open");
        let view = db.open_snapshot("of runs").expect("there");
        assert_eq!(view.iter(view.dictionary("d").expect("there")).count(), 100);
    }
}
