//! Commands that act on keys of any type.

use std::collections::HashSet;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId};

use super::connection::numbered;
use super::copy::to_other;
use super::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    ELEMENT, Head, Kind, Live, count_key, deadline_key, elements, head_key, owner_key, whole,
};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Seen;

pub fn del(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut deleted = 0;
    if let Some(space) = s.existing()? {
        deleted = s.change(space, args.from(1), |seen, batch| {
            let (mut deleted, mut met) = (0, HashSet::new());
            for key in args.from(1).filter(|key| met.insert(*key)) {
                let live = seen.live(key)?;
                if live.exists() {
                    seen.remove(key, &live, batch);
                    seen.event(Classes::GENERIC, "del", key);
                    deleted += 1;
                }
            }
            Ok(deleted)
        })?;
    }
    out.integer(deleted);
    Ok(())
}

pub fn exists(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let mut found = 0;
    for key in args.from(1) {
        found += i64::from(seen.live(key)?.exists());
    }
    out.integer(found);
    Ok(())
}

pub fn kind(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let live = s.see()?.live(args.at(1))?;
    out.status(live.kind.map_or("none", Kind::name));
    Ok(())
}

const NO_KEY: Failure = Failure::Request(std::borrow::Cow::Borrowed("no such key"));

pub fn rename(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    give_name(s, args, false)?;
    out.ok();
    Ok(())
}

pub fn renamenx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let done = give_name(s, args, true)?;
    out.integer(i64::from(done));
    Ok(())
}

fn give_name(s: &Session, args: Arguments<'_>, only_new: bool) -> Result<bool, Failure> {
    let (from, to) = (args.at(1), args.at(2));
    s.check_key(to)?;
    let space = s.existing()?.ok_or(NO_KEY)?;
    s.change(space, [from, to], |seen, batch| {
        let live = seen.live(from)?;
        let kind = live.kind.ok_or(NO_KEY)?;
        if from == to {
            return Ok(!only_new);
        }
        let there = seen.live(to)?;
        if only_new && there.exists() {
            return Ok(false);
        }
        seen.remove(to, &there, batch);
        if kind == Kind::String {
            let value = seen.string(from)?.1.unwrap_or_default();
            seen.remove(from, &live, batch);
            let new = seen.put_string(to, &Live::default(), value, batch)?;
            if live.deadline().is_some() {
                seen.set_deadline(to, &new, live.deadline(), batch);
            }
        } else if let (Some(types), Some(head)) = (seen.types, live.head) {
            // The elements or pages stay where they are, under the id of the collection.
            seen.exclude_others(seen.strings, to)?;
            batch.delete(types, head_key(from));
            seen.forget_fields(&head, from, batch);
            put_head(types, to, head, batch);
            seen.name_again(&head, to, batch)?;
            if let Some(deadline) = head.deadline {
                batch.delete(types, deadline_key(deadline, from));
            }
            seen.event(Classes::NEW, "new", to);
            seen.filled(kind, to, true);
            if kind == Kind::Stream {
                // Clients that wait for the stream in a group must be notified that it no longer
                // exists.
                seen.filled(kind, from, false);
            }
        }
        seen.event(Classes::GENERIC, "rename_from", from);
        seen.event(Classes::GENERIC, "rename_to", to);
        Ok(true)
    })
}

fn put_head(types: DictionaryId, key: &[u8], head: Head, batch: &mut Batch) {
    batch.put(types, head_key(key), head.encode());
    // Pages do not need to name their key, because each change of them also changes the head.
    if head.kind != Kind::Pages {
        batch.put(types, owner_key(head.id), Bytes::copy_from_slice(key));
    }
    if let Some(deadline) = head.deadline {
        batch.put(types, deadline_key(deadline, key), Bytes::new());
    }
}

/// Executes `COPY source destination [DB n] [REPLACE]`.
pub fn copy(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (from, to) = (args.at(1), args.at(2));
    let (mut replace, mut other) = (false, None);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "replace") => replace = true,
            o if is(o, "db") => {
                other = Some(numbered(s, options.next().ok_or(Failure::SYNTAX)?)?);
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    let other = other.filter(|other| other.name() != s.dictionary.name());
    if from == to && other.is_none() {
        return Err(Failure::request("source and destination objects are the same"));
    }
    s.check_key(to)?;
    if let Some(other) = &other {
        let copied = to_other(s, (from, to), other, replace, out)?;
        out.integer(i64::from(copied));
        return Ok(());
    }
    let done = match s.existing()? {
        None => false,
        Some(space) => s.change(space, [from, to], |seen, batch| {
            let live = seen.live(from)?;
            let Some(kind) = live.kind else { return Ok(false) };
            let there = seen.live(to)?;
            if there.exists() && !replace {
                return Ok(false);
            }
            if kind == Kind::String {
                let value = seen.string(from)?.1.unwrap_or_default();
                let new = seen.put_string(to, &there, value, batch)?;
                if live.deadline().is_some() {
                    seen.set_deadline(to, &new, live.deadline(), batch);
                }
                seen.event(Classes::GENERIC, "copy_to", to);
                return Ok(true);
            }
            seen.remove(to, &there, batch);
            seen.event(Classes::NEW, "new", to);
            seen.filled(kind, to, true);
            match live.pages() {
                Some(head) => {
                    seen.copy_pages(&head, to, batch)?;
                    if let (Some(types), Some(deadline)) = (seen.types, head.deadline) {
                        batch.put(types, deadline_key(deadline, to), Bytes::new());
                    }
                }
                None => copy_collection(s, seen, &live, to, batch)?,
            }
            seen.event(Classes::GENERIC, "copy_to", to);
            Ok(true)
        })?,
    };
    out.integer(i64::from(done));
    Ok(())
}

