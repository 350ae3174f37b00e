//! The contract of `Objects`. Each rule is checked for every place, and random histories are
//! compared with a model.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use env::Random;
use objects::{
    Condition, CountObjects, DirectoryObjects, FaultyObjects, Key, MemoryObjects, Objects,
    ObjectsError, Part, Rates, Tag,
};

/// Checks a rule for every place, with pages of three entries.
fn everywhere(rule: impl Fn(&dyn Objects)) {
    wherever_bytes_make_tags(&rule);
    // The same bytes are others each time that they are encrypted.
    #[cfg(feature = "encryption")]
    {
        use objects::{EncryptedObjects, Secret};
        let secret = Secret::parse(&"5e".repeat(32)).expect("64 digits");
        let memory = MemoryObjects::new().with_pages_of(3);
        rule(&EncryptedObjects::new(Arc::new(memory), Some(secret)));
    }
}

/// Checks a rule for every place where the same bytes have the same tag again.
fn wherever_bytes_make_tags(rule: impl Fn(&dyn Objects)) {
    let memory = || MemoryObjects::new().with_pages_of(3);
    rule(&memory());
    let folder = tempfile::tempdir().expect("a folder");
    rule(&DirectoryObjects::open(folder.path()).expect("it exists").with_pages_of(3));
    let faulty = FaultyObjects::new(Arc::new(memory()), 1, Rates::default());
    rule(&faulty);
    assert_eq!(faulty.trace(), [], "rates of zero inject nothing");
    rule(&CountObjects::new(Arc::new(memory())));
    #[cfg(feature = "encryption")]
    rule(&objects::EncryptedObjects::new(Arc::new(memory()), None));
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn put(objects: &dyn Objects, name: &str, bytes: &'static str) -> Tag {
    objects.put(&key(name), Bytes::from(bytes), Condition::Always).expect("nothing forbids it")
}

fn get(objects: &dyn Objects, name: &str) -> Bytes {
    objects.get(&key(name), Part::Whole).expect("it exists").bytes
}

fn names(objects: &dyn Objects, prefix: &str) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = objects.list(prefix, &after).expect("a list");
        names.extend(page.entries.iter().map(|listed| listed.key.to_string()));
        if !page.more {
            return names;
        }
        let last = page.entries.last().expect("a page with others after it has an entry");
        after = last.key.to_string();
    }
}

#[test]
fn what_was_put_is_read() {
    everywhere(|objects| {
        let tag = put(objects, "z/0f/1-2", "hello");
        let object = objects.get(&key("z/0f/1-2"), Part::Whole).expect("it exists");
        assert_eq!((&object.bytes[..], object.len, &object.tag), (&b"hello"[..], 5, &tag));
        let again = put(objects, "z/0f/1-2", "other");
        assert_ne!(tag, again);
        assert_eq!(get(objects, "z/0f/1-2"), "other");
        put(objects, "empty", "");
        assert_eq!(get(objects, "empty"), "");
    });
}

#[test]
fn only_an_object_with_another_tag_is_read_on_that_condition() {
    everywhere(|objects| {
        let first = put(objects, "a/head", "one");
        let other = |tag| objects.get_other(&key("a/head"), Part::Range(0..9), tag);
        assert_eq!(other(&first).expect("it is there"), None);
        let second = put(objects, "a/head", "two");
        let object = other(&first).expect("it is there").expect("it was replaced");
        assert_eq!((object.bytes, object.tag), (Bytes::from("two"), second));
        let gone = objects.get_other(&key("a/tail"), Part::Whole, &first);
        assert!(matches!(gone, Err(ObjectsError::NotFound { .. })));
    });
}

