//! Tests of small writes inside pages that are not in memory. They read nothing and write little,
//! and the content of the file is right wherever the page and the change lie.

use std::sync::Arc;

use env::Simulated;
use kvdb::{
    CreateOptions, Durability, Isolation, Kvdb, OpenOptions, ReceiveOptions, TransactionOptions,
};
use kvfs::{
    Allocate, AllocateMode, Caller, Error, FileKind, Fs, FsOptions, Ino, ROOT, SetAttr, ViewId,
    Views, Whence, WriteHints,
};
use zones::{CrashDevice, Device, Purpose};

const PAGE: u64 = 4096;

fn root() -> Caller {
    Caller { uid: 0, gid: 0, pid: 1 }
}

fn options(memory: usize) -> OpenOptions {
    OpenOptions { memory, threads: false, zero_journal: false, ..Default::default() }
}

/// A store on a device of its own that can be opened again: then nothing of a file is in memory.
struct Cold {
    memory: usize,
    device: Arc<CrashDevice>,
    env: Arc<Simulated>,
    db: Kvdb,
    fs: Fs,
}

impl Cold {
    fn new() -> Cold {
        Cold::of(CreateOptions { open: options(64 << 20), ..Default::default() })
    }

    fn of(create: CreateOptions) -> Cold {
        let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(7)));
        let memory = create.open.memory;
        let db = Kvdb::create(device.clone(), env.clone(), create).expect("it is made");
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("it opens");
        Cold { memory, device, env, db, fs }
    }

    /// Returns a store with a file `f` of this content, none of which is in memory.
    fn with(content: &[u8]) -> (Cold, Ino) {
        let mut cold = Cold::new();
        let ino = cold.make("f");
        for (piece, at) in content.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
            cold.write(ino, at, piece);
        }
        cold.reopen();
        (cold, ino)
    }

    fn make(&self, name: &str) -> Ino {
        let made = self.fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, root());
        made.expect("made").ino
    }

    /// Closes the store and opens it again.
    fn reopen(&mut self) {
        self.fs.shutdown().expect("committed");
        self.db.close().expect("closed");
        self.open();
    }

    /// Opens the store after a power cut that only synced data has survived.
    fn power_cut(&mut self) {
        self.device.cut_power();
        self.db.halt("the power is gone");
        self.device = Arc::new(CrashDevice::over(self.device.durable()));
        self.open();
    }

    fn open(&mut self) {
        let options = options(self.memory);
        let (db, _) = Kvdb::open(self.device.clone(), self.env.clone(), options).expect("it opens");
        self.fs = Fs::open(db.clone(), self.env.clone(), FsOptions::default()).expect("it opens");
        self.db = db;
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        let written = self.fs.write(ino, offset, data, WriteHints::default()).expect("written");
        assert_eq!(written as usize, data.len());
    }

    fn read(&self, ino: Ino) -> Vec<u8> {
        let size = self.fs.getattr(ino).expect("there").size;
        let mut all = vec![0xee; size as usize];
        assert_eq!(self.fs.read_into(ino, 0, &mut all).expect("read"), all.len());
        all
    }

    fn pages_read(&self) -> u64 {
        self.db.stats().io.of(Purpose::Pages).read_bytes
    }

    fn written(&self) -> u64 {
        self.db.stats().io.total().write_bytes
    }

    /// Flushes and merges everything.
    fn settle(&self) {
        self.db.flush().expect("flushed");
        let pages = self.db.dictionary("dmap").expect("there");
        self.db.compact(pages).expect("merged");
    }

    fn check(&self) {
        assert_eq!(self.fs.verify().expect("checked").findings, []);
    }
}

/// No page is like another, and none compresses to nothing.
fn content(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.to_le_bytes()
    };
    (0..len.div_ceil(4)).flat_map(|_| next()).take(len).collect()
}

