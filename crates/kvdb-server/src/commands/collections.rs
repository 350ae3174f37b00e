//! The common part of hashes, sets, sorted sets and lists. Their elements are tuples under the id
//! of the collection, in the order of their names.

use std::collections::HashSet;
use std::ops::ControlFlow;

use bytes::Bytes;
use kvdb::{Cursor, Tuple, TupleRef, View};

use super::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{ELEMENT, Kind, elements};
use crate::names::{self, Compared};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

mod draw;

pub use self::draw::{draw, wanted};

/// Returns the part of an element's key that represents its name, without the leading id. In a
/// list and a stream this part is the name itself.
pub fn name(tuple: &Tuple) -> Bytes {
    tuple.key.slice(ELEMENT..)
}

/// Returns the name of a field or a member.
pub fn member(tuple: &Tuple) -> Result<Bytes, Failure> {
    names::name(name(tuple), || tuple.value())
}

/// Returns the name of a field or a member, and its value.
pub fn split(tuple: &Tuple) -> Result<(Bytes, Bytes), Failure> {
    names::split(&name(tuple), tuple.value()?)
}

/// Calls `with` with the name of a field or a member and its value, and returns its result.
pub fn with_split<T>(
    tuple: TupleRef<'_>,
    with: impl FnOnce(&[u8], &[u8]) -> T,
) -> Result<T, Failure> {
    let part = &tuple.key[ELEMENT..];
    if names::is_long_in_key(part) {
        let (name, value) = split(&tuple.to_tuple())?;
        return Ok(with(&name, &value));
    }
    Ok(tuple.with_value(|value| with(part, value))?)
}

/// Calls `with` with the name in the rest of a key from `at` on, and returns its result. The
/// value is read only if the name is long.
pub fn with_name<T>(
    tuple: TupleRef<'_>,
    at: usize,
    with: impl FnOnce(&[u8]) -> T,
) -> Result<T, Failure> {
    let part = &tuple.key[at..];
    if names::is_long_in_key(part) {
        let tuple = tuple.to_tuple();
        return Ok(with(&names::name(tuple.key.slice(at..), || tuple.value())?));
    }
    Ok(with(part))
}

/// Returns the names of fields or members. All names together must fit into the memory of a
/// command.
pub fn members(s: &Session, tuples: &[Tuple]) -> Result<Vec<Bytes>, Failure> {
    let (mut room, mut found) = (Room::of(s), Vec::with_capacity(tuples.len()));
    for tuple in tuples {
        let member = member(tuple)?;
        room.take(member.len())?;
        found.push(member);
    }
    Ok(found)
}

/// Visits the elements in `[start, end)` with their values, in order or in reverse, but not
/// fields whose deadlines have passed. Stops if `visit` returns `false`.
pub fn visit(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    range: (&[u8], &[u8]),
    backward: bool,
    mut visit: impl FnMut(&Tuple) -> Result<bool, Failure>,
) -> Outcome {
    visit_refs(s, seen, of, range, backward, |tuple| visit(&tuple.to_tuple()))
}

