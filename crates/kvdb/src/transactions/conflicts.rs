//! Conflicts: of what a transaction has written, what did others change since it began? They are
//! looked for among what is newer than its beginning alone, from the side that has fewer items, so
//! that a commit costs what both have changed and not what the store holds. Where a dictionary has
//! a merge routine, a key that both have changed is no conflict when the routine can join the two.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BodyRef, KeyRange, Lookup, Memtable, Run, RunCursor, Seq, Source};

use super::durable;
use super::reads::ReadSet;
use super::registry::Transactions;
use crate::dictionary::{DictionaryId, Join};
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::read::version::read;
use crate::read::view::View;
use crate::read::write_set::{Part, WriteSet};

/// Keys that a conflict names at most.
const NAMED: usize = 16;

/// What becomes of a key that two have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It gets this value.
    Put(Bytes),
    /// It is deleted.
    Delete,
    /// The two cannot be joined.
    Conflict,
}

/// Joins two changes of one key of a dictionary (see
/// [`Kvdb::set_merge`](crate::Kvdb::set_merge)). Called by commits, perhaps more than once for one
/// of them, and by several threads.
pub trait MergeRoutine: Send + Sync {
    /// `base`: the value that both began with; `mine`: the transaction's, `theirs`: the one
    /// committed since. `None`: no such key.
    fn merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        mine: Option<&[u8]>,
        theirs: Option<&[u8]>,
    ) -> Merged;
}

/// Something newer than a transaction's beginning.
enum Newer {
    Memtable(Arc<Memtable>),
    Run(Arc<Run>),
    /// All of it is newer.
    OneSeq(Arc<Run>),
}

impl Newer {
    fn items(&self) -> u64 {
        match self {
            Newer::Memtable(m) => m.len() as u64,
            Newer::Run(run) | Newer::OneSeq(run) => run.stats().items,
        }
    }

    /// `key` was changed after `since`.
    fn changed(&self, key: &[u8], since: Seq) -> Result<bool> {
        let found = match self {
            Newer::Memtable(m) => m.get(key, Seq::MAX),
            Newer::Run(run) | Newer::OneSeq(run) => run.get(key, vt_tree::hash(key))?,
        };
        Ok(match found {
            Lookup::Absent => false,
            Lookup::Found(seq, _) | Lookup::Deleted(seq) | Lookup::Updated { seq, .. } => {
                self.counts(seq, since)
            }
        })
    }

    fn counts(&self, seq: Seq, since: Seq) -> bool {
        matches!(self, Newer::OneSeq(_)) || seq > since
    }

    fn source(&self) -> Box<dyn Source> {
        match self {
            Newer::Memtable(m) => Box::new(m.cursor(Seq::MAX)),
            Newer::Run(run) | Newer::OneSeq(run) => Box::new(RunCursor::new(run.clone())),
        }
    }
}

/// What of a dictionary was committed after `since`, and something more.
fn newer(registry: &Transactions, dict: DictionaryId, since: Seq) -> Vec<Newer> {
    // The version first: what a flush takes out of it is among the recent commits before.
    let version = registry.parts.versions.load_full();
    let layers = version.trees.get(&dict).into_iter().flat_map(|t| &t.layers);
    let memtables = layers
        .filter(|l| l.memtable.max_seq() > since)
        .map(|l| Newer::Memtable(l.memtable.clone()));
    let mut all: Vec<Newer> = memtables.collect();
    let recent = registry.parts.recent.of(dict, since).into_iter();
    all.extend(recent.map(|p| if p.one_seq { Newer::OneSeq(p.run) } else { Newer::Run(p.run) }));
    all
}

/// Keys that both sides have changed.
#[derive(Default)]
struct Both {
    points: BTreeSet<(DictionaryId, Bytes)>,
    /// Where one of them deleted a range: nothing can join that.
    ranges: BTreeSet<(DictionaryId, Bytes)>,
}

impl Both {
    fn enough(&self) -> bool {
        self.ranges.len() >= NAMED
    }

    /// Takes out keys that `write_set` changes only by updates that commute with what others have
    /// done: these apply to whatever the value is when it commits.
    fn leave_commuting(&mut self, write_set: &WriteSet) -> Result<()> {
        for (dict, key) in std::mem::take(&mut self.points) {
            if !write_set.commutes(dict, &key)? {
                self.points.insert((dict, key));
            }
        }
        Ok(())
    }
}

