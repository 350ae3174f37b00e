//! Streams: entries in the order of their IDs, and groups of consumers. Each entry is delivered
//! once within a group.

use std::collections::HashSet;

use bytes::Bytes;

mod groups;
mod ids;
mod info;
mod pending;
mod reading;
mod state;
mod trimming;

pub use self::groups::{xack, xgroup};
use self::ids::Id;
pub use self::info::xinfo;
pub use self::pending::{xautoclaim, xclaim, xpending};
pub use self::reading::{keys_of_read, waits, xread, xreadgroup};
pub use self::state::State;
use self::state::{Entry, Stream, corrupt, entry_id, entry_key, put_sized};
use self::trimming::Options;
use super::collections::Room;
use super::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Collection;

const NO_KEY: Failure = Failure::Request(std::borrow::Cow::Borrowed("no such key"));

/// Limit on the number of bytes of an entry, which is one tuple.
const ENTRY: usize = 4 << 20;

/// Returns the stored form of an entry, whose fields and values are the arguments from `at` on.
fn stored_form(s: &Session, args: Arguments<'_>, at: usize) -> Result<Bytes, Failure> {
    let most = s.shared.limits.argument.min(ENTRY);
    if args.from(at).map(|word| word.len() + 4).sum::<usize>() > most {
        return Err(Failure::Limit(format!("an entry of a stream takes more than {most} bytes")));
    }
    let mut value = Vec::new();
    args.from(at).for_each(|word| put_sized(&mut value, word));
    Ok(Bytes::from(value))
}

/// Executes `XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value
/// ...`.
pub fn xadd(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let options = Options::parse(args, true)?;
    let (wanted, at) = options.id.ok_or_else(|| wrong_arity("xadd"))?;
    let words = args.len() - at;
    if words < 2 || !words.is_multiple_of(2) {
        return Err(wrong_arity("xadd"));
    }
    if wanted == ids::Wanted::Id(Id::MIN) {
        return Err(Failure::request("The ID specified in XADD must be greater than 0-0"));
    }
    s.check_key(key)?;
    let value = stored_form(s, args, at)?;
    let space = if options.only_old { s.existing()? } else { Some(s.typed()?) };
    let added = match space {
        None => None,
        Some(space) => s.change(space, [key], |seen, batch| {
            if options.only_old && Stream::find(seen, key)?.is_none() {
                return Ok(None);
            }
            let mut stream = Stream::begin(s, seen, key, batch)?;
            if stream.state.last == Id::MAX {
                return Err(Failure::request(
                    "The stream has exhausted the last possible ID, unable to add more items",
                ));
            }
            let id = wanted.after(stream.state.last, seen.now)?;
            let mut trimmed = match &options.trim {
                Some(trim) => trim.apply(s, seen, &mut stream, 1, batch)?,
                None => 0,
            };
            stream.state.last = id;
            stream.state.added = stream.state.added.saturating_add(1);
            if options.trim.is_some_and(|trim| trim.takes(id)) {
                trimmed += 1;
            } else {
                batch.put(stream.of.types, entry_key(&stream.of, id), value.clone());
                if stream.state.len == 0 {
                    stream.state.first = id;
                }
                stream.state.len += 1;
                stream.more += 1;
            }
            stream.save(seen, key, batch);
            seen.filled(Kind::Stream, key, false);
            seen.event(Classes::STREAM, "xadd", key);
            if trimmed > 0 {
                seen.event(Classes::STREAM, "xtrim", key);
            }
            Ok(Some(id))
        })?,
    };
    match added {
        Some(id) => out.bulk(id.text().as_bytes()),
        None => out.null(),
    }
    Ok(())
}

pub fn xlen(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let found = Stream::find(&s.see()?, args.at(1))?;
    out.integer(found.map_or(0, |stream| stream.state.len as i64));
    Ok(())
}

/// Executes `XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT count]`.
pub fn xtrim(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let options = Options::parse(args, false)?;
    let trimmed = match (s.existing()?, options.trim) {
        (Some(space), Some(trim)) => s.change(space, [key], |seen, batch| {
            let Some(mut stream) = Stream::find(seen, key)? else { return Ok(0) };
            let trimmed = trim.apply(s, seen, &mut stream, 0, batch)?;
            if trimmed > 0 {
                stream.save(seen, key, batch);
                seen.event(Classes::STREAM, "xtrim", key);
            }
            Ok(trimmed)
        })?,
        _ => 0,
    };
    out.integer(trimmed as i64);
    Ok(())
}

