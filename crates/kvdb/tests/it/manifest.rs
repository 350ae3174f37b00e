//! Tests of the manifest's move to another zone when its current zone is full of edits.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use env::Simulated;
use kvdb::{CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{CrashDevice, Device, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose};

/// The first bytes of a chunk of the manifest.
const MANIFEST_CHUNK: &[u8] = b"KVMC";

fn options() -> OpenOptions {
    OpenOptions { memory: 4 << 20, threads: false, zero_journal: false, ..OpenOptions::default() }
}

struct World {
    device: Arc<CrashDevice>,
    db: Kvdb,
    d: DictionaryId,
}

impl World {
    fn new() -> World {
        let device = Arc::new(CrashDevice::new());
        let create = CreateOptions { open: options(), ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
        let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        db.put(d, b"k", b"v", Durability::Synced).unwrap();
        World { device, db, d }
    }

    /// Makes one edit of the manifest. Returns the number of device operations.
    fn edit(&self, number: u64) -> kvdb::Result<u64> {
        let before = self.device.operations();
        self.db.set_stitch_at(self.d, number)?;
        Ok(self.device.operations() - before)
    }
}

fn setting(db: &Kvdb) -> u64 {
    db.dictionaries()[0].options.stitch_at
}

/// The manifest that the root leads to stays as it is until the root has left it, wherever the
/// power fails.
#[test]
fn a_power_cut_within_the_move_of_the_manifest_leaves_the_old_one_or_the_new_one() {
    let first = World::new();
    // An edit is a write and a sync, but for the one that begins another zone.
    let (moves, operations) = (1..5000)
        .map(|number| (number, first.edit(number).unwrap()))
        .find(|&(_, operations)| operations > 2)
        .expect("the zone of the manifest is full at some time");
    let mut found = [0, 0];
    for cut in 0..operations {
        let world = World::new();
        (1..moves).for_each(|number| _ = world.edit(number).unwrap());
        world.device.cut_power_after(cut);
        assert!(world.edit(moves).is_err(), "the power fails in operation {cut} of {operations}");
        for seed in 0..8 {
            let image: MemoryDevice = world.device.crash(seed);
            let (db, _) = Kvdb::open(Arc::new(image), Arc::new(Simulated::new(2)), options())
                .unwrap_or_else(|e| {
                    panic!("cut in operation {cut} of {operations}, outcome {seed}: {e}")
                });
            let now = setting(&db);
            assert!(
                now == moves - 1 || now == moves,
                "cut in operation {cut}, outcome {seed}: edit {now} of {moves}"
            );
            assert_eq!(db.get(world.d, b"k").unwrap().unwrap(), "v");
            found[usize::from(now == moves)] += 1;
        }
    }
    assert!(found.iter().all(|&times| times > 0), "both were seen: {found:?}");
}

/// Neither the manifest nor the journal is read sector by sector to find out where it ends.
#[test]
fn a_store_is_opened_in_a_few_large_reads() {
    let world = World::new();
    (1..100).for_each(|number| _ = world.edit(number).unwrap());
    (0..1000u32).for_each(|i| {
        world.db.put(world.d, &i.to_be_bytes(), &[7; 4000], Durability::Synced).unwrap();
    });
    let image: MemoryDevice = world.device.crash(1);
    let (db, _) = Kvdb::open(Arc::new(image), Arc::new(Simulated::new(2)), options()).unwrap();
    let reads = db.stats().io.total().read_ops;
    assert!(reads < 250, "{reads} reads");
    assert_eq!(db.get(world.d, &999u32.to_be_bytes()).unwrap().map(|v| v.len()), Some(4000));
}

/// A close has noted where manifest and journal end: neither is searched for more.
#[test]
fn a_store_that_was_closed_is_opened_without_a_search() {
    let world = World::new();
    (1..10).for_each(|number| _ = world.edit(number).unwrap());
    world.db.close().unwrap();
    let image: MemoryDevice = world.device.crash(1);
    let (db, recovery) =
        Kvdb::open(Arc::new(image), Arc::new(Simulated::new(2)), options()).unwrap();
    assert!(recovery.clean);
    let read = db.stats().io.total().read_bytes;
    assert!(read < 1 << 20, "{read} bytes are read");
    assert_eq!(setting(&db), 9);
    assert_eq!(db.get(world.d, b"k").unwrap().as_deref(), Some(b"v".as_slice()));
}

/// Without a zone for a new manifest, the store continues the one whose end a close has recorded.
/// Later chunks are found, even if the first copy of one is damaged and must be skipped.
#[test]
fn a_manifest_that_goes_on_behind_a_close_is_searched_again() {
    let world = World::new();
    world.db.close().unwrap();
    let closed = Arc::new(world.device.crash(1));
    let before = (*closed).clone();
    let device = Arc::new(FaultDevice::new(closed.clone(), 1));
    device.inject(Fault::once(Operation::Write, FaultKind::NoSpace).of(Purpose::Manifest));
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), options()).unwrap();
    device.clear();
    db.set_stitch_at(world.d, 77).unwrap();
    db.put(world.d, b"k", b"later", Durability::Synced).unwrap();
    // The device as a kill would leave it.
    let killed = (*closed).clone();
    let opened = |image: &MemoryDevice| {
        let image = Arc::new(image.clone());
        let (db, _) = Kvdb::open(image, Arc::new(Simulated::new(3)), options()).unwrap();
        (setting(&db), db.get(world.d, b"k").unwrap())
    };
    let later = (77, Some(Bytes::from_static(b"later")));
    assert_eq!(opened(&killed), later);
    // The sectors that were written to the manifest since, except for the second copies.
    let mut spoiled = 0;
    let mut sector = [0; 4096];
    let mut was = sector;
    for at in (0..killed.len().unwrap()).step_by(4096) {
        killed.read_at(Purpose::Manifest, at, &mut sector).unwrap();
        before.read_at(Purpose::Manifest, at, &mut was).unwrap();
        let begins = |bytes: &[u8]| bytes.starts_with(MANIFEST_CHUNK);
        if sector != was && begins(&sector) && !begins(&was) {
            let image = killed.clone();
            image.write_at(Purpose::Manifest, at, &[0; 4096]).unwrap();
            assert_eq!(opened(&image), later, "without the sector at {at:#x}");
            spoiled += 1;
        }
    }
    assert!(spoiled >= 4, "two edits, each twice: {spoiled}");
}

