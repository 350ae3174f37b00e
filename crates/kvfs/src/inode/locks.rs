//! Coordinates serializable transactions with the file system.
//!
//! **The mainline avoids waiting for transactions.** A call that would commit data that a
//! transaction has locked must wait for the end of the transaction. The call must not wait while it
//! holds locks of inodes and the freeze lock, because the transaction needs the freeze lock to end.
//! So a commit on the mainline fails at once instead of waiting, and the call releases everything,
//! pauses and is made again.
//!
//! **Files that a transaction has locked are clean on the mainline.** A file is not written to, not
//! even in memory, while a transaction has it locked. A write that was accepted before and waits in
//! memory is committed by the transaction that locks the file, after it has the lock and before it
//! reads the file (`Locks::in_store`): the write came first, so the transaction reads it. Otherwise
//! the write would wait for the end of the transaction, possibly much longer than the flush
//! interval, and syncs of the file would fail until then.
//!
//! **Directories.** A transaction locks the names that it looks up, and the inodes of files, when
//! it reads them. It locks the inode of a directory only when it changes it: otherwise, a walk
//! through a directory would prevent all other views from adding names to it. The times, link count
//! and number of entries of a directory that a transaction did not change may thus be newer or
//! older than all other data that the transaction sees. The same is true of the extended attributes
//! of the directory, except large values, which are stored separately: the transaction locks the
//! directory before it reads such a value.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use kvdb::{DictionaryId, Isolation, Scope, Transaction};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::inode::InodeState;
use crate::layout;

/// The longest time that a call waits for transactions.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Repeats a call while it fails for lack of a lock, up to `LONGEST_WAIT`.
fn retry_while_locked<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
    loop {
        match kvdb::without_lock_waits(&mut call) {
            Err(e) if e.is_locked() && waited < LONGEST_WAIT => {
                env::thread::sleep(pause);
                waited += pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            result => return result,
        }
    }
}

/// A view in which transactions begin, in the form in which its transactions use it.
pub(crate) trait Accepting: Send + Sync {
    /// Commits the uncommitted changes of an inode that the view has accepted. The transaction has
    /// locked the inode, so the view accepts no more changes.
    fn commit_accepted(&self, transaction: &Transaction, ino: Ino) -> Result<()>;
}

/// The locks that the calls of one view take in the store, or must respect there.
pub(crate) struct Locks {
    scope: Scope,
    imap: DictionaryId,
    env: Arc<dyn Env>,
    /// The view in which the transaction of this view began.
    parent: Option<Arc<dyn Accepting>>,
}

impl Locks {
    /// Returns the locks of a view that reads and writes `scope`, whose inodes are in `imap`.
    pub fn new(
        scope: Scope,
        imap: DictionaryId,
        env: Arc<dyn Env>,
        parent: Option<Arc<dyn Accepting>>,
    ) -> Locks {
        Locks { scope, imap, env, parent }
    }

    /// Makes a call that may change something, and repeats it on the mainline while a lock is
    /// missing. In a transaction the database waits for locks, which are taken one by one and kept.
    pub fn retry<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match &self.scope {
            Scope::Mainline(_) if !self.env.inline() => retry_while_locked(call),
            // The environment runs inline, so no other thread could end the transaction.
            Scope::Mainline(_) => kvdb::without_lock_waits(call),
            Scope::Transaction(_) | Scope::Frozen(_) | Scope::Served(_) => call(),
        }
    }

    /// Returns the transaction of this view if it takes locks.
    pub fn transaction(&self) -> Option<&Transaction> {
        match &self.scope {
            Scope::Transaction(transaction)
                if transaction.isolation() == Isolation::Serializable =>
            {
                Some(transaction)
            }
            _ => None,
        }
    }

    /// Prepares a change of an inode in memory. On the mainline, fails if a transaction has the
    /// inode locked. A serializable transaction locks the directory now and reloads it.
    pub fn for_change(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        if let Scope::Mainline(db) = &self.scope {
            if state.attr.nlink > 0 && db.is_locked(self.imap, &layout::node_key(ino)) {
                return Err(kvdb::Error::Locked("a transaction works with the file".into()).into());
            }
        } else if state.read_unlocked
            && let Some(transaction) = self.transaction()
        {
            self.take_locked(transaction, ino, state, true)?;
        }
        Ok(())
    }

    /// Prepares reading a value that is stored separately from an inode and must be consistent with
    /// it. A serializable transaction locks a directory that it has not locked so far and reloads
    /// it.
    pub fn for_read(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        match self.transaction() {
            Some(transaction) if state.read_unlocked => {
                self.take_locked(transaction, ino, state, false)
            }
            _ => Ok(()),
        }
    }

    fn take_locked(
        &self,
        transaction: &Transaction,
        ino: Ino,
        state: &mut InodeState,
        exclusive: bool,
    ) -> Result<()> {
        self.in_store(ino, exclusive)?;
        let node = transaction.get(self.imap, &layout::node_key(ino))?.ok_or(Error::Stale(ino))?;
        let (attr, xattrs, _) = layout::decode_node(ino, &node)?;
        *state = InodeState { queued: state.queued, ..InodeState::new(attr, xattrs) };
        Ok(())
    }

    /// Locks an inode that a serializable transaction has not read so far, and commits the changes
    /// to it that the parent view has accepted. Does nothing in other views.
    pub fn in_store(&self, ino: Ino, exclusive: bool) -> Result<()> {
        let Some(transaction) = self.transaction() else { return Ok(()) };
        transaction.lock_key(self.imap, &layout::node_key(ino), exclusive)?;
        self.commit_on_parent(transaction, ino)
    }

    /// Commits the uncommitted changes of an inode in the view in which the transaction began. The
    /// transaction has locked the inode, so no more changes are accepted, and no other transaction
    /// had it locked before, because the first transaction that locks an inode commits these
    /// changes.
    pub fn commit_on_parent(&self, transaction: &Transaction, ino: Ino) -> Result<()> {
        match &self.parent {
            Some(parent) => parent.commit_accepted(transaction, ino),
            None => Ok(()),
        }
    }

    /// Takes the lock for moving a directory into another one, so that no other transaction moves a
    /// directory.
    pub fn moves(&self) -> Result<()> {
        match self.transaction() {
            Some(transaction) => Ok(transaction.lock_key(self.imap, &layout::MOVES_KEY, true)?),
            None => Ok(()),
        }
    }
}
