//! Prefetches tuples of a store in object storage that are expected to be read in many places, such
//! as the names and nodes of a file system. Prefetching starts when a read has to wait for a
//! request. Small dictionaries are then requested as a whole, all in one round of requests, so that
//! reads that depend on one another, such as the reads of the names and nodes of a path, wait only
//! for that round. For larger dictionaries, each read that has to wait doubles the amount that may
//! be prefetched. A program that walks through a whole dictionary therefore waits only a few times,
//! and for a program that reads in a few places little is fetched in vain.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use env::sync::{Condvar, Mutex};
use vt_tree::{BlockWalk, Run};
use zones::Zones;

use crate::db::Kvdb;
use crate::db::database::Database;
use crate::db::whole_dictionaries::Units;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::ids::RunId;
use crate::read::view::View;
use crate::version::Version;

/// The number of bytes of large dictionaries that may be prefetched after the first wait.
const FIRST: u64 = 1 << 20;
/// The maximum number of bytes that may be prefetched, however many reads have waited.
const MOST: u64 = 64 << 20;
/// The factor by which each further wait multiplies the amount that may be prefetched.
const GROWTH: u64 = 2;
/// The maximum total size, in bytes, of dictionaries that are fetched as a whole. The limit
/// suffices for the names, the nodes and the places of the pages of about a hundred thousand files.
const WHOLE: u64 = 16 << 20;
/// The maximum number of dictionaries that can be announced before a read has to wait.
const MOST_UNTRIED: usize = 64;
/// The divisor for the share of the local file's cache that prefetched data may take.
const SHARE: u64 = 4;
/// The longest time for which a stop waits for a request.
const PATIENCE: Duration = Duration::from_secs(3);

thread_local! {
    /// Is `true` in the thread that prefetches, whose own waits do not count.
    static FETCHES_AHEAD: Cell<bool> = const { Cell::new(false) };
}

/// The state of a prefetch.
pub(super) struct Prefetch {
    /// The dictionaries that are read in many places. See [`Kvdb::warm`].
    often: Vec<DictionaryId>,
    /// The dictionaries that are read in some places. See [`Kvdb::warm`].
    seldom: Vec<DictionaryId>,
    most: u64,
    state: Mutex<State>,
    /// Notified when the thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of states of the store that were shown so far.
    shown: u64,
    /// The dictionaries that are fetched as a whole, if they have room, once a read has to wait.
    untried: Vec<Untried>,
    /// The number of bytes of dictionaries that were fetched as a whole.
    whole: u64,
    /// The walks over runs that still have blocks to prefetch. The walks take turns.
    walks: VecDeque<BlockWalk>,
    allowed: u64,
    fetched: u64,
    /// Is `true` while a thread is prefetching.
    is_running: bool,
    /// Is `true` if the prefetch has stopped, either for now or for good.
    is_stopped: bool,
}

impl State {
    /// Returns whether the prefetch that was begun with the number `shown` is still current and has
    /// not stopped. Since a stop does not wait long, the thread may finish a request when another
    /// state is already shown.
    fn is_of(&self, shown: u64) -> bool {
        !self.is_stopped && self.shown == shown
    }
}

/// A dictionary that is not prefetched yet.
struct Untried {
    /// The runs of the dictionary that lie in object storage.
    runs: Vec<(RunId, Arc<Run>)>,
    /// Is `true` if the dictionary is expected to be read in many places.
    is_read_often: bool,
}

impl Untried {
    /// Returns the given dictionaries of a state, beginning with the dictionaries in `often`.
    fn of(
        zones: &Zones,
        version: &Version,
        often: &[DictionaryId],
        seldom: &[DictionaryId],
    ) -> Vec<Untried> {
        let often = often.iter().map(|dict| (dict, true));
        let all = often.chain(seldom.iter().map(|dict| (dict, false)));
        all.filter_map(|(dict, is_read_often)| {
            let tree = version.trees.get(dict)?;
            let is_there =
                |run: &Run| run.uses().iter().all(|(zone, _)| zones.is_remote_zone(zone));
            let runs = tree.by_level().map(|(_, numbered)| numbered);
            let runs = runs.filter(|numbered| is_there(&numbered.run));
            let runs: Vec<_> = runs.map(|numbered| (numbered.id, numbered.run.clone())).collect();
            (!runs.is_empty()).then_some(Untried { runs, is_read_often })
        })
        .collect()
    }
}

