//! The memtable: the newest items of a tree, in memory. It keeps every version that a reader may
//! still request.
//!
//! One writer at a time (the commit pipeline) and any number of readers share it under a
//! readers-writer lock. The lock is held for one lookup, one write or one batch of writes, and
//! never by a cursor between two calls. The parts are:
//!
//! - `arena`: keys and small values, appended to chunks and never moved;
//! - `pool`: the source of its memory;
//! - `tree`, `leaves`, `keys`: the points, in a B+-tree with wide leaves and a chain of versions
//!   for each key written more than once (`versions`);
//! - `fragments`: the range tombstones, cut so that one search finds the newest one over a key;
//! - `cursor`, `batch`: points and range tombstones together, as one sequence of disjoint items.
//!
//! Nothing is removed, so the owner watches [`Memtable::bytes`] and seals the memtable when it
//! reaches its budget. Old versions of a hot key are forgotten during writes, once the owner has
//! promised ([`Memtable::set_floor`]) that no reader requests them. Their bytes in the arena
//! (values below `KEEP_FROM`) stay, and are counted, until the memtable is dropped.

mod arena;
mod batch;
mod cursor;
mod fragments;
mod keys;
mod leaves;
mod pool;
mod tree;
mod versions;

#[cfg(test)]
mod tests;

pub use cursor::MemtableCursor;
pub use pool::Pool;

use crate::{ExtentRef, Lookup, Seq, Update, Value};
use arena::{Arena, NewValue, Place};
use bytes::Bytes;
use env::sync::{Mutex, RwLock, RwLockWriteGuard};
use fragments::Fragments;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tree::Tree;
use versions::Stamp;
use zones::ZonePin;

/// Inline values of at least this many bytes are kept as passed in. Smaller ones are copied into
/// the arena.
pub const KEEP_FROM: usize = 512;

/// The newest items of a tree, in memory. Versions of a key differ by sequence number; a reader
/// sees the newest version whose number is at most its own.
pub struct Memtable {
    state: RwLock<MemtableState>,
    pin: Mutex<ZonePin>,
    // The following fields are written under the lock, and read without it.
    bytes: AtomicUsize,
    placed: AtomicU64,
    len: AtomicUsize,
    max_seq: AtomicU64,
    min_seq: AtomicU64,
}

struct MemtableState {
    arena: Arena,
    tree: Tree,
    fragments: Fragments,
    /// The values kept outside the arena, indexed by `Place::kept`.
    kept: Vec<Option<KeptValue>>,
    free_kept: Vec<u32>,
    /// Heap bytes of the values in `kept`.
    kept_bytes: usize,
    /// Bytes on the device of the values in `kept`, not counting forgotten values.
    placed: u64,
    /// Bytes on the device of large values that were forgotten.
    forgotten: u64,
    /// True if any version was forgotten.
    hides: bool,
    /// A sequence number at which every discarded value is hidden by another write.
    discarded_at: Seq,
    /// The floor: no reader requests a state below this sequence number.
    floor: Seq,
    /// No reader requests a range tombstone that a newer one hides at this sequence number.
    tombstone_floor: Seq,
    arrivals: u32,
    min_seq: Seq,
    max_seq: Seq,
}

/// A value, or an update of one, that is kept outside the arena.
enum KeptValue {
    /// The value as it was passed in.
    Own(Value),
    /// A value that shares a buffer with its neighbours until it has an address on the device. See
    /// `Writer::put_deferred`.
    Deferred(Deferred),
    /// An update of a value on the device, or of one in an older source. (An update of a value
    /// whose bytes are in this memtable is applied immediately.)
    Updated(Box<(Option<ExtentRef>, Update)>),
}

struct Deferred {
    bytes: Bytes,
    /// True if an update was applied to the value, so that a replay of the writes needs it.
    folded: bool,
    /// True if the value was forgotten. If so, it is included in `MemtableState::forgotten`.
    forgotten: bool,
}

/// Identifies a value in a memtable that has no address on the device yet. See
/// [`Writer::put_deferred`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeferredSlot(u32);

impl Default for Memtable {
    fn default() -> Self {
        Self::new()
    }
}

impl Memtable {
    /// Creates a memtable with its own pool. Memtables of one store share a pool; see
    /// [`Memtable::in_pool`].
    pub fn new() -> Memtable {
        Memtable::in_pool(&Pool::new())
    }

