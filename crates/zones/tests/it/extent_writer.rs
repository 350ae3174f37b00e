//! Tests of extent writers. An object lies at the returned address, in one zone, and overlaps no
//! other object until its pin is dropped.

use crate::world::{SMALL, memory_store, objects, place};
use zones::{Error, Priority, Purpose, SECTOR, ZONE_SIZE, ZoneId, ZoneUse};

#[test]
fn what_is_placed_can_be_read_and_is_counted_to_the_byte() {
    let zones = memory_store(SMALL);
    let mut writer = zones.extent_writer(Purpose::Tuples, Priority::User);
    let mut expected = ZoneUse::new();
    let placed: Vec<_> = objects(1, 3000, 10_000)
        .map(|object| {
            let addr = place(&mut writer, 1, &object);
            expected.add_extent(addr, object.len() as u64);
            (addr, object)
        })
        .collect();
    assert_eq!(writer.uses(), expected);
    let pin = writer.finish().unwrap();
    assert_eq!(pin.uses(), &expected);
    assert!(pin.uses().len() > 1, "the test should cross zones");
    for (addr, object) in placed {
        assert_eq!(ZoneId::of(addr), ZoneId::of(addr + object.len() as u64 - 1));
        let mut found = vec![0; object.len()];
        zones.read(Purpose::Tuples, addr, &mut found).unwrap();
        assert_eq!(found, object);
    }
}

#[test]
fn one_writer_alone_is_contiguous_and_the_next_goes_on_at_a_new_sector() {
    let zones = memory_store(SMALL);
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let first = place(&mut writer, 4096, &[1; 100]);
    for i in 0..300 {
        assert_eq!(place(&mut writer, 1, &[2; 5000]), first + 100 + i * 5000);
    }
    let pin = writer.finish().unwrap();
    let mut next = zones.extent_writer(Purpose::Pages, Priority::User);
    let end = first + 100 + 300 * 5000;
    assert_eq!(place(&mut next, 1, &[3]), end.next_multiple_of(SECTOR));
    drop(pin);
}

#[test]
fn writers_of_one_stream_never_share_a_sector() {
    let zones = memory_store(SMALL);
    let mut writers: Vec<_> =
        (0..3).map(|_| zones.extent_writer(Purpose::Tuples, Priority::User)).collect();
    let mut sectors = std::collections::BTreeMap::new();
    for (i, object) in objects(2, 2000, 9000).enumerate() {
        let owner = i % 3;
        let addr = place(&mut writers[owner], 8, &object);
        assert_eq!(addr % 8, 0);
        for sector in addr / SECTOR..=(addr + object.len() as u64 - 1) / SECTOR {
            assert_eq!(*sectors.entry(sector).or_insert(owner), owner, "sector {sector}");
        }
    }
}

#[test]
fn a_large_object_gets_a_zone_and_leaves_the_stream_where_it_is_better_off() {
    let zones = memory_store(SMALL);
    let small = || {
        let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
        let addr = place(&mut writer, 1, &[7; 100 << 10]);
        (addr, writer.finish().unwrap())
    };
    let (first, _a) = small();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let large = vec![5; (ZONE_SIZE - (64 << 10)) as usize];
    let addr = place(&mut writer, 4096, &large);
    let whole = place(&mut writer, 4096, &vec![6; ZONE_SIZE as usize]);
    let _large = writer.finish().unwrap();
    assert_ne!(ZoneId::of(addr), ZoneId::of(first));
    assert_eq!(whole % ZONE_SIZE, 0);
    let (second, _b) = small();
    assert_eq!(second, first + (100 << 10));
    let mut found = vec![0; large.len()];
    zones.read(Purpose::Pages, addr, &mut found).unwrap();
    assert!(found == large);
}

#[test]
fn what_cannot_be_placed_is_refused() {
    let zones = memory_store(SMALL);
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    for (align, len) in [(3, 1), (0, 1), (8192, 1), (1, ZONE_SIZE as usize + 1)] {
        assert!(matches!(writer.place(align, len, |_, _| unreachable!()), Err(Error::Invalid(_))));
    }
    assert_eq!(place(&mut writer, 1, &[]) % ZONE_SIZE, 0);
}

#[test]
fn an_abandoned_writer_leaves_nothing_behind() {
    let zones = memory_store(SMALL);
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let first = place(&mut writer, 1, &[1; 1000]);
    (0..20).for_each(|_| _ = place(&mut writer, 1, &[1; 1 << 20]));
    assert_eq!(zones.space().zones_pinned, 3);
    drop(writer);
    // The stream keeps its open zone, and restarts at its beginning.
    assert_eq!(
        (zones.space().zones_pinned, zones.space().zones_free),
        (0, zones.space().zones_total - 2)
    );
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let again = place(&mut writer, 1, &[1; 1000]);
    assert_eq!(again % ZONE_SIZE, first % ZONE_SIZE);
}

