//! Tests of the allocation of zones. One long test drives random writers, pins, drops, crashes and
//! reopenings against a model. Each of the other tests shows one rule.

use crate::world;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::world::{SMALL, memory_store, place};
use env::Random;
use zones::{
    Device, Error, Fault, FaultDevice, FaultKind, FormatOptions, MemoryDevice, Operation, Priority,
    Purpose, SECTOR, ZONE_SIZE, ZoneId, ZoneInfo, ZonePin, ZoneState, ZoneUse, Zones,
};

const STREAMS: [Purpose; 3] = [Purpose::Tuples, Purpose::Index, Purpose::Pages];

/// Live data: a pin and its extents, each with the seed of its content.
struct Owner {
    pin: ZonePin,
    extents: Vec<(u64, usize, u64)>,
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

fn check(zones: &Zones, owners: &[Owner], seed: u64) {
    let mut extents = BTreeMap::new();
    let mut expected = ZoneUse::new();
    let mut pins = BTreeMap::new();
    for (number, owner) in owners.iter().enumerate() {
        expected.merge(owner.pin.uses());
        for (zone, _) in owner.pin.uses().iter() {
            *pins.entry(zone).or_insert(0) += 1;
        }
        let mut uses = ZoneUse::new();
        for &(addr, len, noise) in &owner.extents {
            uses.add_extent(addr, len as u64);
            assert!(
                extents.insert(addr, (len as u64, number, noise)).is_none(),
                "seed {seed}: two extents at {addr}"
            );
        }
        assert_eq!(owner.pin.uses(), &uses, "seed {seed}");
    }
    let all: Vec<_> = extents.iter().collect();
    for pair in all.windows(2) {
        let (&a, &(len, owner, _)) = pair[0];
        let (&b, &(_, other, _)) = pair[1];
        assert!(a + len <= b, "seed {seed}: extents overlap at {b}");
        assert!(
            owner == other || (a + len - 1) / SECTOR < b / SECTOR,
            "seed {seed}: two owners in the sector of {b}"
        );
    }
    let usage: Vec<_> =
        expected.iter().map(|(zone, bytes)| (zone, bytes.min(ZONE_SIZE), pins[&zone])).collect();
    assert_eq!(zones.usage(), usage, "seed {seed}");
    let space = zones.space();
    let open =
        zones.positions().iter().filter(|&&(_, addr)| !expected.contains(ZoneId::of(addr))).count()
            as u64;
    let used = space.zones_total - 1 - space.zones_free;
    assert_eq!(used, space.zones_pinned + open, "seed {seed}: a zone was lost: {space:?}");
    assert_eq!(
        (space.zones_pinned, space.live_bytes),
        (usage.len() as u64, usage.iter().map(|u| u.1).sum())
    );
}

/// Checks every byte placed.
fn check_contents(zones: &Zones, owners: &[Owner], seed: u64) {
    for &(addr, len, seed_of_noise) in owners.iter().flat_map(|owner| &owner.extents) {
        let mut found = vec![0; len];
        zones.read(Purpose::Pages, addr, &mut found).unwrap();
        assert!(
            found == noise(seed_of_noise, len),
            "seed {seed}: {len} bytes at {addr} were overwritten"
        );
    }
}

#[test]
fn live_extents_never_overlap_and_freed_zones_come_back() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let reserve_zones = random.below(5) as u32;
        let capacity = Some((8 + random.below(10)) * ZONE_SIZE);
        let device = Arc::new(MemoryDevice::new());
        let mut zones = Zones::format(
            device.clone(),
            FormatOptions { capacity, reserve_zones, ..Default::default() },
        )
        .unwrap();
        let mut owners: Vec<Owner> = Vec::new();
        for _ in 0..30 {
            match random.below(12) {
                0..=5 => fill_some(&zones, &mut owners, &mut random),
                6..=7 if !owners.is_empty() => {
                    _ = owners.swap_remove(random.below(owners.len() as u64) as usize)
                }
                8 if owners.len() > 1 => {
                    let mut other = owners.pop().unwrap();
                    let owner = owners.last_mut().unwrap();
                    owner.pin.merge(std::mem::take(&mut other.pin));
                    owner.extents.append(&mut other.extents);
                }
                9 => _ = zones.give_back().unwrap(),
                10 => match zones.take_zone(Purpose::Journal, Priority::Log) {
                    Ok((zone, pin)) => {
                        let noise_seed = random.number();
                        zones
                            .write(
                                Purpose::Journal,
                                zone.start(),
                                &noise(noise_seed, ZONE_SIZE as usize),
                            )
                            .unwrap();
                        owners.push(Owner {
                            pin,
                            extents: vec![(zone.start(), ZONE_SIZE as usize, noise_seed)],
                        });
                    }
                    Err(e) => assert!(matches!(e, Error::NoSpace)),
                },
                11 => zones = reopen(zones, &device, &mut owners, &mut random),
                _ => {}
            }
            check(&zones, &owners, seed);
        }
        check_contents(&zones, &owners, seed);
        owners.clear();
        assert_eq!(zones.space().zones_pinned, 0);
        let free = zones.space().zones_total - 1 - zones.positions().len() as u64;
        assert_eq!(zones.space().zones_free, free, "seed {seed}");
    }
}

