//! Groups of consumers. A group keeps the entries that were delivered to each consumer and not
//! yet acknowledged.

use std::ops::RangeInclusive;

use bytes::Bytes;
use kvdb::{Batch, Tuple};

use super::arity;
use super::ids::Id;
use super::state::{Parts, State, Stream, corrupt, put_sized};
use crate::commands::collections::{Room, name, visit};
use crate::commands::{is, unknown_subcommand};
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, element_key};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

const GROUP: u8 = 1;
const CONSUMER: u8 = 2;
const PENDING: u8 = 3;

/// A group and its name.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: Vec<u8>,
    /// The ID up to which entries were delivered.
    pub last: Id,
    /// The number of entries read, if it is known.
    pub read: Option<u64>,
}

/// An entry that was delivered but not acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// The time of the last delivery, in milliseconds since 1970.
    pub at: u64,
    pub times: u64,
    pub consumer: Vec<u8>,
}

impl Pending {
    pub fn encode(&self) -> Vec<u8> {
        [&self.at.to_be_bytes()[..], &self.times.to_be_bytes(), &self.consumer].concat()
    }
    pub fn decode(bytes: &[u8]) -> Option<Pending> {
        let mut rest = Parts(bytes);
        let (at, times) = (rest.number()?, rest.number()?);
        Some(Pending { at, times, consumer: rest.0.to_vec() })
    }
}

/// Returns the error for a missing group or a missing stream.
pub fn no_group(key: &[u8], group: &[u8], place: &str) -> Failure {
    let (key, group) = (shown(key), shown(group));
    let text = format!("No such key '{key}' or consumer group '{group}'{place}");
    Failure::coded(ErrorCode::NoGroup, text)
}

/// Returns the error for a group that is missing in an existing stream.
pub fn no_group_of(key: &[u8], group: &[u8]) -> Failure {
    let (key, group) = (shown(key), shown(group));
    let text = format!("No such consumer group '{group}' for key name '{key}'");
    Failure::coded(ErrorCode::NoGroup, text)
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(256)]).into_owned()
}

/// Checks the name of a group or a consumer before it is stored, because both names are in one
/// key of the store.
pub fn check_name(s: &Session, name: &[u8]) -> Outcome {
    let most = s.shared.limits.key / 2;
    if name.len() > most {
        return Err(Failure::request(format!(
            "name of a group or consumer of {} bytes is longer than the limit of {most}",
            name.len()
        )));
    }
    Ok(())
}

fn named(tag: u8, group: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    put_sized(&mut out, group);
    out.extend_from_slice(rest);
    out
}

fn group_key(of: &Collection, group: &[u8]) -> Vec<u8> {
    element_key(of.id, &[&[GROUP], group].concat())
}

/// Returns the range of all elements of a stream with this tag whose names begin with a group.
fn range(of: &Collection, tag: u8, group: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let start = element_key(of.id, &named(tag, group, b""));
    let end = crate::glob::prefix_end(&start);
    (start, end)
}

impl Group {
    pub fn find(seen: &Seen<'_>, of: &Collection, name: &[u8]) -> Result<Option<Group>, Failure> {
        let value = seen.get(of.types, &group_key(of, name))?;
        let Some(value) = value else { return Ok(None) };
        Group::decode(name, &value).ok_or_else(|| corrupt(of, "a group")).map(Some)
    }
    /// Decodes a group: the last ID, and then either 0, or 1 and the number of entries read.
    fn decode(name: &[u8], value: &[u8]) -> Option<Group> {
        let mut rest = Parts(value);
        let (last, known, read) = (rest.id()?, rest.number()?, rest.number()?);
        let read = (known == 1).then_some(read);
        (rest.0.is_empty() && known <= 1).then(|| Group { name: name.to_vec(), last, read })
    }
    pub fn save(&self, of: &Collection, batch: &mut Batch) {
        let mut value = self.last.bytes().to_vec();
        value.extend_from_slice(&u64::from(self.read.is_some()).to_be_bytes());
        value.extend_from_slice(&self.read.unwrap_or(0).to_be_bytes());
        batch.put(of.types, group_key(of, &self.name), value);
    }
    /// Returns all groups of a stream.
    pub fn all(s: &Session, seen: &Seen<'_>, of: &Collection) -> Result<Vec<Group>, Failure> {
        let (start, end) = (element_key(of.id, &[GROUP]), element_key(of.id, &[CONSUMER]));
        let (mut all, mut room) = (Vec::new(), Room::of(s));
        visit(s, seen, of, (&start, &end), false, |tuple| {
            room.take(tuple.key.len())?;
            let name = name(tuple);
            let group = name.get(1..).unwrap_or_default();
            let group = Group::decode(group, &tuple.value()?);
            all.push(group.ok_or_else(|| corrupt(of, "a group"))?);
            Ok(true)
        })?;
        Ok(all)
    }
    /// Records the delivery of an entry.
    pub fn advance(&mut self, stream: &Stream, id: Id) {
        self.read = match self.read {
            Some(read) if !stream.has_gaps_from(id) => Some(read.saturating_add(1)),
            _ if stream.state.added > 0 => stream.added_up_to(id),
            read => read,
        };
        self.last = id;
    }
    /// Returns the number of entries that have not been delivered yet, if it is known. The number
    /// is negative if `XSETID` has set the number of added entries below the number read.
    pub fn lag(&self, stream: &Stream) -> Option<i64> {
        let State { added, .. } = stream.state;
        let read = match self.read {
            _ if added == 0 => return Some(0),
            Some(read) if !stream.has_gaps_from(self.last) => Some(read),
            _ => stream.added_up_to(self.last),
        };
        read.map(|read| (added as i64).saturating_sub(read as i64))
    }

