//! Runs a program in a view: a directory (the transaction's view of the files) is mounted in place
//! of the store, and only the program and its children see this. The caller waits for the program,
//! and passes on signals, stops and the exit code.
//!
//! The child gets a private mount name space of its own, in which the view replaces the store:
//! every mount of the store, or of a directory of it, is unmounted and replaced by the view, or the
//! same directory of it. So there is nothing beneath the view that could be uncovered. That takes
//! CAP_SYS_ADMIN. Without it, the child also gets a user name space in which it has that
//! capability, with unchanged user and group, if the kernel lets users make such a name space.
//! Mounts of the parent name space cannot be removed there; the view covers them, and the program,
//! which has no privilege, cannot uncover them (see `docs/security.md`). Alternatively, the child
//! gets the view as its root (`chroot`), which takes CAP_SYS_CHROOT and programs in the view.
//!
//! A run over a folder of another file system has a kernel overlay on the folder instead, in a
//! mount name space of its own likewise.
//!
//! A kernel overlay can lie between: then its merged directory replaces the store, with the view as
//! the lower layer, and the changes stay in the upper layer, outside of the store.
//!
//! The waiting process blocks the signals that it forwards and accepts them one by one, together
//! with SIGCHLD. So it needs neither a handler nor another thread.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvfs_fuse::mounts;
use rustix::fs::StatVfsMountFlags;

use crate::support::machine::descendants;
use crate::support::mounts::mounted;
use crate::support::mounts::place::{self, View};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// The name space of the child.
pub enum Namespace {
    /// `view` replaces `of` (the store, a clone, or a transaction that is shown already) in all
    /// mounts of the file system that is mounted on `mount_point`. `place` is the path of `of`
    /// itself. With `overlay` the directory on which that is mounted replaces `of` instead.
    Bound {
        view: PathBuf,
        of: View,
        mount_point: PathBuf,
        place: PathBuf,
        overlay: Option<Overlay>,
    },
    /// `view` is the root.
    Root { view: PathBuf },
    /// Every path stays the same, and `view` is the working directory.
    Directory { view: PathBuf },
    /// A folder is covered by an overlay.
    Covered { overlay: Overlay },
}

/// Returns flags of mount(2) for an overlay above files of a mount: programs that the mount does
/// not allow are not allowed above it either.
pub fn flags_above(mount: StatVfsMountFlags) -> libc::c_ulong {
    let flags = [
        (StatVfsMountFlags::NOSUID, libc::MS_NOSUID),
        (StatVfsMountFlags::NODEV, libc::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, libc::MS_NOEXEC),
    ];
    let flags = flags.into_iter().filter(|(flag, _)| mount.contains(*flag));
    flags.fold(0, |all, (_, flag)| all | flag)
}

/// A kernel overlay that only the child mounts.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// The directory at which relative paths begin, those in the options too; without one they are
    /// absolute.
    pub parent: Option<PathBuf>,
    /// The directory on which it is mounted.
    pub on: PathBuf,
    /// The source that the table of mounts shows.
    pub source: &'static CStr,
    /// The options of overlayfs, which name the layers.
    pub options: OsString,
    /// Flags of mount(2) that the mount of the lower layer has, such as MS_NOSUID.
    pub flags: libc::c_ulong,
}

/// Variables of the environment by which programs find a transaction. A program in an overlay does
/// not have them: the transaction does not have its files yet.
const OF_TRANSACTION: [&str; 2] = [mounted::TRANSACTION, mounted::SOCKET];

/// The exit code of a child as a shell would report it, or 128 plus the signal.
pub type Code = u8;

/// The program could not be started. These codes are those of env(1), nice(1) and others.
pub const NOT_STARTED: Code = 125;
const NOT_EXECUTABLE: Code = 126;
const NO_PROGRAM: Code = 127;

