//! Finds the daemon of a mounted store.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use kvdb_server::Client;
use kvfs_fuse::mounts::{self, MountEntry};

use crate::support::layered_runs::inside_layer;
use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::{place, waiting};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// Returns the default path of a store's socket, next to the store, or `None` if a socket cannot be
/// made there.
pub fn socket_beside(store: &Path) -> Option<PathBuf> {
    let mut path = store.as_os_str().to_os_string();
    path.push(".sock");
    // The kernel's limit for the path of a socket is 107 bytes, and the server makes it under a
    // name that is one byte longer.
    (path.len() < 107 && !store.starts_with("/dev")).then(|| path.into())
}

/// Returns the socket of a mounted store: by the directory it is mounted on (or any directory
/// inside), or by the store itself. Returns `None` if it is not mounted, or its mount has no
/// socket.
pub fn socket_of(target: &Path) -> Outcome<Option<PathBuf>> {
    place::must_let_us_in(target)?;
    let path = paths::full_path(target).map_err(|e| place::not_found(target, &e))?;
    let _waiting = waiting::on(&path);
    let mounted_here = || Record::all().into_iter().find(|r| r.mount_point == path);
    if let Some(record) = Record::of_store(&path).or_else(mounted_here) {
        inside_layer::must_be_outside(&record.mount_point)?;
        return Ok(record.socket);
    }
    if !path.is_dir() {
        // A store, which may itself lie in another mount. The daemon may belong to another user,
        // whose records are not readable.
        return Ok(socket_beside(&path).filter(|s| answers(s)));
    }
    let mount =
        mounts::mount_of(&path).map_err(|e| Failure::io("cannot read the table of mounts", &e))?;
    let Some(mount) = mount.filter(MountEntry::is_fuse) else { return Ok(None) };
    if let Some(record) = Record::read(&mount.device).filter(Record::is_alive) {
        return Ok(record.socket);
    }
    // A mount of another user; its source is the store, unless the mount was given another name.
    let named = Path::new(&mount.source);
    Ok(socket_beside(named).filter(|s| named.is_absolute() && answers(s)))
}

/// Returns the daemon of a mounted store's file, or `None` if it is not mounted. Fails if the
/// daemon is stopped by a signal, since it would never answer.
pub fn served(store: &Path) -> Outcome<Option<Record>> {
    place::must_let_us_in(store)?;
    let full = paths::full_path(store).unwrap_or_else(|_| store.to_path_buf());
    let record = Record::of_store(&full);
    if let Some(record) = &record {
        inside_layer::must_be_outside(&record.mount_point)?;
    }
    match record.filter(|record| !record.mounts().is_empty()) {
        Some(r) if r.is_stopped() => {
            let (store, mount, pid) = (store.shown(), r.mount_point.shown(), r.pid);
            let text = format!("{store} is mounted on {mount} by process {pid}, which is stopped");
            Err(Failure::new(Exit::Busy, text).hint(format!("kill -CONT {pid} has it go on")))
        }
        record => Ok(record),
    }
}

/// Connects to the daemon at a socket.
pub fn connect(socket: &Path) -> io::Result<Client> {
    let _waiting = waiting::on(socket);
    Client::connect(socket)
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}
