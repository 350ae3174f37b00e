//! The stores whose bits are flipped. They are small, but have everything that a store can have.

use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use kvdb::{Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, Ino, ROOT, XattrFlags};
use zones::{Device, MemoryDevice, Purpose};

use super::reading::{Expected, fs_options};

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1 };

/// The way in which the store was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Commits in the journal, some of them with large values bound in place. They are synced and
    /// followed by a mark.
    PowerCut,
    /// The state after a power cut, with more than one segment of journal, and no run.
    LongJournal,
    /// Closed, everything in runs.
    Closed,
    /// Closed, with commits left in the journal.
    ClosedUnflushed,
}

pub struct Image {
    pub end: End,
    pub device: MemoryDevice,
    /// The device at earlier times.
    pub older: Vec<MemoryDevice>,
    pub expected: Expected,
}

impl Image {
    pub fn new(end: End) -> Image {
        let device = Arc::new(MemoryDevice::new());
        let env = Arc::new(Simulated::new(end as u64));
        let open = options(end);
        let db = Kvdb::create(
            device.clone(),
            env.clone(),
            CreateOptions { open, reserve_zones: 4, ..Default::default() },
        )
        .unwrap();
        let fs = Fs::open(db.clone(), env.clone(), fs_options()).unwrap();
        let mut maker = Maker {
            db,
            fs,
            env,
            random: Random::new(9),
            device: device.clone(),
            older: Vec::new(),
        };
        let expected =
            if end == End::LongJournal { maker.long_journal() } else { maker.everything(end) };
        let Maker { db, fs, env, mut older, .. } = maker;
        older.push((*device).clone());
        fs.shutdown().unwrap();
        let image = if matches!(end, End::Closed | End::ClosedUnflushed) {
            db.close().unwrap();
            (*device).clone()
        } else {
            // The timer would do this: a sync, and then the mark, if nothing came since.
            for _ in 0..2 {
                env.advance(Duration::from_millis(50));
                while db.step().unwrap() {}
            }
            (*device).clone()
        };
        Image { end, device: image, older, expected }
    }

    pub fn options(&self) -> OpenOptions {
        options(self.end)
    }

    pub fn byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.device.read_at(Purpose::Pages, at, &mut byte).unwrap();
        byte[0]
    }
}

fn options(end: End) -> OpenOptions {
    let long = end == End::LongJournal;
    OpenOptions {
        memory: if long { 64 << 20 } else { 1 << 20 },
        flush_interval: Duration::from_millis(20),
        idle_flush: Duration::from_secs(3600),
        late_bind_at: if long { u64::MAX } else { 16 << 10 },
        threads: false,
        zero_journal: false,
        flush_on_close: end != End::ClosedUnflushed,
        // Seven flushes make several levels with this policy.
        compaction: kvdb::CompactionPolicy {
            runs_per_level: 4,
            ..kvdb::CompactionPolicy::default()
        },
        ..OpenOptions::default()
    }
}

struct Maker {
    db: Kvdb,
    fs: Fs,
    env: Arc<Simulated>,
    random: Random,
    device: Arc<MemoryDevice>,
    older: Vec<MemoryDevice>,
}

