//! The local files of stores in object storage that are mounted by their address. They lie in a
//! directory of the user. Each mount that reads a store has a file for it, which can be fetched
//! again completely. Each store that is written has one file, which contains the changes that are
//! not published yet.

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
use crate::error::{Error, Result};
use crate::host::host_name;

/// The largest number of concurrent mounts of one store by one user.
const MOST: usize = 64;

/// Returns a directory of the user: the directory that the environment variable names, or a
/// directory below the home directory, or a directory of the system.
fn directory_of_user(variable: &str, below_home: &str, system: &str) -> PathBuf {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let named = of(variable).or_else(|| of("HOME").map(|home| home.join(below_home)));
    named.unwrap_or_else(|| system.into()).join("kvfs")
}

/// Creates the directory, and returns its full path.
fn made(directory: &Path) -> Result<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.and_then(|()| directory.canonicalize()).map_err(|e| unusable(directory, e))
}

fn unusable(path: &Path, source: io::Error) -> Error {
    Error::Path { path: path.to_owned(), source }
}

fn unopened(path: &Path, source: zones::Error) -> Error {
    Error::Device { path: path.to_owned(), source }
}

/// Returns the name of a local file, which consists of the name of the store and digits that
/// identify its place.
fn stem(address: &Address) -> String {
    let whole = Address { snapshot: None, ..address.clone() }.to_string();
    let digest = Sha1::digest(whole.as_bytes());
    let hash: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", address.name)
}

/// Opens a file of this user, and creates it if it does not exist.
pub fn own_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // Do not follow a link, and do not write a file of another user.
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    let meta = file.metadata()?;
    match meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() {
        true => Ok(file),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Returns the directory for local files by which stores are written.
pub fn directory_of_writers(directory: Option<&Path>) -> Result<PathBuf> {
    let default = || directory_of_user("XDG_DATA_HOME", ".local/share", "/var/lib");
    made(&directory.map_or_else(default, Path::to_owned))
}

/// Returns the path of the local file by which a store is written at its address.
pub fn path_of_writer(address: &Address, directory: Option<&Path>) -> Result<PathBuf> {
    Ok(directory_of_writers(directory)?.join(format!("{}.writer.kvfs", stem(address))))
}

/// A local file that was updated or claimed, and its note.
pub struct LocalFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The open file, which is locked until the last reference to the device is dropped.
    pub device: Arc<FileDevice>,
    /// The record in the file of the state that it has.
    pub copy: LocalCopy,
}

/// Claims the store for the local file at `path`. If `take` is set, claims it even if another
/// machine has the store open.
pub fn claim(address: &Address, path: &Path, take: bool) -> Result<LocalFile> {
    let store = address.store(false)?;
    let file = own_file(path).map_err(|e| unusable(path, e))?;
    let device = FileDevice::of(file, path, false).map_err(|e| unopened(path, e))?;
    let device = Arc::new(device);
    let options = WriterOptions { label: host_name(), take };
    match store.writer_to(device.clone(), Arc::new(Machine::default()), &options) {
        Ok(copy) => Ok(LocalFile { path: path.to_owned(), device, copy }),
        Err(source) => {
            Err(Error::Claim { address: address.to_string(), file: path.to_owned(), source })
        }
    }
}

/// Returns the newest local file of a store that no mount uses, without updating it. If `to_write`
/// is set, returns the file by which the store is written.
pub fn as_it_is(address: &Address, directory: Option<&Path>, to_write: bool) -> Result<PathBuf> {
    let none = || Error::NothingHere(address.to_string());
    if to_write {
        return Some(path_of_writer(address, directory)?)
            .filter(|path| path.exists())
            .ok_or_else(none);
    }
    let directory = directory_of_readers(directory)?;
    let mut found = Vec::new();
    for path in readers_of(address, &directory).filter(|path| path.exists()) {
        match FileDevice::open(&path, true) {
            Ok(device) => {
                let copy = LocalCopy::of(&device).ok().flatten();
                found.extend(copy.map(|copy| (copy.generation, path)));
            }
            Err(zones::Error::Busy(_)) => {}
            Err(e) => return Err(unopened(&path, e)),
        }
    }
    found
        .into_iter()
        .max_by_key(|(generation, _)| *generation)
        .map(|(_, path)| path)
        .ok_or_else(none)
}

fn directory_of_readers(directory: Option<&Path>) -> Result<PathBuf> {
    let default = || directory_of_user("XDG_CACHE_HOME", ".cache", "/var/cache");
    made(&directory.map_or_else(default, Path::to_owned))
}

/// Returns the paths of the local files for mounts of a store, in the order in which they are used.
fn readers_of(address: &Address, directory: &Path) -> impl Iterator<Item = PathBuf> {
    let (stem, directory) = (stem(address), directory.to_owned());
    (0..MOST).map(move |number| {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        directory.join(format!("{stem}{number}.kvfs"))
    })
}

/// Returns a local file of a store with the newest state. The first file that no mount uses is
/// updated.
pub fn of(address: &Address, directory: Option<&Path>) -> Result<LocalFile> {
    let store = address.store(false)?;
    let directory = directory_of_readers(directory)?;
    for path in readers_of(address, &directory) {
        let file = match own_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
            opened => opened.map_err(|e| unusable(&directory, e))?,
        };
        let device = match FileDevice::of(file, &path, false) {
            Ok(device) => Arc::new(device),
            Err(zones::Error::Busy(_)) => continue,
            Err(e) => return Err(unopened(&path, e)),
        };
        let copy =
            store.refresh(device.clone(), Arc::new(Machine::default())).map_err(|source| {
                Error::Store { doing: "open", address: address.to_string(), source }
            })?;
        return Ok(LocalFile { path, device, copy });
    }
    Err(Error::InUse { address: address.to_string(), most: MOST, directory })
}
