//! Tests that a store whose large values are overwritten at full speed grows by a bounded share of
//! its live data, however few keys there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::Machine;
use kvdb::{CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{Device, MemoryDevice};

const MIB: u64 = 1 << 20;

#[test]
fn overwriting_values_of_a_mebibyte_takes_a_few_times_what_is_alive() {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { merge_threads: 1, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut value = vec![1; MIB as usize];
    let alive = 100;
    let done = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Acquire) {
                most = most.max(db.zone_map().iter().filter(|z| z.live > 0).count() as u64 * 8);
                std::thread::yield_now();
            }
            most
        });
        for n in 0..3000u64 {
            value[..8].copy_from_slice(&n.to_le_bytes());
            db.put(dict, &(n % alive).to_be_bytes(), &value, Durability::Buffered).unwrap();
        }
        done.store(true, Ordering::Release);
        watcher.join().unwrap()
    });
    // The bound adds up the live data, the overwrites that wait for a flush, the data that waits
    // for a merge, and the journal.
    assert!(most <= 5 * alive + 100, "{most} MiB of zones in use for {alive} MiB");
    let length = device.len().unwrap() / MIB;
    println!("{most} MiB of zones in use at most, a device of {length} MiB, for {alive} MiB");
    assert!(length <= 5 * alive + 400, "the device has grown to {length} MiB");
    for n in 0..alive {
        assert_eq!(db.get(dict, &n.to_be_bytes()).unwrap().unwrap().len(), MIB as usize);
    }
    db.close().unwrap();
}
