//! Reading many sources as one ordered sequence of live tuples, forward and backward.
//!
//! The position lies between tuples. Of all sources the item that comes first counts (the newest on a tie); a tombstone makes
//! the older sources jump over what it covers with one seek each, however much that is.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::item::{Body, Item, Seq, Value};
use crate::memtable::MemtableCursor;
use crate::merge::Input;
use crate::run_cursor::RunCursor;
use crate::source::Source;

/// A live tuple; a large value is read by `Store::read_value` when wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeTuple {
    pub key: Bytes,
    pub seq: Seq,
    pub value: Value,
}

/// The two kinds of source, without a virtual call on the way to an item.
enum Under {
    Memtable(Box<MemtableCursor>),
    Run(Box<RunCursor>),
}

impl Under {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Under::Memtable(c) => &mut **c,
            Under::Run(c) => &mut **c,
        }
    }
    fn item(&self) -> Option<&Item> {
        match self {
            Under::Memtable(c) => c.item(),
            Under::Run(c) => c.item(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The sources are not positioned for either direction.
    None,
    Forward,
    Backward,
}

/// Where the cursor stands: in front of all keys from `key` on, or behind every key.
enum Position {
    Before(Vec<u8>),
    End,
}

/// A cursor over memtables and runs, newest first, as of a sequence number.
pub struct TreeCursor {
    sources: Vec<Under>,
    direction: Direction,
    position: Position,
}

impl TreeCursor {
    /// Stands before the first tuple. `inputs` newest first; memtables are read as of `at`.
    pub fn new(inputs: &[Input], at: Seq) -> Self {
        let sources = inputs
            .iter()
            .map(|i| match i {
                Input::Memtable(m) => Under::Memtable(Box::new(m.cursor(at))),
                Input::Run(r) => Under::Run(Box::new(RunCursor::new(Arc::clone(r)))),
            })
            .collect();
        TreeCursor { sources, direction: Direction::None, position: Position::Before(Vec::new()) }
    }

    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.position = Position::Before(key.to_vec());
        self.direction = Direction::None;
    }

    /// Moves behind the last tuple.
    pub fn seek_to_end(&mut self) {
        self.position = Position::End;
        self.direction = Direction::None;
    }

    fn face(&mut self, direction: Direction) -> Result<()> {
        if self.direction == direction {
            return Ok(());
        }
        for s in &mut self.sources {
            let s = s.source();
            match (&self.position, direction) {
                (Position::Before(key), Direction::Forward) => s.seek(key)?,
                (Position::Before(key), _) => s.seek_before(key)?,
                // Nothing comes behind the end: leave the sources without an item.
                (Position::End, Direction::Forward) => {
                    s.last()?;
                    s.next()?;
                }
                (Position::End, _) => s.last()?,
            }
        }
        self.direction = direction;
        Ok(())
    }

    /// The next live tuple; `None` at the end. After an error the cursor must be moved by a seek.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<TreeTuple>> {
        self.face(Direction::Forward)?;
        loop {
            let mut first: Option<(usize, &Item)> = None;
            for (i, s) in self.sources.iter().enumerate() {
                if let Some(item) = s.item()
                    && first.is_none_or(|(_, f)| item.key < f.key)
                {
                    first = Some((i, item));
                }
            }
            let Some((i, item)) = first else { return Ok(None) };
            let item = item.clone();
            if let Body::DeleteRange { end } = &item.body {
                for older in &mut self.sources[i + 1..] {
                    if older.item().is_some_and(|o| o.key < end) {
                        older.source().seek(end)?;
                    }
                }
                self.sources[i].source().next()?;
                continue;
            }
            for older in &mut self.sources[i + 1..] {
                if older.item().is_some_and(|o| o.key == item.key && !matches!(o.body, Body::DeleteRange { .. })) {
                    older.source().next()?;
                }
            }
            self.sources[i].source().next()?;
            if let Body::Put(value) = item.body {
                let mut behind = item.key.to_vec();
                behind.push(0);
                self.position = Position::Before(behind);
                return Ok(Some(TreeTuple { key: item.key, seq: item.seq, value }));
            }
        }
    }

    /// The live tuple before the position; `None` at the start.
    pub fn prev(&mut self) -> Result<Option<TreeTuple>> {
        self.face(Direction::Backward)?;
        loop {
            let mut last: Option<(usize, &Item)> = None;
            for (i, s) in self.sources.iter().enumerate() {
                if let Some(item) = s.item()
                    && last.is_none_or(|(_, l)| compare_ends(item, l) == Ordering::Greater)
                {
                    last = Some((i, item));
                }
            }
            let Some((i, item)) = last else { return Ok(None) };
            let item = item.clone();
            if matches!(item.body, Body::DeleteRange { .. }) {
                for older in &mut self.sources[i + 1..] {
                    if older.item().is_some_and(|o| !o.ends_before(&item.key)) {
                        older.source().seek_before(&item.key)?;
                    }
                }
                self.sources[i].source().prev()?;
                continue;
            }
            for older in &mut self.sources[i + 1..] {
                if older.item().is_some_and(|o| o.key == item.key && !matches!(o.body, Body::DeleteRange { .. })) {
                    older.source().prev()?;
                }
            }
            self.sources[i].source().prev()?;
            if let Body::Put(value) = item.body {
                self.position = Position::Before(item.key.to_vec());
                return Ok(Some(TreeTuple { key: item.key, seq: item.seq, value }));
            }
        }
    }
}

/// Which of two items reaches further up. A point at `k` ends where a range that excludes the key behind `k` does.
fn compare_ends(a: &Item, b: &Item) -> Ordering {
    match (&a.body, &b.body) {
        (Body::DeleteRange { end: x }, Body::DeleteRange { end: y }) => x.cmp(y),
        (Body::DeleteRange { end }, _) => compare_range_to_point(end, &b.key),
        (_, Body::DeleteRange { end }) => compare_range_to_point(end, &a.key).reverse(),
        _ => a.key.cmp(&b.key),
    }
}

/// `end` against `key` followed by a zero byte.
fn compare_range_to_point(end: &[u8], key: &[u8]) -> Ordering {
    if end <= key {
        return Ordering::Less;
    }
    if end.len() == key.len() + 1 && end.starts_with(key) && end[key.len()] == 0 { Ordering::Equal } else { Ordering::Greater }
}
