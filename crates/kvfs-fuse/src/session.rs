//! The threads that answer on the connection to the kernel.
//!
//! Each thread reads one request at a time from its own clone of the connection, answers it and
//! reads the next. Requests are not queued or handed over between threads, because waking another
//! thread costs more than most answers. Only requests that wait for the disk are handed to other
//! threads (`blocking_pool`). The connection ends when the kernel reports that the file system was
//! unmounted. The threads also end when another session will continue the connection (`handover`).
//!
//! If requests come over io_uring (`queues`), one thread of the session reads the requests that
//! remain. These are FORGETs, of which it reads many at once.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno as Os;

use crate::blocking_pool::BlockingPool;
use crate::connection::{DeviceInvalidator, clone_of, dispatch, next, send};
use crate::counters::Request;
use crate::dispatcher::{self, Dispatcher, Outcome, ReplyBuffer};
use crate::handler::{Errno, FSync, Handler, Policy, Reply, TransportChoice};
use crate::handover::{Greeting, Stop, Stopper};
use crate::intake::Intake;
use crate::queues::{Prepared, Queues};
use crate::wire;
use crate::worker_pool::{WorkerPool, WorkerSlot};

/// The opcode of the first request on a connection.
const INIT: u32 = 26;
/// The time for which FORGETs gather if requests come over io_uring. Otherwise each FORGET would
/// wake a thread.
const FORGET_PAUSE: Duration = Duration::from_millis(5);

/// The threads of one mount.
pub(crate) struct Session {
    connection: Arc<OwnedFd>,
    greeting: Greeting,
    /// The flags that the kernel has offered.
    offered: u64,
    stop: Arc<Stop>,
    /// The threads. The supervisor shares the list, because it starts more threads.
    threads: Arc<Mutex<Vec<SessionThread>>>,
    pool: Arc<WorkerPool>,
    /// Starts more threads when all are blocked.
    supervisor: Option<JoinHandle<()>>,
    /// The queues, if requests come over io_uring.
    queues: Option<Arc<Queues>>,
}

type SessionThread = JoinHandle<io::Result<Left>>;

/// The reason why a thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The kernel has ended the connection.
    Ended,
    /// The thread was not needed, or was told to stop.
    Early,
}

/// The remains of a session that was told to stop.
pub(crate) struct Remains {
    pub connection: Arc<OwnedFd>,
    pub greeting: Greeting,
    /// The requests that the session has taken and not answered.
    pub held: Vec<Vec<u8>>,
}

