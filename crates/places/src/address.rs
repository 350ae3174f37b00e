//! Addresses of stores in object storage: `dir:FOLDER/NAME` for a folder that machines share,
//! `s3://BUCKET/NAME` or `s3://BUCKET/PREFIX/NAME` for a bucket; with `@SNAPSHOT` at the end for a
//! snapshot of the store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvdb::{LocalCopy, RemotePlace, RemoteStore, RemoteZones};
use objects::{DirectoryObjects, Objects, ObjectsError};
use zones::Device;

use crate::error::{Error, Result};
use crate::secrets::with_secret;

/// The scheme of the address of a folder.
const FOLDER: &str = "dir:";
/// The scheme of the address of a bucket.
const BUCKET: &str = "s3://";

/// The advice for an invalid address.
pub const FORMS: &str = "write dir:FOLDER/NAME or s3://BUCKET/NAME, as dir:/srv/stores/work";

/// The advice for an invalid place.
pub const FORMS_OF_PLACES: &str =
    "write dir:FOLDER, s3://BUCKET, s3://BUCKET/PREFIX, or the address of a store";

/// The address of a store in object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The place of the objects, including its scheme.
    pub place: String,
    /// The name of the store at the place.
    pub name: String,
    /// The snapshot that the address names.
    pub snapshot: Option<String>,
}

impl Address {
    /// Parses a word. Returns `None` if it is a path instead of an address.
    pub fn parse(word: &Path) -> Result<Option<Address>> {
        let Some(text) = word.to_str() else { return Ok(None) };
        let wrong = || Error::NoName(text.to_owned());
        let (place, last) = if let Some(rest) = text.strip_prefix(FOLDER) {
            let (folder, last) = rest.rsplit_once('/').unwrap_or((".", rest));
            let folder = absolute(if folder.is_empty() { "/" } else { folder })?;
            (format!("{FOLDER}{}", folder.display()), last)
        } else if let Some(rest) = text.strip_prefix(BUCKET) {
            let (bucket, last) = rest.rsplit_once('/').ok_or_else(wrong)?;
            (format!("{BUCKET}{bucket}"), last)
        } else {
            return Ok(None);
        };
        let (name, snapshot) = match last.split_once('@') {
            Some((name, snapshot)) => (name, Some(snapshot.to_string())),
            None => (last, None),
        };
        if name.is_empty() || snapshot.as_deref() == Some("") {
            return Err(wrong());
        }
        Ok(Some(Address { place, name: name.into(), snapshot }))
    }

    /// Parses a word like `parse`, but fails if it is not an address.
    pub fn required(word: &Path) -> Result<Address> {
        Address::parse(word)?.ok_or_else(|| Error::NoAddress(word.to_owned()))
    }

    /// Returns whether both addresses refer to the same store, even if they name the folder by
    /// different paths.
    pub fn is_same(&self, other: &Address) -> bool {
        let folder = |address: &Address| {
            let folder = address.place.strip_prefix(FOLDER)?;
            std::fs::canonicalize(folder).ok()
        };
        let is_same_place =
            self.place == other.place || folder(self).is_some_and(|own| Some(own) == folder(other));
        is_same_place && (&self.name, &self.snapshot) == (&other.name, &other.snapshot)
    }

    /// Returns whether the store is in a bucket, whose server may not keep the conditions that
    /// heads depend on.
    pub fn is_in_bucket(&self) -> bool {
        self.place.starts_with(BUCKET)
    }

    /// Returns the store at the address. If `make` is set, creates the folder if it is missing.
    pub fn store(&self, make: bool) -> Result<RemoteStore> {
        // Check the name before a folder is created for it.
        RemoteStore::check_name(&self.name).map_err(Error::Name)?;
        RemoteStore::new(open(&self.place, make)?, &self.name).map_err(Error::Name)
    }
}

