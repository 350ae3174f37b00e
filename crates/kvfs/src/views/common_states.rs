//! Records the states that a clone and its parent have in common, and finds the newest of them.
//!
//! The first one is the state of which the clone was made. Whenever one side takes over the changes
//! of the other, the state of the other one is kept under a mark
//! ([`kvdb::Kvdb::keep_common_state`]), and both sides note the mark: the side that takes over in
//! the transaction that does so, the other one at once. A mark that both sides have is a common
//! state. A transaction that was never committed, or was undone, thus leaves no common state, and
//! neither does a change from which a rollback of either side went back: an earlier state counts
//! then, and later changes can be taken over again.
//!
//! The note is a tuple of `imap` under the number of the clone's `imap`, which no other dictionary
//! ever gets: `0 'b' number(4, BE)`, with the marks one after the other, the oldest first.

use kvdb::{Batch, DictionaryId, Lineage, View};

use crate::error::Result;
use crate::fs::Fs;
use crate::layout::{self, Layout};

/// The maximum number of marks in a note.
const MOST: usize = 4;

pub(super) fn marks_of(state: &View, layout: &Layout, clone: DictionaryId) -> Result<Vec<u64>> {
    let note = state.get(layout.imap, &layout::bases_key(clone))?;
    Ok(note.map(|note| layout::decode_marks(&note)).unwrap_or_default())
}

/// Returns the marks of the kept states that both sides have in common, the oldest first.
pub(super) fn common(lineage: &Lineage, notes: [Vec<u64>; 2]) -> Vec<u64> {
    let both = |mark: &u64| notes.iter().all(|note| note.contains(mark));
    lineage.kept.iter().copied().filter(both).collect()
}

/// Returns the marks of the notes after a new mark was added.
pub(super) fn with(common: &[u64], mark: u64) -> Vec<u64> {
    let older = &common[common.len().saturating_sub(MOST - 1)..];
    older.iter().copied().chain([mark]).collect()
}

pub(super) fn stage(layout: &Layout, clone: DictionaryId, marks: &[u64], batch: &mut Batch) {
    batch.put(layout.imap, layout::bases_key(clone), layout::encode_marks(marks));
}

/// Records marks in a branch itself.
pub(super) fn note(fs: &Fs, clone: DictionaryId, marks: &[u64]) -> Result<()> {
    fs.core.locks.retry(|| {
        let _call = fs.enter()?;
        let mut batch = Batch::new();
        stage(&fs.core.layout, clone, marks, &mut batch);
        fs.apply(batch)
    })
}
