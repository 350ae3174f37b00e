//! Serves requests that wait for the disk, or for pages that the kernel sends in requests to other
//! threads. A thread that waits cannot answer other requests. With one thread for each core, a
//! handful of programs that call fsync would stop all other programs. So the first such request is
//! served by the thread that took it, which saves a hand-over when one program syncs alone. Further
//! requests that arrive while the first one waits go to separate threads, which are started when
//! needed.
//!
//! Only the sync of an FSYNC of a small file waits (`with_next_sync`): one thread syncs for all
//! that are pending when it begins, and answers them. No other thread is woken for each of them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::courtesy;
use crate::handler::Reply;

/// The maximum number of threads. Further requests are served by the threads that took them.
const MOST: usize = 64;

type Job = Box<dyn FnOnce() + Send>;
/// Sends the answer to an FSYNC.
type SyncAnswer = Box<dyn FnOnce(Reply<()>) + Send>;

/// The requests that wait for the next sync.
#[derive(Default)]
struct PendingSyncs {
    answers: Vec<SyncAnswer>,
    /// A thread has undertaken to serve these requests.
    led: bool,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<JobQueue>,
    wake: Condvar,
}

/// The threads of one mount for requests that wait.
pub(crate) struct BlockingPool {
    under_way: AtomicUsize,
    shared: Arc<Shared>,
    pending_syncs: Mutex<PendingSyncs>,
    /// The CPUs on which the threads of the pool may run: a thread that starts one may itself be
    /// kept on one CPU, and have a low scheduling policy.
    cpus: CpuSet,
}

impl BlockingPool {
    /// Creates a pool whose threads may run on the CPUs of the calling thread.
    pub fn new() -> io::Result<BlockingPool> {
        Ok(BlockingPool {
            under_way: AtomicUsize::new(0),
            shared: Arc::default(),
            pending_syncs: Mutex::default(),
            cpus: sched_getaffinity(None)?,
        })
    }

    /// Runs `job` on this thread if no other request waits, otherwise on a thread of the pool. With
    /// `alone`, no other thread answers requests, so `job` is handed over in any case.
    pub fn admit(self: &Arc<Self>, alone: bool, job: impl FnOnce() + Send + 'static) {
        let first = self.under_way.fetch_add(1, Ordering::AcqRel) == 0;
        let under_way = Leaving(self.clone());
        let job = move || {
            let _under_way = under_way;
            job();
        };
        if first && !alone {
            return job();
        }
        if let Some(job) = self.hand_over(Box::new(job), false) {
            job();
        }
    }

    /// Calls `answer` with the outcome of a `sync` that begins after this call. The sync runs on
    /// this thread if no other request waits, unless this is the only thread (`alone`); otherwise
    /// on a thread of the pool.
    pub fn with_next_sync(
        self: &Arc<Self>,
        alone: bool,
        sync: impl Fn() -> Reply<()> + Send + 'static,
        answer: impl FnOnce(Reply<()>) + Send + 'static,
    ) {
        let mut pending_syncs = self.pending_syncs.lock();
        pending_syncs.answers.push(Box::new(answer));
        if std::mem::replace(&mut pending_syncs.led, true) {
            return;
        }
        drop(pending_syncs);
        let pool = self.clone();
        self.admit(alone, move || pool.lead(sync));
    }

    /// Syncs for all requests that are pending, and answers them, until none is left. A thread that
    /// also answers requests does so once, and hands the next sync to a thread of the pool.
    fn lead(self: &Arc<Self>, sync: impl Fn() -> Reply<()> + Send + 'static) {
        while self.sync_once(&sync) {
            if !IS_POOL_THREAD.get() {
                let pool = self.clone();
                return self.take(move || pool.lead(sync));
            }
        }
    }

    /// Syncs for all requests that are pending, and answers them. Returns whether others have
    /// arrived.
    fn sync_once(&self, sync: &impl Fn() -> Reply<()>) -> bool {
        let answers = std::mem::take(&mut self.pending_syncs.lock().answers);
        let outcome = sync();
        // Answers before the next sync, which the programs answered now may share.
        answers.into_iter().for_each(|answer| answer(outcome));
        let mut pending_syncs = self.pending_syncs.lock();
        pending_syncs.led = !pending_syncs.answers.is_empty();
        pending_syncs.led
    }

    /// Returns whether no request waits and no job is queued.
    pub fn is_idle(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.jobs.is_empty()
            && queue.idle == queue.threads
            && self.under_way.load(Ordering::Acquire) == 0
    }

    /// Runs `job` on a thread of the pool, later if there are too many: `job` may wait for
    /// something that this thread has to do.
    pub fn take(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(job) = self.hand_over(Box::new(job), true) {
            job();
        }
    }

