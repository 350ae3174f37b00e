//! Tracks the dictionaries in which a merge may be due, and totals over the runs of all
//! dictionaries. Both follow the manifest: only dictionaries whose entry has changed are examined
//! again, since flushes and merges are frequent and a store may have very many dictionaries.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use env::sync::{Mutex, MutexGuard};

use super::garbage::{Garbage, GarbageEstimate};
use super::policy::CompactionPlan;
use crate::counters::Counters;
use crate::dictionary::DictionaryId;
use crate::manifest::Dictionaries;
use crate::options::CompactionPolicy;
use crate::short_values::adapts;
use crate::version::Version;
use crate::version::tree::Tree;

/// The work that is due in a dictionary while no other merge is in progress there. Every possible
/// plan is covered, since merges in progress only reduce the possibilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Findings {
    /// Number of runs at the youngest level.
    young: usize,
    garbage: Garbage,
    /// The policy calls for a merge.
    by_policy: bool,
    /// Deletions, dead bytes or readers call for a merge.
    when_quiet: bool,
    /// The dictionary may have short values outside of their blocks.
    outside: bool,
}

impl Findings {
    fn of(tree: &Tree, policy: &CompactionPolicy, garbage: Garbage) -> Findings {
        let planned = CompactionPlan::for_policy(tree, policy, &[], usize::MAX, garbage);
        Findings {
            young: tree.levels.first().map_or(0, Vec::len),
            garbage,
            by_policy: planned.is_some(),
            when_quiet: CompactionPlan::for_tombstones(tree, true).is_some()
                || CompactionPlan::for_dead(tree, garbage, policy).is_some()
                || CompactionPlan::for_readers(tree, policy).is_some(),
            outside: adapts(tree.info()) && tree.info().short_outside,
        }
    }
}

/// The findings of the dictionaries that have any. A thousand clones of a snapshot have the same
/// ones, which are stored once.
#[derive(Default)]
struct Each {
    of_main: HashMap<DictionaryId, Findings>,
    of_clones: HashMap<DictionaryId, Arc<Findings>>,
    /// The different findings among those of clones.
    shared: HashSet<Arc<Findings>>,
}

impl Each {
    fn insert(&mut self, id: DictionaryId, of_main: bool, findings: Findings) {
        if of_main {
            self.of_main.insert(id, findings);
            return;
        }
        let shared = match self.shared.get(&findings) {
            Some(shared) => shared.clone(),
            None => {
                let new = Arc::new(findings);
                self.shared.insert(new.clone());
                new
            }
        };
        self.of_clones.insert(id, shared);
    }

    /// Removes the findings of a dictionary, and returns them.
    fn remove(&mut self, id: DictionaryId) -> Option<Findings> {
        if let Some(findings) = self.of_main.remove(&id) {
            return Some(findings);
        }
        let gone = self.of_clones.remove(&id)?;
        // No other clone has them: these two are the last references.
        if Arc::strong_count(&gone) == 2 {
            self.shared.remove(&*gone);
        }
        Some(*gone)
    }

    #[cfg(test)]
    fn all(&self) -> BTreeMap<DictionaryId, Findings> {
        let of_clones = self.of_clones.iter().map(|(id, findings)| (*id, **findings));
        self.of_main.iter().map(|(id, findings)| (*id, *findings)).chain(of_clones).collect()
    }
}

#[derive(Default)]
struct Found {
    /// The manifest's entries of the dictionaries that were examined.
    seen: Dictionaries,
    each: Each,
    /// The number of dictionaries for each number of young runs.
    young: BTreeMap<usize, usize>,
    garbage: Garbage,
    by_policy: BTreeSet<(usize, DictionaryId)>,
    when_quiet: BTreeSet<DictionaryId>,
    outside: BTreeSet<DictionaryId>,
}

impl Found {
    /// Replaces the findings for a dictionary.
    fn set(&mut self, id: DictionaryId, of_main: bool, now: Findings) {
        let before = self.each.remove(id).unwrap_or_default();
        self.garbage -= before.garbage;
        self.garbage += now.garbage;
        if let Some(count) = self.young.get_mut(&before.young) {
            *count -= 1;
            if *count == 0 {
                self.young.remove(&before.young);
            }
        }
        if before.by_policy {
            self.by_policy.remove(&(before.young, id));
        }
        if now.by_policy {
            self.by_policy.insert((now.young, id));
        }
        let note = |set: &mut BTreeSet<_>, is_in: bool| match is_in {
            true => _ = set.insert(id),
            false => _ = set.remove(&id),
        };
        note(&mut self.when_quiet, now.when_quiet);
        note(&mut self.outside, now.outside);
        if now.young > 0 {
            *self.young.entry(now.young).or_default() += 1;
        }
        if now != Findings::default() {
            self.each.insert(id, of_main, now);
        }
    }
}

/// See the module's comment.
pub(crate) struct Candidates {
    policy: CompactionPolicy,
    garbage: Arc<GarbageEstimate>,
    found: Mutex<Found>,
}

impl Candidates {
    pub(super) fn new(policy: CompactionPolicy, garbage: Arc<GarbageEstimate>) -> Candidates {
        Candidates { policy: policy.sane(), garbage, found: Mutex::default() }
    }

