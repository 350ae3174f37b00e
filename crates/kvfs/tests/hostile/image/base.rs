//! The stores that the tests corrupt. They are small and have everything that a store can have,
//! each as a power cut or a close left it.

use std::sync::Arc;
use std::time::Duration;

use env::Simulated;
use kvdb::{
    Batch, Compression, CreateOptions, DictionaryOptions, Durability, Isolation, Kvdb, OpenOptions,
    TransactionOptions,
};
use kvfs::Fs;
use zones::MemoryDevice;

use crate::content;

pub fn options() -> OpenOptions {
    OpenOptions {
        memory: crate::MEMORY,
        late_bind_at: 4 << 10,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        idle_flush: Duration::from_secs(3600),
        compaction: kvdb::CompactionPolicy {
            runs_per_level: 3,
            ..kvdb::CompactionPolicy::default()
        },
        ..OpenOptions::default()
    }
}

/// Inodes of the files in each.
pub const KNOWN: u64 = 9;

fn store(n: u64) -> MemoryDevice {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(n)));
    let create = CreateOptions {
        open: options(),
        capacity: Some(256 << 20),
        reserve_zones: 4,
        ..CreateOptions::default()
    };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("a store");
    let fs = Fs::open(db.clone(), env.clone(), crate::options()).expect("a file system");
    content::sound(&fs);
    fs.shutdown().expect("closed");
    let plain = DictionaryOptions {
        separate_at: 2000,
        compression: Compression::None,
        ..DictionaryOptions::default()
    };
    let packed = DictionaryOptions {
        separate_at: 2000,
        compression: Compression::Lz4,
        compress_values: Compression::Lz4,
        ..DictionaryOptions::default()
    };
    let dicts = [plain, packed].map(|options| {
        let name = if options.compression == Compression::None { "plain" } else { "packed" };
        db.create_dictionary(name, options).expect("a dictionary")
    });
    let fill = |round: u64| {
        let mut batch = Batch::new();
        for d in dicts {
            for i in 0..120 {
                batch.put(d, format!("key{:04}", i * 7 + round), vec![i as u8; (i % 40) as usize]);
            }
            for i in 0..12u64 {
                // Written page by page, this makes an extent run.
                batch.put(
                    d,
                    [b"page".as_slice(), &(i + 20 * round).to_be_bytes()].concat(),
                    vec![round as u8; 4096],
                );
                batch.put(d, format!("value{i}-{round}"), vec![i as u8; 2000 + 300 * i as usize]);
            }
            batch.delete(d, format!("key{:04}", 7 + round));
            batch.delete_range(
                d,
                format!("key{:04}", 300 + 10 * round),
                format!("key{:04}", 305 + 10 * round),
            );
        }
        db.commit(batch, Durability::Buffered).expect("committed");
    };
    for round in 0..4 {
        fill(round);
        db.flush().expect("flushed");
        if round == 1 {
            db.snapshot("early").expect("a snapshot");
            db.clone_snapshot("early", "branch").expect("a branch");
            while db.step().expect("merged") {}
        }
    }
    db.snapshot("late").expect("a snapshot");
    if n == 1 {
        db.rollback("early").expect("rolled back");
    }
    if n != 3 {
        // A large transaction: runs that the journal binds; then commits after it.
        let bulk = db.begin(Isolation::Snapshot).expect("begun");
        for i in 0..1600 {
            bulk.put(dicts[0], format!("large{i:05}"), [i as u8; 900]).expect("put");
        }
        bulk.commit(Durability::Synced).expect("committed");
        fill(9);
        db.put(dicts[1], b"bound", &[7; 60_000], Durability::Synced).expect("put");
        let durable = TransactionOptions {
            durable: true,
            detached: true,
            label: "kept".into(),
            ..Default::default()
        };
        let durable = db.begin_with(durable).expect("begun");
        durable.put(dicts[0], b"durable", b"1").expect("put");
        db.put(dicts[0], b"last", b"1", Durability::Synced).expect("put");
    }
    drop(fs);
    if n == 2 || n == 3 {
        db.close().expect("closed");
    } else {
        db.sync().expect("synced");
        env.advance(Duration::from_secs(1));
        while db.step().expect("a step") {}
    }
    (*device).clone()
}

/// Returns one store for each way to leave a store.
pub fn stores() -> Vec<MemoryDevice> {
    (0..4).map(store).collect()
}