#[test]
fn a_thousand_small_overwrites_of_a_cold_file_read_no_page_and_write_little() {
    let mut model = content(64 << 20);
    let (mut cold, f) = Cold::with(&model);
    let inode = cold.fs.getattr(f).expect("there");
    let (read, written) = (cold.pages_read(), cold.written());
    // Scattered, each in a page of its own.
    for i in 0..1000u64 {
        let at = (i * 7919 % 16_384) * PAGE + (i * 37) % 4000;
        cold.write(f, at, &(i as u32).to_le_bytes());
        model[at as usize..at as usize + 4].copy_from_slice(&(i as u32).to_le_bytes());
    }
    cold.fs.fsync(f, true).expect("synced");
    let (read, written) = (cold.pages_read() - read, cold.written() - written);
    println!("1,000 overwrites of 4 bytes: {read} bytes of pages read, {written} bytes written");
    assert_eq!(read, 0, "bytes of pages that were read");
    assert!(written <= 200 << 10, "{written} bytes were written");
    assert_eq!(cold.fs.getattr(f).expect("there").blocks, inode.blocks);
    assert!(cold.read(f) == model);
    cold.power_cut();
    assert!(cold.read(f) == model, "the journal has them");
    cold.reopen();
    assert!(cold.read(f) == model, "flushed");
    cold.settle();
    assert!(cold.read(f) == model, "merged");
    cold.reopen();
    assert!(cold.read(f) == model, "merged and opened again");
    cold.check();
}

