//! Flush: sealed memtables become runs of the youngest level. There is one merge for each
//! dictionary, and then one manifest edit that adds the runs and moves the journal's start past
//! their content. If snapshots wait for the flush, there is a merge for each interval between two
//! of them. Nothing is released until that edit is durable; a flush that finds no space changes
//! nothing, and is retried.

use env::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use vt_tree::{Input, KeyRange, Merge, MergeOptions, Placement, Run};
use zones::{Job, Priority};

use super::candidates::Candidates;
use super::defragment::Holes;
use super::garbage::{GarbageEstimate, garbage_of_active, garbage_share};
use crate::commit::Committer;
use crate::commit::recent::{RecentCommit, RecentCommits};
use crate::commit::sealing::Sealed;
use crate::dictionary::DictionaryId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::ids::RunId;

use crate::lock_order::{Mutex, MutexGuard, Rank};
use crate::manifest::{Edit, ManifestState};
use crate::version::Version;
use crate::version::generation::{Generation, Layer};
use crate::version::snapshot_set::Snapshot;
use crate::version::version_set::{Order, VersionEdit};

/// A flush that fails for a reason other than lack of space is tried this often before the store
/// stops accepting writes.
const ATTEMPTS: u32 = 5;

/// Maximum number of generations between snapshots that one flush writes to runs.
const TOGETHER: usize = 64;

/// A merge of the memtables of a dictionary, and the share of their items that hide older ones.
struct Due {
    dict: DictionaryId,
    inputs: Vec<Input>,
    options: MergeOptions,
    garbage_share: f64,
}

/// The generations from one snapshot to the next, or to the newest that is sealed.
#[derive(Default)]
struct Part {
    /// The snapshot that ends this part, if one waits for this flush.
    snapshot: Option<Arc<Snapshot>>,
    due: VecDeque<Due>,
    runs: Vec<(DictionaryId, Arc<Run>, f64)>,
}

/// A flush in progress. Each snapshot gets the runs of its part and of the parts before, and all of
/// them become durable in one edit.
struct Flush {
    /// The parts, oldest first; at least one.
    parts: Vec<Part>,
    /// The newest generation in the parts.
    upto: u64,
    /// The journal's start after the flush. `None` after a replay, which keeps the current start.
    sealed: Option<Sealed>,
    /// Pins bound values until the runs refer to them, even if a dictionary is dropped during the
    /// flush.
    _generations: Vec<Arc<Generation>>,
}

impl Flush {
    /// Begins a flush. `ends` is the newest generation of each part, ascending.
    fn begin(flusher: &Flusher, ends: &[u64], sealed: Option<Sealed>) -> Result<Flush> {
        // This must come first: a transaction that begins after this line begins at a commit no
        // older than any that is flushed here, and never needs the numbers that the merge discards.
        let (oldest, asked) = flusher.recent.oldest(&flusher.engine.versions.visible);
        let version = flusher.engine.versions.load_full();
        let part = |&upto: &u64| {
            let snapshot = sealed.as_ref().and_then(|_| flusher.engine.snapshots.pending_at(upto));
            Part { snapshot, ..Part::default() }
        };
        let mut parts: Vec<Part> = ends.iter().map(part).collect();
        let upto = ends.last().copied().unwrap_or(0);
        let mut generations: Vec<Arc<Generation>> = Vec::new();
        for (dict, tree) in version.in_memory() {
            let layers = tree.layers.iter().filter(|l| l.generation.number <= upto);
            generations.extend(layers.clone().map(|l| l.generation.clone()));
            // The layers are ordered from the oldest on, like the parts; within a part the newest
            // comes first.
            let layers: Vec<&Layer> = layers.rev().collect();
            let of_part =
                |layer: &&Layer| ends.partition_point(|end| *end < layer.generation.number);
            let mut nothing_below = tree.runs().next().is_none() && !asked;
            for layers in layers.chunk_by(|a, b| of_part(a) == of_part(b)) {
                let inputs: Vec<Input> = layers.iter().rev().flat_map(|l| l.inputs()).collect();
                if inputs.is_empty() {
                    continue;
                }
                let options = MergeOptions {
                    drop_tombstones: std::mem::take(&mut nothing_below),
                    // Open transactions need the order of the commits since they began.
                    old_seq: oldest,
                    priority: Priority::Flush,
                    choice: flusher.engine.series.choice(dict, tree.info().options.compress_values),
                    // Values that the journal has bound stay where they are.
                    ..tree.storage(Placement::stitch())
                };
                // This is an estimate: data below that cannot be read must not prevent commits from
                // being flushed above it.
                let garbage_share = garbage_share(tree, layers).unwrap_or_default();
                parts[of_part(&layers[0])].due.push_back(Due {
                    dict,
                    inputs,
                    options,
                    garbage_share,
                });
            }
        }
        generations.sort_by_key(|g| g.number);
        generations.dedup_by_key(|g| g.number);
        Ok(Flush { parts, upto, sealed, _generations: generations })
    }

