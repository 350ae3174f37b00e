//! The keeper of a mount (`-o keeper`): a small process that outlives the daemon, which is its
//! child.
//!
//! It has open what must not go with the daemon: the connection to the kernel, the store's file
//! with its lock, and four files in memory: the mirror of the commits that the journal does not
//! have yet (`kvdb::Mirror`), what the kernel refers to (`kvfs_fuse::Kept`), the views and what the
//! kernel has not been told of them (`kvfs::ViewNotes`), and how the mount began. A daemon that is
//! killed, or crashes, is begun anew with these, and goes on. One that ends by itself has
//! unmounted, or could not begin: then the keeper ends, too, with the same exit code.
//!
//! **Another version.** A daemon that is asked to become another program (`upgrade`) has the keeper
//! execute that from now on, and kills itself: what follows is what follows any kill. Should the
//! new program not come to serve, the one before it is executed again. The keeper itself stays what
//! it is.
//!
//! **Given up.** Daemons that die again and again ([`Deaths`]) end the mount. What they have
//! committed is put on disk first: the mirror goes with the keeper.
//!
//! The daemon has an end of a pipe, on which it says that it serves, and what it is to become.
//!
//! Signals that end a daemon are passed on. They wait until it listens. One that dies all the same
//! may not have acted on them, so they are passed on to the next one, too.

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

use crate::daemons;
use crate::deaths::{BegunAnew, Death, Deaths, Next};
use crate::handover::{hold_signals, inherited, keep};
use crate::mount_options::Options;
use crate::output::{Exit, Failure, Outcome};
use crate::store::{self, Access, InHand};

/// The option whose argument names the descriptors that a daemon gets of its keeper.
pub const KEPT: &str = "--kept";

/// A daemon says that it serves, and which program is to follow it.
const SERVES: &str = "serves";
const BECOMES: &str = "becomes ";

/// How long the threads of a daemon that was killed may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state that outlives a daemon.
pub struct Held {
    connection: OwnedFd,
    store: File,
    mirror: File,
    references: File,
    views: File,
    /// Empty until there is a mount; then what [`Handover::encode`] says of it.
    mount: File,
    /// An end of a pipe that only a thread of the daemon has once it has begun
    /// ([`kvfs_fuse::live`]).
    life: Option<OwnedFd>,
    /// How often a daemon was begun anew; `None`: the keeper is of a version that does not say it.
    begun_anew: Option<BegunAnew>,
}

/// By which a daemon talks to its keeper.
pub struct Keeper {
    life: Life,
    /// How often it has begun a daemon anew.
    pub begun_anew: Option<BegunAnew>,
}

impl Keeper {
    /// The daemon serves.
    pub fn say_serves(&self) {
        if let Err(e) = self.life.say(format!("{SERVES}\n").as_bytes()) {
            tracing::warn!("the keeper does not know that this process serves: {e}");
        }
    }

    /// Has the program follow this process, which ends with that.
    pub fn become_program(&self, program: &Path) -> Failure {
        let said = self.life.say(format!("{BECOMES}{}\n", daemons::escape(program)).as_bytes());
        let killed = said.and_then(|()| Ok(kill_process(rustix::process::getpid(), Signal::KILL)?));
        let cannot = failed("the keeper cannot be told what is to follow");
        cannot(killed.err().unwrap_or_else(|| io::ErrorKind::Interrupted.into()))
    }
}

/// A program that is executed for a daemon: this very file, also where another version has its name
/// by now, which may not know what is held here.
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

    /// By which it is executed.
    fn path(&self) -> PathBuf {
        let by_file = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let file = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino())).ok();
        match file(&self.name) == file(&by_file) {
            true => self.name.clone(),
            false => by_file,
        }
    }
}

/// The lock on a store, which the keeper has, too.
pub struct Lock(File);

impl Lock {
    /// The store is closed: others need not wait for the keeper's end.
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
        let connection = kvfs_fuse::kept_connection().map_err(crate::failures::of_mount)?;
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

    /// In the order in which a daemon takes them.
    fn all(&self) -> [BorrowedFd<'_>; 6] {
        let files = [&self.store, &self.mirror, &self.references, &self.views, &self.mount];
        let [store, mirror, references, views, mount] = files.map(|file| file.as_fd());
        [self.connection.as_fd(), store, mirror, references, views, mount]
    }

