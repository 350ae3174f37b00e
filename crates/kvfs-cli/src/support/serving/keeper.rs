//! The keeper of a mount (`-o keeper`): a small process that outlives the daemon, which is its
//! child.
//!
//! The keeper holds the descriptors that must survive the daemon: the connection to the kernel, the
//! store's file with its lock, and four in-memory files: the mirror of the commits that are not in
//! the journal yet (`kvdb::Mirror`), the kernel's references (`kvfs_fuse::Kept`), the views with
//! pending kernel notifications (`kvfs::ViewNotes`), and the state of the mount. If a daemon is
//! killed or crashes, the keeper starts another one, which continues from this state. If a daemon
//! exits, it has unmounted or failed to start: the keeper then ends, too, with the same exit code.
//!
//! **Another version.** A daemon that is asked to become another program (`upgrade`) asks the
//! keeper to execute that from now on, and kills itself: the rest is the same as after any kill. If
//! the new program fails to serve, the previous one is executed again. The keeper itself is not
//! replaced.
//!
//! **Giving up.** Daemons that die repeatedly ([`Deaths`]) end the mount. Their commits are written
//! to disk first, since the mirror is lost with the keeper.
//!
//! The daemon has one end of a pipe, through which it reports that it serves, and the program to
//! become.
//!
//! Signals that end a daemon are forwarded. They are pending until the daemon handles them. One
//! that dies before may not have acted on them, so they are forwarded to the next one, too.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvdb::Mirror;
use kvfs::{InUse, ViewNotes};
use kvfs_fuse::{Handover, Kept, Life};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::support::mounting::mount_options::Options;
use crate::support::mounts::daemons;
use crate::support::serving::deaths::{BegunAnew, Death, Deaths, Next};
use crate::support::serving::handover::{hold_signals, inherited, keep};
use crate::support::stores::store::{self, Access, InHand};
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The option whose argument lists the descriptors that a daemon gets from its keeper.
pub const KEPT: &str = "--kept";

/// Messages of a daemon: that it serves, and which program should follow it.
const SERVES: &str = "serves";
const BECOMES: &str = "becomes ";

/// The time limit of waiting for the threads of a killed daemon to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state that outlives a daemon.
pub struct Held {
    connection: OwnedFd,
    store: File,
    mirror: File,
    references: File,
    views: File,
    /// Empty until the mount exists, then its state as of [`Handover::encode`].
    mount: File,
    /// The end of a pipe that, once the daemon has started, only one of its threads has
    /// ([`kvfs_fuse::live`]).
    life: Option<OwnedFd>,
    /// The number of times that a daemon was restarted, or `None` if the keeper's version does not
    /// report it.
    begun_anew: Option<BegunAnew>,
}

/// The daemon's connection to its keeper.
pub struct Keeper {
    life: Life,
    /// The number of times that the keeper has restarted a daemon.
    pub begun_anew: Option<BegunAnew>,
}

impl Keeper {
    /// Reports that the daemon serves.
    pub fn say_serves(&self) {
        if let Err(e) = self.life.say(format!("{SERVES}\n").as_bytes()) {
            tracing::warn!("the keeper does not know that this process serves: {e}");
        }
    }

    /// Makes the keeper execute the program in place of this process, which kills itself.
    pub fn become_program(&self, program: &Path) -> Failure {
        let said = self.life.say(format!("{BECOMES}{}\n", daemons::escape(program)).as_bytes());
        let killed = said.and_then(|()| Ok(kill_process(rustix::process::getpid(), Signal::KILL)?));
        let cannot = failed("the keeper cannot be told what is to follow");
        cannot(killed.err().unwrap_or_else(|| io::ErrorKind::Interrupted.into()))
    }
}

/// A program that is executed for a daemon. The open file is executed even after another version
/// has taken its name, since that may not be able to read the state held here.
struct Program {
    name: PathBuf,
    file: OwnedFd,
}

impl Program {
    fn at(name: &Path) -> io::Result<Program> {
        let file = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Program { name: name.into(), file })
    }

    fn own() -> io::Result<Program> {
        let name = std::env::current_exe()?;
        Ok(Program { name, ..Program::at(Path::new("/proc/self/exe"))? })
    }

    /// Returns the path to execute.
    fn path(&self) -> PathBuf {
        let by_file = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let file = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino())).ok();
        match file(&self.name) == file(&by_file) {
            true => self.name.clone(),
            false => by_file,
        }
    }
}

