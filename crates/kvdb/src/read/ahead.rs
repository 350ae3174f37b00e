//! Read-ahead for cursors. Values are written in windows, each sorted by key, and are not moved
//! afterwards. So the values of consecutive keys are in many places, and a scan that reads them one
//! by one would wait for the device each time. Once a cursor has read large values and had to wait
//! for them, it walks the index ahead of its position, sorts the value locations that it finds, and
//! announces them to the device, adjacent ones together. A value is then usually in the host's
//! memory when its tuple is returned.
//!
//! The window of announced values doubles as the scan proceeds, so a short range causes few
//! needless reads. The values themselves are not kept here; a tuple in the queue takes about a
//! hundred bytes.

use env::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use vt_tree::{BlockCache, ExtentRef, TreeTuple, Update, Value, value_waited};

use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::view::View;
use crate::short_values::ShortValues;

/// Number of reads of large values that must have waited before read-ahead begins.
const SLOW: u32 = 2;
/// Initial and maximum bytes of announced values. Half a window is sorted at a time, so larger
/// windows give longer sequences of adjacent values. The values are kept in the host's memory and
/// not in the store's, but the window is limited by the store's cache budget, since a host that
/// grants little memory usually has little itself.
const WINDOW_MIN: u64 = 128 << 10;
const WINDOW_MAX: u64 = 64 << 20;
/// Approximate memory of a queued tuple, and the fraction of the cache budget that all queues
/// together may take: one divided by `SHARE`.
const QUEUED: usize = 128;
const SHARE: u64 = 16;

/// Reads large values for the tuples of a cursor, and records whether the reads had to wait. It
/// pins the locations of the values while any tuple may still ask for its value.
pub(crate) struct Reader {
    view: View,
    short: Arc<ShortValues>,
    /// Bytes of large values read since the last seek.
    asked: AtomicU64,
    slow: AtomicU32,
}

impl Reader {
    /// Makes a reader for the values of a dictionary.
    pub fn new(view: &View, dict: DictionaryId) -> Arc<Reader> {
        let tree = view.version.trees.get(&dict);
        Arc::new(Reader {
            view: view.clone(),
            short: tree.map(|tree| tree.short.clone()).unwrap_or_default(),
            asked: AtomicU64::new(0),
            slow: AtomicU32::new(0),
        })
    }

    /// Returns whether the reader reads from the store of `view`.
    pub fn is_of(&self, view: &View) -> bool {
        self.view.is_of_store(view)
    }

    /// Returns whether both readers read from the same store.
    pub fn is_of_store_of(&self, other: &Reader) -> bool {
        self.is_of(&other.view)
    }

    fn cache(&self) -> &Arc<BlockCache> {
        &self.view.cache
    }

    pub fn read(&self, e: &ExtentRef) -> Result<Bytes> {
        let begun = Instant::now();
        let bytes = self.cache().read_value(&Value::Extent(*e))?;
        self.asked.fetch_add(u64::from(e.len), Relaxed);
        self.short.scanned(e.len as usize);
        if value_waited(begun, u64::from(e.len)) {
            self.slow.fetch_add(1, Relaxed);
        }
        Ok(bytes)
    }

    /// Reads a value and applies an update to it.
    pub fn read_updated(&self, e: &ExtentRef, update: &Update) -> Result<Bytes> {
        Ok(update.apply(Some(&self.read(e)?)))
    }

    fn reset(&self) {
        self.asked.store(0, Relaxed);
        self.slow.store(0, Relaxed);
    }
}

/// The reason why no more tuples are added to the queue.
enum Stop {
    End,
    Failed(Error),
    /// The error was returned to the caller, and the position of the tree cursor is unknown.
    Lost,
}

/// A tuple that was read ahead, with the update to apply to its large value, if any.
pub(crate) type Queued = (TreeTuple, Option<Update>);

/// The queue of tuples between the position of a cursor and that of its tree cursor.
pub(crate) struct Ahead {
    pub reader: Arc<Reader>,
    queue: VecDeque<Queued>,
    pub forward: bool,
    /// The key of the last tuple returned from the queue.
    pub last: Bytes,
    stop: Option<Stop>,
    /// Bytes of large values returned since the last seek, bytes of those in the queue, and the
    /// limit of the latter.
    given: u64,
    bytes: u64,
    window: u64,
    /// Memory of the queue as currently included in the store's account.
    charged: usize,
}

