//! Tests of the rules that are specific to a folder: links, files that other programs put there,
//! orphans, and permissions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use bytes::Bytes;
use objects::{Condition, DirectoryObjects, Key, Objects, ObjectsError, Part, Tag};
use rustix::fs::{FlockOperation, flock};

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn opened() -> (tempfile::TempDir, DirectoryObjects) {
    let folder = tempfile::tempdir().expect("a folder");
    let objects = DirectoryObjects::open(folder.path()).expect("it exists");
    (folder, objects)
}

fn keys(objects: &dyn Objects) -> Vec<String> {
    objects.list("", "").expect("a list").entries.iter().map(|l| l.key.to_string()).collect()
}

#[test]
fn no_key_leads_out_of_the_folder() {
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("secret"), "secret").expect("a file");
    let (folder, objects) = opened();
    symlink(outside.path(), folder.path().join("out")).expect("a link");
    symlink(outside.path().join("secret"), folder.path().join("link")).expect("a link");
    symlink("nowhere", folder.path().join("broken")).expect("a link");

    for through in ["out/secret", "out/new"] {
        let read = objects.get(&key(through), Part::Whole);
        assert!(matches!(read, Err(ObjectsError::NotFound { .. })), "{read:?}");
        for condition in [Condition::Always, Condition::Absent] {
            let put = objects.put(&key(through), Bytes::from("mine"), condition);
            assert!(matches!(put, Err(ObjectsError::Invalid(_))), "{put:?}");
        }
        objects.delete(&key(through)).expect("there is no such object");
    }
    for link in ["link", "broken"] {
        let outcomes = [
            objects.get(&key(link), Part::Whole).map(drop),
            objects.put(&key(link), Bytes::from("mine"), Condition::Always).map(drop),
            objects.put(&key(link), Bytes::from("mine"), Condition::Absent).map(drop),
            objects.delete(&key(link)),
        ];
        for outcome in outcomes {
            assert!(matches!(outcome, Err(ObjectsError::Invalid(_))), "{outcome:?}");
        }
    }
    assert_eq!(keys(&objects), Vec::<String>::new());
    let secret = fs::read_to_string(outside.path().join("secret")).expect("it is there");
    assert_eq!(secret, "secret");
    assert_eq!(fs::read_dir(outside.path()).expect("a folder").count(), 1);
}

#[test]
fn files_that_others_put_there_are_objects() {
    let (folder, objects) = opened();
    objects.put(&key("a/b"), Bytes::from("0123456789"), Condition::Absent).expect("a put");
    // A copy has no note of its tag, or one that is for another time.
    fs::copy(folder.path().join("a/b"), folder.path().join("a/copy")).expect("a copy");
    let copy = objects.get(&key("a/copy"), Part::Range(2..4)).expect("it is there");
    assert_eq!((&copy.bytes[..], copy.tag), (&b"23"[..], Tag::of(b"0123456789")));
    // A tag is that of the bytes, whatever the note of the file says.
    let edited = folder.path().join("a/b");
    let before = fs::metadata(&edited).expect("a file").modified().expect("a time");
    loop {
        fs::write(&edited, "9876543210").expect("an edit");
        if fs::metadata(&edited).expect("a file").modified().expect("a time") != before {
            break;
        }
    }
    let edited = objects.get(&key("a/b"), Part::Range(0..1)).expect("it is there");
    assert_eq!(edited.tag, Tag::of(b"9876543210"));
    // Names that are no keys are no objects.
    fs::write(folder.path().join("a b"), "").expect("a file");
    fs::create_dir(folder.path().join("~")).expect("a folder");
    fs::write(folder.path().join("~/c"), "").expect("a file");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    assert_eq!(keys(&objects), ["a/b", "a/copy"]);
    let pipe = objects.get(&key("pipe"), Part::Whole);
    assert!(matches!(pipe, Err(ObjectsError::Invalid(_))), "{pipe:?}");
}

