//! `XREAD` and `XREADGROUP`. They read the entries after an ID in several streams, and wait for
//! entries on request.

use std::time::Duration;

use bytes::Bytes;
use kvdb::Batch;

use super::groups::{Group, Pending, no_group};
use super::ids::Id;
use super::state::{Entry, Stream, corrupt};
use super::write_entry;
use crate::commands::blocking;
use crate::commands::collections::Room;
use crate::commands::is;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

/// The request of a reader.
struct Request<'a> {
    /// The time to wait. `None` does not wait; `Some(None)` waits without a limit.
    waits: Option<Option<Duration>>,
    most: usize,
    keys: Vec<&'a [u8]>,
    ids: Vec<&'a [u8]>,
    /// The group and the consumer of `XREADGROUP`.
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
}

/// The position after which a stream is read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Id(Id),
    /// The last entry that was delivered to the group.
    Delivered,
}

/// The entries found in one stream. An entry that was deleted after its delivery has no value.
struct Found {
    key: Vec<u8>,
    of: Collection,
    entries: Vec<(Id, Option<Entry>)>,
}

impl<'a> Request<'a> {
    fn parse(args: Arguments<'a>, in_group: bool) -> Result<Self, Failure> {
        let only_groups = |option: &str| {
            Failure::request(format!(
                "The {option} option is only supported by XREADGROUP. You called XREAD instead."
            ))
        };
        let (mut waits, mut most, mut group, mut no_ack) = (None, usize::MAX, None, false);
        let mut at = 1;
        while let Some(word) = args.get(at) {
            let left = args.len() - 1 - at;
            if is(word, "block") && left > 0 {
                let time = integer(args.at(at + 1));
                let time =
                    time.ok_or(Failure::request("timeout is not an integer or out of range"))?;
                let negative = |_| Failure::request("timeout is negative");
                let time = u64::try_from(time).map_err(negative)?;
                waits = Some((time > 0).then(|| Duration::from_millis(time)));
                at += 2;
            } else if is(word, "count") && left > 0 {
                let count = integer(args.at(at + 1)).ok_or(Failure::NOT_AN_INTEGER)?;
                let count = usize::try_from(count).unwrap_or(0);
                most = if count == 0 { usize::MAX } else { count };
                at += 2;
            } else if is(word, "streams") && left > 0 {
                if !left.is_multiple_of(2) {
                    let (name, mark) = if in_group { ("xreadgroup", '>') } else { ("xread", '$') };
                    return Err(Failure::request(format!(
                        "Unbalanced '{name}' list of streams: for each stream key an ID or \
                         '{mark}' must be specified."
                    )));
                }
                if in_group && group.is_none() {
                    return Err(Failure::request("Missing GROUP option for XREADGROUP"));
                }
                let keys = args.from(at + 1).take(left / 2).collect();
                let ids = args.from(at + 1 + left / 2).collect();
                return Ok(Request { waits, most, keys, ids, group, no_ack });
            } else if is(word, "group") && left >= 2 {
                if !in_group {
                    return Err(only_groups("GROUP"));
                }
                group = Some((args.at(at + 1), args.at(at + 2)));
                at += 3;
            } else if is(word, "noack") {
                if !in_group {
                    return Err(only_groups("NOACK"));
                }
                no_ack = true;
                at += 1;
            } else {
                return Err(Failure::SYNTAX);
            }
        }
        Err(Failure::SYNTAX)
    }

    /// Returns the position after which each stream is read, according to its current state.
    fn positions(&self, s: &Session) -> Result<Vec<After>, Failure> {
        let seen = s.see()?;
        let mut positions = Vec::new();
        for (key, arg) in self.keys.iter().zip(&self.ids) {
            let stream = Stream::find(&seen, key)?;
            if let Some((group, _)) = self.group {
                let there = match &stream {
                    Some(stream) => Group::find(&seen, &stream.of, group)?,
                    None => None,
                };
                there.ok_or_else(|| missing(key, group))?;
            }
            positions.push(match (*arg, self.group) {
                (b"$", Some(_)) => {
                    return Err(Failure::request(
                        "The $ ID is meaningless in the context of XREADGROUP: you want to read \
                         the history of this consumer by specifying a proper ID, or use the > ID \
                         to get new messages. The $ ID would just return an empty result set.",
                    ));
                }
                (b"$", None) => After::Id(stream.map_or(Id::MIN, |stream| stream.state.last)),
                (b">", Some(_)) => After::Delivered,
                (b">", None) => {
                    return Err(Failure::request(
                        "The > ID can be specified only when calling XREADGROUP using the GROUP \
                         <group> <consumer> option.",
                    ));
                }
                (arg, _) => After::Id(Id::parse(arg, 0)?),
            });
        }
        Ok(positions)
    }
}

