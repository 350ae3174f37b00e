//! A cursor over the items of one run.
//!
//! Items are decoded one restart interval at a time into memory that the cursor reuses, so moving
//! from one item to the next allocates nothing. A cursor that moves from block to block in one
//! direction and does not find them in the cache announces the following blocks to the device.
//! Contiguous blocks are announced as one span, and the spans grow. So apart from the first
//! announcement, the bytes announced needlessly at the end of a range are at most about twice those
//! read for it.

use std::sync::Arc;

use zones::Purpose;

use crate::Result;
use crate::block::Block;
use crate::block::restart_interval::RestartInterval;
use crate::item::ItemRef;
use crate::run::Run;
use crate::run::path::Path;
use crate::source::{Holding, Source};

/// The number of successive blocks that must be entered before any is announced.
const STREAK: u32 = 2;
/// Initial and maximum bytes of announced blocks.
const WINDOW_MIN: u64 = 64 << 10;
const WINDOW_MAX: u64 = 4 << 20;
/// The number of leaf index nodes that are announced in advance.
const LEAVES: usize = 4;

/// The blocks that a cursor has announced ahead of its position.
#[derive(Default)]
struct BlockReadAhead {
    forward: bool,
    streak: u32,
    /// The path to the last announced block.
    scout: Option<Path>,
    /// The bytes from the cursor to the last announced block, and their limit.
    bytes: u64,
    window: u64,
    /// The number of bytes read in this direction.
    read: u64,
}

impl BlockReadAhead {
    /// Announces the blocks after `path`. Called when the cursor enters the block at `path` and
    /// does not find it in the cache.
    fn missed(&mut self, run: &Run, path: &Path) {
        if self.streak < STREAK || self.bytes > self.window / 2 {
            return;
        }
        let first = run.cache().first_window(WINDOW_MIN);
        self.window = (self.window * 2).clamp(first, WINDOW_MAX.max(first));
        let mut scout = match self.scout.take() {
            Some(scout) if self.bytes > 0 => scout,
            _ => path.clone(),
        };
        let zones = run.cache().zones();
        let forward = self.forward;
        let mut blocks = Vec::new();
        while self.bytes < self.window {
            let moved = scout.move_to_neighbour(run, forward, |above, i| {
                let near = if forward {
                    i + 1..(i + 1 + LEAVES).min(above.len())
                } else {
                    i.saturating_sub(LEAVES)..i
                };
                for n in near {
                    let at = above.child_pointer(n).at;
                    if !run.cache().has_index_node(at) {
                        zones.will_read(Purpose::Index, at.addr, u64::from(at.len));
                    }
                }
            });
            // Ignore an error: the cursor will meet it again when it gets there.
            let Some(child) = moved.ok().filter(|moved| *moved).and_then(|_| scout.here()) else {
                break;
            };
            self.bytes += u64::from(child.at.len);
            if !run.cache().has_block(child) {
                blocks.push((child.at.addr, child.at.end()));
            }
        }
        blocks.sort_unstable();
        run.cache().announce_sorted(Purpose::Tuples, blocks.into_iter());
        self.scout = Some(scout);
    }
}

/// A cursor over the items of a run. See [`Source`](crate::Source). It keeps the run alive, so the
/// zones of the run are not freed.
pub struct RunCursor {
    run: Arc<Run>,
    path: Path,
    block: Option<Arc<Block>>,
    interval: usize,
    items: RestartInterval,
    at: usize,
    /// True if `aim` has set the path to the block of the next seek.
    aimed: bool,
    ahead: BlockReadAhead,
}

impl RunCursor {
    /// Creates a cursor that is not yet positioned.
    pub fn new(run: Arc<Run>) -> Self {
        RunCursor {
            run,
            path: Path::default(),
            block: None,
            interval: 0,
            items: RestartInterval::default(),
            at: 0,
            aimed: false,
            ahead: BlockReadAhead::default(),
        }
    }

    fn clear(&mut self) {
        self.path.clear();
        self.block = None;
        self.items.clear();
        self.at = 0;
    }

    /// Opens the block at `path`. If there is none, the cursor has no item.
    fn open(&mut self) -> Result<()> {
        let Some(child) = self.path.here() else {
            self.clear();
            return Ok(());
        };
        let block = match self.run.cache().cached_block(child) {
            Some(block) => block,
            None => {
                self.ahead.missed(&self.run, &self.path);
                self.ahead.read += u64::from(child.at.len);
                self.run.cache().block_in_passing(child, self.ahead.read)?
            }
        };
        self.ahead.bytes = self.ahead.bytes.saturating_sub(u64::from(child.at.len));
        self.path.admit(&block)?;
        self.block = Some(block);
        Ok(())
    }

    fn load(&mut self, interval: usize) -> Result<()> {
        self.interval = interval;
        match &self.block {
            Some(b) => b.interval_into(interval, &mut self.items),
            None => {
                self.items.clear();
                Ok(())
            }
        }
    }

    /// Opens the neighbouring block. Returns `false` at the end of the run.
    fn open_neighbour(&mut self, forward: bool) -> Result<bool> {
        if self.ahead.forward != forward {
            self.ahead = BlockReadAhead { forward, ..BlockReadAhead::default() };
        }
        self.ahead.streak = self.ahead.streak.saturating_add(1);
        let moved = self.path.move_to_neighbour(&self.run, forward, |_, _| {});
        if !matches!(moved, Ok(true)) {
            self.clear();
        }
        Ok(moved? && self.open().map(|()| true)?)
    }

