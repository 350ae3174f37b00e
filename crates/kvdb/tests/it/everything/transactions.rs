//! Transactions in the history: the state that each has seen, its changes, and the expected result
//! of its commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvdb::{
    Batch, CommitOptions, DictionaryId, Durability, Error, Isolation, Savepoint, Scope,
    Transaction, TransactionOptions,
};

use super::oracle::{Change, Kind, ManifestState, branch_of, seen, tuples};
use super::world::{Dead, World};

/// An open one.
pub struct Open {
    pub t: Transaction,
    /// The state that the transaction sees, with its own changes, and that state after each of its
    /// calls.
    pub sees: ManifestState,
    stages: Vec<ManifestState>,
    base: ManifestState,
    changes: Vec<Change>,
    /// Changes by others that its commit depends on as well.
    reads: Vec<Change>,
    savepoints: Vec<(Savepoint, ManifestState, usize)>,
    /// In the log of what was committed.
    since: usize,
    durable: bool,
    /// The transaction has survived a restart, so it detects conflicts by comparing values.
    restored: bool,
    checks: bool,
    /// The dictionary of the main branch in which conflicts are looked for even if the transaction
    /// checks for none.
    alone: Option<String>,
}

impl Open {
    /// Only what others change from here on counts.
    pub fn begins_at(&mut self, since: usize) {
        self.since = since;
    }

    fn step(&mut self, changes: &[Change]) {
        self.sees.apply(changes);
        self.changes.extend_from_slice(changes);
        self.stages.push(self.sees.clone());
    }
}

fn compare(w: &World, open: &Open) -> Result<(), Dead> {
    let view = w.ok(open.t.view())?;
    let found = w.ok(seen(&view, &open.sees))?;
    let wanted = ManifestState { branches: open.sees.branches.clone(), ..ManifestState::default() };
    assert!(
        found == wanted,
        "{}: transaction {} sees {}",
        w.what(),
        open.t.id(),
        found.differs(&wanted)
    );
    Ok(())
}

/// The limit of a transaction that has one, bytes.
const LIMIT: u64 = 1 << 40;

pub fn begin(w: &mut World) -> Result<(), Dead> {
    if w.open.len() >= 5 {
        return Ok(());
    }
    let durable = w.random.one_in(3);
    let checks = !w.random.one_in(5);
    let plain = checks && !durable && w.random.one_in(2);
    let in_place = !plain && w.random.one_in(4);
    let t = if plain {
        w.call("Kvdb::begin");
        w.ok(w.db.begin(Isolation::Snapshot))?
    } else {
        w.call("Kvdb::begin_with");
        let detached = w.random.one_in(2);
        let label = format!("seed {}", w.seed);
        let options = TransactionOptions {
            durable,
            detached,
            check_conflicts: checks,
            label,
            undoable: w.random.one_in(3),
            user: Some(1000),
            in_place,
            // The limit is never reached, but the store merges the transaction's changes for it
            // nevertheless.
            limit: w.random.one_in(2).then_some(LIMIT),
            ..Default::default()
        };
        let Some(t) = w.unless_full(w.db.begin_with(options))? else { return Ok(()) };
        t
    };
    w.call("Transaction::checks_conflicts");
    w.call("Transaction::is_durable");
    assert_eq!(
        (t.checks_conflicts(), t.is_durable(), t.isolation()),
        (checks, durable, Isolation::Snapshot)
    );
    w.call("Transaction::isolation");
    w.call("Transaction::is_in_place");
    assert_eq!(t.is_in_place(), in_place);
    w.call("Transaction::options");
    assert_eq!((t.options().durable, t.options().in_place), (durable, in_place));
    w.call("Transaction::branch");
    assert_eq!(t.branch(), "");
    let dictionaries = w.history.newest().branches.get("").map(|branch| branch.keys());
    let alone = dictionaries.and_then(|mut names| names.next()).filter(|_| !checks).cloned();
    let alone = alone.filter(|_| w.random.one_in(2));
    if let Some(dict) = alone.as_ref().and_then(|name| w.db.dictionary(name)) {
        w.call("Transaction::check_conflicts_in");
        t.check_conflicts_in(&[dict]);
    }
    if durable {
        // The transaction began with a commit that is on disk.
        w.history.certain();
    }
    let mut base =
        ManifestState { branches: w.history.newest().branches.clone(), ..ManifestState::default() };
    if durable {
        // Only the main branch of the state that a durable transaction reads is kept.
        base.branches.retain(|name, _| name.is_empty());
    }
    let open = Open {
        t,
        sees: base.clone(),
        stages: vec![base.clone()],
        base,
        changes: Vec::new(),
        reads: Vec::new(),
        savepoints: Vec::new(),
        since: w.committed.len(),
        durable,
        restored: false,
        checks,
        alone,
    };
    w.open.push(open);
    Ok(())
}

