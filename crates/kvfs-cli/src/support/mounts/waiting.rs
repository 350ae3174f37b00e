//! Tells the user that a command waits for the daemon of a mount, and that the daemon does not
//! answer: it may be stopped, or hang. The command continues to wait, and Ctrl-C ends it.
//!
//! A command may simply take long. So a running daemon is sent a cheap command during the wait,
//! over a connection of its own.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use env::sync::{Condvar, Mutex};
use kvdb_server::Client;
use kvfs_fuse::mounts::{self, MountEntry};

use crate::support::mounts::daemons::Record;
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// The time to wait before anything is reported, and the time that a daemon may take for a cheap
/// command.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The longest interval between checks of a daemon that answers.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

struct Wait {
    number: u64,
    on: PathBuf,
    /// When to check next whether the daemon answers.
    due: Instant,
    /// The interval to the check after that. A command that waits for others may wait for hours.
    pause: Duration,
}

static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());
static BEGUN: Condvar = Condvar::new();
static NEXT: AtomicU64 = AtomicU64::new(0);
static WATCHER: Once = Once::new();
static IS_SILENT: AtomicBool = AtomicBool::new(false);
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The most arguments of a command that are watched: they are rarely in many mounts.
const MOST_ARGUMENTS: usize = 8;

/// Registers a wait for the daemon of a store, until this is dropped.
#[must_use]
pub struct Waiting {
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITS.lock().retain(|wait| wait.number != self.number);
    }
}

/// Suppresses all reports from now on, since the output is for programs or a screen.
pub fn be_silent() {
    IS_SILENT.store(true, Ordering::Release);
}

/// Writes all reports from now on as JSON, a line each.
pub fn speak_json() {
    IS_JSON.store(true, Ordering::Release);
}

/// Registers waits for the daemons that serve the arguments of a command, from its first look at a
/// path until these are dropped. An argument that is not a path in a mount waits for no daemon.
pub fn on_arguments(arguments: &[OsString]) -> Vec<Waiting> {
    let words = arguments.iter().skip(1).take_while(|word| *word != "--");
    let paths = words.filter(|word| !word.as_bytes().starts_with(b"-"));
    paths.take(MOST_ARGUMENTS).map(|path| on(Path::new(path))).collect()
}

/// Registers a wait for the daemon that serves `target`: the directory of a mount, anything in it,
/// the store or its socket.
pub fn on(target: &Path) -> Waiting {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let due = Instant::now() + PATIENCE;
    WAITS.lock().push(Wait { number, on: target.into(), due, pause: PATIENCE });
    BEGUN.notify_all();
    // If the thread cannot be started, nothing is reported.
    WATCHER.call_once(|| {
        without_signals(|| std::thread::Builder::new().name("kvfs-waiting".into()).spawn(watch));
    });
    Waiting { number }
}

/// Starts a thread with all signals blocked, since other threads wait for them.
fn without_signals<T>(start: impl FnOnce() -> T) {
    // SAFETY: both sets are initialised by the calls that are given them.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) == 0 {
            drop(start());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
    }
}

fn watch() {
    let mut waits = WAITS.lock();
    loop {
        let Some((number, on, due)) =
            waits.iter().min_by_key(|wait| wait.due).map(|w| (w.number, w.on.clone(), w.due))
        else {
            BEGUN.wait(&mut waits);
            continue;
        };
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            // A wait that begins in the meantime is due later.
            drop(waits);
            std::thread::sleep(left);
            waits = WAITS.lock();
            continue;
        }
        drop(waits);
        let record = of_target(&on);
        let problem = record.as_ref().and_then(problem);
        waits = WAITS.lock();
        let Some(at) = waits.iter().position(|wait| wait.number == number) else { continue };
        match problem {
            // Report a problem only once, though the command waits for the daemon in several ways.
            Some(problem) => {
                let pid = record.map(|record| record.pid);
                waits.retain(|wait| {
                    wait.number != number && of_target(&wait.on).map(|other| other.pid) != pid
                });
                report(&problem);
            }
            None => {
                let wait = &mut waits[at];
                wait.due = Instant::now() + wait.pause;
                wait.pause = (2 * wait.pause).min(LONGEST_PAUSE);
            }
        }
    }
}

fn report(problem: &str) {
    if IS_SILENT.load(Ordering::Acquire) {
        return;
    }
    if IS_JSON.load(Ordering::Acquire) {
        let line = serde_json::json!({ "waiting": problem });
        eprintln!("{}", text::show_json(&line).unwrap_or_default());
    } else {
        eprintln!("kvfs: {}", text::show_message(problem));
    }
}

/// Finds the daemon that serves a target in the kernel's table and the records: accessing the mount
/// itself would wait, too.
pub fn of_target(target: &Path) -> Option<Record> {
    let path = std::path::absolute(target).ok()?;
    let mount = mounts::mount_of(&path).ok()?.filter(MountEntry::is_fuse);
    let by_mount = mount.and_then(|mount| Record::read(&mount.device)).filter(Record::is_alive);
    by_mount.or_else(|| {
        Record::of_living().into_iter().find(|record| {
            record.socket.as_ref() == Some(&path)
                || record.store == path
                || path.starts_with(&record.mount_point)
        })
    })
}

/// Returns the sentence that a daemon does not answer.
pub fn unanswered(record: &Record) -> String {
    let (mount, pid) = (record.mount_point.shown(), record.pid);
    let stopped = match record.is_stopped() {
        true => format!(". It is stopped: kill -CONT {pid} has it go on"),
        false => String::new(),
    };
    format!("the daemon of {mount} (process {pid}) does not answer; waiting{stopped}")
}

/// Checks a daemon, and returns the sentence if it does not answer.
fn problem(record: &Record) -> Option<String> {
    if record.is_stopped() {
        return Some(unanswered(record));
    }
    let socket = record.socket.clone()?;
    let (answered, answer) = mpsc::channel();
    // This connection may block, too; its thread then ends with the process.
    std::thread::Builder::new()
        .name("kvfs-waiting".into())
        .spawn(move || {
            let _ = Client::connect(&socket).and_then(|mut client| client.call(&[b"PING"]));
            let _ = answered.send(());
        })
        .ok()?;
    let waited = answer.recv_timeout(PATIENCE);
    (waited == Err(mpsc::RecvTimeoutError::Timeout)).then(|| unanswered(record))
}