    /// Hands `job` to a thread of the pool. If no thread can take the job now, it is queued if
    /// `later` is set and a thread will take it; otherwise it is returned.
    fn hand_over(&self, job: Job, later: bool) -> Option<Job> {
        let mut queue = self.shared.queue.lock();
        if queue.idle <= queue.jobs.len() && !(later && queue.threads == MOST) {
            if queue.threads == MOST {
                return Some(job);
            }
            let (shared, cpus) = (self.shared.clone(), self.cpus);
            let begin = move || {
                let _ = sched_setaffinity(None, &cpus);
                courtesy::be_usual();
                work(&shared);
            };
            if std::thread::Builder::new().name("fuse-wait".into()).spawn(begin).is_err() {
                return Some(job);
            }
            queue.threads += 1;
            queue.idle += 1;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.wake.notify_one();
        None
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

/// Counts a request as in progress until this value is dropped, even if the job of the request
/// panics.
struct Leaving(Arc<BlockingPool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

thread_local! {
    /// This thread only runs jobs of the pool.
    static IS_POOL_THREAD: Cell<bool> = const { Cell::new(false) };
}

fn work(shared: &Shared) {
    IS_POOL_THREAD.set(true);
    let mut queue = shared.queue.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            queue.idle -= 1;
            drop(queue);
            job();
            queue = shared.queue.lock();
            queue.idle += 1;
        } else if queue.closed {
            return;
        } else {
            shared.wake.wait(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn requests_that_wait_for_each_other_all_get_through() {
        let pool = Arc::new(BlockingPool::new().expect("a pool"));
        let (done, all_done) = channel();
        let barrier = Arc::new(std::sync::Barrier::new(10));
        // Each job waits until all ten have begun, so `admit` must run them at the same time.
        for _ in 0..9 {
            let (pool, barrier, done) = (pool.clone(), barrier.clone(), done.clone());
            std::thread::spawn(move || {
                pool.admit(false, move || {
                    barrier.wait();
                    done.send(()).expect("the test listens");
                });
            });
        }
        barrier.wait();
        for _ in 0..9 {
            all_done.recv().expect("all are answered");
        }
    }

    #[test]
    fn those_who_come_during_a_sync_share_the_next_one() {
        let pool = Arc::new(BlockingPool::new().expect("a pool"));
        let (begin, begun) = channel();
        let (go, told) = channel::<()>();
        let (syncs, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(told)));
        let (say, answers) = channel();
        let come = |who: usize| {
            let (begin, told, syncs, counted, say) =
                (begin.clone(), told.clone(), syncs.clone(), syncs.clone(), say.clone());
            let before = syncs.load(Ordering::SeqCst);
            let sync = move || {
                let nth = syncs.fetch_add(1, Ordering::SeqCst);
                begin.send(nth).expect("the test listens");
                told.lock().recv().expect("the test says so");
                if nth == 1 { Err(crate::handler::Errno(libc::EIO)) } else { Ok(()) }
            };
            let answer = move |outcome| {
                say.send((who, before, counted.load(Ordering::SeqCst), outcome))
                    .expect("the test listens")
            };
            pool.with_next_sync(true, sync, answer);
        };
        come(0);
        assert_eq!(begun.recv(), Ok(0));
        (1..6).for_each(come);
        go.send(()).expect("it waits");
        let (who, before, after, outcome) = answers.recv().expect("answered");
        assert_eq!((who, before, outcome), (0, 0, Ok(())));
        assert!(after >= 1);
        assert_eq!(begun.recv(), Ok(1));
        assert!(answers.try_recv().is_err(), "their sync has not ended");
        go.send(()).expect("it waits");
        for i in 1..6 {
            let (who, before, _, outcome) = answers.recv().expect("answered");
            assert_eq!((who, before, outcome), (i, 1, Err(crate::handler::Errno(libc::EIO))));
        }
        assert_eq!(syncs.load(Ordering::SeqCst), 2, "one for all of them");
        // The pool continues to work.
        come(6);
        assert_eq!(begun.recv(), Ok(2));
        go.send(()).expect("it waits");
        assert_eq!(answers.recv().expect("answered").3, Ok(()));
    }

    #[test]
    fn one_thread_goes_on_while_syncs_are_wanted_unless_it_has_requests_to_answer() {
        for alone in [true, false] {
            let pool = Arc::new(BlockingPool::new().expect("a pool"));
            let (say, answers) = channel();
            // Each of the first nine requests makes the next one arrive during its sync.
            fn come(
                pool: &Arc<BlockingPool>,
                alone: bool,
                left: u32,
                say: &std::sync::mpsc::Sender<std::thread::ThreadId>,
            ) {
                let (again, tell, more) = (pool.clone(), say.clone(), say.clone());
                let answer = move |_| {
                    if left > 0 {
                        come(&again, alone, left - 1, &more);
                    }
                    tell.send(std::thread::current().id()).expect("the test listens");
                };
                pool.with_next_sync(alone, || Ok(()), answer);
            }
            come(&pool, alone, 9, &say);
            let who: Vec<_> = (0..10).map(|_| answers.recv().expect("answered")).collect();
            let here = std::thread::current().id();
            assert_eq!(who[0] == here, !alone);
            assert!(
                who[1..].iter().all(|&id| id == who[1] && id != here),
                "no other thread is woken for each"
            );
            assert_eq!(pool.shared.queue.lock().threads, 1);
        }
    }

    #[test]
    fn alone_a_request_is_answered_where_it_arrived() {
        let pool = Arc::new(BlockingPool::new().expect("a pool"));
        for _ in 0..3 {
            let (tell, told) = channel();
            pool.admit(false, move || {
                tell.send(std::thread::current().id()).expect("the test listens")
            });
            assert_eq!(told.recv().expect("it ran"), std::thread::current().id());
        }
        let (tell, told) = channel();
        pool.admit(true, move || tell.send(std::thread::current().id()).expect("the test listens"));
        assert_ne!(
            told.recv().expect("it ran"),
            std::thread::current().id(),
            "no thread would answer what it waits for"
        );
    }
}
