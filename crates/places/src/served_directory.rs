//! A directory of a store that a server holds, by its address, which begins with that of the
//! server. A mount shows the directory as its root.
//!
//! `kvfs://HOST:PORT/PATH` and `kvfs+vsock://CID:PORT/PATH` have the path after the port. The
//! address of a server at a Unix socket ends with a path itself, so `:/` separates the two:
//! `kvfs+unix:SOCKET:/PATH`. One server holds one store, so an address does not name the store.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::served::{Server, parted};

/// A server, and a directory of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedDirectory {
    /// The server.
    pub server: Server,
    /// The path from the root of the store, without a slash at its beginning.
    path: PathBuf,
}

impl ServedDirectory {
    /// Parses a word. Returns `None` if it does not begin like the address of a server. Without a
    /// path the word denotes the root of the store.
    pub fn parse(word: &Path) -> Result<Option<ServedDirectory>> {
        let (of_server, path) = parted(word.as_os_str().as_bytes());
        let server = Server::parse(Path::new(OsStr::from_bytes(of_server)))?;
        let Some(server) = server else { return Ok(None) };
        let path = normal(path).map_err(|why| Error::NoServer { word: word.to_owned(), why })?;
        Ok(Some(ServedDirectory { server, path }))
    }

    /// Returns the path from the root of the store, without a slash at its beginning. The path of
    /// the root is empty.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the address, which is valid in any directory.
    pub fn address(&self) -> OsString {
        let mut address = self.server.address();
        if !self.path.as_os_str().is_empty() {
            address.push(if matches!(self.server, Server::Unix(_)) { ":/" } else { "/" });
            address.push(&self.path);
        }
        address
    }
}

impl fmt::Display for ServedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address().display(), f)
    }
}

/// Returns a path without empty names and names that stay in a directory.
fn normal(path: &[u8]) -> Result<PathBuf, String> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !name.is_empty() && *name != b".").collect();
    if names.iter().any(|name| *name == b"..") {
        return Err("its path leads upwards by ..".into());
    }
    Ok(OsString::from_vec(names.join(&b'/')).into())
}
