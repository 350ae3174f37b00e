//! Publishes an open store again and again. Each publication writes what is new since the one
//! before, and reads no more than the zones that were written since.

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
    /// The note of a file of zones in object storage.
    copy: Option<LocalCopy>,
    /// See [`Publisher::take_from_writer`].
    takes: bool,
    /// See [`Publisher::stay_open`].
    label: Option<String>,
    last: Option<Last>,
    /// See [`Publisher::sync_remotely`].
    journal: Option<Arc<RemoteJournal>>,
    /// See [`Publisher::rehearse`].
    rehearse: Option<Box<Rehearse>>,
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
    /// Returns a publisher of the store to a place in object storage. Nothing is done yet there.
    pub fn publisher(&self, to: &RemoteStore) -> Result<Publisher> {
        let (db, to) = (self.clone(), to.clone());
        let zones = &db.db.0.zones;
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
            publisher.right = publisher.db.db.0.claim_note()?.right;
        }
        Ok(publisher)
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
        let database = self.db.db.0.clone();
        let zones = &database.zones;
        // After an error it is gone: what it had written is found there.
        let mut claim = match self.claim.take() {
            Some(claim) if claim.age().is_some_and(|age| age < LONGEST_CLAIM) => claim,
            _ => self.claim().inspect_err(|e| self.stop_after(e))?,
        };
        // Of changes that come during the call it is not told whether they are published.
        let changes = database.change_stamp();
        let journal = self.journal.clone();
        let shape = journal.as_ref().map(|journal| journal.begin_publication(&database));
        let shape = shape.transpose()?;
        let checkpoint = database.checkpoint_state()?;
        let first = self.first_reads(&checkpoint);
        let Checkpoint { state, uses, stats: _, held } = checkpoint;
        // A pending note may be that of a copy of this store.
        let is_own =
            |last: &&Last| last.name == claim.head().state && claim.head().pending.is_none();
        let last = self.last.as_ref().filter(is_own);
        let nothing = Marks::default();
        let marks = last.map_or(&nothing, |last| &last.marks);
        let known = claim.known(last.map(|last| &last.known))?;
        let memory = database.options.memory / 4;
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

    /// Has each publication try out what is read first of a store that is opened from it, and take
    /// the bytes along (at most 512 KiB), so that those who open it need no further request for
    /// them. `rehearse` is called with the state before it is published; what it changes is lost,
    /// and its reads fail when there is no room for more, or after two seconds.
    pub fn rehearse(&mut self, rehearse: Box<Rehearse>) {
        self.rehearse = Some(rehearse);
    }

    /// Without them it takes more requests to open the store, and nothing else.
    fn first_reads(&self, checkpoint: &Checkpoint) -> FirstReads {
        let Some(rehearse) = &self.rehearse else { return FirstReads::default() };
        self.db.db.0.rehearse(checkpoint, rehearse).unwrap_or_else(|e| {
            tracing::debug!("the state is published without its first reads: {e}");
            FirstReads::default()
        })
    }

    /// Returns whether the store is written at its address by this file, and is published there.
    pub fn is_writer(&self) -> bool {
        self.copy.as_ref().is_some_and(|copy| copy.writer.is_some() && copy.is_of(&self.to))
    }

    fn claimant(&self) -> Claimant {
        let database = &self.db.db.0;
        let mut claimant = Claimant::itself(database.zones.superblock().uuid);
        claimant.takes = self.takes;
        if let Some(id) = self.copy.as_ref().and_then(|copy| copy.writer) {
            claimant.owner.id = id;
        }
        claimant
    }

    fn claim(&mut self) -> Result<Claim> {
        let database = self.db.db.0.clone();
        let (env, to) = (database.env.clone(), self.to.clone());
        let (is_writer, mut claimant) = (self.is_writer(), self.claimant());
        let chain = self.journal.as_ref().map(|journal| journal.chain());
        claimant.has = Some((database.recovered, chain));
        if is_writer || self.label.is_some() {
            let since = database.env.exact_wall().as_nanos() as u64;
            let label = self.label.clone().unwrap_or_default();
            claimant.owner = Owner { open: true, since, label, ..claimant.owner };
        }
        let mut keep = keeper(&self.db, is_writer);
        Claim::begin(env, to, &claimant, &mut self.right, &mut keep)
    }

    /// Stops commits to a store that another file has taken over: they would never be published.
    fn stop_after(&self, error: &Error) {
        let (Error::Overtaken(_) | Error::OpenElsewhere { .. } | Error::WrittenElsewhere(_)) =
            error
        else {
            return;
        };
        self.journal.iter().for_each(|journal| journal.is_displaced());
        if self.is_writer() {
            self.db.db.0.health.stop(|| {
                "another file is the writer of the store by now, so this one takes no more \
                 changes; it keeps all that it has, and can be published under another name"
                    .into()
            });
        }
    }

    /// Has syncs return when the commits are in object storage, too, until this is dropped: calls
    /// of [`Kvdb::sync`], and commits with [`Durability::Synced`](crate::Durability::Synced). A
    /// machine that is lost loses nothing of what they have told, and who takes the store with
    /// [`RemoteStore::writer_to`] has it. `publish` is called by syncs, from any thread, and calls
    /// [`Publisher::publish`]; it is not called by more than one at a time. Fails for a store
    /// without a journal.
    pub fn sync_remotely(&mut self, publish: Box<Publish>) -> Result<()> {
        let database = &self.db.db.0;
        if !database.options.journal {
            return Err(Error::Invalid("a store without a journal syncs here alone".into()));
        }
        let journal = Arc::new(RemoteJournal::new(database, self.to.clone(), publish));
        database.commits.set_elsewhere(Some(journal.clone()));
        self.journal = Some(journal);
        Ok(())
    }

    /// Has syncs return when the commits are on this machine, as before
    /// [`Publisher::sync_remotely`]; those that wait fail.
    pub fn sync_here(&mut self) {
        if let Some(journal) = &self.journal {
            self.db.db.0.commits.set_elsewhere(None);
            journal.close();
        }
    }

    /// Returns whether syncs wait for object storage.
    pub fn syncs_remotely(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_open())
    }

    /// Has the head say that the store is open in this file, from the next claim until
    /// [`Publisher::close`]: as long as it does, no file is made by which the store is written at
    /// its address, unless it is taken. `label` says whose it is; 256 bytes of it count.
    pub fn stay_open(&mut self, label: &str) {
        let mut label = label.to_owned();
        while label.len() > LONGEST_LABEL {
            label.pop();
        }
        (self.claim, self.label) = (None, Some(label));
    }

    /// Has the head say that the store is open no more: another file may begin with the newest
    /// state. All that was committed has to be published, which is an
    /// [`Error::Invalid`](crate::Error::Invalid) otherwise, and nothing may be committed any more.
    /// It does nothing for a store that was not open there.
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
            // Before another file can begin with the state: then it counts that this has no more.
            let note = ClaimNote { right: self.right.clone(), settled: true };
            self.db.db.0.write_claim_note(&note)?;
        }
        claim.close()
    }

    /// Returns whether the store is a fork that is registered in the place. Then zones that came
    /// from there stay as long as it is, as they do for the store itself. Of a cache, or of a fork
    /// that was dropped, a collector may delete them.
    fn is_registered(&self) -> Result<bool> {
        let Some(copy) = &self.copy else { return Ok(false) };
        if self.is_writer() {
            return Ok(true);
        }
        let Some(fork) = copy.fork else { return Ok(false) };
        let base = RemoteStore::new(self.to.objects().clone(), &copy.name)?;
        base.is_registered(&*self.db.db.0.env, fork)
    }

    /// Lets the next publication take the right to publish from another publisher of the file, or
    /// of a copy of it. A store that is written at its address is taken by
    /// [`RemoteStore::writer_to`] alone, since its file would lack what others have published.
    pub fn take(&mut self) {
        if !self.is_writer() {
            (self.claim, self.right) = (None, Right::default());
        }
    }

    /// As [`Publisher::take`], also from a file by which the store is written at its address: what
    /// that has published is replaced.
    pub fn take_from_writer(&mut self) {
        self.take();
        self.takes = true;
    }

    /// Fails if the name there belongs to another store, or may not be published by this file, by
    /// one request.
    pub fn check(&self) -> Result<()> {
        self.to.head()?.map_or(Ok(()), |head| self.claimant().check(&head, &self.to))
    }

    /// Returns whether something was committed since the last publication by this publisher. It
    /// makes no request.
    pub fn is_due(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.changes != self.db.db.0.change_stamp())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.sync_here();
    }
}

