//! Sends a second request if the first one takes far longer than usual. A few of many requests to a
//! large object store hang for seconds, but the same request usually does not hang when it is sent
//! again (Dean and Barroso, "The Tail at Scale", 2013). The first answer to arrive is used.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use env::sync::Mutex;
use env::thread;
use objects::{Key, Object, Objects, Part, Result};

/// The number of request times that are remembered. No second request is sent before half of this
/// number is known.
const REMEMBERED: usize = 64;
/// The largest length of a small request, in bytes. Times of larger requests are not compared with
/// times of small ones.
const SMALL: u64 = 1 << 20;
/// The smallest request time for which a second request is worth a thread.
const WORTH_IT: Duration = Duration::from_millis(5);
/// The number of requests per second request: at most one request in this many is sent a second
/// time.
const ONE_IN: u64 = 20;

/// The times of earlier requests, and the number of second requests.
#[derive(Default)]
pub(super) struct SecondGets {
    small: Mutex<Times>,
    large: Mutex<Times>,
    requests: AtomicU64,
    second: AtomicU64,
}

/// The durations of the last requests.
struct Times {
    last: [Duration; REMEMBERED],
    count: usize,
}

impl Default for Times {
    fn default() -> Self {
        Times { last: [Duration::ZERO; REMEMBERED], count: 0 }
    }
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.last[self.count % REMEMBERED] = time;
        self.count += 1;
    }

    /// Returns twice the 95th percentile of the request times if enough times are known and the
    /// percentile is at least [`WORTH_IT`].
    fn patience(&self) -> Option<Duration> {
        let known = self.count.min(REMEMBERED);
        if known < REMEMBERED / 2 {
            return None;
        }
        let mut times = self.last;
        let times = &mut times[..known];
        times.sort_unstable();
        let most = times[known * 95 / 100];
        (most >= WORTH_IT).then_some(2 * most)
    }
}

impl SecondGets {
    /// Returns the number of requests that were sent a second time.
    pub fn second(&self) -> u64 {
        self.second.load(Relaxed)
    }

    /// Reads a range of an object, with a second request if the first one is slow.
    pub fn get(&self, objects: &Arc<dyn Objects>, key: &Key, range: Range<u64>) -> Result<Object> {
        let times = if range.end - range.start > SMALL { &self.large } else { &self.small };
        self.requests.fetch_add(1, Relaxed);
        let begun = Instant::now();
        let patience = times.lock().patience();
        let got = match patience {
            None => objects.get(key, Part::Range(range)),
            Some(patience) => self.first_of_two(objects, key, range, patience),
        };
        if got.is_ok() {
            times.lock().add(begun.elapsed());
        }
        got
    }

    fn first_of_two(
        &self,
        objects: &Arc<dyn Objects>,
        key: &Key,
        range: Range<u64>,
        patience: Duration,
    ) -> Result<Object> {
        let (answer, answers) = mpsc::channel();
        let ask = |answer: Sender<_>| {
            let (objects, key, part) = (objects.clone(), key.clone(), Part::Range(range.clone()));
            let name = thread::current().name().unwrap_or("kvfs-get").to_owned();
            let asking = move || _ = answer.send(objects.get(&key, part));
            thread::Builder::new().name(name).spawn(asking)
        };
        // If no thread can be started, this thread sends the request.
        let Ok(_) = ask(answer.clone()) else { return objects.get(key, Part::Range(range)) };
        let mut asked = 1;
        let mut first = answers.recv_timeout(patience);
        if matches!(first, Err(RecvTimeoutError::Timeout)) {
            asked += usize::from(self.may_ask_again() && ask(answer.clone()).is_ok());
            first = answers.recv().map_err(RecvTimeoutError::from);
        }
        drop(answer);
        match first {
            Ok(Err(error)) if asked > 1 => match answers.recv() {
                Ok(Ok(object)) => Ok(object),
                _ => Err(error),
            },
            Ok(got) => got,
            // The thread has ended without an answer.
            Err(_) => objects.get(key, Part::Range(range)),
        }
    }

