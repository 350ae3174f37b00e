//! Online defragmentation: empties zones that are mostly holes, so that they become free (VT-tree
//! §3.1).
//!
//! Defragmentation runs in rounds. A round chooses victims, the emptiest zones first, each weighed
//! by the cost of emptying it: the bytes that are left in it, and a seek for each span that they
//! lie in. Then it evacuates the victims run by run: a merge of that run alone copies the data in
//! the victims and stitches the rest, whole subtrees unread. The copies are written in key order,
//! so scans get faster, not slower; values that have another order keep it. A run is replaced part
//! by part, each with one edit of the manifest, under its own number and at its own level: only the
//! location of its bytes changes, and the store is consistent after any part. When the last reader
//! of the old bytes has finished, the victims are free.
//!
//! A defragmentation started by hand first merges dictionaries whose key blocks are small compared
//! with their values, which shows which values are dead, and lays scattered values in key order
//! (`sort_values`), or in the order that the user of the store supplies.
//!
//! It runs on request, and automatically when too much of the store is holes. It pauses between
//! parts to keep to its rate. An automatic one goes faster the more space is lost, so that writers
//! are not delayed before space really runs short; and while readers wait for a disk's seeks it
//! yields to them, for seconds between small parts. A store that has run short does rounds on the
//! spot. See `reclaim`.
//!
//! - `victims`: selection of the zones to empty;
//! - `evacuate`: evacuation of these zones, part by part;
//! - `kept_order`: values in an order of the user's, which an evacuation would lay by keys;
//! - `order`: values laid in an order of the user's;
//! - `quiet`: when this is done while no client needs the store;
//! - `objects`: zones that lie in object storage;
//! - `request`: requests and progress;
//! - this module: the rounds.

mod evacuate;
mod kept_order;
mod objects;
mod order;
mod quiet;
mod request;
mod victims;

use std::sync::Arc;
use std::time::Duration;

use env::sync::{Condvar, Mutex};
use vt_tree::{Placement, RunStats};
use zones::{Job, ZONE_SIZE};

pub use order::{ValueOrder, VisitRange};
pub(crate) use victims::Holes;

use self::evacuate::OtherMerges;
use self::quiet::Aging;
use self::request::{DefragState, Wanted};
use super::activity::Activity;
use super::on_demand::LargeValues;
use super::{Compactor, Flusher};
use crate::dictionary::DictionaryId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::version::tree::NumberedRun;

/// Maximum bytes that a round moves.
const ROUND: u64 = 128 << 20;
/// Bytes that a part moves before it is installed.
const PART: u64 = 16 << 20;
/// Bytes of work between checks whether to stop.
const STEP: u64 = 2 << 20;
/// Automatic defragmentation begins if this percentage of the space used by runs is holes and at
/// least this many zones can be gained.
const BEGIN_PERCENT: u64 = 12;
const BEGIN_ZONES: u64 = 4;
/// Automatic defragmentation empties no fuller zones, so it writes at most three bytes for each
/// byte gained.
const CHEAP_PERCENT: u8 = 75;
/// From this percentage of holes on the rate is unlimited.
const HURRY_PERCENT: u64 = 22;
/// Interval between checks whether readers still wait, and the maximum number of such checks
/// between two parts.
const GLANCE: Duration = Duration::from_millis(250);
const STAND_BACK: u32 = 80;
/// If there is no space for a part of this size, the round fails for lack of space.
const SMALLEST: u64 = 256 << 10;
/// Key blocks are merged first in dictionaries whose values weigh at least this many times as much.
const SMALL_BLOCKS: u64 = 16;
/// Values count as scattered if their spans are shorter than this on average, bytes.
const TOGETHER: u64 = 256 << 10;
/// The relocation window, bytes: at least what is read together, such as a directory of small
/// files.
const READ_TOGETHER: u64 = 2 * TOGETHER;

/// Options of a defragmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefragOptions {
    /// Maximum bytes moved per second. `None` means no limit.
    pub bytes_per_second: Option<u64>,
    /// Zones of which more than this percentage is in use are left as they are: the fuller a zone,
    /// the more must be moved for the space gained.
    pub fullest_percent: u8,
    /// Includes zones whose objects are less than half in use. The data left in them is fetched
    /// and published again, so that a collector can delete the objects.
    pub objects: bool,
}

impl Default for DefragOptions {
    fn default() -> Self {
        DefragOptions { bytes_per_second: None, fullest_percent: 90, objects: false }
    }
}

