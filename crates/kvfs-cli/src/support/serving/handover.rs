//! A daemon becomes another program, which takes over its mount and its store.
//!
//! While it still serves, the daemon asks the new program whether it is compatible ([`ask`]). Then
//! it stops, flushes everything to disk, closes the store, writes the state for the new program
//! into an in-memory file, and executes it ([`become_program`]): the process stays the same, and so
//! do its record and its descriptors. Three descriptors are passed on: the connection to the
//! kernel, without which the mount would end; the store's file, whose lock no other process can
//! take in between; and the connection to the waiting caller. From then on, signals that end the
//! process are blocked until the new program handles them.
//!
//! **Ways back.** Until the store is closed, the daemon can simply continue. If the new program
//! cannot be executed, or cannot take over the mount before it has answered anything, it leaves
//! everything unchanged, and the earlier program is executed again, by a descriptor of its file.
//! Only a new program that crashes leaves a dead mount.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs::InUse;
use kvfs_fuse::{Handover, Policy};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::FdFlags;
use serde_json::{Value, json};
use zones::FileDevice;

use crate::support::mounts::daemons;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The version of the handed-over state. Programs of different versions do not hand over to each
/// other.
pub const VERSION: u32 = 1;
/// The version of the state that a keeper holds. A program of a different version does not take it
/// over.
const KEPT_VERSION: &str = "kept 1";

/// The option whose argument names the file with the state for the new program.
pub const RESUME: &str = "--resume";
/// The option that asks a program whether it is compatible.
pub const FITS: &str = "--fits";

/// The state that a program takes over.
#[derive(Debug)]
pub struct Resumed {
    pub mount: Handover,
    in_use: Vec<u8>,
    /// The store's file, locked.
    store: File,
    /// Leads to the caller that waits for an answer.
    asks: OwnedFd,
    /// The previous program, to be executed again if this one cannot take over.
    before: Option<OwnedFd>,
    /// The reason why this program is executed again.
    failure: Option<Failure>,
    /// The file with the whole state, as received.
    file: File,
}

/// The state of a mount and of its file system, to be encoded.
pub struct State<'a> {
    pub mount: &'a Handover,
    pub in_use: &'a InUse,
}

fn failed(what: &str) -> impl Fn(io::Error) -> Failure {
    let what = format!("cannot hand over the mount: {what}");
    move |e| Failure::io(what.clone(), &e)
}

/// Returns the version of the state that a program takes over: of a handover, or of a keeper's.
fn version(kept: bool) -> Value {
    if kept { KEPT_VERSION.into() } else { VERSION.into() }
}

