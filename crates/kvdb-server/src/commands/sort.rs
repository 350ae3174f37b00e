//! `SORT` and `SORT_RO`: sort the elements of a list, set or sorted set by their own values, or
//! by the values of other keys that a pattern derives from the elements.

use std::cmp::Ordering;

use bytes::Bytes;

use super::collections::{Room, member, visit};
use super::{is, lists, sorted_sets};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, WRONGTYPE, elements, ordered};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

pub const USAGE: &str = "key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA] [STORE destination]";
pub const RO_USAGE: &str =
    "key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA]";

/// The options of a `SORT` after the key.
#[derive(Clone, Default)]
struct Sorting<'a> {
    by: Option<Pattern<'a>>,
    get: Vec<Pattern<'a>>,
    limit: Option<(i64, i64)>,
    descending: bool,
    as_text: bool,
    store: Option<&'a [u8]>,
}

impl<'a> Sorting<'a> {
    fn parse(args: Arguments<'a>, may_store: bool) -> Result<Self, Failure> {
        let mut sorting = Sorting::default();
        let mut options = args.from(2);
        while let Some(option) = options.next() {
            let mut next = || options.next().ok_or(Failure::SYNTAX);
            let mut number = || integer(next()?).ok_or(Failure::NOT_AN_INTEGER);
            match option {
                o if is(o, "asc") => sorting.descending = false,
                o if is(o, "desc") => sorting.descending = true,
                o if is(o, "alpha") => sorting.as_text = true,
                o if is(o, "limit") => sorting.limit = Some((number()?, number()?)),
                o if is(o, "by") => sorting.by = Some(Pattern::parse(next()?)),
                o if is(o, "get") => sorting.get.push(Pattern::parse(next()?)),
                o if is(o, "store") && may_store => sorting.store = Some(next()?),
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(sorting)
    }

    /// Returns whether the elements keep their present order, because the pattern yields the same
    /// key for all of them.
    fn keeps_order(&self) -> bool {
        matches!(self.by, Some(Pattern::Element | Pattern::Same))
    }

    /// Returns the range of a list of `len` elements that the options select.
    fn part(&self, len: usize) -> (usize, usize) {
        let Some((offset, count)) = self.limit else { return (0, len) };
        let from = usize::try_from(offset).unwrap_or(0).min(len);
        let count = usize::try_from(count).unwrap_or(len);
        (from, from.saturating_add(count).min(len))
    }

    /// Returns the selected values in order, with `None` for a value that does not exist.
    fn run(&self, s: &Session, seen: &Seen<'_>, key: &[u8]) -> Result<Vec<Option<Bytes>>, Failure> {
        let mut room = Room::of(s);
        let mut found = self.elements(s, seen, key, &mut room)?;
        if !self.keeps_order() {
            found = self.sorted(s, seen, found, &mut room)?;
        }
        let (from, to) = self.part(found.len());
        let mut values = Vec::new();
        for element in found.drain(from..to) {
            if self.get.is_empty() {
                values.push(Some(element));
                continue;
            }
            s.check_stopping()?;
            for pattern in &self.get {
                let value = pattern.look_up(seen, &element)?;
                room.take(value.as_ref().map_or(0, Bytes::len))?;
                values.push(value);
            }
        }
        Ok(values)
    }

    /// Returns the elements in their present order: in a list by position, in a set by name, in a
    /// sorted set by score.
    fn elements(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        key: &[u8],
        room: &mut Room,
    ) -> Result<Vec<Bytes>, Failure> {
        let live = seen.live(key)?;
        let Some((kind, (head, types))) = live.kind.zip(live.head.zip(seen.types)) else {
            return if live.exists() { Err(WRONGTYPE) } else { Ok(Vec::new()) };
        };
        let of = Collection::found(head.id, types, live);
        let (start, end) = match kind {
            Kind::List | Kind::Set => elements(head.id),
            Kind::SortedSet => ordered(head.id),
            Kind::String | Kind::Hash | Kind::Pages | Kind::Stream => return Err(WRONGTYPE),
        };
        let mut found = Vec::new();
        let backward = self.keeps_order() && self.descending;
        visit(s, seen, &of, (&start, &end), backward, |tuple| {
            let element = match kind {
                Kind::List => tuple.value()?,
                Kind::SortedSet => sorted_sets::in_order(&of, tuple)?.0,
                _ => member(tuple)?,
            };
            room.take(element.len())?;
            found.push(element);
            Ok(true)
        })?;
        Ok(found)
    }

    fn sorted(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        found: Vec<Bytes>,
        room: &mut Room,
    ) -> Result<Vec<Bytes>, Failure> {
        let mut keyed = Vec::with_capacity(found.len());
        for (i, element) in found.into_iter().enumerate() {
            if i % 256 == 255 {
                s.check_stopping()?;
            }
            let weight = match &self.by {
                None => Some(element.clone()),
                Some(pattern) => pattern.look_up(seen, &element)?,
            };
            let weight = if self.as_text {
                room.take(weight.as_ref().map_or(0, Bytes::len))?;
                Weight::Text(weight)
            } else {
                Weight::Number(weight.map_or(Some(0.0), |text| number(&text)).ok_or(NO_NUMBER)?)
            };
            keyed.push((weight, element));
        }
        keyed.sort_by(|a, b| {
            // Elements of equal weight are sorted by their own values.
            let order = a.0.order(&b.0).then_with(|| a.1.cmp(&b.1));
            if self.descending { order.reverse() } else { order }
        });
        Ok(keyed.into_iter().map(|(_, element)| element).collect())
    }
}

const NO_NUMBER: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "One or more scores can't be converted into double",
));