/// Executes `XDEL key id ...`.
pub fn xdel(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let removed = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(mut stream) = Stream::find(seen, key)? else { return Ok(0) };
            let ids = args.from(2).map(|arg| Id::parse(arg, 0));
            let ids: HashSet<Id> = ids.collect::<Result<_, _>>()?;
            let mut removed = HashSet::new();
            for id in ids {
                if stream.has(seen, id)? {
                    batch.delete(stream.of.types, entry_key(&stream.of, id));
                    stream.state.deleted = stream.state.deleted.max(id);
                    removed.insert(id);
                }
            }
            if removed.is_empty() {
                return Ok(0);
            }
            if removed.contains(&stream.state.first) {
                let (mut first, all) = (Id::MIN, (Id::MIN, Id::MAX));
                stream.entries(s, seen, all, false, |tuple| {
                    let id = entry_id(&stream.of, tuple)?;
                    let stays = !removed.contains(&id);
                    if stays {
                        first = id;
                    }
                    Ok(!stays)
                })?;
                stream.state.first = first;
            }
            let count = removed.len() as u64;
            stream.state.len = stream.state.len.saturating_sub(count);
            stream.more -= count as i64;
            stream.save(seen, key, batch);
            seen.event(Classes::STREAM, "xdel", key);
            Ok(count)
        })?,
    };
    out.integer(removed as i64);
    Ok(())
}

/// Executes `XSETID key last-id [ENTRIESADDED count] [MAXDELETEDID id]`.
pub fn xsetid(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let last = Id::parse(args.at(2), 0)?;
    let (mut added, mut deleted) = (None, None);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        let value = options.next().ok_or(Failure::SYNTAX)?;
        if is(option, "entriesadded") {
            let count = integer(value).ok_or(Failure::NOT_AN_INTEGER)?;
            let negative = || Failure::request("entries_added must be positive");
            added = Some(u64::try_from(count).map_err(|_| negative())?);
        } else if is(option, "maxdeletedid") {
            let id = Id::parse(value, 0)?;
            if last < id {
                return Err(Failure::request(
                    "The ID specified in XSETID is smaller than the provided \
                     max_deleted_entry_id",
                ));
            }
            deleted = Some(id).filter(|id| *id > Id::MIN);
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    let space = s.existing()?.ok_or(NO_KEY)?;
    s.change(space, [key], |seen, batch| {
        let mut stream = Stream::find(seen, key)?.ok_or(NO_KEY)?;
        // For a stream without entries Redis makes neither check, and accepts an ID below the
        // highest deleted one.
        if let Some(top) = stream.outermost(s, seen, (Id::MIN, Id::MAX), true)? {
            if last < top.id {
                return Err(Failure::request(
                    "The ID specified in XSETID is smaller than the target stream top item",
                ));
            }
            if added.is_some_and(|added| added < stream.state.len) {
                return Err(Failure::request(
                    "The entries_added specified in XSETID is smaller than the target stream \
                     length",
                ));
            }
        }
        stream.state.last = last;
        stream.state.added = added.unwrap_or(stream.state.added);
        stream.state.deleted = deleted.unwrap_or(stream.state.deleted);
        stream.save(seen, key, batch);
        seen.event(Classes::STREAM, "xsetid", key);
        Ok(())
    })?;
    out.ok();
    Ok(())
}

/// Executes `XRANGE key start end [COUNT count]`, or `XREVRANGE` with the bounds exchanged.
fn range(s: &Session, args: Arguments<'_>, backward: bool, out: &mut Output) -> Outcome {
    let (first, last) = if backward { (3, 2) } else { (2, 3) };
    let (from, to) = (Id::parse_start(args.at(first))?, Id::parse_end(args.at(last))?);
    let mut most = None;
    let mut options = args.from(4);
    while let Some(option) = options.next() {
        let value = options.next().filter(|_| is(option, "count")).ok_or(Failure::SYNTAX)?;
        let count = integer(value).ok_or(Failure::NOT_AN_INTEGER)?;
        most = Some(usize::try_from(count).unwrap_or(0));
    }
    let seen = s.see()?;
    let Some(stream) = Stream::find(&seen, args.at(1))? else {
        out.array(0);
        return Ok(());
    };
    if most == Some(0) {
        out.null_array();
        return Ok(());
    }
    let (mut found, mut room) = (Vec::new(), Room::of(s));
    let most = most.unwrap_or(usize::MAX);
    stream.entries(s, &seen, (from, to), backward, |tuple| {
        room.take(tuple.value_len())?;
        found.push(Entry::of(&stream.of, tuple)?);
        Ok(found.len() < most)
    })?;
    write_entries(&stream.of, &found, out)
}

pub fn xrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    range(s, args, false, out)
}
pub fn xrevrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    range(s, args, true, out)
}

