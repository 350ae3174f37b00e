//! Walks over a range of keys, and replies whose length is not known beforehand.
//!
//! Keys are visited in order. Keys of strings are in the dictionary itself; keys of collections
//! and long strings are among the heads in the types dictionary, which also show which keys have
//! expired. Two cursors advance in parallel.
//!
//! The length of an array is written before its elements. A short reply is collected, and gets
//! its header when it is complete. For a long reply the rest is first counted, by keys only, and
//! then read again from the same view while it is sent. The view is one state of the store, so
//! both walks see the same tuples, and memory stays bounded regardless of the length of the
//! reply.

use std::cmp::Ordering;

use bytes::Bytes;
use kvdb::{Cursor, DictionaryId, Tuple};

use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::keyspace::{Head, Kind, head_key};
use crate::names::Compared;
use crate::output::Output;
use crate::session::Session;
use crate::session::seen::Seen;

/// A selection of keys: at most `limit` of the matching keys in `[start, end)`. An empty `end` is
/// the end of the dictionary.
#[derive(Clone)]
pub struct KeyRange {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    /// Set if the keys are visited from the last to the first.
    pub backward: bool,
    pub limit: u64,
    pub pattern: Option<Vec<u8>>,
    /// Set if only strings are selected.
    pub strings_only: bool,
    /// The number of keys to skip first.
    pub offset: u64,
}

impl KeyRange {
    /// Returns the range of all keys that match `pattern`. The literal prefix of the pattern
    /// bounds the keys that are read.
    pub fn matching(pattern: &[u8]) -> Self {
        let (prefix, only_prefix) = glob::literal_prefix(pattern);
        let end = glob::prefix_end(&prefix);
        let pattern = (!only_prefix).then(|| pattern.to_vec());
        KeyRange {
            start: prefix,
            end,
            backward: false,
            limit: u64::MAX,
            pattern,
            strings_only: false,
            offset: 0,
        }
    }

    /// Returns the end of the range among the heads.
    fn heads_end(&self) -> Vec<u8> {
        if self.end.is_empty() { b"l".to_vec() } else { head_key(&self.end) }
    }

    /// Returns whether each key of the range is a string in one tuple without a deadline. In this
    /// case the tuples need only be counted.
    fn is_plain(&self, seen: &Seen<'_>) -> Result<bool, Failure> {
        if !self.strings_only || self.pattern.is_some() {
            return Ok(false);
        }
        let Some(types) = seen.types else { return Ok(true) };
        match seen.cursor(types, &head_key(&self.start), &self.heads_end())? {
            Some(mut heads) => Ok(heads.next()?.is_none()),
            None => Ok(true),
        }
    }

    /// Returns the ranks of the two ends of a plain range.
    fn ranks(&self, seen: &Seen<'_>) -> Result<(u64, u64), Failure> {
        let end = Some(&self.end[..]).filter(|end| !end.is_empty());
        Ok((seen.strings_before(Some(&self.start))?, seen.strings_before(end)?))
    }

