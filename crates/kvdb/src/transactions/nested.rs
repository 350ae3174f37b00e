//! Transactions within transactions. A nested transaction reads the state that it finds in the
//! enclosing one, and its commit puts its changes on top of those of the enclosing one. Others see
//! them when the outermost transaction commits.
//!
//! A nested transaction reads the parts of the enclosing write set up to a mark, as savepoints have
//! them: later changes go into parts of their own. Its commit checks for conflicts with these later
//! parts only. Whether the store has changed need not be checked then: the nested transaction reads
//! the store as the enclosing one does, and the commit of that one checks for both, since it has
//! taken over the changes and their dependencies.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use env::sync::RwLockReadGuard;

use super::conflicts::{self, Now, Others};
use super::ending::{BIND_AT, changes, runs};
use super::handle::Transaction;
use super::options::{Isolation, TransactionOptions};
use super::reads;
use super::registry::Transactions;
use super::state::{Mark, Open, OpenState, TransactionState};
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::write_set::WriteSet;

/// Maximum nesting depth, the outermost transaction included: a read may have to look into the
/// write set of each level.
pub const MAX_NESTED: usize = 16;

/// The transaction that a nested transaction was begun within.
pub(super) struct Within {
    parent: Arc<TransactionState>,
}

/// An open nested transaction, as recorded by the enclosing one.
pub(super) struct Nested {
    id: TransactionId,
    /// The nested transaction reads the parts of the write set before this mark, and may conflict
    /// with those after it.
    pub(super) mark: Mark,
}

impl Within {
    /// Removes a nested transaction that has ended from the enclosing one.
    pub(super) fn leave(&self, id: TransactionId) {
        if let Some(open) = &mut self.parent.state.write().open {
            open.nested.retain(|nested| nested.id != id);
        }
    }

    /// See [`Transaction::is_outdated`].
    pub(super) fn is_outdated(
        &self,
        of: &TransactionState,
        state: RwLockReadGuard<'_, OpenState>,
    ) -> Result<bool> {
        let Some(open) = &state.open else { return Err(of.ended(&state)) };
        let (write_set, reads) = (open.write_set.clone(), open.reads.clone());
        let depends = open.depends.clone();
        drop(state);
        let state = self.parent.state.read();
        let Some(around) = &state.open else { return Err(self.parent.ended(&state)) };
        let Some(mark) = around.mark_of(of.id) else { return Ok(true) };
        let changed = around.write_set.since(&mark.parts);
        let now = around.view(&of.registry);
        drop(state);
        let others = Others::Around(&changed);
        match reads::check(&of.registry, &depends, 0) {
            Err(Error::Conflict { .. }) => return Ok(true),
            checked => checked?,
        }
        Ok(conflicts::changed_read(&of.registry, &reads, others)?.is_some()
            || conflicts::any(&of.registry, &write_set, others, None, Now::View(&now))?)
    }
}

impl Open {
    /// Puts the changes of a nested transaction on top of its own, and logs them if it is durable.
    /// On an error none of them is added. A large write set is spilled.
    fn take_over(&mut self, registry: &Arc<Transactions>, write_set: &mut WriteSet) -> Result<()> {
        if write_set.in_memory() && write_set.memory() <= BIND_AT {
            let (mut changes, removes) = changes(&registry.engine.cache, write_set)?;
            self.make_room(registry, removes)?;
            let pin = registry.parts.commits.keep_places(&changes)?;
            if let Some(log) = self.log {
                registry.log_nested(log, self.write_set.at, write_set)?;
            }
            self.fold_updates(registry, &mut changes)?;
            self.write_set.write(&changes, pin);
            return Ok(());
        }
        self.make_room(registry, false)?;
        write_set.spill(&registry.engine, &BTreeMap::new())?;
        if let Some(log) = self.log {
            registry.log_nested(log, self.write_set.at, write_set)?;
        }
        let kept = self.kept();
        let mut stacked = false;
        for (dict, runs) in runs(write_set) {
            runs.into_iter().rev().for_each(|run| self.write_set.adopt(dict, run));
            let kept = kept.get(&dict).copied().unwrap_or(0);
            stacked |= self.write_set.is_stacked(dict, kept);
        }
        if stacked {
            // The runs have been adopted even if this fails; a later spill tries again.
            let _ = self.spill(registry);
        }
        Ok(())
    }

    pub(super) fn nested_ids(&self) -> impl Iterator<Item = TransactionId> + '_ {
        self.nested.iter().map(|nested| nested.id)
    }

    fn mark_of(&self, id: TransactionId) -> Option<&Mark> {
        self.nested.iter().find(|nested| nested.id == id).map(|nested| &nested.mark)
    }

    /// Removes the nested transactions that were begun after a savepoint, and returns them.
    pub(super) fn leave_nested_since(&mut self, savepoint: u64) -> Vec<TransactionId> {
        let since = |nested: &mut Nested| nested.mark.id > savepoint;
        self.nested.extract_if(.., since).map(|nested| nested.id).collect()
    }
}

