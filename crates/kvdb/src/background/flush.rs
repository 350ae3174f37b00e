//! Flush: the sealed memtables become runs of the youngest level. One merge for each dictionary,
//! then one manifest edit that adds the runs and moves the journal's start behind what they hold.
//! Until that edit is durable nothing is let go; a flush that finds no space leaves everything as
//! it was, and is tried again.

use env::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use vt_tree::{Input, KeyRange, Merge, MergeOptions, Placement, Run};
use zones::Priority;

use crate::commit::pipeline::Sealed;
use crate::commit::recent::RecentCommit;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::RunId;
use crate::journal::{Owned, Segment};
use crate::manifest::{Edit, ManifestState};
use crate::read::version::{Generation, Layer};
use crate::read::version_set::VersionEdit;
use crate::snapshot_set::Snapshot;

/// A flush under way.
struct Flush {
    /// The newest generation in it.
    upto: u64,
    /// Where the journal begins afterwards; `None`, after a replay: where it does now.
    sealed: Option<Sealed>,
    /// The snapshot that ends with `upto`, if one waits for this flush.
    snapshot: Option<Arc<Snapshot>>,
    /// For each dictionary its merge, and the share of the items that hide older ones.
    merges: VecDeque<(DictionaryId, Merge, f64)>,
    runs: Vec<(DictionaryId, Arc<Run>, f64)>,
    /// Keeps bound values in place until the runs hold them, even when a dictionary is dropped
    /// during the flush.
    _generations: Vec<Arc<Generation>>,
}

impl Flush {
    fn begin(db: &Database, upto: u64, sealed: Option<Sealed>) -> Result<Flush> {
        // First: a transaction that begins after this line begins at a commit no older than any
        // that is flushed here, and never asks for the numbers that the merge forgets.
        let (oldest, asked) = db.commits.recent.oldest(&db.versions.visible);
        let version = db.versions.load_full();
        let mut merges = VecDeque::new();
        let mut generations: Vec<Arc<Generation>> = Vec::new();
        for (&dict, tree) in &version.trees {
            let layers = tree.layers.iter().filter(|l| l.generation.number <= upto);
            generations.extend(layers.clone().map(|l| l.generation.clone()));
            let inputs: Vec<Input> = layers.flat_map(Layer::inputs).collect();
            if inputs.is_empty() {
                continue;
            }
            let options = MergeOptions {
                drop_tombstones: tree.runs().next().is_none() && !asked,
                // Open transactions ask for the order of the commits since they began.
                old_seq: oldest,
                priority: Priority::Flush,
                // Values that the journal has bound stay where they are.
                ..tree.info.options.storage(Placement::stitch())
            };
            // An estimate: what cannot be read below must not keep commits from being flushed above
            // it.
            let garbage_share = db.garbage_share(tree, upto).unwrap_or_default();
            merges.push_back((
                dict,
                Merge::new(&db.cache, &inputs, &KeyRange::all(), options)?,
                garbage_share,
            ));
        }
        generations.sort_by_key(|g| g.number);
        generations.dedup_by_key(|g| g.number);
        let snapshot = sealed.and_then(|_| db.snapshots.pending_at(upto));
        Ok(Flush { upto, sealed, snapshot, merges, runs: Vec::new(), _generations: generations })
    }

    fn run(&mut self, db: &Database) -> Result<()> {
        while let Some((dict, merge, garbage_share)) = self.merges.pop_front() {
            let (run, stats) = merge.finish()?;
            db.counters.merged(&stats);
            self.runs.extend(run.map(|run| (dict, run, garbage_share)));
        }
        Ok(())
    }