/// The lock on a store, which the keeper shares.
pub struct Lock(File);

impl Lock {
    /// Releases the lock after the store is closed, so that others need not wait for the keeper to
    /// end.
    pub fn let_go(self) {
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |e| Failure::io(what, &e)
}

fn in_memory(name: &str) -> Outcome<File> {
    let made = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(|e| failed("cannot make a file in memory")(e.into()))
}

impl Held {
    fn new(store: &Path, options: &Options) -> Outcome<Held> {
        let connection =
            kvfs_fuse::kept_connection().map_err(crate::support::terminal::failures::of_mount)?;
        let writable = !options.mount.read_only || store::keeps_parts(store);
        let store = File::options().read(true).write(writable).open(store);
        Ok(Held {
            connection,
            store: store.map_err(failed("cannot open the store"))?,
            mirror: in_memory("kvfs-mirror")?,
            references: in_memory("kvfs-references")?,
            views: in_memory("kvfs-views")?,
            mount: in_memory("kvfs-mount")?,
            life: None,
            begun_anew: None,
        })
    }

    /// Returns the descriptors in the order in which a daemon takes them.
    fn all(&self) -> [BorrowedFd<'_>; 6] {
        let files = [&self.store, &self.mirror, &self.references, &self.views, &self.mount];
        let [store, mirror, references, views, mount] = files.map(|file| file.as_fd());
        [self.connection.as_fd(), store, mirror, references, views, mount]
    }

    /// Returns the argument of [`KEPT`] for a daemon: the numbers of the descriptors, then how
    /// often a daemon was restarted, and how the last one died.
    fn list(&self, life: &OwnedFd, begun_anew: &BegunAnew) -> String {
        let numbers = self.all().map(|fd| fd.as_raw_fd().to_string()).join(",");
        let list = format!("{numbers},{},{}", life.as_raw_fd(), begun_anew.count);
        begun_anew.last.iter().fold(list, |list, last| format!("{list},{last}"))
    }

    /// Takes over the descriptors that the keeper has left for this process.
    pub fn from_descriptors(list: &str) -> Outcome<Held> {
        let taken = || -> io::Result<Held> {
            let mut words = list.splitn(9, ',');
            let mut next = || {
                let number = words.next().and_then(|n| n.parse().ok());
                inherited(number.ok_or(io::ErrorKind::InvalidInput)?)
            };
            Ok(Held {
                connection: next()?,
                store: next()?.into(),
                mirror: next()?.into(),
                references: next()?.into(),
                views: next()?.into(),
                mount: next()?.into(),
                life: Some(next()?),
                begun_anew: words.next().and_then(|count| {
                    let last = words.next().map(String::from);
                    Some(BegunAnew { count: count.parse().ok()?, last })
                }),
            })
        };
        taken().map_err(failed("what a keeper holds cannot be used"))
    }

    /// Returns the lock on the store.
    pub fn lock(&self) -> Outcome<Lock> {
        self.store.try_clone().map(Lock).map_err(failed("a descriptor cannot be copied"))
    }

    fn is_mounted(&self) -> bool {
        self.mount.metadata().is_ok_and(|m| m.len() > 0)
    }

    /// Returns whether the kernel has ended the connection.
    fn has_mount_ended(&self) -> bool {
        let mut looked = [PollFd::new(&self.connection, PollFlags::IN)];
        rustix::event::poll(&mut looked, Some(&Timespec::default())).is_ok()
            && looked[0].revents().contains(PollFlags::ERR)
    }

    /// Lets the keeper notice when this process is killed, even if one of its threads cannot end
    /// before a call on the mount is answered.
    pub fn live(&mut self) -> Outcome<Keeper> {
        let life = self.life.take().ok_or_else(|| io::ErrorKind::NotFound.into());
        let life = life.and_then(kvfs_fuse::live);
        let keeper = life.map(|life| Keeper { life, begun_anew: self.begun_anew.clone() });
        keeper.map_err(failed("the keeper cannot be told when this process ends"))
    }

    /// Returns the connection to the kernel.
    pub fn connection(&self) -> &OwnedFd {
        &self.connection
    }

