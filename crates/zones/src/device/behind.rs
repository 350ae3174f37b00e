//! Asynchronous writes. A thread performs large writes while the caller gathers, compresses and
//! checks the next data (docs/decisions/046-writes-behind.md). To all callers such a write appears
//! done: a read, a write or a discard that overlaps its range waits for it, and
//! [`WriteBehind::settle_all`], which precedes each sync, waits for all such writes.
//!
//! A write that fails is reported as the host reports failed writes of its page cache: by the next
//! sync and by every later one. A call that overlaps its range fails with the same error.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::sync::{Condvar, Mutex, MutexGuard};
use env::thread::{Builder, JoinHandle};

/// The largest number of bytes in progress. A commit of 8 MiB hands over this many bytes at once,
/// minus the bytes that the thread has already written.
const MOST: u64 = 4 << 20;

/// A function that writes to the device.
type Write = Box<dyn Fn(u64, &[u8]) -> io::Result<()> + Send + Sync>;

/// A range of the device that is being written.
struct WriteInProgress {
    number: u64,
    start: u64,
    end: u64,
}

struct QueuedWrite {
    number: u64,
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct WriteBehindState {
    queue: VecDeque<QueuedWrite>,
    /// The ranges of the queued writes, and of the write that the thread performs.
    under_way: Vec<WriteInProgress>,
    /// The number of writes that were accepted so far.
    numbers: u64,
    /// The buffers of finished writes, which are reused.
    spare: Vec<Vec<u8>>,
    failed: Vec<(u64, u64, io::Error)>,
    closed: bool,
}

impl WriteBehindState {
    /// Returns whether a write of `more` bytes must wait.
    fn is_full(&self, more: u64) -> bool {
        let under_way: u64 = self.under_way.iter().map(|r| r.end - r.start).sum();
        under_way > 0 && under_way + more > MOST
    }

    fn meets(&self, start: u64, end: u64) -> bool {
        self.under_way.iter().any(|r| r.start < end && start < r.end)
    }

    /// Returns the error of a failed write that overlaps this range, if there is one.
    fn failure(&self, start: u64, end: u64) -> io::Result<()> {
        match self.failed.iter().find(|(s, e, _)| *s < end && start < *e) {
            Some((_, _, error)) => Err(again(error)),
            None => Ok(()),
        }
    }
}

struct WriteBehindShared {
    write: Write,
    state: Mutex<WriteBehindState>,
    /// `true` if a write is in progress or has failed. The flag is set under the lock before
    /// `write` returns, so a caller that knows of the write sees the flag.
    busy: AtomicBool,
    wanted: Condvar,
    done: Condvar,
}

pub(super) struct WriteBehind {
    shared: Arc<WriteBehindShared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for WriteBehind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteBehind").finish_non_exhaustive()
    }
}