/// Signals that are forwarded to the child when another process sends them. Those from a terminal
/// reach the child directly.
const PASSED: [libc::c_int; 8] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Runs `words` in `namespace`, with `environment` added to the inherited environment. Returns when
/// the program has ended. `ends_with` is the parent process: when it ends for any reason, the
/// program and all its descendants are killed.
pub fn run(
    namespace: &Namespace,
    words: &[OsString],
    environment: &[(&str, OsString)],
    ends_with: Option<i32>,
    output: &Output,
) -> Outcome<Code> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new(Exit::Usage, "no command is given").hint("put it behind `--`"));
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
    if matches!(namespace, Namespace::Directory { .. }) {
        // The program has its transaction, and not what lets it begin and commit others.
        for shown in ["KVFS_TOKEN", "KVFS_TOKEN_FILE", "KVFS_CERT", "KVFS_CERT_KEY", "KVFS_KEY"] {
            command.env_remove(shown);
        }
    }
    if matches!(namespace, Namespace::Bound { overlay: Some(_), .. }) {
        for variable in OF_TRANSACTION {
            command.env_remove(variable);
        }
    }
    let mut inside = Inside::prepare(namespace)?;
    let waiting = Blocked::signals().map_err(|e| Failure::io("cannot wait for signals", &e))?;
    let before = waiting.before;
    if let Some(parent) = ends_with {
        descendants::keep_together()?;
        follow(parent)?;
    }
    let report = Report::pipe().map_err(|e| Failure::io("cannot make a pipe", &e))?;
    let told = report.writer.as_raw_fd();
    // SAFETY: between fork and exec only system calls are made, with strings that exist already;
    // nothing is allocated and no lock is taken.
    unsafe {
        command.pre_exec(move || {
            if let Err((step, error)) = inside.enter() {
                // Report the failed step; the standard library passes the error back.
                libc::write(told, [step].as_ptr().cast(), 1);
                return Err(error);
            }
            if libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
                != 0
            {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let spawned = command.spawn();
    let step = report.read();
    match spawned {
        Ok(child) => Ok(waiting.wait(child.id() as libc::pid_t)),
        Err(error) => Err(match step {
            Some(step) => refused(namespace, step, &error),
            None => {
                let failure = Failure::io(format!("cannot run {}", program.shown()), &error);
                output.print_error(&failure);
                return Ok(if error.kind() == io::ErrorKind::NotFound {
                    NO_PROGRAM
                } else {
                    NOT_EXECUTABLE
                });
            }
        }),
    }
}

/// Signals that the parent, with which this process must end, has ended.
const PARENT_ENDED: libc::c_int = libc::SIGPWR;

/// Asks the kernel for a signal when the parent ends. Fails if it has ended already.
fn follow(parent: libc::pid_t) -> Outcome {
    // SAFETY: system calls with numbers.
    let (set, now) =
        unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, PARENT_ENDED), libc::getppid()) };
    if set != 0 {
        let error = io::Error::last_os_error();
        return Err(Failure::io("cannot be told of the end of the parent", &error));
    }
    if now != parent {
        return Err(Failure::new(Exit::Failed, "who has started this has ended"));
    }
    Ok(())
}

/// Steps of entering the view, for the message.
const UNSHARE: u8 = 1;
const MAP: u8 = 2;
const PRIVATE: u8 = 3;
const BIND: u8 = 4;
const CHROOT: u8 = 5;
const CHDIR: u8 = 6;
const AWAY: u8 = 7;
const OVERLAY: u8 = 8;

fn refused(namespace: &Namespace, step: u8, error: &io::Error) -> Failure {
    let (view, place) = match namespace {
        Namespace::Bound { view, place, .. } => (view, place),
        Namespace::Root { view } | Namespace::Directory { view } => (view, view),
        Namespace::Covered { overlay } => (&overlay.on, &overlay.on),
    };
    let is_folder = matches!(namespace, Namespace::Covered { .. });
    let what = match step {
        UNSHARE => "cannot make a private mount name space".to_string(),
        MAP => "cannot keep your user in a new user name space".to_string(),
        PRIVATE => "cannot make the mounts private".to_string(),
        BIND => format!("cannot mount {} in place of {}", view.shown(), place.shown()),
        AWAY => format!(
            "cannot take away another mount of the store on {}, whose directory the view does not have",
            place.shown()
        ),
        CHROOT => format!("cannot make {} the root", view.shown()),
        OVERLAY if is_folder => format!("cannot mount an overlay on {}", view.shown()),
        OVERLAY => format!("cannot mount an overlay above {}", view.shown()),
        _ => "cannot go to the working directory".to_string(),
    };
    let failure = Failure::io(what, error);
    match step {
        OVERLAY if is_folder => failure.hint(
            "the kernel needs overlayfs, and the file system must be able to have its upper layer, \
             as ext4, XFS, Btrfs and tmpfs are: import the files into a store, and use kvfs run there",
        ),
        UNSHARE | MAP | PRIVATE => failure.hint(
            "this needs root, or a kernel that lets users make name spaces (sysctl kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns); --chroot needs CAP_SYS_CHROOT alone",
        ),
        OVERLAY => failure.hint(
            "--layer needs Linux 5.11 with overlayfs, and a scratch directory on a file system \
             such as ext4, xfs, btrfs or tmpfs: --scratch DIR; without --layer the program works \
             in the transaction itself",
        ),
        _ => failure,
    }
}

