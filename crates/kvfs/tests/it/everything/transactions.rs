//! Transactions over files and keys: the state that each sees, and the expected result of its
//! commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{Durability, Isolation, Savepoint, TransactionId, TransactionOptions};
use kvfs::{Choice, Error, ViewId};

use super::found::{Found, is, keys_of, look};
use super::state::{State, branch_in};
use super::tree::{Id, Overlay, Tree};
use super::world::{Dead, Site, World, is_locked, mainline};

/// An open one.
pub struct Open {
    pub id: TransactionId,
    pub label: String,
    /// The number of its view, while that is open.
    number: u16,
    pub isolation: Isolation,
    pub durable: bool,
    /// If `false`, its files are read-only.
    pub checks: bool,
    /// The state below its own changes, under snapshot isolation.
    base: Arc<Tree>,
    pub over: Overlay,
    savepoints: Vec<(Savepoint, Overlay)>,
    /// In the log of what was committed to the mainline.
    since: usize,
    /// The transaction has survived a restart, so it detects conflicts by comparing values.
    restored: bool,
}

impl Open {
    pub fn tree(&self, state: &State) -> Tree {
        match self.isolation {
            Isolation::Snapshot => self.base.with(&self.over),
            Isolation::Serializable => state.branches[self.branch()].with(&self.over),
        }
    }

    /// The branch that it is of.
    pub fn branch(&self) -> &str {
        branch_in(&self.label)
    }
}

const USER_ID: u32 = 1000;

pub fn begin(w: &mut World) -> Result<(), Dead> {
    if w.open.len() >= 4 {
        return end(w);
    }
    let durable = w.random.one_in(4);
    let isolation =
        if !durable && w.random.one_in(4) { Isolation::Serializable } else { Isolation::Snapshot };
    let checks = isolation == Isolation::Serializable || durable || !w.random.one_in(10);
    let clones: Vec<String> =
        w.history.newest().branches.keys().filter(|b| !b.is_empty()).cloned().collect();
    let branch = match w.random.one_in(3) {
        true => w.pick(&clones).unwrap_or_default(),
        false => String::new(),
    };
    let mut label = w.new_name('t');
    if !branch.is_empty() {
        label = format!("{label}@{branch}");
    }
    w.note(format!("begin {label} {isolation:?} durable {durable} checks {checks}"));
    // The branch's memory is committed first.
    let unsettled = w.history.newest().branches[&branch].clone();
    w.settle(&branch);
    let base = w.history.newest().branches[&branch].clone();
    if durable {
        w.bases.insert(label.clone(), base.clone());
        w.history.attempt(|s| drop(s.durable.insert(label.clone(), Arc::default())));
    }
    let options = TransactionOptions {
        isolation,
        durable,
        check_conflicts: checks,
        label: label.clone(),
        branch: branch.clone(),
        undoable: w.random.one_in(3),
        user: Some(USER_ID),
        limit: w.random.one_in(4).then_some(1 << 40),
        // There is only one thread, so no other could release a lock that it waits for.
        lock_timeout: Duration::ZERO,
        ..TransactionOptions::default()
    };
    w.call(&[
        "Views::begin",
        "Views::user",
        "Views::list",
        "Views::takes_locks",
        "Views::by_number",
        "Fs::user",
        "Views::transaction",
    ]);
    let id = match w.views.begin(options) {
        Ok(id) => id,
        Err(e) => {
            w.judge(&mainline(), e, "begin", &[])?;
            if durable {
                w.history.refused();
            }
            w.unsettle(&branch, unsettled);
            return Ok(());
        }
    };
    if durable {
        w.history.certain();
    }
    let view = ViewId::Transaction(id);
    let number = w.ok(w.views.number(&view))?;
    assert_eq!(w.ok(w.views.user(id))?, Some(USER_ID));
    assert_eq!(w.views.by_number(number).and_then(|fs| fs.user()), Some(USER_ID), "{}", w.what());
    w.call(&["Fs::transactions", "Views::and_around", "Views::describe_keys"]);
    assert_eq!(w.views.by_number(number).map(|fs| fs.transactions()), Some(vec![id]));
    assert_eq!(w.ok(w.views.and_around(id))?, [id]);
    assert_eq!(w.views.describe_keys(id, "rows", b"a", b"b"), None, "{}", w.what());
    w.call(&["Fs::in_place_of", "ViewId::of_branch"]);
    assert_eq!(w.views.by_number(number).and_then(|fs| fs.in_place_of()), None, "{}", w.what());
    let since = w.committed.len();
    let open = Open {
        id,
        label,
        number,
        isolation,
        durable,
        checks,
        base,
        over: Overlay::default(),
        savepoints: Vec::new(),
        since,
        restored: false,
    };
    w.open.push(open);
    let mut listed: Vec<String> = w.views.list().into_iter().map(|info| info.label).collect();
    let mut wanted: Vec<String> = w.open.iter().map(|o| o.label.clone()).collect();
    listed.sort();
    wanted.sort();
    assert_eq!(listed, wanted, "{}", w.what());
    assert_eq!(
        w.views.takes_locks(),
        w.open.iter().any(|o| o.isolation == Isolation::Serializable)
    );
    Ok(())
}

