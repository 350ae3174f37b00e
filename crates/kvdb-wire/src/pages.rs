//! The values and pages that a client caches of a view. The view does not change, or only this
//! client changes it and updates the cache. So entries are never stale and need no validation
//! before use; the cache only has to be bounded.
//!
//! The cache has values by their keys, and the last pages of tuples. A page answers every request
//! for a part of its range, for example those of a listing that continues from call to call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use kvdb::{DictionaryId, PageRequest, TuplePage};

/// Limit of the cached pages, so that searching them stays cheap.
const PAGES: usize = 32;
/// Longer values are not cached: their reader keeps its own copy.
const LONGEST: usize = 64 << 10;
/// Approximate bytes that an entry takes in addition to its key and its value.
const ENTRY: usize = 96;

/// The cached values and pages of one view.
pub struct Pages {
    /// Limit of the bytes of the values, and of the bytes of the pages.
    most: usize,
    values: BTreeMap<(DictionaryId, Bytes), Option<Bytes>>,
    /// The cached keys, the oldest first.
    order: VecDeque<(DictionaryId, Bytes)>,
    value_bytes: usize,
    pages: VecDeque<Page>,
    page_bytes: usize,
}

struct Page {
    dict: DictionaryId,
    keys_only: bool,
    /// Start of the range that the page covers completely.
    start: Bytes,
    /// End of the requested range. The page covers it as far as its last tuple, and up to this end
    /// if it has ended.
    end: Bytes,
    page: TuplePage,
    bytes: usize,
}

impl Pages {
    pub fn new(memory: usize) -> Pages {
        Pages {
            most: memory / 2,
            values: BTreeMap::new(),
            order: VecDeque::new(),
            value_bytes: 0,
            pages: VecDeque::new(),
            page_bytes: 0,
        }
    }

    /// Returns the value of a key, or `Some(None)` if it is known to have none. Returns `None` if
    /// that is not known.
    pub fn value(&self, dict: DictionaryId, key: &Bytes) -> Option<Option<Bytes>> {
        self.values.get(&(dict, key.clone())).cloned()
    }

