//! Makes and opens stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{CreateOptions, Kvdb, LocalCopy, Mirror, OpenOptions, Profile, RemoteZones};
use kvfs::{
    Atime, COMPRESS_ATTRIBUTE, Compress, Fs, FsOptions, InUse, ROOT, ViewNotes, XattrFlags,
};
use kvfs_fuse::Kept;
use objects::Unreachable;
use rustix::event::{PollFd, PollFlags, Timespec};
use zones::FileDevice;

use crate::support::machine::{identity, paths};
use crate::support::stores::device_profile::Asked;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;
use crate::support::terminal::{failures, sizes};

/// The minimum size of a store in bytes. Zones are 8 MiB, and more than a dozen are needed before
/// there is any data: for the journal, the manifest, the reserve by which deleting and merging
/// always work, and an open zone for each kind of data. With this size, 8 MiB of files can be
/// written and overwritten, in addition to keys.
pub const LEAST_SIZE: u64 = 160 << 20;

/// The options of the files of a store that is made or mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilesOfStore {
    /// See [`FsOptions::zone_size`].
    pub zone_size: Option<u64>,
    /// For a new store, the way of compression of the root directory, which all else inherits; for
    /// a mount, that of files without a way of their own.
    pub compress: Option<Compress>,
}

/// Makes an empty store at `path`. Returns its maximum size, `None` if only the host limits it, and
/// the kind of device that it was made for.
pub fn create(
    path: &Path,
    size: Option<u64>,
    profile: Asked,
    files: FilesOfStore,
) -> Outcome<(Option<u64>, Profile)> {
    let cannot =
        |e: kvdb::Error| failures::of_database(format!("cannot create {}", path.shown()), e);
    let device = FileDevice::create(path).map_err(|e| failures::of_device(path, "create", e))?;
    let size = match size {
        // A block device has a fixed size.
        None if !path.is_file() => Some(zones::Device::len(&device).map_err(|e| cannot(e.into()))?),
        size => size,
    };
    if let Some(size) = size.filter(|size| *size < LEAST_SIZE) {
        if path.is_file() {
            // Remove the file that was just made.
            let _ = std::fs::remove_file(path);
        }
        let what = format!(
            "cannot create {}: {} are too few for a store, the least is {}",
            path.shown(),
            sizes::human_size(size),
            sizes::human_size(LEAST_SIZE)
        );
        return Err(Failure::new(Exit::Usage, what)
            .hint("give a larger --size, or none: a file takes space only as it is needed"));
    }
    let profile = profile.of(path);
    let options = CreateOptions { capacity: size, profile, ..Default::default() };
    let made = Kvdb::create(Arc::new(device), Arc::new(Machine::default()), options)
        .map_err(cannot)
        .and_then(|db| {
            let options = FsOptions {
                root_uid: rustix::process::geteuid().as_raw(),
                root_gid: rustix::process::getegid().as_raw(),
                zone_size: files.zone_size,
                ..Default::default()
            };
            let fs = Fs::open(db.clone(), Arc::new(Machine::default()), options);
            let made = fs.and_then(|fs| {
                if let Some(way) = files.compress {
                    let (name, value) = (COMPRESS_ATTRIBUTE.as_bytes(), way.name().as_bytes());
                    fs.setxattr(ROOT, name, value, XattrFlags::Any)?;
                }
                fs.shutdown()
            });
            made.map_err(|e| {
                Failure::new(Exit::Failed, format!("cannot create {}: {e}", path.shown()))
            })?;
            db.close().map_err(cannot)
        });
    if made.is_err() && path.is_file() {
        // An incomplete store would block the next attempt.
        let _ = std::fs::remove_file(path);
    }
    made.map(|()| (size, profile))
}

/// The permitted use of an open store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// An open store, which no other process has open.
pub struct Store {
    pub path: PathBuf,
    pub db: Kvdb,
    pub access: Access,
    /// The repairs done when it was opened, in one line, or `None` after a clean shutdown.
    pub recovery: Option<String>,
    /// The store's file, which stays locked until the last reference is dropped.
    pub device: Arc<FileDevice>,
    shares: Shares,
    flush_interval: Duration,
}

/// An open store, and the state of its file system that is in use.
pub struct InHand {
    pub store: Store,
    pub in_use: InUse,
    /// The state that outlives this process, if a keeper holds it.
    pub kept: Option<(Arc<Kept>, Arc<ViewNotes>)>,
}

/// The default memory budget of a store, in bytes.
pub const MEMORY: u64 = 320 << 20;

/// The shares of the memory budget, in bytes. (The database reserves an eighth of its share for the
/// overhead of all of them.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    /// File data that is not committed yet.
    write_buffer: usize,
    /// The inode cache.
    inodes: usize,
    database: usize,
}

impl Shares {
    fn of(memory: u64) -> Shares {
        let write_buffer = (memory / 5).clamp(1 << 20, 1 << 30);
        let inodes = memory / 20;
        let database = memory.saturating_sub(write_buffer + inodes).max(1 << 20);
        let bytes = |n| usize::try_from(n).unwrap_or(usize::MAX);
        Shares {
            write_buffer: bytes(write_buffer),
            inodes: bytes(inodes),
            database: bytes(database),
        }
    }
}

