//! Online defragmentation: zones that are mostly holes are emptied, so that they are free (VT-tree
//! §3.1).
//!
//! It goes in rounds. A round chooses victims, the emptiest zones first, each weighed by what
//! emptying it costs: the bytes that are left in it, and a seek for each span that they lie in.
//! Then it takes one run after another that has something there: a merge of that run alone copies
//! what lies in the victims and stitches the rest, whole subtrees unread. What is copied comes out
//! in the order of its keys, so scans get faster, not slower. A run is replaced part by part, each
//! with one edit of the manifest, under its own number and at its own level: nothing changes but
//! where its bytes lie, and the store is whole after any part. When the last reader of the old
//! bytes is gone the victims are free.
//!
//! By hand it begins with merges of what has small key blocks compared with its values, which show
//! what is dead, and lays scattered values in the order of their keys (`sort_values`).
//!
//! It runs when it is asked for, and by itself when too much of the store is holes. Between
//! two parts it pauses, so that it takes no more of the device than its rate allows; by itself it
//! goes faster the more is lost, so that writers are not held up before space really runs short. A
//! store that has run short does rounds of it on the spot, see `reclaim`.

use env::sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::{Condvar, Mutex};
use vt_tree::{
    BlockCache, Input, KeyRange, Merge, MergeOptions, Placement, Run, RunStats, ZoneWeight,
};
use zones::{Priority, ZONE_SIZE, ZoneId, Zones};

use super::part::MergedPart;
use super::policy::{CompactionLock, lifetime};
use super::{BackgroundParts, Compactor, Flusher};
use crate::counters::Counters;
use crate::dictionary::{DictionaryId, DictionaryOptions};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::ids::RunId;
use crate::options::OpenOptions;
use crate::read::version::{Placed, Version};
use crate::read::version_set::VersionSet;
use crate::signals::Signals;
use crate::snapshot_set::Snapshots;

/// Bytes that a round moves at most.
const ROUND: u64 = 128 << 20;
/// Bytes that a part moves before it is installed.
const PART: u64 = 16 << 20;
/// Bytes of work after which it is seen whether to stop.
const STEP: u64 = 2 << 20;
/// By itself it begins when this many percent of what runs hold are holes, and some zones can be
/// had.
const BEGIN_PERCENT: u64 = 12;
const BEGIN_ZONES: u64 = 4;
/// By itself it empties no zone that is fuller: it writes at most three bytes for each that it
/// gains.
const CHEAP_PERCENT: u8 = 75;
/// From here on it goes as fast as it can.
const HURRY_PERCENT: u64 = 22;
/// When not even a part of this size finds room, there is none.
const SMALLEST: u64 = 256 << 10;
/// Key blocks are merged first where values weigh so many times as much.
const SMALL_BESIDE: u64 = 16;
/// Values lie scattered when their stretches are shorter than this, bytes on average.
const TOGETHER: u64 = 256 << 10;
/// What is read together at least, bytes: a folder of small files, say.
const READ_TOGETHER: u64 = 2 * TOGETHER;
/// A run that is being merged is waited for this long.
const WAIT: Duration = Duration::from_millis(50);

/// How a store is defragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefragOptions {
    /// Bytes moved in a second at most. `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Zones of which more percent than this is in use stay as they are: the fuller a zone, the
    /// more must be moved for what it gives.
    pub fullest_percent: u8,
}

impl Default for DefragOptions {
    fn default() -> Self {
        DefragOptions { bytes_per_second: None, fullest_percent: 90 }
    }
}

/// How far the defragmentation under way is, or how far the last one came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefragProgress {
    /// One is under way.
    pub running: bool,
    /// It began by itself.
    pub automatic: bool,
    /// Zones that it can make free: what it found when it began, and what became possible since.
    pub zones_reclaimable: u64,
    /// Zones emptied, less those filled with what lay in them.
    pub zones_reclaimed: u64,
    /// Bytes copied to other places.
    pub bytes_moved: u64,
    /// Rounds done.
    pub rounds: u64,
}

#[derive(Default)]
struct DefragState {
    /// The holes when it began by itself the last time: zones, and bytes alive in them.
    seen: (u64, u64),
    request: Option<DefragOptions>,
    progress: DefragProgress,
    /// The caller has asked it to end.
    stop: bool,
}

