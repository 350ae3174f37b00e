//! Mounting and unmounting: the mount call with its options, the session's threads, and the
//! kernel's parameters.
//!
//! The daemon calls mount(2) itself if it has the right to mount, which allows every option;
//! otherwise the setuid helper `fusermount3` mounts.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::thread::{CapabilitySet, capabilities};

use crate::abort_watchdog::AbortWatchdog;
use crate::connection::join;
use crate::counters::Counters;
use crate::dispatcher::Dispatcher;
use crate::fusermount;
use crate::handler::{Handler, Invalidator, Policy, TransportChoice};
use crate::handover::{Handover, Stopper};
use crate::kept::Kept;
use crate::mounts::{self, MountEntry};
use crate::queues::Queues;
use crate::session::{Remains, Session, Sharing, greets_alike};
use crate::switch;
use crate::worker_pool::WorkerPool;

/// The reason why a mount or an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount point is not a directory.
    #[error("cannot mount on {0}: it is not a directory")]
    NotADirectory(PathBuf),
    /// All users are admitted, and permissions are not checked.
    #[error(
        "allow_other without default_permissions would let every user do everything: the kernel has to check permissions"
    )]
    Unguarded,
    /// Permissions are not checked, but modes bind this user.
    #[error(
        "without default_permissions the kernel does not look at modes, which is right only for a root whom they do not bind: \
         mount as root of the first user namespace, with CAP_DAC_OVERRIDE"
    )]
    BoundByModes,
    /// The device cannot be opened.
    #[error("there is no FUSE here: cannot open /dev/fuse: {0}")]
    NoFuse(io::Error),
    /// The mount call failed.
    #[error("cannot mount on {0}: {1}")]
    Mount(PathBuf, io::Error),
    /// The directory that should become the mount's root does not exist.
    #[error("there is no {0} in the file system")]
    NoRoot(PathBuf),
    /// The unmount call failed.
    #[error("cannot unmount {0}: {1}")]
    Unmount(PathBuf, io::Error),
    /// The kernel refuses io_uring.
    #[error("cannot mount on {0} with requests over io_uring: {1}")]
    NoRings(PathBuf, io::Error),
    /// io_uring and the write-back cache exclude each other.
    #[error(
        "requests over io_uring come in no order that the kernel's write-back cache could rely on"
    )]
    RingsGather,
    /// A mount cannot be continued.
    #[error("cannot go on with the mount on {0}: {1}")]
    TakeOver(PathBuf, io::Error),
    /// A thread of the session failed.
    #[error("the FUSE session of {0} ended with an error: {1}")]
    Session(PathBuf, io::Error),
}

/// The mount's options, as mount(8) knows them.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that the table of mounts shows.
    pub source: OsString,
    /// The file system type becomes `fuse.<subtype>`, or plain `fuse` if this is empty.
    pub subtype: String,
    /// Others than the mounting user may use the mount. Needs `default_permissions`.
    pub allow_other: bool,
    /// The kernel checks permissions. Without this it asks for the attributes of directories less
    /// often (to check them, it has to ask after each change in a directory), and permissions do
    /// not restrict users of the mount: so only root may do without, and not with `allow_other`.
    pub default_permissions: bool,
    /// mount(8)'s `ro`.
    pub read_only: bool,
    /// mount(8)'s `suid`.
    pub suid: bool,
    /// mount(8)'s `dev`.
    pub dev: bool,
    /// mount(8)'s `exec`.
    pub exec: bool,
    /// mount(8)'s `sync`.
    pub synchronous: bool,
    /// mount(8)'s `dirsync`.
    pub dir_synchronous: bool,
    /// The option for access times that the table of mounts shows. The handler keeps the times,
    /// since the kernel leaves them to it.
    pub access_times: AccessTimes,
    /// The directory of the file system that becomes the mount's root, relative to its own root;
    /// empty for the root itself. This takes the right to mount.
    pub root: PathBuf,
}

/// The option for access times that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// mount(8)'s `relatime`.
    #[default]
    Relative,
    /// mount(8)'s `noatime`.
    Never,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "kvfs".into(),
            subtype: "kvfs".into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            synchronous: false,
            dir_synchronous: false,
            access_times: AccessTimes::Relative,
            root: PathBuf::new(),
        }
    }
}

impl MountOptions {
    fn fs_type(&self) -> String {
        if self.subtype.is_empty() { "fuse".into() } else { format!("fuse.{}", self.subtype) }
    }

