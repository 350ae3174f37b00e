//! Tests of `kvfs mount --upgrade`. A daemon becomes another program under programs that use the
//! mount, and none of them sees an error.

use crate::place;
use crate::programs;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::place::{
    Place, fails, install_program, install_script, kill, kvfs, succeeds, text, until,
};
use rustix::process::Signal;

impl Place {
    /// The command with a daemon that becomes the program of the tests.
    fn upgrade(&self) -> Command {
        let mut command = kvfs(&["mount", "--upgrade"]);
        command.arg(self.mnt());
        command
    }
}

/// Number and content of a file.
fn seen(file: &File) -> (u64, Vec<u8>) {
    let mut all = vec![0; file.metadata().expect("attributes").len() as usize];
    file.read_exact_at(&mut all, 0).expect("read");
    (file.metadata().expect("attributes").ino(), all)
}

fn program_of(pid: i32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).expect("it runs")
}

#[test]
fn the_process_stays_and_becomes_the_program_that_was_called() {
    let Some(p) = Place::new() else { return };
    let before = p.mounted();
    let device = fs::metadata(p.mnt()).expect("it answers").dev();
    p.ask(&["SET", "k", "v"]);
    // Another file with the same program.
    let copy = p.dir.path().join("kvfs-new");
    install_program(&copy);
    let said = succeeds(Command::new(&copy).args(["mount", "--upgrade"]).arg(p.mnt()));
    assert!(said.starts_with(&format!("process {before} goes on with ")), "{said}");
    assert_eq!((p.pid(), program_of(before)), (before, copy));
    assert_eq!(fs::metadata(p.mnt()).expect("it answers").dev(), device);
    assert_eq!(p.ask(&["GET", "k"]), "v");
    // The daemon changes back, by the store's name.
    succeeds(kvfs(&["mount", "--upgrade"]).arg(p.store()));
    assert_eq!(program_of(before), Path::new(env!("CARGO_BIN_EXE_kvfs")));
    succeeds(&mut p.umount());
    assert!(succeeds(kvfs(&["check"]).arg(p.store())).contains("clean"));
}

#[test]
fn what_a_program_has_open_and_locked_stays_so() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).open(p.mnt().join(name)).expect("opened")
    };
    let (named, nameless, locked) = (open("named"), open("nameless"), open("locked"));
    named.write_all_at(b"named", 0).expect("written");
    nameless.write_all_at(&[7; 100_000], 0).expect("written");
    fs::remove_file(p.mnt().join("nameless")).expect("removed");
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let before = [seen(&named), seen(&nameless)];
    // A program that works in a removed directory, and one that has mapped a file.
    fs::create_dir(p.mnt().join("cwd")).expect("made");
    let mut stays = Command::new("sh")
        .args(["-c", "rmdir ../cwd; read word; ls -a; stat -c %h ."])
        .current_dir(p.mnt().join("cwd"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    until("it is removed", || !p.mnt().join("cwd").exists());
    let map = memory_of(&named, 4096);
    for round in 0..20u8 {
        succeeds(&mut p.upgrade());
        // SAFETY: the mapping is this long, and nothing refers into it.
        unsafe { map.add(100).write_volatile(round) };
        // The writes do not go to the same page, since a kernel that gathers writes may lose such a
        // write (docs/fuse.md).
        named.write_all_at(&[round], 8192 + u64::from(round)).expect("written");
    }
    assert_eq!([seen(&named).0, seen(&nameless).0], [before[0].0, before[1].0]);
    assert_eq!(seen(&nameless).1, before[1].1);
    let (_, content) = seen(&named);
    assert_eq!((&content[..5], content[100]), (&b"named"[..], 19));
    assert_eq!(content[8192..], (0..20).collect::<Vec<u8>>());
    assert_eq!(nameless.metadata().expect("attributes").nlink(), 0);
    let other = File::open(p.mnt().join("locked")).expect("opened");
    let taken = rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(taken, Err(rustix::io::Errno::WOULDBLOCK), "the lock is still there");
    drop(stays.stdin.take());
    let mut listed = String::new();
    stays.stdout.take().expect("piped").read_to_string(&mut listed).expect("UTF-8");
    assert!(stays.wait().expect("it ends").success());
    assert_eq!(listed, "0\n", "a removed directory has no entries");
    // SAFETY: it was mapped like this, and nothing refers into it.
    unsafe { libc::munmap(map.cast(), 4096) };
    drop((named, nameless, locked, other));
    succeeds(&mut p.umount());
    assert!(succeeds(kvfs(&["check"]).arg(p.store())).contains("clean"));
}

fn memory_of(file: &File, length: usize) -> *mut u8 {
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), length, both, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

#[test]
fn open_transactions_go_on_if_they_are_durable_and_else_hinder_it() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let begin = |durable: &[&str]| {
        let said = succeeds(kvfs(&["txn", "begin"]).arg(p.mnt()).args(durable));
        said.trim().to_string()
    };
    let end = |how: &str, id: &str| succeeds(kvfs(&["txn", how]).arg(p.mnt()).arg(id));
    let (lasting, passing) = (begin(&["--durable"]), begin(&[]));
    let view = p.mnt().join(".kvfs/txn").join(&lasting);
    let file = File::create_new(view.join("f")).expect("made");
    file.write_all_at(b"in the transaction", 0).expect("written");
    let said = fails(4, &mut p.upgrade());
    assert!(said.contains(&format!("with the process that serves them: {passing}\n")), "{said}");
    assert_eq!(seen(&file).1, b"in the transaction");
    end("abort", &passing);
    for _ in 0..3 {
        succeeds(&mut p.upgrade());
        assert_eq!(seen(&file).1, b"in the transaction");
        file.write_all_at(b"I", 0).expect("written");
        file.write_all_at(b"i", 0).expect("written");
    }
    assert!(!p.mnt().join("f").exists());
    end("commit", &lasting);
    assert_eq!(fs::read(p.mnt().join("f")).expect("read"), b"in the transaction");
}