/// Asks a program whether it can take over a mount, with the arguments that it would get. `kept`
/// says that it would take over a keeper's state.
pub fn ask(program: &Path, arguments: &[OsString], state: &State<'_>, kept: bool) -> Outcome {
    let file = write(state, &json!({"version": version(kept)}))
        .map_err(failed("what there is to know could not be written"))?;
    let output = Command::new(program)
        .args(arguments)
        .arg(FITS)
        .stdin(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .output()
        .map_err(|e| Failure::io(format!("cannot execute {}", program.shown()), &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Err(said.lines().find_map(Failure::from_line).unwrap_or_else(|| {
        let what = format!("{} does not take over mounts of this version", program.shown());
        Failure::new(Exit::Failed, what)
    }))
}

/// Answers [`ask`] in the program that is asked, which gets the state at its standard input.
pub fn fits(policy: &Policy, kept: bool) -> Outcome {
    let file = File::from(
        io::stdin().as_fd().try_clone_to_owned().map_err(failed("there is no standard input"))?,
    );
    let (_, mount, _) = read(&file, &version(kept)).map_err(failed("it cannot be read"))?;
    // Pass the file in place of the connection, which stays with the daemon.
    let mount = Handover::decode(&mount, file.into()).map_err(failed("it cannot be read"))?;
    mount.fits(policy).map_err(crate::support::terminal::failures::of_mount)
}

/// The program that this process becomes.
pub struct Next<'a> {
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    pub store: &'a FileDevice,
    pub asks: OwnedFd,
}

/// Executes another program, which takes over. Returns the failure if neither that nor this program
/// again could be executed.
pub fn become_program(next: Next<'_>, state: &State<'_>) -> Failure {
    let executed = || -> io::Result<()> {
        let this =
            rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let file = zones::Device::host_file(next.store);
        let store = rustix::io::dup(file.ok_or(io::ErrorKind::NotConnected)?)?;
        let fds = [state.mount.as_fd(), store.as_fd(), next.asks.as_fd(), this.as_fd()];
        let [connection, store, asks, before] = fds.map(|fd| fd.as_raw_fd());
        let arguments: Vec<_> =
            next.arguments.iter().map(|w| daemons::escape(Path::new(w))).collect();
        let mut head = json!({
            "version": VERSION, "connection": connection, "store": store, "asks": asks,
            "before": before, "arguments": arguments,
        });
        keep(fds)?;
        hold_signals();
        leave_signals();
        let error = execute(next.program, next.arguments, &write(state, &head)?);
        tracing::error!("{} cannot be executed: {error}", next.program.display());
        let what = format!("cannot execute {}", next.program.shown());
        as_failed(&mut head, &Failure::io(what, &error));
        Err(execute(Path::new("/proc/self/exe"), next.arguments, &write(state, &head)?))
    };
    match executed() {
        Err(e) => failed("no program could be executed")(e),
        Ok(()) => Failure::new(Exit::Failed, "cannot hand over the mount"),
    }
}

/// Changes the head for the earlier program, which is executed again because of this failure.
fn as_failed(head: &mut Value, failure: &Failure) {
    head["before"] = Value::Null;
    head["failure"] = failure.to_line().into();
}

/// Keeps descriptors open in a program that is executed.
pub fn keep<'a>(fds: impl IntoIterator<Item = rustix::fd::BorrowedFd<'a>>) -> io::Result<()> {
    fds.into_iter().try_for_each(|fd| Ok(rustix::io::fcntl_setfd(fd, FdFlags::empty())?))
}

/// Executes a program with these arguments and an in-memory file. Returns only on an error.
fn execute(program: &Path, arguments: &[OsString], file: &File) -> io::Error {
    if let Err(e) = keep([file.as_fd()]) {
        return e;
    }
    let words = [program.as_os_str().to_owned()].into_iter().chain(arguments.iter().cloned());
    let words = words.chain([RESUME.into(), file.as_raw_fd().to_string().into()]);
    let words: Result<Vec<_>, _> = words.map(|word| CString::new(word.into_vec())).collect();
    let (Ok(words), Ok(path)) = (words, CString::new(program.as_os_str().as_bytes())) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: these are strings that end with a zero and live until the call returns, in a list
    // that ends with a null pointer.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Blocks the signals that end the process until it handles them again ([`heed_signals`]).
pub fn hold_signals() {
    mask_signals(libc::SIG_BLOCK);
}

/// The signals that end this process, and whether they have arrived.
static CAME: OnceLock<[(libc::c_int, Arc<AtomicBool>); 2]> = OnceLock::new();

/// Records signals that end this process from now on, so that they are not lost when it becomes
/// another program.
pub fn note_signals() -> io::Result<()> {
    let came = CAME.get_or_init(|| [libc::SIGTERM, libc::SIGINT].map(|s| (s, Arc::default())));
    let mut noted = came.iter().map(|(s, came)| signal_hook::flag::register(*s, came.clone()));
    noted.try_for_each(|noted| noted.map(drop))
}

/// Raises the recorded signals again for the next program: the thread that handles them ends, and
/// may not have acted on them yet. They stay pending on this thread, which blocks them.
fn leave_signals() {
    for (signal, came) in CAME.get().into_iter().flatten() {
        if came.load(Ordering::SeqCst) {
            // SAFETY: the call takes a number.
            unsafe { libc::raise(*signal) };
        }
    }
}

/// Unblocks the signals once the process handles them again.
pub fn heed_signals() {
    mask_signals(libc::SIG_UNBLOCK);
}

fn mask_signals(how: libc::c_int) {
    // SAFETY: the set is made by the calls for that purpose, and lives until they return.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(how, &set, std::ptr::null_mut());
    }
}

/// Writes an in-memory file with a head and the states of the mount and of the file system.
fn write(state: &State<'_>, head: &Value) -> io::Result<File> {
    write_parts([head.to_string().as_bytes(), &state.mount.encode(), &state.in_use.encode()])
}

fn write_parts(parts: [&[u8]; 3]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("kvfs-handover", MemfdFlags::CLOEXEC)?);
    for part in parts {
        file.write_all(&(part.len() as u64).to_ne_bytes())?;
        file.write_all(part)?;
    }
    file.rewind()?;
    Ok(file)
}