impl Session {
    /// Answers INIT on a connection that was just mounted, then starts the threads. With
    /// `Sharing::Kept`, all of them use this one connection.
    pub fn start<H: Handler>(
        connection: OwnedFd,
        dispatcher: Dispatcher<H>,
        policy: &Policy,
        sharing: Sharing,
    ) -> io::Result<Session> {
        let mut buffer = vec![0; policy.max_write as usize + wire::REQUEST_ROOM];
        let (connection, dispatcher) = (Arc::new(connection), Arc::new(dispatcher));
        let blocking_pool = Arc::new(BlockingPool::new()?);
        let rings = match policy.transport {
            TransportChoice::Device => None,
            TransportChoice::Uring => {
                Some(Queues::prepare(&connection, &dispatcher, &blocking_pool, policy.max_write)?)
            }
            TransportChoice::Auto => or_device(Queues::prepare(
                &connection,
                &dispatcher,
                &blocking_pool,
                policy.max_write,
            )),
        };
        let (greeting, offered) = greet(&connection, policy, &mut buffer, rings.is_some())?;
        if sharing == Sharing::Kept && offered & wire::init::HAS_RESEND == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel does not send requests again (it takes Linux 6.9), so a mount cannot \
                 go on when its daemon is killed",
            ));
        }
        let not_offered = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel does not offer it (it takes Linux 6.14)",
            )
        };
        let begin = |rings: Prepared| {
            if offered & wire::init::OVER_IO_URING != 0 {
                rings.begin()
            } else {
                Err(not_offered())
            }
        };
        let queues = match (rings, policy.transport) {
            (None, _) => None,
            (Some(rings), TransportChoice::Uring) => Some(begin(rings)?),
            (Some(rings), _) => or_device(begin(rings)),
        };
        let greeting = (greeting, offered);
        Session::begin(connection, dispatcher, blocking_pool, policy, greeting, queues, sharing)
    }

    /// Continues a connection on which another session, which was stopped, has answered INIT.
    pub fn resume<H: Handler>(
        remains: &Remains,
        dispatcher: Dispatcher<H>,
        policy: &Policy,
        sharing: Sharing,
    ) -> io::Result<Session> {
        let offered = greets_alike(policy, &remains.greeting)?;
        let dispatcher = Arc::new(dispatcher);
        let blocking_pool = Arc::new(BlockingPool::new()?);
        if sharing == Sharing::Kept {
            // The message must be sent before a thread takes its first request. Otherwise the
            // kernel would send that request a second time.
            match send(&remains.connection, 0, wire::NOTIFY_RESEND, &[]) {
                // The file system was unmounted in the meantime.
                Ok(()) | Err(Os::NODEV | Os::CONNABORTED | Os::NOTCONN) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let session = Session::begin(
            remains.connection.clone(),
            dispatcher.clone(),
            blocking_pool.clone(),
            policy,
            (remains.greeting.clone(), offered),
            None,
            sharing,
        )?;
        for request in remains.held.clone() {
            let (connection, dispatcher) = (remains.connection.clone(), dispatcher.clone());
            blocking_pool.take(move || answer_elsewhere(&connection, &dispatcher, &request));
        }
        Ok(session)
    }

    /// Starts the threads.
    fn begin<H: Handler>(
        connection: Arc<OwnedFd>,
        dispatcher: Arc<Dispatcher<H>>,
        blocking_pool: Arc<BlockingPool>,
        policy: &Policy,
        (greeting, offered): (Greeting, u64),
        queues: Option<Queues>,
        sharing: Sharing,
    ) -> io::Result<Session> {
        let base = if queues.is_some() { 1 } else { policy.threads.max(1) };
        let stop: Arc<Stop> = Arc::default();
        let pool = Arc::new(WorkerPool::new(base));
        let batches_forgets = queues.is_some();
        let intake = Arc::new(Intake::default());
        let workers = Workers {
            dispatcher,
            blocking_pool,
            pool: pool.clone(),
            intake,
            stop: stop.clone(),
            buffer: policy.max_write as usize + wire::REQUEST_ROOM,
            batches_forgets,
            sharing,
        };
        let (threads, queues) = (Arc::default(), queues.map(Arc::new));
        let mut session = Session {
            connection: connection.clone(),
            greeting,
            offered,
            stop,
            threads,
            pool: pool.clone(),
            supervisor: None,
            queues,
        };
        for i in 0..base {
            // Without the right to open the device, all threads share one connection.
            let own = match (i, sharing) {
                (0, _) | (_, Sharing::Kept) => None,
                (_, Sharing::Own) => clone_of(&connection).ok(),
            };
            let thread = workers.open(
                format!("fuse-{i}"),
                own.map_or_else(|| connection.clone(), Arc::new),
                if i == 0 { Part::First } else { Part::Other },
            )?;
            session.threads.lock().push(thread);
        }
        let all = session.threads.clone();
        let dispatcher = workers.dispatcher.clone();
        let help = move || {
            let own = match sharing {
                Sharing::Kept => connection.clone(),
                Sharing::Own => clone_of(&connection).map_or_else(|_| connection.clone(), Arc::new),
            };
            match workers.open("fuse-help".into(), own, Part::Helps) {
                Ok(thread) => {
                    let mut all = all.lock();
                    all.retain(|t| !t.is_finished());
                    all.push(thread);
                }
                Err(e) => {
                    tracing::warn!("all threads are held up, and there can be no more of them: {e}")
                }
            }
        };
        let look = move || pool.supervise(|| dispatcher.stalls(), help);
        session.supervisor =
            Some(std::thread::Builder::new().name("fuse-supervisor".into()).spawn(look)?);
        Ok(session)
    }

    /// Returns the threads that answer.
    pub fn pool(&self) -> Arc<WorkerPool> {
        self.pool.clone()
    }

    /// Returns the connection, and the INIT exchange on it.
    pub fn greeting(&self) -> (Arc<OwnedFd>, Greeting) {
        (self.connection.clone(), self.greeting.clone())
    }

    /// Returns a handle that stops the threads, or `None` if requests come over io_uring, because
    /// requests that the kernel has put into a slot are lost when the process ends.
    pub fn stopper(&self) -> Option<Stopper> {
        let none = self.queues.is_none();
        none.then(|| Stopper { stop: self.stop.clone(), pool: self.pool.clone() })
    }

    /// Returns the queues, if requests come over io_uring.
    pub fn queues(&self) -> Option<Arc<Queues>> {
        self.queues.clone()
    }

    pub fn invalidator(&self) -> DeviceInvalidator {
        let expires = self.offered & wire::init::HAS_EXPIRE_ONLY != 0;
        DeviceInvalidator::new(self.connection.clone(), expires)
    }

    /// Waits until the kernel has ended the connection or the threads were stopped, and every
    /// thread has exited. Returns `None` if the connection has ended. If several threads fail, the
    /// first error is returned.
    pub fn wait(self) -> io::Result<Option<Remains>> {
        let mut outcome = Ok(Left::Early);
        let mut supervisor = self.supervisor;
        loop {
            let next = self.threads.lock().pop();
            // Wait for every thread, even after an error of another thread.
            match next {
                Some(thread) => {
                    let left = thread
                        .join()
                        .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
                    outcome = match (outcome, left) {
                        (Ok(Left::Early), left) => left,
                        (outcome, left) => outcome.and_then(|ended| left.map(|_| ended)),
                    };
                }
                // The supervisor may have started another thread.
                None => match supervisor.take() {
                    Some(supervisor) => {
                        self.pool.end();
                        let _ = supervisor.join();
                    }
                    None => break,
                },
            }
        }
        let joined = self.queues.map_or(Ok(()), |queues| queues.join());
        let left = outcome.and_then(|left| joined.map(|()| left))?;
        Ok((left == Left::Early).then(|| Remains {
            connection: self.connection,
            greeting: self.greeting,
            held: self.stop.take_held(),
        }))
    }
}

/// Returns the value, or warns that requests come over `/dev/fuse`, with the reason.
fn or_device<T>(rings: io::Result<T>) -> Option<T> {
    rings
        .inspect_err(|e| tracing::warn!("requests come over /dev/fuse, and not over io_uring: {e}"))
        .ok()
}

/// Reads the kernel's INIT and answers it; returns both messages, and the flags that the kernel
/// offered. `rings` says whether io_uring is requested.
fn greet(
    connection: &OwnedFd,
    policy: &Policy,
    buffer: &mut [u8],
    rings: bool,
) -> io::Result<(Greeting, u64)> {
    let mut length = 0;
    while length == 0 {
        length = next(connection, buffer)?.ok_or(io::ErrorKind::NotConnected)?;
    }
    let broken =
        || io::Error::new(io::ErrorKind::InvalidData, "the kernel did not begin with INIT");
    let (head, fields) = wire::head(&buffer[..length]).map_err(|_| broken())?;
    if head.opcode != INIT {
        return Err(broken());
    }
    let mut reply = ReplyBuffer::default();
    let answered = dispatcher::init(policy, fields, &mut reply, rings);
    let error = answered.err().map_or(0, |e| e.0);
    send(connection, head.unique, -error, &reply.answer.0)?;
    let offered = answered.map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let offer = buffer[wire::IN_HEADER..length].to_vec();
    Ok((Greeting { offer, answer: reply.answer.0 }, offered))
}

/// Checks that this session would have answered INIT as the previous session did. Returns the flags
/// that the kernel offered to the previous session.
pub(crate) fn greets_alike(policy: &Policy, greeting: &Greeting) -> io::Result<u64> {
    let mut reply = ReplyBuffer::default();
    let offered = dispatcher::init(policy, wire::Fields::of(&greeting.offer), &mut reply, false);
    match offered {
        Ok(offered) if reply.answer.0 == greeting.answer => Ok(offered),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this version would agree with the kernel on something else at the start of a mount",
        )),
    }
}

