//! Commands of an ordered store that Redis lacks: they read and delete ranges of keys.
//!
//! A range is `[start, end)`: it excludes its end. An empty bound, `-` as the start and `+` as
//! the end mean that there is no bound. With `EXACT` only an empty bound has this meaning, so
//! that programs can name any key.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use kvdb::{Batch, Cursor, DictionaryId};

use super::is;
use super::strings::reply_with_part;
use crate::effects::Effect;
use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::keyspace::{Head, Keyspace, head_key, types_name};
use crate::locks::keeping_clear;
use crate::notifications::{Classes, Event};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::seen::Seen;
use crate::session::{Executing, Session, retry_on_conflict};
use crate::walk::{KeyRange, answer};

/// Returns the bounds in the first two arguments. An empty bound means that there is none.
pub fn bounds<'a>(args: Arguments<'a>, exact: bool) -> (&'a [u8], &'a [u8]) {
    match (args.at(1), args.at(2)) {
        (start, end) if exact => (start, end),
        (start, end) => {
            (if start == b"-" { b"" } else { start }, if end == b"+" { b"" } else { end })
        }
    }
}

/// `RANGE start end [REV] [OFFSET n] [LIMIT n] [NOVALUES] [EXACT]`: replies with keys and values
/// in alternation.
pub fn range(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut backward, mut limit, mut values, mut exact) = (false, u64::MAX, true, false);
    let mut offset = 0;
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "rev") => backward = true,
            o if is(o, "novalues") => values = false,
            o if is(o, "exact") => exact = true,
            o if is(o, "offset") => {
                let n = integer(options.next().ok_or(Failure::SYNTAX)?)
                    .ok_or(Failure::NOT_AN_INTEGER)?;
                offset =
                    u64::try_from(n).map_err(|_| Failure::request("OFFSET is out of range"))?;
            }
            o if is(o, "limit") => {
                let n = integer(options.next().ok_or(Failure::SYNTAX)?)
                    .ok_or(Failure::NOT_AN_INTEGER)?;
                limit = u64::try_from(n).map_err(|_| Failure::request("LIMIT is out of range"))?;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    let (start, end) = bounds(args, exact);
    let (start, end) = (start.to_vec(), end.to_vec());
    if !end.is_empty() && start >= end {
        out.array(0);
        return Ok(());
    }
    let (pattern, strings_only) = (None, true);
    let asked = KeyRange { start, end, backward, limit, pattern, strings_only, offset };
    if values {
        answer(s, &asked, out, 2, |seen, item, out| {
            let value = match &item.tuple {
                Some(tuple) => tuple.value()?,
                None => Bytes::new(),
            };
            out.bulk(&item.key);
            match &item.pages {
                None => out.bulk(&value),
                Some(head) => {
                    // A string that is too long for a reply is replaced by an error.
                    if let Err(failure) = reply_with_part(seen, head, 0..head.len, out) {
                        out.error(&failure.to_string());
                    }
                }
            }
            Ok(())
        })
    } else {
        answer(s, &asked, out, 1, |_, item, out| {
            out.bulk(&item.key);
            Ok(())
        })
    }
}

/// `COUNT start end [EXACT]`: replies with the number of strings.
pub fn count(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let exact = args.get(3).is_some_and(|o| is(o, "exact"));
    if args.len() > 4 || (args.len() == 4 && !exact) {
        return Err(Failure::SYNTAX);
    }
    let (start, end) = bounds(args, exact);
    let (start, end) = (start.to_vec(), end.to_vec());
    let all = KeyRange { start, end, strings_only: true, ..KeyRange::matching(b"*") };
    let count = all.count(s, &s.see()?)?;
    out.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// `DELRANGE start end [EXACT]` costs one range tombstone, regardless of the number of strings
/// that it covers, and one more for each collection and each string in pages. It does not reply
/// with the number of keys, because it does not read the strings.
pub fn delrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let exact = args.get(3).is_some_and(|o| is(o, "exact"));
    if args.len() > 4 || (args.len() == 4 && !exact) {
        return Err(Failure::SYNTAX);
    }
    let (start, end) = bounds(args, exact);
    empty_range(s, start, end)?;
    out.ok();
    Ok(())
}

/// `DELPREFIX prefix`: deletes every key that begins with the prefix, like `DELRANGE`.
pub fn delprefix(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let end = glob::prefix_end(args.at(1));
    empty_range(s, args.at(1), &end)?;
    out.ok();
    Ok(())
}

