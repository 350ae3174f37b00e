//! A client's knowledge of its transaction: the changes that the server may not have, and the data
//! that was read.

use bytes::Bytes;
use env::Instant;
use kvdb::{DictionaryId, PageRequest, ServedChange, TuplePage};

use crate::changes::size_of_change;
use crate::gathered::{Gathered, Overlay, Point};
use crate::new_ranges::NewRanges;
use crate::pages::Pages;
use crate::prefetch::Prefetches;

pub(crate) struct State {
    /// Changes that were not sent yet.
    pub gathered: Gathered,
    /// Changes in flight, of which the server may have some.
    pub under_way: Gathered,
    /// The number of all changes so far, and of those that the server has.
    pub made: u64,
    pub taken: u64,
    /// Bytes of all changes so far.
    pub bytes: u64,
    /// Cached values and pages, with all changes applied.
    pub pages: Pages,
    /// Ranges that contain only keys that were put by this client.
    pub new: NewRanges,
    /// If the server has refused changes for lack of space: its message, and when it did so last.
    pub refused: Option<(String, Instant)>,
    /// The reason why the transaction is over.
    pub over: Option<String>,
    /// Set while a commit was requested and neither an answer nor a refusal has arrived.
    pub commit_asked: bool,
    /// The time of the first change that the server may not have.
    pub waits_since: Option<Instant>,
    /// A lower bound of the time at which the server last heard of the transaction.
    pub heard: Instant,
}

impl State {
    pub fn new(memory: usize, heard: Instant) -> State {
        State {
            gathered: Gathered::default(),
            under_way: Gathered::default(),
            made: 0,
            taken: 0,
            bytes: 0,
            // A quarter of the memory is for the new ranges.
            pages: Pages::new(memory - memory / 4),
            new: NewRanges::new(memory / 4),
            refused: None,
            over: None,
            commit_asked: false,
            waits_since: None,
            heard,
        }
    }

    /// Returns the value of a key if the client knows it. Returns `None` if the server must be
    /// asked.
    pub fn known(&self, dict: DictionaryId, key: &Bytes) -> Option<Option<Bytes>> {
        let point = self.gathered.point(dict, key).or_else(|| self.under_way.point(dict, key));
        match point {
            Some(Point::Put(value)) => Some(Some(value)),
            Some(Point::Deleted) => Some(None),
            Some(Point::Updated | Point::Referred) => None,
            None if self.new.lacks(dict, key) => Some(None),
            None => self.pages.value(dict, key),
        }
    }

    /// Returns whether the server must have all changes before it is asked for the key.
    pub fn is_updated(&self, dict: DictionaryId, key: &[u8]) -> bool {
        let point = self.gathered.point(dict, key).or_else(|| self.under_way.point(dict, key));
        point.is_some_and(|point| point.is_unknown())
    }

    /// Returns whether the server may lack a change of the key.
    pub fn has_changed(&self, dict: DictionaryId, key: &[u8]) -> bool {
        [&self.gathered, &self.under_way].iter().any(|all| all.point(dict, key).is_some())
    }

    pub fn overlay(&self, dict: DictionaryId, page: &PageRequest<'_>) -> Overlay {
        let mut overlay = Overlay::default();
        overlay.add(&self.under_way, dict, page.start, page.end);
        overlay.add(&self.gathered, dict, page.start, page.end);
        overlay
    }

    pub fn change(&mut self, change: ServedChange) {
        let known = match &change {
            ServedChange::Update(dict, key, _) => self.known(*dict, key),
            _ => None,
        };
        match &change {
            ServedChange::Put(dict, key, _) | ServedChange::Update(dict, key, _) => {
                self.new.put(*dict, key);
            }
            ServedChange::Refer(one) => self.new.put(one.dict, &one.key),
            ServedChange::Delete(dict, key) => self.new.delete(*dict, key),
            // Deleted keys still count as present in new ranges, so that the server is asked for
            // them.
            ServedChange::DeleteRange(..) => {}
        }
        match &change {
            ServedChange::Put(dict, key, value) => {
                self.pages.write_value(*dict, key, Some(value));
            }
            ServedChange::Update(dict, key, update) => match &known {
                Some(value) => {
                    let value = update.apply(value.as_deref());
                    self.pages.write_value(*dict, key, Some(&value));
                }
                None => self.pages.forget(*dict, key),
            },
            ServedChange::Refer(one) => self.pages.forget(one.dict, &one.key),
            ServedChange::Delete(dict, key) => self.pages.write_value(*dict, key, None),
            ServedChange::DeleteRange(dict, start, end) => {
                self.pages.delete_range(*dict, start, end);
            }
        }
        self.made += 1;
        self.bytes += size_of_change(&change) as u64;
        self.gathered.add(change, known);
    }
}

impl Prefetches for State {
    /// Has the number of all changes at that time.
    type Changes = (Overlay, u64);

    fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }

    fn changes(&self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<(Overlay, u64)> {
        let overlay = self.overlay(dict, request);
        (!overlay.has_unknown()).then_some((overlay, self.made))
    }

    fn merge(
        (overlay, _): &(Overlay, u64),
        request: &PageRequest<'_>,
        page: TuplePage,
    ) -> TuplePage {
        overlay.merge(request, page).0
    }

    fn holds(&self, (_, made): &(Overlay, u64)) -> bool {
        self.made == *made
    }
}
