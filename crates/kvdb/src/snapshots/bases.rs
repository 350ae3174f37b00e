//! States that a clone and its parent have in common, with which both are compared when one takes
//! over the changes of the other. They are internal snapshots, which are not listed, cannot be
//! dropped by users, and end with the clone.
//!
//! The first of them is the snapshot that the clone was made of. Nothing is written for it: the
//! clone already names it, and if the user drops it before the clone, it gets an internal name in
//! one edit. So a clone always has it, at whatever moment the power fails. The others are made when
//! one side has taken over the state of the other.

use env::sync::atomic::Ordering;
use std::sync::Arc;

use super::{Snapshotter, is_own};
use crate::commit::batch::Durability;
use crate::error::{Error, Result};
use crate::manifest::{Edit, ManifestState};
use crate::read::view::View;
use crate::version::snapshot_set::Snapshot;
use crate::version::version_set::VersionEdit;

/// Name prefix of a snapshot that its user has dropped while it has clones.
const ORIGIN: &str = ".origin-";
/// Name prefix of a state that a clone was merged or rebased at.
const BASE: &str = ".base-";

/// The states that a clone and its parent branch have in common.
#[derive(Clone)]
pub struct Lineage {
    /// The branch that the clone was made of; `""` is the main one.
    pub parent: String,
    /// The state that it was made of.
    pub origin: View,
    /// The number of the newest commit in that state.
    pub made_at: u64,
    /// The marks of the other common states that are kept, the oldest first; see
    /// [`crate::Kvdb::keep_common_state`].
    pub kept: Vec<u64>,
    /// The number of the newest commit when each of them was kept.
    pub kept_at: Vec<u64>,
}

/// Returns the name under which the state of a dropped snapshot is kept. Returns `None` if it
/// already has an internal name.
fn origin_name(of: &Snapshot) -> Option<String> {
    let id: String = of.label.id.iter().map(|byte| format!("{byte:02x}")).collect();
    (!is_own(&of.label.name)).then(|| format!("{ORIGIN}{id}-{}", of.label.name))
}

/// Returns the name that the user has given to the snapshot of a branch's origin.
pub(crate) fn shown_origin(name: &str) -> &str {
    match name.strip_prefix(ORIGIN).and_then(|rest| rest.split_once('-')) {
        Some((_, shown)) => shown,
        None => name,
    }
}

fn base_name(clone: &str, mark: u64) -> String {
    format!("{BASE}{clone}/{mark:016x}")
}

fn mark_of(clone: &str, name: &str) -> Option<u64> {
    let mark = name.strip_prefix(BASE)?.strip_prefix(clone)?.strip_prefix('/')?;
    (mark.len() == 16).then(|| u64::from_str_radix(mark, 16).ok()).flatten()
}

/// Returns the edit that drops a snapshot. A snapshot that has clones is renamed instead.
pub(super) fn drop_of(state: &ManifestState, gone: &Snapshot) -> Edit {
    let name = gone.label.name.clone();
    match origin_name(gone).filter(|_| state.clones_of(&name) > 0) {
        Some(to) => Edit::RenameSnapshot { from: name, to },
        None => Edit::DropSnapshot(name),
    }
}

impl Snapshotter {
    /// Returns the edits that drop common states which are kept only for this clone. They must
    /// precede the edit that ends the clone.
    pub(super) fn drops_with(&self, state: &ManifestState, clone: &str) -> Vec<Edit> {
        let bases = self.kept_of(clone).into_iter().map(|s| s.label.name.clone());
        let origin = state.branches.get(clone).filter(|of| {
            of.starts_with(ORIGIN)
                && state.clones_of(of) == 1
                && state.snapshots.contains_key(&***of)
        });
        bases.chain(origin.map(|of| of.to_string())).map(Edit::DropSnapshot).collect()
    }

    /// Returns the common states of a clone.
    pub(crate) fn lineage(&self, clone: &str) -> Result<Lineage> {
        let version = self.engine.versions.load_full();
        let of = version.branches.get(clone).ok_or_else(|| Error::NoBranch(clone.into()))?;
        let unknown = |why: &str| Error::Invalid(format!("{clone} {why}"));
        let not_cloned = || unknown("was not made of a state that this store has");
        let origin = self.engine.snapshots.get(of).ok_or_else(not_cloned)?;
        let parent = origin.label.branch.clone();
        if !version.has_branch(&parent) {
            return Err(unknown(&format!("was made of clone {parent}, which is gone")));
        }
        // A branch that was dropped and created again has other dictionaries; a branch that was
        // rolled back has the same ones.
        let (then, now) = (origin.version(), version.entries.of_branch(&parent));
        if !then.trees.is_empty() && !then.trees.keys().any(|dict| now.get(dict).is_some()) {
            return Err(unknown("was made of a branch in whose place is another one"));
        }
        let kept = self.kept_of(clone);
        let marks = kept.iter().filter_map(|s| Some((mark_of(clone, &s.label.name)?, s.label.seq)));
        let (kept, kept_at) = marks.unzip();
        Ok(Lineage { parent, made_at: origin.label.seq, origin: self.open(&origin), kept, kept_at })
    }

    /// Returns the common states of a clone other than the first, the oldest first.
    pub(super) fn kept_of(&self, clone: &str) -> Vec<Arc<Snapshot>> {
        let all = self.engine.snapshots.named(&format!("{BASE}{clone}/"));
        let mut kept: Vec<_> =
            all.into_iter().filter(|s| mark_of(clone, &s.label.name).is_some()).collect();
        kept.sort_by_key(|s| (s.label.created, s.label.seq));
        kept
    }

    pub(crate) fn keep_common_state(&self, clone: &str, of: &str, mark: u64) -> Result<View> {
        if clone.is_empty() || !self.engine.versions.load().has_branch(clone) {
            return Err(Error::NoBranch(clone.into()));
        }
        let name = base_name(clone, mark);
        self.snapshot(of, &name, Durability::Buffered)?;
        self.open_snapshot(&name)
    }

    pub(crate) fn common_state(&self, clone: &str, mark: u64) -> Result<View> {
        self.open_snapshot(&base_name(clone, mark))
    }

    pub(crate) fn drop_common_states(&self, clone: &str, but: &[u64]) -> Result<()> {
        self.engine.health.writable()?;
        let goes = |s: &Arc<Snapshot>| {
            mark_of(clone, &s.label.name).is_some_and(|mark| !but.contains(&mark))
        };
        if !self.kept_of(clone).iter().any(goes) {
            return Ok(());
        }
        self.commits.flush_before_edit(&*self.admission)?;
        let naming = self.settled()?;
        let gone: Vec<_> = self.kept_of(clone).into_iter().filter(goes).collect();
        let drops = gone.iter().map(|s| Edit::DropSnapshot(s.label.name.clone()));
        self.commits.install(|_| VersionEdit::of(drops))?;
        drop(naming);
        // Release their runs outside of all locks.
        drop(gone);
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        Ok(())
    }
}