#[test]
fn small_writes_that_meet_or_are_few_are_one_part_and_more_of_them_read_the_page() {
    let mut model = content(1 << 20);
    let (mut cold, f) = Cold::with(&model);
    let read = |cold: &Cold, work: &mut dyn FnMut()| {
        let before = cold.pages_read();
        work();
        cold.pages_read() - before
    };
    // Writes into two pages at once, consecutive pieces, and the same place repeatedly.
    let pages = 30 * PAGE;
    let blind = read(&cold, &mut || {
        cold.write(f, pages - 2, b"over");
        for i in 0..100 {
            cold.write(f, pages + 100 + i * 10, &[b's'; 10]);
            cold.write(f, pages + PAGE + 7, &i.to_le_bytes());
        }
        cold.fs.fsync(f, true).expect("synced");
    });
    assert_eq!(blind, 0);
    model[pages as usize - 2..][..4].copy_from_slice(b"over");
    model[pages as usize + 100..][..1000].fill(b's');
    model[(pages + PAGE) as usize + 7..][..8].copy_from_slice(&99u64.to_le_bytes());
    let mut write = |cold: &Cold, at: u64, bytes: &[u8]| {
        cold.write(f, at, bytes);
        model[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    // Seventeen pieces, and a piece too long.
    let last = read(&cold, &mut || (0..17).for_each(|i| write(&cold, 50 * PAGE + i * 200, b"one")));
    assert_eq!(last, PAGE, "the seventeenth needs the page");
    let long = read(&cold, &mut || write(&cold, 60 * PAGE + 10, &[b'l'; 2000]));
    assert_eq!(long, PAGE);
    // A whole page over a part of it needs nothing.
    let whole = read(&cold, &mut || {
        write(&cold, 70 * PAGE + 10, b"part");
        write(&cold, 70 * PAGE, &[b'w'; PAGE as usize]);
    });
    assert_eq!(whole, 0);
    // A read covers only pages that were written in part.
    write(&cold, 80 * PAGE - 2, b"over");
    let border = cold.fs.read(f, 80 * PAGE - 10, 20).expect("read");
    assert_eq!(border, model[80 * PAGE as usize - 10..][..20]);
    assert!(cold.read(f) == model, "while it waits");
    cold.power_cut();
    assert!(cold.read(f)[..48 * PAGE as usize] == model[..48 * PAGE as usize], "what was synced");
}

#[test]
fn a_log_that_is_opened_again_grows_without_a_read() {
    let mut model = content(10_000);
    let (mut cold, f) = Cold::with(&model);
    for i in 0..200u32 {
        let line = [&i.to_le_bytes()[..], &[b'.'; 30]].concat();
        let before = cold.pages_read();
        let append = WriteHints { append: true, ..Default::default() };
        cold.fs.write(f, 0, &line, append).expect("written");
        cold.fs.fsync(f, true).expect("synced");
        assert_eq!(cold.pages_read(), before, "line {i}");
        model.extend(line);
        if i % 50 == 49 {
            assert!(cold.read(f) == model, "line {i}");
            cold.power_cut();
            assert!(cold.read(f) == model, "line {i}, after a power cut");
        }
    }
    cold.check();
}

#[test]
fn holes_ends_and_what_was_cut_off_are_zeros_beside_a_part() {
    let (mut cold, f) = Cold::with(&content(3 * PAGE as usize + 100));
    let mut model = content(3 * PAGE as usize + 100);
    let put = |model: &mut Vec<u8>, at: u64, bytes: &[u8]| {
        let end = at as usize + bytes.len();
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(bytes);
    };
    let resize = |cold: &Cold, size: u64| {
        let set = SetAttr { size: Some(size), ..Default::default() };
        cold.fs.setattr(f, &set, root()).expect("set");
    };
    for turn in 0..3u64 {
        // The write begins after the last byte, within the last page.
        let end = model.len() as u64;
        cold.write(f, end + 500, b"behind");
        put(&mut model, end + 500, b"behind");
        // Writes a part of a page. The file is then truncated within, before and after the part,
        // and extended again.
        for cut in [7, 105, 300] {
            let at = PAGE + 100;
            cold.write(f, at, b"0123456789");
            put(&mut model, at, b"0123456789");
            resize(&cold, PAGE + cut);
            model.truncate((PAGE + cut) as usize);
            if turn == 1 {
                cold.fs.fsync(f, true).expect("synced");
            }
            resize(&cold, 5 * PAGE);
            model.resize(5 * PAGE as usize, 0);
            cold.write(f, 4 * PAGE + 40, b"in a hole");
            put(&mut model, 4 * PAGE + 40, b"in a hole");
            assert!(cold.read(f) == model, "cut {cut}");
        }
        cold.write(f, 300, b"punched");
        let punch = Allocate { mode: AllocateMode::Punch, keep_size: true };
        cold.fs.fallocate(f, punch, 303, 2 * PAGE).expect("punched");
        put(&mut model, 300, b"pun");
        model[303..303 + 2 * PAGE as usize].fill(0);
        assert!(cold.read(f) == model, "punched");
        assert_eq!(cold.fs.seek(f, 0, Whence::Hole).expect("found"), PAGE);
        match turn {
            0 => cold.reopen(),
            1 => {
                cold.fs.fsync(f, true).expect("synced");
                cold.power_cut();
            }
            _ => cold.settle(),
        }
        assert!(cold.read(f) == model, "turn {turn}");
        cold.check();
        cold.settle();
    }
}

#[test]
fn a_sparse_file_knows_its_pages_without_reading_them() {
    let mut cold = Cold::new();
    let f = cold.make("f");
    let pages = 400u64;
    (0..pages).step_by(2).for_each(|i| cold.write(f, i * PAGE, &content(PAGE as usize)));
    cold.reopen();
    for round in 0..3u64 {
        let before = cold.pages_read();
        for i in 0..pages / 2 {
            // Every other one is a hole, the first time.
            cold.write(f, i * PAGE + 10 * round, b"word");
        }
        cold.fs.fsync(f, true).expect("synced");
        assert_eq!(cold.fs.getattr(f).expect("there").blocks, (pages * 3 / 4) * 8, "round {round}");
        assert_eq!(cold.pages_read(), before, "round {round}");
        if round == 1 {
            cold.db.flush().expect("flushed");
        }
    }
    cold.check();
    let all = cold.read(f);
    for i in 0..pages as usize {
        let page =
            &all[(i * PAGE as usize).min(all.len())..((i + 1) * PAGE as usize).min(all.len())];
        let mut want = if i % 2 == 0 { content(PAGE as usize) } else { vec![0; page.len()] };
        if i < pages as usize / 2 {
            (0..3).for_each(|round| want[10 * round..10 * round + 4].copy_from_slice(b"word"));
        }
        assert!(page == &want[..page.len()], "page {i}");
    }
}

#[test]
fn many_changes_of_one_page_do_not_pile_up() {
    let mut model = content(1 << 20);
    let (mut cold, f) = Cold::with(&model);
    let before = (cold.pages_read(), cold.written());
    let count = 3000u64;
    for i in 0..count {
        let at = 9 * PAGE + i * 997 % (PAGE - 4);
        cold.write(f, at, &(i as u32).to_le_bytes());
        model[at as usize..at as usize + 4].copy_from_slice(&(i as u32).to_le_bytes());
        cold.fs.fsync(f, true).expect("synced");
    }
    // A sync writes a sector. From time to time the page is read, to be put with all of them.
    let (read, written) = (cold.pages_read() - before.0, cold.written() - before.1);
    assert!(read <= count / 100 * PAGE, "{read} bytes of pages were read");
    assert!(written <= count * 5000, "{written} bytes were written");
    let memory = cold.db.stats().memtable_bytes;
    assert!(memory < count * PAGE, "{memory} bytes: more than as many pages");
    assert!(cold.read(f) == model);
    cold.power_cut();
    assert!(cold.read(f) == model);
    cold.settle();
    assert!(cold.read(f) == model);
}

#[test]
fn parts_of_pages_are_a_transactions_own_until_it_commits_and_conflict_as_pages_do() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut model = content(1 << 20);
        let (cold, f) = Cold::with(&model);
        let views = Views::new(cold.db.clone(), cold.fs.clone());
        let begin = || {
            let options = TransactionOptions { isolation, ..TransactionOptions::default() };
            let id = views.begin(options).expect("begun");
            (id, views.fs(&ViewId::Transaction(id)).expect("open"))
        };
        let page =
            |fs: &Fs, block: u64| fs.read(f, block * PAGE, PAGE as u32).expect("read").to_vec();
        let (id, t) = begin();
        let before = cold.pages_read();
        t.write(f, 5 * PAGE + 9, b"kept", WriteHints::default()).expect("written");
        let savepoint = views.savepoint(id).expect("set");
        t.write(f, 5 * PAGE + 11, b"undone", WriteHints::default()).expect("written");
        t.write(f, 6 * PAGE, b"undone", WriteHints::default()).expect("written");
        t.fsync(f, true).expect("in the write set");
        assert_eq!(cold.pages_read(), before, "{isolation:?}: nothing is read for it");
        assert_eq!(&page(&t, 5)[9..17], b"keundone");
        views.rollback_to(id, &savepoint).expect("back");
        assert_eq!(page(&t, 6), model[6 * PAGE as usize..7 * PAGE as usize]);
        model[5 * PAGE as usize + 9..][..4].copy_from_slice(b"kept");
        assert_eq!(page(&t, 5), model[5 * PAGE as usize..6 * PAGE as usize]);
        if isolation == Isolation::Snapshot {
            assert_eq!(page(&cold.fs, 5)[9..13], content(1 << 20)[5 * PAGE as usize + 9..][..4]);
            // Another transaction changes other bytes of the same page.
            let (second, other) = begin();
            other.write(f, 5 * PAGE + 900, b"lost", WriteHints::default()).expect("written");
            views.commit(id, Durability::Buffered).expect("the first");
            match views.commit(second, Durability::Buffered) {
                Err(Error::Store(kvdb::Error::Conflict { .. })) => {}
                other => panic!("{other:?}"),
            }
        } else {
            // A locked file is not written to.
            let written = cold.fs.write(f, 5 * PAGE, b"no", WriteHints::default());
            assert!(matches!(written, Err(Error::Store(kvdb::Error::Locked(_)))), "{written:?}");
            views.commit(id, Durability::Buffered).expect("committed");
        }
        assert!(cold.read(f) == model, "{isolation:?}");
        // A transaction that ends drops its parts.
        let (third, t) = begin();
        t.write(f, 8 * PAGE, b"gone", WriteHints::default()).expect("written");
        views.abort(third).expect("aborted");
        assert!(cold.read(f) == model);
        cold.settle();
        assert!(cold.read(f) == model);
        cold.check();
    }
}

