//! Requests to object storage that do not depend on one another's answers are sent together, and
//! announced tuples are fetched as far as the announcement reaches.

use std::sync::Arc;
use std::time::Duration;

use objects::{Condition, MemoryObjects, Objects, RoundObjects};
use zones::remote::{FirstReads, Home, RemoteOptions, ZoneObject, ZoneTable};
use zones::{FormatOptions, MemoryDevice, Purpose, ZONE_SIZE, ZoneId, Zones};

const ZONE: ZoneId = ZoneId(3);

/// Requests that are sent together arrive within this time, even on a machine with much to do.
const QUIET: Duration = Duration::from_millis(300);

/// A local file of a zone full of 1s, which lies in that many objects of the same length.
fn local_file(pieces: u32) -> (Arc<Zones>, Arc<RoundObjects>) {
    let memory = Arc::new(MemoryObjects::new());
    let len = ZONE_SIZE as u32 / pieces;
    let mut table = ZoneTable::new();
    for number in 0..pieces {
        let object = ZoneObject { origin: [1; 16], epoch: 1, number };
        let bytes = vec![1u8; len as usize];
        memory.put(&object.key().unwrap(), bytes.into(), Condition::Absent).unwrap();
        table.add(ZONE, number * len, len, object, 0).unwrap();
    }
    let home = Home { note: Vec::new(), table, first: FirstReads::default() };
    let rounds = Arc::new(RoundObjects::new(memory, QUIET));
    let objects: Arc<dyn Objects> = rounds.clone();
    let device = Arc::new(MemoryDevice::new());
    let (format, options) = (FormatOptions::default(), RemoteOptions::default());
    let zones = Zones::format_remote(device, &home, [2; 16], format, objects, options).unwrap();
    (zones, rounds)
}

#[test]
fn the_pieces_of_a_range_come_in_one_round() {
    // No piece begins where a part does.
    let (zones, rounds) = local_file(15);
    let end_of_first = ZONE_SIZE / 15;
    let mut buf = [0; 20];
    zones.read(Purpose::Tuples, ZONE.start() + end_of_first - 10, &mut buf).unwrap();
    assert_eq!(buf, [1; 20]);
    assert_eq!((rounds.rounds(), zones.remote_stats().unwrap().waits), (1, 1));
}

#[test]
fn announced_tuples_come_in_one_round_and_nothing_beyond_them() {
    let (zones, rounds) = local_file(1);
    for mebibyte in 0..3 {
        zones.will_read(Purpose::Tuples, ZONE.start() + (mebibyte << 20), 1 << 20);
    }
    let stats = || zones.remote_stats().unwrap();
    while stats().cached_bytes < 3 << 20 {
        std::thread::yield_now();
    }
    assert_eq!(rounds.rounds(), 1);
    // The read waits for requests in flight.
    zones.close_remote();
    assert_eq!((stats().cached_bytes, stats().got_bytes.iter().sum::<u64>()), (3 << 20, 3 << 20));
    assert!(zones.is_here(ZONE.start(), 3 << 20) && !zones.is_here(ZONE.start(), (3 << 20) + 1));
    assert!(zones.has_remote_zones());
}
