//! Compares the results of random requests with the results of the simplest model, a list of locks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// A half-open range of keys. A range without an end includes the last key.
#[derive(Clone, Debug)]
struct Range {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    single: bool,
}

impl Range {
    fn borrowed(&self) -> KeyRangeRef<'_> {
        match &self.end {
            _ if self.single => KeyRangeRef::key(&self.start),
            None => KeyRangeRef::starting_at(&self.start),
            Some(end) => KeyRangeRef::between(&self.start, end),
        }
    }
    fn has(&self, point: &[u8]) -> bool {
        *self.start <= *point && self.end.as_ref().is_none_or(|end| *point < **end)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u64),
    Lock(u64, u32, Range, bool),
    Release(u64),
    Commit(Vec<(u32, Range)>, Option<u64>),
}

fn range() -> impl Strategy<Value = Range> {
    let key = 0u8..12;
    prop_oneof![
        3 => key.clone().prop_map(|k| Range { start: vec![k], end: Some(vec![k, 0]), single: true }),
        3 => (key.clone(), key.clone()).prop_map(|(a, b)| Range { start: vec![a], end: Some(vec![b]), single: false }),
        1 => key.prop_map(|k| Range { start: vec![k], end: None, single: false }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let owner = 1u64..6;
    let dict = 1u32..3;
    prop_oneof![
        2 => owner.clone().prop_map(Step::Begin),
        8 => (owner.clone(), dict.clone(), range(), any::<bool>()).prop_map(|(o, d, r, x)| Step::Lock(o, d, r, x)),
        1 => owner.clone().prop_map(Step::Release),
        2 => (prop::collection::vec((dict, range()), 0..4), prop::option::of(owner)).prop_map(|(c, e)| Step::Commit(c, e)),
    ]
}

/// Returns every key at which a range can begin or end, and one key between any two such keys.
fn points() -> impl Iterator<Item = Vec<u8>> {
    (0..13u8).flat_map(|k| [vec![k], vec![k, 0], vec![k, 1]])
}

struct Held {
    owner: u64,
    dict: u32,
    range: Range,
    exclusive: bool,
}

#[derive(Default)]
struct Model {
    /// The age of each owner.
    owners: BTreeMap<u64, u64>,
    held: Vec<Held>,
}

impl Model {
    fn in_the_way(
        &self,
        owner: Option<u64>,
        dict: u32,
        range: &Range,
        exclusive: bool,
    ) -> Vec<u64> {
        let meets = |held: &&Held| {
            held.dict == dict
                && Some(held.owner) != owner
                && (exclusive || held.exclusive)
                && points().any(|p| held.range.has(&p) && range.has(&p))
        };
        self.held.iter().filter(meets).map(|held| held.owner).collect()
    }
    fn mode(&self, owner: u64, dict: u32, point: &[u8]) -> Option<bool> {
        self.held
            .iter()
            .filter(|h| h.owner == owner && h.dict == dict && h.range.has(point))
            .map(|h| h.exclusive)
            .max()
    }
    fn release(&mut self, owner: u64) {
        self.owners.remove(&owner);
        self.held.retain(|h| h.owner != owner);
    }
}

/// Returns the age of an owner. Ages do not ascend with the numbers, so that the tests notice if
/// the two are confused.
fn age(owner: u64) -> u64 {
    [0, 40, 10, 30, 10, 50][owner as usize]
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let locks = Locks::new(usize::MAX);
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Begin(id) => {
                locks.begin(Owner { id, age: age(id) });
                model.owners.insert(id, age(id));
            }
            Step::Release(id) => {
                locks.release(id);
                model.release(id);
            }
            Step::Lock(owner, dict, range, exclusive) => {
                lock(&locks, &mut model, Held { owner, dict, range, exclusive })?;
            }
            Step::Commit(changes, except) => {
                let blockers: Vec<u64> = changes
                    .iter()
                    .flat_map(|(d, r)| model.in_the_way(except, *d, r, true))
                    .collect();
                let changes = changes.iter().map(|(d, r)| (DictionaryId(*d), r.borrowed()));
                match locks.try_guard(changes, except) {
                    Ok(_) => prop_assert!(blockers.is_empty()),
                    Err(Blocked { holder }) => prop_assert!(blockers.contains(&holder)),
                };
            }
        }
        prop_assert_eq!(locks.any(), !model.owners.is_empty());
        compare(&locks, &model)?;
    }
    Ok(())
}

/// Requests a lock, and checks that younger owners are wounded and that the call waits for older
/// owners.
fn lock(locks: &Locks, model: &mut Model, asked: Held) -> Result<(), TestCaseError> {
    let (id, dict) = (asked.owner, asked.dict);
    let wounded = RefCell::new(Vec::new());
    let wound = |id| {
        locks.release(id);
        wounded.borrow_mut().push(id);
    };
    let mode = if asked.exclusive { Mode::Exclusive } else { Mode::Shared };
    let range = asked.range.borrowed();
    let result = locks.lock(id, DictionaryId(dict), range, mode, Duration::ZERO, &wound);
    let mut ways = model.in_the_way(Some(id), dict, &asked.range, asked.exclusive);
    ways.sort_unstable();
    ways.dedup();
    let older: Vec<u64> = ways.iter().copied().filter(|w| (age(*w), *w) < (age(id), id)).collect();
    match result {
        Err(LockError::Ended) => prop_assert!(!model.owners.contains_key(&id)),
        Err(LockError::TimedOut { holder }) => prop_assert!(older.contains(&holder)),
        Err(e) => prop_assert!(false, "{e:?} where every wounded owner ends at once"),
        Ok(()) => {
            prop_assert!(model.owners.contains_key(&id) && older.is_empty());
            let mut wounded = wounded.into_inner();
            wounded.sort_unstable();
            prop_assert_eq!(&wounded, &ways);
            wounded.into_iter().for_each(|w| model.release(w));
            model.held.push(asked);
        }
    }
    Ok(())
}

/// Checks that every owner holds at every point the same lock as in the model, and that fragments
/// are joined as far as possible.
fn compare(locks: &Locks, model: &Model) -> Result<(), TestCaseError> {
    let table = locks.table.lock();
    for dict in 1..3 {
        let Some(fragments) = table.fragments(DictionaryId(dict)) else {
            prop_assert!(
                !model.held.iter().any(|h| h.dict == dict && points().any(|p| h.range.has(&p)))
            );
            continue;
        };
        let all: Vec<_> = fragments.iter().collect();
        for two in all.windows(2) {
            let ((_, left), (start, right)) = (two[0], two[1]);
            let end = left.end.as_ref();
            prop_assert!(end.is_some_and(|end| end <= start), "fragments do not overlap");
            prop_assert!(
                end != Some(start) || left.holders != right.holders,
                "neighbours are joined"
            );
        }
        for point in points() {
            for owner in 1..6 {
                let held = model.mode(owner, dict, &point);
                let point = KeyRangeRef::key(&point);
                prop_assert_eq!(fragments.covers(owner, point, false), held.is_some());
                prop_assert_eq!(fragments.covers(owner, point, true), held == Some(true));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn locks_are_granted_and_refused_as_in_a_list_of_locks(steps in prop::collection::vec(step(), 1..80)) {
        run(steps)?;
    }
}
