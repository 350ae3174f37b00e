//! Publishes an open store again and again. Each publication writes what is new since the one
//! before, and reads no more than the zones that were written since.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use env::sync::atomic::Ordering;
use zones::ZONE_SIZE;
use zones::remote::{Known, Marks, Progress};

use crate::db::Kvdb;
use crate::db::checkpoint::Checkpoint;
use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::remote::{Claim, LocalCopy, PushProgress, RemoteStore, Right, StateName, ToPublish};

/// A claim is made anew after so long. Objects of its epoch that no state refers to are dead from
/// then on, and a collector can delete them.
const LONGEST_CLAIM: Duration = Duration::from_secs(3600);

/// The work that a publication took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushStats {
    /// The generation that is published now.
    pub generation: u64,
    /// Zones of the state.
    pub zones: u64,
    /// Objects with zones that were written.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the store's live data.
    pub live_bytes: u64,
}

/// Publishes an open store to one place, as often as it is told to, see [`Kvdb::publisher`].
pub struct Publisher {
    db: Kvdb,
    to: RemoteStore,
    /// Kept over publications, so that the next one need not ask for it.
    claim: Option<Claim>,
    right: Right,
    last: Option<Last>,
}

/// The last publication.
struct Last {
    name: Option<StateName>,
    known: Known,
    marks: Marks,
    /// See [`Database::change_stamp`].
    changes: u64,
}

impl Kvdb {
    /// Returns a publisher of the store to a place in object storage. Nothing is done yet.
    pub fn publisher(&self, to: &RemoteStore) -> Publisher {
        let (db, to) = (self.clone(), to.clone());
        Publisher { db, to, claim: None, right: Right::default(), last: None }
    }
}

impl Publisher {
    /// Publishes the store, see [`Kvdb::push`]. The first call reads every zone in use, the others
    /// those that were written since. After an error the next call goes on. The first call takes
    /// the right to publish from any other publisher; after another one has taken it, all calls
    /// fail with [`Error::Overtaken`](crate::Error::Overtaken), see
    /// [`Publisher::take`].
    pub fn publish(
        &mut self,
        progress: &mut dyn FnMut(PushProgress) -> Result<()>,
    ) -> Result<PushStats> {
        let database = &*self.db.db.0;
        let zones = &database.zones;
        // After an error it is gone: what it had written is found there.
        let mut claim = match self.claim.take() {
            Some(claim) if claim.age().is_some_and(|age| age < LONGEST_CLAIM) => claim,
            _ => {
                let (env, to) = (database.env.clone(), self.to.clone());
                Claim::begin(env, to, zones.superblock().uuid, &mut self.right)?
            }
        };
        // Of changes that come during the call it is not told whether they are published.
        let changes = database.change_stamp();
        let Checkpoint { state, uses, stats: _, held } = database.checkpoint_state()?;
        // A pending note may be that of a copy of this store.
        let is_own =
            |last: &&Last| last.name == claim.head().state && claim.head().pending.is_none();
        let last = self.last.as_ref().filter(is_own);
        let nothing = Marks::default();
        let marks = last.map_or(&nothing, |last| &last.marks);
        let known = claim.known(last.map(|last| &last.known))?;
        let memory = database.options.memory / 4;
        let shares = self.is_registered()?;
        let what = ToPublish { zones, state: &state, uses: &uses, shares, memory };
        let published = claim.publish(&what, (&known, marks), progress)?;
        drop(held);
        if shares && !self.is_registered()? {
            let what = "the fork was dropped while it was published, and what it shares may be \
                        gone: publish again";
            return Err(Error::Invalid(what.into()));
        }
        let Progress { objects, bytes, zones_total: zones, .. } = published.progress;
        let live_bytes = uses.iter().map(|(_, bytes)| bytes.min(ZONE_SIZE)).sum();
        let generation = claim.head().generation;
        let (known, marks) = (published.known, published.marks);
        self.last = Some(Last { name: claim.head().state.clone(), known, marks, changes });
        self.claim = Some(claim);
        Ok(PushStats { generation, zones, objects, bytes, live_bytes })
    }

    /// Returns whether the store is a fork that is registered in the place. Then zones that came
    /// from there stay as long as it is. Of a cache, or of a fork that was dropped, a collector may
    /// delete them.
    fn is_registered(&self) -> Result<bool> {
        let Some(note) = self.db.db.0.zones.home_note()? else { return Ok(false) };
        let copy = LocalCopy::decode(&note)?;
        let Some(fork) = copy.fork else { return Ok(false) };
        let base = RemoteStore::new(self.to.objects().clone(), &copy.name)?;
        base.is_registered(&*self.db.db.0.env, fork)
    }

    /// Lets the next publication take the right to publish from any other publisher.
    pub fn take(&mut self) {
        (self.claim, self.right) = (None, Right::default());
    }

    /// Fails if the name there belongs to another store, by one request.
    pub fn check(&self) -> Result<()> {
        let own = self.db.db.0.zones.superblock().uuid;
        self.to.head()?.map_or(Ok(()), |head| head.check_store(own, &self.to))
    }

    /// Returns whether something was committed since the last publication by this publisher. It
    /// makes no request.
    pub fn is_due(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.changes != self.db.db.0.change_stamp())
    }
}

impl Database {
    /// Returns a number that is another one after each change that a publication has to show.
    fn change_stamp(&self) -> u64 {
        let mut all = DefaultHasher::new();
        self.versions.visible.load(Ordering::Acquire).hash(&mut all);
        let version = self.versions.load_full();
        version.trees.iter().for_each(|(id, _)| id.hash(&mut all));
        version.branches.iter().for_each(|branch| branch.hash(&mut all));
        version.limits.iter().for_each(|limit| limit.hash(&mut all));
        for snapshot in self.snapshots.list() {
            (&snapshot.label.name, snapshot.label.id).hash(&mut all);
        }
        all.finish()
    }
}
