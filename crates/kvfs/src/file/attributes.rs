//! Shows and sets the attributes of an inode.

use crate::attr::{Attr, Caller, FileKind, Ino, SetAttr, TimeSet};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::{Inode, InodeState};

impl Fs {
    /// Returns the attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let _call = self.enter()?;
        self.attr_of(ino)
    }

    /// Like `getattr`, for a call that has entered the view.
    pub(crate) fn attr_of(&self, ino: Ino) -> Result<Attr> {
        let inode = self.inode(ino)?;
        {
            let state = inode.state.read();
            if state.gone {
                return Err(Error::Stale(ino));
            }
            if state.buffer.uncounted == 0 {
                return Ok(self.core.promises.shown(state.attr.public(ino)));
            }
        }
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::Stale(ino));
        }
        self.exact_attr(&inode, &mut state)
    }

    /// Changes attributes, which are committed with the inode's next commit. The kernel checks
    /// permissions.
    ///
    /// A change of owner clears set-uid and set-gid of anything but a directory. A change of size
    /// clears them if `unprivileged_group` is set.
    pub fn setattr(&self, ino: Ino, set: &SetAttr, _caller: Caller) -> Result<Attr> {
        self.writable()?;
        self.core.locks.retry(|| self.setattr_once(ino, set))
    }

    fn setattr_once(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        let now = self.now();
        if let Some(size) = set.size {
            match state.attr.kind {
                FileKind::File => {
                    self.truncate(&inode, &mut state, size)?;
                    self.core.lost.remove(ino);
                    self.core.superseded.rewritten(ino, size, u64::MAX);
                }
                FileKind::Dir => return Err(Error::IsDirectory),
                _ => return Err(Error::Invalid("the size of something that is not a file")),
            }
            state.touch_content(now, set.unprivileged_group);
        }
        if set.uid.is_some() || set.gid.is_some() {
            state.attr.uid = set.uid.unwrap_or(state.attr.uid);
            state.attr.gid = set.gid.unwrap_or(state.attr.gid);
            if !state.is_dir() {
                state.drop_privileges();
            }
        }
        if let Some(mode) = set.mode {
            state.attr.perm = mode & 0o7777;
        }
        let time = |t: TimeSet| match t {
            TimeSet::Now => now,
            TimeSet::At(t) => t,
        };
        if let Some(t) = set.atime {
            state.attr.atime = time(t);
        }
        if let Some(t) = set.mtime {
            state.attr.mtime = time(t);
        }
        state.attr.ctime = set.ctime.unwrap_or(now);
        self.changed(&inode, &mut state)?;
        self.exact_attr(&inode, &mut state)
    }

    /// Returns the attributes to show, with an exact page count. The caller holds the lock of the
    /// inode.
    fn exact_attr(&self, inode: &Inode, state: &mut InodeState) -> Result<Attr> {
        self.core.pages.count(inode.ino, state)?;
        Ok(self.core.promises.shown(state.attr.public(inode.ino)))
    }
}
