//! A killed daemon ends, and so do the programs that wait for it. This holds even if the daemon was
//! notifying the kernel of a change, which waits for a lock that one of these programs holds, or
//! was using its own mount.

use crate::way;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use kvfs_fuse::{MountOptions, NodeId, Unmount, mount, unmount};

/// The variable with the directory on which the test's daemon mounts.
const DIRECTORY: &str = "KVFS_TEST_DIRECTORY";
/// Making this in it never ends.
const NEVER: &str = "never";
/// If set, the daemon itself makes that directory.
const ITSELF: &str = "KVFS_TEST_ITSELF";

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The daemon. This is not a test, but the program that `killed` runs in a process of its own.
#[test]
#[ignore = "the daemon that the tests run and kill"]
fn serve() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let memory = Arc::new(Memory::default());
    // The thread that makes the directory has the lock of the root until it is answered, which the
    // message below then waits for.
    let asked = memory.never_make(NEVER);
    let mounted =
        mount(memory.clone(), Path::new(&directory), &MountOptions::default(), &way::policy(false))
            .expect("a mount");
    let cache = mounted.invalidator().expect("it is mounted");
    if std::env::var_os(ITSELF).is_some() {
        let path = Path::new(&directory).join(NEVER);
        // This thread uses the mount as the daemon's own threads do: without its descriptors.
        std::thread::spawn(move || {
            // SAFETY: the table of descriptors is this thread's alone from here on, and it has
            // opened none.
            let left = unsafe {
                libc::syscall(
                    libc::SYS_close_range,
                    3,
                    libc::c_uint::MAX,
                    libc::CLOSE_RANGE_UNSHARE,
                )
            };
            assert_eq!(left, 0, "{}", std::io::Error::last_os_error());
            std::fs::create_dir(path)
        });
        asked.recv().expect("it asks for it");
        std::fs::write(Path::new(&directory).with_extension("asked"), b"").expect("word of it");
        loop {
            std::thread::park();
        }
    }
    asked.recv().expect("a program that asks for it");
    std::fs::write(Path::new(&directory).with_extension("asked"), b"").expect("word of it");
    let _ = cache.expire_name(NodeId::ROOT, NEVER.as_bytes());
    unreachable!("it waits for a lock that its own answer would open");
}

/// Ends what a failed test would leave: nothing else gets rid of processes that hang.
struct CleanUp<'a>(&'a Path, Child);

impl Drop for CleanUp<'_> {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = unmount(self.0, Unmount::Forced);
        let _ = self.1.wait();
    }
}

/// Returns whether a thread of the process waits in this function of the kernel.
fn waits_in(process: u32, function: &str) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let stacks =
        threads.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("stack")).ok());
    stacks.into_iter().any(|stack| stack.contains(function))
}

/// Returns whether this process may mount; if not, prints the reason.
fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root() && std::fs::File::open("/dev/fuse").is_ok();
    if !may {
        eprintln!("SKIPPED: needs root and FUSE");
    }
    may
}

/// A daemon that has mounted on `directory`, which this makes.
fn daemon<'a>(directory: &'a Path, vars: &[(&str, &str)]) -> CleanUp<'a> {
    std::fs::create_dir(directory).expect("a directory");
    let place = directory.canonicalize().expect("a path");
    let process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "killed::serve", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .envs(vars.iter().copied())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("a daemon");
    let daemon = CleanUp(directory, process);
    // A request to the mount itself could wait forever.
    wait_until("mounting", || {
        kvfs_fuse::mounts::mount_at(&place).is_ok_and(|mount| mount.is_some())
    });
    daemon
}

#[test]
fn killed_amid_a_message_to_the_kernel() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let directory = dir.path().join("mount");
    let mut daemon = daemon(&directory, &[]);
    let mut program = Command::new("mkdir")
        .arg(directory.join(NEVER))
        .stderr(Stdio::null())
        .spawn()
        .expect("a program that uses the mount");
    wait_until("asking", || directory.with_extension("asked").exists());
    wait_until("the message", || waits_in(daemon.1.id(), "fuse_reverse_inval_entry"));

    daemon.1.kill().expect("kill");
    wait_until("the end of the daemon", || daemon.1.try_wait().expect("wait").is_some());
    wait_until("the end of the program", || program.try_wait().expect("wait").is_some());
    assert!(!program.wait().expect("wait").success());
    assert!(kvfs_fuse::mounts::is_dead(&directory), "the users of the mount are told so");
}

/// The shell that ends the connection of a daemon that cannot end.
fn watch_of(daemon: u32) -> rustix::process::Pid {
    let parent = format!("PPid:\t{daemon}\n");
    let is_child = |dir: &std::fs::DirEntry| {
        std::fs::read_to_string(dir.path().join("status")).is_ok_and(|s| s.contains(&parent))
    };
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let watch = processes.into_iter().find(is_child).expect("a child of the daemon");
    let number = watch.file_name().to_str().and_then(|name| name.parse().ok());
    rustix::process::Pid::from_raw(number.expect("a number")).expect("a process")
}

/// Kills the daemon with the watch and without it, as on a kernel that does not permit the watch.
#[test]
fn killed_amid_a_call_on_its_own_mount() {
    if !may_mount() {
        return;
    }
    for watched in [true, false] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let directory = dir.path().join("mount");
        let mut daemon = daemon(&directory, &[(ITSELF, "1")]);
        wait_until("asking", || directory.with_extension("asked").exists());
        wait_until("the call", || waits_in(daemon.1.id(), "request_wait_answer"));

        if !watched {
            let watch = watch_of(daemon.1.id());
            rustix::process::kill_process(watch, rustix::process::Signal::KILL).expect("kill");
        }
        daemon.1.kill().expect("kill");
        wait_until("the end of the daemon", || daemon.1.try_wait().expect("wait").is_some());
        wait_until("the end of the mount", || kvfs_fuse::mounts::is_dead(&directory));
    }
}