    /// Returns the findings, updated to `version`.
    fn of(&self, version: &Version) -> MutexGuard<'_, Found> {
        let mut found = self.found.lock();
        let seen = std::mem::replace(&mut found.seen, Dictionaries::clone(&version.entries));
        let mut changed = self.garbage.take_changed();
        seen.difference(&version.entries, |id, old, new| match (old, new) {
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => {}
            _ => _ = changed.insert(*id),
        });
        for id in changed {
            let tree = version.trees.get(&id);
            let of = |tree: &Arc<Tree>| Findings::of(tree, &self.policy, self.garbage.dead(tree));
            let of_main = tree.is_some_and(|tree| tree.info().branch.is_empty());
            found.set(id, of_main, tree.map(of).unwrap_or_default());
        }
        found
    }

    /// Returns the dictionaries in which the policy may call for a merge, the most urgent first.
    pub(super) fn by_policy(&self, version: &Version) -> Vec<DictionaryId> {
        self.of(version).by_policy.iter().rev().map(|(_, id)| *id).collect()
    }

    /// Returns the dictionaries in which a merge may be due once the store is quiet.
    pub(super) fn when_quiet(&self, version: &Version) -> Vec<DictionaryId> {
        self.of(version).when_quiet.iter().copied().collect()
    }

    /// Returns the dictionaries that may have short values outside of their blocks.
    pub(super) fn outside(&self, version: &Version) -> Vec<DictionaryId> {
        self.of(version).outside.iter().copied().collect()
    }

    /// Updates the counters of young runs, and of live and dead bytes in all runs.
    pub(super) fn count_runs(&self, version: &Version, counters: &Counters) {
        let found = self.of(version);
        let most = found.young.last_key_value().map_or(0, |(most, _)| *most);
        counters.young_runs.set(most as u64);
        counters.alive_bytes.set(found.garbage.all - found.garbage.dead);
        counters.dead_percent.set(found.garbage.percent());
        drop(found);
        self.garbage.keep(version);
    }
}

impl AddAssign for Garbage {
    fn add_assign(&mut self, other: Garbage) {
        *self = Garbage { dead: self.dead + other.dead, all: self.all + other.all };
    }
}

impl SubAssign for Garbage {
    fn sub_assign(&mut self, other: Garbage) {
        *self = Garbage { dead: self.dead - other.dead, all: self.all - other.all };
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use zones::MemoryDevice;

    use super::*;
    use crate::{CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};

    /// Checks that incremental updates and a full scan produce the same findings.
    #[test]
    fn what_follows_the_changes_is_what_there_is() {
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), options)
            .expect("made");
        let policy = CompactionPolicy::default();
        let garbage = Arc::new(GarbageEstimate::default());
        let following = Candidates::new(policy, garbage.clone());
        let dicts: Vec<_> = (0..20)
            .map(|n| db.create_dictionary(&format!("d{n}"), DictionaryOptions::default()))
            .collect::<crate::Result<_>>()
            .expect("made");
        for round in 0..60u32 {
            let d = dicts[(round * 7 % 20) as usize];
            if db.has_dictionary(d) {
                for key in 0..20 + round {
                    let key = key.to_be_bytes();
                    db.put(d, &key, &[1; 100], Durability::Buffered).expect("put");
                }
                if round % 4 == 1 {
                    let mut batch = crate::Batch::new();
                    batch.delete(d, vec![0, 0, 0, 1]);
                    db.commit(batch, Durability::Buffered).expect("deleted");
                }
                db.flush().expect("flushed");
                match round % 10 {
                    3 => db.compact(d).expect("merged"),
                    9 => db.drop_dictionary(d).expect("dropped"),
                    _ => {}
                }
            }
            let version = db.version_set().load_full();
            if let Some(run) = version.trees.get(&d).and_then(|t| t.runs().next()) {
                garbage.set(d, run.id, f64::from(round % 3) / 2.0);
            }
            let fresh = Candidates::new(policy, garbage.clone());
            let found = fresh.of(&version);
            // The fresh instance has consumed the note of the change.
            garbage.changed(d);
            let followed = following.of(&version);
            assert_eq!(followed.each.all(), found.each.all(), "round {round}");
            assert_eq!(followed.young, found.young, "round {round}");
            assert_eq!(followed.by_policy, found.by_policy, "round {round}");
            assert_eq!(followed.when_quiet, found.when_quiet, "round {round}");
            assert_eq!(followed.garbage, found.garbage, "round {round}");
            assert!(round < 40 || !found.by_policy.is_empty() || !found.when_quiet.is_empty());
        }
    }

    #[test]
    fn clones_share_their_findings_and_the_last_one_takes_them_away() {
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), options)
            .expect("made");
        let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
        db.put(d, b"key", b"value", Durability::Buffered).expect("put");
        db.snapshot("s").expect("made");
        let clones = || (0..20).map(|n| format!("c{n}"));
        clones().for_each(|clone| db.clone_snapshot("s", &clone).expect("made"));
        let garbage = Arc::new(GarbageEstimate::default());
        let candidates = Candidates::new(CompactionPolicy::default(), garbage);
        let found = |of_clones: usize, shared: usize| {
            let found = candidates.of(&db.version_set().load_full());
            assert_eq!(found.each.of_main.len(), 1);
            assert_eq!((found.each.of_clones.len(), found.each.shared.len()), (of_clones, shared));
        };
        found(20, 1);
        let changed = db.dictionary_in("c7", "d").expect("there");
        db.put(changed, b"other", b"value", Durability::Buffered).expect("put");
        db.flush().expect("flushed");
        found(20, 2);
        db.drop_branch("c7").expect("dropped");
        found(19, 1);
        clones().filter(|clone| clone != "c7").for_each(|clone| {
            db.drop_branch(&clone).expect("dropped");
        });
        found(0, 0);
    }
}
