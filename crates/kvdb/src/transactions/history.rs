//! What was committed since the oldest open transaction began, and lies in runs already. Conflicts
//! are found here and in the memtables, so that merges need to know nothing of transactions: they
//! may drop tombstones and forget numbers as if there were none. A run that is kept here costs the
//! zones that it alone still refers to, and no memory but for its root.

use std::sync::Arc;

use env::sync::Mutex;
use vt_tree::{Run, Seq};

use crate::dictionary::DictionaryId;

#[derive(Clone)]
pub(crate) struct Past {
    pub dict: DictionaryId,
    pub run: Arc<Run>,
    /// The newest number in it.
    pub newest: Seq,
    /// All of it was committed with that number; otherwise its tuples have their own.
    pub at_once: bool,
}

#[derive(Default)]
pub(crate) struct History {
    past: Mutex<Vec<Past>>,
}

impl History {
    pub(super) fn add(&self, past: impl IntoIterator<Item = Past>) {
        self.past.lock().extend(past);
    }

    /// What was committed to a dictionary after `since`.
    pub(super) fn of(&self, dict: DictionaryId, since: Seq) -> Vec<Past> {
        self.past.lock().iter().filter(|p| p.dict == dict && p.newest > since).cloned().collect()
    }

    /// Nobody asks for numbers up to `oldest` any more; `None`: nobody asks at all.
    pub(super) fn forget(&self, oldest: Option<Seq>) {
        let mut gone = Vec::new();
        let mut past = self.past.lock();
        match oldest {
            None => std::mem::swap(&mut *past, &mut gone),
            Some(oldest) => gone.extend(past.extract_if(.., |p| p.newest <= oldest)),
        }
        drop(past);
        // Their zones are let go outside of the lock.
        drop(gone);
    }
}
