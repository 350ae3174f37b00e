//! Bounds the updates of one key that collect in a memtable without its value. Each further update
//! is composed with those before it, and a reader applies all of them, so both would take time in
//! proportion to their number.

use std::sync::Arc;

use vt_tree::{Lookup, Memtable, Seq, Value};
use zones::ZonePin;

use super::locking::lock_owner;
use super::{CommitEnv, Committer, Outcome, SpaceClaim, Valid};
use crate::commit::batch::Durability;
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};

/// Bytes of updates that any key may have.
pub(crate) const SHORT: usize = 4 << 10;
/// A long value may have updates of its length divided by `PART`, up to `LONG` bytes.
const PART: usize = 64;
const LONG: usize = 64 << 10;

/// Returns whether a value of `len` bytes should be written with `updates` bytes of updates
/// applied.
pub(crate) fn are_long(updates: usize, len: usize) -> bool {
    updates > (len / PART).clamp(SHORT, LONG)
}

impl Committer {
    /// Reads and puts the value of each key in `changes` that is updated again and has many updates
    /// already, in a commit of its own. Must be called before `changes` are committed. If another
    /// commit intervenes, the key is left with one update more.
    pub(super) fn fold_updates(&self, services: &impl CommitEnv, changes: &Ops) -> Result<()> {
        for (dict, op) in changes {
            let Op::Update(key, _) = op else { continue };
            let newest = || -> Option<Arc<Memtable>> {
                let version = self.engine.versions.load();
                Some(version.active_of(*dict)?.memtable.clone())
            };
            let updates = |memtable: &Memtable, at| match memtable.get(key, at) {
                Lookup::Updated { seq, update, .. } => Some((seq, update.bytes().len())),
                _ => None,
            };
            let Some(memtable) = newest() else { continue };
            if updates(&memtable, Seq::MAX).is_none_or(|(_, len)| len <= SHORT) {
                continue;
            }
            let view = self.engine.versions.view();
            let Some((seq, len)) = updates(&memtable, view.at) else { continue };
            let value = match view.get(*dict, key)? {
                Some(value) if are_long(len, value.len()) => value,
                _ => continue,
            };
            // The caller must hold no view: the commit may have to wait for space that a view pins.
            drop(view);
            let put = Valid {
                changes: vec![(*dict, Op::Put(key.clone(), Value::Inline(value)))],
                claim: SpaceClaim::default(),
                pin: ZonePin::default(),
                note: None,
                known: Vec::new(),
            };
            let still = |_: Seq, _: &Ops| {
                let same = newest().is_some_and(|now| Arc::ptr_eq(&now, &memtable));
                Ok(same && updates(&memtable, Seq::MAX).is_some_and(|(now, _)| now == seq))
            };
            match self.commit_changes(services, put, Durability::Buffered, lock_owner(), still) {
                Ok(Outcome::Applied(applied)) => services.after_commit(applied)?,
                // The update itself is shorter, and may find space.
                Ok(Outcome::Stale) | Err(Error::NoSpace) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
