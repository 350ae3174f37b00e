//! Receives a snapshot that another store has sent. The stream is applied to a hidden branch,
//! together with a record of the progress, so that a stream that was cut off can be resumed. At the
//! end of the stream, one edit of the manifest replaces the old branch with the hidden branch and
//! adds the snapshot.
//!
//! A stream is sorted, so its tuples are written directly into runs, as in a bulk ingest. A
//! transaction binds a few megabytes of these runs, together with the record of the progress, and
//! commits. The first megabyte of a stream is committed as batches, because most streams are short
//! and runs must be synced.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;

use crate::commit::batch::{Batch, Durability};
use crate::db::Kvdb;
use crate::dictionary::{DictionaryId, DictionaryOptions};
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::snapshots::check_name;
use crate::snapshots::stream::{BuildsUpon, Frame, Received, StreamHeader, read_magic};
use crate::transactions::{Bulk, Transaction, TransactionOptions};
use crate::version::snapshot_set::Snapshot;

/// The prefix of the name of a branch that receives a stream. The name continues with the
/// snapshot's id and, for a stream of changes, with the id of the base, since two streams of one
/// snapshot with different bases have different chunks.
const PREFIX: &str = ".receive-";
/// The name of a dictionary of the hidden branch. Its only key holds the progress.
const PROGRESS: &str = ".progress";
/// The key in the dictionary [`PROGRESS`].
const KEY: &[u8] = b"received";
/// The reason that serializable transactions of the replaced branch report when they end.
const REPLACED: &str =
    "what it has read or changed was replaced by what was received: begin it again";
/// The number of chunks that are committed one by one, before later chunks are written into runs.
const FIRST: u64 = 8;
/// The number of bytes of a stream after which a transaction commits. A crash loses at most about
/// this much progress.
const TOGETHER: usize = 64 << 20;
/// The number of free bytes below which deleted data is reclaimed before more is received.
const SHORT: u64 = 32 << 20;

/// The destination of a received snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// The branch that is replaced by the snapshot's contents, or an empty string for the main
    /// branch.
    pub branch: String,
    /// The name of the snapshot in this store, or `None` to keep its name in the sending store.
    pub snapshot: Option<String>,
    /// Replaces the branch even if it differs from the base of the changes that were sent.
    pub replace: bool,
}

/// The result of a receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveStats {
    /// The name of the snapshot in this store.
    pub snapshot: String,
    /// The number of chunks of the stream.
    pub chunks: u64,
    /// The number of tuples, including tuples that were received before the stream was cut off.
    pub tuples: u64,
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the common prefix of all branches that receive the snapshot with this id.
fn branches_of(id: &[u8; 16]) -> String {
    PREFIX.to_owned() + &hex(id)
}

/// Returns the name of the branch that receives a stream. `base` is the id of the snapshot to which
/// the changes of the stream apply.
fn branch_of(id: &[u8; 16], base: Option<&[u8; 16]>) -> String {
    branches_of(id) + &base.map(|base| format!("-{}", hex(base))).unwrap_or_default()
}