fn copy_collection(
    s: &Session,
    seen: &Seen<'_>,
    live: &Live,
    to: &[u8],
    batch: &mut Batch,
) -> Outcome {
    let (Some(types), Some(head)) = (seen.types, live.head) else { return Ok(()) };
    let mut id = s.random();
    while seen.has(types, &count_key(id))? {
        id = s.random();
    }
    let (start, end) = whole(head.id);
    let Some(mut cursor) = seen.cursor(types, &start, &end)? else { return Ok(()) };
    while let Some(tuple) = cursor.next()? {
        let (key, value) = tuple.into_parts()?;
        let bytes = key.len() + value.len();
        let mut copied = key.to_vec();
        copied[1..9].copy_from_slice(&id.to_be_bytes());
        batch.put(types, copied, value);
        seen.relieve(batch, bytes)?;
    }
    // The head is written after the copied elements, because they include the owner tuple of the
    // original.
    put_head(types, to, Head { id, ..head }, batch);
    seen.name_again(&head, to, batch)
}

/// Executes `OBJECT ENCODING|REFCOUNT|IDLETIME|FREQ key`.
pub fn object(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if is(args.at(1), "help") && args.len() == 2 {
        out.array(1);
        out.status("OBJECT ENCODING|REFCOUNT|IDLETIME|FREQ key");
        return Ok(());
    }
    let known = ["encoding", "refcount", "idletime", "freq"];
    if args.len() != 3 || !known.iter().any(|name| is(args.at(1), name)) {
        return Err(super::unknown_subcommand(args, "OBJECT"));
    }
    let seen = s.see()?;
    let live = seen.live(args.at(2))?;
    match args.at(1) {
        _ if !live.exists() => out.null(),
        c if is(c, "encoding") => out.bulk(encoding(&seen, args.at(2), &live)?.as_bytes()),
        c if is(c, "refcount") => out.integer(1),
        // The time of the last access of a key is not recorded.
        c if is(c, "idletime") => out.integer(0),
        _ => {
            return Err(Failure::request(
                "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

/// Largest number of elements with which a collection has the encoding of one list.
pub const LISTPACK: i64 = 128;
/// Largest number of integers with which a set has the encoding of a list of integers.
pub const INTSET: i64 = 512;

/// Returns the encoding that Redis would choose, to the extent that it depends on the length of a
/// collection.
fn encoding(seen: &Seen<'_>, key: &[u8], live: &Live) -> Result<&'static str, Failure> {
    Ok(match (live.kind, live.count) {
        (Some(Kind::Hash | Kind::SortedSet), ..=LISTPACK) => "listpack",
        (Some(Kind::Hash), _) => "hashtable",
        (Some(Kind::SortedSet), _) => "skiplist",
        (Some(Kind::List), _) => "quicklist",
        (Some(Kind::Stream), _) => "stream",
        (Some(Kind::Pages), _) => "raw",
        (Some(Kind::Set), count) => {
            match live.head.filter(|_| count <= INTSET).map(|head| elements(head.id)) {
                Some((start, end)) if all_integers(seen, &start, &end)? => "intset",
                _ if count <= LISTPACK => "listpack",
                _ => "hashtable",
            }
        }
        (Some(Kind::String) | None, _) => match seen.string(key)?.1.unwrap_or_default() {
            value if value.len() <= 20 && integer(&value).is_some() => "int",
            value if value.len() <= 44 => "embstr",
            _ => "raw",
        },
    })
}

fn all_integers(seen: &Seen<'_>, start: &[u8], end: &[u8]) -> Result<bool, Failure> {
    let Some(types) = seen.types else { return Ok(false) };
    let Some(mut cursor) = seen.cursor(types, start, end)? else { return Ok(false) };
    while let Some(tuple) = cursor.next()? {
        if integer(&tuple.key[ELEMENT..]).is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `MEMORY STATS`, `MALLOC-STATS`, `DOCTOR` and `PURGE`, and `MEMORY USAGE key [SAMPLES n]`. The
/// usage is the number of bytes that the key takes in the file, or will take after it is flushed.
/// For a collection or a long string it is an estimate of the tree.
pub fn memory(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "doctor") => {
            out.verbatim(
                "Keys are in the store's file, not in memory: INFO memory has what the process takes, DICT INFO \
                 what a dictionary takes in the file.",
            );
            return Ok(());
        }
        (c, 2) if is(c, "purge") => {
            out.ok();
            return Ok(());
        }
        (c, 2) if is(c, "malloc-stats") => {
            out.verbatim("Stats not supported for the current allocator");
            return Ok(());
        }
        (c, 2) if is(c, "stats") => {
            super::info::memory_stats(s, out);
            return Ok(());
        }
        _ => {}
    }
    if !is(args.at(1), "usage") || !matches!(args.len(), 3 | 5) {
        return Err(super::unknown_subcommand(args, "MEMORY"));
    }
    if args.len() == 5 && (!is(args.at(3), "samples") || integer(args.at(4)).is_none()) {
        return Err(Failure::SYNTAX);
    }
    let (key, seen) = (args.at(2), s.see()?);
    let live = seen.live(key)?;
    match (live.kind, seen.types, live.head) {
        (None, ..) => out.null(),
        (Some(Kind::String), ..) => {
            let len = seen.text(key)?.1.len();
            out.integer((key.len() as u64 + len) as i64);
        }
        (Some(_), Some(types), Some(head)) => {
            let (start, end) = head.beneath().unwrap_or_default();
            let found = seen.range(types, &start, &end)?.estimate(types, start..end)?;
            out.integer((found.bytes + key.len() as u64) as i64);
        }
        (Some(_), ..) => out.integer(key.len() as i64),
    }
    Ok(())
}
