//! The scratch directory of a layered run: the upper layer and the work directory of the overlay.
//!
//! The directory has a file that is locked while its run lives. A killed run leaves its directory,
//! as it leaves its transaction to the daemon, which aborts it. The next run in the same place
//! removes directories without a living run. Nothing in it is synced (`volatile`): it is of no use
//! after a crash.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvfs_fuse::mounts::{self, MountEntry};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, FlockOperation, Mode, Timespec, Timestamps, UTIME_OMIT,
    XattrFlags,
};

use crate::support::layered_runs::plan::HIDDEN;
use crate::support::layered_runs::{inside_layer, items};
use crate::support::layers::layer::{Attributes, Layer, Marks};
use crate::support::layers::reader::Layers;
use crate::support::machine::paths;
use crate::support::machine::sandbox::{Overlay, flags_above};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The beginning of the names of scratch directories, and the name of the locked file in each.
const PREFIX: &str = ".kvfs-layer-";
const LOCK: &str = "lock";

/// The age from which a scratch directory without a lock belongs to no run: a run takes the lock at
/// once after it has made the directory.
const FRESH: Duration = Duration::from_secs(60);

/// Bytes of free space below which the scratch directory counts as full.
const FULL: u64 = 1 << 20;

/// Length from which the kernel takes no options: a page, with a zero byte at the end.
const MOST_OPTIONS: usize = 4096;

/// An extended attribute that the scratch directory's file system has to take.
const TRIED: &str = "user.kvfs.layer";

/// Numbers of the capabilities by which a process may mount (CAP_SYS_ADMIN), and may open files by
/// their handles (CAP_DAC_READ_SEARCH).
const MAY_MOUNT: u32 = 21;
const MAY_OPEN_HANDLES: u32 = 2;

pub struct Scratch {
    directory: tempfile::TempDir,
    /// Locked as long as it is open.
    _lock: File,
    marks: Marks,
    /// The attributes of the upper layer's root before the run.
    start: Attributes,
}

/// Returns the default place of scratch directories: `TMPDIR`, or the directory of the store's
/// file, or `/var/tmp`.
pub fn place(store: Option<&Path>) -> PathBuf {
    if let Some(named) = std::env::var_os("TMPDIR").filter(|named| !named.is_empty()) {
        return named.into();
    }
    let beside = store.filter(|store| store.is_file()).and_then(Path::parent);
    let may_write =
        |place: &Path| rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    match beside.filter(|place| may_write(place)) {
        Some(beside) => beside.to_owned(),
        None => "/var/tmp".into(),
    }
}

impl Scratch {
    /// Makes a scratch directory in `place` for an overlay above `view`.
    pub fn make(place: &Path, view: &Path) -> Outcome<Scratch> {
        let cannot = |e: io::Error| {
            let what = format!("cannot make a scratch directory in {}", place.shown());
            Failure::io(what, &e).hint("name a directory of this machine: --scratch DIR")
        };
        let place = &paths::full_path(place).map_err(cannot)?;
        if mounts::mount_of(place).map_err(cannot)?.as_ref().is_some_and(MountEntry::is_fuse) {
            let what = format!(
                "{} lies in a FUSE mount, where an overlay cannot keep its layer",
                place.shown()
            );
            return Err(Failure::new(Exit::Usage, what)
                .hint("name a directory of this machine: --scratch DIR"));
        }
        sweep(place);
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(place)
            .map_err(cannot)?;
        let lock = File::create(directory.path().join(LOCK)).map_err(cannot)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| cannot(e.into()))?;
        for name in ["upper", "work", "merged"] {
            fs::create_dir(directory.path().join(name)).map_err(cannot)?;
        }
        let upper = directory.path().join("upper");
        let marks = if may_mount() { Marks::Trusted } else { Marks::User };
        dress(&upper, view, marks)?;
        let found = Layer::open(&upper)?.attributes(b"").map_err(cannot)?;
        let start = found.ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
        Ok(Scratch { directory, _lock: lock, marks, start })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the overlay above `view`.
    pub fn overlay(&self, view: &Path) -> Outcome<Overlay> {
        // An index keeps the names of a lower file together when it is copied up. It takes handles
        // of files, which not every process may open, and none in a user name space.
        let how: &[u8] = match self.marks {
            Marks::Trusted if has_capability(MAY_OPEN_HANDLES) => {
                b"redirect_dir=nofollow,metacopy=off,xino=off,index=on,volatile"
            }
            Marks::Trusted => b"redirect_dir=nofollow,metacopy=off,xino=off,index=off,volatile",
            Marks::User => {
                b"userxattr,redirect_dir=nofollow,metacopy=off,xino=off,index=off,volatile"
            }
        };
        let mut options = how.to_vec();
        let (upper, work) = (self.path("upper"), self.path("work"));
        for (name, path) in [("lowerdir", view), ("upperdir", &*upper), ("workdir", &*work)] {
            options.extend_from_slice(format!(",{name}=").as_bytes());
            escape(path, &mut options);
        }
        if options.len() >= MOST_OPTIONS {
            let what = "the paths of the mount and of the scratch directory are too long for the \
                        kernel";
            return Err(Failure::new(Exit::Usage, what)
                .hint("name a scratch directory with a shorter path: --scratch DIR"));
        }
        let cannot = |e: io::Error| Failure::io(format!("cannot find {}", view.shown()), &e);
        let there = rustix::fs::statvfs(view).map_err(|e| cannot(e.into()))?.f_flag;
        Ok(Overlay {
            parent: None,
            on: self.path("merged"),
            source: inside_layer::SOURCE,
            options: OsString::from_vec(options),
            flags: flags_above(there),
        })
    }

