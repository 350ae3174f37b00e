//! The set of snapshots, in memory: the version that each has, and which of them wait for their
//! flush.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use env::sync::ArcSwap;
use env::sync::Mutex;
use vt_tree::Run;
use zones::ZoneId;

use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::ids::Label;
use crate::lock_order::{self, Rank};
use crate::manifest::Edit;
use crate::read::version::{Generation, NumberedRun, Tree, Version};

/// Runs that take the place of others; `None`: nothing was left of one.
pub(crate) type Instead = HashMap<*const Run, Option<Arc<Run>>>;

/// One snapshot.
pub(crate) struct Snapshot {
    pub label: Label,
    /// It has the branch's dictionaries with smaller numbers.
    pub below: u32,
    /// What it has: runs, and until it is in the manifest also memtables.
    version: ArcSwap<Version>,
}

impl Snapshot {
    pub(crate) fn version(&self) -> Arc<Version> {
        self.version.load_full()
    }

    pub(crate) fn edit(&self) -> Edit {
        Edit::Snapshot { label: self.label.clone(), below: self.below }
    }

    fn has(&self, info: &DictionaryInfo) -> bool {
        info.branch == self.label.branch && info.id.0 < self.below
    }
}

/// Which of the two states around a commit a snapshot of the store's own has.
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

    /// The name of such a snapshot; `pair` tells which two belong together.
    pub(crate) fn name(self, pair: u64, label: &str) -> String {
        format!("{}{pair:016x}-{label}", self.prefix())
    }

    /// The label of the transaction in such a name.
    pub(crate) fn label(name: &str) -> &str {
        name.splitn(3, '-').nth(2).unwrap_or("")
    }

    /// Which two a snapshot of this side belongs to.
    fn pair_of(self, name: &str) -> Option<&str> {
        name.strip_prefix(self.prefix())?.get(..16)
    }
}

pub(crate) struct Snapshots {
    /// Held while names come and go, and while dictionaries are changed in a way that a snapshot
    /// which waits for its flush must not see.
    pub naming: lock_order::Mutex<()>,
    /// By name.
    all: Mutex<BTreeMap<String, Arc<Snapshot>>>,
    /// The snapshots that wait for the flush of a generation, oldest first.
    pending: Mutex<VecDeque<(u64, Arc<Snapshot>)>>,
    /// What the newest snapshot has of each dictionary: the next one may have the same.
    newest: Mutex<BTreeMap<DictionaryId, Weak<Tree>>>,
    /// The generation of a version without memtables.
    nothing: Arc<Generation>,
}

impl Snapshots {
    pub(crate) fn new() -> Snapshots {
        Snapshots {
            naming: lock_order::Mutex::new(Rank::Names, ()),
            all: Mutex::default(),
            pending: Mutex::default(),
            newest: Mutex::default(),
            nothing: Generation::first(),
        }
    }

    /// Takes up a snapshot that the manifest has, as recovery found it.
    pub(crate) fn found(&self, label: Label, trees: BTreeMap<DictionaryId, Arc<Tree>>) {
        let version = Version::of(trees, self.nothing.clone());
        let snapshot = Snapshot { label, below: 0, version: ArcSwap::from_pointee(version) };
        self.all.lock().insert(snapshot.label.name.clone(), Arc::new(snapshot));
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.all.lock().get(name).cloned()
    }

    /// When a snapshot that is made `now` was created: the first nanosecond from then on that no
    /// other snapshot has. The clock stands still for some milliseconds at a time, and the list is
    /// in the order of creation within them, too.
    pub(crate) fn next_date(&self, now: Duration) -> Duration {
        let all = self.all.lock();
        let mut date = now;
        while all.values().any(|snapshot| snapshot.label.created == date) {
            date += Duration::from_nanos(1);
        }
        date
    }

