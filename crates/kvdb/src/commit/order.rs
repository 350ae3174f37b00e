//! The order of manifest edits among the commits.
//!
//! The manifest is durable by itself, while commits are durable when the journal is synced. Suppose
//! that tuples are copied elsewhere and the originals dropped: if the edit that drops them were
//! durable before the commits of the copies, a power cut could lose both. So there is one rule: an
//! edit that changes what a reader finds becomes durable after all commits that were visible before
//! it. Edits that only say where data lies, and those of flushes, which bring all commits up to
//! some number into runs, need no sync (see [`Order`](crate::version::version_set::Order)).
//!
//! There are two ways to keep the rule. [`Committer::install`] syncs the commits before the
//! call: that is enough if the edit adds something, or drops something that commits do not see.
//! Drops, rollbacks and ingests are commits themselves: [`Committer::enter_in_order`] lets no
//! other commit in between.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Run, Seq};
use zones::Priority;

use super::log::Pipeline;
use super::memtables::Grown;
use super::{Applied, CommitEnv, Committer};
use crate::commit::recent::RecentCommit;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal;
use crate::journal::record::{self, Op, Ops};
use crate::lock_order::MutexGuard;
use crate::manifest::ManifestState;
use crate::version::Version;
use crate::version::snapshot_set::Snapshot;
use crate::version::version_set::{CommitsSynced, Order, VersionEdit};

/// Returns the journal's record of a commit whose changes are in the manifest: a deletion in
/// dictionary 0, which does not exist. It takes the commit's number and changes nothing.
pub(crate) fn number_alone() -> Ops {
    vec![(DictionaryId(0), Op::Delete(Bytes::new()))]
}

/// The changes of a commit that is an edit of the manifest, for conflict checks and for the feed.
pub(crate) enum Changed {
    /// The contents of this run, in one dictionary.
    Run(DictionaryId, Arc<Run>),
    /// Changes in these branches that are not listed.
    Unlisted(BTreeSet<String>),
}

impl Committer {
    /// Flushes all commits if the store has no journal that can be synced later, so that they are
    /// durable afterwards. To be called before an edit that is not [`Order::OfPlaces`], and before
    /// any lock.
    pub(crate) fn flush_before_edit(&self, services: &impl CommitEnv) -> Result<()> {
        if self.engine.options.journal { Ok(()) } else { services.flush_all() }
    }

    /// Makes the edits that `plan` returns durable, after all commits before this call, and changes
    /// the version and the snapshots accordingly.
    pub(crate) fn install(&self, plan: impl FnOnce(&ManifestState) -> VersionEdit) -> Result<()> {
        self.engine.versions.install(Order::AfterCommits(self.sync_commits()?), plan)
    }

    /// Syncs the journal. Costs nothing if nothing was committed since the last sync.
    fn sync_commits(&self) -> Result<CommitsSynced> {
        if self.engine.options.journal {
            self.log.sync_to(self.log.end())?;
        }
        Ok(CommitsSynced(()))
    }

    /// Takes the pipeline's lock for a commit that is an edit of the manifest: all commits before
    /// it are durable, and there is room for its record, [`number_alone`]. `depth` says how far
    /// into the reserve segments may be taken.
    pub(crate) fn enter_in_order(&self, depth: Priority) -> Result<InOrder<'_>> {
        // Most of the stream is synced here, while other threads can commit.
        let synced = self.sync_commits()?;
        if !self.engine.options.journal {
            let pipeline = self.log.lock_with_room(0, 0, |_| Ok(()))?;
            return Ok(InOrder { pipeline, synced });
        }
        let need = journal::cost(record::size(&number_alone()) + record::NUMBER_SIZE);
        let mut writer = self.log.writer.lock();
        let mut pipeline = loop {
            self.log.write_out_with(&mut writer)?;
            while writer.room() < journal::cost(0) + need {
                self.log.add_segment(&mut writer, depth)?;
            }
            let pipeline = self.log.pipeline.lock();
            // Other commits may have filled the room in the meantime.
            if writer.room() >= journal::cost(pipeline.pending.len()) + need {
                break pipeline;
            }
        };
        self.engine.health.writable()?;
        self.log.sync_rest(&mut writer, &mut pipeline)?;
        Ok(InOrder { pipeline, synced })
    }
}

/// Holds the pipeline's lock, with all commits so far durable.
pub(crate) struct InOrder<'a> {
    pipeline: MutexGuard<'a, Pipeline>,
    synced: CommitsSynced,
}

impl InOrder<'_> {
    /// Returns the number of the next commit.
    pub(crate) fn seq(&self) -> Seq {
        self.pipeline.next_seq
    }
}

/// The rest of a commit that is an edit of the manifest, to be done after all locks are released.
pub(crate) struct Installed {
    applied: Option<Applied>,
    /// The snapshots that were dropped: their runs are released with them.
    gone: Vec<Arc<Snapshot>>,
}

impl Installed {
    /// Finishes the commit. To be called without any lock.
    pub(crate) fn finish(self, services: &impl CommitEnv) -> Result<()> {
        drop(self.gone);
        let due = self.applied.map_or(Ok(()), |applied| services.after_commit(applied));
        due.map_err(Error::after_commit)
    }
}

impl Committer {
    /// Commits an edit of the manifest: makes the edits that `plan` returns durable, then visible.
    pub(crate) fn install_commit(
        &self,
        entered: InOrder<'_>,
        changed: Changed,
        plan: impl FnOnce(&ManifestState) -> Result<VersionEdit>,
    ) -> Result<Installed> {
        self.install_commit_with(entered, changed, plan, || ())
    }

    /// Does the same as [`Committer::install_commit`], and calls `between` after the commit is
    /// remembered for conflicts and before it becomes visible.
    pub(super) fn install_commit_with(
        &self,
        entered: InOrder<'_>,
        changed: Changed,
        plan: impl FnOnce(&ManifestState) -> Result<VersionEdit>,
        between: impl FnOnce(),
    ) -> Result<Installed> {
        let InOrder { mut pipeline, synced } = entered;
        let seq = pipeline.next_seq;
        // The commit is durable. Until it is visible, readers see the complete state before it.
        let recent = match &changed {
            Changed::Run(dict, run) => {
                Some(RecentCommit { dict: *dict, run: run.clone(), newest: seq, one_seq: true })
            }
            Changed::Unlisted(_) => None,
        };
        let logged = |pipeline: &mut Pipeline| {
            if self.engine.options.journal {
                record::encode(&number_alone(), pipeline.stream(), |_| {});
            }
            self.recent.remember(recent)
        };
        let mut applied = None;
        let show = |pipeline: &mut Pipeline, version: &Version| {
            between();
            applied = Some(self.publish(pipeline, version, 1, Grown::default()));
        };
        let pipeline = &mut *pipeline;
        let gone =
            self.engine.versions.install_commit(synced, seq, pipeline, plan, logged, show)?;
        let version = self.engine.versions.load();
        match &changed {
            Changed::Run(dict, _) => {
                let dicts = std::slice::from_ref(dict);
                self.feed.note_unlisted(&version, dicts, seq);
                self.ranks.note_unlisted(Some(dicts), seq);
            }
            Changed::Unlisted(branches) => {
                self.feed.end(branches, seq);
                // A rollback keeps the numbers of dictionaries, whichever branch it changes.
                self.ranks.note_unlisted(None, seq);
            }
        }
        Ok(Installed { applied, gone })
    }
}
