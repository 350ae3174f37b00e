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
//! It runs when it is asked for, and by itself when too much of the store is holes. Between two
//! parts it pauses, so that it takes no more of the device than its rate allows; by itself it goes
//! faster the more is lost, so that writers are not held up before space really runs short; and
//! while readers wait for the arm of a disk it stands back, for seconds between small parts. A
//! store that has run short does rounds of it on the spot, see `reclaim`.
//!
//! - `victims`: which zones to empty;
//! - `evacuate`: emptying them, part by part;
//! - `objects`: the zones that lie in object storage;
//! - `request`: what is asked for, and how far it is;
//! - here: the rounds.

mod evacuate;
mod objects;
mod request;
mod victims;

use std::sync::Arc;
use std::time::Duration;

use env::sync::{Condvar, Mutex};
use vt_tree::{BlockCache, Placement, RunStats};
use zones::{Job, ZONE_SIZE, Zones};

pub(crate) use victims::Holes;

use self::evacuate::OtherMerges;
use self::request::DefragState;
use super::activity::Activity;
use super::{BackgroundParts, Compactor, Flusher};
use crate::counters::Counters;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::options::OpenOptions;
use crate::read::snapshot_set::Snapshots;
use crate::read::version::NumberedRun;
use crate::read::version_set::VersionSet;
use crate::signals::Signals;

/// Bytes that a round moves at most.
const ROUND: u64 = 128 << 20;
/// Bytes that a part moves before it is installed.
const PART: u64 = 16 << 20;
/// By itself it begins when this many percent of what runs hold are holes, and some zones can be
/// had.
const BEGIN_PERCENT: u64 = 12;
const BEGIN_ZONES: u64 = 4;
/// By itself it empties no zone that is fuller: it writes at most three bytes for each that it
/// gains.
const CHEAP_PERCENT: u8 = 75;
/// From here on it goes as fast as it can.
const HURRY_PERCENT: u64 = 22;
/// Between two parts it looks every so often whether readers still wait, at most so many times.
const GLANCE: Duration = Duration::from_millis(250);
const STAND_BACK: u32 = 80;
/// When not even a part of this size finds room, there is none.
const SMALLEST: u64 = 256 << 10;
/// Key blocks are merged first where values weigh at least this many times as much.
const SMALL_BLOCKS: u64 = 16;
/// Values lie scattered when their spans are shorter than this, bytes on average.
const TOGETHER: u64 = 256 << 10;
/// What is read together at least, bytes: a directory of small files, say.
const READ_TOGETHER: u64 = 2 * TOGETHER;

/// How a store is defragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefragOptions {
    /// Bytes moved in a second at most. `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Zones of which more percent than this is in use stay as they are: the fuller a zone, the
    /// more must be moved for what it gives.
    pub fullest_percent: u8,
    /// Empties the zones of objects, too, of which less than half is in use: what is left in them
    /// is fetched, and published again, so that a collector can delete them.
    pub objects: bool,
}

impl Default for DefragOptions {
    fn default() -> Self {
        DefragOptions { bytes_per_second: None, fullest_percent: 90, objects: false }
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
    activity: Arc<Activity>,
    state: Mutex<DefragState>,
    /// It begins, ends, or is to stop.
    changed: Condvar,
}

impl Defragmenter {
    pub(super) fn new(
        parts: &BackgroundParts,
        flusher: Arc<Flusher>,
        compactor: Arc<Compactor>,
        activity: Arc<Activity>,
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
            activity,
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    fn defragment(&self, options: DefragOptions) -> Result<()> {
        let _job = Job::Defragmentation.begin();
        if !self.progress().automatic && !self.inline {
            let before = self.counters.copied.get();
            self.sort_values(options)?;
            let moved = self.counters.copied.get().saturating_sub(before);
            self.update(|p| p.bytes_moved += moved);
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
        self.signals.stopping() || self.stopping() || self.is_superseded()
    }

    /// Pauses after a part that has moved so many bytes. Returns whether to go on.
    fn between(&self, moved: u64, rate: Option<u64>) -> bool {
        self.update(|p| p.bytes_moved += moved);
        if let Some(rate) = rate.filter(|_| !self.inline) {
            let pause = Duration::from_secs_f64(moved as f64 / rate.max(1) as f64);
            self.pause(pause, || self.signals.stopping());
            self.stand_back();
        }
        !self.is_to_stop()
    }

    /// Rounds of it until nothing is to be gained, or it is to stop.
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
            self.evacuate(
                &victims,
                PART.min(self.compactor.part_size()),
                OtherMerges::Running,
                &mut |moved| {
                    self.between(moved, if automatic { self.automatic_rate() } else { rate })
                },
            )?;
            if self.is_to_stop() {
                return Ok(());
            }
            let written = self.written().saturating_sub(before);
            let emptied = self.emptied(&victims.zones);
            self.update(|p| {
                // What the round was chosen for, or less.
                let gained = emptied.saturating_sub(written / ZONE_SIZE);
                p.zones_reclaimed += gained.min(victims.gain());
                p.rounds += 1;
            });
            // What is weighed is an estimate. Where it is wrong, the zones that a round has filled
            // are the victims of the next one.
            if !was_worth_it(written, emptied * ZONE_SIZE, fullest) {
                let left = self.holes().bytes();
                self.state.lock().in_vain = Some(left);
                return Ok(());
            }
        }
    }