/// Starts the threads, and holds the state that each thread needs.
struct Workers<H> {
    dispatcher: Arc<Dispatcher<H>>,
    blocking_pool: Arc<BlockingPool>,
    pool: Arc<WorkerPool>,
    intake: Arc<Intake>,
    stop: Arc<Stop>,
    /// The size of the buffer for a request, in bytes.
    buffer: usize,
    /// The thread waits for a short time before it reads more FORGETs, so that it reads many at
    /// once.
    batches_forgets: bool,
    sharing: Sharing,
}

/// The connections by which the threads of a session take requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Each thread uses a separate connection, if that is possible.
    Own,
    /// All threads use the connection that another process holds, too. When the last descriptor of
    /// a connection is closed, the kernel ends the requests that were taken from this connection.
    Kept,
}

/// The role of a thread of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// This thread has the connection itself, and is the last to stop.
    First,
    Other,
    /// The thread exits when it is not needed.
    Helps,
}

impl<H: Handler> Workers<H> {
    /// Starts a thread.
    fn open(
        &self,
        name: String,
        connection: Arc<OwnedFd>,
        part: Part,
    ) -> io::Result<SessionThread> {
        let (dispatcher, blocking_pool, pool) =
            (self.dispatcher.clone(), self.blocking_pool.clone(), self.pool.clone());
        let (mut buffer, batches_forgets) = (vec![0; self.buffer], self.batches_forgets);
        if self.sharing == Sharing::Kept {
            // Touch the buffer now. A killed thread gets no more memory, so the kernel would
            // otherwise end a request that it is copying to the buffer.
            buffer.fill(1);
        }
        let (intake, stop) = (self.intake.clone(), self.stop.clone());
        let slot = pool.join();
        let ours = slot.clone();
        let work = move || {
            ours.take();
            let served = serve(
                &connection,
                &dispatcher,
                &blocking_pool,
                (&pool, &intake, &stop),
                (&ours, part, batches_forgets),
                &mut buffer,
            );
            pool.leave(&ours);
            served
        };
        std::thread::Builder::new().name(name).spawn(work).inspect_err(|_| self.pool.leave(&slot))
    }
}

