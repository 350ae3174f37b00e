//! Conflict detection: finds the keys of a transaction's write set that others have changed since
//! it began. Only data newer than its beginning is searched, starting from the side with fewer
//! items, so that a commit costs in proportion to the changes of both sides and not to the size of
//! the store. If the dictionary has a merge routine, a key that both sides have changed is no
//! conflict when the routine can join the two changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BodyRef, KeyRange, Lookup, Memtable, Run, RunCursor, Seq, Source, Update};
use zones::ZonePin;

use super::durable;
use super::reads::ReadSet;
use super::registry::Transactions;
use crate::commit::recent::RecentCommit;
use crate::dictionary::{DictionaryId, Join};
use crate::error::{Error, NAMED_CONFLICTS, Result};
use crate::journal::record::{Op, Ops};
use crate::read::view::View;
use crate::version::read;
use crate::write_set::{Part, Parts, WriteSet};

/// The result of merging two changes of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merged {
    /// The key gets this value.
    Put(Bytes),
    /// The key is deleted.
    Delete,
    /// The two changes cannot be joined.
    Conflict,
}

/// Joins two changes of one key of a dictionary (see [`Kvdb::set_merge`](crate::Kvdb::set_merge)).
/// Commits call the routine from several threads, possibly more than once for one key.
pub trait MergeRoutine: Send + Sync {
    /// Joins two changes. `base` is the value that both began with, `mine` the transaction's value
    /// and `theirs` the one committed since. `None` means that the key does not exist.
    fn merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        mine: Option<&[u8]>,
        theirs: Option<&[u8]>,
    ) -> Merged;
}

/// A memtable or run with changes that may be newer than a transaction's beginning.
enum Newer {
    Memtable(Arc<Memtable>),
    Run(Arc<Run>),
    /// A run in which every change is newer.
    OneSeq(Arc<Run>),
}

impl Newer {
    fn items(&self) -> u64 {
        match self {
            Newer::Memtable(m) => m.len() as u64,
            Newer::Run(run) | Newer::OneSeq(run) => run.stats().items,
        }
    }

    /// Returns the change of `key` after `since`, if there is one.
    fn change(&self, key: &[u8], since: Seq) -> Result<Option<Lookup>> {
        let found = match self {
            Newer::Memtable(m) => m.get(key, Seq::MAX),
            Newer::Run(run) | Newer::OneSeq(run) => run.get(key, vt_tree::hash(key))?,
        };
        let counts = match &found {
            Lookup::Absent => false,
            Lookup::Found(seq, _) | Lookup::Deleted(seq) | Lookup::Updated { seq, .. } => {
                self.counts(*seq, since)
            }
        };
        Ok(counts.then_some(found))
    }

