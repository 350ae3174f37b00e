//! Makes syncs wait until the commits are in object storage, too (durability *remote*). The part of
//! the local journal since the last sync is sent as one object, with the values to which it refers.
//! Callers that wait at the same time share the object.
//!
//! Such an object holds commits to dictionaries and nothing else. After any other change (a
//! dictionary, a snapshot or a branch was made, or the runs of a large transaction were added), and
//! at the first sync after the store was opened, the store is published instead, and the journal
//! continues after the published state.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use bytes::Bytes;
use env::sync::atomic::Ordering;
use env::sync::{Condvar, Mutex};
use vt_tree::{Seq, Value};

use crate::commit::log::tap::{SyncElsewhere, Tapped};
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::{self, Op, Ops, Record};
use crate::log::records::Records;
use crate::remote::{JournalCommit, JournalPlace, RemoteStore, random_id};

/// The divisor for the share of the store's memory that limits the bytes of keys and values in one
/// object, and the bytes of the local journal that wait to be sent. If there are more bytes, the
/// store is published.
const SHARE: usize = 8;
/// The lower bound of this limit, in bytes.
const LEAST: usize = 4 << 20;
/// The upper bound of this limit, in bytes.
const MOST: usize = 32 << 20;

/// The time for which a sync retries before it fails.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The pause after the first failed attempt. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A function that publishes the store. See
/// [`Publisher::sync_remotely`](crate::Publisher::sync_remotely).
pub type Publish = dyn Fn() -> Result<()> + Send + Sync;

/// The journal of an open store in object storage.
pub(crate) struct RemoteJournal {
    db: Weak<Database>,
    to: RemoteStore,
    publish: Box<Publish>,
    chain: [u8; 16],
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The thread that is sending. Other threads wait for it to end.
    sender: Option<ThreadId>,
    /// The newest state that was published with a place of this chain.
    base: Option<Base>,
    /// The number of a commit up to which all commits are in object storage.
    there: Seq,
    /// The number of the next object in the chain.
    number: u64,
    /// The objects that may hold commits after the base, each with its number and last commit.
    objects: VecDeque<(u64, Seq)>,
    /// An object that may or may not have been written, with its place and its last commit.
    in_doubt: Option<(JournalPlace, Bytes, Seq)>,
    /// The part of the tapped stream that was not sent yet.
    reading: Reading,
    /// Is `true` if another file has taken the store.
    displaced: bool,
    /// Is `true` if the journal sends nothing more.
    closed: bool,
}

/// A published state: its last commit, and its shape stamp.
#[derive(Clone, Copy)]
struct Base {
    seq: Seq,
    shape: u64,
}

/// The commits that were read from the tapped stream and not sent yet.
#[derive(Default)]
struct Reading {
    records: Records,
    /// The number of the next change.
    next: Seq,
    commits: Vec<JournalCommit>,
    bytes: usize,
    /// The newest commit of which some changes are missing from `commits`.
    unlisted: Seq,
    lost: bool,
}

/// The keys and ranges of changes that hide earlier changes.
#[derive(Default)]
struct Hidden<'a> {
    keys: HashSet<(DictionaryId, &'a [u8])>,
    ranges: Vec<(DictionaryId, &'a [u8], &'a [u8])>,
}

impl<'a> Hidden<'a> {
    fn add(&mut self, dict: DictionaryId, op: &'a Op) {
        match op {
            Op::Update(..) => {}
            Op::DeleteRange(start, end) => self.ranges.push((dict, start, end)),
            op => drop(self.keys.insert((dict, op.key()))),
        }
    }

    fn hides(&self, dict: DictionaryId, key: &[u8]) -> bool {
        let within = |(d, start, end): &(DictionaryId, &[u8], &[u8])| {
            *d == dict && (*start..*end).contains(&key)
        };
        self.keys.contains(&(dict, key)) || self.ranges.iter().any(within)
    }
}

impl Reading {
    /// Adds the bytes of the tap. If they cannot be decoded, the store is published instead.
    fn add_if_any(&mut self, tapped: Option<Tapped>) {
        if let Some(Err(e)) = tapped.map(|tapped| self.add(tapped)) {
            tracing::error!("the journal is not read: {e}");
            self.lost = true;
        }
    }

