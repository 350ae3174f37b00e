//! The contract of [`objects::Objects`] as rules for any place. Each rule works in a folder of its
//! own, and tags are the server's own. Where a server may do either of two things, both pass.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use env::Random;
use objects::{Condition, Key, Objects, ObjectsError, Part, Tag};

/// A place below a prefix.
pub struct Folder<'a> {
    pub objects: &'a dyn Objects,
    pub name: String,
}

impl Folder<'_> {
    pub fn key(&self, name: &str) -> Key {
        Key::new(format!("{}/{name}", self.name)).expect("a key")
    }

    fn put(&self, name: &str, bytes: &'static str) -> Tag {
        let outcome = self.objects.put(&self.key(name), Bytes::from(bytes), Condition::Always);
        outcome.unwrap_or_else(|error| panic!("nothing forbids it: {error}"))
    }

    fn get(&self, name: &str) -> Bytes {
        let outcome = self.objects.get(&self.key(name), Part::Whole);
        outcome.unwrap_or_else(|error| panic!("it exists: {error}")).bytes
    }

    /// The names after `after`, without the folder, in pages as they come.
    pub fn names_after(&self, prefix: &str, after: &str) -> Vec<String> {
        let folder = format!("{}/", self.name);
        let prefix = format!("{folder}{prefix}");
        let mut after = if after.is_empty() { String::new() } else { format!("{folder}{after}") };
        let mut names = Vec::new();
        loop {
            let page = self.objects.list(&prefix, &after).expect("a list");
            for listed in &page.entries {
                let name = listed.key.as_str().strip_prefix(&folder).expect("it is in the folder");
                names.push(name.to_string());
            }
            if !page.more {
                return names;
            }
            after = page.entries.last().expect("a page with others after it").key.to_string();
        }
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        self.names_after(prefix, "")
    }
}

/// A rule, and its name.
pub type Rule = (&'static str, fn(&Folder<'_>));

/// All rules.
pub const RULES: &[Rule] = &[
    ("read", what_was_put_is_read),
    ("other", only_an_object_with_another_tag_is_read_on_that_condition),
    ("range", a_range_gives_what_is_there),
    ("missing", what_is_missing_is_not_found),
    ("delete", a_deleted_object_is_gone_and_deleting_is_repeatable),
    ("absent", absent_creates_once),
    ("swap", a_swap_needs_the_tag_that_is_there),
    ("lists", lists_are_in_the_order_of_keys_and_in_pages),
    ("times", lists_have_the_time_of_the_last_put),
    ("clash", a_name_that_is_a_folder_too_is_kept_or_refused),
    ("longest", a_key_of_the_greatest_length_can_be_used),
    ("large", a_zone_comes_back_whole_and_in_parts),
    ("history", a_history_gives_what_a_map_gives),
];

fn what_was_put_is_read(folder: &Folder<'_>) {
    let tag = folder.put("z/0f/1-2", "hello");
    let object = folder.objects.get(&folder.key("z/0f/1-2"), Part::Whole).expect("it exists");
    assert_eq!((&object.bytes[..], object.len, &object.tag), (&b"hello"[..], 5, &tag));
    assert_ne!(folder.put("z/0f/1-2", "other"), tag);
    assert_eq!(folder.get("z/0f/1-2"), "other");
    folder.put("empty", "");
    assert_eq!(folder.get("empty"), "");
    for name in ["...", "-", "_", "a..b", ".c", "Z9.-_"] {
        folder.put(name, "x");
        assert_eq!(folder.get(name), "x", "{name}");
    }
}

