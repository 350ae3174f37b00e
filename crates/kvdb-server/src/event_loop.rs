//! Event loops: threads that serve many connections each.
//!
//! One thread at a time leads a loop: it waits for connections from which bytes have come, and runs
//! the commands in them, one connection after the other. Nothing in there is asynchronous. A
//! command may wait for a lock, a sync or another client, and may take as long as it likes; the
//! other connections do not wait for it, because another thread takes the lead:
//!
//! - when the leader gives way, which it does where it knows that it is going to wait;
//! - when the leader has been at one connection for [`PATIENCE`], or at most twice that.
//!
//! The replies of a connection leave when those that were ready with it have had their turns, too,
//! or [`TOGETHER`] of them: most clients that sleep sleep for several connections, and to wake one
//! costs more than a command.
//!
//! Replies that a client does not take at once wait with its connection (`stream_sink`), whose next
//! commands are run meanwhile; the loop sends them on when the system says that more is taken.
//!
//! The former leader goes on with the connection that it is at, and gives it back in the end. Until
//! then the loop does not look at that connection, so its commands keep their order. Afterwards the
//! thread stands by, or ends where enough others do. A loop whose commands wait for
//! nothing has two threads, one of which sleeps.

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

/// How long the leader may be at one connection before another thread takes the lead.
pub const PATIENCE: Duration = Duration::from_millis(5);
/// Threads that stand by at most.
const STANDING_BY: usize = 4;
/// Connections that are taken from the system at once.
const AT_ONCE: usize = 128;
/// Turns of other connections that the replies of one wait for at most, so that a client that
/// sleeps is woken once for the replies of several.
const TOGETHER: usize = 32;
/// What the system calls `wake`; connections are numbered from one on.
const WAKE: u64 = 0;

thread_local! {
    /// The number of the lead that this thread was given last. A thread belongs to one loop.
    static LEAD: Cell<u64> = const { Cell::new(0) };
}

pub struct EventLoop {
    shared: Arc<Shared>,
    name: String,
    epoll: OwnedFd,
    /// Readable when the leader must look at `rung`, at `LoopState::ready` or at
    /// `LoopState::stopping`.
    wake: OwnedFd,
    state: Mutex<LoopState>,
    /// Signalled when the thread that looks after the leader has something to do.
    watcher: Condvar,
    /// Signalled when another one that stands by has.
    others: Condvar,
    /// Signalled when the last thread has ended.
    ended: Condvar,
    /// Connections for which messages have come. It is locked by those who ring, whatever locks
    /// they hold, so nothing else is locked under it.
    rung: Mutex<Vec<u64>>,
}

#[derive(Default)]
struct LoopState {
    connections: HashMap<u64, LoopConnection>,
    /// Those for whose clients replies wait, and when these are given up.
    waiting: HashMap<u64, Instant>,
    /// What the leader has to do before it asks the system again.
    ready: VecDeque<(u64, Event)>,
    /// The number of the lead: it is another one for each thread that takes it.
    lead: u64,
    /// No thread leads: the next thread that stands by takes it.
    vacant: bool,
    /// The connection that the leader is at.
    current: Option<u64>,
    /// Turns of connections so far.
    turns: u64,
    /// The leader waits for the system.
    idle: bool,
    /// The thread that looks after the leader sleeps until that has something to do.
    asleep: bool,
    /// One of those that stand by looks after the leader.
    watched: bool,
    standing_by: usize,
    threads: usize,
    /// The threads that were started and may not have ended.
    started: Vec<JoinHandle<()>>,
    stopping: bool,
}

/// A connection of the loop.
struct LoopConnection {
    stream: Arc<Stream>,
    /// `None` while a thread is at it.
    conversation: Option<Box<Conversation>>,
    /// Messages have come while a thread was at it.
    rung: bool,
    /// The system says when it takes more replies.
    hears_out: bool,
}

/// Why a connection has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// There are bytes, or its end.
    Readable,
    /// There are messages for it.
    Rung,
    /// Its replies have not left yet, or have not been taken and more may be.
    Unsent,
    /// It has taken none of its replies for as long as is waited for that.
    Idle,
}