    fn flags(&self) -> MountFlags {
        let mut flags = match self.access_times {
            AccessTimes::Relative => MountFlags::RELATIME,
            AccessTimes::Never => MountFlags::NOATIME,
        };
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags.set(MountFlags::SYNCHRONOUS, self.synchronous);
        flags.set(MountFlags::DIRSYNC, self.dir_synchronous);
        flags
    }

    /// Returns the mount options for `fusermount3`, which takes them by name.
    fn for_fusermount(&self) -> String {
        let source = self.source.to_string_lossy().replace('\\', r"\\").replace(',', r"\,");
        let mut words = vec![format!("fsname={source}")];
        if !self.subtype.is_empty() {
            words.push(format!("subtype={}", self.subtype));
        }
        let named = [
            (self.default_permissions, "default_permissions"),
            (self.allow_other, "allow_other"),
            (self.read_only, "ro"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (!self.exec, "noexec"),
            (self.synchronous, "sync"),
            (self.dir_synchronous, "dirsync"),
            (self.access_times == AccessTimes::Never, "noatime"),
        ];
        words.extend(named.into_iter().filter(|(on, _)| *on).map(|(_, word)| word.to_string()));
        words.join(",")
    }
}

/// The ways to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails if a process uses the mount. When it returns, everything that the kernel held has been
    /// handed to the daemon.
    Clean,
    /// Hides the mount at once; it ends when its last user leaves.
    Lazy,
    /// Ends the mount at once; data that the kernel had not yet handed over is lost.
    Forced,
}

/// The reason why a mount is no longer served.
#[derive(Debug)]
pub enum Served {
    /// The mount has ended.
    Ended,
    /// The mount exists, and waits for [`take_over`]: see [`Mounted::stopper`]. Dropping this ends
    /// it.
    Stopped(Box<Handover>),
}

/// A mounted file system and the threads that serve it. Dropping it unmounts it, lazily if
/// necessary.
pub struct Mounted {
    entry: MountEntry,
    session: Option<Session>,
    counters: Arc<Counters>,
    gathers_writes: bool,
    /// Runs until the session is over.
    watch: Option<AbortWatchdog>,
}

/// Mounts `handler` on the directory `mount_point`. When this returns, requests are being answered.
pub fn mount<H: Handler>(
    handler: Arc<H>,
    mount_point: &Path,
    options: &MountOptions,
    policy: &Policy,
) -> Result<Mounted, Error> {
    mount_with(handler, mount_point, options, policy, None)
}

/// The objects that another process holds of a mount which continues when this process is killed:
/// the connection ([`kept_connection`]), and the state for the mount's next daemon.
pub type Keeping<'a> = (&'a OwnedFd, Arc<Kept>);

/// Mounts like [`mount`], so that the mount can continue when this process is killed
/// ([`take_over_killed`]).
pub fn mount_kept<H: Handler>(
    handler: Arc<H>,
    mount_point: &Path,
    options: &MountOptions,
    policy: &Policy,
    keeping: Keeping<'_>,
) -> Result<Mounted, Error> {
    let policy = &Policy { transport: TransportChoice::Device, ..policy.clone() };
    mount_with(handler, mount_point, options, policy, Some(keeping))
}

/// Returns a descriptor that becomes the connection of a mount, to be held by a process that
/// outlives the serving one.
pub fn kept_connection() -> Result<OwnedFd, Error> {
    File::options().read(true).write(true).open("/dev/fuse").map(Into::into).map_err(Error::NoFuse)
}

