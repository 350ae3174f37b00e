//! Publishes an open store repeatedly. Each publication writes the data that is new since the
//! previous publication, and reads only the zones that were written since then.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use env::sync::atomic::Ordering;
use zones::ZONE_SIZE;
use zones::remote::{FirstReads, Known, Marks, Progress};

use crate::db::Kvdb;
use crate::db::checkpoint::Checkpoint;
use crate::db::database::Database;
use crate::db::rehearsal::Rehearse;
use crate::db::remote_journal::{Publish, RemoteJournal};
use crate::error::{Error, Result};
use crate::remote::{
    Claim, ClaimNote, Claimant, LONGEST_LABEL, LocalCopy, Owner, PushProgress, RemoteStore, Right,
    StateName, ToPublish,
};
use crate::version::Version;

/// The age at which a claim is replaced with a new claim. From then on, objects of the old claim's
/// epoch to which no state refers are dead, and a collector can delete them.
const LONGEST_CLAIM: Duration = Duration::from_secs(3600);

/// The statistics of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushStats {
    /// The generation that was published.
    pub generation: u64,
    /// The number of zones of the state.
    pub zones: u64,
    /// The number of objects with zones that were written.
    pub objects: u64,
    /// The total size of these objects, in bytes.
    pub bytes: u64,
    /// The size of the store's live data, in bytes.
    pub live_bytes: u64,
}

/// Publishes an open store to one place, at each call of [`Publisher::publish`]. See
/// [`Kvdb::publisher`].
pub struct Publisher {
    db: Kvdb,
    to: RemoteStore,
    /// The claim, which is kept so that the next publication need not request another one.
    claim: Option<Claim>,
    right: Right,
    /// The note of the local file, if its zones lie in object storage.
    copy: Option<LocalCopy>,
    /// Is `true` if claims take the right from a writer of the store. See
    /// [`Publisher::take_from_writer`].
    takes: bool,
    /// The label of the open store in the head. See [`Publisher::stay_open`].
    label: Option<String>,
    last: Option<Last>,
    /// The journal in object storage. See [`Publisher::sync_remotely`].
    journal: Option<Arc<RemoteJournal>>,
    /// The function that rehearses an opening. See [`Publisher::rehearse`].
    rehearse: Option<Box<Rehearse>>,
}

/// The last publication.
struct Last {
    name: Option<StateName>,
    known: Known,
    marks: Marks,
    /// The stamp of the published changes. See [`Database::change_stamp`].
    changes: u64,
}

impl Kvdb {
    /// Returns a publisher of the store to a place in object storage, without making a request yet.
    pub fn publisher(&self, to: &RemoteStore) -> Result<Publisher> {
        let (db, to) = (self.clone(), to.clone());
        let zones = &db.db.engine.zones;
        let copy = zones.home_note()?.map(|note| LocalCopy::decode(&note)).transpose()?;
        let mut publisher = Publisher {
            db,
            to,
            claim: None,
            right: Right::default(),
            copy,
            takes: false,
            label: None,
            last: None,
            journal: None,
            rehearse: None,
        };
        if publisher.is_writer() {
            publisher.right = publisher.db.db.claim_note()?.right;
        }
        Ok(publisher)
    }
}

