//! Removes expired keys, and expired fields of hashes, in the background and in bounded steps.
//! Readers do not depend on the sweeper: for them a key ceases to exist at its deadline.
//!
//! The types dictionary holds all deadlines in order, so a step reads the deadlines that have
//! passed and one more, which determines the time of the next step. A step is one commit. Keys
//! that a transaction has locked are left for a later step. A dictionary in which nothing was due
//! is skipped until its next deadline, or until its types dictionary changes, so that a store of
//! thousands of dictionaries costs little while it is idle.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use kvdb::{DictionaryId, Kvdb};
use parking_lot::{Condvar, Mutex};

use crate::dictionaries::Selected;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    Head, Keyspace, TYPES_PREFIX, deadline_key, head_key, is_past, parse_deadline_key, types_name,
};
use crate::session::{Session, Shared};

/// Limit on the number of keys that one step removes from a dictionary, and on the number of
/// hashes whose fields it removes.
const STEP: usize = 128;
/// Limit on the number of fields of a hash that a step removes for each key that it may remove.
const FIELDS: usize = 16;
/// Approximate limit on the bytes of the fields that one step removes from a dictionary.
const ROOM: usize = 1 << 20;
/// Pause between two steps while there is work, so that clients take precedence.
const BREATH: Duration = Duration::from_millis(10);
/// Longest pause. A deadline that is set while nothing is due is found after this time at the
/// latest.
const REST: Duration = Duration::from_secs(1);

/// The result of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// The number of keys removed.
    pub removed: usize,
    /// The number of fields of hashes removed.
    pub fields: usize,
    /// Set if more keys or fields can be removed at once.
    pub more: bool,
    /// The time after the next deadline, in milliseconds since 1970.
    pub next: Option<u64>,
    /// The number of dictionaries whose deadlines were read.
    pub read: usize,
}

/// A types dictionary in which nothing was due.
#[derive(Clone, Copy)]
struct Idle {
    /// The mark of the content of the dictionary (see [`kvdb::View::mark_of`]).
    mark: [u64; 4],
    /// The time after the first deadline of the dictionary, or `None` if it has no deadlines.
    next: Option<u64>,
}

/// The sweeper of a store, with the state that it keeps between steps.
#[derive(Default)]
pub struct Sweeper {
    idle: HashMap<DictionaryId, Idle>,
}

/// A dictionary of the user that has a types dictionary.
struct Typed {
    name: String,
    strings: DictionaryId,
    types: DictionaryId,
    mark: Option<[u64; 4]>,
}