/// Returns a copy of an error.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl WriteBehind {
    /// Starts the thread. Returns `None` if it cannot be started.
    pub fn new(
        write: impl Fn(u64, &[u8]) -> io::Result<()> + Send + Sync + 'static,
    ) -> Option<WriteBehind> {
        let (state, busy) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(WriteBehindShared {
            write: Box::new(write),
            state,
            busy,
            wanted: Condvar::new(),
            done: Condvar::new(),
        });
        let its = shared.clone();
        let thread = Builder::new().name("kvfs-behind".into()).spawn(move || its.work()).ok()?;
        Some(WriteBehind { shared, thread: Some(thread) })
    }

    /// Hands `bytes` to the thread and replaces the vector by an empty one. Waits while too many
    /// bytes are in progress. After an error `bytes` is unchanged.
    pub fn write(&self, offset: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        let shared = &*self.shared;
        let end = offset + bytes.len() as u64;
        let mut state = shared.state.lock();
        while state.is_full(end - offset) || state.meets(offset, end) {
            shared.done.wait(&mut state);
        }
        state.failure(offset, end)?;
        let number = state.numbers;
        state.numbers += 1;
        state.under_way.push(WriteInProgress { number, start: offset, end });
        shared.busy.store(true, Ordering::SeqCst);
        let bytes = std::mem::replace(bytes, state.spare.pop().unwrap_or_default());
        state.queue.push_back(QueuedWrite { number, offset, bytes });
        drop(state);
        shared.wanted.notify_one();
        Ok(())
    }

    /// Waits until no write of this range is in progress. Returns an error if a write in the range
    /// has failed.
    pub fn settle(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.shared.busy.load(Ordering::SeqCst) {
            return Ok(());
        }
        let end = offset.saturating_add(len);
        let mut state = self.shared.state.lock();
        while state.meets(offset, end) {
            self.shared.done.wait(&mut state);
        }
        state.failure(offset, end)
    }

    /// Returns whether a write of this range is in progress.
    pub fn is_under_way(&self, offset: u64, len: u64) -> bool {
        self.shared.busy.load(Ordering::SeqCst)
            && self.shared.state.lock().meets(offset, offset.saturating_add(len))
    }

    /// Returns whether the thread is writing.
    pub fn is_busy(&self) -> bool {
        self.shared.busy.load(Ordering::SeqCst) && !self.shared.state.lock().under_way.is_empty()
    }

    /// Waits for all writes that were accepted before the call. Returns an error if any write has
    /// ever failed.
    pub fn settle_all(&self) -> io::Result<()> {
        if !self.shared.busy.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut state = self.shared.state.lock();
        let behind = state.numbers;
        while state.under_way.iter().any(|r| r.number < behind) {
            self.shared.done.wait(&mut state);
        }
        state.failure(0, u64::MAX)
    }
}

impl WriteBehindShared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(piece) = state.queue.pop_front() {
                drop(state);
                let written = (self.write)(piece.offset, &piece.bytes);
                state = self.ended(piece, written);
            } else if state.closed {
                return;
            } else {
                self.wanted.wait(&mut state);
            }
        }
    }

    fn ended(
        &self,
        mut piece: QueuedWrite,
        written: io::Result<()>,
    ) -> MutexGuard<'_, WriteBehindState> {
        let mut state = self.state.lock();
        state.under_way.retain(|r| r.number != piece.number);
        if let Err(e) = written {
            state.failed.push((piece.offset, piece.offset + piece.bytes.len() as u64, e));
        }
        let idle = state.under_way.is_empty();
        if idle && state.failed.is_empty() {
            self.busy.store(false, Ordering::SeqCst);
        }
        let spare: usize = state.spare.iter().map(Vec::capacity).sum();
        if (spare + piece.bytes.capacity()) as u64 <= MOST {
            piece.bytes.clear();
            state.spare.push(piece.bytes);
        }
        self.done.notify_all();
        state
    }
}

impl Drop for WriteBehind {
    /// Waits for all accepted writes, before the file is closed and its lock released.
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.wanted.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and `drop` cannot return an error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A device whose writes end when the test sends their outcomes.
    struct Slow {
        behind: Arc<WriteBehind>,
        end: Sender<io::Result<()>>,
        begun: Receiver<(u64, u8, usize)>,
    }

    fn slow() -> Slow {
        let (end, told) = channel::<io::Result<()>>();
        let (say, begun) = channel();
        let told = Mutex::new(told);
        let write = move |offset: u64, bytes: &[u8]| {
            let _ = say.send((offset, bytes[0], bytes.len()));
            told.lock().recv().unwrap_or(Ok(()))
        };
        Slow { behind: Arc::new(WriteBehind::new(write).expect("a thread")), end, begun }
    }

    fn write(behind: &WriteBehind, offset: u64, byte: u8, len: usize) -> io::Result<()> {
        let mut bytes = vec![byte; len];
        behind.write(offset, &mut bytes)?;
        assert!(bytes.is_empty());
        Ok(())
    }

