//! A fork to be merged: a store in object storage, by its address, or a file that is not open. The
//! process that has the target store open opens the fork for reading.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use places::{Address, local_copies};

use crate::support::mounts::place;
use crate::support::stores::store::{self, Access, Budget, Store};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The memory budget of an open fork, in bytes. It is read only once.
const MEMORY: u64 = 64 << 20;

/// The location of a fork, as a user has written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forked {
    /// The name in messages, and in file names if both versions are kept.
    pub name: String,
    /// The address, or the full path of the file.
    pub place: OsString,
}

impl Forked {
    /// Returns the fork that a word names. A file must exist.
    pub fn parse(word: &Path) -> Outcome<Forked> {
        if let Some(address) = newest(word)? {
            let place = address.to_string().into();
            return Ok(Forked { name: address.name, place });
        }
        if word.is_dir() {
            let what = format!("{} is a directory, and no file of a fork", word.shown());
            return Err(Failure::new(Exit::Usage, what).hint(
                "give the address that the fork is published at, or its file once it is unmounted",
            ));
        }
        let cannot = |e| place::not_found(word, &e);
        let path = word.canonicalize().map_err(cannot)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Forked { name, place: path.into_os_string() })
    }
}

/// Parses a word as an address. Returns `None` if it is a path.
fn newest(word: &Path) -> Outcome<Option<Address>> {
    let address = Address::parse(word)?;
    match address.as_ref().and_then(|address| address.snapshot.as_ref()) {
        Some(_) => {
            let what = format!("{} is a snapshot: a fork is merged as it is now", word.shown());
            Err(Failure::new(Exit::Usage, what).hint("give the address without @SNAPSHOT"))
        }
        None => Ok(address),
    }
}

/// Opens the fork at a place of [`Forked`]. The local copy of a published fork is brought up to
/// date.
pub fn open(place: &[u8]) -> Outcome<Store> {
    let path = PathBuf::from(OsString::from_vec(place.to_vec()));
    let budget = Budget::from(Some(MEMORY));
    match newest(&path)? {
        Some(address) => {
            let file = local_copies::of(&address, None)?.path;
            store::open(&file, Access::ReadOnly, budget)
        }
        None => store::open_waiting(&path, Access::ReadOnly, budget).map_err(|failure| {
            let busy = failure.exit == Exit::Busy;
            let hint = "unmount it, or publish it (kvfs push) and merge it by its address";
            if busy { failure.hint(hint) } else { failure }
        }),
    }
}

/// Fails if a fork cannot be merged into the target at a path, such as a clone.
pub fn check_target(into: &Path) -> Outcome {
    match place::branch_of(into)? {
        branch if branch.is_empty() => Ok(()),
        branch => {
            let what = format!("{} is clone {branch}", into.shown());
            Err(Failure::new(Exit::Usage, what)
                .hint("a fork is merged into the store itself: give its mount, or its file"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_an_address_or_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("mine.kvfs");
        std::fs::write(&file, b"").unwrap();
        let forked = Forked::parse(&file).unwrap();
        assert_eq!(forked.name, "mine");
        assert!(Path::new(&forked.place).is_absolute());
        let forked = Forked::parse(Path::new("dir:/srv/x/work")).unwrap();
        assert_eq!((forked.name.as_str(), &*forked.place), ("work", "dir:/srv/x/work".as_ref()));
        for wrong in ["dir:/srv/x/work@monday", "/none/such"].map(Path::new) {
            assert!(Forked::parse(wrong).is_err(), "{}", wrong.display());
        }
        assert!(Forked::parse(directory.path()).is_err());
    }
}
