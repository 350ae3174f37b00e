//! The keys that clients cache (`CLIENT TRACKING`): which connections have read which key of the
//! store since it was last changed, and which connections track all keys with some prefixes.
//!
//! A key is recorded before it is read, and its changes are reported from the list of commits, so
//! every change after the read is reported. A key is reported as changed at once if it is read in
//! a place for which the list has no entries (a transaction, a clone), or from a state older than
//! the record. A client may be notified of a key that it has not cached. The table is bounded;
//! keys that do not fit are reported as if they had been changed.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

use bytes::Bytes;
use env::sync::Mutex;

use crate::clients::{Clients, Connection};
use crate::mailbox::{Delivery, Via};

/// Approximate size of a key in the table in addition to its own bytes.
const KEY: usize = 128;
/// Approximate size of a reader in the table.
const READER: usize = 16;
/// Limit on the number of keys of which a client is notified at once. If there are more, it is
/// asked to drop all keys.
const MANY: usize = 1024;

/// A connection that tracks keys.
pub struct Tracker {
    pub connection: Arc<Connection>,
    /// The connection that is notified in place of this one.
    pub redirect: Option<u64>,
    /// The prefixes of the keys of which the connection wants to be notified (`BCAST`), whether
    /// it has read them or not. No prefix begins with another one.
    pub prefixes: Option<Vec<Bytes>>,
    /// Set if the client is not notified of its own changes.
    pub no_loop: bool,
}

#[derive(Default)]
struct State {
    trackers: BTreeMap<u64, Tracker>,
    /// The readers of each key, by dictionary. Dictionaries without keys are removed, because
    /// names do not count toward the limit.
    keys: HashMap<String, BTreeMap<Bytes, Vec<u64>>>,
    bytes: usize,
    /// Set if a thread follows the commits.
    followed: bool,
}

impl State {
    /// Returns the author of a change if the author does not want to be notified of it.
    fn untold(&self, author: Option<u64>) -> Option<u64> {
        author.filter(|id| self.trackers.get(id).is_some_and(|tracker| tracker.no_loop))
    }
}

pub struct Tracking {
    state: Mutex<State>,
    /// The thread that follows the commits, or the last one that did. This lock is held while a
    /// thread is started, and is taken before `state`.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Number of connections that track keys.
    count: AtomicUsize,
    /// Limit on the bytes of the table.
    most: usize,
    /// Limit on the bytes that wait for one connection.
    most_waiting: usize,
}

/// The number of keys in the table, the number of their readers, and the number of prefixes.
pub struct Counts {
    pub keys: usize,
    pub readers: usize,
    pub prefixes: usize,
}

impl Tracking {
    pub fn new(most: usize, most_waiting: usize) -> Self {
        let (state, thread) = (Mutex::default(), Mutex::default());
        Tracking { state, thread, count: AtomicUsize::new(0), most, most_waiting }
    }