#[test]
fn a_range_gives_what_is_there() {
    everywhere(|objects| {
        let tag = put(objects, "a", "0123456789");
        let read = |range| objects.get(&key("a"), Part::Range(range));
        for (range, bytes) in [(0..10, "0123456789"), (2..4, "23"), (9..10, "9"), (7..99, "789")] {
            let object = read(range).expect("it begins in the object");
            assert_eq!((object.bytes, object.len), (Bytes::from(bytes), 10));
            assert_eq!(object.tag, tag, "the tag is that of the whole object");
        }
        assert_eq!(read(9..u64::MAX).expect("it begins in the object").bytes, "9");
        for start in [10, 11, u64::MAX - 1] {
            let beyond = read(start..u64::MAX);
            let Err(ObjectsError::OutOfRange { start: found, len, .. }) = beyond else {
                panic!("{beyond:?}");
            };
            assert_eq!((found, len), (start, 10));
        }
        assert!(matches!(read(4..4), Err(ObjectsError::Invalid(_))));
        put(objects, "empty", "");
        let nothing = objects.get(&key("empty"), Part::Range(0..1));
        assert!(matches!(nothing, Err(ObjectsError::OutOfRange { len: 0, .. })));
    });
}

#[test]
fn what_is_missing_is_not_found() {
    everywhere(|objects| {
        put(objects, "a/b", "1");
        for missing in ["x", "a/c", "a", "x/y/z", "a/b/c"] {
            for part in [Part::Whole, Part::Range(0..1)] {
                let found = objects.get(&key(missing), part);
                let Err(ObjectsError::NotFound { key }) = found else { panic!("{found:?}") };
                assert_eq!(key.as_str(), missing);
            }
        }
    });
}

#[test]
fn a_deleted_object_is_gone_and_deleting_is_repeatable() {
    everywhere(|objects| {
        put(objects, "a/b", "1");
        put(objects, "a/c", "2");
        objects.delete(&key("a/b")).expect("it exists");
        let found = objects.get(&key("a/b"), Part::Whole);
        assert!(matches!(found, Err(ObjectsError::NotFound { .. })), "{found:?}");
        for nothing in ["a/b", "a", "x", "x/y", "a/c/d"] {
            objects.delete(&key(nothing)).expect("deleting what is not there succeeds");
        }
        assert_eq!(names(objects, ""), ["a/c"]);
    });
}

#[test]
fn absent_creates_once() {
    everywhere(|objects| {
        let a = key("m/a");
        let create = |bytes| objects.put(&a, Bytes::from_static(bytes), Condition::Absent);
        let tag = create(b"1").expect("there is none");
        for bytes in [b"1", b"2"] {
            let second = create(bytes);
            let Err(error @ ObjectsError::ConditionFailed { .. }) = &second else {
                panic!("{second:?}");
            };
            assert!(error.is_certain() && error.to_string().contains("m/a"), "{error}");
        }
        assert_eq!(objects.get(&a, Part::Whole).expect("it exists").tag, tag);
        objects.delete(&a).expect("it exists");
        create(b"3").expect("there is none again");
        assert_eq!(get(objects, "m/a"), "3");
    });
}

#[test]
fn a_swap_needs_the_tag_that_is_there() {
    everywhere(|objects| {
        let a = key("m/a");
        let swap = |bytes, tag: &Tag| {
            objects.put(&a, Bytes::from_static(bytes), Condition::Matches(tag.clone()))
        };
        let missing = swap(b"0", &Tag::new("some tag"));
        assert!(matches!(missing, Err(ObjectsError::NotFound { .. })), "{missing:?}");
        let first = put(objects, "m/a", "1");
        let second = swap(b"2", &first).expect("the tag matches");
        let stale = swap(b"3", &first);
        assert!(matches!(stale, Err(ObjectsError::ConditionFailed { .. })), "{stale:?}");
        assert_eq!(get(objects, "m/a"), "2");
        let third = swap(b"3", &second).expect("the tag matches");
        assert_eq!(objects.get(&a, Part::Whole).expect("it exists").tag, third);
        objects.delete(&a).expect("it exists");
        let missing = swap(b"4", &third);
        assert!(matches!(missing, Err(ObjectsError::NotFound { .. })), "{missing:?}");
        assert_eq!(names(objects, ""), Vec::<String>::new());
    });
}

#[test]
fn a_stale_tag_is_accepted_when_the_same_bytes_recur() {
    // So it is on every server tried: tags are made of the bytes. A head needs a nonce.
    wherever_bytes_make_tags(|objects| {
        let stale = put(objects, "a", "1");
        put(objects, "a", "2");
        put(objects, "a", "1");
        let swapped = objects.put(&key("a"), Bytes::from("3"), Condition::Matches(stale));
        assert!(swapped.is_ok(), "{swapped:?}");
    });
}

