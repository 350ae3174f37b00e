//! Tests of stores in a shared folder as the programs of one machine use them: which local file a
//! program gets, who owns the file, and what is left after a failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{ForkOptions, Kvdb, OpenOptions};
use kvfs::{Fs, FsOptions, Views};
use places::local_copies::{self, LocalFile};
use places::publishing::{Publication, Publishing, push};
use places::{Address, Error, fork, zones_of};
use tempfile::TempDir;

/// A folder that machines share, with one store; and directories of machines.
struct World {
    directory: TempDir,
    address: Address,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let word = directory.path().join("share/work");
        let address = Address::required(Path::new(&format!("dir:{}", word.display())));
        let world = World { address: address.expect("an address"), directory };
        let db = Kvdb::create_path(world.path("first.kvfs"), Default::default()).expect("made");
        files(&db).shutdown().expect("written");
        db.open_dictionary("fruit").expect("made").insert("apple", "red").expect("put");
        db.snapshot("monday").expect("made");
        world.publish(&db);
        db.close().expect("closed");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn publish(&self, db: &Kvdb) {
        let there = self.address.store(true).expect("the folder is made");
        push(db, &there, false, &mut |_| Ok(())).expect("published");
    }

    /// The local file of a reader.
    fn read(&self) -> LocalFile {
        local_copies::of(&self.address, Some(&self.path("cache"))).expect("a local file")
    }

    fn claim(&self, machine: &str, take: bool) -> places::Result<LocalFile> {
        let directory = self.path(machine);
        let path = local_copies::path_of_writer(&self.address, Some(&directory))?;
        local_copies::claim(&self.address, &path, take)
    }

    fn forks(&self) -> usize {
        self.address.store(false).expect("there").forks().expect("listed").len()
    }
}

fn files(db: &Kvdb) -> Fs {
    Fs::open(db.clone(), Arc::new(Machine::default()), FsOptions::default()).expect("opened")
}

fn open(local: &LocalFile, read_only: bool) -> Kvdb {
    let remote = zones_of(&*local.device).expect("the place is there");
    assert!(remote.is_some(), "its zones lie there");
    let options = OpenOptions { remote, read_only, ..OpenOptions::default() };
    let opened = Kvdb::open(local.device.clone(), Arc::new(Machine::default()), options);
    opened.expect("opened").0
}

/// A store that is open for writing and publishes by itself, but only at the end.
struct Writer {
    db: Kvdb,
    views: Views,
    publishing: Publishing,
}

impl Writer {
    fn begin(world: &World, local: &LocalFile) -> Writer {
        let db = open(local, false);
        let views = Views::new(db.clone(), files(&db));
        let (to, every) = (world.address.clone(), Duration::from_secs(3600));
        let what = Publication { to, every, syncs_there: false };
        let publishing = Publishing::start(&db, &views, what).expect("begun");
        Writer { db, views, publishing }
    }

    fn put(&self, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.db.open_dictionary("fruit").expect("there").insert(key, value).expect("put");
    }

    fn end(self) -> places::Result {
        let _ = self.views.shutdown().and(self.views.mainline().shutdown());
        let finished = self.publishing.finish();
        let _ = self.db.close();
        finished
    }
}

fn value(db: &Kvdb, key: &str) -> Option<String> {
    let value = db.open_dictionary("fruit").expect("there").get(key).expect("read");
    value.map(|value| String::from_utf8(value.to_vec()).expect("text"))
}

#[test]
fn each_reader_has_a_local_file_of_its_own_for_as_long_as_it_holds_it() {
    let world = World::new();
    let first = world.read();
    let second = world.read();
    assert_ne!(first.path, second.path);
    assert_eq!(first.copy.generation, 1);
    // It is held from the beginning on, and not only when the store is opened.
    let db = open(&first, true);
    assert_eq!(value(&db, "apple").as_deref(), Some("red"));
    db.close().expect("closed");
    let freed = first.path.clone();
    drop((db, first));
    assert_eq!(world.read().path, freed);
    assert_ne!(world.read().path, second.path);
}

#[test]
fn a_name_that_leads_elsewhere_is_not_written() {
    let world = World::new();
    let own = world.read().path;
    let elsewhere = world.path("elsewhere");
    fs::write(&elsewhere, "text").expect("written");
    fs::remove_file(&own).expect("removed");
    std::os::unix::fs::symlink(&elsewhere, &own).expect("a link");
    let cache = world.path("cache");
    let refused = local_copies::of(&world.address, Some(&cache)).map(|local| local.path);
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    assert_eq!(fs::read_to_string(&elsewhere).expect("read"), "text");
}