    /// Returns whether `key` was changed after `since`.
    fn changed(&self, key: &[u8], since: Seq) -> Result<bool> {
        Ok(self.change(key, since)?.is_some())
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
    /// Changes committed to the store after this number.
    Store(Seq),
    /// Changes that the enclosing transaction has made since the nested one began.
    Around(&'a BTreeMap<DictionaryId, Parts>),
}

impl Others<'_> {
    /// Returns the number above which changes count, in sources that may also hold older ones.
    fn since(self) -> Seq {
        match self {
            Others::Store(since) => since,
            Others::Around(_) => 0,
        }
    }

    /// Returns whether the whole dictionary was replaced, by a rollback or, if `dropped` is set, by
    /// being dropped.
    fn replaced(self, registry: &Transactions, dict: DictionaryId, dropped: bool) -> bool {
        match self {
            Others::Store(since) => registry
                .engine
                .versions
                .load()
                .trees
                .get(&dict)
                .map_or(dropped, |t| t.since > since),
            // The commit of the outermost transaction detects this.
            Others::Around(_) => false,
        }
    }

    /// Returns the sources that hold all new changes of a dictionary. They may hold older changes,
    /// too.
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
        // Load the version first: a flush adds its run to the recent commits before it takes the
        // memtable out of the version.
        let version = registry.engine.versions.load_full();
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

/// A key or range that both sides have changed. It is reported once for each pair of parts that has
/// it.
enum Found<'a> {
    Point(&'a [u8]),
    /// One side deleted a range that begins at this key: no merge routine can join that.
    Range(&'a [u8]),
}

/// Called for each finding; it may end the search.
type Visit<'v> = dyn FnMut(DictionaryId, Found<'_>) -> Result<ControlFlow<()>> + 'v;

/// The dictionaries in which conflicts are looked for. `None` means all.
pub(super) type Only<'a> = Option<&'a [DictionaryId]>;

fn is_checked(only: Only<'_>, dict: DictionaryId) -> bool {
    only.is_none_or(|only| only.contains(&dict))
}

/// Returns whether a source of changes has only additions to a key.
fn is_addition(found: &Lookup) -> bool {
    matches!(found, Lookup::Updated { base: None, update, .. } if update.commutes())
}

/// The state that additions would apply to.
#[derive(Clone, Copy)]
pub(super) enum Now<'a> {
    View(&'a View),
    /// All commits.
    Newest(&'a Transactions),
    /// All commits, under the pipeline's lock, where a read from the device would keep all others
    /// waiting. A value that others have only added to since the last check is not read: it can be
    /// added to as well as it could then.
    Locked(&'a Transactions),
}

impl Now<'_> {
    /// Returns whether an addition to `key` has an effect, like [`Now::can_be_added_to`], if others
    /// have made the change `theirs`.
    fn takes_addition(self, dict: DictionaryId, key: &[u8], theirs: &Lookup) -> Result<bool> {
        if matches!(self, Now::Locked(_)) && is_addition(theirs) {
            return Ok(true);
        }
        self.can_be_added_to(dict, key)
    }

    /// Returns whether an addition to the value of `key` would have an effect: it has none on a
    /// value that is not a number, and would be lost. Values too long for a number are not read.
    fn can_be_added_to(self, dict: DictionaryId, key: &[u8]) -> Result<bool> {
        /// The longest number has 20 characters.
        const LONGEST: usize = 20;
        let value = match self {
            // A view of a transaction has changes to dictionaries that are newer than its state.
            Now::View(view) if !view.of_transaction && !view.knows(dict) => None,
            Now::View(view) => match view.value_len(dict, key)? {
                Some(len) if len > LONGEST => return Ok(false),
                _ => view.get(dict, key)?,
            },
            // This takes no view, which must not be made under the pipeline's lock.
            Now::Newest(registry) | Now::Locked(registry) => {
                let (cache, version) =
                    (&registry.engine.cache, registry.engine.versions.load_full());
                match version.trees.get(&dict) {
                    Some(tree) => match tree.get(cache, key, Seq::MAX)? {
                        Some(value) if value.len() > LONGEST => return Ok(false),
                        value => value.map(|value| read(cache, value)).transpose()?,
                    },
                    None => None,
                }
            }
        };
        Ok(value.is_none_or(|value| Update::add(1).apply(Some(&value)) != value))
    }
}

/// Visits the keys and ranges that both `write_set` and others have changed. It skips keys that
/// `write_set` only adds to, since additions commute with the changes of others: they apply to the
/// value that the key has at the commit. Only if that value is not a number, as `now` shows, is the
/// key visited.
fn both(
    registry: &Transactions,
    write_set: &WriteSet,
    others: Others<'_>,
    only: Only<'_>,
    now: Now<'_>,
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
                if through_theirs(write_set, dict, &newer, since, now, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                continue;
            }
            for part in parts {
                if through_mine(write_set, dict, part, &newer, since, now, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Iterates over their changes and looks up each in our write set.
fn through_theirs(
    write_set: &WriteSet,
    dict: DictionaryId,
    newer: &Newer,
    since: Seq,
    now: Now<'_>,
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
                    let mine = write_set.get(dict, item.key)?;
                    let applies = is_addition(&mine)
                        && match newer.change(item.key, since)? {
                            Some(theirs) => now.takes_addition(dict, item.key, &theirs)?,
                            None => now.can_be_added_to(dict, item.key)?,
                        };
                    let is_mine = !matches!(mine, Lookup::Absent);
                    (is_mine && !applies).then_some(Found::Point(item.key))
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

/// Iterates over our changes and looks up each in theirs.
fn through_mine(
    write_set: &WriteSet,
    dict: DictionaryId,
    part: &Part,
    newer: &Newer,
    since: Seq,
    now: Now<'_>,
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
                let applies = match newer.change(item.key, since)? {
                    Some(change) => {
                        write_set.commutes(dict, item.key)?
                            && now.takes_addition(dict, item.key, &change)?
                    }
                    None => true,
                };
                (!applies).then_some(Found::Point(item.key))
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

/// Visits the keys of `write_set` whose value in `now` differs from that in `base`, logs of durable
/// transactions excluded. For each deleted range it reads the differences of the two states up to
/// the first one, and keeps none of them in memory.
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
            BodyRef::Update { .. }
                if write_set.commutes(dict, item.key)?
                    && Now::View(now).can_be_added_to(dict, item.key)? =>
            {
                None
            }
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

/// Returns whether a dictionary is the log of a durable transaction, which no other transaction
/// writes.
fn is_log(now: &View, dict: DictionaryId) -> bool {
    now.version.trees.get(&dict).is_some_and(|tree| &*tree.info().branch == durable::BRANCH)
}

/// Returns the merge routine of a dictionary, if it has one.
pub(super) fn routine(
    registry: &Transactions,
    dict: DictionaryId,
) -> Option<Arc<dyn MergeRoutine>> {
    if let Some(routine) = registry.routines.read().get(&dict) {
        return Some(routine.clone());
    }
    match registry.engine.versions.load().trees.get(&dict).map(|tree| tree.info().options.join) {
        None | Some(Join::None) => None,
        Some(join) => Some(Arc::new(join)),
    }
}

/// Collects the joined values of keys that a transaction and others have changed, above a copy of
/// its write set, which is spilled when it grows too large.
struct Joined<'a> {
    registry: &'a Transactions,
    mine: &'a WriteSet,
    with: Option<WriteSet>,
    changes: Ops,
    bytes: usize,
}

impl Joined<'_> {
    /// Bytes of changes that are gathered before they are added to the write set.
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
            with.spill(&self.registry.engine, &BTreeMap::new())?;
        }
        Ok(())
    }
}

/// Joins the changes of `write_set` with those of `others`. Returns a write set with the joined
/// values on top if any were needed, or [`Error::Conflict`]. `base` is the state when the
/// transaction began or last checked, `now` the current state. If `by_value` is set, `base` may be
/// older than `others`, so values are compared as well. If `only` is set, only those dictionaries
/// are checked.
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
        Ok(match conflicts.len() >= NAMED_CONFLICTS {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    };
    if both(registry, write_set, others, only, Now::View(now), &mut visit)?.is_continue()
        && by_value
    {
        _ = changed_since(write_set, (base, now), only, &mut visit)?;
    }
    if !conflicts.is_empty() {
        return Err(Error::Conflict { keys: conflicts.into_iter().collect() });
    }
    joined.write()?;
    Ok(joined.with)
}

/// Runs the merge routine for a key that both `write_set` and others have changed.
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
        own => registry.engine.cache.resolve(own.over(below))?,
    };
    let mine = mine.map(|value| read(&registry.engine.cache, value)).transpose()?;
    Ok(routine.merge(key, base.as_deref(), mine.as_deref(), theirs.as_deref()))
}

/// Returns whether `others` have changed a key or range that `write_set` changes. `now` is the
/// state with their changes.
pub(super) fn any(
    registry: &Transactions,
    write_set: &WriteSet,
    others: Others<'_>,
    only: Only<'_>,
    now: Now<'_>,
) -> Result<bool> {
    let mut first = |_: DictionaryId, _: Found<'_>| Ok(ControlFlow::Break(()));
    Ok(both(registry, write_set, others, only, now, &mut first)?.is_break())
}

/// Returns the first key or range of `reads` that `others` have changed.
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

/// Returns whether a key of `range` was changed after `since`. `source` caches the cursor of
/// `newer` between calls.
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