fn mount_with<H: Handler>(
    handler: Arc<H>,
    mount_point: &Path,
    options: &MountOptions,
    policy: &Policy,
    keeping: Option<Keeping<'_>>,
) -> Result<Mounted, Error> {
    if options.allow_other && !options.default_permissions {
        return Err(Error::Unguarded);
    }
    if !options.default_permissions && !overrides_modes() {
        return Err(Error::BoundByModes);
    }
    if policy.transport == TransportChoice::Uring && policy.write_back {
        return Err(Error::RingsGather);
    }
    let failed = |e| Error::Mount(mount_point.to_path_buf(), e);
    let mount_point = mount_point.canonicalize().map_err(failed)?;
    let metadata = mount_point.metadata().map_err(failed)?;
    if !metadata.is_dir() {
        return Err(Error::NotADirectory(mount_point));
    }
    let no_rings = |e| Error::NoRings(mount_point.clone(), e);
    let (choice, switch) = match policy.transport {
        TransportChoice::Auto if policy.write_back || switch::is_on() != Some(true) => {
            (TransportChoice::Device, None)
        }
        TransportChoice::Uring => {
            (TransportChoice::Uring, Some(switch::On::turn().map_err(no_rings)?))
        }
        choice => (choice, None),
    };
    let policy = &Policy { transport: choice, ..policy.clone() };
    let counters = Arc::new(Counters::default());
    let (kept_by, kept) = keeping.unzip();
    let dispatcher = Dispatcher::new(handler, policy.clone(), counters.clone()).keep(kept);
    let connection = match mount_directly(&mount_point, metadata.mode(), options)? {
        Some(connection) => connection,
        None => fusermount::mount(&mount_point, &options.for_fusermount()).map_err(failed)?,
    };
    let undo = |e| {
        // A mount without a session would hang every process that touches it.
        let _ = unmount(&mount_point, Unmount::Lazy);
        if choice == TransportChoice::Uring { no_rings(e) } else { failed(e) }
    };
    let (connection, sharing) = match kept_by {
        None => (connection, Sharing::Own),
        Some(kept_by) => {
            let joined = join(kept_by, &connection).and_then(|()| kept_by.try_clone());
            (joined.map_err(undo)?, Sharing::Kept)
        }
    };
    let session = Session::start(connection, dispatcher, policy, sharing).map_err(undo)?;
    // The kernel has accepted io_uring by now, if it does.
    drop(switch);
    if !options.root.as_os_str().is_empty() {
        narrow(&mount_point, &options.root).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                let _ = undo(e);
                Error::NoRoot(options.root.clone())
            }
            _ => undo(e),
        })?;
    }
    let entry = mounts::mount_at(&mount_point)
        .map_err(undo)?
        .ok_or_else(|| undo(io::ErrorKind::NotFound.into()))?;
    raise_limits(&entry, policy);
    if let Some(queues) = session.queues() {
        let unmounter = Unmounter { entry: entry.clone() };
        queues.end_by(move || {
            if let Err(e) = unmounter.abort() {
                tracing::error!(
                    "programs wait for answers that will not come; `umount -f` ends that: {e}"
                );
            }
        });
    }
    let watch = if sharing == Sharing::Own { watch(&entry) } else { None };
    let gathers_writes = policy.write_back;
    Ok(Mounted { entry, session: Some(session), counters, gathers_writes, watch })
}

/// Continues a mount that another session has served, in this process or another one, with a
/// handler that knows everything that the kernel refers to. When this returns, requests are being
/// answered. After an error nothing was done.
pub fn take_over<H: Handler>(
    handler: Arc<H>,
    handover: &Handover,
    policy: &Policy,
) -> Result<Mounted, Error> {
    take_over_with(handler, handover, policy, None)
}

/// Continues, like [`take_over`], the mount of a process that was killed ([`mount_kept`]). The
/// kernel resends the requests that the process had not answered.
pub fn take_over_killed<H: Handler>(
    handler: Arc<H>,
    handover: &Handover,
    policy: &Policy,
    kept: Arc<Kept>,
) -> Result<Mounted, Error> {
    take_over_with(handler, handover, policy, Some(kept))
}

fn take_over_with<H: Handler>(
    handler: Arc<H>,
    handover: &Handover,
    policy: &Policy,
    kept: Option<Arc<Kept>>,
) -> Result<Mounted, Error> {
    let sharing = if kept.is_some() { Sharing::Kept } else { Sharing::Own };
    let policy = &Policy { transport: TransportChoice::Device, ..policy.clone() };
    let counters = Arc::new(Counters::default());
    let dispatcher = Dispatcher::new(handler, policy.clone(), counters.clone()).keep(kept);
    let remains = Remains {
        connection: handover.connection.clone(),
        greeting: handover.greeting.clone(),
        held: handover.held.clone(),
    };
    let entry = handover.entry.clone();
    let session = Session::resume(&remains, dispatcher, policy, sharing)
        .map_err(|e| Error::TakeOver(entry.mount_point.clone(), e))?;
    let watch = if sharing == Sharing::Own { watch(&entry) } else { None };
    let gathers_writes = policy.write_back;
    Ok(Mounted { entry, session: Some(session), counters, gathers_writes, watch })
}

impl Handover {
    /// Checks that this version can continue the mount under this policy. It changes nothing, so it
    /// can be called while another session still serves.
    pub fn fits(&self, policy: &Policy) -> Result<(), Error> {
        greets_alike(policy, &self.greeting)
            .map(drop)
            .map_err(|e| Error::TakeOver(self.entry.mount_point.clone(), e))
    }
}

fn watch(entry: &MountEntry) -> Option<AbortWatchdog> {
    let watch = AbortWatchdog::start(&entry.device).inspect_err(|e| {
        tracing::info!(
            "a daemon that is killed may hang until its mount is ended with `umount -f`: {e}"
        );
    });
    watch.ok()
}

