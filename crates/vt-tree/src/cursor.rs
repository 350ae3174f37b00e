//! Reads many sources as one ordered sequence of live tuples, in both directions.
//!
//! The position of a cursor is between tuples. The source with the next item is in front; if
//! several sources have an item at the same key, the newest of them is in front. A tombstone in
//! front makes older sources jump over the range that it covers, whatever its size. Such a jump
//! takes a few comparisons if the end of the range is in the open block of the source, and one seek
//! otherwise. Adjacent tombstones of one source are treated as one. An update in front is applied
//! to the value that older sources have at its key.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::cache::BlockCache;
use crate::input::Input;
use crate::item::{BodyRef, ItemRef, Lookup, Seq};
use crate::memtable::MemtableCursor;
use crate::run::RunCursor;
use crate::source::Source;
use crate::update::Update;
use crate::value::{Value, ValueRef};

mod near;

/// A live tuple. A large value is read on demand, by
/// [`BlockCache::read_value`](crate::BlockCache::read_value).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeTuple {
    /// The key.
    pub key: Bytes,
    /// The sequence number of the commit that wrote the tuple, or 0 if the tuple is old.
    pub seq: Seq,
    /// The value.
    pub value: Value,
}

/// A borrowed live tuple, valid until the cursor moves.
#[derive(Clone, Copy, Debug)]
pub struct TupleRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The sequence number of the commit that wrote the tuple, or 0 if the tuple is old.
    pub seq: Seq,
    /// The value.
    pub value: ValueRef<'a>,
}

impl TupleRef<'_> {
    /// Returns a copy of the tuple.
    pub fn to_tuple(&self) -> TreeTuple {
        TreeTuple {
            key: Bytes::copy_from_slice(self.key),
            seq: self.seq,
            value: self.value.to_value(),
        }
    }
}

/// The cursor of a source. It is an enum to avoid a virtual call for each item.
enum SourceCursor {
    Memtable(Box<MemtableCursor>),
    Run(Box<RunCursor>),
}

impl SourceCursor {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            SourceCursor::Memtable(c) => &mut **c,
            SourceCursor::Run(c) => &mut **c,
        }
    }
    #[inline]
    fn item(&self) -> Option<ItemRef<'_>> {
        match self {
            SourceCursor::Memtable(c) => c.item(),
            SourceCursor::Run(c) => c.item(),
        }
    }
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            SourceCursor::Memtable(c) => c.item().map(|i| i.key),
            SourceCursor::Run(c) => c.key(),
        }
    }
    #[inline]
    fn step(&mut self, forward: bool) -> Result<()> {
        match (self, forward) {
            (SourceCursor::Memtable(c), true) => c.next(),
            (SourceCursor::Memtable(c), false) => c.prev(),
            (SourceCursor::Run(c), true) => c.next(),
            (SourceCursor::Run(c), false) => c.prev(),
        }
    }

    /// Performs `seek(bound)` if `forward`, otherwise `seek_before(bound)`, from an item that is
    /// before `bound` in that direction.
    fn jump(&mut self, bound: &[u8], forward: bool) -> Result<()> {
        if let SourceCursor::Run(c) = self {
            return if forward { c.forward_to(bound) } else { c.backward_to(bound) };
        }
        for _ in 0..NEAR {
            match self.item() {
                Some(i) if forward && i.ends_before(bound) => {}
                Some(i) if !forward && i.key >= bound => {}
                _ => return Ok(()),
            }
            self.step(forward)?;
        }
        if forward { self.source().seek(bound) } else { self.source().seek_before(bound) }
    }
}

/// The number of steps in a memtable that cost less than a seek.
const NEAR: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The sources are not positioned for either direction.
    None,
    Forward,
    Backward,
}

/// The position of the cursor while its sources are not positioned: before all keys from `key` on,
/// or after every key.
enum CursorPosition {
    Before(Vec<u8>),
    End,
}

/// The way in which a cursor handles updates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Updates {
    Apply,
    /// The cursor leaves updates of large values to the caller. See [`TreeCursor::keep_updates`].
    Keep,
    /// The cursor skips updates. See [`TreeCursor::keys_only`].
    Skip,
}

