//! Locks of directories that a serializable transaction takes before it uses them. A transaction
//! automatically locks each name that it looks up, but other transactions may add further names. A
//! program whose decisions depend on the presence or absence of names in a directory locks all its
//! names at once.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout;

impl Fs {
    /// Locks the names of the directory at `path`, and its attributes, for the rest of the
    /// serializable transaction of this view. The lock prevents changes by others, and with
    /// `exclusive` also reads in other serializable transactions. The content of directories below
    /// is not locked. Symbolic links on the way are followed, but the last component is not. Fails
    /// with `Locked` if another transaction has locked the directory, and with `Invalid` in a view
    /// that takes no locks.
    pub fn lock_directory(&self, path: &[u8], exclusive: bool) -> Result<()> {
        let Some(transaction) = self.core.locks.transaction() else {
            return Err(Error::Invalid("only a serializable transaction locks a directory"));
        };
        let ino = self.resolve(path)?.ino;
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        if !inode.state.read().is_dir() {
            return Err(Error::NotDirectory);
        }
        // The names come first, as they do for a call that reads a name and changes the directory.
        let (start, end) = layout::node_range(ino);
        transaction.lock_range(self.core.layout.nmap, &start, &end, exclusive)?;
        // The attributes in memory may be older than their lock.
        match exclusive {
            true => drop(self.lock_dir(&inode)?),
            false => self.core.locks.for_read(ino, &mut inode.state.write())?,
        }
        self.core.locks.in_store(ino, exclusive)
    }
}