    /// Returns a memtable that takes its memory from `pool` and returns it there.
    pub fn in_pool(pool: &Arc<Pool>) -> Memtable {
        Memtable {
            state: RwLock::new(MemtableState {
                arena: Arena::new(pool.clone()),
                tree: Tree::new(pool.clone()),
                fragments: Fragments::default(),
                kept: Vec::new(),
                free_kept: Vec::new(),
                kept_bytes: 0,
                placed: 0,
                forgotten: 0,
                hides: false,
                discarded_at: 0,
                floor: 0,
                tombstone_floor: 0,
                arrivals: 0,
                min_seq: Seq::MAX,
                max_seq: 0,
            }),
            pin: Mutex::new(ZonePin::default()),
            bytes: AtomicUsize::new(size_of::<Memtable>()),
            placed: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            max_seq: AtomicU64::new(0),
            min_seq: AtomicU64::new(0),
        }
    }

    /// Locks the memtable for several writes, which costs less than locking it for each. Readers
    /// wait until the writer is dropped, so the writer should be short-lived (a few hundred
    /// writes).
    pub fn writer(&self) -> Writer<'_> {
        Writer { state: self.state.write(), memtable: self }
    }

    /// Sets `key` to `value` as of `seq`. If several writes to one key have the same `seq`, the
    /// last call wins.
    ///
    /// An inline value of `KEEP_FROM` bytes or more is kept as passed in. It should not be a slice
    /// of a larger buffer, since it would keep the whole buffer alive while `bytes` counts only the
    /// slice.
    pub fn put(&self, key: &[u8], seq: Seq, value: Value) {
        self.writer().put(key, seq, value);
    }

    /// Deletes `key` as of `seq`.
    pub fn delete(&self, key: &[u8], seq: Seq) {
        self.writer().delete(key, seq);
    }

    /// Deletes all keys in `[start, end)` as of `seq`. Has no effect if `start >= end`.
    pub fn delete_range(&self, start: &[u8], end: &[u8], seq: Seq) {
        self.writer().delete_range(start, end, seq);
    }

    /// Updates the value of `key` as of `seq`. See [`Update`]. No older write may follow, and no
    /// other thread may write to this key with the same `seq`.
    pub fn update(&self, key: &[u8], seq: Seq, update: &Update) {
        self.writer().update(key, seq, update);
    }

    /// Looks up `key` as of `at`. Finds the newest version with a sequence number of at most `at`,
    /// unless a range tombstone of at most `at` is newer.
    pub fn get(&self, key: &[u8], at: Seq) -> Lookup {
        let s = &*self.state.read();
        let at = at.max(s.tombstone_floor).max(s.floor);
        // A caller without a cursor accepts any state from `at` on, so it may find a discarded
        // value. Then return the state in which all discarded values are hidden.
        s.get(key, at).or_else(|| s.get(key, s.discarded_at)).unwrap_or(Lookup::Absent)
    }

    /// Returns a cursor over the disjoint items that a reader at `at` sees. It is not positioned
    /// yet. Writes above `at` are never visible; concurrent writes of at most `at` may or may not
    /// be.
    pub fn cursor(self: &Arc<Self>, at: Seq) -> MemtableCursor {
        MemtableCursor::new(self.clone(), at)
    }

    /// Replaces values put by [`Writer::put_deferred`] by references to the device, where the
    /// values must be readable already. Returns the number of bytes by which the memtable shrank.
    pub fn place(&self, placed: impl IntoIterator<Item = (DeferredSlot, ExtentRef)>) -> usize {
        let mut writer = self.writer();
        let before = writer.state.kept_bytes;
        for (DeferredSlot(i), extent) in placed {
            if let Some(Some(kept)) = writer.state.kept.get_mut(i as usize)
                && let KeptValue::Deferred(deferred) = kept
            {
                let heap = DEFERRED_OVERHEAD + deferred.bytes.len();
                let placed = if deferred.forgotten { 0 } else { u64::from(extent.stored) };
                *kept = KeptValue::Own(Value::Extent(extent));
                writer.state.kept_bytes -= heap;
                writer.state.placed += placed;
            }
        }
        before - writer.state.kept_bytes
    }

    /// Discards those of the given deferred values that no reader requests any more, and returns
    /// for each value, in the same order, whether it was discarded. A value is given by its key,
    /// its sequence number, its slot, and the oldest state since its write that a reader requests
    /// or will request. It is discarded if a later write hides it in that state. A value to which
    /// an update was applied is kept, since a replay of the writes needs it. A `get` as of an older
    /// state then returns a newer one.
    pub fn discard<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a [u8], Seq, DeferredSlot, Seq)>,
    ) -> Vec<bool> {
        let mut writer = self.writer();
        let s = &mut *writer.state;
        values.into_iter().map(|(key, seq, slot, at)| s.discard(key, seq, slot.0, at)).collect()
    }

    /// Returns whether some write has hidden an earlier one, so that [`Memtable::discard`] may
    /// succeed.
    pub fn hides(&self) -> bool {
        let s = &*self.state.read();
        s.hides || s.tree.superseded() > 0 || !s.fragments.is_empty()
    }

    /// Promises that every cursor, including existing ones, is as of `floor` or later; a `get` as
    /// of an older state reads the state at `floor`. When newer versions are written, older ones
    /// that no reader can request any more may then be forgotten. The floor never decreases.
    pub fn set_floor(&self, floor: Seq) {
        let mut s = self.state.write();
        s.floor = s.floor.max(floor);
    }

    /// Promises the same as [`Memtable::set_floor`], but only for range tombstones: every cursor is
    /// as of `floor` or later, and a `get` as of an older state reads the state at `floor`. When
    /// range tombstones are written, older ones that they cover are then forgotten. Points are
    /// kept.
    pub fn forget_tombstones(&self, floor: Seq) {
        let mut s = self.state.write();
        s.tombstone_floor = s.tombstone_floor.max(floor);
    }

    /// Keeps `pin`, which pins the zones that the values refer to, until the memtable is dropped.
    pub fn pin(&self, pin: ZonePin) {
        self.pin.lock().merge(pin);
    }

    /// Returns an upper bound of the heap bytes in use. Overhead is included, shared buffers are
    /// not. See [`Memtable::put`].
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the large values that have an address on the device and are not
    /// forgotten.
    pub fn placed_bytes(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Returns the bytes of large values that were forgotten: they are on the device or about to
    /// be, and no reader requests them.
    pub fn forgotten_bytes(&self) -> u64 {
        self.state.read().forgotten
    }

    /// Returns about `count` keys at even distances, or fewer if the memtable is small.
    pub fn sample(&self, count: usize) -> Vec<Bytes> {
        let s = &*self.state.read();
        let step = (s.tree.leaves() / count.max(1)).max(1);
        let mut keys = Vec::new();
        let mut at = s.tree.seek(&s.arena, &[]);
        for i in 0.. {
            let Some(pos) = at else { break };
            if i % step == 0 {
                keys.push(Bytes::copy_from_slice(s.arena.get(s.tree.leaf_first(&s.arena, pos))));
            }
            at = s.tree.next_leaf(pos);
        }
        keys
    }

    /// Returns the number of versions, including deletions and fragments of range tombstones.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the highest sequence number ever written, or 0 if there is none.
    pub fn max_seq(&self) -> Seq {
        self.max_seq.load(Ordering::Relaxed)
    }

    /// Returns the lowest sequence number ever written, or 0 if there is none.
    pub fn min_seq(&self) -> Seq {
        self.min_seq.load(Ordering::Relaxed)
    }
}