    /// Opens the layers of an overlay above `view` that is no longer in use.
    pub fn layers(&self, view: &Path) -> Outcome<Layers> {
        let (lower, upper) = (Layer::open(view)?, Layer::open(&self.path("upper"))?);
        Ok(Layers { lower, upper, marks: self.marks })
    }

    /// Returns the attributes of the upper layer's root before the run.
    pub fn start(&self) -> &Attributes {
        &self.start
    }

    /// Returns the directory that has no room left, or `None` if there is some.
    pub fn is_full(&self) -> Option<PathBuf> {
        let free = rustix::fs::statvfs(self.directory.path()).ok()?;
        let is_full = free.f_bavail.saturating_mul(free.f_frsize) < FULL
            || free.f_files > 0 && free.f_favail == 0;
        is_full.then(|| self.directory.path().parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// Removes the directory.
    pub fn remove(self) -> Outcome {
        let path = self.directory.path();
        open_up(path);
        fs::remove_dir_all(path).map_err(|e| {
            Failure::io(format!("cannot remove the scratch directory {}", path.shown()), &e)
        })
    }
}

impl Drop for Scratch {
    /// Lets the directory go after a failure, too.
    fn drop(&mut self) {
        open_up(self.directory.path());
    }
}

/// Appends a path to options of overlayfs, in which commas and colons separate.
fn escape(path: &Path, options: &mut Vec<u8>) {
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b',' | b':') {
            options.push(b'\\');
        }
        options.push(byte);
    }
}

/// Gives the root of an upper layer the attributes of the lower one's, which a program sees there,
/// and hides the views.
fn dress(upper: &Path, view: &Path, marks: Marks) -> Outcome {
    let cannot = |e: io::Error| {
        let what = format!("cannot give {} the attributes of {}", upper.shown(), view.shown());
        Failure::io(what, &e)
            .hint("the scratch directory needs a file system such as ext4, xfs, btrfs or tmpfs")
    };
    let lower = Layer::open(view)?;
    let Some(root) = lower.attributes(b"").map_err(cannot)? else {
        return Err(cannot(io::ErrorKind::NotFound.into()));
    };
    // An ordinary user cannot change the owner. Then the fold keeps the owner.
    let _ = std::os::unix::fs::chown(upper, Some(root.uid), Some(root.gid));
    // Without these the overlay would drop attributes of files that it copies up.
    rustix::fs::setxattr(upper, TRIED, b"", XattrFlags::empty())
        .and_then(|()| rustix::fs::removexattr(upper, TRIED))
        .map_err(|e| cannot(e.into()))?;
    // The host may have given it some, such as the access list that new files get in its place.
    for (name, _) in Layer::open(upper)?.xattrs(b"").map_err(cannot)? {
        if items::is_kept(&name) {
            let _ = rustix::fs::removexattr(upper, name.as_slice());
        }
    }
    for (name, value) in lower.xattrs(b"").map_err(cannot)? {
        // The notes of another overlay, whose layer is in the store, do not belong to this one.
        if items::is_kept(&name) && marks.seen(&name).is_some() {
            rustix::fs::setxattr(upper, name.as_slice(), &value, XattrFlags::empty())
                .map_err(|e| cannot(e.into()))?;
        }
    }
    let views = upper.join(std::ffi::OsStr::from_bytes(HIDDEN));
    rustix::fs::mknodat(CWD, views.as_path(), FileType::CharacterDevice, Mode::empty(), 0)
        .map_err(|e| cannot(e.into()))?;
    fs::set_permissions(upper, Permissions::from_mode(root.mode)).map_err(cannot)?;
    let (tv_sec, nanos) = root.mtime;
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec, tv_nsec: nanos.into() },
    };
    rustix::fs::utimensat(CWD, upper, &times, AtFlags::empty()).map_err(|e| cannot(e.into()))
}

