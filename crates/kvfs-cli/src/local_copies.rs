//! The local files of stores in object storage that are mounted by their address: one for each
//! store and mount, in a directory of the user. What is in them comes back when they are gone.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use env::Machine;
use kvdb::LocalCopy;
use sha1::{Digest, Sha1};
use zones::FileDevice;

use crate::address::Address;
use crate::failures;
use crate::output::{Exit, Failure, Outcome};

/// Mounts of one store by one user at the same time, at most.
const MOST: usize = 64;

/// The directory when none is named.
fn default_directory() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(|| "/var/cache".into()).join("kvfs")
}

/// The local file of the newest state of a store, which no mount uses. The first that is free is
/// brought up to date.
pub fn of(address: &Address, directory: Option<&Path>) -> Outcome<(PathBuf, LocalCopy)> {
    let store = address.store(false)?;
    let directory = directory.map_or_else(default_directory, Path::to_owned);
    let cannot = |e: io::Error| Failure::io(format!("cannot use {}", directory.display()), &e);
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(cannot)?;
    let directory = directory.canonicalize().map_err(cannot)?;
    let whole = Address { snapshot: None, ..address.clone() }.to_string();
    let digest = Sha1::digest(whole.as_bytes());
    let hash: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    for number in 0..MOST {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        let path = directory.join(format!("{}-{hash}{number}.kvfs", address.name));
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Neither what a link leads to nor what is another user's is written onto.
        options.custom_flags(libc::O_NOFOLLOW);
        let file = match options.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
            opened => opened.map_err(cannot)?,
        };
        let meta = file.metadata().map_err(cannot)?;
        if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() {
            continue;
        }
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