/// The tuple of a key that an update changes.
struct Updated {
    seq: Seq,
    value: Value,
    /// The update that the caller has to apply to the value, or `None` if it was applied.
    kept: Option<Update>,
}

/// A cursor over memtables and runs, newest first, as of a sequence number.
pub struct TreeCursor {
    /// The cache through which values are read to apply updates.
    cache: Arc<BlockCache>,
    sources: Vec<SourceCursor>,
    /// The sources that have an item, in the order of their items. If several sources have an item
    /// at the same key, the newest source is first. Moving the first source costs one comparison if
    /// it stays first, and a few if it moves only a few positions.
    order: Vec<u32>,
    direction: Direction,
    /// `true` if the item in front was returned, so that it is skipped when the cursor moves on.
    handed: bool,
    /// The result of the update in front, if the resulting tuple was returned.
    updated: Option<Updated>,
    updates: Updates,
    position: CursorPosition,
    /// The target of a jump. The buffer is reused.
    bound: Vec<u8>,
}

impl TreeCursor {
    /// Creates a cursor before the first tuple of `inputs`, newest first. Memtables are read as of
    /// `at`.
    pub fn new(cache: &Arc<BlockCache>, inputs: &[Input], at: Seq) -> Self {
        TreeCursor::as_of(cache, inputs.iter().map(|input| (input.clone(), at)))
    }

    /// Returns a cursor before the first tuple of `inputs`, newest first. Each memtable is read as
    /// of its sequence number.
    pub fn as_of(cache: &Arc<BlockCache>, inputs: impl IntoIterator<Item = (Input, Seq)>) -> Self {
        let sources = inputs
            .into_iter()
            .map(|(input, at)| match input {
                Input::Memtable(m) => SourceCursor::Memtable(Box::new(m.cursor(at))),
                Input::Run(r) => SourceCursor::Run(Box::new(RunCursor::new(r))),
            })
            .collect();
        TreeCursor {
            cache: cache.clone(),
            sources,
            order: Vec::new(),
            direction: Direction::None,
            handed: false,
            updated: None,
            updates: Updates::Apply,
            position: CursorPosition::Before(Vec::new()),
            bound: Vec::new(),
        }
    }

    /// Restricts the cursor to keys. Updates are not applied, because that might require reading a
    /// large value. A key that an update changes is returned with an empty value.
    pub fn keys_only(&mut self) {
        self.updates = Updates::Skip;
    }

    /// Leaves updates of large values to the caller, because the cursor would have to read a value
    /// to apply its update. The cursor returns the unchanged value, and [`TreeCursor::kept_update`]
    /// returns the update, for callers that read values later or many values together. An update is
    /// left to the caller only if the length of its result is known without the value
    /// ([`Update::applied_len`]). All other updates are applied.
    pub fn keep_updates(&mut self) {
        self.updates = Updates::Keep;
    }

    /// Restricts the cursor to the tuples below `end`, so that less is copied out of memtables. The
    /// caller must not request tuples at or after `end`: the cursor may return some of them without
    /// the changes in memtables.
    pub fn end_at(&mut self, end: &[u8]) {
        for memtable in self.memtables() {
            memtable.end_at(end);
        }
    }

    /// Announces that about this many tuples will be visited after each of the following seeks.
    /// They are then copied out of memtables in one batch.
    pub fn will_visit(&mut self, tuples: usize) {
        for memtable in self.memtables() {
            memtable.will_visit(tuples);
        }
    }

    fn memtables(&mut self) -> impl Iterator<Item = &mut MemtableCursor> {
        self.sources.iter_mut().filter_map(|source| match source {
            SourceCursor::Memtable(c) => Some(&mut **c),
            SourceCursor::Run(_) => None,
        })
    }

    /// Returns the update to apply to the value of [`TreeCursor::current`]. See
    /// [`TreeCursor::keep_updates`].
    pub fn kept_update(&self) -> Option<&Update> {
        self.updated.as_ref()?.kept.as_ref()
    }

