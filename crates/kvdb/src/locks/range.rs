//! A borrowed range of keys. Locking a single key needs no copy of the key.

use bytes::Bytes;
use vt_tree::KeyRange;

/// One key, or the keys of a half-open range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRangeRef<'a> {
    pub start: &'a [u8],
    pub end: RangeEnd<'a>,
}

/// The end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeEnd<'a> {
    /// The start is the only key.
    Start,
    /// The range ends before this key.
    Before(&'a [u8]),
    /// The range includes the last key.
    Last,
}

impl<'a> KeyRangeRef<'a> {
    pub(crate) fn key(key: &'a [u8]) -> Self {
        KeyRangeRef { start: key, end: RangeEnd::Start }
    }

    pub(crate) fn between(start: &'a [u8], end: &'a [u8]) -> Self {
        KeyRangeRef { start, end: RangeEnd::Before(end) }
    }

    /// Returns the range of all keys from `start` on.
    pub(crate) fn starting_at(start: &'a [u8]) -> Self {
        KeyRangeRef { start, end: RangeEnd::Last }
    }

    /// Returns `true` if the range contains no key.
    pub(crate) fn is_empty(&self) -> bool {
        !self.ends_behind(self.start)
    }

    /// Returns `true` if the range ends after `key`.
    pub(crate) fn ends_behind(&self, key: &[u8]) -> bool {
        match self.end {
            RangeEnd::Start => key <= self.start,
            RangeEnd::Before(end) => key < end,
            RangeEnd::Last => true,
        }
    }

    /// Returns `true` if the range and `[start, end)` have a key in common. If `end` is `None`, the
    /// second range includes the last key.
    pub(crate) fn overlaps(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        !self.is_empty() && self.ends_behind(start) && end.is_none_or(|end| self.start < end)
    }

    /// Returns an owned copy of the range.
    pub(crate) fn to_range(self) -> KeyRange {
        match self.end {
            RangeEnd::Start => {
                // The smallest greater key is the key followed by a zero byte, so one buffer can
                // hold both bounds.
                let end = Bytes::from([self.start, &[0]].concat());
                KeyRange { start: end.slice(..self.start.len()), end: Some(end) }
            }
            RangeEnd::Before(end) => KeyRange {
                start: Bytes::copy_from_slice(self.start),
                end: Some(Bytes::copy_from_slice(end)),
            },
            RangeEnd::Last => KeyRange { start: Bytes::copy_from_slice(self.start), end: None },
        }
    }
}

impl<'a> From<&'a KeyRange> for KeyRangeRef<'a> {
    fn from(range: &'a KeyRange) -> Self {
        let end = range.end.as_deref().map_or(RangeEnd::Last, RangeEnd::Before);
        KeyRangeRef { start: &range.start, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_range_to_the_smallest_key_behind_it() {
        let key = KeyRangeRef::key(b"k");
        let copy = key.to_range();
        assert_eq!((&copy.start[..], copy.end.as_deref()), (&b"k"[..], Some(&b"k\0"[..])));
        for other in [&b"j"[..], b"k", b"k\0", b"l"] {
            assert_eq!(
                key.ends_behind(other),
                KeyRangeRef::from(&copy).ends_behind(other),
                "{other:?}"
            );
        }
        assert!(!key.is_empty());
    }

    #[test]
    fn ranges_overlap_when_they_share_a_key() {
        let range = KeyRangeRef::between(b"b", b"d");
        assert!(
            range.overlaps(b"c", None)
                && range.overlaps(b"a", Some(b"b\0"))
                && range.overlaps(b"", None)
        );
        assert!(!range.overlaps(b"d", None) && !range.overlaps(b"a", Some(b"b")));
        assert!(KeyRangeRef::starting_at(b"b").overlaps(b"zzz", None));
        assert!(
            !KeyRangeRef::between(b"b", b"b").overlaps(b"a", Some(b"c")),
            "an empty one shares none"
        );
        assert!(
            KeyRangeRef::between(b"d", b"b").is_empty()
                && KeyRangeRef::between(b"b", b"b").is_empty()
        );
    }
}
