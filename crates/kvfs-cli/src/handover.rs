//! A daemon becomes another program, which goes on with its mount and its store.
//!
//! It asks the new program first whether it fits ([`ask`]), while it still serves. Then it stops,
//! has everything on disk, closes the store, writes what the new program must know into a file in
//! memory, and executes it ([`become_program`]): the process stays the same, and so do its record
//! and its descriptors. Three of these go on: the connection to the kernel, without which the mount
//! would end; the store's file, whose lock no other process gets in between; and that of the one
//! who waits for an answer. From then on, signals that end the process wait until it listens again.
//!
//! **Ways back.** Until the store is closed, all goes on as before. A program that cannot be
//! executed, or cannot go on with the mount before it has answered anything, leaves everything as
//! it was, and the earlier program is executed again, by a descriptor of its file. Only a new
//! program that crashes leaves a dead mount.

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

use crate::daemons;
use crate::output::{Exit, Failure, Outcome};

/// The version of all that is handed over. Programs of different versions do not hand over to each
/// other.
pub const VERSION: u32 = 1;
/// The version of all that a keeper holds. A program of another one does not go on with it.
const KEPT_VERSION: &str = "kept 1";

/// The option whose argument names the file in which the new program finds the state.
pub const RESUME: &str = "--resume";
/// The option by which a program is asked whether it fits.
pub const FITS: &str = "--fits";

/// The state that a program goes on with.
#[derive(Debug)]
pub struct Resumed {
    pub mount: Handover,
    in_use: Vec<u8>,
    /// The store's file, locked.
    store: File,
    /// Who waits for an answer.
    asks: OwnedFd,
    /// The program before, to be executed again where this one cannot go on.
    before: Option<OwnedFd>,
    /// Why this one is executed again.
    failure: Option<Failure>,
    /// All of it, as it came.
    file: File,
}

/// The state of a mount and of the file system on it, as it is written down.
pub struct State<'a> {
    pub mount: &'a Handover,
    pub in_use: &'a InUse,
}

fn failed(what: &str) -> impl Fn(io::Error) -> Failure {
    let what = format!("cannot hand over the mount: {what}");
    move |e| Failure::io(what.clone(), &e)
}

/// The version of what a program finds: of all that is handed over, or that a keeper holds.
fn version(kept: bool) -> Value {
    if kept { KEPT_VERSION.into() } else { VERSION.into() }
}

/// Asks a program whether it goes on with a mount, with the arguments that it would get. `kept`: by
/// what a keeper holds.
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
        .map_err(|e| Failure::io(format!("cannot execute {}", program.display()), &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Err(said.lines().find_map(Failure::from_line).unwrap_or_else(|| {
        let what = format!("{} does not take over mounts of this version", program.display());
        Failure::new(Exit::Failed, what)
    }))
}

/// The answer of a program that is asked: it finds the state at its standard input.
pub fn fits(policy: &Policy, kept: bool) -> Outcome {
    let file = File::from(
        io::stdin().as_fd().try_clone_to_owned().map_err(failed("there is no standard input"))?,
    );
    let (_, mount, _) = read(&file, &version(kept)).map_err(failed("it cannot be read"))?;
    // Not the connection: that stays where it is.
    let mount = Handover::decode(&mount, file.into()).map_err(failed("it cannot be read"))?;
    mount.fits(policy).map_err(crate::failures::of_mount)
}

/// The program that this process becomes.
pub struct Next<'a> {
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    pub store: &'a FileDevice,
    pub asks: OwnedFd,
}

/// Executes another program, which goes on; returns why neither that nor this one again could be.
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
        let what = format!("cannot execute {}", next.program.display());
        as_failed(&mut head, &Failure::io(what, &error));
        Err(execute(Path::new("/proc/self/exe"), next.arguments, &write(state, &head)?))
    };
    match executed() {
        Err(e) => failed("no program could be executed")(e),
        Ok(()) => Failure::new(Exit::Failed, "cannot hand over the mount"),
    }
}

/// The head for the earlier program, which is executed again for this reason.
fn as_failed(head: &mut Value, failure: &Failure) {
    head["before"] = Value::Null;
    head["failure"] = failure.to_line().into();
}

/// Has descriptors stay in a program that is executed.
pub fn keep<'a>(fds: impl IntoIterator<Item = rustix::fd::BorrowedFd<'a>>) -> io::Result<()> {
    fds.into_iter().try_for_each(|fd| Ok(rustix::io::fcntl_setfd(fd, FdFlags::empty())?))
}

/// Executes a program with these arguments and a file in memory; returns why it cannot be.
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

/// Signals that end the process wait until it listens to them again ([`heed_signals`]).
pub fn hold_signals() {
    mask_signals(libc::SIG_BLOCK);
}

/// Signals that end this process, and whether they have come.
static CAME: OnceLock<[(libc::c_int, Arc<AtomicBool>); 2]> = OnceLock::new();

/// From now on a signal that ends this process is not forgotten when it becomes another program.
pub fn note_signals() -> io::Result<()> {
    let came = CAME.get_or_init(|| [libc::SIGTERM, libc::SIGINT].map(|s| (s, Arc::default())));
    let mut noted = came.iter().map(|(s, came)| signal_hook::flag::register(*s, came.clone()));
    noted.try_for_each(|noted| noted.map(drop))
}

/// Leaves signals that have come to the next program: the thread that was to act on them may not
/// have done it, and goes. They stay with this thread, which does not take them.
fn leave_signals() {
    for (signal, came) in CAME.get().into_iter().flatten() {
        if came.load(Ordering::SeqCst) {
            // SAFETY: the call takes a number.
            unsafe { libc::raise(*signal) };
        }
    }
}

/// To be called when the process listens to signals again.
pub fn heed_signals() {
    mask_signals(libc::SIG_UNBLOCK);
}

fn mask_signals(how: libc::c_int) {
    // SAFETY: the set is made by the calls that are there for it, and lives until they return.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(how, &set, std::ptr::null_mut());
    }
}

/// A file in memory with a head, what is to be known of the mount, and of the file system.
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

/// Head, mount and file system, as [`write`] has written them.
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

/// Takes a descriptor over that was left for this process.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number is only looked at; one that is no descriptor is an error.
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
            // First what is needed for the way back.
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

    /// The store's file and what is in use of the file system.
    pub fn store_and_use(&self) -> Outcome<(File, InUse)> {
        let store = self.store.try_clone().map_err(failed("the store's file cannot be taken"))?;
        let in_use = InUse::decode(&self.in_use);
        Ok((store, in_use.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?))
    }

    /// Who waits for an answer.
    pub fn asks(&self) -> &OwnedFd {
        &self.asks
    }

    /// Who waits for an answer, and what it is where the new program could not go on.
    pub fn into_asks(self) -> (OwnedFd, Option<Failure>) {
        (self.asks, self.failure)
    }

    /// Executes the program before again, since this one cannot go on and has answered nothing;
    /// returns where that cannot be.
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