    /// The argument of [`KEPT`] that a daemon gets: the numbers of the descriptors, then how
    /// often a daemon was begun anew, and what became of the last one.
    fn list(&self, life: &OwnedFd, begun_anew: &BegunAnew) -> String {
        let numbers = self.all().map(|fd| fd.as_raw_fd().to_string()).join(",");
        let list = format!("{numbers},{},{}", life.as_raw_fd(), begun_anew.count);
        begun_anew.last.iter().fold(list, |list, last| format!("{list},{last}"))
    }

    /// Takes over what the keeper has left for this process.
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

    /// The lock on the store.
    pub fn lock(&self) -> Outcome<Lock> {
        self.store.try_clone().map(Lock).map_err(failed("a descriptor cannot be copied"))
    }

    fn is_mounted(&self) -> bool {
        self.mount.metadata().is_ok_and(|m| m.len() > 0)
    }

    /// The kernel has ended the connection.
    fn has_mount_ended(&self) -> bool {
        let mut looked = [PollFd::new(&self.connection, PollFlags::IN)];
        rustix::event::poll(&mut looked, Some(&Timespec::default())).is_ok()
            && looked[0].revents().contains(PollFlags::ERR)
    }

    /// Lets the keeper know when this process is killed, also where a thread of it cannot end
    /// before a call on the mount is answered.
    pub fn live(&mut self) -> Outcome<Keeper> {
        let life = self.life.take().ok_or_else(|| io::ErrorKind::NotFound.into());
        let life = life.and_then(kvfs_fuse::live);
        let keeper = life.map(|life| Keeper { life, begun_anew: self.begun_anew.clone() });
        keeper.map_err(failed("the keeper cannot be told when this process ends"))
    }

    /// The connection.
    pub fn connection(&self) -> &OwnedFd {
        &self.connection
    }

    /// The mount of a daemon that was killed.
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

    /// Notes what the next daemon must know of the mount.
    pub fn note_mount(&self, mount: &Handover) -> Outcome {
        let written = (&self.mount).write_all(&mount.encode());
        written.map_err(failed("what is known of the mount cannot be written"))
    }

    /// Opens the store with all that a killed daemon has committed, and what the kernel has of it.
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

    /// Has all that killed daemons have committed on disk. None of them is there any more.
    fn save(&self, path: &Path, options: &Options) -> Outcome {
        if options.mount.read_only {
            return Ok(());
        }
        self.open(path, Access::ReadWrite, options)?.store.close()
    }
}

/// The child, and the signals for the one that comes next.
#[derive(Default)]
struct Child {
    pid: Option<Pid>,
    /// Signals that came before it was there, and those that end it.
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

/// Keeps a mount until its daemon ends by itself. `arguments`: what a daemon is called with.
/// `begun` is called when the first one has been started. Returns only an error of the keeper's
/// own.
pub fn run(
    store: &Path,
    options: &Options,
    arguments: &[OsString],
    begun: impl FnOnce(),
) -> Outcome<std::convert::Infallible> {
    let held = Held::new(store, options)?;
    let mut program =
        Program::own().map_err(|e| Failure::io("cannot find this program's own file", &e))?;
    // The one before, until the next one has served.
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
        let mut next = None;
        for said in BufReader::new(&lives).lines().map_while(Result::ok) {
            if said == SERVES {
                before = None;
            } else if let Some(name) = said.strip_prefix(BECOMES) {
                next = Program::at(&daemons::unescape(name)).ok();
            }
        }
        let status = ended(&mut daemon).map_err(failed("cannot wait for the daemon"))?;
        lock(&child).pid = None;
        if let Some(code) = status.and_then(|status| status.code())
            && (code == 0 || !held.is_mounted() || held.has_mount_ended())
        {
            std::process::exit(code);
        }
        if status.is_none() {
            // It ends when the next one answers. Without a thread it stays a zombie.
            let late = std::thread::Builder::new().name("kvfs-late".into());
            let _ = late.spawn(move || daemon.wait());
        }
        if let Some(next) = next {
            before = Some(std::mem::replace(&mut program, next));
            told.last = None;
            continue;
        }
        if let Some(before) = before.take() {
            // It did not come to serve.
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

/// Waits until the next daemon is to begin; what it is told. `given_up`: puts what was committed on
/// disk where there is none.
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

/// Starts a daemon, and the pipe on which it talks to the keeper.
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

/// How a daemon has ended whose threads end. `None`: it was killed, and a thread of it waits for an
/// answer of the mount, which the next daemon gives. What it had on its way to the disk has come
/// there by then.
fn ended(daemon: &mut process::Child) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        let status = daemon.try_wait()?;
        if status.is_some() {
            return Ok(status);
        }
        if begun.elapsed() > PATIENCE {
            // Whatever became of that thread.
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
        // It may just have ended.
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
