//! Calls that begin transactions with the changes of others; see `views/merger`.

use kvdb::{Kvdb, TransactionId, TransactionOptions};

use crate::error::Result;
use crate::merge::merging::{
    Choice, FinishRebase, MergeForkOptions, MergeOptions, Merged, Rebased, SettleKeys,
};
use crate::views::Views;
use crate::views::undo::Keys;

impl Views {
    /// Begins a transaction that brings the changes of a clone into the branch that it was made of,
    /// or the changes of that branch into the clone, when it commits. Nothing large is copied. It
    /// can be inspected, changed, committed and undone like any other. If there are conflicts, it
    /// can only be inspected, and the other branch is unchanged.
    ///
    /// `settle` is asked about keys that both sides have changed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let env: Arc<dyn env::Env> = Arc::new(env::Simulated::new(1));
    /// # use kvfs::{Caller, FileKind, Fs, FsOptions, MergeOptions, ROOT, ViewId, Views};
    /// # let fs = Fs::open(db.clone(), env, FsOptions::default())?;
    /// # let views = Views::new(db, fs.clone());
    /// views.snapshot(&ViewId::Mainline, "monday", kvdb::Durability::Buffered)?;
    /// views.clone_snapshot("monday", "try")?;
    /// let tried = views.fs(&ViewId::Clone("try".into()))?;
    /// tried.mknod(ROOT, b"new", FileKind::File, 0o644, 0, Caller::default())?;
    /// let options = MergeOptions { clone: "try".into(), ..Default::default() };
    /// let merged = views.merge(&options, &|_, _| kvdb::Settled::Conflict)?;
    /// assert!(merged.conflicts.is_empty());
    /// views.commit(merged.transaction, kvdb::Durability::Synced)?;
    /// assert!(fs.resolve(b"/new").is_ok());
    /// # Ok::<(), kvfs::Error>(())
    /// ```
    pub fn merge(&self, options: &MergeOptions, settle: &SettleKeys<'_>) -> Result<Merged> {
        self.shared.merger.merge(options, settle)
    }

    /// Begins a transaction that brings the changes that a fork of this store has made into the
    /// main branch, when it commits. This is like [`Views::merge`] of a clone, but the changes are
    /// copied. The fork is only read. It may also be a fork of a fork of this store, and so on. Or
    /// this store may itself be a fork of the same store, made from a state that is not older than
    /// the other fork's: then it gets the changes of the other fork.
    ///
    /// A fork can be merged again: the changes taken over before are then equal on both sides. If
    /// the fork has changed a file or a key again that it had made itself, that is a conflict, as
    /// if both sides had made it.
    ///
    /// Fails if `fork` has no such state in common with this store.
    pub fn merge_fork(
        &self,
        fork: &Kvdb,
        options: &MergeForkOptions,
        settle: &SettleKeys<'_>,
    ) -> Result<Merged> {
        self.shared.merger.merge_fork(fork, options, settle)
    }

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
        self.shared.merger.rebase(id, choices, settle, finish)
    }

    /// Begins a transaction that undoes a commit ([`kvdb::Kvdb::undoable_commits`]) when it
    /// commits. Returns its number, and the keys that others have changed since in a way that
    /// cannot be joined: if there are any, the transaction can only be inspected.
    pub fn undo(&self, commit: u64, options: TransactionOptions) -> Result<(TransactionId, Keys)> {
        self.shared.merger.undo(commit, options)
    }
}