impl MemtableState {
    /// Looks up `key` like [`Memtable::get`]. Returns `None` if the value was discarded.
    fn get(&self, key: &[u8], at: Seq) -> Option<Lookup> {
        let version = self.tree.get(&self.arena, key, at);
        // A version newer than all range tombstones cannot be hidden.
        if !self.fragments.is_empty() && version.is_none_or(|v| v.seq <= self.fragments.newest()) {
            let tombstone = self.fragments.covering(key).and_then(|(_, f)| f.visible(at));
            if let Some(t) = tombstone
                && version.is_none_or(|v| v.stamp() < t)
            {
                return Some(Lookup::Deleted(t.seq));
            }
        }
        match version {
            None => Some(Lookup::Absent),
            Some(v) => self.lookup(v.seq, v.value),
        }
    }

    /// Returns the lookup result for the version with number `seq` at `place`, or `None` if its
    /// value was discarded.
    fn lookup(&self, seq: Seq, place: Place) -> Option<Lookup> {
        // Copy the bytes: the caller may keep the value, and a slice would keep its neighbours or a
        // region of the pool alive.
        let copied =
            |bytes: &[u8]| Lookup::Found(seq, Value::Inline(Bytes::copy_from_slice(bytes)));
        if place == Place::DELETE {
            return Some(Lookup::Deleted(seq));
        }
        let Some(i) = place.as_kept() else { return Some(copied(self.arena.get(place))) };
        Some(match self.kept[i as usize].as_ref()? {
            KeptValue::Own(value) => Lookup::Found(seq, value.clone()),
            KeptValue::Deferred(deferred) => copied(&deferred.bytes),
            KeptValue::Updated(updated) => {
                let (base, update) = &**updated;
                Lookup::Updated { seq, base: base.map(Box::new), update: update.clone() }
            }
        })
    }

