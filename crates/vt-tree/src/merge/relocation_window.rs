//! The window in which a merge examines large values. Items are held back in key order until they
//! have as many bytes of values as a scan reads at once. Then it is known which values are
//! contiguous, in whatever order, and which are so scattered that they should move.
//!
//! Windows overlap by half, and a value is scattered if its span is short in both windows that
//! contain it. A span that is cut by the end of one window is whole in the other, or long enough
//! there. If its parts were examined separately, they would seem short. Moving them would divide
//! the span, and the next merge, whose windows end elsewhere, would find other parts.

use zones::ZONE_SIZE;

use crate::item::{Body, Item};
use crate::merge::placement::Placement;
use crate::value::{ExtentRef, Value};

/// A window is also full when its items take about this much memory, bytes.
const WAITING: usize = 1 << 20;

/// An item that is held back.
pub(crate) struct HeldItem {
    pub item: Item,
    /// True if the merge itself has written the item's large value, so that the value stays where
    /// it is.
    pub placed: bool,
}

impl HeldItem {
    /// Returns the number of bytes of the item's large value.
    fn value_bytes(&self) -> u64 {
        match &self.item.body {
            Body::Put(Value::Extent(e)) => u64::from(e.stored),
            _ => 0,
        }
    }

    /// Returns the item's large value if it is on the device and the merge has not written it.
    fn lies(&self) -> Option<ExtentRef> {
        match &self.item.body {
            Body::Put(Value::Extent(e)) if !self.placed => Some(*e),
            _ => None,
        }
    }

    fn memory(&self) -> usize {
        self.item.key.len() + self.item.body_len() + size_of::<HeldItem>()
    }
}

/// Items held back in key order, including those without large values.
#[derive(Default)]
pub(crate) struct RelocationWindow {
    /// Values before the first item that stay and are still within the window, each with the number
    /// of bytes of all values before it.
    before: Vec<(ExtentRef, u64)>,
    /// The number of bytes of all values before the first item.
    begun: u64,
    items: Vec<HeldItem>,
    /// Bytes of the large values of `items`.
    bytes: u64,
    /// Memory that `items` take, bytes.
    memory: usize,
}

impl RelocationWindow {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn push(&mut self, item: HeldItem) {
        self.bytes += item.value_bytes();
        self.memory += item.memory();
        self.items.push(item);
    }

    /// Returns whether items must be examined before more are added.
    pub fn is_full(&self, placement: &Placement) -> bool {
        self.bytes >= placement.window || self.memory >= WAITING
    }

    /// Examines and removes items: the first half of the window if `more` items follow, otherwise
    /// all. Returns them in groups in which either all values move (`true`) or none does. A group
    /// that moves is no longer than a quarter of a zone, which bounds the memory.
    pub fn judge(&mut self, placement: &Placement, more: bool) -> Vec<(bool, Vec<HeldItem>)> {
        let mut out = Vec::new();
        while !self.items.is_empty() {
            self.judge_half(placement, &mut out);
            if more {
                return out;
            }
        }
        // A stitched subtree follows, whose values are not known here.
        self.before.clear();
        out
    }

    fn judge_half(&mut self, placement: &Placement, out: &mut Vec<(bool, Vec<HeldItem>)>) {
        let moves = self.scattered(placement, self.first_half(placement));
        let rest = self.items.split_off(moves.len());
        let mut bytes = 0;
        for (item, moves) in std::mem::replace(&mut self.items, rest).into_iter().zip(moves) {
            let len = item.value_bytes();
            self.bytes -= len;
            self.memory -= item.memory();
            self.before.extend(item.lies().filter(|_| !moves).map(|e| (e, self.begun)));
            self.begun += len;
            match out.last_mut() {
                // An item without a large value fits into any group.
                Some((of, items))
                    if len == 0 || (*of == moves && (!moves || bytes < ZONE_SIZE / 4)) =>
                {
                    items.push(item)
                }
                _ => {
                    out.push((moves, vec![item]));
                    bytes = 0;
                }
            }
            bytes += len;
        }
        let far = self.begun.saturating_sub(placement.window);
        self.before.retain(|(_, at)| *at >= far);
    }