/// The resources that an open store may use, in bytes, and whether it may use the device while it
/// is quiet. The default applies to those that are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Memory for buffers, caches and indexes.
    pub memory: Option<u64>,
    /// Disk space for data fetched from object storage.
    pub cache: Option<u64>,
    /// Never access object storage: only data in the local file is readable.
    pub offline: bool,
    /// Lay files in the order of their names while the store is quiet.
    pub lay_when_quiet: bool,
    /// Data waits in the memory of the database until the interval, as much as may
    /// ([`OpenOptions::hold_values`]), so that files which are removed before are not written.
    pub hold_values: bool,
    /// The longest time after which a change without a sync is on disk.
    pub flush_interval: Option<Duration>,
}

impl From<Option<u64>> for Budget {
    fn from(memory: Option<u64>) -> Budget {
        Budget { memory, ..Budget::default() }
    }
}

/// Opens the store at `path`.
pub fn open(path: &Path, access: Access, budget: impl Into<Budget>) -> Outcome<Store> {
    let writable = access != Access::ReadOnly || keeps_parts(path);
    let device =
        FileDevice::open(path, !writable).map_err(|e| failures::of_device(path, "open", e))?;
    open_on(device, path, access, budget.into(), None)
}

/// Returns whether the file is a copy of a store in object storage. It is brought up to date from
/// there, which would discard changes in it.
pub fn is_copy(path: &Path) -> bool {
    let copy = FileDevice::open(path, true).map(|device| LocalCopy::of(&device));
    matches!(copy, Ok(Ok(Some(copy))) if copy.fork.is_none() && copy.writer.is_none())
}

/// Returns whether the file is that of a store in object storage, to which readers write the parts
/// that they fetch.
pub fn keeps_parts(path: &Path) -> bool {
    FileDevice::open(path, true).is_ok_and(|device| matches!(LocalCopy::of(&device), Ok(Some(_))))
}

/// Opens a store like `open`, whose file is open and locked already, whatever its current name.
pub fn open_file(
    file: std::fs::File,
    path: &Path,
    access: Access,
    budget: impl Into<Budget>,
) -> Outcome<Store> {
    let device = FileDevice::of(file, path, access == Access::ReadOnly)
        .map_err(|e| failures::of_device(path, "open", e))?;
    open_on(device, path, access, budget.into(), None)
}

/// Opens a store like `open_waiting`, whose file another process has open, too. A mirror keeps the
/// commits, so that they are not lost with this process.
pub fn open_mirrored(
    file: &std::fs::File,
    path: &Path,
    access: Access,
    budget: Budget,
    mirror: &Arc<Mirror>,
) -> Outcome<Store> {
    waiting(path, || {
        let file = file.try_clone().map_err(|e| Failure::io("cannot take the store's file", &e))?;
        let device = FileDevice::of(file, path, access == Access::ReadOnly)
            .map_err(|e| failures::of_device(path, "open", e))?;
        open_on(device.without_writes_behind(), path, access, budget, Some(mirror.clone()))
    })
}

fn open_on(
    device: FileDevice,
    path: &Path,
    access: Access,
    budget: Budget,
    mirror: Option<Arc<Mirror>>,
) -> Outcome<Store> {
    let shares = Shares::of(budget.memory.unwrap_or(MEMORY));
    let device = Arc::new(device);
    let remote = match budget.offline {
        true => LocalCopy::of(&*device).ok().flatten().map(|copy| {
            let nowhere = Arc::new(Unreachable::new(&copy.place));
            RemoteZones { timeout: Duration::ZERO, ..RemoteZones::new(nowhere) }
        }),
        false => places::zones_of(&*device)?,
    };
    let cache_bytes = budget.cache.unwrap_or(u64::MAX);
    let remote = remote.map(|zones| RemoteZones { cache_bytes, ..zones });
    let usual = OpenOptions::default();
    let flush_interval = budget.flush_interval.unwrap_or(usual.flush_interval);
    let options = OpenOptions {
        read_only: access == Access::ReadOnly,
        flush_interval,
        memory: shares.database,
        lay_when_quiet: budget.lay_when_quiet,
        hold_values: if budget.hold_values { usize::MAX } else { 0 },
        mirror,
        remote,
        ..usual
    };
    let (db, recovery) = Kvdb::open(device.clone(), Arc::new(Machine::default()), options)
        .map_err(|e| failures::of_database(format!("cannot open {}", path.shown()), e))?;
    tracing::info!("opened {}: {recovery}", path.display());
    kvfs::lay_by_name(&db);
    kvfs::receive_by_ways(&db);
    let recovery = (!recovery.clean).then(|| recovery.to_string());
    Ok(Store {
        path: paths::full_path(path).unwrap_or_else(|_| path.to_path_buf()),
        db,
        access,
        recovery,
        device,
        shares,
        flush_interval,
    })
}