#[test]
fn copies_snapshots_and_rollbacks_have_parts_of_pages() {
    let original = content(1 << 20);
    let (cold, f) = Cold::with(&original);
    let views = Views::new(cold.db.clone(), cold.fs.clone());
    let changed = |model: &[u8], at: u64, bytes: &[u8]| {
        let mut model = model.to_vec();
        model[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        model
    };
    // Copies pending data, and changes each copy, which the other must not see.
    let g = cold.make("g");
    cold.write(f, 3 * PAGE + 1, b"both");
    let both = changed(&original, 3 * PAGE + 1, b"both");
    let copied = cold.fs.copy_file_range(f, 0, g, 0, 1 << 20).expect("copied");
    assert_eq!(copied, 1 << 20);
    cold.write(f, 3 * PAGE + 3, b"f's own");
    cold.write(g, 3 * PAGE + 2, b"g's own");
    cold.write(g, 9 * PAGE + 2, b"g's own");
    let of_f = changed(&both, 3 * PAGE + 3, b"f's own");
    let of_g = changed(&changed(&both, 3 * PAGE + 2, b"g's own"), 9 * PAGE + 2, b"g's own");
    assert!(cold.read(f) == of_f && cold.read(g) == of_g);

    views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).expect("taken");
    cold.write(f, 20 * PAGE + 2, b"later");
    cold.write(g, 0, b"gone");
    views.snapshot(&ViewId::Mainline, "after", Durability::Buffered).expect("taken");
    let later = changed(&of_f, 20 * PAGE + 2, b"later");
    for settled in [false, true] {
        if settled {
            cold.settle();
        }
        let old = views.fs(&ViewId::Snapshot("before".into())).expect("open");
        assert!(old.read(f, 0, 1 << 20).expect("read") == of_f, "settled: {settled}");
        assert!(cold.read(f) == later);
        let all = views
            .difference_of_snapshots("before", Some("after"), Default::default())
            .expect("compared");
        let mut paths: Vec<_> = all.iter().map(|change| change.path.clone()).collect();
        paths.sort();
        assert_eq!(paths, [b"f".to_vec(), b"g".to_vec()], "settled: {settled}");
    }

    let mut streams = [Vec::new(), Vec::new()];
    cold.db.send("before", None, &mut streams[0], None).expect("sent");
    cold.db.send("after", Some("before"), &mut streams[1], None).expect("sent");
    let other = Kvdb::in_memory();
    for stream in &streams {
        other.receive(&stream[..], &ReceiveOptions::default()).expect("received");
    }
    let received = Fs::open(other, cold.env.clone(), FsOptions::default()).expect("it opens");
    let ino = received.resolve(b"f").expect("there").ino;
    assert!(received.read(ino, 0, 1 << 20).expect("read") == later);

    cold.write(f, 30 * PAGE, b"never committed");
    views.rollback("before").expect("back");
    assert!(cold.read(f) == of_f && cold.read(g) == of_g);
    cold.write(f, 30 * PAGE, b"over the state that is back");
    let model = changed(&of_f, 30 * PAGE, b"over the state that is back");
    assert!(cold.read(f) == model);
    cold.check();
}