/// Visits the elements like [`visit`], but does not copy them.
pub fn visit_refs(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    range: (&[u8], &[u8]),
    backward: bool,
    visit: impl FnMut(TupleRef<'_>) -> Result<bool, Failure>,
) -> Outcome {
    visit_about(s, seen, of, range, (backward, 0), visit)
}

/// Visits the elements like [`visit_refs`], for a caller that needs about `many` of them.
pub fn visit_about(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    (start, end): (&[u8], &[u8]),
    (backward, many): (bool, usize),
    mut visit: impl FnMut(TupleRef<'_>) -> Result<bool, Failure>,
) -> Outcome {
    if start >= end {
        return Ok(());
    }
    let Some(mut cursor) = seen.cursor(of.types, start, end)? else { return Ok(()) };
    cursor.will_visit(many);
    match seen.deadlines_of(of, (start, end), backward)? {
        None => go(s, cursor, backward, visit),
        Some(mut deadlines) => go(s, cursor, backward, |tuple| {
            if deadlines.has_passed(tuple.key)? { Ok(true) } else { visit(tuple) }
        }),
    }
}

/// Visits the elements in `[start, end)` in order, including the fields whose deadlines have
/// passed.
fn visit_all(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    (start, end): (&[u8], &[u8]),
    visit: impl FnMut(TupleRef<'_>) -> Result<bool, Failure>,
) -> Outcome {
    let cursor = if start < end { seen.cursor(of.types, start, end)? } else { None };
    cursor.map_or(Ok(()), |cursor| go(s, cursor, false, visit))
}

/// Visits the elements of a cursor in one direction.
fn go(
    s: &Session,
    mut cursor: Cursor,
    backward: bool,
    mut visit: impl FnMut(TupleRef<'_>) -> Result<bool, Failure>,
) -> Outcome {
    if backward {
        cursor.seek_to_end()?;
    }
    let mut steps = 0u32;
    cursor.visit(backward, |tuple| {
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(256) {
            s.check_stopping()?;
        }
        Ok(match visit(tuple)? {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    })
}

/// A limit on the bytes that a command may collect in memory before it replies or commits.
pub struct Room {
    left: usize,
    most: usize,
}

impl Room {
    pub fn of(s: &Session) -> Room {
        let most = s.shared.limits.request;
        Room { left: most, most }
    }
    pub fn take(&mut self, bytes: usize) -> Outcome {
        match self.left.checked_sub(bytes + 64) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Failure::Limit(format!(
                "more than {} bytes of elements are to be gathered at once",
                self.most
            ))),
        }
    }
}

/// Distance from an end up to which an element is found by stepping from that end.
const NEAR: i64 = 32;

/// Returns the number of elements before a place. `[start, end)` must contain all elements of the
/// collection.
pub fn rank_of(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    (start, end): (&[u8], &[u8]),
    place: &[u8],
) -> Result<i64, Failure> {
    if of.live.count > s.shared.limits.walked {
        return Ok(seen.rank(of, (start, end), place)? as i64);
    }
    let mut before = 0;
    visit_refs(s, seen, of, (start, place.min(end)), false, |_| {
        before += 1;
        Ok(true)
    })?;
    Ok(before)
}

/// Returns the place of the element that has `n` elements before it. `[start, end)` must contain
/// all elements of the collection.
pub fn place_at(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    (start, end): (&[u8], &[u8]),
    n: i64,
) -> Result<Option<Bytes>, Failure> {
    let count = of.live.count;
    if !(0..count).contains(&n) {
        return Ok(None);
    }
    let (backward, far) = (count - 1 - n < n, n.min(count - 1 - n));
    let walked = s.shared.limits.walked;
    if far >= NEAR.min(walked) && count > walked {
        return seen.select(of, (start, end), n as u64);
    }
    let (mut left, mut found) = (far, None);
    let many = usize::try_from(far).unwrap_or(usize::MAX).saturating_add(1);
    visit_about(s, seen, of, (start, end), (backward, many), |tuple| {
        if left == 0 {
            found = Some(Bytes::copy_from_slice(tuple.key));
        }
        left -= 1;
        Ok(found.is_none())
    })?;
    Ok(found)
}

/// The elements that a reply sends one after another.
#[derive(Clone, Copy)]
pub struct Answered<'a> {
    /// The range `[start, end)` of the keys of the elements.
    pub range: (&'a [u8], &'a [u8]),
    pub backward: bool,
    /// Number of elements to send. The caller must ensure that this many elements exist.
    pub count: usize,
    /// Number of replies for each element.
    pub each: usize,
}

/// Replies with `count` elements, which are known to exist, in bounded memory. The caller must
/// have written the header.
pub fn answer(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    out: &mut Output,
    Answered { range, backward, count, each }: Answered<'_>,
    write: impl Fn(TupleRef<'_>, &mut Output) -> Outcome,
) {
    pay(&fewer(of), out, count, each, |out, owed| {
        visit_about(s, seen, of, range, (backward, count), |tuple| {
            write(tuple, out)?;
            Ok(paid(out, owed))
        })
    });
}

/// Records that an element was sent. Returns whether more elements are owed and the client still
/// takes them.
pub fn paid(out: &mut Output, owed: &mut usize) -> bool {
    *owed -= 1;
    out.send_if_large();
    *owed > 0 && !out.is_broken()
}

fn fewer(of: &Collection) -> String {
    format!("collection {:x} has fewer elements than it counts", of.id)
}

/// Replies with `count` elements, which `send` writes. The header has announced a number of
/// replies, and this number must follow even after a failure; `missing` is the error text for the
/// case that there are fewer elements.
pub fn pay(
    missing: &str,
    out: &mut Output,
    count: usize,
    each: usize,
    send: impl FnOnce(&mut Output, &mut usize) -> Outcome,
) {
    let mut owed = count;
    let done = if owed == 0 { Ok(()) } else { send(out, &mut owed) };
    if owed > 0 && !out.is_broken() {
        let text = match done {
            Err(failure) => failure.to_string(),
            Ok(()) => format!("CORRUPT {missing}"),
        };
        for _ in 0..owed * each {
            out.error(&text);
            out.send_if_large();
        }
    }
}

/// Limit on the number of removed elements that are collected in memory for the reply. If there
/// are more, they are read again from the state before the removal.
pub const FEW: usize = 1000;

/// Removed elements that are too many to collect, in a state that still has them.
pub struct TakenFrom {
    pub state: View,
    pub of: Collection,
    /// The range of the removed elements: all elements of the range, unless the caller chooses
    /// among them.
    pub range: (Vec<u8>, Vec<u8>),
    pub backward: bool,
    pub count: usize,
}

impl TakenFrom {
    /// Replies with the `count` elements for which `chosen` returns `true`. The caller must have
    /// written the header.
    pub fn answer(
        &self,
        s: &Session,
        out: &mut Output,
        each: usize,
        mut chosen: impl FnMut() -> bool,
        write: impl Fn(TupleRef<'_>, &mut Output) -> Outcome,
    ) {
        pay(&fewer(&self.of), out, self.count, each, |out, owed| {
            let cursor = self.state.cursor(self.of.types, &self.range.0, &self.range.1)?;
            go(s, cursor, self.backward, |tuple| {
                if !chosen() {
                    return Ok(true);
                }
                write(tuple, out)?;
                Ok(paid(out, owed))
            })
        });
    }
}

/// Replies with all elements in order, in bounded memory. Each element has `each` replies.
/// `header` writes the header for the given number of elements.
pub fn answer_all(
    s: &Session,
    seen: &Seen<'_>,
    of: Option<&Collection>,
    out: &mut Output,
    each: usize,
    header: impl Fn(&mut Output, usize),
    write: impl Fn(TupleRef<'_>, &mut Output) -> Outcome,
) -> Outcome {
    let Some(of) = of else {
        header(out, 0);
        return Ok(());
    };
    let count = usize::try_from(of.live.count).unwrap_or(0);
    header(out, count);
    let (start, end) = elements(of.id);
    let all = Answered { range: (&start, &end), backward: false, count, each };
    answer(s, seen, of, out, all, write);
    Ok(())
}

/// Number of visited fields with expired deadlines after which a page ends, regardless of the
/// number of elements that it has found.
const PASSED: usize = 1024;

/// Executes `HSCAN`, `SSCAN` or `ZSCAN` with the arguments `key cursor [MATCH pattern] [COUNT
/// count] [NOVALUES]`. The pages visit the elements in the order of their names.
pub fn scan(
    s: &Session,
    args: Arguments<'_>,
    kind: Kind,
    out: &mut Output,
    write: impl Fn(&Tuple, bool, &mut Output) -> Result<usize, Failure>,
) -> Outcome {
    const INVALID: Failure = Failure::Request(std::borrow::Cow::Borrowed("invalid cursor"));
    let key = args.at(1);
    let cursor: u64 =
        std::str::from_utf8(args.at(2)).ok().and_then(|c| c.parse().ok()).ok_or(INVALID)?;
    let (mut count, mut pattern, mut values) = (10, None, true);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "novalues") && kind == Kind::Hash => values = false,
            o if is(o, "match") => pattern = Some(options.next().ok_or(Failure::SYNTAX)?),
            o if is(o, "count") => {
                count = integer(options.next().ok_or(Failure::SYNTAX)?)
                    .ok_or(Failure::NOT_AN_INTEGER)?;
                if count < 1 {
                    return Err(Failure::SYNTAX);
                }
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    // The scope of the cursor. A cursor is valid only for the key for which it was returned.
    let place = format!("{} {}", s.dictionary.name(), key.escape_ascii());
    let (predecessor, from) = match cursor {
        0 => (None, Vec::new()),
        c => (Some(c), s.shared.cursors.resume(c, &place).ok_or(INVALID)?),
    };
    let seen = s.see()?;
    let (position, mut found, mut next) = (out.position(), 0, None);
    let mut compared = Compared::default();
    if let Some(of) = seen.roughly(key, kind)? {
        let (mut start, end) = elements(of.id);
        start.extend_from_slice(&from);
        let mut deadlines = seen.deadlines_of(&of, (&start, &end), false)?;
        let (mut bytes, mut passed) = (0, 0);
        let done = visit_all(s, &seen, &of, (&start, &end), |tuple| {
            if count == 0 || bytes >= s.shared.limits.reply || passed == PASSED {
                next = Some(tuple.key[ELEMENT..].to_vec());
                return Ok(false);
            }
            if let Some(deadlines) = &mut deadlines
                && deadlines.has_passed(tuple.key)?
            {
                passed += 1;
                return Ok(true);
            }
            count -= 1;
            s.check_stopping()?;
            let tuple = &tuple.to_tuple();
            let chosen = match pattern {
                Some(pattern) => compared.matches(pattern, &member(tuple)?)?,
                None => true,
            };
            if chosen {
                bytes += tuple.key.len() + tuple.value_len();
                found += write(tuple, values, out)?;
            }
            Ok(true)
        });
        if done.is_err() {
            out.rewind(position);
        }
        done?;
    }
    let cursor = match next {
        Some(from) => s.shared.cursors.issue(predecessor, &place, from),
        None => {
            predecessor.inspect(|c| s.shared.cursors.finish(*c));
            0
        }
    };
    out.insert_array_header(position, found);
    out.insert_page_header(position, cursor);
    Ok(())
}

/// Checks that an element is allowed to be stored.
pub fn check_element(s: &Session, element: &[u8]) -> Outcome {
    let max = s.shared.limits.element;
    if element.len() > max {
        return Err(Failure::request(format!(
            "field or member of {} bytes is longer than the limit of {max}",
            element.len()
        )));
    }
    Ok(())
}

/// Removes the elements named by the arguments from the third on from a hash or a set, and
/// replies with the number of elements that existed.
pub fn remove_elements(
    s: &mut Session,
    args: Arguments<'_>,
    out: &mut Output,
    kind: Kind,
) -> Outcome {
    let key = args.at(1);
    let removed = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.roughly(key, kind)? else { return Ok(0) };
            let names: HashSet<&[u8]> = args.from(2).collect();
            let mut removed = 0;
            for name in names {
                let element = seen.look_at_field(&of, name)?;
                if element.exists {
                    seen.remove_field(&of, name, &element, batch);
                    removed += 1;
                }
            }
            if removed > 0 {
                let hash = kind == Kind::Hash;
                let (class, name) =
                    if hash { (Classes::HASH, "hdel") } else { (Classes::SET, "srem") };
                seen.event(class, name, key);
            }
            seen.counted(key, &of, -removed, batch);
            Ok(removed)
        })?,
    };
    out.integer(removed);
    Ok(())
}
