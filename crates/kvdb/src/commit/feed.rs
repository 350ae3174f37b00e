//! The feed of recent commits, for callers that follow the store. It has the keys of each commit,
//! not their values, which the caller reads from the store.
//!
//! Nothing is kept until the first reader follows. Each followed branch (the store's own, and
//! clones) has a list, which begins when the branch is first followed. The list has the newest
//! commits of that branch to dictionaries that are not reserved, and to those reserved ones that
//! were asked for. All lists share one bound in bytes, and the oldest commit of any of them is
//! evicted first. A reader that is too late gets an error, and so does one that followed another
//! opening of the store: after a crash, the numbers of lost commits are used again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Condvar, Mutex};
use vt_tree::Seq;

use crate::commit::author::author;
use crate::dictionary::DictionaryId;
use crate::journal::record::{Op, Ops};
use crate::version::Version;

/// A position between two commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitPosition {
    /// The number of the newest commit before it.
    pub number: u64,
    /// The list that it belongs to. The number changes each time that the store is opened, and
    /// whenever a change happens whose keys are not listed.
    pub feed: u64,
}

/// A change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedKey {
    /// The key has a new value.
    Put(Bytes),
    /// The key is deleted, whether or not it existed.
    Delete(Bytes),
    /// All keys from the first up to the second are deleted.
    DeleteRange(Bytes, Bytes),
    /// More keys have changed than are listed. This occurs for reserved dictionaries only: in
    /// others such a commit ends the list.
    Unlisted,
}

/// The keys that a commit has changed.
#[derive(Clone, Debug)]
pub struct CommittedKeys {
    /// The number of the commit.
    pub number: u64,
    /// The author that was given for it. See [`with_author`](crate::with_author).
    pub author: Option<u64>,
    /// The changes, each with its dictionary, in the order in which they were made.
    pub changes: Vec<(DictionaryId, CommittedKey)>,
}

/// The commits after a position.
#[derive(Clone, Debug)]
pub struct RecentKeys {
    /// The commits in their order.
    pub commits: Vec<CommittedKeys>,
    /// The position after the last of them.
    pub up_to: CommitPosition,
}

/// The memory overhead of a commit, and of each change in it.
const OVERHEAD: usize = 64;

/// The list of a followed branch.
struct List {
    /// The list has the commits above this number.
    from: Seq,
    /// The newest commit that the list has had.
    newest: Seq,
    /// The reserved dictionaries that are followed.
    also: BTreeSet<DictionaryId>,
}

/// A commit to one branch. Its list may have ended.
struct Kept {
    feed: u64,
    keys: CommittedKeys,
    bytes: usize,
}

#[derive(Default)]
struct FeedState {
    /// The bound of `bytes`, or 0 if nothing is kept.
    most: usize,
    /// The newest commit of the store.
    to: Seq,
    commits: VecDeque<Kept>,
    bytes: usize,
    /// The number of each branch's list.
    branches: HashMap<String, u64>,
    lists: BTreeMap<u64, List>,
}

impl FeedState {
    /// Returns the list for the changes of a dictionary of this version.
    fn list_of(&self, version: &Version, dict: DictionaryId) -> Option<u64> {
        let tree = version.get(dict)?;
        let info = tree.info();
        let feed = *self.branches.get(&*info.branch)?;
        let list = self.lists.get(&feed)?;
        (!info.options.reserved || list.also.contains(&dict)).then_some(feed)
    }

    fn keep(&mut self, feed: u64, changes: Vec<(DictionaryId, CommittedKey)>, to: Seq) {
        let Some(list) = self.lists.get_mut(&feed).filter(|_| !changes.is_empty()) else { return };
        list.newest = to;
        let bytes =
            OVERHEAD + changes.iter().map(|(_, change)| OVERHEAD + len(change)).sum::<usize>();
        self.bytes += bytes;
        // The thread that commits notes the commit.
        let keys = CommittedKeys { number: to, author: author(), changes };
        self.commits.push_back(Kept { feed, keys, bytes });
        while self.bytes > self.most {
            let Some(oldest) = self.commits.pop_front() else { break };
            self.bytes -= oldest.bytes;
            if let Some(list) = self.lists.get_mut(&oldest.feed) {
                list.from = oldest.keys.number;
            }
        }
    }