#[test]
fn what_killed_writers_left_is_removed_and_what_others_write_is_not() {
    let (folder, objects) = opened();
    objects.put(&key("a"), Bytes::from("1"), Condition::Absent).expect("a put");
    let fresh = folder.path().join(".kvfs~fresh");
    assert_eq!(fs::read_dir(&fresh).expect("a folder").count(), 0, "a put leaves nothing");
    fs::write(fresh.join("1-orphan"), "half").expect("a file");
    let living = fs::File::create(fresh.join("2-living")).expect("a file");
    flock(&living, FlockOperation::LockExclusive).expect("a lock");
    // A writer was killed after it had given a file its name, and before it removed the other.
    fs::hard_link(folder.path().join("a"), fresh.join("3-linked")).expect("a link");

    let again = DirectoryObjects::open(folder.path()).expect("it exists");
    let left: Vec<_> =
        fs::read_dir(&fresh).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["2-living"]);
    assert_eq!(again.get(&key("a"), Part::Whole).expect("it stays").bytes, "1");
    drop(living);
    DirectoryObjects::open(folder.path()).expect("it exists");
    assert_eq!(fs::read_dir(&fresh).expect("a folder").count(), 0);
}

#[test]
fn a_failed_put_leaves_nothing() {
    let (folder, objects) = opened();
    let tag = objects.put(&key("a"), Bytes::from("1"), Condition::Absent).expect("a put");
    for condition in [Condition::Absent, Condition::Matches(Tag::new("other"))] {
        let put = objects.put(&key("a"), Bytes::from("2"), condition);
        assert!(matches!(put, Err(ObjectsError::ConditionFailed { .. })), "{put:?}");
    }
    let none = objects.put(&key("x/y"), Bytes::from("2"), Condition::Matches(tag));
    assert!(matches!(none, Err(ObjectsError::NotFound { .. })), "{none:?}");
    assert!(!folder.path().join("x").exists(), "a swap of nothing makes no folder");
    assert_eq!(fs::read_dir(folder.path().join(".kvfs~fresh")).expect("a folder").count(), 0);
    assert_eq!(keys(&objects), ["a"]);
}

#[test]
fn only_the_owner_can_read_the_objects() {
    let (folder, objects) = opened();
    objects.put(&key("a/b"), Bytes::from("1"), Condition::Absent).expect("a put");
    for (name, mode) in [("a", 0o700), ("a/b", 0o600), (".kvfs~locks", 0o700)] {
        let metadata = fs::metadata(folder.path().join(name)).expect("it is there");
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
    }
}

#[test]
fn a_folder_that_is_missing_or_goes_is_reported() {
    let (folder, objects) = opened();
    let missing = folder.path().join("missing/below");
    let error = DirectoryObjects::open(&missing).expect_err("it is missing");
    assert!(matches!(error, ObjectsError::NoBucket { .. }), "{error}");
    assert!(error.to_string().contains(&format!("dir:{}", missing.display())), "{error}");
    fs::write(folder.path().join("file"), "").expect("a file");
    let error = DirectoryObjects::open(folder.path().join("file")).expect_err("it is a file");
    assert!(matches!(error, ObjectsError::Invalid(_)), "{error}");
    let made = DirectoryObjects::create(&missing).expect("it can be created");
    made.put(&key("a"), Bytes::new(), Condition::Absent).expect("a put");
    DirectoryObjects::create(&missing).expect("it exists already");

    fs::remove_dir_all(folder.path()).expect("it is removed");
    let outcomes = [
        objects.get(&key("a"), Part::Whole).map(drop),
        objects.put(&key("a"), Bytes::new(), Condition::Absent).map(drop),
        objects.delete(&key("a")),
        objects.list("", "").map(drop),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(ObjectsError::NoBucket { .. })), "{outcome:?}");
    }
}

#[test]
fn many_pages_of_a_large_folder_have_each_object_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..2500 {
        let path = folder.path().join(format!("z/{:02x}", n % 256));
        fs::create_dir_all(&path).expect("a folder");
        fs::write(path.join(format!("{n}")), "").expect("a file");
    }
    let objects = DirectoryObjects::open(folder.path()).expect("it exists");
    let (mut names, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = objects.list("z/", &after).expect("a list");
        names.extend(page.entries.iter().map(|l| l.key.to_string()));
        pages += 1;
        if !page.more {
            break;
        }
        after = page.entries.last().expect("others follow").key.to_string();
    }
    assert_eq!((names.len(), pages), (2500, 3));
    assert!(names.is_sorted() && names.windows(2).all(|w| w[0] != w[1]));
}
