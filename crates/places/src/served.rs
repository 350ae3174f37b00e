//! Stores that a server holds (`kvfs serve`). The address of the server is `kvfs+unix:SOCKET` at a
//! socket of this machine, `kvfs+vsock://CID:PORT` on the host of this virtual machine or in a
//! virtual machine of this host, or `kvfs://HOST:PORT` on the network. This module also commits and
//! aborts the file system of a transaction on a server, because several programs need this.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvdb::ServedView;
use kvdb_wire::{Client, ClientOptions, Outcome, ServedTransaction, Socket, VsockAddress};
use kvfs::Fs;

use crate::credentials::Credentials;
use crate::error::{Error, Result};

/// The scheme of the address of a server at a local socket.
const UNIX: &[u8] = b"kvfs+unix:";
/// The scheme of the address of a server at a vsock port.
const VSOCK: &[u8] = b"kvfs+vsock:";
/// The scheme of the address of a server on the network.
const NETWORK: &[u8] = b"kvfs://";
/// The scheme of an unencrypted TCP connection, which is rejected.
const PLAIN_TCP: &[u8] = b"kvfs+tcp:";

/// The advice for an invalid address of a server.
pub const FORMS_OF_SERVERS: &str =
    "write kvfs+unix:SOCKET, kvfs+vsock://CID:PORT or kvfs://HOST:PORT";

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A server that listens on a socket of this machine.
    Unix(PathBuf),
    /// A server on the host of this virtual machine, or in a virtual machine of this host.
    Vsock(VsockAddress),
    /// A server that listens on the network, and presents a certificate with this host name.
    Network {
        /// The name or the number of the host.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Server {
    /// Parses a word. Returns `None` if it does not begin like the address of a server. Fails if
    /// the path of a directory follows the address ([`crate::ServedDirectory`]).
    pub fn parse(word: &Path) -> Result<Option<Server>> {
        let wrong = |why: &str| Error::NoServer { word: word.to_owned(), why: why.into() };
        let (bytes, path) = parted(word.as_os_str().as_bytes());
        if path.iter().any(|byte| *byte != b'/') {
            let path = OsStr::from_bytes(path).display();
            return Err(wrong(&format!("the address ends before {path}")));
        }
        if bytes.starts_with(PLAIN_TCP) {
            return Err(wrong("over plain TCP everybody on the way reads the files"));
        }
        if let Some(at) = bytes.strip_prefix(NETWORK) {
            let at = std::str::from_utf8(at).ok().and_then(|at| at.rsplit_once(':'));
            let server = at.and_then(|(host, port)| {
                let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                let host = inner.unwrap_or(host);
                let port = port.parse().ok()?;
                (!host.is_empty()).then(|| Server::Network { host: host.into(), port })
            });
            return server.map(Some).ok_or_else(|| wrong("it has no host and port"));
        }
        if let Some(at) = bytes.strip_prefix(VSOCK) {
            let at = at.strip_prefix(b"//").unwrap_or(at);
            let at = std::str::from_utf8(at).map_err(|e| wrong(&e.to_string()))?;
            let address = at.parse::<VsockAddress>().map_err(|why: String| wrong(&why))?;
            return Ok(Some(Server::Vsock(address)));
        }
        let Some(path) = bytes.strip_prefix(UNIX) else { return Ok(None) };
        let path = path.strip_prefix(b"//").unwrap_or(path);
        let socket = std::path::absolute(OsStr::from_bytes(path));
        let socket = socket.map_err(|e| wrong(&e.to_string()))?;
        if !parted(&[UNIX, socket.as_os_str().as_bytes()].concat()).1.is_empty() {
            return Err(wrong("the path of its socket contains :/, where the address would end"));
        }
        Ok(Some(Server::Unix(socket)))
    }

    /// Returns the address, which is valid in any directory.
    pub fn address(&self) -> OsString {
        match self {
            Server::Unix(socket) => {
                let mut address = OsString::from("kvfs+unix:");
                address.push(socket);
                address
            }
            Server::Vsock(address) => format!("kvfs+vsock://{address}").into(),
            Server::Network { host, port } if host.contains(':') => {
                format!("kvfs://[{host}]:{port}").into()
            }
            Server::Network { host, port } => format!("kvfs://{host}:{port}").into(),
        }
    }

    /// Connects to the server. The credentials apply to servers on other machines. Their token
    /// replaces the token in the options.
    pub fn connect(
        &self,
        credentials: &Credentials,
        mut options: ClientOptions,
    ) -> Result<Arc<Client>> {
        let client = match self {
            Server::Unix(socket) => {
                let socket = socket.clone();
                Client::connect(move |time| Socket::connect_unix(&socket, time), options)
            }
            Server::Vsock(address) => {
                let address = *address;
                options.token = credentials.token_if_any()?.unwrap_or_default().into();
                Client::connect(move |time| Socket::connect_vsock(address, time), options)
            }
            Server::Network { host, port } => {
                options.token = credentials.token()?.into();
                let tls = credentials.tls()?;
                let (host, port) = (host.clone(), *port);
                let connect = move |time| tls.connect(&host, port, time).map(Socket::from);
                Client::connect(connect, options)
            }
        };
        client.map_err(|source| Error::Server { address: self.to_string(), source })
    }
}

