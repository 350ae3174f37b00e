//! Tests of repeated publication of zones. Data that was not written since the last publication is
//! not read. If publication is cut off, the note of a zone already has everything that the rest of
//! it will refer to. Several objects are written at the same time.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use objects::{Condition, CountObjects, Key, MemoryObjects, Object, Objects, Page, Part, Tag};
use zones::remote::{Known, Marks, Publication, Published, ZoneObject};
use zones::{
    FormatOptions, MemoryDevice, Priority, Purpose, ZONE_SIZE, ZoneId, ZonePin, ZoneUse, Zones,
};

struct World {
    zones: Arc<Zones>,
    objects: Arc<dyn Objects>,
    number: u32,
}

impl World {
    fn new() -> World {
        let device = Arc::new(MemoryDevice::new());
        let zones = Zones::format(device, FormatOptions::default()).unwrap();
        World { zones, objects: Arc::new(MemoryObjects::new()), number: 0 }
    }

    /// Zones full of this byte.
    fn filled(&self, count: u32, byte: u8) -> ZonePin {
        let mut writer = self.zones.extent_writer(Purpose::Pages, Priority::User);
        for _ in 0..count {
            let fill = |_, bytes: &mut [u8]| bytes.fill(byte);
            writer.place(512, ZONE_SIZE as usize, fill).unwrap();
        }
        writer.finish().unwrap()
    }

    fn publish(
        &mut self,
        pin: &ZonePin,
        before: (&Known, &Marks),
        seen: &mut Vec<Known>,
    ) -> Published {
        let first = ZoneObject { origin: [1; 16], epoch: 1, number: self.number };
        let (known, marks) = before;
        let (objects, memory) = (&self.objects, 1 << 20);
        let how = Publication { objects, known, marks, shares: true, first, memory };
        let watch = &mut |_, so_far: &dyn Fn() -> zones::Result<Known>| {
            seen.push(so_far()?);
            Ok(())
        };
        let published = self.zones.publish(pin.uses(), &how, watch).unwrap();
        self.number += published.progress.objects as u32;
        published
    }

    fn read_bytes(&self) -> u64 {
        self.zones.io().total().read_bytes
    }
}

#[test]
fn a_note_has_what_was_known_of_the_zones_that_are_still_to_come() {
    let mut world = World::new();
    let pin = world.filled(5, 1);
    let nothing = (Known::default(), Marks::default());
    let first = world.publish(&pin, (&nothing.0, &nothing.1), &mut vec![]);
    let zones: Vec<ZoneId> = first.known.table.zones().collect();
    assert_eq!(zones.len(), 5);
    // The publication is made with marks and without.
    for marks in [&first.marks, &nothing.1] {
        let mut seen = vec![];
        world.publish(&pin, (&first.known, marks), &mut seen);
        assert_eq!(seen.len(), 6);
        for known in seen {
            assert_eq!(known.table, first.known.table);
            assert_eq!(known.fingerprints, first.known.fingerprints);
        }
    }
}

#[test]
fn a_zone_is_read_again_if_it_was_written_and_not_else() {
    let mut world = World::new();
    let pin = world.filled(5, 1);
    let nothing = (Known::default(), Marks::default());
    let first = world.publish(&pin, (&nothing.0, &nothing.1), &mut vec![]);
    let before = world.read_bytes();
    let same = world.publish(&pin, (&first.known, &first.marks), &mut vec![]);
    assert_eq!((world.read_bytes(), same.progress.objects), (before, 0));
    assert_eq!(same.known.table, first.known.table);

    // One byte of one zone: the zone is read, and becomes another object.
    let (zone, _) = pin.uses().iter().nth(2).unwrap();
    world.zones.write(Purpose::Pages, zone.end() - 1, &[2]).unwrap();
    let changed = world.publish(&pin, (&same.known, &same.marks), &mut vec![]);
    assert_eq!(world.read_bytes() - before, ZONE_SIZE);
    assert_eq!(changed.progress.objects, 1);
    for (other, _) in pin.uses().iter() {
        let lies_in = |known: &Known| -> Vec<ZoneObject> {
            let pieces = known.table.pieces_of(other).iter();
            pieces.map(|piece| known.table.object(piece)).collect()
        };
        let is_same = lies_in(&changed.known) == lies_in(&same.known);
        assert_eq!(is_same, other != zone, "{other}");
    }
    // A marked zone that is not known is read: marks alone say nothing of its content.
    let again = world.publish(&pin, (&nothing.0, &changed.marks), &mut vec![]);
    assert_eq!(again.progress.objects, 5);
}