    /// Returns the number of keys in the range.
    pub fn count(&self, s: &Session, seen: &Seen<'_>) -> Result<u64, Failure> {
        if self.is_empty() {
            return Ok(0);
        }
        if self.is_plain(seen)? {
            let (from, to) = self.ranks(seen)?;
            return Ok(to.saturating_sub(from));
        }
        let (mut walk, mut count) = (self.walk(seen, s)?, 0);
        while walk.step()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Returns the range without the keys that are skipped first, or `None` if no keys remain.
    fn shortened(&self, s: &Session, seen: &Seen<'_>) -> Result<Option<KeyRange>, Failure> {
        let mut rest = KeyRange { offset: 0, ..self.clone() };
        let first = if self.is_plain(seen)? {
            let (from, to) = self.ranks(seen)?;
            let rank = match self.backward {
                true => to.checked_sub(1).and_then(|last| last.checked_sub(self.offset)),
                false => from.checked_add(self.offset),
            };
            match rank.filter(|rank| (from..to).contains(rank)) {
                Some(rank) => seen.nth_string(rank)?,
                None => None,
            }
        } else {
            rest.limit = self.offset.saturating_add(1);
            let (mut walk, mut met, mut last) = (rest.walk(seen, s)?, 0, None);
            while let Some(item) = walk.step()? {
                (met, last) = (met + 1, Some(item.key));
            }
            drop(walk);
            rest.limit = self.limit;
            last.filter(|_| met > self.offset)
        };
        Ok(first.map(|first| {
            match self.backward {
                true => rest.end = [&first[..], b"\0"].concat(),
                false => rest.start = first.to_vec(),
            }
            rest
        }))
    }

    /// Returns whether the range is empty.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    pub fn walk<'s>(
        &'s self,
        seen: &'s Seen<'s>,
        session: &'s Session,
    ) -> Result<Walk<'s>, Failure> {
        let cursor = |dict: Option<DictionaryId>, start: &[u8], end: &[u8]| match dict {
            Some(dict) if !self.is_empty() => {
                let mut cursor = seen.cursor(dict, start, end)?;
                if self.backward
                    && let Some(cursor) = &mut cursor
                {
                    cursor.seek_to_end()?;
                }
                Ok(cursor)
            }
            _ => Ok::<_, Failure>(None),
        };
        let heads_end = self.heads_end();
        Ok(Walk {
            strings: cursor(seen.strings, &self.start, &self.end)?,
            heads: cursor(seen.types, &head_key(&self.start), &heads_end)?,
            next_string: None,
            next_head: None,
            range: self,
            session,
            seen,
            left: self.limit,
            steps: 0,
            compared: Compared::default(),
        })
    }

    /// Returns the rest of the range after `key`, when `done` keys have been visited.
    fn behind(&self, key: &[u8], done: u64) -> Self {
        let mut rest = KeyRange { limit: self.limit - done, ..self.clone() };
        if self.backward {
            rest.end = key.to_vec();
        } else {
            rest.start = [key, b"\0"].concat();
        }
        rest
    }
}

/// A key that a walk has visited.
pub struct Item {
    pub key: Bytes,
    pub kind: Kind,
    /// The tuple of a string that is kept in one tuple.
    pub tuple: Option<Tuple>,
    /// The head of a string that is kept in pages.
    pub pages: Option<Head>,
}

pub struct Walk<'s> {
    strings: Option<Cursor>,
    heads: Option<Cursor>,
    next_string: Option<Tuple>,
    next_head: Option<(Bytes, Head)>,
    range: &'s KeyRange,
    session: &'s Session,
    seen: &'s Seen<'s>,
    left: u64,
    steps: u32,
    compared: Compared,
}

impl Walk<'_> {
    pub fn step(&mut self) -> Result<Option<Item>, Failure> {
        while self.left > 0 {
            self.steps = self.steps.wrapping_add(1);
            if self.steps.is_multiple_of(256) {
                self.session.check_stopping()?;
            }
            let Some(item) = self.meet()? else { break };
            let Some(item) = item else { continue };
            let fits = match &self.range.pattern {
                Some(pattern) => self.compared.matches(pattern, &item.key)?,
                None => true,
            };
            if fits {
                self.left -= 1;
                return Ok(Some(item));
            }
        }
        self.left = 0;
        Ok(None)
    }

    /// Returns the next key. `Some(None)` stands for a key that has expired, or is not selected.
    fn meet(&mut self) -> Result<Option<Option<Item>>, Failure> {
        let backward = self.range.backward;
        let advance = |cursor: &mut Option<Cursor>| match cursor {
            Some(cursor) if backward => cursor.prev(),
            Some(cursor) => cursor.next(),
            None => Ok(None),
        };
        if self.next_string.is_none() {
            self.next_string = advance(&mut self.strings)?;
            if self.next_string.is_none() {
                self.strings = None;
            }
        }
        if self.next_head.is_none() {
            match advance(&mut self.heads)? {
                None => self.heads = None,
                Some(tuple) => {
                    let head = Head::decode(&tuple.value()?).ok_or_else(|| {
                        let key = tuple.key.escape_ascii();
                        Failure::Corrupt(format!("the head '{key}' does not decode"))
                    })?;
                    self.next_head = Some((tuple.key.slice(1..), head));
                }
            }
        }
        let order = match (&self.next_string, &self.next_head) {
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(tuple), Some((key, _))) if backward => key.cmp(&tuple.key),
            (Some(tuple), Some((key, _))) => tuple.key.cmp(key),
        };
        let string = if order.is_le() { self.next_string.take() } else { None };
        let head = if order.is_ge() { self.next_head.take() } else { None };
        let live = match &head {
            Some((_, head)) => self.seen.judge(*head)?,
            None => None,
        };
        Ok(Some(match (live.map(|live| live.kind), head, string) {
            // The key has a collection or a long string, or has expired.
            (Some(kind), Some((key, head)), _) => {
                kind.filter(|kind| !self.range.strings_only || *kind == Kind::Pages).map(|kind| {
                    let pages = (kind == Kind::Pages).then_some(head);
                    Item { key, kind, tuple: None, pages }
                })
            }
            (_, _, Some(tuple)) => {
                let key = tuple.key.clone();
                Some(Item { key, kind: Kind::String, tuple: Some(tuple), pages: None })
            }
            (_, _, None) => None,
        }))
    }
}

