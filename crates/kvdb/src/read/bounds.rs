//! Converts key ranges as callers write them (`"a".."c"`, `..="m"`, a prefix) to the half-open
//! ranges that the trees use.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use vt_tree::KeyRange;

/// Returns the first key after all keys that begin with `prefix`. Returns `None` if there is no
/// such key.
///
/// ```
/// assert_eq!(kvdb::prefix_end(b"user:").as_deref(), Some(&b"user;"[..]));
/// assert_eq!(kvdb::prefix_end(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
/// assert_eq!(kvdb::prefix_end(b"\xff"), None);
/// ```
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Returns the half-open range of the keys that begin with `prefix`.
pub(crate) fn of_prefix(prefix: &[u8]) -> KeyRange {
    KeyRange { start: Bytes::copy_from_slice(prefix), end: prefix_end(prefix).map(Bytes::from) }
}

/// Converts `range` to a half-open range of the same keys. An inverted range becomes an empty one.
pub(crate) fn of<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> KeyRange {
    let behind = |key: &[u8]| Bytes::from([key, &[0]].concat());
    let start = match range.start_bound() {
        Bound::Unbounded => Bytes::new(),
        Bound::Included(k) => Bytes::copy_from_slice(k.as_ref()),
        Bound::Excluded(k) => behind(k.as_ref()),
    };
    let end = match range.end_bound() {
        Bound::Unbounded => None,
        Bound::Included(k) => Some(behind(k.as_ref())),
        Bound::Excluded(k) => Some(Bytes::copy_from_slice(k.as_ref())),
    };
    let end = end.map(|end| end.max(start.clone()));
    KeyRange { start, end }
}

/// Returns `true` if `range` contains no key.
pub(crate) fn is_empty(range: &KeyRange) -> bool {
    range.end.as_ref().is_some_and(|end| *end <= range.start)
}

/// Returns the start and end for a [`crate::Cursor`], for which an empty end means no upper bound.
pub(crate) fn for_cursor(range: &KeyRange) -> (&[u8], &[u8]) {
    match &range.end {
        None => (&range.start, b""),
        // The range is empty. An empty `end` would mean no upper bound, so return another empty
        // range.
        Some(end) if end.is_empty() => (&[0], &[0]),
        Some(end) => (&range.start, end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &[u8], end: Option<&[u8]>) -> KeyRange {
        KeyRange { start: Bytes::copy_from_slice(start), end: end.map(Bytes::copy_from_slice) }
    }

    #[test]
    fn every_kind_of_range_holds_the_keys_it_says() {
        assert_eq!(of(&("a".."c")), range(b"a", Some(b"c")));
        assert_eq!(of(&("a"..="c")), range(b"a", Some(b"c\0")));
        assert_eq!(of(&("a"..)), range(b"a", None));
        assert_eq!(of(&(.."c")), range(b"", Some(b"c")));
        assert_eq!(of::<&str>(&(..)), range(b"", None));
        assert_eq!(of::<&str>(&(Bound::Excluded("a"), Bound::Unbounded)), range(b"a\0", None));
        assert!(is_empty(&of(&("c".."a"))), "an inverted range holds nothing");
        assert!(is_empty(&of(&(..""))));
        assert!(!is_empty(&of(&(..=""))), "the empty key is a key");
    }

    #[test]
    fn a_prefix_ends_at_the_next_key_that_does_not_have_it() {
        assert_eq!(of_prefix(b"ab"), range(b"ab", Some(b"ac")));
        assert_eq!(of_prefix(b"a\xff"), range(b"a\xff", Some(b"b")));
        assert_eq!(of_prefix(b"\xff\xff"), range(b"\xff\xff", None));
        assert_eq!(of_prefix(b""), range(b"", None));
    }
}
