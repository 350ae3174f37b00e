//! Opening a store, and finding the daemon of a mounted one.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{CreateOptions, Kvdb, OpenOptions, Profile};
use kvfs::{Atime, Fs, FsOptions};
use kvfs_fuse::mounts::{self, MountEntry};
use kvfs_fuse::{Counters, KernelNotifier};
use rustix::event::{PollFd, PollFlags, Timespec};
use zones::FileDevice;

use crate::daemons::Record;
use crate::device_profile::Asked;
use crate::figures;
use crate::output::{Exit, Failure, Outcome};

/// Parses "4096", "64K", "10G", "1.5T" (powers of 1024; a trailing "B" or "iB" is accepted).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size: write bytes or a number with K, M, G or T");
    let t = text.trim();
    let digits = t.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(t.len());
    let (number, unit) = t.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B')
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes.is_finite() && bytes < i64::MAX as f64 { Ok(bytes as u64) } else { Err(bad()) }
}

/// "1.5 GiB": three digits at most.
pub fn human_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// The least size of a store, bytes. Zones are 8 MiB, and a few more than a dozen are spoken for
/// before there is any data: the journal, the manifest, what is kept back so that deleting and
/// merging always work, and an open zone for each kind of what is written. With this many 8 MiB of
/// files can be written, and written again, in addition to keys.
pub const LEAST_SIZE: u64 = 160 << 20;

/// Makes an empty store at `path`; the size it may grow to is returned, `None`: as far as the host
/// lets it; and what kind of device it was made for.
pub fn create(path: &Path, size: Option<u64>, profile: Asked) -> Outcome<(Option<u64>, Profile)> {
    let cannot = |e: kvdb::Error| failure(format!("cannot create {}", path.display()), e);
    let device = FileDevice::create(path).map_err(|e| device_failure(path, "create", e))?;
    let size = match size {
        // A block device has its size.
        None if !path.is_file() => Some(zones::Device::len(&device).map_err(|e| cannot(e.into()))?),
        size => size,
    };
    if let Some(size) = size.filter(|size| *size < LEAST_SIZE) {
        if path.is_file() {
            // What was made a moment ago.
            let _ = std::fs::remove_file(path);
        }
        let what = format!(
            "cannot create {}: {} are too few for a store, the least is {}",
            path.display(),
            human_size(size),
            human_size(LEAST_SIZE)
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
                ..Default::default()
            };
            let fs = Fs::open(db.clone(), Arc::new(Machine::default()), options);
            fs.and_then(|fs| fs.shutdown()).map_err(|e| {
                Failure::new(Exit::Failed, format!("cannot create {}: {e}", path.display()))
            })?;
            db.close().map_err(cannot)
        });
    if made.is_err() && path.is_file() {
        // Half a store is in the way of the next try.
        let _ = std::fs::remove_file(path);
    }
    made.map(|()| (size, profile))
}

/// What an open store may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// An open store: no other process has it open.
pub struct Store {
    pub path: PathBuf,
    pub db: Kvdb,
    pub access: Access,
    /// What opening it had to repair, in one line; `None` after a proper close.
    pub recovery: Option<String>,
    shares: Shares,
}

/// All the memory a store takes when not told otherwise, bytes.
const MEMORY: u64 = 320 << 20;

/// How the memory budget is shared out, bytes. (What all of them need in addition to their buffers,
/// the database keeps an eighth of its share for.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    /// Data of files that is not committed yet.
    write_buffer: usize,
    /// Inodes.
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

/// Opens the store at `path`. `memory`: all it may take for buffers, caches and indexes, bytes.
pub fn open(path: &Path, access: Access, memory: Option<u64>) -> Outcome<Store> {
    let device = FileDevice::open(path, access == Access::ReadOnly)
        .map_err(|e| device_failure(path, "open", e))?;
    let shares = Shares::of(memory.unwrap_or(MEMORY));
    let options = OpenOptions {
        read_only: access == Access::ReadOnly,
        memory: shares.database,
        ..Default::default()
    };
    let (db, recovery) = Kvdb::open(Arc::new(device), Arc::new(Machine::default()), options)
        .map_err(|e| failure(format!("cannot open {}", path.display()), e))?;
    tracing::info!("opened {}: {recovery}", path.display());
    let recovery = (!recovery.clean).then(|| recovery.to_string());
    Ok(Store {
        path: full_path(path).unwrap_or_else(|_| path.to_path_buf()),
        db,
        access,
        recovery,
        shares,
    })
}

