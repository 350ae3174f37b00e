//! Tests the guarantees of each device.

use crate::world;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::world::{SMALL, place};
use env::Random;
use zones::{
    CountDevice, CrashDevice, Device, Error, Fault, FaultDevice, FaultKind, FileDevice,
    FormatOptions, MemoryDevice, Operation, Priority, Purpose, PurposeStats, Reading, ZONE_SIZE,
    ZonePin, Zones,
};

const P: Purpose = Purpose::Pages;

fn read(device: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(P, offset, &mut bytes).unwrap();
    bytes
}

/// Checks the operations of a device without faults.
fn behaves(device: &dyn Device) {
    let before = device.len().unwrap();
    device.grow(before + 300_000).unwrap();
    device.grow(before).unwrap();
    assert_eq!(device.len().unwrap(), before + 300_000, "a device never shrinks");
    assert_eq!(read(device, before, 300_000), vec![0; 300_000]);
    let noise: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    device.write_at(P, before + 77, &noise).unwrap();
    device.sync().unwrap();
    assert_eq!(read(device, before + 77, noise.len()), noise);
    assert_eq!(read(device, before + 70_000, 5), noise[69_923..69_928]);
    device.discard(before + 100_000, 50_000).unwrap();
    device.allocate(before + 100_000, 50_000).unwrap();
    assert_eq!(read(device, before + 77, 90_000), noise[..90_000]);
    assert_eq!(read(device, before + 150_000, 50_000), noise[149_923..199_923]);
    device.write_at(P, before + 100_000, b"again").unwrap();
    assert_eq!(read(device, before + 100_000, 5), b"again");
    reads_many(device, before + 77, &noise[..90_000]);
    let end = device.len().unwrap();
    for (offset, len) in [(end, 1), (end - 5, 6), (u64::MAX - 3, 2)] {
        assert!(device.read_at(P, offset, &mut vec![0; len]).is_err(), "{len} bytes at {offset}");
    }
    let eof = device.read_at(P, end - 5, &mut [0; 6]).unwrap_err();
    assert_eq!(eof.kind(), std::io::ErrorKind::UnexpectedEof);
}

/// Checks that batched reads return what single ones do; `content` lies at `offset`.
fn reads_many(device: &dyn Device, offset: u64, content: &[u8]) {
    for count in [0, 1, 2, 300] {
        let places: Vec<(usize, usize)> =
            (0..count).map(|i| (i * 7919 % 80_000, i * 31 % 9000)).collect();
        let mut bufs: Vec<Vec<u8>> = places.iter().map(|(_, len)| vec![7; *len]).collect();
        let mut reads: Vec<Reading<'_>> = places
            .iter()
            .zip(&mut bufs)
            .map(|((at, _), buf)| Reading { offset: offset + *at as u64, buf })
            .collect();
        device.read_many(P, &mut reads).unwrap();
        for ((at, len), buf) in places.iter().zip(&bufs) {
            assert!(*buf == content[*at..at + len], "{len} bytes at {at} of {count} reads");
        }
    }
    // One that reaches beyond the end fails them all, as it does alone.
    let end = device.len().unwrap();
    let mut bufs = [[0; 10], [0; 10], [0; 10]];
    let [a, b, c] = &mut bufs;
    let mut reads = [
        Reading { offset, buf: a },
        Reading { offset: end - 5, buf: b },
        Reading { offset: offset + 10, buf: c },
    ];
    assert_eq!(
        device.read_many(P, &mut reads).unwrap_err().kind(),
        std::io::ErrorKind::UnexpectedEof
    );
}

#[test]
fn many_threads_read_many_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let device = FileDevice::create(directory.path().join("store")).unwrap();
    let noise: Vec<u8> = (0..100_000u32).map(|i| (i % 241) as u8).collect();
    device.grow(100_000).unwrap();
    device.write_at(P, 0, &noise).unwrap();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| (0..20).for_each(|_| reads_many(&device, 0, &noise)));
        }
    });
}

#[test]
fn all_devices_behave() {
    let directory = tempfile::tempdir().unwrap();
    let memory = || Arc::new(MemoryDevice::new());
    let devices: [Arc<dyn Device>; 5] = [
        memory(),
        Arc::new(FileDevice::create(directory.path().join("store")).unwrap()),
        Arc::new(CrashDevice::new()),
        Arc::new(FaultDevice::new(memory(), 1)),
        Arc::new(CountDevice::new(memory())),
    ];
    for device in devices {
        behaves(&*device);
        behaves(&*device);
    }
}

