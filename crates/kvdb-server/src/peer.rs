//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The user of the system that the process there runs as. Nothing else is asked for: a process of
/// another PID name space, such as that of a container, has no number here, but it has a user.
pub fn user(socket: impl AsFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is as large as `size` says, any bytes are a value of it, and both outlive the
    // call.
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
