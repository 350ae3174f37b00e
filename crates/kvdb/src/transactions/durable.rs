//! Transactions that survive a crash and a restart. The changes of such a transaction are logged in
//! a dictionary of its own, in a hidden branch, one tuple for each call. They are committed like
//! all other data and hence on disk within the flush interval. A snapshot of its own keeps the
//! state that it reads. When the store is opened again, the transaction resumes as of the last of
//! its calls that is on disk.
//!
//! Its commit deletes the log atomically with its changes, and an abort deletes it, too. A log
//! without its first tuple therefore belongs to a transaction that has ended, even if a crash
//! followed, and is swept up.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vt_tree::{BlockCache, Seq, Value};
use zones::ZonePin;

use super::ending::change;
use super::options::{Isolation, TransactionOptions};
use super::registry::Transactions;
use super::state::{Open, TransactionState};
use crate::commit::SpaceClaim;
use crate::commit::batch::{Batch, Durability};
use crate::dictionary::{DictionaryId, DictionaryOptions};
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::{self, Op, Ops, Record};
use crate::log::codec::{Decoder, put_bytes, put_varint};
use crate::mirror::Note;
use crate::version::read;
use crate::write_set::WriteSet;

/// The branch that holds the logs.
pub(super) const BRANCH: &str = ".transactions";
/// The key of a log's first tuple, which holds the options that the transaction was begun with.
const BEGINNING: &[u8] = &[];
/// An upper bound after all keys of a log.
const END: [u8; 9] = [0xff; 9];
/// Header flag: the log names a user.
const WITH_USER: u8 = 2;
/// Header flag: the commit of the transaction can be undone.
const UNDOABLE: u8 = 4;
/// Header flag: the changes of the transaction are shown in place of the store.
const IN_PLACE: u8 = 8;
/// Header flag: the transaction has a limit in bytes.
const LIMITED: u8 = 16;
/// Header flag: the number of files that the transaction may make is limited.
const FILES_LIMITED: u8 = 32;
/// The header version of a log of the main branch, and that of a log that names another branch.
/// They differ so that older programs do not take the latter for a log of the main branch.
const OF_MAIN: u8 = 1;
const OF_BRANCH: u8 = 2;
/// The changes of a call are logged in pieces of about this many bytes.
const PIECE: usize = 1 << 20;

/// Returns the name of the snapshot that keeps the state that a transaction reads.
fn base_name(id: impl Display) -> String {
    format!(".transaction-{id}")
}

/// Encodes the options of a transaction as the first tuple of its log: version, flags (1: conflicts
/// are checked, 2: with a user, 4: its commit can be undone, 8: it is seen in place of the store,
/// 16: with a limit, 32: with one of files), varint idle limit in ms plus one (0 without a limit),
/// bytes label, varint user if there is one, bytes branch in version 2, varint limit in bytes if
/// there is one, varint limit of files if there is one.
pub(crate) fn encode(options: &TransactionOptions) -> Vec<u8> {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let version = if options.branch.is_empty() { OF_MAIN } else { OF_BRANCH };
    let mut out = vec![
        version,
        flag(options.check_conflicts, 1)
            | flag(options.user.is_some(), WITH_USER)
            | flag(options.undoable, UNDOABLE)
            | flag(options.in_place, IN_PLACE)
            | flag(options.limit.is_some(), LIMITED)
            | flag(options.limit_of_files.is_some(), FILES_LIMITED),
    ];
    put_varint(&mut out, options.idle_limit.map_or(0, |limit| limit.as_millis() as u64 + 1));
    put_bytes(&mut out, options.label.as_bytes());
    options.user.into_iter().for_each(|user| put_varint(&mut out, user.into()));
    if version == OF_BRANCH {
        put_bytes(&mut out, options.branch.as_bytes());
    }
    let limits = options.limit.into_iter().chain(options.limit_of_files);
    limits.for_each(|limit| put_varint(&mut out, limit));
    out
}