#[test]
fn what_is_written_behind_is_seen_by_whatever_comes_next() {
    const LEN: usize = 3 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let noise = |seed: u32| {
        (0..LEN as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
            .collect::<Vec<_>>()
    };
    let (one, two) = (noise(1), noise(2));
    let device = FileDevice::create(&path).unwrap();
    device.grow(16 << 20).unwrap();
    for round in 0..4_u64 {
        let at = 8192 + round * 4096;
        device.write_behind(P, at, &mut one.clone()).unwrap();
        assert!(read(&device, at, LEN) == one);
        // Each write overwrites the one before: a part of it, a short one, one through the page
        // cache, and a hole.
        device.write_behind(P, at, &mut two.clone()).unwrap();
        device.write_behind(P, at + 4096, &mut one[..1 << 20].to_vec()).unwrap();
        device.write_at(P, at + (2 << 20), &[7; 100]).unwrap();
        device.write_at(P, at + (1 << 20), &one[..512 << 10]).unwrap();
        let mut wanted = two.clone();
        wanted[4096..4096 + (1 << 20)].copy_from_slice(&one[..1 << 20]);
        wanted[1 << 20..3 << 19].copy_from_slice(&one[..512 << 10]);
        wanted[2 << 20..(2 << 20) + 100].fill(7);
        let (mut a, mut b) = (vec![0; LEN / 2], vec![0; LEN / 2]);
        let half = at + (LEN / 2) as u64;
        device
            .read_many(
                P,
                &mut [Reading { offset: half, buf: &mut b }, Reading { offset: at, buf: &mut a }],
            )
            .unwrap();
        assert!(a == wanted[..LEN / 2] && b == wanted[LEN / 2..]);
        device.write_behind(P, at, &mut one.clone()).unwrap();
        let mut medium = vec![0; LEN];
        device.read_medium(P, at, &mut medium).unwrap();
        assert!(medium == one);
        // The end of a commit: shorter, and right after the writes in progress.
        device.write_behind(P, at, &mut two[..2 << 20].to_vec()).unwrap();
        let mut end = two[2 << 20..].to_vec();
        device.write_behind(P, at + (2 << 20), &mut end).unwrap();
        assert!(end.is_empty());
        device.discard(8 << 20, 4 << 20).unwrap();
        device.sync().unwrap();
        // Read by the host's file: this does not wait for writes in progress.
        let mut host = vec![0; LEN];
        std::os::unix::fs::FileExt::read_exact_at(
            &std::fs::File::open(&path).unwrap(),
            &mut host,
            at,
        )
        .unwrap();
        assert!(host == two);
        assert!(read(&device, at, LEN) == two);
    }
    // Accepted writes are done when the file is closed and others can lock it.
    device.write_behind(P, 4096, &mut one.clone()).unwrap();
    drop(device);
    let again = FileDevice::open(&path, true).unwrap();
    assert!(read(&again, 4096, LEN) == one);
}

#[test]
fn memory_that_is_full_says_so_and_copies_are_apart() {
    let device = MemoryDevice::with_limit(100_000);
    device.grow(100_000).unwrap();
    assert_eq!(device.grow(100_001).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(device.host_free(), Some(0));
    device.write_at(P, 5, b"one").unwrap();
    let copy = device.clone();
    device.write_at(P, 5, b"two").unwrap();
    copy.flip_bit(100, 3);
    assert_eq!((read(&device, 5, 3), read(&copy, 5, 3)), (b"two".to_vec(), b"one".to_vec()));
    assert_eq!((read(&device, 100, 1), read(&copy, 100, 1)), (vec![0], vec![8]));
    assert!(device.write_at(P, 99_999, b"xx").is_err());
}

#[test]
fn a_file_is_locked_while_it_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    assert!(matches!(FileDevice::open(&path, false), Err(Error::Io { .. })));
    let device = FileDevice::create(&path).unwrap();
    assert!(
        matches!(FileDevice::create(&path), Err(Error::Io { .. })),
        "what exists is not overwritten"
    );
    for read_only in [true, false] {
        let refused = FileDevice::open(&path, read_only).unwrap_err();
        assert!(matches!(&refused, Error::Busy(busy) if busy == &path));
        assert!(refused.to_string().contains("in use by another process"));
    }
    drop(device);
    let (a, b) = (FileDevice::open(&path, true).unwrap(), FileDevice::open(&path, true).unwrap());
    assert!(matches!(FileDevice::open(&path, false), Err(Error::Busy(_))));
    assert!(a.write_at(P, 0, b"x").is_err(), "read-only");
    drop((a, b));
    assert!(FileDevice::open(&path, false).is_ok());
    assert!(matches!(FileDevice::open(directory.path(), true), Err(Error::Invalid(_))));
}

#[test]
fn a_file_is_allocated_beforehand_and_shrinks_when_zones_are_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let options = FormatOptions { capacity: None, reserve_zones: 1, ..Default::default() };
    let zones = Zones::format(Arc::new(FileDevice::create(&path).unwrap()), options).unwrap();
    assert!(allocated() >= 9 * ZONE_SIZE, "zone 0 and a step of growth");
    assert!(zones.space().free_for_user > ZONE_SIZE, "the host's free space counts");
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let kept = place(&mut writer, 1, b"kept");
    let kept_pin = writer.finish().unwrap();
    let pins: Vec<ZonePin> =
        (0..16).map(|_| zones.take_zone(Purpose::Journal, Priority::User).unwrap().1).collect();
    let full = allocated();
    assert!(full >= 18 * ZONE_SIZE);
    drop(pins);
    zones.sync().unwrap();
    let given = zones.give_back().unwrap();
    assert!(given >= 11 * ZONE_SIZE);
    assert!(
        allocated() <= full - given + (1 << 20),
        "{} of {full} after giving {given}",
        allocated()
    );
    let mut found = [0; 4];
    zones.read(P, kept, &mut found).unwrap();
    assert_eq!(&found, b"kept");
    // The space is allocated again when it is needed again.
    let again = allocated();
    let _pins: Vec<ZonePin> =
        (0..16).map(|_| zones.take_zone(Purpose::Journal, Priority::User).unwrap().1).collect();
    assert!(allocated() >= again + 10 * ZONE_SIZE);
    let uses = kept_pin.uses().clone();
    drop((zones, kept_pin, _pins));
    let zones = Zones::open(Arc::new(FileDevice::open(&path, false).unwrap())).unwrap();
    let _kept = zones.pin(&uses).unwrap();
    zones.start();
    zones.read(P, kept, &mut found).unwrap();
    assert_eq!(&found, b"kept");
}