    /// Returns the value that `update` writes, applied to the memtable's version of `key`. If the
    /// bytes of that version are not in memory, the result is a pending update.
    fn updated(&mut self, key: &[u8], update: &Update) -> KeptValue {
        let version = self.tree.get(&self.arena, key, Seq::MAX);
        let tombstone = self.fragments.covering(key).and_then(|(_, f)| f.visible(Seq::MAX));
        let updated = |base, update| KeptValue::Updated(Box::new((base, update)));
        let whole = |value: Option<&[u8]>| KeptValue::Own(Value::Inline(update.apply(value)));
        let Some(version) = version.filter(|v| tombstone.is_none_or(|t| v.stamp() > t)) else {
            return match tombstone {
                Some(_) => whole(None),
                None => updated(None, update.clone()),
            };
        };
        if version.value == Place::DELETE {
            return whole(None);
        }
        let Some(i) = version.value.as_kept() else {
            return whole(Some(self.arena.get(version.value)));
        };
        match &mut self.kept[i as usize] {
            None => whole(None),
            Some(KeptValue::Own(Value::Inline(bytes))) => whole(Some(bytes)),
            Some(KeptValue::Deferred(deferred)) => {
                deferred.folded = true;
                whole(Some(&deferred.bytes))
            }
            Some(KeptValue::Own(Value::Extent(e))) => updated(Some(*e), update.clone()),
            Some(KeptValue::Updated(older)) => updated(older.0, older.1.then(update)),
        }
    }

    fn stamp(&mut self, seq: Seq) -> Stamp {
        self.arrivals = self.arrivals.saturating_add(1);
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        Stamp { seq, arrival: self.arrivals }
    }

    fn keep(&mut self, kept: KeptValue) -> u32 {
        self.kept_bytes += kept.heap();
        self.placed += kept.placed();
        match self.free_kept.pop() {
            Some(i) => {
                self.kept[i as usize] = Some(kept);
                i
            }
            None => {
                self.kept.push(Some(kept));
                self.kept.len() as u32 - 1
            }
        }
    }

    #[inline]
    fn write(&mut self, key: &[u8], seq: Seq, value: NewValue<'_>) {
        let stamp = self.stamp(seq);
        let mut released = Vec::new();
        self.tree.put(&mut self.arena, key, stamp, value, self.floor, &mut released);
        if released.is_empty() {
            return;
        }
        self.hides = true;
        for i in released.into_iter().filter_map(Place::as_kept) {
            self.forgotten += match self.kept[i as usize].as_mut() {
                Some(KeptValue::Own(Value::Extent(e))) => u64::from(e.stored),
                Some(KeptValue::Deferred(deferred)) => {
                    deferred.forgotten = true;
                    deferred.bytes.len() as u64
                }
                _ => 0,
            };
            // A deferred value keeps its slot until `place` is called for it.
            if let Some(kept) =
                self.kept[i as usize].take_if(|kept| !matches!(kept, KeptValue::Deferred(_)))
            {
                self.kept_bytes -= kept.heap();
                self.placed -= kept.placed();
                self.free_kept.push(i);
            }
        }
    }

    /// Discards the value in slot `i` if no reader requests it. See [`Memtable::discard`].
    fn discard(&mut self, key: &[u8], seq: Seq, i: u32, at: Seq) -> bool {
        let Some(Some(KeptValue::Deferred(deferred))) = self.kept.get(i as usize) else {
            return false;
        };
        if deferred.folded || seq > at {
            return false;
        }
        let tombstone = self.fragments.covering(key).and_then(|(_, f)| f.visible(at));
        let hidden = match self.tree.get(&self.arena, key, at) {
            Some(v) if v.value == Place::kept(i) => tombstone.is_some_and(|t| t > v.stamp()),
            // Another version hides the value if it belongs to the same commit or a later one.
            Some(v) => v.seq >= seq,
            None => false,
        };
        if !hidden {
            return false;
        }
        if deferred.forgotten {
            self.forgotten -= deferred.bytes.len() as u64;
        }
        self.kept_bytes -= DEFERRED_OVERHEAD + deferred.bytes.len();
        self.discarded_at = self.discarded_at.max(at);
        // Do not free the slot: the version still refers to it.
        self.kept[i as usize] = None;
        true
    }

