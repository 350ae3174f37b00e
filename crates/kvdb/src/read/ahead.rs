//! Reading ahead of a cursor. Values are written in windows, each sorted by key, and stay where
//! they are; so in key order they lie in many places, and a scan that read one after the other
//! would wait for the device each time. Once a cursor's large values have been asked for, and had
//! to be waited for, it walks the index ahead of its position, sorts what it finds by place, and
//! announces it to the device, neighbours together; when a tuple is handed out, its value is in the
//! host's memory most often.
//!
//! What is announced doubles from a little to a lot as the scan goes on, so a short range reads
//! little in vain. Of the values themselves nothing is kept here; a tuple in the queue takes about
//! a hundred bytes.

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

/// Large values that were waited for before anything is announced.
const SLOW: u32 = 2;
/// Bytes of values announced at first, and at most. The larger the window, the longer the sequences
/// that neighbours make: half of it is sorted at a time. The host keeps them, in memory that is not
/// ours; but where ours is small, its will be.
const WINDOW_MIN: u64 = 128 << 10;
const WINDOW_MAX: u64 = 64 << 20;
/// What a tuple in a queue takes, about, and the share of the cache's budget that all queues
/// together may.
const QUEUED: usize = 128;
const SHARE: u64 = 16;

/// Reads large values for the tuples of one cursor, and notes how that goes. It keeps their places
/// for as long as there is a tuple that may ask for its value.
pub(crate) struct Reader {
    view: View,
    short: Arc<ShortValues>,
    /// Bytes of large values asked for since the last seek.
    asked: AtomicU64,
    slow: AtomicU32,
}

impl Reader {
    /// A reader for values of a dictionary.
    pub fn new(view: &View, dict: DictionaryId) -> Arc<Reader> {
        let tree = view.version.trees.get(&dict);
        Arc::new(Reader {
            view: view.clone(),
            short: tree.map(|tree| tree.short.clone()).unwrap_or_default(),
            asked: AtomicU64::new(0),
            slow: AtomicU32::new(0),
        })
    }

    /// Returns whether it reads in the view's store.
    pub fn is_of(&self, view: &View) -> bool {
        self.view.is_of_store(view)
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

    /// Reads a value that an update changes.
    pub fn read_updated(&self, e: &ExtentRef, update: &Update) -> Result<Bytes> {
        Ok(update.apply(Some(&self.read(e)?)))
    }

    fn reset(&self) {
        self.asked.store(0, Relaxed);
        self.slow.store(0, Relaxed);
    }
}

/// Why nothing more is taken into the queue.
enum Stop {
    End,
    Failed(Error),
    /// The error was given: where the tree stands is not known.
    Lost,
}

/// A tuple that was read ahead, and the update that its large value waits for.
pub(crate) type Queued = (TreeTuple, Option<Update>);

/// The tuples between a cursor's position and that of its tree.
pub(crate) struct Ahead {
    pub reader: Arc<Reader>,
    queue: VecDeque<Queued>,
    pub forward: bool,
    /// The tuple handed out last, when it came out of the queue.
    pub last: Bytes,
    stop: Option<Stop>,
    /// Bytes of large values handed out since the last seek; in the queue; and how many it may
    /// become.
    given: u64,
    bytes: u64,
    window: u64,
    /// Memory for the queue, as the store knows it.
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

    /// The cursor goes elsewhere.
    pub fn leave(&mut self) {
        self.reader.reset();
        self.queue = VecDeque::new();
        self.charge();
        (self.stop, self.given, self.bytes, self.window) = (None, 0, 0, 0);
    }

    /// `true` when the tree is not where the cursor is.
    pub fn in_use(&self) -> bool {
        !self.queue.is_empty() || self.stop.is_some()
    }

    /// The tree has failed. Nothing more is given until the cursor goes elsewhere.
    #[cold]
    pub fn lose(&mut self) {
        self.stop = Some(Stop::Lost);
    }

    /// `true` when nothing is known of where the tree stands.
    pub fn is_lost(&self) -> bool {
        matches!(self.stop, Some(Stop::Lost))
    }

    /// A large value is handed out.
    pub fn gives(&mut self, len: u64) {
        self.given += len;
    }

    /// `true` when it is time to look further ahead: values are wanted, and what is known of them
    /// runs short.
    pub fn wants(&self) -> bool {
        let asked = self.reader.asked.load(Relaxed);
        self.stop.is_none()
            && self.bytes <= self.window / 2
            && self.reader.slow.load(Relaxed) >= SLOW
            && asked >= self.given / 2
    }

    /// Takes what `next` gives into the queue, up to the window, and announces it.
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

    /// Lets the store know of the queue's memory. Between two calls it only falls.
    fn charge(&mut self) {
        let takes = self.queue.len() * QUEUED;
        if takes != self.charged {
            let ahead = self.reader.cache().ahead();
            ahead.fetch_add(takes, Relaxed);
            ahead.fetch_sub(self.charged, Relaxed);
            self.charged = takes;
        }
    }

    /// The next tuple of the queue. `Ok(None)`: the end of the range; to be asked only while in
    /// use.
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