#[test]
fn lists_are_in_the_order_of_keys_and_in_pages() {
    everywhere(|objects| {
        // The slash sorts between the full stop and the digits, not as the end of a name.
        let sorted = ["a-b", "a.b", "a/-", "a/b/c", "a/b0", "a0", "aa", "b/c", "c"];
        for name in sorted.iter().rev() {
            put(objects, name, "12");
        }
        assert_eq!(names(objects, ""), sorted);
        assert_eq!(names(objects, "a/"), ["a/-", "a/b/c", "a/b0"]);
        assert_eq!(names(objects, "a/b"), ["a/b/c", "a/b0"]);
        assert_eq!(names(objects, "a"), &sorted[..7]);
        assert_eq!(names(objects, "c"), ["c"]);
        for nothing in ["d", "c/", "a/b/c/", "~", "a//", "\u{e4}"] {
            assert_eq!(names(objects, nothing), Vec::<String>::new(), "{nothing}");
        }
        let first = objects.list("", "").expect("a list");
        let keys: Vec<&str> = first.entries.iter().map(|l| l.key.as_str()).collect();
        assert_eq!((&keys[..], first.more), (&sorted[..3], true));
        let last = objects.list("", "aa").expect("a list");
        assert_eq!((last.entries.len(), last.more), (2, false));
        let exact = objects.list("", "a/b0").expect("a list");
        assert_eq!((exact.entries.len(), exact.more), (3, true));
        let between = objects.list("a/b", "a/b/b").expect("a list");
        assert_eq!(between.entries[0].key.as_str(), "a/b/c");
        assert_eq!(between.entries[0].len, 2);
    });
}

#[test]
fn lists_have_the_time_of_the_last_put() {
    everywhere(|objects| {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
        // The clock of files is coarser than this one.
        let tick = std::time::Duration::from_millis(100);
        let before = now() - tick;
        put(objects, "a", "1");
        let modified = objects.list("", "").expect("a list").entries[0].modified;
        assert!(before <= modified && modified <= now() + tick, "{modified:?}");
    });
}

#[test]
fn no_object_is_a_folder_of_another() {
    everywhere(|objects| {
        put(objects, "a/b", "1");
        for clash in ["a", "a/b/c", "a/b/c/d"] {
            for condition in [Condition::Always, Condition::Absent] {
                let put = objects.put(&key(clash), Bytes::new(), condition);
                assert!(matches!(put, Err(ObjectsError::Invalid(_))), "{clash}: {put:?}");
            }
        }
        assert_eq!(names(objects, ""), ["a/b"]);
        put(objects, "a.b", "1");
        put(objects, "ab", "1");
        put(objects, "a/bc", "1");
    });
}

#[test]
fn a_key_of_the_greatest_length_can_be_used() {
    everywhere(|objects| {
        let part = "a".repeat(255);
        let long = format!("{part}/{part}/{part}/{}", "b".repeat(900 - 3 * 256));
        assert_eq!(long.len(), 900);
        put(objects, &long, "1");
        assert_eq!(names(objects, &long), [long.as_str()]);
        assert_eq!(get(objects, &long), "1");
    });
}

