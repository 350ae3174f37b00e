//! Tests of syncs that callers share. A sync that arrives while another one is in progress waits
//! only for the next one, which covers all callers that have arrived by then.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use env::Machine;
use env::sync::Mutex;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions};
use zones::{Device, MemoryDevice, Purpose};

/// A device whose syncs, once it is `held`, report that they begin, and end on the test's command.
struct Held {
    memory: MemoryDevice,
    held: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Device for Held {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.memory.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        if let Some((begun, end)) = &*self.held.lock() {
            let _ = begun.send(());
            let _ = end.recv();
        }
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

#[test]
fn all_that_come_during_a_sync_share_the_next_one() {
    let device = Arc::new(Held { memory: MemoryDevice::new(), held: Mutex::default() });
    let open = OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options).expect("a store");
    let dict = db.open_dictionary("d").expect("a dictionary").id();
    db.put(dict, b"first", b"", Durability::Synced).expect("synced");
    let (begun, begins) = channel();
    let (end, ends) = channel();
    *device.held.lock() = Some((begun, ends));
    let before = db.stats().syncs;
    let put = |key: &'static [u8]| {
        let db = db.clone();
        std::thread::spawn(move || db.put(dict, key, b"", Durability::Synced))
    };
    let mut putting = vec![put(b"one")];
    begins.recv().expect("the sync of the first one begins");
    let others: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
    putting.extend(others.map(put));
    // The commits are visible before they are durable.
    while !others.iter().all(|key| db.get(dict, key).expect("read").is_some()) {
        std::thread::yield_now();
    }
    end.send(()).expect("the sync ends");
    begins.recv().expect("the sync of the others begins");
    end.send(()).expect("the sync ends");
    for put in putting {
        put.join().expect("no panic").expect("synced");
    }
    assert_eq!(db.stats().syncs - before, 2);
}
