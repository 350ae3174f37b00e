//! What was committed lately, for those who follow the store: the keys of each commit, not their
//! values, which are read where they are.
//!
//! Nothing is kept until the first reader follows. From then on the newest commits are, up to so
//! many bytes: those of the main branch, in dictionaries that are not reserved, and in reserved
//! ones that were asked for. A reader that comes too late is told so, and so is one that followed
//! another opening of the store: the numbers of commits that a crash has undone are given again.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Condvar, Mutex};
use vt_tree::Seq;

use crate::dictionary::DictionaryId;
use crate::journal::record::{Op, Ops};
use crate::read::version::Version;

/// A place between two commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitPosition {
    /// The number of the newest commit before it.
    pub number: u64,
    /// Which following it belongs to: another one each time that the store is opened, or that
    /// something was changed of which there is no list.
    pub feed: u64,
}

/// A change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedKey {
    /// The key has a new value.
    Put(Bytes),
    /// The key is deleted, whether or not it was there.
    Delete(Bytes),
    /// All keys from the first up to the second are deleted.
    DeleteRange(Bytes, Bytes),
    /// More is changed than is listed. Of reserved dictionaries alone: elsewhere the list of all
    /// commits ends with such a one.
    Unlisted,
}

/// The keys that a commit has changed.
#[derive(Clone, Debug)]
pub struct CommittedKeys {
    /// Its number.
    pub number: u64,
    /// By dictionary, in the order in which they were changed.
    pub changes: Vec<(DictionaryId, CommittedKey)>,
}

/// The commits behind a position.
#[derive(Clone, Debug)]
pub struct RecentKeys {
    /// In their order.
    pub commits: Vec<CommittedKeys>,
    /// The position behind them.
    pub up_to: CommitPosition,
}

/// Memory that a commit takes in addition to its keys, and a change.
const OVERHEAD: usize = 64;

#[derive(Default)]
struct FeedState {
    /// Zero: nothing is kept.
    most: usize,
    feed: u64,
    /// Commits above this one are here.
    from: Seq,
    to: Seq,
    commits: VecDeque<(CommittedKeys, usize)>,
    bytes: usize,
}

impl FeedState {
    /// There is no list of what has changed up to here.
    fn lose(&mut self, to: Seq, feed: u64) {
        (self.from, self.to, self.feed) = (to, to, feed);
        self.commits.clear();
        self.bytes = 0;
    }

    fn position(&self) -> CommitPosition {
        CommitPosition { number: self.to, feed: self.feed }
    }
}

#[derive(Default)]
pub(crate) struct Feed {
    on: AtomicBool,
    kept: Mutex<FeedState>,
    grown: Condvar,
    /// Reserved dictionaries that are followed.
    also: Mutex<Vec<DictionaryId>>,
}

/// Whether a dictionary's changes are followed, reserved ones apart.
fn is_open(version: &Version, dict: DictionaryId) -> bool {
    let info = version.trees.get(&dict).map(|tree| tree.info());
    info.is_some_and(|info| !info.options.reserved && info.branch.is_empty())
}

impl Feed {
    /// Keeps commits from here on. Called where none comes in between: `visible` is the newest one.
    /// `reserved`: dictionaries that are followed besides those that are not reserved.
    pub(crate) fn follow(
        &self,
        most: usize,
        reserved: &[DictionaryId],
        visible: Seq,
        feed: u64,
    ) -> CommitPosition {
        let mut also = self.also.lock();
        let mut kept = self.kept.lock();
        let new: Vec<_> = reserved.iter().filter(|dict| !also.contains(dict)).copied().collect();
        if kept.most == 0 || !new.is_empty() {
            kept.lose(visible, feed);
        }
        also.extend(new);
        drop(also);
        kept.most = kept.most.max(most.max(1));
        self.on.store(true, Ordering::Release);
        kept.position()
    }

