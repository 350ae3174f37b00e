//! A signal that ends the call which a thread waits in, and does nothing else.

use std::sync::OnceLock;

/// Nothing sends it unasked, and where it has no handler it does nothing.
const SIGNAL: libc::c_int = libc::SIGURG;

/// To be called before the first [`thread`]: has the signal end calls that wait.
pub(crate) fn prepare() {
    static HANDLED: OnceLock<()> = OnceLock::new();
    extern "C" fn nothing(_: libc::c_int) {}
    HANDLED.get_or_init(|| {
        // SAFETY: the handler touches nothing, and the structure is all zeros but for it: no flags
        // (so calls that wait are not begun again), and no other signal is blocked in it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// Ends the call that a thread of this process waits in.
pub(crate) fn thread(number: i32) {
    // SAFETY: it takes numbers. A thread that has ended gets nothing, and one of this process that
    // has its number by now comes to no harm by it.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), number, SIGNAL);
    }
}