/// A mount of the store, and the directory of the view that replaces it.
struct Replaced {
    view: CString,
    place: CString,
    /// True for the view itself, which must succeed.
    is_main: bool,
    /// In the child: the detached directory to be mounted, or negative if there is none.
    tree: libc::c_int,
    /// In the child: true once the store was unmounted there.
    away: bool,
}

/// An overlay to be mounted.
struct Mounting {
    parent: Option<CString>,
    on: CString,
    source: &'static CStr,
    options: CString,
    flags: libc::c_ulong,
}

impl Mounting {
    fn of(overlay: &Overlay) -> Outcome<Mounting> {
        let parent = overlay.parent.as_ref().map(|parent| c_string(parent)).transpose()?;
        let (on, options) = (c_string(&overlay.on)?, c_string(Path::new(&overlay.options))?);
        Ok(Mounting { parent, on, source: overlay.source, options, flags: overlay.flags })
    }
}

/// Everything that the child needs to enter the view, prepared before the fork.
struct Inside {
    /// The overlay to mount first.
    overlay: Option<Mounting>,
    /// The mounts to replace, in the order in which they were mounted.
    replaced: Vec<Replaced>,
    root: Option<CString>,
    directory: Option<CString>,
    /// The contents of `/proc/self/uid_map` and `gid_map`.
    maps: (CString, CString),
}

fn c_string(path: &Path) -> Outcome<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Failure::new(Exit::Usage, format!("{} has a zero byte", path.shown())))
}

impl Inside {
    fn prepare(namespace: &Namespace) -> Outcome<Inside> {
        let (user, group) =
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let line = |id: u32| CString::new(format!("{id} {id} 1\n")).unwrap_or_default();
        let maps = (line(user), line(group));
        let here = std::env::current_dir().ok();
        Ok(match namespace {
            Namespace::Bound { view, of, mount_point, place: main, overlay } => {
                let seen = overlay.as_ref().map_or(view, |overlay| &overlay.on);
                let places = places(seen, of, mount_point, main)?;
                let overlay = overlay.as_ref().map(Mounting::of).transpose()?;
                // The same path leads into the view once that is mounted.
                let inside = |dir: &PathBuf| places.iter().any(|(_, place)| dir.starts_with(place));
                let directory = here.filter(inside).map(|dir| c_string(&dir)).transpose()?;
                let replaced = |(view, place): &(PathBuf, PathBuf)| {
                    let is_main = place == main;
                    Ok(Replaced {
                        view: c_string(view)?,
                        place: c_string(place)?,
                        is_main,
                        tree: -1,
                        away: false,
                    })
                };
                let replaced = places.iter().map(replaced).collect::<Outcome<Vec<_>>>()?;
                if !replaced.iter().any(|replaced| replaced.is_main) {
                    return Err(Failure::new(
                        Exit::NotFound,
                        format!("the store is not mounted on {}", mount_point.shown()),
                    ));
                }
                Inside { overlay, replaced, root: None, directory, maps }
            }
            Namespace::Root { view } => Inside {
                overlay: None,
                replaced: Vec::new(),
                root: Some(c_string(view)?),
                directory: Some(c_string(Path::new("/"))?),
                maps,
            },
            Namespace::Directory { view } => Inside {
                overlay: None,
                replaced: Vec::new(),
                root: None,
                directory: Some(c_string(view)?),
                maps,
            },
            Namespace::Covered { overlay } => {
                let parent = overlay.parent.as_deref().unwrap_or(Path::new("/"));
                // The same path leads into the overlay once that is mounted.
                let directory = Some(c_string(here.as_deref().unwrap_or(parent))?);
                let overlay = Some(Mounting::of(overlay)?);
                Inside { overlay, replaced: Vec::new(), root: None, directory, maps }
            }
        })
    }