impl Publisher {
    /// Publishes the store. See [`Kvdb::push`]. The first call reads every zone in use; later calls
    /// read only the zones that were written since the previous call. After an error, the next call
    /// continues where the failed call stopped. The first call takes the right to publish from any
    /// other publisher. After another publisher has taken the right, all calls fail with
    /// [`Error::Overtaken`](crate::Error::Overtaken). See [`Publisher::take`].
    pub fn publish(
        &mut self,
        progress: &mut dyn FnMut(PushProgress) -> Result<()>,
    ) -> Result<PushStats> {
        let database = self.db.db.clone();
        let zones = &database.engine.zones;
        // After an error no claim is kept. A new claim finds the objects that were written before
        // the error.
        let mut claim = match self.claim.take() {
            Some(claim) if claim.age().is_some_and(|age| age < LONGEST_CLAIM) => claim,
            _ => self.claim().inspect_err(|e| self.stop_after(e))?,
        };
        // Take the stamp before the checkpoint, because changes during the call may or may not be
        // published.
        let changes = database.change_stamp();
        let journal = self.journal.clone();
        let shape = journal.as_ref().map(|journal| journal.begin_publication(&database));
        let shape = shape.transpose()?;
        let checkpoint = database.checkpoint_state()?;
        let first = self.first_reads(&checkpoint);
        let Checkpoint { state, uses, stats: _, held } = checkpoint;
        // A pending note in the head may come from a copy of this store.
        let is_own =
            |last: &&Last| last.name == claim.head().state && claim.head().pending.is_none();
        let last = self.last.as_ref().filter(is_own);
        let nothing = Marks::default();
        let marks = last.map_or(&nothing, |last| &last.marks);
        let known = claim.known(last.map(|last| &last.known))?;
        let memory = database.engine.options.memory / 4;
        let shares = self.is_registered()?;
        let seq = state.start.seq;
        let place = journal.as_ref().map(|journal| journal.place_after(seq));
        let what = ToPublish {
            zones,
            state: &state,
            uses: &uses,
            first: &first,
            shares,
            memory,
            journal: place,
        };
        let mut keep = keeper(&self.db, self.is_writer());
        let published = claim
            .publish(&what, (&known, marks), (&mut self.right, &mut keep), progress)
            .inspect_err(|e| self.stop_after(e))?;
        if let (Some(journal), Some(shape)) = (&journal, shape) {
            journal.published(&database, seq, shape);
        }
        drop(held);
        if shares {
            self.check_still_registered()?;
        }
        let Progress { objects, bytes, zones_total: zones, .. } = published.progress;
        let live_bytes = uses.iter().map(|(_, bytes)| bytes.min(ZONE_SIZE)).sum();
        let generation = claim.head().generation;
        let (known, marks) = (published.known, published.marks);
        self.last = Some(Last { name: claim.head().state.clone(), known, marks, changes });
        self.claim = Some(claim);
        Ok(PushStats { generation, zones, objects, bytes, live_bytes })
    }

    /// Makes each publication rehearse an opening of its state. The bytes that the rehearsal reads,
    /// at most 512 KiB, are published with the state, so that an opening needs no further request
    /// for them. `rehearse` is called with the state before the state is published. Its changes are
    /// lost, and its reads fail once the space for these bytes is used up, or after two seconds.
    pub fn rehearse(&mut self, rehearse: Box<Rehearse>) {
        self.rehearse = Some(rehearse);
    }

    /// Returns the first reads of the state. If the rehearsal fails, the result is empty, and an
    /// opening of the state takes more requests.
    fn first_reads(&self, checkpoint: &Checkpoint) -> FirstReads {
        let Some(rehearse) = &self.rehearse else { return FirstReads::default() };
        self.db.db.rehearse(checkpoint, rehearse).unwrap_or_else(|e| {
            tracing::debug!("the state is published without its first reads: {e}");
            FirstReads::default()
        })
    }

    /// Returns whether this file is the writer of the store at its address, which is the place of
    /// this publisher.
    pub fn is_writer(&self) -> bool {
        self.copy.as_ref().is_some_and(|copy| copy.writer.is_some() && copy.is_of(&self.to))
    }

    fn claimant(&self) -> Claimant {
        let database = &self.db.db;
        let mut claimant = Claimant::itself(database.engine.zones.superblock().uuid);
        claimant.takes = self.takes;
        if let Some(id) = self.copy.as_ref().and_then(|copy| copy.writer) {
            claimant.owner.id = id;
        }
        claimant
    }

