//! Serves requests over io_uring, with one queue for each CPU and a thread that stays on that CPU.
//!
//! The kernel puts a request into the queue of the CPU on which the waiting program runs. The
//! thread of that CPU takes the request out of its ring, answers it immediately, and hands over the
//! answer in the system call in which it waits for the next request, so no other CPU is woken. Only
//! this thread touches the ring. FORGET, INTERRUPT and messages of the daemon still go over
//! `/dev/fuse` (`session`).
//!
//! **Requests that wait** are answered by other threads (`blocking_pool`), because a queue has only
//! one thread. These are the kinds of requests that always wait ([`Request::always_waits`]),
//! requests for which the handler discovers during the call that it has to wait
//! ([`Errno::WAITS`](crate::handler::Errno::WAITS)), and all requests while a transaction takes
//! locks. Other threads also answer large READs, which the kernel sends before the program needs
//! the data. A slot is handed over with its request and comes back with the answer: the thread
//! finds it among the returned slots, and is woken by a descriptor that its ring watches. A queue
//! has enough slots that waiting requests leave some for the programs that will end their waiting.
//!
//! **Earlier pages.** The requests of different queues have no order, nor have requests that were
//! handed to other threads. To ensure that every page which the kernel has sent so far has been
//! taken, a caller asks each thread ([`Queues::settle`]). A request lies in a queue only while no
//! slot is free: a slot that becomes free takes the first request at once. So when a thread has
//! served all requests that the kernel had for it, and one of its slots did not come back with
//! another request, it has received everything that was sent before. It reports this when the pages
//! that it gave to other threads have been written. This method requires that the kernel holds back
//! requests only for lack of slots, so the number of background requests is not limited.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;

use crate::blocking_pool::BlockingPool;
use crate::connection::dispatch;
use crate::counters::Request;
use crate::courtesy::Courtesy;
use crate::cpus::{self, Cpus};
use crate::dispatcher::{Dispatcher, Outcome, ReplyBuffer};
use crate::handler::{Errno, FSync, Handler, Reply, without_waiting};
use crate::ring::{Anchor, Event, Memory, Ring, Slot};
use crate::wire;

/// The number of slots of a queue, which limits the requests of one CPU in progress. A slot takes
/// as much memory as the largest request that it has held.
const DEPTH: usize = 32;
/// The maximum number of CPUs. With more CPUs, the queues would cost more than they save.
const MOST_CPUS: usize = 128;
/// The smallest size in bytes of a READ that is handed to another thread. The program continues
/// with the data that it has while the next piece is read.
const LARGE_READ: u32 = 256 << 10;
/// The kernel's smallest size of a slot's payload.
const SMALLEST_PAYLOAD: usize = 8192;

/// The state that a queue's thread shares with others.
struct Queue {
    number: usize,
    /// The slots that other threads have returned with an answer.
    returned: Mutex<Vec<Slot>>,
    /// A descriptor. A write to it wakes the thread.
    bell: OwnedFd,
    /// The number of times that a caller has asked whether all requests were served.
    asked: AtomicU64,
    /// The thread is writing pages that the kernel writes back.
    writes_back: AtomicBool,
}

impl Queue {
    fn new(number: usize) -> io::Result<Queue> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Queue {
            number,
            returned: Mutex::default(),
            bell,
            asked: AtomicU64::new(0),
            writes_back: AtomicBool::new(false),
        })
    }

    fn ring_bell(&self) {
        // The write fails only if the bell was rung 2^64 - 1 times and not heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn give_back(&self, slot: Slot) {
        let mut returned = self.returned.lock();
        returned.push(slot);
        if returned.len() == 1 {
            self.ring_bell();
        }
    }
}

/// The number of the last question that each queue has answered (see [`Queues::settle`]).
#[derive(Default)]
struct Settled {
    said: Mutex<BTreeMap<usize, u64>>,
    wake: Condvar,
}

impl Settled {
    fn say(&self, queue: usize, asked: u64) {
        self.said.lock().insert(queue, asked);
        self.wake.notify_all();
    }
}

/// The thread of a queue, and the buffers to which the kernel may write until the thread has ended.
struct QueueThread {
    thread: JoinHandle<io::Result<()>>,
    _memory: Arc<Memory>,
}

/// The function that ends the connection when a thread fails. It is set once the file system is
/// mounted.
type Abort = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// The queues of one mount.
pub(crate) struct Queues {
    abort: Abort,
    queues: Vec<Arc<Queue>>,
    settled: Arc<Settled>,
    threads: Mutex<Vec<QueueThread>>,
}

