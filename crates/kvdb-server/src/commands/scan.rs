//! Commands that walk a whole dictionary, page by page or at once.

use super::is;
use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::walk::{Stretch, answer};

/// Keys of one page end it when they take this many bytes, whatever `COUNT` says.
const PAGE_BYTES: usize = 1 << 20;

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE t]`. Pages go through the keys in order, so a key
/// that is present throughout is returned exactly once.
pub fn scan(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    const INVALID: Failure = Failure::Request(std::borrow::Cow::Borrowed("invalid cursor"));
    let cursor: u64 =
        std::str::from_utf8(args.at(1)).ok().and_then(|c| c.parse().ok()).ok_or(INVALID)?;
    let (mut count, mut pattern, mut strings) = (10, None, true);
    let mut options = args.from(2);
    while let Some(option) = options.next() {
        let value = options.next().ok_or(Failure::SYNTAX)?;
        match option {
            o if is(o, "match") => pattern = Some(value),
            o if is(o, "count") => {
                count = integer(value).ok_or(Failure::NOT_AN_INTEGER)?;
                if count < 1 {
                    return Err(Failure::SYNTAX);
                }
            }
            o if is(o, "type") => strings = is(value, "string"),
            _ => return Err(Failure::SYNTAX),
        }
    }
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
    let (mut keys, mut next) = (Vec::new(), None);
    if let Some(dict) = s.existing()? {
        let mut stretch = Stretch::matching(dict, pattern.unwrap_or(b"*"));
        // The page is measured in keys looked at, so that it ends also where nothing matches.
        stretch.pattern = None;
        stretch.start = stretch.start.max(from);
        let mut bytes = 0;
        if stretch.end.is_empty() || stretch.start < stretch.end {
            let view = s.view_of(dict, &stretch.start, &stretch.end)?;
            let mut walk = stretch.walk(&view, s)?;
            while let Some(tuple) = walk.step()? {
                if count == 0 || bytes >= PAGE_BYTES {
                    next = Some(tuple.key.to_vec());
                    break;
                }
                count -= 1;
                if strings && pattern.is_none_or(|p| glob::matches(p, &tuple.key)) {
                    bytes += tuple.key.len();
                    keys.push(tuple.key);
                }
            }
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
    let Some(dict) = s.existing()? else {
        out.array(0);
        return Ok(());
    };
    answer(s, &Stretch::matching(dict, args.at(1)), out, 1, |tuple, out| {
        out.bulk(&tuple.key);
        Ok(())
    })
}

/// The exact number of keys, counted.
pub fn dbsize(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut count = 0;
    if let Some(dict) = s.existing()? {
        let view = s.view_of(dict, b"", b"")?;
        let all = Stretch::matching(dict, b"*");
        let mut walk = all.walk(&view, s)?;
        while walk.step()?.is_some() {
            count += 1;
        }
    }
    out.integer(count);
    Ok(())
}