    /// Returns the number of items to examine: those in the first half of the window. If the
    /// lengths of spans do not matter, since all values move or none moves for its span, it is all
    /// items. If the items take too much memory, it is at most half of them.
    fn first_half(&self, placement: &Placement) -> usize {
        if placement.moves_all() || placement.values_at == 0 {
            return self.items.len();
        }
        let mut bytes = 0;
        let last = self.items.iter().position(|item| {
            bytes += item.value_bytes();
            bytes >= placement.window / 2
        });
        let most = if self.memory >= WAITING { self.items.len().div_ceil(2) } else { usize::MAX };
        last.map_or(self.items.len(), |last| last + 1).min(most)
    }

    /// Returns for each of the first `judged` items whether its value is to be moved.
    fn scattered(&self, placement: &Placement, judged: usize) -> Vec<bool> {
        // Only the items to be examined have an index (`Some`) here.
        let (own, after) = self.items.split_at(judged);
        let own = own.iter().enumerate();
        let own: Vec<_> = own.filter_map(|(i, held)| Some((held.lies()?, Some(i)))).collect();
        let ended =
            self.begun + self.items[..judged].iter().map(HeldItem::value_bytes).sum::<u64>();
        let far = ended.saturating_sub(placement.window);
        let before = self.before.iter().filter(|(_, at)| *at >= far).map(|(e, _)| (*e, None));
        let after = after.iter().filter_map(|held| Some((held.lies()?, None)));
        let mut long = vec![false; judged];
        let mut first: Vec<_> = before.chain(own.iter().copied()).collect();
        let mut second: Vec<_> = own.iter().copied().chain(after).collect();
        for window in [&mut first, &mut second] {
            for span in spans(window, placement) {
                let bytes = span.iter().map(|(e, _)| u64::from(e.stored)).sum();
                if !placement.is_short(bytes) {
                    span.iter().filter_map(|(_, i)| *i).for_each(|i| long[i] = true);
                }
            }
        }
        let short = |span: &&[Lies]| span.iter().any(|(_, i)| i.is_some_and(|i| !long[i]));
        // All values that move become one span. A single short span, with no other to join it,
        // would be just as short afterwards, and the next merge would move it again.
        let gains = placement.moves_all()
            || self.items[..judged].iter().any(|held| held.placed)
            || spans(&mut second, placement).iter().filter(|span| short(span)).count() > 1;
        let mut moves = vec![false; judged];
        for (e, i) in own {
            let Some(i) = i else { continue };
            moves[i] = gains && !long[i] || placement.moves_value(&e);
        }
        moves
    }
}

/// A value, and the index of its item if the item is to be examined.
type Lies = (ExtentRef, Option<usize>);