/// Prepares a rebase and checks it. The resulting tree is sound, and nothing is changed. (The
/// rebase of a durable transaction writes its data in memory, which is another step.)
pub fn rebase(w: &mut World) -> Result<(), Dead> {
    let of = |open: &&Open| !open.durable && open.checks;
    let open: Vec<_> = w.open.iter().filter(of).map(|open| (open.id, open.label.clone())).collect();
    let Some((id, label)) = w.pick(&open) else { return Ok(()) };
    let choice = [None, Some(Choice::Ours), Some(Choice::Theirs), Some(Choice::Both)];
    let choice = choice[w.random.below(4) as usize];
    let choices: Vec<_> = choice.into_iter().map(|choice| (Vec::new(), choice)).collect();
    w.note(format!("rebase {label}, {choice:?}"));
    w.call(&["Views::rebase"]);
    let branch = branch_in(&label).to_owned();
    let never = |_: &str, _: &kvdb::Clash<'_>| kvdb::Settled::Conflict;
    if w.running(&label).isolation == Isolation::Serializable {
        let refused = w.views.rebase(id, &choices, &never, &|_| Ok(false));
        assert!(refused.is_err(), "{}: it holds locks", w.what());
        return Ok(());
    }
    let unsettled = w.history.newest().branches[&branch].clone();
    w.settle(&branch);
    let seen = std::cell::Cell::new(false);
    let look = |_: &kvdb::Transaction| {
        seen.set(true);
        Ok(false)
    };
    match w.views.rebase(id, &choices, &never, &look) {
        Ok(rebased) => {
            assert!(rebased.transaction.is_none(), "{}", w.what());
            assert_eq!(seen.get(), rebased.conflicts.is_empty(), "{}", w.what());
        }
        Err(e) => {
            w.judge(&Site::Transaction(label), e, "rebase", &[])?;
            w.unsettle(&branch, unsettled);
        }
    }
    Ok(())
}

impl World {
    /// The transactions of a branch are about to end with it, one by one, the oldest first.
    pub fn will_end_those_of(&mut self, branch: &str) {
        self.open.sort_by_key(|open| open.id);
        let of = |open: &&Open| open.durable && open.branch() == branch;
        let durable: Vec<String> =
            self.open.iter().filter(of).map(|open| open.label.clone()).collect();
        durable.iter().for_each(|label| self.history.attempt(|s| drop(s.durable.remove(label))));
    }

