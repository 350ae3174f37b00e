//! Shows and sets the attributes of an inode.

use crate::attr::{Attr, Caller, FileKind, Ino, SetAttr, TimeSet, Timestamp};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::InodeState;
use crate::layout::XattrValue;

const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// The attribute that holds a file's capabilities. A change of content clears it like the set-uid
/// bit, since it grants rights to the content that the file had when it was set.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

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
    /// clears them if `unprivileged_group` asks for it.
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
            self.touch_content(&mut state, now, set.unprivileged_group);
        }
        if set.uid.is_some() || set.gid.is_some() {
            state.attr.uid = set.uid.unwrap_or(state.attr.uid);
            state.attr.gid = set.gid.unwrap_or(state.attr.gid);
            if !state.is_dir() {
                drop_privileges(&mut state, None);
                kill_capability(&mut state);
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

    /// Updates the attributes after a change of content. If `unprivileged_group` is set, the caller
    /// with this group is not privileged, and the set-uid and set-gid bits are cleared. Returns
    /// whether the permission bits have changed.
    pub(crate) fn touch_content(
        &self,
        state: &mut InodeState,
        now: Timestamp,
        unprivileged_group: Option<u32>,
    ) -> bool {
        state.attr.mtime = now;
        state.attr.ctime = now;
        state.written_nameless |= state.attr.nlink == 0;
        let before = state.attr.perm;
        if unprivileged_group.is_some() {
            drop_privileges(state, unprivileged_group);
        }
        kill_capability(state);
        state.attr.perm != before
    }
}

/// Clears set-uid, and set-gid as Linux does since 6.2: set-gid without group execute, which once
/// meant mandatory locks, stays for root and for members of the file's group, and is cleared for
/// others. `group` is the group of a caller who is not root.
fn drop_privileges(state: &mut InodeState, group: Option<u32>) {
    state.attr.perm &= !SUID;
    let member = group.is_none_or(|group| group == state.attr.gid);
    if state.attr.perm & GROUP_EXECUTE != 0 || !member {
        state.attr.perm &= !SGID;
    }
}

fn kill_capability(state: &mut InodeState) {
    if let Some(xattrs) = &mut state.xattrs
        && let Some(XattrValue::External(_)) = xattrs.remove(CAPABILITY)
    {
        state.buffer.lost_capability = true;
    }
}
