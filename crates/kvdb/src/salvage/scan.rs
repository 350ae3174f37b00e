//! Scans the remaining tuples of a dictionary by a sweep over all of its sources at once.
//!
//! A source is a sequence of disjoint pieces: points, range tombstones, and gaps. The sweep takes
//! the piece that begins first; on a tie, that of the newest source. A range tombstone or a gap
//! stays in effect in its source until it ends. For each point, the newest piece in effect in a
//! newer source that covers it determines whether the point is hidden or stale.

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::{
    Body, Item, Lookup, MemtableCursor, SalvageCache, SalvageCursor, Salvaged, Seq, Source as _,
};

use super::{Remnant, SalvagedValue, Source};

enum Input {
    Memtable(MemtableCursor),
    SalvageCursor(SalvageCursor),
    Nothing,
}

/// The state of one source in a sweep.
struct Swept {
    input: Input,
    next: Option<Salvaged>,
    /// The range tombstone (`false`) or gap (`true`) that began last, and its end. An end of `None`
    /// means that there is no upper bound.
    force: Option<(bool, Option<Bytes>)>,
}

impl Swept {
    fn pull(&mut self, recent: &mut SalvageCache) {
        self.next = match &mut self.input {
            Input::Nothing => None,
            Input::SalvageCursor(pieces) => pieces.next(recent),
            Input::Memtable(cursor) => {
                let item = cursor.item().map(|item| item.to_item());
                if item.is_some() && cursor.next().is_err() {
                    self.input = Input::Nothing;
                }
                item.map(Salvaged::Item)
            }
        };
    }

    fn covers(&self, key: &[u8]) -> Option<bool> {
        self.force
            .as_ref()
            .filter(|(_, end)| end.as_ref().is_none_or(|end| key < &end[..]))
            .map(|(gap, _)| *gap)
    }
}

fn start_of(piece: &Salvaged) -> &Bytes {
    match piece {
        Salvaged::Item(item) => &item.key,
        Salvaged::Gap { start, .. } => start,
    }
}

/// The tuples and gaps of a dictionary. See [`crate::Salvage::scan`].
pub struct Scan<'a> {
    recent: &'a Mutex<SalvageCache>,
    sources: Vec<Swept>,
    start: Bytes,
    end: Bytes,
    /// The last key that was decided. Older points of the same key are skipped.
    judged: Option<Bytes>,
    lost: Vec<String>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        recent: &'a Mutex<SalvageCache>,
        sources: &[Source],
        start: &[u8],
        end: &[u8],
    ) -> Scan<'a> {
        let mut scan = Scan {
            recent,
            sources: Vec::new(),
            start: Bytes::copy_from_slice(start),
            end: Bytes::copy_from_slice(end),
            judged: None,
            lost: Vec::new(),
        };
        for source in sources {
            let mut force = None;
            let input = match source {
                Source::Run(run) => Input::SalvageCursor(SalvageCursor::new(run, start)),
                Source::Memtable(memtable) => {
                    let mut cursor = memtable.cursor(u64::MAX);
                    match cursor.seek(start) {
                        Ok(()) => Input::Memtable(cursor),
                        Err(_) => Input::Nothing,
                    }
                }
                Source::Lost(what) => {
                    scan.lost.push(what.clone());
                    force = Some((true, None));
                    Input::Nothing
                }
            };
            let mut swept = Swept { input, next: None, force };
            swept.pull(&mut recent.lock());
            scan.sources.push(swept);
        }
        scan
    }

    /// Returns the source whose next piece begins first; on a tie, the newest one.
    fn first(&self) -> Option<usize> {
        let begins = |i: &usize| self.sources[*i].next.as_ref().map(start_of);
        let with = (0..self.sources.len()).filter(|i| begins(i).is_some());
        with.min_by(|a, b| begins(a).cmp(&begins(b)))
    }
}

impl Scan<'_> {
    /// Returns the value that an item of source `at` makes together with older items, and `true` if
    /// a part of it may be lost.
    fn value(&self, at: usize, key: &Bytes, seq: Seq, body: Body) -> (Lookup, bool) {
        // An update that cannot be decoded counts as lost.
        let of = |seq, body| Lookup::of(seq, body).map_or((Lookup::Absent, true), |l| (l, false));
        let (mut lookup, mut incomplete) = of(seq, body);
        for older in &self.sources[at + 1..] {
            if lookup.is_final() {
                break;
            }
            let (found, lost) = match (&older.next, older.covers(key)) {
                (_, Some(true)) => (Lookup::Absent, true),
                (_, Some(false)) => (Lookup::Deleted(0), false),
                (Some(Salvaged::Item(item)), None) if item.covers(key) => {
                    of(item.seq, item.body.clone())
                }
                (Some(Salvaged::Gap { start, .. }), None) if start == key => (Lookup::Absent, true),
                _ => (Lookup::Absent, false),
            };
            lookup = lookup.over(found);
            incomplete |= lost;
        }
        // There are no older sources, so a missing base value counts as absent.
        (if lookup.is_final() { lookup } else { lookup.over(Lookup::Deleted(0)) }, incomplete)
    }
}

impl Iterator for Scan<'_> {
    type Item = Remnant;

    fn next(&mut self) -> Option<Remnant> {
        if let Some(what) = self.lost.pop() {
            return Some(Remnant::Gap { start: self.start.clone(), end: self.end.clone(), what });
        }
        loop {
            let at = self.first()?;
            let piece = self.sources[at].next.take()?;
            if !self.end.is_empty() && *start_of(&piece) >= self.end {
                return None;
            }
            self.sources[at].pull(&mut self.recent.lock());
            match piece {
                Salvaged::Gap { start, end, what } => {
                    self.sources[at].force = Some((true, Some(end.clone())));
                    let end = if self.end.is_empty() { end } else { end.min(self.end.clone()) };
                    return Some(Remnant::Gap { start: start.max(self.start.clone()), end, what });
                }
                Salvaged::Item(Item { body: Body::DeleteRange { end }, .. }) => {
                    self.sources[at].force = Some((false, Some(end)));
                }
                Salvaged::Item(Item { key, seq, body }) => {
                    if self.judged.as_ref() == Some(&key) {
                        continue;
                    }
                    // The newest covering piece of a newer source decides.
                    let stale = match self.sources[..at].iter().find_map(|s| s.covers(&key)) {
                        Some(false) => continue,
                        Some(true) => true,
                        None => false,
                    };
                    self.judged = Some(key.clone());
                    let (value, incomplete) = self.value(at, &key, seq, body);
                    if !matches!(value, Lookup::Absent | Lookup::Deleted(_)) && key >= self.start {
                        let stale = stale || incomplete;
                        return Some(Remnant::Tuple { key, value: SalvagedValue(value), stale });
                    }
                }
            }
        }
    }
}
