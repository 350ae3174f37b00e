//! Tests of data that the kernel holds back for files that programs have open. A program that looks
//! at a file, renames it, begins a transaction or commits one must see everything that the writing
//! program sees, whether writes go through at once or are gathered.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::real::{BOTH, Mapping, Real, seek, sh};
use kvdb::Isolation;

const MIB: usize = 1 << 20;

fn read_write(path: &std::path::Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

#[test]
fn a_file_that_is_being_written_has_no_holes_where_there_is_data() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let data: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8 | 1).collect();
        let mut writer = read_write(&m.path("written"));
        writer.write_all(&data).expect("write");
        let other = File::open(m.path("written")).expect("open");
        assert_eq!(seek(&other, 0, libc::SEEK_DATA), Some(0), "write-back: {write_back}");
        assert_eq!(seek(&other, 0, libc::SEEK_HOLE), Some(MIB as i64));
        assert_ne!(fs::metadata(m.path("written")).expect("stat").blocks(), 0);
        writer.write_all(b"a tail").expect("write");
        sh(
            m.dir.path(),
            "cp --sparse=auto written copied; cmp written copied; tar -cSf tar written; tar -xOf tar | cmp - written",
        );
        // A hole remains a hole.
        writer.write_all_at(b"far", 64 * MIB as u64).expect("write");
        assert_eq!(seek(&other, 2 * MIB as i64, libc::SEEK_DATA), Some(64 * MIB as i64));
    }
}

#[test]
fn a_mapping_that_is_being_written_has_no_holes_where_there_is_data() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let file = read_write(&m.path("mapped"));
        file.set_len(4 * MIB as u64).expect("truncate");
        let mapping = Mapping::of(&file, 4 * MIB);
        mapping.put(MIB, b"in the middle");
        let other = File::open(m.path("mapped")).expect("open");
        assert_eq!(seek(&other, 0, libc::SEEK_DATA), Some(MIB as i64), "write-back: {write_back}");
        mapping.put(3 * MIB, b"and at the end");
        assert_ne!(fs::metadata(m.path("mapped")).expect("stat").blocks(), 0);
        sh(
            m.dir.path(),
            "cp --sparse=auto mapped copied; cmp mapped copied; tar -cSf tar mapped; tar -xOf tar | cmp - mapped",
        );
    }
}

#[test]
fn many_who_look_for_holes_at_once_do_not_wait_for_each_other() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for i in 0..16 {
                let m = &m;
                scope.spawn(move || {
                    let mut file = read_write(&m.path(&format!("f{i}")));
                    for _ in 0..20 {
                        file.write_all(&[7; 5000]).expect("write");
                        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Some(0));
                        assert_eq!(
                            seek(&file, 0, libc::SEEK_END),
                            fs::metadata(m.path(&format!("f{i}"))).ok().map(|m| m.len() as i64)
                        );
                    }
                });
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_commit_is_not_overwritten_by_a_page_that_was_read_before_it() {
    const PAGES: usize = 3;
    for write_back in BOTH {
        for mapped in [false, true] {
            let Some(m) = Real::new(write_back) else { return };
            let path = m.path("f");
            fs::write(&path, vec![b'.'; PAGES * 4096]).expect("write");
            let file = read_write(&path);
            let mapping = mapped.then(|| Mapping::of(&file, PAGES * 4096));
            let (mut conflicts, mut rounds) = (0, 0);
            let until = Instant::now() + Duration::from_secs(6);
            while Instant::now() < until {
                rounds += 1;
                let old = fs::read(&path).expect("read");
                let (id, t) = m.begin();
                let letter = b'a' + (rounds % 26) as u8;
                let inside = read_write(&t.join("f"));
                inside.write_all_at(&vec![letter; PAGES * 4096 - 16], 16).expect("write");
                drop(inside);
                let start = Barrier::new(2);
                let four = (rounds as u32).to_le_bytes();
                let committed = std::thread::scope(|scope| {
                    scope.spawn(|| {
                        start.wait();
                        std::thread::sleep(Duration::from_micros(rounds * 137 % 6000));
                        match &mapping {
                            Some(mapping) => mapping.put(4, &four),
                            None => file.write_all_at(&four, 4).expect("write"),
                        }
                    });
                    start.wait();
                    m.views.commit(id, kvdb::Durability::Buffered)
                });
                let new = fs::read(&path).expect("read");
                match committed {
                    Ok(()) => {
                        let wrong = new[16..].iter().filter(|b| **b != letter).count();
                        assert_eq!(
                            wrong, 0,
                            "round {rounds}, write-back {write_back}, mapped {mapped}: the commit was overwritten"
                        );
                    }
                    Err(kvfs::Error::Store(kvdb::Error::Conflict { .. })) => {
                        conflicts += 1;
                        assert_eq!(new[16..], old[16..], "nothing of what had a conflict is there");
                    }
                    Err(e) => panic!("{e}"),
                }
                assert!(new[4..8] == four, "what the mainline wrote is there");
            }
            eprintln!(
                "write-back {write_back}, mapped {mapped}: {rounds} rounds, {conflicts} conflicts"
            );
            assert!(rounds > conflicts);
        }
    }
}