    fn consumer_key(&self, of: &Collection, consumer: &[u8]) -> Vec<u8> {
        element_key(of.id, &named(CONSUMER, &self.name, consumer))
    }
    pub fn pending_key(&self, of: &Collection, id: Id) -> Vec<u8> {
        element_key(of.id, &named(PENDING, &self.name, &id.bytes()))
    }
    pub fn has_consumer(
        &self,
        seen: &Seen<'_>,
        of: &Collection,
        consumer: &[u8],
    ) -> Result<bool, Failure> {
        seen.has(of.types, &self.consumer_key(of, consumer))
    }
    /// Records activity of a consumer. Returns `true` if the consumer is new.
    pub fn see(
        &self,
        seen: &Seen<'_>,
        of: &Collection,
        consumer: &[u8],
        batch: &mut Batch,
    ) -> Result<bool, Failure> {
        let new = !self.has_consumer(seen, of, consumer)?;
        let now = seen.now.to_be_bytes().to_vec();
        batch.put(of.types, self.consumer_key(of, consumer), now);
        Ok(new)
    }
    /// Returns the consumers, each with the time of its last activity.
    pub fn consumers(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
    ) -> Result<Vec<(Vec<u8>, u64)>, Failure> {
        let (start, end) = range(of, CONSUMER, &self.name);
        let (mut all, mut room) = (Vec::new(), Room::of(s));
        visit(s, seen, of, (&start, &end), false, |tuple| {
            room.take(tuple.key.len())?;
            let value = tuple.value()?;
            let at = Parts(&value).number().ok_or_else(|| corrupt(of, "a consumer"))?;
            all.push((tuple.key.get(start.len()..).unwrap_or_default().to_vec(), at));
            Ok(true)
        })?;
        Ok(all)
    }
    pub fn pending(
        &self,
        seen: &Seen<'_>,
        of: &Collection,
        id: Id,
    ) -> Result<Option<Pending>, Failure> {
        let value = seen.get(of.types, &self.pending_key(of, id))?;
        let decoded = |value: Bytes| Pending::decode(&value);
        value.map(|v| decoded(v).ok_or_else(|| corrupt(of, "a delivery"))).transpose()
    }
    /// Visits the entries that were delivered but not acknowledged in the order of their IDs.
    /// Both bounds are inclusive.
    pub fn walk_pending(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
        (from, to): (Id, Id),
        mut each: impl FnMut(Id, Pending) -> Result<bool, Failure>,
    ) -> Outcome {
        let start = self.pending_key(of, from);
        let end = [&self.pending_key(of, to)[..], b"\0"].concat();
        let wrong = || corrupt(of, "a delivery");
        visit(s, seen, of, (&start, &end), false, |tuple: &Tuple| {
            let (_, id) = tuple.key.split_last_chunk().ok_or_else(wrong)?;
            let pending = Pending::decode(&tuple.value()?).ok_or_else(wrong)?;
            each(Id::from_bytes(*id), pending)
        })
    }

    /// Adds the removal of the whole group to the batch.
    fn remove(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        stream: &mut Stream,
        batch: &mut Batch,
    ) -> Outcome {
        let of = stream.of;
        batch.delete(of.types, group_key(&of, &self.name));
        stream.more -= 1;
        for tag in [CONSUMER, PENDING] {
            let (start, end) = range(&of, tag, &self.name);
            visit(s, seen, &of, (&start, &end), false, |_| {
                stream.more -= 1;
                Ok(true)
            })?;
            batch.delete_range(of.types, start, end);
        }
        Ok(())
    }
}