/// What `write_set` changes and others have changed after `since`.
fn both(registry: &Transactions, write_set: &WriteSet, since: Seq) -> Result<Both> {
    let mut found = Both::default();
    for (&dict, parts) in &*write_set.trees {
        let mine: u64 = parts.iter().map(Part::items).sum();
        if mine == 0 {
            continue;
        }
        if registry.parts.versions.load().trees.get(&dict).is_some_and(|t| t.since > since) {
            // Rolled back since: all of it was changed.
            found.ranges.insert((dict, Bytes::new()));
        }
        for newer in newer(registry, dict, since) {
            if found.enough() {
                return Ok(found);
            }
            if newer.items() < mine {
                through_theirs(write_set, dict, &newer, since, &mut found)?;
            } else {
                for part in parts {
                    through_mine(write_set, dict, part, &newer, since, &mut found)?;
                }
            }
        }
    }
    found.leave_commuting(write_set)?;
    Ok(found)
}

/// Walks what they have changed, and asks whether we have, too.
fn through_theirs(
    write_set: &WriteSet,
    dict: DictionaryId,
    newer: &Newer,
    since: Seq,
    found: &mut Both,
) -> Result<()> {
    let mut source = newer.source();
    source.first()?;
    while let Some(item) = source.item() {
        if newer.counts(item.seq, since) && !found.enough() {
            match item.body {
                BodyRef::DeleteRange { end } => {
                    if write_set.touches(dict, item.key, end)? {
                        found.ranges.insert((dict, Bytes::copy_from_slice(item.key)));
                    }
                }
                BodyRef::Put(_) | BodyRef::Update { .. } | BodyRef::Delete => {
                    if write_set.get(dict, item.key)? != Lookup::Absent {
                        found.points.insert((dict, Bytes::copy_from_slice(item.key)));
                    }
                }
            }
        }
        source.next()?;
    }
    Ok(())
}

/// Walks what we have changed, and asks whether they have, too.
fn through_mine(
    write_set: &WriteSet,
    dict: DictionaryId,
    part: &Part,
    newer: &Newer,
    since: Seq,
    found: &mut Both,
) -> Result<()> {
    let mut source = part.source(write_set.at)?;
    let mut theirs = newer.source();
    while let Some(item) = source.item() {
        match item.body {
            BodyRef::DeleteRange { end } => {
                theirs.seek(item.key)?;
                while let Some(their) = theirs.item().filter(|their| their.key < end) {
                    if newer.counts(their.seq, since) {
                        found.ranges.insert((dict, Bytes::copy_from_slice(item.key)));
                        break;
                    }
                    theirs.next()?;
                }
            }
            BodyRef::Put(_) | BodyRef::Update { .. } | BodyRef::Delete => {
                if newer.changed(item.key, since)? {
                    found.points.insert((dict, Bytes::copy_from_slice(item.key)));
                }
            }
        }
        if found.enough() {
            return Ok(());
        }
        source.next()?;
    }
    Ok(())
}

/// Keys of `write_set` that are not in `now` as they were in `base`.
fn changed_since(write_set: &WriteSet, base: &View, now: &View, found: &mut Both) -> Result<()> {
    write_set.for_each(|dict, item| {
        match item.body {
            BodyRef::DeleteRange { end } => {
                let all = |view: &View| match view.version.trees.contains_key(&dict) {
                    true => view.scan(dict, item.key, end, usize::MAX),
                    false => Ok(Vec::new()),
                };
                if all(base)? != all(now)? {
                    found.ranges.insert((dict, Bytes::copy_from_slice(item.key)));
                }
            }
            BodyRef::Put(_) | BodyRef::Update { .. } | BodyRef::Delete => {
                if base.get_if_there(dict, item.key)? != now.get_if_there(dict, item.key)? {
                    found.points.insert((dict, Bytes::copy_from_slice(item.key)));
                }
            }
        }
        Ok(())
    })
}

/// What joins two changes of one key of a dictionary, if anything does.
pub(super) fn routine(
    registry: &Transactions,
    dict: DictionaryId,
) -> Option<Arc<dyn MergeRoutine>> {
    if let Some(routine) = registry.routines.read().get(&dict) {
        return Some(routine.clone());
    }
    match registry.parts.versions.load().trees.get(&dict).map(|tree| tree.info.options.join) {
        None | Some(Join::None) => None,
        Some(join) => Some(Arc::new(join)),
    }
}