/// Returns the user's dictionaries that have a types dictionary, sorted by name.
fn typed(db: &Kvdb) -> Vec<Typed> {
    let view = db.view();
    let (types, users): (Vec<_>, Vec<_>) =
        view.dictionaries_in("").into_iter().partition(|d| d.name.starts_with(TYPES_PREFIX));
    let types: HashMap<String, DictionaryId> = types.into_iter().map(|d| (d.name, d.id)).collect();
    if types.is_empty() {
        return Vec::new();
    }
    let users = users.into_iter().filter(|d| !d.options.reserved);
    let mut all: Vec<Typed> = users
        .filter_map(|d| {
            let types = *types.get(&types_name(&d.name))?;
            Some(Typed { name: d.name, strings: d.id, types, mark: view.mark_of(types) })
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Sweeper {
    /// Removes up to `most` expired keys of each dictionary of the store, and expired fields of
    /// up to `most` hashes. A failure in one dictionary does not prevent the others from being
    /// swept; the first failure is returned.
    pub fn step(&mut self, shared: &Arc<Shared>, most: usize) -> (Swept, Outcome) {
        let (mut all, mut done) = (Swept::default(), Ok(()));
        let mut session = Session::new(shared.clone(), "sweeper".into(), false, None);
        let before = std::mem::take(&mut self.idle);
        for Typed { name, strings, types, mark } in typed(&shared.db) {
            let known = before.get(&types).filter(|known| Some(known.mark) == mark).copied();
            let now = session.now();
            if let Some(known) = known.filter(|known| known.next.is_none_or(|next| now < next)) {
                all.next = [all.next, known.next].into_iter().flatten().min();
                self.idle.insert(types, known);
                continue;
            }
            session.dictionary = Selected::named(&name);
            all.read += 1;
            match sweep(&session, Keyspace { strings, types: Some(types) }, most) {
                Ok((swept, due)) => {
                    all.removed += swept.removed;
                    all.fields += swept.fields;
                    all.more |= swept.more;
                    all.next = [all.next, swept.next].into_iter().flatten().min();
                    if let Some(mark) = mark.filter(|_| !due) {
                        self.idle.insert(types, Idle { mark, next: swept.next });
                    }
                }
                Err(failure) => done = done.and(Err(failure)),
            }
        }
        shared.metrics.expired.fetch_add(all.removed as u64, Relaxed);
        (all, done)
    }
}

/// Returns up to `most` deadlines that have passed, with their keys, and whether any deadline has
/// passed, even if it belongs only to a locked key. Records in `swept` the next deadline, or that
/// there are more.
fn passed(
    s: &Session,
    strings: DictionaryId,
    types: DictionaryId,
    most: usize,
    swept: &mut Swept,
) -> Result<(Vec<(u64, Bytes)>, bool), Failure> {
    let (now, mut due, mut any) = (s.now(), Vec::new(), false);
    let mut cursor = match s.db().view().cursor(types, b"t", b"u") {
        Err(kvdb::Error::NoDictionary(_)) => return Ok((due, false)),
        cursor => cursor?,
    };
    // Locked keys are skipped, but the number of deadlines that a step reads is bounded.
    for _ in 0..most * 2 {
        let Some(tuple) = cursor.next()? else { break };
        let Some((deadline, key)) = parse_deadline_key(&tuple.key) else { continue };
        if !is_past(deadline, now) {
            swept.next = Some(deadline.saturating_add(1));
            break;
        }
        any = true;
        if due.len() == most {
            swept.more = true;
            break;
        }
        if !s.db().is_locked(strings, key) && !s.db().is_locked(types, &head_key(key)) {
            due.push((deadline, Bytes::copy_from_slice(key)));
        }
    }
    Ok((due, any))
}

/// Sweeps the selected dictionary. Also returns whether any deadline has passed, even if it
/// belongs only to a locked key.
fn sweep(s: &Session, space: Keyspace, most: usize) -> Result<(Swept, bool), Failure> {
    let mut swept = Swept::default();
    let Some(types) = space.types else { return Ok((swept, false)) };
    let (due, any) = passed(s, space.strings, types, most, &mut swept)?;
    if due.is_empty() {
        return Ok((swept, any));
    }
    let keys = due.iter().map(|(_, key)| &key[..]);
    let (removed, fields, more) = s.change(space, keys, |seen, batch| {
        let mut removed = HashSet::new();
        let mut hashes: BTreeMap<&Bytes, (Head, Vec<u64>)> = BTreeMap::new();
        for (deadline, key) in &due {
            // Only the head is read, because the number of existing fields takes a walk over all
            // expired ones.
            let live = seen.live_head(key)?;
            match live.head {
                Some(head) if head.deadline == Some(*deadline) => {
                    if head.is_expired(seen.now) {
                        seen.remove(key, &live, batch);
                        removed.insert(key);
                    }
                }
                // The deadline belongs to a field of the hash.
                Some(head) if head.expiring => {
                    hashes.entry(key).or_insert((head, Vec::new())).1.push(*deadline);
                }
                // The key has another deadline by now, or none, or was removed with a range.
                _ => batch.delete(types, deadline_key(*deadline, key)),
            }
        }
        // A hash may be named at several deadlines, so its fields are removed after all deadlines
        // were read.
        let (mut fields, mut more, mut room) = (0, false, ROOM);
        for (key, (head, deadlines)) in hashes {
            if room == 0 {
                // The index still names the other hashes.
                more = true;
                break;
            }
            for deadline in deadlines {
                batch.delete(types, deadline_key(deadline, key));
            }
            if !removed.contains(key) {
                let most = (most * FIELDS, &mut room);
                let (expired, left) = seen.expire_fields(key, &head, most, batch)?;
                fields += expired;
                more |= left;
            }
        }
        Ok((removed.len(), fields, more))
    })?;
    (swept.removed, swept.fields) = (removed, fields);
    swept.more |= more;
    Ok((swept, any))
}

/// The thread that runs the sweeper. It ends when this value is dropped.
pub struct Sweeping {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeping {
    /// Starts the thread. The thread also calls `besides` after each step, at least once a
    /// second.
    pub fn start(
        shared: Arc<Shared>,
        besides: impl Fn() + Send + 'static,
    ) -> std::io::Result<Sweeping> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let told = stop.clone();
        let thread = std::thread::Builder::new().name("resp-expiry".into()).spawn(move || {
            let mut sweeper = Sweeper::default();
            loop {
                let sweeps = shared.sweeps.load(Relaxed) && !shared.pause.is_on();
                let wait = if sweeps { rest(&mut sweeper, &shared) } else { REST };
                besides();
                let mut stopped = told.0.lock();
                if !*stopped {
                    told.1.wait_for(&mut stopped, wait);
                }
                if *stopped {
                    return;
                }
            }
        })?;
        Ok(Sweeping { stop, thread: Some(thread) })
    }
}

/// Runs a step, and returns the time until the next one.
fn rest(sweeper: &mut Sweeper, shared: &Arc<Shared>) -> Duration {
    let (swept, done) = sweeper.step(shared, STEP);
    // The store may be read-only or full. Expired keys are invisible nevertheless.
    if let Err(error) = done {
        tracing::debug!("expired keys were not removed: {error}");
    }
    if swept.more {
        return BREATH;
    }
    let now = shared.db.wall_clock();
    let next = swept.next.map(|at| Duration::from_millis(at).saturating_sub(now));
    next.unwrap_or(REST).clamp(BREATH, REST)
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use kvdb::{CreateOptions, OpenOptions};
    use zones::MemoryDevice;

    use super::*;
    use crate::client::Client;
    use crate::commands;
    use crate::limits::Limits;

    #[test]
    fn only_dictionaries_that_have_changed_or_have_something_due_are_read() {
        let clock = Arc::new(Simulated::new(7));
        let open = OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), clock.clone(), options).expect("made");
        let limits = Limits::default();
        let shared = Arc::new(Shared::new(db, limits, None, false, commands::metrics()));
        let mut client = Client::of(shared.clone());
        let mut run = |command: &str| {
            let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            client.call(&words).expect("a reply");
        };
        for i in 0..20 {
            run(&format!("USE plain{i}"));
            run("SET k v");
            run(&format!("USE typed{i}"));
            run("HSET h f v");
        }
        let mut sweeper = Sweeper::default();
        let mut step = || {
            let (swept, done) = sweeper.step(&shared, STEP);
            done.expect("swept");
            (swept.read, swept.removed)
        };
        assert_eq!(step(), (20, 0), "each that has types, once");
        assert_eq!(step(), (0, 0), "nothing has changed");
        run("USE typed3");
        run("SET a v PX 100");
        run("USE plain5");
        run("SET b v");
        assert_eq!(step(), (1, 0), "the one that has changed");
        assert_eq!(step(), (0, 0), "its deadline is in the future");
        clock.advance(Duration::from_millis(102));
        assert_eq!(step(), (1, 1), "its deadline has passed");
        assert_eq!(step(), (1, 0), "the removal was a change");
        assert_eq!(step(), (0, 0));
        // The deadlines of a transaction become visible with its commit.
        for command in ["TXN BEGIN", "TXN JOIN 1", "USE plain5", "SET b v PX 1", "TXN COMMIT"] {
            assert_eq!(step().1, 0, "before {command}");
            run(command);
        }
        clock.advance(Duration::from_millis(3));
        assert_eq!(step(), (1, 1));
    }
}