/// The subcommands of `XGROUP`, each with the permitted number of words.
const XGROUP_WORDS: &[(&str, RangeInclusive<usize>)] = &[
    ("create", 5..=8),
    ("createconsumer", 5..=5),
    ("delconsumer", 5..=5),
    ("destroy", 4..=4),
    ("help", 2..=2),
    ("setid", 5..=7),
];

const XGROUP_HELP: &[&str] = &[
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE key group id|$ [MKSTREAM] [ENTRIESREAD entries-read]",
    "SETID key group id|$ [ENTRIESREAD entries-read]",
    "DESTROY key group",
    "CREATECONSUMER key group consumer",
    "DELCONSUMER key group consumer",
];

const NO_STREAM: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to \
     use the MKSTREAM option to create an empty stream automatically.",
));

/// Parses the options of `XGROUP CREATE` and `SETID`: whether a missing stream is created, and
/// the number of entries that the group has read.
fn group_options(args: Arguments<'_>, creates: bool) -> Result<(bool, Option<u64>), Failure> {
    let (mut makes, mut read) = (false, None);
    let mut options = args.from(5);
    while let Some(option) = options.next() {
        if creates && is(option, "mkstream") {
            makes = true;
        } else if let Some(value) = options.next().filter(|_| is(option, "entriesread")) {
            let count = integer(value).ok_or(Failure::NOT_AN_INTEGER)?;
            if count < -1 {
                return Err(Failure::request("value for ENTRIESREAD must be positive or -1"));
            }
            read = u64::try_from(count).ok();
        } else {
            return Err(unknown_subcommand(args, "XGROUP"));
        }
    }
    Ok((makes, read))
}

/// Executes `XGROUP CREATE|SETID|DESTROY|CREATECONSUMER|DELCONSUMER key group ...`.
pub fn xgroup(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let word = args.at(1);
    let is_one = |name: &str| is(word, name);
    arity(args, "xgroup", XGROUP_WORDS)?;
    if is_one("help") {
        out.array(XGROUP_HELP.len());
        XGROUP_HELP.iter().for_each(|line| out.status(line));
        return Ok(());
    }
    let (creates, sets) = (is_one("create"), is_one("setid"));
    let of_consumer = is_one("createconsumer") || is_one("delconsumer");
    let (makes, read) = group_options(args, creates)?;
    let (key, group) = (args.at(2), args.at(3));
    let space = match s.existing()? {
        _ if makes => s.typed()?,
        found => found.ok_or(NO_STREAM)?,
    };
    if creates || of_consumer {
        s.check_key(key)?;
        check_name(s, group)?;
        check_name(s, if of_consumer { args.at(4) } else { b"" })?;
    }
    let replied = s.change(space, [key], |seen, batch| {
        let found = Stream::find(seen, key)?;
        if found.is_none() && !makes {
            return Err(NO_STREAM);
        }
        let there = match &found {
            Some(stream) => Group::find(seen, &stream.of, group)?,
            None => None,
        };
        if there.is_none() && (sets || of_consumer) {
            return Err(no_group_of(key, group));
        }
        if creates || sets {
            let last = position(args.at(4), found.as_ref(), creates)?;
            if creates && there.is_some() {
                return Err(Failure::coded(
                    ErrorCode::BusyGroup,
                    "Consumer Group name already exists",
                ));
            }
            let group = Group { name: group.to_vec(), last, read };
            put_group(s, (seen, batch), key, found, &group, creates)?;
            return Ok(None);
        }
        let (Some(mut stream), Some(there)) = (found, there) else { return Ok(Some(0)) };
        let Some(count) = change_group(s, seen, (&mut stream, &there), args, batch)? else {
            return Ok(Some(0));
        };
        stream.count(seen, key, batch);
        Ok(Some(count))
    })?;
    match replied {
        None => out.ok(),
        Some(count) => out.integer(count),
    }
    Ok(())
}

/// Parses the position of a group in the stream `found`. `$` is the end of the stream.
fn position(arg: &[u8], found: Option<&Stream>, creates: bool) -> Result<Id, Failure> {
    match arg {
        b"$" => Ok(found.map_or(Id::MIN, |stream| stream.state.last)),
        arg if creates => Id::parse(arg, 0),
        arg => Id::parse_bound(arg, 0),
    }
}

