//! The values and pages that a client caches of a view. The view does not change, or only this
//! client changes it and updates the cache. So entries are never stale and need no validation
//! before use; the cache only has to be bounded.
//!
//! The cache has values by their keys, and the last pages of tuples. A page answers every request
//! for a part of its range, for example those of a listing that continues from call to call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use kvdb::{DictionaryId, PageRequest, TuplePage};

use crate::ahead::{Ahead, Asked, Plan};

/// Pages of keys that are kept at most, so that looking through them stays cheap.
const PAGES: usize = 32;
/// A value that was read by itself and is longer than this is not kept: its reader has it.
const LONGEST: usize = 64 << 10;
/// Longer values have a bound of their own, so that contents of files do not take the place of
/// names and nodes.
const SMALL: usize = 1 << 10;
/// Bytes that an entry takes in addition to its key and its value, about.
const ENTRY: usize = 96;

/// The cached values and pages of one view.
pub struct Pages {
    /// Bytes that all of it may take.
    memory: usize,
    values: BTreeMap<(DictionaryId, Bytes), Option<Bytes>>,
    /// The queues of the small values and of the others.
    queues: [Queue; 2],
    /// The ranges of which `values` has all existing keys, by their starts and ends. An empty end
    /// stands for the end of the dictionary. No two ranges overlap or touch.
    ranges: BTreeMap<(DictionaryId, Bytes), Bytes>,
    range_bytes: usize,
    pages: VecDeque<Page>,
    page_bytes: usize,
    ahead: Ahead,
}

/// Values that go together, the oldest first.
#[derive(Default)]
struct Queue {
    /// The keys in the order in which they came. One that was forgotten, or has a value of the
    /// other kind, still has its place here.
    order: VecDeque<(DictionaryId, Bytes)>,
    bytes: usize,
    most: usize,
}

/// Keys without their values.
struct Page {
    dict: DictionaryId,
    /// The range that it has all keys of: from here
    start: Bytes,
    /// End of the requested range. The page covers it as far as its last tuple, and up to this end
    /// if it has ended.
    end: Bytes,
    page: TuplePage,
    bytes: usize,
}

/// Returns the queue of a value.
fn kind_of(value: Option<&Bytes>) -> usize {
    usize::from(value.is_some_and(|value| value.len() > SMALL))
}

fn size_of_entry(key: &Bytes, value: Option<&Bytes>) -> usize {
    ENTRY + key.len() + value.map_or(0, Bytes::len)
}

