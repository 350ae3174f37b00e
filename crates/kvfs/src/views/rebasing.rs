//! Rebases a transaction that would conflict: brings its changes into a transaction that begins
//! now.

use std::time::Duration;

use kvdb::{Isolation, Transaction, TransactionId, TransactionOptions};

use super::merger::Merger;
use super::merging::{Rules, State, Three};
use crate::error::Result;
use crate::fs::Fs;
use crate::merge::merging::{
    Choice, Choices, Conflicts, FinishRebase, MergeConflict, Rebased, SettleKeys,
};

impl Merger {
    /// Begins a transaction like `id`, in the current state, and applies the changes of `id` in it:
    /// commits of others in the meantime count as made before.
    pub fn rebase(
        &self,
        id: TransactionId,
        choices: &[(Vec<u8>, Choice)],
        settle: &SettleKeys<'_>,
        finish: &FinishRebase<'_>,
    ) -> Result<Rebased> {
        let old = self.transactions.transaction(id)?;
        // The rebase may take longer than the idle limit of both transactions.
        old.in_use(|| self.rebase_in_use(&old, choices, settle, finish))
    }

    fn rebase_in_use(
        &self,
        old: &Transaction,
        choices: &[(Vec<u8>, Choice)],
        settle: &SettleKeys<'_>,
        finish: &FinishRebase<'_>,
    ) -> Result<Rebased> {
        let id = old.id();
        if old.isolation() == Isolation::Serializable {
            let why = "a serializable transaction locks what it reads and changes: no other one \
                       changes that, so there is nothing to rebase onto";
            return Err(kvdb::Error::Invalid(why.into()).into());
        }
        let nested = old.nested()?;
        if !nested.is_empty() {
            return Err(kvdb::Error::Nested { id, nested }.into());
        }
        // Opens the view if necessary: changes made in it before a restart are read through it.
        let entry = self.opener.of_transaction(id)?;
        let options = TransactionOptions { detached: true, ..old.options().clone() };
        // This must be done before the view is frozen, since it waits for data of the view that the
        // kernel holds back.
        let (transaction, parent) = self.transactions.begin_at_rest(options)?;
        let mut frozen = entry.fs.core.freeze_lock.freeze();
        let merged = || -> Result<(Conflicts, bool)> {
            if frozen.ended() {
                return Err(kvdb::Error::NoTransaction(id).into());
            }
            entry.fs.commit_older_than(Duration::MAX)?;
            let conflicts = brought_over(old, choices, settle, (&transaction, &parent.fs))?;
            let done = conflicts.is_empty() && finish(&transaction)?;
            if done {
                // If the old transaction was durable, the new one is synced in its place.
                transaction.sync()?;
            }
            Ok((conflicts, done))
        };
        let (conflicts, done) = transaction.in_use(merged).inspect_err(|_| transaction.abort())?;
        let Conflicts { named: conflicts, more: more_conflicts } = conflicts;
        if !done {
            transaction.abort();
            return Ok(Rebased { transaction: None, conflicts, more_conflicts });
        }
        let new = transaction.id();
        let opened = self.opener.open_begun(transaction, parent)?;
        opened.fs.core.inode_allocator.take_over(&entry.fs.core.inode_allocator);
        old.abort();
        frozen.end();
        drop(frozen);
        self.opener.end_view(&entry, None);
        self.watchers.tell(|watcher| watcher.appeared(&opened.view));
        Ok(Rebased { transaction: Some(new), conflicts, more_conflicts })
    }
}

/// Applies the changes of `old` in a newer transaction of the same view, and returns the conflicts
/// as the user of `old` sees them.
fn brought_over(
    old: &Transaction,
    choices: &[(Vec<u8>, Choice)],
    settle: &SettleKeys<'_>,
    (transaction, parent): (&Transaction, &Fs),
) -> Result<Conflicts> {
    let (from, into, layout) = (old.view()?, transaction.view()?, parent.core.layout);
    let base = from.beneath();
    let state = |view| State::new(view, old.branch(), layout);
    let mut three = Three { base: state(&base), from: state(&from), into: state(&into) };
    // The transaction may have put keys into dictionaries that were made after it began.
    for (name, info) in &three.into.dictionaries {
        three.from.dictionaries.entry(name.clone()).or_insert_with(|| info.clone());
    }
    let choices: Vec<_> =
        choices.iter().map(|(path, choice)| (path.clone(), choice.swapped())).collect();
    let suffix = format!("txn-{}", old.id());
    let rules = Rules { choices: &Choices::new(&choices), settle, suffix: &suffix };
    let Conflicts { named, more } = three.merge(&rules, parent, transaction)?;
    let named = named.into_iter().map(MergeConflict::swapped).collect();
    Ok(Conflicts { named, more })
}