/// Returns the place of these bytes on the device.
fn place_of(device: &dyn Device, wanted: &[u8]) -> u64 {
    let len = device.len().expect("known");
    let mut all = vec![0; len as usize];
    device.read_at(Purpose::Pages, 0, &mut all).expect("read");
    let step = all.chunks(512).position(|sector| sector.starts_with(&wanted[..512]));
    step.expect("it is somewhere, at the start of a sector") as u64 * 512
}

#[test]
fn a_part_over_a_damaged_page_is_an_error_and_never_zeros() {
    let model = content(1 << 20);
    let (mut cold, f) = Cold::with(&model);
    cold.write(f, 0, b"so that the store is not closed as it was");
    cold.settle();
    cold.reopen();
    let image = cold.device.durable();
    let page = &model[77 * PAGE as usize..78 * PAGE as usize];
    image.flip_bit(place_of(&image, page) + 1000, 3);
    cold.device = Arc::new(CrashDevice::over(image));
    cold.open();
    cold.write(f, 77 * PAGE + 20, b"part");
    cold.write(f, 78 * PAGE + 20, b"sound");
    cold.fs.fsync(f, true).expect("nothing of it is read");
    let damaged = |cold: &Cold| {
        let read = cold.fs.read(f, 77 * PAGE, PAGE as u32);
        assert!(matches!(read, Err(Error::Store(kvdb::Error::Corrupt(_)))), "{read:?}");
        assert_eq!(&cold.fs.read(f, 78 * PAGE + 20, 5).expect("sound")[..], b"sound");
    };
    damaged(&cold);
    // More than a part needs the page: refused, and nothing is changed by it.
    let refused = cold.fs.write(f, 77 * PAGE + 100, &[1; 3000], WriteHints::default());
    assert!(refused.is_err(), "{refused:?}");
    damaged(&cold);
    cold.db.flush().expect("flushed");
    let pages = cold.db.dictionary("dmap").expect("there");
    // No merge invents data that it cannot read.
    let merged = cold.db.compact(pages);
    assert!(matches!(merged, Err(kvdb::Error::Corrupt(_))), "{merged:?}");
    damaged(&cold);
    // A repair says what was lost; what was written since stays.
    let copy = Arc::new(cold.device.current());
    let (db, _) = Kvdb::open(copy, cold.env.clone(), options(cold.memory)).expect("it opens");
    let repaired = kvfs::repair(&db, &*cold.env, kvfs::Losses::Accept).expect("repaired");
    assert_eq!(repaired.store.removed.len(), 1, "{repaired:?}");
    assert_eq!(kvfs::verify(&db).expect("checked").findings, []);
    let fs = Fs::open(db, cold.env.clone(), FsOptions::default()).expect("it opens");
    let mut left = vec![0; PAGE as usize];
    left[20..24].copy_from_slice(b"part");
    let read = fs.read(f, 77 * PAGE, PAGE as u32).expect("read");
    assert!(read == left, "what is left of the page");
    // Whole pages need nothing of what was there.
    cold.write(f, 77 * PAGE, page);
    cold.fs.fsync(f, true).expect("synced");
    cold.settle();
    assert_eq!(cold.fs.read(f, 77 * PAGE, PAGE as u32).expect("read"), page);
    cold.check();
}