/// Returns the id of the snapshot that a branch receives.
fn id_of(branch: &str) -> Option<[u8; 16]> {
    let digits = branch.strip_prefix(PREFIX)?.get(..32)?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

/// Returns the base of the stream that a branch receives. The base is unknown for a branch of an
/// older version, which used one branch for all streams of a snapshot.
fn base_of(branch: &str) -> BuildsUpon {
    match branch.strip_prefix(PREFIX).map(|digits| digits.split_at_checked(32)) {
        Some(Some((_, ""))) => BuildsUpon::Nothing,
        Some(Some((_, base))) => {
            let id = base.strip_prefix('-').and_then(|id| u128::from_str_radix(id, 16).ok());
            id.map_or(BuildsUpon::Unknown, |id| BuildsUpon::Snapshot(id.to_be_bytes()))
        }
        _ => BuildsUpon::Unknown,
    }
}

impl Kvdb {
    /// Receives a stream of [`Kvdb::send`]. Nothing of the stream is visible before its end. The
    /// branch then gets the sent contents and the snapshot is made, durably and atomically. The
    /// branch's dictionaries have new numbers afterwards. A damaged or incomplete stream causes an
    /// error, and the part before the error is kept. To continue, receive the same stream again,
    /// from its beginning or from that point. Nothing after the stream's end is read, so that
    /// another stream may follow.
    ///
    /// A branch that has other contents is replaced only if [`ReceiveOptions::replace`] is set.
    /// Otherwise, for a whole stream, the branch must not exist, or must be empty if it is the main
    /// branch; for a stream of changes, the branch must still be equal to the base.
    pub fn receive(&self, input: impl Read, options: &ReceiveOptions) -> Result<ReceiveStats> {
        self.receive_within(input, options, |replace| replace())
    }

    /// Does the same as [`Kvdb::receive`], but lets `within` control the last step: `within` calls
    /// its argument at a moment when all data of the branch is in this store only. If `within`
    /// fails, its error is returned.
    pub fn receive_within<E: From<Error>>(
        &self,
        input: impl Read,
        options: &ReceiveOptions,
        within: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> std::result::Result<(), E>,
    ) -> std::result::Result<ReceiveStats, E> {
        let taken = self.take_stream(input, options)?;
        within(&mut || self.replace_by(&taken, options))?;
        let Taken { label, received, .. } = taken;
        Ok(ReceiveStats { snapshot: label.name, chunks: received.chunks, tuples: received.tuples })
    }

    /// Receives a stream into its hidden branch.
    fn take_stream(&self, mut input: impl Read, options: &ReceiveOptions) -> Result<Taken> {
        let db = &self.db;
        db.engine.health.writable()?;
        read_magic(&mut input)?;
        let Frame::Header(header) = Frame::read(&mut input)? else {
            return Err(Error::Corrupt("a stream: it does not begin with a header".into()));
        };
        let name = options.snapshot.clone().unwrap_or_else(|| header.label.name.clone());
        check_name("snapshot", &name)?;
        if !options.branch.is_empty() {
            check_name("branch", &options.branch)?;
        }
        for known in db.engine.snapshots.list() {
            // A store can have a snapshot only once, even under another name.
            if known.label.id == header.label.id {
                return Err(Error::Exists(format!(
                    "the snapshot of this stream, here under the name {},",
                    known.label.name
                )));
            }
            if known.label.name == name {
                return Err(Error::Exists(format!("another snapshot with the name {name}")));
            }
        }
        let base = self.base(&header)?;
        if !options.replace {
            self.may_replace(&options.branch, base.as_ref())?;
        }
        let branch = branch_of(&header.label.id, base.as_ref().map(|base| &base.label.id));
        let received = match self.receive_into(&branch, &mut input, &header, base.as_ref()) {
            Ok(received) => received,
            Err(e) => {
                self.drop_if_nothing_came(&branch);
                return Err(e);
            }
        };
        let label = Label { name, branch: options.branch.clone(), ..header.label };
        Ok(Taken { branch, base, label, received })
    }

    /// Replaces a branch with the received branch.
    fn replace_by(&self, taken: &Taken, options: &ReceiveOptions) -> Result<()> {
        let db = &self.db;
        // From here on the branch takes no commits. Check the branch again, since it may have
        // changed while the stream arrived.
        let replaced: BTreeSet<DictionaryId> =
            self.dictionaries_in(&options.branch).into_iter().map(|d| d.id).collect();
        let locked = db.transactions.lock_before_all(&replaced, REPLACED)?;
        if !options.replace {
            self.may_replace(&options.branch, taken.base.as_ref())?;
        }
        let label = taken.label.clone();
        db.snapshotter.adopt(&taken.branch, &options.branch, label, PROGRESS, &replaced)?;
        drop(locked);
        if !options.branch.is_empty() {
            db.transactions.branch_gone(&options.branch, &replaced, REPLACED);
        }
        // Other incomplete streams of the same snapshot are no longer needed.
        if let Err(e) = self.forget(&taken.received.id) {
            let name = &taken.label.name;
            tracing::warn!("what came of another stream of snapshot {name} stays: {e}");
        }
        Ok(())
    }

    /// Receives the rest of a stream into its branch, and returns the progress.
    fn receive_into(
        &self,
        branch: &str,
        input: &mut impl Read,
        header: &StreamHeader,
        base: Option<&Arc<Snapshot>>,
    ) -> Result<Received> {
        self.prepare(branch, base, header)?;
        let of = |name: &str| {
            self.dictionary_in(branch, name).ok_or_else(|| Error::NoDictionary(name.into()))
        };
        let dicts: Vec<DictionaryId> =
            header.dictionaries.iter().map(|d| of(&d.name)).collect::<Result<_>>()?;
        let progress = self.create_dictionary_in(branch, PROGRESS, DictionaryOptions::default())?;
        let received = self
            .progress(branch)?
            .unwrap_or(Received { id: header.label.id, ..Received::default() });
        if header.first > received.chunks {
            let (first, next) = (header.first, received.chunks);
            return Err(Error::Invalid(format!(
                "the stream begins with chunk {first}, but chunk {next} is the next one wanted"
            )));
        }
        let mut taking = Taking { db: self, progress, received, taken: 0, open: None };
        let outcome = taking.all(input, &dicts);
        // Keep the part before an error, too.
        let kept = taking.commit();
        outcome?;
        kept?;
        Ok(taking.received)
    }

    /// Drops the branch of a stream that was cut off before any chunk was received, since a clone
    /// of the base would needlessly keep the base's data alive.
    fn drop_if_nothing_came(&self, branch: &str) {
        let db = &self.db;
        if db.engine.versions.load().has_branch(branch)
            && self.progress(branch).is_ok_and(|came| came.is_none())
            && let Err(e) = db.snapshotter.drop_branch(branch, |_| Ok(()))
        {
            tracing::warn!("the branch of a stream of which nothing came stays: {e}");
        }
    }

    /// Returns the streams that were cut off, with their progress, which is made durable first. The
    /// sending store needs the progress for [`Kvdb::send`].
    pub fn receiving(&self) -> Result<Vec<Received>> {
        self.sync()?;
        let all = self.db.engine.versions.load().branches.clone();
        // A crash may have left a branch without any received chunk.
        let branches = all.keys().filter_map(|name| Some((name, id_of(name)?)));
        let came = branches.map(|(branch, id)| {
            let came = self.progress(branch)?;
            let came = came.unwrap_or(Received { id, ..Received::default() });
            Ok(Received { base: base_of(branch), ..came })
        });
        came.collect()
    }

    /// Gives up the incomplete streams of a snapshot.
    pub fn forget_received(&self, received: &Received) -> Result<()> {
        match self.forget(&received.id)? {
            0 => Err(Error::NoBranch(branches_of(&received.id))),
            _ => Ok(()),
        }
    }

    /// Drops the branches that receive the snapshot with this id, and returns the number of these
    /// branches.
    fn forget(&self, id: &[u8; 16]) -> Result<usize> {
        let all = self.db.engine.versions.load().branches.clone();
        let branches: Vec<&Arc<str>> =
            all.keys().filter(|name| name.starts_with(&branches_of(id))).collect();
        branches
            .iter()
            .try_for_each(|branch| self.db.snapshotter.drop_branch(branch, |_| Ok(())))?;
        Ok(branches.len())
    }

    fn progress(&self, branch: &str) -> Result<Option<Received>> {
        let Some(dict) = self.dictionary_in(branch, PROGRESS) else { return Ok(None) };
        self.get(dict, KEY)?.map(|bytes| Received::from_bytes(&bytes)).transpose()
    }

    /// Returns the snapshot to which the stream's changes apply. The snapshot itself is held rather
    /// than its name, since the name may belong to another snapshot before the stream ends.
    fn base(&self, header: &StreamHeader) -> Result<Option<Arc<Snapshot>>> {
        let Some((id, name)) = &header.base else { return Ok(None) };
        let found = self.db.engine.snapshots.list().into_iter().find(|s| s.label.id == *id);
        let none = || Error::NoSnapshot(format!("{name}, which the stream builds upon"));
        found.ok_or_else(none).map(Some)
    }

    fn may_replace(&self, branch: &str, base: Option<&Arc<Snapshot>>) -> Result<()> {
        let dictionaries = self.dictionaries_in(branch);
        let Some(base) = base else {
            let free = if branch.is_empty() {
                dictionaries.is_empty()
            } else {
                !self.db.engine.versions.load().has_branch(branch)
            };
            let what = if branch.is_empty() {
                "something in the main branch".into()
            } else {
                format!("branch {branch}")
            };
            return if free { Ok(()) } else { Err(Error::Exists(what)) };
        };
        if !self.db.engine.versions.load().has_branch(branch) {
            return Ok(());
        }
        let (before, now) = (self.db.snapshotter.open(base), self.view());
        let base = &base.label.name;
        let names: BTreeSet<String> =
            before.dictionaries().into_iter().chain(dictionaries).map(|d| d.name).collect();
        for name in names {
            let ids = (before.dictionary(&name), self.dictionary_in(branch, &name));
            let (Some(a), Some(b)) = ids else {
                return Err(Error::Invalid(format!(
                    "the branch is not as snapshot {base} is: dictionary {name} is in one of them alone"
                )));
            };
            if let Some(change) = before.difference(a, &now, b)?.next() {
                change?;
                return Err(Error::Invalid(format!(
                    "the branch was changed since snapshot {base}, in dictionary {name}"
                )));
            }
        }
        Ok(())
    }

    /// Makes the hidden branch, with the dictionaries of the header.
    fn prepare(
        &self,
        branch: &str,
        base: Option<&Arc<Snapshot>>,
        header: &StreamHeader,
    ) -> Result<()> {
        let db = &self.db;
        // An older version used the same branch for both kinds of streams.
        let of = db.engine.versions.load().branches.get(branch).cloned();
        if of.is_some_and(|of| base.is_none() && !of.is_empty()) {
            db.snapshotter.drop_branch(branch, |_| Ok(()))?;
        }
        if !db.engine.versions.load().has_branch(branch) {
            match base {
                Some(base) => db.snapshotter.clone_exactly(base, branch)?,
                None => db.snapshotter.create_branch(branch)?,
            }
        }
        for info in self.dictionaries_in(branch) {
            if info.name != PROGRESS && header.dictionaries.iter().all(|d| d.name != info.name) {
                self.drop_dictionary(info.id)?;
            }
        }
        for info in &header.dictionaries {
            let id = self.create_dictionary_in(branch, &info.name, info.options.clone())?;
            // A dictionary that was cloned from the base still has its old options.
            let had = db.engine.versions.load().tree(id)?.info().options.clone();
            let options = DictionaryOptions { reserved: had.reserved, ..info.options.clone() };
            if options != had {
                db.catalog.set_options(id, options)?;
            }
        }
        Ok(())
    }
}

/// A stream that was received completely.
struct Taken {
    /// The hidden branch.
    branch: String,
    /// The snapshot in this store on which the stream builds, if the stream has changes only.
    base: Option<Arc<Snapshot>>,
    label: Label,
    received: Received,
}

/// The state of receiving a stream's tuples into the hidden branch.
struct Taking<'a> {
    db: &'a Kvdb,
    progress: DictionaryId,
    /// The progress. All tuples before this point are committed or in `open`.
    received: Received,
    /// The number of chunks that this call has taken.
    taken: u64,
    open: Option<OpenRuns>,
}