impl Kvdb {
    /// Announces that tuples of these dictionaries will be read in many places. Calls
    /// [`Kvdb::warm`] without other dictionaries.
    pub fn prefetch(&self, dicts: &[DictionaryId]) {
        self.warm(dicts, &[]);
    }

    /// Announces that tuples of the dictionaries `often` will be read in many places, and tuples of
    /// `seldom` in some places. In a store in object storage, the prefetch starts when a read of
    /// the index or of tuples first has to wait for a request. Dictionaries are fetched as a whole,
    /// in this order, while they fit into 16 MiB together. For other dictionaries that are read
    /// often, the amount that is prefetched grows with the number of reads that have to wait, up to
    /// 64 MiB. Neither takes more than a quarter of the local file's cache. This does nothing for
    /// any other store, or without background threads ([`crate::OpenOptions::threads`]).
    pub fn warm(&self, often: &[DictionaryId], seldom: &[DictionaryId]) {
        let db = &self.db;
        let Some(remote) = &db.engine.options.remote else { return };
        let most = MOST.min(remote.cache_bytes / SHARE);
        if most < FIRST || db.engine.inline {
            return;
        }
        let prefetch = Arc::new(Prefetch {
            often: often.to_vec(),
            seldom: seldom.to_vec(),
            most,
            state: Mutex::default(),
            ended: Condvar::new(),
        });
        prefetch.begin(db);
        // The runs of the walks keep the zones alive, so the zones must not keep the walks alive.
        let weak = Arc::downgrade(&prefetch);
        let before = db.prefetch.lock().replace(prefetch);
        before.iter().for_each(|before| before.stop());
        db.engine.zones.set_on_wait(Arc::new(move || {
            weak.upgrade().iter().for_each(|prefetch| prefetch.waited());
        }));
    }

    /// Announces reads as [`Kvdb::warm`] does, for the dictionaries of a view of a snapshot or of a
    /// branch. These dictionaries are fetched before dictionaries that were announced earlier,
    /// unless a read has waited since. Does nothing if [`Kvdb::warm`] was not called or did
    /// nothing.
    pub fn warm_view(&self, view: &View, often: &[DictionaryId], seldom: &[DictionaryId]) {
        let prefetch = self.db.prefetch.lock().clone();
        if let Some(prefetch) = prefetch {
            let zones = &self.db.engine.zones;
            prefetch.add(Untried::of(zones, &view.version, often, seldom));
        }
    }
}

impl Prefetch {
    /// Restarts the prefetch for the state that is currently shown.
    pub(super) fn begin(&self, db: &Database) {
        let version = db.engine.versions.load_full();
        let untried = Untried::of(&db.engine.zones, &version, &self.often, &self.seldom);
        let mut state = self.state.lock();
        let (shown, is_running) = (state.shown + 1, state.is_running);
        *state = State { shown, untried, is_running, ..State::default() };
    }

    /// Adds dictionaries before the dictionaries that still wait to be fetched.
    fn add(&self, mut dicts: Vec<Untried>) {
        let mut state = self.state.lock();
        if state.is_stopped || state.untried.len() + dicts.len() > MOST_UNTRIED {
            return;
        }
        let added: HashSet<RunId> =
            dicts.iter().flat_map(|dict| dict.runs.iter().map(|(id, _)| *id)).collect();
        for mut dict in state.untried.drain(..) {
            // Keep a run that several states share only once.
            dict.runs.retain(|(id, _)| !added.contains(id));
            if !dict.runs.is_empty() {
                dicts.push(dict);
            }
        }
        state.untried = dicts;
    }