/// Returns the keys in the arguments of `XREAD` or `XREADGROUP`.
pub fn keys_of_read(args: Arguments<'_>) -> Vec<&[u8]> {
    let Some(at) = (1..args.len()).find(|at| is(args.at(*at), "streams")) else {
        return Vec::new();
    };
    let left = args.len() - 1 - at;
    args.from(at + 1).take(left / 2).collect()
}

/// Returns whether `XREAD` or `XREADGROUP` with these arguments waits for entries.
pub fn waits(words: &[&[u8]]) -> bool {
    let mut options = words.iter().skip(1).take_while(|word| !is(word, "streams"));
    let mut waits = false;
    while let Some(option) = options.next() {
        match option {
            o if is(o, "group") => drop(options.nth(1)),
            o if is(o, "count") => drop(options.next()),
            o => waits |= is(o, "block"),
        }
    }
    waits
}

fn missing(key: &[u8], group: &[u8]) -> Failure {
    no_group(key, group, " in XREADGROUP with GROUP option")
}

/// Executes `XREAD [COUNT count] [BLOCK milliseconds] STREAMS key ... id ...`.
pub fn xread(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let request = Request::parse(args, false)?;
    let positions = request.positions(s)?;
    let read = |s: &Session, again: bool| {
        let (seen, mut found, mut room) = (s.see()?, Vec::new(), Room::of(s));
        for (key, after) in request.keys.iter().zip(&positions) {
            let stream = match Stream::find(&seen, key) {
                Err(failure) if again && failure.is_wrong_type() => continue,
                stream => stream?,
            };
            let (Some(stream), After::Id(after)) = (stream, after) else { continue };
            let entries = stream_after(s, &seen, &stream, *after, request.most, &mut room)?;
            if !entries.is_empty() {
                let entries = entries.into_iter().map(|entry| (entry.id, Some(entry))).collect();
                found.push(Found { key: key.to_vec(), of: stream.of, entries });
            }
        }
        Ok((!found.is_empty()).then_some(found))
    };
    let found = wait_for(s, &request, out, read)?;
    write(found, out)
}

/// Reads available entries at once, or waits until there are entries.
fn wait_for(
    s: &mut Session,
    request: &Request<'_>,
    out: &mut Output,
    read: impl Fn(&Session, bool) -> Result<Option<Vec<Found>>, Failure>,
) -> Result<Option<Vec<Found>>, Failure> {
    match (read(s, false)?, request.waits) {
        (None, Some(at_most)) => {
            blocking::until(s, (Kind::Stream, &request.keys), at_most, out, |s| read(s, true))
        }
        (found, _) => Ok(found),
    }
}

fn stream_after(
    s: &Session,
    seen: &Seen<'_>,
    stream: &Stream,
    after: Id,
    most: usize,
    room: &mut Room,
) -> Result<Vec<Entry>, Failure> {
    let mut found = Vec::new();
    let Some(from) = after.next() else { return Ok(found) };
    stream.entries(s, seen, (from, Id::MAX), false, |tuple| {
        room.take(tuple.value_len())?;
        found.push(Entry::of(&stream.of, tuple)?);
        Ok(found.len() < most)
    })?;
    Ok(found)
}

fn write(found: Option<Vec<Found>>, out: &mut Output) -> Outcome {
    let Some(found) = found else {
        out.null_array();
        return Ok(());
    };
    for one in &found {
        let mut there = one.entries.iter().filter_map(|(_, entry)| entry.as_ref());
        if there.any(|entry| entry.words().is_none()) {
            return Err(corrupt(&one.of, "an entry"));
        }
    }
    if out.resp3 {
        out.map(found.len());
    } else {
        out.array(found.len());
    }
    for one in found {
        if !out.resp3 {
            out.array(2);
        }
        out.bulk(&one.key);
        out.array(one.entries.len());
        for (id, entry) in &one.entries {
            match entry {
                Some(entry) => write_entry(entry, out),
                None => {
                    out.array(2);
                    out.bulk(id.text().as_bytes());
                    out.null_array();
                }
            }
            out.send_if_large();
        }
    }
    Ok(())
}

/// Executes `XREADGROUP GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS
/// key ... id ...`.
pub fn xreadgroup(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let request = Request::parse(args, true)?;
    let positions = request.positions(s)?;
    let found = wait_for(s, &request, out, |s, again| deliver(s, &request, &positions, again))?;
    write(found, out)
}

const GONE: Failure = Failure::Coded(
    ErrorCode::Unblocked,
    std::borrow::Cow::Borrowed("the stream key no longer exists"),
);