/// Empties zones that are mostly holes.
pub(crate) struct Defragmenter {
    inline: bool,
    options: OpenOptions,
    zones: Arc<Zones>,
    cache: Arc<BlockCache>,
    health: Arc<Health>,
    counters: Arc<Counters>,
    signals: Arc<Signals>,
    versions: Arc<VersionSet>,
    snapshots: Arc<Snapshots>,
    flusher: Arc<Flusher>,
    compactor: Arc<Compactor>,
    state: Mutex<DefragState>,
    /// It begins, ends, or is to stop.
    changed: Condvar,
}

/// Zones to empty.
#[derive(Default)]
struct Victims {
    pub zones: BTreeSet<ZoneId>,
    pub live: u64,
}

impl Victims {
    /// Zones that are free when their live bytes lie elsewhere.
    fn gain(&self) -> u64 {
        (self.zones.len() as u64).saturating_sub(self.live.div_ceil(ZONE_SIZE))
    }
}

/// What runs keep of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holes {
    pub zones: u64,
    pub live: u64,
}

impl Holes {
    /// What the runs of a version hold, by zone, from the sums that they carry: no I/O.
    pub(super) fn of(version: &Version) -> Holes {
        let mut zones: BTreeMap<ZoneId, u64> = BTreeMap::new();
        for tree in version.trees.values() {
            tree.runs()
                .flat_map(|p| p.run.uses().iter())
                .for_each(|(zone, bytes)| *zones.entry(zone).or_default() += bytes);
        }
        Holes {
            zones: zones.len() as u64,
            live: zones.values().map(|live| (*live).min(ZONE_SIZE)).sum(),
        }
    }

    fn percent(&self) -> u64 {
        let held = self.zones * ZONE_SIZE;
        held.saturating_sub(self.live) * 100 / held.max(1)
    }

    /// Zones that could be free if the rest were full.
    pub(crate) fn reclaimable(&self) -> u64 {
        self.zones.saturating_sub(self.live.div_ceil(ZONE_SIZE))
    }
}