/// A few thousand random operations give what a map gives.
fn history(objects: &dyn Objects, seed: u64, steps: usize) {
    let mut random = Random::new(seed);
    let mut model: BTreeMap<Key, Bytes> = BTreeMap::new();
    let mut tags: BTreeMap<Key, Vec<Tag>> = BTreeMap::new();
    let keys: Vec<Key> =
        (0..30).map(|n| key(&format!("{}/{}{}", n % 3, ["", "x/", "y-"][n % 7 % 3], n))).collect();
    let mut held = 0;
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let k = random.pick(&keys).expect("there are keys");
        match random.below(10) {
            0..=2 => {
                let mut bytes = vec![0; random.below(20) as usize];
                random.fill(&mut bytes);
                let bytes = Bytes::from(bytes);
                let known = tags.entry(k.clone()).or_default();
                let condition = match (random.below(4), random.pick(known)) {
                    (0, _) => Condition::Always,
                    (1, _) | (_, None) => Condition::Absent,
                    (2, _) => Condition::Matches(known.last().expect("one is known").clone()),
                    (_, Some(tag)) => Condition::Matches(tag.clone()),
                };
                let there = model.get(k).map(|bytes| Tag::of(bytes));
                let holds = match &condition {
                    Condition::Always => true,
                    Condition::Absent => there.is_none(),
                    Condition::Matches(tag) => there.as_ref() == Some(tag),
                };
                match objects.put(k, bytes.clone(), condition) {
                    Ok(tag) => {
                        assert!(holds, "{at}: the condition did not hold");
                        assert_eq!(tag, Tag::of(&bytes), "{at}");
                        known.push(tag);
                        model.insert(k.clone(), bytes);
                        held += 1;
                    }
                    Err(ObjectsError::ConditionFailed { .. }) => {
                        assert!(!holds && there.is_some(), "{at}")
                    }
                    Err(ObjectsError::NotFound { .. }) => {
                        assert!(!holds && there.is_none(), "{at}")
                    }
                    Err(e) => panic!("{at}: {e}"),
                }
            }
            3 => {
                objects.delete(k).unwrap_or_else(|e| panic!("{at}: {e}"));
                model.remove(k);
            }
            4 => {
                let prefix = ["", "0", "0/", "1/x", "2/y-", "9"][random.below(6) as usize];
                let after = random.pick(&keys).expect("there are keys").as_str();
                let page = objects.list(prefix, after).unwrap_or_else(|e| panic!("{at}: {e}"));
                let all: Vec<_> = model
                    .range::<str, _>((Bound::Excluded(after), Bound::Unbounded))
                    .filter(|(key, _)| key.as_str().starts_with(prefix))
                    .map(|(key, bytes)| (key.clone(), bytes.len() as u64))
                    .collect();
                let entries: Vec<_> = page.entries.iter().map(|l| (l.key.clone(), l.len)).collect();
                assert_eq!(entries, &all[..all.len().min(3)], "{at}");
                assert_eq!(page.more, all.len() > 3, "{at}");
            }
            _ => {
                let start = random.below(25);
                let end = start + 1 + random.below(10);
                let whole = random.one_in(2);
                let part = if whole { Part::Whole } else { Part::Range(start..end) };
                match (objects.get(k, part), model.get(k)) {
                    (Ok(object), Some(bytes)) => {
                        let len = bytes.len();
                        let range =
                            if whole { 0..len } else { start as usize..len.min(end as usize) };
                        assert_eq!(object.bytes, bytes.slice(range), "{at}");
                        assert_eq!((object.len, object.tag), (len as u64, Tag::of(bytes)), "{at}");
                    }
                    (Err(ObjectsError::OutOfRange { len, .. }), Some(bytes)) => {
                        assert!(!whole && len == bytes.len() as u64 && start >= len, "{at}")
                    }
                    (Err(ObjectsError::NotFound { .. }), None) => {}
                    (outcome, there) => panic!("{at}: {outcome:?}, but {there:?} is there"),
                }
            }
        }
    }
    assert!(held > steps / 20, "only {held} puts were applied");
}

#[test]
fn a_history_gives_what_a_map_gives() {
    wherever_bytes_make_tags(|objects| history(objects, 4711, 3000));
}

#[test]
fn two_that_have_opened_a_folder_see_one_history() {
    let folder = tempfile::tempdir().expect("a folder");
    let one = DirectoryObjects::open(folder.path()).expect("it exists");
    let two = DirectoryObjects::open(folder.path()).expect("it exists");
    for n in 0..20 {
        let (from, to) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let bytes = Bytes::from(format!("version {n}"));
        let tag = from.put(&key("a/b"), bytes.clone(), Condition::Always).expect("a put");
        let object = to.get(&key("a/b"), Part::Whole).expect("it exists");
        assert_eq!((object.bytes, object.tag), (bytes, tag));
    }
}