#[test]
fn counts_are_by_purpose() {
    let device = CountDevice::new(Arc::new(MemoryDevice::new()));
    device.grow(10_000).unwrap();
    device.write_at(Purpose::Journal, 100, &[1; 50]).unwrap();
    device.write_at(Purpose::Journal, 150, &[1; 50]).unwrap();
    device.read_at(Purpose::Index, 200, &mut [0; 10]).unwrap();
    device.read_at(Purpose::Index, 200, &mut [0; 10]).unwrap();
    device.sync().unwrap();
    device.discard(0, 1000).unwrap();
    let stats = device.stats();
    let journal = PurposeStats { write_ops: 2, write_bytes: 100, seeks: 1, ..Default::default() };
    let index = PurposeStats { read_ops: 2, read_bytes: 20, seeks: 1, ..Default::default() };
    assert_eq!((stats.of(Purpose::Journal), stats.of(Purpose::Index)), (&journal, &index));
    assert_eq!((stats.syncs, stats.discards, stats.discarded_bytes), (1, 1, 1000));
    assert_eq!(stats.total().seeks, 2);
}

#[test]
fn a_store_counts_what_its_streams_do() {
    let zones = world::memory_store(SMALL);
    let mut writer = zones.extent_writer(Purpose::Index, Priority::User);
    (0..1000).for_each(|_| _ = place(&mut writer, 1, &[1; 4096]));
    let _pin = writer.finish().unwrap();
    let index = *zones.io().of(Purpose::Index);
    assert_eq!(index.write_bytes, 1000 * 4096);
    assert_eq!((index.write_ops, index.seeks), (4, 1), "large pieces, one after the other");
    assert_eq!(zones.io().of(Purpose::Superblock).write_ops, 2);
}