/// Reads the head and the states of the mount and of the file system that [`write`] has written.
fn read(mut file: &File, version: &Value) -> io::Result<(Value, Vec<u8>, Vec<u8>)> {
    let malformed = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut all = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut all)?;
    let mut rest = &all[..];
    let mut part = || -> io::Result<Vec<u8>> {
        let (length, behind) = rest.split_first_chunk().ok_or_else(|| malformed("it is short"))?;
        let length = usize::try_from(u64::from_ne_bytes(*length)).unwrap_or(usize::MAX);
        let (part, behind) =
            behind.split_at_checked(length).ok_or_else(|| malformed("it is short"))?;
        rest = behind;
        Ok(part.to_vec())
    };
    let (head, mount, in_use) = (part()?, part()?, part()?);
    let head: Value = serde_json::from_slice(&head)?;
    if head["version"] != *version {
        return Err(malformed("it is of another version"));
    }
    Ok((head, mount, in_use))
}

/// Takes over a descriptor that was left for this process.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call only examines the number, and fails if it is not a descriptor.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, and was left for this process by itself before it became this program;
    // nothing here has opened or taken it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}

impl Resumed {
    /// Reads the state that an earlier program left at this descriptor.
    pub fn from_descriptor(number: RawFd) -> Outcome<Resumed> {
        let resumed = || -> io::Result<Resumed> {
            let file = File::from(inherited(number)?);
            let (head, mount, in_use) = read(&file, &version(false))?;
            let fd = |name: &str| {
                let number = head[name].as_i64().and_then(|n| RawFd::try_from(n).ok());
                number.map(inherited).transpose()
            };
            let left =
                |name: &str| fd(name)?.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
            // Take the descriptors for the way back first.
            let (before, asks) = (fd("before")?, left("asks")?);
            Ok(Resumed {
                mount: Handover::decode(&mount, left("connection")?)?,
                in_use,
                store: left("store")?.into(),
                asks,
                before,
                failure: head["failure"].as_str().and_then(Failure::from_line),
                file,
            })
        };
        resumed().map_err(failed("what was left cannot be used"))
    }

    /// Returns the store's file and the state of the file system.
    pub fn store_and_use(&self) -> Outcome<(File, InUse)> {
        let store = self.store.try_clone().map_err(failed("the store's file cannot be taken"))?;
        let in_use = InUse::decode(&self.in_use);
        Ok((store, in_use.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?))
    }

    /// Returns the descriptor of the caller that waits for an answer.
    pub fn asks(&self) -> &OwnedFd {
        &self.asks
    }

    /// Returns the descriptor of the caller that waits for an answer, and the failure if the new
    /// program could not take over.
    pub fn into_asks(self) -> (OwnedFd, Option<Failure>) {
        (self.asks, self.failure)
    }

    /// Executes the previous program again, since this one cannot take over and has answered
    /// nothing. Returns only on failure.
    pub fn give_back(&self, failure: &Failure) {
        let Some(before) = &self.before else { return };
        let executed = || -> io::Result<()> {
            // The descriptors have kept their numbers.
            let (mut head, mount, in_use) = read(&self.file, &version(false))?;
            as_failed(&mut head, failure);
            let words = head["arguments"].as_array().into_iter().flatten();
            let arguments: Vec<OsString> =
                words.filter_map(|word| Some(daemons::unescape(word.as_str()?).into())).collect();
            let file = write_parts([head.to_string().as_bytes(), &mount, &in_use])?;
            keep([self.mount.as_fd(), self.store.as_fd(), self.asks.as_fd()])?;
            hold_signals();
            let path = PathBuf::from(format!("/proc/self/fd/{}", before.as_raw_fd()));
            Err(execute(&path, &arguments, &file))
        };
        if let Err(e) = executed() {
            tracing::error!("the program before cannot be executed again: {e}");
        }
    }
}