/// One to three interleaved writers; some are abandoned, some fail for lack of space.
fn fill_some(zones: &Arc<Zones>, owners: &mut Vec<Owner>, random: &mut Random) {
    let purpose = *random.pick(&STREAMS).unwrap();
    let reserve = if random.one_in(3) { Priority::Log } else { Priority::User };
    let mut writers: Vec<_> = (0..1 + random.below(3))
        .map(|_| (zones.extent_writer(purpose, reserve), Vec::new()))
        .collect();
    let longest = *random.pick(&[200, 5000, 70_000, 3 << 20]).unwrap();
    for _ in 0..random.below(40) {
        let which = random.below(writers.len() as u64) as usize;
        let (writer, extents) = &mut writers[which];
        let (len, noise_seed) = (1 + random.below(longest) as usize, random.number());
        let align = 1 << random.below(13);
        match writer.place(align, len, |_, to| Random::new(noise_seed).fill(to)) {
            Ok(addr) => {
                assert_eq!(addr % u64::from(align), 0);
                extents.push((addr, len, noise_seed));
            }
            Err(e) => assert!(matches!(e, Error::NoSpace), "{e}"),
        }
    }
    for (mut writer, extents) in writers {
        match random.below(8) {
            0 => {}
            1 => {
                let pin = writer.pin().unwrap();
                owners.push(Owner { pin, extents });
                _ = writer.place(8, 100, |_, to| to.fill(0xee));
            }
            _ => owners.push(Owner { pin: writer.finish().unwrap(), extents }),
        }
    }
}

/// Closes the store and recovers it. Live objects are pinned from their encoded form, and some
/// streams are continued.
fn reopen(
    zones: Arc<Zones>,
    device: &Arc<MemoryDevice>,
    owners: &mut [Owner],
    random: &mut Random,
) -> Arc<Zones> {
    let positions = zones.positions();
    let zones = Zones::open(device.clone()).unwrap();
    assert!(matches!(zones.take_zone(Purpose::Journal, Priority::Log), Err(Error::NotStarted)));
    assert!(matches!(
        zones.extent_writer(Purpose::Pages, Priority::Log).place(1, 1, |_, _| ()),
        Err(Error::NotStarted)
    ));
    if random.one_in(2) {
        positions.iter().for_each(|&(purpose, addr)| zones.resume(purpose, addr));
    }
    for owner in owners {
        let mut bytes = Vec::new();
        owner.pin.uses().encode(&mut bytes);
        owner.pin = zones.pin(&ZoneUse::decode(&mut &bytes[..]).unwrap()).unwrap();
    }
    zones.start();
    zones
}