    /// Runs `what` in a thread, and sends its result.
    fn aside<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (say, ended) = channel();
        std::thread::spawn(move || say.send(what()));
        ended
    }

    #[test]
    fn a_write_returns_while_it_is_under_way_and_its_range_waits() {
        let s = slow();
        write(&s.behind, 8192, 1, 4096).expect("taken");
        assert_eq!(s.begun.recv(), Ok((8192, 1, 4096)));
        // Calls on other ranges do not wait.
        s.behind.settle(0, 8192).expect("nothing is written there");
        s.behind.settle(12_288, 4096).expect("nothing is written there");
        let behind = s.behind.clone();
        let read = aside(move || behind.settle(10_000, 1));
        let behind = s.behind.clone();
        let sync = aside(move || behind.settle_all());
        let behind = s.behind.clone();
        let other = aside(move || write(&behind, 8192, 2, 4096));
        assert!(read.try_recv().is_err() && sync.try_recv().is_err() && other.try_recv().is_err());
        // Send an outcome for each of the two writes: any of the threads may be so late that it
        // waits for the second write, too.
        s.end.send(Ok(())).expect("it listens");
        s.end.send(Ok(())).expect("it listens");
        read.recv().expect("it ends").expect("written");
        sync.recv().expect("it ends").expect("written");
        other.recv().expect("it ends").expect("taken");
        assert_eq!(s.begun.recv(), Ok((8192, 2, 4096)), "one behind the other");
        s.behind.settle_all().expect("all of it is written");
        assert!(!s.behind.shared.busy.load(Ordering::SeqCst));
    }

    #[test]
    fn so_much_is_under_way_and_no_more_but_for_one_that_is_larger() {
        const LEN: usize = 1 << 20;
        let s = slow();
        (0..4).for_each(|n| write(&s.behind, (n * LEN) as u64, n as u8, LEN).expect("taken"));
        let behind = s.behind.clone();
        let fifth = aside(move || write(&behind, (4 * LEN) as u64, 4, LEN));
        assert_eq!(s.begun.recv(), Ok((0, 0, LEN)));
        assert!(fifth.try_recv().is_err());
        s.end.send(Ok(())).expect("it listens");
        fifth.recv().expect("it ends").expect("taken");
        (1..5).for_each(|n| {
            s.end.send(Ok(())).expect("it listens");
            assert_eq!(s.begun.recv(), Ok(((n * LEN) as u64, n as u8, LEN)));
        });
        s.behind.settle_all().expect("written");
        write(&s.behind, 0, 9, 6 * LEN).expect("taken");
        assert_eq!(s.begun.recv(), Ok((0, 9, 6 * LEN)));
        s.end.send(Ok(())).expect("it listens");
        s.behind.settle_all().expect("written");
        let state = s.behind.shared.state.lock();
        assert!(state.spare.iter().all(|memory| memory.is_empty()));
        assert!(
            (1..=4).contains(&state.spare.len()),
            "memory is used again, and not kept without end"
        );
    }

    #[test]
    fn what_failed_is_told_by_every_sync_and_to_each_reader() {
        let s = slow();
        write(&s.behind, 4096, 1, 4096).expect("taken");
        write(&s.behind, 8192, 2, 4096).expect("taken");
        s.end.send(Err(io::Error::from_raw_os_error(5))).expect("it listens");
        s.end.send(Ok(())).expect("it listens");
        for _ in 0..2 {
            assert_eq!(s.behind.settle_all().expect_err("it failed").raw_os_error(), Some(5));
            assert_eq!(s.behind.settle(0, 5000).expect_err("it failed").raw_os_error(), Some(5));
            assert_eq!(
                write(&s.behind, 4096, 3, 4096).expect_err("it failed").raw_os_error(),
                Some(5)
            );
            s.behind.settle(8192, 4096).expect("that one did not");
        }
    }

    #[test]
    fn what_was_taken_is_written_before_it_is_dropped() {
        let s = slow();
        (0..3).for_each(|n| write(&s.behind, n * 4096, n as u8, 4096).expect("taken"));
        let Slow { behind, end, begun } = s;
        let dropped = aside(move || drop(behind));
        assert!(dropped.try_recv().is_err());
        (0..3).for_each(|_| end.send(Ok(())).expect("it listens"));
        dropped.recv().expect("it ends");
        assert_eq!(begun.iter().map(|(_, first, _)| first).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
