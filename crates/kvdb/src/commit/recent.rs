//! The recent commits: those since the oldest open transaction began that lie in runs already.
//! Transactions look for conflicts here and in the memtables, so merges need to know nothing about
//! transactions: they may drop tombstones and forget commit numbers as if there were none. A run
//! that is kept here costs the zones that only it still refers to, and the memory of its root.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::atomic::{AtomicU64, Ordering};
use vt_tree::{Run, Seq};

use crate::dictionary::DictionaryId;
use crate::lock_order::{Mutex, MutexGuard, Rank};

/// One commit, or several, as a run.
#[derive(Clone)]
pub(crate) struct RecentCommit {
    pub dict: DictionaryId,
    pub run: Arc<Run>,
    /// The newest commit number in the run.
    pub newest: Seq,
    /// `true` if all of it was committed with that number; otherwise its tuples have their own
    /// numbers.
    pub one_seq: bool,
}

#[derive(Default)]
struct Recent {
    /// The numbers from which on open transactions look for conflicts, each with the number of such
    /// transactions.
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

/// Prevents transactions from beginning while it lives.
pub(crate) struct Remembered<'a> {
    _recent: MutexGuard<'a, Recent>,
}

impl RecentCommits {
    /// Begins a transaction that looks for conflicts from the number that `begin` returns. No
    /// commit is remembered during the call.
    pub(crate) fn begin<T>(&self, begin: impl FnOnce() -> (Option<Seq>, T)) -> T {
        let mut recent = self.recent.lock();
        let (since, begun) = begin();
        if let Some(since) = since {
            *recent.since.entry(since).or_default() += 1;
        }
        begun
    }

    /// Notes the end of a transaction that looked for conflicts from `since` on.
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
        // Release the zones outside of the lock.
        drop(gone);
    }

    /// Returns the number from which on the oldest transaction looks for conflicts, and `true`. If
    /// no transaction does, returns the visible number and `false`.
    pub(crate) fn oldest(&self, visible: &AtomicU64) -> (Seq, bool) {
        let recent = self.recent.lock();
        let asked = recent.since.first_key_value().map(|(since, _)| *since);
        let visible = visible.load(Ordering::Acquire);
        (asked.unwrap_or(visible).min(visible), asked.is_some())
    }

    /// Keeps runs that are, or will be, the only place of these commits, for transactions that look
    /// for conflicts. If the commits are not visible yet, the guard must live until they are: a
    /// transaction that began before that would neither see them nor find a conflict with them.
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

    /// Forgets runs whose flush has failed: their commits are flushed again, into other runs.
    pub(crate) fn forget<'a>(&self, runs: impl IntoIterator<Item = &'a Arc<Run>>) {
        let mut recent = self.recent.lock();
        let mut gone = Vec::new();
        for run in runs {
            gone.extend(recent.commits.extract_if(.., |c| Arc::ptr_eq(&c.run, run)));
        }
        drop(recent);
        // Release the zones outside of the lock.
        drop(gone);
    }

    /// Returns the remembered commits to a dictionary after `since`.
    pub(crate) fn of(&self, dict: DictionaryId, since: Seq) -> Vec<RecentCommit> {
        let recent = self.recent.lock();
        let commits = recent.commits.iter();
        commits.filter(|c| c.dict == dict && c.newest > since).cloned().collect()
    }

    /// Returns the number of remembered commits.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.recent.lock().commits.len()
    }

    /// Returns whether a transaction could begin right now.
    #[cfg(test)]
    pub(crate) fn may_begin(&self) -> bool {
        self.recent.try_lock().is_some()
    }
}