/// Returns a copy. What comes with a frame is a part of it, and would keep all of it.
fn own(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Returns the least key above this one.
fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// Returns whether a range with this end continues after `key`, or to it.
fn is_before(key: &[u8], end: &Bytes) -> bool {
    end.is_empty() || key < end
}

impl Pages {
    pub fn new(memory: usize) -> Pages {
        let queue = |most| Queue { most, ..Queue::default() };
        Pages {
            memory,
            values: BTreeMap::new(),
            queues: [queue(memory / 2), queue(memory / 4)],
            ranges: BTreeMap::new(),
            range_bytes: 0,
            pages: VecDeque::new(),
            page_bytes: 0,
            ahead: Ahead::new(),
        }
    }

    /// Returns the value of a key, or `Some(None)` if it is known to have none. Returns `None` if
    /// that is not known.
    pub fn value(&self, dict: DictionaryId, key: &Bytes) -> Option<Option<Bytes>> {
        if let Some(value) = self.values.get(&(dict, key.clone())) {
            return Some(value.clone());
        }
        self.range_of(dict, key).map(|_| None)
    }

    /// Does the same as [`Pages::page`], and counts the tuples that it returns.
    pub fn answer(&mut self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<TuplePage> {
        let page = self.page(dict, request)?;
        self.ahead.looked_at(&page);
        Some(page)
    }

    /// Counts what was looked up, as far as it was known.
    pub fn looked_up(&mut self, found: &[Option<Option<Bytes>>]) {
        self.ahead.looked_up(found);
    }

    /// Returns what is to be read first, where a key is not known: [`Ahead::plan`]. Nothing of it
    /// is known by itself. After a range, [`Pages::has_read_ahead`] must be called.
    pub fn plan(&mut self, dict: DictionaryId, key: &Bytes, asked: Asked) -> Option<Plan> {
        if self.range_of(dict, key).is_some() {
            return None;
        }
        let mut plan = self.ahead.plan(dict, key, asked)?;
        // A range that begins before the key ends before it, or with it.
        if let Some((_, end)) = self.range_before(dict, key) {
            plan.start = plan.start.max(end);
        }
        let from = Bound::Excluded((dict, key.clone()));
        if let Some(((of, next), _)) = self.ranges.range((from, Bound::Unbounded)).next()
            && *of == dict
            && is_before(next, &plan.end)
        {
            plan.end = next.clone();
        }
        Some(plan)
    }

    /// Notes that a page of this number of bytes was read as planned, or 0 that none could be read.
    pub fn has_read_ahead(&mut self, dict: DictionaryId, bytes: usize) {
        self.ahead.has_read(dict, bytes);
    }

    pub fn keep_value(&mut self, dict: DictionaryId, key: &Bytes, value: Option<&Bytes>) {
        if value.is_some_and(|value| value.len() > LONGEST) {
            return;
        }
        self.insert((dict, own(key)), value.map(|value| own(value)));
    }

    fn insert(&mut self, at: (DictionaryId, Bytes), value: Option<Bytes>) {
        if value.is_none() && self.range_of(at.0, &at.1).is_some() {
            // The range says that the key is not there.
            if let Some(gone) = self.values.remove(&at) {
                self.queues[kind_of(gone.as_ref())].bytes -= size_of_entry(&at.1, gone.as_ref());
            }
            (0..self.queues.len()).for_each(|kind| self.tidy(kind));
            return;
        }
        let kind = kind_of(value.as_ref());
        self.queues[kind].bytes += size_of_entry(&at.1, value.as_ref());
        let is_in_queue = match self.values.insert(at.clone(), value) {
            None => false,
            // A server that sends another value than before is wrong, and the bound holds
            // nevertheless.
            Some(before) => {
                let of = kind_of(before.as_ref());
                self.queues[of].bytes -= size_of_entry(&at.1, before.as_ref());
                of == kind
            }
        };
        if !is_in_queue {
            self.queues[kind].order.push_back(at);
            self.tidy(kind);
        }
        while self.queues[kind].bytes > self.queues[kind].most {
            let Some(oldest) = self.queues[kind].order.pop_front() else { break };
            if self.values.get(&oldest).is_some_and(|value| kind_of(value.as_ref()) == kind) {
                self.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, at: &(DictionaryId, Bytes)) {
        let Some(gone) = self.values.remove(at) else { return };
        self.queues[kind_of(gone.as_ref())].bytes -= size_of_entry(&at.1, gone.as_ref());
        // Without it, the range would say that the key is not there.
        if gone.is_some() {
            self.cut(at.0, &at.1);
        }
    }

    /// Drops places of the order that are of no value any more, when there are many.
    fn tidy(&mut self, kind: usize) {
        let (values, order) = (&self.values, &mut self.queues[kind].order);
        if order.len() > 2 * values.len() + PAGES {
            let mut seen = BTreeSet::new();
            let is_here = |at: &(DictionaryId, Bytes)| {
                values.get(at).is_some_and(|value| kind_of(value.as_ref()) == kind)
            };
            order.retain(|at| is_here(at) && seen.insert(at.clone()));
        }
    }

    /// Records that the client has put this value of a key, or has deleted the key.
    pub fn write_value(&mut self, dict: DictionaryId, key: &Bytes, value: Option<&Bytes>) {
        self.forget_pages(dict, key, None);
        match value {
            Some(value) if value.len() > LONGEST => self.forget_value(dict, key),
            value => self.keep_value(dict, key, value),
        }
    }

    /// Records that the client has changed a key without knowing its new value.
    pub fn forget(&mut self, dict: DictionaryId, key: &Bytes) {
        self.forget_pages(dict, key, None);
        self.forget_value(dict, key);
    }

    fn forget_value(&mut self, dict: DictionaryId, key: &Bytes) {
        self.remove(&(dict, key.clone()));
        self.cut(dict, key);
        (0..self.queues.len()).for_each(|kind| self.tidy(kind));
    }

    /// Records that the client has deleted a range.
    pub fn delete_range(&mut self, dict: DictionaryId, start: &Bytes, end: &Bytes) {
        if start >= end {
            return;
        }
        self.forget_pages(dict, start, Some(end));
        let inside = self.values.range((dict, start.clone())..(dict, end.clone()));
        let there = inside.filter(|(_, value)| value.is_some()).map(|(at, _)| at.clone());
        let there: Vec<_> = there.collect();
        there.into_iter().for_each(|at| self.insert(at, None));
    }

    /// Drops the pages whose range contains `key`, or any key from `key` to before `end`.
    fn forget_pages(&mut self, dict: DictionaryId, key: &Bytes, end: Option<&Bytes>) {
        let has = |page: &Page| {
            let begins_after = match end {
                Some(end) => page.start >= *end,
                None => page.start > *key,
            };
            page.dict == dict && !begins_after && (page.end.is_empty() || page.end > *key)
        };
        let mut bytes = 0;
        self.pages.retain(|page| {
            let goes = has(page);
            bytes += if goes { page.bytes } else { 0 };
            !goes
        });
        self.page_bytes -= bytes;
    }

    /// Drops everything, because the view now has another state.
    pub fn clear(&mut self) {
        *self = Pages::new(self.memory);
    }

    /// Returns the last range that begins at a key or before it.
    fn range_before(&self, dict: DictionaryId, key: &Bytes) -> Option<(Bytes, Bytes)> {
        let ((of, start), end) = self.ranges.range(..=(dict, key.clone())).next_back()?;
        (*of == dict).then(|| (start.clone(), end.clone()))
    }

    /// Returns the range that has a key.
    fn range_of(&self, dict: DictionaryId, key: &Bytes) -> Option<(Bytes, Bytes)> {
        self.range_before(dict, key).filter(|(_, end)| is_before(key, end))
    }

    fn insert_range(&mut self, dict: DictionaryId, start: Bytes, end: Bytes) {
        self.range_bytes += ENTRY + start.len() + end.len();
        let at = (dict, start);
        self.ranges.insert(at.clone(), end);
        while self.range_bytes > self.memory / 8 {
            // The new one stays as long as there are others.
            let popped = match self.ranges.first_key_value() {
                Some((first, _)) if *first != at => self.ranges.pop_first(),
                _ => self.ranges.pop_last(),
            };
            let Some(((_, start), end)) = popped else { break };
            self.range_bytes -= ENTRY + start.len() + end.len();
        }
    }

    fn remove_range(&mut self, dict: DictionaryId, start: &Bytes) {
        if let Some(end) = self.ranges.remove(&(dict, start.clone())) {
            self.range_bytes -= ENTRY + start.len() + end.len();
        }
    }

    /// All keys of this range are known, as one range with those that overlap it or touch it.
    fn add_range(&mut self, dict: DictionaryId, mut start: Bytes, mut end: Bytes) {
        let further = |one: Bytes, other: Bytes| match one.is_empty() || other.is_empty() {
            true => Bytes::new(),
            false => one.max(other),
        };
        if !is_before(&start, &end) {
            return;
        }
        if let Some((first, last)) = self.range_before(dict, &start)
            && (last.is_empty() || last >= start)
        {
            self.remove_range(dict, &first);
            (start, end) = (first, further(last, end));
        }
        loop {
            let from = Bound::Included((dict, start.clone()));
            let next = self.ranges.range((from, Bound::Unbounded)).next();
            let next =
                next.filter(|((of, first), _)| *of == dict && (end.is_empty() || *first <= end));
            let Some((first, last)) = next.map(|((_, first), last)| (first.clone(), last.clone()))
            else {
                break;
            };
            self.remove_range(dict, &first);
            end = further(last, end);
        }
        self.insert_range(dict, start, end);
    }

    /// Forgets whether this key exists.
    fn cut(&mut self, dict: DictionaryId, key: &Bytes) {
        let Some((start, end)) = self.range_of(dict, key) else { return };
        self.remove_range(dict, &start);
        let next = after(key);
        if start < *key && self.has_value(dict, &start, key) {
            self.insert_range(dict, start, own(key));
        }
        if is_before(&next, &end) && self.has_value(dict, &next, &end) {
            self.insert_range(dict, next, end);
        }
    }

    /// Returns whether a value is known in a range. A part of a range without one is not worth its
    /// entry.
    fn has_value(&self, dict: DictionaryId, start: &Bytes, end: &Bytes) -> bool {
        let from = Bound::Included((dict, start.clone()));
        let first = self.values.range((from, Bound::Unbounded)).next();
        first.is_some_and(|((of, key), _)| *of == dict && is_before(key, end))
    }

    /// Tuples of a range that is known, some at least of those that are asked for.
    pub fn page(&self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<TuplePage> {
        if request.backward || (!request.end.is_empty() && request.start >= request.end) {
            return None;
        }
        let kept = || self.pages.iter().rev().find_map(|kept| kept.part(dict, request));
        let kept = request.keys_only.then(kept).flatten();
        kept.or_else(|| self.part(dict, request))
    }

    fn part(&self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<TuplePage> {
        let start = own(request.start);
        let (_, end) = self.range_of(dict, &start)?;
        let has_all = end.is_empty() || (!request.end.is_empty() && end >= request.end);
        let to = match if has_all { request.end } else { &end[..] } {
            [] => dict.0.checked_add(1).map_or(Bound::Unbounded, |next| {
                Bound::Excluded((DictionaryId(next), Bytes::new()))
            }),
            to => Bound::Excluded((dict, own(to))),
        };
        let (mut tuples, mut bytes, mut ended) = (Vec::new(), 0, has_all);
        for ((of, key), value) in self.values.range((Bound::Included((dict, start)), to)) {
            let Some(value) = value.as_ref().filter(|_| *of == dict) else { continue };
            if tuples.len() >= request.tuples as usize || bytes >= request.bytes as usize {
                ended = false;
                break;
            }
            bytes += key.len() + value.len();
            let value = if request.keys_only { Bytes::new() } else { value.clone() };
            tuples.push((key.clone(), value));
        }
        (ended || !tuples.is_empty()).then_some(TuplePage { tuples, ended })
    }

    pub fn keep_page(&mut self, dict: DictionaryId, request: &PageRequest<'_>, page: &TuplePage) {
        let size = |(key, value): &(Bytes, Bytes)| key.len() + value.len() + ENTRY;
        let bytes = page.tuples.iter().map(size).sum::<usize>() + ENTRY;
        // A page that takes a large part of the memory belongs to a long read, which is not
        // repeated.
        if request.backward || bytes > self.memory / 8 || !is_part_of_range(request, page) {
            return;
        }
        if request.keys_only {
            self.keep_keys(dict, request, page, bytes);
            return;
        }
        let end = match page.tuples.last() {
            _ if page.ended => own(request.end),
            Some((last, _)) => after(last),
            None => return,
        };
        // The range comes first: it is cut where one of its values has to go at once.
        self.add_range(dict, own(request.start), end);
        for (key, value) in &page.tuples {
            self.insert((dict, own(key)), Some(own(value)));
        }
    }

    fn keep_keys(
        &mut self,
        dict: DictionaryId,
        request: &PageRequest<'_>,
        page: &TuplePage,
        bytes: usize,
    ) {
        self.page_bytes += bytes;
        self.pages.push_back(Page {
            dict,
            start: own(request.start),
            end: own(request.end),
            page: TuplePage {
                // Copies, since slices would pin whole frames.
                tuples: page.tuples.iter().map(|(key, _)| (own(key), Bytes::new())).collect(),
                ended: page.ended,
            },
            bytes,
        });
        while self.page_bytes > self.memory / 8 || self.pages.len() > PAGES {
            let Some(oldest) = self.pages.pop_front() else { break };
            self.page_bytes -= oldest.bytes;
        }
    }
}

/// Returns whether a page contains tuples of the requested range, in order, as a correct server
/// sends it. A reader refuses any other page, and would fail again if it were cached.
fn is_part_of_range(request: &PageRequest<'_>, page: &TuplePage) -> bool {
    let inside =
        |key: &Bytes| key >= request.start && (request.end.is_empty() || key < request.end);
    page.tuples.windows(2).all(|pair| pair[0].0 < pair[1].0)
        && page.tuples.iter().all(|(key, _)| inside(key))
        && page.tuples.len() <= request.tuples as usize
        && (page.ended || !page.tuples.is_empty())
}

impl Page {
    fn part(&self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<TuplePage> {
        if self.dict != dict || self.end != request.end || self.start > request.start {
            return None;
        }
        let from = self.page.tuples.partition_point(|(key, _)| key < request.start);
        let rest = &self.page.tuples[from..];
        if rest.is_empty() && !self.page.ended {
            return None;
        }
        let taken = rest.len().min(request.tuples as usize);
        let ended = self.page.ended && taken == rest.len();
        Some(TuplePage { tuples: rest[..taken].to_vec(), ended })
    }
}

#[cfg(test)]
mod tests;