    fn heap(&self) -> usize {
        self.arena.heap()
            + self.tree.heap()
            + self.fragments.heap()
            + self.kept.capacity() * size_of::<Option<KeptValue>>()
            + self.free_kept.capacity() * 4
            + self.kept_bytes
    }
}

/// Heap bytes that a deferred value takes in addition to its length.
pub const DEFERRED_OVERHEAD: usize = 16;

impl KeptValue {
    /// Returns the number of bytes of the value on the device.
    fn placed(&self) -> u64 {
        match self {
            KeptValue::Own(Value::Extent(extent)) => u64::from(extent.stored),
            _ => 0,
        }
    }

    /// Returns the heap bytes of the value: the buffer, its reference count, and the overhead of
    /// the allocator.
    fn heap(&self) -> usize {
        match self {
            KeptValue::Own(Value::Inline(b)) => b.len() + 48,
            KeptValue::Own(Value::Extent(_)) => 0,
            KeptValue::Deferred(d) => d.bytes.len() + DEFERRED_OVERHEAD,
            KeptValue::Updated(updated) => updated.1.bytes().len() + 48 + size_of_val(&**updated),
        }
    }
}

/// A memtable locked for writing. See [`Memtable::writer`]. Readers wait until the writer is
/// dropped.
pub struct Writer<'a> {
    memtable: &'a Memtable,
    state: RwLockWriteGuard<'a, MemtableState>,
}

impl Writer<'_> {
    /// Sets a key to a value. See [`Memtable::put`].
    pub fn put(&mut self, key: &[u8], seq: Seq, value: Value) {
        let s = &mut *self.state;
        match &value {
            Value::Inline(b) if b.len() < KEEP_FROM => s.write(key, seq, NewValue::Small(b)),
            _ => {
                let slot = s.keep(KeptValue::Own(value));
                s.write(key, seq, NewValue::Kept(slot));
            }
        }
    }

    /// Sets a key to a value that is still being written to the device. [`Memtable::place`] later
    /// replaces the value by its address. Until then the value is kept as passed in, as a slice of
    /// a buffer that it shares with others.
    pub fn put_deferred(&mut self, key: &[u8], seq: Seq, value: Bytes) -> DeferredSlot {
        let s = &mut *self.state;
        let deferred = Deferred { bytes: value, folded: false, forgotten: false };
        let slot = s.keep(KeptValue::Deferred(deferred));
        s.write(key, seq, NewValue::Kept(slot));
        DeferredSlot(slot)
    }

    /// Sets a key to a copy of an inline value. See [`Memtable::put`].
    pub fn put_slice(&mut self, key: &[u8], seq: Seq, value: &[u8]) {
        let s = &mut *self.state;
        if value.len() < KEEP_FROM {
            return s.write(key, seq, NewValue::Small(value));
        }
        let slot = s.keep(KeptValue::Own(Value::Inline(Bytes::copy_from_slice(value))));
        s.write(key, seq, NewValue::Kept(slot));
    }

    /// Updates the value of a key. See [`Memtable::update`].
    pub fn update(&mut self, key: &[u8], seq: Seq, update: &Update) {
        match self.state.updated(key, update) {
            KeptValue::Own(value) => self.put(key, seq, value),
            kept => {
                let slot = self.state.keep(kept);
                self.state.write(key, seq, NewValue::Kept(slot));
            }
        }
    }

    /// Deletes a key. See [`Memtable::delete`].
    pub fn delete(&mut self, key: &[u8], seq: Seq) {
        self.state.write(key, seq, NewValue::Delete);
    }

    /// Deletes a range of keys. See [`Memtable::delete_range`].
    pub fn delete_range(&mut self, start: &[u8], end: &[u8], seq: Seq) {
        if start < end {
            let s = &mut *self.state;
            let stamp = s.stamp(seq);
            s.fragments.insert(start, end, stamp, s.floor.max(s.tombstone_floor));
        }
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let (m, s) = (self.memtable, &*self.state);
        m.bytes.store(size_of::<Memtable>() + s.heap(), Ordering::Relaxed);
        m.placed.store(s.placed, Ordering::Relaxed);
        m.len.store(s.tree.len() + s.fragments.len(), Ordering::Relaxed);
        m.max_seq.store(s.max_seq, Ordering::Relaxed);
        m.min_seq.store(if s.min_seq == Seq::MAX { 0 } else { s.min_seq }, Ordering::Relaxed);
    }
}