/// A random operation in one of the open transactions.
pub fn work(w: &mut World) -> Result<(), Dead> {
    if w.open.is_empty() {
        return begin(w);
    }
    let at = w.random.below(w.open.len() as u64) as usize;
    let mut open = w.open.swap_remove(at);
    let done = in_one(w, &mut open);
    w.open.push(open);
    done
}

fn in_one(w: &mut World, open: &mut Open) -> Result<(), Dead> {
    let t = open.t.clone();
    // A place that both the transaction and the mainline have, and whose number has not changed
    // since.
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    if open.sees.table(&branch, &dict).is_none() || w.made_since(&branch, &dict, open.since) {
        return Ok(());
    }
    let key = w.key();
    let change = |kind| Change { branch: branch.clone(), dict: dict.clone(), kind };
    match w.random.below(21) {
        20 => within(w, open, (branch, dict, id))?,
        0 | 1 => {
            let value = w.value();
            w.call("Transaction::put");
            let earlier = w.ok(t.view())?;
            if w.unless_full(t.put(id, &key, &value))?.is_none() {
                return compare(w, open);
            }
            w.call("Transaction::renew");
            let renewed = w.ok(t.renew(&earlier))?;
            let (old, new) = (w.ok(earlier.get(id, &key))?, w.ok(renewed.get(id, &key))?);
            assert_eq!(new, old, "{}: a view from before the change", w.what());
            open.step(&[change(Kind::Put(key, value))]);
        }
        2 if w.random.one_in(2) => {
            let update = w.update(!open.durable);
            w.call("Transaction::update");
            if w.unless_full(t.update(id, &key, update.clone()))?.is_none() {
                return compare(w, open);
            }
            open.step(&[change(Kind::Update(key, update))]);
        }
        2 => {
            w.call("Transaction::delete");
            if !removed(w, open, t.delete(id, &key))? {
                return compare(w, open);
            }
            open.step(&[change(Kind::Delete(key))]);
        }
        3 => {
            let (a, b) = w.range();
            w.call("Transaction::delete_range");
            if !removed(w, open, t.delete_range(id, a.clone(), b.clone()))? {
                return compare(w, open);
            }
            open.step(&[change(Kind::DeleteRange(a, b))]);
        }
        4 | 5 => {
            let (changes, batch) = w.batch(&[(branch.clone(), dict.clone(), id)], !open.durable);
            if w.random.one_in(3) {
                w.call("Scope::apply");
                w.call("Scope::writable");
                let scope = Scope::Transaction(t);
                assert!(scope.writable());
                // Without references both do the same.
                let applied = match changes.len() % 2 {
                    0 => {
                        w.call("Scope::apply_with");
                        scope.apply_with(batch, Vec::new(), Durability::Buffered)
                    }
                    _ => scope.apply(batch, Durability::Buffered),
                };
                if w.unless_full(applied)?.is_none() {
                    return compare(w, open);
                }
                w.call("Scope::sync");
                w.ok(scope.sync())?;
            } else {
                w.call("Transaction::apply");
                let applied = match w.random.one_in(8) {
                    true => {
                        w.call("Transaction::apply_at_commit");
                        t.apply_at_commit(batch)
                    }
                    false => t.apply(batch),
                };
                if w.unless_full(applied)?.is_none() {
                    return compare(w, open);
                }
            }
            open.step(&changes);
        }
        6 => {
            w.call("Transaction::get");
            let value = w.ok(t.get(id, &key))?;
            assert_eq!(
                value.as_deref(),
                open.sees.table(&branch, &dict).and_then(|t| t.get(&key)).map(|v| &v[..]),
                "{}",
                w.what()
            );
        }
        7 => {
            let (a, b) = w.range();
            let all = open.sees.table(&branch, &dict).cloned().unwrap_or_default();
            let want: Vec<_> =
                if a < b { all.range(a.clone()..b.clone()).take(7).collect() } else { Vec::new() };
            w.call("Transaction::scan");
            let found = w.ok(t.scan(id, &a, &b, 7))?;
            assert!(
                found
                    .iter()
                    .map(|(k, v)| (&k[..], &v[..]))
                    .eq(want.iter().map(|(k, v)| (&k[..], &v[..]))),
                "{}",
                w.what()
            );
            w.call("Transaction::cursor");
            let mut cursor = w.ok(t.cursor(id, &a, &b))?;
            let first = w.ok(cursor.next())?;
            assert_eq!(first.map(|t| t.key.to_vec()), want.first().map(|(k, _)| k.to_vec()));
            let scope = Scope::Transaction(t);
            for name in ["Scope::get", "Scope::scan", "Scope::cursor", "Scope::view"] {
                w.call(name);
            }
            w.call("Scope::is_served");
            w.call("Scope::announce");
            assert!(!scope.is_served());
            scope.announce(id, &[&key]);
            assert_eq!(w.ok(scope.scan(id, &a, &b, 7))?, found);
            assert_eq!(w.ok(scope.get(id, &key))?.map(|v| v.to_vec()), all.get(&key).cloned());
            assert_eq!(
                w.ok(w.ok(scope.cursor(id, &a, &b))?.next())?.map(|t| t.key),
                found.first().map(|(k, _)| k.clone())
            );
            assert_eq!(w.ok(tuples(&w.ok(scope.view())?, id))?, all);
        }
        8 => {
            w.call("Transaction::view");
            compare(w, open)?;
            w.call("View::beneath");
            let beneath = w.ok(seen(&w.ok(t.view())?.beneath(), &open.base))?;
            assert!(
                beneath == open.base,
                "{}: beneath a transaction: {}",
                w.what(),
                beneath.differs(&open.base)
            );
        }
        9 | 10 => {
            w.call("Transaction::savepoint");
            let savepoint = w.ok(t.savepoint())?;
            open.savepoints.push((savepoint, open.sees.clone(), open.changes.len()));
        }
        11 | 12 if !open.savepoints.is_empty() => {
            let at = w.random.below(open.savepoints.len() as u64) as usize;
            if w.random.one_in(2) {
                w.call("Transaction::rollback_to");
                w.ok(t.rollback_to(&open.savepoints[at].0))?;
            } else {
                w.call("Transaction::rollback_and_apply");
                w.ok(t.rollback_and_apply(&open.savepoints[at].0, Batch::new()))?;
            }
            open.sees = open.savepoints[at].1.clone();
            open.changes.truncate(open.savepoints[at].2);
            open.savepoints.truncate(at + 1);
            open.stages.push(open.sees.clone());
            compare(w, open)?;
        }
        13 => {
            // Changes in a nested batch are not visible in the transaction until the batch takes
            // effect, and later changes of the transaction are not visible in the batch.
            for name in [
                "Transaction::nested_batch",
                "NestedBatch::apply",
                "NestedBatch::get",
                "NestedBatch::view",
            ] {
                w.call(name);
            }
            let mut nested = w.ok(t.nested_batch())?;
            let (changes, batch) = w.batch(&[(branch.clone(), dict.clone(), id)], !open.durable);
            match nested.apply(batch) {
                // The limit is reached soon if the memory is small; then nothing is changed.
                Err(Error::Limit(_)) => return compare(w, open),
                applied => {
                    if w.unless_full(applied)?.is_none() {
                        return compare(w, open);
                    }
                }
            }
            let mut seen_nested = open.sees.clone();
            seen_nested.apply(&changes);
            let value = w.value();
            let put = w.unless_full(t.put(id, &key, &value))?.is_some();
            let found = w.ok(tuples(&w.ok(nested.view())?, id))?;
            assert_eq!(
                Some(&found),
                seen_nested.table(&branch, &dict),
                "{}: a nested batch",
                w.what()
            );
            assert_eq!(w.ok(nested.get(id, &key))?.map(|v| v.to_vec()), found.get(&key).cloned());
            if put {
                open.step(&[change(Kind::Put(key, value))]);
            }
            if w.random.one_in(3) {
                drop(nested);
            } else {
                w.call("NestedBatch::finish");
                if w.unless_full(nested.finish())?.is_none() {
                    return compare(w, open);
                }
                open.step(&changes);
            }
        }
        14 => {
            w.call("Transaction::takes_bulk");
            assert_eq!(t.takes_bulk(), !open.durable);
            if !open.durable {
                for name in [
                    "Transaction::bulk",
                    "Transaction::adopt",
                    "Bulk::push",
                    "Bulk::finish",
                    "Bulk::written",
                ] {
                    w.call(name);
                }
                for name in [
                    "View::stored_tuples",
                    "StoredTuples::seek",
                    "StoredTuples::advance",
                    "StoredTuples::current",
                ] {
                    w.call(name);
                }
                let view = w.db.view();
                let Some(mut bulk) = w.unless_full(t.bulk(id, &view))? else { return Ok(()) };
                let mut changes = Vec::new();
                let mut stored = w.ok(view.stored_tuples(id))?;
                let from = w.key();
                stored.seek(&from);
                let copies = w.random.below(30);
                let mut last = from;
                for _ in 0..copies {
                    if !w.ok(stored.advance())? {
                        break;
                    }
                    let Some(tuple) = stored.current() else { break };
                    for name in [
                        "Bulk::push_stored",
                        "StoredTuple::value",
                        "StoredTuple::small",
                        "StoredTuple::stored_bytes",
                    ] {
                        w.call(name);
                    }
                    let value = w.ok(tuple.value())?.to_vec();
                    assert!(tuple.stored_bytes() <= value.len());
                    assert!(tuple.small().is_none_or(|small| *small == value));
                    if w.random.one_in(5) {
                        w.call("Bulk::delete");
                        let deleted = bulk.delete(tuple.key);
                        if w.unless_full(deleted)?.is_none() {
                            return Ok(());
                        }
                        changes.push(change(Kind::Delete(tuple.key.to_vec())));
                    } else {
                        // Ends the transaction at once, or keeps it until later.
                        w.call("StoredTuple::keep");
                        let kept = w.random.one_in(2).then(|| tuple.keep());
                        let pushed = match &kept {
                            Some(kept) => bulk.push_stored(tuple.key, &kept.tuple(&view)),
                            None => bulk.push_stored(tuple.key, &tuple),
                        };
                        if w.unless_full(pushed)?.is_none() {
                            return Ok(());
                        }
                        changes.push(change(Kind::Put(tuple.key.to_vec(), value)));
                    }
                    last = tuple.key.to_vec();
                }
                last.push(b'+');
                let value = w.value();
                let pushed = bulk.push(&last, &value);
                if w.unless_full(pushed)?.is_none() {
                    return Ok(());
                }
                changes.push(change(Kind::Put(last, value)));
                assert!(bulk.written() < 1 << 30);
                let Some(done) = w.unless_full(bulk.finish())? else { return Ok(()) };
                if w.unless_full(t.adopt(done))?.is_none() {
                    return compare(w, open);
                }
                open.step(&changes);
            }
        }
        15 => {
            for name in [
                "Transaction::changes",
                "Transaction::changes_of",
                "Transaction::changes_in",
                "Transaction::info",
                "Transaction::id",
                "Kvdb::transactions",
                "Kvdb::transaction",
            ] {
                w.call(name);
            }
            w.call("Kvdb::lost_to_another");
            assert!(w.db.lost_to_another(t.id()).is_none(), "it is open, and so not lost");
            w.call("Transaction::user");
            assert!(t.user().is_none_or(|user| user == 1000), "it is whose it was said to be");
            // The list of changes of a transaction with several runs is written as a run, too.
            let Some(changed) = w.unless_full(t.changes())? else { return Ok(()) };
            let changed = w.ok(changed.collect::<kvdb::Result<Vec<_>>>())?;
            assert_eq!(changed.is_empty(), open.changes.is_empty() || changed.is_empty());
            let Some(of) = w.unless_full(t.changes_of(&[id]))? else { return Ok(()) };
            let of = w.ok(of.collect::<kvdb::Result<Vec<_>>>())?;
            assert_eq!(of.len(), changed.iter().filter(|(d, _)| *d == id).count());
            let view = w.ok(t.view())?;
            let Some(by_view) = w.unless_full(t.changes_in(&view, &[id]))? else { return Ok(()) };
            assert_eq!(w.ok(by_view.collect::<kvdb::Result<Vec<_>>>())?, of);
            assert!(w.db.transactions().iter().any(|info| *info == t.info() || info.id == t.id()));
            assert_eq!(w.ok(w.db.transaction(t.id()))?.id(), t.id());
        }
        16 if !open.durable => {
            for name in [
                "Transaction::read_conflict_key",
                "Transaction::read_conflict_range",
                "Transaction::depend_on",
            ] {
                w.call(name);
            }
            w.ok(t.read_conflict_key(id, &key))?;
            open.reads.push(change(Kind::Delete(key)));
            let (a, b) = w.range();
            if !b.is_empty() {
                w.ok(t.read_conflict_range(id, &a, &b))?;
                open.reads.push(change(Kind::DeleteRange(a, b)));
            }
            let other = w.ok(w.db.begin(Isolation::Snapshot))?;
            w.ok(t.depend_on(&other))?;
        }
        17 if open.durable => {
            w.call("Transaction::sync");
            w.ok(t.sync())?;
            w.history.certain();
            open.stages = vec![open.sees.clone()];
        }
        19 => {
            w.call("Transaction::room");
            w.call("Transaction::make_room");
            let room = w.unless_full(t.make_room())?.flatten();
            assert!(room.is_none_or(|room| room > LIMIT / 2 && Some(room) == t.room()), "{room:?}");
        }
        18 => {
            w.call("Transaction::is_outdated");
            let outdated = w.ok(t.is_outdated())?;
            // After a restart, earlier changes of others are not known.
            if !open.restored && !w.rolled_back_since(open.since) {
                assert_eq!(
                    outdated,
                    meets(w, open, &open.changes) || meets(w, open, &open.reads),
                    "{}: outdated",
                    w.what()
                );
            }
        }
        _ => {}
    }
    Ok(())
}