    fn stand(&mut self, position: CursorPosition) {
        self.position = position;
        self.direction = Direction::None;
        self.handed = false;
        self.updated = None;
    }

    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.stand(CursorPosition::Before(key.to_vec()));
    }

    /// Moves after the last tuple.
    pub fn seek_to_end(&mut self) {
        self.stand(CursorPosition::End);
    }

    /// Positions the sources for moves in `direction`, if they are not already positioned for it.
    fn face(&mut self, direction: Direction) -> Result<()> {
        if self.direction == direction {
            return Ok(());
        }
        if self.handed {
            // The cursor is directly after or directly before the tuple that was returned.
            let mut key = self.current().map_or_else(Vec::new, |t| t.key.to_vec());
            if self.direction == Direction::Forward {
                key.push(0);
            }
            self.stand(CursorPosition::Before(key));
        }
        self.direction = Direction::None;
        self.aim(direction)?;
        for s in &mut self.sources {
            let s = s.source();
            match (&self.position, direction) {
                (CursorPosition::Before(key), Direction::Forward) => s.seek(key)?,
                (CursorPosition::Before(key), _) => s.seek_before(key)?,
                // Move past the last item, so that the source has none.
                (CursorPosition::End, Direction::Forward) => {
                    s.last()?;
                    s.next()?;
                }
                (CursorPosition::End, _) => s.last()?,
            }
        }
        self.direction = direction;
        self.arrange();
        Ok(())
    }

    /// Finds the block that each run will read in the following seek, so that all blocks can be
    /// requested from the device at once.
    fn aim(&mut self, direction: Direction) -> Result<()> {
        let CursorPosition::Before(key) = &self.position else { return Ok(()) };
        let mut blocks = Vec::new();
        let mut cache = None;
        for s in &mut self.sources {
            if let SourceCursor::Run(c) = s {
                blocks.extend(c.aim(key, direction == Direction::Backward)?);
                cache = Some(c.run().cache().clone());
            }
        }
        if let Some(cache) = cache.filter(|_| blocks.len() > 1) {
            cache.announce_blocks(blocks);
        }
        Ok(())
    }

    /// Sorts all sources by their items.
    fn arrange(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(
            (0..self.sources.len() as u32).filter(|&i| self.sources[i as usize].key().is_some()),
        );
        order.sort_unstable_by(|&a, &b| self.compare(a, b));
        self.order = order;
    }

    /// Compares two sources by the order of their items in the direction of the cursor.
    #[inline]
    fn compare(&self, a: u32, b: u32) -> Ordering {
        let (x, y) = (&self.sources[a as usize], &self.sources[b as usize]);
        let places = match self.direction {
            Direction::Backward => match (x.item(), y.item()) {
                (Some(x), Some(y)) => compare_ends(y, x),
                (x, y) => y.is_some().cmp(&x.is_some()),
            },
            _ => x.key().cmp(&y.key()),
        };
        places.then_with(|| a.cmp(&b))
    }

    /// Advances the source at position `at` of the order by one item, and restores the order.
    #[inline]
    fn step(&mut self, at: usize) -> Result<()> {
        let i = self.order[at];
        self.sources[i as usize].step(self.direction == Direction::Forward)?;
        if self.sources[i as usize].key().is_none() {
            self.order.remove(at);
            return Ok(());
        }
        let mut to = at;
        while let Some(&next) = self.order.get(to + 1)
            && self.compare(next, i) == Ordering::Less
        {
            self.order[to] = next;
            to += 1;
        }
        self.order[to] = i;
        Ok(())
    }

    /// Skips the point in front, and the points of older sources at its key.
    fn pass(&mut self) -> Result<()> {
        // These points directly follow the front. A range tombstone among them is not skipped,
        // because it hides still older items when it comes in front.
        while let Some(&older) = self.order.get(1)
            && let (Some(a), Some(b)) =
                (self.sources[self.order[0] as usize].key(), self.sources[older as usize].item())
            && a == b.key
            && !matches!(b.body, BodyRef::DeleteRange { .. })
        {
            self.step(1)?;
        }
        self.step(0)
    }

    /// Moves to the next live tuple in `direction`. Returns `false` at the end. After an error the
    /// cursor needs a seek.
    fn go(&mut self, direction: Direction) -> Result<bool> {
        self.go_below(direction, None)
    }

    /// Moves like [`TreeCursor::go`]. If there is an `end`, a forward move stops there: it passes
    /// nothing at or after `end`, not even tombstones.
    fn go_below(&mut self, direction: Direction, end: Option<&[u8]>) -> Result<bool> {
        self.face(direction)?;
        if std::mem::take(&mut self.handed) {
            self.updated = None;
            self.pass()?;
        }
        loop {
            let Some(&front) = self.order.first() else {
                // The cursor has reached the end, so the sources need not be read again.
                self.position = if direction == Direction::Forward {
                    CursorPosition::End
                } else {
                    CursorPosition::Before(Vec::new())
                };
                return Ok(false);
            };
            if let Some(end) = end
                && self.sources[front as usize].key().is_some_and(|key| key >= end)
            {
                self.position = CursorPosition::Before(end.to_vec());
                return Ok(false);
            }
            match self.sources[front as usize].item().map(|i| (i.key, i.body)) {
                Some((_, BodyRef::Put(_))) => {
                    self.handed = true;
                    return Ok(true);
                }
                Some((_, BodyRef::Update { .. })) => {
                    self.updated = match self.updates {
                        Updates::Skip => {
                            Some(Updated { seq: 0, value: Value::Inline(Bytes::new()), kept: None })
                        }
                        Updates::Apply | Updates::Keep => self.apply_update()?,
                    };
                    self.handed = true;
                    return Ok(true);
                }
                Some((start, BodyRef::DeleteRange { end })) => {
                    self.bound.clear();
                    self.bound.extend_from_slice(if direction == Direction::Forward {
                        end
                    } else {
                        start
                    });
                    self.jump(front as usize)?;
                }
                _ => self.pass()?,
            }
        }
    }

    /// Applies the update in front to the value that older sources have at its key.
    fn apply_update(&self) -> Result<Option<Updated>> {
        let mut lookup = Lookup::Absent;
        let mut key = None;
        // Items that cover the key directly follow the update. A tombstone that begins before the
        // key (after it, when moving backward) was in front earlier, so older sources have already
        // passed it.
        for &source in &self.order {
            let Some(item) = self.sources[source as usize].item() else { break };
            if lookup.is_final() || !key.is_none_or(|key| item.covers(key)) {
                break;
            }
            key = Some(*key.get_or_insert(item.key));
            lookup = lookup.over(Lookup::of(item.seq, item.body.to_body())?);
        }
        let seq = match &lookup {
            Lookup::Updated { seq, .. } | Lookup::Found(seq, _) | Lookup::Deleted(seq) => *seq,
            Lookup::Absent => 0,
        };
        if self.updates == Updates::Keep
            && let Lookup::Updated { base: Some(base), update, .. } = &lookup
            && update.applied_len(Some(base.len as usize)).is_some()
        {
            let (base, update) = (**base, update.clone());
            return Ok(Some(Updated { seq, value: Value::Extent(base), kept: Some(update) }));
        }
        let Some(value) = self.cache.resolve(lookup)? else { return Ok(None) };
        let value = Value::Inline(self.cache.read_value(&value)?);
        Ok(Some(Updated { seq, value, kept: None }))
    }

    /// Skips the range tombstone in front, and the items of older sources beneath it.
    fn jump(&mut self, front: usize) -> Result<()> {
        let forward = self.direction == Direction::Forward;
        let (newer, older) = self.sources.split_at_mut(front + 1);
        let tombstones = &mut newer[front];
        let bound = &mut self.bound;
        tombstones.step(forward)?;
        // If the next tombstone is adjacent to this one, skip both together.
        while let Some(ItemRef { key, body: BodyRef::DeleteRange { end }, .. }) = tombstones.item()
            && (if forward { key } else { end }) == bound.as_slice()
        {
            bound.clear();
            bound.extend_from_slice(if forward { end } else { key });
            tombstones.step(forward)?;
        }
        for older in older {
            let under = match forward {
                true => older.key().is_some_and(|k| k < bound.as_slice()),
                false => older.item().is_some_and(|o| !o.ends_before(bound)),
            };
            if under {
                older.jump(bound, forward)?;
            }
        }
        self.arrange();
        Ok(())
    }

    /// Returns the tuple to which the last [`TreeCursor::advance`] or [`TreeCursor::retreat`] has
    /// moved.
    #[inline]
    pub fn current(&self) -> Option<TupleRef<'_>> {
        if !self.handed {
            return None;
        }
        match self.sources[*self.order.first()? as usize].item() {
            Some(ItemRef { key, seq, body: BodyRef::Put(value) }) => {
                Some(TupleRef { key, seq, value })
            }
            Some(ItemRef { key, body: BodyRef::Update { .. }, .. }) => {
                let Updated { seq, value, .. } = self.updated.as_ref()?;
                let value = match value {
                    Value::Inline(bytes) => ValueRef::Inline(bytes, bytes),
                    Value::Extent(e) => ValueRef::Extent(*e),
                };
                Some(TupleRef { key, seq: *seq, value })
            }
            _ => None,
        }
    }

    /// Moves after the next live tuple, which is then [`TreeCursor::current`]. Returns `false` at
    /// the end. After an error the cursor needs a seek.
    pub fn advance(&mut self) -> Result<bool> {
        self.go(Direction::Forward)
    }

    /// Moves like [`TreeCursor::advance`], but not beyond `end`. Returns `false` if there is no
    /// live tuple before `end`. The cursor passes nothing at or after `end`, so tombstones there
    /// cost nothing. An empty `end` means no upper bound.
    pub fn advance_below(&mut self, end: &[u8]) -> Result<bool> {
        self.go_below(Direction::Forward, (!end.is_empty()).then_some(end))
    }

    /// Moves before the previous live tuple, which is then [`TreeCursor::current`]. Returns `false`
    /// at the start.
    pub fn retreat(&mut self) -> Result<bool> {
        self.go(Direction::Backward)
    }

    /// Moves after the next live tuple and returns it, or returns `None` at the end. After an error
    /// the cursor needs a seek.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<TreeTuple>> {
        Ok(if self.advance()? { self.current().map(|t| t.to_tuple()) } else { None })
    }

    /// Moves after the next live tuple below `end` and returns it. If there is no such tuple,
    /// returns `None` and leaves the cursor at `end`. After an error the cursor needs a seek.
    pub fn next_below(&mut self, end: &[u8]) -> Result<Option<TreeTuple>> {
        let found = self.go_below(Direction::Forward, Some(end))?;
        Ok(if found { self.current().map(|t| t.to_tuple()) } else { None })
    }

    /// Moves before the previous live tuple and returns it, or returns `None` at the start.
    pub fn prev(&mut self) -> Result<Option<TreeTuple>> {
        Ok(if self.retreat()? { self.current().map(|t| t.to_tuple()) } else { None })
    }
}

/// Compares the upper bounds of two items. A point at `k` ends at the key that follows `k`.
fn compare_ends(a: ItemRef<'_>, b: ItemRef<'_>) -> Ordering {
    match (a.body, b.body) {
        (BodyRef::DeleteRange { end: x }, BodyRef::DeleteRange { end: y }) => x.cmp(y),
        (BodyRef::DeleteRange { end }, _) => compare_range_to_point(end, b.key),
        (_, BodyRef::DeleteRange { end }) => compare_range_to_point(end, a.key).reverse(),
        _ => a.key.cmp(b.key),
    }
}

/// Compares `end` with `key` followed by a zero byte.
fn compare_range_to_point(end: &[u8], key: &[u8]) -> Ordering {
    if end <= key {
        return Ordering::Less;
    }
    if end.len() == key.len() + 1 && end.starts_with(key) && end[key.len()] == 0 {
        Ordering::Equal
    } else {
        Ordering::Greater
    }
}