    fn add(&mut self, tapped: Tapped) -> Result<()> {
        if let Some(begins) = tapped.begins {
            // The commits before the beginning of the tap may be missing.
            let unlisted = begins.saturating_sub(1);
            *self = Reading { next: begins, unlisted, ..Reading::default() };
        }
        self.lost |= tapped.lost;
        let Reading { records, next, commits, bytes, unlisted, .. } = self;
        records.push(&tapped.bytes.into(), |_, bytes_of_one| {
            let first = *next;
            let changes = match record::decode(&bytes_of_one)? {
                // A new snapshot changes the shape stamp, so the record can be skipped here.
                Record::Mark | Record::Snapshot { .. } => return Ok(true),
                Record::Number(number) if number == *next => return Ok(true),
                Record::Number(number) => {
                    return Err(Error::Corrupt(format!(
                        "the journal goes on with change {number} where {next} is next"
                    )));
                }
                Record::Bind(_) => {
                    (*next, *unlisted) = (first + 1, first);
                    return Ok(true);
                }
                Record::Commit(changes) => changes,
            };
            *next += changes.len() as u64;
            // A change of dictionary 0 stands for a commit that is an edit of the manifest. The
            // record only numbers it.
            if changes.iter().any(|(dict, _)| *dict == DictionaryId(0)) {
                *unlisted = *next - 1;
                return Ok(true);
            }
            let commit = JournalCommit { first, changes };
            *bytes += commit.bytes();
            commits.push(commit);
            Ok(true)
        })?;
        Ok(())
    }

    /// Takes the commits that can be sent. If a commit has a discarded value that no later commit
    /// among those to be sent hides, this commit and all later commits must wait.
    fn take_whole(&mut self) -> Vec<JournalCommit> {
        let mut count = self.commits.len();
        while let Some(first) = first_unhidden(&self.commits[..count]) {
            count = first;
        }
        let rest = self.commits.split_off(count);
        let taken = std::mem::replace(&mut self.commits, rest);
        self.bytes = self.commits.iter().map(JournalCommit::bytes).sum();
        taken
    }

    /// Drops the commits up to `upto`, which are in the published state.
    fn forget(&mut self, upto: Seq) {
        self.commits.retain(|commit| commit.last() > upto);
        self.bytes = self.commits.iter().map(JournalCommit::bytes).sum();
    }
}

impl RemoteJournal {
    pub(super) fn new(db: &Arc<Database>, to: RemoteStore, publish: Box<Publish>) -> RemoteJournal {
        let chain = random_id(&*db.engine.env);
        let (state, ended) = (Mutex::default(), Condvar::new());
        RemoteJournal { db: Arc::downgrade(db), to, publish, chain, state, ended }
    }

    /// Returns the chain of this journal.
    pub(super) fn chain(&self) -> [u8; 16] {
        self.chain
    }

    fn sync_there(&self) -> Result<()> {
        let Some(db) = self.db.upgrade() else { return Ok(()) };
        let (wanted, shape) =
            (db.engine.versions.visible.load(Ordering::Acquire), db.shape_stamp());
        let own = std::thread::current().id();
        let mut state = self.state.lock();
        loop {
            // A publication on behalf of a sync must not wait for that sync.
            if state.sender == Some(own) {
                return Ok(());
            }
            if state.closed {
                return Err(Error::Invalid("the store is being closed".into()));
            }
            if state.displaced {
                return Err(Error::WrittenElsewhere(self.to.place()));
            }
            let is_there = |base: &Base| state.there >= wanted && base.shape == shape;
            if state.base.as_ref().is_some_and(is_there) {
                return Ok(());
            }
            if state.sender.is_none() {
                break;
            }
            self.ended.wait(&mut state);
        }
        state.sender = Some(own);
        drop(state);
        let sent = self.send_patiently(&db);
        let mut state = self.state.lock();
        state.sender = None;
        state.displaced |= matches!(sent, Err(Error::WrittenElsewhere(_)));
        drop(state);
        self.ended.notify_all();
        sent?;
        self.check_there(wanted)
    }

