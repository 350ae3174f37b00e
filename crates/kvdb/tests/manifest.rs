//! The manifest's move to another zone, when the one it lies in is full of edits.

use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{CrashDevice, MemoryDevice};

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

    /// One edit of the manifest; how many operations of the device it took.
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