/// The received runs that are not committed yet.
struct OpenRuns {
    transaction: Transaction,
    run: Option<(DictionaryId, Bulk)>,
    bytes: usize,
}

impl Taking<'_> {
    fn all(&mut self, input: &mut impl Read, dicts: &[DictionaryId]) -> Result<()> {
        loop {
            let received = &self.received;
            match Frame::read(input)? {
                Frame::Header(_) => {
                    return Err(Error::Corrupt("a stream: it has a second header".into()));
                }
                Frame::Chunk { number, .. } if number < received.chunks => {}
                Frame::Chunk { number, dictionary, tuples } => {
                    let dict = dicts.get(dictionary as usize).filter(|_| number == received.chunks);
                    let dict = *dict.ok_or_else(|| {
                        Error::Corrupt(format!("a stream: chunk {number} is out of order"))
                    })?;
                    let next = Received {
                        id: received.id,
                        base: received.base,
                        chunks: number + 1,
                        tuples: received.tuples + tuples.len() as u64,
                        dictionary,
                        key: tuples.last().map(|(key, _)| key.clone()).unwrap_or_default(),
                    };
                    match self.taken < FIRST {
                        true => self.take_one(dict, tuples, next)?,
                        false => self.take(dict, &tuples, next)?,
                    }
                    self.taken += 1;
                }
                Frame::End { chunks, tuples }
                    if (chunks, tuples) == (received.chunks, received.tuples) =>
                {
                    return Ok(());
                }
                Frame::End { chunks, tuples } => {
                    let (c, t) = (received.chunks, received.tuples);
                    return Err(Error::Corrupt(format!(
                        "a stream: {chunks} chunks of {tuples} tuples were sent, {c} of {t} came"
                    )));
                }
            }
        }
    }

    /// Commits a chunk by itself.
    fn take_one(
        &mut self,
        dict: DictionaryId,
        tuples: Vec<(Bytes, Option<Bytes>)>,
        next: Received,
    ) -> Result<()> {
        set_codecs(self.db, dict, &tuples, &|dict, key| self.db.get(dict, key))?;
        let mut batch = Batch::new();
        for (key, value) in tuples {
            match value {
                Some(value) => batch.put(dict, key, value),
                None => batch.delete(dict, key),
            }
        }
        batch.put(self.progress, KEY, next.to_bytes());
        self.db.commit(batch, Durability::Buffered)?;
        self.received = next;
        Ok(())
    }

    /// Adds a chunk to the open run.
    fn take(
        &mut self,
        dict: DictionaryId,
        tuples: &[(Bytes, Option<Bytes>)],
        next: Received,
    ) -> Result<()> {
        // Check the chunk first, so that an invalid chunk does not affect earlier chunks.
        let ascend = tuples.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let behind = self.received.dictionary != next.dictionary
            || tuples.first().is_none_or(|(key, _)| *key > self.received.key);
        if !ascend || !behind {
            return Err(Error::Corrupt(format!(
                "a stream: the keys of chunk {} do not ascend",
                self.received.chunks
            )));
        }
        if self.db.space().free < SHORT {
            self.db.reclaim();
        }
        if self.open.is_none() {
            // Other callers do not know the branch, so no conflict can occur.
            let options =
                TransactionOptions { check_conflicts: false, ..TransactionOptions::default() };
            self.open =
                Some(OpenRuns { transaction: self.db.begin_with(options)?, run: None, bytes: 0 });
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let taken = open.take(self.db, dict, tuples);
        if taken.is_err() {
            // Discard the partly written run.
            self.give_up()?;
        }
        taken?;
        self.received = next;
        match &self.open {
            Some(open) if open.bytes >= TOGETHER => self.commit(),
            _ => Ok(()),
        }
    }

    /// Commits the open runs to the branch.
    fn commit(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let committed = open.finish_run().and_then(|()| {
            open.transaction.put(self.progress, KEY, self.received.to_bytes())?;
            open.transaction.commit(Durability::Buffered)
        });
        if committed.is_err() {
            self.give_up()?;
        }
        committed
    }

    /// Discards the open runs and returns to the committed progress.
    fn give_up(&mut self) -> Result<()> {
        self.open = None;
        let committed = self
            .db
            .get(self.progress, KEY)?
            .map(|bytes| Received::from_bytes(&bytes))
            .transpose()?;
        self.received =
            committed.unwrap_or(Received { id: self.received.id, ..Received::default() });
        Ok(())
    }
}