/// Queues whose threads wait until the kernel accepts io_uring. If the kernel refuses it, the
/// threads end when this value is dropped.
pub(crate) struct Prepared {
    queues: Queues,
    go: Vec<Sender<()>>,
    begun: Receiver<io::Result<()>>,
}

impl Queues {
    /// Makes all preparations that are possible before the kernel accepts io_uring, because
    /// afterwards all requests wait for the queues.
    pub fn prepare<H: Handler>(
        connection: &Arc<OwnedFd>,
        dispatcher: &Arc<Dispatcher<H>>,
        blocking_pool: &Arc<BlockingPool>,
        max_write: u32,
    ) -> io::Result<Prepared> {
        let cpus = Cpus::of_machine()?;
        if cpus.possible.len() > MOST_CPUS {
            return Err(io::Error::other(format!(
                "this machine may have {} CPUs; {MOST_CPUS} are the most",
                cpus.possible.len()
            )));
        }
        let payload = (max_write as usize).max(SMALLEST_PAYLOAD);
        let anchor = Arc::new(Anchor::new()?);
        let (say, begun) = channel();
        let queues = Queues {
            abort: Arc::default(),
            queues: Vec::new(),
            settled: Arc::default(),
            threads: Mutex::default(),
        };
        let mut prepared = Prepared { queues, go: Vec::new(), begun };
        for (number, &cpu) in cpus.possible.iter().enumerate() {
            let queue = Arc::new(Queue::new(number)?);
            let worker = Worker {
                queue: queue.clone(),
                settled: prepared.queues.settled.clone(),
                connection: connection.clone(),
                dispatcher: dispatcher.clone(),
                blocking_pool: blocking_pool.clone(),
                anchor: anchor.clone(),
                abort: prepared.queues.abort.clone(),
                serves: false,
                cpus: cpus.online.len(),
                reply: ReplyBuffer::default(),
                away: 0,
                live: DEPTH,
                pages: BTreeMap::new(),
                pages_so_far: 0,
                due: None,
            };
            let online = cpus.online.contains(&cpu).then_some(cpu);
            let memory = Arc::new(Memory::new(DEPTH, payload)?);
            let (go, told) = channel();
            let (say, buffers) = (say.clone(), memory.clone());
            let work = move || worker.run(online, &buffers, &say, &told);
            let thread =
                std::thread::Builder::new().name(format!("fuse-ring-{number}")).spawn(work)?;
            prepared.queues.threads.lock().push(QueueThread { thread, _memory: memory });
            prepared.queues.queues.push(queue);
            prepared.go.push(go);
        }
        drop(say);
        prepared.all_say_so()?;
        Ok(prepared)
    }

    /// Waits until every request that the kernel has sent before this call has been served, except
    /// requests that wait for reasons other than pages. Returns `false` after a timeout.
    pub fn settle(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let asked: Vec<(usize, u64)> = self
            .queues
            .iter()
            .map(|q| (q.number, q.asked.fetch_add(1, Ordering::SeqCst) + 1))
            .collect();
        self.queues.iter().for_each(|q| q.ring_bell());
        let mut said = self.settled.said.lock();
        while !asked.iter().all(|(queue, asked)| said.get(queue).is_some_and(|said| said >= asked))
        {
            if self.settled.wake.wait_until(&mut said, until).timed_out() {
                return false;
            }
        }
        true
    }

    /// Sets the function that ends the connection when a thread fails.
    pub fn end_by(&self, abort: impl Fn() + Send + Sync + 'static) {
        let _ = self.abort.set(Box::new(abort));
    }

    /// Returns whether a thread is writing pages that the kernel writes back.
    pub fn writes_back(&self) -> bool {
        self.queues.iter().any(|q| q.writes_back.load(Ordering::Acquire))
    }

    /// Waits until the connection has ended and every thread has exited. If several threads fail,
    /// the first error is returned.
    pub fn join(&self) -> io::Result<()> {
        let mut outcome = Ok(());
        for QueueThread { thread, _memory } in std::mem::take(&mut *self.threads.lock()) {
            outcome = outcome
                .and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        }
        outcome
    }
}

impl Prepared {
    /// Waits until every thread has reported that it has reached this point.
    fn all_say_so(&self) -> io::Result<()> {
        let gone = |_| io::Error::other("a queue's thread has ended: unmount and mount again");
        self.go.iter().try_for_each(|_| self.begun.recv().map_err(gone)?)
    }

    /// Gives the slots to the kernel, after it has accepted io_uring. After an error, the kernel
    /// sends all requests over `/dev/fuse`.
    pub fn begin(self) -> io::Result<Queues> {
        for go in &self.go {
            // If the thread has ended, it has reported an error, or the missing report counts as an
            // error.
            let _ = go.send(());
        }
        match self.all_say_so() {
            Ok(()) => Ok(self.queues),
            Err(e) => {
                // Threads that have given slots to the kernel end with the connection, so their
                // buffers must stay.
                std::mem::forget(self.queues);
                Err(e)
            }
        }
    }
}