#[test]
fn a_transaction_begins_with_what_is_in_mappings() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let file = read_write(&m.path("mapped"));
        file.set_len(MIB as u64).expect("truncate");
        let mapping = Mapping::of(&file, MIB);
        for round in 0..50_u32 {
            mapping.put(round as usize * 20_000, &round.to_le_bytes());
            let (id, t) = m.begin();
            let mut seen = [0; 4];
            File::open(t.join("mapped"))
                .and_then(|f| f.read_exact_at(&mut seen, u64::from(round) * 20_000))
                .expect("read");
            assert_eq!(u32::from_le_bytes(seen), round, "write-back: {write_back}");
            m.views.abort(id).expect("aborted");
        }
    }
}

#[test]
fn a_thread_that_waits_for_a_lock_does_not_keep_transactions_from_beginning() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        fs::write(m.path("locked"), b"old").expect("write");
        let file = read_write(&m.path("mapped"));
        file.set_len(MIB as u64).expect("truncate");
        let mapping = Mapping::of(&file, MIB);
        let options =
            kvdb::TransactionOptions { isolation: Isolation::Serializable, ..Default::default() };
        let locking = m.views.begin(options).expect("begun");
        fs::write(m.path(&format!(".kvfs/txn/{locking}/locked")), b"new").expect("write");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The page waits for the transaction, whose end must not wait for the page.
                fs::rename(m.path("locked"), m.path("renamed"))
                    .expect("renamed, when the transaction has ended");
                assert!(ended.load(Ordering::SeqCst));
            });
            for round in 1..20_u32 {
                let begun = Instant::now();
                mapping.put(0, &round.to_le_bytes());
                let (id, t) = m.begin();
                let mut seen = [0; 4];
                File::open(t.join("mapped"))
                    .and_then(|f| f.read_exact_at(&mut seen, 0))
                    .expect("read");
                assert_eq!(u32::from_le_bytes(seen), round);
                m.views.abort(id).expect("aborted");
                assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            }
            ended.store(true, Ordering::SeqCst);
            m.commit(locking);
        });
        assert_eq!(fs::read(m.path("renamed")).expect("read"), b"new");
    }
}

/// The first and the last byte, and the size, of a file as the daemon knows it, without asking the
/// kernel for anything.
fn known(m: &Real, name: &str) -> (u8, u8, u64) {
    let fs = m.views.mainline();
    let attr = fs.resolve(name.as_bytes()).expect("there");
    let byte = |at| fs.read(attr.ino, at, 1).expect("read").first().copied().expect("a byte");
    (byte(0), byte(attr.size - 1), attr.size)
}

#[test]
fn a_name_comes_with_what_was_written_before() {
    const LENGTH: usize = 200_000;
    for write_back in BOTH {
        for mapped in [false, true] {
            let Some(m) = Real::new(write_back) else { return };
            let fill = |file: &mut File| {
                if mapped {
                    file.set_len(LENGTH as u64).expect("truncate");
                    let mapping = Mapping::of(file, LENGTH);
                    mapping.put(0, &[b'n'; LENGTH]);
                    Some(mapping)
                } else {
                    file.write_all(&[b'n'; LENGTH]).expect("write");
                    None
                }
            };
            fs::write(m.path("config"), b"old").expect("write");
            let mut new = read_write(&m.path("config.new"));
            let held = fill(&mut new);
            fs::rename(m.path("config.new"), m.path("config")).expect("rename");
            assert_eq!(
                known(&m, "/config"),
                (b'n', b'n', LENGTH as u64),
                "renamed, write-back {write_back}, mapped {mapped}"
            );
            drop((new, held));
            let nameless = File::options()
                .read(true)
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .open(m.dir.path());
            let mut nameless = nameless.expect("a file without a name");
            let held = fill(&mut nameless);
            let from = format!("/proc/self/fd/{}", nameless.as_raw_fd());
            let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, from, rustix::fs::CWD, m.path("named"), follow)
                .expect("linked");
            assert_eq!(
                known(&m, "/named"),
                (b'n', b'n', LENGTH as u64),
                "linked, write-back {write_back}, mapped {mapped}"
            );
            drop(held);
        }
    }
}

