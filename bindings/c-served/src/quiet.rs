//! Keeps SIGPIPE from the program: a server that is gone is an error, and no signal that would end
//! the program. A Rust program ignores that signal, and a library must not decide it for others.
//! Threads that are started during a call inherit that the signal is blocked.

use std::mem::MaybeUninit;

use libc::{sigset_t, timespec};

/// SIGPIPE is blocked in this thread until this is dropped.
pub struct Quiet {
    before: sigset_t,
    /// The signal was pending already, for the program.
    was_pending: bool,
}

fn pipe_alone() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set, which `sigaddset` then changes.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

fn is_pending() -> bool {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: a set is an array of numbers, so that zeros are one, which the call may overwrite.
    unsafe {
        libc::sigpending(set.as_mut_ptr());
        libc::sigismember(set.as_ptr(), libc::SIGPIPE) == 1
    }
}

impl Quiet {
    pub fn begin() -> Quiet {
        let (set, mut before) = (pipe_alone(), MaybeUninit::zeroed());
        let was_pending = is_pending();
        // SAFETY: both sets live until the call returns, which cannot fail: it is a known way to
        // change the mask. Zeros would be a set, too.
        let before = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr());
            before.assume_init()
        };
        Quiet { before, was_pending }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let (set, at_once) = (pipe_alone(), timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the sets and the time live until the calls return.
        unsafe {
            // The signal of a write in this call is taken before it can be delivered.
            if !self.was_pending && is_pending() {
                libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}