impl Defragmenter {
    pub(super) fn new(
        parts: &BackgroundParts,
        flusher: Arc<Flusher>,
        compactor: Arc<Compactor>,
    ) -> Defragmenter {
        Defragmenter {
            inline: parts.inline,
            options: parts.options.clone(),
            zones: parts.zones.clone(),
            cache: parts.cache.clone(),
            health: parts.health.clone(),
            counters: parts.counters.clone(),
            signals: parts.signals.clone(),
            versions: parts.versions.clone(),
            snapshots: parts.snapshots.clone(),
            flusher,
            compactor,
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    pub(crate) fn progress(&self) -> DefragProgress {
        self.state.lock().progress
    }

    /// Asks for it; `false`: one is under way already (an automatic one takes up the options).
    fn request(&self, options: DefragOptions, automatic: bool) -> bool {
        let mut state = self.state.lock();
        let new = state.request.is_none();
        if new {
            state.progress =
                DefragProgress { running: true, automatic, ..DefragProgress::default() };
            state.stop = false;
        } else if !automatic && state.progress.automatic {
            state.progress.automatic = false;
        } else {
            return false;
        }
        state.request = Some(options);
        self.changed.notify_all();
        true
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.changed.notify_all();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits until there is something to do. `None`: the store is being closed.
    fn wait(&self, closing: impl Fn() -> bool) -> Option<DefragOptions> {
        let mut state = self.state.lock();
        loop {
            if closing() {
                return None;
            }
            if let Some(options) = state.request {
                return Some(options);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Sleeps, unless it is to stop.
    fn pause(&self, time: Duration, closing: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !state.stop && !closing() {
            self.changed.wait_for(&mut state, time);
        }
    }

    fn end(&self) {
        let mut state = self.state.lock();
        state.request = None;
        state.stop = false;
        state.progress.running = false;
        self.changed.notify_all();
    }

    /// Returns when none is under way.
    pub(crate) fn wait_for_end(&self) {
        let mut state = self.state.lock();
        while state.progress.running {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn wake(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// What the runs of the store hold.
    pub(crate) fn holes(&self) -> Holes {
        Holes::of(&self.versions.load())
    }

    /// The cheapest zones to empty, `most` bytes of them; none when nothing is to be gained.
    fn victims(&self, most: u64, fullest_percent: u64) -> Result<Victims> {
        let version = self.versions.load_full();
        let mut weights: BTreeMap<ZoneId, ZoneWeight> = BTreeMap::new();
        for placed in version.trees.values().flat_map(|t| t.runs()) {
            placed.run.weigh_zones(&mut weights)?;
        }
        // What a snapshot keeps is not gained by moving what others have there.
        let kept = self.snapshots.zones();
        let open: BTreeSet<ZoneId> =
            self.zones.positions().iter().map(|(_, addr)| ZoneId::of(*addr)).collect();
        // What is held elsewhere as well, by a reader of an older version or a flush under way,
        // would not become free.
        let held: BTreeMap<ZoneId, u64> =
            self.zones.usage().into_iter().map(|(zone, live, _)| (zone, live)).collect();
        let alone = |zone: &ZoneId, bytes: u64| held.get(zone).is_some_and(|live| *live <= bytes);
        let mut candidates: Vec<(u64, u64, ZoneId)> = weights
            .iter()
            .filter(|(zone, w)| {
                w.bytes.saturating_mul(100) < ZONE_SIZE * fullest_percent
                    && !open.contains(zone)
                    && !kept.contains(zone)
                    && alone(zone, w.bytes)
            })
            .map(|(zone, w)| {
                (
                    w.bytes.saturating_add(w.spans.saturating_mul(self.options.seek_bytes)),
                    w.bytes,
                    *zone,
                )
            })
            .collect();
        candidates.sort_unstable();
        let mut victims = Victims::default();
        for (_, live, zone) in candidates {
            if victims.live + live > most && !victims.zones.is_empty() {
                break;
            }
            victims.live += live;
            victims.zones.insert(zone);
        }
        if victims.gain() == 0 { Ok(Victims::default()) } else { Ok(victims) }
    }

    /// Empties `victims`. `between` is told of each part what it moved, and says whether to go on.
    /// The bytes moved.
    fn evacuate(
        &self,
        victims: &Victims,
        part: u64,
        gated: bool,
        between: &mut dyn FnMut(u64) -> bool,
    ) -> Result<u64> {
        let zones = Arc::new(victims.zones.clone());
        let touches = |run: &Run| run.uses().iter().any(|(zone, _)| zones.contains(&zone));
        let version = self.versions.load_full();
        let runs: Vec<(DictionaryId, RunId)> = version
            .trees
            .iter()
            .flat_map(|(&dict, tree)| {
                tree.runs()
                    .filter(|p| touches(&p.run))
                    .map(move |p| (dict, p.id))
                    .collect::<Vec<_>>()
            })
            .collect();
        drop(version);
        let mut all = 0;
        for (dict, id) in runs {
            let mut start = Some(Bytes::new());
            while let Some(from) = start {
                let (moved, next) =
                    match self.evacuate_part(dict, id, &zones, &from, part, gated)? {
                        Evacuated::Moved(bytes, next) => (bytes, next),
                        Evacuated::Busy => {
                            self.pause(WAIT, || self.signals.stopping());
                            (0, Some(from))
                        }
                    };
                all += moved;
                start = next;
                if !between(moved) {
                    return Ok(all);
                }
            }
        }
        Ok(all)
    }

    /// Copies what a run has in `victims` from the key `from` on, about `part` bytes of it.
    fn evacuate_part(
        &self,
        dict: DictionaryId,
        id: RunId,
        victims: &Arc<BTreeSet<ZoneId>>,
        from: &Bytes,
        part: u64,
        gated: bool,
    ) -> Result<Evacuated> {
        // A caller that has the gate alone already needs no other.
        let _shared = gated.then(|| self.compactor.pausing());
        let find = |version: &Version| {
            let tree = version.trees.get(&dict)?;
            let level = tree.levels.iter().position(|runs| runs.iter().any(|p| p.id == id))?;
            let placed = tree.levels[level].iter().find(|p| p.id == id)?;
            Some((level, placed.run.clone(), tree.info.options.clone()))
        };
        let mut found = None;
        let claimed = self.compactor.compaction_lock(|compaction_locks| {
            found = find(&self.versions.load());
            let level = found.as_ref()?.0;
            let busy = compaction_locks
                .iter()
                .any(|c| c.dict == dict && (c.runs.contains(&id) || c.level == level));
            (!busy).then(|| CompactionLock { number: 0, dict, runs: vec![id], level })
        });
        let Some((level, run, options)) = found else {
            // It was merged away since, and with it what it had there.
            return Ok(Evacuated::Moved(0, None));
        };
        let Some(number) = claimed else { return Ok(Evacuated::Busy) };
        let done =
            self.replace_part(&Placed { id, run }, dict, level, &options, victims, from, part);
        self.compactor.release(number);
        done
    }

    #[allow(clippy::too_many_arguments)]
    fn replace_part(
        &self,
        placed: &Placed,
        dict: DictionaryId,
        level: usize,
        options: &DictionaryOptions,
        victims: &Arc<BTreeSet<ZoneId>>,
        from: &Bytes,
        part: u64,
    ) -> Result<Evacuated> {
        let (id, run) = (placed.id, &placed.run);
        if !run.uses().iter().any(|(zone, _)| victims.contains(&zone)) {
            return Ok(Evacuated::Moved(0, None));
        }
        let options = MergeOptions {
            drop_tombstones: false,
            old_seq: self.versions.visible.load(Ordering::Acquire),
            priority: Priority::Merge,
            lifetime: lifetime(&self.zones, [placed], level),
            ..options.storage(Placement { evacuate: Some(victims.clone()), ..Placement::stitch() })
        };
        let range = KeyRange { start: from.clone(), end: None };
        let mut merge = Merge::new(&self.cache, &[Input::Run(run.clone())], &range, options)?;
        while !merge.step(STEP.min(part))? {
            if merge.stats().written() >= part || self.signals.stopping() {
                break;
            }
        }
        let (moved, next, stats) = merge.cut()?;
        let mut part = MergedPart::of(dict);
        part.set(id, level, self.compactor.with_part(run, from, next.as_ref(), moved)?);
        self.compactor.install_part(part, &stats)?;
        Ok(Evacuated::Moved(stats.written(), next))
    }

    /// Rounds of it until nothing is to be gained, or it is to stop.
    fn defragment(&self, options: DefragOptions) -> Result<()> {
        let fullest = u64::from(options.fullest_percent.min(99));
        let stop = || self.signals.stopping() || self.stopping();
        let update = |change: &dyn Fn(&mut DefragProgress)| change(&mut self.state.lock().progress);
        if !self.progress().automatic && !self.inline {
            let before = self.counters.copied.get();
            self.sort_values(options)?;
            update(&|p| p.bytes_moved += self.counters.copied.get().saturating_sub(before));
        }
        loop {
            let all = self.victims(u64::MAX, fullest)?.gain();
            update(&|p| p.zones_reclaimable = p.zones_reclaimable.max(p.zones_reclaimed + all));
            let automatic = self.progress().automatic;
            let enough =
                || self.holes().percent() < BEGIN_PERCENT * 3 / 4 || self.compactor.below();
            if stop() || all == 0 || (automatic && enough()) {
                return Ok(());
            }
            let victims = self.victims(self.round_size().min(ROUND), fullest)?;
            if victims.zones.is_empty() {
                return Ok(());
            }
            let rate = self.state.lock().request.and_then(|r| r.bytes_per_second);
            self.evacuate(&victims, PART.min(self.compactor.part_size()), true, &mut |moved| {
                update(&|p| p.bytes_moved += moved);
                let rate = if automatic { self.automatic_rate() } else { rate };
                if let Some(rate) = rate.filter(|_| !self.inline) {
                    let pause = Duration::from_secs_f64(moved as f64 / rate.max(1) as f64);
                    self.pause(pause, || self.signals.stopping());
                }
                !stop()
            })?;
            if !stop() {
                update(&|p| {
                    p.zones_reclaimed += victims.gain();
                    p.rounds += 1;
                });
            }
        }
    }

    /// Merges key blocks where that costs little compared with the values that they refer to: which
    /// of these are dead is not known before, and they would be moved together with the others.
    /// Values that lie scattered are laid in the order of their keys on the way, unless that is to
    /// be slow: scans find them together then, while what moves zone by zone stays as scattered as
    /// it lay.
    fn sort_values(&self, options: DefragOptions) -> Result<()> {
        // Without room for it, or a dictionary that was dropped since: there is something to
        // move all the same.
        let unless_in_vain = |done: Result<()>| match done {
            Err(Error::NoSpace | Error::NoDictionary(_)) => Ok(()),
            done => done,
        };
        unless_in_vain(self.flusher.flush_all().map(|_| ()))?;
        let dictionaries: Vec<DictionaryId> = self.versions.load().trees.keys().copied().collect();
        for dict in dictionaries {
            // Weighed in a version that is let go of before the merge: it would keep what the merge
            // leaves behind.
            let version = self.versions.load_full();
            let Some(tree) = version.trees.get(&dict) else { continue };
            let sum =
                |of: fn(&RunStats) -> u64| tree.runs().map(|p| of(&p.run.stats())).sum::<u64>();
            let (blocks, values, spans) =
                (sum(|s| s.block_bytes), sum(|s| s.value_bytes), sum(|s| s.value_spans));
            drop(version);
            if blocks.saturating_mul(SMALL_BESIDE) <= values && !self.stopping() {
                let room = self.zones.space().free_for_user
                    > values.saturating_add(self.flusher.unflushed_bytes());
                let scattered =
                    room && options.bytes_per_second.is_none() && values / spans.max(1) < TOGETHER;
                unless_in_vain(self.compactor.compact_to_defragment(
                    dict,
                    scattered.then(|| Placement {
                        values_at: TOGETHER,
                        window: READ_TOGETHER,
                        ..Placement::stitch()
                    }),
                    &|| self.stopping(),
                ))?;
            }
        }
        Ok(())
    }

    /// What may be moved before the victims are free.
    fn round_size(&self) -> u64 {
        let space = self.zones.space();
        let free = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        // The copies need room before the zones are free, and so does the index.
        (free.saturating_sub(3).saturating_mul(ZONE_SIZE) / 2).max(ZONE_SIZE)
    }

    /// The more is lost, the faster.
    fn automatic_rate(&self) -> Option<u64> {
        let percent = self.holes().percent().max(BEGIN_PERCENT);
        let left = HURRY_PERCENT.checked_sub(percent).filter(|left| *left > 0)?;
        Some(self.options.defrag_rate.saturating_mul(HURRY_PERCENT - BEGIN_PERCENT) / left)
    }

    /// Starts it; `false`: one is under way. Without threads it is done when this returns.
    pub(crate) fn start_defragment(&self, options: DefragOptions) -> Result<bool> {
        self.health.writable()?;
        let started = self.request(options, false);
        if started && self.inline {
            // No other thread would finish the merges under way.
            drop(self.compactor.merge_alone());
            let done = self.defragment(options);
            self.end();
            done?;
        }
        Ok(started)
    }

    /// So much is lost that it should begin by itself.
    fn holes_due(&self) -> bool {
        if self.inline || self.options.defrag_rate == 0 || self.progress().running {
            return false;
        }
        let holes = self.holes();
        holes.percent() >= BEGIN_PERCENT
            && holes.reclaimable() >= BEGIN_ZONES
            // Not the same as when the last one ended.
            && self.state.lock().seen != (holes.zones, holes.live)
    }

    /// It is not under way, and has no reason to begin; no zone is kept for use again.
    pub(super) fn at_rest(&self) -> bool {
        self.zones.spare() == 0 && !self.progress().running && !self.holes_due()
    }

    /// Begins by itself when too much is lost.
    pub(crate) fn look_for_holes(&self) {
        // A merge that moves values empties zones by and by; what is left of them for the moment is
        // not worth moving.
        if !self.compactor.below() && self.holes_due() {
            let holes = self.holes();
            self.state.lock().seen = (holes.zones, holes.live);
            self.request(
                DefragOptions { bytes_per_second: None, fullest_percent: CHEAP_PERCENT },
                true,
            );
        }
    }

    /// The thread.
    pub(crate) fn defragment_loop(&self) {
        while let Some(options) = self.wait(|| self.signals.stopping()) {
            match self.defragment(options) {
                Ok(()) => {}
                Err(Error::NoSpace) => tracing::info!("no space to defragment in"),
                Err(e) => tracing::warn!("defragmentation failed: {e}"),
            }
            self.end();
            if self.health.failed() {
                return;
            }
        }
    }

    /// One round on the spot, for a store that has run short; `false`: nothing was to be gained.
    /// The caller merges alone.
    pub(crate) fn empty_zones(&self) -> Result<bool> {
        let victims = self.victims(self.round_size(), 87)?;
        if victims.zones.is_empty() {
            return Ok(false);
        }
        let mut part = self.compactor.part_size();
        loop {
            match self.evacuate(&victims, part, false, &mut |_| !self.signals.stopping()) {
                Ok(_) => return Ok(!self.signals.stopping()),
                Err(Error::NoSpace) if part > SMALLEST => part /= 4,
                Err(e) => return Err(e),
            }
        }
    }
}

/// What came of a part.
enum Evacuated {
    /// So many bytes were moved; the rest begins at this key.
    Moved(u64, Option<Bytes>),
    /// A merge has the run.
    Busy,
}
