//! The window in which a merge judges large values. Items are held back in key order until they
//! have as many bytes of values as a scan reads at once. Then it is known which values lie
//! contiguously, in whatever order, and which are so scattered that they should move.
//!
//! A span that reaches over the end of a window is judged as a whole: else its parts would seem
//! short, moving them would divide it, and the next merge, whose windows end elsewhere, would find
//! other parts. A short span at the end waits for the next window, the part of a span that begins
//! in the window before counts with what lay there, and what may go on in the next one is no reason
//! to move anything.

use zones::ZONE_SIZE;

use crate::item::{Body, Item};
use crate::merge::placement::Placement;
use crate::value::{ExtentRef, Value};

/// A window is full when its items take about this much memory, bytes.
const WAITING: usize = 1 << 20;

/// An item that is held back.
pub(crate) struct HeldItem {
    pub item: Item,
    /// The merge has placed its large value, so that stays where it is.
    pub placed: bool,
}

/// A span that stays, as far as it is known.
struct SpanSoFar {
    /// The address at which it ends.
    end: u64,
    bytes: u64,
}

/// Items in key order, large values among them.
#[derive(Default)]
pub(crate) struct RelocationWindow {
    /// The spans of the window before, by their ends.
    before: Vec<SpanSoFar>,
    items: Vec<HeldItem>,
    /// Bytes of the large values.
    bytes: u64,
    /// Memory that the items take, bytes.
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
        let HeldItem { item: Item { key, body, .. }, .. } = &item;
        if let Body::Put(Value::Extent(e)) = body {
            self.bytes += u64::from(e.stored);
        }
        self.memory += key.len() + item.item.body_len() + size_of::<HeldItem>();
        self.items.push(item);
    }

    /// `true` if the window must be judged before more is added.
    pub fn is_full(&self, placement: &Placement) -> bool {
        self.bytes >= placement.window || self.memory >= WAITING
    }

    /// Empties the window, but for a short span at its end where `more` items follow. Returns its
    /// items in groups in which all values move (`true`) or none does. A group that moves is no
    /// longer than a quarter of a zone, which bounds the memory.
    pub fn judge(&mut self, placement: &Placement, more: bool) -> Vec<(bool, Vec<HeldItem>)> {
        let mut window = std::mem::take(self);
        if more {
            window.without_last_span(placement).into_iter().for_each(|held| self.push(held));
        }
        let (moves, spans) = window.scattered(placement, more);
        self.before = spans;
        let mut out: Vec<(bool, Vec<HeldItem>)> = Vec::new();
        let mut bytes = 0;
        for (item, moves) in window.items.into_iter().zip(moves) {
            let len = match &item.item.body {
                Body::Put(Value::Extent(e)) => u64::from(e.stored),
                _ => 0,
            };
            match out.last_mut() {
                // An item without a large value belongs to any group.
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
        out
    }

    /// The values that may move, with the places of their items, by address.
    fn values(&self) -> Vec<(ExtentRef, usize)> {
        let mut values: Vec<(ExtentRef, usize)> = Vec::new();
        for (i, HeldItem { item, placed }) in self.items.iter().enumerate() {
            if let Body::Put(Value::Extent(e)) = item.body
                && !placed
            {
                values.push((e, i));
            }
        }
        values.sort_unstable_by_key(|(e, i)| (e.addr, *i));
        values
    }

    /// Takes the items from the last value's span on out of the window, if that is short, and not
    /// most of it.
    fn without_last_span(&mut self, placement: &Placement) -> Vec<HeldItem> {
        let values = self.values();
        let last = values.iter().map(|(_, i)| *i).max();
        let spans = spans(&values, placement);
        let span = spans.into_iter().find(|span| span.iter().any(|(_, i)| Some(*i) == last));
        let first = span
            .filter(|span| placement.is_short(self.length(span, placement)))
            .and_then(|span| span.iter().map(|(_, i)| *i).min());
        let behind = |first: usize| {
            let values = values.iter().filter(|(_, i)| *i >= first);
            values.map(|(e, _)| u64::from(e.stored)).sum::<u64>()
        };
        let waits = first.filter(|&first| {
            !placement.moves_all() && first > self.items.len() / 2 && behind(first) < self.bytes / 2
        });
        waits.map_or_else(Vec::new, |first| self.items.split_off(first))
    }

    /// The bytes of a span, with those before the window.
    fn length(&self, span: &[(ExtentRef, usize)], placement: &Placement) -> u64 {
        let own: u64 = span.iter().map(|(e, _)| u64::from(e.stored)).sum();
        let Some((first, _)) = span.first() else { return own };
        let ending = self.before.partition_point(|before| before.end <= first.addr);
        let before = self.before[..ending].last();
        let before = before.filter(|before| first.addr - before.end <= placement.seek_bytes);
        own.saturating_add(before.map_or(0, |before| before.bytes))
    }

    /// Returns for each item whether its value must move; and the spans that stay. `more` items
    /// follow.
    fn scattered(&self, placement: &Placement, more: bool) -> (Vec<bool>, Vec<SpanSoFar>) {
        let mut moves = vec![false; self.items.len()];
        let values = self.values();
        // What reaches into the last quarter may go on.
        let ended = if more { self.items.len() / 4 * 3 } else { self.items.len() };
        let spans = spans(&values, placement);
        let short = |span: &&[(ExtentRef, usize)]| placement.is_short(self.length(span, placement));
        // All that moves becomes one span. A single short one, with nothing that it could lie next
        // to, would be as short again, and the next merge would move it again.
        let gains = placement.moves_all()
            || self.items.iter().any(|held| held.placed)
            || spans
                .iter()
                .filter(|span| span.iter().all(|(_, i)| *i < ended) && short(span))
                .count()
                > 1;
        let mut stay = Vec::new();
        for span in spans {
            let together = gains && short(&span);
            for (e, i) in span {
                moves[*i] = together || placement.moves_value(e);
            }
            let end = span.iter().map(|(e, _)| e.end()).max();
            let bytes = self.length(span, placement);
            stay.extend(end.filter(|_| !together).map(|end| SpanSoFar { end, bytes }));
        }
        (moves, stay)
    }
}

/// The spans of these values, which come by address. A gap that takes no longer to read than a seek
/// does not end one.
fn spans<'a>(
    values: &'a [(ExtentRef, usize)],
    placement: &Placement,
) -> Vec<&'a [(ExtentRef, usize)]> {
    let joined =
        |a: &ExtentRef, b: &ExtentRef| b.addr.saturating_sub(a.end()) <= placement.seek_bytes;
    values.chunk_by(|(a, _), (b, _)| joined(a, b)).collect()
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
        w.judge(&placement, false)
            .iter()
            .filter(|(moves, _)| *moves)
            .map(|(_, items)| items.len())
            .sum()
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

    /// Else each merge would copy what the one before has copied.
    #[test]
    fn a_single_short_span_stays_since_it_would_be_as_short_elsewhere() {
        let long_and_short = || window((0..100).chain(1000..1030));
        assert_eq!(moved(long_and_short(), 256 << 10), 0);
        assert_eq!(moved(window(0..30), 256 << 10), 0);
        assert_eq!(moved(window((0..100).chain(1000..1030).chain(2000..2030)), 256 << 10), 60);
        assert_eq!(moved(long_and_short(), u64::MAX), 130, "all move if all must");
    }

    /// Values that lie in spans longer than the threshold, of which windows of any length cut parts
    /// off, stay: a merge whose windows end elsewhere than those of the one before moves nothing.
    #[test]
    fn a_span_that_a_window_cuts_is_not_taken_for_two_short_ones() {
        // Spans of 80 pages, each far from the next.
        let pages = || (0..40u64).flat_map(|span| span * 10_000..span * 10_000 + 80);
        let placement =
            Placement { values_at: 256 << 10, window: 512 << 10, ..Placement::stitch() };
        for skipped in 0..160 {
            let (mut w, mut moved, mut seen) = (RelocationWindow::default(), 0, 0);
            let mut count = |groups: Vec<(bool, Vec<HeldItem>)>| {
                seen += groups.iter().map(|(_, items)| items.len()).sum::<usize>();
                moved += groups.iter().filter(|(moves, _)| *moves).count();
            };
            let mut items = window(pages()).items.into_iter();
            // What comes first ends at any place in a span.
            let first: Vec<HeldItem> = items.by_ref().take(skipped).collect();
            first.into_iter().for_each(|held| w.push(held));
            count(w.judge(&placement, true));
            for held in items {
                w.push(held);
                if w.is_full(&placement) {
                    count(w.judge(&placement, true));
                }
            }
            count(w.judge(&placement, false));
            assert_eq!((moved, seen), (0, 40 * 80), "after {skipped}");
        }
    }

    /// The same where two sequences lie next to each other, which have their keys by turns.
    #[test]
    fn two_long_spans_side_by_side_that_windows_cut_stay() {
        let pages = (0..2000u64).map(|key| key % 2 * 1_000_000 + key / 2);
        let placement =
            Placement { values_at: 256 << 10, window: 384 << 10, ..Placement::stitch() };
        let (mut w, mut moved) = (RelocationWindow::default(), 0);
        let mut count = |groups: Vec<(bool, Vec<HeldItem>)>| {
            moved += groups.iter().filter(|(moves, _)| *moves).count();
        };
        for held in window(pages).items {
            w.push(held);
            if w.is_full(&placement) {
                count(w.judge(&placement, true));
            }
        }
        count(w.judge(&placement, false));
        assert_eq!(moved, 0);
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