/// While this value exists, the first thread serves a request that may need an answer of another
/// thread.
struct FirstWaits<'a>(&'a Stop);

impl<'a> FirstWaits<'a> {
    fn begin(stop: &'a Stop) -> FirstWaits<'a> {
        stop.set_first_waits(true);
        FirstWaits(stop)
    }
}

impl Drop for FirstWaits<'_> {
    fn drop(&mut self) {
        self.0.set_first_waits(false);
    }
}

fn serve<H: Handler>(
    connection: &Arc<OwnedFd>,
    dispatcher: &Arc<Dispatcher<H>>,
    blocking_pool: &Arc<BlockingPool>,
    (pool, intake, stop): (&WorkerPool, &Intake, &Stop),
    (slot, part, batches_forgets): (&Arc<WorkerSlot>, Part, bool),
    buffer: &mut [u8],
) -> io::Result<Left> {
    // `data` is the buffer for data that is read. The system allocates memory only for the part
    // that was used.
    let (mut reply, mut data) = (ReplyBuffer::default(), vec![0; buffer.len()]);
    let broken = |_| io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a broken request");
    // Requests of other threads may need an answer of the first thread, and requests of the first
    // thread an answer of another thread.
    let stops = || {
        let goes = || match part {
            Part::First => pool.threads() == 1 && blocking_pool.is_idle(),
            _ => !stop.first_waits(),
        };
        stop.is_wanted() && goes()
    };
    while !(part == Part::Helps && pool.leave_if_not_needed(slot) || stops()) {
        reply.announced = false;
        let taken = intake.take(
            || dispatcher.wants_announcements(),
            || match stops() {
                true => Ok(Some(&buffer[..0])),
                false => next(connection, buffer).map(|length| length.map(|n| &buffer[..n])),
            },
            |message| {
                // A message that cannot be decoded causes an error below.
                if let Ok((head, fields)) = wire::head(message) {
                    dispatcher.announce(&head, fields);
                    reply.announced = true;
                }
            },
        );
        let Some(message) = taken? else { return Ok(Left::Ended) };
        if message.is_empty() {
            continue;
        }
        let (head, fields) = wire::head(message).map_err(broken)?;
        let request = Request::of(head.opcode);
        let _working =
            slot.work(request == Request::Write && wire::written_back_at(fields).is_some());
        if !request.waits() {
            dispatch_and_send(connection, dispatcher, &head, fields, &mut reply, &mut data);
            if batches_forgets && matches!(request, Request::Forget | Request::BatchForget) {
                std::thread::sleep(FORGET_PAUSE);
            }
            continue;
        }
        if stop.is_wanted() && part == Part::First {
            stop.hold(message);
            continue;
        }
        let _waits = (part == Part::First).then(|| FirstWaits::begin(stop));
        let alone = pool.threads() == 1 || part == Part::First && stop.is_wanted();
        if matches!(request, Request::FSync | Request::FSyncDir)
            && begin_fsync(connection, dispatcher, blocking_pool, &head, alone)
        {
            continue;
        }
        // An answer must be sent on the connection that its request came from.
        let (connection, dispatcher, message) =
            (connection.clone(), dispatcher.clone(), message.to_vec());
        // A call of GOINGDOWN tells the kernel to drop its cache, which a thread that answers
        // requests must not do.
        blocking_pool.admit(alone || request == Request::IoCtl, move || {
            answer_elsewhere(&connection, &dispatcher, &message)
        });
    }
    Ok(Left::Early)
}