/// Runs `DESTROY`, `CREATECONSUMER` or `DELCONSUMER` on an existing group. Returns the number for
/// the reply, or `None` if the consumer to be created already exists.
fn change_group(
    s: &Session,
    seen: &Seen<'_>,
    (stream, group): (&mut Stream, &Group),
    args: Arguments<'_>,
    batch: &mut Batch,
) -> Result<Option<i64>, Failure> {
    let (word, key) = (args.at(1), args.at(2));
    if is(word, "destroy") {
        group.remove(s, seen, stream, batch)?;
        seen.filled(Kind::Stream, key, false);
        seen.event(Classes::STREAM, "xgroup-destroy", key);
        return Ok(Some(1));
    }
    let consumer = args.at(4);
    if is(word, "createconsumer") {
        if group.has_consumer(seen, &stream.of, consumer)? {
            return Ok(None);
        }
        group.see(seen, &stream.of, consumer, batch)?;
        stream.more += 1;
        seen.event(Classes::STREAM, "xgroup-createconsumer", key);
        return Ok(Some(1));
    }
    let deleted = delete_consumer(s, seen, stream, group, consumer, batch)?;
    if deleted.is_some() {
        seen.event(Classes::STREAM, "xgroup-delconsumer", key);
    }
    Ok(Some(deleted.unwrap_or(0)))
}

/// Stores a group that is created or whose position has changed. The stream is created if it does
/// not exist.
fn put_group(
    s: &Session,
    (seen, batch): (&Seen<'_>, &mut Batch),
    key: &[u8],
    found: Option<Stream>,
    group: &Group,
    creates: bool,
) -> Outcome {
    let new = found.is_none();
    let mut stream = match found {
        Some(stream) => stream,
        None => Stream::begin(s, seen, key, batch)?,
    };
    stream.more += i64::from(creates);
    group.save(&stream.of, batch);
    if new {
        stream.save(seen, key, batch);
    } else {
        stream.count(seen, key, batch);
    }
    let name = if creates { "xgroup-create" } else { "xgroup-setid" };
    seen.event(Classes::STREAM, name, key);
    Ok(())
}

/// Adds the removal of a consumer and its pending entries to the batch, and returns the number of
/// these entries, or `None` if the consumer does not exist.
fn delete_consumer(
    s: &Session,
    seen: &Seen<'_>,
    stream: &mut Stream,
    group: &Group,
    consumer: &[u8],
    batch: &mut Batch,
) -> Result<Option<i64>, Failure> {
    let of = stream.of;
    if !group.has_consumer(seen, &of, consumer)? {
        return Ok(None);
    }
    let (mut count, mut room) = (0, Room::of(s));
    group.walk_pending(s, seen, &of, (Id::MIN, Id::MAX), |id, pending| {
        if pending.consumer == consumer {
            room.take(group.name.len())?;
            batch.delete(of.types, group.pending_key(&of, id));
            count += 1;
        }
        Ok(true)
    })?;
    batch.delete(of.types, group.consumer_key(&of, consumer));
    stream.more -= count + 1;
    Ok(Some(count))
}

/// Executes `XACK key group id ...`.
pub fn xack(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, group) = (args.at(1), args.at(2));
    let acknowledged = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(mut stream) = Stream::find(seen, key)? else { return Ok(0) };
            let Some(group) = Group::find(seen, &stream.of, group)? else { return Ok(0) };
            let ids = args.from(3).map(|arg| Id::parse(arg, 0));
            let ids: std::collections::BTreeSet<Id> = ids.collect::<Result<_, _>>()?;
            let mut count = 0;
            for id in ids {
                let place = group.pending_key(&stream.of, id);
                if seen.has(stream.of.types, &place)? {
                    batch.delete(stream.of.types, place);
                    count += 1;
                }
            }
            stream.more -= count;
            stream.count(seen, key, batch);
            Ok(count)
        })?,
    };
    out.integer(acknowledged);
    Ok(())
}

/// Returns whether an element other than an entry belongs to one of `groups`, or is itself a
/// valid group, in which case it is added to `groups`.
pub fn is_sound<'a>(
    name: &'a [u8],
    value: &[u8],
    groups: &mut std::collections::HashSet<&'a [u8]>,
) -> bool {
    let Some((tag, rest)) = name.split_first() else { return false };
    if *tag == GROUP {
        groups.insert(rest);
        return Group::decode(rest, value).is_some();
    }
    let mut rest = Parts(rest);
    let known = rest.sized().is_some_and(|group| groups.contains(group));
    known
        && match *tag {
            CONSUMER => value.len() == 8,
            PENDING => rest.0.len() == 16 && Pending::decode(value).is_some(),
            _ => false,
        }
}

/// Returns a readable name of an element of a group.
pub fn shown_name(name: &[u8]) -> Option<Vec<u8>> {
    let (tag, rest) = name.split_first()?;
    if *tag == GROUP {
        return Some([b"group ", rest].concat());
    }
    let mut parts = Parts(rest);
    let group = parts.sized()?;
    match *tag {
        CONSUMER => Some([b"consumer ", parts.0, b" of ", group].concat()),
        PENDING => {
            let id = parts.id()?.text();
            Some([b"delivery of ", id.as_bytes(), b" to ", group].concat())
        }
        _ => None,
    }
}