/// The progress of the current defragmentation, or of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefragProgress {
    /// A defragmentation is in progress.
    pub running: bool,
    /// The defragmentation was started automatically.
    pub automatic: bool,
    /// Zones that it can free, as found when it began and updated since.
    pub zones_reclaimable: u64,
    /// Zones emptied, minus zones filled with the data moved out of them.
    pub zones_reclaimed: u64,
    /// Bytes copied to other places.
    pub bytes_moved: u64,
    /// Number of rounds done.
    pub rounds: u64,
}

/// Empties zones that are mostly holes.
pub(crate) struct Defragmenter {
    engine: Engine,
    flusher: Arc<Flusher>,
    compactor: Arc<Compactor>,
    activity: Arc<Activity>,
    /// The order of values that the user of the store has supplied.
    order: Mutex<Option<Arc<dyn ValueOrder>>>,
    aging: Mutex<Aging>,
    state: Mutex<DefragState>,
    /// Signalled when a defragmentation begins, ends, or is to stop.
    changed: Condvar,
}

impl Defragmenter {
    pub(super) fn new(
        engine: &Engine,
        flusher: Arc<Flusher>,
        compactor: Arc<Compactor>,
        activity: Arc<Activity>,
    ) -> Defragmenter {
        Defragmenter {
            engine: engine.clone(),
            flusher,
            compactor,
            activity,
            order: Mutex::default(),
            aging: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    fn defragment(&self, options: DefragOptions) -> Result<()> {
        let _job = Job::Defragmentation.begin();
        if !self.progress().automatic {
            let before = self.engine.counters.copied.get();
            if !self.engine.inline {
                self.sort_values(options)?;
            }
            let moved = self.engine.counters.copied.get().saturating_sub(before);
            self.update(|p| p.bytes_moved += moved);
            match self.lay_values(options) {
                // The rounds need none of it.
                Err(Error::Corrupt(what)) => {
                    tracing::warn!("not all values were laid in their order: {what}");
                }
                laid => unless_in_vain(laid)?,
            }
        }
        self.rounds(u64::from(options.fullest_percent.min(99)))?;
        match options.objects {
            true => self.empty_objects(options.bytes_per_second),
            false => Ok(()),
        }
    }

    fn update(&self, change: impl Fn(&mut DefragProgress)) {
        change(&mut self.state.lock().progress);
    }

    fn is_to_stop(&self) -> bool {
        self.engine.signals.stopping() || self.stopping() || self.is_superseded()
    }

    /// Pauses after a part that has moved `moved` bytes. Returns whether to continue.
    fn between(&self, moved: u64, rate: Option<u64>) -> bool {
        self.update(|p| p.bytes_moved += moved);
        if let Some(rate) = rate.filter(|_| !self.engine.inline) {
            let pause = Duration::from_secs_f64(moved as f64 / rate.max(1) as f64);
            self.pause(pause, || self.engine.signals.stopping());
            self.stand_back();
        }
        !self.is_to_stop()
    }

    /// Runs rounds until no more space can be gained, or until it is stopped.
    fn rounds(&self, fullest: u64) -> Result<()> {
        loop {
            let all = self.victims(u64::MAX, fullest)?.gain();
            self.update(|p| p.zones_reclaimable = p.zones_reclaimable.max(p.zones_reclaimed + all));
            let automatic = self.progress().automatic;
            let enough = || {
                self.holes().percent() < BEGIN_PERCENT * 3 / 4
                    || self.compactor.merges_into_bottom()
            };
            if self.is_to_stop() || all == 0 || (automatic && enough()) {
                return Ok(());
            }
            let victims = self.victims(self.round_size().min(ROUND), fullest)?;
            if victims.zones.is_empty() {
                return Ok(());
            }
            let rate = self.state.lock().request.and_then(|r| r.bytes_per_second);
            let before = self.written();
            let part = PART.min(self.compactor.part_size());
            let mut between =
                |moved| self.between(moved, if automatic { self.automatic_rate() } else { rate });
            // Without room for all of it at once, the parts of the evacuation may still find some.
            unless_in_vain(self.keep_order(&victims, &mut between))?;
            if self.is_to_stop() {
                return Ok(());
            }
            self.evacuate(&victims, part, OtherMerges::Running, &mut between)?;
            if self.is_to_stop() {
                return Ok(());
            }
            let written = self.written().saturating_sub(before);
            let emptied = self.emptied(&victims.zones);
            self.update(|p| {
                // The gain is at most that for which the round was chosen.
                let gained = emptied.saturating_sub(written / ZONE_SIZE);
                p.zones_reclaimed += gained.min(victims.gain());
                p.rounds += 1;
            });
            // The weights are estimates. If they are wrong, the zones that a round has filled would
            // be the victims of the next one.
            if !was_worth_it(written, emptied * ZONE_SIZE, fullest) {
                let left = self.holes().bytes();
                self.state.lock().in_vain = Some(left);
                return Ok(());
            }
        }
    }

    /// Returns the bytes that defragmentation has written.
    fn written(&self) -> u64 {
        self.engine.zones.io().written_by(Job::Defragmentation)
    }

    /// Merges key blocks where that costs little compared with the values that they refer to:
    /// before the merge it is unknown which of these are dead, and dead values would be moved, too.
    /// Scattered values are laid in key order on the way, unless the rate is limited: scans then
    /// find them together, while a zone-by-zone move leaves them as scattered as they were.
    fn sort_values(&self, options: DefragOptions) -> Result<()> {
        unless_in_vain(self.flusher.flush_all().map(|_| ()))?;
        let order = self.value_order().filter(|_| options.bytes_per_second.is_none());
        let ordered =
            |dict: &DictionaryId| order.as_ref().is_some_and(|(_, all)| all.contains(dict));
        let dictionaries: Vec<DictionaryId> =
            self.engine.versions.load().trees.keys().copied().collect();
        for dict in dictionaries {
            // Release the version before the merge: it would pin the data that the merge frees.
            let version = self.engine.versions.load_full();
            let Some(tree) = version.trees.get(&dict) else { continue };
            let sum =
                |of: fn(&RunStats) -> u64| tree.runs().map(|p| of(&p.run.stats())).sum::<u64>();
            let (blocks, values, spans) =
                (sum(|s| s.block_bytes), sum(|s| s.value_bytes), sum(|s| s.value_spans));
            let here = |p: &NumberedRun| {
                p.run.uses().iter().all(|(zone, _)| self.engine.zones.is_here_whole(zone))
            };
            let here = tree.runs().all(here);
            drop(version);
            if blocks.saturating_mul(SMALL_BLOCKS) <= values && !self.stopping() {
                let room = self.engine.zones.space().free_for_user
                    > values.saturating_add(self.flusher.unflushed_bytes());
                // Values in object storage would have to be fetched to be sorted.
                let scattered = here
                    && room
                    && options.bytes_per_second.is_none()
                    && values / spans.max(1) < TOGETHER;
                let values = match scattered {
                    // They are laid in their order next, if there is room, and would be moved
                    // twice.
                    _ if ordered(&dict) && room => LargeValues::Stay,
                    false => LargeValues::AsUsual,
                    true => LargeValues::Laid(Placement {
                        values_at: TOGETHER,
                        window: READ_TOGETHER,
                        ..Placement::stitch()
                    }),
                };
                unless_in_vain(
                    self.compactor.compact_to_defragment(dict, values, &|| self.stopping()),
                )?;
            }
        }
        Ok(())
    }

    /// Returns the bytes that may be moved before the victims become free.
    fn round_size(&self) -> u64 {
        let space = self.engine.zones.space();
        let free = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        // Copies and index nodes need room before the zones are free.
        (free.saturating_sub(3).saturating_mul(ZONE_SIZE) / 2).max(ZONE_SIZE)
    }

    /// Returns the rate of an automatic defragmentation, which grows with the share of holes.
    /// `None` means no limit.
    fn automatic_rate(&self) -> Option<u64> {
        let percent = self.holes().percent().max(BEGIN_PERCENT);
        let left = HURRY_PERCENT.checked_sub(percent).filter(|left| *left > 0)?;
        Some(self.engine.options.defrag_rate.saturating_mul(HURRY_PERCENT - BEGIN_PERCENT) / left)
    }

    /// Returns whether readers that wait for a disk's seeks go first: the defragmentation is
    /// automatic, and the holes do not yet require it to hurry.
    fn stands_back(&self) -> bool {
        self.progress().automatic && self.automatic_rate().is_some() && self.activity.readers_wait()
    }

    /// Yields to readers for a bounded time.
    fn stand_back(&self) {
        let mut left = STAND_BACK;
        while left > 0 && !self.engine.signals.stopping() && !self.stopping() && self.stands_back()
        {
            self.pause(GLANCE, || self.engine.signals.stopping());
            left -= 1;
        }
    }

    /// Starts a defragmentation. Returns `false` if one is in progress already. In a store without
    /// threads it is done when this returns.
    pub(crate) fn start_defragment(&self, options: DefragOptions) -> Result<bool> {
        self.engine.health.writable()?;
        let started = self.request(options, false);
        if started && self.engine.inline {
            // No other thread would finish the merges in progress.
            drop(self.compactor.merge_alone());
            let done = self.defragment(options);
            self.end();
            done?;
        }
        Ok(started)
    }

    /// Returns whether there are enough holes to start automatically.
    fn holes_due(&self) -> bool {
        if self.engine.inline || self.engine.options.defrag_rate == 0 || self.progress().running {
            return false;
        }
        let holes = self.holes();
        let state = self.state.lock();
        holes.percent() >= BEGIN_PERCENT
            && holes.reclaimable() >= BEGIN_ZONES
            // The holes have changed since the last automatic one began.
            && state.seen != (holes.zones, holes.live)
            // Zones that a round could not gain do not count, unless there are clearly more holes
            // now.
            && state
                .in_vain
                .is_none_or(|before| holes.bytes() >= before + BEGIN_ZONES * ZONE_SIZE)
    }

    /// Returns whether none is in progress or due, no values are to be laid, and no freed zone is
    /// kept for reuse.
    pub(crate) fn at_rest(&self) -> bool {
        self.engine.zones.spare() == 0
            // None is due while one runs, so this is asked first: one may begin in between.
            && !self.holes_due()
            && !self.progress().running
            && !self.is_to_lay()
    }

    /// Starts automatically if there are too many holes.
    pub(crate) fn look_for_holes(&self) {
        // A merge that moves values empties zones step by step; moving the rest of them now is not
        // worthwhile.
        if !self.compactor.merges_into_bottom() && self.holes_due() {
            let holes = self.holes();
            if holes.percent() < HURRY_PERCENT && self.activity.readers_wait() {
                return;
            }
            self.state.lock().seen = (holes.zones, holes.live);
            self.request(
                DefragOptions { fullest_percent: CHEAP_PERCENT, ..DefragOptions::default() },
                true,
            );
        }
    }

    /// Runs the defragmentation thread.
    pub(crate) fn defragment_loop(&self) {
        let _over = Over(self);
        while let Some(wanted) = self.wait(|| self.engine.signals.stopping()) {
            let done = match wanted {
                Wanted::Defragmentation(options) => self.defragment(options),
                Wanted::Laying => self.lay_when_quiet(),
            };
            match done {
                Ok(()) => {}
                Err(Error::NoSpace) => tracing::info!("no space to defragment in"),
                Err(e) => tracing::warn!("defragmentation failed: {e}"),
            }
            match wanted {
                Wanted::Defragmentation(_) => self.end(),
                Wanted::Laying => self.end_laying(),
            }
            if self.engine.health.failed() {
                return;
            }
        }
    }

    /// Does one round on the spot, for a store that has run short of space, where any gain counts.
    /// Returns `false` if there was none. The caller merges alone.
    pub(crate) fn empty_zones(&self) -> Result<bool> {
        let job = Job::current();
        let victims = self.victims_at_any_cost(self.round_size(), 87)?;
        if victims.zones.is_empty() {
            return Ok(false);
        }
        let mut part = self.compactor.part_size();
        loop {
            let before = self.engine.zones.io().written_by(job);
            match self.evacuate(&victims, part, OtherMerges::Excluded, &mut |_| {
                !self.engine.signals.stopping()
            }) {
                Ok(_) => {
                    let written = self.engine.zones.io().written_by(job).saturating_sub(before);
                    let emptied = self.emptied(&victims.zones) * ZONE_SIZE;
                    return Ok(emptied > written && !self.engine.signals.stopping());
                }
                Err(Error::NoSpace) if part > SMALLEST => part /= 4,
                Err(e) => return Err(e),
            }
        }
    }
}

/// Treats a lack of room, or a dictionary that was dropped, as success: what follows may still have
/// something to move.
fn unless_in_vain(done: Result<()>) -> Result<()> {
    match done {
        Err(Error::NoSpace | Error::NoDictionary(_)) => Ok(()),
        done => done,
    }
}

/// Returns whether a round that wrote `written` bytes and emptied `emptied` bytes of zones was
/// worthwhile: it must gain at least a quarter of the gain from emptying zones at the fullest
/// permitted level.
fn was_worth_it(written: u64, emptied: u64, fullest_percent: u64) -> bool {
    let gained = u128::from(emptied.saturating_sub(written));
    let full = u128::from(fullest_percent.max(1));
    gained > 0 && gained * 4 * full >= u128::from(written) * (100 - full)
}

/// Closes the requests when the thread ends, so that callers that wait for a defragmentation are
/// woken.
struct Over<'a>(&'a Defragmenter);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