#[test]
fn faults_strike_when_told() {
    let memory = Arc::new(MemoryDevice::new());
    memory.grow(1000).unwrap();
    let device = FaultDevice::new(memory, 3);
    device.inject(Fault::once(Operation::Write, FaultKind::Error).of(Purpose::Journal).after(2));
    device.inject(Fault::once(Operation::Read, FaultKind::ShortRead));
    assert!(device.write_at(P, 0, b"x").is_ok());
    let journal: Vec<bool> =
        (0..4).map(|_| device.write_at(Purpose::Journal, 0, b"x").is_ok()).collect();
    assert_eq!(journal, [true, true, false, true]);
    assert_eq!(
        device.read_at(P, 0, &mut [0]).unwrap_err().kind(),
        std::io::ErrorKind::UnexpectedEof
    );
    assert!(device.read_at(P, 0, &mut [0]).is_ok());

    device.inject(Fault::once(Operation::Read, FaultKind::FlipBit));
    let (flipped, right) = (read(&device, 0, 100), read(&device, 0, 100));
    let wrong: u32 = flipped.iter().zip(&right).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(wrong, 1);

    for (operation, error) in [
        (Operation::Sync, device_error(&device, Operation::Sync, |d| d.sync())),
        (Operation::Discard, device_error(&device, Operation::Discard, |d| d.discard(0, 10))),
        (Operation::Grow, device_error(&device, Operation::Grow, |d| d.grow(2000))),
    ] {
        assert_eq!(error, std::io::ErrorKind::StorageFull, "{operation:?}");
    }
    assert_eq!(device.struck(), 6);

    device.cut_power_after(2);
    let alive: Vec<bool> = (0..4).map(|_| device.write_at(P, 0, b"x").is_ok()).collect();
    assert_eq!(alive, [true, true, false, false]);
    assert!(device.sync().is_err() && device.read_at(P, 0, &mut [0]).is_err());
    device.clear();
    assert!(device.sync().is_ok());
}

#[test]
fn a_failing_write_leaves_no_part_of_a_sector() {
    let mut parts = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let memory = Arc::new(MemoryDevice::new());
        memory.grow(4096).unwrap();
        let device = FaultDevice::new(memory, seed);
        device.inject(Fault::once(Operation::Write, FaultKind::Error));
        device.write_at(P, 700, &[1; 2000]).unwrap_err();
        let found = read(&device, 0, 4096);
        let written = found.iter().filter(|&&b| b == 1).count();
        assert!(
            found[700..700 + written].iter().all(|&b| b == 1),
            "seed {seed}: not the first part"
        );
        parts.insert(700 + written);
    }
    assert_eq!(parts.into_iter().collect::<Vec<_>>(), [700, 1024, 1536, 2048, 2560]);
}

fn device_error(
    device: &FaultDevice,
    on: Operation,
    operation: impl Fn(&FaultDevice) -> std::io::Result<()>,
) -> std::io::ErrorKind {
    device.inject(Fault::once(on, FaultKind::NoSpace));
    let error = operation(device).unwrap_err().kind();
    assert!(operation(device).is_ok());
    error
}

#[test]
fn random_faults_come_from_their_seed() {
    let pattern = |seed| {
        let device = FaultDevice::new(Arc::new(MemoryDevice::new()), seed);
        device.inject(Fault::always(Operation::Sync, FaultKind::Error).one_in(3));
        (0..60).map(|_| device.sync().is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(pattern(1), pattern(1));
    assert_ne!(pattern(1), pattern(2));
    let failures = pattern(1).iter().filter(|ok| !**ok).count();
    assert!((5..40).contains(&failures), "{failures} of 60");
}

/// The versions that a sector may have: the last synced one and all written since.
type Versions = Vec<Vec<[u8; 512]>>;

const SECTORS: usize = 64;

#[test]
fn a_crash_yields_only_legal_images() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let device = CrashDevice::new();
        device.grow((SECTORS * 512) as u64).unwrap();
        device.sync().unwrap();
        let mut versions: Versions = vec![vec![[0; 512]]; SECTORS];
        for _ in 0..random.below(30) {
            let first = random.below(SECTORS as u64 - 1) as usize;
            let count = 1 + random.below((SECTORS - first) as u64) as usize;
            match random.below(8) {
                0 => {
                    device.sync().unwrap();
                    versions.iter_mut().for_each(|v| _ = v.drain(..v.len() - 1));
                }
                1 => {
                    device.discard((first * 512) as u64, (count * 512) as u64).unwrap();
                    versions[first..first + count].iter_mut().for_each(|v| v.push([0; 512]));
                }
                _ => {
                    let mut bytes = vec![0; count * 512];
                    random.fill(&mut bytes);
                    device.write_at(P, (first * 512) as u64, &bytes).unwrap();
                    for (v, sector) in versions[first..].iter_mut().zip(bytes.chunks(512)) {
                        v.push(sector.try_into().unwrap());
                    }
                }
            }
        }
        for outcome in 0..20 {
            let image = read(&device.crash(outcome), 0, SECTORS * 512);
            for (number, sector) in image.chunks(512).enumerate() {
                assert!(
                    versions[number].iter().any(|v| v == sector),
                    "seed {seed}, outcome {outcome}, sector {number}"
                );
            }
            assert_eq!(
                read(&device.crash(outcome), 0, SECTORS * 512),
                image,
                "a seed gives one image"
            );
        }
        let latest: Vec<u8> =
            versions.iter().flat_map(|v| v.last().copied().unwrap_or([0; 512])).collect();
        assert_eq!(read(&device, 0, SECTORS * 512), latest);
        assert_eq!(read(&device.current(), 0, SECTORS * 512), latest);
        let oldest: Vec<u8> = versions.iter().flat_map(|v| v[0]).collect();
        assert_eq!(read(&device.durable(), 0, SECTORS * 512), oldest);
    }
}

