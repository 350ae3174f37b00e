//! The window in which a merge judges large values. Items are held back in key order until they
//! have as many bytes of values as a scan reads at once. Then it is known which values lie
//! contiguously, in whatever order, and which are so scattered that they should move.

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

/// Items in key order, large values among them.
#[derive(Default)]
pub(crate) struct RelocationWindow {
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

    /// Empties the window. Returns its items in groups in which all values move (`true`) or none
    /// does. A group that moves is no longer than a quarter of a zone, which bounds the memory.
    pub fn judge(&mut self, placement: &Placement) -> Vec<(bool, Vec<HeldItem>)> {
        let window = std::mem::take(self);
        let moves = window.scattered(placement);
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

    /// Returns for each item whether its value must move.
    fn scattered(&self, placement: &Placement) -> Vec<bool> {
        let mut moves = vec![false; self.items.len()];
        let mut values: Vec<(ExtentRef, usize)> = Vec::new();
        for (i, HeldItem { item, placed }) in self.items.iter().enumerate() {
            if let Body::Put(Value::Extent(e)) = item.body
                && !placed
            {
                values.push((e, i));
            }
        }
        values.sort_unstable_by_key(|(e, i)| (e.addr, *i));
        // A gap that takes no longer to read than a seek does not end a span.
        let joined =
            |a: &ExtentRef, b: &ExtentRef| b.addr.saturating_sub(a.end()) <= placement.seek_bytes;
        let spans: Vec<&[(ExtentRef, usize)]> =
            values.chunk_by(|(a, _), (b, _)| joined(a, b)).collect();
        let short = |span: &&[(ExtentRef, usize)]| {
            placement.is_short(span.iter().map(|(e, _)| u64::from(e.stored)).sum())
        };
        // All that moves becomes one span. A single short one, with nothing that it could lie next
        // to, would be as short again, and the next merge would move it again.
        let gains = placement.moves_all()
            || self.items.iter().any(|held| held.placed)
            || spans.iter().filter(|span| short(span)).count() > 1;
        for span in spans {
            let together = gains && short(&span);
            for (e, i) in span {
                moves[*i] = together || placement.moves_value(e);
            }
        }
        moves
    }
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
        w.judge(&placement).iter().filter(|(moves, _)| *moves).map(|(_, items)| items.len()).sum()
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

    #[test]
    fn items_keep_their_order_and_moves_are_bounded() {
        let mut w = window((0..4096).map(|i| i * 2));
        assert!(w.is_full(&Placement::default()));
        let spans = w.judge(&Placement::copy());
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
