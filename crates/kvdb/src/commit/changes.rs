//! A commit of changes to memtables: a batch, the changes of a transaction, or a commit that a
//! mirror has and the journal lacks.

use std::collections::BTreeMap;

use vt_tree::Seq;
use zones::ZonePin;

use super::batch::{Batch, Durability};
use super::committer::{Applied, Commit, Committer};
use super::feed::Feed;
use super::locking::{lock_owner, ranges};
use super::log::{Pipeline, deferred};
use super::memtables::{Grown, Written, write_memtables};
use super::{CommitEnv, CommitSize, Valid};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::{self, Op, Ops};
use crate::mirror::Note;
use crate::read::ranks::Ranks;
use crate::version::Version;
use crate::version::generation::Layer;

/// A commit of changes to memtables.
pub(super) struct Changes<'a> {
    changes: &'a Ops,
    pin: ZonePin,
    note: Option<Note>,
    known: &'a [u32],
    /// The number of deferred values of earlier commits.
    waiting: usize,
    /// New memtables, which the version of the readers lacks: the changes become visible together
    /// with a version that has them.
    fresh: BTreeMap<DictionaryId, Layer>,
}

impl<'a> Changes<'a> {
    /// For `pin`, `note` and `known` see [`Valid`].
    pub(super) fn new(
        changes: &'a Ops,
        pin: ZonePin,
        note: Option<Note>,
        known: &'a [u32],
    ) -> Self {
        Changes { changes, pin, note, known, waiting: 0, fresh: BTreeMap::new() }
    }
}

impl Commit for Changes<'_> {
    fn count(&self) -> u64 {
        self.changes.len() as u64
    }

    fn apply(&mut self, version: &Version, pipeline: &mut Pipeline) -> Grown {
        let first = pipeline.next_seq;
        self.waiting = pipeline.pending.values.len();
        let mut defer = |value| pipeline.pending.push(value);
        let Written { grown, fresh } = write_memtables(version, first, self.changes, &mut defer);
        self.fresh = fresh;
        if !self.pin.uses().is_empty() {
            version.generation.pin(std::mem::take(&mut self.pin));
        }
        pipeline.note = self.note.take();
        grown
    }

    fn log(&mut self, pipeline: &mut Pipeline) {
        let mut places = Vec::new();
        record::encode(self.changes, pipeline.stream(), |at| places.push(at));
        for (value, at) in pipeline.pending.values[self.waiting..].iter_mut().zip(places) {
            value.at = Some(at);
        }
    }

    fn changes_version(&self) -> bool {
        !self.fresh.is_empty()
    }

    fn change(&mut self, version: &mut Version) {
        version.add_layers(std::mem::take(&mut self.fresh));
    }

    fn note(&self, version: &Version, feed: &Feed, ranks: &Ranks, last: Seq) {
        feed.note(version, self.changes, last);
        ranks.note(self.changes, self.known, last);
    }
}

/// The result of an attempt to commit.
pub(crate) enum Outcome {
    Applied(Applied),
    /// A newer commit must be examined first. Nothing was changed.
    Stale,
}

/// The result of an attempt under the pipeline's lock.
enum Attempt {
    Applied(Applied),
    Stale,
    /// A transaction holds a lock on a range of the changes.
    Locked,
}

impl Committer {
    /// Commits a batch: validates it, places or copies its large values, makes its changes visible,
    /// and syncs if `durability` asks for that.
    pub(crate) fn commit(
        &self,
        services: &impl CommitEnv,
        batch: Batch,
        durability: Durability,
    ) -> Result<()> {
        self.engine.health.writable()?;
        // If the caller waits for the next sync, large values are logged with the record.
        let placing = if batch.sync_follows { Durability::Synced } else { durability };
        let mut valid = self.validate(&self.engine.versions.load(), batch)?;
        // Other commits may have changed the keys in the meantime.
        valid.known.clear();
        if valid.changes.is_empty() {
            return match durability {
                Durability::Buffered => Ok(()),
                Durability::Synced => self.sync(services),
            };
        }
        self.fold_updates(services, &valid.changes)?;
        if let Outcome::Applied(applied) =
            self.commit_changes(services, valid, placing, lock_owner(), |_, _| Ok(true))?
        {
            if placing == Durability::Synced {
                self.log.synced_commit_is_awaited();
            }
            self.finish(services, durability, applied)?;
        }
        Ok(())
    }

