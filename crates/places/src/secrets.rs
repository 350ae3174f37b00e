//! The secret with which stores in object storage are encrypted. The environment names the file
//! that contains it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use objects::{EncryptedObjects, Objects, Secret, SecretId};

pub use crate::error::VARIABLE;
use crate::error::{Error, Result};

/// The largest length of the file of a secret, in bytes. A longer file contains no secret.
const MOST: usize = 4096;

/// Returns the secret that the environment names, or `None` if it names no file.
pub(crate) fn given() -> Result<Option<Secret>> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    named.map(|path| read(Path::new(&path))).transpose()
}

fn read(path: &Path) -> Result<Secret> {
    let unusable = |source| Error::Path { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(unusable)?;
    let text = Some(text).filter(|text| text.len() <= MOST).and_then(|t| String::from_utf8(t).ok());
    let secret = text.and_then(|text| Secret::parse(&text).ok());
    secret.ok_or_else(|| Error::NoSecret(path.to_owned()))
}

/// Creates a file with a new secret that only its user can read. Fails if the path exists.
pub fn make(path: &Path) -> Result<SecretId> {
    let unusable = |source| Error::Path { path: path.to_owned(), source };
    let cannot = |source| Error::Place { place: path.display().to_string(), source };
    let text = Secret::generate().map_err(cannot)?;
    let mut file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(unusable)?;
    writeln!(file, "{text}").and_then(|()| file.sync_all()).map_err(unusable)?;
    let parent: PathBuf = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .map_or_else(|| ".".into(), Path::to_owned);
    std::fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(unusable)?;
    Ok(Secret::parse(&text).map_err(cannot)?.id())
}

/// Opens the objects of a place with the given secret, or unencrypted if there is none.
pub(crate) fn with_secret(objects: Arc<dyn Objects>) -> Result<Arc<dyn Objects>> {
    Ok(Arc::new(EncryptedObjects::new(objects, given()?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_that_of_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let id = make(&path).unwrap();
        assert_eq!(read(&path).unwrap().id(), id);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let again = make(&path).unwrap_err().to_string();
        assert!(again.contains("secret") && again.contains("exists"), "{again}");
        assert_eq!(read(&path).unwrap().id(), id);
    }

    #[test]
    fn a_file_without_a_secret_is_named_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        for text in [&b"hunter2"[..], b"", b"\xff\xfe", &[b'a'; 5000]] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("words has no secret") && !error.contains("hunter2"), "{error}");
        }
        assert!(read(&folder.path().join("none")).is_err());
    }
}