/// Parses a number like the C library: leading blanks are skipped, the text ends at a NUL, and an
/// empty text is zero.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() { Some(0.0) } else { sorted_sets::number(text.trim_ascii_start()) }
}

/// The sort key of an element.
enum Weight {
    Number(f64),
    /// A string. It is `None` if there is no string under the key; `None` sorts first.
    Text(Option<Bytes>),
}

impl Weight {
    fn order(&self, other: &Weight) -> Ordering {
        match (self, other) {
            (Weight::Number(a), Weight::Number(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
            (Weight::Text(a), Weight::Text(b)) => a.cmp(b),
            (Weight::Number(_), Weight::Text(_)) => Ordering::Less,
            (Weight::Text(_), Weight::Number(_)) => Ordering::Greater,
        }
    }
}

/// A pattern given with `BY` or `GET`.
#[derive(Clone, Copy)]
enum Pattern<'a> {
    /// The pattern `#`, which stands for the element itself.
    Element,
    /// A pattern without a `*`. It yields the same key for all elements, and this key is not
    /// looked up.
    Same,
    /// A pattern for a key in which the element replaces the first `*`. A field after `->` is a
    /// field of the hash under that key.
    Of { before: &'a [u8], behind: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    fn parse(pattern: &'a [u8]) -> Self {
        if pattern == b"#" {
            return Pattern::Element;
        }
        let Some(star) = pattern.iter().position(|byte| *byte == b'*') else {
            return Pattern::Same;
        };
        let (before, behind) = (&pattern[..star], &pattern[star + 1..]);
        let arrow = behind.windows(2).position(|pair| pair == b"->");
        match arrow.filter(|at| at + 2 < behind.len()) {
            Some(at) => {
                Pattern::Of { before, behind: &behind[..at], field: Some(&behind[at + 2..]) }
            }
            None => Pattern::Of { before, behind, field: None },
        }
    }

    /// Returns the value for an element, or `None` if there is no value, or if the key does not
    /// have a string, or a hash if the pattern names a field.
    fn look_up(&self, seen: &Seen<'_>, element: &Bytes) -> Result<Option<Bytes>, Failure> {
        let (before, behind, field) = match self {
            Pattern::Element => return Ok(Some(element.clone())),
            Pattern::Same => return Ok(None),
            Pattern::Of { before, behind, field } => (before, behind, field),
        };
        // A key cannot be that long, and the commit would depend on each key that was looked up.
        if before.len() + element.len() + behind.len() > kvdb::MAX_KEY {
            return Ok(None);
        }
        let key = [before, &element[..], behind].concat();
        let found = match field {
            None => seen.string(&key).map(|found| found.1),
            Some(field) => match seen.hash(&key) {
                Ok(Some(of)) => seen.field(&of, field),
                found => found.map(|_| None),
            },
        };
        match found {
            Err(failure) if failure.is_wrong_type() => Ok(None),
            found => found,
        }
    }
}

pub fn sort(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (sorting, key) = (Sorting::parse(args, true)?, args.at(1));
    let Some(store) = sorting.store else { return answer(s, &sorting, key, out) };
    s.check_key(store)?;
    let stored = s.change(s.typed()?, [key, store], |seen, batch| {
        let mut sorting = sorting.clone();
        if sorting.keeps_order() && seen.live(key)?.kind == Some(Kind::Set) {
            // A stored result must have an order that the members of the set determine.
            (sorting.by, sorting.as_text) = (None, true);
        }
        let found = sorting.run(s, seen, key)?;
        let live = seen.live(store)?;
        if found.is_empty() && live.head.is_none() && !live.exists() {
            return Ok(0);
        }
        seen.remove(store, &live, batch);
        seen.event_of_stored(store, &live, (Classes::LIST, "sortstore"), found.len());
        if !found.is_empty() {
            let values = found.iter().map(|value| value.clone().unwrap_or_default());
            lists::put_all(s, seen, store, values, batch)?;
        }
        Ok(found.len())
    })?;
    out.integer(stored as i64);
    Ok(())
}

pub fn sort_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, &Sorting::parse(args, false)?, args.at(1), out)
}