#[test]
fn a_program_that_cannot_go_on_changes_nothing() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    let file = File::create_new(p.mnt().join("f")).expect("made");
    // The file answers that it is suitable and otherwise ends at once, or it answers nothing, or it
    // is not a program.
    let fits = "#!/bin/sh\ncase \"$*\" in *--fits*) exit 0;; esac\nexit 1\n";
    for (name, script, why) in [
        ("mute", "#!/bin/sh\nexit 1\n", "does not take over mounts of this version"),
        ("none", "neither\n", "cannot execute"),
    ] {
        let program = p.dir.path().join(name);
        install_script(&program, script);
        let said = asked_to_become(&p, &program);
        assert!(said.contains(why), "{name}: {said}");
        file.write_all_at(b"f", 0).expect("it answers");
    }
    // A program that can no longer be executed after it has answered that it is suitable.
    let program = p.dir.path().join("gone");
    install_script(&program, &fits.replace("exit 0", "rm -- \"$0\"; exit 0"));
    let said = asked_to_become(&p, &program);
    assert!(said.contains("cannot execute"), "{said}");
    assert_eq!((seen(&file).1, p.pid()), (b"f".to_vec(), pid));
    assert_eq!(program_of(pid), Path::new(env!("CARGO_BIN_EXE_kvfs")));
    // Repeating this exhausts no resource.
    succeeds(&mut p.upgrade());
    drop(file);
    succeeds(&mut p.umount());
    assert!(succeeds(kvfs(&["check"]).arg(p.store())).contains("clean"));
}

#[test]
fn a_program_that_finds_out_too_late_gives_the_mount_back() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    let file = File::create_new(p.mnt().join("f")).expect("made");
    file.write_all_at(b"f", 0).expect("written");
    fs::remove_file(p.mnt().join("f")).expect("removed");
    // The program would have negotiated other options with the kernel.
    let program = p.dir.path().join("other");
    let real = env!("CARGO_BIN_EXE_kvfs");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--fits*) exit 0;; esac\nexec {real} \"$@\" -o writeback\n"
    );
    install_script(&program, &script);
    let said = asked_to_become(&p, &program);
    assert!(said.contains("would agree with the kernel on something else"), "{said}");
    assert_eq!((seen(&file).1, p.pid()), (b"f".to_vec(), pid));
    assert_eq!(program_of(pid), Path::new(real));
    succeeds(&mut p.upgrade());
    assert_eq!(seen(&file).1, b"f");
    drop(file);
    succeeds(&mut p.umount());
    assert!(succeeds(kvfs(&["check"]).arg(p.store())).contains("clean"));
}

