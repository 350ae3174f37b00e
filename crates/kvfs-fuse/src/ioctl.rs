//! Answers the only supported ioctl: GOINGDOWN, with which tests of file systems stop a file system
//! in the middle of its work.
//!
//! The number of this ioctl declares an argument that the kernel writes, although the kernel reads
//! it; such directions were not taken seriously when the number was assigned. FUSE in the kernel
//! relies on the number and sends only the address of the argument. So the argument is read from
//! the memory of the caller, which waits for the answer.

use std::fs;

use crate::handler::{Caller, Errno, GoingDown, Reply};

/// `_IOR('X', 125, __u32)`: FS_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN.
pub(crate) const GOING_DOWN: u32 = 0x8004_587d;

const CAP_SYS_ADMIN: u32 = 21;

/// Returns the request of a caller of GOINGDOWN, if it is permitted.
pub(crate) fn going_down(caller: Caller, argument: u64) -> Reply<GoingDown> {
    if caller.uid != 0 || !may_administrate(caller.pid) {
        return Err(Errno(libc::EPERM));
    }
    match word_at(caller.pid, argument)? {
        0 => Ok(GoingDown::Synced),
        1 => Ok(GoingDown::Committed),
        2 => Ok(GoingDown::AsItIs),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Returns whether a process has CAP_SYS_ADMIN, or `false` if it cannot be seen from here.
fn may_administrate(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|word| u64::from_str_radix(word.trim(), 16).ok())
        .is_some_and(|all| all >> CAP_SYS_ADMIN & 1 == 1)
}

fn word_at(pid: u32, address: u64) -> Reply<u32> {
    let fault = Errno(libc::EFAULT);
    let mut word = [0_u8; 4];
    let here = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    let address = usize::try_from(address).map_err(|_| fault)?;
    let there =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: word.len() };
    // SAFETY: the call writes at most four bytes to `word`; it reads another process's memory,
    // checked by the kernel.
    let read = unsafe {
        libc::process_vm_readv(pid.cast_signed(), &raw const here, 1, &raw const there, 1, 0)
    };
    if read == 4 { Ok(u32::from_ne_bytes(word)) } else { Err(fault) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_is_read_where_the_caller_has_it() {
        let pid = std::process::id();
        let word = 0x1234_5678_u32;
        assert_eq!(word_at(pid, (&raw const word).addr() as u64), Ok(word));
        assert_eq!(word_at(pid, 8), Err(Errno(libc::EFAULT)));
        let user = Caller { uid: 1000, gid: 0, pid };
        assert_eq!(going_down(user, (&raw const word).addr() as u64), Err(Errno(libc::EPERM)));
        if rustix::process::geteuid().is_root() {
            let root = Caller { uid: 0, gid: 0, pid };
            for (flags, how) in
                [(0, GoingDown::Synced), (1, GoingDown::Committed), (2, GoingDown::AsItIs)]
            {
                let flags: u32 = flags;
                assert_eq!(going_down(root, (&raw const flags).addr() as u64), Ok(how));
            }
            assert_eq!(going_down(root, (&raw const word).addr() as u64), Err(Errno(libc::EINVAL)));
        }
    }
}