/// Returns whether this process, and so every user that a mount without `allow_other` admits, is a
/// root that modes do not bind. In another user namespace modes bind root, too, if files belong to
/// users that the namespace does not know.
fn overrides_modes() -> bool {
    let capable =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE));
    let all_users = std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    rustix::process::geteuid().is_root() && capable && all_users
}

/// Mounts one directory of the file system in place of the whole, which is then mounted nowhere.
fn narrow(mount_point: &Path, root: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, mount_point.join(root), flags)?;
    rustix::mount::unmount(mount_point, UnmountFlags::DETACH)?;
    let from_tree = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, mount_point, from_tree)?)
}

/// Calls mount(2). Returns `None` if that is not permitted.
fn mount_directly(
    mount_point: &Path,
    mode: u32,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, Error> {
    let device = match File::options().read(true).write(true).open("/dev/fuse") {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        opened => opened.map_err(Error::NoFuse)?,
    };
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = std::ffi::CString::new(data)
        .map_err(|e| Error::Mount(mount_point.to_path_buf(), e.into()))?;
    match rustix::mount::mount(
        options.source.as_os_str(),
        mount_point,
        options.fs_type(),
        options.flags(),
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device.into())),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(e) => Err(Error::Mount(mount_point.to_path_buf(), e.into())),
    }
}

/// Lifts two precautions against hostile FUSE daemons that make an honest one slow: a small
/// readahead, and one percent of the memory for dirty pages. Without the right to do so they stay.
fn raise_limits(entry: &MountEntry, policy: &Policy) {
    let knobs = Path::new("/sys/class/bdi").join(&entry.device);
    let values = [
        ("read_ahead_kb", (policy.max_readahead / 1024).to_string()),
        ("max_ratio", "100".to_string()),
        ("strict_limit", "0".to_string()),
    ];
    for (knob, value) in values {
        if let Err(e) = std::fs::write(knobs.join(knob), &value) {
            tracing::debug!("cannot set {knob} of {} to {value}: {e}", entry.mount_point.display());
        }
    }
}

/// The time that a clean unmount waits for programs that use the mount only for a moment.
const MOMENT: Duration = Duration::from_millis(500);

/// Unmounts the topmost file system on `mount_point`. A clean unmount of one in use fails after
/// half a second: a program between fork(2) and exec(2) has the files of its parent open, and the
/// daemon itself opens the root now and then, so a first refusal does not mean that a program works
/// there.
pub fn unmount(mount_point: &Path, how: Unmount) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match unmount_now(mount_point, how) {
            Err(Error::Unmount(_, e))
                if e.kind() == io::ErrorKind::ResourceBusy
                    && how == Unmount::Clean
                    && begun.elapsed() < MOMENT =>
            {
                std::thread::sleep(MOMENT / 25);
            }
            done => return done,
        }
    }
}

fn unmount_now(mount_point: &Path, how: Unmount) -> Result<(), Error> {
    let flags = UnmountFlags::NOFOLLOW
        | match how {
            Unmount::Clean => UnmountFlags::empty(),
            Unmount::Lazy => UnmountFlags::DETACH,
            // For a FUSE mount this ends the connection to its daemon first.
            Unmount::Forced => UnmountFlags::FORCE | UnmountFlags::DETACH,
        };
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount::unmount(mount_point, how != Unmount::Clean)
            .map_err(|e| Error::Unmount(mount_point.to_path_buf(), e)),
        Err(e) => Err(Error::Unmount(mount_point.to_path_buf(), e.into())),
    }
}

impl Mounted {
    /// Returns the mount point.
    pub fn mount_point(&self) -> &Path {
        &self.entry.mount_point
    }

    /// Returns "major:minor" of the mount.
    pub fn device(&self) -> &str {
        &self.entry.device
    }

    /// Returns the counts of the requests that have arrived.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Returns whether the kernel was asked to gather writes.
    pub(crate) fn gathers_writes(&self) -> bool {
        self.gathers_writes
    }

    /// Returns whether requests come over io_uring.
    pub fn uses_rings(&self) -> bool {
        self.queues().is_some()
    }

    pub(crate) fn queues(&self) -> Option<Arc<Queues>> {
        self.session.as_ref().and_then(Session::queues)
    }

    /// Returns the threads that answer requests.
    pub(crate) fn pool(&self) -> Option<Arc<WorkerPool>> {
        self.session.as_ref().map(Session::pool)
    }