    fn run(&mut self, flusher: &Flusher) -> Result<()> {
        for part in &mut self.parts {
            while let Some(Due { dict, inputs, options, garbage_share }) = part.due.pop_front() {
                let merge = Merge::new(&flusher.engine.cache, &inputs, &KeyRange::all(), options)?;
                let (run, stats) = merge.finish()?;
                flusher.engine.counters.merged(&stats);
                flusher.engine.counters.flushed_values.add(stats.values_written);
                part.runs.extend(run.map(|run| (dict, run, garbage_share)));
            }
        }
        Ok(())
    }

    /// Returns the runs of all parts, for each dictionary the oldest first.
    fn runs(&self) -> impl Iterator<Item = &(DictionaryId, Arc<Run>, f64)> {
        self.parts.iter().flat_map(|part| &part.runs)
    }

    /// Makes the runs part of the store.
    fn install(self, flusher: &Flusher) -> Result<()> {
        flusher
            .engine
            .zones
            .sync()
            .map_err(|e| flusher.engine.health.fail("syncing a flush", &e.into()))?;
        // The runs are remembered with the numbers that transactions need, and before the memtables
        // are removed, so that a reader always finds one of the two.
        let recent = |(dict, run, _): &(DictionaryId, Arc<Run>, f64)| {
            let newest = run.stats().max_seq;
            (newest > 0).then(|| RecentCommit {
                dict: *dict,
                run: run.clone(),
                newest,
                one_seq: false,
            })
        };
        drop(flusher.recent.remember(self.runs().filter_map(recent)));
        let before = self.sealed.as_ref().map_or(0, |s| s.start.segment);
        let mut recycling = flusher.commits.log.begin_recycling(before);
        let plan = |state: &ManifestState| {
            let mut change = VersionEdit::of([Edit::Streams(flusher.engine.zones.positions())]);
            let mut id = state.next_run;
            for part in &self.parts {
                for (dict, run, garbage_share) in &part.runs {
                    // Runs of a dictionary that was dropped in the meantime are discarded.
                    if state.dictionaries.contains_key(dict) {
                        change.add_run(*dict, 0, RunId(id), run);
                        flusher.garbage.set(*dict, RunId(id), *garbage_share);
                        id += 1;
                    }
                }
                change.edits.extend(part.snapshot.iter().map(|s| s.edit()));
            }
            if let Some(sealed) = &self.sealed {
                change.edits.push(Edit::JournalStart(sealed.start));
                change.edits.push(Edit::DropSegments { before });
            }
            change.edits.extend(recycling.edits(state));
            change
        };
        // The runs contain all commits up to the new start of the journal; with the sync above they
        // are durable.
        let drop_layers = |version: &mut Version| version.drop_layers(self.upto);
        let outcome = flusher.engine.versions.install_and(Order::OfRuns, plan, drop_layers);
        match outcome {
            Ok(()) => recycling.finish(),
            Err(e) => {
                recycling.undo();
                flusher.recent.forget(self.runs().map(|(_, run, _)| run));
                Err(e)
            }
        }
    }
}

