//! Commands that visit a whole dictionary, page by page or at once.

use super::is;
use crate::failure::{Failure, Outcome};
use crate::names::Compared;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::walk::{KeyRange, answer};

/// Number of bytes of keys at which a page ends, regardless of `COUNT`.
const PAGE_BYTES: usize = 1 << 20;

/// The options for a page.
struct Options<'a> {
    /// The number of keys to visit, at least 1.
    count: i64,
    pattern: Option<&'a [u8]>,
    /// The name of a type; keys of other types are left out.
    kind: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: Arguments<'a>) -> Result<Self, Failure> {
        let mut parsed = Options { count: 10, pattern: None, kind: None };
        let mut options = args.from(2);
        while let Some(option) = options.next() {
            let value = options.next().ok_or(Failure::SYNTAX)?;
            match option {
                o if is(o, "match") => parsed.pattern = Some(value),
                o if is(o, "count") => {
                    parsed.count = integer(value).ok_or(Failure::NOT_AN_INTEGER)?;
                    if parsed.count < 1 {
                        return Err(Failure::SYNTAX);
                    }
                }
                o if is(o, "type") => parsed.kind = Some(value),
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(parsed)
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE t]`. The pages visit the keys in order, so a key
/// that exists during the whole scan is returned exactly once.
pub fn scan(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    const INVALID: Failure = Failure::Request(std::borrow::Cow::Borrowed("invalid cursor"));
    let cursor: u64 =
        std::str::from_utf8(args.at(1)).ok().and_then(|c| c.parse().ok()).ok_or(INVALID)?;
    let Options { mut count, pattern, kind } = Options::parse(args)?;
    let (predecessor, from) = match cursor {
        0 => (None, Vec::new()),
        c => {
            let gone = || {
                Failure::request(
                    "invalid cursor: not known, or forgotten as the oldest of too many; start again at 0",
                )
            };
            (Some(c), s.shared.cursors.resume(c, s.dictionary.name()).ok_or_else(gone)?)
        }
    };
    let (mut keys, mut next, mut compared) = (Vec::new(), None, Compared::default());
    let mut range = KeyRange::matching(pattern.unwrap_or(b"*"));
    // The page size limits the number of visited keys, so that a page ends even if no key
    // matches.
    range.pattern = None;
    range.start = range.start.max(from);
    let mut bytes = 0;
    let seen = s.see()?;
    let mut walk = range.walk(&seen, s)?;
    while let Some(item) = walk.step()? {
        if count == 0 || bytes >= PAGE_BYTES {
            next = Some(item.key.to_vec());
            break;
        }
        count -= 1;
        let fits = match pattern {
            Some(pattern) => compared.matches(pattern, &item.key)?,
            None => true,
        };
        if fits && kind.is_none_or(|kind| is(kind, item.kind.name())) {
            bytes += item.key.len();
            keys.push(item.key);
        }
    }
    let cursor = match next {
        Some(from) => s.shared.cursors.issue(predecessor, s.dictionary.name(), from),
        None => {
            predecessor.inspect(|c| s.shared.cursors.finish(*c));
            0
        }
    };
    out.array(2);
    out.bulk(cursor.to_string().as_bytes());
    out.array(keys.len());
    for key in keys {
        out.bulk(&key);
    }
    Ok(())
}

pub fn keys(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, &KeyRange::matching(args.at(1)), out, 1, |_, item, out| {
        out.bulk(&item.key);
        Ok(())
    })
}

/// Replies with the exact number of keys, which is determined by counting them.
pub fn dbsize(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let (all, seen) = (KeyRange::matching(b"*"), s.see()?);
    let mut walk = all.walk(&seen, s)?;
    let mut count = 0;
    while walk.step()?.is_some() {
        count += 1;
    }
    out.integer(count);
    Ok(())
}

/// Replies with a random key. It is the key next to a random place between the first key and the
/// last one, so isolated keys are chosen more often than clustered ones.
pub fn randomkey(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let one = |start: &[u8], end: &[u8], backward: bool| {
        let mut range = KeyRange::matching(b"*");
        (range.start, range.end) = (start.to_vec(), end.to_vec());
        (range.backward, range.limit) = (backward, 1);
        Ok::<_, Failure>(range.walk(&seen, s)?.step()?.map(|item| item.key))
    };
    let (Some(first), Some(last)) = (one(b"", b"", false)?, one(b"", b"", true)?) else {
        out.null();
        return Ok(());
    };
    let place = between(&first, &last, s.random());
    let forward = s.random().is_multiple_of(2);
    let near = match forward {
        true => one(&place, b"", false)?,
        false => one(b"", &[place.as_slice(), b"\0"].concat(), true)?,
    };
    out.bulk(&near.unwrap_or(if forward { last } else { first }));
    Ok(())
}

/// Returns a key between two other keys, at the fraction `random` / 2^64 of their distance.
pub fn between(first: &[u8], last: &[u8], random: u64) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8], filler: u8| {
        let mut bytes = [filler; 8];
        let rest = &key[common..];
        let len = rest.len().min(8);
        bytes[..len].copy_from_slice(&rest[..len]);
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (number(first, 0), number(last, u8::MAX));
    let at = low + ((u128::from(high - low) * u128::from(random)) >> 64) as u64;
    [&first[..common], &at.to_be_bytes()].concat()
}