/// Delivers the available entries to the consumer.
fn deliver(
    s: &Session,
    request: &Request<'_>,
    positions: &[After],
    again: bool,
) -> Result<Option<Vec<Found>>, Failure> {
    let Some((group, consumer)) = request.group else { return Ok(None) };
    super::groups::check_name(s, consumer)?;
    let first = request.keys.first().copied().unwrap_or_default();
    let Some(space) = s.existing()? else {
        return Err(if again { GONE } else { missing(first, group) });
    };
    s.change(space, request.keys.iter().copied(), |seen, batch| {
        let (mut all, mut room) = (Vec::new(), Room::of(s));
        for (at, (key, after)) in request.keys.iter().zip(positions).enumerate() {
            if request.keys[..at].contains(key) {
                // A second occurrence of the stream would not see the uncommitted deliveries of
                // the first one.
                return Err(Failure::request("a stream is named twice"));
            }
            let stream = match Stream::find(seen, key) {
                Ok(Some(stream)) => stream,
                Ok(None) if !again => return Err(missing(key, group)),
                Err(failure) if !again || !failure.is_wrong_type() => return Err(failure),
                _ => return Err(GONE),
            };
            let mut reading = Reading { s, seen, stream, room: &mut room, request };
            let mut state =
                Group::find(seen, &reading.stream.of, group)?.ok_or_else(|| missing(key, group))?;
            let found = match after {
                After::Delivered => {
                    let found = reading.new_entries(&mut state, consumer, batch)?;
                    if found.is_empty() { None } else { Some(found) }
                }
                After::Id(after) => Some(reading.history(&state, consumer, *after, batch)?),
            };
            let waits = !again && request.waits.is_some() && !s.exec.is_running();
            if found.is_some() || waits {
                let new = state.see(seen, &reading.stream.of, consumer, batch)?;
                if new {
                    reading.stream.more += 1;
                    seen.event(Classes::STREAM, "xgroup-createconsumer", key);
                }
                reading.stream.count(seen, key, batch);
            }
            let of = reading.stream.of;
            all.extend(found.map(|entries| Found { key: key.to_vec(), of, entries }));
        }
        Ok((!all.is_empty()).then_some(all))
    })
}

/// A stream whose entries are delivered to a consumer.
struct Reading<'a, 'b> {
    s: &'a Session,
    seen: &'a Seen<'b>,
    stream: Stream,
    room: &'a mut Room,
    request: &'a Request<'a>,
}

impl Reading<'_, '_> {
    fn new_entries(
        &mut self,
        group: &mut Group,
        consumer: &[u8],
        batch: &mut Batch,
    ) -> Result<Vec<(Id, Option<Entry>)>, Failure> {
        let (most, stream, mut more) = (self.request.most, &self.stream, 0);
        let found = stream_after(self.s, self.seen, stream, group.last, most, self.room)?;
        for entry in &found {
            group.advance(stream, entry.id);
            if !self.request.no_ack {
                let pending = Pending { at: self.seen.now, times: 1, consumer: consumer.into() };
                self.room.take(pending.consumer.len() + group.name.len())?;
                let place = group.pending_key(&stream.of, entry.id);
                // After `SETID` the entry may already be pending for another consumer.
                more += i64::from(!self.seen.has(stream.of.types, &place)?);
                batch.put(stream.of.types, place, Bytes::from(pending.encode()));
            }
        }
        if !found.is_empty() {
            group.save(&stream.of, batch);
        }
        self.stream.more += more;
        Ok(found.into_iter().map(|entry| (entry.id, Some(entry))).collect())
    }

    /// Delivers again the entries that this consumer has received but not acknowledged.
    fn history(
        &mut self,
        group: &Group,
        consumer: &[u8],
        after: Id,
        batch: &mut Batch,
    ) -> Result<Vec<(Id, Option<Entry>)>, Failure> {
        let Some(from) = after.next() else { return Ok(Vec::new()) };
        let (mut found, of, most) = (Vec::new(), self.stream.of, self.request.most);
        group.walk_pending(self.s, self.seen, &of, (from, Id::MAX), |id, mut pending| {
            if pending.consumer != consumer {
                return Ok(true);
            }
            let entry = self.stream.entry(self.seen, id)?;
            self.room.take(entry.as_ref().map_or(0, Entry::size) + pending.consumer.len())?;
            if entry.is_some() {
                pending.at = self.seen.now;
                pending.times = pending.times.saturating_add(1);
                batch.put(of.types, group.pending_key(&of, id), Bytes::from(pending.encode()));
            }
            found.push((id, entry));
            Ok(found.len() < most)
        })?;
        Ok(found)
    }
}