impl Address {
    /// Returns whether a store exists at the address, or existed there before.
    fn is_there(&self) -> Result<bool> {
        if self.snapshot.is_some() || RemoteStore::check_name(&self.name).is_err() {
            return Ok(false);
        }
        if let Some(folder) = self.place.strip_prefix(FOLDER) {
            return Ok(Path::new(folder).join("m").join(&self.name).join("head").is_file());
        }
        let head = self.store(false)?.head();
        let cannot = |source| Error::Store { doing: "use", address: self.to_string(), source };
        Ok(head.map_err(cannot)?.is_some())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place, self.name)?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

fn absolute(folder: &str) -> Result<PathBuf> {
    std::path::absolute(folder).map_err(|source| Error::Path { path: folder.into(), source })
}

fn open(place: &str, make: bool) -> Result<Arc<dyn Objects>> {
    with_secret(open_as_it_is(place, make)?)
}

/// Opens the objects of a place as raw bytes, whether they are encrypted or not.
pub(crate) fn open_as_it_is(place: &str, make: bool) -> Result<Arc<dyn Objects>> {
    let cannot = |source| Error::Place { place: place.to_owned(), source };
    if let Some(folder) = place.strip_prefix(FOLDER).map(PathBuf::from) {
        let opened =
            if make { DirectoryObjects::create(folder) } else { DirectoryObjects::open(folder) };
        return Ok(Arc::new(opened.map_err(cannot)?));
    }
    in_bucket(place).map_err(cannot)
}

#[cfg(feature = "s3")]
fn in_bucket(address: &str) -> Result<Arc<dyn Objects>, ObjectsError> {
    let environment = objects_s3::Environment::of_process();
    Ok(Arc::new(objects_s3::S3Objects::from_address(address, &environment)?))
}

#[cfg(not(feature = "s3"))]
fn in_bucket(address: &str) -> Result<Arc<dyn Objects>, ObjectsError> {
    let what =
        format!("{address} is in a bucket, and this program was built without the feature s3");
    Err(ObjectsError::Invalid(what))
}

/// Returns the place of the store's zones if they are in object storage. This does not check
/// whether the device has a store: opening it does.
pub fn zones_of(device: &dyn Device) -> Result<Option<RemoteZones>> {
    let copy = match LocalCopy::of(device) {
        Ok(copy) => copy,
        Err(e) if zones::Zones::is_remote(device).unwrap_or(false) => {
            return Err(Error::NoHome(e));
        }
        Err(_) => None,
    };
    copy.map(|copy| zones_in(&copy)).transpose()
}

/// Returns the zones of a local file.
fn zones_in(copy: &LocalCopy) -> Result<RemoteZones> {
    let objects = open(&copy.place, false)?;
    let given = objects.secret();
    if given != copy.secret {
        // Zones are read in ranges, and a range does not tell how it is encrypted.
        return Err(Error::Secret { place: copy.place.clone(), of_file: copy.secret, given });
    }
    Ok(RemoteZones::new(objects))
}

/// Returns the place that a word names, and its text for messages. The word is the place itself, or
/// the address of a store in it.
pub fn place(word: &Path) -> Result<(String, RemotePlace)> {
    let text = word.to_str().unwrap_or_default();
    let whole = if let Some(folder) = text.strip_prefix(FOLDER).filter(|f| !f.is_empty()) {
        let folder = absolute(folder)?;
        format!("{FOLDER}{}", folder.display())
    } else if text.starts_with(BUCKET) {
        text.trim_end_matches('/').to_owned()
    } else {
        return Err(Error::NoPlace(word.to_owned()));
    };
    // The last part of a place may look like the name of a store.
    let by_name = match Address::parse(word) {
        Ok(Some(address)) if address.is_there()? => Some(address.place),
        _ => None,
    };
    let place = by_name.unwrap_or(whole);
    // Do not open a folder without stores: opening it would create locks in it.
    if place.strip_prefix(FOLDER).is_some_and(|folder| !Path::new(folder).join("m").is_dir()) {
        return Err(Error::Empty(place));
    }
    let found = RemotePlace::new(open(&place, false)?);
    match found.names() {
        Ok(names) if names.is_empty() => Err(Error::Empty(place)),
        Ok(_) => Ok((place, found)),
        Err(source) => Err(Error::Stores { place, source }),
    }
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
        assert_eq!(parsed("s3://bucket/work"), some("s3://bucket", "work", None));
        assert_eq!(
            parsed("s3://bucket/a/b/work@mon"),
            some("s3://bucket/a/b", "work", Some("mon"))
        );
        for wrong in ["dir:", "dir:/srv/", "dir:/srv/@x", "dir:/srv/work@", "s3://", "s3://bucket"]
        {
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
