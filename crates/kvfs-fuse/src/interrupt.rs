//! A signal that ends the blocking call of a thread, and does nothing else.

use std::sync::OnceLock;

/// The signal that interrupts a thread. It is sent only on purpose, and without a handler it has no
/// effect.
const SIGNAL: libc::c_int = libc::SIGURG;

/// Makes the signal end blocking calls. This function must be called before the first call of
/// [`thread`].
pub(crate) fn prepare() {
    static HANDLED: OnceLock<()> = OnceLock::new();
    extern "C" fn nothing(_: libc::c_int) {}
    HANDLED.get_or_init(|| {
        // SAFETY: the handler touches nothing. All other fields of the structure are zero: no flags
        // are set (so blocking calls are not restarted), and the handler blocks no other signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// Ends the blocking call of a thread of this process.
pub(crate) fn thread(number: i32) {
    // SAFETY: the call takes numbers. If the thread has ended, the signal reaches no thread, or
    // another thread of this process that has the same number by now, which the signal does not
    // harm.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), number, SIGNAL);
    }
}