    /// Returns the mount of a killed daemon.
    pub fn mount(&self) -> Outcome<Option<Handover>> {
        if !self.is_mounted() {
            return Ok(None);
        }
        let read = || -> io::Result<Handover> {
            let (mut file, mut bytes) = (&self.mount, Vec::new());
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Handover::decode(&bytes, self.connection.try_clone()?)
        };
        read().map(Some).map_err(failed("what is known of the mount cannot be read"))
    }

    /// Records the state of the mount for the next daemon.
    pub fn note_mount(&self, mount: &Handover) -> Outcome {
        let written = (&self.mount).write_all(&mount.encode());
        written.map_err(failed("what is known of the mount cannot be written"))
    }

    /// Opens the store with everything that a killed daemon has committed, and with the kernel's
    /// references to it.
    pub fn open(&self, path: &Path, access: Access, options: &Options) -> Outcome<InHand> {
        let file = |file: &File| file.try_clone().map_err(failed("a descriptor cannot be copied"));
        let cannot = |e: kvdb::Error| Failure::new(Exit::Failed, e.to_string());
        let mirror = Arc::new(Mirror::new(file(&self.mirror)?).map_err(cannot)?);
        let kept = Kept::new(file(&self.references)?, mirror.notes().map_err(cannot)?)
            .map_err(failed("what the kernel refers to cannot be read"))?;
        let store = store::open_mirrored(&self.store, path, access, options.budget(), &mirror)?;
        let references =
            kept.references().map_err(failed("what the kernel refers to cannot be read"))?;
        let of_files = |e: kvfs::Error| Failure::new(Exit::Failed, e.to_string());
        let notes = ViewNotes::new(file(&self.views)?).map_err(of_files)?;
        let in_use = InUse::left_by_killed(&store.db, references, &notes).map_err(of_files)?;
        Ok(InHand { store, in_use, kept: Some((Arc::new(kept), Arc::new(notes))) })
    }

    /// Writes everything that killed daemons have committed to disk. None of them may be running.
    fn save(&self, path: &Path, options: &Options) -> Outcome {
        if options.mount.read_only {
            return Ok(());
        }
        self.open(path, Access::ReadWrite, options)?.store.close()
    }
}

/// The child, and the signals for the next one.
#[derive(Default)]
struct Child {
    pid: Option<Pid>,
    /// Signals that arrived before the child was started, and all signals that end it.
    waiting: Vec<Signal>,
}

impl Child {
    fn take(&mut self, signal: Signal) {
        if self.pid.is_none() || signal != Signal::HUP {
            self.waiting.push(signal);
        }
        pass_on(self.pid, signal);
    }

    fn begins(&mut self, pid: Option<Pid>) {
        self.pid = pid;
        self.waiting.iter().for_each(|signal| pass_on(pid, *signal));
        self.waiting.retain(|signal| *signal != Signal::HUP);
    }
}

/// Keeps a mount until its daemon exits. `arguments` are those of the daemon. `begun` is called
/// when the first daemon has been started. Returns only if the keeper itself fails.
pub fn run(
    store: &Path,
    options: &Options,
    arguments: &[OsString],
    begun: impl FnOnce(),
) -> Outcome<std::convert::Infallible> {
    let held = Held::new(store, options)?;
    let mut program =
        Program::own().map_err(|e| Failure::io("cannot find this program's own file", &e))?;
    // The previous program, until the next one has served.
    let mut before = None;
    keep(held.all()).map_err(failed("a descriptor cannot be left to the daemon"))?;
    let child = Arc::new(Mutex::new(Child::default()));
    pass_signals_on(child.clone()).map_err(failed("cannot listen to signals"))?;
    let mut deaths = Deaths::default();
    let mut told = deaths.told();
    let mut begun = Some(begun);
    let given_up = || {
        let save = || held.save(store, options);
        let ended = std::thread::scope(|scope| scope.spawn(save).join());
        ended.unwrap_or_else(|_| Err(Failure::new(Exit::Failed, "the store cannot be opened")))
    };
    loop {
        let (mut daemon, lives) = match (start(&program, arguments, &held, &told), before.take()) {
            (Ok(started), earlier) => {
                before = earlier;
                started
            }
            (Err(_), Some(earlier)) => {
                program = earlier;
                continue;
            }
            (Err(e), None) if !held.is_mounted() => {
                return Err(failed("cannot start the daemon")(e));
            }
            (Err(e), None) => {
                told = follow(&mut deaths, Death::NotStarted(e.to_string()), given_up)?;
                continue;
            }
        };
        let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw);
        lock(&child).begins(pid);
        if let Some(begun) = begun.take() {
            begun();
        }
        let next = listen(&lives, &mut before);
        let status = ended(&mut daemon).map_err(failed("cannot wait for the daemon"))?;
        lock(&child).pid = None;
        if let Some(code) = status.and_then(|status| status.code())
            && (code == 0 || !held.is_mounted() || held.has_mount_ended())
        {
            std::process::exit(code);
        }
        if status.is_none() {
            // Reap the old daemon when it ends, once the next one answers. If the thread cannot be
            // started, it stays a zombie.
            let late = std::thread::Builder::new().name("kvfs-late".into());
            let _ = late.spawn(move || daemon.wait());
        }
        if let Some(next) = next {
            before = Some(std::mem::replace(&mut program, next));
            told.last = None;
            continue;
        }
        if let Some(before) = before.take() {
            // The new program never served.
            program = before;
        }
        let death = Death::of(status);
        if !held.is_mounted() {
            let what = format!("the daemon {death} before the mount was ready");
            return Err(Failure::new(Exit::Failed, what));
        }
        told = follow(&mut deaths, death, given_up)?;
    }
}

