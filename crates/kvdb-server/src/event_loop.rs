//! Event loops. An event loop is a set of threads that serve many connections.
//!
//! One thread at a time leads a loop. It waits for connections on which bytes have arrived, and
//! runs their commands, one connection after another. The code of a command is synchronous. A
//! command may wait for a lock, a sync or another client, and may take arbitrarily long. The
//! other connections do not wait for it, because another thread takes the lead in two cases:
//!
//! - when the leader hands over because it knows that it is going to wait;
//! - when the leader has been at one connection for [`PATIENCE`], or at most twice that.
//!
//! The replies of a connection are sent after the other connections that were ready at the same
//! time have had their turns, or after [`TOGETHER`] of those turns. The reason is that most
//! clients that sleep wait for several connections, and waking a client costs more than a
//! command.
//!
//! Replies that a client does not accept at once are kept with its connection (`stream_sink`),
//! whose next commands run in the meantime. The loop sends the replies as soon as the kernel
//! accepts more.
//!
//! The former leader continues with its connection, and hands it back at the end. Until then the
//! loop does not poll that connection, so its commands keep their order. Afterwards the thread
//! stands by, or ends if enough other threads stand by. A loop whose commands never wait has two
//! threads, one of which sleeps.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll};

use crate::conversation::Conversation;
use crate::session::Shared;
use crate::stream::{Received, Stream};

/// Time for which the leader may serve one connection before another thread takes the lead.
pub const PATIENCE: Duration = Duration::from_millis(5);
/// Limit on the number of threads that stand by.
const STANDING_BY: usize = 4;
/// Limit on the number of events taken from one `epoll_wait`.
const AT_ONCE: usize = 128;
/// Limit on the number of turns of other connections for which the replies of a connection wait,
/// so that a sleeping client is woken once for the replies of several connections.
const TOGETHER: usize = 32;
/// The epoll data of `wake`. Connections are numbered from 1.
const WAKE: u64 = 0;

thread_local! {
    /// The number of the lead that this thread held last. A thread belongs to only one loop.
    static LEAD: Cell<u64> = const { Cell::new(0) };
}

pub struct EventLoop {
    shared: Arc<Shared>,
    name: String,
    epoll: OwnedFd,
    /// A descriptor that is readable when the leader must check `rung`, `LoopState::ready` or
    /// `LoopState::stopping`.
    wake: OwnedFd,
    state: Mutex<LoopState>,
    /// Signalled when the thread that watches the leader must act.
    watcher: Condvar,
    /// Signalled when another thread that stands by must act.
    others: Condvar,
    /// Signalled when the last thread has ended.
    ended: Condvar,
    /// Connections for which messages have arrived. Ringing threads lock this list while they
    /// hold arbitrary other locks, so no other lock is taken under it.
    rung: Mutex<Vec<u64>>,
}

#[derive(Default)]
struct LoopState {
    connections: HashMap<u64, LoopConnection>,
    /// Connections whose clients have not taken all replies, each with the time at which its
    /// client is dropped.
    waiting: HashMap<u64, Instant>,
    /// Events that the leader must handle before it polls again.
    ready: VecDeque<(u64, Event)>,
    /// The number of the lead. It changes with each thread that takes the lead.
    lead: u64,
    /// Set if no thread leads. The next thread that stands by then takes the lead.
    vacant: bool,
    /// The connection that the leader serves at the moment.
    current: Option<u64>,
    /// The number of turns so far.
    turns: u64,
    /// Set while the leader waits in `epoll_wait`.
    idle: bool,
    /// Set while the thread that watches the leader sleeps until the leader has something to do.
    asleep: bool,
    /// Set while one of the idle threads watches the leader.
    watched: bool,
    standing_by: usize,
    threads: usize,
    /// The threads that were started and may not have ended yet.
    started: Vec<JoinHandle<()>>,
    stopping: bool,
}

/// A connection of the loop.
struct LoopConnection {
    stream: Arc<Stream>,
    /// The conversation, or `None` while a thread serves the connection.
    conversation: Option<Box<Conversation>>,
    /// Set if messages have arrived while a thread served the connection.
    rung: bool,
    /// Set if the kernel reports when it accepts more replies.
    hears_out: bool,
}

/// The reason for a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Bytes or the end of the stream have arrived.
    Readable,
    /// Messages have arrived in the connection's mailbox.
    Rung,
    /// Replies of the connection have not been sent yet, or the client has not taken all of them
    /// and the kernel now accepts more.
    Unsent,
    /// The client of the connection has taken no replies for as long as the server waits.
    Idle,
    /// The client of the connection has sent nothing for the time after which idle clients are
    /// disconnected.
    Unused,
}

