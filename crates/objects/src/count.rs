//! Counts requests and bytes by kind, and the requests in flight, with a few relaxed atomic
//! operations for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::Objects;
use crate::error::Result;
use crate::key::Key;
use crate::object::{Condition, Object, Page, Part, Tag};
use crate::secret_id::SecretId;

/// Objects whose requests are counted.
#[derive(Debug)]
pub struct CountObjects {
    inner: Arc<dyn Objects>,
    get: Counters,
    put: Counters,
    delete: Counters,
    list: Counters,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
}

/// The counts of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// The number of requests, including those that failed.
    pub requests: u64,
    /// The number of requests that returned an error.
    pub failed: u64,
    /// The bytes of objects that a GET received, or that a PUT sent even if it failed. For other
    /// kinds this is 0.
    pub bytes: u64,
}

/// The counts of all kinds since the counter was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The counts of reads.
    pub get: KindCounts,
    /// The counts of puts.
    pub put: KindCounts,
    /// The counts of deletions.
    pub delete: KindCounts,
    /// The counts of requests for a page of a list.
    pub list: KindCounts,
    /// The largest number of requests that were in flight at the same time.
    pub most_in_flight: u64,
}

impl Counters {
    fn counts(&self) -> KindCounts {
        KindCounts {
            requests: self.requests.load(Relaxed),
            failed: self.failed.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

impl CountObjects {
    /// Counts the requests to `inner`.
    pub fn new(inner: Arc<dyn Objects>) -> Self {
        CountObjects {
            inner,
            get: Counters::default(),
            put: Counters::default(),
            delete: Counters::default(),
            list: Counters::default(),
            in_flight: AtomicU64::new(0),
            most_in_flight: AtomicU64::new(0),
        }
    }

    /// Returns the counts since this counter was created.
    pub fn counts(&self) -> Counts {
        Counts {
            get: self.get.counts(),
            put: self.put.counts(),
            delete: self.delete.counts(),
            list: self.list.counts(),
            most_in_flight: self.most_in_flight.load(Relaxed),
        }
    }

    fn counted<T>(&self, counters: &Counters, request: impl FnOnce() -> Result<T>) -> Result<T> {
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Relaxed);
        counters.requests.fetch_add(1, Relaxed);
        let outcome = request();
        counters.failed.fetch_add(u64::from(outcome.is_err()), Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
        outcome
    }
}

impl Objects for CountObjects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        let object = self.counted(&self.get, || self.inner.get(key, part))?;
        self.get.bytes.fetch_add(object.bytes.len() as u64, Relaxed);
        Ok(object)
    }

    fn get_other(&self, key: &Key, part: Part, tag: &Tag) -> Result<Option<Object>> {
        let object = self.counted(&self.get, || self.inner.get_other(key, part, tag))?;
        let bytes = object.as_ref().map_or(0, |object| object.bytes.len());
        self.get.bytes.fetch_add(bytes as u64, Relaxed);
        Ok(object)
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        self.put.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.counted(&self.put, || self.inner.put(key, bytes, condition))
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.counted(&self.delete, || self.inner.delete(key))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        self.counted(&self.list, || self.inner.list(prefix, after))
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn secret(&self) -> Option<SecretId> {
        self.inner.secret()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::memory::MemoryObjects;

    #[test]
    fn requests_and_bytes_are_counted_by_kind() -> Result<()> {
        let objects = CountObjects::new(Arc::new(MemoryObjects::new()));
        let key = Key::new("a")?;
        objects.put(&key, Bytes::from("12345"), Condition::Absent)?;
        let again = objects.put(&key, Bytes::from("12"), Condition::Absent);
        assert!(again.is_err());
        objects.get(&key, Part::Range(1..4))?;
        objects.list("", "")?;
        objects.delete(&key)?;
        let one = KindCounts { requests: 1, failed: 0, bytes: 0 };
        let counts = Counts {
            get: KindCounts { bytes: 3, ..one },
            put: KindCounts { requests: 2, failed: 1, bytes: 7 },
            delete: one,
            list: one,
            most_in_flight: 1,
        };
        assert_eq!(objects.counts(), counts);
        Ok(())
    }

    /// A place in which a read waits until three reads have arrived.
    #[derive(Debug)]
    struct Together(MemoryObjects, Barrier);

    impl Objects for Together {
        fn get(&self, key: &Key, part: Part) -> Result<Object> {
            self.1.wait();
            self.0.get(key, part)
        }
        fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
            self.0.put(key, bytes, condition)
        }
        fn delete(&self, key: &Key) -> Result<()> {
            self.0.delete(key)
        }
        fn list(&self, prefix: &str, after: &str) -> Result<Page> {
            self.0.list(prefix, after)
        }
        fn place(&self) -> String {
            self.0.place()
        }
    }

    #[test]
    fn requests_in_flight_are_counted() -> Result<()> {
        let together = Together(MemoryObjects::new(), Barrier::new(3));
        let objects = CountObjects::new(Arc::new(together));
        let key = Key::new("a")?;
        objects.put(&key, Bytes::from("1"), Condition::Absent)?;
        env::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| objects.get(&key, Part::Whole).expect("it is there"));
            }
        });
        assert_eq!(objects.counts().most_in_flight, 3);
        Ok(())
    }
}
