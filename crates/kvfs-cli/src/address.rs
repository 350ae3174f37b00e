//! Addresses of stores in object storage: `dir:FOLDER/NAME` for a folder that machines share, with
//! `@SNAPSHOT` behind it for what a store was.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvdb::{RemoteStore, RemoteZones};
use objects::{DirectoryObjects, Objects, ObjectsError};

use crate::output::{Exit, Failure, Outcome};

/// What the address of a folder begins with.
const FOLDER: &str = "dir:";

/// Where a store in object storage is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where objects are, with the scheme.
    pub place: String,
    /// The name of the store there.
    pub name: String,
    /// One of its snapshots.
    pub snapshot: Option<String>,
}

impl Address {
    /// The address that a word is; `None`: it is none, but a path.
    pub fn parse(word: &Path) -> Outcome<Option<Address>> {
        let Some(text) = word.to_str() else { return Ok(None) };
        let Some(rest) = text.strip_prefix(FOLDER) else { return Ok(None) };
        let wrong = || {
            Failure::new(Exit::Usage, format!("{text} names no store in a folder"))
                .hint("write dir:FOLDER/NAME, as dir:/srv/stores/work")
        };
        let (folder, last) = rest.rsplit_once('/').unwrap_or((".", rest));
        let (name, snapshot) = match last.split_once('@') {
            Some((name, snapshot)) => (name, Some(snapshot.to_string())),
            None => (last, None),
        };
        if name.is_empty() || snapshot.as_deref() == Some("") {
            return Err(wrong());
        }
        let folder = if folder.is_empty() { "/" } else { folder };
        let folder = std::path::absolute(folder)
            .map_err(|e| Failure::io(format!("cannot use {folder}"), &e))?;
        let place = format!("{FOLDER}{}", folder.display());
        Ok(Some(Address { place, name: name.into(), snapshot }))
    }

    /// As `parse`, where nothing but an address will do.
    pub fn required(word: &Path) -> Outcome<Address> {
        Address::parse(word)?.ok_or_else(|| {
            let what = format!("{} is no address of a store in object storage", word.display());
            Failure::new(Exit::Usage, what).hint("write dir:FOLDER/NAME, as dir:/srv/stores/work")
        })
    }

    /// The store there. `make`: the folder is made if it is not there.
    pub fn store(&self, make: bool) -> Outcome<RemoteStore> {
        let objects = open(&self.place, make)?;
        RemoteStore::new(objects, &self.name).map_err(|e| Failure::new(Exit::Usage, e.to_string()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place, self.name)?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

fn open(place: &str, make: bool) -> Outcome<Arc<dyn Objects>> {
    let cannot = |e: &ObjectsError| {
        let exit = match e {
            ObjectsError::NotFound { .. } | ObjectsError::NoBucket { .. } => Exit::NotFound,
            ObjectsError::Io { source, .. } => Exit::of(source),
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("cannot use {place}: {e}"))
    };
    let Some(folder) = place.strip_prefix(FOLDER).map(PathBuf::from) else {
        let what = format!("{place} is of a kind that this program does not know");
        return Err(Failure::new(Exit::Usage, what).hint("use a newer one"));
    };
    let opened =
        if make { DirectoryObjects::create(folder) } else { DirectoryObjects::open(folder) };
    Ok(Arc::new(opened.map_err(|e| cannot(&e))?))
}

/// The zones of a local file that was made from this place.
pub fn zones_in(place: &str) -> Outcome<RemoteZones> {
    open(place, false).map(RemoteZones::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(word: &str) -> Option<(String, String, Option<String>)> {
        let address = Address::parse(Path::new(word)).ok().flatten()?;
        Some((address.place, address.name, address.snapshot))
    }

    #[test]
    fn an_address_has_a_folder_a_name_and_perhaps_a_snapshot() {
        let some = |place: &str, name: &str, snapshot: Option<&str>| {
            Some((place.to_string(), name.to_string(), snapshot.map(String::from)))
        };
        assert_eq!(parsed("dir:/srv/x/work"), some("dir:/srv/x", "work", None));
        assert_eq!(parsed("dir:/work"), some("dir:/", "work", None));
        assert_eq!(parsed("dir:/srv/x/work@mon"), some("dir:/srv/x", "work", Some("mon")));
        assert_eq!(parsed("dir:/srv/x/work@a@b"), some("dir:/srv/x", "work", Some("a@b")));
        assert_eq!(parsed("dir:/srv/x@y/work"), some("dir:/srv/x@y", "work", None));
        for wrong in ["dir:", "dir:/srv/", "dir:/srv/@x", "dir:/srv/work@"] {
            assert!(Address::parse(Path::new(wrong)).is_err(), "{wrong}");
        }
        for path in ["/srv/work", "work", "./dir:x", "directory:x"] {
            assert_eq!(parsed(path), None, "{path}");
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(parsed("dir:work"), some(&format!("dir:{}", here.display()), "work", None));
    }

    #[test]
    fn it_is_shown_as_it_is_written() {
        let address = Address::parse(Path::new("dir:/srv/x/work@mon")).unwrap().unwrap();
        assert_eq!(address.to_string(), "dir:/srv/x/work@mon");
    }
}
