//! Applies the commits that recovery finds in the journal: it writes them into memtables and seals
//! generations after them, without a write to the device.

use env::sync::atomic::Ordering;

use vt_tree::Seq;
use zones::ZonePin;

use super::changes::Changes;
use super::memtables::{Written, write_memtables};
use super::sealing::Sealed;
use super::{CommitEnv, Committer};
use crate::error::{Error, Result};
use crate::journal::record::{self, Ops};
use crate::manifest::JournalStart;
use crate::version::Version;

impl Committer {
    /// Applies a commit of the journal whose first change has number `first`.
    pub(crate) fn replay(&self, first: Seq, changes: &Ops) {
        let version = self.engine.versions.load_full();
        let Written { grown, fresh } = write_memtables(&version, first, changes, &mut |_| {});
        if !fresh.is_empty() {
            self.engine.versions.change(|version| version.add_layers(fresh));
        }
        self.active_bytes.fetch_add(grown.grown, Ordering::Relaxed);
    }

    /// Commits a mirrored commit again, which the journal lacks. Its first change must have the
    /// next commit number. Its large values have their places already, and keep them.
    pub(crate) fn replay_mirrored(
        &self,
        services: &impl CommitEnv,
        first: Seq,
        changes: &Ops,
    ) -> Result<()> {
        let mut pipeline = self.enter_to_delete(services, record::size(changes))?;
        if pipeline.next_seq != first {
            return Err(Error::Corrupt(format!(
                "the mirror goes on with change {first} where {} is next",
                pipeline.next_seq
            )));
        }
        let version = self.engine.versions.load();
        let commit = Changes::new(changes, ZonePin::default(), None, &[]);
        let applied = self.run(&mut pipeline, &version, commit);
        drop(version);
        drop(pipeline);
        services.after_commit(applied)
    }

    /// Seals the memtables of the replay; the next generation pins `bound`. `start` is the start of
    /// the journal once the sealed ones are flushed.
    pub(crate) fn seal_replayed(&self, start: JournalStart, bound: ZonePin) {
        let kept = self.engine.versions.load().generation.clone();
        self.engine.versions.change(Version::seal);
        self.engine.versions.load().generation.pin(bound);
        let bytes = self.active_bytes.swap(0, Ordering::Relaxed);
        self.sealed.lock().push_back(Sealed { generation: kept.number, bytes, start, _kept: kept });
        self.sealed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