#[test]
fn a_transaction_does_not_begin_without_a_page_that_waits_for_a_lock() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let file = read_write(&m.path("f"));
        file.set_len(8192).expect("truncate");
        let mapping = Mapping::of(&file, 8192);
        mapping.put(0, b"old");
        file.sync_all().expect("synced");
        let options =
            kvdb::TransactionOptions { isolation: Isolation::Serializable, ..Default::default() };
        let locking = m.views.begin(options).expect("begun");
        assert_eq!(
            &fs::read(m.path(&format!(".kvfs/txn/{locking}/f"))).expect("read")[..3],
            b"old"
        );
        // The page is sent to the daemon when a transaction begins, and has to wait there.
        mapping.put(0, b"new");
        let asked = Instant::now();
        std::thread::scope(|scope| {
            let begun = scope.spawn(|| m.views.begin(Default::default()));
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1500));
                m.views.abort(locking).expect("aborted");
            });
            let id = begun
                .join()
                .expect("no panic")
                .expect("begun, when nothing is in the way any more");
            let seen = fs::read(m.path(&format!(".kvfs/txn/{id}/f"))).expect("read");
            assert_eq!(&seen[..3], b"new", "write-back: {write_back}");
            m.views.abort(id).expect("aborted");
        });
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    }
}

/// A program still has a dirty page of an aborted transaction. The page is lost, as requested, and
/// no other program is affected.
#[test]
fn pages_of_a_view_that_is_over_are_no_error_of_those_who_begin() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        fs::write(m.path("f"), vec![b'.'; 8192]).expect("write");
        for round in 0..10_u8 {
            let (id, inside) = m.begin();
            let file = read_write(&inside.join("f"));
            let mapping = Mapping::of(&file, 8192);
            mapping.put(4096, &[round]);
            m.views.abort(id).expect("aborted");
            let (next, inside) = m.begin();
            assert_eq!(
                fs::read(inside.join("f")).expect("read"),
                vec![b'.'; 8192],
                "write-back: {write_back}"
            );
            m.commit(next);
            let synced = file.sync_all().map_err(|e| e.raw_os_error());
            assert_eq!(synced, Err(Some(libc::ESTALE)), "who has it open is told");
        }
        assert_eq!(fs::read(m.path("f")).expect("read"), vec![b'.'; 8192]);
    }
}

/// A program with a mapping of a file whose view ends. The kernel writes the times of the file back
/// when the mapping goes, and keeps an error of that for the next caller that has it hand over
/// everything.
#[test]
fn times_of_a_view_that_is_over_are_no_error_of_those_who_begin() {
    const PROGRAM: &str = "import mmap, sys
file = open(sys.argv[1], 'r+b', buffering=0)
mapping = mmap.mmap(file.fileno(), 8192)
mapping[4096:4103] = b'changed'
print('ready', flush=True)
sys.stdin.readline()
mapping[:7] = b'changed'
mapping.close()";
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        fs::write(m.path("f"), vec![b'.'; 8192]).expect("write");
        let (id, inside) = m.begin();
        let mut program = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(inside.join("f"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut said = String::new();
        let output = program.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut said).expect("a line");
        assert_eq!(said, "ready\n");
        m.views.abort(id).expect("aborted");
        program.stdin.take().expect("its input").write_all(b"go on\n").expect("it listens");
        program.wait().expect("it ends");
        let (next, inside) = m.begin();
        assert_eq!(fs::read(inside.join("f")).expect("read"), vec![b'.'; 8192]);
        m.commit(next);
    }
}

/// A program gets an error for its own request when the view is over.
#[test]
fn whoever_sets_the_times_of_a_file_whose_view_is_over_is_told() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        fs::write(m.path("f"), "old").expect("write");
        let (id, inside) = m.begin();
        let file = read_write(&inside.join("f"));
        m.views.abort(id).expect("aborted");
        let set =
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).map_err(|e| e.raw_os_error());
        assert!(matches!(set, Err(Some(libc::ESTALE | libc::EIO))), "{set:?}");
    }
}

