//! A commit that is made only if the data that it was computed from is unchanged: for a small
//! change that reads before it writes, where a transaction would cost more than the change.
//!
//! While no memtables have been flushed and no runs installed, every commit after the state that
//! was read lies in memtables. So the check under the pipeline's lock looks up a few keys there.
//! Otherwise the condition counts as broken, and the caller reads again.

use std::ops::Range;
use std::sync::Arc;

use env::sync::atomic::Ordering;
use vt_tree::{Lookup, Memtable, Seq, Source};

use super::locking::{lock_owner, range_of};
use super::{CommitEnv, Committer, Outcome};
use crate::commit::batch::{Batch, Durability};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::{Op, Ops};
use crate::locks::{KeyRangeRef, RangeEnd};
use crate::read::view::View;
use crate::version::Version;

/// The maximum number of items of one range that are checked under the pipeline's lock. A range
/// with more counts as changed.
const LOOKED_AT: usize = 256;

/// The keys and ranges that a change has read and does not write; see
/// [`crate::Kvdb::commit_if_unchanged`].
#[derive(Clone, Debug, Default)]
pub struct Reads {
    all: Vec<(DictionaryId, Read)>,
    /// The keys of all reads, one after the other: a change reads several, and is small.
    keys: Vec<u8>,
}

/// A read, whose keys are in these ranges of [`Reads::keys`].
#[derive(Clone, Debug)]
enum Read {
    Key(Range<usize>),
    Between(Range<usize>, Range<usize>),
    From(Range<usize>),
}

impl Reads {
    /// Adds a key, whether or not it exists.
    pub fn key(&mut self, dict: DictionaryId, key: &[u8]) {
        let key = self.keep(key);
        self.all.push((dict, Read::Key(key)));
    }

    /// Adds the range `[start, end)`; an empty `end` is the end of the dictionary.
    pub fn range(&mut self, dict: DictionaryId, start: &[u8], end: &[u8]) {
        let start = self.keep(start);
        let range = match end {
            [] => Read::From(start),
            end => Read::Between(start, self.keep(end)),
        };
        self.all.push((dict, range));
    }

    fn keep(&mut self, key: &[u8]) -> Range<usize> {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        start..self.keys.len()
    }

    fn kept(&self, key: &Range<usize>) -> &[u8] {
        &self.keys[key.clone()]
    }

    fn range_of(&self, read: &Read) -> KeyRangeRef<'_> {
        match read {
            Read::Key(key) => KeyRangeRef::key(self.kept(key)),
            Read::Between(start, end) => KeyRangeRef::between(self.kept(start), self.kept(end)),
            Read::From(start) => KeyRangeRef::starting_at(self.kept(start)),
        }
    }
}

/// A state of the store, and the reads that must be unchanged since.
struct Condition {
    at: Seq,
    /// The [`Version::installed`] of its version. The version itself is not held, since a commit
    /// may wait for space that an old version keeps. `None` means that the condition never holds.
    installed: Option<u64>,
    reads: Reads,
}

impl Condition {
    fn of(state: &View, reads: Reads) -> Condition {
        let committed = state.write_set.is_none() && state.around.is_none();
        let installed = committed.then_some(state.version.installed);
        Condition { at: state.at, installed, reads }
    }

    /// Returns whether the condition holds for a commit of `changes` now; `newest` is the number of
    /// the newest commit.
    fn holds(&self, newest: Seq, version: &Version, changes: &Ops) -> Result<bool> {
        if self.installed != Some(version.installed) {
            return Ok(false);
        }
        if newest <= self.at {
            return Ok(true);
        }
        let read = self.reads.all.iter().map(|(dict, read)| (*dict, self.reads.range_of(read)));
        let commutes = |op: &Op| matches!(op, Op::Update(_, update) if update.commutes());
        let written = changes.iter().filter(|(_, op)| !commutes(op));
        let written = written.map(|(dict, op)| (*dict, range_of(op)));
        for (dict, range) in read.chain(written) {
            let layers = version.trees.get(&dict).into_iter().flat_map(|tree| &tree.layers);
            for layer in layers.take_while(|layer| layer.memtable.max_seq() > self.at) {
                if is_changed(&layer.memtable, range, self.at)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Returns whether a key of `range` was changed after `since`, or may have been.
fn is_changed(memtable: &Arc<Memtable>, range: KeyRangeRef<'_>, since: Seq) -> Result<bool> {
    if range.end == RangeEnd::Start {
        return Ok(match memtable.get(range.start, Seq::MAX) {
            Lookup::Absent => false,
            Lookup::Found(seq, _) | Lookup::Deleted(seq) | Lookup::Updated { seq, .. } => {
                seq > since
            }
        });
    }
    let mut items = memtable.cursor(Seq::MAX);
    items.seek(range.start)?;
    for _ in 0..LOOKED_AT {
        match items.item().filter(|item| range.ends_behind(item.key)) {
            None => return Ok(false),
            Some(item) if item.seq > since => return Ok(true),
            Some(_) => items.next()?,
        }
    }
    Ok(true)
}

impl Committer {
    /// Commits a batch if nothing that it changes, and nothing in `reads`, was changed after
    /// `state`. Returns `false` if something was, or may have been.
    pub(crate) fn commit_if_unchanged(
        &self,
        services: &impl CommitEnv,
        batch: Batch,
        state: View,
        reads: Reads,
    ) -> Result<bool> {
        self.engine.health.writable()?;
        let condition = Condition::of(&state, reads);
        drop(state);
        let valid = self.validate(&self.engine.versions.load(), batch)?;
        if valid.changes.is_empty() {
            // The batch only asks whether the reads are still unchanged.
            if condition.reads.all.is_empty() {
                return Ok(true);
            }
            let newest = self.engine.versions.visible.load(Ordering::Acquire);
            return condition.holds(newest, &self.engine.versions.load(), &valid.changes);
        }
        self.fold_updates(services, &valid.changes)?;
        let still = |newest: Seq, changes: &Ops| {
            condition.holds(newest, &self.engine.versions.load(), changes)
        };
        match self.commit_changes(services, valid, Durability::Buffered, lock_owner(), still)? {
            Outcome::Stale => Ok(false),
            Outcome::Applied(applied) => {
                self.finish(services, Durability::Buffered, applied).map(|()| true)
            }
        }
    }
}
