//! Rebases a transaction that would conflict: brings its changes into a transaction that begins
//! now.

use std::time::Duration;

use kvdb::{Isolation, Transaction, TransactionId, TransactionOptions};

use super::merging::{Rules, State, Three};
use super::{ViewId, Views};
use crate::error::{Error, Result};
use crate::merging::{
    Choice, Choices, Conflicts, FinishRebase, MergeConflict, Rebased, SettleKeys,
};

impl Views {
    /// Begins a transaction like `id`, in the current state, and applies the changes of `id` in it:
    /// commits of others in the meantime count as made before. Nothing large is copied. If there
    /// are no conflicts, `id` ends; otherwise `id` is unchanged, and no transaction is begun. Data
    /// that `id` has only read is not checked for changes by others. The savepoints of `id` end
    /// with it.
    ///
    /// In `choices` ([`MergeOptions::choices`](crate::MergeOptions)) *ours* is the version of the
    /// transaction, as in the rebase of a clone. `settle` is asked about keys that both sides have
    /// changed; in its argument *here* is the committed version.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let env: Arc<dyn env::Env> = Arc::new(env::Simulated::new(1));
    /// # use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT, ViewId, Views};
    /// # let fs = Fs::open(db.clone(), env, FsOptions::default())?;
    /// # let views = Views::new(db, fs.clone());
    /// let id = views.begin(Default::default())?;
    /// let inside = views.fs(&ViewId::Transaction(id))?;
    /// inside.mknod(ROOT, b"mine", FileKind::File, 0o644, 0, Caller::default())?;
    /// fs.mknod(ROOT, b"theirs", FileKind::File, 0o644, 0, Caller::default())?;
    ///
    /// let rebased = views.rebase(id, &[], &|_, _| kvdb::Settled::Conflict, &|_| Ok(true))?;
    /// let id = rebased.transaction.expect("no conflicts");
    /// assert!(views.fs(&ViewId::Transaction(id))?.resolve(b"/theirs").is_ok());
    /// views.commit(id, kvdb::Durability::Synced)?;
    /// assert!(fs.resolve(b"/mine").is_ok());
    /// # Ok::<(), kvfs::Error>(())
    /// ```
    pub fn rebase(
        &self,
        id: TransactionId,
        choices: &[(Vec<u8>, Choice)],
        settle: &SettleKeys<'_>,
        finish: &FinishRebase<'_>,
    ) -> Result<Rebased> {
        let old = self.transaction(id)?;
        // It may take longer than the idle limit of both transactions.
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
        let entry = match self.find(&ViewId::Transaction(id)) {
            Err(Error::NotFound) => return Err(kvdb::Error::NoTransaction(id).into()),
            entry => entry?,
        };
        let options = TransactionOptions { detached: true, ..old.options().clone() };
        // This must be done before the view is frozen, since it waits for data of the view that the
        // kernel holds back.
        let (transaction, parent) = self.begin_at_rest(options)?;
        let mut frozen = entry.fs.core.freeze_lock.freeze();
        let merged = || -> Result<(Conflicts, bool)> {
            if frozen.ended() {
                return Err(kvdb::Error::NoTransaction(id).into());
            }
            entry.fs.commit_older_than(Duration::MAX)?;
            let (from, into, layout) = (old.view()?, transaction.view()?, parent.fs.core.layout);
            let base = from.beneath();
            let state = |view| State::new(view, old.branch(), layout);
            let mut three = Three { base: state(&base), from: state(&from), into: state(&into) };
            // The transaction may have put keys into dictionaries that were made after it began.
            for (name, info) in &three.into.dictionaries {
                three.from.dictionaries.entry(name.clone()).or_insert_with(|| info.clone());
            }
            let choices: Vec<_> =
                choices.iter().map(|(path, choice)| (path.clone(), choice.swapped())).collect();
            let suffix = format!("txn-{id}");
            let rules = Rules { choices: &Choices::new(&choices), settle, suffix: &suffix };
            let Conflicts { named, more } = three.merge(&rules, &parent.fs, &transaction)?;
            let named = named.into_iter().map(MergeConflict::swapped).collect();
            let conflicts = Conflicts { named, more };
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
        let opened = self.open_begun(transaction, parent)?;
        opened.fs.core.inode_allocator.take_over(&entry.fs.core.inode_allocator);
        old.abort();
        frozen.end();
        drop(frozen);
        self.end_view(&entry, None);
        self.shared.watchers.tell(|watcher| watcher.appeared(&opened.view));
        Ok(Rebased { transaction: Some(new), conflicts, more_conflicts })
    }
}
