//! Histories that rollbacks or a power cut interrupt. A rollback begins a new *epoch*, an
//! independent history that starts with the state which the rollback has left. A transaction that
//! ended before a rollback began and is not in the snapshot must have disappeared, and a
//! transaction that began before the rollback must not have committed after it. After a power cut
//! the surviving transactions must form a valid history, too.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kvdb::Isolation;

use super::{Attempt, Did, End, check};

/// The thread number of the reads of the test itself.
pub const OBSERVER: u64 = 1 << 20;

/// Every list by its number.
pub type Lists = BTreeMap<u64, Vec<u64>>;

/// The events between two rollbacks, or until the end.
#[derive(Default)]
pub struct Epoch {
    /// The state after the previous rollback.
    pub began: Lists,
    pub attempts: Vec<Attempt>,
    /// The rollback that ended this epoch.
    pub rollback: Option<Rollback>,
}

pub struct Rollback {
    pub from: u64,
    pub to: u64,
    /// In the snapshot.
    pub kept: Lists,
    /// In the store when all that was in progress had ended.
    pub left: Lists,
}

impl Epoch {
    /// Each epoch begins with the state that the one before has left.
    pub fn join(epochs: &mut [Epoch]) {
        for i in 1..epochs.len() {
            epochs[i].began =
                epochs[i - 1].rollback.as_ref().map(|r| r.left.clone()).unwrap_or_default();
        }
    }

    /// The history of this epoch alone, which begins with the state that existed then.
    pub fn history(&self) -> Vec<Attempt> {
        let first = self.attempts.iter().map(|a| a.from).min().unwrap_or(0);
        let did: Vec<Did> = self
            .began
            .iter()
            .flat_map(|(key, list)| list.iter().map(|n| Did::Append(*key, *n)))
            .collect();
        let began = Attempt {
            thread: OBSERVER + 1,
            from: 0,
            to: 0,
            did,
            end: End::Synced,
            kind: "what was left",
        };
        let mut all = self.attempts.clone();
        // Ticks begin at 0: those of the beginning come before all of them.
        all.iter_mut()
            .for_each(|a| (a.from, a.to) = (a.from + 2 - first.min(2), a.to + 2 - first.min(2)));
        if !began.did.is_empty() {
            all.push(Attempt { to: 1, ..began });
        }
        all
    }

    /// Checks the rollback that ended the epoch, and the state until then.
    pub fn judge(&self, isolation: Isolation, what: &str) {
        let mut history = self.history();
        if let Some(Rollback { from, to, kept, left }) = &self.rollback {
            let there: HashSet<(u64, u64)> =
                left.iter().flat_map(|(key, list)| list.iter().map(|n| (*key, *n))).collect();
            for (key, list) in kept {
                assert!(
                    left.get(key).is_some_and(|now| now.starts_with(list)),
                    "{what}: list {key} of the snapshot is {list:?}, not a part of {left:?}"
                );
            }
            for a in &self.attempts {
                let new = a
                    .appended()
                    .filter(|(key, n)| !kept.get(key).is_some_and(|list| list.contains(n)));
                let found: BTreeSet<bool> = new.map(|appended| there.contains(&appended)).collect();
                assert!(
                    found.len() < 2,
                    "{what}: of a transaction only a part has outlived a rollback: {a:?}"
                );
                if found.contains(&true) {
                    assert!(
                        a.to > *from,
                        "{what}: it ended before the rollback ({from} to {to}) and has outlived it: {a:?}"
                    );
                    assert!(
                        a.end != End::Failed,
                        "{what}: it failed, and is there behind the rollback: {a:?}"
                    );
                } else if found.contains(&false) && matches!(a.end, End::Committed | End::Synced) {
                    assert!(
                        a.from < *to,
                        "{what}: it began after the rollback ({from} to {to}) and is gone: {a:?}"
                    );
                }
            }
            // A transaction in progress may have read before or after the rollback.
            let shift = history
                .iter()
                .zip(&self.attempts)
                .map(|(h, a)| h.from.abs_diff(a.from))
                .next()
                .unwrap_or(0);
            for a in history.iter_mut().filter(|a| a.to > from + shift && a.from > 0) {
                a.end = if a.end == End::Failed { End::Failed } else { End::Unknown };
            }
        }
        check(isolation, &history, what);
    }
}

/// Checks the surviving part of a life after the power cut.
pub fn judge(isolation: Isolation, attempts: &[Attempt], left: &Lists, what: &str) {
    let there: HashSet<(u64, u64)> =
        left.iter().flat_map(|(key, list)| list.iter().map(|n| (*key, *n))).collect();
    let writers = attempts.iter().filter(|a| a.end != End::Failed && a.appended().next().is_some());
    let (mut survivors, mut lost) = (Vec::new(), Vec::new());
    for a in writers {
        let found: BTreeSet<bool> =
            a.appended().map(|appended| there.contains(&appended)).collect();
        assert_eq!(found.len(), 1, "{what}: of a transaction only a part is left: {a:?}");
        if found.contains(&true) { survivors.push(a) } else { lost.push(a) }
    }
    let synced = lost.iter().find(|a| a.end == End::Synced);
    assert!(synced.is_none(), "{what}: synced and lost: {synced:?}");
    let newest = survivors.iter().max_by_key(|a| a.from);
    let gap =
        lost.iter().find(|a| a.end == End::Committed && newest.is_some_and(|n| a.to < n.from));
    assert!(
        gap.is_none(),
        "{what}: lost, though what began after it is there: {gap:?}, {newest:?}"
    );
    // Failed transactions stay in the history, since no other transaction may have seen them.
    let end = attempts.iter().map(|a| a.to).max().unwrap_or(0);
    let mut history: Vec<Attempt> =
        survivors.into_iter().map(|a| Attempt { end: End::Committed, ..a.clone() }).collect();
    history.extend(lost.into_iter().map(|a| Attempt { end: End::Failed, ..a.clone() }));
    history.extend(attempts.iter().filter(|a| a.end == End::Failed).cloned());
    let did = left.iter().map(|(key, list)| Did::Read(*key, list.clone())).collect();
    history.push(Attempt {
        thread: OBSERVER,
        from: end + 1,
        to: end + 2,
        did,
        end: End::Committed,
        kind: "what is left",
    });
    check(isolation, &history, &format!("{what}, what is left of it"));
}