    /// Moves forward across the ends of restart intervals and blocks to the next item.
    fn settle_forward(&mut self) -> Result<()> {
        while self.at >= self.items.len() {
            let Some(block) = &self.block else { return Ok(()) };
            let next = if self.interval + 1 < block.intervals() {
                self.interval + 1
            } else if self.open_neighbour(true)? {
                0
            } else {
                return Ok(());
            };
            self.load(next)?;
            self.at = 0;
        }
        Ok(())
    }

    /// Moves to the item before index `at`. There need not be an item at `at`.
    fn step_back(&mut self) -> Result<()> {
        if self.at > 0 {
            self.at -= 1;
            return Ok(());
        }
        loop {
            let Some(block) = &self.block else { return Ok(()) };
            let interval = if self.interval > 0 && block.intervals() > 0 {
                self.interval - 1
            } else if self.open_neighbour(false)? {
                match &self.block {
                    Some(b) => b.intervals().saturating_sub(1),
                    None => 0,
                }
            } else {
                return Ok(());
            };
            self.load(interval)?;
            if !self.items.is_empty() {
                self.at = self.items.len() - 1;
                return Ok(());
            }
        }
    }

    /// Forgets the position at the beginning of a seek.
    fn forget_position(&mut self) {
        self.clear();
        self.aimed = false;
        self.ahead = BlockReadAhead::default();
    }

    /// Performs the first half of `seek` or, if `before` is set, of `seek_before`; the caller must
    /// then call that function. Finds the block by reading only the index. Returns the address and
    /// length of the block if it is not cached.
    pub(crate) fn aim(&mut self, key: &[u8], before: bool) -> Result<Option<(u64, u32)>> {
        self.forget_position();
        if before {
            self.path.descend(&self.run, |n| n.before(key))?;
        } else if key < self.run.fences().1 {
            self.path.descend(&self.run, |n| Some(n.covering(key).unwrap_or(0)))?;
        }
        self.aimed = true;
        let unread = self.path.here().filter(|t| !self.run.cache().has_block(*t));
        Ok(unread.map(|t| (t.at.addr, t.at.len)))
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Seeks to `key` from an item that begins before it. Searches the current restart interval and
    /// block first.
    pub(crate) fn forward_to(&mut self, key: &[u8]) -> Result<()> {
        let Some(block) = &self.block else { return Ok(()) };
        while self.items.item(self.at).is_some_and(|i| i.ends_before(key)) {
            self.at += 1;
        }
        if self.at < self.items.len() {
            return Ok(());
        }
        if self.interval + 1 < block.intervals() {
            let interval = block.interval_of(key)?.max(self.interval + 1);
            let inside = interval + 1 < block.intervals();
            self.load(interval)?;
            self.at = self.items.partition_point(|i| i.ends_before(key));
            if self.at < self.items.len() || inside {
                return self.settle_forward();
            }
        }
        self.seek(key)
    }

    /// Seeks to the last item before `key` from an item that ends after it.
    pub(crate) fn backward_to(&mut self, key: &[u8]) -> Result<()> {
        let Some(block) = &self.block else { return Ok(()) };
        if self.items.key(0).is_some_and(|first| first < key) {
            self.at = self.items.partition_point(|i| i.key < key);
            return self.step_back();
        }
        if self.interval > 0 {
            let interval = block.interval_of(key)?.min(self.interval - 1);
            self.load(interval)?;
            if self.items.key(0).is_some_and(|first| first < key) {
                self.at = self.items.partition_point(|i| i.key < key);
                return self.step_back();
            }
        }
        self.seek_before(key)
    }

    /// Returns the key of the current item.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.items.key(self.at)
    }
}

impl Source for RunCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if !std::mem::take(&mut self.aimed) {
            self.aim(key, false)?;
            self.aimed = false;
        }
        self.open()?;
        let interval = match &self.block {
            Some(b) => b.interval_of(key)?,
            None => return Ok(()),
        };
        self.load(interval)?;
        self.at = self.items.partition_point(|i| i.ends_before(key));
        self.settle_forward()
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        if !std::mem::take(&mut self.aimed) {
            self.aim(key, true)?;
            self.aimed = false;
        }
        self.open()?;
        let interval = match &self.block {
            Some(b) => b.interval_of(key)?,
            None => return Ok(()),
        };
        self.load(interval)?;
        self.at = self.items.partition_point(|i| i.key < key);
        self.step_back()
    }

    fn first(&mut self) -> Result<()> {
        self.seek(&[])
    }

    fn last(&mut self) -> Result<()> {
        self.forget_position();
        self.path.descend(&self.run, |n| n.len().checked_sub(1))?;
        self.open()?;
        let Some(b) = &self.block else { return Ok(()) };
        let intervals = b.intervals();
        self.load(intervals.saturating_sub(1))?;
        self.at = self.items.len();
        self.step_back()
    }

    #[inline]
    fn item(&self) -> Option<ItemRef<'_>> {
        self.items.item(self.at)
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.at < self.items.len() {
            self.at += 1;
            if self.at == self.items.len() {
                self.settle_forward()?;
            }
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if self.at < self.items.len() { self.step_back() } else { Ok(()) }
    }
}

impl Holding for RunCursor {
    #[inline]
    fn here(&self) -> Option<usize> {
        (self.at < self.items.len()).then_some(self.at)
    }

    #[inline]
    fn held(&self) -> usize {
        self.items.len()
    }

    #[inline]
    fn held_item(&self, i: usize) -> Option<ItemRef<'_>> {
        self.items.item(i)
    }

    #[inline]
    fn stand_on(&mut self, i: usize) {
        self.at = i;
    }
}