#[test]
fn a_nearly_full_store_keeps_every_part_that_it_took() {
    const ZONE: u64 = 8 << 20;
    let mut cold = Cold::of(CreateOptions {
        capacity: Some(24 * ZONE),
        reserve_zones: 4,
        open: options(8 << 20),
        ..CreateOptions::default()
    });
    let f = cold.make("f");
    let piece = content(1 << 20);
    let mut size = 0;
    while cold.fs.write(f, size, &piece, WriteHints::default()).is_ok() {
        size += piece.len() as u64;
    }
    let set = SetAttr { size: Some(size - (40 << 20)), ..Default::default() };
    size = cold.fs.setattr(f, &set, root()).expect("cut").size;
    assert!(size > 40 << 20, "{size} bytes found room");
    cold.fs.sync_all().expect("synced");
    cold.db.reclaim();
    cold.reopen();
    println!("{} bytes are free of {}", cold.db.space().free, cold.db.space().total);
    let mut model = cold.read(f);
    // Into every page, round after round, until it is refused or each page has been changed thrice.
    let mut refused = 0;
    for i in 0..3 * size / PAGE {
        let at = i * 7919 % (size / PAGE) * PAGE + i % 3 * 40;
        match cold.fs.write(f, at, &i.to_le_bytes(), WriteHints::default()) {
            Ok(_) => model[at as usize..at as usize + 8].copy_from_slice(&i.to_le_bytes()),
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                refused += 1;
            }
        }
    }
    println!("{refused} of {} writes were refused", 3 * size / PAGE);
    assert!(refused < size / PAGE, "there was some room");
    cold.fs.fsync(f, true).expect("what was taken finds room");
    assert!(cold.read(f) == model);
    cold.power_cut();
    assert!(cold.read(f) == model);
    cold.db.flush().expect("flushed");
    let pages = cold.db.dictionary("dmap").expect("there");
    cold.db.compact(pages).expect("merged");
    assert!(cold.read(f) == model);
    cold.check();
    cold.fs.unlink(ROOT, b"f").expect("removed");
    cold.fs.forget(f, 1 << 40);
    cold.fs.sync_all().expect("synced");
    let again = cold.make("again");
    let mut at = 0;
    while cold.fs.write(again, at, &piece, WriteHints::default()).is_ok() {
        at += piece.len() as u64;
    }
    assert!(at > size, "{at} bytes find room where {size} were");
    cold.fs.sync_all().expect("synced");
    cold.check();
}

#[test]
fn a_file_with_many_parts_is_read_in_order_by_as_many_reads() {
    let mut model = content(8 << 20);
    let (mut cold, f) = Cold::with(&model);
    let reads = |cold: &Cold, model: &[u8]| {
        let so_far = || {
            let io = cold.db.stats().io;
            let pages = io.of(Purpose::Pages);
            (pages.read_ops, pages.read_bytes)
        };
        let before = so_far();
        for (i, piece) in model.chunks(128 << 10).enumerate() {
            let read = cold.fs.read(f, (i as u64) << 17, 128 << 10).expect("read");
            assert!(read == piece, "piece {i}");
        }
        let after = so_far();
        (after.0 - before.0, after.1 - before.1)
    };
    let (ops, bytes) = reads(&cold, &model);
    for round in 0..8u64 {
        for i in 0..500u64 {
            let at = i * 4 * PAGE + i * 37 % 2000 + round * 100;
            cold.write(f, at, &[round as u8; 9]);
            model[at as usize..at as usize + 9].fill(round as u8);
        }
        cold.fs.fsync(f, true).expect("synced");
        if round == 3 {
            cold.reopen();
        }
    }
    let (more_ops, more_bytes) = reads(&cold, &model);
    println!("{ops} reads of {bytes} bytes, with parts {more_ops} of {more_bytes}");
    assert!(more_ops * 10 <= ops * 11 && more_bytes * 10 <= bytes * 11);
}
