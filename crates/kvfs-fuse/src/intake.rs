//! Requests that are known in the order in which the kernel sends them, where it gathers writes.
//!
//! Several threads take requests, and one that has taken a piece of a long write may be suspended before it does anything. The pieces behind it
//! must wait for it (`kvfs::Fs::announce_cached`), so they must be able to know that it is on its way: taking a request and announcing
//! it is one step, and one thread at a time does it. Where writes go through there is nothing to announce, and each thread takes
//! requests by itself.

use parking_lot::Mutex;

pub(crate) struct Intake(Option<Mutex<()>>);

impl Intake {
    pub fn new(in_order: bool) -> Intake {
        Intake(in_order.then(Mutex::default))
    }

    /// Takes the next request; `announce` is done with it before another one is taken.
    pub fn take<T, E>(&self, take: impl FnOnce() -> Result<Option<T>, E>, announce: impl FnOnce(&T)) -> Result<Option<T>, E> {
        let Some(turns) = &self.0 else { return take() };
        let _turn = turns.lock();
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
        let (intake, taken) = (Intake::new(true), Mutex::new(0));
        let next = || {
            let mut taken = taken.lock();
            *taken += 1;
            Ok::<_, Infallible>(Some(*taken))
        };
        let (came, first) = sync_channel(0);
        let (say, second) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| intake.take(next, |_| came.send(()).unwrap()));
            while *taken.lock() == 0 {
                std::thread::yield_now();
            }
            // It has taken the first one, and cannot say so yet.
            let intake = &intake;
            scope.spawn(move || say.send(intake.take(next, |_| ())).unwrap());
            assert!(second.recv_timeout(Duration::from_millis(20)).is_err());
            assert_eq!(*taken.lock(), 1);
            first.recv().unwrap();
            assert_eq!(second.recv().unwrap(), Ok(Some(2)));
        });
    }

    #[test]
    fn nothing_is_announced_where_writes_go_through() {
        let intake = Intake::new(false);
        assert_eq!(intake.take(|| Ok::<_, Infallible>(Some(1)), |_| panic!("it was announced")), Ok(Some(1)));
    }
}