    fn claim(&mut self) -> Result<Claim> {
        let database = self.db.db.clone();
        let (env, to) = (database.engine.env.clone(), self.to.clone());
        let (is_writer, mut claimant) = (self.is_writer(), self.claimant());
        let chain = self.journal.as_ref().map(|journal| journal.chain());
        claimant.has = Some((database.recovered, chain));
        if is_writer || self.label.is_some() {
            let since = database.engine.env.exact_wall().as_nanos() as u64;
            let label = self.label.clone().unwrap_or_default();
            claimant.owner = Owner { open: true, since, label, ..claimant.owner };
        }
        let mut keep = keeper(&self.db, is_writer);
        Claim::begin(env, to, &claimant, &mut self.right, &mut keep)
    }

    /// Stops commits to a store that another file has taken over, since they would never be
    /// published.
    fn stop_after(&self, error: &Error) {
        let (Error::Overtaken(_) | Error::OpenElsewhere { .. } | Error::WrittenElsewhere(_)) =
            error
        else {
            return;
        };
        self.journal.iter().for_each(|journal| journal.is_displaced());
        if self.is_writer() {
            self.db.db.engine.health.stop(|| {
                "another file is the writer of the store by now, so this one takes no more \
                 changes; it keeps all that it has, and can be published under another name"
                    .into()
            });
        }
    }

    /// Makes syncs also wait until the commits are in object storage, until the publisher is
    /// dropped. Syncs are calls of [`Kvdb::sync`], and commits with
    /// [`Durability::Synced`](crate::Durability::Synced). If the machine is lost, all synced
    /// commits are still in object storage, and a file made with [`RemoteStore::writer_to`] has
    /// them. Syncs call `publish` from any thread, one call at a time. `publish` must call
    /// [`Publisher::publish`]. Fails for a store without a journal.
    pub fn sync_remotely(&mut self, publish: Box<Publish>) -> Result<()> {
        let database = &self.db.db;
        if !database.engine.options.journal {
            return Err(Error::Invalid("a store without a journal syncs here alone".into()));
        }
        let journal = Arc::new(RemoteJournal::new(database, self.to.clone(), publish));
        database.commits.log.set_elsewhere(Some(journal.clone()));
        self.journal = Some(journal);
        Ok(())
    }

    /// Makes syncs wait for this machine only, as they did before [`Publisher::sync_remotely`].
    /// Syncs that are waiting fail.
    pub fn sync_here(&mut self) {
        if let Some(journal) = &self.journal {
            self.db.db.commits.log.set_elsewhere(None);
            journal.close();
        }
    }

    /// Returns whether syncs wait for object storage.
    pub fn syncs_remotely(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_open())
    }

    /// Records in the head that the store is open in this file, from the next claim until
    /// [`Publisher::close`]. During this time no other file can become the writer of the store at
    /// its address, unless the other file takes the store. `label` names the owner; its first 256
    /// bytes are kept.
    pub fn stay_open(&mut self, label: &str) {
        let mut label = label.to_owned();
        while label.len() > LONGEST_LABEL {
            label.pop();
        }
        (self.claim, self.label) = (None, Some(label));
    }

    /// Records in the head that the store is no longer open, so that another file may continue with
    /// the newest state. All commits must have been published; otherwise the call fails with
    /// [`Error::Invalid`](crate::Error::Invalid). No commit may follow. Does nothing for a store
    /// that was not recorded as open.
    pub fn close(&mut self) -> Result<()> {
        if !self.is_writer() && self.label.is_none() {
            return Ok(());
        }
        if self.is_due() {
            return Err(Error::Invalid("it has changes that are not published".into()));
        }
        let mut claim = match self.claim.take() {
            Some(claim) => claim,
            None => self.claim()?,
        };
        if self.is_writer() {
            // Before another file can continue with the state, write the note that this file has no
            // more changes.
            let note = ClaimNote { right: self.right.clone(), settled: true };
            self.db.db.write_claim_note(&note)?;
        }
        claim.close()
    }

    /// Returns whether the store is the writer of its address, or a fork that is registered in the
    /// place. Zones that came from the place are then kept while the fork is registered, as they
    /// are for the store itself. If the store is a cache or a dropped fork, a collector may delete
    /// these zones.
    fn is_registered(&self) -> Result<bool> {
        let Some(copy) = &self.copy else { return Ok(false) };
        if self.is_writer() {
            return Ok(true);
        }
        let Some(fork) = copy.fork else { return Ok(false) };
        let base = RemoteStore::new(self.to.objects().clone(), &copy.name)?;
        base.is_registered(&*self.db.db.engine.env, fork)
    }

    /// Fails if a fork that was registered when its publication began is no longer registered.
    fn check_still_registered(&self) -> Result<()> {
        if self.is_registered()? {
            return Ok(());
        }
        let what = "the fork was dropped while it was published, and what it shares may be \
                    gone: publish again";
        Err(Error::Invalid(what.into()))
    }

    /// Lets the next publication take the right to publish from another publisher of the file or of
    /// a copy of the file. A store that is written at its address can be taken only by
    /// [`RemoteStore::writer_to`], since this file would lack the commits that other writers have
    /// published.
    pub fn take(&mut self) {
        if !self.is_writer() {
            (self.claim, self.right) = (None, Right::default());
        }
    }

    /// Does the same as [`Publisher::take`], and also takes the right from a file that writes the
    /// store at its address. The next publication replaces the state that this other file has
    /// published.
    pub fn take_from_writer(&mut self) {
        self.take();
        self.takes = true;
    }

    /// Fails if the name in the place belongs to another store, or if this file has no right to
    /// publish under the name. Makes one request.
    pub fn check(&self) -> Result<()> {
        self.to.head()?.map_or(Ok(()), |head| self.claimant().check(&head, &self.to))
    }

    /// Returns whether anything was committed since this publisher's last publication. Makes no
    /// request.
    pub fn is_due(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.changes != self.db.db.change_stamp())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.sync_here();
    }
}