#[test]
fn the_map_shows_what_each_zone_is_used_for_and_how_long_ago_it_was_taken() {
    let zones = memory_store(FormatOptions { reserve_zones: 2, ..Default::default() });
    let at = |zone: ZoneId| zones.map()[zone.0 as usize];
    let bare = |state| ZoneInfo { state, live: 0, purpose: None, age: None };
    assert_eq!(zones.map()[0], bare(ZoneState::Superblock));
    assert!(zones.map()[1..].iter().all(|zone| *zone == bare(ZoneState::Free)));

    let (first, journal) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let second = ZoneId::of(writer.place(1, 100, |_, _| ()).unwrap());
    let pages = writer.finish().unwrap();
    let journal_zone = |age| ZoneInfo {
        state: ZoneState::Held,
        live: ZONE_SIZE,
        purpose: Some(Purpose::Journal),
        age: Some(age),
    };
    assert_eq!(at(first), journal_zone(1), "one zone was taken after it");
    let (purpose, age) = (Some(Purpose::Pages), Some(0));
    assert_eq!(at(second), ZoneInfo { state: ZoneState::Open, live: 100, purpose, age });

    drop(journal);
    assert_eq!(at(first), bare(ZoneState::Free));
    // When it is reused it is the newest, whatever its age was before.
    let (again, _journal) = zones.take_zone(Purpose::Manifest, Priority::User).unwrap();
    assert_eq!(again, first);
    assert_eq!(at(first), ZoneInfo { purpose: Some(Purpose::Manifest), ..journal_zone(0) });
    assert_eq!(at(second).age, Some(1));
    drop(pages);
    // The stream continues there.
    assert_eq!((at(second).state, at(second).live), (ZoneState::Open, 0));
    zones.give_back().unwrap();
    assert!(zones.map().iter().all(|zone| zone.state != ZoneState::GivenBack || zone.live == 0));
}

#[test]
fn zones_from_before_the_opening_have_no_age() {
    let device = Arc::new(MemoryDevice::new());
    let zones = Zones::format(device.clone(), FormatOptions::default()).unwrap();
    let (zone, pin) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    let uses = pin.uses().clone();
    zones.set_root(b"root").unwrap();
    drop((pin, zones));
    let zones = Zones::open(device).unwrap();
    let _pin = zones.pin(&uses).unwrap();
    zones.start();
    let known = zones.map()[zone.0 as usize];
    assert_eq!((known.state, known.live, known.age), (ZoneState::Held, ZONE_SIZE, None));
}

#[test]
fn user_data_never_takes_the_reserve() {
    let zones = memory_store(FormatOptions {
        capacity: Some(12 * ZONE_SIZE),
        reserve_zones: 4,
        ..Default::default()
    });
    assert_eq!(zones.space().free_for_user, 7 * ZONE_SIZE);
    let mut pins: Vec<ZonePin> =
        (0..7).map(|_| zones.take_zone(Purpose::Journal, Priority::User).unwrap().1).collect();
    assert!(matches!(zones.take_zone(Purpose::Journal, Priority::User), Err(Error::NoSpace)));
    assert!(matches!(
        zones.extent_writer(Purpose::Pages, Priority::User).place(1, 1, |_, _| ()),
        Err(Error::NoSpace)
    ));
    assert_eq!(zones.space().free_for_user, 0);
    // The more an allocation helps to free zones, the deeper it may reach into the reserve.
    let mut reserve = Vec::new();
    for (who, zones_for_it) in [(Priority::Log, 2), (Priority::Flush, 1), (Priority::Last, 1)] {
        reserve
            .extend((0..zones_for_it).map(|_| zones.take_zone(Purpose::Manifest, who).unwrap().1));
        assert!(matches!(zones.take_zone(Purpose::Manifest, who), Err(Error::NoSpace)), "{who:?}");
    }
    // Freed zones fill the reserve before they serve users.
    pins.truncate(3);
    assert!(matches!(zones.take_zone(Purpose::Journal, Priority::User), Err(Error::NoSpace)));
    drop(reserve);
    assert_eq!(zones.space().free_for_user, 4 * ZONE_SIZE);
    assert!(zones.take_zone(Purpose::Journal, Priority::User).is_ok());
}

#[test]
fn whole_zones_are_recycled_before_fresh_ones() {
    let zones = memory_store(SMALL);
    let (_, first) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    let (second, pin) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    drop(pin);
    assert_eq!(zones.take_zone(Purpose::Journal, Priority::User).unwrap().0, second);
    drop(first);
}

#[test]
fn a_zone_is_free_only_when_its_last_pin_is_gone() {
    let zones = memory_store(SMALL);
    let (zone, pin) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    let second = zones.pin(pin.uses()).unwrap();
    assert_eq!(zones.usage(), [(zone, ZONE_SIZE, 2)], "live bytes are capped at a zone");
    drop(pin);
    assert_eq!(zones.usage(), [(zone, ZONE_SIZE, 1)]);
    let uses = second.uses().clone();
    drop(second);
    assert!(zones.usage().is_empty());
    assert!(matches!(zones.pin(&uses), Err(Error::Corrupt { .. })), "a free zone cannot be pinned");
}