impl Transactions {
    /// Begins a transaction within another one.
    pub(super) fn begin_within(
        self: &Arc<Self>,
        within: TransactionId,
        options: TransactionOptions,
    ) -> Result<Transaction> {
        let parent = self.find(within).filter(|parent| !parent.options.private);
        let parent = parent.ok_or(Error::NoTransaction(within))?;
        parent.takes_nested(&options)?;
        let TransactionOptions { ref branch, user, .. } = parent.options;
        let options = TransactionOptions { branch: branch.clone(), user, ..options };
        parent.used()?;
        let mut state = parent.state.write();
        let Some(around) = &mut state.open else { return Err(parent.ended(&state)) };
        let mut all = self.open.lock();
        self.has_room(all.len(), options.detached)?;
        let mark = around.mark();
        let base = around.beneath(self).around(around.write_set.clone());
        let id = TransactionId(self.number());
        // Recent commits from the beginning of the enclosing transaction on must be kept while this
        // one is open, for conflict detection.
        let since = self.parts.recent.begin(|| (Some(parent.since), parent.since));
        let begun_in = Some(Within { parent: parent.clone() });
        let nested = self.insert(&mut all, id, options, begun_in, Open::new(Some(base)), since);
        around.nested.push(Nested { id, mark });
        Ok(TransactionState::handle(&nested))
    }

    /// Aborts nested transactions whose enclosing one has ended or was rolled back.
    pub(super) fn end_nested(&self, ids: impl IntoIterator<Item = TransactionId>, why: &str) {
        for nested in ids.into_iter().filter_map(|id| self.find(id)) {
            nested.end(why);
        }
    }
}

impl TransactionState {
    /// Returns this transaction and the enclosing ones, from the inside out.
    pub(super) fn and_around(&self) -> impl Iterator<Item = &TransactionState> {
        iter::successors(Some(self), |one| one.within.as_ref().map(|within| &*within.parent))
    }

    /// Returns whether a commit of this transaction is logged, since it or an enclosing one is
    /// durable.
    pub(super) fn is_logged(&self) -> bool {
        self.and_around().any(|one| one.options.durable)
    }

    /// Returns whether a commit of this transaction can be made durable at once: it is not nested,
    /// or the enclosing transaction is durable.
    pub(super) fn is_kept(&self) -> bool {
        self.within.as_ref().is_none_or(|within| within.parent.options.durable)
    }

    /// Returns the message for nested transactions that are aborted because this one has ended.
    pub(super) fn why_nested_end(&self) -> String {
        format!("transaction {}, within which it was begun, has ended", self.id)
    }

    fn takes_nested(&self, options: &TransactionOptions) -> Result<()> {
        let invalid = |what: &str| Err(Error::Invalid(what.to_owned()));
        if self.options.isolation == Isolation::Serializable {
            return invalid(
                "a transaction within a serializable one: what one locks would not be locked for \
                 the other",
            );
        }
        if options.isolation == Isolation::Serializable {
            return invalid("a serializable transaction within another one: begin it by itself");
        }
        if options.durable {
            return invalid(
                "a durable transaction within another one: what it commits is kept if that one is \
                 durable",
            );
        }
        if options.undoable {
            return invalid(
                "a commit into a transaction that could be undone: go back to a savepoint instead",
            );
        }
        if self.and_around().count() >= MAX_NESTED {
            return Err(Error::Limit(format!(
                "{MAX_NESTED} transactions are within one another already"
            )));
        }
        Ok(())
    }

    /// Adds the changes to those of the enclosing transaction; on any error none of them is added.
    pub(super) fn apply_within(&self, within: &Within, open: &mut Open) -> Result<()> {
        let (registry, parent) = (&self.registry, &within.parent);
        registry.engine.health.writable()?;
        if !open.write_set.in_memory() || open.write_set.memory() > BIND_AT {
            open.spill(registry)?;
        }
        let mut state = parent.state.write();
        if let Some(why) = &*parent.doomed.lock() {
            return Err(parent.aborted(why));
        }
        let Some(into) = &mut state.open else { return Err(parent.ended(&state)) };
        let Some(mark) = into.mark_of(self.id) else {
            return Err(self.aborted("the transaction within which it was begun went back"));
        };
        let changed = into.write_set.since(&mark.parts);
        if changed.values().any(|parts| !parts.is_empty()) {
            // The limit was checked as if the nested transaction were the only one, so check it
            // again.
            self.compare(open);
            parent.compare(into);
            parent.check_limit(self.more())?;
        }
        let others = Others::Around(&changed);
        if !open.write_set.is_empty()
            && let Some(found) = conflicts::changed_read(registry, &open.reads, others)?
        {
            return Err(Error::Conflict { keys: vec![found] });
        }
        reads::check(registry, &open.depends, 0)?;
        let mut all_reads = into.reads.clone();
        if !open.reads.is_empty() {
            Arc::make_mut(&mut all_reads).extend(&open.reads)?;
        }
        let checked_alone = self.checked.lock().clone();
        let only = (!self.options.check_conflicts).then_some(&checked_alone[..]);
        let (base, now) = (open.beneath(registry), into.view(registry));
        let mine = &open.write_set;
        let joined = conflicts::reconcile(registry, mine, others, false, (&base, &now), only)?;
        let mut write_set = joined.unwrap_or_else(|| mine.clone());
        into.take_over(registry, &mut write_set)?;
        into.revision += u64::from(!write_set.is_empty());
        into.reads = all_reads;
        into.depends.extend(open.depends.iter().cloned());
        into.nested.retain(|nested| nested.id != self.id);
        parent.count(into);
        Ok(())
    }
}
