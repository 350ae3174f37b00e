//! `XINFO`: returns information about a stream, its groups and their consumers.

use std::collections::HashMap;

use super::groups::{Group, Pending, no_group_of};
use super::ids::Id;
use super::state::{Entry, State, Stream, corrupt};
use super::{NO_KEY, arity, write_entries, write_entry};
use crate::commands::collections::Room;
use crate::commands::{is, unknown_subcommand};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Seen;

const HELP: &[&str] = &[
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS key group",
    "GROUPS key",
    "STREAM key [FULL [COUNT count]]",
];

/// Number of entries and deliveries that `FULL` shows without a `COUNT`.
const FULL: usize = 10;

/// Executes `XINFO STREAM key [FULL [COUNT count]] | GROUPS key | CONSUMERS key group`.
pub fn xinfo(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(
        args,
        "xinfo",
        &[("consumers", 4..=4), ("groups", 3..=3), ("help", 2..=2), ("stream", 3..=usize::MAX)],
    )?;
    let seen = s.see()?;
    let find = || Stream::find(&seen, args.at(2))?.ok_or(NO_KEY);
    match args.at(1) {
        o if is(o, "help") => {
            out.array(HELP.len());
            HELP.iter().for_each(|line| out.status(line));
            Ok(())
        }
        o if is(o, "stream") && args.len() == 3 => stream(s, &seen, &find()?, out),
        o if is(o, "stream") => {
            let stream = find()?;
            full(s, &seen, &stream, full_count(args)?, out)
        }
        o if is(o, "groups") => groups(s, &seen, &find()?, out),
        o if is(o, "consumers") => {
            let stream = find()?;
            let group = Group::find(&seen, &stream.of, args.at(3))?;
            let group = group.ok_or_else(|| no_group_of(args.at(2), args.at(3)))?;
            consumers(s, &seen, &stream, &group, out)
        }
        _ => Err(unknown_subcommand(args, "XINFO")),
    }
}

fn full_count(args: Arguments<'_>) -> Result<usize, Failure> {
    let words = (is(args.at(3), "full"), args.len());
    match words {
        (true, 4) => Ok(FULL),
        (true, 6) if is(args.at(4), "count") => {
            let count = integer(args.at(5)).ok_or(Failure::NOT_AN_INTEGER)?;
            Ok(match usize::try_from(count) {
                Ok(0) => usize::MAX,
                Ok(count) => count,
                Err(_) => FULL,
            })
        }
        _ => Err(unknown_subcommand(args, "XINFO")),
    }
}

/// Writes the first fields of both forms of `XINFO STREAM`. Redis counts the nodes of its radix
/// tree; the corresponding numbers here are derived from the length.
fn head(stream: &Stream, out: &mut Output) {
    let State { last, added, deleted, first, len } = stream.state;
    let nodes = len.div_ceil(100) as i64;
    let numbers = [("length", len as i64), ("radix-tree-keys", nodes)];
    for (name, number) in numbers.into_iter().chain([("radix-tree-nodes", nodes + 1)]) {
        out.bulk(name.as_bytes());
        out.integer(number);
    }
    out.bulk(b"last-generated-id");
    out.bulk(last.text().as_bytes());
    out.bulk(b"max-deleted-entry-id");
    out.bulk(deleted.text().as_bytes());
    out.bulk(b"entries-added");
    out.integer(added as i64);
    out.bulk(b"recorded-first-entry-id");
    out.bulk(first.text().as_bytes());
}

fn stream(s: &Session, seen: &Seen<'_>, stream: &Stream, out: &mut Output) -> Outcome {
    let ends = [false, true].map(|backward| stream.outermost(s, seen, EACH, backward));
    let [first, last] = ends;
    let ends = [("first-entry", first?), ("last-entry", last?)];
    if ends.iter().any(|(_, entry)| entry.as_ref().is_some_and(|entry| entry.words().is_none())) {
        return Err(corrupt(&stream.of, "an entry"));
    }
    let groups = Group::all(s, seen, &stream.of)?.len();
    out.map(10);
    head(stream, out);
    out.bulk(b"groups");
    out.integer(groups as i64);
    for (name, entry) in ends {
        out.bulk(name.as_bytes());
        match entry {
            Some(entry) => write_entry(&entry, out),
            None => out.null(),
        }
    }
    Ok(())
}

const EACH: (Id, Id) = (Id::MIN, Id::MAX);

/// Returns the number of pending entries of a group, and the number for each of its consumers.
fn counts(
    s: &Session,
    seen: &Seen<'_>,
    stream: &Stream,
    group: &Group,
) -> Result<(i64, HashMap<Vec<u8>, i64>), Failure> {
    let (mut all, mut of_each, mut room) = (0, HashMap::new(), Room::of(s));
    group.walk_pending(s, seen, &stream.of, EACH, |_, pending| {
        all += 1;
        if !of_each.contains_key(&pending.consumer) {
            room.take(pending.consumer.len())?;
        }
        *of_each.entry(pending.consumer).or_default() += 1;
        Ok(true)
    })?;
    Ok((all, of_each))
}

fn optional(number: Option<i64>, out: &mut Output) {
    match number {
        Some(number) => out.integer(number),
        None => out.null(),
    }
}

