//! The fourth phase of opening a store: the second pass over the journal applies its commits.

use std::collections::{BTreeMap, VecDeque};

use vt_tree::Seq;
use zones::ZoneUse;

use super::journal::{BoundRuns, Content, Journal, Numbers, offset_in};
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::journal::record::{self, Ops, Record};
use crate::log::chunk::Kind;
use crate::log::records::Records;
use crate::log::stream::StreamReader;
use crate::manifest::JournalStart;
use crate::options::Shares;

/// Applies the commits of `journal` from `start` on. Changes of a dictionary up to its number in
/// `since` are skipped, because a rollback made them void. `bound` has the places of all data that
/// the journal binds.
pub(super) fn replay_journal(
    db: &Database,
    mut journal: Journal,
    start: &JournalStart,
    since: &BTreeMap<DictionaryId, Seq>,
    bound: &ZoneUse,
) -> Result<()> {
    let parts = journal.parts();
    let offset = offset_in(&journal.used, start);
    let mut reader =
        StreamReader::new(&db.engine.zones, Kind::Journal, &parts, offset, start.position);
    let mut records = Records::new(start.position);
    let mut numbers = Numbers { next: start.seq + 1 };
    let mut flush_at = Shares::of(&db.engine.options).seal_at;
    while let Some((at, piece)) = reader.next()? {
        let more = records.push(&piece, |end, bytes| {
            if end > journal.end {
                return Ok(false);
            }
            // The journal may begin only at the start of a chunk.
            let ends_chunk = end == at + piece.len() as u64;
            let start_after = |seq| {
                let (segment, offset) = (journal.used[reader.part()].number, reader.offset());
                JournalStart { segment, offset, position: end, seq }
            };
            let record = record::decode(&bytes)?;
            if let Record::Snapshot { label, below } = record {
                if !ends_chunk {
                    return Err(Error::Corrupt(format!(
                        "the journal goes on behind snapshot {} in the same chunk",
                        label.name
                    )));
                }
                let start = start_after(numbers.next - 1);
                return snapshot_again(db, label, below, start, bound).map(|()| true);
            }
            if let Some((first, content)) = numbers.take(record)? {
                apply(db, first, content, &mut journal.runs, since, bound)?;
            }
            if ends_chunk {
                let start = start_after(numbers.next - 1);
                flush_when_full(db, start, bound, &mut flush_at)?;
            }
            Ok(true)
        })?;
        if !more {
            break;
        }
    }
    if records.position() != journal.end {
        return Err(Error::Corrupt(format!(
            "the journal ended at {} when read again, not at {}",
            records.position(),
            journal.end
        )));
    }
    Ok(())
}

/// Applies a commit whose first change has number `first`. `runs` has the runs that this and later
/// commits have bound.
fn apply(
    db: &Database,
    first: Seq,
    content: Content,
    runs: &mut VecDeque<BoundRuns>,
    since: &BTreeMap<DictionaryId, Seq>,
    bound: &ZoneUse,
) -> Result<()> {
    match content {
        Content::Ops(mut changes) => {
            void(first, &mut changes, since);
            db.commits.replay(first, &changes);
            Ok(())
        }
        Content::Bound(_) => {
            let Some(runs) = runs.pop_front() else {
                return Err(Error::Corrupt(
                    "the journal binds more runs than when it was first read".into(),
                ));
            };
            rebind(db, runs, bound)
        }
    }
}

/// Flushes the memtables when their memory is full. The journal then begins at `start`, after all
/// commits in these memtables, since an update must not be replayed over a run that already
/// contains it.
fn flush_when_full(
    db: &Database,
    start: JournalStart,
    bound: &ZoneUse,
    flush_at: &mut usize,
) -> Result<()> {
    if db.commits.active_bytes() < *flush_at || db.engine.options.read_only {
        return Ok(());
    }
    db.commits.seal_replayed(start, db.engine.zones.pin(bound)?);
    match db.flusher.flush_sealed() {
        Ok(_) => Ok(()),
        // A full store is opened nevertheless. These memtables stay in memory until there is space
        // for them, or until their size has doubled.
        Err(Error::NoSpace) => {
            *flush_at = db.commits.sealed_bytes();
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// Adds the runs that a commit of the journal has bound, above all earlier data.
fn rebind(db: &Database, bound: BoundRuns, uses: &ZoneUse) -> Result<()> {
    db.engine.versions.change(|v| {
        v.seal();
        v.add_runs(&bound.runs);
    });
    db.engine.versions.load().generation.pin(db.engine.zones.pin(uses)?);
    Ok(())
}

/// Removes the changes that a rollback made void.
fn void(first: Seq, changes: &mut Ops, since: &BTreeMap<DictionaryId, Seq>) {
    for (seq, (dict, _)) in (first..).zip(changes.iter_mut()).filter(|_| !since.is_empty()) {
        if since.get(dict).is_some_and(|since| seq <= *since) {
            // A void change is treated like a change of a dropped dictionary.
            *dict = DictionaryId(0);
        }
    }
}

/// Makes a snapshot again whose generation was not flushed before the crash. The generation is
/// flushed during the replay or in the background.
fn snapshot_again(
    db: &Database,
    label: Label,
    below: u32,
    start: JournalStart,
    bound: &ZoneUse,
) -> Result<()> {
    if db.engine.snapshots.get(&label.name).is_some() {
        return Err(Error::Corrupt(format!("the journal makes snapshot {} again", label.name)));
    }
    let version = db.engine.versions.load_full();
    db.engine
        .snapshots
        .begin(version.generation.number, db.engine.snapshots.of(label, below, &version));
    drop(version);
    db.commits.seal_replayed(start, db.engine.zones.pin(bound)?);
    db.engine.signals.flush_wanted();
    Ok(())
}
