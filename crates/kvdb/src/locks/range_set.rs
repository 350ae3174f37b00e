//! A set of key ranges in one dictionary. The set has the ranges that an owner has locked in any
//! mode, which its release must visit, or the ranges that a transaction has read. Adjacent ranges
//! are merged.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use vt_tree::KeyRange;

#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    /// The ends of the ranges by their start keys. The ranges are disjoint and not adjacent. The
    /// end is `None` if the range includes the last key.
    ranges: BTreeMap<Bytes, Option<Bytes>>,
    /// The total size of the keys that bound the ranges, in bytes.
    key_bytes: usize,
}

fn key_bytes(start: &Bytes, end: &Option<Bytes>) -> usize {
    start.len() + end.as_ref().map_or(0, Bytes::len)
}

impl RangeSet {
    pub(crate) fn insert(&mut self, mut range: KeyRange) {
        // If an existing range begins before the new range and overlaps or touches it, join the
        // two.
        if let Some((start, end)) = self
            .ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(&range.start[..])))
            .next_back()
            && end.as_ref().is_none_or(|end| *end >= range.start)
        {
            if reaches(end, &range.end) {
                return;
            }
            range.start = start.clone();
        }
        // The new range absorbs existing ranges that it overlaps or touches.
        while let Some((start, end)) = self
            .ranges
            .range::<[u8], _>((Bound::Included(&range.start[..]), Bound::Unbounded))
            .next()
        {
            if range.end.as_ref().is_some_and(|own| own < start) {
                break;
            }
            if reaches(end, &range.end) {
                range.end = end.clone();
            }
            let start = start.clone();
            let gone = self.ranges.remove(&start);
            self.key_bytes -= gone.map_or(0, |end| key_bytes(&start, &end));
        }
        self.key_bytes += key_bytes(&range.start, &range.end);
        if let Some(before) = self.ranges.insert(range.start.clone(), range.end) {
            self.key_bytes -= key_bytes(&range.start, &before);
        }
    }

    /// Returns whether the set contains the whole range.
    pub(crate) fn covers(&self, range: &KeyRange) -> bool {
        let before = (Bound::Unbounded, Bound::Included(&range.start[..]));
        let last = self.ranges.range::<[u8], _>(before).next_back();
        last.is_some_and(|(_, end)| reaches(end, &range.end))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.ranges.iter().map(|(start, end)| KeyRange { start: start.clone(), end: end.clone() })
    }

    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the total size of the keys that bound the ranges, in bytes.
    pub(super) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Divides the ranges into pairs of neighbours. Returns, for each pair, the range from the
    /// start of its first range to the end of its second range.
    pub(super) fn pairs(&self) -> Vec<KeyRange> {
        let mut pairs = Vec::with_capacity(self.ranges.len() / 2);
        let mut ranges = self.ranges.iter();
        while let (Some((start, _)), Some((_, end))) = (ranges.next(), ranges.next()) {
            pairs.push(KeyRange { start: start.clone(), end: end.clone() });
        }
        pairs
    }
}

impl IntoIterator for RangeSet {
    type Item = KeyRange;
    type IntoIter = std::iter::Map<
        std::collections::btree_map::IntoIter<Bytes, Option<Bytes>>,
        fn((Bytes, Option<Bytes>)) -> KeyRange,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.ranges.into_iter().map(|(start, end)| KeyRange { start, end })
    }
}

/// Returns `true` if the end `a` is not before the end `b`.
fn reaches(a: &Option<Bytes>, b: &Option<Bytes>) -> bool {
    match (a, b) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(a), Some(b)) => a >= b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut set = RangeSet::default();
        for (start, end) in ranges {
            let end = (!end.is_empty()).then(|| Bytes::from_static(end.as_bytes()));
            set.insert(KeyRange { start: Bytes::from_static(start.as_bytes()), end });
        }
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        set.into_iter().map(|r| (text(r.start), r.end.map(text).unwrap_or_default())).collect()
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        assert_eq!(set(&[("a", "c"), ("c", "e")]), pairs(&[("a", "e")]));
        assert_eq!(set(&[("c", "e"), ("a", "c")]), pairs(&[("a", "e")]));
        assert_eq!(set(&[("a", "b"), ("d", "e"), ("g", "h"), ("b", "g")]), pairs(&[("a", "h")]));
        assert_eq!(set(&[("a", "b"), ("d", "e"), ("aa", "dd")]), pairs(&[("a", "e")]));
        assert_eq!(set(&[("a", "z"), ("d", "e")]), pairs(&[("a", "z")]));
    }

    #[test]
    fn ranges_apart_stay_apart() {
        assert_eq!(set(&[("d", "e"), ("a", "b")]), pairs(&[("a", "b"), ("d", "e")]));
    }

    #[test]
    fn a_range_without_an_end_takes_in_all_behind_it() {
        assert_eq!(set(&[("d", "e"), ("x", ""), ("b", "")]), pairs(&[("b", "")]));
        assert_eq!(set(&[("b", ""), ("d", "e"), ("a", "b")]), pairs(&[("a", "")]));
    }
}
