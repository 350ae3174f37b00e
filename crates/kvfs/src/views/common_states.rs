//! Which states a clone and its parent have in common, and the newest of them.
//!
//! The first one is what the clone was made of. Whenever one side takes over what the other has
//! changed, the state of that other one is kept under a mark ([`kvdb::Kvdb::keep_common_state`]),
//! and both get a note of it: the side that takes over in the transaction that does so, the other
//! one at once. A mark that both have is a state in common. So one that was never committed, or was
//! undone, is none, and neither is one that a rollback of either side has left behind: an earlier
//! one counts then, and what came after it can be taken over again.
//!
//! The note is a tuple of `imap` under the number that the clone's `imap` has, which no other
//! dictionary ever gets: `0 'b' number(4, BE)`, a mark after the other, the oldest first.

use kvdb::{Batch, DictionaryId, Lineage, View};

use crate::error::Result;
use crate::fs::Fs;
use crate::layout::{self, Layout};

/// Marks that a note has at most.
const MOST: usize = 4;

pub(super) fn marks_of(state: &View, layout: &Layout, clone: DictionaryId) -> Result<Vec<u64>> {
    let note = state.get(layout.imap, &layout::bases_key(clone))?;
    Ok(note.map(|note| layout::decode_marks(&note)).unwrap_or_default())
}

/// The marks of states that both have in common and that are kept, the oldest first.
pub(super) fn common(lineage: &Lineage, notes: [Vec<u64>; 2]) -> Vec<u64> {
    let both = |mark: &u64| notes.iter().all(|note| note.contains(mark));
    lineage.kept.iter().copied().filter(both).collect()
}

/// The marks that notes have once there is a new one.
pub(super) fn with(common: &[u64], mark: u64) -> Vec<u64> {
    let older = &common[common.len().saturating_sub(MOST - 1)..];
    older.iter().copied().chain([mark]).collect()
}

pub(super) fn stage(layout: &Layout, clone: DictionaryId, marks: &[u64], batch: &mut Batch) {
    batch.put(layout.imap, layout::bases_key(clone), layout::encode_marks(marks));
}

/// Notes marks in a branch itself.
pub(super) fn note(fs: &Fs, clone: DictionaryId, marks: &[u64]) -> Result<()> {
    fs.retry_on_lock(|| {
        let _call = fs.enter()?;
        let mut batch = Batch::new();
        stage(&fs.core.layout, clone, marks, &mut batch);
        fs.apply(batch)
    })
}