    /// Calls [`RemoteJournal::send`], and retries until the timeout if object storage fails.
    fn send_patiently(&self, db: &Database) -> Result<()> {
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        loop {
            match self.send(db) {
                Err(Error::Objects(e)) if e.may_be_retried() && waited < TIMEOUT => {
                    if waited.is_zero() {
                        tracing::warn!("syncs wait for {}: {e}", self.to.place());
                    }
                    if self.state.lock().closed {
                        return Err(Error::Objects(e));
                    }
                }
                sent => return sent,
            }
            env::thread::sleep(pause);
            waited += pause;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Fails if object storage lacks some of the commits up to `wanted`.
    fn check_there(&self, wanted: Seq) -> Result<()> {
        match self.state.lock().there >= wanted {
            true => Ok(()),
            false => Err(Error::Invalid("a commit did not reach object storage".into())),
        }
    }

    /// Sends the commits that were read from the tap, or publishes the store. Only one thread at a
    /// time calls this, after the local journal was synced.
    fn send(&self, db: &Database) -> Result<()> {
        // Write out the journal, since commits of other threads may be visible before a local sync.
        db.commits.log.write_out()?;
        let tapped = db.commits.log.tap.take();
        // Compute the stamp after the tap is read: a dictionary is created before the commits to
        // it, so the stamp covers the dictionaries of all commits that were read.
        let shape = db.shape_stamp();
        let mut state = self.state.lock();
        state.reading.add_if_any(tapped);
        let known = state.base.map_or(0, |base| base.seq);
        state.reading.forget(known);
        let base = state.base.filter(|base| {
            let reading = &state.reading;
            let is_whole = !reading.lost && reading.unlisted <= base.seq;
            is_whole && base.shape == shape && reading.bytes <= most(db)
        });
        if base.is_none() {
            drop(state);
            return (self.publish)();
        }
        if let Some((place, bytes, last)) = state.in_doubt.clone() {
            drop(state);
            self.put(place, bytes, last)?;
            state = self.state.lock();
        }
        let commits = state.reading.take_whole();
        let Some(last) = commits.last().map(JournalCommit::last) else {
            if state.reading.commits.is_empty() {
                state.there = state.there.max(state.reading.next - 1);
            }
            return Ok(());
        };
        let place = JournalPlace { chain: self.chain, number: state.number };
        drop(state);
        let whole = commits.into_iter().map(|commit| with_values(db, commit));
        let whole = match whole.collect::<Result<Vec<_>>>() {
            Ok(whole) => whole,
            // A later commit has replaced a value, and the place of the value was reused.
            Err(e) => {
                tracing::debug!("the store is published, since a value is gone: {e}");
                self.state.lock().reading.lost = true;
                return (self.publish)();
            }
        };
        let bytes = self.to.encode_journal(&place, &whole, &*db.engine.env);
        let mut state = self.state.lock();
        state.number += 1;
        // From here on the object may exist.
        state.objects.push_back((place.number, last));
        state.in_doubt = Some((place, bytes.clone(), last));
        drop(state);
        self.put(place, bytes, last)
    }

    fn put(&self, place: JournalPlace, bytes: Bytes, last: Seq) -> Result<()> {
        self.to.put_journal(&place, bytes)?;
        let mut state = self.state.lock();
        state.in_doubt = None;
        state.there = state.there.max(last);
        Ok(())
    }

    /// Prepares for a publication before the published state is determined: the tap is opened, so
    /// that it keeps all later commits. Returns the shape stamp.
    pub(super) fn begin_publication(&self, db: &Database) -> Result<u64> {
        let shape = db.shape_stamp();
        let lost = {
            let mut state = self.state.lock();
            std::mem::take(&mut state.reading.lost)
        };
        if lost {
            db.commits.log.tap.shut();
        }
        db.commits.log.open_tap(most(db))?;
        Ok(shape)
    }

    /// Returns the place at which the journal continues after a state with all commits up to `seq`.
    pub(super) fn place_after(&self, seq: Seq) -> JournalPlace {
        let state = self.state.lock();
        let first = state.objects.iter().find(|(_, last)| *last > seq);
        let number = first.map_or(state.number, |(number, _)| *number);
        JournalPlace { chain: self.chain, number }
    }

    /// Records that a state with all commits up to `seq` was published, with a place of this chain.
    /// `shape` is the stamp that [`RemoteJournal::begin_publication`] has returned.
    pub(super) fn published(&self, db: &Database, seq: Seq, shape: u64) {
        let mut state = self.state.lock();
        // Drop the journal up to this state from memory, since the next sync may come late.
        state.reading.add_if_any(db.commits.log.tap.take());
        state.reading.forget(seq);
        state.base = Some(Base { seq, shape });
        state.there = state.there.max(seq);
        state.objects.retain(|(_, last)| *last > seq);
    }

    /// Records that another file has taken the store, and makes waiting syncs fail.
    pub(super) fn is_displaced(&self) {
        self.state.lock().displaced = true;
        self.ended.notify_all();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.state.lock().closed
    }

    /// Stops sending, and makes waiting syncs fail.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ended.notify_all();
        if let Some(db) = self.db.upgrade() {
            db.commits.log.tap.shut();
        }
    }
}

impl SyncElsewhere for RemoteJournal {
    fn sync(&self) -> Result<()> {
        self.sync_there()
    }
}

/// Returns the index of the first commit with a discarded value that none of the later changes
/// hides.
fn first_unhidden(commits: &[JournalCommit]) -> Option<usize> {
    let (mut later, mut first) = (Hidden::default(), None);
    for (i, commit) in commits.iter().enumerate().rev() {
        for (dict, op) in commit.changes.iter().rev() {
            if matches!(op, Op::PutDiscarded(..)) && !later.hides(*dict, op.key()) {
                first = Some(i);
            }
            later.add(*dict, op);
        }
    }
    first
}

/// Returns the limit that [`SHARE`] describes.
fn most(db: &Database) -> usize {
    (db.engine.options.memory / SHARE).clamp(LEAST, MOST)
}

/// Returns the commit with the values to which it refers inlined.
fn with_values(db: &Database, commit: JournalCommit) -> Result<JournalCommit> {
    let mut changes = Ops::with_capacity(commit.changes.len());
    for (dict, op) in commit.changes {
        let op = match op {
            Op::Put(key, value @ Value::Extent(_)) => {
                Op::Put(key, Value::Inline(db.engine.cache.read_value(&value)?))
            }
            // A later change in the same object hides the discarded value, so a deletion can stand
            // for it.
            Op::PutDiscarded(key, _) => Op::Delete(key),
            op => op,
        };
        changes.push((dict, op));
    }
    Ok(JournalCommit { changes, ..commit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(first: Seq, changes: &[(&str, Op)]) -> JournalCommit {
        let changes = changes.iter().map(|(_, op)| (DictionaryId(3), op.clone())).collect();
        JournalCommit { first, changes }
    }

    fn put(key: &'static str) -> (&'static str, Op) {
        (key, Op::Put(key.into(), Value::Inline(Bytes::from_static(b"value"))))
    }

    fn discarded(key: &'static str) -> (&'static str, Op) {
        (key, Op::PutDiscarded(key.into(), 7))
    }

    #[test]
    fn a_value_that_was_discarded_is_sent_with_the_change_that_hides_it() {
        let range = ("a", Op::DeleteRange("a".into(), "c".into()));
        let cases = [
            (vec![commit(1, &[put("a")]), commit(2, &[put("b")])], 2),
            (vec![commit(1, &[put("a")]), commit(2, &[discarded("b")])], 1),
            (vec![commit(1, &[discarded("b")]), commit(2, &[put("b")])], 2),
            (vec![commit(1, &[discarded("b")]), commit(2, &[range])], 2),
            // The change that would hide the value is not sent itself.
            (vec![commit(1, &[discarded("b")]), commit(2, &[put("b"), discarded("a")])], 0),
            (vec![commit(1, &[put("b"), discarded("b")]), commit(3, &[put("a")])], 0),
        ];
        for (commits, sent) in cases {
            let mut reading = Reading { commits: commits.clone(), ..Reading::default() };
            assert_eq!(reading.take_whole(), commits[..sent], "{commits:?}");
            assert_eq!(reading.commits, commits[sent..], "{commits:?}");
        }
    }
}