/// As `open`, but if the store's last mount is on its way out (unmounted, and still writing what
/// was left) it waits for that; for any other user it waits a moment, in case it is just leaving.
pub fn open_waiting(path: &Path, access: Access, memory: Option<u64>) -> Outcome<Store> {
    let full = full_path(path).unwrap_or_else(|_| path.to_path_buf());
    let mut patience = 50;
    loop {
        let busy = match open(path, access, memory) {
            Err(busy) if busy.exit == Exit::Busy => busy,
            done => return done,
        };
        if let Some(record) = Record::of_store(&full) {
            if !record.mounts().is_empty() {
                return Err(busy);
            }
            if record.is_stopped() {
                let (path, pid) = (path.display(), record.pid);
                let text = format!(
                    "{path} is in use by process {pid}, which is stopped: it was unmounted, and is not closed yet"
                );
                return Err(Failure::new(Exit::Busy, text)
                    .hint(format!("kill -CONT {pid} has it write what it holds, and end")));
            }
            if let Some(process) = record.process() {
                // Now and then it is looked at whether it still can end.
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
        self.file_system_with(Atime::Relative)
    }

    /// With access times as a mount wants them.
    pub fn file_system_with(&self, atime: Atime) -> Outcome<Fs> {
        let options = FsOptions {
            atime,
            read_only: self.access == Access::ReadOnly,
            write_buffer: self.shares.write_buffer,
            inode_memory: self.shares.inodes,
            ..Default::default()
        };
        Fs::open(self.db.clone(), Arc::new(Machine::default()), options).map_err(|e| {
            let exit =
                if matches!(e, kvfs::Error::Corrupt { .. }) { Exit::Damaged } else { Exit::Failed };
            Failure::new(
                exit,
                format!("cannot open the file system in {}: {e}", self.path.display()),
            )
        })
    }

    /// Everything is on disk, and the store free for others, when this returns.
    pub fn close(self) -> Outcome {
        self.db
            .close()
            .map_err(|e| failure(format!("{} was not closed well", self.path.display()), e))
    }
}

/// A failure of the database, with what was being done.
pub fn failure(doing: impl std::fmt::Display, error: kvdb::Error) -> Failure {
    let exit = match &error {
        kvdb::Error::NoSpace => Exit::NoSpace,
        kvdb::Error::Corrupt(_) => Exit::Damaged,
        kvdb::Error::NoDictionary(_) => Exit::NotFound,
        kvdb::Error::Io(e) => Exit::of(e),
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("{doing}: {error}"))
}

/// A store's file that could not be opened or made. A store in use is most often one that is
/// mounted: then it says where.
fn device_failure(path: &Path, verb: &str, error: zones::Error) -> Failure {
    if !matches!(error, zones::Error::Busy(_)) {
        return failure(format!("cannot {verb} {}", path.display()), error.into());
    }
    let full = full_path(path).unwrap_or_else(|_| path.to_path_buf());
    match Record::of_store(&full) {
        Some(r) if r.closing => {
            let text = format!(
                "{} is being closed by process {}, which has served it",
                path.display(),
                r.pid
            );
            Failure::new(Exit::Busy, text).hint("try again when that has ended")
        }
        Some(r) => Failure::new(
            Exit::Busy,
            format!("{} is mounted on {}", path.display(), r.mount_point.display()),
        )
        .hint(format!("unmount it: kvfs umount {}", r.mount_point.display())),
        None => {
            Failure::new(Exit::Busy, format!("{} is in use by another process", path.display()))
        }
    }
}

/// A failure to mount or unmount.
pub fn mount_failure(error: kvfs_fuse::Error) -> Failure {
    use kvfs_fuse::Error;
    let text = error.to_string();
    match &error {
        Error::NotADirectory(_) => Failure::new(Exit::Usage, text).hint("make one, and mount on it"),
        Error::Unguarded => Failure::new(Exit::Usage, text).hint("leave out one of allow_other and nodefault_permissions"),
        Error::BoundByModes => Failure::new(Exit::Usage, text).hint("leave out nodefault_permissions"),
        Error::RingsGather => Failure::new(Exit::Usage, text).hint("leave out writeback, or use transport=auto or device"),
        Error::NoRings(_, e) => Failure::new(Exit::of(e), text).hint(
            "it takes Linux 6.14, and root or `echo Y > /sys/module/fuse/parameters/enable_uring` by root; or use transport=auto",
        ),
        Error::NoFuse(e) => {
            Failure::new(Exit::of(e), text).hint("load the kernel's FUSE (modprobe fuse), or run where /dev/fuse exists")
        }
        Error::Unmount(dir, e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
            let dir = dir.display();
            Failure::new(Exit::Busy, format!("{dir} is in use"))
                .hint(format!("see who uses it: fuser -vm {dir}; --lazy unmounts when the last one leaves"))
        }
        Error::Mount(_, e) | Error::Unmount(_, e) | Error::Session(_, e) => Failure::new(Exit::of(e), text),
    }
}

/// The absolute path without symlinks, also of a directory that is a dead mount (which cannot be
/// asked anything itself).
pub fn full_path(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => path_beside(path),
        done => done,
    }
}

/// The absolute path, with only the parent resolved: the file itself is not accessed.
pub fn path_beside(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Where the socket of a mounted store is by default: next to the store. `None` where a socket
/// cannot be there.
pub fn socket_beside(store: &Path) -> Option<PathBuf> {
    let mut path = store.as_os_str().to_os_string();
    path.push(".sock");
    // The kernel's limit for the path of a socket is 107 bytes, and the server makes it under a
    // name that is one byte longer.
    (path.len() < 107 && !store.starts_with("/dev")).then(|| path.into())
}

/// The socket of a mounted store: by the directory it is mounted on (or any directory inside), or
/// by the store itself. `None`: it is not mounted, or its mount has no socket.
pub fn socket_of(target: &Path) -> Outcome<Option<PathBuf>> {
    let path = full_path(target)
        .map_err(|e| Failure::io(format!("cannot find {}", target.display()), &e))?;
    let mounted_here = || Record::all().into_iter().find(|r| r.mount_point == path);
    if let Some(record) = Record::of_store(&path).or_else(mounted_here) {
        return Ok(record.socket);
    }
    if !path.is_dir() {
        // A store, which may well lie in another mount. Its daemon may be another user's, whose
        // records are not ours to read.
        return Ok(socket_beside(&path).filter(|s| answers(s)));
    }
    let mount =
        mounts::mount_of(&path).map_err(|e| Failure::io("cannot read the table of mounts", &e))?;
    let Some(mount) = mount.filter(MountEntry::is_fuse) else { return Ok(None) };
    if let Some(record) = Record::read(&mount.device).filter(Record::is_alive) {
        return Ok(record.socket);
    }
    // A mount of another user; its source is the store, unless it was given another name.
    let named = Path::new(&mount.source);
    Ok(socket_beside(named).filter(|s| named.is_absolute() && answers(s)))
}

/// The daemon of a store's file that is mounted, to be asked about it. `None`: it is not mounted.
/// One that was stopped by a signal would never answer.
pub fn served(store: &Path) -> Outcome<Option<Record>> {
    let full = full_path(store).unwrap_or_else(|_| store.to_path_buf());
    match Record::of_store(&full).filter(|record| !record.mounts().is_empty()) {
        Some(r) if r.is_stopped() => {
            let (store, mount, pid) = (store.display(), r.mount_point.display(), r.pid);
            let text = format!("{store} is mounted on {mount} by process {pid}, which is stopped");
            Err(Failure::new(Exit::Busy, text).hint(format!("kill -CONT {pid} has it go on")))
        }
        record => Ok(record),
    }
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Where the figures of a mount come from.
pub struct MountFigures {
    pub requests: Arc<Counters>,
    pub notifier: Arc<KernelNotifier>,
    pub uses_rings: bool,
}

/// What is known about an open store, as a JSON object: for `kvfs stat`, and for clients of the
/// socket.
pub fn statistics(db: &Kvdb, fs: Option<&Fs>, mount: Option<&MountFigures>) -> String {
    let mut all = serde_json::Value::Object(figures::engine(&db.stats()));
    if let Some(fs) = fs {
        let s = fs.statistics();
        all["files"] = serde_json::json!({
            "inodes_in_memory": s.inodes, "dirty_bytes": s.dirty_bytes, "commits": s.commits, "pages_written": s.pages_written,
            "pages_patched": s.pages_patched, "bytes_written": s.bytes_written, "bytes_read": s.bytes_read, "next_inode": s.next_ino,
        });
    }
    if let Some(MountFigures { requests, notifier, uses_rings }) = mount {
        let round_trip = notifier.round_trip().map(|mean| mean.as_nanos() as f64 / 1000.0);
        let transport = if *uses_rings { "io_uring" } else { "/dev/fuse" };
        all["transport"] = serde_json::json!({"name": transport, "round_trip_micros": round_trip});
        let by_kind: serde_json::Map<_, _> =
            requests.seen().into_iter().map(|(name, n)| (name.to_string(), n.into())).collect();
        all["requests"] = by_kind.into();
        let micros = |(name, time): (&str, Duration)| {
            (name.to_string(), u64::try_from(time.as_micros()).unwrap_or(u64::MAX).into())
        };
        let times: serde_json::Map<_, _> = requests.times().into_iter().map(micros).collect();
        all["request_micros"] = times.into();
    }
    all.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("2TiB"), Ok(2 << 40));
        assert!(parse_size("").is_err());
        assert!(parse_size("ten").is_err());
        assert!(parse_size("10X").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

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
    fn sizes_are_shown_with_three_digits() {
        assert_eq!(human_size(17), "17 B");
        assert_eq!(human_size(1536), "1.5 KiB");
        assert_eq!(human_size(200 << 30), "200 GiB");
    }
}