#[test]
fn a_store_is_claimed_by_one_machine_until_it_has_published_all() {
    let world = World::new();
    let here = world.claim("here", false).expect("it is free");
    let writer = Writer::begin(&world, &here);
    writer.put("pear", "green");
    let refused = world.claim("there", false).map(drop);
    let Err(Error::Claim { source: kvdb::Error::OpenElsewhere { .. }, .. }) = refused else {
        panic!("{refused:?}");
    };
    writer.end().expect("all of it is there");
    let there = world.claim("there", false).expect("it is free again");
    assert_eq!(value(&open(&there, false), "pear").as_deref(), Some("green"));
}

#[test]
fn the_end_of_a_writer_that_was_displaced_says_so() {
    let world = World::new();
    let here = world.claim("here", false).expect("it is free");
    let writer = Writer::begin(&world, &here);
    writer.put("pear", "green");
    drop(world.claim("there", true).expect("it is taken"));
    let ended = writer.end();
    assert!(matches!(ended, Err(Error::NotPublished { displaced: true, .. })), "{ended:?}");
    drop(here);
    // The file is not started again over data that only it has.
    let refused = world.claim("here", true).map(drop);
    let Err(Error::Claim { file, source: kvdb::Error::Unpublished(_), .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(file.starts_with(world.path("here").canonicalize().expect("there")));
}

#[test]
fn the_end_of_a_writer_whose_place_fails_says_what_that_lacks() {
    let world = World::new();
    let here = world.claim("here", false).expect("it is free");
    let writer = Writer::begin(&world, &here);
    writer.put("pear", "green");
    // The target of the objects with zones is no directory now.
    let (zones, away) = (world.path("share/z"), world.path("away"));
    fs::rename(&zones, &away).expect("renamed");
    fs::write(&zones, "").expect("written");
    let ended = writer.end();
    let Err(Error::NotPublished { displaced: false, address, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(address, world.address.to_string());
    drop(here);
    fs::remove_file(&zones).expect("removed");
    fs::rename(&away, &zones).expect("renamed");
    // The next one on this machine continues with it.
    let here = world.claim("here", false).expect("it is this machine's");
    let writer = Writer::begin(&world, &here);
    assert_eq!(value(&writer.db, "pear").as_deref(), Some("green"));
    writer.end().expect("all of it is there");
}

#[test]
fn a_fork_that_fails_leaves_neither_a_file_nor_a_registration() {
    let world = World::new();
    let file = world.path("mine.kvfs");
    let options = ForkOptions::default();
    let failing = || Err(Error::Unsafe("it is not wanted".into()));
    let failed = fork(&world.address, &file, &options, failing, |note| panic!("{note}"));
    assert!(matches!(failed, Err(Error::Unsafe(_))), "{failed:?}");
    let tuesday = Address { snapshot: Some("tuesday".into()), ..world.address.clone() };
    let none = fork(&tuesday, &file, &options, || Ok(()), |note| panic!("{note}"));
    assert!(matches!(none, Err(Error::NoSnapshot(_))), "{none:?}");
    assert!(!file.exists());
    assert_eq!(world.forks(), 0);
    fork::<Error>(&world.address, &file, &options, || Ok(()), |note| panic!("{note}"))
        .expect("made");
    assert_eq!((file.exists(), world.forks()), (true, 1));
}

#[test]
fn a_fork_of_a_snapshot_begins_as_that_was() {
    let world = World::new();
    let here = world.claim("here", false).expect("it is free");
    let writer = Writer::begin(&world, &here);
    writer.put("apple", "rotten");
    writer.end().expect("published");
    let monday = Address { snapshot: Some("monday".into()), ..world.address.clone() };
    for (address, apple) in [(&monday, "red"), (&world.address, "rotten")] {
        let file = world.path(apple);
        fork::<Error>(address, &file, &ForkOptions::default(), || Ok(()), drop).expect("made");
        let device = Arc::new(zones::FileDevice::open(&file, false).expect("opened"));
        let remote = zones_of(&*device).expect("there");
        let options = OpenOptions { remote, ..OpenOptions::default() };
        let opened = Kvdb::open(device, Arc::new(Machine::default()), options);
        assert_eq!(value(&opened.expect("opened").0, "apple").as_deref(), Some(apple));
    }
}
