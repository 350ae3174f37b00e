//! A bell wakes the thread of a connection that waits for another connection, and notifies an event
//! loop that messages have arrived for a connection that no thread serves at the moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use env::sync::{Condvar, Mutex};
use rustix::event::EventfdFlags;

/// The bell of one connection. It may ring before a thread waits for it; the wait then ends at
/// once.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
    /// A descriptor that is readable once the bell has rung, for a thread that also waits for a
    /// socket.
    descriptor: OnceLock<OwnedFd>,
    /// A function that is called at each ring, for a connection that no thread waits for.
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Bell {
    pub fn ring(&self) {
        *self.rung.lock() = true;
        self.heard.notify_all();
        if let Some(descriptor) = self.descriptor.get() {
            // The write fails only if the descriptor is readable already.
            let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
        }
        if let Some(listener) = self.listener.get() {
            listener();
        }
    }

    pub fn has_listener(&self) -> bool {
        self.listener.get().is_some()
    }
    /// Calls `listener` at each ring from now on. The call holds all locks that the ringing
    /// thread holds. Only the first listener takes effect.
    pub fn set_listener(&self, listener: Box<dyn Fn() + Send + Sync>) {
        let _ = self.listener.set(listener);
    }

    /// Returns whether the bell has rung since the previous call.
    pub fn take(&self) -> bool {
        if let Some(descriptor) = self.descriptor.get() {
            let _ = rustix::io::read(descriptor, &mut [0u8; 8]);
        }
        std::mem::take(&mut *self.rung.lock())
    }

    /// Waits until the bell rings, or until `at_most` has elapsed. `None` waits without a limit.
    pub fn wait(&self, at_most: Option<Duration>) {
        let mut rung = self.rung.lock();
        if !*rung {
            match at_most {
                Some(at_most) => {
                    self.heard.wait_for(&mut rung, at_most);
                }
                None => self.heard.wait(&mut rung),
            }
        }
    }

    /// Returns a descriptor that is readable once the bell has rung. Call [`Bell::take`] after
    /// this call and before a wait, because the bell may have rung before the descriptor was
    /// created.
    pub fn descriptor(&self) -> std::io::Result<BorrowedFd<'_>> {
        if self.descriptor.get().is_none() {
            let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Only the thread of the connection waits, so no other thread has created a
            // descriptor.
            let _ = self.descriptor.set(made);
        }
        self.descriptor.get().map(AsFd::as_fd).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_ends_it() {
        let bell = Bell::default();
        bell.ring();
        bell.wait(None);
        assert!(bell.take() && !bell.take());
    }

    #[test]
    fn the_descriptor_tells_of_rings_that_come_after_it() {
        let bell = Bell::default();
        bell.descriptor().expect("a descriptor");
        bell.ring();
        let fd = bell.descriptor().expect("the same one");
        let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, None), Ok(1));
        assert!(bell.take());
        let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(0));
    }
}
