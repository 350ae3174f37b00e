//! Coordinates serializable transactions with the file system.
//!
//! **The mainline avoids waiting for them.** A call that would commit data that a transaction has
//! locked must wait for the transaction's end. It must not wait with inodes locked and under the
//! freeze lock, which that end has to take. So a commit on the mainline fails at once instead of
//! waiting, and the call releases everything, pauses and is made again.
//!
//! **Files that a transaction has locked are clean on the mainline.** A file is not written to, not
//! even in memory, while a transaction has it locked. A write that was accepted before and waits in
//! memory is committed by the transaction that locks the file, after it has the lock and before it
//! reads the file (`lock_in_store`): the write came first, so the transaction reads it. Otherwise
//! it would wait for the transaction's end, however long after the flush interval, and syncs of the
//! file would fail until then.
//!
//! **Directories.** A transaction locks the names that it looks up, and the inodes of files, when
//! it reads them. It locks the inode of a directory only when it changes it: otherwise walking
//! through a directory would keep all others from adding names to it. The times, link count and
//! number of entries of a directory that a transaction did not change may thus be newer or older
//! than everything else that it sees. So may the directory's extended attributes, except for large
//! values, which are stored apart: the transaction locks the directory before it reads one.

use std::time::Duration;

use kvdb::{Isolation, Scope, Transaction};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::{Fs, Parent};
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

impl Fs {
    /// Makes a call that may change something, and repeats it on the mainline while a lock is
    /// missing. In a transaction the database waits for locks, which are taken one by one and kept.
    pub(crate) fn retry_on_lock<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match &self.core.scope {
            Scope::Mainline(_) if !self.core.env.inline() => retry_while_locked(call),
            // The environment runs inline: no other thread could end the transaction.
            Scope::Mainline(_) => kvdb::without_lock_waits(call),
            Scope::Transaction(_) | Scope::Frozen(_) | Scope::Served(_) => call(),
        }
    }

    /// Returns the transaction of this view if it takes locks.
    pub(crate) fn locking(&self) -> Option<&Transaction> {
        match &self.core.scope {
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
    pub(crate) fn lock_for_change(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        let imap = self.core.layout.imap;
        if let Scope::Mainline(db) = &self.core.scope {
            if state.attr.nlink > 0 && db.is_locked(imap, &layout::node_key(ino)) {
                return Err(kvdb::Error::Locked("a transaction works with the file".into()).into());
            }
        } else if state.read_unlocked
            && let Some(transaction) = self.locking()
        {
            self.take_locked(transaction, ino, state, true)?;
        }
        Ok(())
    }

    /// Prepares reading a value that is stored apart from an inode and must agree with it. A
    /// serializable transaction locks a directory that it has not locked so far and reloads it.
    pub(crate) fn lock_for_read(&self, ino: Ino, state: &mut InodeState) -> Result<()> {
        match self.locking() {
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
        self.lock_in_store(ino, exclusive)?;
        let node = transaction
            .get(self.core.layout.imap, &layout::node_key(ino))?
            .ok_or(Error::Stale(ino))?;
        let (attr, xattrs, _) = layout::decode_node(ino, &node)?;
        *state = InodeState { queued: state.queued, ..InodeState::new(attr, xattrs) };
        Ok(())
    }

    /// Locks an inode that a serializable transaction has not read so far, and commits the changes
    /// to it that the parent view has accepted. Does nothing in other views.
    pub(crate) fn lock_in_store(&self, ino: Ino, exclusive: bool) -> Result<()> {
        let Some(transaction) = self.locking() else { return Ok(()) };
        transaction.lock_key(self.core.layout.imap, &layout::node_key(ino), exclusive)?;
        self.commit_on_parent(transaction, ino)
    }

    /// Commits the uncommitted changes of an inode in the view in which the transaction began. The
    /// transaction has locked the inode, so no more changes are accepted, and no other transaction
    /// had it locked before: the first one to lock it has done this.
    pub(crate) fn commit_on_parent(&self, transaction: &Transaction, ino: Ino) -> Result<()> {
        let Some(Parent { fs: parent, .. }) = &self.core.parent else { return Ok(()) };
        let _call = parent.enter()?;
        let Some(inode) = parent.core.inode_cache.get(ino) else { return Ok(()) };
        let mut state = inode.state.write();
        if !state.dirty || state.attr.nlink == 0 {
            return Ok(());
        }
        transaction
            .past_its_locks(|| kvdb::without_lock_waits(|| parent.commit_dirty(&inode, &mut state)))
    }

    /// Returns the current parent of a directory.
    pub(crate) fn parent_of(&self, ino: Ino) -> Result<Ino> {
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        if state.read_unlocked
            && let Some(node) =
                self.core.scope.view()?.get(self.core.layout.imap, &layout::node_key(ino))?
        {
            return Ok(layout::decode_node(ino, &node)?.0.parent);
        }
        Ok(state.attr.parent)
    }

    /// Takes the lock for moving a directory into another one, so that no other transaction moves
    /// one.
    pub(crate) fn lock_moves(&self) -> Result<()> {
        match self.locking() {
            Some(transaction) => {
                Ok(transaction.lock_key(self.core.layout.imap, &layout::MOVES_KEY, true)?)
            }
            None => Ok(()),
        }
    }
}
