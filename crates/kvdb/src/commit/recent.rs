//! The recent commits: what was committed since the oldest open transaction began, and lies in runs
//! already. Conflicts are found here and in the memtables, so that merges need to know nothing of
//! transactions: they may drop tombstones and forget numbers as if there were none. A run that is
//! kept here costs the zones that it alone still refers to, and no memory but for its root.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::atomic::{AtomicU64, Ordering};
use vt_tree::{Run, Seq};

use crate::dictionary::DictionaryId;
use crate::lock_order::{Mutex, MutexGuard, Rank};

/// A commit, or a number of them, as a run.
#[derive(Clone)]
pub(crate) struct RecentCommit {
    pub dict: DictionaryId,
    pub run: Arc<Run>,
    /// The newest number in it.
    pub newest: Seq,
    /// All of it was committed with that number; otherwise its tuples have their own.
    pub one_seq: bool,
}

#[derive(Default)]
struct Recent {
    /// From which commits on open transactions look for conflicts, and how many of them.
    since: BTreeMap<Seq, usize>,
    commits: Vec<RecentCommit>,
}

pub(crate) struct RecentCommits {
    recent: Mutex<Recent>,
}

impl Default for RecentCommits {
    fn default() -> RecentCommits {
        RecentCommits { recent: Mutex::new(Rank::Recent, Recent::default()) }
    }
}

/// While it lives, no transaction begins.
pub(crate) struct Remembered<'a> {
    _recent: MutexGuard<'a, Recent>,
}

impl RecentCommits {
    /// A transaction begins that looks for conflicts from what `begin` gives on. No commit is
    /// remembered in between.
    pub(crate) fn begin<T>(&self, begin: impl FnOnce() -> (Option<Seq>, T)) -> T {
        let mut recent = self.recent.lock();
        let (since, begun) = begin();
        if let Some(since) = since {
            *recent.since.entry(since).or_default() += 1;
        }
        begun
    }

    /// A transaction that looked for conflicts from `since` on has ended.
    pub(crate) fn end(&self, since: Seq) {
        let mut recent = self.recent.lock();
        if let Some(count) = recent.since.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                recent.since.remove(&since);
            }
        }
        let mut gone = Vec::new();
        match recent.since.first_key_value() {
            None => std::mem::swap(&mut recent.commits, &mut gone),
            Some((&oldest, _)) => {
                gone.extend(recent.commits.extract_if(.., |c| c.newest <= oldest))
            }
        }
        drop(recent);
        // Their zones are let go outside of the lock.
        drop(gone);
    }

    /// The number from which on the oldest transaction looks for conflicts, or what is visible when
    /// none does: then `false`.
    pub(crate) fn oldest(&self, visible: &AtomicU64) -> (Seq, bool) {
        let recent = self.recent.lock();
        let asked = recent.since.first_key_value().map(|(since, _)| *since);
        let visible = visible.load(Ordering::Acquire);
        (asked.unwrap_or(visible).min(visible), asked.is_some())
    }

    /// What was committed lies, or will lie, in these runs alone: kept for transactions that look
    /// for conflicts. For what is not visible yet, the guard must live until it is: a transaction
    /// that began in between would neither see it nor find a conflict with it.
    pub(crate) fn remember(
        &self,
        commits: impl IntoIterator<Item = RecentCommit>,
    ) -> Remembered<'_> {
        let mut recent = self.recent.lock();
        if !recent.since.is_empty() {
            recent.commits.extend(commits);
        }
        Remembered { _recent: recent }
    }

    /// What was to lie in these runs will not: their flush has failed, and comes again with others.
    pub(crate) fn forget<'a>(&self, runs: impl IntoIterator<Item = &'a Arc<Run>>) {
        let mut recent = self.recent.lock();
        let mut gone = Vec::new();
        for run in runs {
            gone.extend(recent.commits.extract_if(.., |c| Arc::ptr_eq(&c.run, run)));
        }
        drop(recent);
        // Their zones are let go outside of the lock.
        drop(gone);
    }

    /// What was committed to a dictionary after `since`.
    pub(crate) fn of(&self, dict: DictionaryId, since: Seq) -> Vec<RecentCommit> {
        let recent = self.recent.lock();
        let commits = recent.commits.iter();
        commits.filter(|c| c.dict == dict && c.newest > since).cloned().collect()
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.recent.lock().commits.len()
    }

    /// Whether a transaction could begin right now.
    #[cfg(test)]
    pub(crate) fn may_begin(&self) -> bool {
        self.recent.try_lock().is_some()
    }
}