/// A connection that a thread is serving.
struct Turn {
    id: u64,
    stream: Arc<Stream>,
    conversation: Box<Conversation>,
    event: Event,
}

impl EventLoop {
    /// Starts a loop whose threads have this name.
    pub fn start(name: String, shared: Arc<Shared>) -> io::Result<Arc<EventLoop>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let started = Arc::new(EventLoop {
            shared,
            name,
            epoll,
            wake,
            state: Mutex::new(LoopState { vacant: true, ..LoopState::default() }),
            watcher: Condvar::new(),
            others: Condvar::new(),
            ended: Condvar::new(),
            rung: Mutex::default(),
        });
        started.start_thread(&mut started.state.lock())?;
        Ok(started)
    }

    /// Returns the number of connections of this loop.
    pub fn connections(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Serves a connection from now on. The connection counts as connected until it has ended.
    pub fn add(&self, stream: Arc<Stream>, conversation: Box<Conversation>) -> io::Result<()> {
        let id = conversation.id();
        let mut state = self.state.lock();
        // The first event may be reported before this call returns. Its handling waits for the
        // lock of the state.
        self.listen(id, &stream, false)?;
        self.shared.metrics.connected.fetch_add(1, Relaxed);
        let slot = LoopConnection {
            stream,
            conversation: Some(conversation),
            rung: false,
            hears_out: false,
        };
        state.connections.insert(id, slot);
        Ok(())
    }

    fn listen(&self, id: u64, stream: &Stream, out: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(id);
        Ok(epoll::add(&self.epoll, stream, data, wanted_events(out))?)
    }

    fn listen_again(&self, id: u64, stream: &Stream, out: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(id);
        Ok(epoll::modify(&self.epoll, stream, data, wanted_events(out))?)
    }

    /// Stops polling the connection. The call fails only if the connection is not polled.
    fn ignore(&self, stream: &Stream) {
        let _ = epoll::delete(&self.epoll, stream);
    }

    fn wake(&self) {
        // The write fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Records that messages have arrived for a connection.
    fn ring(&self, id: u64) {
        let mut rung = self.rung.lock();
        rung.push(id);
        if rung.len() == 1 {
            self.wake();
        }
    }

    /// Ends the connections whose clients have been idle for `limit`.
    pub fn end_idle(&self, limit: Duration) {
        let mut state = self.state.lock();
        let LoopState { connections, ready, .. } = &mut *state;
        let before = ready.len();
        // A connection without its conversation is not idle, because a thread is serving it.
        let idle =
            |slot: &LoopConnection| slot.conversation.as_ref().is_some_and(|c| c.is_idle(limit));
        let ended = connections.iter().filter(|(_, slot)| idle(slot));
        ready.extend(ended.map(|(id, _)| (*id, Event::Unused)));
        let any = ready.len() > before;
        drop(state);
        if any {
            self.wake();
        }
    }

    /// Ends all connections, each after its current command.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        state.connections.values().for_each(|slot| slot.stream.shutdown(Shutdown::Both));
        drop(state);
        self.wake();
        self.watcher.notify_all();
        self.others.notify_all();
    }

    /// Waits until all threads and connections have ended, so that none of them holds the store.
    pub fn wait_for_end(&self) {
        let mut state = self.state.lock();
        while state.threads > 0 {
            self.ended.wait(&mut state);
        }
        let connections = std::mem::take(&mut state.connections);
        let started = std::mem::take(&mut state.started);
        drop(state);
        started.into_iter().for_each(|thread| drop(thread.join()));
        self.shared.metrics.connected.fetch_sub(connections.len() as u64, Relaxed);
    }

    /// Hands the lead to another thread permanently if this thread leads. It is called when the
    /// thread is about to wait, or to run for a long time.
    pub fn give_way(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.lead != LEAD.get() || state.vacant {
            return;
        }
        if state.standing_by == 0
            && let Err(error) = self.start_thread(&mut state)
        {
            tracing::warn!(
                "RESP connections wait for one of them: no thread could be started: {error}"
            );
            return;
        }
        self.leave_current(&mut state);
        state.lead += 1;
        state.vacant = true;
        self.watcher.notify_one();
    }

    /// Stops polling the connection that the leader serves. Only this thread uses the connection
    /// from then on.
    fn leave_current(&self, state: &mut LoopState) {
        if let Some(slot) = state.current.take().and_then(|id| state.connections.get(&id)) {
            self.ignore(&slot.stream);
        }
    }

    fn start_thread(self: &Arc<Self>, state: &mut LoopState) -> io::Result<()> {
        let this = self.clone();
        let thread = std::thread::Builder::new().name(self.name.clone()).stack_size(1 << 20);
        state.started.retain(|thread| !thread.is_finished());
        state.started.push(thread.spawn(move || this.work())?);
        state.threads += 1;
        Ok(())
    }

    fn work(self: &Arc<Self>) {
        while let Some(lead) = self.stand_by() {
            LEAD.set(lead);
            self.lead(lead);
        }
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.ended.notify_all();
        }
    }

    /// Waits until this thread must lead, and returns the number of its lead. Returns `None` if
    /// the thread is no longer needed.
    fn stand_by(self: &Arc<Self>) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.vacant && state.standing_by == STANDING_BY {
            return None;
        }
        state.standing_by += 1;
        while !state.stopping && !state.vacant {
            if state.watched {
                self.others.wait(&mut state);
                continue;
            }
            state.watched = true;
            let stuck = self.watch(&mut state);
            state.watched = false;
            if stuck {
                break;
            }
        }
        state.standing_by -= 1;
        if state.stopping {
            return None;
        }
        self.leave_current(&mut state);
        state.lead += 1;
        state.vacant = false;
        if state.standing_by > 0 {
            // The notified thread watches this thread.
            self.others.notify_one();
        } else if let Err(error) = self.start_thread(&mut state) {
            tracing::warn!("no thread could be started to stand by: {error}");
        }
        Some(state.lead)
    }

    /// Watches the leader for a while. Returns `true` if the leader has been serving one
    /// connection for too long.
    fn watch(&self, state: &mut MutexGuard<'_, LoopState>) -> bool {
        if state.idle {
            state.asleep = true;
            self.watcher.wait(state);
            state.asleep = false;
            return false;
        }
        let before = (state.lead, state.turns);
        let late = self.watcher.wait_for(state, PATIENCE).timed_out();
        late && !state.idle && !state.vacant && before == (state.lead, state.turns)
    }

    /// Serves connections while this thread leads.
    fn lead(self: &Arc<Self>, lead: u64) {
        let mut events = Vec::with_capacity(AT_ONCE);
        let mut back = None;
        while let Some(turn) = self.next(lead, back.take(), &mut events) {
            let (id, stream) = (turn.id, turn.stream.clone());
            // A panic in a command ends only the connection of the command.
            let conversation = catch_unwind(AssertUnwindSafe(|| self.serve(turn))).unwrap_or(None);
            back = Some((id, stream, conversation));
        }
    }

    /// Serves a connection for one turn. Returns `None` if the connection has ended.
    fn serve(self: &Arc<Self>, turn: Turn) -> Option<Box<Conversation>> {
        let Turn { id, stream, mut conversation, event } = turn;
        let open = match event {
            Event::Rung => conversation.deliver(),
            Event::Unsent => conversation.send(),
            Event::Idle if !conversation.is_patient() => return None,
            Event::Idle => true,
            Event::Unused => match self.shared.access.idle_limit() {
                Some(limit) if conversation.is_idle(limit) => return None,
                _ => true,
            },
            Event::Readable => match conversation.input().map(|input| stream.receive(input)) {
                Some(Received::Nothing) => true,
                Some(Received::End) => {
                    conversation.finish();
                    return None;
                }
                Some(Received::Bytes(got)) => {
                    self.shared.metrics.bytes_in.fetch_add(got as u64, Relaxed);
                    conversation.run()
                }
                None => false,
            },
        };
        if self.shared.stopping.load(Relaxed) {
            conversation.send();
            return None;
        }
        if let Some(bell) = conversation.bell().filter(|bell| !bell.has_listener()) {
            let this = Arc::downgrade(self);
            bell.set_listener(Box::new(move || {
                if let Some(this) = this.upgrade() {
                    this.ring(id);
                }
            }));
            // The bell may have rung before it had a listener.
            self.ring(id);
        }
        if open {
            return Some(conversation);
        }
        conversation.finish();
        drop(conversation);
        self.give_way();
        stream.linger();
        None
    }

    /// Takes back a connection whose turn is over, and waits for the next one that is ready.
    /// Returns `None` if another thread leads, or if the loop is about to end.
    fn next(
        &self,
        lead: u64,
        back: Option<(u64, Arc<Stream>, Option<Box<Conversation>>)>,
        events: &mut Vec<epoll::Event>,
    ) -> Option<Turn> {
        let mut state = self.state.lock();
        let mut ended = None;
        if let Some((id, stream, conversation)) = back {
            ended = self.take_back(&mut state, lead, id, &stream, conversation);
        }
        let turn = loop {
            if state.lead != lead || state.stopping {
                break None;
            }
            if let Some(turn) = state.next_turn() {
                break Some(turn);
            }
            state.idle = true;
            let until = state.waiting.values().min().copied();
            MutexGuard::unlocked(&mut state, || {
                drop(ended.take());
                self.wait(until, events);
            });
            state.idle = false;
            if state.asleep {
                self.watcher.notify_one();
            }
            self.sort(&mut state, events);
        };
        drop(state);
        drop(ended);
        turn
    }

    /// Takes a connection back. If it has ended, returns the rest of it, which must be dropped
    /// after the state was unlocked.
    fn take_back(
        &self,
        state: &mut LoopState,
        lead: u64,
        id: u64,
        stream: &Stream,
        conversation: Option<Box<Conversation>>,
    ) -> Option<LoopConnection> {
        let leads = state.lead == lead;
        if leads {
            state.current = None;
        }
        let waits = conversation.as_ref().and_then(|conversation| conversation.deadline());
        match waits {
            Some(until) => state.waiting.insert(id, until),
            None => state.waiting.remove(&id),
        };
        let waits = waits.is_some();
        let heard_out = state.connections.get(&id).is_some_and(|slot| slot.hears_out);
        let heard = match (&conversation, leads) {
            (None, true) => {
                self.ignore(stream);
                Ok(())
            }
            (None, false) => Ok(()),
            (Some(_), true) if waits != heard_out => self.listen_again(id, stream, waits),
            (Some(_), true) => Ok(()),
            // Bytes that have already arrived are reported at once.
            (Some(_), false) => self.listen(id, stream, waits),
        };
        if let Err(error) = &heard {
            tracing::warn!("a RESP connection had to be closed: {error}");
        }
        let open = conversation.filter(|_| heard.is_ok());
        let slot = state.connections.get_mut(&id)?;
        slot.hears_out = waits;
        match open {
            Some(conversation) => {
                if conversation.is_unsent() {
                    let place = state.ready.len().min(TOGETHER);
                    state.ready.insert(place, (id, Event::Unsent));
                    if !leads {
                        self.wake();
                    }
                }
                slot.conversation = Some(conversation);
                if std::mem::take(&mut slot.rung) {
                    state.ready.push_back((id, Event::Rung));
                    self.wake();
                }
                None
            }
            None => {
                self.shared.metrics.connected.fetch_sub(1, Relaxed);
                state.connections.remove(&id)
            }
        }
    }

    /// Polls for events until `until` at the latest.
    fn wait(&self, until: Option<Instant>, events: &mut Vec<epoll::Event>) {
        events.clear();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| left.try_into().ok());
        match epoll::wait(&self.epoll, spare_capacity(events), left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!("RESP connections are not heard: epoll_wait failed: {error}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Moves the reported events to `ready`.
    fn sort(&self, state: &mut LoopState, events: &[epoll::Event]) {
        for event in events {
            match event.data.u64() {
                WAKE => {
                    let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                    let rung = std::mem::take(&mut *self.rung.lock());
                    state.ready.extend(rung.into_iter().map(|id| (id, Event::Rung)));
                }
                id => {
                    let flags = event.flags;
                    if flags.contains(epoll::EventFlags::OUT) {
                        state.ready.push_back((id, Event::Unsent));
                    }
                    if flags.intersects(!epoll::EventFlags::OUT) {
                        state.ready.push_back((id, Event::Readable));
                    }
                }
            }
        }
        if !state.waiting.is_empty() {
            let now = Instant::now();
            let LoopState { waiting, ready, .. } = state;
            waiting.retain(|id, until| {
                let up = *until <= now;
                if up {
                    ready.push_back((*id, Event::Idle));
                }
                !up
            });
        }
    }
}

/// Returns the events to poll for on a connection.
fn wanted_events(out: bool) -> epoll::EventFlags {
    let mut events = epoll::EventFlags::IN;
    events.set(epoll::EventFlags::OUT, out);
    events
}

impl LoopState {
    /// Returns the next connection that is ready and is not being served by a thread.
    fn next_turn(&mut self) -> Option<Turn> {
        while let Some((id, event)) = self.ready.pop_front() {
            let Some(slot) = self.connections.get_mut(&id) else { continue };
            match slot.conversation.take() {
                Some(conversation) => {
                    self.current = Some(id);
                    self.turns += 1;
                    return Some(Turn { id, stream: slot.stream.clone(), conversation, event });
                }
                // Bytes that have arrived are reported again when the thread hands the connection
                // back.
                None => slot.rung |= event == Event::Rung,
            }
        }
        None
    }
}