    /// The oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Snapshot>> {
        let mut all: Vec<_> = self.all.lock().values().cloned().collect();
        all.sort_by_key(|a| (a.label.created, a.label.seq));
        all
    }

    /// The states before and after each commit that can be undone, the oldest first.
    pub(crate) fn around_commits(&self) -> Vec<[Arc<Snapshot>; 2]> {
        let all = self.list();
        let before = |after: &Arc<Snapshot>| {
            let pair = Side::After.pair_of(&after.label.name)?;
            let before = all.iter().find(|s| Side::Before.pair_of(&s.label.name) == Some(pair))?;
            Some([before.clone(), after.clone()])
        };
        all.iter().filter_map(before).collect()
    }

    /// The names of those that a crash, or a full store, has left without the other one.
    pub(crate) fn half_around_commits(&self) -> Vec<String> {
        let all = self.list();
        let has =
            |side: Side, pair: &str| all.iter().any(|s| side.pair_of(&s.label.name) == Some(pair));
        let half = |name: &str| match (Side::Before.pair_of(name), Side::After.pair_of(name)) {
            (Some(pair), _) => !has(Side::After, pair),
            (_, Some(pair)) => !has(Side::Before, pair),
            _ => false,
        };
        all.iter().map(|s| s.label.name.clone()).filter(|name| half(name)).collect()
    }

    /// Zones in which a snapshot has something.
    pub(crate) fn zones(&self) -> BTreeSet<ZoneId> {
        let all: Vec<_> = self.all.lock().values().map(|s| s.version()).collect();
        let mut seen = HashSet::new();
        let runs = all.iter().flat_map(|v| v.trees.values()).flat_map(|t| t.runs());
        let fresh = runs.filter(|p| seen.insert(Arc::as_ptr(&p.run)));
        fresh.flat_map(|p| p.run.uses().iter().map(|(zone, _)| zone)).collect()
    }

    pub(crate) fn remove(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.all.lock().remove(name)
    }

    /// A dictionary as a snapshot has it, without memtables.
    pub(crate) fn as_kept(&self, tree: Tree) -> Tree {
        Tree { layers: Vec::new(), ..as_main(&tree) }
    }

    /// A snapshot of what `version` has, memtables included, that take no more commits.
    pub(crate) fn of(&self, label: Label, below: u32, version: &Version) -> Arc<Snapshot> {
        let snapshot = Snapshot { label, below, version: ArcSwap::from_pointee(self.empty()) };
        let trees = version.trees.iter().filter(|(_, t)| snapshot.has(&t.info));
        let trees = trees.map(|(id, t)| (*id, Arc::new(as_main(t)))).collect();
        snapshot.version.store(Arc::new(Version::of(trees, self.nothing.clone())));
        Arc::new(snapshot)
    }

    fn empty(&self) -> Version {
        Version::empty(self.nothing.clone())
    }

    /// It can be read from here on, and waits for the flush of `generation`, of which it is the
    /// end.
    pub(crate) fn begin(&self, generation: u64, snapshot: Arc<Snapshot>) {
        self.all.lock().insert(snapshot.label.name.clone(), snapshot.clone());
        self.pending.lock().push_back((generation, snapshot));
    }

    /// The snapshot that ends `generation` and waits for its flush.
    pub(crate) fn pending_at(&self, generation: u64) -> Option<Arc<Snapshot>> {
        self.pending.lock().iter().find(|(at, _)| *at == generation).map(|(_, s)| s.clone())
    }

    /// The generation of the oldest one that waits for its flush.
    pub(crate) fn next_pending(&self) -> Option<u64> {
        self.pending.lock().front().map(|(generation, _)| *generation)
    }

    /// It is in the manifest, and has the runs of `version`.
    pub(crate) fn settle(&self, snapshot: &Arc<Snapshot>, version: &Version) {
        let trees = version.trees.iter().filter(|(_, t)| snapshot.has(&t.info));
        let trees = trees.map(|(id, t)| (*id, self.runs_of(t))).collect();
        snapshot.version.store(Arc::new(Version::of(trees, self.nothing.clone())));
        self.all.lock().insert(snapshot.label.name.clone(), snapshot.clone());
        self.pending.lock().retain(|(_, s)| !Arc::ptr_eq(s, snapshot));
    }

    /// Puts runs in the place of others, in all snapshots.
    pub(crate) fn replace_runs(&self, instead: &Instead) {
        for snapshot in self.all.lock().values() {
            let mut version = (*snapshot.version()).clone();
            for tree in version.trees.values_mut() {
                if let Some(new) = replaced(tree, instead) {
                    *tree = Arc::new(new);
                }
            }
            snapshot.version.store(Arc::new(version));
        }
    }

    /// The runs of a dictionary, shared with the snapshot before when it has the same.
    fn runs_of(&self, tree: &Tree) -> Arc<Tree> {
        let mut newest = self.newest.lock();
        if let Some(before) = newest.get(&tree.info.id).and_then(Weak::upgrade)
            && before.info.options == tree.info.options
            && same_runs(&before.levels, &tree.levels)
        {
            return before;
        }
        let runs = Arc::new(self.as_kept(tree.clone()));
        newest.insert(tree.info.id, Arc::downgrade(&runs));
        runs
    }
}

/// The dictionary with the new runs, if it has any of the old ones.
pub(crate) fn replaced(tree: &Tree, instead: &Instead) -> Option<Tree> {
    if !tree.runs().any(|p| instead.contains_key(&Arc::as_ptr(&p.run))) {
        return None;
    }
    let mut tree = tree.clone();
    for level in &mut tree.levels {
        let new = |numbered: NumberedRun| match instead.get(&Arc::as_ptr(&numbered.run)) {
            None => Some(numbered),
            Some(new) => new.clone().map(|run| NumberedRun { id: numbered.id, run }),
        };
        *level = std::mem::take(level).into_iter().filter_map(new).collect();
    }
    Some(tree)
}

/// The number above all dictionaries of a version.
pub(crate) fn above(version: &Version) -> u32 {
    version.trees.last_key_value().map_or(0, |(id, _)| id.0.saturating_add(1))
}

/// A dictionary of a snapshot, which is no branch: it is found by its name alone.
fn as_main(tree: &Tree) -> Tree {
    Tree {
        info: DictionaryInfo { branch: String::new(), ..tree.info.clone() },
        since: 0,
        ..tree.clone()
    }
}

fn same_runs(a: &[Vec<NumberedRun>], b: &[Vec<NumberedRun>]) -> bool {
    let same = |a: &NumberedRun, b: &NumberedRun| a.id == b.id && Arc::ptr_eq(&a.run, &b.run);
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)))
}
