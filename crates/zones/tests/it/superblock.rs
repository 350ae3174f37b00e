//! Tests of the superblock pair. After any interrupted or damaged write the store opens with the
//! old root or the new one.

use crate::world;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use crate::world::SMALL;
use env::Random;
use zones::{
    CrashDevice, Device, Error, Fault, FaultDevice, FaultKind, FormatOptions, MAX_ROOT,
    MemoryDevice, Operation, Profile, Purpose, ZONE_SIZE, Zones, crc32c,
};

const COPIES: [u64; 2] = [0, 4 << 20];
const BLOCK: usize = 4096;

fn block(device: &MemoryDevice, copy: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    device.read_at(Purpose::Superblock, COPIES[copy], &mut block).unwrap();
    block
}

fn root(device: &MemoryDevice) -> Vec<u8> {
    Zones::open(Arc::new(device.clone())).unwrap().superblock().root
}

#[test]
fn what_was_formatted_is_found_again() {
    let device = Arc::new(MemoryDevice::new());
    let made = Zones::format(
        device.clone(),
        FormatOptions {
            capacity: Some(20 * ZONE_SIZE + 5),
            reserve_zones: 3,
            profile: Profile::HardDisk,
        },
    )
    .unwrap();
    made.set_root(&[7; MAX_ROOT]).unwrap();
    let found = Zones::open(device).unwrap();
    assert_eq!(found.superblock(), made.superblock());
    assert_eq!(found.superblock().capacity, Some(20 * ZONE_SIZE));
    assert_eq!(found.superblock().profile, Profile::HardDisk);
    assert_eq!(found.superblock().root, [7; MAX_ROOT]);
    assert!(matches!(found.set_root(&[0; MAX_ROOT + 1]), Err(Error::Invalid(_))));
    assert_ne!(world::memory_store(SMALL).superblock().uuid, made.superblock().uuid);
}

#[test]
fn a_store_of_the_version_before_opens_and_its_device_is_not_known() {
    let device = Arc::new(MemoryDevice::new());
    Zones::format(device.clone(), SMALL).unwrap().set_root(b"old").unwrap();
    for (copy, addr) in COPIES.into_iter().enumerate() {
        let mut old = block(&device, copy);
        old[8..12].copy_from_slice(&6u32.to_le_bytes());
        old[12..16].fill(0);
        let sum = crc32c(&old);
        old[12..16].copy_from_slice(&sum.to_le_bytes());
        device.write_at(Purpose::Superblock, addr, &old).unwrap();
    }
    let found = Zones::open(device.clone()).unwrap();
    assert_eq!(found.superblock().version, 6);
    assert_eq!(found.superblock().profile, Profile::Unknown);
    found.set_root(b"new").unwrap();
    let found = Zones::open(device).unwrap().superblock();
    assert_eq!((found.version, found.root), (7, b"new".to_vec()));
}

#[test]
fn one_torn_at_any_sector_leaves_the_other() {
    let device = Arc::new(MemoryDevice::new());
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    let roots: Vec<Vec<u8>> = (0..6).map(|i| vec![i; 1 + 400 * i as usize]).collect();
    for pair in roots.windows(2) {
        zones.set_root(&pair[0]).unwrap();
        let before = (*device).clone();
        zones.set_root(&pair[1]).unwrap();
        let after = (*device).clone();
        for (copy, addr) in COPIES.into_iter().enumerate() {
            for sectors in 0..=BLOCK / 512 {
                // The copy is torn, and the other one is still the old, or already the new.
                for (rest, expected) in [(&before, &pair[0]), (&after, &pair[1])] {
                    let image = rest.clone();
                    let mut torn = block(&before, copy);
                    torn[..sectors * 512].copy_from_slice(&block(&after, copy)[..sectors * 512]);
                    image.write_at(Purpose::Superblock, addr, &torn).unwrap();
                    let expected = if sectors == BLOCK / 512 { &pair[1] } else { expected };
                    // A root shorter than a sector may be whole although its block is torn; nothing
                    // else may differ.
                    let found = root(&image);
                    assert!(
                        &found == expected || (torn == block(&after, copy) && found == pair[1]),
                        "copy {copy}, {sectors} sectors"
                    );
                    let reopened = Zones::open(Arc::new(image)).unwrap();
                    reopened.set_root(b"healed").unwrap();
                    assert!(reopened.check_superblocks().is_empty());
                }
            }
        }
    }
}

#[test]
fn a_power_cut_in_any_operation_leaves_the_old_root_or_the_new() {
    for moment in 0..5 {
        for seed in 0..50 {
            let device = Arc::new(CrashDevice::new());
            let zones = Zones::format(device.clone(), SMALL).unwrap();
            zones.set_root(b"old").unwrap();
            device.cut_power_after(moment);
            let acknowledged = zones.set_root(b"new").is_ok();
            let found = root(&device.crash(seed));
            assert!(found == b"old" || found == b"new");
            assert!(!acknowledged, "five operations: sync, write, sync, write, sync");
            assert!(moment > 0 || found == b"old");
            assert!(moment < 3 || found == b"new");
        }
    }
}