    /// The transactions have ended.
    pub fn have_ended_those_of(&mut self, branch: &str) {
        let of = |open: &&Open| open.branch() == branch;
        let ended: Vec<String> =
            self.open.iter().filter(of).map(|open| open.label.clone()).collect();
        ended.iter().for_each(|label| self.ended(label));
        let left: Vec<_> =
            self.views.list().into_iter().filter(|info| info.branch == branch).collect();
        assert_eq!(left, [], "{}: all transactions of {branch:?} have ended", self.what());
    }

    /// A transaction has ended. Its view answers no more calls, and its references are released
    /// later.
    pub fn ended(&mut self, label: &str) {
        let at = self.open.iter().position(|o| o.label == label).expect("it was open");
        let open = self.open.swap_remove(at);
        self.was_told_of_end(open.number);
        self.view_is_over(&Site::Transaction(label.into()), open.number);
        assert!(
            self.views.by_number(open.number).is_none()
                || !self.views.list().iter().any(|i| i.id == open.id)
        );
    }

    /// Serializable transactions may have ended in favour of older ones.
    pub fn reap(&mut self) {
        let ended = |open: &&Open| {
            open.isolation == Isolation::Serializable && self.db.transaction(open.id).is_err()
        };
        let ended: Vec<String> =
            self.open.iter().filter(ended).map(|open| open.label.clone()).collect();
        if !ended.is_empty() {
            // Their views end.
            self.views.tick();
        }
        ended.iter().for_each(|label| {
            self.note(format!("{label} is ended"));
            self.ended(label);
        });
    }

    pub fn view_is_over(&mut self, site: &Site, number: u16) {
        let mine: Vec<(Id, u64)> = self
            .references
            .iter()
            .filter(|((s, _), _)| s == site)
            .map(|((_, id), n)| (*id, *n))
            .collect();
        for (id, count) in mine {
            self.left.push((number, self.inos[&id], count));
        }
        self.references.retain(|(s, _), _| s != site);
        self.nameless.retain(|(s, _), _| s != site);
        self.stale.retain(|(s, _)| s != site);
    }
}

fn any(w: &mut World) -> Option<String> {
    let all: Vec<String> = w.open.iter().map(|o| o.label.clone()).collect();
    w.pick(&all)
}

/// An operation on a transaction as a whole.
pub fn look_after(w: &mut World) -> Result<(), Dead> {
    let Some(label) = any(w) else { return begin(w) };
    let site = Site::Transaction(label.clone());
    let id = w.running(&label).id;
    w.note(format!("{label}: look after"));
    match w.random.below(8) {
        0 | 1 => {
            w.call(&["Views::savepoint"]);
            match w.views.savepoint(id) {
                Ok(savepoint) => {
                    w.note(format!("{label}: savepoint"));
                    let open = w.running_mut(&label);
                    open.over.settle();
                    let over = open.over.clone();
                    open.savepoints.push((savepoint, over));
                    Ok(())
                }
                Err(e) => w.judge(&site, e, "savepoint", &[]),
            }
        }
        2 | 3 => go_back(w, &label),
        4 => {
            w.call(&["Views::keep"]);
            match w.views.keep(id) {
                Ok(()) => {
                    let open = w.running_mut(&label);
                    if open.durable {
                        open.over.settle();
                        let over = open.over.clone();
                        w.history
                            .attempt(|s| drop(s.durable.insert(label.clone(), Arc::new(over))));
                        w.history.certain();
                    }
                    Ok(())
                }
                Err(e) => w.judge(&site, e, "keep", &[]),
            }
        }
        5 => review(w, &label),
        _ => see(w, &label),
    }
}

