//! The kernel's request that a thread answers. Commits note the requests that they complete.

use std::cell::Cell;

use kvdb::{Batch, Note};

use crate::attr::Ino;

thread_local! {
    static REQUEST: Cell<Option<Note>> = const { Cell::new(None) };
}

/// Answers a request: the commit that completes it on the mainline carries this note, with the
/// number of the inode as its value. A request that changes nothing, or fails, leaves no note.
pub fn with_note<T>(note: Note, answer: impl FnOnce() -> T) -> T {
    struct Restored(Option<Note>);
    impl Drop for Restored {
        fn drop(&mut self) {
            REQUEST.set(self.0);
        }
    }
    let _before = Restored(REQUEST.replace(Some(note)));
    answer()
}

/// Makes the commit of this batch complete the request of this thread, if it has one.
pub(crate) fn completes(batch: &mut Batch, ino: Ino) {
    if let Some(note) = REQUEST.get() {
        batch.note(Note { value: ino, ..note });
    }
}