/// The state of the thread of a queue.
struct Worker<H> {
    queue: Arc<Queue>,
    settled: Arc<Settled>,
    connection: Arc<OwnedFd>,
    dispatcher: Arc<Dispatcher<H>>,
    blocking_pool: Arc<BlockingPool>,
    anchor: Arc<Anchor>,
    abort: Abort,
    /// Requests wait for this thread.
    serves: bool,
    /// The number of CPUs of the machine.
    cpus: usize,
    reply: ReplyBuffer,
    /// The number of slots that were handed to other threads.
    away: usize,
    /// The number of slots that the kernel still uses.
    live: usize,
    /// The pages that other threads have, keyed by slot, each with its sequence number.
    pages: BTreeMap<usize, u64>,
    pages_so_far: u64,
    /// The question that must be answered, and the sequence number of the last page that must have
    /// come back before.
    due: Option<(u64, u64)>,
}

impl<H> Drop for Worker<H> {
    fn drop(&mut self) {
        // A program that waits for an answer of this queue would wait forever. When the connection
        // ends, the calls of all waiting programs fail.
        if self.serves {
            tracing::error!(
                "the thread of queue {} has failed: its connection ends",
                self.queue.number
            );
            if let Some(abort) = self.abort.get() {
                abort();
            }
        }
        // A thread that has ended holds no request.
        self.queue.writes_back.store(false, Ordering::Release);
        self.settled.say(self.queue.number, u64::MAX);
    }
}

impl<H: Handler> Worker<H> {
    fn run(
        mut self,
        cpu: Option<usize>,
        memory: &Arc<Memory>,
        say: &Sender<io::Result<()>>,
        go: &Receiver<()>,
    ) -> io::Result<()> {
        if let Some(cpu) = cpu
            && let Err(e) = cpus::pin(cpu)
        {
            tracing::info!("requests of CPU {cpu} are answered on others: {e}");
        }
        let mut ring = match Ring::new(
            self.connection.as_fd(),
            self.queue.number as u16,
            memory,
            &self.anchor,
        ) {
            Ok(ring) => ring,
            Err(e) => {
                let _ = say.send(Err(e));
                return Ok(());
            }
        };
        let _ = say.send(Ok(()));
        if go.recv().is_err() {
            return Ok(());
        }
        let queue = self.queue.clone();
        let begun = ring
            .watch(queue.bell.as_fd())
            .and_then(|()| ring.register())
            .and_then(|()| ring.enter(false));
        let first = self.collect(&mut ring);
        let refused = first.iter().filter(|event| matches!(event, Event::Lost(_))).count();
        let begun = match begun {
            Ok(()) if refused == ring.slots() => {
                Err(io::Error::other("the kernel takes no slots of io_uring"))
            }
            begun => begun,
        };
        let fails = begun.is_err();
        let _ = say.send(begun);
        if fails {
            return Ok(());
        }
        // The flag is set until the thread has ended in order.
        self.serves = true;
        let served = self.serve(ring, first, Courtesy::of_this_thread(self.cpus));
        self.serves = served.is_err();
        served
    }

    fn serve(
        &mut self,
        mut ring: Ring,
        first: Vec<Event>,
        mut courtesy: Courtesy,
    ) -> io::Result<()> {
        let mut events = first;
        let mut said = 0;
        loop {
            self.attend(&mut ring, &mut events)?;
            if self.live == 0 {
                return Ok(());
            }
            for slot in std::mem::take(&mut *self.queue.returned.lock()) {
                self.away -= 1;
                self.pages.remove(&slot.number());
                ring.commit(slot)?;
            }
            self.queue.writes_back.store(!self.pages.is_empty(), Ordering::Release);
            let asked = self.queue.asked.load(Ordering::SeqCst);
            let looks = asked > said && self.due.is_none();
            // If other threads have all slots, only a returned slot can bring a new event.
            ring.enter(!looks || self.away == self.live)?;
            courtesy.look();
            if looks {
                ring.catch_up()?;
            }
            events = self.collect(&mut ring);
            let requests = events.iter().filter(|e| matches!(e, Event::Request(_))).count();
            if looks && requests + self.away < self.live {
                // Requests that have arrived are served first.
                self.attend(&mut ring, &mut events)?;
                self.due = Some((asked, self.pages_so_far));
            }
            if let Some((asked, _)) =
                self.due.take_if(|(_, last)| self.pages.values().all(|page| page > last))
            {
                said = asked;
                self.settled.say(self.queue.number, asked);
            }
        }
    }

