//! The socket of the server in the file system. Only its owner can connect. The socket of a
//! running server is never replaced; the socket of a dead server always is.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::Error;

/// A listening Unix socket and its name. The name is removed when this value is dropped.
pub struct PrivateSocket {
    /// The listener, which is non-blocking.
    pub listener: UnixListener,
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl PrivateSocket {
    /// Listens under this name. The socket of a dead server is replaced.
    pub fn listen(path: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::Socket { path: path.into(), error };
        refuse_if_taken(path)?;
        // The socket is created under another name and then renamed to the final one, so that
        // there is never a socket at the final name that does not answer yet. The mode is set on
        // the socket before it is bound (Linux assigns the mode of the socket to the name), so
        // that it is never open to other users.
        let mut making = path.as_os_str().to_owned();
        making.push("~");
        let making = PathBuf::from(making);
        let address = SocketAddrUnix::new(&making).map_err(|_| Error::PathTooLong(path.into()))?;
        // A server that died at this point has left a socket here. Any other file does not belong
        // to this program.
        match std::fs::symlink_metadata(&making) {
            Ok(meta) if meta.file_type().is_socket() => drop(std::fs::remove_file(&making)),
            Ok(_) => return Err(Error::NotASocket(making)),
            Err(_) => {}
        }
        let make = || -> Result<UnixListener, Errno> {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            rustix::net::bind(&socket, &address)?;
            rustix::net::listen(&socket, 128)?;
            Ok(UnixListener::from(socket))
        };
        let listener = make().map_err(|e| failed(e.into()))?;
        let meta = std::fs::symlink_metadata(&making).map_err(failed)?;
        if meta.mode() & 0o777 != 0o600 {
            let _ = std::fs::remove_file(&making);
            return Err(failed(io::Error::other(format!(
                "came out with mode {:o} instead of 600",
                meta.mode() & 0o777
            ))));
        }
        std::fs::rename(&making, path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(PrivateSocket {
            listener,
            path: path.into(),
            device_and_inode: (meta.dev(), meta.ino()),
        })
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        // Another server may have replaced the socket in the meantime. The new socket is kept.
        if let Ok(meta) = std::fs::symlink_metadata(&self.path)
            && (meta.dev(), meta.ino()) == self.device_and_inode
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns `Ok` if the name is free, or belongs to a dead server.
fn refuse_if_taken(path: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| Error::Socket { path: path.into(), error };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(meta) if !meta.file_type().is_socket() => return Err(Error::NotASocket(path.into())),
        Ok(_) => {}
    }
    let address = SocketAddrUnix::new(path).map_err(|_| Error::PathTooLong(path.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed(e.into()))?;
    match rustix::net::connect(&probe, &address) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // A full backlog is also a sign of a running server.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Err(Error::InUse(path.into())),
        Err(error) => Err(failed(error.into())),
    }
}
