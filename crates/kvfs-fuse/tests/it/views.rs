//! Tests of views through a real mount: what programs see of a transaction before, in and after it.
//! The store is in this process. The programs are shells, or this process where a file has to stay
//! open.

use crate::way;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use env::Machine;
use kvdb::{Durability, Kvdb};
use kvfs::{ChangeSet, CommittedTo, Fs, FsOptions, TransactionId, ViewId, Views, Wait, Watcher};
use kvfs_fuse::counters::Request;
use kvfs_fuse::{FuseAdapter, KernelNotifier, MountOptions, Mounted, mount};

struct Mount {
    // Fields drop in order, so the mount is dropped before its directory.
    mounted: Mounted,
    notifier: Arc<KernelNotifier>,
    views: Views,
    dir: tempfile::TempDir,
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.notifier.stop();
        // A child that another test starts has the files of this one until it has begun with its
        // program.
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(e) = self.mounted.unmount() {
            if Instant::now() > until {
                assert!(std::thread::panicking(), "{e}");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Mount {
    /// `None`, with the reason printed, where this process may not mount.
    fn new(write_back: bool) -> Option<Mount> {
        Mount::watched(write_back, None)
    }

    /// `first` is notified of changes before the kernel.
    fn watched(write_back: bool, first: Option<Arc<dyn Watcher>>) -> Option<Mount> {
        if let Err(e) = File::open("/dev/fuse") {
            eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: these tests mount as root does");
            return None;
        }
        let db = Kvdb::in_memory();
        let fs = Fs::open(db.clone(), Arc::new(Machine::default()), FsOptions::default())
            .expect("a file system");
        let views = Views::new(db, fs);
        first.iter().for_each(|watcher| views.watch(watcher));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let adapter = Arc::new(FuseAdapter::new(views.clone()));
        let policy = way::policy(write_back);
        let mounted = mount(adapter.clone(), dir.path(), &MountOptions::default(), &policy)
            .expect("root can mount");
        let notifier = KernelNotifier::start(&views, &adapter, &mounted).expect("a notifier");
        Some(Mount { mounted, notifier, views, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A transaction and its directory.
    fn begin(&self) -> (TransactionId, PathBuf) {
        let id = self.views.begin(Default::default()).expect("begun");
        (id, self.path(&format!(".kvfs/txn/{id}")))
    }

    fn commit(&self, id: TransactionId) {
        self.views.commit(id, Durability::Buffered).expect("committed");
    }
}

/// Runs a shell script in a directory. Returns its output.
#[track_caller]
fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().expect("sh");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("readdir")
        .map(|e| e.expect("entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: std::io::Result<T>, errno: i32) {
    assert_eq!(result.expect_err("it must fail").raw_os_error(), Some(errno));
}

fn a_script_works_in_a_transaction_and_the_mainline_stays_until_it_commits(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    sh(
        m.dir.path(),
        "mkdir src; echo one > src/a; echo two > src/b; head -c 300000 /dev/zero > big; ln -s a src/link",
    );
    let before = sh(m.dir.path(), "find . | sort; cat src/*; wc -c < big");
    let (id, t) = m.begin();
    sh(
        &t,
        "rm -r src; mkdir -p src/new; echo three > src/a; seq 1 20000 > src/new/numbers; echo more >> big; mv big src/; \
         test \"$(cat src/a)\" = three",
    );
    assert_eq!(sh(m.dir.path(), "find . | sort; cat src/*; wc -c < big"), before);
    let inside = sh(&t, "find . | sort; find . -type f | sort | xargs cat | cksum");
    m.commit(id);
    assert_eq!(
        sh(m.dir.path(), "find . | sort; find . -type f | sort | xargs cat | cksum"),
        inside
    );
    assert!(m.views.mainline().verify().expect("checked").is_clean());
}

fn an_abort_leaves_the_mainline_as_it_is(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    sh(m.dir.path(), "echo one > a; mkdir d");
    let (id, t) = m.begin();
    sh(&t, "echo two > a; rmdir d; touch x");
    m.views.abort(id).expect("aborted");
    assert_eq!(sh(m.dir.path(), "cat a; ls"), "one\na\nd\n");
}

fn what_is_open_already_shows_a_commit_at_once(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    for (name, len) in
        [("grows", 10), ("shrinks", 50_000), ("same", 5000), ("replaced", 10), ("removed", 10)]
    {
        fs::write(m.path(name), vec![b'o'; len]).expect("write");
    }
    let open = |name: &str| File::open(m.path(name)).expect("open");
    let [mut grows, mut shrinks, mut same, mut replaced, mut removed] =
        ["grows", "shrinks", "same", "replaced", "removed"].map(open);
    let read = |file: &mut File| {
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("seek");
        file.read_to_end(&mut content).expect("read");
        assert_eq!(file.metadata().expect("fstat").len(), content.len() as u64);
        content
    };
    for file in [&mut grows, &mut shrinks, &mut same, &mut replaced, &mut removed] {
        assert_eq!(read(file).first(), Some(&b'o'));
    }
    // The kernel has cached that this name exists and that one does not.
    assert_eq!(names(m.dir.path()).len(), 5);
    fails(fs::metadata(m.path("made")), libc::ENOENT);
    let listing = File::open(m.dir.path()).expect("open");
    let mtime =
        |name: &str| fs::metadata(m.path(name)).map(|m| (m.mtime(), m.mtime_nsec())).expect("stat");
    let old = mtime("same");

    let (id, t) = m.begin();
    fs::write(t.join("grows"), vec![b'n'; 20_000]).expect("write");
    fs::write(t.join("shrinks"), vec![b'n'; 7]).expect("write");
    fs::write(t.join("same"), vec![b'n'; 5000]).expect("write");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    File::options()
        .write(true)
        .open(t.join("same"))
        .and_then(|f| f.set_modified(later))
        .expect("utimens");
    fs::write(t.join("replaced.new"), vec![b'n'; 12]).expect("write");
    fs::rename(t.join("replaced.new"), t.join("replaced")).expect("rename");
    fs::remove_file(t.join("removed")).expect("unlink");
    fs::write(t.join("made"), "n").expect("write");
    let new = fs::metadata(t.join("same")).map(|m| (m.mtime(), m.mtime_nsec())).expect("stat");
    assert_eq!((read(&mut grows).len(), read(&mut shrinks).len()), (10, 50_000));
    m.commit(id);

    assert_eq!(read(&mut grows), vec![b'n'; 20_000]);
    assert_eq!(read(&mut shrinks), vec![b'n'; 7]);
    assert_eq!(read(&mut same), vec![b'n'; 5000]);
    assert_eq!(read(&mut replaced), vec![b'o'; 10], "its name stands for another file now");
    assert_eq!(read(&mut removed), vec![b'o'; 10]);
    assert_eq!(removed.metadata().expect("fstat").nlink(), 0);
    assert_eq!(fs::read(m.path("replaced")).expect("read"), vec![b'n'; 12]);
    assert_eq!(fs::read(m.path("made")).expect("read"), b"n");
    fails(fs::metadata(m.path("removed")), libc::ENOENT);
    let now = mtime("same");
    assert!(now > old && now == new, "{old:?} {new:?} {now:?}");
    let seen: Vec<_> = rustix::fs::Dir::read_from(&listing)
        .expect("a directory")
        .map(|e| e.expect("entry").file_name().to_str().expect("UTF-8").to_string())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert!(seen.contains(&"made".to_string()) && !seen.contains(&"removed".to_string()));
    // Writing continues as it should: later data is there afterwards.
    let append = File::options().append(true).open(m.path("shrinks")).expect("open");
    (&append).write_all(b"+").expect("write");
    assert_eq!(read(&mut shrinks), b"nnnnnnn+");
}

/// A shell in a directory, which gets its commands line by line.
struct Shell {
    child: Child,
}

impl Shell {
    fn new(dir: &Path) -> Shell {
        let child = Command::new("sh")
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        Shell { child }
    }

    fn ask(&mut self, line: &str) -> String {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line} 2>&1; printf '\\0'").expect("the shell listens");
        let mut answer = Vec::new();
        let mut byte = [0];
        while self.child.stdout.as_mut().expect("piped").read(&mut byte).expect("read") == 1
            && byte[0] != 0
        {
            answer.push(byte[0]);
        }
        String::from_utf8(answer).expect("UTF-8")
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn a_program_that_works_in_a_directory_goes_on_there(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    sh(m.dir.path(), "mkdir -p work/sub; echo one > work/sub/f");
    let mut shell = Shell::new(&m.path("work/sub"));
    assert_eq!(shell.ask("ls"), "f\n");
    let (id, t) = m.begin();
    sh(&t, "echo two > work/sub/f; echo g > work/sub/g; touch work/other; chmod 700 work/sub");
    m.commit(id);
    assert_eq!(shell.ask("ls; cat f g; cd ..; ls"), "f\ng\ntwo\ng\nother\nsub\n");
    assert_eq!(shell.ask("cd sub; /bin/pwd"), format!("{}\n", m.path("work/sub").display()));
}

fn files_that_a_commit_removes_are_gone_from_the_store_without_a_lookup(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    sh(
        m.dir.path(),
        "mkdir -p d/sub moved; for f in f d/g d/sub/h; do head -c 99000 /dev/zero > $f; done; sync",
    );
    sh(m.dir.path(), "cat f d/g d/sub/h > /dev/null; ls -lR > /dev/null");
    let mut shell = Shell::new(&m.path("moved"));
    let mainline = m.views.fs(&ViewId::Mainline).expect("there");
    let stored = || {
        let report = mainline.verify().expect("verified");
        (report.orphans, report.pages)
    };
    assert_eq!(stored().0, 0);
    assert!(stored().1 > 0, "the files have pages");
    let mut open = File::open(m.path("f")).expect("open");
    let (id, t) = m.begin();
    sh(&t, "rm -r f d");
    m.commit(id);
    await_stored(stored, |(orphans, _)| orphans == 1);
    let mut content = Vec::new();
    open.read_to_end(&mut content).expect("a file that is open goes on");
    assert_eq!(content.len(), 99_000);
    drop(open);
    await_stored(stored, |found| found == (0, 0));
    // A directory that moves, in a commit that removes a file, keeps the programs in it.
    fs::write(m.path("last"), vec![7; 100_000]).expect("written");
    let (id, t) = m.begin();
    sh(&t, "rm last; mv moved there");
    m.commit(id);
    assert_eq!(fs::metadata(m.path("last")).map_err(|e| e.kind()).err(), Some(ErrorKind::NotFound));
    assert!(m.path("there").is_dir());
    assert_eq!(shell.ask("/bin/pwd"), format!("{}\n", m.path("there").display()));
}

/// Waits until what is stored, orphans and pages, is as `wanted`. The kernel gives references back
/// without an answer.
#[track_caller]
fn await_stored(stored: impl Fn() -> (u64, u64), wanted: impl Fn((u64, u64)) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !wanted(stored()) {
        assert!(Instant::now() < deadline, "orphans and pages: {:?}", stored());
        std::thread::yield_now();
    }
}

fn the_hidden_directory_is_found_but_not_listed(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    assert_eq!(names(m.dir.path()), [""; 0]);
    assert_eq!(names(&m.path(".kvfs")), ["clone", "snapshot", "txn"]);
    assert_eq!(names(&m.path(".kvfs/txn")), [""; 0]);
    let ((one, _), (two, t2)) = (m.begin(), m.begin());
    assert_eq!(names(&m.path(".kvfs/txn")), [one.to_string(), two.to_string()]);
    assert_eq!(names(&t2), [""; 0]);
    for (name, errno) in [
        ("txn/99", libc::ENOENT),
        ("txn/01", libc::ENOENT),
        ("x", libc::ENOENT),
        ("snapshot/none", libc::ENOENT),
    ] {
        fails(fs::metadata(m.path(&format!(".kvfs/{name}"))), errno);
    }
    m.commit(one);
    assert_eq!(names(&m.path(".kvfs/txn")), [two.to_string()]);
    fails(fs::metadata(m.path(&format!(".kvfs/txn/{one}"))), libc::ENOENT);
    m.views.abort(two).expect("aborted");
    assert_eq!(names(&m.path(".kvfs/txn")), [""; 0]);
    fails(fs::metadata(&t2), libc::ENOENT);
    fails(fs::create_dir(m.path(".kvfs/txn/new")), libc::EPERM);
    fails(fs::remove_dir(m.path(".kvfs")), libc::EPERM);
    fails(fs::rename(m.path(".kvfs"), m.path("shown")), libc::EPERM);
    assert_eq!(
        fs::metadata(m.path(".kvfs/txn/..")).expect("stat").ino(),
        fs::metadata(m.path(".kvfs")).expect("stat").ino()
    );
}

fn views_share_no_inode_numbers_and_nothing_moves_between_them(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    fs::write(m.path("f"), "content").expect("write");
    let (id, t) = m.begin();
    assert_ne!(
        fs::metadata(m.path("f")).expect("stat").ino(),
        fs::metadata(t.join("f")).expect("stat").ino()
    );
    fails(fs::rename(m.path("f"), t.join("g")), libc::EXDEV);
    fails(fs::rename(t.join("f"), m.path("g")), libc::EXDEV);
    fails(fs::hard_link(m.path("f"), t.join("g")), libc::EXDEV);
    // Copying is reading and writing.
    assert_eq!(fs::copy(m.path("f"), t.join("g")).expect("copy"), 7);
    sh(m.dir.path(), &format!("mv f {}", t.join("h").display()));
    assert_eq!(sh(&t, "cat f g h"), "contentcontentcontent");
    assert_eq!(names(m.dir.path()), [""; 0]);
    m.views.abort(id).expect("aborted");
}

fn what_is_open_in_a_view_is_stale_when_it_ends(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    fs::write(m.path("f"), vec![1; 100_000]).expect("write");
    for commit in [false, true] {
        let (id, t) = m.begin();
        let file = File::options().read(true).write(true).open(t.join("f")).expect("open");
        let mut shell = Shell::new(&t);
        assert_eq!(shell.ask("ls"), "f\n");
        if commit {
            m.commit(id)
        } else {
            m.views.abort(id).expect("aborted")
        }
        fails(fs::read_dir(&t), libc::ENOENT);
        fails(file.sync_all().and_then(|()| file.read_at(&mut [0; 10], 90_000)), libc::ESTALE);
        assert!(shell.ask("ls").contains("Stale"));
    }
    assert_eq!(names(m.dir.path()), ["f"]);
}

fn what_the_kernel_holds_back_is_in_the_commit(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    let (id, t) = m.begin();
    let file = File::create(t.join("f")).expect("create");
    (&file).write_all(&vec![7; 200_000]).expect("write");
    // The file is neither closed nor synced.
    m.commit(id);
    assert!(fs::read(m.path("f")).expect("read") == vec![7; 200_000]);
    // Data of the mainline that the kernel holds back counts when conflicts are looked for.
    let (id, t) = m.begin();
    fs::write(t.join("f"), "in the transaction").expect("write");
    let open = File::options().write(true).open(m.path("f")).expect("open");
    open.write_all_at(b"on the mainline", 0).expect("write");
    let failed = m.views.commit(id, Durability::Buffered).expect_err("a conflict");
    assert!(matches!(failed, kvfs::Error::Store(kvdb::Error::Conflict { .. })), "{failed}");
    assert_eq!(&fs::read(m.path("f")).expect("read")[..15], b"on the mainline");
}

fn programs_that_wait_for_a_transaction_do_not_keep_others_from_ending_it(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    const PROGRAMS: usize = 12;
    let file = |i: usize| m.path(&format!("f{i}"));
    for i in 0..PROGRAMS {
        fs::write(file(i), "old").expect("write");
    }
    let options =
        kvdb::TransactionOptions { isolation: kvdb::Isolation::Serializable, ..Default::default() };
    let id = m.views.begin(options).expect("begun");
    let t = m.path(&format!(".kvfs/txn/{id}"));
    for i in 0..PROGRAMS {
        assert_eq!(fs::read(t.join(format!("f{i}"))).expect("read"), b"old");
    }
    // Far more of them than there are threads; each must wait before it may cut its file to
    // nothing.
    let asked = || m.mounted.counters().get(Request::SetAttr);
    let before = asked();
    let program = |i: usize| {
        Command::new("sh")
            .args(["-c", &format!("echo {i} > f{i}")])
            .current_dir(m.dir.path())
            .spawn()
            .expect("sh")
    };
    let programs: Vec<_> = (0..PROGRAMS).map(program).collect();
    while asked() < before + PROGRAMS as u64 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // All others continue, and so does the transaction.
    fs::write(m.path("other"), "x").expect("write");
    fs::write(t.join("f0"), "from the transaction").expect("write");
    assert_eq!(fs::read(file(0)).expect("read"), b"old");
    m.commit(id);
    for mut program in programs {
        assert!(program.wait().expect("waited").success());
    }
    for i in 0..PROGRAMS {
        assert_eq!(fs::read_to_string(file(i)).expect("read"), format!("{i}\n"));
    }
}

/// Writes a file again. An error of closing it counts, too.
#[track_caller]
fn write_and_close(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("create");
    file.write_all(content).expect("write");
    // SAFETY: the descriptor is owned here, and not used any more.
    let closed = unsafe { libc::close(file.into_raw_fd()) };
    assert_eq!(closed, 0, "close: {}", std::io::Error::last_os_error());
}

/// Reports that a commit was made and the kernel is about to be notified.
#[derive(Default)]
struct Telling(AtomicBool);

impl Watcher for Telling {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        Ok(())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {
        self.0.store(true, Ordering::Release);
    }
    fn changed(&self, _: u16, _: &Fs, _: &ChangeSet) {}
}

fn what_a_program_writes_while_the_kernel_is_told_of_a_commit_stays(write_back: bool) {
    let telling = Arc::new(Telling::default());
    let Some(m) = Mount::watched(write_back, Some(telling.clone())) else { return };
    // The kernel is notified of other files before the size of the last one is set.
    let others: Vec<_> = (0..40).map(|i| format!("other{i}")).collect();
    others.iter().for_each(|name| fs::write(m.path(name), name).expect("write"));
    let f = m.path("f");
    fs::write(&f, "old").expect("write");
    let writes = |round: usize, over: &AtomicBool| {
        while !telling.0.swap(false, Ordering::Acquire) {
            std::thread::yield_now();
        }
        for i in 0.. {
            let own = format!("{round:04}{i:04}{}", "p".repeat((7 * round + i) % 5000));
            write_and_close(&f, own.as_bytes());
            let seen = fs::read(&f).expect("read");
            let start = String::from_utf8_lossy(&seen[..seen.len().min(20)]);
            assert!(
                seen == own.as_bytes(),
                "commit {round}, write {i}: {} bytes are {}: {start:?}",
                own.len(),
                seen.len()
            );
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    for round in 0..100 {
        let (id, t) = m.begin();
        // Longer and shorter than what the program writes by turns.
        let length = if round % 2 == 0 { 20_000 } else { 1 };
        fs::write(t.join("f"), vec![b't'; length]).expect("write");
        let other = |name: &String| fs::write(t.join(name), vec![b'o'; length / 10]);
        others.iter().for_each(|name| other(name).expect("write"));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| writes(round, &over));
            m.commit(id);
            over.store(true, Ordering::Relaxed);
        });
    }
    assert!(m.views.mainline().verify().expect("checked").is_clean());
}

fn snapshots_and_clones_lie_beside_the_transactions(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    sh(m.dir.path(), "mkdir d; echo monday > d/f");
    m.views.snapshot(&kvfs::ViewId::Mainline, "monday", Durability::Synced).expect("a snapshot");
    m.views.clone_snapshot("monday", "other").expect("a clone");
    assert_eq!(
        (names(&m.path(".kvfs/snapshot")), names(&m.path(".kvfs/clone"))),
        (vec!["monday".into()], vec!["other".into()])
    );
    let (monday, other) = (m.path(".kvfs/snapshot/monday"), m.path(".kvfs/clone/other"));
    sh(m.dir.path(), "echo friday > d/f; touch d/g");
    sh(&other, "echo other > d/f; mkdir d/sub");
    assert_eq!(sh(&monday, "cat d/f; ls d"), "monday\nf\n");
    assert_eq!(sh(&other, "cat d/f; ls d"), "other\nf\nsub\n");
    assert_eq!(sh(m.dir.path(), "cat d/f; ls d"), "friday\nf\ng\n");
    fails(fs::write(monday.join("d/f"), "x"), libc::EROFS);
    // A rollback is seen at once, too.
    let mut open = File::open(m.path("d/f")).expect("open");
    m.views.rollback("monday").expect("rolled back");
    let mut content = String::new();
    open.read_to_string(&mut content).expect("read");
    assert_eq!(content, "monday\n");
    assert_eq!(sh(m.dir.path(), "cat d/f; ls d"), "monday\nf\n");
    m.views.drop_clone("other").expect("dropped");
    m.views.drop_snapshot("monday").expect("dropped");
    assert_eq!((names(&m.path(".kvfs/snapshot")), names(&m.path(".kvfs/clone"))), (vec![], vec![]));
    fails(fs::metadata(&other), libc::ENOENT);
}

fn the_kernel_forgets_views_that_have_ended_but_for_what_is_open(write_back: bool) {
    let Some(m) = Mount::new(write_back) else { return };
    sh(
        m.dir.path(),
        "mkdir -p d/e; echo old > d/f; for i in $(seq 100); do echo $i > d/e/$i; done",
    );
    let (held, t) = m.begin();
    let mut open = File::open(t.join("d/f")).expect("open");
    for round in 0..20 {
        let (id, t) = m.begin();
        sh(
            &t,
            "ls -lR . > /dev/null; cat d/e/* > /dev/null; echo new > made; mv d/e/1 d/moved; rm d/e/2; mkdir x; ln -s a x/b",
        );
        match round % 3 {
            0 => m.commit(id),
            1 => m.views.abort(id).expect("aborted"),
            _ => {
                m.views
                    .snapshot(&kvfs::ViewId::Mainline, "s", Durability::Buffered)
                    .expect("a snapshot");
                sh(&m.path(".kvfs/snapshot/s"), "ls -lR . > /dev/null; cat d/f");
                m.views.drop_snapshot("s").expect("dropped");
                m.views.abort(id).expect("aborted");
            }
        }
        sh(m.dir.path(), "rm -rf x made; mv d/moved d/e/1 2> /dev/null || true; echo 2 > d/e/2");
    }
    m.commit(held);
    await_numbers(&m.views, 1);
    fails(open.read(&mut [0; 4]), libc::ESTALE);
    drop(open);
    // The kernel keeps an inode that was open when its view ended for as long as memory is
    // plentiful.
    fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
    await_numbers(&m.views, 0);
}

/// Forgetting is a notification without an answer.
fn await_numbers(views: &Views, expected: usize) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while views.numbers_taken() != expected {
        assert!(
            std::time::Instant::now() < deadline,
            "{} numbers of views are taken, not {expected}",
            views.numbers_taken()
        );
        std::thread::yield_now();
    }
}

/// Runs every test with write-through, and with writes that the kernel gathers.
macro_rules! in_both_modes {
    ($($test:ident),* $(,)?) => {
        mod through {
            $(#[test]
            fn $test() {
                super::$test(false);
            })*
        }
        mod gathered {
            $(#[test]
            fn $test() {
                super::$test(true);
            })*
        }
    };
}

in_both_modes!(
    a_script_works_in_a_transaction_and_the_mainline_stays_until_it_commits,
    an_abort_leaves_the_mainline_as_it_is,
    what_is_open_already_shows_a_commit_at_once,
    a_program_that_works_in_a_directory_goes_on_there,
    files_that_a_commit_removes_are_gone_from_the_store_without_a_lookup,
    the_hidden_directory_is_found_but_not_listed,
    views_share_no_inode_numbers_and_nothing_moves_between_them,
    what_is_open_in_a_view_is_stale_when_it_ends,
    what_the_kernel_holds_back_is_in_the_commit,
    programs_that_wait_for_a_transaction_do_not_keep_others_from_ending_it,
    what_a_program_writes_while_the_kernel_is_told_of_a_commit_stays,
    snapshots_and_clones_lie_beside_the_transactions,
    the_kernel_forgets_views_that_have_ended_but_for_what_is_open,
);