fn only_an_object_with_another_tag_is_read_on_that_condition(folder: &Folder<'_>) {
    let (key, missing) = (folder.key("a/head"), folder.key("a/tail"));
    let first = folder.put("a/head", "one");
    let other = |part, tag| folder.objects.get_other(&key, part, tag).expect("it is there");
    for part in [Part::Whole, Part::Range(0..1000)] {
        assert_eq!(other(part, &first), None);
    }
    let second = folder.put("a/head", "two");
    for part in [Part::Whole, Part::Range(0..1000)] {
        let object = other(part, &first).expect("it was replaced");
        assert_eq!((object.bytes, &object.tag), (Bytes::from("two"), &second));
    }
    let gone = folder.objects.get_other(&missing, Part::Whole, &first);
    assert!(matches!(gone, Err(ObjectsError::NotFound { .. })), "{gone:?}");
}

fn a_range_gives_what_is_there(folder: &Folder<'_>) {
    let tag = folder.put("a", "0123456789");
    let read = |range| folder.objects.get(&folder.key("a"), Part::Range(range));
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
    folder.put("empty", "");
    let nothing = folder.objects.get(&folder.key("empty"), Part::Range(0..1));
    assert!(matches!(nothing, Err(ObjectsError::OutOfRange { len: 0, .. })), "{nothing:?}");
}

fn what_is_missing_is_not_found(folder: &Folder<'_>) {
    folder.put("a/b", "1");
    for missing in ["x", "a/c", "a", "x/y/z", "a/b/c"] {
        for part in [Part::Whole, Part::Range(0..1)] {
            let found = folder.objects.get(&folder.key(missing), part);
            assert!(matches!(found, Err(ObjectsError::NotFound { .. })), "{missing}: {found:?}");
        }
    }
}

fn a_deleted_object_is_gone_and_deleting_is_repeatable(folder: &Folder<'_>) {
    folder.put("a/b", "1");
    folder.put("a/c", "2");
    folder.objects.delete(&folder.key("a/b")).expect("it exists");
    let found = folder.objects.get(&folder.key("a/b"), Part::Whole);
    assert!(matches!(found, Err(ObjectsError::NotFound { .. })), "{found:?}");
    for nothing in ["a/b", "a", "x", "x/y", "a/c/d"] {
        let outcome = folder.objects.delete(&folder.key(nothing));
        outcome.unwrap_or_else(|error| panic!("deleting what is not there succeeds: {error}"));
    }
    assert_eq!(folder.names(""), ["a/c"]);
}

fn absent_creates_once(folder: &Folder<'_>) {
    let a = folder.key("m/a");
    let create = |bytes| folder.objects.put(&a, Bytes::from_static(bytes), Condition::Absent);
    let tag = create(b"1").expect("there is none");
    for bytes in [b"1", b"2"] {
        let second = create(bytes);
        assert!(matches!(second, Err(ObjectsError::ConditionFailed { .. })), "{second:?}");
    }
    assert_eq!(folder.objects.get(&a, Part::Whole).expect("it exists").tag, tag);
    folder.objects.delete(&a).expect("it exists");
    create(b"3").expect("there is none again");
    assert_eq!(folder.get("m/a"), "3");
}

/// A server may say of a missing object that it is not found, or that the condition fails.
fn is_missing(outcome: &objects::Result<Tag>) -> bool {
    matches!(outcome, Err(ObjectsError::NotFound { .. } | ObjectsError::ConditionFailed { .. }))
}

fn a_swap_needs_the_tag_that_is_there(folder: &Folder<'_>) {
    let a = folder.key("m/a");
    let swap = |bytes, tag: &Tag| {
        folder.objects.put(&a, Bytes::from_static(bytes), Condition::Matches(tag.clone()))
    };
    let missing = swap(b"0", &Tag::new("\"0123456789abcdef0123456789abcdef\""));
    assert!(is_missing(&missing), "{missing:?}");
    let first = folder.put("m/a", "1");
    let second = swap(b"2", &first).expect("the tag matches");
    let stale = swap(b"3", &first);
    assert!(matches!(stale, Err(ObjectsError::ConditionFailed { .. })), "{stale:?}");
    assert_eq!(folder.get("m/a"), "2");
    let third = swap(b"3", &second).expect("the tag matches");
    assert_eq!(folder.objects.get(&a, Part::Whole).expect("it exists").tag, third);
    folder.objects.delete(&a).expect("it exists");
    let missing = swap(b"4", &third);
    println!("a swap of a missing object: {missing:?}");
    assert!(is_missing(&missing), "{missing:?}");
    assert_eq!(folder.names(""), Vec::<String>::new());
}

