//! The credentials of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the user of the process at the other end. The process id is not returned, because a
/// process in another PID namespace, such as a container, has no id in this one, but it has a
/// user.
pub fn user(socket: impl AsFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is as large as `size` says, any bytes are a valid value of it, and both
    // outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    if done == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}