    /// Ends the list of a branch, since the keys of a change are not known: its readers start over.
    fn end(&mut self, branch: &str) {
        let ended = self.branches.remove(branch).and_then(|feed| self.lists.remove(&feed));
        if ended.is_some() && self.lists.is_empty() {
            self.commits.clear();
            self.bytes = 0;
        }
    }

    fn end_all(&mut self) {
        self.branches.clear();
        self.lists.clear();
        self.commits.clear();
        self.bytes = 0;
    }

    /// Adds the changes of one commit to the lists of their branches.
    fn keep_each(
        &mut self,
        version: &Version,
        changes: impl Iterator<Item = (DictionaryId, CommittedKey)>,
        to: Seq,
    ) {
        let mut found: Vec<(u64, Vec<(DictionaryId, CommittedKey)>)> = Vec::new();
        let mut last = None;
        for (dict, change) in changes {
            let feed = match last {
                Some((of, feed)) if of == dict => feed,
                _ => self.list_of(version, dict),
            };
            last = Some((dict, feed));
            let Some(feed) = feed else { continue };
            match found.iter_mut().find(|(of, _)| *of == feed) {
                Some((_, changes)) => changes.push((dict, change)),
                None => found.push((feed, vec![(dict, change)])),
            }
        }
        self.to = to;
        for (feed, changes) in found {
            self.keep(feed, changes, to);
        }
    }
}

#[derive(Default)]
pub(crate) struct Feed {
    on: AtomicBool,
    kept: Mutex<FeedState>,
    grown: Condvar,
}

impl Feed {
    /// Keeps the commits to a branch from now on. No commit may happen during the call: `visible`
    /// is the newest one. `reserved` are the reserved dictionaries to follow in addition. `feed` is
    /// the number of the list, if a new one is needed.
    pub(crate) fn follow(
        &self,
        branch: &str,
        most: usize,
        reserved: &[DictionaryId],
        visible: Seq,
        feed: u64,
    ) -> CommitPosition {
        let mut kept = self.kept.lock();
        kept.to = visible;
        kept.most = kept.most.max(most.max(1));
        let there = kept.branches.get(branch).copied();
        let mut also = there.and_then(|feed| kept.lists.get(&feed)).map(|list| list.also.clone());
        let feed = match (there, &also) {
            (Some(feed), Some(also)) if reserved.iter().all(|dict| also.contains(dict)) => feed,
            _ => {
                there.and_then(|old| kept.lists.remove(&old));
                let mut also = also.take().unwrap_or_default();
                also.extend(reserved);
                kept.branches.insert(branch.into(), feed);
                kept.lists.insert(feed, List { from: visible, newest: visible, also });
                self.grown.notify_all();
                feed
            }
        };
        self.on.store(true, Ordering::Release);
        CommitPosition { number: visible, feed }
    }

    /// Returns whether commits are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Adds the changes of a commit whose last number is `to`, and which is visible. All calls are
    /// made under the pipeline's lock, in the order of the commits.
    pub(crate) fn note(&self, version: &Version, changes: &Ops, to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.kept.lock();
        // Copies the keys of followed dictionaries only.
        let followed: Vec<_> = changes
            .chunk_by(|a, b| a.0 == b.0)
            .filter(|some| kept.list_of(version, some[0].0).is_some())
            .flat_map(|some| some.iter().map(|(dict, op)| (*dict, touched(op))))
            .collect();
        kept.keep_each(version, followed.into_iter(), to);
        self.grown.notify_all();
    }

    /// Adds a single put.
    pub(crate) fn note_put(&self, version: &Version, dict: DictionaryId, key: &[u8], to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.to = to;
        if let Some(feed) = kept.list_of(version, dict) {
            kept.keep(feed, vec![(dict, CommittedKey::Put(Bytes::copy_from_slice(key)))], to);
            self.grown.notify_all();
        }
    }