fn groups(s: &Session, seen: &Seen<'_>, stream: &Stream, out: &mut Output) -> Outcome {
    let mut all = Vec::new();
    for group in Group::all(s, seen, &stream.of)? {
        let consumers = group.consumers(s, seen, &stream.of)?.len();
        let pending = counts(s, seen, stream, &group)?.0;
        all.push((group, consumers, pending));
    }
    out.array(all.len());
    for (group, consumers, pending) in all {
        out.map(6);
        out.bulk(b"name");
        out.bulk(&group.name);
        out.bulk(b"consumers");
        out.integer(consumers as i64);
        out.bulk(b"pending");
        out.integer(pending);
        out.bulk(b"last-delivered-id");
        out.bulk(group.last.text().as_bytes());
        out.bulk(b"entries-read");
        optional(group.read.map(|read| read as i64), out);
        out.bulk(b"lag");
        optional(group.lag(stream), out);
    }
    Ok(())
}

fn consumers(
    s: &Session,
    seen: &Seen<'_>,
    stream: &Stream,
    group: &Group,
    out: &mut Output,
) -> Outcome {
    let of_each = counts(s, seen, stream, group)?.1;
    let all = group.consumers(s, seen, &stream.of)?;
    out.array(all.len());
    for (name, at) in all {
        out.map(3);
        out.bulk(b"name");
        out.bulk(&name);
        out.bulk(b"pending");
        out.integer(of_each.get(&name).copied().unwrap_or(0));
        out.bulk(b"idle");
        out.integer(seen.now.saturating_sub(at) as i64);
    }
    Ok(())
}

/// A group in the form in which `FULL` shows it.
struct Whole {
    group: Group,
    consumers: Vec<(Vec<u8>, u64)>,
    /// The number of pending entries, in total and for each consumer, and the entries that are
    /// shown.
    count: i64,
    of_each: HashMap<Vec<u8>, i64>,
    shown: Vec<(Id, Pending)>,
    shown_of_each: HashMap<Vec<u8>, Vec<(Id, Pending)>>,
}

fn full(s: &Session, seen: &Seen<'_>, stream: &Stream, most: usize, out: &mut Output) -> Outcome {
    let (mut entries, mut room) = (Vec::new(), Room::of(s));
    stream.entries(s, seen, EACH, false, |tuple| {
        room.take(tuple.value_len())?;
        entries.push(Entry::of(&stream.of, tuple)?);
        Ok(entries.len() < most)
    })?;
    let mut all = Vec::new();
    for group in Group::all(s, seen, &stream.of)? {
        let consumers = group.consumers(s, seen, &stream.of)?;
        let (count, of_each) = counts(s, seen, stream, &group)?;
        let mut shown = Vec::new();
        let mut shown_of_each: HashMap<Vec<u8>, Vec<(Id, Pending)>> = HashMap::new();
        group.walk_pending(s, seen, &stream.of, EACH, |id, pending| {
            let of_one = shown_of_each.entry(pending.consumer.clone()).or_default();
            if of_one.len() < most {
                room.take(2 * pending.consumer.len() + 64)?;
                of_one.push((id, pending.clone()));
            }
            if shown.len() < most {
                room.take(pending.consumer.len() + 64)?;
                shown.push((id, pending));
            }
            Ok(true)
        })?;
        all.push(Whole { group, consumers, count, of_each, shown, shown_of_each });
    }
    if entries.iter().any(|entry| entry.words().is_none()) {
        return Err(corrupt(&stream.of, "an entry"));
    }
    out.map(9);
    head(stream, out);
    out.bulk(b"entries");
    write_entries(&stream.of, &entries, out)?;
    out.bulk(b"groups");
    out.array(all.len());
    all.iter().for_each(|whole| write_whole(stream, whole, out));
    Ok(())
}

fn write_whole(stream: &Stream, whole: &Whole, out: &mut Output) {
    let group = &whole.group;
    out.map(7);
    out.bulk(b"name");
    out.bulk(&group.name);
    out.bulk(b"last-delivered-id");
    out.bulk(group.last.text().as_bytes());
    out.bulk(b"entries-read");
    optional(group.read.map(|read| read as i64), out);
    out.bulk(b"lag");
    optional(group.lag(stream), out);
    out.bulk(b"pel-count");
    out.integer(whole.count);
    out.bulk(b"pending");
    out.array(whole.shown.len());
    for (id, pending) in &whole.shown {
        out.array(4);
        out.bulk(id.text().as_bytes());
        out.bulk(&pending.consumer);
        out.integer(pending.at as i64);
        out.integer(pending.times as i64);
    }
    out.bulk(b"consumers");
    out.array(whole.consumers.len());
    for (name, at) in &whole.consumers {
        out.map(4);
        out.bulk(b"name");
        out.bulk(name);
        out.bulk(b"seen-time");
        out.integer(*at as i64);
        out.bulk(b"pel-count");
        out.integer(whole.of_each.get(name).copied().unwrap_or(0));
        out.bulk(b"pending");
        let shown = whole.shown_of_each.get(name).map_or(&[][..], Vec::as_slice);
        out.array(shown.len());
        for (id, pending) in shown {
            out.array(3);
            out.bulk(id.text().as_bytes());
            out.integer(pending.at as i64);
            out.integer(pending.times as i64);
        }
    }
}