/// Asks the daemon as `kvfs mount --upgrade` does, but to become any program. Returns its answer.
fn asked_to_become(p: &Place, program: &Path) -> String {
    answer(ask_to_become(p, program))
}

fn answer(stream: UnixStream) -> String {
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("answered");
    answer
}

fn ask_to_become(p: &Place, program: &Path) -> UnixStream {
    let device = fs::metadata(p.mnt()).expect("it answers").dev();
    let path = format!("/run/kvfs/0:{}.upgrade", rustix::fs::minor(device));
    let listener = UnixListener::bind(&path).expect("nobody else asks");
    kill(p.pid(), Signal::HUP);
    let (stream, _) = listener.accept().expect("it calls");
    fs::remove_file(path).expect("removed");
    writeln!(&stream, "{}", serde_json::json!({"program": program})).expect("asked");
    stream
}

#[test]
fn an_upgrade_that_is_asked_for_during_another_one_is_refused() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    // The program answers that it is suitable when the other one has been requested.
    let (program, gate) = (p.dir.path().join("other"), p.dir.path().join("gate"));
    let real = Path::new(env!("CARGO_BIN_EXE_kvfs"));
    let fits = format!("case \"$*\" in *--fits*) cat {};; esac", gate.display());
    install_script(&program, &format!("#!/bin/sh\n{fits}\nexec {} \"$@\"\n", real.display()));
    succeeds(Command::new("mkfifo").arg(&gate));
    let first = ask_to_become(&p, &program);
    let opened = File::options().write(true).open(&gate).expect("it is asked whether it fits");
    let second = ask_to_become(&p, real);
    // A third one is taken up only when the second has been.
    let _third = ask_to_become(&p, real);
    drop(opened);
    let said = answer(second);
    assert!(said.contains("another upgrade of it is under way"), "{said}");
    let said = answer(first);
    assert!(said.contains("mount_point"), "{said}");
    assert_eq!(p.pid(), pid);
    succeeds(&mut p.umount());
    assert!(succeeds(kvfs(&["check"]).arg(p.store())).contains("clean"));
}

#[test]
fn what_is_asked_of_no_daemon_says_so() {
    let Some(p) = Place::new() else { return };
    let said = fails(3, &mut p.upgrade());
    assert!(said.contains("no daemon of this user serves"), "{said}");
    let pid = p.mounted();
    kill(pid, Signal::STOP);
    let said = fails(4, &mut p.upgrade());
    kill(pid, Signal::CONT);
    assert!(said.contains("is stopped"), "{said}");
    // A signal alone asks for nothing.
    kill(pid, Signal::HUP);
    assert_eq!(p.pid(), pid);
    // A program that could not be read while the mount is not served.
    let inside = p.mnt().join("kvfs");
    install_program(&inside);
    let said = fails(2, Command::new(&inside).args(["mount", "--upgrade"]).arg(p.mnt()));
    assert!(said.contains("lies in the mount itself"), "{said}");
    until("it is unmounted", || p.umount().output().expect("kvfs runs").status.success());
    if !p.mount(&["-o", "transport=uring"]).output().expect("kvfs runs").status.success() {
        eprintln!("SKIPPED: there are no requests over io_uring here");
        return;
    }
    let said = fails(1, &mut p.upgrade());
    assert!(said.contains("come over io_uring"), "{said}");
}