    pub fn keep_value(&mut self, dict: DictionaryId, key: &Bytes, value: Option<&Bytes>) {
        if value.is_some_and(|value| value.len() > LONGEST) {
            return;
        }
        // Copy both: as slices they would pin a whole frame.
        let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let (at, value) = ((dict, own(key)), value.map(own));
        let bytes = ENTRY + key.len() + value.as_ref().map_or(0, Bytes::len);
        self.value_bytes += bytes;
        match self.values.insert(at.clone(), value) {
            None => self.order.push_back(at),
            // The bound holds even if the server sends another value than before, which would be
            // wrong.
            Some(before) => {
                self.value_bytes -= ENTRY + key.len() + before.map_or(0, |value| value.len());
            }
        }
        while self.value_bytes > self.most {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, at: &(DictionaryId, Bytes)) {
        // A key that was forgotten is still in `order`.
        if let Some(gone) = self.values.remove(at) {
            self.value_bytes -= ENTRY + at.1.len() + gone.map_or(0, |value| value.len());
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
        if self.order.len() > 2 * self.values.len() + PAGES {
            let mut seen = BTreeSet::new();
            let values = &self.values;
            self.order.retain(|at| values.contains_key(at) && seen.insert(at.clone()));
        }
    }

    /// Records that the client has deleted a range.
    pub fn delete_range(&mut self, dict: DictionaryId, start: &Bytes, end: &Bytes) {
        if start >= end {
            return;
        }
        self.forget_pages(dict, start, Some(end));
        let mut bytes = 0;
        for (_, value) in self.values.range_mut((dict, start.clone())..(dict, end.clone())) {
            bytes += value.take().map_or(0, |value| value.len());
        }
        self.value_bytes -= bytes;
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
        *self = Pages { most: self.most, ..Pages::new(0) };
    }

    /// Returns the first of the requested tuples from a cached page. There may be fewer than
    /// requested.
    pub fn page(&self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<TuplePage> {
        if request.backward {
            return None;
        }
        self.pages.iter().rev().find_map(|kept| kept.part(dict, request))
    }

    pub fn keep_page(&mut self, dict: DictionaryId, request: &PageRequest<'_>, page: &TuplePage) {
        let size = |(key, value): &(Bytes, Bytes)| key.len() + value.len() + ENTRY;
        let bytes = page.tuples.iter().map(size).sum::<usize>() + ENTRY;
        // A page that takes a large part of the memory belongs to a long scan, which will not read
        // it again.
        if request.backward || bytes > self.most / 4 || !is_part_of_range(request, page) {
            return;
        }
        self.page_bytes += bytes;
        self.pages.push_back(Page {
            dict,
            keys_only: request.keys_only,
            start: Bytes::copy_from_slice(request.start),
            end: Bytes::copy_from_slice(request.end),
            page: page.clone(),
            bytes,
        });
        while self.page_bytes > self.most || self.pages.len() > PAGES {
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
        let same = self.dict == dict
            && self.keys_only == request.keys_only
            && self.end == request.end
            && self.start <= request.start;
        if !same {
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
mod tests {
    use super::*;

    const DICT: DictionaryId = DictionaryId(1);

    fn request<'a>(start: &'a [u8], end: &'a [u8], tuples: u32) -> PageRequest<'a> {
        PageRequest { start, end, backward: false, keys_only: false, tuples, bytes: 1000 }
    }

    fn page(keys: &[&'static str], ended: bool) -> TuplePage {
        let tuples = keys.iter().map(|key| (Bytes::from(*key), Bytes::new())).collect();
        TuplePage { tuples, ended }
    }

    #[test]
    fn a_page_answers_for_each_part_of_its_range() {
        let mut pages = Pages::new(1 << 20);
        pages.keep_page(DICT, &request(b"b", b"x", 3), &page(&["c", "e", "g"], false));
        assert_eq!(pages.page(DICT, &request(b"d", b"x", 10)), Some(page(&["e", "g"], false)));
        assert_eq!(pages.page(DICT, &request(b"b", b"x", 1)), Some(page(&["c"], false)));
        assert_eq!(pages.page(DICT, &request(b"h", b"x", 10)), None, "after its last tuple");
        assert_eq!(pages.page(DICT, &request(b"a", b"x", 10)), None, "before its range");
        assert_eq!(pages.page(DICT, &request(b"d", b"y", 10)), None, "another end");
        assert_eq!(pages.page(DictionaryId(2), &request(b"d", b"x", 10)), None);
        pages.keep_page(DICT, &request(b"g\0", b"x", 3), &page(&["h"], true));
        assert_eq!(pages.page(DICT, &request(b"h", b"x", 10)), Some(page(&["h"], true)));
        assert_eq!(pages.page(DICT, &request(b"i", b"x", 10)), Some(page(&[], true)));
        assert_eq!(pages.page(DICT, &request(b"h", b"x", 0)), Some(page(&[], false)));
    }

    #[test]
    fn a_value_that_replaces_another_one_is_counted_in_its_place() {
        let mut pages = Pages::new(1 << 20);
        let key = Bytes::from_static(b"k");
        for len in [0, 60_000, 10] {
            pages.keep_value(DICT, &key, Some(&Bytes::from(vec![0; len])));
            assert_eq!(pages.value_bytes, ENTRY + 1 + len);
        }
        pages.keep_value(DICT, &key, None);
        assert_eq!((pages.value_bytes, pages.order.len()), (ENTRY + 1, 1));
    }

    #[test]
    fn what_a_client_has_changed_is_not_read_from_what_was_kept() {
        let mut pages = Pages::new(1 << 20);
        let key = |key: &'static str| Bytes::from_static(key.as_bytes());
        let kept = page(&["c", "e", "g"], true);
        for kept_anew in 0..3 {
            pages.keep_page(DICT, &request(b"b", b"x", 9), &kept);
            pages.keep_value(DICT, &key("e"), Some(&key("old")));
            match kept_anew {
                0 => pages.write_value(DICT, &key("e"), Some(&key("new"))),
                1 => pages.delete_range(DICT, &key("d"), &key("f")),
                _ => pages.forget(DICT, &key("e")),
            }
            let value = pages.value(DICT, &key("e"));
            assert_eq!(value, [Some(Some(key("new"))), Some(None), None][kept_anew].clone());
            assert_eq!(pages.page(DICT, &request(b"b", b"x", 9)), None, "{kept_anew}");
            assert_eq!(pages.page_bytes, 0);
        }
        pages.keep_page(DICT, &request(b"b", b"x", 9), &kept);
        pages.write_value(DICT, &key("y"), None);
        pages.delete_range(DICT, &key("x"), &key("z"));
        pages.delete_range(DICT, &key("a"), &key("b"));
        assert_eq!(pages.page(DICT, &request(b"b", b"x", 9)), Some(kept));
        for _ in 0..1000 {
            pages.write_value(DICT, &key("k"), Some(&key("v")));
            pages.forget(DICT, &key("k"));
        }
        assert!(pages.order.len() < 100, "{}", pages.order.len());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut pages = Pages::new(100_000);
        for i in 0..10_000u32 {
            let key = Bytes::from(i.to_be_bytes().to_vec());
            pages.keep_value(DICT, &key, Some(&Bytes::from(vec![0; 1000])));
            let tuples = vec![(key.clone(), Bytes::from(vec![0; 1000]))];
            pages.keep_page(DICT, &request(&key, b"", 1), &TuplePage { tuples, ended: false });
            assert!(pages.value_bytes <= 50_000 && pages.page_bytes <= 50_000);
            assert_eq!(pages.values.len(), pages.order.len());
        }
        let last = Bytes::from(9_999u32.to_be_bytes().to_vec());
        assert!(pages.value(DICT, &last).is_some(), "the newest one is kept");
    }
}
