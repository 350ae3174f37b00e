//! A view that a server holds for this process, which has not got the store. The trait is all that
//! code above asks of one, and its implementation knows the way there (`kvdb-wire` has some); the
//! cursor makes pages of tuples into the position between tuples that a local cursor is.
//!
//! A view of a snapshot does not change. One of a transaction changes by what is applied here, and
//! by nothing else, since no other client writes in it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::Update;

use crate::commit::batch::{Batch, BatchChange};
use crate::db::Space;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::cursor::Tuple;

/// Tuples of the first page that a cursor asks for. Each next page has twice as many, so that a
/// short range costs one request, and a long one few.
const FIRST_PAGE: u32 = 256;
/// Tuples of the largest page.
const MOST_OF_PAGE: u32 = 4096;
/// Bytes of keys and values after which a page ends.
const PAGE_BYTES: u32 = 1 << 20;

/// A state of a store that a server holds: of a snapshot, or of a transaction of this process
/// alone. Nothing that was read of it becomes stale by what others do, so an implementation may
/// keep whatever it likes.
///
/// A call waits for the server. Every request may be sent again after the way there was cut: those
/// that read change nothing there, and changes are numbered.
pub trait ServedView: Send + Sync {
    /// The number of the dictionary of this name, if the view has one.
    fn dictionary(&self, name: &str) -> Option<DictionaryId>;

    /// The size of the store, and what was free in it when the view was opened.
    fn space(&self) -> Space;

    /// The value of each of `keys`, in their order.
    fn get_many(&self, dict: DictionaryId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// A page of the tuples of a range.
    fn page(&self, dict: DictionaryId, page: &PageRequest<'_>) -> Result<TuplePage>;

    /// Says that these keys are going to be read, one by one: they may be fetched together. An
    /// error is met again by the read, and is not told here.
    fn announce(&self, dict: DictionaryId, keys: &[&[u8]]);

    /// Says that there is nothing in this range, and that what is going to be there is put by this
    /// process: so it is known what is not there.
    fn new_range(&self, _dict: DictionaryId, _start: &[u8], _end: &[u8]) {}

    /// `true`: changes can be applied.
    fn writable(&self) -> bool {
        false
    }

    /// `true`: what was applied and synced survives this process and the server.
    fn is_durable(&self) -> bool {
        false
    }

    /// Applies these changes, all of them or none. They are seen here at once, and may be gathered
    /// before they are sent.
    fn apply(&self, _changes: Vec<ServedChange>) -> Result<()> {
        Err(read_only())
    }

    /// Sends what was gathered. In a durable transaction it is on disk when this returns.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Sends what was gathered, and says that this process is still there.
    fn sync_at_interval(&self) -> Result<()> {
        Ok(())
    }

    /// Numbers of inodes that no other view of the store gets, so many or more.
    fn reserve_numbers(&self, _count: u64) -> Result<Range<u64>> {
        Err(read_only())
    }
}

fn read_only() -> Error {
    Error::ReadOnly("a view of a snapshot that a server holds cannot be changed".into())
}

/// A change of a batch, for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServedChange {
    /// Sets the value of a key.
    Put(DictionaryId, Bytes, Bytes),
    /// Changes the value of a key.
    Update(DictionaryId, Bytes, Update),
    /// Deletes a key.
    Delete(DictionaryId, Bytes),
    /// Deletes the keys from the first to before the second.
    DeleteRange(DictionaryId, Bytes, Bytes),
}

impl ServedChange {
    /// The changes of a batch. A value by reference is one of a store that is here, and cannot be
    /// sent as such.
    pub(crate) fn of(batch: Batch) -> Result<Vec<ServedChange>> {
        let one = |change| match change {
            BatchChange::Put(dict, key, value) => Ok(ServedChange::Put(dict, key, value)),
            BatchChange::Update(dict, key, update) => Ok(ServedChange::Update(dict, key, update)),
            BatchChange::Delete(dict, key) => Ok(ServedChange::Delete(dict, key)),
            BatchChange::DeleteRange(dict, start, end) => {
                Ok(ServedChange::DeleteRange(dict, start, end))
            }
            BatchChange::PutStored(..) => {
                let why = "values are copied by reference where the store is, not over a wire";
                Err(Error::Invalid(why.into()))
            }
        };
        batch.changes.into_iter().map(one).collect()
    }
}

/// Which tuples of `[start, end)` are asked for.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    /// The least key.
    pub start: &'a [u8],
    /// The key that the range ends before; empty: the end of the dictionary.
    pub end: &'a [u8],
    /// The last tuples of the range, the last one first.
    pub backward: bool,
    /// Without values: these are empty.
    pub keys_only: bool,
    /// At most so many tuples, one at least.
    pub tuples: u32,
    /// The page ends with the tuple that has its keys and values reach so many bytes.
    pub bytes: u32,
}

/// Tuples in the order that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuplePage {
    /// Keys and values.
    pub tuples: Vec<(Bytes, Bytes)>,
    /// There are no more of them in the range.
    pub ended: bool,
}

/// A position between tuples of a range of a served view.
pub(crate) struct ServedCursor {
    view: Arc<dyn ServedView>,
    dict: DictionaryId,
    start: Bytes,
    /// Empty: no upper end.
    end: Bytes,
    keys_only: bool,
    /// It lies before the first tuple of at least this key; `None`: after the last one.
    at: Option<Bytes>,
    /// Tuples from there on, in the order of the last step.
    fetched: VecDeque<(Bytes, Bytes)>,
    forward: bool,
    /// The last page has come to the end of the range.
    ended: bool,
    page: u32,
}