#[test]
fn a_pin_taken_midway_outlives_its_writer() {
    let zones = memory_store(SMALL);
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let addr = place(&mut writer, 1, b"kept");
    let pin = writer.pin().unwrap();
    place(&mut writer, 1, b"lost");
    drop(writer);
    assert_eq!(pin.uses().total_bytes(), 4);
    let mut next = zones.extent_writer(Purpose::Pages, Priority::User);
    assert_eq!(
        place(&mut next, 1, &[9; 100]),
        addr + SECTOR,
        "what was abandoned is used again, what is pinned is not"
    );
    next.finish().unwrap();
    let mut found = [0; 4];
    zones.read(Purpose::Pages, addr, &mut found).unwrap();
    assert_eq!(&found, b"kept");
}

#[test]
fn a_short_writer_next_to_a_long_one_wastes_little() {
    let zones = memory_store(SMALL);
    let mut long = zones.extent_writer(Purpose::Pages, Priority::User);
    let mut pins = Vec::new();
    for _ in 0..100 {
        place(&mut long, 4096, &[1; 4096]);
        let mut short = zones.extent_writer(Purpose::Pages, Priority::User);
        place(&mut short, 4096, &[2; 4096]);
        pins.push(short.finish().unwrap());
    }
    pins.push(long.finish().unwrap());
    assert_eq!(zones.space().zones_pinned, 1, "200 pages fit one zone");
}

#[test]
fn a_failed_write_is_final_for_its_writer_but_a_full_store_is_not() {
    use std::sync::Arc;
    use zones::{Fault, FaultDevice, FaultKind, FormatOptions, MemoryDevice, Operation, Zones};
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let zones = Zones::format(
        device.clone(),
        FormatOptions { capacity: Some(10 * ZONE_SIZE), reserve_zones: 8, ..Default::default() },
    )
    .unwrap();
    device.inject(Fault::once(Operation::Write, FaultKind::Error).of(Purpose::Pages));
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    place(&mut writer, 1, b"x");
    assert!(matches!(writer.flush(), Err(Error::Io { .. })));
    assert!(matches!(writer.place(1, 1, |_, _| ()), Err(Error::Io { .. })));
    assert!(matches!(writer.finish(), Err(Error::Io { .. })));

    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    place(&mut writer, 1, &vec![1; ZONE_SIZE as usize - 4096]);
    assert!(matches!(writer.place(1, 5000, |_, _| ()), Err(Error::NoSpace)));
    place(&mut writer, 1, &[1; 4096]);
    assert_eq!(writer.finish().unwrap().uses().total_bytes(), ZONE_SIZE);
}

/// The address of an object is known before it is written. The last objects of a zone are written
/// when the writer moves on to the next zone, so a refused write must not move them there.
#[test]
fn a_writer_that_finishes_has_written_all_objects_whatever_the_host_has_refused() {
    use std::sync::Arc;
    use zones::{Fault, FaultDevice, FaultKind, FormatOptions, MemoryDevice, Operation, Zones};
    const OBJECT: usize = 3000;
    let mut finished = 0;
    for after in 0..10 {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let zones = Zones::format(device.clone(), FormatOptions::default()).unwrap();
        let refused = Fault::once(Operation::Write, FaultKind::NoSpace);
        device.inject(refused.of(Purpose::Pages).after(after));
        let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
        let mut placed = Vec::new();
        for i in 0..=ZONE_SIZE as usize / OBJECT + 100 {
            match writer.place(1, OBJECT, |_, to| to.fill(i as u8)) {
                Ok(addr) => placed.push((addr, i as u8)),
                Err(e) => assert!(matches!(e, Error::NoSpace), "{e}"),
            }
        }
        let Ok(_pin) = writer.finish() else { continue };
        finished += 1;
        for (addr, byte) in placed {
            let mut found = vec![0; OBJECT];
            zones.read(Purpose::Pages, addr, &mut found).unwrap();
            assert!(found.iter().all(|b| *b == byte), "write {after} was refused: {addr}");
        }
    }
    assert!((1..10).contains(&finished), "{finished}: both happen");
}

/// Another writer may open a zone for the stream at any moment, also when this one has just taken a
/// zone out of its supply.
#[cfg(debug_assertions)]
#[test]
fn a_supplied_zone_is_used_or_stays_in_the_supply_whatever_the_schedule() {
    let mut in_the_other = 0;
    for seed in 0..60 {
        let body = || {
            let zones = memory_store(SMALL);
            let supplied = zones.reserve_zone(Priority::User).unwrap();
            let [(zone, 0)] = supplied.uses().iter().collect::<Vec<_>>()[..] else {
                panic!("one zone")
            };
            let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
            writer.supply(vec![supplied]);
            let others = zones.clone();
            let other = env::thread::spawn(move || {
                let mut other = others.extent_writer(Purpose::Pages, Priority::User);
                place(&mut other, 1, b"other");
                other.finish().unwrap()
            });
            let at = place(&mut writer, 1, b"own");
            let _other = other.join().unwrap();
            (ZoneId::of(at) == zone, writer.unused().len())
        };
        let (used, left) = env::schedule::run(seed, body).unwrap().value;
        assert_eq!(left, usize::from(!used), "seed {seed}: the zone is lost to the writer");
        in_the_other += left;
    }
    assert!((1..60).contains(&in_the_other), "both happen: {in_the_other} of 60");
}
