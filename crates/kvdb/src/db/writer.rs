//! Makes the local file through which a store in object storage is written at its address, on any
//! machine. The file continues the store itself; it is not a fork. Only one such file is open at a
//! time.
//!
//! The store is claimed first. No other file can publish after the claim, so the newest state
//! cannot be replaced by another file, and the commits on top of it become the next published
//! state.

use std::sync::Arc;

use env::Env;
use vt_tree::Value;
use zones::remote::{read_claim, write_claim};
use zones::{Device, ZONE_SIZE, Zones};

use crate::commit::batch::{Batch, BatchChange, Durability};
use crate::db::Kvdb;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::journal::record::Op;
use crate::options::OpenOptions;
use crate::remote::{
    Claim, ClaimNote, Claimant, JournalContent, JournalPlace, Kind, LONGEST_LABEL, LocalCopy,
    Owner, RemoteStore, RemoteZones, Right, random_id,
};

/// Options for opening a store for writing at its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterOptions {
    /// A description, of at most 256 bytes, of where the store is open.
    pub label: String,
    /// Takes the store from a file that has it open. Commits that the other file has not published
    /// stay in that file only.
    pub take: bool,
}

impl RemoteStore {
    /// Makes the file on `device` the writer of the store. If the file was the last writer, it
    /// continues with all of its data. If another file has been the writer since, and all commits
    /// of this file were published, the file is replaced with a file of the newest state. The same
    /// happens to a cache, and to a device that holds no store.
    ///
    /// Fails with [`Error::OpenElsewhere`] if another file is open for writing. Fails with
    /// [`Error::Unpublished`] if another file has been the writer since, and this file has commits
    /// that were never published. Fails with [`Error::Invalid`] if the device holds another store.
    ///
    /// The store is opened with [`OpenOptions::remote`](crate::OpenOptions::remote), published by
    /// [`Kvdb::publisher`](crate::Kvdb::publisher), and closed by
    /// [`Publisher::close`](crate::Publisher::close).
    pub fn writer_to(
        &self,
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        options: &WriterOptions,
    ) -> Result<LocalCopy> {
        let WriterOptions { label, take } = options.clone();
        if label.len() > LONGEST_LABEL {
            let len = label.len();
            return Err(Error::Invalid(format!("a label of {len} bytes: at most {LONGEST_LABEL}")));
        }
        let head = self.head()?.filter(|head| head.state.is_some());
        let head = head.ok_or_else(|| Error::NoStore(self.place()))?;
        let since = env.exact_wall().as_nanos() as u64;
        let owner = |id| Owner { id, open: true, since, label: label.clone() };
        if let Some((copy, id)) = self.written_by(&*device)? {
            let note = read_claim(&*device)?.map(|note| ClaimNote::decode(&note)).transpose()?;
            let mut note = note.unwrap_or_default();
            let is_same = copy.is_of(self) && copy.store == head.store;
            if is_same && note.right != Right::default() && note.right.holds(&head) {
                let claimant = Claimant { owner: owner(id), ..Claimant::itself(head.store) };
                let mut keep = |right: &Right| write_note(&*device, right);
                Claim::begin(env, self.clone(), &claimant, &mut note.right, &mut keep)?;
                return Ok(copy);
            }
            if !note.settled {
                return Err(Error::Unpublished(format!("{}/{}", copy.place, copy.name)));
            }
        }
        let id = random_id(&*env);
        let claimant = Claimant {
            store: head.store,
            owner: owner(id),
            takes_up: true,
            takes: take,
            has: None,
        };
        let mut right = Right::default();
        let mut claim =
            Claim::begin(env.clone(), self.clone(), &claimant, &mut right, &mut |_| Ok(()))?;
        let made = match claim.tail() {
            None => self.copy_of(Some(claim.head().clone()), Kind::Writer(id, &right), device, env),
            Some(tail) => self.copy_with_journal(&claim, (id, &right), tail, device, env),
        };
        made.inspect_err(|_| {
            // The new owner has written nothing, so restore the previous owner as if it had closed
            // the store.
            if let Err(e) = claim.give_back(head.owner) {
                tracing::warn!("{} stays open for writing: {e}", self.place());
            }
        })
    }
}