/// Returns a function that is called before each change of the right to publish. If the file writes
/// the store at its address, the function records the new right in the file.
fn keeper(db: &Kvdb, is_writer: bool) -> impl FnMut(&Right) -> Result<()> + use<> {
    let database = db.db.clone();
    move |right| match is_writer {
        true => database.write_claim_note(&ClaimNote { right: right.clone(), settled: false }),
        false => Ok(()),
    }
}

impl Database {
    /// Reads the note that a file keeps if it writes the store at its address.
    pub(super) fn claim_note(&self) -> Result<ClaimNote> {
        let note = self.engine.zones.claim_note()?;
        note.map_or_else(|| Ok(ClaimNote::default()), |note| ClaimNote::decode(&note))
    }

    pub(super) fn write_claim_note(&self, note: &ClaimNote) -> Result<()> {
        Ok(self.engine.zones.write_claim_note(&note.encode())?)
    }

    /// Returns a number that changes whenever the store changes in a way that a publication has to
    /// include.
    fn change_stamp(&self) -> u64 {
        let mut all = DefaultHasher::new();
        self.engine.versions.visible.load(Ordering::Acquire).hash(&mut all);
        let version = self.engine.versions.load_full();
        version.trees.iter().for_each(|(id, _)| id.hash(&mut all));
        self.hash_branches(&version, &mut all);
        all.finish()
    }

    /// Hashes the branches with their limits, and the snapshots.
    fn hash_branches(&self, version: &Version, all: &mut DefaultHasher) {
        version.branches.iter().for_each(|branch| branch.hash(all));
        version.limits.iter().for_each(|limit| limit.hash(all));
        version.limits_of_files.iter().for_each(|limit| limit.hash(all));
        for snapshot in self.engine.snapshots.list() {
            (&snapshot.label.name, snapshot.label.id).hash(all);
        }
    }

    /// Returns a number that changes whenever the store changes in another way than by a commit to
    /// a dictionary.
    pub(super) fn shape_stamp(&self) -> u64 {
        let mut all = DefaultHasher::new();
        let version = self.engine.versions.load_full();
        for tree in version.trees.values() {
            let info = tree.info();
            (info.id, &info.name, &info.branch, format!("{:?}", info.options)).hash(&mut all);
        }
        self.hash_branches(&version, &mut all);
        all.finish()
    }
}