    /// Bytes that defragmentation has written.
    fn written(&self) -> u64 {
        self.zones.io().written_by(Job::Defragmentation)
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
            let here = |p: &NumberedRun| {
                p.run.uses().iter().all(|(zone, _)| self.zones.is_here_whole(zone))
            };
            let here = tree.runs().all(here);
            drop(version);
            if blocks.saturating_mul(SMALL_BLOCKS) <= values && !self.stopping() {
                let room = self.zones.space().free_for_user
                    > values.saturating_add(self.flusher.unflushed_bytes());
                // Values that lie elsewhere would be fetched to be laid in another order.
                let scattered = here
                    && room
                    && options.bytes_per_second.is_none()
                    && values / spans.max(1) < TOGETHER;
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

    /// Whether readers, who wait for the arm of a disk, go first: it began by itself, and less is
    /// lost than would make it hurry.
    fn stands_back(&self) -> bool {
        self.progress().automatic && self.automatic_rate().is_some() && self.activity.readers_wait()
    }

    /// Lets readers go first, for as long as they do not take too long.
    fn stand_back(&self) {
        let mut left = STAND_BACK;
        while left > 0 && !self.signals.stopping() && !self.stopping() && self.stands_back() {
            self.pause(GLANCE, || self.signals.stopping());
            left -= 1;
        }
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
        let state = self.state.lock();
        holes.percent() >= BEGIN_PERCENT
            && holes.reclaimable() >= BEGIN_ZONES
            // Not the same as when the last one ended.
            && state.seen != (holes.zones, holes.live)
            // Nor those of which nothing could be had, and few more.
            && state
                .in_vain
                .is_none_or(|before| holes.bytes() >= before + BEGIN_ZONES * ZONE_SIZE)
    }

    /// It is not under way, and has no reason to begin; no zone is kept for use again.
    pub(crate) fn at_rest(&self) -> bool {
        self.zones.spare() == 0 && !self.progress().running && !self.holes_due()
    }

    /// Begins by itself when too much is lost.
    pub(crate) fn look_for_holes(&self) {
        // A merge that moves values empties zones by and by; what is left of them for the moment is
        // not worth moving.
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

    /// The thread.
    pub(crate) fn defragment_loop(&self) {
        let _over = Over(self);
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

    /// One round on the spot, for a store that has run short, where any gain counts; `false`: there
    /// was none. The caller merges alone.
    pub(crate) fn empty_zones(&self) -> Result<bool> {
        let job = Job::current();
        let victims = self.victims_at_any_cost(self.round_size(), 87)?;
        if victims.zones.is_empty() {
            return Ok(false);
        }
        let mut part = self.compactor.part_size();
        loop {
            let before = self.zones.io().written_by(job);
            match self
                .evacuate(&victims, part, OtherMerges::Excluded, &mut |_| !self.signals.stopping())
            {
                Ok(_) => {
                    let written = self.zones.io().written_by(job).saturating_sub(before);
                    let emptied = self.emptied(&victims.zones) * ZONE_SIZE;
                    return Ok(emptied > written && !self.signals.stopping());
                }
                Err(Error::NoSpace) if part > SMALLEST => part /= 4,
                Err(e) => return Err(e),
            }
        }
    }
}

/// Returns whether a round that wrote so many bytes and emptied zones of so many was worth it: it
/// has gained a quarter of what emptying the fullest zones that it may take would have gained.
fn was_worth_it(written: u64, emptied: u64, fullest_percent: u64) -> bool {
    let gained = u128::from(emptied.saturating_sub(written));
    let full = u128::from(fullest_percent.max(1));
    gained > 0 && gained * 4 * full >= u128::from(written) * (100 - full)
}

/// Callers that wait for a defragmentation are told of its end also when its thread ends first.
struct Over<'a>(&'a Defragmenter);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
