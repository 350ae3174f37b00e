//! Confinement of a worker, which removes nearly all of its rights.
//!
//! A worker may read and write its socket, allocate memory up to a bound, read the time, and exit.
//! It cannot open a file, create a socket or a process, or make memory executable, even if a script
//! has taken over the interpreter.

use std::collections::BTreeMap;
use std::io;

use rustix::process::{Resource, Rlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Address space in addition to that of the process at its start, in multiples of a script's
/// memory: for the interpreter, and for the messages that are read and written at the same time.
const SHARES: u64 = 4;

/// Closes every descriptor that the process may have inherited, except the first three. The first
/// is the socket.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: at the start of the process nothing in it owns a descriptor from number 3 on.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    match closed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all other rights permanently. `memory` is the memory of a script, bytes. After an error
/// the process must not run any script.
pub fn confine(memory: usize) -> io::Result<()> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let space = pages * rustix::param::page_size() as u64 + SHARES * memory as u64;
    for (resource, most) in [
        (Resource::As, space),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
        (Resource::Memlock, 0),
    ] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, limit)?;
    }
    // No other process of the same user may inspect this one, or its socket.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let wrong = |what: String| io::Error::new(io::ErrorKind::Unsupported, what);
    let program = filter().map_err(|error| wrong(error.to_string()))?;
    seccompiler::apply_filter(&program).map_err(|error| wrong(error.to_string()))
}

/// Returns the filter of the allowed system calls. Any other call fails as forbidden.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = [
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_write,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_brk,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_clock_gettime,
        libc::SYS_gettimeofday,
        libc::SYS_getrandom,
        libc::SYS_setitimer,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ]
    .into_iter()
    .map(|call| (call, Vec::new()))
    .collect();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        let not = SeccompCondition::new(2, SeccompCmpArgLen::Dword, executable, 0)?;
        allowed.insert(call, vec![SeccompRule::new(vec![not])?]);
    }
    SeccompFilter::new(
        allowed,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

/// Ends the process after that many seconds, unless this is called again; 0 means never.
pub fn end_after(seconds: u32) {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval {
        it_interval: none,
        it_value: libc::timeval { tv_sec: seconds.into(), tv_usec: 0 },
    };
    // SAFETY: the kernel reads one valid struct and writes nothing.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
}