#[test]
fn a_second_power_cut_never_hits_the_only_good_copy() {
    for torn in COPIES {
        for seed in 0..50 {
            let first = Arc::new(CrashDevice::new());
            Zones::format(first.clone(), SMALL).unwrap().set_root(b"old").unwrap();
            let image = first.durable();
            image.write_at(Purpose::Superblock, torn + 512, &[9; 512]).unwrap();
            let second = Arc::new(CrashDevice::over(image));
            let zones = Zones::open(second.clone()).unwrap();
            second.cut_power_after(1);
            assert!(zones.set_root(&[b'n'; MAX_ROOT]).is_err());
            let found = root(&second.crash(seed));
            assert!(found == b"old" || found == [b'n'; MAX_ROOT]);
        }
    }
}

/// The two copies are never in flight at once: a power cut may tear all unsynced writes, and one
/// copy is intact.
#[test]
fn a_power_cut_tears_one_copy_at_most() {
    for moment in 0..6 {
        for seed in 0..100 {
            let device = Arc::new(CrashDevice::new());
            let zones = Zones::format(device.clone(), SMALL).unwrap();
            // The roots are as long as possible, so that a torn copy is not valid by chance.
            let (old, new) = ([b'o'; MAX_ROOT], [b'n'; MAX_ROOT]);
            zones.set_root(&old).unwrap();
            device.cut_power_after(moment);
            let acknowledged = zones.set_root(&new).is_ok();
            let image = device.crash(seed);
            let whole = COPIES.iter().filter(|&&at| {
                // The copy is alone, since the other one is not a superblock.
                let alone = image.clone();
                COPIES.iter().filter(|&&other| other != at).for_each(|&other| {
                    alone.write_at(Purpose::Superblock, other, &[0; BLOCK]).unwrap();
                });
                Zones::open(Arc::new(alone)).is_ok()
            });
            assert!(whole.count() >= 1, "moment {moment}, seed {seed}: both are torn");
            let found = root(&image);
            assert!(found == new || found == old && !acknowledged, "moment {moment}, seed {seed}");
        }
    }
}

#[test]
fn damage_to_one_copy_loses_nothing_and_is_found() {
    let device = Arc::new(MemoryDevice::new());
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    zones.set_root(b"newest").unwrap();
    let mut random = Random::new(4);
    for copy in COPIES {
        for _ in 0..200 {
            let image = (*device).clone();
            let addr = copy + random.below(BLOCK as u64);
            image.flip_bit(addr, random.below(8) as u8);
            let image = Arc::new(image);
            let zones = Zones::open(image).unwrap();
            assert_eq!(zones.superblock().root, b"newest", "byte {addr}");
            assert_eq!(zones.check_superblocks().len(), 1, "byte {addr}");
        }
    }
}

#[test]
fn what_is_no_store_is_said_to_be_none() {
    let empty = MemoryDevice::new();
    assert!(matches!(Zones::open(Arc::new(empty)), Err(Error::NotAStore)));
    let noise = MemoryDevice::new();
    noise.grow(ZONE_SIZE).unwrap();
    let mut random = Random::new(1);
    for _ in 0..100 {
        let mut block = [0; BLOCK];
        random.fill(&mut block);
        for copy in COPIES {
            noise.write_at(Purpose::Superblock, copy, &block).unwrap();
        }
        assert!(matches!(Zones::open(Arc::new(noise.clone())), Err(Error::NotAStore)));
        // The same with the magic of a store.
        noise.write_at(Purpose::Superblock, COPIES[1], b"KVFS\r\n\x1a\n").unwrap();
        assert!(matches!(Zones::open(Arc::new(noise.clone())), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn a_copy_that_cannot_be_read_may_be_the_newest() {
    let memory = Arc::new(MemoryDevice::new());
    Zones::format(memory.clone(), SMALL).unwrap();
    let device = Arc::new(FaultDevice::new(memory, 1));
    device.inject(Fault::once(Operation::Read, FaultKind::Error).after(1));
    assert!(matches!(Zones::open(device.clone()), Err(Error::Io { .. })));
    assert!(Zones::open(device).is_ok());
}

#[test]
fn a_store_too_small_to_work_is_refused() {
    for zones in 0..5 {
        let options = FormatOptions {
            capacity: Some(zones * ZONE_SIZE),
            reserve_zones: 3,
            ..Default::default()
        };
        assert!(matches!(
            Zones::format(Arc::new(MemoryDevice::new()), options),
            Err(Error::Invalid(_))
        ));
    }
    assert!(matches!(
        Zones::format(Arc::new(MemoryDevice::with_limit(3 * ZONE_SIZE)), SMALL),
        Err(Error::NoSpace)
    ));
}

/// A device on which writing a superblock takes until another thread has asked for the space of the
/// store.
#[derive(Default)]
struct Slow {
    memory: MemoryDevice,
    zones: OnceLock<Weak<Zones>>,
    answers: AtomicUsize,
}

impl Device for Slow {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        if let Some(zones) = self.zones.get().and_then(Weak::upgrade) {
            let (say, told) = mpsc::channel();
            std::thread::spawn(move || say.send(zones.space()));
            if told.recv_timeout(Duration::from_secs(10)).is_ok() {
                self.answers.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.memory.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.memory.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.memory.discard(offset, len)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.memory.len()
    }
    fn grow(&self, new_len: u64) -> std::io::Result<()> {
        self.memory.grow(new_len)
    }
}

#[test]
fn the_space_is_told_while_a_root_is_being_written() {
    let device = Arc::new(Slow::default());
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    device.zones.set(Arc::downgrade(&zones)).unwrap();
    zones.set_root(b"root").unwrap();
    assert_eq!(device.answers.load(Ordering::SeqCst), 2, "once for each copy");
}