#[test]
fn a_crash_shows_all_there_is_to_fear() {
    let device = CrashDevice::new();
    device.grow(8192).unwrap();
    device.sync().unwrap();
    device.write_at(P, 0, &[1; 1024]).unwrap();
    device.write_at(P, 4096, &[2; 1024]).unwrap();
    device.grow(20_000).unwrap();
    let seen: BTreeSet<_> = (0..400)
        .map(|seed| {
            let image = device.crash(seed);
            let at = |offset| read(&image, offset, 1)[0];
            ([at(0), at(512)], [at(4096), at(4608)], image.len().unwrap())
        })
        .collect();
    for (what, outcome) in [
        ("nothing", ([0, 0], [0, 0], 8192)),
        ("everything", ([1, 1], [2, 2], 20_000)),
        ("only the first", ([1, 1], [0, 0], 8192)),
        ("only the second", ([0, 0], [2, 2], 8192)),
        ("a torn write", ([0, 1], [2, 2], 20_000)),
    ] {
        assert!(seen.contains(&outcome), "{what}");
    }
}

#[test]
fn a_write_across_old_and_new_atoms_is_torn_at_the_disks_sectors() {
    let device = CrashDevice::new();
    device.grow(4096).unwrap();
    device.sync().unwrap();
    device.write_at(P, 100, &[1; 1000]).unwrap();
    for seed in 0..100 {
        let image = read(&device.crash(seed), 0, 4096);
        for (range, name) in [(100..512, "first"), (512..1024, "second"), (1024..1100, "third")] {
            assert!(
                image[range.clone()].iter().all(|&b| b == image[range.start]),
                "the {name} atom is whole"
            );
        }
    }
}

#[test]
fn the_power_can_fail_in_a_sync() {
    let outcomes: BTreeSet<u8> = (0..50)
        .map(|seed| {
            let device = CrashDevice::new();
            device.grow(512).unwrap();
            device.sync().unwrap();
            device.cut_power_after(1);
            device.write_at(P, 0, &[1; 512]).unwrap();
            assert!(!device.is_dead());
            assert!(device.sync().is_err() && device.is_dead());
            assert!(
                device.write_at(P, 0, &[2; 512]).is_err()
                    && device.read_at(P, 0, &mut [0]).is_err()
            );
            assert_eq!(device.operations(), 4);
            read(&device.crash(seed), 0, 1)[0]
        })
        .collect();
    assert_eq!(
        outcomes,
        BTreeSet::from([0, 1]),
        "the write may be there or not; what came after never is"
    );
}

#[test]
fn a_store_survives_a_crash_with_all_that_was_synced() {
    for seed in 0..40 {
        let device = Arc::new(CrashDevice::new());
        let zones = Zones::format(device.clone(), SMALL).unwrap();
        let mut writer = zones.extent_writer(P, Priority::User);
        let placed: Vec<_> = world::objects(seed, 50, 20_000)
            .map(|object| (place(&mut writer, 8, &object), object))
            .collect();
        let pin = writer.finish().unwrap();
        let mut root = Vec::new();
        pin.uses().encode(&mut root);
        zones.set_root(&root).unwrap();
        let mut more = zones.extent_writer(P, Priority::User);
        world::objects(seed + 1000, 200, 20_000)
            .for_each(|object| _ = place(&mut more, 8, &object));
        let _unsynced = more.finish().unwrap();
        device.cut_power();
        let zones = Zones::open(Arc::new(device.crash(seed))).unwrap();
        let uses = zones::ZoneUse::decode(&mut &zones.superblock().root[..]).unwrap();
        assert_eq!(&uses, pin.uses());
        let _pin = zones.pin(&uses).unwrap();
        zones.start();
        for (addr, object) in placed {
            let mut found = vec![0; object.len()];
            zones.read(P, addr, &mut found).unwrap();
            assert!(found == object, "seed {seed}, address {addr}");
        }
    }
}