#[test]
fn merged_pins_are_one() {
    let zones = memory_store(SMALL);
    let (zone, mut a) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    let b = zones.pin(a.uses()).unwrap();
    let (other, c) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    a.merge(b);
    a.merge(ZonePin::default());
    let mut all = ZonePin::default();
    all.merge(a);
    all.merge(c);
    assert_eq!(zones.usage(), [(zone, ZONE_SIZE, 1), (other, ZONE_SIZE, 1)]);
    drop(all);
    assert!(zones.usage().is_empty());
}

#[test]
fn zones_the_store_does_not_have_are_refused() {
    let zones = memory_store(SMALL);
    for zone in [0, 9, 63, 64, u32::MAX] {
        let mut uses = ZoneUse::new();
        uses.add(ZoneId(zone), 1);
        assert!(matches!(zones.pin(&uses), Err(Error::Corrupt { .. })), "zone {zone}");
    }
    // One invalid zone fails the call: nothing stays pinned.
    let (zone, _pin) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    let mut uses = ZoneUse::whole(zone);
    uses.add(ZoneId(60), 1);
    assert!(zones.pin(&uses).is_err());
    assert_eq!(zones.usage(), [(zone, ZONE_SIZE, 1)]);
}

#[test]
fn garbage_addresses_are_corruption_not_panics() {
    let zones = memory_store(SMALL);
    let len = zones.space().device_len;
    let mut buf = [0; 100];
    for addr in [0, ZONE_SIZE - 1, len - 99, len, u64::MAX - 50, u64::MAX] {
        assert!(
            matches!(zones.read(Purpose::Pages, addr, &mut buf), Err(Error::Corrupt { .. })),
            "read at {addr}"
        );
        assert!(
            matches!(zones.write(Purpose::Pages, addr, &buf), Err(Error::Corrupt { .. })),
            "write at {addr}"
        );
    }
    assert!(zones.check_range(ZONE_SIZE, u64::MAX).is_err());
    assert!(zones.read(Purpose::Pages, len - 100, &mut buf).is_ok());
}

/// Makes a closed store with one object. Returns its device, its use and its position.
fn closed() -> (Arc<MemoryDevice>, ZoneUse, u64) {
    let device = Arc::new(MemoryDevice::new());
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    place(&mut writer, 1, &[1; 10_000]);
    let pin = writer.finish().unwrap();
    let [(Purpose::Pages, position)] = zones.positions()[..] else { panic!("one stream is open") };
    (device, pin.uses().clone(), position)
}

#[test]
fn a_stream_resumes_behind_what_is_known() {
    let (device, uses, position) = closed();
    let zones = Zones::open(device).unwrap();
    let _pin = zones.pin(&uses).unwrap();
    zones.resume(Purpose::Pages, position);
    zones.saw_extent(position + SECTOR, 5);
    zones.start();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    assert_eq!(place(&mut writer, 1, &[2; 10]), position + 2 * SECTOR);
}

#[test]
fn a_stream_does_not_resume_in_a_zone_that_is_not_its_own() {
    let (device, uses, position) = closed();
    let zone = ZoneId::of(position);
    type Recover = fn(&Zones, &ZoneUse, u64) -> Vec<ZonePin>;
    let wrong: [(&str, Recover); 4] = [
        ("no pin has it", |zones, _, position| {
            zones.resume(Purpose::Pages, position);
            Vec::new()
        }),
        ("it is a journal's now", |zones, uses, position| {
            zones.resume(Purpose::Pages, position);
            vec![zones.pin(&ZoneUse::whole(uses.iter().next().unwrap().0)).unwrap()]
        }),
        ("it lies beyond the device", |zones, uses, _| {
            zones.resume(Purpose::Pages, 63 * ZONE_SIZE);
            zones.resume(Purpose::Tuples, u64::MAX);
            vec![zones.pin(uses).unwrap()]
        }),
        ("it has the superblocks", |zones, uses, _| {
            zones.resume(Purpose::Pages, 0);
            vec![zones.pin(uses).unwrap()]
        }),
    ];
    for (why, recover) in wrong {
        let zones = Zones::open(device.clone()).unwrap();
        let pins = recover(&zones, &uses, position);
        zones.start();
        assert!(zones.positions().is_empty(), "{why}");
        let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
        let addr = place(&mut writer, 1, &[2; 10]);
        assert!(pins.is_empty() || ZoneId::of(addr) != zone, "{why}");
    }
}

