//! Limits the requests to object storage that are in flight, and the memory that their answers may
//! take.

use env::sync::{Condvar, Mutex};

/// The largest number of requests in flight. A request for a range whose pieces lie in several
/// objects counts as one, although it reads up to four objects at the same time.
pub(super) const AT_ONCE: usize = 64;

/// Limits the requests in flight, and the bytes that they fetch.
#[derive(Default)]
pub(super) struct Requests {
    /// The number of bytes that the requests in flight may fetch together. A single request may
    /// fetch more.
    memory: u64,
    now: Mutex<UnderWay>,
    ended: Condvar,
}

#[derive(Default)]
struct UnderWay {
    requests: usize,
    bytes: u64,
    /// The number of the next request to arrive. Requests are served in the order of their arrival,
    /// so that small requests do not delay a large one.
    comes: u64,
    /// The number of the next request to be served.
    served: u64,
}

impl Requests {
    pub fn new(memory: u64) -> Requests {
        Requests { memory, ..Requests::default() }
    }

    /// Waits until a request for `bytes` bytes may begin. If no other request is in flight, a
    /// request of any size may begin.
    pub fn begin(&self, bytes: u64) -> RequestGuard<'_> {
        let mut now = self.now.lock();
        let own = now.comes;
        now.comes += 1;
        while now.served != own
            || now.requests >= AT_ONCE
            || now.requests > 0 && now.bytes + bytes > self.memory
        {
            self.ended.wait(&mut now);
        }
        (now.served, now.requests, now.bytes) = (own + 1, now.requests + 1, now.bytes + bytes);
        // Wake the next request, because it may fit, too.
        self.ended.notify_all();
        RequestGuard(self, bytes)
    }
}

pub(super) struct RequestGuard<'a>(&'a Requests, u64);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now.lock();
        (now.requests, now.bytes) = (now.requests - 1, now.bytes - self.1);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use env::thread;

    use super::*;

    #[test]
    fn a_large_request_is_not_kept_waiting_by_small_ones_that_come_later() {
        let requests = Requests::new(100);
        let order = Mutex::new(Vec::new());
        let wants = |bytes: u64| {
            let _request = requests.begin(bytes);
            order.lock().push(bytes);
        };
        // Wait until `count` threads have sent a request.
        let asked = |count: u64| {
            while requests.now.lock().comes < count {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let small = requests.begin(30);
            scope.spawn(|| wants(90));
            asked(2);
            for n in 0..4 {
                scope.spawn(|| wants(30));
                asked(3 + n);
            }
            assert_eq!(*order.lock(), [], "they fit, and do not overtake it");
            drop(small);
        });
        assert_eq!(*order.lock(), [90, 30, 30, 30, 30]);
    }
}
