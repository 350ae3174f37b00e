//! Background work: flushes, compactions, defragmentation, and the backpressure that makes commits
//! wait for them. Each is a type that owns its state and has the parts of the engine that it needs;
//! none knows the database. Later ones use earlier ones, in this order:
//!
//! - `flush`: [`Flusher`], writes sealed memtables to runs;
//! - `merging`: [`Compactor`], assigns merges to threads; `policy`: decides which merges are due;
//!   `compaction`: one merge in progress; `part`: installs a part of a merge; `on_demand`,
//!   `ranged`: merges that a caller waits for; `garbage`: estimates how much of the runs is dead;
//! - `defragment`: [`Defragmenter`], empties zones that are mostly holes;
//! - `short_values`: decides when short values are gathered into their blocks;
//! - `pressure`: [`Admission`], makes commits wait and starts work that they make due; `reclaim`:
//!   frees space before a full store refuses a commit.
//!
//! Threads are not managed here, see `db::threads`; each thread only repeats steps of this work.

pub(crate) mod activity;
mod candidates;
pub(crate) mod compaction;
pub(crate) mod defragment;
pub(crate) mod flush;
mod garbage;
pub(crate) mod merging;
mod on_demand;
mod part;
pub(crate) mod policy;
mod pressure;
mod ranged;
mod reclaim;
mod short_values;

use std::sync::Arc;

use env::Env;
use vt_tree::BlockCache;
use zones::Zones;

use self::activity::Activity;
use self::candidates::Candidates;
pub(crate) use self::defragment::Defragmenter;
pub(crate) use self::flush::Flusher;
use self::garbage::GarbageEstimate;
pub(crate) use self::merging::Compactor;
pub(crate) use self::pressure::Admission;
use crate::commit::Committer;
use crate::commit::recent::RecentCommits;
use crate::counters::Counters;
use crate::health::Health;
use crate::options::OpenOptions;
use crate::read::snapshot_set::Snapshots;
use crate::read::version_set::VersionSet;
use crate::signals::Signals;

/// The parts of the engine that background work shares with others.
pub(crate) struct BackgroundParts {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub cache: Arc<BlockCache>,
    pub options: OpenOptions,
    /// The store has no threads, and background work is done by its callers.
    pub inline: bool,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub signals: Arc<Signals>,
    pub versions: Arc<VersionSet>,
    pub snapshots: Arc<Snapshots>,
    pub commits: Arc<Committer>,
    pub recent: Arc<RecentCommits>,
}

/// All background work of a store.
pub(crate) struct Background {
    pub activity: Arc<Activity>,
    pub flusher: Arc<Flusher>,
    pub compactor: Arc<Compactor>,
    pub defragmenter: Arc<Defragmenter>,
    pub admission: Arc<Admission>,
}

impl Background {
    pub(crate) fn new(parts: &BackgroundParts) -> Background {
        let idle_flush = parts.options.idle_flush;
        let (counters, cache) = (parts.counters.clone(), parts.cache.clone());
        let activity = Activity::new(parts.env.clone(), counters, cache, idle_flush);
        let (activity, garbage) = (Arc::new(activity), Arc::<GarbageEstimate>::default());
        let candidates = Arc::new(Candidates::new(parts.options.compaction, garbage.clone()));
        let flusher = Arc::new(Flusher::new(parts, garbage.clone(), candidates.clone()));
        let compactor = Arc::new(Compactor::new(parts, activity.clone(), garbage, candidates));
        let defragmenter =
            Defragmenter::new(parts, flusher.clone(), compactor.clone(), activity.clone());
        let defragmenter = Arc::new(defragmenter);
        let admission =
            Admission::new(parts, flusher.clone(), compactor.clone(), defragmenter.clone());
        let admission = Arc::new(admission);
        Background { activity, flusher, compactor, defragmenter, admission }
    }
}
