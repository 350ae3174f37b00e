//! Where serializable transactions meet the file system.
//!
//! **The mainline keeps clear of them.** A call that would commit what a transaction has locked
//! must wait for its end; but not with inodes locked and under the freeze lock, which that end has
//! to close. So on the mainline a commit fails at once where it would have to wait, the call lets
//! go of everything, waits a little and is made again.
//!
//! **What a transaction has locked is clean on the mainline.** A file is not written to, not even
//! in memory, while a transaction has it locked. What was accepted before, and waits in memory, is
//! committed by the transaction that locks the file, when it has the lock and has not yet read it
//! (`lock_in_store`): it came before, so the transaction reads it. Otherwise it would wait for the
//! transaction's end, however long past the flush interval, and a sync of the file would fail for
//! as long.
//!
//! **Directories.** A transaction locks the names it looks for, and the inodes of files, when it
//! reads them. The inode of a directory it locks only when it changes it: a walk through a
//! directory would otherwise keep all others from adding names to it. Times, links and number of
//! entries of a directory that a transaction did not change may thus be newer or older than
//! everything else it sees, and so may its extended attributes; but for large values, which are
//! stored apart: it locks the directory before it reads one.

use std::time::Duration;

use kvdb::{Isolation, Scope, Transaction};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::{Fs, Parent};
use crate::inode::InodeState;
use crate::layout;

/// How long a call waits for transactions.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Makes a call again while it fails for want of a lock, for some time.
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
    /// Makes a call that may change something. In a transaction the database waits for locks, which
    /// are taken one by one and kept.
    pub(crate) fn retry_on_lock<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match &self.core.scope {
            Scope::Mainline(_) if !self.core.env.inline() => retry_while_locked(call),
            // The environment runs inline: no other thread could end the transaction.
            Scope::Mainline(_) => kvdb::without_lock_waits(call),
            Scope::Transaction(_) | Scope::Frozen(_) | Scope::Served(_) => call(),
        }
    }

    /// The transaction of this view, if it takes locks.
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

    /// Before an inode is changed in memory: on the mainline no transaction may have it locked; a
    /// serializable transaction locks a directory now, and takes it as it is then.
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

    /// Before something is read that is stored apart from an inode and must agree with it: a
    /// serializable transaction locks a directory that it has not locked so far, and takes it as it
    /// is then.
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

    /// In a serializable transaction: locks an inode that it has not read so far, and has what the
    /// view that it began in has accepted of it committed.
    pub(crate) fn lock_in_store(&self, ino: Ino, exclusive: bool) -> Result<()> {
        let Some(transaction) = self.locking() else { return Ok(()) };
        transaction.lock_key(self.core.layout.imap, &layout::node_key(ino), exclusive)?;
        self.commit_on_parent(transaction, ino)
    }

    /// Has what waits of an inode in the view that the transaction began in committed there. The
    /// transaction has locked it, so no more changes are accepted, and no other transaction had it
    /// locked before: the first one to lock it has done this.
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

    /// The directory that a directory is in, as it is now.
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

    /// Before a directory moves into another one: no other transaction moves one.
    pub(crate) fn lock_moves(&self) -> Result<()> {
        match self.locking() {
            Some(transaction) => {
                Ok(transaction.lock_key(self.core.layout.imap, &layout::MOVES_KEY, true)?)
            }
            None => Ok(()),
        }
    }
}
