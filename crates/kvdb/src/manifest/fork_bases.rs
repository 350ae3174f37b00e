//! Keeps the states that a fork has in common with the stores from which it comes: the state with
//! which the fork began and, for the fork of a fork, the states with which the earlier forks began.
//! These states are internal snapshots of the fork. They are made with the fork's file and
//! published with the fork, so that each opening of a fork has both the base and the current state.

use std::time::Duration;

use super::{Edit, ManifestState};
use crate::error::Result;
use crate::ids::Label;

/// The prefix of the name of a fork's base. The identity of the store from which the fork came
/// follows.
const FORK: &str = ".fork-";

/// The maximum number of origins whose bases a fork keeps. The number is limited because each base
/// keeps a state.
const MOST: usize = 4;

/// Returns the name of the snapshot that is the base of a fork of this store.
pub(crate) fn name_of(store: &[u8; 16]) -> String {
    let id: String = store.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{FORK}{id}")
}

fn store_of(name: &str) -> Option<[u8; 16]> {
    let id = u128::from_str_radix(name.strip_prefix(FORK)?, 16).ok()?.to_be_bytes();
    (name_of(&id) == name).then_some(id)
}

/// Returns the stores to which the bases in a state belong, in the order from the oldest to the
/// newest base.
pub(crate) fn stores_in<'a>(labels: impl Iterator<Item = &'a Label>) -> Vec<[u8; 16]> {
    let mut all: Vec<_> = labels
        .filter_map(|label| Some((label.created, label.seq, store_of(&label.name)?)))
        .collect();
    all.sort_unstable();
    all.into_iter().map(|(.., store)| store).collect()
}

/// The base of a fork that is about to be made.
pub(crate) struct NewBase<'a> {
    /// The identity of the store from which the fork comes.
    pub store: [u8; 16],
    /// The time when that store published the state, since 1970.
    pub published: Duration,
    /// The id of the new snapshot, which is unique among all snapshots.
    pub id: [u8; 16],
    /// The snapshot to which the fork will be rolled back before its first write.
    pub snapshot: Option<&'a str>,
}

/// Keeps the state with which a fork begins: the main branch of a published state, or a snapshot of
/// the main branch.
pub(crate) fn keep_base(state: &mut ManifestState, new: &NewBase<'_>) -> Result<()> {
    let name = name_of(&new.store);
    let of_main = |name: &str| {
        state.snapshots.get(name).filter(|snapshot| snapshot.label.branch.is_empty()).cloned()
    };
    let snapshot = new.snapshot.and_then(of_main);
    let known = stores_in(state.snapshots.values().map(|snapshot| &snapshot.label));
    let older: Vec<_> = known.iter().filter(|store| **store != new.store).collect();
    let too_many = older.len().saturating_sub(MOST - 1);
    for store in older.into_iter().take(too_many).chain(known.iter().filter(|s| **s == new.store)) {
        state.apply(Edit::DropSnapshot(name_of(store)))?;
    }
    let seq = snapshot.as_ref().map_or(state.start.seq, |snapshot| snapshot.label.seq);
    let label = Label { name, branch: String::new(), id: new.id, created: new.published, seq };
    match snapshot {
        Some(snapshot) => state.keep_as(label, &snapshot),
        None => state.apply(Edit::Snapshot { label, below: state.next_dictionary }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(store: u8) -> NewBase<'static> {
        let published = Duration::from_secs(u64::from(store));
        NewBase { store: [store; 16], published, id: [store; 16], snapshot: None }
    }

    #[test]
    fn a_name_says_which_store_it_is() {
        assert_eq!(store_of(&name_of(&[0xa7; 16])), Some([0xa7; 16]));
        for other in [".fork-", ".fork-1", &format!(".fork-{}", "A7".repeat(16)), ".base-c/7"] {
            assert_eq!(store_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_fork_of_forks_keeps_the_last_few_bases() {
        let mut state = ManifestState::new();
        for store in 1..=6 {
            keep_base(&mut state, &base(store)).expect("kept");
        }
        keep_base(&mut state, &base(6)).expect("kept once more");
        let known = stores_in(state.snapshots.values().map(|snapshot| &snapshot.label));
        assert_eq!(known, [[3; 16], [4; 16], [5; 16], [6; 16]]);
    }
}
