//! Fills: what is placed lies where it was said, in one zone, apart from everything else, until its
//! hold is dropped.

mod world;

use world::{SMALL, memory_store, objects, place};
use zones::{Error, Purpose, Reserve, SECTOR, ZONE_SIZE, ZoneId, ZoneUse};

#[test]
fn what_is_placed_can_be_read_and_is_counted_to_the_byte() {
    let zones = memory_store(SMALL);
    let mut fill = zones.fill(Purpose::Tuples, Reserve::Keep);
    let mut expected = ZoneUse::new();
    let placed: Vec<_> = objects(1, 3000, 10_000)
        .map(|object| {
            let addr = place(&mut fill, 1, &object);
            expected.add_extent(addr, object.len() as u64);
            (addr, object)
        })
        .collect();
    assert_eq!(fill.uses(), expected);
    let hold = fill.finish().unwrap();
    assert_eq!(hold.uses(), &expected);
    assert!(hold.uses().len() > 1, "the test should cross zones");
    for (addr, object) in placed {
        assert_eq!(ZoneId::of(addr), ZoneId::of(addr + object.len() as u64 - 1));
        let mut found = vec![0; object.len()];
        zones.read(Purpose::Tuples, addr, &mut found).unwrap();
        assert_eq!(found, object);
    }
}

#[test]
fn a_lone_fill_is_contiguous_and_another_goes_on_at_the_next_sector() {
    let zones = memory_store(SMALL);
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    let first = place(&mut fill, 4096, &[1; 100]);
    for i in 0..300 {
        assert_eq!(place(&mut fill, 1, &[2; 5000]), first + 100 + i * 5000);
    }
    let hold = fill.finish().unwrap();
    let mut next = zones.fill(Purpose::Pages, Reserve::Keep);
    let end = first + 100 + 300 * 5000;
    assert_eq!(place(&mut next, 1, &[3]), end.next_multiple_of(SECTOR));
    drop(hold);
}

#[test]
fn fills_of_one_stream_never_share_a_sector() {
    let zones = memory_store(SMALL);
    let mut fills: Vec<_> = (0..3).map(|_| zones.fill(Purpose::Tuples, Reserve::Keep)).collect();
    let mut sectors = std::collections::BTreeMap::new();
    for (i, object) in objects(2, 2000, 9000).enumerate() {
        let owner = i % 3;
        let addr = place(&mut fills[owner], 8, &object);
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
        let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
        let addr = place(&mut fill, 1, &[7; 100 << 10]);
        (addr, fill.finish().unwrap())
    };
    let (first, _a) = small();
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    let large = vec![5; (ZONE_SIZE - (64 << 10)) as usize];
    let addr = place(&mut fill, 4096, &large);
    let whole = place(&mut fill, 4096, &vec![6; ZONE_SIZE as usize]);
    let _large = fill.finish().unwrap();
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
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    for (align, len) in [(3, 1), (0, 1), (8192, 1), (1, ZONE_SIZE as usize + 1)] {
        assert!(matches!(fill.place(align, len, |_, _| unreachable!()), Err(Error::Invalid(_))));
    }
    assert_eq!(place(&mut fill, 1, &[]) % ZONE_SIZE, 0);
}

#[test]
fn an_abandoned_fill_leaves_nothing_behind() {
    let zones = memory_store(SMALL);
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    let first = place(&mut fill, 1, &[1; 1000]);
    (0..20).for_each(|_| _ = place(&mut fill, 1, &[1; 1 << 20]));
    assert_eq!(zones.space().zones_pinned, 3);
    drop(fill);
    // The stream keeps its open zone, and begins it anew.
    assert_eq!(
        (zones.space().zones_pinned, zones.space().zones_free),
        (0, zones.space().zones_total - 2)
    );
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    let again = place(&mut fill, 1, &[1; 1000]);
    assert_eq!(again % ZONE_SIZE, first % ZONE_SIZE);
}

#[test]
fn a_hold_taken_midway_outlives_the_fill() {
    let zones = memory_store(SMALL);
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    let addr = place(&mut fill, 1, b"kept");
    let hold = fill.hold().unwrap();
    place(&mut fill, 1, b"lost");
    drop(fill);
    assert_eq!(hold.uses().total_bytes(), 4);
    let mut next = zones.fill(Purpose::Pages, Reserve::Keep);
    assert_eq!(
        place(&mut next, 1, &[9; 100]),
        addr + SECTOR,
        "what was abandoned is used again, what is held is not"
    );
    next.finish().unwrap();
    let mut found = [0; 4];
    zones.read(Purpose::Pages, addr, &mut found).unwrap();
    assert_eq!(&found, b"kept");
}

#[test]
fn a_short_fill_beside_a_long_one_wastes_little() {
    let zones = memory_store(SMALL);
    let mut long = zones.fill(Purpose::Pages, Reserve::Keep);
    let mut holds = Vec::new();
    for _ in 0..100 {
        place(&mut long, 4096, &[1; 4096]);
        let mut short = zones.fill(Purpose::Pages, Reserve::Keep);
        place(&mut short, 4096, &[2; 4096]);
        holds.push(short.finish().unwrap());
    }
    holds.push(long.finish().unwrap());
    assert_eq!(zones.space().zones_pinned, 1, "200 pages fit one zone");
}

#[test]
fn a_failed_write_is_final_for_its_fill_but_a_full_store_is_not() {
    use std::sync::Arc;
    use zones::{Fault, FaultDevice, FaultKind, FormatOptions, MemoryDevice, Operation, Zones};
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let zones = Zones::format(
        device.clone(),
        FormatOptions { capacity: Some(10 * ZONE_SIZE), reserve_zones: 8 },
    )
    .unwrap();
    device.inject(Fault::once(Operation::Write, FaultKind::Error).of(Purpose::Pages));
    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    place(&mut fill, 1, b"x");
    assert!(matches!(fill.flush(), Err(Error::Io { .. })));
    assert!(matches!(fill.place(1, 1, |_, _| ()), Err(Error::Io { .. })));
    assert!(matches!(fill.finish(), Err(Error::Io { .. })));

    let mut fill = zones.fill(Purpose::Pages, Reserve::Keep);
    place(&mut fill, 1, &vec![1; ZONE_SIZE as usize - 4096]);
    assert!(matches!(fill.place(1, 5000, |_, _| ()), Err(Error::NoSpace)));
    place(&mut fill, 1, &[1; 4096]);
    assert_eq!(fill.finish().unwrap().uses().total_bytes(), ZONE_SIZE);
}