    /// Whether commits are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// The changes of a commit whose last number is `to`, and which readers see. All calls come
    /// under the pipeline's lock, in the order of the commits.
    pub(crate) fn note(&self, version: &Version, changes: &Ops, to: Seq) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut found = Vec::new();
        for some in changes.chunk_by(|a, b| a.0 == b.0) {
            if self.is_followed(version, some[0].0) {
                found.extend(some.iter().map(|(dict, op)| (*dict, touched(op))));
            }
        }
        self.keep(found, to);
    }

    /// A put by itself.
    pub(crate) fn note_put(&self, version: &Version, dict: DictionaryId, key: &[u8], to: Seq) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let put = || (dict, CommittedKey::Put(Bytes::copy_from_slice(key)));
        self.keep(self.is_followed(version, dict).then(put).into_iter().collect(), to);
    }

    /// The dictionaries that are followed, of a version; empty if nothing is kept.
    pub(crate) fn followed(&self, version: &Version) -> Vec<DictionaryId> {
        match self.is_on() {
            true => {
                let all = version.trees.keys().copied();
                all.filter(|dict| self.is_followed(version, *dict)).collect()
            }
            false => Vec::new(),
        }
    }

    /// Commits up to `to` that were made elsewhere, as one. `None`: there is no list.
    pub(crate) fn note_published(
        &self,
        changes: Option<Vec<(DictionaryId, CommittedKey)>>,
        to: Seq,
        feed: impl FnOnce() -> u64,
    ) {
        if !self.is_on() {
            return;
        }
        match changes {
            Some(changes) => self.keep(changes, to),
            None => {
                self.kept.lock().lose(to, feed());
                self.grown.notify_all();
            }
        }
    }

    /// A commit of which there is no list: of these dictionaries, or of any.
    pub(crate) fn note_unlisted(
        &self,
        version: &Version,
        dicts: Option<&[DictionaryId]>,
        to: Seq,
        feed: impl FnOnce() -> u64,
    ) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        match dicts {
            Some(dicts) if !dicts.iter().any(|dict| is_open(version, *dict)) => {
                let also = self.also.lock().clone();
                let followed = dicts.iter().filter(|dict| also.contains(dict));
                self.keep(followed.map(|dict| (*dict, CommittedKey::Unlisted)).collect(), to);
            }
            _ => {
                self.kept.lock().lose(to, feed());
                self.grown.notify_all();
            }
        }
    }

    /// The store is closed: nothing is kept any more, and who waits is told so.
    pub(crate) fn close(&self) {
        if self.on.load(Ordering::Acquire) {
            let mut kept = self.kept.lock();
            let (to, feed) = (kept.to, kept.feed.wrapping_add(1));
            kept.lose(to, feed);
            kept.most = 0;
            self.grown.notify_all();
        }
    }

    fn is_followed(&self, version: &Version, dict: DictionaryId) -> bool {
        is_open(version, dict) || self.also.lock().contains(&dict)
    }

    fn keep(&self, changes: Vec<(DictionaryId, CommittedKey)>, to: Seq) {
        let bytes =
            OVERHEAD + changes.iter().map(|(_, change)| OVERHEAD + len(change)).sum::<usize>();
        let mut kept = self.kept.lock();
        kept.to = to;
        if changes.is_empty() {
            return;
        }
        kept.bytes += bytes;
        kept.commits.push_back((CommittedKeys { number: to, changes }, bytes));
        while kept.bytes > kept.most {
            let Some((oldest, bytes)) = kept.commits.pop_front() else { break };
            kept.bytes -= bytes;
            kept.from = oldest.number;
        }
        self.grown.notify_all();
    }

    /// The commits behind a position, until they have `most` changes; `None`: they are not here.
    pub(crate) fn since(&self, since: CommitPosition, most: usize) -> Option<RecentKeys> {
        let kept = self.kept.lock();
        let reaches = since.feed == kept.feed && (kept.from..=kept.to).contains(&since.number);
        if kept.most == 0 || !reaches {
            return None;
        }
        let first = kept.commits.partition_point(|(commit, _)| commit.number <= since.number);
        let (mut commits, mut changes) = (Vec::new(), 0);
        for (commit, _) in kept.commits.range(first..) {
            if changes >= most.max(1) {
                let up_to = commits.last().map_or(since.number, |last: &CommittedKeys| last.number);
                return Some(RecentKeys {
                    commits,
                    up_to: CommitPosition { number: up_to, ..since },
                });
            }
            changes += commit.changes.len();
            commits.push(commit.clone());
        }
        Some(RecentKeys { commits, up_to: kept.position() })
    }

    /// Waits until there are changes behind the position, or it cannot be followed from any more.
    pub(crate) fn wait(&self, since: CommitPosition, at_most: Duration) -> bool {
        let mut kept = self.kept.lock();
        let there = |kept: &FeedState| {
            since.feed != kept.feed
                || since.number < kept.from
                || kept.most == 0
                || kept.commits.back().is_some_and(|(commit, _)| commit.number > since.number)
        };
        if !there(&kept) {
            self.grown.wait_for(&mut kept, at_most);
        }
        there(&kept)
    }
}

/// A copy of its keys, which may lie in a buffer with a large value.
fn touched(op: &Op) -> CommittedKey {
    let copy = |key: &Bytes| Bytes::copy_from_slice(key);
    match op {
        Op::Delete(key) => CommittedKey::Delete(copy(key)),
        Op::DeleteRange(start, end) => CommittedKey::DeleteRange(copy(start), copy(end)),
        put => CommittedKey::Put(copy(put.key())),
    }
}

fn len(change: &CommittedKey) -> usize {
    match change {
        CommittedKey::Put(key) | CommittedKey::Delete(key) => key.len(),
        CommittedKey::DeleteRange(start, end) => start.len() + end.len(),
        CommittedKey::Unlisted => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::Kvdb;

    #[test]
    fn who_waits_for_commits_is_woken_when_the_store_is_closed() {
        const LONG: Duration = Duration::from_secs(600);
        let db = Kvdb::in_memory();
        db.open_dictionary("d").expect("made");
        let start = db.follow_commits(1 << 20);
        let started = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| db.wait_for_commits(start, LONG));
            while !waits.is_finished() && db.commits_since(start, 1).is_some() {
                std::thread::yield_now();
                db.close().expect("closed");
            }
            assert!(waits.join().expect("it ends"), "nothing is kept any more");
        });
        assert!(db.wait_for_commits(start, LONG), "nor later");
        assert!(db.commits_since(start, 1).is_none());
        assert!(started.elapsed() < LONG);
    }
}
