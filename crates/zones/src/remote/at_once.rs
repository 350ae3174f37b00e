//! Performs several blocking requests at the same time, each on its own thread.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use env::sync::Mutex;
use env::thread;

/// Calls `work` for each element of `all` on up to `most` threads, one of which is the thread of
/// the caller. Uses fewer threads if no more can be started. After an error, begins no further call
/// and returns the error.
pub(super) fn at_once<T: Sync>(
    all: &[T],
    most: usize,
    work: impl Fn(&T) -> io::Result<()> + Sync,
) -> io::Result<()> {
    match all {
        [] => return Ok(()),
        [one] => return work(one),
        _ => {}
    }
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let go_on = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = work(one) {
                failure.lock().get_or_insert(e);
                next.store(all.len(), Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..all.len().min(most) {
            if let Err(e) = thread::Builder::new().spawn_scoped(scope, go_on) {
                tracing::debug!("no further thread for requests: {e}");
                break;
            }
        }
        go_on();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_of_it_is_done_and_as_much_at_once_as_may_be() {
        let (together, sum) = (Barrier::new(3), AtomicUsize::new(0));
        let work = |n: &usize| -> io::Result<()> {
            // Each thread waits until three threads have arrived.
            together.wait();
            sum.fetch_add(*n, Ordering::Relaxed);
            Ok(())
        };
        at_once(&[1, 2, 3, 4, 5, 6], 3, work).expect("no call fails");
        assert_eq!(sum.into_inner(), 21);
        at_once(&[], 3, |_: &usize| Err(io::ErrorKind::Other.into())).expect("nothing is done");
    }

    #[test]
    fn the_first_error_is_returned_and_ends_the_work() {
        let calls = AtomicUsize::new(0);
        let work = |n: &usize| -> io::Result<()> {
            calls.fetch_add(1, Ordering::Relaxed);
            match *n {
                1 => Err(io::ErrorKind::TimedOut.into()),
                _ => Ok(()),
            }
        };
        let error = at_once(&[0, 1, 2, 3, 4], 1, work).expect_err("the second call fails");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(calls.into_inner(), 2);
    }
}
