//! `kvfs mount --upgrade`: replaces the program of a mount's daemon by this one, while programs use
//! the mount.
//!
//! This process listens at a socket next to the daemon's record and sends the daemon SIGHUP. The
//! daemon connects, receives the path of the new program, and answers with a failure; or it becomes
//! that program (`handover`), which inherits the connection and answers that it serves. A daemon
//! with a keeper answers that another process follows it (`keeper`), whose record shows that it
//! serves. If there is no answer, the connection ends. A daemon that is stopped (SIGSTOP) would
//! never answer, so its state is checked from time to time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvfs_fuse::mounts::{self, MountEntry};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::machine::paths;
use crate::support::mounts::daemons::{self, Record};
use crate::support::serving::handover;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// The time limit for the first words of the other end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The polling interval for whether an awaited process is stopped.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The polling interval for whether another process serves.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Makes the daemon that serves `target` become this program.
pub fn run(target: &Path, output: &Output) -> Outcome {
    let record = daemon_of(target)?;
    let program = std::env::current_exe()
        .map_err(|e| Failure::io("cannot find this program's own file", &e))?;
    must_lie_elsewhere(&program, &record)?;
    let listening = Listening::at(&socket_of(&record.device))
        .map_err(|e| Failure::io("cannot listen for the daemon's answer", &e))?;
    let stream = call(&record, &listening)?;
    drop(listening);
    let answer = ask(&stream, &program, &record)?;
    let goes_on = match keeper_in(&answer) {
        Some(keeper) => Some(follower(&record, keeper, &program, &stream)?),
        None => Record::from_line(&answer),
    };
    match (goes_on, Failure::from_line(&answer)) {
        (Some(record), _) => {
            let said = format!(
                "process {} goes on with {} on {} as kvfs {}",
                record.pid,
                record.store.shown(),
                record.mount_point.shown(),
                env!("CARGO_PKG_VERSION"),
            );
            let value = json!({"pid": record.pid, "device": record.device});
            let paths =
                [("store", Some(&*record.store)), ("mount_point", Some(&*record.mount_point))];
            output.print(said, text::with_paths(value, &paths))
        }
        (None, Some(failure)) => Err(failure),
        (None, None) => {
            let what = format!("process {} ended, or gave up, without an answer", record.pid);
            Err(with_log(Failure::new(Exit::Failed, what), record.log.as_deref()))
        }
    }
}

/// Returns the daemon to replace.
fn daemon_of(target: &Path) -> Outcome<Record> {
    let cannot = |e: io::Error| Failure::io(format!("cannot find {}", target.shown()), &e);
    // Do not access the mount first: a stopped daemon does not answer.
    let beside = paths::path_beside(target).ok().and_then(|path| mounts::mount_at(&path).ok()?);
    let (path, mount) = match beside {
        Some(mount) => (mount.mount_point.clone(), Some(mount)),
        None => {
            let path = paths::full_path(target).map_err(cannot)?;
            let mount = mounts::mount_of(&path).map_err(cannot)?;
            (path, mount)
        }
    };
    let mount = mount.filter(MountEntry::is_fuse);
    let of_mount = mount.and_then(|mount| Record::read(&mount.device));
    let record = of_mount.filter(Record::is_alive).or_else(|| Record::of_store(&path));
    let record = record.filter(|record| !record.closing).ok_or_else(|| {
        let what = format!("no daemon of this user serves {}", target.shown());
        Failure::new(Exit::NotFound, what).hint("kvfs list shows what is mounted")
    })?;
    must_run(&record)?;
    if record.handover != Some(handover::VERSION) {
        let (mount, pid) = (record.mount_point.shown(), record.pid);
        let what =
            format!("process {pid} is of a version that cannot hand {mount} over to this one");
        return Err(Failure::new(Exit::Failed, what).hint("unmount it, and mount it again"));
    }
    Ok(record)
}

/// Fails if the process is stopped by a signal.
fn must_run(record: &Record) -> Outcome {
    if record.is_stopped() { Err(is_stopped(record.pid, record)) } else { Ok(()) }
}

fn is_stopped(pid: i32, record: &Record) -> Failure {
    let mount = record.mount_point.shown();
    let what = format!("process {pid}, which serves {mount}, is stopped");
    Failure::new(Exit::Busy, what).hint(format!("kill -CONT {pid}"))
}

/// Adds a hint at the log, if there is one.
fn with_log(failure: Failure, log: Option<&Path>) -> Failure {
    match log {
        Some(log) => failure.hint(format!("see {}", log.shown())),
        None => failure,
    }
}

/// Fails if the program lies in the mount, since it could not be read while the mount is not
/// served.
fn must_lie_elsewhere(program: &Path, record: &Record) -> Outcome {
    let device = program.metadata().map(|m| m.dev());
    let device = device.map_err(|e| Failure::io("cannot find this program's own file", &e))?;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    match device == record.device {
        false => Ok(()),
        true => {
            Err(Failure::new(Exit::Usage, format!("{} lies in the mount itself", program.shown()))
                .hint("copy it elsewhere, and start it from there"))
        }
    }
}

fn socket_of(device: &str) -> PathBuf {
    daemons::directory().join(format!("{device}.upgrade"))
}

/// A socket that is removed when this is dropped.
struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