    /// Returns the followed dictionaries of a version; none if nothing is kept.
    pub(crate) fn followed(&self, version: &Version) -> Vec<DictionaryId> {
        if !self.is_on() {
            return Vec::new();
        }
        let kept = self.kept.lock();
        let all = version.trees.keys().copied();
        all.filter(|dict| kept.list_of(version, *dict).is_some()).collect()
    }

    /// Adds commits up to `to` that were made elsewhere, as one commit. If `changes` is `None`,
    /// their keys are not known, and all lists end.
    pub(crate) fn note_published(
        &self,
        version: &Version,
        changes: Option<Vec<(DictionaryId, CommittedKey)>>,
        to: Seq,
    ) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.kept.lock();
        match changes {
            Some(changes) => kept.keep_each(version, changes.into_iter(), to),
            None => {
                kept.to = to;
                kept.end_all();
            }
        }
        self.grown.notify_all();
    }

    /// Adds a commit to these dictionaries whose keys are not listed.
    pub(crate) fn note_unlisted(&self, version: &Version, dicts: &[DictionaryId], to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.kept.lock();
        let open = dicts.iter().filter_map(|dict| version.trees.get(dict));
        let open = open.map(|tree| tree.info()).filter(|info| !info.options.reserved);
        open.for_each(|info| kept.end(&info.branch));
        let unlisted = dicts.iter().map(|dict| (*dict, CommittedKey::Unlisted));
        kept.keep_each(version, unlisted, to);
        self.grown.notify_all();
    }

    /// Ends the lists of these branches, which a commit has replaced or ended.
    pub(crate) fn end<'a>(&self, branches: impl IntoIterator<Item = &'a String>, to: Seq) {
        if self.is_on() {
            let mut kept = self.kept.lock();
            kept.to = to;
            branches.into_iter().for_each(|branch| kept.end(branch));
            self.grown.notify_all();
        }
    }

    /// Stops keeping commits, since the store is closed, and wakes the readers that wait.
    pub(crate) fn close(&self) {
        if self.is_on() {
            let mut kept = self.kept.lock();
            kept.end_all();
            kept.most = 0;
            self.grown.notify_all();
        }
    }

    /// Returns the commits after a position, up to about `most` changes, or `None` if some of them
    /// are not kept.
    pub(crate) fn since(&self, since: CommitPosition, most: usize) -> Option<RecentKeys> {
        let kept = self.kept.lock();
        let list = kept.lists.get(&since.feed)?;
        if !(list.from..=kept.to).contains(&since.number) {
            return None;
        }
        let first = kept.commits.partition_point(|commit| commit.keys.number <= since.number);
        let (mut commits, mut changes) = (Vec::new(), 0);
        for commit in kept.commits.range(first..).filter(|commit| commit.feed == since.feed) {
            if changes >= most.max(1) {
                let up_to = commits.last().map_or(since.number, |last: &CommittedKeys| last.number);
                return Some(RecentKeys {
                    commits,
                    up_to: CommitPosition { number: up_to, ..since },
                });
            }
            changes += commit.keys.changes.len();
            commits.push(commit.keys.clone());
        }
        Some(RecentKeys { commits, up_to: CommitPosition { number: kept.to, ..since } })
    }

    /// Waits until there are changes after the position, or until it cannot be followed any more.
    /// Returns `false` after `at_most`.
    pub(crate) fn wait(&self, since: CommitPosition, at_most: Duration) -> bool {
        let mut kept = self.kept.lock();
        let there = |kept: &FeedState| {
            let list = kept.lists.get(&since.feed);
            list.is_none_or(|list| since.number < list.from || list.newest > since.number)
        };
        let begun = Instant::now();
        // A commit to another branch wakes the readers too.
        while !there(&kept) {
            let left = at_most.saturating_sub(begun.elapsed());
            if left.is_zero() || self.grown.wait_for(&mut kept, left).timed_out() {
                return there(&kept);
            }
        }
        true
    }
}

/// Copies the operation's keys, since they may be slices of a buffer with a large value.
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