fn answer(s: &Session, sorting: &Sorting<'_>, key: &[u8], out: &mut Output) -> Outcome {
    let found = sorting.run(s, &s.see()?, key)?;
    out.array(found.len());
    for value in found {
        out.value(value.as_deref());
        out.send_if_large();
    }
    Ok(())
}

/// Returns the destination in the arguments, if the result is to be stored. If there are several,
/// the last one counts.
pub fn destination(args: Arguments<'_>) -> Option<&[u8]> {
    Sorting::parse(args, true).ok().and_then(|sorting| sorting.store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_a_key_and_maybe_a_field() {
        let parts = |pattern: &'static str| match Pattern::parse(pattern.as_bytes()) {
            Pattern::Element => "element".to_string(),
            Pattern::Same => "same".to_string(),
            Pattern::Of { before, behind, field } => {
                let field = field.map(|field| format!(" {}", field.escape_ascii()));
                let (before, behind) = (before.escape_ascii(), behind.escape_ascii());
                format!("{before}_{behind}{}", field.unwrap_or_default())
            }
        };
        for (pattern, want) in [
            ("#", "element"),
            ("##", "same"),
            ("", "same"),
            ("a->b", "same"),
            ("*", "_"),
            ("a*b*", "a_b*"),
            ("a*->f", "a_ f"),
            ("a*b->f->g", "a_b f->g"),
            ("a*->", "a_->"),
            ("->*", "->_"),
        ] {
            assert_eq!(parts(pattern), want, "{pattern}");
        }
    }

    #[test]
    fn a_part_lies_within_the_elements() {
        let part = |limit| Sorting { limit, ..Sorting::default() }.part(5);
        assert_eq!(part(None), (0, 5));
        assert_eq!(part(Some((1, 2))), (1, 3));
        assert_eq!(part(Some((-3, 2))), (0, 2));
        assert_eq!(part(Some((2, -1))), (2, 5));
        assert_eq!(part(Some((7, 1))), (5, 5));
        assert_eq!(part(Some((1, i64::MAX))), (1, 5));
        assert_eq!(part(Some((0, 0))), (0, 0));
    }
}