fn empty_range(s: &mut Session, start: &[u8], end: &[u8]) -> Outcome {
    let Some(space) = s.existing()? else { return Ok(()) };
    delete_atomically(s, |s, batch, events| {
        let space = s.under_locks(space)?;
        let name = s.dictionary.name();
        events.extend(events_of(s, space, (start, end))?.map(|events| (name.into(), events)));
        delete(s, space.strings, start, end, batch)?;
        delete_types(s, space, start, end, batch)
    })
}

/// Events by the names of their dictionaries.
type Events = Vec<(String, Vec<Effect>)>;

/// Commits the batch that `fill` makes, under the locks of all keys, atomically with its reads.
/// Transactions and scripts hold no locks when they commit. If one of them commits in between and
/// invalidates a read, the batch is made again. The events are published after the commit.
fn delete_atomically(
    s: &mut Session,
    fill: impl Fn(&Session, &mut Batch, &mut Events) -> Outcome,
) -> Outcome {
    let mut events = Vec::new();
    let settle = |s: &Session, events: Events| {
        for (dictionary, events) in events {
            s.settle_at(s.spot_of(&dictionary), events);
        }
    };
    if s.inside().is_some() {
        let _held = s.hold_all();
        let mut batch = Batch::new();
        fill(s, &mut batch, &mut events)?;
        if !batch.is_empty() {
            s.commit(batch)?;
            settle(s, events);
        }
        return Ok(());
    }
    let shared = s.shared.clone();
    keeping_clear(&shared.stopping, || {
        let _held = shared.locks.all();
        // The deletions do not depend on the deleted values, so only the reads must still be
        // valid.
        retry_on_conflict(&shared.db, false, |own, batch| {
            events.clear();
            s.exec.begin(Executing::Own(own.clone()));
            let filled = fill(s, batch, &mut events);
            s.exec.end();
            filled
        })?;
        settle(s, std::mem::take(&mut events));
        // Streams on which clients wait may have been deleted.
        shared.waiters.wake_all();
        Ok(())
    })
}

/// Returns the events of the keys in `[start, end)`, which are going to be deleted: one for each
/// key, or one `delrange` for all keys if there are too many, or if the commit may delete keys
/// that do not exist yet. Returns `None` if the range has no key, or if no client wants events.
fn events_of(
    s: &Session,
    space: Keyspace,
    (start, end): (&[u8], &[u8]),
) -> Result<Option<Vec<Effect>>, Failure> {
    let wanted = s.notes(Classes::GENERIC) || s.notes(Classes::EXPIRED);
    let is_empty = !end.is_empty() && start >= end;
    if !wanted || is_empty || s.place.branch().is_none() {
        return Ok(None);
    }
    let of_range = || {
        let event = Event { class: Classes::GENERIC, name: "delrange" };
        let [start, end] = [start, end].map(Bytes::copy_from_slice);
        Ok(Some(vec![Effect::Range { event, start, end }]))
    };
    if s.inside().is_some_and(|transaction| s.is_joined() && !transaction.checks_conflicts()) {
        // Keys that others put into the range before the commit are deleted as well.
        return of_range();
    }
    let seen = Seen::by(s, Some(space))?;
    let heads_end = if end.is_empty() { b"l".to_vec() } else { head_key(end) };
    let strings = seen.cursor(space.strings, start, end)?.map(Cursor::keys_only);
    let heads = match space.types {
        Some(types) => seen.cursor(types, &head_key(start), &heads_end)?,
        None => None,
    };
    // The keys that were found. The value states whether the key has expired and only waits to be
    // removed.
    let mut met: BTreeMap<Bytes, bool> = BTreeMap::new();
    for (mut cursor, of_heads) in [(strings, false), (heads, true)] {
        while let Some(tuple) = cursor.as_mut().map(|cursor| cursor.next()).transpose()?.flatten() {
            let (key, expired) = if of_heads {
                let head = Head::decode(&tuple.value()?);
                (tuple.key.slice(1..), head.is_some_and(|head| head.is_expired(seen.now)))
            } else {
                (tuple.key, false)
            };
            *met.entry(key).or_default() |= expired;
            if met.len() > s.shared.limits.events {
                return of_range();
            }
        }
    }
    let event = |(key, expired)| {
        let (class, name) =
            if expired { (Classes::EXPIRED, "expired") } else { (Classes::GENERIC, "del") };
        Effect::Event { event: Event { class, name }, key }
    };
    Ok((!met.is_empty()).then(|| met.into_iter().map(event).collect()))
}

/// Limit on the number of collections and long strings that one command may delete with a range
/// of keys.
const MOST_COLLECTIONS: usize = 1 << 16;