fn go_back(w: &mut World, label: &str) -> Result<(), Dead> {
    let n = w.running(label).savepoints.len() as u64;
    if n == 0 {
        return Ok(());
    }
    let at = w.random.below(n) as usize;
    w.note(format!("{label}: back to savepoint {at} of {n}"));
    let site = Site::Transaction(label.into());
    let open = w.running_mut(label);
    open.savepoints.truncate(at + 1);
    let (savepoint, over) = open.savepoints[at].clone();
    let (id, durable) = (open.id, open.durable);
    let (number, before) = (open.number, w.tree(&site));
    if durable {
        w.history.attempt(|s| drop(s.durable.insert(label.into(), Arc::new(over.clone()))));
    }
    w.call(&["Views::rollback_to"]);
    w.listen();
    match w.views.rollback_to(id, &savepoint) {
        Ok(()) => {
            w.running_mut(label).over = over;
            w.was_told(&site, number, &before, &w.tree(&site));
            w.became_another(&site);
            see(w, label)
        }
        Err(e) => {
            w.judge_removal(&site, e, "rollback_to", &[])?;
            w.refused(&site);
            Ok(())
        }
    }
}

impl World {
    /// A view has another state as a whole. References to inodes that are not in it are stale.
    pub fn became_another(&mut self, site: &Site) {
        let tree = self.tree(site);
        self.listing_lost(site, &tree);
        let mine: Vec<Id> =
            self.references.keys().filter(|(s, _)| s == site).map(|(_, id)| *id).collect();
        for id in mine {
            let at = (site.clone(), id);
            self.nameless.remove(&at);
            if tree.nodes.contains_key(&id) {
                self.stale.remove(&at);
                continue;
            }
            self.stale.insert(at);
            let Ok(fs) = self.fs(site) else { return };
            match fs.getattr(self.inos[&id]) {
                Err(Error::Stale(_)) => {}
                Err(_) if self.device.is_dead() => return,
                other => panic!("{}: node {id} is no more: {other:?}", self.what()),
            }
        }
    }
}

/// Compares the lists of its changes for people and for kernels.
fn review(w: &mut World, label: &str) -> Result<(), Dead> {
    let (id, site) = (w.running(label).id, Site::Transaction(label.into()));
    w.call(&["Views::change_set", "Views::difference", "FileChange::times_alone"]);
    let told = match w
        .views
        .change_set(id)
        .and_then(|touched| Ok((touched, w.views.difference(id, Default::default())?)))
    {
        Ok(told) => told,
        Err(e) => return w.judge(&site, e, "what it has changed", &[]),
    };
    let open = w.running(label);
    let tree = open.tree(w.history.newest());
    for (at, now) in &open.over.entries {
        let Some(dir) = w.inos.get(&at.0).copied().or((at.0 == 0).then_some(kvfs::ROOT)) else {
            continue;
        };
        let named =
            |(parent, name, _): &(u64, Box<[u8]>, bool)| *parent == dir && **name == at.1[..];
        let is = told.0.names.iter().any(named);
        assert!(
            is || open.base.entries.get(at) == now.as_ref(),
            "{}: {at:?} is not among what was touched",
            w.what()
        );
    }
    if open.isolation == Isolation::Snapshot {
        let mut found: Vec<Vec<u8>> =
            told.1.iter().filter(|c| !c.times_alone()).map(|c| c.path.clone()).collect();
        found.sort();
        let wanted = open.base.differing(&tree);
        assert_eq!(found, wanted, "{}: what differs in {label}", w.what());
    }
    Ok(())
}

/// The transaction sees its base state, and its own changes above that.
pub fn see(w: &mut World, label: &str) -> Result<(), Dead> {
    let site = Site::Transaction(label.into());
    if !w.open.iter().any(|o| o.label == *label) {
        return Ok(());
    }
    w.hand_over()?;
    let (fs, id) = (w.fs(&site)?, w.running(label).id);
    // A durable one reads a snapshot.
    let branch = if w.running(label).durable { "" } else { branch_in(label) };
    let seen = || -> kvfs::Result<Found> {
        let found = look(&fs)?;
        let keys = keys_of(&w.views.transaction(id)?.view()?, branch)?;
        Ok(Found { keys, ..found })
    };
    match seen() {
        Ok(found) => {
            let (tree, how) = (w.tree(&site), w.exactly(&site));
            is(&tree, &found, how, &w.inos)
                .unwrap_or_else(|e| panic!("{}: transaction {label} sees: {e}", w.what()));
            Ok(())
        }
        Err(e) => w.judge(&site, e, "look", &[]),
    }
}