    /// Begins or changes the tracking of a connection. `follow` starts a thread that follows the
    /// commits, if there is none. Other connections that begin in the meantime wait for `follow`.
    /// If it fails, they start another thread.
    pub fn begin(
        &self,
        mut tracker: Tracker,
        follow: impl FnOnce() -> io::Result<JoinHandle<()>>,
    ) -> io::Result<()> {
        tracker.prefixes.iter_mut().for_each(|prefixes| prefixes.sort_unstable());
        let connection = tracker.connection.id;
        let mut thread = self.thread.lock();
        {
            let mut state = self.state.lock();
            state.trackers.insert(connection, tracker);
            self.count.store(state.trackers.len(), Relaxed);
            if std::mem::replace(&mut state.followed, true) {
                return Ok(());
            }
        }
        match follow() {
            Ok(started) => *thread = Some(started),
            Err(error) => {
                self.end(connection);
                self.state.lock().followed = false;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the tracking of a connection. Keys that it has read remain in the table until they are
    /// changed, as in Redis.
    pub fn end(&self, connection: u64) {
        let mut state = self.state.lock();
        state.trackers.remove(&connection);
        self.count.store(state.trackers.len(), Relaxed);
    }

    /// Returns whether the following thread may end because no connection tracks keys. The next
    /// connection that tracks keys then needs another thread.
    pub fn is_over(&self) -> bool {
        let mut state = self.state.lock();
        if !state.trackers.is_empty() {
            return false;
        }
        *state = State::default();
        true
    }
    /// Waits until the following thread has ended, after the server was asked to stop.
    pub fn wait_for_end(&self) {
        let thread = self.thread.lock().take();
        let _ = thread.map(JoinHandle::join);
    }

    /// Returns the number of connections that track keys.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        let all = || state.keys.values().flat_map(BTreeMap::values);
        let prefixes = state.trackers.values().filter_map(|tracker| tracker.prefixes.as_ref());
        Counts {
            keys: all().count(),
            readers: all().map(Vec::len).sum(),
            prefixes: prefixes.map(Vec::len).sum(),
        }
    }

    /// Records that a connection is about to read keys of a dictionary.
    pub fn note<'k>(
        &self,
        reader: u64,
        dictionary: &str,
        keys: impl Iterator<Item = &'k [u8]>,
        clients: &Clients,
    ) {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if !state.keys.contains_key(dictionary) {
            state.keys.insert(dictionary.into(), BTreeMap::new());
        }
        let Some(of_keys) = state.keys.get_mut(dictionary) else { return };
        for key in keys {
            let readers = match of_keys.get_mut(key) {
                Some(readers) => readers,
                None => {
                    state.bytes += key.len() + KEY;
                    of_keys.entry(Bytes::copy_from_slice(key)).or_default()
                }
            };
            if !readers.contains(&reader) {
                readers.push(reader);
                state.bytes += READER;
            }
        }
        while state.bytes > self.most && self.forget_one(state, clients) {}
    }

    /// Notifies a connection that it must not cache keys that it is about to read, because no
    /// list reports their changes.
    pub fn refuse(&self, reader: u64, keys: &[&[u8]], clients: &Clients) {
        let state = self.state.lock();
        let Some(tracker) = state.trackers.get(&reader) else { return };
        if keys.len() > MANY {
            return self.send(tracker, &Via::AllInvalidated, &Bytes::new(), clients);
        }
        for key in keys {
            self.send(tracker, &Via::Invalidated, &Bytes::copy_from_slice(key), clients);
        }
    }

    /// Removes an arbitrary key from the table, and notifies its readers. Returns `false` if the
    /// table is empty.
    fn forget_one(&self, state: &mut State, clients: &Clients) -> bool {
        state.keys.retain(|_, of_keys| !of_keys.is_empty());
        let Some(of_keys) = state.keys.values_mut().next() else { return false };
        if let Some((key, readers)) = of_keys.pop_first() {
            state.bytes -= size(&key, &readers);
            self.tell(&state.trackers, &readers, &Via::Invalidated, &key, None, clients);
        }
        true
    }

    /// Reports that a key was changed, by the connection `author` if it is known.
    pub fn key(&self, dictionary: &str, key: &Bytes, author: Option<u64>, clients: &Clients) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let untold = state.untold(author);
        if let Some(of_keys) = state.keys.get_mut(dictionary)
            && let Some(readers) = of_keys.remove(key)
        {
            state.bytes -= size(key, &readers);
            // The client may have read the key again after it has changed it.
            if let Some(untold) = untold.filter(|untold| readers.contains(untold)) {
                state.bytes += size(key, &[untold]);
                of_keys.insert(key.clone(), vec![untold]);
            }
            if of_keys.is_empty() {
                state.keys.remove(dictionary);
            }
            self.tell(&state.trackers, &readers, &Via::Invalidated, key, untold, clients);
        }
        for tracker in state.trackers.values().filter(|one| Some(one.connection.id) != untold) {
            if tracker.prefixes.as_ref().is_some_and(|prefixes| begins_with(key, prefixes)) {
                self.send(tracker, &Via::Invalidated, key, clients);
            }
        }
    }