/// Replies with all entries, or with an error if one of them is corrupt.
fn write_entries(of: &Collection, entries: &[Entry], out: &mut Output) -> Outcome {
    if entries.iter().any(|entry| entry.words().is_none()) {
        return Err(corrupt(of, "an entry"));
    }
    out.array(entries.len());
    for entry in entries {
        write_entry(entry, out);
        out.send_if_large();
    }
    Ok(())
}

/// Writes one entry, whose words have been checked.
fn write_entry(entry: &Entry, out: &mut Output) {
    let words = entry.words().unwrap_or_default();
    out.array(2);
    out.bulk(entry.id.text().as_bytes());
    out.array(words.len());
    words.into_iter().for_each(|word| out.bulk(word));
}

/// Checks that the subcommand is in `known`, and that the number of arguments is permitted.
fn arity(
    args: Arguments<'_>,
    command: &str,
    known: &[(&str, std::ops::RangeInclusive<usize>)],
) -> Outcome {
    match known.iter().find(|(name, _)| is(args.at(1), name)) {
        Some((_, counts)) if counts.contains(&args.len()) => Ok(()),
        Some((name, _)) => Err(wrong_arity(&format!("{command}|{name}"))),
        None => {
            let given = args.at(1);
            let given = String::from_utf8_lossy(&given[..given.len().min(128)]).into_owned();
            let command = command.to_uppercase();
            Err(Failure::request(format!("unknown subcommand '{given}'. Try {command} HELP.")))
        }
    }
}

/// Returns whether elements of an untrusted payload form a valid stream. They are in their stored
/// form and order.
pub fn is_sound(elements: &[(&[u8], &[u8])]) -> bool {
    let Some(((b"", first), rest)) = elements.split_first() else { return false };
    let Some(state) = State::decode(first) else { return false };
    let (mut len, mut ends, mut groups) = (0, None, HashSet::new());
    for (name, value) in rest {
        match state::parse_entry_name(name) {
            Some(id) => {
                if state::words(value).is_none() {
                    return false;
                }
                len += 1;
                ends = Some((ends.map_or(id, |(first, _)| first), id));
            }
            None if groups::is_sound(name, value, &mut groups) => {}
            None => return false,
        }
    }
    let ends = ends.unwrap_or_default();
    let ascends = elements.windows(2).all(|pair| pair[0].0 < pair[1].0);
    ascends && len == state.len && ends.0 == state.first && ends.1 <= state.last
}

/// Checks the length of the names of groups and consumers in valid elements.
pub fn check_names(s: &Session, elements: &[(&[u8], &[u8])]) -> Outcome {
    // A key has the two names and only a few other bytes.
    let most = s.shared.limits.key;
    match elements.iter().find(|(name, _)| name.len() > most) {
        Some((name, _)) => Err(Failure::request(format!(
            "names of a group and a consumer of {} bytes are longer than the limit of {most}",
            name.len()
        ))),
        None => Ok(()),
    }
}

/// Returns a readable name of an element of a stream.
pub fn shown_name(name: &[u8]) -> Vec<u8> {
    match state::parse_entry_name(name) {
        _ if name.is_empty() => b"state".to_vec(),
        Some(id) => id.text().into_bytes(),
        None => groups::shown_name(name).unwrap_or_else(|| name.to_vec()),
    }
}