fn lists_are_in_the_order_of_keys_and_in_pages(folder: &Folder<'_>) {
    // The slash sorts between the full stop and the digits, not as the end of a name.
    let sorted = ["a-b", "a.b", "a/-", "a/b/c", "a/b0", "a0", "aa", "b/c", "c"];
    for name in sorted.iter().rev() {
        folder.put(name, "12");
    }
    assert_eq!(folder.names(""), sorted);
    assert_eq!(folder.names("a/"), ["a/-", "a/b/c", "a/b0"]);
    assert_eq!(folder.names("a/b"), ["a/b/c", "a/b0"]);
    assert_eq!(folder.names("a"), &sorted[..7]);
    assert_eq!(folder.names("c"), ["c"]);
    for nothing in ["d", "c/", "a/b/c/", "~", "a//", "\u{e4}", "a b", "a+b&c=%20"] {
        assert_eq!(folder.names(nothing), Vec::<String>::new(), "{nothing}");
    }
    for (n, name) in sorted.iter().enumerate() {
        assert_eq!(folder.names_after("", name), &sorted[n + 1..], "after {name}");
    }
    assert_eq!(folder.names_after("a/b", "a/b/b"), ["a/b/c", "a/b0"]);
    assert_eq!(folder.names_after("", "a/b/"), &sorted[3..]);
    assert_eq!(folder.names_after("a/", "a"), &sorted[2..5]);
    assert_eq!(folder.names_after("a/", "b"), Vec::<String>::new());
    let page = folder.objects.list(&format!("{}/", folder.name), "").expect("a list");
    assert_eq!(page.entries[0].len, 2);
}

fn lists_have_the_time_of_the_last_put(folder: &Folder<'_>) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
    // Some servers give seconds.
    let tick = std::time::Duration::from_millis(1100);
    let before = now() - tick;
    folder.put("a", "1");
    let page = folder.objects.list(&format!("{}/", folder.name), "").expect("a list");
    let modified = page.entries[0].modified;
    assert!(before <= modified && modified <= now() + tick, "{modified:?}");
}

fn a_name_that_is_a_folder_too_is_kept_or_refused(folder: &Folder<'_>) {
    folder.put("a/b", "1");
    let mut names = vec!["a/b".to_string()];
    for clash in ["a", "a/b/c"] {
        match folder.objects.put(&folder.key(clash), Bytes::from("x"), Condition::Absent) {
            Ok(_) => {
                assert_eq!(folder.get(clash), "x");
                names.push(clash.into());
            }
            Err(ObjectsError::Invalid(_)) => {}
            Err(error) => panic!("{clash}: {error:?}"),
        }
    }
    // The interface forbids such keys: MinIO takes them, and lists the shortest alone.
    let listed = folder.names("");
    println!("of {names:?}, {listed:?} are listed");
    assert!(listed.iter().all(|name| names.contains(name)), "{listed:?}");
    assert_eq!(folder.get("a/b"), "1");
}

fn a_key_of_the_greatest_length_can_be_used(folder: &Folder<'_>) {
    let part = "a".repeat(255);
    let long = format!("{part}/{part}/{part}/");
    let long = format!("{long}{}", "b".repeat(900 - long.len() - folder.name.len() - 1));
    assert_eq!(folder.key(&long).as_str().len(), 900);
    folder.put(&long, "1");
    assert_eq!(folder.names(&long), [long.as_str()]);
    assert_eq!(folder.get(&long), "1");
}