/// A device on which some sectors cannot be read.
struct BadSectors {
    memory: MemoryDevice,
    bad: Vec<u64>,
}

impl Device for BadSectors {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        match self.bad.iter().any(|&at| at < end && offset < at + 4096) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => self.memory.read_at(purpose, offset, buf),
        }
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.memory.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.memory.grow(new_len)
    }
}

/// Every chunk of the manifest exists twice. A failing medium returns an error for a bad sector,
/// and seldom wrong bytes.
#[test]
fn a_chunk_of_the_manifest_is_read_from_the_copy_that_can_be_read() {
    let world = World::new();
    (1..=3).for_each(|number| _ = world.edit(number).unwrap());
    let image: MemoryDevice = world.device.crash(1);
    let mut sector = [0; 4096];
    let begins: Vec<u64> = (0..image.len().unwrap())
        .step_by(4096)
        .filter(|&at| {
            image.read_at(Purpose::Manifest, at, &mut sector).unwrap();
            sector.starts_with(MANIFEST_CHUNK)
        })
        .collect();
    assert!(begins.len() >= 10, "a checkpoint and four edits, each twice: {begins:?}");
    let open = |bad: &[u64]| {
        let device = Arc::new(BadSectors { memory: image.clone(), bad: bad.to_vec() });
        let report = kvdb::check(device.clone(), &mut |_, _| {});
        (report, Kvdb::open(device, Arc::new(Simulated::new(2)), options()))
    };
    let mut found = 0;
    for (n, &at) in begins.iter().enumerate() {
        let (report, opened) = open(&[at]);
        let (db, _) = opened.unwrap_or_else(|e| panic!("without the sector at {at:#x}: {e}"));
        assert_eq!(setting(&db), 3, "without the sector at {at:#x}");
        // The last chunk is one that a crash may have left torn.
        found += usize::from(report.faults.iter().any(|f| f.place == "manifest"));
        // If both copies are lost, the content of the store is not known.
        if n + 1 < begins.len() && (n == 0 || begins[n - 1] + 4096 != at || n % 2 == 0) {
            let (report, opened) = open(&[at, begins[n + 1]]);
            assert!(!report.is_clean() && opened.is_err(), "without {at:#x} and what follows");
        }
    }
    assert!(found + 2 >= begins.len(), "{found} of {}", begins.len());
}