/// The daemon finishes in time or not, and the waiting command learns the result.
#[test]
fn an_upgrade_of_a_daemon_that_is_stopped_or_unmounted_just_then_ends() {
    let Some(p) = Place::new() else { return };
    let (mut stopped, mut pid) = (0, p.mounted());
    for round in 0..40 {
        if p.entry().is_none() {
            pid = p.mounted();
        }
        let mut asks = p.upgrade().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let asks = asks.as_mut().expect("kvfs");
        for _ in 0..round * 500 {
            std::hint::black_box(fs::metadata(p.mnt()).is_ok());
        }
        let stops = round % 4 != 3;
        match stops {
            true => kill(pid, Signal::STOP),
            false => drop(p.umount().output()),
        }
        let mut ended = None;
        until("it ends", || {
            ended = asks.try_wait().expect("it is ours");
            ended.is_some()
        });
        let mut said = String::new();
        asks.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
        let ended = ended.expect("it was waited for");
        assert!(ended.success() || said.starts_with("kvfs: "), "{ended}: {said}");
        if stops {
            stopped += usize::from(said.contains("is stopped"));
            kill(pid, Signal::CONT);
        }
    }
    assert!(stopped > 0, "none was stopped in time");
    until("it is unmounted", || {
        p.entry().is_none() || p.umount().output().expect("kvfs").status.success()
    });
    until("it can be checked", || {
        let checked = kvfs(&["check"]).arg(p.store()).output().expect("kvfs");
        checked.status.success() && text(&checked.stdout).contains("clean")
    });
}

#[test]
fn addresses_and_ends_are_what_they_were() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&["--metrics", "127.0.0.1:0"]));
    let record = || {
        let said = succeeds(kvfs(&["--json", "stat"]).arg(p.mnt()));
        let stat: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        stat["daemon"]["metrics"].clone()
    };
    let before = record();
    succeeds(&mut p.upgrade());
    succeeds(&mut p.upgrade());
    assert_eq!(record(), before);
    // The daemon still listens to signals.
    let pid = p.pid();
    kill(pid, Signal::TERM);
    until("it has ended", || !place::is_alive(pid));
    assert!(p.entry().is_none());
    assert!(succeeds(kvfs(&["check"]).arg(p.store())).contains("clean"));
}

#[test]
fn git_sqlite_and_a_build_see_no_error() {
    for mode in ["nowriteback", "writeback"] {
        let Some(p) = Place::new() else { return };
        succeeds(&mut p.mount(&["-o", mode]));
        let over = p.dir.path().join("over");
        let mut programs = programs::Programs::start(&p.mnt(), &over);
        for _ in 0..20 {
            succeeds(&mut p.upgrade());
            programs.none_has_ended(mode);
        }
        programs.end(&over, mode);
        succeeds(&mut p.umount());
        let checked = succeeds(kvfs(&["check"]).arg(p.store()));
        assert!(checked.contains("clean"), "{}", text(checked.as_bytes()));
    }
}

/// Measures how long a program waits for its answer during an upgrade.
#[test]
#[ignore = "a measurement: make measurements"]
fn how_long_programs_wait() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let measure = |what: &str| {
        let mut longest: Vec<Duration> = (0..20)
            .map(|_| {
                let over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    let asks = scope.spawn(|| {
                        let mut longest = Duration::ZERO;
                        while !over.load(Ordering::Relaxed) {
                            let begun = Instant::now();
                            // The kernel never answers this by itself.
                            rustix::fs::statvfs(p.mnt()).expect("answered");
                            longest = longest.max(begun.elapsed());
                        }
                        longest
                    });
                    succeeds(&mut p.upgrade());
                    over.store(true, Ordering::Relaxed);
                    asks.join().expect("no error")
                })
            })
            .collect();
        longest.sort();
        println!("{what}: the longest wait of 20 upgrades each: {longest:.0?}");
    };
    measure("empty");
    for dir in 0..50 {
        let dir = p.mnt().join(format!("d{dir}"));
        fs::create_dir(&dir).expect("made");
        (0..1000).for_each(|n| fs::write(dir.join(n.to_string()), [7; 1000]).expect("written"));
    }
    measure("50,000 files");
    fs::write(p.mnt().join("large"), vec![7; 512 << 20]).expect("written");
    measure("and 512 MiB");
}
