//! Mounts a file system, or takes over a mount from another process: checks the options, starts the
//! threads of the session, and sets the kernel's parameters. Separate files contain the options,
//! the system calls, the mount that is served, and its end.
//!
//! The daemon calls mount(2) itself if it has the right to mount, and can then use every option.
//! Otherwise the setuid helper `fusermount3` mounts.

mod error;
mod mounted;
mod options;
mod system_call;
mod unmount;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::thread::{CapabilitySet, capabilities};

use crate::abort_watchdog::AbortWatchdog;
use crate::connection::join;
use crate::counters::Counters;
use crate::dispatcher::Dispatcher;
use crate::fusermount;
use crate::handler::{Handler, Policy, TransportChoice};
use crate::handover::Handover;
use crate::kept::Kept;
use crate::mounts::{self, MountEntry};
use crate::session::{Remains, Session, Sharing, greets_alike};
use crate::switch;

pub use error::Error;
pub use mounted::{Mounted, Served};
pub use options::{AccessTimes, MountOptions};
use system_call::{mount_directly, narrow};
pub use unmount::{Unmount, Unmounter, unmount};

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

/// Returns the transport that a policy selects on this kernel. If io_uring is off by default, it
/// stays switched on until the guard is dropped.
fn transport_of(policy: &Policy) -> io::Result<(TransportChoice, Option<switch::On>)> {
    Ok(match policy.transport {
        TransportChoice::Auto if policy.write_back || switch::is_on() != Some(true) => {
            (TransportChoice::Device, None)
        }
        TransportChoice::Uring => (TransportChoice::Uring, Some(switch::On::turn()?)),
        choice => (choice, None),
    })
}

/// Fails if the options contradict each other, or require rights that this process does not have.
fn check(options: &MountOptions, policy: &Policy) -> Result<(), Error> {
    match () {
        () if options.allow_other && !options.default_permissions => Err(Error::Unguarded),
        () if !options.default_permissions && !overrides_modes() => Err(Error::BoundByModes),
        () if policy.transport == TransportChoice::Uring && policy.write_back => {
            Err(Error::RingsGather)
        }
        () => Ok(()),
    }
}

fn mount_with<H: Handler>(
    handler: Arc<H>,
    mount_point: &Path,
    options: &MountOptions,
    policy: &Policy,
    keeping: Option<Keeping<'_>>,
) -> Result<Mounted, Error> {
    check(options, policy)?;
    let failed = |e| Error::Mount(mount_point.to_path_buf(), e);
    let mount_point = mount_point.canonicalize().map_err(failed)?;
    let metadata = mount_point.metadata().map_err(failed)?;
    if !metadata.is_dir() {
        return Err(Error::NotADirectory(mount_point));
    }
    let no_rings = |e| Error::NoRings(mount_point.clone(), e);
    let (choice, switch) = transport_of(policy).map_err(no_rings)?;
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
    // The kernel has accepted or refused io_uring by now.
    drop(switch);
    if !options.root.as_os_str().is_empty() {
        narrow(&mount_point, &options.root).map_err(|e| {
            let (kind, number) = (e.kind(), e.raw_os_error());
            let failed = undo(e);
            match kind {
                io::ErrorKind::NotFound => Error::NoRoot(options.root.clone()),
                _ if number == Some(libc::EPERM) => Error::RootNeedsRight(options.root.clone()),
                _ => failed,
            }
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
/// answered. After an error, nothing has changed.
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
    /// Checks that this version can continue the mount under this policy. The method changes
    /// nothing, so it can be called while another session still serves the mount.
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

/// Raises two limits that protect against hostile FUSE daemons but make an honest one slow: a small
/// readahead, and one percent of the memory for dirty pages. Without the right to do so, the limits
/// stay unchanged.
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
