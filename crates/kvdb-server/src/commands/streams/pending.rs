//! Entries that were delivered but not acknowledged: `XPENDING`, `XCLAIM`, `XAUTOCLAIM`.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvdb::Batch;

use super::groups::{Group, Pending, check_name, no_group};
use super::ids::Id;
use super::state::{Entry, Stream, corrupt};
use super::write_entry;
use crate::commands::collections::Room;
use crate::commands::is;
use crate::failure::{Failure, Outcome};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Seen;

fn find(seen: &Seen<'_>, key: &[u8], group: &[u8]) -> Result<(Stream, Group), Failure> {
    let missing = || no_group(key, group, "");
    let stream = Stream::find(seen, key)?.ok_or_else(missing)?;
    let group = Group::find(seen, &stream.of, group)?.ok_or_else(missing)?;
    Ok((stream, group))
}

/// Executes `XPENDING key group [[IDLE min-idle-time] start end count [consumer]]`.
pub fn xpending(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.len() == 3 {
        return summary(s, args, out);
    }
    if !(6..=9).contains(&args.len()) {
        return Err(Failure::SYNTAX);
    }
    let (mut at, mut idle) = (3, 0);
    if is(args.at(3), "idle") {
        let least = integer(args.at(4)).ok_or(Failure::NOT_AN_INTEGER)?;
        idle = u64::try_from(least).unwrap_or(0);
        if args.len() < 8 {
            return Err(Failure::SYNTAX);
        }
        at = 5;
    }
    let most = integer(args.at(at + 2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let most = usize::try_from(most).unwrap_or(0);
    let bounds = (Id::parse_start(args.at(at))?, Id::parse_end(args.at(at + 1))?);
    let consumer = args.get(at + 3);
    let seen = s.see()?;
    let (stream, group) = find(&seen, args.at(1), args.at(2))?;
    let (mut found, mut room) = (Vec::new(), Room::of(s));
    if most > 0 {
        group.walk_pending(s, &seen, &stream.of, bounds, |id, pending| {
            let long_ago = seen.now.saturating_sub(pending.at) >= idle;
            if long_ago && consumer.is_none_or(|consumer| pending.consumer == consumer) {
                room.take(pending.consumer.len())?;
                found.push((id, pending));
            }
            Ok(found.len() < most)
        })?;
    }
    out.array(found.len());
    for (id, pending) in found {
        out.array(4);
        out.bulk(id.text().as_bytes());
        out.bulk(&pending.consumer);
        out.integer(seen.now.saturating_sub(pending.at) as i64);
        out.integer(pending.times as i64);
        out.send_if_large();
    }
    Ok(())
}

fn summary(s: &Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let (stream, group) = find(&seen, args.at(1), args.at(2))?;
    let (mut count, mut bounds, mut room) = (0, None, Room::of(s));
    let mut consumers: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    group.walk_pending(s, &seen, &stream.of, (Id::MIN, Id::MAX), |id, pending| {
        count += 1;
        bounds = Some((bounds.map_or(id, |(first, _)| first), id));
        if !consumers.contains_key(&pending.consumer) {
            room.take(pending.consumer.len())?;
        }
        *consumers.entry(pending.consumer).or_default() += 1;
        Ok(true)
    })?;
    out.array(4);
    out.integer(count);
    let Some((first, last)) = bounds else {
        out.null();
        out.null();
        out.null_array();
        return Ok(());
    };
    out.bulk(first.text().as_bytes());
    out.bulk(last.text().as_bytes());
    out.array(consumers.len());
    for (consumer, count) in consumers {
        out.array(2);
        out.bulk(&consumer);
        out.bulk(count.to_string().as_bytes());
    }
    Ok(())
}

/// The options of a claim, which change the delivery of an entry.
#[derive(Default)]
struct Claim {
    /// Index of the first option in the arguments.
    options_at: usize,
    ids: Vec<Id>,
    force: bool,
    only_ids: bool,
    /// The new delivery time. `idle` is in milliseconds before now, and `time` in milliseconds
    /// since 1970.
    idle: Option<i64>,
    time: Option<i64>,
    times: Option<u64>,
    last: Id,
}

impl Claim {
    fn parse(args: Arguments<'_>) -> Result<Claim, Failure> {
        let mut claim = Claim { options_at: 5, ..Claim::default() };
        while let Some(id) = args.get(claim.options_at).and_then(|arg| Id::parse(arg, 0).ok()) {
            claim.ids.push(id);
            claim.options_at += 1;
        }
        let mut options = args.from(claim.options_at);
        while let Some(option) = options.next() {
            let left = options.len() > 0;
            let mut number = |name: &str| {
                let value = options.next().unwrap_or_default();
                let wrong = format!("Invalid {name} option argument for XCLAIM");
                integer(value).ok_or(Failure::request(wrong))
            };
            match option {
                o if is(o, "force") => claim.force = true,
                o if is(o, "justid") => claim.only_ids = true,
                o if is(o, "idle") && left => {
                    (claim.idle, claim.time) = (Some(number("IDLE")?), None);
                }
                o if is(o, "time") && left => {
                    (claim.time, claim.idle) = (Some(number("TIME")?), None);
                }
                o if is(o, "retrycount") && left => {
                    claim.times = u64::try_from(number("RETRYCOUNT")?).ok();
                }
                o if is(o, "lastid") && left => {
                    claim.last = Id::parse(options.next().unwrap_or_default(), 0)?;
                }
                o => {
                    let option = String::from_utf8_lossy(&o[..o.len().min(128)]).into_owned();
                    return Err(Failure::request(format!("Unrecognized XCLAIM option '{option}'")));
                }
            }
        }
        Ok(claim)
    }
    /// Returns the new delivery time of the entries.
    fn at(&self, now: u64) -> u64 {
        let at = match (self.idle, self.time) {
            (Some(idle), _) => i64::try_from(now).ok().and_then(|now| now.checked_sub(idle)),
            (None, time) => time,
        };
        at.and_then(|at| u64::try_from(at).ok()).filter(|at| *at <= now).unwrap_or(now)
    }
}

fn idle_time(args: Arguments<'_>, name: &str) -> Result<u64, Failure> {
    let wrong = || Failure::request(format!("Invalid min-idle-time argument for {name}"));
    Ok(u64::try_from(integer(args.at(4)).ok_or_else(wrong)?).unwrap_or(0))
}

/// Entries that a consumer has claimed; `gone` are those that were deleted from the stream.
#[derive(Default)]
struct Claimed {
    entries: Vec<(Id, Option<Entry>)>,
    gone: Vec<Id>,
    next: Id,
}

impl Claimed {
    /// Records activity of the consumer if it has received an entry.
    fn see(
        &self,
        seen: &Seen<'_>,
        (key, consumer): (&[u8], &[u8]),
        (stream, group): (&mut Stream, &Group),
        batch: &mut Batch,
    ) -> Outcome {
        if !self.entries.is_empty() && group.see(seen, &stream.of, consumer, batch)? {
            stream.more += 1;
            seen.event(Classes::STREAM, "xgroup-createconsumer", key);
        }
        Ok(())
    }
}

/// Executes `XCLAIM key group consumer min-idle-time id ... [IDLE ms] [TIME ms] [RETRYCOUNT
/// count] [FORCE] [JUSTID] [LASTID id]`.
pub fn xclaim(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, name, consumer) = (args.at(1), args.at(2), args.at(3));
    // An error that concerns the group takes precedence over other errors.
    find(&s.see()?, key, name)?;
    let idle = idle_time(args, "XCLAIM")?;
    let claim = Claim::parse(args)?;
    check_name(s, consumer)?;
    let space = s.existing()?.ok_or_else(|| no_group(key, name, ""))?;
    let claimed = s.change(space, [key], |seen, batch| {
        let (mut stream, mut group) = find(seen, key, name)?;
        let (mut claimed, mut room, of) = (Claimed::default(), Room::of(s), stream.of);
        if claim.last > group.last {
            group.last = claim.last;
            group.save(&of, batch);
        }
        let mut done = std::collections::HashSet::new();
        for id in &claim.ids {
            let (place, there) = (group.pending_key(&of, *id), group.pending(seen, &of, *id)?);
            if !done.insert(*id) {
                continue;
            }
            let Some(entry) = stream.entry(seen, *id)? else {
                if there.is_some() {
                    batch.delete(of.types, place);
                    stream.more -= 1;
                }
                continue;
            };
            let new = there.is_none();
            let mut pending = match there {
                Some(pending) if seen.now.saturating_sub(pending.at) < idle => continue,
                Some(pending) => pending,
                None if claim.force => Pending { at: seen.now, times: 1, consumer: Vec::new() },
                None => continue,
            };
            stream.more += i64::from(new);
            pending.consumer = consumer.to_vec();
            pending.at = claim.at(seen.now);
            let more = pending.times.saturating_add(u64::from(!claim.only_ids));
            pending.times = claim.times.unwrap_or(more);
            room.take(entry.size() + consumer.len())?;
            batch.put(of.types, place, Bytes::from(pending.encode()));
            claimed.entries.push((*id, (!claim.only_ids).then_some(entry)));
        }
        claimed.see(seen, (key, consumer), (&mut stream, &group), batch)?;
        stream.count(seen, key, batch);
        check(&stream, &claimed)?;
        Ok(claimed)
    })?;
    write(&claimed, out);
    Ok(())
}

/// Checks that the entries to be shown are not corrupt.
fn check(stream: &Stream, claimed: &Claimed) -> Outcome {
    let mut shown = claimed.entries.iter().filter_map(|(_, entry)| entry.as_ref());
    if shown.any(|entry| entry.words().is_none()) {
        return Err(corrupt(&stream.of, "an entry"));
    }
    Ok(())
}

fn write(claimed: &Claimed, out: &mut Output) {
    out.array(claimed.entries.len());
    for (id, entry) in &claimed.entries {
        match entry {
            Some(entry) => write_entry(entry, out),
            None => out.bulk(id.text().as_bytes()),
        }
        out.send_if_large();
    }
}

/// Parses the options of `XAUTOCLAIM`: the number of entries, and whether only their IDs are
/// returned.
fn auto_options(args: Arguments<'_>) -> Result<(usize, bool), Failure> {
    let (mut most, mut only_ids) = (100, false);
    let mut options = args.from(6);
    while let Some(option) = options.next() {
        if is(option, "justid") {
            only_ids = true;
            continue;
        }
        let value = options.next().filter(|_| is(option, "count")).ok_or(Failure::SYNTAX)?;
        let wrong = || Failure::request("COUNT must be > 0");
        let count = integer(value).filter(|count| (1..=i64::MAX / 16).contains(count));
        most = count.ok_or_else(wrong)? as usize;
    }
    Ok((most, only_ids))
}

/// Executes `XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]`.
pub fn xautoclaim(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, name, consumer) = (args.at(1), args.at(2), args.at(3));
    let idle = idle_time(args, "XAUTOCLAIM")?;
    let start = Id::parse_start(args.at(5))?;
    let (most, only_ids) = auto_options(args)?;
    check_name(s, consumer)?;
    let space = s.existing()?.ok_or_else(|| no_group(key, name, ""))?;
    let claimed = s.change(space, [key], |seen, batch| {
        let (mut stream, group) = find(seen, key, name)?;
        let (mut claimed, mut room, of) = (Claimed::default(), Room::of(s), stream.of);
        let (mut left, mut steps) = (most, most.saturating_mul(10));
        group.walk_pending(s, seen, &of, (start, Id::MAX), |id, mut pending| {
            if left == 0 || steps == 0 {
                claimed.next = id;
                return Ok(false);
            }
            steps -= 1;
            let place = group.pending_key(&of, id);
            let Some(entry) = stream.entry(seen, id)? else {
                room.take(place.len())?;
                batch.delete(of.types, place);
                stream.more -= 1;
                claimed.gone.push(id);
                left -= 1;
                return Ok(true);
            };
            if seen.now.saturating_sub(pending.at) < idle {
                return Ok(true);
            }
            pending.at = seen.now;
            pending.times = pending.times.saturating_add(u64::from(!only_ids));
            pending.consumer = consumer.to_vec();
            room.take(entry.size() + consumer.len())?;
            batch.put(of.types, place, Bytes::from(pending.encode()));
            claimed.entries.push((id, (!only_ids).then_some(entry)));
            left -= 1;
            Ok(true)
        })?;
        claimed.see(seen, (key, consumer), (&mut stream, &group), batch)?;
        stream.count(seen, key, batch);
        check(&stream, &claimed)?;
        Ok(claimed)
    })?;
    out.array(3);
    out.bulk(claimed.next.text().as_bytes());
    write(&claimed, out);
    out.array(claimed.gone.len());
    claimed.gone.iter().for_each(|id| out.bulk(id.text().as_bytes()));
    Ok(())
}