#[test]
fn who_begins_commits_or_makes_a_snapshot_without_a_page_that_is_on_its_way_gets_an_error() {
    // Times shorter and longer than a caller waits before it looks for locks. (A kernel that
    // gathers writes keeps times, too, and waits for these until the page has been refused, which
    // is said at the next fsync.)
    for (patience, why) in
        [(300, "the thread that has them is busy"), (1500, "locked by a transaction")]
    {
        let Some(m) = Real::with_patience(Duration::from_millis(patience)) else { return };
        let file = read_write(&m.path("f"));
        file.set_len(8192).expect("truncate");
        let mapping = Mapping::of(&file, 8192);
        mapping.put(0, b"old");
        file.sync_all().expect("synced");
        fs::write(m.path("g"), b"old").expect("write");
        let options =
            kvdb::TransactionOptions { isolation: Isolation::Serializable, ..Default::default() };
        let (open, inside) = m.begin();
        let locking = m.views.begin(options).expect("begun");
        assert_eq!(
            &fs::read(m.path(&format!(".kvfs/txn/{locking}/f"))).expect("read")[..3],
            b"old"
        );
        fs::write(inside.join("g"), b"new").expect("write");
        // The page is sent to the daemon on request, and has to wait there.
        mapping.put(0, b"new");
        // On a machine that stalls, the page may have waited for ten seconds in the meantime. Then
        // it has been refused, which the next call reports instead (`refused`), once.
        let refused = |what: &str, result: kvfs::Result<()>| match result {
            Err(kvfs::Error::NotHandedOver(said)) if said.contains("has been refused") => {
                mapping.put(0, b"new");
            }
            Err(kvfs::Error::NotHandedOver(said)) => assert!(said.contains(why), "{what}: {said}"),
            other => panic!("{what}: {other:?}"),
        };
        let before = m.views.all().len();
        refused("begin", m.views.begin(Default::default()).map(drop));
        refused(
            "snapshot",
            m.views.snapshot(&kvfs::ViewId::Mainline, "s", kvdb::Durability::Buffered).map(drop),
        );
        if patience < 1000 {
            // A commit proceeds without pages that wait for a lock, as soon as it detects that they
            // wait.
            refused("commit", m.views.commit(open, kvdb::Durability::Buffered));
            assert_eq!(fs::read(m.path("g")).expect("read"), b"old", "nothing of it is there");
        }
        assert_eq!(m.views.all().len(), before, "nothing was begun, made or ended");
        assert_eq!(fs::read(inside.join("g")).expect("read"), b"new", "the transaction goes on");
        m.views.abort(locking).expect("aborted");
        // A page that was refused since is not dirty any more, and this call returns the error.
        mapping.put(0, b"new");
        if let Ok(id) = m.views.begin(Default::default()) {
            m.views.abort(id).expect("aborted");
        }
        m.commit(open);
        assert_eq!(fs::read(m.path("g")).expect("read"), b"new");
        let (_, inside) = m.begin();
        assert_eq!(
            &fs::read(inside.join("f")).expect("read")[..3],
            b"new",
            "now the page is there"
        );
    }
}

/// A mount that no path reaches any more, while programs have files open in it.
#[test]
fn what_is_held_back_behind_a_mount_that_is_out_of_sight_comes_as_well() {
    for write_back in BOTH {
        for covered in [true, false] {
            let Some(m) = Real::new(write_back) else { return };
            let at = format!("write-back {write_back}, covered {covered}");
            let (file, mut written) =
                (read_write(&m.path("mapped")), read_write(&m.path("written")));
            file.set_len(8192).expect("truncate");
            let mapping = Mapping::of(&file, 8192);
            mapping.put(0, b"old");
            file.sync_all().expect("synced");
            if covered {
                sh(m.dir.path(), "mount -t tmpfs cover .");
            } else {
                kvfs_fuse::unmount(m.dir.path(), kvfs_fuse::Unmount::Lazy).expect("out of sight");
            }
            mapping.put(0, b"new");
            written.write_all(b"written").expect("write");
            let id = m.views.begin(Default::default()).expect("begun");
            let inside = m.views.fs(&kvfs::ViewId::Transaction(id)).expect("a view");
            let read = |name: &[u8], length| {
                let ino = inside.resolve(name).expect("there").ino;
                inside.read(ino, 0, length).expect("read")
            };
            assert_eq!(&read(b"/mapped", 3)[..], b"new", "{at}");
            assert_eq!(&read(b"/written", 7)[..], b"written", "{at}");
            // Programs that have a file open see the change of a commit.
            let ino = inside.resolve(b"/written").expect("there").ino;
            inside.write(ino, 0, b"changed and longer", Default::default()).expect("write");
            m.commit(id);
            let mut seen = [0; 18];
            written.read_exact_at(&mut seen, 0).expect("read");
            assert_eq!(&seen, b"changed and longer", "{at}");
            assert_eq!(seek(&written, 0, libc::SEEK_DATA), Some(0), "{at}");
            drop((mapping, file, written));
            if covered {
                sh(std::path::Path::new("/"), &format!("umount {}", m.dir.path().display()));
            }
        }
    }
}