impl Maker {
    fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut noise = vec![0; len];
        self.random.fill(&mut noise);
        noise
    }

    fn file(&mut self, parent: Ino, name: &str, parts: &[(u64, usize)]) -> Ino {
        let ino =
            self.fs.mknod(parent, name.as_bytes(), FileKind::File, 0o640, 0, USER).unwrap().ino;
        for &(offset, len) in parts {
            let data = self.noise(len);
            assert_eq!(
                self.fs.write(ino, offset, &data, Default::default()).unwrap() as usize,
                len
            );
        }
        ino
    }

    fn dictionaries(&self) -> [DictionaryId; 2] {
        let small = DictionaryOptions { separate_at: 512, ..DictionaryOptions::default() };
        [("keys", DictionaryOptions::default()), ("pages", small)]
            .map(|(n, o)| self.db.create_dictionary(n, o).unwrap())
    }

    /// Several levels of runs, and a journal unless closing removes it.
    fn everything(&mut self, end: End) -> Expected {
        let dicts = self.dictionaries();
        for phase in 0..7 {
            self.phase(phase, dicts);
            self.fs.sync_all().unwrap();
            self.older.push((*self.device).clone());
            self.db.flush().unwrap();
            self.older.push((*self.device).clone());
            // Up to the fourth, everything is merged into runs further down.
            if phase < 4 {
                while self.db.step().unwrap() {}
            }
        }
        let levels = |db: &Kvdb| {
            db.stats()
                .dictionaries
                .iter()
                .map(|d| d.levels.iter().filter(|l| !l.is_empty()).count())
                .max()
        };
        assert!(levels(&self.db) >= Some(2), "runs lie on several levels");
        let runs = self.db.stats().dictionaries;
        assert!(
            runs.iter().flat_map(|d| d.levels.iter().flatten()).any(|r| r.range_tombstones),
            "a range tombstone is in a run"
        );
        if end != End::Closed {
            self.journal(dicts);
        }
        self.fs.sync_all().unwrap();
        self.db.sync().unwrap();
        Expected::read(&self.db, &self.fs)
    }

    fn phase(&mut self, phase: u64, dicts: [DictionaryId; 2]) {
        let fs = self.fs.clone();
        let dir = fs.mkdir(ROOT, format!("dir{phase}").as_bytes(), 0o755, USER).unwrap().ino;
        for i in 0..40 {
            let len = self.random.below(300) as usize;
            self.file(dir, &format!("small{i}"), &[(0, len)]);
        }
        let large = self.file(dir, "large", &[(0, 150_000)]);
        let sparse = self.file(dir, "sparse", &[(40_000, 5000), (900_000, 100)]);
        fs.setxattr(large, b"user.small", b"inline", XattrFlags::Any).unwrap();
        let value = self.noise(3000);
        fs.setxattr(sparse, b"user.large", &value, XattrFlags::Any).unwrap();
        fs.link(large, ROOT, format!("link{phase}").as_bytes()).unwrap();
        fs.symlink(dir, b"symlink", b"../dir0/large", USER).unwrap();
        fs.mknod(dir, b"fifo", FileKind::Fifo, 0o600, 0, USER).unwrap();
        if phase > 0 {
            // Some names, pages and keys of the previous phase are overwritten, and others deleted.
            let before = fs.lookup(ROOT, format!("dir{}", phase - 1).as_bytes()).unwrap().ino;
            fs.unlink(before, b"small3").unwrap();
            fs.unlink(before, b"sparse").unwrap();
            let again = fs.lookup(before, b"large").unwrap().ino;
            let data = self.noise(9000);
            fs.write(again, 20_000, &data, Default::default()).unwrap();
        }
        let mut batch = Batch::new();
        for i in 0..150 {
            let len = self.random.below(200) as usize;
            batch.put(
                dicts[0],
                format!("key{:05}", (i * 37 + phase * 1000) % 5000),
                self.noise(len),
            );
        }
        for i in 0..6 {
            let len = 600 + self.random.below(9000) as usize;
            batch.put(dicts[1], format!("large{:03}", i * 3 + phase), self.noise(len));
        }
        batch.delete(dicts[0], format!("key{:05}", phase * 1000));
        let from = 700 * phase;
        batch.delete_range(dicts[0], format!("key{from:05}"), format!("key{:05}", from + 300));
        self.db.commit(batch, Durability::Buffered).unwrap();
        self.env.advance(Duration::from_millis(5));
    }

    /// Commits that stay in the journal: small ones, one with large values bound in place, files.
    fn journal(&mut self, dicts: [DictionaryId; 2]) {
        for i in 0..12u64 {
            let mut batch = Batch::new();
            batch.put(dicts[0], format!("journal{i}"), self.noise(100));
            batch.delete(dicts[0], format!("key{:05}", i * 37));
            self.db
                .commit(batch, if i % 3 == 0 { Durability::Synced } else { Durability::Buffered })
                .unwrap();
        }
        self.older.push((*self.device).clone());
        let mut batch = Batch::new();
        for i in 0..5 {
            batch.put(dicts[1], format!("bound{i}"), self.noise(5000));
        }
        self.db.commit(batch, Durability::Synced).unwrap();
        assert!(self.db.stats().bound_bytes > 0);
        let dir = self.fs.mkdir(ROOT, b"late", 0o755, USER).unwrap().ino;
        self.file(dir, "paged", &[(0, 40_000)]);
        self.file(dir, "inline", &[(0, 77)]);
        self.fs.sync_all().unwrap();
        let mut batch = Batch::new();
        batch.delete_range(dicts[1], "large010", "large013");
        self.db.commit(batch, Durability::Synced).unwrap();
    }

    fn long_journal(&mut self) -> Expected {
        let dicts = self.dictionaries();
        for i in 0..160 {
            let mut batch = Batch::new();
            batch.put(dicts[0], format!("key{i}"), self.noise(60_000));
            self.db
                .commit(batch, if i % 20 == 0 { Durability::Synced } else { Durability::Buffered })
                .unwrap();
            if i % 40 == 39 {
                self.older.push((*self.device).clone());
            }
        }
        self.file(ROOT, "file", &[(0, 5000)]);
        self.fs.sync_all().unwrap();
        assert_eq!(self.db.stats().flushes, 0);
        assert!(self.db.stats().journal_bytes > zones::ZONE_SIZE, "two segments");
        Expected::read(&self.db, &self.fs)
    }
}