impl RemoteStore {
    /// Makes the file of a writer, with the commits that the journal has after the newest state.
    /// The file gets the right to publish only when it is complete, so after a crash it is made
    /// again.
    fn copy_with_journal(
        &self,
        claim: &Claim,
        (id, right): ([u8; 16], &Right),
        (from, to): (JournalPlace, JournalPlace),
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
    ) -> Result<LocalCopy> {
        let kind = Kind::Writer(id, &Right::default());
        let head = Some(claim.head().clone());
        let copy = self.copy_of(head, kind, device.clone(), env.clone())?;
        let options = OpenOptions {
            remote: Some(RemoteZones::new(self.objects().clone())),
            threads: false,
            memory: 64 << 20,
            ..OpenOptions::default()
        };
        let (db, _) = Kvdb::open(device.clone(), env, options)?;
        self.replay_journal(&db, from, to)?;
        db.close()?;
        drop(db);
        write_note(&*device, right)?;
        Ok(copy)
    }

    /// Replays the commits between two places of the journal in object storage into `db`, which has
    /// the newest state.
    fn replay_journal(&self, db: &Kvdb, from: JournalPlace, to: JournalPlace) -> Result<()> {
        let lacks = || {
            Error::Corrupt(format!("the journal of {} lacks commits before others", self.place()))
        };
        let mut next = db.published_seq() + 1;
        let mut place = from;
        while place.number < to.number {
            let Some(JournalContent::Commits(commits)) = self.get_journal(&place)? else {
                return Err(lacks());
            };
            for commit in commits {
                if commit.last() < next {
                    continue;
                }
                if commit.first != next {
                    return Err(lacks());
                }
                next = commit.last() + 1;
                let mut batch = Batch::new();
                // The commit was within all limits when it was made.
                batch.releases_space();
                batch.changes = commit.changes.into_iter().filter_map(batched).collect();
                db.commit(batch, Durability::Buffered)?;
            }
            place = place.next()?;
        }
        Ok(())
    }

    /// If the file on `device` is a writer, returns its note and its identity. Returns `None` if
    /// overwriting the device would lose nothing.
    fn written_by(&self, device: &dyn Device) -> Result<Option<(LocalCopy, [u8; 16])>> {
        let is_empty = device.len()? < ZONE_SIZE;
        if is_empty || matches!(Zones::is_remote(device), Err(zones::Error::NotAStore)) {
            return Ok(None);
        }
        match LocalCopy::of(device)? {
            Some(copy) if copy.writer.is_some() => Ok(copy.writer.map(|id| (copy, id))),
            Some(copy) if copy.fork.is_none() => Ok(None),
            _ => Err(Error::Invalid(format!(
                "the local file for {} holds another store: name another file",
                self.place()
            ))),
        }
    }
}

/// Converts a change of the journal into a change of a batch.
fn batched((dict, op): (DictionaryId, Op)) -> Option<BatchChange> {
    Some(match op {
        Op::Put(key, Value::Inline(value)) => BatchChange::Put(dict, key, value),
        Op::Update(key, update) => BatchChange::Update(dict, key, update),
        Op::Delete(key) => BatchChange::Delete(dict, key),
        Op::DeleteRange(start, end) => BatchChange::DeleteRange(dict, start, end),
        Op::Put(_, Value::Extent(_)) | Op::PutDeferred(..) | Op::PutDiscarded(..) => return None,
    })
}

fn write_note(device: &dyn Device, right: &Right) -> Result<()> {
    let note = ClaimNote { right: right.clone(), settled: false };
    Ok(write_claim(device, &note.encode())?)
}

/// Records in the file of a writer that the file may get commits that are not published.
pub(crate) fn unsettle(zones: &Zones) -> Result<()> {
    let Some(note) = zones.claim_note()? else { return Ok(()) };
    let note = ClaimNote::decode(&note)?;
    match note.settled {
        // A file without a right has no commits that could be lost.
        true if note.right == Right::default() => Ok(()),
        true => Ok(zones.write_claim_note(&ClaimNote { settled: false, ..note }.encode())?),
        false => Ok(()),
    }
}