    /// Stops the prefetch. The walks of a prefetch keep the store open, and the places that they
    /// know belong to one state. The stop does not wait long for a request that is not answered.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.untried.clear();
        state.walks.clear();
        state.is_stopped = true;
        while state.is_running && !self.ended.wait_for(&mut state, PATIENCE).timed_out() {}
    }

    /// Raises the amount that may be prefetched, because a read has to wait for a request, and
    /// starts the thread if this leaves it work to do.
    fn waited(self: &Arc<Self>) {
        if FETCHES_AHEAD.get() {
            return;
        }
        let mut state = self.state.lock();
        state.allowed = (state.allowed * GROWTH).clamp(FIRST, self.most);
        let has_grown = state.walks.is_empty() || state.fetched >= state.allowed;
        let is_done = state.untried.is_empty() && has_grown;
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

    /// Announces reads of the dictionaries that are fetched as a whole, or of the blocks of one
    /// leaf. Returns `false` if nothing is left to do for now.
    fn goes_on(&self) -> bool {
        let mut state = self.state.lock();
        let shown = state.shown;
        if !state.is_stopped && !state.untried.is_empty() {
            let untried = std::mem::take(&mut state.untried);
            let most = WHOLE.min(self.most.saturating_sub(state.whole));
            drop(state);
            let (bytes, walks) = self.fetch_whole(untried, most, shown);
            let mut state = self.state.lock();
            if state.is_of(shown) {
                state.whole += bytes;
                state.walks.extend(walks);
            }
            return true;
        }
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
            _ if !state.is_of(shown) => {}
            Ok(Some(bytes)) => {
                state.fetched += bytes;
                state.walks.push_back(walk);
            }
            Ok(None) => {}
            // A later read encounters the same error and reports it.
            Err(e) => tracing::debug!("fetching ahead ends for a run: {e}"),
        }
        if state.fetched >= self.most {
            // Drop the walks, so that they no longer pin zones.
            state.walks.clear();
        }
        true
    }

    /// Announces, in their order, the dictionaries of the state `shown` that fit as a whole.
    /// Returns the number of their bytes, and walks over the other dictionaries that are read
    /// often.
    fn fetch_whole(&self, untried: Vec<Untried>, most: u64, shown: u64) -> (u64, Vec<BlockWalk>) {
        let goes_on = || self.state.lock().is_of(shown);
        let (mut all, mut walks) = (Units::default(), Vec::new());
        for Untried { runs, is_read_often } in untried {
            let runs: Vec<Arc<Run>> = runs.into_iter().map(|(_, run)| run).collect();
            let units = Units::of(&runs, most, &goes_on).unwrap_or_else(|e| {
                // A later read encounters the same error and reports it.
                tracing::debug!("a dictionary is not fetched as a whole: {e}");
                None
            });
            let mut of_dict = runs.into_iter().map(BlockWalk::new);
            match units.and_then(|units| all.add(&units, most)) {
                Some(new) if goes_on() => {
                    of_dict.next().iter().for_each(|walk| new.announce(walk.cache().zones()));
                }
                _ if is_read_often => walks.extend(of_dict),
                _ => {}
            }
        }
        (all.bytes(), walks)
    }
}

/// Announces the blocks of the next leaf, and returns the number of their bytes, or `None` after
/// the last leaf.
fn announce(walk: &mut BlockWalk) -> Result<Option<u64>> {
    let Some(blocks) = walk.next_leaf()? else { return Ok(None) };
    let bytes = blocks.iter().map(|(_, len)| u64::from(*len)).sum();
    walk.cache().announce_blocks(blocks);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_for_one_state_is_not_taken_for_that_of_the_next_one() {
        let db = Kvdb::in_memory();
        let prefetch = Prefetch {
            often: Vec::new(),
            seldom: Vec::new(),
            most: MOST,
            state: Mutex::default(),
            ended: Condvar::new(),
        };
        prefetch.begin(&db.db);
        let shown = prefetch.state.lock().shown;
        assert!(prefetch.state.lock().is_of(shown));
        prefetch.stop();
        assert!(!prefetch.state.lock().is_of(shown));
        prefetch.begin(&db.db);
        let state = prefetch.state.lock();
        assert!(!state.is_of(shown) && state.is_of(state.shown));
    }
}