/// Opens a store like `open`. If the last mount of the store is shutting down (unmounted, and still
/// writing), waits for that; for any other user of the store, waits only a moment.
pub fn open_waiting(path: &Path, access: Access, budget: impl Into<Budget>) -> Outcome<Store> {
    let budget = budget.into();
    waiting(path, || open(path, access, budget))
}

fn waiting(path: &Path, open: impl Fn() -> Outcome<Store>) -> Outcome<Store> {
    let full = paths::full_path(path).unwrap_or_else(|_| path.to_path_buf());
    let mut patience = 50;
    loop {
        let busy = match open() {
            Err(busy) if busy.exit == Exit::Busy => busy,
            done => return done,
        };
        if let Some(record) = identity::daemon_of(&full) {
            if !record.mounts().is_empty() {
                return Err(busy);
            }
            if record.is_stopped() {
                let (path, pid) = (path.shown(), record.pid);
                let text = format!(
                    "{path} is in use by process {pid}, which is stopped: it was unmounted, and is not closed yet"
                );
                return Err(Failure::new(Exit::Busy, text)
                    .hint(format!("kill -CONT {pid} has it write what it holds, and end")));
            }
            if let Some(process) = record.process() {
                // Check from time to time whether the process can still end.
                let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ =
                    rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&look));
                continue;
            }
        }
        if patience == 0 {
            return Err(busy);
        }
        patience -= 1;
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Store {
    pub fn file_system(&self) -> Outcome<Fs> {
        self.open_files(self.file_options(), &InUse::default())
    }

    /// Opens the file system with the access times, the zone size and the compression that a mount
    /// requests. With `write_through`, no completed call leaves data in memory only. `in_use` is
    /// the state in use that another process has left.
    pub fn file_system_with(
        &self,
        atime: Atime,
        files: FilesOfStore,
        write_through: bool,
        in_use: &InUse,
    ) -> Outcome<Fs> {
        let FilesOfStore { zone_size, compress } = files;
        let options =
            FsOptions { atime, zone_size, compress, write_through, ..self.file_options() };
        self.open_files(options, in_use)
    }

    /// Opens the file system to serve it to clients. One that has the lease of the main files
    /// continues with it.
    pub fn served_file_system(&self) -> Outcome<Fs> {
        let lent = self.is_lent()?;
        self.open_files(FsOptions { lent, ..self.file_options() }, &InUse::default())
    }

    /// Ends the lease of the main files, if a client of a server has it, before they are replaced.
    /// The client would continue over other files than those that it has read.
    pub fn end_lease(&self) -> Outcome {
        // The lease ends when the files are opened for writing without it.
        match self.is_lent()? {
            true => self.file_system().map(drop),
            false => Ok(()),
        }
    }

    fn is_lent(&self) -> Outcome<bool> {
        kvdb_wire::is_lent(&self.db).map_err(|e| {
            let what = format!("cannot read who has the main files of {}", self.path.shown());
            failures::of_database(what, e)
        })
    }

    fn file_options(&self) -> FsOptions {
        FsOptions {
            read_only: self.access == Access::ReadOnly,
            write_buffer: self.shares.write_buffer,
            inode_memory: self.shares.inodes,
            flush_interval: self.flush_interval,
            ..FsOptions::default()
        }
    }

    fn open_files(&self, options: FsOptions, in_use: &InUse) -> Outcome<Fs> {
        let env = Arc::new(Machine::default());
        Fs::take_over(self.db.clone(), env, options, in_use).map_err(|e| {
            let exit =
                if matches!(e, kvfs::Error::Corrupt { .. }) { Exit::Damaged } else { Exit::Failed };
            Failure::new(exit, format!("cannot open the file system in {}: {e}", self.path.shown()))
        })
    }

    /// Closes the store. When this returns, everything is on disk, and the store is free for
    /// others.
    pub fn close(self) -> Outcome {
        self.db.close().map_err(|e| {
            failures::of_database(format!("{} was not closed well", self.path.shown()), e)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_the_memory_stay_within_it() {
        for memory in [4 << 20, 64 << 20, MEMORY, 8 << 30] {
            let s = Shares::of(memory);
            assert!((s.write_buffer + s.inodes + s.database) as u64 <= memory, "{memory}: {s:?}");
        }
        assert_eq!(
            Shares::of(MEMORY),
            Shares { write_buffer: 64 << 20, inodes: 16 << 20, database: 240 << 20 }
        );
        assert!(Shares::of(0).database > 0);
    }

    #[test]
    fn files_are_committed_at_the_interval_of_the_mount() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s.kvfs");
        Kvdb::create_path(&path, Default::default()).expect("made").close().expect("closed");
        let interval_of = |flush_interval| {
            let budget = Budget { flush_interval, ..Budget::default() };
            let store =
                open(&path, Access::ReadWrite, budget).unwrap_or_else(|e| panic!("{}", e.message));
            let interval = store.file_options().flush_interval;
            store.close().unwrap_or_else(|e| panic!("{}", e.message));
            interval
        };
        assert_eq!(interval_of(None), Duration::from_secs(1));
        assert_eq!(interval_of(Some(Duration::from_secs(30))), Duration::from_secs(30));
    }
}