    /// Enters the view in the child, between fork and exec.
    fn enter(&mut self) -> Result<(), (u8, io::Error)> {
        let step = |step: u8, result: libc::c_int| {
            if result == 0 { Ok(()) } else { Err((step, io::Error::last_os_error())) }
        };
        if !self.replaced.is_empty() || self.overlay.is_some() {
            // SAFETY: here and below, system calls with strings that live as long as `self`, and
            // null where the call allows it.
            let plain = unsafe { libc::unshare(libc::CLONE_NEWNS) };
            if plain != 0 {
                // SAFETY: see above.
                step(UNSHARE, unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
                write_to(c"/proc/self/setgroups", c"deny").map_err(|e| (MAP, e))?;
                write_to(c"/proc/self/uid_map", &self.maps.0).map_err(|e| (MAP, e))?;
                write_to(c"/proc/self/gid_map", &self.maps.1).map_err(|e| (MAP, e))?;
            }
            let none = std::ptr::null();
            // SAFETY: see above.
            step(PRIVATE, unsafe {
                libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast())
            })?;
            if let Some(overlay) = &self.overlay {
                if let Some(parent) = &overlay.parent {
                    // SAFETY: see above.
                    step(CHDIR, unsafe { libc::chdir(parent.as_ptr()) })?;
                }
                // SAFETY: see above.
                step(OVERLAY, unsafe {
                    libc::mount(
                        overlay.source.as_ptr(),
                        overlay.on.as_ptr(),
                        c"overlay".as_ptr(),
                        overlay.flags,
                        overlay.options.as_ptr().cast(),
                    )
                })?;
            }
            // Open all of the view first: unmounting the store removes the path to it.
            for replaced in &mut self.replaced {
                // SAFETY: see above.
                replaced.tree = unsafe {
                    libc::syscall(
                        libc::SYS_open_tree,
                        libc::AT_FDCWD,
                        replaced.view.as_ptr(),
                        CLONED_TREE,
                    )
                } as _;
                if replaced.tree < 0 && replaced.is_main {
                    return Err((BIND, io::Error::last_os_error()));
                }
            }
            if let Some(overlay) = self.overlay.as_ref().filter(|_| !self.replaced.is_empty()) {
                // The overlay is to be seen in place of the store alone. If this fails, it is seen
                // in the scratch directory, too, which does no harm.
                // SAFETY: see above.
                unsafe {
                    libc::umount2(overlay.on.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW)
                };
            }
            // A later mount may lie on an earlier one, so unmount in reverse.
            for replaced in self.replaced.iter_mut().rev() {
                // SAFETY: see above.
                replaced.away = unsafe {
                    libc::umount2(replaced.place.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW)
                } == 0;
            }
            for replaced in &self.replaced {
                let (tree, place) = (replaced.tree, replaced.place.as_ptr());
                // SAFETY: see above.
                let moved = tree >= 0
                    && unsafe {
                        libc::syscall(
                            libc::SYS_move_mount,
                            tree,
                            c"".as_ptr(),
                            libc::AT_FDCWD,
                            place,
                            OF_TREE,
                        )
                    } == 0;
                if !moved && replaced.is_main {
                    return Err((BIND, io::Error::last_os_error()));
                }
                if !moved && !replaced.away {
                    return Err((AWAY, io::Error::last_os_error()));
                }
            }
        }
        if let Some(root) = &self.root {
            // SAFETY: see above.
            step(CHROOT, unsafe { libc::chroot(root.as_ptr()) })?;
        }
        if let Some(directory) = &self.directory {
            // SAFETY: see above.
            step(CHDIR, unsafe { libc::chdir(directory.as_ptr()) })?;
        }
        Ok(())
    }
}

/// For open_tree(2): copy the mount, with those below it, for the lifetime of the descriptor.
const CLONED_TREE: libc::c_int = 1 | 0x8000 | libc::O_CLOEXEC;
/// For move_mount(2): the mount is the descriptor's.
const OF_TREE: libc::c_int = 4;

