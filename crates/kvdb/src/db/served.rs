//! A view that a server holds for this process, which does not have the store open. The trait is
//! the complete interface that the layers above use; its implementations send the requests
//! (`kvdb-wire` has some). The cursor turns pages of tuples into the position between tuples that a
//! local cursor is.
//!
//! A view of a snapshot does not change. A view of a transaction changes only by changes that are
//! applied through it, since no other client writes in the transaction.

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

/// Tuples of the first page that a cursor requests. Each further page has twice as many, so that a
/// short range costs one request, and a long one few.
const FIRST_PAGE: u32 = 256;
/// Tuples of the largest page.
const MOST_OF_PAGE: u32 = 4096;
/// Bytes of keys and values after which a page ends.
const PAGE_BYTES: u32 = 1 << 20;

/// A state of a store that a server holds: of a snapshot, of a transaction that only this process
/// uses, or of the main branch while it is this process that changes it. Data that was read from it
/// never becomes stale through others, so an implementation may cache all of it.
///
/// A call waits for the server. Every request may be sent again after the connection was lost:
/// reads change nothing, and changes are numbered.
pub trait ServedView: Send + Sync {
    /// Returns the number of the dictionary of this name, if the view has one.
    fn dictionary(&self, name: &str) -> Option<DictionaryId>;

    /// Returns the size of the store, and its free space when the view was opened.
    fn space(&self) -> Space;

    /// Returns the value of each of `keys`, in their order.
    fn get_many(&self, dict: DictionaryId, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// Returns a page of the tuples of a range.
    fn page(&self, dict: DictionaryId, page: &PageRequest<'_>) -> Result<TuplePage>;

    /// Announces that these keys will be read, one by one, so that they can be fetched together. An
    /// error is not reported here, since the read meets it again.
    fn announce(&self, dict: DictionaryId, keys: &[&[u8]]);

    /// Announces that this range is empty, and that only this process puts keys into it, so that
    /// missing keys in it are known to be missing.
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

    /// Applies these changes atomically. They are visible here at once, and may be buffered before
    /// they are sent.
    fn apply(&self, _changes: Vec<ServedChange>) -> Result<()> {
        Err(read_only())
    }

    /// Sends the buffered changes. In a durable transaction they are on disk when this returns.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Sends the buffered changes, and renews the sign that this process is alive.
    fn sync_at_interval(&self) -> Result<()> {
        Ok(())
    }

    /// Reserves at least `count` inode numbers, which no other view of the store gets.
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
    /// Deletes the keys from the first one up to the second one, which is excluded.
    DeleteRange(DictionaryId, Bytes, Bytes),
    /// Puts a value by reference.
    Refer(Reference),
}

impl ServedChange {
    /// Returns the changes of a batch. Fails for a value that is stored in this process: such a
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

/// The tuples of `[start, end)` that a request asks for.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    /// The lower bound of the keys, inclusive.
    pub start: &'a [u8],
    /// The exclusive upper bound; empty for the end of the dictionary.
    pub end: &'a [u8],
    /// Asks for the last tuples of the range, the last one first.
    pub backward: bool,
    /// Asks for keys only: all values are empty.
    pub keys_only: bool,
    /// The maximum number of tuples, at least one.
    pub tuples: u32,
    /// The page ends with the tuple with which its keys and values reach this many bytes.
    pub bytes: u32,
}

/// Tuples in the requested order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuplePage {
    /// The keys and values.
    pub tuples: Vec<(Bytes, Bytes)>,
    /// Set if the range has no further tuples.
    pub ended: bool,
}

/// A position between tuples of a range of a served view.
pub(crate) struct ServedCursor {
    view: Arc<dyn ServedView>,
    dict: DictionaryId,
    start: Bytes,
    /// The exclusive upper bound; empty if there is none.
    end: Bytes,
    keys_only: bool,
    /// The position: before the first tuple whose key is at least this one, or after the last tuple
    /// if `None`.
    at: Option<Bytes>,
    /// Tuples from the position on, in the direction of the last step.
    fetched: VecDeque<(Bytes, Bytes)>,
    forward: bool,
    /// Set if the last page reached the end of the range.
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
        // An inverted range is empty, like one that ends where it begins.
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

    /// Drops the fetched tuples, since the position or the direction has changed.
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
        // An empty end means no bound in a range; but here it is the position before an empty key,
        // which nothing precedes.
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

    /// Returns the tuples that the next steps take, if they continue in the direction of the last
    /// one.
    pub fn fetched(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fetched.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    pub fn seek(&mut self, key: &[u8]) {
        if !self.end.is_empty() && key >= self.end.as_ref() {
            return self.seek_to_end();
        }
        let key = Bytes::copy_from_slice(key.max(&self.start));
        // A seek often leads to a tuple that was fetched already.
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

/// Checks that the tuples of a page that a server has sent are among those requested. Their order
/// ensures that each request lies beyond the one before, so that a walk ends. A page without tuples
/// must be the last one: otherwise it would be requested forever, or a walk that ended there would
/// miss the rest.
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

/// Returns the least key above this one.
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