/// Runs a nested transaction. Its changes are visible in itself, and in the outer one when it has
/// committed.
fn within(
    w: &mut World,
    open: &mut Open,
    (branch, dict, id): (String, String, DictionaryId),
) -> Result<(), Dead> {
    let t = open.t.clone();
    let options = TransactionOptions { within: Some(t.id()), ..Default::default() };
    let Some(inner) = w.unless_full(w.db.begin_with(options))? else { return Ok(()) };
    w.call("Transaction::within");
    w.call("Transaction::begun_after");
    w.call("Transaction::nested");
    assert_eq!((inner.within(), w.ok(t.nested())?), (Some(t.id()), vec![inner.id()]));
    let (changes, batch) = w.batch(&[(branch.clone(), dict.clone(), id)], !open.durable);
    if w.unless_full(inner.apply(batch))?.is_none() {
        return compare(w, open);
    }
    let mut sees = open.sees.clone();
    sees.apply(&changes);
    let found = w.ok(tuples(&w.ok(inner.view())?, id))?;
    assert_eq!(Some(&found), sees.table(&branch, &dict), "{}: one within", w.what());
    compare(w, open)?;
    let durability = w.durability();
    let ended = match w.random.one_in(3) {
        true => {
            inner.abort();
            None
        }
        false => w.unless_full(inner.commit(durability))?,
    };
    if ended.is_some() {
        open.step(&changes);
    }
    compare(w, open)
}