impl Ahead {
    pub fn new(view: &View, dict: DictionaryId) -> Ahead {
        Ahead {
            reader: Reader::new(view, dict),
            queue: VecDeque::new(),
            forward: true,
            last: Bytes::new(),
            stop: None,
            given: 0,
            bytes: 0,
            window: 0,
            charged: 0,
        }
    }

    /// Clears the queue because the cursor moves elsewhere.
    pub fn leave(&mut self) {
        self.reader.reset();
        self.queue = VecDeque::new();
        self.charge();
        (self.stop, self.given, self.bytes, self.window) = (None, 0, 0, 0);
    }

    /// Returns `true` if the tree cursor is not at the cursor's position.
    pub fn in_use(&self) -> bool {
        !self.queue.is_empty() || self.stop.is_some()
    }

    /// Records that the tree cursor has failed. Calls return an error until the cursor is moved.
    #[cold]
    pub fn lose(&mut self) {
        self.stop = Some(Stop::Lost);
    }

    /// Returns `true` if the position of the tree cursor is unknown.
    pub fn is_lost(&self) -> bool {
        matches!(self.stop, Some(Stop::Lost))
    }

    /// Counts a large value that is returned to the caller.
    pub fn gives(&mut self, len: u64) {
        self.given += len;
    }

    /// Returns `true` if the queue should be refilled: the caller reads the values, the reads have
    /// waited, and at most half of the window is left in the queue.
    pub fn wants(&self) -> bool {
        let asked = self.reader.asked.load(Relaxed);
        self.stop.is_none()
            && self.bytes <= self.window / 2
            && self.reader.slow.load(Relaxed) >= SLOW
            && asked >= self.given / 2
    }

    /// Fills the queue up to the window with tuples from `next`, and announces their values.
    pub fn fill(&mut self, forward: bool, mut next: impl FnMut() -> Result<Option<Queued>>) {
        let budget = self.reader.cache().cache_budget();
        self.forward = forward;
        let first = self.reader.cache().first_window(WINDOW_MIN);
        let most = budget.clamp(first, WINDOW_MAX.max(first));
        self.window = (self.window * 2).clamp(first, most);
        self.charge();
        let others = self.reader.cache().ahead().load(Relaxed).saturating_sub(self.charged);
        let most = ((budget / SHARE) as usize).saturating_sub(others) / QUEUED;
        let most = most.max(16);
        let mut extents: Vec<ExtentRef> = Vec::new();
        while self.bytes < self.window && self.queue.len() < most {
            match next() {
                Ok(Some(queued)) => {
                    if let Value::Extent(e) = queued.0.value {
                        self.bytes += u64::from(e.len);
                        extents.push(e);
                    }
                    self.queue.push_back(queued);
                }
                Ok(None) => {
                    self.stop = Some(Stop::End);
                    break;
                }
                Err(e) => {
                    self.stop = Some(Stop::Failed(e));
                    break;
                }
            }
        }
        self.charge();
        self.reader.cache().announce(extents);
    }

    /// Updates the queue's memory in the store's account. Between calls the queue only shrinks.
    fn charge(&mut self) {
        let takes = self.queue.len() * QUEUED;
        if takes != self.charged {
            let ahead = self.reader.cache().ahead();
            ahead.fetch_add(takes, Relaxed);
            ahead.fetch_sub(self.charged, Relaxed);
            self.charged = takes;
        }
    }

    /// Removes the next tuple from the queue. Returns `Ok(None)` at the end of the range. It is
    /// called only while the queue is in use.
    pub fn take(&mut self) -> Result<Option<Queued>> {
        match self.queue.pop_front() {
            Some((tuple, update)) => {
                if let Value::Extent(e) = tuple.value {
                    self.bytes = self.bytes.saturating_sub(u64::from(e.len));
                }
                self.last = tuple.key.clone();
                Ok(Some((tuple, update)))
            }
            None => match self.stop.take() {
                Some(Stop::Failed(e)) => {
                    self.lose();
                    Err(e)
                }
                Some(Stop::Lost) => {
                    self.lose();
                    Err(Error::Invalid("a cursor that has met an error must be moved first".into()))
                }
                _ => Ok(None),
            },
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.queue.clear();
        self.charge();
    }
}