pub fn end(w: &mut World) -> Result<(), Dead> {
    let Some(label) = any(w) else { return Ok(()) };
    if w.random.one_in(5) {
        return abort(w, &label);
    }
    let durability = w.durability();
    let site = Site::Transaction(label.clone());
    let branch = branch_in(&label).to_owned();
    let parent = Site::Branch(branch.clone());
    let (main, open) = (w.history.newest().branches[&branch].clone(), w.running(&label));
    let (id, isolation, durable, checks) = (open.id, open.isolation, open.durable, open.checks);
    let base = if isolation == Isolation::Snapshot { open.base.clone() } else { main.clone() };
    let over = open.over.clone();
    let lost = over.lost_update(&base, &main, checks);
    let meets = open.restored
        || w.committed[open.since..]
            .iter()
            .any(|(of, theirs)| *of == branch && over.meets(theirs, &base, checks));
    let next = Arc::new(main.merged(&over, &base));
    let entries = over.entries.len();
    w.note(format!(
        "commit {label} {durability:?}: {entries} names, {} nodes, {} keys; lost: {lost:?}",
        over.nodes.len(),
        over.keys.len()
    ));
    if over.changes_files() {
        w.settle(&branch);
    }
    let settled = w.history.newest().branches[&branch].clone();
    w.history.attempt(|s| {
        s.branches.insert(branch.clone(), next.clone());
        s.durable.remove(&label);
    });
    w.call(&["Views::commit", "Views::followed", "Views::changed_paths"]);
    w.listen();
    let view = ViewId::of_branch(&branch);
    let number = w.ok(w.views.number(&view))?;
    let followed = w.ok(w.views.followed(&view))?;
    let followed = w.ok(w.db.follow_branch(&branch, 1 << 20, &followed).map_err(Into::into))?;
    let newest = w.db.undoable_commits().pop().map_or(0, |commit| commit.number);
    let in_its_state = w.random.one_in(3);
    if in_its_state {
        w.call(&["Views::revision", "Views::commit_with"]);
    }
    let commit = || match in_its_state {
        true => {
            let only_in = Some(w.views.revision(id)?);
            w.views
                .commit_with(id, kvdb::CommitOptions { durability, only_in, ..Default::default() })
        }
        false => w.views.commit(id, durability),
    };
    match kvdb::without_lock_waits(commit) {
        Ok(()) => {
            assert_eq!(
                lost,
                None,
                "{}: {label} has overwritten what others had committed",
                w.what()
            );
            assert_eq!(next.fault(), None, "{}: {label}", w.what());
            if durability == Durability::Synced {
                w.history.certain();
            }
            w.ended(&label);
            let recent = w.db.commits_since(followed, usize::MAX);
            for commit in recent.into_iter().flat_map(|recent| recent.commits) {
                w.ok(w.views.changed_paths(&view, &commit.changes))?;
            }
            if w.random.one_in(2) && undone(w, newest, &branch, &settled)? {
                // Everything is as before, also for programs that have files open.
                w.listing_lost(&parent, &next);
                w.committed.push((branch, over));
                return Ok(());
            }
            w.was_told(&parent, number, &main, &next);
            w.lost(&parent, &main, &over);
            w.listing_lost(&parent, &next);
            w.committed.push((branch, over));
            Ok(())
        }
        Err(Error::Store(kvdb::Error::Conflict { keys })) => {
            let named = isolation == Isolation::Snapshot && meets;
            assert!(
                named,
                "{}: {label} has a conflict over {keys:?}, which no other has changed",
                w.what()
            );
            w.history.refused();
            if durable {
                w.history.attempt(|s| drop(s.durable.remove(&label)));
            }
            w.ended(&label);
            Ok(())
        }
        Err(e) => {
            if is_locked(&e) {
                w.note(format!("{label} would have to wait"));
            }
            w.judge(&site, e, "commit", &[])?;
            w.history.refused();
            w.unsettle(&branch, main);
            Ok(())
        }
    }
}