    /// Commits changes if `still` agrees. It is called under the pipeline's lock with the newest
    /// commit's number and the changes, after other owners have released their locks on them.
    /// `durability` decides how large values are placed; the caller syncs, and calls
    /// `after_commit`.
    pub(crate) fn commit_changes(
        &self,
        services: &impl CommitEnv,
        valid: Valid,
        durability: Durability,
        owner: Option<u64>,
        still: impl Fn(Seq, &Ops) -> Result<bool>,
    ) -> Result<Outcome> {
        let Valid { mut changes, claim, mut pin, note, known } = valid;
        let version = self.engine.versions.load_full();
        let user_bytes: u64 = changes.iter().map(|(_, op)| op.bytes() as u64).sum();
        let (large, total) = self.large(&version, &changes);
        drop(version);
        let size = CommitSize { large: total, all: user_bytes };
        let may_wait = (durability == Durability::Buffered || !self.engine.options.journal)
            && !self.log.is_mirrored();
        let is_bound = total >= self.engine.options.late_bind_at.min(deferred::LONGEST);
        let mut held = match is_bound && may_wait {
            true => self.may_hold(&large, &changes, total),
            false => None,
        };
        if is_bound && held.is_none() {
            pin.merge(self.bind_unless_refused(services, large, &mut changes, (size, claim))?);
        } else if !large.is_empty() && may_wait {
            // Admission precedes the copy, which takes memory.
            match services.admit(user_bytes as usize, total as usize, claim) {
                Err(Error::NoSpace) if held.is_some() => {
                    held = None;
                    let of = (size, claim);
                    pin.merge(self.bind_unless_refused(services, large, &mut changes, of)?);
                }
                admitted => {
                    admitted?;
                    self.copy_values(&large, &mut changes);
                }
            }
        }
        let record = record::size(&changes);
        if record > self.shares.largest_record {
            return Err(Error::Invalid(format!(
                "a batch of {record} bytes is more than memory allows ({}): split it, or give the store more memory",
                self.shares.largest_record
            )));
        }
        if !changes.iter().any(|(_, op)| matches!(op, Op::PutDeferred(..)))
            && let Err(e) = services.admit(record, 0, claim)
        {
            // The values that were placed for this commit free their space.
            drop(pin);
            if is_bound && matches!(e, Error::NoSpace) {
                services.note_refused(size, claim);
            }
            return Err(e);
        }
        let deletes = claim.removes
            || changes.iter().any(|(_, op)| matches!(op, Op::Delete(_) | Op::DeleteRange(..)));
        let mut valid = Valid { changes, claim, pin, note, known };
        let mut applied = loop {
            match self.attempt(services, record, &mut valid, owner, &still) {
                Ok(Attempt::Applied(applied)) => break applied,
                Ok(Attempt::Stale) => return Ok(Outcome::Stale),
                Ok(Attempt::Locked) => self.wait_for_locks(ranges(&valid.changes), owner)?,
                // There are no zones for them alone, but perhaps there is room in an open one.
                Err(Error::NoSpace) if held.is_some() => {
                    held = None;
                    self.bind_held(services, &mut valid)?;
                }
                Err(e) => return Err(e),
            }
        };
        if deletes {
            self.engine.signals.deleted();
        }
        self.engine.counters.commits.add(1);
        self.engine.counters.user_bytes.add(user_bytes);
        applied.sync_follows = durability == Durability::Synced;
        Ok(Outcome::Applied(applied))
    }

    /// Enters, agrees and runs the commit. Returns without an effect if `still` does not agree, or
    /// if a transaction holds a lock.
    fn attempt(
        &self,
        services: &impl CommitEnv,
        record: usize,
        valid: &mut Valid,
        owner: Option<u64>,
        still: impl Fn(Seq, &Ops) -> Result<bool>,
    ) -> Result<Attempt> {
        let Valid { changes, claim, pin, note, known } = valid;
        let changes = &*changes;
        let values = changes
            .iter()
            .filter_map(|(_, op)| if let Op::PutDeferred(_, v, _) = op { Some(v) } else { None });
        let cost = values.map(|v| deferred::cost(v.len())).sum();
        let deletes_only =
            changes.iter().all(|(_, op)| matches!(op, Op::Delete(_) | Op::DeleteRange(..)));
        let mut pipeline = if deletes_only {
            self.enter_to_delete(services, record)
        } else {
            self.enter(services, record, cost, *claim)
        }?;
        if !still(pipeline.next_seq - 1, changes)? {
            return Ok(Attempt::Stale);
        }
        // Held until the changes are visible, so that no transaction locks them in between.
        let _guard = match self.locks.any() {
            false => None,
            true => match self.locks.try_guard(ranges(changes), owner) {
                Ok(guard) => Some(guard),
                Err(_) => return Ok(Attempt::Locked),
            },
        };
        let version = self.engine.versions.load();
        // A dictionary may have been dropped since the batch was validated. Then the commit fails
        // as a whole, since its record would contain changes that are in no memtable. Besides,
        // the record's places are matched one to one with the deferred values.
        changes
            .chunk_by(|a, b| a.0 == b.0)
            .try_for_each(|some| version.tree(some[0].0).map(drop))?;
        self.engine.versions.forget_tombstones(&version, changes);
        let commit = Changes::new(changes, std::mem::take(pin), note.take(), known);
        Ok(Attempt::Applied(self.run(&mut pipeline, &version, commit)))
    }
}