    /// Returns the events that the ring has now.
    fn collect(&mut self, ring: &mut Ring) -> Vec<Event> {
        std::iter::from_fn(|| ring.next()).collect()
    }

    /// Answers the requests that have arrived, or gives them to other threads.
    fn attend(&mut self, ring: &mut Ring, events: &mut Vec<Event>) -> io::Result<()> {
        let mut left = events.len();
        for event in events.drain(..) {
            left -= 1;
            match event {
                Event::Request(slot) => {
                    if let Some(slot) = self.answer(slot) {
                        ring.commit(slot)?;
                        // The next request may take long, and programs that have been answered must
                        // not wait for it.
                        if left > 0 {
                            ring.enter(false)?;
                        }
                    }
                }
                Event::Woken => {
                    let _ = rustix::io::read(&self.queue.bell, &mut [0; 8]);
                    ring.watch(self.queue.bell.as_fd())?;
                }
                Event::Lost(e) => {
                    self.live -= 1;
                    // The connection has ended.
                    if !matches!(
                        e.raw_os_error(),
                        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV)
                    ) {
                        tracing::error!(
                            "the kernel did not take an answer or a slot of queue {}: {e}",
                            self.queue.number
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Answers a request on this thread and returns its slot, or makes another thread answer it and
    /// returns `None`.
    fn answer(&mut self, mut slot: Slot) -> Option<Slot> {
        let Ok((head, fields)) = slot.request() else {
            tracing::error!("the kernel sent a broken request");
            slot.answer(-libc::EIO, &[]);
            return Some(slot);
        };
        let (request, page) = (Request::of(head.opcode), wire::written_back_at(fields).is_some());
        let overlaps = request == Request::Read && wire::read_size(fields) >= LARGE_READ;
        if !overlaps
            && !request.always_waits()
            && !self.dispatcher.stalls()
            && without_waiting(|| {
                answer(&self.connection, &self.dispatcher, &mut slot, &mut self.reply)
            })
        {
            return Some(slot);
        }
        if matches!(request, Request::FSync | Request::FSyncDir) && !self.dispatcher.stalls() {
            let begun_at = Instant::now();
            match self.dispatcher.begin_fsync(&head) {
                Ok(FSync::Alone) => {}
                Ok(FSync::WithNext) => {
                    self.away += 1;
                    let (dispatcher, queue) = (self.dispatcher.clone(), self.queue.clone());
                    let (counted, opcode) = (self.dispatcher.clone(), head.opcode);
                    let answer = move |outcome| {
                        confirm(&mut slot, outcome);
                        queue.give_back(slot);
                        counted.ended_fsync(opcode, begun_at);
                    };
                    self.blocking_pool.with_next_sync(true, move || dispatcher.sync(), answer);
                    return None;
                }
                begun => {
                    self.dispatcher.ended_fsync(head.opcode, begun_at);
                    confirm(&mut slot, begun.map(drop));
                    return Some(slot);
                }
            }
        }
        self.away += 1;
        if request == Request::Write && page {
            self.pages_so_far += 1;
            self.pages.insert(slot.number(), self.pages_so_far);
            self.queue.writes_back.store(true, Ordering::Release);
        }
        let (connection, dispatcher, queue) =
            (self.connection.clone(), self.dispatcher.clone(), self.queue.clone());
        self.blocking_pool.take(move || {
            answer(&connection, &dispatcher, &mut slot, &mut ReplyBuffer::default());
            queue.give_back(slot);
        });
        None
    }
}

/// Puts an answer into the slot that only says whether the request succeeded.
fn confirm(slot: &mut Slot, outcome: Reply<()>) {
    slot.answer(outcome.map_or_else(|Errno(e)| -e, |()| 0), &[]);
}

/// Dispatches the request in a slot and puts its answer into the slot. Returns `false` if the
/// request needs a thread that may wait.
fn answer<H: Handler>(
    connection: &OwnedFd,
    dispatcher: &Dispatcher<H>,
    slot: &mut Slot,
    reply: &mut ReplyBuffer,
) -> bool {
    let outcome = match slot.request_and_room() {
        Ok((head, fields, read_buffer)) => {
            dispatch(connection, dispatcher, &head, fields, reply, read_buffer)
        }
        Err(e) => Outcome::Error(e),
    };
    match outcome {
        Outcome::Waits => return false,
        Outcome::Nothing => slot.answer(0, &[]),
        Outcome::Error(e) => slot.answer(-e.0, &[]),
        Outcome::Answer => slot.answer(0, &reply.answer.0),
        Outcome::Data(data) => slot.answer(0, &data),
        Outcome::Filled(length) => slot.answer_filled(length),
    }
    true
}