#[test]
fn two_streams_do_not_resume_in_one_zone() {
    let (device, uses, position) = closed();
    let zones = Zones::open(device).unwrap();
    let _pin = zones.pin(&uses).unwrap();
    zones.resume(Purpose::Tuples, position);
    zones.resume(Purpose::Pages, position);
    zones.start();
    assert_eq!(zones.positions().len(), 1);
    let zone = zones.map()[ZoneId::of(position).0 as usize];
    assert_eq!((zone.state, zone.purpose), (ZoneState::Open, Some(Purpose::Tuples)));
}

#[test]
fn the_store_grows_in_steps_and_by_one_when_the_host_is_nearly_full() {
    let device = Arc::new(MemoryDevice::with_limit(20 * ZONE_SIZE));
    let zones = Zones::format(
        device,
        FormatOptions { capacity: None, reserve_zones: 2, ..Default::default() },
    )
    .unwrap();
    let lens: Vec<u64> = std::iter::from_fn(|| {
        let (_, pin) = zones.take_zone(Purpose::Journal, Priority::User).ok()?;
        std::mem::forget(pin);
        Some(zones.space().device_len / ZONE_SIZE)
    })
    .collect();
    assert_eq!(lens.first(), Some(&9));
    assert!(lens.contains(&17) && lens.contains(&18), "{lens:?}");
    assert_eq!(lens.last(), Some(&20));
    assert_eq!(lens.len(), 17, "all but zone 0 and the reserve");
    assert!(matches!(zones.take_zone(Purpose::Journal, Priority::User), Err(Error::NoSpace)));
}

#[test]
fn a_full_host_is_no_space_and_space_that_comes_back_is_used() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    device.inject(Fault::always(Operation::Grow, FaultKind::NoSpace));
    let mut pins = Vec::new();
    let full = loop {
        match zones.take_zone(Purpose::Journal, Priority::User) {
            Ok((_, pin)) => pins.push(pin),
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace));
    assert_eq!(pins.len(), 4, "eight zones were allocated for the reserve of four");
    assert!(
        zones.take_zone(Purpose::Manifest, Priority::Log).is_ok(),
        "the reserve was allocated beforehand"
    );
    pins.pop();
    assert!(zones.take_zone(Purpose::Journal, Priority::User).is_ok());
    pins.push(zones.take_zone(Purpose::Journal, Priority::User).unwrap().1);
    device.clear();
    assert!(zones.take_zone(Purpose::Journal, Priority::User).is_ok());
    device.inject(Fault::always(Operation::Grow, FaultKind::Error));
    let error = std::iter::from_fn(|| match zones.take_zone(Purpose::Journal, Priority::User) {
        Ok((_, pin)) => {
            pins.push(pin);
            Some(None)
        }
        Err(e) => Some(Some(e)),
    })
    .flatten()
    .next();
    assert!(matches!(error, Some(Error::Io { .. })), "any other error is not a full store");
}

#[test]
fn zones_given_back_are_allocated_again_before_they_are_used() {
    let memory = Arc::new(MemoryDevice::new());
    let device = Arc::new(FaultDevice::new(memory, 1));
    let zones = Zones::format(
        device.clone(),
        FormatOptions { capacity: Some(33 * ZONE_SIZE), reserve_zones: 4, ..Default::default() },
    )
    .unwrap();
    let take = || zones.take_zone(Purpose::Journal, Priority::User).map(|(_, pin)| pin);
    let pins: Vec<ZonePin> = (0..28).map(|_| take().unwrap()).collect();
    assert!(take().is_err());
    drop(pins);
    assert_eq!(zones.give_back().unwrap(), 24 * ZONE_SIZE, "the reserve and a stock of four stay");
    assert_eq!(zones.give_back().unwrap(), 0);
    assert_eq!(zones.space().zones_free, 32);
    assert_eq!((zones.io().discards, zones.io().discarded_bytes), (12, 24 * ZONE_SIZE));
    device.inject(Fault::always(Operation::Grow, FaultKind::NoSpace));
    let pins: Vec<ZonePin> = std::iter::from_fn(|| take().ok()).collect();
    assert_eq!(pins.len(), 4, "the host has taken the rest");
    device.clear();
    let more: Vec<ZonePin> = std::iter::from_fn(|| take().ok()).collect();
    assert_eq!(more.len(), 24);
}

