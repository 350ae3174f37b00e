//! Tests of each injected fault: the error that the caller gets, the part that is applied, and the
//! record of the fault in the trace.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use objects::{
    Condition, CountObjects, Created, FaultyObjects, Injected, Key, MemoryObjects, Objects,
    ObjectsError, Part, Patience, Rates, create, get_patiently,
};

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

/// Objects with faults over those in memory, which tell what was applied.
fn faulty(seed: u64, rates: Rates) -> (FaultyObjects, Arc<MemoryObjects>) {
    let memory = Arc::new(MemoryObjects::new().with_pages_of(3));
    (FaultyObjects::new(memory.clone(), seed, rates), memory)
}

fn injected(objects: &FaultyObjects) -> Vec<Injected> {
    objects.trace().into_iter().map(|event| event.injected).collect()
}

/// Puts one object; returns the error, and whether it was applied.
fn put_with(rates: Rates, condition: Condition) -> (ObjectsError, bool, Vec<Injected>) {
    let (objects, memory) = faulty(1, rates);
    let error = objects.put(&key("a"), Bytes::from("1"), condition).expect_err("it is struck");
    (error, memory.count() == 1, injected(&objects))
}

#[test]
fn an_answer_that_is_lost_leaves_the_outcome_open() {
    let lost_request = Rates { lost_request: 1, ..Rates::default() };
    let (error, applied, trace) = put_with(lost_request, Condition::Absent);
    assert!(!error.is_certain() && !applied, "{error}");
    assert_eq!(trace, [Injected::LostRequest]);

    let lost_answer = Rates { lost_answer: 1, ..Rates::default() };
    let (error, applied, trace) = put_with(lost_answer, Condition::Absent);
    assert!(!error.is_certain() && applied, "{error}");
    assert_eq!(trace, [Injected::LostAnswer]);
}

#[test]
fn a_conflict_is_applied_or_not() {
    let outcomes: HashSet<bool> = (0..50)
        .map(|seed| {
            let (objects, memory) = faulty(seed, Rates { conflict: 1, ..Rates::default() });
            let put = objects.put(&key("a"), Bytes::new(), Condition::Absent);
            assert!(matches!(put, Err(ObjectsError::Unsure { .. })), "{put:?}");
            objects.put(&key("b"), Bytes::new(), Condition::Always).expect("it has no condition");
            memory.count() == 2
        })
        .collect();
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn a_refusal_is_certain_and_may_be_retried() {
    for rates in
        [Rates { too_many: 1, ..Rates::default() }, Rates { slow_down: 1, ..Rates::default() }]
    {
        let (error, applied, _) = put_with(rates, Condition::Always);
        assert!(matches!(error, ObjectsError::Busy { .. }), "{error}");
        assert!(error.is_certain() && error.may_be_retried() && !applied);
    }
}

#[test]
fn a_late_request_arrives_after_its_sender_has_given_up() {
    let late = Rates { late_request: 1, ..Rates::default() };
    let (objects, memory) = faulty(1, late);
    let put = objects.put(&key("a"), Bytes::from("1"), Condition::Absent);
    assert!(matches!(put, Err(ObjectsError::Unsure { .. })), "{put:?}");
    assert_eq!(memory.count(), 0);
    objects.set_rates(Rates::default());
    let arrived = (0..1000).any(|_| objects.get(&key("a"), Part::Whole).is_ok());
    assert!(arrived, "it arrives while other requests are sent");
    objects.set_rates(late);
    assert!(objects.delete(&key("a")).is_err());
    assert_eq!((memory.count(), objects.deliver(), memory.count()), (1, 1, 0));
    use Injected::{Arrived, LateRequest};
    assert_eq!(injected(&objects), [LateRequest, Arrived, LateRequest, Arrived]);
}

#[test]
fn reads_are_cut_off_or_have_a_wrong_bit() {
    let content: Vec<u8> = (0..100).collect();
    let read = |rates| {
        let (objects, memory) = faulty(3, rates);
        memory.put(&key("a"), content.clone().into(), Condition::Absent).expect("there is none");
        let object = objects.get(&key("a"), Part::Whole).expect("it looks like success");
        assert_eq!(object.len, 100);
        assert_eq!(injected(&objects).len(), 1);
        object.bytes
    };
    let short = read(Rates { truncated: 1, ..Rates::default() });
    assert!(short.len() < 100 && short == content[..short.len()]);
    let wrong = read(Rates { flipped: 1, ..Rates::default() });
    let bits: u32 = wrong.iter().zip(&content).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((wrong.len(), bits), (100, 1));
}

#[test]
fn a_patient_reader_gets_all_bytes_of_a_part() {
    let patience = Patience { requests: 50, first: Duration::ZERO, longest: Duration::ZERO };
    let rates = Rates { truncated: 2, lost_request: 4, slow_down: 4, ..Rates::default() };
    let (objects, memory) = faulty(3, rates);
    memory.put(&key("a"), Bytes::from("0123456789"), Condition::Absent).expect("there is none");
    for _ in 0..100 {
        let part = Part::Range(4..99);
        let object = get_patiently(&objects, &key("a"), part, patience).expect("it is patient");
        assert_eq!(object.bytes, "456789");
    }
    let missing = get_patiently(&objects, &key("b"), Part::Whole, patience);
    assert!(matches!(missing, Err(ObjectsError::NotFound { .. })), "{missing:?}");
    objects.set_outage(true);
    let before = objects.trace().len();
    assert!(get_patiently(&objects, &key("a"), Part::Whole, patience).is_err());
    assert_eq!(objects.trace().len() - before, 50, "the patience has an end");
}

/// A put that is in progress when `create` reads, and has arrived when it puts again.
#[test]
fn a_condition_that_fails_after_an_unknown_outcome_says_nothing() {
    let mine = Bytes::from("the nonce of this writer");
    let patience = Patience { requests: 9, first: Duration::ZERO, longest: Duration::ZERO };
    let mut failed = 0;
    for seed in 0..200 {
        let rates = Rates { late_request: 2, ..Rates::default() };
        let (faulty, memory) = faulty(seed, rates);
        let objects = CountObjects::new(Arc::new(faulty));
        let outcome = create(&objects, &key("a"), mine.clone(), patience);
        match outcome {
            Ok(Created::Done(_)) | Err(ObjectsError::Unsure { .. }) => {}
            other => panic!("seed {seed}: {other:?}"),
        }
        assert!(outcome.is_err() || memory.count() == 1, "seed {seed}");
        // The last request was answered with the object; the put before it was not the first one.
        let counts = objects.counts();
        failed += u64::from(counts.put.requests > 1 && counts.put.failed == counts.put.requests);
    }
    assert!(failed > 10, "{failed} puts have met the earlier one");
}

#[test]
fn an_outage_lasts_until_it_is_ended() {
    let (objects, memory) = faulty(1, Rates::default());
    objects.set_outage(true);
    let outcomes = [
        objects.put(&key("a"), Bytes::new(), Condition::Always).err(),
        objects.get(&key("a"), Part::Whole).err(),
        objects.delete(&key("a")).err(),
        objects.list("", "").err(),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Some(ObjectsError::Unsure { .. })), "{outcome:?}");
    }
    assert_eq!(memory.count(), 0);
    objects.set_outage(false);
    objects.put(&key("a"), Bytes::new(), Condition::Always).expect("the outage is over");
    assert_eq!(injected(&objects), [Injected::Outage; 4]);
}