impl ServedCursor {
    pub fn new(
        view: Arc<dyn ServedView>,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
    ) -> ServedCursor {
        // An inverted range holds nothing, as one that ends where it begins.
        let end = if !end.is_empty() && end < start { start } else { end };
        let start = Bytes::copy_from_slice(start);
        ServedCursor {
            view,
            dict,
            at: Some(start.clone()),
            start,
            end: Bytes::copy_from_slice(end),
            keys_only: false,
            fetched: VecDeque::new(),
            forward: true,
            ended: false,
            page: FIRST_PAGE,
        }
    }

    pub fn keys_only(&mut self) {
        self.keys_only = true;
        self.leave();
    }

    /// Drops what was fetched: the position is another one, or the other way is gone from it.
    fn leave(&mut self) {
        self.fetched.clear();
        (self.ended, self.page) = (false, FIRST_PAGE);
    }

    pub fn step(&mut self, forward: bool) -> Result<Option<Tuple>> {
        if self.forward != forward {
            self.leave();
            self.forward = forward;
        }
        if self.fetched.is_empty() && !self.ended {
            self.fetch()?;
        }
        let Some((key, value)) = self.fetched.pop_front() else {
            self.at = if forward { None } else { Some(self.start.clone()) };
            return Ok(None);
        };
        self.at = Some(if forward { after(&key) } else { key.clone() });
        Ok(Some(Tuple::small(key, value)))
    }

    fn fetch(&mut self) -> Result<()> {
        let (start, end) = match (self.forward, &self.at) {
            (true, Some(at)) => (at, &self.end),
            (false, Some(at)) => (&self.start, at),
            (false, None) => (&self.start, &self.end),
            (true, None) => {
                self.ended = true;
                return Ok(());
            }
        };
        // For a range, an empty end is none; here nothing lies before an empty key.
        let is_empty =
            if end.is_empty() { !self.forward && self.at.is_some() } else { start >= end };
        if is_empty {
            self.ended = true;
            return Ok(());
        }
        let request = PageRequest {
            start,
            end,
            backward: !self.forward,
            keys_only: self.keys_only,
            tuples: self.page,
            bytes: PAGE_BYTES,
        };
        let page = checked(self.view.page(self.dict, &request)?, &request)?;
        self.ended = page.ended;
        self.fetched = page.tuples.into();
        self.page = (self.page * 2).min(MOST_OF_PAGE);
        Ok(())
    }

    /// Tuples that the next steps take, if they go on as the last one.
    pub fn fetched(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fetched.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    pub fn seek(&mut self, key: &[u8]) {
        if !self.end.is_empty() && key >= self.end.as_ref() {
            return self.seek_to_end();
        }
        let key = Bytes::copy_from_slice(key.max(&self.start));
        // Tuples that were fetched are often where a seek leads.
        if self.forward && self.at.as_ref().is_some_and(|at| key >= at) {
            while self.fetched.front().is_some_and(|(have, _)| have < &key) {
                self.fetched.pop_front();
            }
        } else {
            self.fetched.clear();
        }
        if self.fetched.is_empty() {
            self.leave();
        }
        self.at = Some(key);
    }

    pub fn seek_to_end(&mut self) {
        self.leave();
        self.at = None;
    }
}

/// A page that a server has sent, whose tuples are some of those that were asked for. Their order
/// is what makes each request lie beyond the one before, so that a walk ends. One without a tuple
/// is the last one: it would be asked for again for ever, and a walk that ended there would miss
/// what follows.
fn checked(page: TuplePage, request: &PageRequest<'_>) -> Result<TuplePage> {
    let inside = |key: &Bytes| {
        key.as_ref() >= request.start && (request.end.is_empty() || key.as_ref() < request.end)
    };
    let in_order = page.tuples.windows(2).all(|pair| match request.backward {
        false => pair[0].0 < pair[1].0,
        true => pair[0].0 > pair[1].0,
    });
    let fits = page.tuples.len() <= request.tuples as usize;
    let goes_on = page.ended || !page.tuples.is_empty();
    match in_order && fits && goes_on && page.tuples.iter().all(|(key, _)| inside(key)) {
        true => Ok(page),
        false => Err(Error::Corrupt("a server sent other tuples than were asked for".into())),
    }
}

/// The least key above this one.
fn after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

/// Reads `[start, end)` in pages, up to `limit` tuples.
pub(crate) fn scan(
    view: &dyn ServedView,
    dict: DictionaryId,
    start: &[u8],
    end: &[u8],
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>> {
    let mut out: Vec<(Bytes, Bytes)> = Vec::new();
    if !end.is_empty() && start >= end {
        return Ok(out);
    }
    let mut from = Bytes::copy_from_slice(start);
    while out.len() < limit {
        let request = PageRequest {
            start: &from,
            end,
            backward: false,
            keys_only: false,
            tuples: u32::try_from(limit - out.len()).unwrap_or(u32::MAX).min(MOST_OF_PAGE),
            bytes: PAGE_BYTES,
        };
        let page = checked(view.page(dict, &request)?, &request)?;
        let is_last = page.ended;
        out.extend(page.tuples);
        match out.last() {
            Some((key, _)) if !is_last => from = after(key),
            _ => break,
        }
    }
    out.truncate(limit);
    Ok(out)
}