pub(crate) fn decode(bytes: &[u8]) -> Result<TransactionOptions> {
    let mut r = Decoder::new(bytes, "the log of a transaction");
    let version = r.u8()?;
    if !(OF_MAIN..=OF_BRANCH).contains(&version) {
        return Err(r.corrupt("it was written by a newer version"));
    }
    let flags = r.u8()?;
    let check_conflicts = flags & 1 != 0;
    let idle_limit = r.varint()?.checked_sub(1).map(Duration::from_millis);
    let label = String::from_utf8_lossy(r.bytes()?).into_owned();
    let user = if flags & WITH_USER != 0 {
        Some(u32::try_from(r.varint()?).map_err(|_| r.corrupt("an impossible user"))?)
    } else {
        None
    };
    let branch = match version {
        OF_BRANCH => String::from_utf8(r.bytes()?.to_vec())
            .map_err(|_| r.corrupt("a branch whose name is no text"))?,
        _ => String::new(),
    };
    let limit = if flags & LIMITED != 0 { Some(r.varint()?) } else { None };
    let limit_of_files = if flags & FILES_LIMITED != 0 { Some(r.varint()?) } else { None };
    Ok(TransactionOptions {
        limit,
        limit_of_files,
        check_conflicts,
        idle_limit,
        branch,
        label,
        user,
        detached: true,
        durable: true,
        undoable: flags & UNDOABLE != 0,
        in_place: flags & IN_PLACE != 0,
        ..Default::default()
    })
}

/// Returns self-contained changes: values that are stored elsewhere are read and inlined.
fn whole(cache: &BlockCache, changes: &Ops) -> Result<Ops> {
    let op = |op: &Op| -> Result<Op> {
        Ok(match op {
            Op::Put(key, value @ Value::Extent(_)) => {
                Op::Put(key.clone(), Value::Inline(read(cache, value.clone())?))
            }
            op => op.clone(),
        })
    };
    changes.iter().map(|(dict, change)| Ok((*dict, op(change)?))).collect()
}

impl Transactions {
    /// Begins the log of a transaction and takes the snapshot that it reads from; both are durable
    /// when this returns. Also returns the newest commit that the transaction reads. The caller
    /// holds `logging`.
    pub(super) fn begin_log(
        &self,
        id: TransactionId,
        options: &TransactionOptions,
    ) -> Result<(Open, Seq)> {
        if options.isolation == Isolation::Serializable {
            return Err(Error::Invalid(
                "a durable transaction cannot be serializable: its locks would not survive".into(),
            ));
        }
        match self.parts.snapshotter.create_branch(BRANCH) {
            Ok(()) | Err(Error::Exists(_)) => {}
            Err(e) => return Err(e),
        }
        let dict = DictionaryOptions { reserved: true, ..DictionaryOptions::default() };
        let log = self.parts.catalog.create(BRANCH, &id.to_string(), dict)?;
        self.parts.snapshotter.snapshot(&options.branch, &base_name(id), Durability::Buffered)?;
        let mut batch = Batch::new();
        batch.put(log, BEGINNING, encode(options));
        self.commit(batch, Durability::Synced)?;
        let snapshot = self.engine.snapshots.get(&base_name(id));
        let seq = snapshot.ok_or_else(|| Error::NoSnapshot(base_name(id)))?.label.seq;
        Ok((self.open_logged(id, log)?, seq))
    }

    /// Returns the initial state of a transaction, which reads the same snapshot before and after a
    /// restart.
    fn open_logged(&self, id: TransactionId, log: DictionaryId) -> Result<Open> {
        let base = self.parts.snapshotter.open_snapshot(&base_name(id))?;
        Ok(Open { log: Some(log), ..Open::new(Some(base)) })
    }

    /// Logs changes that a transaction is about to make. `at` is the number of changes that it has
    /// made before, `note` the request that these changes complete.
    pub(super) fn log(
        &self,
        log: DictionaryId,
        at: u64,
        changes: &Ops,
        claim: (SpaceClaim, Option<Note>),
    ) -> Result<()> {
        self.log_in(Batch::new(), log, at, changes, claim)
    }