/// Adds the deletion of the data in the types dictionary that belongs to the keys in the range.
fn delete_types(
    s: &Session,
    space: Keyspace,
    start: &[u8],
    end: &[u8],
    batch: &mut Batch,
) -> Outcome {
    let Some(types) = space.types else { return Ok(()) };
    if start.is_empty() && end.is_empty() {
        return delete(s, types, b"", b"", batch);
    }
    if !end.is_empty() && start >= end {
        return Ok(());
    }
    let (first, last) =
        (head_key(start), if end.is_empty() { b"l".to_vec() } else { head_key(end) });
    s.reads_range(types, &first, &last)?;
    let mut cursor = match s.view()?.cursor(types, &first, &last) {
        Err(kvdb::Error::NoDictionary(_)) => return Ok(()),
        cursor => cursor?,
    };
    let (mut heads, mut collections) = (0u64, 0);
    while let Some(tuple) = cursor.next()? {
        heads += 1;
        if heads.is_multiple_of(256) {
            s.check_stopping()?;
        }
        // A deadline of the head that remains is recognized as stale by the sweeper.
        let Some(head) = Head::decode(&tuple.value()?) else { continue };
        let Some((first, last)) = head.beneath() else { continue };
        collections += 1;
        if collections > MOST_COLLECTIONS {
            return Err(Failure::Limit(format!(
                "more than {MOST_COLLECTIONS} collections and long strings lie there: delete a shorter range, or FLUSHDB"
            )));
        }
        batch.delete_range(types, first, last);
    }
    if heads > 0 {
        batch.delete_range(types, first, last);
    }
    Ok(())
}

/// `ESTIMATE start end [EXACT]`: estimates the number of keys and of bytes, each with its maximal
/// error, without reading a tuple.
pub fn estimate(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let exact = args.get(3).is_some_and(|o| is(o, "exact"));
    if args.len() > 4 || (args.len() == 4 && !exact) {
        return Err(Failure::SYNTAX);
    }
    let found = match s.existing()? {
        None => kvdb::Estimate::default(),
        Some(space) => {
            let (start, end) = bounds(args, exact);
            let end = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
            s.view()?.estimate::<&[u8]>(space.strings, (Bound::Included(start), end))?
        }
    };
    out.array(4);
    for figure in [found.items, found.items_error, found.bytes, found.bytes_error] {
        out.integer(figure as i64);
    }
    Ok(())
}

/// Adds the deletion of `[start, end)` to `batch`. If `end` is empty, the range ends with the
/// last key, which is looked up; the commit then depends on the fact that no key follows the last
/// key.
fn delete(s: &Session, dict: DictionaryId, start: &[u8], end: &[u8], batch: &mut Batch) -> Outcome {
    if !end.is_empty() {
        if start < end {
            batch.delete_range(dict, Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        }
        return Ok(());
    }
    let own = s.exec.own().is_some();
    if !own {
        s.reads_range(dict, start, b"")?;
    }
    let mut cursor = match s.view()?.cursor(dict, start, b"") {
        Err(kvdb::Error::NoDictionary(_)) => return Ok(()),
        cursor => cursor?,
    };
    cursor.seek_to_end()?;
    let last = cursor.prev()?.map(|tuple| tuple.key);
    if own {
        let behind = last.as_ref().map_or(start.to_vec(), |last| [last, &b"\0"[..]].concat());
        s.reads_range(dict, &behind, b"")?;
    }
    if let Some(last) = last {
        if *start < *last {
            batch.delete_range(dict, Bytes::copy_from_slice(start), last.clone());
        }
        batch.delete(dict, last);
    }
    Ok(())
}

pub fn flushdb(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    flush_mode(args)?;
    empty_range(s, b"", b"")?;
    out.ok();
    Ok(())
}

/// Empties every dictionary of the user, but no dictionary of the file system.
pub fn flushall(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    flush_mode(args)?;
    delete_atomically(s, |s, batch, events| {
        let all = s.dictionaries();
        let branch = s.place.branch().unwrap_or_default();
        for (name, strings) in &all {
            let types = s.db().dictionary_in(branch, &types_name(name));
            let space = Keyspace { strings: *strings, types };
            events.extend(events_of(s, space, (b"", b""))?.map(|events| (name.clone(), events)));
        }
        let all = all.into_iter().map(|(_, id)| id).chain(s.types_dictionaries());
        all.into_iter().try_for_each(|dict| delete(s, dict, b"", b"", batch))
    })?;
    out.ok();
    Ok(())
}

/// `ASYNC` and `SYNC` are both accepted, because emptying takes the same constant time in both
/// modes.
fn flush_mode(args: Arguments<'_>) -> Outcome {
    match args.get(1) {
        None => Ok(()),
        Some(mode) if args.len() == 2 && (is(mode, "async") || is(mode, "sync")) => Ok(()),
        Some(_) => Err(Failure::SYNTAX),
    }
}