/// A function that reads a key of a dictionary.
type ReadKey<'a> = &'a dyn Fn(DictionaryId, &[u8]) -> Result<Option<Bytes>>;

/// Sets the codecs of the series to which these tuples belong, if the program knows them. `get`
/// reads a key from the data that was received before. If that data is damaged, the codecs remain
/// unknown, and the receive continues without them.
fn set_codecs(
    db: &Kvdb,
    dict: DictionaryId,
    tuples: &[(Bytes, Option<Bytes>)],
    get: ReadKey<'_>,
) -> Result<()> {
    let series = &db.db.engine.series;
    let (Some(source), Some(info)) = (series.source(), db.dictionary_info(dict)) else {
        return Ok(());
    };
    let mut read = |name: &str, key: &[u8]| match db.dictionary_in(&info.branch, name) {
        Some(other) => get(other, key),
        None => Ok(None),
    };
    let mut last: Option<&[u8]> = None;
    for (key, _) in tuples.iter().filter(|(_, value)| value.is_some()) {
        if last.is_some_and(|prefix| key.starts_with(prefix)) {
            continue;
        }
        let found = source.series_of(&info, key, &mut read).unwrap_or_else(|e| {
            tracing::warn!("the codecs of values that are received are not known: {e}");
            None
        });
        let Some((len, codec)) = found else { return Ok(()) };
        let Some(prefix) = key.get(..len) else { continue };
        series.set(dict, prefix, codec)?;
        last = Some(prefix);
    }
    Ok(())
}

impl OpenRuns {
    fn take(
        &mut self,
        db: &Kvdb,
        dict: DictionaryId,
        tuples: &[(Bytes, Option<Bytes>)],
    ) -> Result<()> {
        if self.run.as_ref().is_some_and(|(of, _)| *of != dict) {
            self.finish_run()?;
        }
        set_codecs(db, dict, tuples, &|dict, key| self.transaction.get(dict, key))?;
        if self.run.is_none() {
            self.run = Some((dict, self.transaction.bulk(dict, &db.view())?));
        }
        let Some((_, run)) = &mut self.run else { return Ok(()) };
        for (key, value) in tuples {
            self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            match value {
                Some(value) => run.push(key, value)?,
                None => run.delete(key)?,
            }
        }
        Ok(())
    }

    fn finish_run(&mut self) -> Result<()> {
        match self.run.take() {
            Some((_, run)) => self.transaction.adopt(run.finish()?),
            None => Ok(()),
        }
    }
}