/// Splits a word into the address of a server and the path after it, which denotes a directory of
/// the store.
pub(crate) fn parted(word: &[u8]) -> (&[u8], &[u8]) {
    let end = if let Some(socket) = word.strip_prefix(UNIX) {
        let colon = socket.windows(2).position(|pair| pair == b":/");
        colon.map(|at| (UNIX.len() + at, UNIX.len() + at + 1))
    } else {
        [NETWORK, VSOCK].into_iter().find_map(|scheme| {
            let after = word.strip_prefix(scheme)?;
            let begun = after.strip_prefix(b"//").unwrap_or(after);
            let slash = begun.iter().position(|byte| *byte == b'/')?;
            let at = word.len() - begun.len() + slash;
            Some((at, at))
        })
    };
    end.map_or((word, &word[..0]), |(end, path)| (&word[..end], &word[path..]))
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address().display(), f)
    }
}

/// Commits a transaction on a server with all data that was written in its file system. Unless
/// there is a conflict, this ends the file system: its calls then fail with ESTALE.
pub fn commit(fs: &Fs, transaction: &ServedTransaction, synced: bool) -> kvfs::Result<Outcome> {
    fs.end_served(|| {
        let committed = transaction.commit(synced)?;
        let is_over = !matches!(committed, Outcome::Conflict { .. });
        Ok((committed, is_over))
    })
}

/// Like [`commit`], but calls `may` when nothing can be written any more, and commits only if `may`
/// returns `true`. Otherwise returns `None`, and neither the transaction nor the file system has
/// ended.
pub fn commit_if(
    fs: &Fs,
    transaction: &ServedTransaction,
    synced: bool,
    may: impl FnOnce() -> kvfs::Result<bool>,
) -> kvfs::Result<Option<Outcome>> {
    fs.end_served(|| {
        if !may()? {
            return Ok((None, false));
        }
        let committed = transaction.commit(synced)?;
        let is_over = !matches!(committed, Outcome::Conflict { .. });
        Ok((Some(committed), is_over))
    })
}

/// The outcome of an abort.
#[derive(Debug)]
pub enum Aborted {
    /// The server has ended the transaction.
    There,
    /// The server cannot be reached, for this reason. The transaction ends when its lease expires.
    Later(std::io::Error),
}

/// Ends a transaction on a server and its file system, and discards their changes. Returns an error
/// if a commit was requested whose outcome is unknown, or if the server cannot be reached and would
/// keep the transaction because it is durable.
pub fn abort(client: &Client, fs: &Fs, transaction: &ServedTransaction) -> kvdb::Result<Aborted> {
    let aborted = match transaction.abort() {
        Ok(()) => Aborted::There,
        Err(kvdb::Error::Io(e)) if !transaction.is_in_doubt() && !transaction.is_durable() => {
            client.give_up();
            transaction.forget();
            Aborted::Later(e)
        }
        Err(e) => return Err(e),
    };
    fs.leave_served();
    Ok(aborted)
}
