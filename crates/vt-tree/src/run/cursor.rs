//! A position on the items of one run.
//!
//! Items are decoded a restart interval at a time into memory that the cursor uses again; nothing
//! is allocated on the way from one to the next. A cursor that goes from block to block in one
//! direction, and finds them not in the cache, announces those to come to the device: spans that
//! lie contiguous as one, first little, then more and more. What a range ends with is thus never
//! more in vain than what was read for it.

use std::ops::ControlFlow;
use std::sync::Arc;

use zones::Purpose;

use crate::Result;
use crate::block::Block;
use crate::block::restart_interval::RestartInterval;
use crate::item::{BodyRef, ItemRef};
use crate::run::Run;
use crate::run::path::Path;
use crate::source::Source;
use crate::value::ValueRef;

/// Blocks entered one after the other before any is announced.
const STREAK: u32 = 2;
/// Bytes of blocks announced at first and at most.
const WINDOW_MIN: u64 = 64 << 10;
const WINDOW_MAX: u64 = 4 << 20;
/// Leaf index nodes announced before they are needed.
const LEAVES: usize = 4;

/// What a cursor has announced of the blocks in front of it.
#[derive(Default)]
struct BlockReadAhead {
    forward: bool,
    streak: u32,
    /// The last block announced.
    scout: Option<Path>,
    /// Bytes from here to there, and how many it may become.
    bytes: u64,
    window: u64,
    /// Bytes that were read in this direction.
    read: u64,
}

impl BlockReadAhead {
    /// The cursor enters the block at `path`, which is not in the cache.
    fn missed(&mut self, run: &Run, path: &Path) {
        if self.streak < STREAK || self.bytes > self.window / 2 {
            return;
        }
        self.window = (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
        let mut scout = match self.scout.take() {
            Some(scout) if self.bytes > 0 => scout,
            _ => path.clone(),
        };
        let zones = run.cache().zones();
        let forward = self.forward;
        let mut blocks = Vec::new();
        while self.bytes < self.window {
            let turned = scout.turn(run, forward, |above, i| {
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
            // An error will show again when the cursor comes there.
            let Some(child) = turned.ok().filter(|t| *t).and_then(|_| scout.here()) else { break };
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

/// Holds its run, so what it stands on is never freed; costs nothing when idle.
pub struct RunCursor {
    run: Arc<Run>,
    path: Path,
    block: Option<Arc<Block>>,
    interval: usize,
    items: RestartInterval,
    at: usize,
    /// The path leads to the block that the next seek wants.
    aimed: bool,
    ahead: BlockReadAhead,
}

impl RunCursor {
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

    /// Opens the block at `path`; without one the cursor has no item.
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

    /// Opens the neighbouring block; `false` at the end of the run.
    fn turn(&mut self, forward: bool) -> Result<bool> {
        if self.ahead.forward != forward {
            self.ahead = BlockReadAhead { forward, ..BlockReadAhead::default() };
        }
        self.ahead.streak = self.ahead.streak.saturating_add(1);
        let turned = self.path.turn(&self.run, forward, |_, _| {});
        if !matches!(turned, Ok(true)) {
            self.clear();
        }
        Ok(turned? && self.open().map(|()| true)?)
    }

    /// After a load: forward over ends of restart intervals and blocks.
    fn settle_forward(&mut self) -> Result<()> {
        while self.at >= self.items.len() {
            let Some(block) = &self.block else { return Ok(()) };
            let next = if self.interval + 1 < block.intervals() {
                self.interval + 1
            } else if self.turn(true)? {
                0
            } else {
                return Ok(());
            };
            self.load(next)?;
            self.at = 0;
        }
        Ok(())
    }

    /// To the item before the one at `at`, which need not exist.
    fn step_back(&mut self) -> Result<()> {
        if self.at > 0 {
            self.at -= 1;
            return Ok(());
        }
        loop {
            let Some(block) = &self.block else { return Ok(()) };
            let interval = if self.interval > 0 && block.intervals() > 0 {
                self.interval - 1
            } else if self.turn(false)? {
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

    /// A seek begins: nothing is known of where it leads.
    fn leave(&mut self) {
        self.clear();
        self.aimed = false;
        self.ahead = BlockReadAhead::default();
    }

    /// The first half of `seek` or, with `before`, of `seek_before`, which must follow: finds the
    /// block, and reads nothing but the index. The block's place is given when it is not in the
    /// cache.
    pub(crate) fn aim(&mut self, key: &[u8], before: bool) -> Result<Option<(u64, u32)>> {
        self.leave();
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

    /// As `seek`, from an item that begins before `key`: where that is near, what is open is
    /// searched first.
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

    /// As `seek_before`, from an item that ends behind `key`.
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

    /// The last key of those that are decoded together.
    #[inline]
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.items.key(self.items.len().checked_sub(1)?)
    }

    /// Shows what follows the item here among those that are decoded together, up to the first that
    /// is no small value, or until `visit` breaks. The last one shown is the item here.
    pub(crate) fn visit_interval<B>(
        &mut self,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        while let Some(ItemRef { key, body: BodyRef::Put(ValueRef::Inline(value, _)), .. }) =
            self.items.item(self.at + 1)
        {
            let shown = visit(key, value);
            self.at += 1;
            shown?;
        }
        ControlFlow::Continue(())
    }

    /// The key of the item here.
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
        self.leave();
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
