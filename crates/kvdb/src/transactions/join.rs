//! The merge routines that a dictionary names in its options ([`Join`]), so that they work from
//! every interface and in every program that opens the store.

use std::collections::HashSet;

use bytes::Bytes;

use super::conflicts::{MergeRoutine, Merged};
use crate::dictionary::Join;

impl MergeRoutine for Join {
    fn merge(
        &self,
        _: &[u8],
        base: Option<&[u8]>,
        mine: Option<&[u8]>,
        theirs: Option<&[u8]>,
    ) -> Merged {
        let joined = match self {
            Join::None => None,
            Join::Add => sum(base, mine, theirs),
            Join::Max => both(mine, theirs).map(|(mine, theirs)| mine.max(theirs)),
            Join::Min => both(mine, theirs).map(|(mine, theirs)| mine.min(theirs)),
            Join::Union => return union(base, mine, theirs),
        };
        joined.map_or(Merged::Conflict, |number| Merged::Put(Bytes::from(number.to_string())))
    }
}

/// A whole number in decimal, written as `INCR` writes it.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn both(mine: Option<&[u8]>, theirs: Option<&[u8]>) -> Option<(i64, i64)> {
    Some((number(mine?)?, number(theirs?)?))
}

/// Returns `theirs` plus the difference between `base` and `mine`. A key that did not exist counts
/// as 0. Returns `None`, a conflict, if either side has deleted the key, or if a value is not a
/// number or the sum overflows.
fn sum(base: Option<&[u8]>, mine: Option<&[u8]>, theirs: Option<&[u8]>) -> Option<i64> {
    let (mine, theirs) = both(mine, theirs)?;
    let base = base.map_or(Some(0), number)?;
    mine.checked_sub(base)?.checked_add(theirs)
}

/// Returns the lines of a value. The last line may end with a line feed.
fn lines(value: Option<&[u8]>) -> impl Iterator<Item = &[u8]> {
    let value = value.unwrap_or_default();
    let value = value.strip_suffix(b"\n").unwrap_or(value);
    // An empty value has no line, rather than one empty line.
    let all = (!value.is_empty()).then(|| value.split(|byte| *byte == b'\n'));
    all.into_iter().flatten()
}

/// Joins two lists of lines: the lines of `theirs` in their order, without those that `mine` has
/// removed, then those that `mine` has added.
fn union(base: Option<&[u8]>, mine: Option<&[u8]>, theirs: Option<&[u8]>) -> Merged {
    let set = |value| lines(value).collect::<HashSet<_>>();
    let (old, kept, there) = (set(base), set(mine), set(theirs));
    let removed = |line: &&[u8]| old.contains(line) && !kept.contains(line);
    let added = |line: &&[u8]| !old.contains(line) && !there.contains(line);
    let mut seen = HashSet::new();
    let joined: Vec<&[u8]> = lines(theirs)
        .filter(|line| !removed(line))
        .chain(lines(mine).filter(added))
        .filter(|line| seen.insert(*line))
        .collect();
    if joined.is_empty() && (mine.is_none() || theirs.is_none()) {
        return Merged::Delete;
    }
    let mut value = joined.join(&b'\n');
    if !joined.is_empty() && [mine, theirs].iter().flatten().any(|value| value.ends_with(b"\n")) {
        value.push(b'\n');
    }
    Merged::Put(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case<'a> = (Join, Option<&'a str>, Option<&'a str>, Option<&'a str>, Option<&'a str>);

    fn joined(join: Join, base: Option<&str>, mine: Option<&str>, theirs: Option<&str>) -> Merged {
        let [base, mine, theirs] = [base, mine, theirs].map(|value| value.map(str::as_bytes));
        join.merge(b"key", base, mine, theirs)
    }

    #[test]
    fn what_is_joined() {
        let cases: &[Case<'_>] = &[
            (Join::Add, Some("10"), Some("13"), Some("9"), Some("12")),
            (Join::Add, None, Some("2"), Some("3"), Some("5")),
            (Join::Max, Some("1"), Some("7"), Some("12"), Some("12")),
            (Join::Max, Some("1"), Some("-7"), Some("-12"), Some("-7")),
            (Join::Min, None, Some("7"), Some("12"), Some("7")),
            (Join::Union, Some("a\nb"), Some("a\nb\nc"), Some("b\nd"), Some("b\nd\nc")),
            (Join::Union, Some("a\n"), Some("a\nb\n"), Some("a\nb\n"), Some("a\nb\n")),
            (Join::Union, None, Some("x"), Some("y\n"), Some("y\nx\n")),
            (Join::Union, Some("a"), None, Some("a\nb"), Some("b")),
            (Join::Union, Some("a"), Some(""), Some("a"), Some("")),
        ];
        for (join, base, mine, theirs, expected) in cases {
            let expected = Bytes::copy_from_slice(expected.unwrap().as_bytes());
            assert_eq!(
                joined(*join, *base, *mine, *theirs),
                Merged::Put(expected),
                "{join:?} of {mine:?} and {theirs:?} over {base:?}"
            );
        }
        assert_eq!(joined(Join::Union, Some("a\nb"), Some("a"), None), Merged::Delete);
    }

    #[test]
    fn what_is_no_number_or_too_large_or_deleted_is_a_conflict() {
        let largest = i64::MAX.to_string();
        for (base, mine, theirs) in [
            (None, Some("x"), Some("1")),
            (None, Some("+1"), Some("1")),
            (None, Some("01"), Some("1")),
            (Some("1"), None, Some("2")),
            (Some("1"), Some("2"), None),
            (Some("x"), Some("1"), Some("2")),
            (Some("0"), Some(largest.as_str()), Some("1")),
            (Some("-2"), Some(largest.as_str()), Some("0")),
        ] {
            assert_eq!(
                joined(Join::Add, base, mine, theirs),
                Merged::Conflict,
                "{base:?} {mine:?}"
            );
        }
        assert_eq!(joined(Join::Max, None, Some("x"), Some("1")), Merged::Conflict);
        assert_eq!(joined(Join::Min, Some("1"), None, Some("1")), Merged::Conflict);
        assert_eq!(joined(Join::None, None, Some("1"), Some("1")), Merged::Conflict);
    }

    #[test]
    fn every_rule_has_a_name_and_a_code_of_its_own() {
        for join in Join::ALL {
            assert_eq!(Join::named(join.name().to_uppercase().as_bytes()), Some(join));
            assert_eq!(Join::of_code(join.code()), Some(join));
        }
        assert_eq!((Join::of_code(5), Join::named(b"sum")), (None, None));
    }
}