/// What others have changed is joined with what `write_set` changes: the changes that `write_set`
/// needs besides, or [`Error::Conflict`]. `base`: the store as it was when the transaction began or
/// was last looked at; `now`: as it is. `by_value`: `base` may be older than `since`.
pub(super) fn reconcile(
    registry: &Transactions,
    write_set: &WriteSet,
    since: Seq,
    by_value: bool,
    base: &View,
    now: &View,
) -> Result<Ops> {
    let mut found = both(registry, write_set, since)?;
    if by_value {
        changed_since(write_set, base, now, &mut found)?;
        found.leave_commuting(write_set)?;
    }
    // A log belongs to one transaction alone.
    let log = |dict: &DictionaryId| {
        now.version.trees.get(dict).is_some_and(|t| t.info.branch == durable::BRANCH)
    };
    let found = Both {
        points: found.points.into_iter().filter(|(dict, _)| !log(dict)).collect(),
        ranges: found.ranges.into_iter().filter(|(dict, _)| !log(dict)).collect(),
    };
    let mut conflicts: Vec<(DictionaryId, Bytes)> = found.ranges.into_iter().collect();
    let mut changes = Ops::new();
    for (dict, key) in found.points {
        let merged = match routine(registry, dict) {
            None => Merged::Conflict,
            Some(routine) => {
                let (base, theirs) =
                    (base.get_if_there(dict, &key)?, now.get_if_there(dict, &key)?);
                let below = match &base {
                    Some(value) => Lookup::Found(0, vt_tree::Value::Inline(value.clone())),
                    None => Lookup::Deleted(0),
                };
                let mine = match write_set.get(dict, &key)? {
                    Lookup::Absent => None,
                    own => registry.parts.cache.resolve(own.over(below))?,
                };
                let mine = mine.map(|value| read(&registry.parts.cache, value)).transpose()?;
                routine.merge(&key, base.as_deref(), mine.as_deref(), theirs.as_deref())
            }
        };
        match merged {
            Merged::Put(value) => changes.push((dict, Op::Put(key, vt_tree::Value::Inline(value)))),
            Merged::Delete => changes.push((dict, Op::Delete(key))),
            Merged::Conflict => conflicts.push((dict, key)),
        }
        if conflicts.len() >= NAMED {
            break;
        }
    }
    match conflicts.is_empty() {
        true => Ok(changes),
        false => Err(Error::Conflict { keys: conflicts }),
    }
}

/// Whether others have changed after `since` what `write_set` changes.
pub(super) fn any(registry: &Transactions, write_set: &WriteSet, since: Seq) -> Result<bool> {
    let found = both(registry, write_set, since)?;
    Ok(!found.points.is_empty() || !found.ranges.is_empty())
}

/// The first key or range of `reads` that others have changed after `since`.
pub(super) fn changed_read(
    registry: &Transactions,
    reads: &ReadSet,
    since: Seq,
) -> Result<Option<(DictionaryId, Bytes)>> {
    for (dict, ranges) in reads.iter() {
        // Dropped or rolled back since: all of it was changed.
        let gone = registry.parts.versions.load().trees.get(&dict).is_none_or(|t| t.since > since);
        if let Some(range) = ranges.iter().next().filter(|_| gone) {
            return Ok(Some((dict, range.start)));
        }
        for newer in newer(registry, dict, since) {
            let mut source = None;
            for range in ranges.iter() {
                if changed_in(&newer, &mut source, &range, since)? {
                    return Ok(Some((dict, range.start)));
                }
            }
        }
    }
    Ok(None)
}

/// Whether something of `range` was changed after `since`. `source`: that of `newer`, once there is
/// one.
fn changed_in(
    newer: &Newer,
    source: &mut Option<Box<dyn Source>>,
    range: &KeyRange,
    since: Seq,
) -> Result<bool> {
    if range.end.as_ref().is_some_and(|end| end.strip_prefix(&range.start[..]) == Some(&[0])) {
        return newer.changed(&range.start, since);
    }
    let source = source.get_or_insert_with(|| newer.source());
    source.seek(&range.start)?;
    while let Some(item) =
        source.item().filter(|item| range.end.as_ref().is_none_or(|end| *item.key < **end))
    {
        if newer.counts(item.seq, since) {
            return Ok(true);
        }
        source.next()?;
    }
    Ok(false)
}
