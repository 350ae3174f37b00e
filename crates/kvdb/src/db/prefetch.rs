//! Prefetches tuples of a store in object storage that are expected to be read in many places, such
//! as the names and nodes of a file system. Each read that has to wait for a request doubles the
//! amount that may be prefetched: a program that walks through all of it waits a few times, and one
//! that reads in a few places fetches little in vain.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::sync::{Condvar, Mutex};
use vt_tree::BlockWalk;

use crate::db::Kvdb;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::Result;

/// The bytes that may be prefetched after the first wait, and the maximum. Each wait multiplies the
/// amount.
const FIRST: u64 = 1 << 20;
const MOST: u64 = 64 << 20;
const GROWTH: u64 = 2;
/// Prefetched data may take this fraction of the local file's cache.
const SHARE: u64 = 4;
/// The longest time that a stop waits for a request.
const PATIENCE: Duration = Duration::from_secs(3);

thread_local! {
    /// Set in the thread that prefetches: its own waits do not count.
    static FETCHES_AHEAD: Cell<bool> = const { Cell::new(false) };
}

/// The state of a prefetch.
pub(super) struct Prefetch {
    dicts: Vec<DictionaryId>,
    most: u64,
    state: Mutex<State>,
    /// Notified when the thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The walks over runs that still have blocks; they take turns.
    walks: VecDeque<BlockWalk>,
    allowed: u64,
    fetched: u64,
    /// A thread is prefetching.
    is_running: bool,
    /// The prefetch has stopped, for now or for good.
    is_stopped: bool,
}

impl Kvdb {
    /// Announces that tuples of these dictionaries will be read, in many places. In a store in
    /// object storage, the amount that is prefetched grows with the number of reads that have to
    /// wait, up to 64 MiB or a quarter of the local file's cache. For any other store, and without
    /// background threads ([`crate::OpenOptions::threads`]), this does nothing.
    pub fn prefetch(&self, dicts: &[DictionaryId]) {
        let db = &self.db;
        let Some(remote) = &db.engine.options.remote else { return };
        let most = MOST.min(remote.cache_bytes / SHARE);
        if most < FIRST || db.engine.inline {
            return;
        }
        let (dicts, state) = (dicts.to_vec(), Mutex::default());
        let prefetch = Arc::new(Prefetch { dicts, most, state, ended: Condvar::new() });
        prefetch.begin(db);
        // The runs of the walks keep the zones alive, so the zones must not keep the walks alive.
        let weak = Arc::downgrade(&prefetch);
        let before = db.prefetch.lock().replace(prefetch);
        before.iter().for_each(|before| before.stop());
        db.engine.zones.set_on_wait(Arc::new(move || {
            weak.upgrade().iter().for_each(|prefetch| prefetch.waited());
        }));
    }
}

impl Database {
    /// Returns walks over those runs of these dictionaries that lie in object storage.
    fn walks_over(&self, dicts: &[DictionaryId]) -> VecDeque<BlockWalk> {
        let version = self.engine.versions.load_full();
        let trees = dicts.iter().filter_map(|dict| version.trees.get(dict));
        let runs = trees.flat_map(|tree| tree.by_level().map(|(_, numbered)| &numbered.run));
        let is_there = |run: &&Arc<vt_tree::Run>| {
            run.uses().iter().all(|(zone, _)| self.engine.zones.is_remote_zone(zone))
        };
        runs.filter(is_there).map(|run| BlockWalk::new(run.clone())).collect()
    }
}

impl Prefetch {
    /// Starts over with the state that is shown.
    pub(super) fn begin(&self, db: &Database) {
        let walks = db.walks_over(&self.dicts);
        let mut state = self.state.lock();
        *state = State { walks, is_running: state.is_running, ..State::default() };
    }

    /// Stops the prefetch, since its walks keep the store open, and the places that they know
    /// belong to one state. It does not wait long for a request that is not answered.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.walks.clear();
        state.is_stopped = true;
        while state.is_running && !self.ended.wait_for(&mut state, PATIENCE).timed_out() {}
    }

    /// Notes that a read has to wait for a request, and starts the thread if more may be
    /// prefetched.
    fn waited(self: &Arc<Self>) {
        if FETCHES_AHEAD.get() {
            return;
        }
        let mut state = self.state.lock();
        state.allowed = (state.allowed * GROWTH).clamp(FIRST, self.most);
        let is_done = state.walks.is_empty() || state.fetched >= state.allowed;
        if state.is_running || state.is_stopped || is_done {
            return;
        }
        state.is_running = true;
        drop(state);
        let own = self.clone();
        let work = move || {
            FETCHES_AHEAD.set(true);
            while own.goes_on() {}
        };
        if let Err(e) = env::thread::Builder::new().name("kvdb-prefetch".into()).spawn(work) {
            tracing::debug!("no thread to fetch ahead: {e}");
            self.state.lock().is_running = false;
            self.ended.notify_all();
        }
    }

    /// Announces the blocks of one leaf. Returns `false` if there is nothing more to do now.
    fn goes_on(&self) -> bool {
        let mut state = self.state.lock();
        let goes_on = !state.is_stopped && state.fetched < state.allowed;
        let Some(mut walk) = goes_on.then(|| state.walks.pop_front()).flatten() else {
            state.is_running = false;
            self.ended.notify_all();
            return false;
        };
        drop(state);
        let announced = announce(&mut walk);
        let mut state = self.state.lock();
        match announced {
            // The walk may belong to a state that is not shown any more.
            _ if state.is_stopped => {}
            Ok(Some(bytes)) => {
                state.fetched += bytes;
                state.walks.push_back(walk);
            }
            Ok(None) => {}
            // A read meets the same error, and reports it.
            Err(e) => tracing::debug!("fetching ahead ends for a run: {e}"),
        }
        if state.fetched >= self.most {
            // Drop the walks, so that they no longer pin zones.
            state.walks.clear();
        }
        true
    }
}

fn announce(walk: &mut BlockWalk) -> Result<Option<u64>> {
    let Some(blocks) = walk.next_leaf()? else { return Ok(None) };
    let bytes = blocks.iter().map(|(_, len)| u64::from(*len)).sum();
    walk.cache().announce_blocks(blocks);
    Ok(Some(bytes))
}