/// Begins an `fsync`, which is confirmed now or with the next sync. Returns `false` if the request
/// must still be answered, because it cannot share a sync with other requests.
fn begin_fsync<H: Handler>(
    connection: &Arc<OwnedFd>,
    dispatcher: &Arc<Dispatcher<H>>,
    blocking_pool: &Arc<BlockingPool>,
    head: &wire::Head,
    alone: bool,
) -> bool {
    let (to, unique) = (connection.clone(), head.unique);
    let (counted, opcode, begun_at) = (dispatcher.clone(), head.opcode, Instant::now());
    let confirm_to = move |outcome: Reply<()>| {
        confirm(&to, unique, outcome);
        counted.ended_fsync(opcode, begun_at);
    };
    match dispatcher.begin_fsync(head) {
        Ok(FSync::Alone) => return false,
        Ok(FSync::WithNext) => {
            let dispatcher = dispatcher.clone();
            blocking_pool.with_next_sync(alone, move || dispatcher.sync(), confirm_to);
        }
        begun => confirm_to(begun.map(drop)),
    }
    true
}

/// Answers a request that was handed to this thread, and can be decoded.
fn answer_elsewhere<H: Handler>(connection: &OwnedFd, dispatcher: &Dispatcher<H>, message: &[u8]) {
    if let Ok((head, fields)) = wire::head(message) {
        let reply = &mut ReplyBuffer::default();
        dispatch_and_send(connection, dispatcher, &head, fields, reply, &mut []);
    }
}

/// Sends an answer that only says whether the request succeeded.
fn confirm(connection: &OwnedFd, unique: u64, outcome: Reply<()>) {
    match send(connection, unique, outcome.map_or_else(|Errno(e)| -e, |()| 0), &[]) {
        // The request was interrupted and is forgotten, or the connection has ended.
        Ok(()) | Err(Os::NOENT | Os::NODEV | Os::CONNABORTED) => {}
        Err(e) => tracing::error!("the kernel did not take an answer: {e}"),
    }
}

/// Dispatches one request and sends its answer.
fn dispatch_and_send<H: Handler>(
    connection: &OwnedFd,
    dispatcher: &Dispatcher<H>,
    head: &wire::Head,
    fields: wire::Fields<'_>,
    reply: &mut ReplyBuffer,
    read_buffer: &mut [u8],
) {
    let outcome = dispatch(connection, dispatcher, head, fields, reply, read_buffer);
    let sent = match outcome {
        Outcome::Nothing => Ok(()),
        // All threads that call this function may wait, so this outcome does not occur.
        Outcome::Waits => send(connection, head.unique, -libc::EIO, &[]),
        Outcome::Error(Errno(e)) => send(connection, head.unique, -e, &[]),
        Outcome::Answer => send(connection, head.unique, 0, &reply.answer.0),
        Outcome::Data(data) => send(connection, head.unique, 0, &data),
        Outcome::Filled(length) => send(connection, head.unique, 0, &read_buffer[..length]),
    };
    match sent {
        Ok(()) => {}
        // The request was interrupted and is forgotten, or the connection has ended; the next read
        // reports the end.
        Err(Os::NOENT | Os::NODEV | Os::CONNABORTED) => dispatcher.take_back(reply),
        Err(e) => {
            dispatcher.take_back(reply);
            tracing::error!("the kernel did not take the answer to {head:?}: {e}");
        }
    }
}
