//! Mounts without the right to mount: the setuid program `fusermount3` mounts, and passes the
//! connection over a socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

const PROGRAM: &str = "fusermount3";

/// Mounts on `mount_point` with options in the syntax of the program
/// ("fsname=x,default_permissions").
pub(crate) fn mount(mount_point: &Path, options: &str) -> io::Result<OwnedFd> {
    // The socket is not closed on exec: the program finds its end by number.
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    let mut child = Command::new(PROGRAM)
        .args(["-o", options, "--"])
        .arg(mount_point)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| not_started("mounting", &e))?;
    drop(theirs);
    let connection = receive(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = io::Read::read_to_string(&mut stderr, &mut said);
    }
    child.wait()?;
    match connection? {
        Some(connection) => {
            rustix::io::fcntl_setfd(&connection, rustix::io::FdFlags::CLOEXEC)?;
            Ok(connection)
        }
        None => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            said.trim().trim_start_matches("fusermount3: ").to_string(),
        )),
    }
}

fn not_started(what: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what} without root takes {PROGRAM} (package fuse3): {e}"))
}

/// Receives the connection. Returns `None` if the program ended without sending one.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::empty(),
    )?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Unmounts the file system. With `lazily`, it is unmounted even while it is in use.
pub(crate) fn unmount(mount_point: &Path, lazily: bool) -> io::Result<()> {
    let output = Command::new(PROGRAM)
        .arg(if lazily { "-uz" } else { "-u" })
        .arg("--")
        .arg(mount_point)
        .output()
        .map_err(|e| not_started("unmounting", &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.contains("busy") {
        io::ErrorKind::ResourceBusy
    } else {
        io::ErrorKind::PermissionDenied
    };
    Err(io::Error::new(kind, said.trim().to_string()))
}