fn a_zone_comes_back_whole_and_in_parts(folder: &Folder<'_>) {
    let mut bytes = vec![0; 8 << 20];
    Random::new(1).fill(&mut bytes);
    let bytes = Bytes::from(bytes);
    let key = folder.key("zone");
    folder.objects.put(&key, bytes.clone(), Condition::Absent).expect("there is none");
    assert!(folder.objects.get(&key, Part::Whole).expect("it exists").bytes == bytes);
    std::thread::scope(|scope| {
        for part in 0..32_u64 {
            let (key, bytes) = (&key, &bytes);
            scope.spawn(move || {
                let (start, end) = (part << 18, (part + 1) << 18);
                let found = folder.objects.get(key, Part::Range(start..end)).expect("it exists");
                assert!(found.bytes == bytes.slice(start as usize..end as usize), "part {part}");
                assert_eq!(found.len, 8 << 20);
            });
        }
    });
}

/// Some hundred random operations give what a map gives.
fn a_history_gives_what_a_map_gives(folder: &Folder<'_>) {
    let mut random = Random::new(4711);
    let mut model: BTreeMap<Key, (Bytes, Tag)> = BTreeMap::new();
    let mut tags: BTreeMap<Key, Vec<Tag>> = BTreeMap::new();
    let keys: Vec<Key> = (0..20)
        .map(|n| folder.key(&format!("{}/{}{}", n % 3, ["", "x/", "y-"][n % 7 % 3], n)))
        .collect();
    for step in 0..600 {
        let k = random.pick(&keys).expect("there are keys");
        match random.below(6) {
            0..=2 => {
                let known = tags.entry(k.clone()).or_default();
                let condition = match (random.below(4), random.pick(known)) {
                    (0, _) => Condition::Always,
                    (1, _) | (_, None) => Condition::Absent,
                    (2, _) => Condition::Matches(known.last().expect("one is known").clone()),
                    (_, Some(tag)) => Condition::Matches(tag.clone()),
                };
                let there = model.get(k).map(|(_, tag)| tag);
                let holds = match &condition {
                    Condition::Always => true,
                    Condition::Absent => there.is_none(),
                    Condition::Matches(tag) => there == Some(tag),
                };
                // The number makes the bytes of each step its own.
                let bytes = Bytes::from(format!("{step} of {k}"));
                match objects_put(folder, k, &bytes, condition) {
                    Ok(tag) => {
                        assert!(holds, "step {step}: the condition did not hold");
                        known.push(tag.clone());
                        model.insert(k.clone(), (bytes, tag));
                    }
                    missing if there.is_none() => {
                        assert!(!holds && is_missing(&missing), "step {step}: {missing:?}");
                    }
                    Err(ObjectsError::ConditionFailed { .. }) => assert!(!holds, "step {step}"),
                    Err(error) => panic!("step {step}: {error}"),
                }
            }
            3 => {
                folder.objects.delete(k).unwrap_or_else(|error| panic!("step {step}: {error}"));
                model.remove(k);
            }
            4 if step % 10 == 0 => {
                let names = folder.names("");
                let expected: Vec<String> =
                    model.keys().map(|k| k.as_str()[folder.name.len() + 1..].to_string()).collect();
                assert_eq!(names, expected, "step {step}");
            }
            _ => match (folder.objects.get(k, Part::Whole), model.get(k)) {
                (Ok(object), Some((bytes, tag))) => {
                    assert_eq!((&object.bytes, &object.tag), (bytes, tag), "step {step}");
                }
                (Err(ObjectsError::NotFound { .. }), None) => {}
                (outcome, there) => panic!("step {step}: {outcome:?}, but {there:?} is there"),
            },
        }
    }
}

fn objects_put(
    folder: &Folder<'_>,
    key: &Key,
    bytes: &Bytes,
    condition: Condition,
) -> objects::Result<Tag> {
    folder.objects.put(key, bytes.clone(), condition)
}