/// The branches, each with its dictionaries, their numbers and their values of `k`.
type Contents = Vec<(String, Vec<(DictionaryId, String, Option<Bytes>)>)>;

fn contents(db: &Kvdb) -> Contents {
    let of_branch = |branch: String| {
        let all = db.dictionaries_in(&branch).into_iter();
        let all = all.map(|d| (d.id, d.name, db.get(d.id, b"k").unwrap())).collect();
        (branch, all)
    };
    let names = db.branches().into_iter().map(|branch| branch.name);
    names.chain([String::new()]).map(of_branch).collect()
}

/// A checkpoint makes an idle clone once more from its snapshot, and lists others in full.
#[test]
fn clones_are_what_they_were_after_checkpoints_of_the_manifest() {
    let device = Arc::new(MemoryDevice::new());
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let mut db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
    let again = |db: Kvdb| {
        db.close().unwrap();
        drop(db);
        Kvdb::open(device.clone(), Arc::new(Simulated::new(2)), options()).unwrap().0
    };
    let put = |db: &Kvdb, branch: &str, name: &str, value: &str| {
        let d = db.dictionary_in(branch, name).unwrap();
        db.put(d, b"k", value.as_bytes(), Durability::Buffered).unwrap();
    };
    for name in ["d", "e", "f"] {
        db.create_dictionary(name, DictionaryOptions::default()).unwrap();
        put(&db, "", name, "base");
    }
    db.snapshot("s").unwrap();
    for clone in ["idle", "written", "more", "fewer", "rolled-back", "limited"] {
        db.clone_snapshot("s", clone).unwrap();
    }
    put(&db, "written", "e", "of the clone");
    db.create_dictionary_in("more", "g", DictionaryOptions::default()).unwrap();
    db.drop_dictionary(db.dictionary_in("fewer", "d").unwrap()).unwrap();
    db.snapshot_of("rolled-back", "before", Durability::Synced).unwrap();
    put(&db, "rolled-back", "d", "void");
    db.rollback("before").unwrap();
    db.limit_branch("limited", Some(1 << 20)).unwrap();
    // Tests clones whose parent, snapshot and dictionaries in the main branch were dropped.
    db.snapshot_of("written", "of-written", Durability::Synced).unwrap();
    db.clone_snapshot("of-written", "below").unwrap();
    db.drop_branch("written").unwrap();
    put(&db, "", "d", "main");
    db.snapshot("t").unwrap();
    db.clone_snapshot("t", "orphan").unwrap();
    db.drop_snapshot("t").unwrap();
    db.drop_dictionary(db.dictionary("e").unwrap()).unwrap();
    let mut expected = contents(&db);
    let value = |contents: &Contents, branch: &str, at: usize| {
        let (_, of_branch) = contents.iter().find(|(name, _)| name == branch).unwrap();
        of_branch[at].2.clone()
    };
    for (branch, at, is) in [
        ("idle", 0, "base"),
        ("rolled-back", 0, "base"),
        ("below", 1, "of the clone"),
        ("orphan", 0, "main"),
        ("orphan", 1, "base"),
    ] {
        assert_eq!(value(&expected, branch, at).unwrap(), is, "{branch}");
    }
    let check = |db: &Kvdb, expected: &Contents, when: &str| {
        assert_eq!(contents(db), *expected, "{when}");
        let limits = db.branches().into_iter().filter_map(|b| Some((b.name, b.limit?.bytes)));
        assert_eq!(limits.collect::<Vec<_>>(), [("limited".to_owned(), 1 << 20)], "{when}");
        assert_eq!(db.lineage("orphan").unwrap().parent, "", "{when}");
    };
    for when in ["opened again", "opened from a checkpoint", "and from the next one"] {
        db = again(db);
        check(&db, &expected, when);
    }
    // A clone that is written to diverges.
    put(&db, "idle", "d", "new");
    let idle = expected.iter_mut().find(|(name, _)| name == "idle").unwrap();
    idle.1[0].2 = Some(Bytes::from_static(b"new"));
    check(&db, &expected, "written to");
    for when in ["after it was written to", "from a checkpoint with its own runs"] {
        db = again(db);
        check(&db, &expected, when);
    }
}