/// Listens to a daemon until it has closed the pipe. Returns the program that it becomes, if it has
/// named one. The program `before` is dropped when the daemon serves.
fn listen(lives: &PipeReader, before: &mut Option<Program>) -> Option<Program> {
    let mut next = None;
    for said in BufReader::new(lives).lines().map_while(Result::ok) {
        if said == SERVES {
            *before = None;
        } else if let Some(name) = said.strip_prefix(BECOMES) {
            next = Program::at(&daemons::unescape(name)).ok();
        }
    }
    next
}

/// Waits until the next daemon should start, and returns the history that it gets. `given_up`
/// writes the commits to disk if no other daemon follows.
fn follow(
    deaths: &mut Deaths,
    death: Death,
    given_up: impl FnOnce() -> Outcome,
) -> Outcome<BegunAnew> {
    let died = death.to_string();
    match deaths.add(death, Instant::now()) {
        Next::Begin(pause) => {
            std::thread::sleep(pause);
            Ok(deaths.told())
        }
        Next::GiveUp(times) => {
            let rest = match given_up() {
                Ok(()) => "what calls had done is on disk".into(),
                Err(failure) => format!("what was not synced may be lost: {}", failure.message),
            };
            let what = format!(
                "the daemon {died}, which was the {times}th such end within a minute: none is begun \
                 anew, and the mount is dead; {rest}"
            );
            Err(Failure::new(Exit::Failed, what))
        }
    }
}

/// Starts a daemon, with the pipe through which it talks to the keeper.
fn start(
    program: &Program,
    arguments: &[OsString],
    held: &Held,
    told: &BegunAnew,
) -> io::Result<(process::Child, PipeReader)> {
    let (lives, life) = std::io::pipe()?;
    keep([life.as_fd()])?;
    let life = OwnedFd::from(life);
    let mut command = Command::new(program.path());
    command.args(arguments).arg(KEPT).arg(held.list(&life, told));
    // SAFETY: it changes the mask of signals of the child, and nothing else.
    unsafe {
        command.pre_exec(|| {
            hold_signals();
            Ok(())
        });
    }
    Ok((command.spawn()?, lives))
}

/// Waits for a daemon whose threads are ending. Returns `None` if it was killed and one of its
/// threads waits for an answer of the mount, which the next daemon gives. Its pending writes have
/// reached the disk by then.
fn ended(daemon: &mut process::Child) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        let status = daemon.try_wait()?;
        if status.is_some() {
            return Ok(status);
        }
        if begun.elapsed() > PATIENCE {
            // Kill the daemon in any case, whatever the state of that thread.
            daemon.kill()?;
            return daemon.try_wait();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass_on(pid: Option<Pid>, signal: Signal) {
    if let Some(pid) = pid {
        // The child may just have ended.
        let _ = kill_process(pid, signal);
    }
}

fn pass_signals_on(child: Arc<Mutex<Child>>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let listen = move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGINT => Signal::INT,
                _ => Signal::HUP,
            };
            lock(&child).take(signal);
        }
    };
    std::thread::Builder::new().name("kvfs-signals".into()).spawn(listen).map(drop)
}
