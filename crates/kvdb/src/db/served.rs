//! Views that a server holds for this process, which does not have the store open. The trait
//! [`ServedView`] is the complete interface for the layers above. Its implementations send the
//! requests; `kvdb-wire` has some. [`ServedCursor`] reads pages of tuples and presents them in the
//! same way as a local cursor: as a position between tuples.
//!
//! A view of a snapshot does not change. A view of a transaction changes only when changes are
//! applied through the view, since no other client writes in the transaction.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::Update;

use crate::commit::batch::{Batch, BatchChange};
use crate::db::Space;
use crate::db::reference::Reference;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::cursor::Tuple;

/// The number of tuples of the first page that a cursor requests. Each further page has twice as
/// many tuples, so that a short range costs one request, and a long range costs few.
const FIRST_PAGE: u32 = 256;
/// The number of tuples of the largest page.
const MOST_OF_PAGE: u32 = 4096;
/// The number of bytes of keys and values after which a page ends.
const PAGE_BYTES: u32 = 1 << 20;

/// A state of a store that a server holds for this process: a snapshot, a transaction that only
/// this process uses, or the main branch while only this process changes it. Other clients never
/// change this state, so an implementation may cache all data that it has read.
///
/// A call waits for the server. Every request can be sent again after the connection was lost,
/// since reads change nothing and changes are numbered.
pub trait ServedView: Send + Sync {
    /// Returns the number of the dictionary with this name, if the view has one.
    fn dictionary(&self, name: &str) -> Option<DictionaryId>;

    /// Returns the size of the store, and its free space when the view was opened.
    fn space(&self) -> Space;

    /// Returns the value of each of `keys`, in their order.
    fn get_many(&self, dict: DictionaryId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// Returns a page of the tuples of a range.
    fn page(&self, dict: DictionaryId, page: &PageRequest<'_>) -> Result<TuplePage>;

    /// Announces that these keys will be read one by one, so that they can be fetched together.
    /// Errors are not reported here, since the later read encounters the same error.
    fn announce(&self, dict: DictionaryId, keys: &[&[u8]]);

    /// Announces that this range is empty and that only this process puts keys into the range.
    /// Reads of missing keys then need no request.
    fn new_range(&self, _dict: DictionaryId, _start: &[u8], _end: &[u8]) {}

    /// Returns `true` if changes can be applied.
    fn writable(&self) -> bool {
        false
    }

    /// Returns `true` if applied and synced changes survive this process and the server.
    fn is_durable(&self) -> bool {
        false
    }

    /// Returns `true` if this is the main branch itself, which only this process changes.
    fn is_main(&self) -> bool {
        false
    }

    /// Applies these changes atomically. The changes are visible in this view at once, and may be
    /// buffered before they are sent.
    fn apply(&self, _changes: Vec<ServedChange>) -> Result<()> {
        Err(read_only())
    }

    /// Sends the buffered changes. If the transaction is durable, the changes are on disk when this
    /// returns.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Sends the buffered changes, and shows the server that this process is still alive.
    fn sync_at_interval(&self) -> Result<()> {
        Ok(())
    }

    /// Reserves at least `count` inode numbers that no other view of the store will get.
    fn reserve_numbers(&self, _count: u64) -> Result<Range<u64>> {
        Err(read_only())
    }
}

fn read_only() -> Error {
    Error::ReadOnly("a view of a snapshot that a server holds cannot be changed".into())
}

/// A change of a batch in the form that is sent to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServedChange {
    /// Sets the value of a key.
    Put(DictionaryId, Bytes, Bytes),
    /// Changes the value of a key.
    Update(DictionaryId, Bytes, Update),
    /// Deletes a key.
    Delete(DictionaryId, Bytes),
    /// Deletes the keys from the first key up to the second key, which is excluded.
    DeleteRange(DictionaryId, Bytes, Bytes),
    /// Puts a value by reference.
    Refer(Reference),
}

impl ServedChange {
    /// Returns the changes of a batch. Fails if the batch puts a value by its place, since such a
    /// value is sent as a [`Reference`].
    pub(crate) fn of(batch: Batch) -> Result<Vec<ServedChange>> {
        let one = |change| match change {
            BatchChange::Put(dict, key, value) => Ok(ServedChange::Put(dict, key, value)),
            BatchChange::Update(dict, key, update) => Ok(ServedChange::Update(dict, key, update)),
            BatchChange::Delete(dict, key) => Ok(ServedChange::Delete(dict, key)),
            BatchChange::DeleteRange(dict, start, end) => {
                Ok(ServedChange::DeleteRange(dict, start, end))
            }
            BatchChange::PutStored(..) => {
                let why = "a value is referred to by its key over a wire, not by its place";
                Err(Error::Invalid(why.into()))
            }
        };
        batch.changes.into_iter().map(one).collect()
    }
}

/// The request for a page of the tuples of `[start, end)`.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    /// The inclusive lower bound of the keys.
    pub start: &'a [u8],
    /// The exclusive upper bound of the keys, or an empty slice for the end of the dictionary.
    pub end: &'a [u8],
    /// Requests the last tuples of the range, in descending order.
    pub backward: bool,
    /// Requests only keys. All values are empty then.
    pub keys_only: bool,
    /// The maximum number of tuples, which must be at least 1.
    pub tuples: u32,
    /// The number of bytes of keys and values after which the page ends. The tuple that reaches
    /// this number is the last one.
    pub bytes: u32,
}

/// A page of tuples in the requested order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuplePage {
    /// The keys and values.
    pub tuples: Vec<(Bytes, Bytes)>,
    /// Is `true` if the range has no further tuples.
    pub ended: bool,
}

/// A position between tuples of a range of a served view.
pub(crate) struct ServedCursor {
    view: Arc<dyn ServedView>,
    dict: DictionaryId,
    start: Bytes,
    /// The exclusive upper bound of the keys, or empty for no bound.
    end: Bytes,
    keys_only: bool,
    /// The position of the cursor: before the first tuple whose key is at least this key, or after
    /// the last tuple if `None`.
    at: Option<Bytes>,
    /// The fetched tuples after the position, in the direction of the last step.
    fetched: VecDeque<(Bytes, Bytes)>,
    forward: bool,
    /// Is `true` if the last page reached the end of the range.
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
        // An inverted range is empty, so it is replaced by a range that ends where it begins.
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

    /// Drops the fetched tuples after the position or the direction has changed.
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
        // In a range an empty end means that there is no bound. A backward step from the position
        // before an empty key also has an empty end, but no tuple precedes that position.
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

    /// Returns the tuples that the next steps return if they continue in the direction of the last
    /// step.
    pub fn fetched(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fetched.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    pub fn seek(&mut self, key: &[u8]) {
        if !self.end.is_empty() && key >= self.end.as_ref() {
            return self.seek_to_end();
        }
        let key = Bytes::copy_from_slice(key.max(&self.start));
        // A seek often leads to a tuple that was already fetched.
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

/// Checks that the tuples of a page from a server lie in the requested range and are in order. The
/// order ensures that each request begins beyond the previous one, so that a walk ends. A page
/// without tuples must be the last page. Otherwise the same page would be requested forever, or the
/// walk would end early and miss the remaining tuples.
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

/// Returns the smallest key that is greater than `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

/// Reads up to `limit` tuples of `[start, end)`, page by page.
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
