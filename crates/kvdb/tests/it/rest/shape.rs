//! Shapes of stores, drawn from a seed: the length and storage of values, the overwrites, deletions
//! and updates that follow, and what keeps old states.

use std::time::Duration;

use env::Random;
use kvdb::{
    Batch, Compression, DictionaryId, DictionaryOptions, Durability, Error, Kvdb, OpenOptions,
    Update,
};

const MIB: u64 = 1 << 20;

/// Lengths of values around the limits at which the storage changes: units of 512 bytes, the
/// shortest values outside of blocks, pages, and parts of zones.
const LENGTHS: [u64; 24] = [
    10,
    100,
    400,
    513,
    550,
    700,
    1025,
    1500,
    2047,
    2049,
    2100,
    2561,
    3000,
    3600,
    4095,
    4096,
    4097,
    4608,
    5000,
    9000,
    20_000,
    70_000,
    300_000,
    3 * MIB,
];

#[derive(Clone, Copy, Debug)]
pub enum Lengths {
    /// All values have the same length.
    One(u64),
    /// The two in turn.
    Two(u64, u64),
    /// Between the two.
    Between(u64, u64),
}

/// A shape of a store.
#[derive(Clone, Debug)]
pub struct Shape {
    pub seed: u64,
    pub lengths: Lengths,
    /// Bytes of values, about.
    pub bytes: u64,
    pub dictionaries: u64,
    pub options: DictionaryOptions,
    pub memory: usize,
    /// Values repeat themselves: they can be compressed.
    pub repetitive: bool,
    /// Percent of the keys that are overwritten, deleted, and updated.
    pub overwritten: u64,
    pub deleted: u64,
    pub updated: u64,
    /// A tenth of the keys goes in one range.
    pub range: bool,
    /// In the middle of it a snapshot is taken; of that a clone is made, which is written to; and
    /// the snapshot is dropped.
    pub snapshot: bool,
    pub clone: bool,
    pub dropped: bool,
    /// The device is so small that it gets full.
    pub full: bool,
    /// Values are laid in another order than that of keys while the store is quiet.
    pub laid: bool,
}

impl Shape {
    pub fn of_seed(seed: u64) -> Shape {
        let mut random = Random::new(seed ^ 0x5be0_cd19);
        let length = |random: &mut Random| LENGTHS[random.below(LENGTHS.len() as u64) as usize];
        let lengths = match random.below(5) {
            0 => Lengths::Two(length(&mut random), length(&mut random)),
            1 => {
                let (a, b) = (length(&mut random), length(&mut random));
                Lengths::Between(a.min(b), a.max(b))
            }
            _ => Lengths::One(length(&mut random)),
        };
        let compression = |random: &mut Random| match random.below(4) {
            0 => Compression::Lz4,
            1 => Compression::Zstd,
            _ => Compression::None,
        };
        let usual = DictionaryOptions::default();
        let options = DictionaryOptions {
            separate_at: [usual.separate_at, usual.separate_at, 512, 2048, u32::MAX]
                [random.below(5) as usize],
            stitch_at: [usual.stitch_at, usual.stitch_at, usual.stitch_at, 0, 1 << 20, u64::MAX]
                [random.below(6) as usize],
            compression: compression(&mut random),
            compress_values: compression(&mut random),
            ..usual
        };
        let dictionaries = [1, 1, 1, 2, 5, 300][random.below(6) as usize];
        let percent = |random: &mut Random| [0, 0, 3, 20, 60][random.below(5) as usize];
        let snapshot = random.one_in(4);
        let mut shape = Shape {
            seed,
            lengths,
            bytes: [2, 30, 120, 250][random.below(4) as usize] * MIB,
            dictionaries,
            options,
            memory: [4, 16, 64][random.below(3) as usize] << 20,
            repetitive: random.one_in(2),
            overwritten: percent(&mut random),
            deleted: percent(&mut random),
            updated: percent(&mut random) / 10,
            range: random.one_in(4),
            snapshot,
            clone: snapshot && random.one_in(2),
            dropped: snapshot && random.one_in(2),
            full: random.one_in(6),
            laid: false,
        };
        // A key takes as long as a kilobyte to write.
        let mean = match shape.lengths {
            Lengths::One(a) => a,
            Lengths::Two(a, b) | Lengths::Between(a, b) => (a + b) / 2,
        };
        shape.bytes = shape.bytes.min(mean * 120_000);
        shape
    }

