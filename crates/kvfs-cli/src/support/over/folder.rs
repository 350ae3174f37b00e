//! The folder that runs change, and its state folder `.kvfs-over-N` next to it, where N is the
//! folder's inode number. Only the user who made the state folder can enter it.
//!
//! The state folder has a folder `run-…` for each run, locked while the run lives. One with a log
//! is being applied, or was interrupted in that. `applied` is the last run that was applied,
//! `kept-…` one that was kept for the user.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use kvfs_fuse::mounts;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::support::layers::layer::Time;
use crate::support::machine::paths;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The type of mounts of stores.
const KVFS: &str = "fuse.kvfs";

pub struct Folder {
    /// The absolute path without symbolic links.
    pub path: PathBuf,
    /// The directory that it lies in.
    pub parent: PathBuf,
    /// Its name there.
    pub name: OsString,
    /// The time of its birth, if the file system knows it. Another folder that gets the inode
    /// number of one that was removed has another time.
    pub born: Option<Time>,
    state: PathBuf,
}

/// A locked state folder: no other process applies a run to the folder, or takes one back.
pub struct Locked {
    pub state: PathBuf,
    lock: File,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A state folder that has nothing in it is removed.
        let _ = fs::remove_dir(&self.state);
    }
}

impl AsFd for Locked {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

impl Folder {
    /// Finds the folder at a path, for a run over it.
    pub fn of(path: &Path) -> Outcome<Folder> {
        let cannot = |e: io::Error| Failure::io(format!("cannot use {}", path.shown()), &e);
        let full = paths::full_path(path).map_err(cannot)?;
        must_have_no_mount(&full)?;
        let meta = full.metadata().map_err(cannot)?;
        if !meta.is_dir() {
            let what = format!("{} is no directory", path.shown());
            return Err(Failure::new(Exit::Usage, what).hint("name the folder to run over"));
        }
        let folder = Folder::at(full, &meta).ok_or_else(|| no_room(path))?;
        match folder.parent.metadata().map_err(cannot)?.dev() == meta.dev() {
            true => Ok(folder),
            false => Err(no_room(path)),
        }
    }

    /// Finds the folder at a path if a run over it can be taken back: there is a state folder that
    /// this user has made.
    pub fn with_state(path: &Path) -> Option<Folder> {
        let full = paths::full_path(path).ok()?;
        if mounts::mount_of(&full).ok()?.is_some_and(|mount| mount.fs_type == KVFS) {
            return None;
        }
        let meta = full.symlink_metadata().ok().filter(fs::Metadata::is_dir)?;
        let folder = Folder::at(full, &meta)?;
        folder.state.symlink_metadata().is_ok().then_some(folder)
    }

    fn at(path: PathBuf, meta: &fs::Metadata) -> Option<Folder> {
        let (parent, name) = (path.parent()?.to_owned(), path.file_name()?.to_owned());
        let state = parent.join(format!(".kvfs-over-{}", meta.ino()));
        let born = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let born = born.map(|since| (since.as_secs() as i64, since.subsec_nanos()));
        Some(Folder { path, parent, name, born, state })
    }

    /// Returns the name of the state folder, from the directory that both are in.
    pub fn state_name(&self) -> &OsStr {
        self.state.file_name().unwrap_or_default()
    }

    /// Makes the state folder if there is none, and locks it. Waits while another process has it.
    pub fn lock(&self) -> Outcome<Locked> {
        let state = &self.state;
        let cannot = |e: io::Error| {
            Failure::io(format!("cannot use the state folder {}", state.shown()), &e).hint(
                "a run over a folder needs a writable place next to it, on the same file system",
            )
        };
        loop {
            match DirBuilder::new().mode(0o700).create(state) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(cannot(e)),
                _ => {}
            }
            let way = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = match rustix::fs::open(state, way, Mode::empty()) {
                // The process that had the lock has removed the folder.
                Err(Errno::NOENT) => continue,
                Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Err(not_own(state)),
                lock => File::from(lock.map_err(|e| cannot(e.into()))?),
            };
            let meta = lock.metadata().map_err(cannot)?;
            let is_own = meta.uid() == rustix::process::geteuid().as_raw();
            if !is_own || meta.permissions().mode() & 0o077 != 0 {
                return Err(not_own(state));
            }
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)
                .map_err(|e| cannot(e.into()))?;
            if state.symlink_metadata().is_ok_and(|now| now.ino() == meta.ino()) {
                return Ok(Locked { state: state.clone(), lock });
            }
        }
    }
}

/// Returns the failure for a state folder that others may have filled.
fn not_own(state: &Path) -> Failure {
    let what = format!("{} is not this user's own state folder", state.shown());
    Failure::new(Exit::NotPermitted, what)
        .hint("another user has run over the folder: see who owns it")
}

fn no_room(path: &Path) -> Failure {
    let what = format!("there is no place next to {} on the same file system", path.shown());
    Failure::new(Exit::Usage, what).hint(
        "name a directory in it; or import it into a store, and use kvfs run on the store's mount",
    )
}

/// Fails if a file system is mounted on the folder or in it, or if the folder is in a store.
fn must_have_no_mount(full: &Path) -> Outcome {
    let all = mounts::mounts().map_err(|e| Failure::io("cannot read the table of mounts", &e))?;
    let around = mounts::mount_of(full).ok().flatten();
    if let Some(store) = around.filter(|mount| mount.fs_type == KVFS) {
        let what = format!("{} is in a mounted store", full.shown());
        let at = store.mount_point.shown();
        return Err(Failure::new(Exit::Usage, what)
            .hint(format!("without --over it is a transaction: kvfs run {at} -- COMMAND")));
    }
    if full.parent().is_none() || all.iter().any(|mount| mount.mount_point == full) {
        return Err(no_room(full));
    }
    match all.iter().find(|mount| mount.mount_point.starts_with(full)) {
        Some(inner) => {
            let at = inner.mount_point.shown();
            let what = format!("a file system is mounted in {}, on {at}", full.shown());
            let hint = match inner.fs_type == KVFS {
                true => format!("run the program in that store: kvfs run {at} -- COMMAND"),
                false => {
                    "an overlay does not show it: unmount it, or name a directory without it; \
                          kvfs run without --over takes the mount of a store"
                        .to_owned()
                }
            };
            Err(Failure::new(Exit::Usage, what).hint(hint))
        }
        None => Ok(()),
    }
}

/// Removes a directory with all in it, whatever its directories permit to their owner.
pub fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let mut todo = vec![path.to_owned()];
            while let Some(directory) = todo.pop() {
                fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
                for entry in fs::read_dir(&directory)? {
                    let entry = entry?;
                    if entry.file_type()?.is_dir() {
                        todo.push(entry.path());
                    }
                }
            }
            fs::remove_dir_all(path)
        }
        done => done,
    }
}
