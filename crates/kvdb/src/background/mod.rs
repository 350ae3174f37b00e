//! Background work: flushes, compactions, defragmentation, and the backpressure that makes commits
//! wait for them. Each is a type that owns its state and has the engine and the parts that it
//! needs; none knows the database. Later ones use earlier ones, in this order:
//!
//! - `flush`: [`Flusher`], writes sealed memtables to runs;
//! - `compactor`: [`Compactor`], assigns merges to threads; `policy`: decides which merges are
//!   due; `compaction`: one merge in progress; `merged_part`: installs a part of a merge;
//!   `on_demand`, `ranged`: merges that a caller waits for; `garbage`: estimates how much of the
//!   runs is dead;
//! - `defragment`: [`Defragmenter`], empties zones that are mostly holes;
//! - `short_values`: decides when short values are gathered into their blocks;
//! - `admission`: [`Admission`], makes commits wait and starts work that they make due; `reclaim`:
//!   frees space before a full store refuses a commit.
//!
//! Threads are not managed here, see `db::threads`; each thread only repeats steps of this work.

pub(crate) mod activity;
mod admission;
mod candidates;
pub(crate) mod compaction;
pub(crate) mod compactor;
pub(crate) mod defragment;
pub(crate) mod flush;
mod garbage;
mod merged_part;
mod on_demand;
pub(crate) mod policy;
mod ranged;
mod reclaim;
mod short_values;

use std::sync::Arc;

use self::activity::Activity;
pub(crate) use self::admission::Admission;
use self::candidates::Candidates;
pub(crate) use self::compactor::Compactor;
pub(crate) use self::defragment::Defragmenter;
pub(crate) use self::flush::Flusher;
use self::garbage::GarbageEstimate;
use crate::commit::Committer;
use crate::commit::recent::RecentCommits;
use crate::engine::Engine;

/// All background work of a store.
pub(crate) struct Background {
    pub activity: Arc<Activity>,
    pub flusher: Arc<Flusher>,
    pub compactor: Arc<Compactor>,
    pub defragmenter: Arc<Defragmenter>,
    pub admission: Arc<Admission>,
}

impl Background {
    pub(crate) fn new(
        engine: &Engine,
        commits: &Arc<Committer>,
        recent: Arc<RecentCommits>,
    ) -> Background {
        let activity = Arc::new(Activity::new(engine.clone()));
        let garbage = Arc::<GarbageEstimate>::default();
        let candidates = Arc::new(Candidates::new(engine.options.compaction, garbage.clone()));
        let flusher =
            Flusher::new(engine, commits.clone(), recent, garbage.clone(), candidates.clone());
        let flusher = Arc::new(flusher);
        let compactor = Arc::new(Compactor::new(engine, activity.clone(), garbage, candidates));
        let defragmenter =
            Defragmenter::new(engine, flusher.clone(), compactor.clone(), activity.clone());
        let defragmenter = Arc::new(defragmenter);
        let admission = Admission::new(
            engine,
            commits.clone(),
            flusher.clone(),
            compactor.clone(),
            defragmenter.clone(),
        );
        let admission = Arc::new(admission);
        Background { activity, flusher, compactor, defragmenter, admission }
    }
}