/// Undoes the last commit, if possible. It followed commit number `newest`, and `before` is the
/// state before it.
fn undone(w: &mut World, newest: u64, branch: &str, before: &Arc<Tree>) -> Result<bool, Dead> {
    let Some(commit) = w.db.undoable_commits().pop().filter(|c| c.number > newest) else {
        return Ok(false);
    };
    w.note(format!("undo {}", commit.label));
    w.call(&["Views::undo"]);
    let options = TransactionOptions { lock_timeout: Duration::ZERO, ..Default::default() };
    let (id, against) = match w.views.undo(commit.number, options) {
        Ok(begun) => begun,
        Err(e) => return w.judge(&mainline(), e, "undo", &[]).map(|()| false),
    };
    // Locked data may have waited in memory until now.
    assert!(against.is_empty() || w.views.takes_locks(), "{}: {against:?}", w.what());
    w.history.attempt(|s| drop(s.branches.insert(branch.into(), before.clone())));
    let committed = match against.is_empty() {
        true => kvdb::without_lock_waits(|| w.views.commit(id, Durability::Buffered)),
        false => Err(Error::Store(kvdb::Error::Conflict { keys: against })),
    };
    let Err(e) = committed else { return Ok(true) };
    let _ = w.views.abort(id);
    w.history.refused();
    match e {
        Error::Store(kvdb::Error::Conflict { .. }) if w.views.takes_locks() => Ok(false),
        e => w.judge(&mainline(), e, "undo", &[]).map(|()| false),
    }
}

fn abort(w: &mut World, label: &str) -> Result<(), Dead> {
    let open = w.running(label);
    let (id, durable, number) = (open.id, open.durable, open.number);
    w.note(format!("abort {label}"));
    if durable {
        w.history.attempt(|s| drop(s.durable.remove(label)));
    }
    let fs = w.views.fs(&ViewId::Transaction(id));
    w.call(&["Views::abort"]);
    match w.views.abort(id) {
        Ok(()) => {}
        // The transaction was ended in favour of an older one.
        Err(Error::Store(kvdb::Error::NoTransaction(_)))
            if w.running(label).isolation == Isolation::Serializable => {}
        Err(e) => return w.judge_removal(&Site::Transaction(label.into()), e, "abort", &[]),
    }
    if let Ok(fs) = fs {
        assert!(
            matches!(fs.getattr(kvfs::ROOT), Err(Error::Stale(_))),
            "{}: a view that is over",
            w.what()
        );
        assert!(w.views.by_number(number).is_none(), "{}", w.what());
    }
    w.ended(label);
    Ok(())
}

/// Called after a restart: durable transactions are open again.
pub fn restored(w: &mut World, found: &BTreeMap<String, TransactionId>) {
    let durable = w.history.newest().durable.clone();
    for (label, over) in durable {
        let id = found[&label];
        let (base, mut over) = (w.bases[&label].clone(), (*over).clone());
        // A node that only waited in memory is not among its changes.
        over.nodes.retain(|node, mine| match (base.nodes.get(node), mine) {
            (Some(was), Some(mine)) => was.now() != mine.now(),
            _ => true,
        });
        w.open.push(Open {
            id,
            number: w.views.number(&ViewId::Transaction(id)).expect("it is open"),
            isolation: Isolation::Snapshot,
            durable: true,
            checks: true,
            base,
            over,
            savepoints: Vec::new(),
            since: 0,
            restored: true,
            label,
        });
    }
    let open: Vec<&String> = w.open.iter().map(|o| &o.label).collect();
    w.bases.retain(|label, _| open.contains(&label));
}