/// All keys by pages, as a client continues after the last entry of each.
fn listed(objects: &dyn Objects) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = objects.list("", &after).expect("a list");
        names.extend(page.entries.iter().map(|listed| listed.key.to_string()));
        match page.entries.last() {
            Some(last) if page.more => after = last.key.to_string(),
            _ => return names,
        }
    }
}

#[test]
fn a_late_list_lacks_new_objects_and_has_deleted_ones() {
    let mut seen = HashSet::new();
    for seed in 0..100 {
        let (objects, memory) = faulty(seed, Rates { late_list: 2, ..Rates::default() });
        // This one is not new to the faulty view, so it is always listed.
        memory.put(&key("old"), Bytes::new(), Condition::Absent).expect("there is none");
        for name in ["a", "b", "c", "d", "e"] {
            objects.put(&key(name), Bytes::new(), Condition::Absent).expect("there is none");
        }
        objects.delete(&key("b")).expect("it exists");
        let names = listed(&objects);
        assert!(names.is_sorted(), "{names:?}");
        assert!(names.contains(&"old".into()));
        let late = injected(&objects).contains(&Injected::LateList);
        let new = ["a", "c", "d", "e"].iter().filter(|n| names.contains(&n.to_string())).count();
        let deleted = names.contains(&"b".into());
        // The next page may have an entry that the end of a page lacked.
        assert!(late || (new == 4 && !deleted), "the trace tells: {names:?}");
        seen.insert((new < 4, deleted));
        objects.set_rates(Rates::default());
        assert_eq!(listed(&objects), ["a", "c", "d", "e", "old"], "a list comes right in time");
    }
    assert_eq!(seen.len(), 4, "each alone, both, and neither: {seen:?}");
}

#[test]
fn a_page_may_begin_with_the_last_entry_of_the_one_before() {
    let (objects, _) = faulty(1, Rates { repeated_entry: 1, ..Rates::default() });
    for name in ["a", "b", "c", "d"] {
        objects.put(&key(name), Bytes::new(), Condition::Absent).expect("there is none");
    }
    assert_eq!(listed(&objects), ["a", "b", "c", "c", "d"]);
    assert_eq!(injected(&objects), [Injected::RepeatedEntry]);
}

#[test]
fn a_seed_reproduces_its_faults() {
    let rates = Rates {
        lost_request: 9,
        lost_answer: 9,
        late_request: 9,
        conflict: 9,
        too_many: 9,
        slow_down: 9,
        late_list: 3,
        repeated_entry: 3,
        truncated: 5,
        flipped: 5,
        ..Rates::default()
    };
    let trace = |seed| {
        let (objects, _) = faulty(seed, rates);
        for n in 0..600 {
            let name = key(&format!("{}", n % 20));
            // The faults are what counts here.
            let _ = objects.put(&name, Bytes::from("12"), Condition::Absent);
            let _ = objects.get(&name, Part::Whole);
            let _ = objects.list("", if n % 2 == 0 { "" } else { "10" });
            if n % 4 == 0 {
                let _ = objects.delete(&key(&format!("{}", (n + 7) % 20)));
            }
        }
        objects.trace()
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
    let kinds: HashSet<Injected> = trace(1).into_iter().map(|event| event.injected).collect();
    assert!(kinds.len() >= 9, "{kinds:?}");
}