/// Returns whether this process may mount with the kernel's own attributes (`trusted.`). Otherwise
/// the overlay is mounted in a user name space, and keeps its notes in attributes of the user.
fn may_mount() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    is_first && has_capability(MAY_MOUNT)
}

/// Returns whether this process has a capability in its user name space.
fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits & (1 << number) != 0)
}

/// Removes the scratch directories of runs that were killed.
fn sweep(place: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let path = entry.path();
        let Ok(found) = path.symlink_metadata() else { continue };
        let is_old = found.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > FRESH));
        if !found.is_dir() || found.uid() != user || !is_old {
            continue;
        }
        let lock = File::open(path.join(LOCK));
        let is_in_use = lock.as_ref().is_ok_and(|lock| {
            rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err()
        });
        if !is_in_use {
            open_up(&path);
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Makes directories accessible to their owner, so that they can be removed: the overlay's work
/// directory is closed to all, and so may be those of a program.
fn open_up(path: &Path) {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let _ = fs::set_permissions(&path, Permissions::from_mode(0o700));
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        open.extend(directories.map(|entry| entry.path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_options_keeps_its_commas_and_colons() {
        let mut options = Vec::new();
        escape(Path::new("/a,b:c\\d"), &mut options);
        assert_eq!(options, br"/a\,b\:c\\d");
    }

    #[test]
    fn the_root_of_the_layer_is_dressed_as_the_view_and_the_directory_goes_with_the_run() {
        let (place, view) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(view.path(), Permissions::from_mode(0o751)).unwrap();
        let Ok(scratch) = Scratch::make(place.path(), view.path()) else {
            eprintln!("SKIPPED: no device nodes can be made here");
            return;
        };
        let [upper, lower] = [scratch.path("upper"), view.path().to_owned()]
            .map(|path| Layer::open(&path).unwrap().attributes(b"").unwrap().unwrap());
        assert_eq!((upper.mode, upper.mtime), (0o751, lower.mtime));
        assert_eq!(upper, *scratch.start());
        let overlay = scratch.overlay(view.path()).unwrap();
        assert!(overlay.options.as_bytes().starts_with(match scratch.marks {
            Marks::Trusted => b"redirect_dir=nofollow",
            Marks::User => b"userxattr,redirect_dir",
        }));
        scratch.remove().unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_root_of_the_layer_has_no_attributes_of_its_place_and_no_notes_of_another_overlay() {
        let (place, view) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // Each entry has a kind, permissions and a user: all may do all, user 1234 among them.
        let entries = [(1_u16, u32::MAX), (2, 1234), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (kind, user) in entries {
            list.extend([kind.to_le_bytes(), 7_u16.to_le_bytes()].concat());
            list.extend(user.to_le_bytes());
        }
        let set = |path: &Path, name: &str, value: &[u8]| {
            rustix::fs::setxattr(path, name, value, XattrFlags::empty())
        };
        if set(place.path(), "system.posix_acl_default", &list).is_err() {
            eprintln!("SKIPPED: no access lists here");
            return;
        }
        for name in ["user.own", "user.overlay.opaque", "trusted.overlay.opaque"] {
            let _ = set(view.path(), name, b"y");
        }
        let Ok(scratch) = Scratch::make(place.path(), view.path()) else { return };
        let xattrs = Layer::open(&scratch.path("upper")).unwrap().xattrs(b"").unwrap();
        let has = |name: &str| xattrs.iter().any(|(one, _)| one == name.as_bytes());
        assert!(has("user.own") && !has("system.posix_acl_default"), "{xattrs:?}");
        let note = String::from_utf8(scratch.marks.name(b"opaque")).unwrap();
        assert!(!has(&note), "{xattrs:?}");
    }

    #[test]
    fn what_a_living_run_has_is_not_swept_and_neither_is_what_was_just_made() {
        let (place, view) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let Ok(scratch) = Scratch::make(place.path(), view.path()) else { return };
        let [left, fresh] = ["left", "fresh"].map(|name| {
            let path = place.path().join(format!("{PREFIX}{name}"));
            fs::create_dir_all(path.join("work/work")).unwrap();
            path
        });
        for path in [scratch.directory.path(), &left] {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 1000, tv_nsec: 0 },
                last_modification: Timespec { tv_sec: 1000, tv_nsec: 0 },
            };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
        }
        sweep(place.path());
        assert!(!left.exists() && fresh.exists() && scratch.path("upper").exists());
    }
}