/// Flushes sealed memtables to runs.
pub(crate) struct Flusher {
    engine: Engine,
    commits: Arc<Committer>,
    recent: Arc<RecentCommits>,
    garbage: Arc<GarbageEstimate>,
    candidates: Arc<Candidates>,
    /// Held during a flush, and by work that must exclude flushes.
    flushing: Mutex<()>,
}

impl Flusher {
    pub(super) fn new(
        engine: &Engine,
        commits: Arc<Committer>,
        recent: Arc<RecentCommits>,
        garbage: Arc<GarbageEstimate>,
        candidates: Arc<Candidates>,
    ) -> Flusher {
        Flusher {
            engine: engine.clone(),
            commits,
            recent,
            garbage,
            candidates,
            flushing: Mutex::new(Rank::Flush, ()),
        }
    }

    /// Excludes all flushes while the guard lives, except [`Flusher::flush_sealed_locked`] by its
    /// owner.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.flushing.lock()
    }

    /// Acquires [`Flusher::lock`] without waiting. Returns `None` while a flush is in progress.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.flushing.try_lock()
    }

    /// Flushes the sealed memtables. Returns `false` if there were none.
    pub(crate) fn flush_sealed(&self) -> Result<bool> {
        let _one = self.flushing.lock();
        self.flush_sealed_locked()
    }

    /// Flushes the sealed memtables for a caller that holds [`Flusher::lock`].
    pub(crate) fn flush_sealed_locked(&self) -> Result<bool> {
        let Some(last) = self.commits.newest_sealed() else { return Ok(false) };
        let (mut done, mut together) = (0, TOGETHER);
        while done < last {
            // Each part ends where a snapshot was made, so that its runs are exactly the content of
            // the snapshot.
            let mut ends = self.engine.snapshots.pending_upto(last, together);
            if ends.len() < together && ends.last() != Some(&last) {
                ends.push(last);
            }
            let Some(&upto) = ends.last() else { break };
            let Some(next) = self.commits.sealed_upto(upto).filter(|s| s.generation == upto) else {
                break;
            };
            match self.flush_parts(&ends, Some(next)) {
                // A flush of one part may make room for the rest.
                Err(Error::NoSpace) if ends.len() > 1 => {
                    together = 1;
                    continue;
                }
                flushed => flushed?,
            }
            done = upto;
            self.commits.flushed_upto(done);
            self.engine.counters.flushes.add(1);
        }
        self.flushed();
        Ok(true)
    }

    /// Writes all generations up to the last of `ends` to runs, in a part for each of them.
    fn flush_parts(&self, ends: &[u64], sealed: Option<Sealed>) -> Result<()> {
        let _job = Job::Flushes.begin();
        let mut flush = Flush::begin(self, ends, sealed)?;
        flush.run(self)?;
        flush.install(self)
    }

    /// Flushes everything that was committed before the call, and moves the journal's start past
    /// it.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_all_by(|| self.flush_sealed())
    }

    /// Does the same as [`Flusher::flush_all`] for a caller that holds [`Flusher::lock`].
    pub(crate) fn flush_all_locked(&self) -> Result<()> {
        self.flush_all_by(|| self.flush_sealed_locked())
    }

    fn flush_all_by(&self, flush_sealed: impl Fn() -> Result<bool>) -> Result<()> {
        // Empty memtables are not sufficient. Data that is added above the runs (an ingest) would
        // lie below the data that is replayed when the store is opened again, so the journal's
        // start must have passed this position, too, however the memtables came to be empty.
        let unflushed = self.commits.log.unflushed_end();
        let version = self.engine.versions.load_full();
        let number = version.generation.number;
        let empty = version.is_flushed()
            && self.engine.versions.manifest()?.state().start.position >= unflushed;
        drop(version);
        if !empty {
            self.commits.seal(number)?;
        }
        // Generations that others seal in the meantime contain later commits: waiting for them
        // might never end.
        while self.commits.sealed_upto(number).is_some() && flush_sealed()? {}
        debug_assert!(
            self.engine.versions.manifest()?.state().start.position >= unflushed,
            "the journal has records to be replayed over what comes above the runs now"
        );
        Ok(())
    }

    /// Wakes callers that wait for memory after a flush, and the threads that may merge the young
    /// runs.
    pub(crate) fn flushed(&self) {
        self.candidates.count_runs(&self.engine.versions.load(), &self.engine.counters);
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        self.engine.signals.flush_ended(true);
        self.engine.signals.memory_is_free();
        self.engine.signals.compaction_wanted();
    }

    /// Seals the active generation if it has made many values dead. Overwritten values keep their
    /// space until their generation is flushed, so it is flushed even if its memtables are small.
    /// If `in_time` is set, a generation that pins many bytes is sealed as well, since the sample
    /// misses most of the values that were overwritten before any flush.
    pub(crate) fn seal_what_holds_much(&self, in_time: bool) -> Result<()> {
        const LEAST: u64 = 64 << 20;
        const MOST: u64 = 256 << 20;
        // No reader asks a memtable for an older state, so older versions that are hidden may be
        // forgotten as new ones arrive.
        let floor = self
            .engine
            .versions
            .read_snapshots
            .floor(self.engine.versions.visible.load(Ordering::Acquire));
        let version = self.engine.versions.load_full();
        for layer in version.in_memory().filter_map(|(_, t)| version.active(t)) {
            layer.memtable.set_floor(floor);
        }
        let held = version.generation.held();
        if held < LEAST || self.commits.newest_sealed().is_some() {
            return Ok(());
        }
        let live = Holes::of(&self.engine.versions.load(), &self.engine.zones).live;
        if in_time && held > MOST.max(live / 5)
            || garbage_of_active(&version)? > LEAST.max((live + held) / 10)
        {
            self.commits.seal(version.generation.number)?;
        }
        Ok(())
    }

    /// Returns the bytes that the flush of all memtables may take on the device.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.commits.pressing_bytes() as u64
    }

    /// Returns whether nothing waits for a flush, and nothing was deleted whose space a flush would
    /// free.
    pub(crate) fn at_rest(&self) -> bool {
        self.commits.newest_sealed().is_none()
            && !self.engine.signals.deletions.load(Ordering::Acquire)
    }

    /// Runs the flush thread.
    pub(crate) fn flush_loop(&self) {
        // Counts consecutive failures, and those among them that were not for lack of space.
        let (mut failures, mut errors) = (0u32, 0);
        loop {
            {
                let mut wanted = self.engine.signals.wanted.lock();
                while !wanted.flush && !self.engine.signals.stopping() && failures == 0 {
                    self.engine.signals.wake_flush.wait(&mut wanted);
                }
                if failures > 0 && !self.engine.signals.stopping() {
                    // Retry a failed flush after a while, or as soon as space has been freed.
                    let pause = Duration::from_millis(50) * (1 << failures.min(5));
                    self.engine.signals.wake_flush.wait_for(&mut wanted, pause);
                }
                wanted.flush = false;
            }
            if self.engine.signals.stopping() {
                return;
            }
            let result = self.flush_sealed();
            self.engine.signals.flush_ended(!matches!(result, Err(Error::NoSpace)));
            match result {
                Ok(_) => (failures, errors) = (0, 0),
                Err(e) => {
                    failures += 1;
                    errors += u32::from(!matches!(e, Error::NoSpace));
                    tracing::warn!("a flush failed and will be tried again: {e}");
                    if errors >= ATTEMPTS {
                        self.engine.health.fail("flushing", &e);
                        return;
                    }
                }
            }
            self.engine.signals.memory_is_free();
        }
    }
}
