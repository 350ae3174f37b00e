//! A signal that ends the blocking call of a thread, and does nothing else.

use std::sync::OnceLock;

/// This signal is sent only on purpose, and without a handler it has no effect.
const SIGNAL: libc::c_int = libc::SIGURG;

/// Makes the signal end blocking calls. Must be called before the first [`thread`].
pub(crate) fn prepare() {
    static HANDLED: OnceLock<()> = OnceLock::new();
    extern "C" fn nothing(_: libc::c_int) {}
    HANDLED.get_or_init(|| {
        // SAFETY: the handler touches nothing, and the structure is all zeros except for it: no
        // flags (so blocking calls are not restarted), and no other signal is blocked in it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// Ends the blocking call of a thread of this process.
pub(crate) fn thread(number: i32) {
    // SAFETY: the call takes numbers. A thread that has ended gets nothing, and another thread of
    // this process that has its number by now is not harmed by the signal.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), number, SIGNAL);
    }
}