    /// Reports that all keys from `start` up to `end` may have been changed. An empty `end` means
    /// up to the last key. Connections that track prefixes must drop all keys that they cache.
    pub fn range(
        &self,
        dictionary: &str,
        (start, end): (&Bytes, &Bytes),
        author: Option<u64>,
        clients: &Clients,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let untold = state.untold(author);
        if let Some(of_keys) = state.keys.get_mut(dictionary) {
            let mut rest = of_keys.split_off(start);
            if !end.is_empty() && end > start {
                let mut after = rest.split_off(end);
                of_keys.append(&mut after);
            }
            state.bytes -= rest.iter().map(|(key, readers)| size(key, readers)).sum::<usize>();
            if let Some(untold) = untold {
                for (key, _) in rest.iter().filter(|(_, readers)| readers.contains(&untold)) {
                    state.bytes += size(key, &[untold]);
                    of_keys.insert(key.clone(), vec![untold]);
                }
            }
            if of_keys.is_empty() {
                state.keys.remove(dictionary);
            }
            if rest.len() > MANY {
                // A message for each key could exceed the limit of the messages that wait for a
                // connection.
                let mut readers: Vec<u64> = rest.into_values().flatten().collect();
                readers.sort_unstable();
                readers.dedup();
                let none = Bytes::new();
                self.tell(&state.trackers, &readers, &Via::AllInvalidated, &none, untold, clients);
            } else {
                for (key, readers) in rest {
                    self.tell(&state.trackers, &readers, &Via::Invalidated, &key, untold, clients);
                }
            }
        }
        for tracker in state.trackers.values().filter(|one| Some(one.connection.id) != untold) {
            if tracker
                .prefixes
                .as_ref()
                .is_some_and(|prefixes| touches((&start[..], &end[..]), prefixes))
            {
                self.send(tracker, &Via::AllInvalidated, &Bytes::new(), clients);
            }
        }
    }

    /// Reports that all keys may have been changed.
    pub fn all(&self, clients: &Clients) {
        let mut state = self.state.lock();
        state.keys.clear();
        state.bytes = 0;
        for tracker in state.trackers.values() {
            self.send(tracker, &Via::AllInvalidated, &Bytes::new(), clients);
        }
    }

    fn tell(
        &self,
        trackers: &BTreeMap<u64, Tracker>,
        readers: &[u64],
        via: &Via,
        key: &Bytes,
        untold: Option<u64>,
        clients: &Clients,
    ) {
        let readers = readers.iter().filter(|reader| Some(**reader) != untold);
        let readers = readers.filter_map(|reader| trackers.get(reader));
        // A client that has changed to prefixes since then is notified by its prefixes.
        for tracker in readers.filter(|tracker| tracker.prefixes.is_none()) {
            self.send(tracker, via, key, clients);
        }
    }

    fn send(&self, tracker: &Tracker, via: &Via, key: &Bytes, clients: &Clients) {
        let delivery = Delivery { via: via.clone(), channel: Bytes::new(), payload: key.clone() };
        match tracker.redirect.map(|id| clients.get(id)) {
            None => tracker.connection.send(delivery, self.most_waiting),
            // A client without a subscription would never take its messages.
            Some(Some(other)) if other.takes_messages() => other.send(delivery, self.most_waiting),
            Some(Some(_)) => {}
            Some(None) => {
                let via = Via::RedirectionBroken(tracker.redirect.unwrap_or_default());
                let (channel, payload) = (Bytes::new(), Bytes::new());
                tracker.connection.send(Delivery { via, channel, payload }, self.most_waiting);
            }
        }
    }
}

/// Returns whether a key begins with one of these prefixes, which are sorted. All strings from a
/// prefix of the key up to the key begin with that prefix, and no prefix begins with another one.
/// So the prefix of the key is the last one that is not greater than the key.
fn begins_with(key: &[u8], prefixes: &[Bytes]) -> bool {
    let after = prefixes.partition_point(|prefix| prefix[..] <= *key);
    after.checked_sub(1).is_some_and(|last| key.starts_with(&prefixes[last]))
}

