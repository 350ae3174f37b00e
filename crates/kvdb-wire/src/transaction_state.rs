//! A client's knowledge of its transaction: the changes that the server may not have, and what was
//! read.

use bytes::Bytes;
use env::Instant;
use kvdb::{DictionaryId, PageRequest, ServedChange};

use crate::changes::size_of_change;
use crate::gathered::{Gathered, Overlay, Point};
use crate::new_ranges::NewRanges;
use crate::pages::Pages;

pub(crate) struct State {
    /// Not sent yet.
    pub gathered: Gathered,
    /// On the way: the server may have some of it.
    pub under_way: Gathered,
    /// Changes so far, and those that the server has.
    pub made: u64,
    pub taken: u64,
    /// Bytes of all changes so far.
    pub bytes: u64,
    /// Values and pages that were read, with all changes in them.
    pub pages: Pages,
    /// Ranges that have nothing but what was put here.
    pub new: NewRanges,
    /// Says why the server has not taken changes, for want of space, and when it did so last.
    pub refused: Option<(String, Instant)>,
    /// Says why it is over.
    pub over: Option<String>,
    /// Set while a commit was asked for and neither its answer nor a refusal has come.
    pub commit_asked: bool,
    /// When the first change was made that the server may not have.
    pub waits_since: Option<Instant>,
    /// When the server has heard of it last, at the earliest.
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
            // A quarter of it is for what is new.
            pages: Pages::new(memory - memory / 4),
            new: NewRanges::new(memory / 4),
            refused: None,
            over: None,
            commit_asked: false,
            waits_since: None,
            heard,
        }
    }

    /// Returns the value of a key as far as it is known here; `None`: the server must be asked.
    pub fn known(&self, dict: DictionaryId, key: &Bytes) -> Option<Option<Bytes>> {
        let point = self.gathered.point(dict, key).or_else(|| self.under_way.point(dict, key));
        match point {
            Some(Point::Put(value)) => Some(Some(value)),
            Some(Point::Deleted) => Some(None),
            Some(Point::Updated) => None,
            None if self.new.lacks(dict, key) => Some(None),
            None => self.pages.value(dict, key),
        }
    }

    /// `true`: the server must have all changes before it is asked for the key.
    pub fn is_updated(&self, dict: DictionaryId, key: &[u8]) -> bool {
        let point = self.gathered.point(dict, key).or_else(|| self.under_way.point(dict, key));
        point == Some(Point::Updated)
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
            ServedChange::Delete(dict, key) => self.new.delete(*dict, key),
            // Keys in the range are taken to be there still, and asked for.
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