#[test]
fn a_rollback_is_not_overwritten_by_a_page_that_was_read_before_it() {
    const LENGTH: usize = 3 * 4096;
    for write_back in BOTH {
        for mapped in [false, true] {
            let Some(m) = Real::new(write_back) else { return };
            let path = m.path("f");
            fs::write(&path, vec![b'.'; LENGTH]).expect("write");
            m.views
                .snapshot(&kvfs::ViewId::Mainline, "then", kvdb::Durability::Buffered)
                .expect("a snapshot");
            let file = read_write(&path);
            let mapping = mapped.then(|| Mapping::of(&file, LENGTH));
            let until = Instant::now() + Duration::from_secs(3);
            let mut rounds = 0_u64;
            while Instant::now() < until {
                rounds += 1;
                file.write_all_at(&vec![b'a' + (rounds % 26) as u8; LENGTH], 0).expect("write");
                assert_ne!(fs::read(&path).expect("read")[100], b'.');
                let start = Barrier::new(2);
                let four = (rounds as u32).to_le_bytes();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        start.wait();
                        std::thread::sleep(Duration::from_micros(rounds * 137 % 6000));
                        match &mapping {
                            Some(mapping) => mapping.put(4, &four),
                            None => file.write_all_at(&four, 4).expect("write"),
                        }
                    });
                    start.wait();
                    m.views.rollback("then").expect("rolled back");
                });
                let new = fs::read(&path).expect("read");
                let wrong = new
                    .iter()
                    .enumerate()
                    .filter(|(at, b)| !(4..8).contains(at) && **b != b'.')
                    .count();
                assert_eq!(
                    wrong, 0,
                    "round {rounds}, write-back {write_back}, mapped {mapped}: the rollback was overwritten"
                );
                assert!(new[4..8] == four || new[4..8] == [b'.'; 4]);
            }
            eprintln!("write-back {write_back}, mapped {mapped}: {rounds} rollbacks");
        }
    }
}

#[test]
fn an_append_beside_a_commit_overwrites_none_of_it() {
    // Only a mount whose writes go through is tested: the kernel does not report appends that it
    // gathers.
    let Some(m) = Real::new(false) else { return };
    let (mut conflicts, mut rounds) = (0, 0_u64);
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        rounds += 1;
        let path = m.path("log");
        fs::write(&path, vec![b'.'; 5000]).expect("write");
        let mut log = File::options().append(true).open(&path).expect("open");
        let (id, t) = m.begin();
        let inside = vec![b'i'; 100 + (rounds % 7) as usize * 1000];
        File::options()
            .append(true)
            .open(t.join("log"))
            .and_then(|mut f| f.write_all(&inside))
            .expect("append");
        let start = Barrier::new(2);
        let (committed, appended) = std::thread::scope(|scope| {
            let appending = scope.spawn(|| {
                start.wait();
                std::thread::sleep(Duration::from_micros(rounds * 137 % 3000));
                for _ in 0..4 {
                    log.write_all(&[b'a'; 10]).expect("append");
                }
                40
            });
            start.wait();
            (m.views.commit(id, kvdb::Durability::Buffered), appending.join().expect("no panic"))
        });
        let new = fs::read(&path).expect("read");
        let count = |what: u8| new.iter().filter(|b| **b == what).count();
        assert_eq!(
            (count(b'.'), count(b'a')),
            (5000, appended),
            "round {rounds}: what was appended is there"
        );
        match committed {
            Ok(()) => {
                assert_eq!(count(b'i'), inside.len(), "round {rounds}: the commit was overwritten")
            }
            Err(_) => conflicts += 1,
        }
        assert_eq!(fs::metadata(&path).expect("stat").len(), new.len() as u64);
    }
    eprintln!("{rounds} rounds, {conflicts} conflicts");
    assert!(conflicts < rounds);
}