/// Returns whether a removal in a transaction was done. It may be refused for lack of space only if
/// the transaction is logged.
fn removed(w: &mut World, open: &Open, done: kvdb::Result<()>) -> Result<bool, Dead> {
    if open.durable { Ok(w.unless_full(done)?.is_some()) } else { w.ok(done).map(|()| true) }
}

/// Returns whether others have touched the keys of these changes since the transaction began.
/// Changes that commute do not count: additions to a value that is a number now, and changes of a
/// dropped dictionary.
fn meets(w: &World, open: &Open, mine: &[Change]) -> bool {
    let now = w.history.before_newest();
    let commutes = |change: &Change| {
        change.commutes(&open.changes)
            && (change.is_of_number(now) || w.made_since(&change.branch, &change.dict, open.since))
    };
    let mut mine = mine.iter().filter(|change| !commutes(change));
    mine.any(|mine| w.committed[open.since..].iter().any(|theirs| mine.meets(theirs)))
}

pub fn end(w: &mut World) -> Result<(), Dead> {
    if w.open.is_empty() {
        return Ok(());
    }
    let at = w.random.below(w.open.len() as u64) as usize;
    let open = w.open.swap_remove(at);
    // A transaction that overrides others would override a rollback as well, and the model does not
    // cover that.
    if w.random.one_in(4) || !open.checks && w.rolled_back_since(open.since) {
        w.call("Transaction::abort");
        open.t.abort();
        return Ok(());
    }
    let durability = w.durability();
    // Changes of a dropped dictionary are dropped with it.
    let there = |change: &&Change| !w.made_since(&change.branch, &change.dict, open.since);
    let mine: Vec<Change> = open.changes.iter().filter(there).cloned().collect();
    w.history.attempt(|state| state.apply(&mine));
    w.call("Transaction::commit");
    let outcome = match w.random.one_in(3) {
        true => {
            w.call("Transaction::revision");
            w.call("Transaction::commit_with");
            open.t.revision().and_then(|seen| {
                let options =
                    CommitOptions { durability, only_in: Some(seen), ..CommitOptions::default() };
                open.t.commit_with(options)
            })
        }
        false => {
            w.call("Transaction::in_use");
            open.t.in_use(|| open.t.commit(durability))
        }
    };
    // A transaction that changes nothing has read the state at its beginning.
    let reads = open.changes.iter().any(Change::is_any) && meets(w, &open, &open.reads);
    let alone = |change: &&Change| {
        change.branch.is_empty() && open.alone.as_ref().is_some_and(|dict| *dict == change.dict)
    };
    let looked: Vec<Change> =
        open.changes.iter().filter(|c| open.checks || alone(c)).cloned().collect();
    let touched = meets(w, &open, &looked) || reads;
    let again = open.alone.as_ref().is_some_and(|dict| w.made_since("", dict, open.since));
    let unclear = w.rolled_back_since(open.since) || open.restored || again;
    match outcome {
        Ok(()) => {
            if touched && !unclear {
                let pair = w.committed[open.since..].iter().find_map(|theirs| {
                    Some((theirs, mine.iter().chain(&open.reads).find(|m| m.meets(theirs))?))
                });
                panic!(
                    "{}: transaction {} committed over a change of others: {pair:?}",
                    w.what(),
                    open.t.id()
                );
            }
            if open.restored && open.checks {
                // No update may be lost: everything that it has changed was unchanged since it
                // began.
                for change in &open.changes {
                    let now = |s: &ManifestState| s.table(&change.branch, &change.dict).cloned();
                    let key = match &change.kind {
                        Kind::Put(key, _) | Kind::Update(key, _) | Kind::Delete(key) => key,
                        Kind::DeleteRange(start, _) => start,
                    };
                    let before = w.before_newest();
                    assert_eq!(
                        now(&before).and_then(|t| t.get(key).cloned()),
                        now(&open.base).and_then(|t| t.get(key).cloned()),
                        "{}: a durable transaction wrote over a change",
                        w.what()
                    );
                }
            }
            w.call("Transaction::is_undoable");
            if open.t.is_undoable() {
                keep(w);
            }
            w.committed.extend(mine);
            if durability == Durability::Synced {
                w.history.certain();
            }
            Ok(())
        }
        Err(Error::Conflict { keys }) => {
            assert!(
                touched || unclear,
                "{}: a conflict over {keys:?}, which no other has changed",
                w.what()
            );
            w.history.refused();
            Ok(())
        }
        // A dictionary was dropped.
        Err(Error::NoDictionary(_)) => {
            w.history.refused();
            open.t.abort();
            Ok(())
        }
        // The transaction still exists, and the commit may be retried.
        Err(Error::NoSpace)
            if w.limited && !w.device.is_dead() && open.changes.iter().any(Change::adds) =>
        {
            w.full += 1;
            w.history.refused();
            compare(w, &open)?;
            w.open.push(open);
            Ok(())
        }
        Err(e) => {
            w.dead_or_panic("commit", &e);
            Err(Dead)
        }
    }
}