    pub fn open(&self) -> OpenOptions {
        OpenOptions {
            memory: self.memory,
            flush_interval: Duration::from_millis(5),
            idle_flush: Duration::from_millis(40),
            // The rate is not limited: bytes are counted, not time.
            defrag_rate: 1 << 40,
            merge_threads: 1,
            lay_when_quiet: self.laid,
            ..OpenOptions::default()
        }
    }

    /// The zones of the device, if it is to get full.
    pub fn capacity(&self) -> Option<u64> {
        self.full.then(|| (self.bytes / 10 * 9).max(160 * MIB))
    }

    fn value(&self, random: &mut Random, number: u64) -> Vec<u8> {
        let len = match self.lengths {
            Lengths::One(len) => len,
            Lengths::Two(a, b) => [a, b][(number % 2) as usize],
            Lengths::Between(a, b) => a + random.below(b - a + 1),
        };
        let mut value = vec![7; len as usize];
        let noise = if self.repetitive { value.len() / 4 } else { value.len() };
        random.fill(&mut value[..noise]);
        value
    }

    fn keys(&self) -> u64 {
        let mean = match self.lengths {
            Lengths::One(a) => a,
            Lengths::Two(a, b) | Lengths::Between(a, b) => (a + b) / 2,
        };
        (self.bytes / mean.max(1)).max(4)
    }

    /// Brings a store into this shape. Returns the bytes of the values that were put.
    pub fn fill(&self, db: &Kvdb) -> u64 {
        let mut random = Random::new(self.seed);
        let mut writer = Writer { db, shape: self, batch: Batch::new(), put: 0, full: false };
        let create = |name: String| db.create_dictionary(&name, self.options.clone()).unwrap();
        let mut dicts: Vec<DictionaryId> =
            (0..self.dictionaries).map(|d| create(format!("d{d}"))).collect();
        let keys = self.keys();
        for number in 0..keys {
            writer.put(&dicts, number, &mut random);
        }
        writer.commit();
        // Only a store that does not get full has a snapshot, which would keep data that must go
        // before anything else fits.
        if self.snapshot && !self.full {
            db.snapshot("before").unwrap();
            if self.clone {
                db.clone_snapshot("before", "branch").unwrap();
                for number in 0..keys / 20 {
                    let own = db.dictionaries_in("branch");
                    let own: Vec<DictionaryId> =
                        own.iter().filter(|d| !d.options.reserved).map(|d| d.id).collect();
                    dicts = [dicts, own].concat();
                    writer.put(&dicts, number, &mut random);
                    dicts.truncate(self.dictionaries as usize);
                }
            }
        }
        for _ in 0..keys * self.overwritten / 100 {
            let number = random.below(keys);
            writer.put(&dicts, number, &mut random);
        }
        for _ in 0..keys * self.deleted / 100 {
            let number = random.below(keys);
            writer.batch.delete(dict_of(&dicts, number), key(number));
            writer.commit_some();
        }
        for _ in 0..keys * self.updated / 100 {
            let number = random.below(keys);
            let update = Update::patch(3, &[1, 2, 3]).unwrap();
            writer.batch.update(dict_of(&dicts, number), key(number), update);
            writer.commit_some();
        }
        if self.range {
            for &dict in &dicts {
                writer.batch.delete_range(dict, key(keys / 2), key(keys / 2 + keys / 10));
            }
        }
        writer.commit();
        let put = writer.put;
        if self.dropped && !self.full {
            if self.clone {
                db.drop_branch("branch").unwrap();
            }
            db.drop_snapshot("before").unwrap();
        }
        put
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:012}").into_bytes()
}

fn dict_of(dicts: &[DictionaryId], number: u64) -> DictionaryId {
    dicts[(number % dicts.len() as u64) as usize]
}

struct Writer<'a> {
    db: &'a Kvdb,
    shape: &'a Shape,
    batch: Batch,
    put: u64,
    full: bool,
}

impl Writer<'_> {
    fn put(&mut self, dicts: &[DictionaryId], number: u64, random: &mut Random) {
        // A write that found no room once is not repeated for every number.
        if self.full && !number.is_multiple_of(16) {
            return;
        }
        let value = self.shape.value(random, number);
        self.put += value.len() as u64;
        self.batch.put(dict_of(dicts, number), key(number), value);
        self.commit_some();
    }

    fn commit_some(&mut self) {
        if self.batch.bytes() > 200_000 || self.batch.len() > 200 {
            self.commit();
        }
    }

    fn commit(&mut self) {
        match self.db.commit(std::mem::take(&mut self.batch), Durability::Buffered) {
            Ok(()) => {}
            Err(Error::NoSpace) if self.shape.full => self.full = true,
            Err(e) => panic!("{:?}: {e}", self.shape),
        }
    }
}