#[test]
fn after_reopening_free_zones_can_be_used_and_given_back() {
    let memory = Arc::new(MemoryDevice::new());
    drop(Zones::format(memory.clone(), SMALL).unwrap());
    memory.grow(30 * ZONE_SIZE).unwrap();
    let zones = Zones::open(memory.clone()).unwrap();
    assert_eq!(zones.give_back().unwrap(), 0, "nothing is known to be free yet");
    zones.start();
    assert_eq!(zones.space().zones_free, 29);
    let (_, pin) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    assert_eq!(zones.give_back().unwrap(), 20 * ZONE_SIZE);
    assert_eq!(zones.space().zones_free, 28);
    drop(pin);
}

#[test]
fn a_host_that_refuses_to_take_space_loses_nothing() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    let pins: Vec<ZonePin> =
        (0..30).map(|_| zones.take_zone(Purpose::Journal, Priority::User).unwrap().1).collect();
    drop(pins);
    let free = zones.space().zones_free;
    device.inject(Fault::once(Operation::Discard, FaultKind::Error));
    assert!(matches!(zones.give_back(), Err(Error::Io { .. })));
    assert_eq!(zones.space().zones_free, free);
    assert_eq!(zones.give_back().unwrap(), (free - 8) * ZONE_SIZE);
}

#[test]
fn a_failed_sync_is_final() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let zones = Zones::format(device.clone(), SMALL).unwrap();
    let (zone, _pin) = zones.take_zone(Purpose::Journal, Priority::User).unwrap();
    zones.write(Purpose::Journal, zone.start(), b"before").unwrap();
    device.inject(Fault::once(Operation::Sync, FaultKind::Error));
    let first = zones.sync().unwrap_err().to_string();
    let later = [
        zones.sync().unwrap_err(),
        zones.write(Purpose::Journal, zone.start(), b"after").unwrap_err(),
        zones.set_root(b"root").unwrap_err(),
    ];
    for error in later {
        assert_eq!(error.to_string(), first);
    }
    assert_eq!(zones.superblock().root, b"");
    let mut found = [0; 6];
    zones.read(Purpose::Journal, zone.start(), &mut found).unwrap();
    assert_eq!(&found, b"before", "reading goes on");
}

type Placed = (u64, Vec<u8>);

#[test]
fn threads_fill_and_sync_together() {
    let zones =
        memory_store(FormatOptions { capacity: None, reserve_zones: 4, ..Default::default() });
    let pins: Vec<(ZonePin, Vec<Placed>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u64)
            .map(|thread| {
                let zones = &zones;
                scope.spawn(move || {
                    let mut pin = ZonePin::default();
                    let mut placed = Vec::new();
                    for round in 0..10 {
                        let mut writer =
                            zones.extent_writer(STREAMS[(thread % 2) as usize], Priority::User);
                        for object in world::objects(thread * 100 + round, 30, 30_000) {
                            placed.push((place(&mut writer, 16, &object), object));
                        }
                        pin.merge(writer.finish().unwrap());
                        zones.sync().unwrap();
                        drop(zones.take_zone(Purpose::Journal, Priority::User).unwrap());
                    }
                    (pin, placed)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (addr, object) in pins.iter().flat_map(|(_, placed)| placed) {
        let mut found = vec![0; object.len()];
        zones.read(Purpose::Tuples, *addr, &mut found).unwrap();
        assert!(&found == object);
    }
    assert!(zones.io().syncs <= 2 + 80, "waiters may share a sync, never add one");
    drop(pins);
    assert!(zones.usage().is_empty());
}

/// A block device: its length is fixed, and all of it is allocated.
struct Fixed(MemoryDevice);

impl Device for Fixed {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.0.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }
    fn grow(&self, _: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
    fn can_grow(&self) -> bool {
        false
    }
}

#[test]
fn a_device_that_cannot_grow_is_used_to_its_last_whole_zone() {
    let memory = MemoryDevice::new();
    memory.grow(25 * ZONE_SIZE + 5_000_000).unwrap();
    let zones = Zones::format(Arc::new(Fixed(memory)), FormatOptions::default()).unwrap();
    for _ in 0..2 {
        assert_eq!(zones.space().free_for_user, 16 * ZONE_SIZE);
        let pins: Vec<ZonePin> =
            std::iter::from_fn(|| zones.take_zone(Purpose::Journal, Priority::User).ok())
                .map(|(_, pin)| pin)
                .collect();
        assert_eq!(pins.len(), 16);
        drop(pins);
        // Trimmed zones are as good as others.
        assert!(zones.give_back().unwrap() > 0);
    }
}