/// Returns the contiguous spans of these values. A gap that can be read in the time of a seek does
/// not end a span.
fn spans<'a>(values: &'a mut [Lies], placement: &Placement) -> Vec<&'a [Lies]> {
    values.sort_unstable_by_key(|(e, i)| (e.addr, *i));
    let joined =
        |(a, _): &Lies, (b, _): &Lies| b.addr.saturating_sub(a.end()) <= placement.seek_bytes;
    values.chunk_by(joined).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn window(pages: impl Iterator<Item = u64>) -> RelocationWindow {
        let mut w = RelocationWindow::default();
        for (key, page) in pages.enumerate() {
            let e = ExtentRef::plain(page * 4096, 4096, 0);
            let key = Bytes::from((key as u64).to_be_bytes().to_vec());
            let item = Item { key, seq: 1, body: Body::Put(Value::Extent(e)) };
            w.push(HeldItem { item, placed: false });
        }
        w
    }

    fn moved(mut w: RelocationWindow, values_at: u64) -> usize {
        let placement = Placement { values_at, ..Placement::stitch() };
        let groups = w.judge(&placement, false);
        groups.iter().filter(|(moves, _)| *moves).map(|(_, items)| items.len()).sum()
    }

    #[test]
    fn values_that_lie_together_in_another_order_stay() {
        let interleaved =
            || window((0..100).map(|i| if i % 2 == 0 { 10_000 + i / 2 } else { 20_000 + i / 2 }));
        assert_eq!(moved(interleaved(), 64 << 10), 0, "two spans of fifty pages");
        assert_eq!(moved(interleaved(), 1 << 20), 100);
        assert_eq!(moved(interleaved(), 0), 0);
        assert_eq!(moved(window((0..100).map(|i| i * 4)), 64 << 10), 100, "single pages");
        assert_eq!(
            moved(window((0..100).map(|i| i * 3)), 64 << 10),
            0,
            "gaps that are cheaper to read than to jump over"
        );
    }

    #[test]
    fn a_value_that_the_merge_has_placed_stays_and_divides_no_span() {
        let mut w = window(0..100);
        for item in w.items.iter_mut().step_by(10) {
            let e = ExtentRef::plain(1 << 40, 4096, 0);
            *item = HeldItem {
                item: Item { body: Body::Put(Value::Extent(e)), ..item.item.clone() },
                placed: true,
            };
        }
        assert_eq!(moved(w, 256 << 10), 0);
        assert_eq!(moved(window((0..9).chain(1000..1009)), 256 << 10), 18, "such spans alone do");
    }

    /// Otherwise each merge would copy again the values that the previous merge has copied.
    #[test]
    fn a_single_short_span_stays_since_it_would_be_as_short_elsewhere() {
        let long_and_short = || window((0..100).chain(1000..1030));
        assert_eq!(moved(long_and_short(), 256 << 10), 0);
        assert_eq!(moved(window(0..30), 256 << 10), 0);
        assert_eq!(moved(window((0..100).chain(1000..1030).chain(2000..2030)), 256 << 10), 60);
        assert_eq!(moved(long_and_short(), u64::MAX), 130, "all move if all must");
    }

    /// Returns how many of the values move if they are added one by one. The first `skipped` values
    /// are examined early, so that windows end elsewhere.
    fn moved_by_windows(
        pages: impl Iterator<Item = u64>,
        placement: &Placement,
        skipped: usize,
    ) -> usize {
        let (mut w, mut moved, mut seen) = (RelocationWindow::default(), 0, 0);
        let mut count = |groups: Vec<(bool, Vec<HeldItem>)>| {
            seen += groups.iter().map(|(_, items)| items.len()).sum::<usize>();
            let moves = groups.iter().filter(|(moves, _)| *moves);
            moved += moves.map(|(_, items)| items.len()).sum::<usize>();
        };
        let items = window(pages).items;
        let all = items.len();
        for (i, held) in items.into_iter().enumerate() {
            w.push(held);
            if w.is_full(placement) || i + 1 == skipped {
                count(w.judge(placement, true));
            }
        }
        count(w.judge(placement, false));
        assert_eq!(seen, all);
        moved
    }

    /// Checks that a second merge, whose windows end elsewhere, moves nothing.
    #[test]
    fn a_span_that_a_window_cuts_is_not_taken_for_two_short_ones() {
        let placement =
            Placement { values_at: 256 << 10, window: 512 << 10, ..Placement::stitch() };
        for skipped in 0..160 {
            // Spans of 80 pages, each far from the next.
            let pages = (0..40u64).flat_map(|span| span * 10_000..span * 10_000 + 80);
            assert_eq!(moved_by_windows(pages, &placement, skipped), 0, "after {skipped}");
        }
    }

    /// Each sequence of adjacent values is long, but extends over all keys, so a scan reads only a
    /// little of each sequence at a time.
    #[test]
    fn values_of_many_sequences_by_turns_move_however_long_each_is() {
        let placement =
            Placement { values_at: 192 << 10, window: 512 << 10, ..Placement::stitch() };
        let by_turns = |n: u64| (0..4000u64).map(move |key| key % n * 1_000_000 + key / n);
        assert_eq!(moved_by_windows(by_turns(2), &placement, 0), 0);
        assert_eq!(moved_by_windows(by_turns(4), &placement, 0), 4000);
    }

    #[test]
    fn items_keep_their_order_and_moves_are_bounded() {
        let mut w = window((0..4096).map(|i| i * 2));
        assert!(w.is_full(&Placement::default()));
        let spans = w.judge(&Placement::copy(), false);
        assert!(
            spans.iter().all(|(moves, items)| *moves && items.len() as u64 * 4096 <= ZONE_SIZE / 4)
        );
        let keys: Vec<Bytes> =
            spans.into_iter().flat_map(|(_, items)| items).map(|i| i.item.key).collect();
        assert_eq!(keys.len(), 4096);
        assert!(keys.is_sorted());
        assert!(w.is_empty() && !w.is_full(&Placement::default()));
    }
}
