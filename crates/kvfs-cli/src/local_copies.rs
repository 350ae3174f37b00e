//! The local files of stores in object storage that are mounted by their address, in a directory of
//! the user: one for each store and mount that reads it, of which all comes back when it is gone;
//! and one for each store that is written, which has what was not published yet.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use env::Machine;
use kvdb::{LocalCopy, WriterOptions};
use sha1::{Digest, Sha1};
use zones::FileDevice;

use crate::address::Address;
use crate::failures;
use crate::output::{Exit, Failure, Outcome};
use crate::publishing::host_name;

/// Mounts of one store by one user at the same time, at most.
const MOST: usize = 64;

/// A directory of the user, as the variable, a name below the home directory, or a directory of the
/// system says.
fn directory_of_user(variable: &str, below_home: &str, system: &str) -> PathBuf {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let named = of(variable).or_else(|| of("HOME").map(|home| home.join(below_home)));
    named.unwrap_or_else(|| system.into()).join("kvfs")
}

/// Makes the directory, and returns its full path.
fn made(directory: &Path) -> Outcome<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.and_then(|()| directory.canonicalize())
        .map_err(|e| Failure::io(format!("cannot use {}", directory.display()), &e))
}

/// The name of a local file: that of the store, and digits for where it lies.
fn stem(address: &Address) -> String {
    let whole = Address { snapshot: None, ..address.clone() }.to_string();
    let digest = Sha1::digest(whole.as_bytes());
    let hash: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", address.name)
}

/// Opens a file of this user, which is made if it is not there.
fn own_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // Neither what a link leads to nor what is another user's is written onto.
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    let meta = file.metadata()?;
    match meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(file),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The directory for local files by which stores are written.
pub fn directory_of_writers(directory: Option<&Path>) -> Outcome<PathBuf> {
    let default = || directory_of_user("XDG_DATA_HOME", ".local/share", "/var/lib");
    made(&directory.map_or_else(default, Path::to_owned))
}

/// The local file by which a store is written at its address.
pub fn path_of_writer(address: &Address, directory: Option<&Path>) -> Outcome<PathBuf> {
    Ok(directory_of_writers(directory)?.join(format!("{}.writer.kvfs", stem(address))))
}

/// Claims the store for that file. `take`: also if another machine has the store open.
pub fn claim(address: &Address, path: &Path, take: bool) -> Outcome<LocalCopy> {
    let store = address.store(false)?;
    let file =
        own_file(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))?;
    let device =
        FileDevice::of(file, path, false).map_err(|e| failures::of_device(path, "open", e))?;
    let options = WriterOptions { label: host_name(), take };
    let copy = store.writer_to(Arc::new(device), Arc::new(Machine::default()), &options);
    copy.map_err(|e| {
        let hint = match &e {
            kvdb::Error::Unpublished(_) => {
                let file = path.display();
                Some(format!("kvfs push {file} {}/ANOTHER-NAME, and rm {file}", address.place))
            }
            _ => None,
        };
        let failure = failures::of_database(format!("cannot write {address}"), e);
        hint.into_iter().fold(failure, Failure::hint)
    })
}

/// The local file of the newest state of a store, which no mount uses. The first that is free is
/// brought up to date.
pub fn of(address: &Address, directory: Option<&Path>) -> Outcome<(PathBuf, LocalCopy)> {
    let store = address.store(false)?;
    let default = || directory_of_user("XDG_CACHE_HOME", ".cache", "/var/cache");
    let directory = made(&directory.map_or_else(default, Path::to_owned))?;
    let cannot = |e: io::Error| Failure::io(format!("cannot use {}", directory.display()), &e);
    let stem = stem(address);
    for number in 0..MOST {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        let path = directory.join(format!("{stem}{number}.kvfs"));
        let file = match own_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
            opened => opened.map_err(cannot)?,
        };
        let device = match FileDevice::of(file, &path, false) {
            Ok(device) => Arc::new(device),
            Err(zones::Error::Busy(_)) => continue,
            Err(e) => return Err(failures::of_device(&path, "open", e)),
        };
        let copy = store
            .refresh(device, Arc::new(Machine::default()))
            .map_err(|e| failures::of_database(format!("cannot open {address}"), e))?;
        return Ok((path, copy));
    }
    let what = format!("{address} is mounted {MOST} times from {}", directory.display());
    Err(Failure::new(Exit::Busy, what).hint("name another directory: --cache DIRECTORY"))
}