impl Listening {
    fn at(path: &Path) -> io::Result<Listening> {
        let listener = match UnixListener::bind(path) {
            // The socket of a dead process refuses connections.
            Err(e)
                if e.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() =>
            {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                Err(io::Error::new(e.kind(), "another upgrade of it is under way"))
            }
            bound => bound,
        }?;
        Ok(Listening { listener, path: path.to_path_buf() })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes the daemon connect.
fn call(record: &Record, listening: &Listening) -> Outcome<UnixStream> {
    let ended = || Failure::new(Exit::Failed, format!("process {} has ended", record.pid));
    let cannot = |e: io::Error| Failure::io(format!("cannot talk to process {}", record.pid), &e);
    let process = record.process().ok_or_else(ended)?;
    let pid = Pid::from_raw(record.pid).ok_or_else(ended)?;
    kill_process(pid, Signal::HUP).map_err(|e| cannot(e.into()))?;
    loop {
        let mut polled =
            [PollFd::new(&listening.listener, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&LOOK)) {
            // If the daemon is continued later, it finds that no process listens.
            Ok(0) => must_run(record)?,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(cannot(e.into())),
        }
        if polled[0].revents().contains(PollFlags::IN) {
            let (stream, _) = listening.listener.accept().map_err(cannot)?;
            let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|e| cannot(e.into()));
            // Other connections are from another upgrade, which checks whether this one runs.
            if peer?.pid == pid {
                return Ok(stream);
            }
        } else if !polled[1].revents().is_empty() {
            return Err(ended());
        }
    }
}

/// Tells the daemon which program to become. Returns its answer, which may be empty.
fn ask(stream: &UnixStream, program: &Path, record: &Record) -> Outcome<String> {
    let cannot = |e: io::Error| Failure::io(format!("cannot talk to process {}", record.pid), &e);
    let request = json!({"program": daemons::escape(program)});
    let mut stream = stream;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(cannot)?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    while !answer.contains(&b'\n') {
        match rustix::event::poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) => {
                must_run(record)?;
                continue;
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(cannot(e.into())),
        }
        match stream.read(&mut bytes).map_err(cannot)? {
            0 => break,
            read => answer.extend_from_slice(&bytes[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Parses the keeper that starts the following process.
fn keeper_in(answer: &str) -> Option<Pid> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    Pid::from_raw(i32::try_from(answer["keeper"].as_i64()?).ok()?)
}

/// Waits for the process that follows a daemon with a keeper.
fn follower(before: &Record, keeper: Pid, program: &Path, stream: &UnixStream) -> Outcome<Record> {
    let ended = || {
        let what = format!("the mount on {} is not served any more", before.mount_point.shown());
        with_log(Failure::new(Exit::Failed, what), before.log.as_deref())
    };
    let process = rustix::process::pidfd_open(keeper, rustix::process::PidfdFlags::empty());
    let process = process.map_err(|_| ended())?;
    let mut said = None;
    loop {
        let is_other = |now: &Record| (now.pid, now.started) != (before.pid, before.started);
        let now = Record::read(&before.device);
        if let Some(now) = now.filter(|now| is_other(now) && now.is_alive()) {
            let file = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino())).ok();
            let executes = file(Path::new(&format!("/proc/{}/exe", now.pid)));
            if executes.is_none() || executes == file(program) {
                return Ok(now);
            }
            let what = format!(
                "this program could not go on with {}: process {} does, as the one before",
                now.mount_point.shown(),
                now.pid
            );
            return Err(with_log(Failure::new(Exit::Failed, what), now.log.as_deref()));
        }
        let keeper = keeper.as_raw_nonzero().get();
        if daemons::is_stopped(keeper) {
            return Err(is_stopped(keeper, before));
        }
        // If the daemon could not end, it sends a failure.
        if said.is_none() && before.is_alive() {
            said = more(stream);
        }
        if let Some(failure) = said.as_deref().and_then(Failure::from_line) {
            return Err(failure);
        }
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&SOON)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            _ => return Err(ended()),
        }
    }
}

/// Returns a line if one has arrived.
fn more(stream: &UnixStream) -> Option<String> {
    let now =
        rustix::event::poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&Timespec::default()));
    let mut line = String::new();
    (now == Ok(1)).then(|| BufReader::new(stream).read_line(&mut line).ok())??;
    Some(line)
}

/// The daemon's end of the connection.
pub struct Request {
    stream: OwnedFd,
    /// The program to become.
    pub program: PathBuf,
}

impl Request {
    /// Connects to the caller, or returns `None` if there is none.
    pub fn take(device: &str) -> io::Result<Option<Request>> {
        let stream = match UnixStream::connect(socket_of(device)) {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            stream => stream?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "it says no program");
        let request: serde_json::Value = serde_json::from_str(&line).map_err(|_| malformed())?;
        let program = request["program"].as_str().map(daemons::unescape).ok_or_else(malformed)?;
        Ok(Some(Request { stream: stream.into(), program }))
    }

    /// Answers that another process follows, which the keeper of this process starts.
    pub fn answer_followed(&self) {
        let keeper = rustix::process::getppid().map_or(0, |keeper| keeper.as_raw_nonzero().get());
        let line = format!("{}\n", json!({"keeper": keeper}));
        let _ = rustix::io::write(&self.stream, line.as_bytes());
    }

    /// Answers with a failure, or that the daemon serves as the new program.
    pub fn answer(stream: impl AsFd, outcome: Result<&Record, &Failure>) {
        let line = outcome.map_or_else(Failure::to_line, Record::to_line) + "\n";
        // The caller may be gone.
        let _ = rustix::io::write(stream, line.as_bytes());
    }
}

impl From<Request> for OwnedFd {
    /// Returns the connection for the answer.
    fn from(request: Request) -> OwnedFd {
        request.stream
    }
}

impl AsFd for Request {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
