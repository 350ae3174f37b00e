//! Tests of the probe on places that keep the rules, and on places that each break one.

use std::sync::Arc;

use bytes::Bytes;
use objects::{
    Condition, DirectoryObjects, FaultyObjects, Key, MemoryObjects, Object, Objects, ObjectsError,
    Page, Part, Rates, Result, Tag,
};
use objects_s3::{Races, probe};

#[test]
fn places_that_keep_the_rules_pass_and_are_left_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory: Arc<dyn Objects> = Arc::new(MemoryObjects::new().with_pages_of(7));
    let directory: Arc<dyn Objects> = Arc::new(DirectoryObjects::open(folder.path()).expect("one"));
    for place in [memory, directory] {
        for prefix in ["", "some/", "x/y"] {
            let found = probe(&*place, prefix).expect("it runs");
            assert!(found.is_fine(), "{found:?}");
            assert_eq!(found.creates, Races { races: 20, ..Races::default() });
            assert_eq!(found.swaps, found.creates);
            let verdict = found.verdict();
            assert!(verdict.contains("keeps") && verdict.contains(&place.place()), "{verdict}");
        }
        assert_eq!(place.list("", "").expect("a list"), Page::default(), "it is left empty");
    }
}

#[test]
fn lost_answers_and_refusals_are_no_broken_rules() {
    let rates = Rates {
        lost_request: 30,
        lost_answer: 30,
        too_many: 30,
        slow_down: 30,
        ..Rates::default()
    };
    for seed in 0..3 {
        let memory = Arc::new(MemoryObjects::new());
        let faulty = FaultyObjects::new(memory.clone(), seed, rates);
        let found = probe(&faulty, "").expect("it runs");
        assert!(found.creates.several + found.swaps.several == 0, "seed {seed}: {found:?}");
        assert!(found.is_fine(), "seed {seed}: {found:?}");
        assert_eq!(memory.count(), 0, "it is left empty");
    }
}

/// The rule that the server breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Create,
    Swap,
    NoWinner,
    Torn,
    Busy,
    Range,
    Refusal,
    List,
    Denied,
}

#[derive(Debug)]
struct Careless(MemoryObjects, Broken);

impl Objects for Careless {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        match (&part, self.1) {
            (Part::Range(_), Broken::Range) => self.0.get(key, Part::Whole),
            (Part::Range(range), Broken::Refusal) if range.start > 65535 => {
                Ok(Object { bytes: Bytes::new(), ..self.0.get(key, Part::Whole)? })
            }
            _ => self.0.get(key, part),
        }
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        match (&condition, self.1) {
            (Condition::Absent, Broken::Create) | (Condition::Matches(_), Broken::Swap) => {
                self.0.put(key, bytes, Condition::Always)
            }
            (Condition::Absent, Broken::NoWinner) => {
                Err(ObjectsError::ConditionFailed { key: key.clone() })
            }
            (Condition::Absent, Broken::Busy) => {
                Err(ObjectsError::Busy { key: key.to_string(), why: "it says so".into() })
            }
            (Condition::Absent, Broken::Torn) => {
                self.0.put(key, bytes.slice(..100), Condition::Absent)
            }
            (Condition::Matches(_), Broken::Denied) => {
                Err(ObjectsError::Denied { doing: "a test".into(), why: "it says so".into() })
            }
            _ => self.0.put(key, bytes, condition),
        }
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.0.delete(key)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        match self.1 {
            Broken::List => self.0.list(prefix, ""),
            _ => self.0.list(prefix, after),
        }
    }

    fn place(&self) -> String {
        "careless:".into()
    }
}

#[test]
fn each_broken_rule_is_found_and_named() {
    for (broken, named) in [
        (Broken::Create, "to create an object, 20 had more than one winner, 0 had none"),
        (Broken::Swap, "to replace an object, 20 had more than one winner, 0 had none"),
        (Broken::NoWinner, "to create an object, 0 had more than one winner, 20 had none"),
        (Broken::Torn, "20 left other bytes than the winner's"),
        (Broken::Busy, "20 had no outcome"),
        (Broken::Range, "ranges of an object are not"),
        (Broken::Refusal, "ranges beyond the end are not refused"),
        (Broken::List, "lists are not complete"),
    ] {
        let place = Careless(MemoryObjects::new(), broken);
        let found = probe(&place, "").expect("it runs");
        let verdict = found.verdict();
        assert!(!found.is_fine() && verdict.contains(named), "{broken:?}: {verdict}");
        assert!(verdict.contains("careless: cannot have a store"), "{verdict}");
        assert_eq!(place.0.count(), 0, "it is left empty");
    }
}

#[test]
fn what_is_not_allowed_is_an_error_and_leaves_nothing() {
    let place = Careless(MemoryObjects::new(), Broken::Denied);
    let error = probe(&place, "p").expect_err("it is not allowed");
    assert!(matches!(error, ObjectsError::Denied { .. }), "{error:?}");
    assert_eq!(place.0.count(), 0, "it is left empty");
    let error = probe(&place, "a b").expect_err("it is no key");
    assert!(matches!(error, ObjectsError::Invalid(_)), "{error:?}");
}