/// Keeps the states of the main branch before and after the newest commit, if the commit can be
/// undone.
fn keep(w: &mut World) {
    let around = |w: &World| {
        let main = |state: &ManifestState| state.branches.get("").cloned().unwrap_or_default();
        (main(w.history.before_newest()), main(w.history.newest()))
    };
    if let Some(commit) = w.db.undoable_commits().last()
        && commit.number > w.undoable.keys().next_back().copied().unwrap_or(0)
    {
        let around = around(w);
        w.undoable.insert(commit.number, around);
    }
}

/// Checks the states before and after every commit that can be undone, and undoes one of them,
/// which may fail because of later changes.
pub fn undo(w: &mut World) -> Result<(), Dead> {
    for name in [
        "Kvdb::undoable_commits",
        "Kvdb::undoable_commits_and_bytes",
        "Kvdb::states_around",
        "Transaction::change_back",
    ] {
        w.call(name);
    }
    let commits = w.db.undoable_commits();
    let (same, _): (Vec<_>, Vec<u64>) = w.db.undoable_commits_and_bytes().into_iter().unzip();
    assert_eq!(same, commits, "{}", w.what());
    // A full store drops the data for undo.
    w.undoable.retain(|number, _| commits.iter().any(|commit| commit.number == *number));
    assert_eq!(commits.len(), w.undoable.len(), "{}: {commits:?}", w.what());
    for (number, (was, left)) in w.undoable.clone() {
        let (before, after) = w.ok(w.db.states_around(number))?;
        assert_eq!(w.ok(branch_of(&before, ""))?, was, "{}: before {number}", w.what());
        assert_eq!(w.ok(branch_of(&after, ""))?, left, "{}: after {number}", w.what());
    }
    if commits.is_empty() {
        return Ok(());
    }
    let number = commits[w.random.below(commits.len() as u64) as usize].number;
    let (was, left) = w.undoable[&number].clone();
    let (before, after) = w.ok(w.db.states_around(number))?;
    let now = w.history.newest().branches.get("").cloned().unwrap_or_default();
    let (mut changes, mut against, mut dictionaries) = (Vec::new(), 0, Vec::new());
    for (dict, left) in &left {
        // A dictionary that was dropped or made again since cannot be changed back.
        let Some(id) = after.dictionary(dict).filter(|id| w.db.dictionary(dict) == Some(*id))
        else {
            continue;
        };
        dictionaries.push(id);
        let nothing = Arc::default();
        let (was, now) = (was.get(dict).unwrap_or(&nothing), &now[dict]);
        let keys: BTreeSet<&Vec<u8>> = was.keys().chain(left.keys()).collect();
        for key in keys.into_iter().filter(|key| was.get(*key) != left.get(*key)) {
            let kind = match (now.get(key), was.get(key)) {
                (now, was) if now == was => continue,
                (now, _) if now != left.get(key) => {
                    against += 1;
                    continue;
                }
                (_, Some(value)) => Kind::Put(key.clone(), value.clone()),
                (_, None) => Kind::Delete(key.clone()),
            };
            changes.push(Change { branch: String::new(), dict: dict.clone(), kind });
        }
    }
    let options = TransactionOptions { undoable: true, ..Default::default() };
    let t = w.ok(w.db.begin_with(options))?;
    let changed = t.change_back(&dictionaries, &before, &after);
    let Some(found) = w.unless_full(changed)? else { return Ok(()) };
    assert_eq!(found.len(), against.min(16), "{}: {found:?}", w.what());
    if against > 0 {
        return Ok(());
    }
    w.history.attempt(|state| state.apply(&changes));
    let durability = w.durability();
    if w.unless_full(t.commit(durability))?.is_none() {
        w.history.refused();
        return Ok(());
    }
    keep(w);
    w.committed.extend(changes);
    if durability == Durability::Synced {
        w.history.certain();
    }
    Ok(())
}

