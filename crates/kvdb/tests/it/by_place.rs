//! Tests that the values of many ranges are announced to the device in the order of their places.

use std::io;
use std::sync::{Arc, Mutex};

use env::Simulated;
use kvdb::{CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{Device, MemoryDevice, Purpose};

const VALUE: u64 = 4096;
const KEYS: usize = 4000;

/// A device that records announced reads of values.
#[derive(Default)]
struct Announced {
    memory: MemoryDevice,
    spans: Mutex<Vec<(u64, u64)>>,
}

impl Device for Announced {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn will_read(&self, purpose: Purpose, offset: u64, len: u64) {
        if purpose == Purpose::Pages {
            self.spans.lock().unwrap().push((offset, offset + len));
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

fn key(i: usize) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// The range that contains only this key.
fn range(i: usize) -> (Vec<u8>, Vec<u8>) {
    let mut end = key(i);
    end.push(0);
    (key(i), end)
}

/// A store in whose device neighbours by key lie far apart.
fn scattered() -> (Arc<Announced>, Kvdb, DictionaryId) {
    let device = Arc::new(Announced::default());
    let open = OpenOptions { memory: 16 << 20, threads: false, ..OpenOptions::default() };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    for n in 0..KEYS {
        // 1237 and 4000 have no common factor, so each key occurs once, in scattered order.
        let i = n * 1237 % KEYS;
        let mut state = i as u64;
        let value: Vec<u8> = (0..VALUE)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        db.put(d, &key(i), &value, Durability::Buffered).unwrap();
        if n % 500 == 499 {
            db.flush().unwrap();
        }
    }
    (device, db, d)
}

#[test]
fn values_are_announced_in_the_order_of_their_places_and_not_twice() {
    let (device, db, d) = scattered();
    let ranges: Vec<_> = (0..KEYS).step_by(40).map(range).collect();
    let read = || db.stats().io.of(Purpose::Pages).read_ops;
    let before = read();
    let announced = db.view().announce_by_place(d, &ranges, 64 << 10).unwrap();
    assert_eq!(announced, vec![Some(VALUE); ranges.len()]);
    assert_eq!(read(), before, "no value is read");
    let spans = device.spans.lock().unwrap().clone();
    assert!(!spans.is_empty() && spans.len() <= ranges.len(), "{} spans", spans.len());
    assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "{spans:?}");
    let bytes: u64 = spans.iter().map(|(from, to)| to - from).sum();
    let wanted = ranges.len() as u64 * VALUE;
    assert!((wanted..wanted * 5).contains(&bytes), "{bytes} bytes for {wanted}");
}

#[test]
fn a_range_of_many_values_and_what_is_beyond_the_budget_is_left_out() {
    let (device, db, d) = scattered();
    let many = [(key(0), key(100)), range(100), range(KEYS)];
    let announced = db.view().announce_by_place(d, &many, 64 << 10).unwrap();
    assert_eq!(announced, [Some(0), Some(VALUE), Some(0)]);
    assert_eq!(device.spans.lock().unwrap().len(), 1);
    let all: Vec<_> = (0..KEYS).map(range).collect();
    let announced = db.view().announce_by_place(d, &all, 64 << 10).unwrap();
    assert_eq!(announced.len(), KEYS);
    let taken = announced.iter().filter(|bytes| bytes.is_some()).count();
    assert!(taken > 100 && taken < KEYS, "{taken} of {KEYS} values");
    assert_eq!(announced.last(), Some(&None));
}
