//! What an ordered store can do and Redis cannot: reading and deleting stretches of keys.
//!
//! A stretch is `[start, end)`: the end is not in it. An empty bound, `-` as the start and `+` as
//! the end mean that there is none; with `EXACT` only an empty one does, so that programs can name
//! any key.

use std::ops::Bound;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId};

use super::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::walk::{Stretch, answer};

/// The bounds in the first two arguments; empty: none.
pub fn bounds<'a>(args: Arguments<'a>, exact: bool) -> (&'a [u8], &'a [u8]) {
    match (args.at(1), args.at(2)) {
        (start, end) if exact => (start, end),
        (start, end) => {
            (if start == b"-" { b"" } else { start }, if end == b"+" { b"" } else { end })
        }
    }
}

/// `RANGE start end [REV] [LIMIT n] [NOVALUES] [EXACT]`: keys and values in turn.
pub fn range(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut backward, mut limit, mut values, mut exact) = (false, u64::MAX, true, false);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "rev") => backward = true,
            o if is(o, "novalues") => values = false,
            o if is(o, "exact") => exact = true,
            o if is(o, "limit") => {
                let n = integer(options.next().ok_or(Failure::SYNTAX)?)
                    .ok_or(Failure::NOT_AN_INTEGER)?;
                limit = u64::try_from(n).map_err(|_| Failure::request("LIMIT is out of range"))?;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    let Some(dict) = s.existing()? else {
        out.array(0);
        return Ok(());
    };
    let (start, end) = bounds(args, exact);
    let (start, end) = (start.to_vec(), end.to_vec());
    if !end.is_empty() && start >= end {
        out.array(0);
        return Ok(());
    }
    let stretch = Stretch { dict, start, end, backward, limit, pattern: None };
    if values {
        answer(s, &stretch, out, 2, |tuple, out| {
            let value = tuple.value()?;
            out.bulk(&tuple.key);
            out.bulk(&value);
            Ok(())
        })
    } else {
        answer(s, &stretch, out, 1, |tuple, out| {
            out.bulk(&tuple.key);
            Ok(())
        })
    }
}

/// `DELRANGE start end [EXACT]`. Costs one range tombstone whatever it covers, so it does not say
/// how many keys there were.
pub fn delrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let exact = args.get(3).is_some_and(|o| is(o, "exact"));
    if args.len() > 4 || (args.len() == 4 && !exact) {
        return Err(Failure::SYNTAX);
    }
    if let Some(dict) = s.existing()? {
        let (start, end) = bounds(args, exact);
        let _held = s.hold_all();
        let mut batch = Batch::new();
        delete(s, dict, start, end, &mut batch)?;
        if !batch.is_empty() {
            s.commit(batch)?;
        }
    }
    out.ok();
    Ok(())
}

/// `DELPREFIX prefix`: every key that begins with it, by one range tombstone.
pub fn delprefix(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if let Some(dict) = s.existing()? {
        let _held = s.hold_all();
        let mut batch = Batch::new();
        batch.delete_prefix(dict, args.at(1));
        s.commit(batch)?;
    }
    out.ok();
    Ok(())
}

/// `ESTIMATE start end [EXACT]`: about how many keys and bytes, each with the most by which it may
/// be off; no tuple is read.
pub fn estimate(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let exact = args.get(3).is_some_and(|o| is(o, "exact"));
    if args.len() > 4 || (args.len() == 4 && !exact) {
        return Err(Failure::SYNTAX);
    }
    let found = match s.existing()? {
        None => kvdb::Estimate::default(),
        Some(dict) => {
            let (start, end) = bounds(args, exact);
            let end = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
            s.view()?.estimate::<&[u8]>(dict, (Bound::Included(start), end))?
        }
    };
    out.array(4);
    for figure in [found.items, found.items_error, found.bytes, found.bytes_error] {
        out.integer(figure as i64);
    }
    Ok(())
}

/// Adds the deletion of `[start, end)` to `batch`; `end` empty: up to the last key, which is looked
/// up under the locks.
fn delete(s: &Session, dict: DictionaryId, start: &[u8], end: &[u8], batch: &mut Batch) -> Outcome {
    if !end.is_empty() {
        if start < end {
            batch.delete_range(dict, Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        }
        return Ok(());
    }
    let mut cursor = s.view_of(dict, start, b"")?.cursor(dict, start, b"")?;
    cursor.seek_to_end()?;
    if let Some(last) = cursor.prev()? {
        if *start < *last.key {
            batch.delete_range(dict, Bytes::copy_from_slice(start), last.key.clone());
        }
        batch.delete(dict, last.key);
    }
    Ok(())
}

pub fn flushdb(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    flush_mode(args)?;
    let dicts: Vec<DictionaryId> = s.existing()?.into_iter().collect();
    empty(s, dicts)?;
    out.ok();
    Ok(())
}

/// Empties every dictionary of the user's; the file system's are none of them.
pub fn flushall(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    flush_mode(args)?;
    empty(s, s.dictionaries().into_iter().map(|(_, id)| id).collect())?;
    out.ok();
    Ok(())
}

/// `ASYNC` and `SYNC` are both fine: emptying costs the same constant either way.
fn flush_mode(args: Arguments<'_>) -> Outcome {
    match args.get(1) {
        None => Ok(()),
        Some(mode) if args.len() == 2 && (is(mode, "async") || is(mode, "sync")) => Ok(()),
        Some(_) => Err(Failure::SYNTAX),
    }
}

fn empty(s: &Session, dicts: Vec<DictionaryId>) -> Outcome {
    let _held = s.hold_all();
    let mut batch = Batch::new();
    for dict in dicts {
        delete(s, dict, b"", b"", &mut batch)?;
    }
    if batch.is_empty() { Ok(()) } else { s.commit(batch) }
}