/// Replies with an array to which `write` adds `each` replies for each item.
pub fn answer(
    s: &Session,
    range: &KeyRange,
    out: &mut Output,
    each: usize,
    write: impl Fn(&Seen<'_>, &Item, &mut Output) -> Outcome,
) -> Outcome {
    let position = out.position();
    let seen = s.see()?;
    let shortened = match range.offset {
        0 => None,
        _ => match range.shortened(s, &seen)? {
            None => {
                out.array(0);
                return Ok(());
            }
            shortened => shortened,
        },
    };
    let range = shortened.as_ref().unwrap_or(range);
    let result = write_what_fits(s, &seen, range, out, each, &write);
    if result.is_err() {
        out.rewind(position);
    }
    let Some((rest, mut owed)) = result? else { return Ok(()) };
    // From here on the header is written, so the announced number of replies must follow even
    // after a failure.
    let mut stream = || -> Outcome {
        let mut walk = rest.walk(&seen, s)?;
        while owed > 0
            && !out.is_broken()
            && let Some(item) = walk.step()?
        {
            write(&seen, &item, out)?;
            owed -= 1;
            out.send_if_large();
        }
        Ok(())
    };
    if let Err(failure) = stream() {
        let text = failure.to_string();
        for _ in 0..owed * each as u64 {
            out.error(&text);
            out.send_if_large();
        }
    }
    Ok(())
}

/// Writes the header and as many items as fit. If not all of them fit, returns the rest of the
/// range and the number of items in it.
fn write_what_fits(
    s: &Session,
    seen: &Seen<'_>,
    range: &KeyRange,
    out: &mut Output,
    each: usize,
    write: impl Fn(&Seen<'_>, &Item, &mut Output) -> Outcome,
) -> Result<Option<(KeyRange, u64)>, Failure> {
    let position = out.position();
    let room = s.shared.limits.reply / 4;
    let mut walk = range.walk(seen, s)?;
    let (mut written, mut owed, mut last) = (0u64, 0, None);
    while out.position() - position < room {
        let Some(item) = walk.step()? else {
            out.insert_array_header(position, written as usize * each);
            return Ok(None);
        };
        if item.pages.is_some() {
            // A long string is sent while it is read, which is possible only after the header.
            owed = 1;
            break;
        }
        write(seen, &item, out)?;
        written += 1;
        last = Some(item.key);
    }
    while walk.step()?.is_some() {
        owed += 1;
    }
    out.insert_array_header(position, (written + owed) as usize * each);
    drop(walk);
    let rest = match last {
        Some(last) => range.behind(&last, written),
        None => range.clone(),
    };
    Ok((owed > 0).then_some((rest, owed)))
}