    /// Returns the invalidator for changes that do not come through the mount.
    pub fn invalidator(&self) -> Option<Arc<dyn Invalidator>> {
        let session = self.session.as_ref()?;
        Some(Arc::new(session.invalidator()))
    }

    /// Returns a handle with which another thread can end the mount while this one waits.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { entry: self.entry.clone() }
    }

    /// Returns a handle with which another thread can stop the threads that serve the mount, so
    /// that another process continues it ([`take_over`]). Returns `None` if requests come over
    /// io_uring, where that is not possible.
    pub fn stopper(&self) -> Option<Stopper> {
        self.session.as_ref().and_then(Session::stopper)
    }

    /// Returns the handover that [`Mounted::wait`] would return if the threads stopped now, to
    /// check [`Handover::fits`] beforehand.
    pub fn handover(&self) -> Option<Handover> {
        let (connection, greeting) = self.session.as_ref()?.greeting();
        Some(Handover { connection, entry: self.entry.clone(), greeting, held: Vec::new() })
    }

    /// Returns when the mount has ended, or its threads were stopped, and no request is in
    /// progress.
    pub fn wait(&mut self) -> Result<Served, Error> {
        let Some(session) = self.session.take() else { return Ok(Served::Ended) };
        let served = session.wait();
        self.watch = None;
        let entry = self.entry.clone();
        match served {
            Err(e) => Err(Error::Session(entry.mount_point, e)),
            Ok(None) => Ok(Served::Ended),
            Ok(Some(Remains { connection, greeting, held })) => {
                Ok(Served::Stopped(Box::new(Handover { connection, entry, greeting, held })))
            }
        }
    }

    /// Unmounts cleanly and waits. On failure (for example, because it is in use) the mount stays.
    pub fn unmount(&mut self) -> Result<(), Error> {
        self.unmounter().unmount(Unmount::Clean)?;
        self.wait().map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_none() {
            return;
        }
        let unmounter = self.unmounter();
        if unmounter.unmount(Unmount::Clean).or_else(|_| unmounter.end()).is_ok()
            && let Err(e) = self.wait()
        {
            tracing::warn!("{e}");
        }
    }
}

/// Ends one mount, from any thread, and never another one that took its place.
#[derive(Clone, Debug)]
pub struct Unmounter {
    entry: MountEntry,
}

impl Unmounter {
    fn is_mounted(&self) -> bool {
        mounts::mounts().is_ok_and(|all| all.contains(&self.entry))
    }

    /// Unmounts, as [`Mounted::unmount`] does.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        let mount_point = &self.entry.mount_point;
        match mounts::mount_at(mount_point).map_err(|e| Error::Unmount(mount_point.clone(), e))? {
            Some(top) if top == self.entry => unmount(mount_point, how),
            _ if self.is_mounted() => {
                let covered =
                    io::Error::new(io::ErrorKind::ResourceBusy, "something else is mounted on top");
                Err(Error::Unmount(mount_point.clone(), covered))
            }
            _ => Ok(()),
        }
    }

    /// Ends a mount that cannot be unmounted, for example because another one covers it: every
    /// request fails from then on, and the dead mount remains. Data that the kernel holds back is
    /// lost.
    pub fn abort(&self) -> std::io::Result<()> {
        use std::io::Write;
        crate::control::open(&self.entry.device, "abort", rustix::fs::OFlags::WRONLY)?
            .write_all(b"1")
    }

    /// Ends the mount even while it is in use, after everything that was written until now was
    /// handed to the daemon.
    pub fn end(&self) -> Result<(), Error> {
        if let Err(e) = self.unmount(Unmount::Clean) {
            tracing::warn!("{e}; ending it under its users");
            if let Ok(directory) = File::open(&self.entry.mount_point) {
                let _ = rustix::fs::syncfs(&directory);
            }
            self.unmount(Unmount::Forced)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_set_user_id_are_off_unless_asked_for() {
        let flags = MountOptions::default().flags();
        assert!(flags.contains(MountFlags::NODEV | MountFlags::NOSUID | MountFlags::RELATIME));
        assert!(!flags.contains(MountFlags::NOEXEC | MountFlags::RDONLY));
        let open = MountOptions { suid: true, dev: true, ..Default::default() };
        assert!(!open.flags().intersects(MountFlags::NODEV | MountFlags::NOSUID));
    }

    #[test]
    fn an_empty_subtype_leaves_the_type_plain() {
        assert_eq!(MountOptions::default().fs_type(), "fuse.kvfs");
        assert_eq!(MountOptions { subtype: String::new(), ..Default::default() }.fs_type(), "fuse");
    }
}
