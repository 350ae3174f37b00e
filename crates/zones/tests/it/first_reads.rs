//! Tests of first reads, which replace reads of object storage until they are found not to match
//! it.

use std::sync::Arc;

use objects::{MemoryObjects, Objects};
use zones::remote::{FirstReads, Home, Known, Marks, Publication, RemoteOptions, ZoneObject};
use zones::{FormatOptions, MemoryDevice, Priority, Purpose, ZONE_SIZE, ZoneId, Zones};

/// A local file of a zone full of 1s in object storage, with these bytes at the start of `at` for
/// first reads.
fn local_file(at: ZoneId, bytes: &[u8; 3]) -> (Arc<Zones>, ZoneId) {
    let zones = Zones::format(Arc::new(MemoryDevice::new()), FormatOptions::default()).unwrap();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    writer.place(512, ZONE_SIZE as usize, |_, bytes| bytes.fill(1)).unwrap();
    let pin = writer.finish().unwrap();
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    let (known, marks) = (Known::default(), Marks::default());
    let how = Publication {
        objects: &objects,
        known: &known,
        marks: &marks,
        shares: false,
        first: ZoneObject { origin: [1; 16], epoch: 1, number: 0 },
        memory: 1 << 20,
    };
    let table = zones.publish(pin.uses(), &how, &mut |_, _| Ok(())).unwrap().known.table;
    let there = table.zones().next().unwrap();
    let mut encoded = vec![1];
    zones::varint::put_u64(&mut encoded, ZoneId(at.0.max(there.0)).start());
    zones::varint::put_bytes(&mut encoded, bytes);
    let first = FirstReads::decode(&mut &encoded[..]).unwrap();
    let home = Home { note: Vec::new(), table, first };
    let device = Arc::new(MemoryDevice::new());
    let (format, options) = (FormatOptions::default(), RemoteOptions::default());
    let local = Zones::format_remote(device, &home, [2; 16], format, objects, options).unwrap();
    (local, there)
}

fn read(zones: &Zones, at: u64) -> [u8; 3] {
    let mut buf = [0; 3];
    zones.read(Purpose::Tuples, at, &mut buf).unwrap();
    buf
}

fn gets(zones: &Zones) -> u64 {
    zones.remote_stats().unwrap().gets.iter().sum()
}

#[test]
fn they_are_read_without_a_request() {
    let (zones, there) = local_file(ZoneId(0), &[1, 1, 1]);
    assert_eq!(read(&zones, there.start()), [1; 3]);
    zones.will_read(Purpose::Tuples, there.start(), 3);
    assert_eq!((gets(&zones), zones.remote_stats().unwrap().waits), (0, 0));
    // A read that extends one byte beyond them is not served by them.
    assert_eq!(read(&zones, there.start() + 1), [1; 3]);
    assert_eq!((gets(&zones), zones.remote_stats().unwrap().waits), (1, 1));
}

#[test]
fn those_that_are_something_else_are_not_believed_once_that_was_found() {
    let (zones, there) = local_file(ZoneId(0), b"bad");
    assert_eq!(&read(&zones, there.start()), b"bad");
    let mut buf = *b"bad";
    assert!(zones.read_again(Purpose::Tuples, there.start(), &mut buf, 0).unwrap());
    assert_eq!(buf, [1; 3]);
    assert_eq!(read(&zones, there.start()), [1; 3]);
}

#[test]
fn those_of_other_zones_count_for_nothing() {
    // A zone that is written here.
    let (zones, there) = local_file(ZoneId(9), b"bad");
    zones.start();
    let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
    let mut places = Vec::new();
    for _ in 0..12 {
        let fill = |_, bytes: &mut [u8]| bytes.fill(7);
        places.push(writer.place(512, ZONE_SIZE as usize, fill).unwrap());
    }
    let pin = writer.finish().unwrap();
    assert!(pin.uses().contains(ZoneId(9)) && ZoneId(9) != there);
    assert_eq!(read(&zones, ZoneId(9).start()), [7; 3]);
}

#[test]
fn after_a_close_nothing_is_fetched_ahead_and_reads_go_on() {
    let (zones, there) = local_file(ZoneId(0), &[1, 1, 1]);
    zones.close_remote();
    zones.will_read(Purpose::Pages, there.start() + (1 << 20), 1 << 20);
    assert_eq!(read(&zones, there.start() + (4 << 20)), [1; 3]);
    let stats = zones.remote_stats().unwrap();
    assert_eq!(stats.got_bytes.iter().sum::<u64>(), 3, "what was read, and no more");
    assert_eq!(stats.cached_bytes, 0);
    zones.close_remote();
}
