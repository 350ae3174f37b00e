//! What recovery does with the commits that it finds in the journal: they enter the memtables, and
//! generations are closed behind them, with nothing written.

use env::sync::atomic::Ordering;
use vt_tree::Seq;
use zones::ZonePin;

use super::sealing::Sealed;
use super::{CommitPipeline, Written, write_memtables};
use crate::journal::record::Ops;
use crate::manifest::JournalStart;
use crate::read::version::Version;

impl CommitPipeline {
    /// Applies a commit of the journal, the first of whose changes has number `first`.
    pub(crate) fn replay(&self, first: Seq, changes: &Ops) {
        let version = self.versions.load_full();
        let Written { grown, fresh, .. } = write_memtables(&version, first, changes, &mut |_| {});
        if !fresh.is_empty() {
            self.versions.change(|version| version.add_layers(fresh));
        }
        self.active_bytes.fetch_add(grown, Ordering::Relaxed);
    }

    /// Closes the memtables that take the replay; the ones behind them hold `bound`. `start`: where
    /// the journal begins once they are flushed.
    pub(crate) fn seal_replayed(&self, start: JournalStart, bound: ZonePin) {
        let kept = self.versions.load().generation.clone();
        self.versions.change(Version::seal);
        self.versions.load().generation.pin(bound);
        let bytes = self.active_bytes.swap(0, Ordering::Relaxed);
        self.sealed.lock().push_back(Sealed { generation: kept.number, bytes, start, _kept: kept });
        self.sealed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