/// Called after a restart: the states around a commit that can be undone are known, unless the
/// power failed before the commit was known to be one.
pub fn undoable_again(w: &mut World) -> Result<(), Dead> {
    let commits = w.db.undoable_commits();
    w.undoable.retain(|number, _| commits.iter().any(|commit| commit.number == *number));
    for commit in commits {
        let (before, after) = w.ok(w.db.states_around(commit.number))?;
        let around = (w.ok(branch_of(&before, ""))?, w.ok(branch_of(&after, ""))?);
        w.undoable.entry(commit.number).or_insert(around);
    }
    Ok(())
}

/// Runs a serializable transaction from its beginning to its end, and the conflicts that others
/// have with it.
pub fn serializable(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    let options =
        TransactionOptions { isolation: Isolation::Serializable, ..TransactionOptions::default() };
    let t = w.ok(w.db.begin_with(options))?;
    let (key, other) = (w.key(), w.key());
    for name in [
        "Transaction::lock_key",
        "Transaction::lock_range",
        "Kvdb::is_locked",
        "Transaction::past_its_locks",
    ] {
        w.call(name);
    }
    let table = w.history.newest().table(&branch, &dict).cloned().unwrap_or_default();
    assert_eq!(
        w.ok(t.get(id, &key))?.map(|v| v.to_vec()),
        table.get(&key).cloned(),
        "{}",
        w.what()
    );
    w.ok(t.lock_key(id, &other, true))?;
    assert!(w.db.is_locked(id, &other) && w.db.is_locked(id, &key), "{}", w.what());
    let refused =
        kvdb::without_lock_waits(|| w.db.put(id, &other, b"not now", Durability::Buffered));
    match refused {
        Err(Error::Locked(_)) => {}
        Err(Error::NoSpace) if w.limited => {}
        Err(e) => {
            w.dead_or_panic("put", &e);
            return Err(Dead);
        }
        Ok(()) => panic!("{}: what is locked was changed", w.what()),
    }
    w.ok(t.lock_range(id, b"k0", b"k1", false))?;
    let found = w.ok(t.scan(id, b"k0", b"k1", usize::MAX))?;
    assert_eq!(found.len(), table.range(b"k0".to_vec()..b"k1".to_vec()).count(), "{}", w.what());
    assert_eq!(t.past_its_locks(|| 7), 7);
    let value = w.value();
    if w.unless_full(t.put(id, &other, &value))?.is_none() {
        return Ok(());
    }
    let changes = [Change { branch, dict, kind: Kind::Put(other, value) }];
    if w.random.one_in(4) {
        drop(t);
        return Ok(());
    }
    w.history.attempt(|state| state.apply(&changes));
    let durability = w.durability();
    if w.unless_full(t.commit(durability))?.is_none() {
        w.history.refused();
        return Ok(());
    }
    w.committed.extend(changes);
    if durability == Durability::Synced {
        w.history.certain();
    }
    Ok(())
}

