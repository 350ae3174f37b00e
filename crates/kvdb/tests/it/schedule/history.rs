//! A history of operations on a few registers, and the search for one order that explains it (Wing
//! and Gong 1993, with a record of the states already tried: Lowe 2017).

use std::collections::HashSet;

pub const REGISTERS: usize = 3;
pub type Values = [Option<u64>; REGISTERS];

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// At one moment: these registers held these values, and then those got those.
    Change {
        read: Vec<(usize, Option<u64>)>,
        wrote: Vec<(usize, Option<u64>)>,
    },
    Snapshot,
    /// In the snapshot these registers hold these values.
    #[allow(dead_code, reason = "only the programs on files look there")]
    InSnapshot(Vec<(usize, Option<u64>)>),
    /// The registers are as in the last snapshot.
    Rollback,
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub what: String,
    pub from: u64,
    /// `None` means that no answer arrived, so the operation may have happened or not, and later.
    pub to: Option<u64>,
    /// The operation is on disk when it has answered.
    pub synced: bool,
    pub effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManifestState {
    pub now: Values,
    snapshot: Option<Values>,
}

impl ManifestState {
    pub const EMPTY: ManifestState = ManifestState { now: [None; REGISTERS], snapshot: None };

    fn after(mut self, effect: &Effect) -> Option<ManifestState> {
        match effect {
            Effect::Change { read, wrote } => {
                if read.iter().any(|&(register, value)| self.now[register] != value) {
                    return None;
                }
                wrote.iter().for_each(|&(register, value)| self.now[register] = value);
            }
            Effect::Snapshot => self.snapshot = Some(self.now),
            Effect::InSnapshot(read) => {
                let snapshot = self.snapshot?;
                return read
                    .iter()
                    .all(|&(register, value)| snapshot[register] == value)
                    .then_some(self);
            }
            Effect::Rollback => self.now = self.snapshot?,
        }
        Some(self)
    }
}

struct Search<'a> {
    operations: &'a [Operation],
    seen: HashSet<(u128, ManifestState)>,
    /// The operations that must have happened if this state is found.
    goal: Option<(u128, Values)>,
}

impl Search<'_> {
    fn from(&mut self, done: u128, state: ManifestState) -> bool {
        if let Some((must, values)) = self.goal
            && done & must == must
            && state.now == values
        {
            return true;
        }
        let open = |i: usize| done & (1 << i) == 0;
        let certain = |i: usize| open(i) && self.operations[i].to.is_some();
        if self.goal.is_none() && !(0..self.operations.len()).any(certain) {
            return true;
        }
        if !self.seen.insert((done, state)) {
            return false;
        }
        // The next one began before any that is still open has ended.
        let first_end = (0..self.operations.len())
            .filter(|&i| open(i))
            .filter_map(|i| self.operations[i].to)
            .min();
        for i in (0..self.operations.len()).filter(|&i| open(i)) {
            let operation = &self.operations[i];
            if first_end.is_none_or(|end| operation.from <= end)
                && let Some(next) = state.after(&operation.effect)
                && self.from(done | 1 << i, next)
            {
                return true;
            }
        }
        false
    }
}

fn explained(operations: &[Operation], goal: Option<(u128, Values)>) -> bool {
    assert!(operations.len() <= 128, "the search has a bit for each operation");
    Search { operations, seen: HashSet::new(), goal }.from(0, ManifestState::EMPTY)
}

/// Fails unless one order explains all answers.
pub fn check(operations: &[Operation]) {
    assert!(explained(operations, None), "no order explains these answers:\n{}", told(operations));
}

#[allow(
    dead_code,
    reason = "files are not lost in the order of their changes, so only keys ask this"
)]
/// Fails unless `found` is a state of such an order, with everything that was synced.
pub fn check_left(operations: &[Operation], found: Values) {
    let synced = operations.iter().enumerate().filter(|(_, o)| o.synced && o.to.is_some());
    let must = synced.fold(0, |mask, (i, _)| mask | 1 << i);
    let message =
        "after the power cut these values are left, which no order with all that was synced has";
    assert!(
        explained(operations, Some((must, found))),
        "{message}: {found:?}\n{}",
        told(operations)
    );
}

#[allow(dead_code, reason = "only the programs on keys open the store again")]
/// Fails unless `found` is the state that such an order ends with: after a clean close no operation
/// is lost.
pub fn check_closed(operations: &[Operation], found: Values) {
    let all = (0..operations.len()).fold(0, |mask, i| mask | 1 << i);
    let message =
        "after a clean close these values are there, with which no order of all that was done ends";
    assert!(
        explained(operations, Some((all, found))),
        "{message}: {found:?}\n{}",
        told(operations)
    );
}

fn told(operations: &[Operation]) -> String {
    let mut sorted: Vec<&Operation> = operations.iter().collect();
    sorted.sort_by_key(|o| o.from);
    let end = |o: &Operation| o.to.map_or("?".into(), |t| t.to_string());
    let line = |o: &&Operation| {
        format!(
            "  {:>4} to {:>4}  {}{}: {:?}",
            o.from,
            end(o),
            o.what,
            if o.synced { ", synced" } else { "" },
            o.effect
        )
    };
    sorted.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_search_knows_a_lost_update_and_a_stale_read() {
    let change =
        |from, to, read: &[(usize, Option<u64>)], wrote: &[(usize, Option<u64>)]| Operation {
            what: "test".into(),
            from,
            to: Some(to),
            synced: true,
            effect: Effect::Change { read: read.to_vec(), wrote: wrote.to_vec() },
        };
    let first = change(0, 5, &[(0, None)], &[(0, Some(1))]);
    assert!(explained(&[first.clone(), change(1, 6, &[(0, Some(1))], &[(0, Some(2))])], None));
    assert!(
        !explained(&[first.clone(), change(1, 6, &[(0, None)], &[(0, Some(2))])], None),
        "a lost update"
    );
    assert!(explained(&[first.clone(), change(3, 6, &[(0, None)], &[])], None), "before it");
    assert!(!explained(&[first.clone(), change(6, 7, &[(0, None)], &[])], None), "a stale read");
    let snapshot = |from, effect| Operation {
        what: "test".into(),
        from,
        to: Some(from + 1),
        synced: true,
        effect,
    };
    let back = [
        snapshot(0, Effect::Snapshot),
        change(2, 3, &[], &[(0, Some(1))]),
        snapshot(4, Effect::Rollback),
    ];
    assert!(explained(&[&back[..], &[change(6, 7, &[(0, None)], &[])]].concat(), None));
    assert!(
        !explained(&[&back[..], &[change(6, 7, &[(0, Some(1))], &[])]].concat(), None),
        "a rollback undone"
    );
    assert!(explained(&back, Some((0b111, [None; REGISTERS]))));
    assert!(!explained(&back[..2], Some((0b11, [None; REGISTERS]))), "synced and lost");
}