    /// Removes the log entries of all changes after the first `keep`, and logs `changes` as made
    /// after `at` others. Both are one commit: a crash leaves both or neither.
    pub(super) fn log_after_cut(
        &self,
        log: DictionaryId,
        keep: u64,
        at: u64,
        changes: &Ops,
        claim: SpaceClaim,
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete_range(log, Bytes::copy_from_slice(&keep.to_be_bytes()), &END[..]);
        batch.releases_space();
        self.log_in(batch, log, at, changes, (claim, None))
    }

    fn log_in(
        &self,
        mut batch: Batch,
        log: DictionaryId,
        at: u64,
        changes: &Ops,
        (claim, note): (SpaceClaim, Option<Note>),
    ) -> Result<()> {
        let changes = whole(&self.engine.cache, changes)?;
        note.into_iter().for_each(|note| batch.note(note));
        if claim.promised {
            batch.takes_promised_space();
        }
        let mut rest = &changes[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(_, op)| {
                bytes += op.bytes();
                bytes <= PIECE
            });
            let (piece, more) = rest.split_at(fits.count().max(1));
            let mut record = Vec::new();
            record::encode(piece, &mut record, |_| {});
            let at = at + (changes.len() - rest.len()) as u64;
            batch.put(log, Bytes::copy_from_slice(&at.to_be_bytes()), record);
            rest = more;
        }
        self.commit(batch, Durability::Buffered)
    }

    /// Atomically logs the write set of a nested transaction that commits into the one whose log
    /// this is, whatever its size. `at` is the number of changes that the enclosing one has made
    /// before.
    pub(super) fn log_nested(
        self: &Arc<Self>,
        log: DictionaryId,
        at: u64,
        write_set: &WriteSet,
    ) -> Result<()> {
        let transaction = self.begin(TransactionOptions {
            check_conflicts: false,
            private: true,
            label: "a log".into(),
            ..TransactionOptions::default()
        })?;
        let (mut piece, mut bytes, mut at) = (Ops::new(), 0, at);
        let mut put = |piece: &mut Ops| -> Result<()> {
            let mut record = Vec::new();
            record::encode(&whole(&self.engine.cache, piece)?, &mut record, |_| {});
            transaction.put(log, at.to_be_bytes(), record)?;
            at += piece.len() as u64;
            piece.clear();
            Ok(())
        };
        write_set.for_each(|dict, item| {
            let op = change(&self.engine.cache, item)?;
            bytes += op.bytes();
            piece.push((dict, op));
            if bytes >= PIECE {
                bytes = 0;
                put(&mut piece)?;
            }
            Ok(())
        })?;
        if !piece.is_empty() {
            put(&mut piece)?;
        }
        transaction.commit(Durability::Buffered)
    }

    fn delete_log(&self, log: DictionaryId, from: Bytes) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete_range(log, from, Bytes::from_static(&END));
        self.commit(batch, Durability::Buffered)
    }

    /// Ends the log of a transaction that could not be begun.
    pub(super) fn delete_begun_log(&self, log: Option<DictionaryId>) -> Result<()> {
        log.map_or(Ok(()), |log| self.delete_log(log, Bytes::from_static(BEGINNING)))
    }

    /// Returns the operation that deletes the content of a log, and so ends it.
    pub(super) fn end_of_log(log: DictionaryId) -> (DictionaryId, Op) {
        (log, Op::DeleteRange(Bytes::from_static(BEGINNING), Bytes::from_static(&END)))
    }

    /// Reopens the transactions whose logs exist.
    pub(crate) fn restore(self: &Arc<Self>) -> Result<()> {
        let view = self.engine.versions.view();
        let logs = view
            .version
            .trees
            .values()
            .filter(|t| &*t.info().branch == BRANCH)
            .map(|t| (t.info().id, t.info().name.clone()));
        for (log, name) in logs.collect::<Vec<_>>() {
            let Ok(id) = name.parse::<u64>().map(TransactionId) else { continue };
            self.number_used(id);
            let beginning = view.get(log, BEGINNING).transpose();
            if let Some(beginning) = beginning {
                // Whatever is wrong with one transaction, the others and the store continue.
                match beginning.and_then(|beginning| self.restore_one(id, log, &beginning)) {
                    Ok(()) => tracing::info!("transaction {id} goes on"),
                    Err(e @ (Error::Corrupt(_) | Error::NoSnapshot(_) | Error::NoBranch(_))) => {
                        tracing::warn!("transaction {id} cannot go on, and is aborted: {e}");
                        self.delete_log(log, Bytes::from_static(BEGINNING))?;
                    }
                    Err(e) => {
                        tracing::warn!(
                            "transaction {id} cannot go on now; it is kept for the next time the store is opened: {e}"
                        )
                    }
                }
            }
        }
        Ok(())
    }

    fn restore_one(
        self: &Arc<Self>,
        id: TransactionId,
        log: DictionaryId,
        beginning: &[u8],
    ) -> Result<()> {
        let options = decode(beginning)?;
        if !self.engine.versions.load().has_branch(&options.branch) {
            return Err(Error::NoBranch(options.branch));
        }
        // The numbers of the commits between its beginning and this opening are unknown, so
        // conflicts with them are found by value.
        let mut open = Open { by_value: true, ..self.open_logged(id, log)? };
        let share = self.share();
        let mut cursor = self.engine.versions.view().cursor(log, &[0], b"")?;
        while let Some(tuple) = cursor.next()? {
            // The record begins with its own length.
            let value = tuple.value()?;
            let mut rest = &value[..];
            zones::varint::get_u64(&mut rest).map_err(|_| {
                Error::Corrupt(format!("the log of transaction {id} has a record without a length"))
            })?;
            let Record::Commit(changes) = record::decode(&value.slice_ref(rest))? else {
                return Err(Error::Corrupt(format!(
                    "the log of transaction {id} has a record that is no change"
                )));
            };
            if changes.iter().any(|(_, op)| matches!(op, Op::PutDiscarded(..))) {
                return Err(Error::Corrupt(format!(
                    "the log of transaction {id} has a put without its value"
                )));
            }
            if open.write_set.is_full(share) {
                match open.write_set.spill(&self.engine, &Default::default()) {
                    // Accept as much in memory as a transaction in a full store may hold.
                    Err(Error::NoSpace)
                        if open.write_set.memory() < 2 * share + self.shares.largest_record => {}
                    spilled => spilled?,
                }
            }
            // Do not reuse numbers of changes that were rolled back.
            let at = tuple.key.first_chunk().map_or(0, |at| u64::from_be_bytes(*at));
            open.write_set.at = open.write_set.at.max(at);
            open.write_set.write(&changes, ZonePin::default());
        }
        self.take_up(id, options, open);
        Ok(())
    }

    /// Drops the logs of transactions that have ended: those that are not open and whose log has no
    /// first tuple. (When the store is being closed, durable transactions are not open either, but
    /// their logs keep the first tuple, and they resume later.)
    pub(crate) fn sweep_logs(&self) -> Result<()> {
        // The log of a transaction that is just beginning must stay.
        let Some(_logging) = self.logging.try_lock() else { return Ok(()) };
        let view = self.engine.versions.view();
        let mut ended = Vec::new();
        for tree in view.version.trees.values().filter(|t| &*t.info().branch == BRANCH) {
            let open =
                tree.info().name.parse().is_ok_and(|id| self.find(TransactionId(id)).is_some());
            if !open && view.get(tree.info().id, BEGINNING)?.is_none() {
                ended.push((tree.info().id, tree.info().name.clone()));
            }
        }
        drop(view);
        for (log, name) in ended {
            match self.parts.snapshotter.drop_snapshot(&base_name(name)) {
                Ok(()) | Err(Error::NoSnapshot(_)) => self.parts.catalog.remove_own(log)?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl TransactionState {
    /// Ends the log of a transaction that is aborted.
    pub(super) fn end_log(&self, log: Option<DictionaryId>) {
        let Some(log) = log else { return };
        if let Err(e) = self.registry.delete_log(log, Bytes::from_static(BEGINNING)) {
            tracing::warn!(
                "transaction {} is aborted, but may be there again when the store is opened: {e}",
                self.id
            );
        }
    }
}
