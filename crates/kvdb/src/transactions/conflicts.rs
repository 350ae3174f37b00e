//! Conflicts: of what a transaction has written, what did others change since it began? They are
//! looked for among what is newer than its beginning alone, from the side that has fewer items, so
//! that a commit costs what both have changed and not what the store holds. Where a dictionary has
//! a merge routine, a key that both have changed is no conflict when the routine can join the two.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BodyRef, KeyRange, Lookup, Memtable, Run, RunCursor, Seq, Source};
use zones::ZonePin;

use super::durable;
use super::reads::ReadSet;
use super::registry::Transactions;
use crate::commit::recent::RecentCommit;
use crate::dictionary::{DictionaryId, Join};
use crate::error::{Error, Result};
use crate::journal::record::{Op, Ops};
use crate::read::version::read;
use crate::read::view::View;
use crate::read::write_set::{Part, Parts, WriteSet};

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

/// The changes of others that a transaction may conflict with.
#[derive(Clone, Copy)]
pub(super) enum Others<'a> {
    /// What was committed to the store after this.
    Store(Seq),
    /// What the transaction that it is within has changed since it began.
    Around(&'a BTreeMap<DictionaryId, Parts>),
}

impl Others<'_> {
    /// Of what may be older, changes with a greater number count.
    fn since(self) -> Seq {
        match self {
            Others::Store(since) => since,
            Others::Around(_) => 0,
        }
    }

    /// All of a dictionary was changed: it was rolled back, or, `dropped`, is no more.
    fn replaced(self, registry: &Transactions, dict: DictionaryId, dropped: bool) -> bool {
        match self {
            Others::Store(since) => {
                registry.parts.versions.load().trees.get(&dict).map_or(dropped, |t| t.since > since)
            }
            // The commit of the outermost transaction finds that.
            Others::Around(_) => false,
        }
    }

    /// What of a dictionary was changed, and something more.
    fn newer(self, registry: &Transactions, dict: DictionaryId) -> Vec<Newer> {
        let since = match self {
            Others::Store(since) => since,
            Others::Around(parts) => {
                let newer = |part: &Part| match part {
                    Part::Memtable(memtable) => Newer::Memtable(memtable.clone()),
                    Part::Run(run) => Newer::OneSeq(run.clone()),
                };
                return parts.get(&dict).into_iter().flatten().map(newer).collect();
            }
        };
        // The version first: what a flush takes out of it is among the recent commits before.
        let version = registry.parts.versions.load_full();
        let layers = version.trees.get(&dict).into_iter().flat_map(|t| &t.layers);
        let memtables = layers
            .filter(|l| l.memtable.max_seq() > since)
            .map(|l| Newer::Memtable(l.memtable.clone()));
        let mut all: Vec<Newer> = memtables.collect();
        let recent = registry.parts.recent.of(dict, since).into_iter();
        let one = |p: RecentCommit| match p.one_seq {
            true => Newer::OneSeq(p.run),
            false => Newer::Run(p.run),
        };
        all.extend(recent.map(one));
        all
    }
}

/// Something that both sides have changed, as it is found; what several parts have is found several
/// times.
enum Found<'a> {
    Point(&'a [u8]),
    /// One of them deleted a range that begins there: nothing can join that.
    Range(&'a [u8]),
}

/// Takes what is found, and may end the search.
type Visit<'v> = dyn FnMut(DictionaryId, Found<'_>) -> Result<ControlFlow<()>> + 'v;

/// The dictionaries in which conflicts are looked for; `None`: all.
type Only<'a> = Option<&'a [DictionaryId]>;

fn is_checked(only: Only<'_>, dict: DictionaryId) -> bool {
    only.is_none_or(|only| only.contains(&dict))
}