    fn may_ask_again(&self) -> bool {
        let (second, requests) = (self.second.load(Relaxed), self.requests.load(Relaxed));
        // Other threads may count at the same time: a few more second requests than one in `ONE_IN`
        // do no harm.
        let may = (second + 1) * ONE_IN <= requests;
        self.second.fetch_add(u64::from(may), Relaxed);
        may
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use objects::{Condition, MemoryObjects, ObjectsError, Page, Tag};

    use super::*;

    /// A place where requests take ten milliseconds, but ten seconds if `hangs` says so.
    #[derive(Debug)]
    struct Slow {
        inner: MemoryObjects,
        hangs: fn(u64) -> bool,
        gets: AtomicU64,
    }

    const HANGS: Duration = Duration::from_secs(10);

    impl Objects for Slow {
        fn get(&self, key: &Key, part: Part) -> Result<Object> {
            let number = self.gets.fetch_add(1, Relaxed);
            let hangs = (self.hangs)(number);
            std::thread::sleep(if hangs { HANGS } else { Duration::from_millis(10) });
            match hangs && number.is_multiple_of(2) {
                true => Err(ObjectsError::Busy { key: key.to_string(), why: "slow".into() }),
                false => self.inner.get(key, part),
            }
        }

        fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
            self.inner.put(key, bytes, condition)
        }

        fn delete(&self, key: &Key) -> Result<()> {
            self.inner.delete(key)
        }

        fn list(&self, prefix: &str, after: &str) -> Result<Page> {
            self.inner.list(prefix, after)
        }

        fn place(&self) -> String {
            self.inner.place()
        }
    }

    fn slow(hangs: fn(u64) -> bool) -> (Arc<Slow>, Key) {
        let (inner, gets) = (MemoryObjects::new(), AtomicU64::new(0));
        let key = Key::new("z/a").expect("a key");
        inner.put(&key, Bytes::from("bytes of zones"), Condition::Absent).expect("put");
        (Arc::new(Slow { inner, hangs, gets }), key)
    }

    #[test]
    fn a_request_that_hangs_is_made_again_and_its_reader_does_not_wait_for_it() {
        let (slow, key) = slow(|number| matches!(number, 150 | 171));
        let (objects, gets) = (slow.clone() as Arc<dyn Objects>, SecondGets::default());
        let begun = Instant::now();
        for _ in 0..200 {
            assert_eq!(gets.get(&objects, &key, 0..5).expect("read").bytes, "bytes");
        }
        assert!(begun.elapsed() < HANGS, "{:?}", begun.elapsed());
        let second = gets.second();
        assert!((2..=10).contains(&second), "{second} were made again");
        assert_eq!(slow.gets.load(Relaxed), 200 + second);
    }

    #[test]
    fn of_a_place_that_is_slow_altogether_no_more_is_asked() {
        // From here on each request takes thirty times as long as before.
        let (slow, key) = slow(|_| false);
        let (objects, gets) = (slow.clone() as Arc<dyn Objects>, SecondGets::default());
        let times = &gets.small;
        (0..REMEMBERED).for_each(|_| times.lock().add(WORTH_IT));
        let more = Instant::now();
        for _ in 0..60 {
            times.lock().last = [WORTH_IT - Duration::from_millis(1) / 2; REMEMBERED];
            times.lock().last[..8].fill(WORTH_IT);
            gets.get(&objects, &key, 0..5).expect("read");
        }
        assert!(gets.second() <= 3, "{} of 60, in {:?}", gets.second(), more.elapsed());
    }

    #[test]
    fn times_are_compared_once_there_are_enough_and_where_a_thread_is_worth_it() {
        let mut times = Times::default();
        for n in 1..REMEMBERED as u32 / 2 {
            times.add(n * WORTH_IT);
            assert_eq!(times.patience(), None);
        }
        times.add(WORTH_IT);
        assert_eq!(times.patience(), Some(2 * 31 * WORTH_IT - 2 * WORTH_IT));
        (0..REMEMBERED).for_each(|_| times.add(WORTH_IT / 2));
        assert_eq!(times.patience(), None, "they are fast by now");
        times.add(WORTH_IT * 1000);
        assert_eq!(times.patience(), None, "a single one says nothing");
    }
}