/// Returns whether keys with one of these prefixes, which are sorted, may be in a range. This is
/// the case if a prefix is in the range, or if the start of the range begins with a prefix.
fn touches((start, end): (&[u8], &[u8]), prefixes: &[Bytes]) -> bool {
    let is_before_end = |prefix: &&Bytes| end.is_empty() || prefix[..] < *end;
    let at = prefixes.partition_point(|prefix| prefix[..] < *start);
    let before = at.checked_sub(1).and_then(|last| prefixes.get(last));
    prefixes.get(at).is_some_and(|prefix| is_before_end(&prefix))
        || before.filter(is_before_end).is_some_and(|prefix| start.starts_with(prefix))
}

fn size(key: &Bytes, readers: &[u64]) -> usize {
    key.len() + KEY + READER * readers.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all keys of up to three of these letters.
    fn keys() -> Vec<String> {
        let (mut all, mut from) = (vec![String::new()], 0);
        while all.len() < 40 {
            for letter in ["a", "b", "c"] {
                let longer = format!("{}{letter}", all[from]);
                all.push(longer);
            }
            from += 1;
        }
        all
    }

    fn tracker(id: u64) -> Tracker {
        let connection = Arc::new(Connection::new(id, String::new(), None));
        Tracker { connection, redirect: None, prefixes: None, no_loop: false }
    }

    #[test]
    fn one_that_begins_while_no_thread_can_be_started_starts_one_itself() {
        let tracking = Tracking::new(1 << 20, 1 << 20);
        let started = AtomicUsize::new(0);
        let (all, count) = (&tracking, &started);
        std::thread::scope(|threads| {
            let begun = all.begin(tracker(1), || {
                threads.spawn(move || {
                    let follow = || {
                        count.fetch_add(1, Relaxed);
                        std::thread::Builder::new().spawn(|| ())
                    };
                    all.begin(tracker(2), follow).expect("it is started");
                });
                Err(io::Error::other("too many threads"))
            });
            assert!(begun.is_err());
        });
        assert_eq!(started.load(Relaxed), 1);
        assert_eq!(tracking.count(), 1);
        tracking.begin(tracker(3), || panic!("it is followed")).expect("begun");
        tracking.wait_for_end();
    }

    #[test]
    fn a_dictionary_without_keys_leaves_the_table() {
        let (tracking, clients) = (Tracking::new(1 << 20, 1 << 20), Clients::default());
        let keys = ["a", "b", "c"].map(Bytes::from);
        let note = |n: usize| {
            let keys = keys.iter().map(|key| &key[..]);
            tracking.note(1, &format!("dictionary {n}"), keys, &clients);
        };
        let left = || tracking.state.lock().keys.len();
        (0..100).for_each(note);
        assert_eq!(left(), 100);
        for n in 0..100 {
            let name = format!("dictionary {n}");
            match n % 2 {
                0 => keys.iter().for_each(|key| tracking.key(&name, key, None, &clients)),
                _ => tracking.range(&name, (&keys[0], &Bytes::new()), None, &clients),
            }
        }
        assert_eq!(left(), 0);
        assert_eq!(tracking.state.lock().bytes, 0);
        // A dictionary is not recorded if none of its keys is.
        tracking.note(1, "none", std::iter::empty(), &clients);
        assert_eq!(left(), 0);
    }

    #[test]
    fn the_prefixes_of_keys_and_ranges_are_found_as_if_all_of_them_were_compared() {
        let keys = keys();
        for prefixes in [&[""][..], &["b"], &[], &["a", "ba", "bb", "cab"], &["ab", "aca", "cc"]] {
            let prefixes: Vec<Bytes> = prefixes.iter().map(|p| Bytes::from(*p)).collect();
            for start in &keys {
                let start = start.as_bytes();
                let compared = prefixes.iter().any(|prefix| start.starts_with(prefix));
                assert_eq!(begins_with(start, &prefixes), compared, "{prefixes:?}, {start:?}");
                for end in &keys {
                    let end = end.as_bytes();
                    let compared = prefixes.iter().any(|prefix| {
                        (start.starts_with(prefix) || prefix[..] >= *start)
                            && (end.is_empty() || prefix[..] < *end)
                    });
                    let found = touches((start, end), &prefixes);
                    assert_eq!(found, compared, "{prefixes:?}, {start:?}, {end:?}");
                }
            }
        }
    }
}