/// Notes the right of a file by which a store is written at its address, before each change of it.
fn keeper(db: &Kvdb, is_writer: bool) -> impl FnMut(&Right) -> Result<()> + use<> {
    let database = db.db.0.clone();
    move |right| match is_writer {
        true => database.write_claim_note(&ClaimNote { right: right.clone(), settled: false }),
        false => Ok(()),
    }
}

impl Database {
    /// Reads the note of a file by which a store is written at its address.
    pub(super) fn claim_note(&self) -> Result<ClaimNote> {
        let note = self.zones.claim_note()?;
        note.map_or_else(|| Ok(ClaimNote::default()), |note| ClaimNote::decode(&note))
    }

    pub(super) fn write_claim_note(&self, note: &ClaimNote) -> Result<()> {
        Ok(self.zones.write_claim_note(&note.encode())?)
    }

    /// Returns a number that is another one after each change that a publication has to show.
    fn change_stamp(&self) -> u64 {
        let mut all = DefaultHasher::new();
        self.versions.visible.load(Ordering::Acquire).hash(&mut all);
        let version = self.versions.load_full();
        version.trees.iter().for_each(|(id, _)| id.hash(&mut all));
        version.branches.iter().for_each(|branch| branch.hash(&mut all));
        version.limits.iter().for_each(|limit| limit.hash(&mut all));
        version.limits_of_files.iter().for_each(|limit| limit.hash(&mut all));
        for snapshot in self.snapshots.list() {
            (&snapshot.label.name, snapshot.label.id).hash(&mut all);
        }
        all.finish()
    }

    /// Returns a number that is another one after each change that is no commit to a dictionary.
    pub(super) fn shape_stamp(&self) -> u64 {
        let mut all = DefaultHasher::new();
        let version = self.versions.load_full();
        for tree in version.trees.values() {
            let info = tree.info();
            (info.id, &info.name, &info.branch, format!("{:?}", info.options)).hash(&mut all);
        }
        version.branches.iter().for_each(|branch| branch.hash(&mut all));
        version.limits.iter().for_each(|limit| limit.hash(&mut all));
        version.limits_of_files.iter().for_each(|limit| limit.hash(&mut all));
        for snapshot in self.snapshots.list() {
            (&snapshot.label.name, snapshot.label.id).hash(&mut all);
        }
        all.finish()
    }
}