/// A connection in the hands of a thread.
struct Turn {
    id: u64,
    stream: Arc<Stream>,
    conversation: Box<Conversation>,
    event: Event,
}

impl EventLoop {
    /// Starts a loop; its threads have this name.
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

    /// Connections that it has.
    pub fn connections(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Serves a connection from now on. It counts as connected until it has ended.
    pub fn add(&self, stream: Arc<Stream>, conversation: Box<Conversation>) -> io::Result<()> {
        let id = conversation.id();
        let mut state = self.state.lock();
        // The first event may be had before this returns; it waits for the state's lock.
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

    /// The system says nothing more of the connection. It fails only where that is so already.
    fn ignore(&self, stream: &Stream) {
        let _ = epoll::delete(&self.epoll, stream);
    }

    fn wake(&self) {
        // It fails only when it is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Messages have come for a connection.
    fn ring(&self, id: u64) {
        let mut rung = self.rung.lock();
        rung.push(id);
        if rung.len() == 1 {
            self.wake();
        }
    }

    /// Ends all connections, each after the command that it is at.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        state.connections.values().for_each(|slot| slot.stream.shutdown(Shutdown::Both));
        drop(state);
        self.wake();
        self.watcher.notify_all();
        self.others.notify_all();
    }

    /// Returns when all threads and connections have ended, and none of them holds the store.
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

    /// The calling thread is about to wait for something, or to take long: if it leads, it gives
    /// the lead to another thread, for good.
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

    /// The connection that the leader is at is that thread's alone from here on.
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

    /// Waits until this thread is to lead, and gives the number of the lead. `None`: it is not
    /// needed any more.
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
            // It looks after this thread.
            self.others.notify_one();
        } else if let Err(error) = self.start_thread(&mut state) {
            tracing::warn!("no thread could be started to stand by: {error}");
        }
        Some(state.lead)
    }

    /// Looks after the leader for a while; `true`: it has been at one connection for too long.
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

    /// Serves connections for as long as this thread leads.
    fn lead(self: &Arc<Self>, lead: u64) {
        let mut events = Vec::with_capacity(AT_ONCE);
        let mut back = None;
        while let Some(turn) = self.next(lead, back.take(), &mut events) {
            let (id, stream) = (turn.id, turn.stream.clone());
            // A bug in a command ends its connection and no other one.
            let conversation = catch_unwind(AssertUnwindSafe(|| self.serve(turn))).unwrap_or(None);
            back = Some((id, stream, conversation));
        }
    }

    /// Gives a connection its turn. `None`: it has ended.
    fn serve(self: &Arc<Self>, turn: Turn) -> Option<Box<Conversation>> {
        let Turn { id, stream, mut conversation, event } = turn;
        let open = match event {
            Event::Rung => conversation.deliver(),
            Event::Unsent => conversation.send(),
            Event::Idle if !conversation.is_patient() => return None,
            Event::Idle => true,
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
            // It may have rung before.
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

    /// Takes a connection back whose turn is over, and gives the next one its turn; waits until
    /// there is one. `None`: another thread leads, or the loop is to end.
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

    /// Takes a connection back. Gives what is left of one that has ended, to be dropped when the
    /// state is not locked.
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
            // What has come by now is reported at once.
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

    /// Waits for the system, at most until then.
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

    /// Puts what the system has said into `ready`.
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

/// The events of a connection that the system is asked for.
fn wanted_events(out: bool) -> epoll::EventFlags {
    let mut events = epoll::EventFlags::IN;
    events.set(epoll::EventFlags::OUT, out);
    events
}

impl LoopState {
    /// The next connection that has something to do and at which no thread is.
    fn next_turn(&mut self) -> Option<Turn> {
        while let Some((id, event)) = self.ready.pop_front() {
            let Some(slot) = self.connections.get_mut(&id) else { continue };
            match slot.conversation.take() {
                Some(conversation) => {
                    self.current = Some(id);
                    self.turns += 1;
                    return Some(Turn { id, stream: slot.stream.clone(), conversation, event });
                }
                // What has come is reported again when the thread gives it back.
                None => slot.rung |= event == Event::Rung,
            }
        }
        None
    }
}