/// A place in which a put waits until the other puts of its group have arrived. It gives up after
/// ten seconds, and the count of the puts in flight shows that.
#[derive(Debug)]
struct Meeting {
    memory: Arc<MemoryObjects>,
    group: u64,
    arrived: Mutex<u64>,
    changed: Condvar,
}

impl Objects for Meeting {
    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.memory.get(key, part)
    }
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        let mut arrived = self.arrived.lock().unwrap();
        *arrived += 1;
        let whole = arrived.next_multiple_of(self.group);
        self.changed.notify_all();
        let (longest, waits) = (Duration::from_secs(10), |arrived: &mut u64| *arrived < whole);
        drop(self.changed.wait_timeout_while(arrived, longest, waits).unwrap());
        self.memory.put(key, bytes, condition)
    }
    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.memory.delete(key)
    }
    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.memory.list(prefix, after)
    }
    fn place(&self) -> String {
        self.memory.place()
    }
}

#[test]
fn as_many_objects_are_written_at_once_as_the_memory_has_room_for() {
    let world = World::new();
    let mut writer = world.zones.extent_writer(Purpose::Pages, Priority::User);
    // Three zones get an object each, and four share one.
    for len in [ZONE_SIZE as usize; 3].into_iter().chain([900 << 10; 4]) {
        let fill = |_, bytes: &mut [u8]| bytes[..len].fill(1);
        writer.place(512, ZONE_SIZE as usize, fill).unwrap();
    }
    let pin = writer.finish().unwrap();
    for at_once in [1, 2, 4] {
        let memory = Arc::new(MemoryObjects::new());
        let (arrived, changed) = (Mutex::new(0), Condvar::new());
        let meeting = Meeting { memory: memory.clone(), group: at_once, arrived, changed };
        let counts = Arc::new(CountObjects::new(Arc::new(meeting)));
        let objects: Arc<dyn Objects> = counts.clone();
        let how = Publication {
            objects: &objects,
            known: &Known::default(),
            marks: &Marks::default(),
            shares: true,
            first: ZoneObject { origin: [1; 16], epoch: 1, number: 0 },
            memory: (at_once * ZONE_SIZE) as usize,
        };
        let published = world.zones.publish(pin.uses(), &how, &mut |_, _| Ok(())).unwrap();
        let counts = counts.counts();
        assert_eq!((counts.most_in_flight, counts.put.requests), (at_once, 4));
        // All objects exist when the call returns, and only then does a head name them.
        assert_eq!((memory.count(), published.progress.objects), (4, 4));
        assert_eq!(published.known.table.zones().count(), 7);
    }
}

#[test]
fn a_store_that_no_local_file_could_describe_is_refused_before_it_is_read() {
    let world = World::new();
    let mut uses = ZoneUse::new();
    (1..420_000).for_each(|zone| uses.add(ZoneId(zone), ZONE_SIZE));
    let how = Publication {
        objects: &world.objects,
        known: &Known::default(),
        marks: &Marks::default(),
        shares: true,
        first: ZoneObject { origin: [1; 16], epoch: 1, number: 0 },
        memory: 1 << 20,
    };
    let refused = world.zones.publish(&uses, &how, &mut |_, _| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("too large"), "{refused}");
    assert_eq!(world.objects.list("", "").unwrap().entries, []);
}

#[test]
fn zones_in_many_pieces_are_written_whole_before_the_table_has_no_room() {
    let mut world = World::new();
    let pin = world.filled(1, 1);
    let nothing = (Known::default(), Marks::default());
    let first = world.publish(&pin, (&nothing.0, &nothing.1), &mut vec![]);
    let table = &first.known.table;
    let zone = table.zones().next().unwrap();
    let object = table.object(&table.pieces_of(zone)[0]);
    // The same bytes in the same object, as eight pieces.
    let mut known = Known::default();
    for n in 0..8 {
        known.table.add(zone, n << 20, 1 << 20, object, n << 20).unwrap();
        known.fingerprints.push([0; 16]);
    }
    let kept = world.publish(&pin, (&known, &first.marks), &mut vec![]);
    assert_eq!((kept.progress.objects, kept.known.table.pieces().len()), (0, 8));

    // Pieces of other zones take half of the space.
    for n in 0..180_000 {
        let other = ZoneId(zone.0 + 1 + n / 15);
        known.table.add(other, n % 15 * 4096, 4096, object, 0).unwrap();
        known.fingerprints.push([0; 16]);
    }
    let joined = world.publish(&pin, (&known, &first.marks), &mut vec![]);
    assert_eq!((joined.progress.objects, joined.known.table.pieces().len()), (1, 1));
}