    /// Makes the runs part of the store.
    fn install(self, db: &Database) -> Result<()> {
        db.zones.sync().map_err(|e| db.health.fail("syncing a flush", &e.into()))?;
        // Written with the numbers that transactions ask for. Before the memtables go, so that a
        // reader always finds one of the two.
        let past = |(dict, run, _): &(DictionaryId, Arc<Run>, f64)| {
            let newest = run.stats().max_seq;
            (newest > 0).then(|| RecentCommit {
                dict: *dict,
                run: run.clone(),
                newest,
                at_once: false,
            })
        };
        drop(db.commits.recent.remember(self.runs.iter().filter_map(past)));
        let before = self.sealed.map_or(0, |s| s.start.segment);
        // A few of the zones that become free are listed for the journal's next segments in the
        // same edit. The writer is not locked during the sync of that: commits go on.
        let (mut released, again) = {
            let mut writer = db.commits.writer.lock();
            let released = writer.release(before);
            let again = writer.announce(db.commits.stock(), released.len());
            (released, again)
        };
        let mut rest = released.split_off(again);
        let mut recycled = Vec::new();
        let plan = |state: &ManifestState| {
            let mut change = VersionEdit::of([Edit::Streams(db.zones.positions())]);
            let mut id = state.next_run;
            for (dict, run, garbage_share) in &self.runs {
                // Of a dictionary that was dropped in between nothing is kept.
                if state.dictionaries.contains_key(dict) {
                    change.add_run(*dict, 0, RunId(id), run);
                    db.merging.garbage.set(RunId(id), *garbage_share);
                    id += 1;
                }
            }
            if let Some(sealed) = self.sealed {
                change.edits.push(Edit::JournalStart(sealed.start));
                change.edits.push(Edit::DropSegments { before });
            }
            for (i, old) in released.iter().enumerate() {
                let number = state.next_segment + i as u64;
                let segment =
                    Segment { number, zone: old.segment.zone, epoch: db.env.random(), end: None };
                change.edits.push(Edit::Segment(segment));
                recycled.push(segment);
            }
            change.edits.extend(self.snapshot.iter().map(|s| s.edit()));
            change
        };
        let outcome = db.versions.install_and(
            plan,
            |version| version.drop_layers(self.upto),
            |version| self.snapshot.iter().for_each(|s| db.snapshots.settle(s, version)),
        );
        if outcome.is_err() {
            // The manifest still lists them: they stay.
            released.append(&mut rest);
            let mut writer = db.commits.writer.lock();
            writer.take_back(released);
            writer.arrived(again);
            return outcome;
        }
        let recycled = released
            .into_iter()
            .zip(recycled)
            .map(|(old, segment)| Owned { segment, pin: old.pin })
            .collect();
        let mut writer = db.commits.writer.lock();
        writer.arrived(again);
        db.commits.give_to(&mut writer, recycled)?;
        db.counters.journal_device.set(writer.bytes());
        Ok(())
    }
}

impl Database {
    /// Flushes what is sealed. `false`: nothing was.
    pub(crate) fn flush_sealed(&self) -> Result<bool> {
        let _one = self.flushing.lock();
        self.flush_sealed_locked()
    }

    /// Flushes what is sealed for a caller that has `flushing`.
    pub(crate) fn flush_sealed_locked(&self) -> Result<bool> {
        let Some(last) = self.commits.sealed.lock().back().map(|s| s.generation) else {
            return Ok(false);
        };
        let mut done = 0;
        while done < last {
            // Up to where a snapshot was made, so that the runs are exactly what it has.
            let upto =
                self.snapshots.next_pending().map_or(last, |generation| generation.min(last));
            let Some(next) =
                self.commits.sealed.lock().iter().rfind(|s| s.generation <= upto).copied()
            else {
                break;
            };
            self.flush_upto(next.generation, Some(next))?;
            done = next.generation;
            let mut sealed = self.commits.sealed.lock();
            sealed.retain(|s| s.generation > done);
            self.commits
                .sealed_bytes
                .store(sealed.iter().map(|s| s.bytes).sum(), Ordering::Release);
            drop(sealed);
            self.counters.flushes.add(1);
        }
        self.flushed();
        Ok(true)
    }

    /// Writes all generations up to `upto` into runs. The caller sees to it that no other flush is
    /// under way.
    pub(crate) fn flush_upto(&self, upto: u64, sealed: Option<Sealed>) -> Result<()> {
        let mut flush = Flush::begin(self, upto, sealed)?;
        flush.run(self)?;
        flush.install(self)
    }

    /// Everything committed before is in runs afterwards, and the journal begins behind it.
    pub(crate) fn flush_all(&self) -> Result<()> {
        // Empty memtables are not enough: a replay flushes what it has read and leaves the journal
        // as it is. What comes above those runs (an ingest) would lie beneath what is replayed when
        // the store is opened again. So the journal's start must have passed this position, too.
        let unflushed = self.commits.pipeline.lock().unflushed_end;
        let version = self.versions.load_full();
        let number = version.generation.number;
        let empty =
            version.is_flushed() && self.versions.manifest()?.state().start.position >= unflushed;
        drop(version);
        if !empty {
            self.commits.seal(number)?;
        }
        while self.flush_sealed()? {}
        debug_assert!(
            self.versions.manifest()?.state().start.position >= unflushed,
            "the journal has records to be replayed over what comes above the runs now"
        );
        Ok(())
    }
}