/// Called after a restart: durable transactions continue from the state after one of their calls.
pub fn restored(w: &mut World, before: Vec<Open>) -> Result<(), Dead> {
    for mut open in before.into_iter().filter(|open| open.durable) {
        let Ok(t) = w.db.transaction(open.t.id()) else {
            panic!("{}: durable transaction {} is gone", w.what(), open.t.id());
        };
        let found = w.ok(seen(&w.ok(t.view())?, &open.base))?;
        let Some(at) = open.stages.iter().rposition(|stage| *stage == found) else {
            let n = open.stages.len();
            panic!(
                "{}: durable transaction {} is as after none of its {n} calls: {}",
                w.what(),
                open.t.id(),
                found.differs(&open.sees)
            );
        };
        // Savepoints do not survive a restart, and it is not known which changes did, so the test
        // does not check missing ones.
        open.sees = open.stages.swap_remove(at);
        open.stages = vec![open.sees.clone()];
        // The set of its surviving changes is not known, only their result. For a transaction that
        // wins over others that is not enough.
        if open.sees != open.base && open.checks && !w.rolled_back_since(open.since) {
            open.t = t;
            open.savepoints.clear();
            open.restored = true;
            open.changes = difference(&open.base, &open.sees);
            w.open.push(open);
        } else {
            t.abort();
        }
    }
    for info in w.db.transactions() {
        if w.open.iter().all(|open| open.t.id() != info.id) {
            w.ok(w.db.transaction(info.id))?.abort();
        }
    }
    Ok(())
}

/// Changes that lead from one state to another.
fn difference(from: &ManifestState, to: &ManifestState) -> Vec<Change> {
    let mut out = Vec::new();
    for (branch, dicts) in &to.branches {
        for (dict, table) in dicts {
            let before = from.table(branch, dict).cloned().unwrap_or_default();
            let mut add =
                |kind| out.push(Change { branch: branch.clone(), dict: dict.clone(), kind });
            for (key, value) in &**table {
                if before.get(key) != Some(value) {
                    add(Kind::Put(key.clone(), value.clone()));
                }
            }
            before
                .keys()
                .filter(|key| !table.contains_key(*key))
                .for_each(|key| add(Kind::Delete(key.clone())));
        }
    }
    out
}