/// Shows what `write_set` changes and others have changed, too. Keys are left out that
/// `write_set` changes only by updates that commute with what others have done: these apply to
/// whatever the value is when it commits.
fn both(
    registry: &Transactions,
    write_set: &WriteSet,
    others: Others<'_>,
    only: Only<'_>,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>> {
    let since = others.since();
    for (&dict, parts) in &*write_set.trees {
        let mine: u64 = parts.iter().map(Part::items).sum();
        if mine == 0 || !is_checked(only, dict) {
            continue;
        }
        if others.replaced(registry, dict, false) && visit(dict, Found::Range(&[]))?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        for newer in others.newer(registry, dict) {
            if newer.items() < mine {
                if through_theirs(write_set, dict, &newer, since, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                continue;
            }
            for part in parts {
                if through_mine(write_set, dict, part, &newer, since, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Walks what they have changed, and asks whether we have, too.
fn through_theirs(
    write_set: &WriteSet,
    dict: DictionaryId,
    newer: &Newer,
    since: Seq,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>> {
    let mut source = newer.source();
    source.first()?;
    while let Some(item) = source.item() {
        if newer.counts(item.seq, since) {
            let found = match item.body {
                BodyRef::DeleteRange { end } => {
                    write_set.touches(dict, item.key, end)?.then_some(Found::Range(item.key))
                }
                BodyRef::Put(_) | BodyRef::Update { .. } | BodyRef::Delete => {
                    match write_set.get(dict, item.key)? {
                        Lookup::Absent => None,
                        Lookup::Updated { base: None, update, .. } if update.commutes() => None,
                        _ => Some(Found::Point(item.key)),
                    }
                }
            };
            if let Some(found) = found
                && visit(dict, found)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        source.next()?;
    }
    Ok(ControlFlow::Continue(()))
}

/// Walks what we have changed, and asks whether they have, too.
fn through_mine(
    write_set: &WriteSet,
    dict: DictionaryId,
    part: &Part,
    newer: &Newer,
    since: Seq,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>> {
    let mut source = part.source(write_set.at)?;
    let mut theirs = newer.source();
    while let Some(item) = source.item() {
        let found = match item.body {
            BodyRef::DeleteRange { end } => {
                theirs.seek(item.key)?;
                let mut found = None;
                while let Some(their) = theirs.item().filter(|their| their.key < end) {
                    if newer.counts(their.seq, since) {
                        found = Some(Found::Range(item.key));
                        break;
                    }
                    theirs.next()?;
                }
                found
            }
            BodyRef::Update { .. } => {
                let changed = newer.changed(item.key, since)?;
                (changed && !write_set.commutes(dict, item.key)?).then_some(Found::Point(item.key))
            }
            BodyRef::Put(_) | BodyRef::Delete => {
                newer.changed(item.key, since)?.then_some(Found::Point(item.key))
            }
        };
        if let Some(found) = found
            && visit(dict, found)?.is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        source.next()?;
    }
    Ok(ControlFlow::Continue(()))
}

/// Shows the keys of `write_set` that are not in `now` as they were in `base`, but for those of
/// logs. Takes the time that it takes to read what the two states differ in, up to the first change
/// of each range, and no memory for it.
fn changed_since(
    write_set: &WriteSet,
    (base, now): (&View, &View),
    only: Only<'_>,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>> {
    let mut flow = ControlFlow::Continue(());
    write_set.for_each(|dict, item| {
        if flow.is_break() || is_log(now, dict) || !is_checked(only, dict) {
            return Ok(());
        }
        let found = match item.body {
            BodyRef::DeleteRange { end } => {
                let range =
                    KeyRange::new(Bytes::copy_from_slice(item.key), Bytes::copy_from_slice(end));
                let mut difference = base.difference_in(dict, now, dict, &range)?;
                difference.next().transpose()?.map(|_| Found::Range(item.key))
            }
            BodyRef::Update { .. } if write_set.commutes(dict, item.key)? => None,
            BodyRef::Put(_) | BodyRef::Update { .. } | BodyRef::Delete => {
                (!base.has_same(now, dict, item.key)?).then_some(Found::Point(item.key))
            }
        };
        if let Some(found) = found {
            flow = visit(dict, found)?;
        }
        Ok(())
    })?;
    Ok(flow)
}

/// A dictionary that is the log of a durable transaction belongs to that one alone.
fn is_log(now: &View, dict: DictionaryId) -> bool {
    now.version.trees.get(&dict).is_some_and(|tree| tree.info().branch == durable::BRANCH)
}

/// What joins two changes of one key of a dictionary, if anything does.
pub(super) fn routine(
    registry: &Transactions,
    dict: DictionaryId,
) -> Option<Arc<dyn MergeRoutine>> {
    if let Some(routine) = registry.routines.read().get(&dict) {
        return Some(routine.clone());
    }
    match registry.parts.versions.load().trees.get(&dict).map(|tree| tree.info().options.join) {
        None | Some(Join::None) => None,
        Some(join) => Some(Arc::new(join)),
    }
}

/// Changes that join a transaction's with those of others: above a copy of its write set, which is
/// written out where it grows.
struct Joined<'a> {
    registry: &'a Transactions,
    mine: &'a WriteSet,
    with: Option<WriteSet>,
    changes: Ops,
    bytes: usize,
}

impl Joined<'_> {
    /// Changes that are kept before they enter the write set, bytes.
    const TOGETHER: usize = 64 << 10;

    fn push(&mut self, dict: DictionaryId, op: Op) -> Result<()> {
        self.bytes += op.bytes();
        self.changes.push((dict, op));
        if self.bytes >= Self::TOGETHER { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let with = self.with.get_or_insert_with(|| self.mine.fork());
        with.write(&self.changes, ZonePin::default());
        self.changes.clear();
        self.bytes = 0;
        if with.is_full(self.registry.share()) {
            with.spill(&self.registry.run_writer(), &BTreeMap::new())?;
        }
        Ok(())
    }
}

/// What `others` have changed is joined with what `write_set` changes: `write_set` with the changes
/// above it that it needs besides, if it needs any, or [`Error::Conflict`]. `base`: the state as it
/// was when the transaction began or was last looked at; `now`: as it is. `by_value`: `base` may be
/// older than `others`. `only`: nothing else is looked at.
pub(super) fn reconcile(
    registry: &Transactions,
    write_set: &WriteSet,
    others: Others<'_>,
    by_value: bool,
    (base, now): (&View, &View),
    only: Only<'_>,
) -> Result<Option<WriteSet>> {
    let mut conflicts: BTreeSet<(DictionaryId, Bytes)> = BTreeSet::new();
    let mut joined =
        Joined { registry, mine: write_set, with: None, changes: Ops::new(), bytes: 0 };
    let mut visit = |dict: DictionaryId, found: Found<'_>| {
        if is_log(now, dict) {
            return Ok(ControlFlow::Continue(()));
        }
        let (Found::Point(key) | Found::Range(key)) = found;
        let key = Bytes::copy_from_slice(key);
        let merged = match found {
            Found::Range(_) => Merged::Conflict,
            Found::Point(_) => match routine(registry, dict) {
                None => Merged::Conflict,
                Some(routine) => join(registry, &*routine, write_set, dict, &key, base, now)?,
            },
        };
        match merged {
            Merged::Put(value) => {
                joined.push(dict, Op::Put(key, vt_tree::Value::Inline(value)))?;
            }
            Merged::Delete => joined.push(dict, Op::Delete(key))?,
            Merged::Conflict => _ = conflicts.insert((dict, key)),
        }
        Ok(match conflicts.len() >= NAMED {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    };
    if both(registry, write_set, others, only, &mut visit)?.is_continue() && by_value {
        _ = changed_since(write_set, (base, now), only, &mut visit)?;
    }
    if !conflicts.is_empty() {
        return Err(Error::Conflict { keys: conflicts.into_iter().collect() });
    }
    joined.write()?;
    Ok(joined.with)
}

/// Decides what becomes of a key that `write_set` and others have changed.
fn join(
    registry: &Transactions,
    routine: &dyn MergeRoutine,
    write_set: &WriteSet,
    dict: DictionaryId,
    key: &[u8],
    base: &View,
    now: &View,
) -> Result<Merged> {
    let (base, theirs) = (base.get_if_there(dict, key)?, now.get_if_there(dict, key)?);
    let below = match &base {
        Some(value) => Lookup::Found(0, vt_tree::Value::Inline(value.clone())),
        None => Lookup::Deleted(0),
    };
    let mine = match write_set.get(dict, key)? {
        Lookup::Absent => None,
        own => registry.parts.cache.resolve(own.over(below))?,
    };
    let mine = mine.map(|value| read(&registry.parts.cache, value)).transpose()?;
    Ok(routine.merge(key, base.as_deref(), mine.as_deref(), theirs.as_deref()))
}

/// Returns whether `others` have changed what `write_set` changes.
pub(super) fn any(
    registry: &Transactions,
    write_set: &WriteSet,
    others: Others<'_>,
    only: Only<'_>,
) -> Result<bool> {
    let mut first = |_: DictionaryId, _: Found<'_>| Ok(ControlFlow::Break(()));
    Ok(both(registry, write_set, others, only, &mut first)?.is_break())
}

/// The first key or range of `reads` that `others` have changed.
pub(super) fn changed_read(
    registry: &Transactions,
    reads: &ReadSet,
    others: Others<'_>,
) -> Result<Option<(DictionaryId, Bytes)>> {
    let since = others.since();
    for (dict, ranges) in reads.iter() {
        let gone = others.replaced(registry, dict, true);
        if let Some(range) = ranges.iter().next().filter(|_| gone) {
            return Ok(Some((dict, range.start)));
        }
        for newer in others.newer(registry, dict) {
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