/// Returns where the store, the clone or the transaction, or a directory of it, is mounted, each
/// with the directory of `view` that replaces it. Mounts of other views are unaffected.
fn places(
    view: &Path,
    of: &View,
    mount_point: &Path,
    main: &Path,
) -> Outcome<Vec<(PathBuf, PathBuf)>> {
    let all = mounts::mounts().map_err(|e| Failure::io("cannot read the table of mounts", &e))?;
    let top = |place: &Path| all.iter().rfind(|m| m.mount_point == place);
    let device = top(mount_point).map(|m| &m.device);
    let ours = all.iter().filter(|m| {
        Some(&m.device) == device && top(&m.mount_point).is_some_and(|top| top.device == m.device)
    });
    let mounted: Vec<_> = ours
        .filter_map(|m| Some((view.join(place::directory_of(of, m)?), m.mount_point.clone())))
        .collect();
    // A clone is not a mount, unless it is mounted by itself.
    let is_mount = mounted.iter().any(|(_, place)| place == main);
    let unmounted = matches!(of, View::Clone(_)) && !is_mount;
    let unmounted = unmounted.then(|| (view.to_owned(), main.to_owned()));
    Ok(unmounted.into_iter().chain(mounted).collect())
}

/// Writes a file without allocating, since this runs between fork and exec.
fn write_to(path: &std::ffi::CStr, text: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the strings end in zero bytes, and the length is that of the text.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = text.to_bytes();
        let written = libc::write(file, bytes.as_ptr().cast(), bytes.len());
        let failed = (written < 0).then(io::Error::last_os_error);
        libc::close(file);
        failed.map_or(Ok(()), Err)
    }
}

/// A pipe on which the child reports the step that failed.
struct Report {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Report {
    fn pipe() -> io::Result<Report> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Report { reader, writer })
    }

    /// Waits until the child has ended or executed its program. Returns `None` if no step failed.
    fn read(self) -> Option<u8> {
        drop(self.writer);
        let mut step = [0];
        match rustix::io::read(&self.reader, &mut step) {
            Ok(1) => Some(step[0]),
            _ => None,
        }
    }
}

/// Blocks signals, so that they can be accepted synchronously, until this is dropped.
pub struct Blocked {
    taken: libc::sigset_t,
    before: libc::sigset_t,
}

impl Blocked {
    /// Blocks those that are forwarded to a child, and those that tell of its end.
    pub fn signals() -> io::Result<Blocked> {
        // SAFETY: both sets are initialised by the calls that are given them.
        unsafe {
            let mut taken = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigemptyset(&raw mut taken);
            for signal in PASSED.into_iter().chain([libc::SIGCHLD, PARENT_ENDED]) {
                libc::sigaddset(&raw mut taken, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const taken, &raw mut before) {
                0 => Ok(Blocked { taken, before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits until the child has ended.
    fn wait(&self, child: libc::pid_t) -> Code {
        loop {
            let mut status = 0;
            // SAFETY: `status` is ours.
            let got =
                unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            if got == child {
                if libc::WIFEXITED(status) {
                    return libc::WEXITSTATUS(status) as Code;
                }
                if libc::WIFSIGNALED(status) {
                    return 128u8.saturating_add(libc::WTERMSIG(status) as u8);
                }
                // The terminal has stopped the child: stop this process too, until both continue.
                // SAFETY: sending a signal to ourselves.
                unsafe { libc::raise(libc::SIGSTOP) };
                continue;
            }
            // SAFETY: the set and the place for the news are ours.
            let (signal, sender) = unsafe {
                let mut news: libc::siginfo_t = std::mem::zeroed();
                let signal = libc::sigwaitinfo(&raw const self.taken, &raw mut news);
                (signal, news.si_code)
            };
            if signal == PARENT_ENDED {
                descendants::end_all();
                return 128 + libc::SIGKILL as Code;
            }
            // A signal from the terminal reaches the child as well.
            let from_terminal = sender == libc::SI_KERNEL
                && [libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH].contains(&signal);
            if PASSED.contains(&signal) && !from_terminal {
                // SAFETY: the child has not been reaped, so the number still belongs to it.
                unsafe { libc::kill(child, signal) };
            }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: `before` is what the mask was.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}
