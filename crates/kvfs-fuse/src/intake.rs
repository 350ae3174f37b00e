//! Takes requests in the order in which the kernel sends them, if the kernel gathers writes and the
//! store is nearly full.
//!
//! Several threads take requests, and a thread that has taken a piece of a long write may be
//! suspended before it does anything. If that piece is refused in the end, for lack of space, the
//! later pieces must be refused as well; so they must wait for it, and must be able to detect that
//! it has been taken (`kvfs::Fs::announce_cached`). For this purpose, one thread at a time takes a
//! request and announces it in one step.
//!
//! This order wakes another thread for every request: with one client, creating files takes five
//! times as long. So requests are taken in order only if the handler reports that a write may be
//! refused soon; it does so while a gigabyte is still free. Otherwise each thread takes requests by
//! itself.

use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Intake(Mutex<()>);

impl Intake {
    /// Takes the next request. If `in_order` returns `true`, `announce` returns before the next
    /// request is taken.
    pub fn take<T, E>(
        &self,
        in_order: impl Fn() -> bool,
        take: impl FnOnce() -> Result<Option<T>, E>,
        announce: impl FnOnce(&T),
    ) -> Result<Option<T>, E> {
        if !in_order() {
            return take();
        }
        let _turn = self.0.lock();
        let taken = take()?;
        if let Some(taken) = &taken {
            announce(taken);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc::{channel, sync_channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn none_is_taken_while_the_one_before_is_not_announced() {
        let (intake, taken) = (Intake::default(), Mutex::new(0));
        let next = || {
            let mut taken = taken.lock();
            *taken += 1;
            Ok::<_, Infallible>(Some(*taken))
        };
        let (came, first) = sync_channel(0);
        let (say, second) = channel();
        std::thread::scope(|scope| {
            // The receiver is dropped when this fails, so that the sending thread does not wait
            // forever.
            let first = first;
            scope.spawn(|| intake.take(|| true, next, |_| came.send(()).unwrap()));
            while *taken.lock() == 0 {
                std::thread::yield_now();
            }
            // The first thread has taken a request, and cannot announce it yet.
            let intake = &intake;
            scope.spawn(move || say.send(intake.take(|| true, next, |_| ())).unwrap());
            assert!(second.recv_timeout(Duration::from_millis(20)).is_err());
            assert_eq!(*taken.lock(), 1);
            first.recv().unwrap();
            assert_eq!(second.recv().unwrap(), Ok(Some(2)));
        });
    }

    #[test]
    fn nothing_is_announced_where_that_is_not_wanted() {
        let intake = Intake::default();
        assert_eq!(
            intake.take(|| false, || Ok::<_, Infallible>(Some(1)), |_| panic!("it was announced")),
            Ok(Some(1))
        );
    }
}
