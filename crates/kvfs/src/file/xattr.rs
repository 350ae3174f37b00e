//! Extended attributes: small values in the node, large ones under keys of their own.

use kvdb::Batch;

use crate::attr::{Ino, XattrFlags};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::request;
use crate::inode::InodeState;
use crate::inode::privileges::CAPABILITY;
use crate::layout::{self, XattrValue, Xattrs};
use crate::pages::compress;

/// The supported name spaces: for all users, for the superuser, and for security modules and
/// capabilities.
const NAME_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// The kernel's limits for one value and for the list of names.
const VALUE_MAX: usize = 64 << 10;
const LIST_MAX: usize = 64 << 10;
/// Limits of a value in the node, and of all names and values there, in bytes: the node is
/// rewritten with every change of the inode.
const INLINE_VALUE: usize = 256;
const INLINE_ALL: usize = 1024;

impl Fs {
    /// Returns the value of an extended attribute. Fails with ENODATA if the attribute does not
    /// exist.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let mut state = inode.state.read();
        if state.read_unlocked && matches!(find(ino, &state, name)?, XattrValue::External(_)) {
            drop(state);
            self.core.locks.for_read(ino, &mut inode.state.write())?;
            state = inode.state.read();
        }
        match find(ino, &state, name)? {
            XattrValue::Inline(value) => Ok(value.to_vec()),
            XattrValue::External(len) => {
                let value =
                    self.core.scope.get(self.core.layout.imap, &layout::xattr_key(ino, name))?;
                match value.filter(|value| value.len() == *len as usize) {
                    Some(value) => Ok(value.into()),
                    None => Err(Error::Corrupt {
                        ino,
                        what: format!("the value of `{}` is missing", name.escape_ascii()),
                    }),
                }
            }
        }
    }

    /// Returns the names, each followed by a zero byte.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        if state.gone {
            return Err(Error::Stale(ino));
        }
        let mut list = Vec::new();
        for name in state.xattrs.iter().flat_map(|all| all.keys()) {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Sets an extended attribute. A small value is committed with the inode's next commit, a large
    /// one at once.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(Error::ArgumentTooLong);
        }
        compress::check(name, value)?;
        self.core.locks.retry(|| self.setxattr_once(ino, name, value, flags))
    }

    fn setxattr_once(&self, ino: Ino, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let _call = self.enter()?;
        self.reserve(value.len() as u64)?;
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        let mut all = state.xattrs.as_deref().cloned().unwrap_or_default();
        let old = all.get(name);
        match flags {
            XattrFlags::Create if old.is_some() => return Err(Error::Exists),
            XattrFlags::Replace if old.is_none() => return Err(Error::NoAttribute),
            _ => {}
        }
        let was_external = matches!(old, Some(XattrValue::External(_)));
        all.remove(name);
        if all.keys().map(|n| n.len() + 1).sum::<usize>() + name.len() + 1 > LIST_MAX {
            return Err(Error::NoSpace);
        }
        // Every commit of pages reads the method of compression, so it must be in the node.
        let inline = compress::is_attribute(name)
            || value.len() <= INLINE_VALUE && inline_bytes(&all) + value.len() <= INLINE_ALL;
        let new = if inline {
            XattrValue::Inline(value.into())
        } else {
            XattrValue::External(value.len() as u32)
        };
        all.insert(name.into(), new);
        if inline && !was_external {
            state.xattrs = Some(Box::new(all));
            state.attr.ctime = self.now();
            return self.changed(&inode, &mut state);
        }
        let mut batch = Batch::new();
        if inline {
            batch.delete(self.core.layout.imap, layout::xattr_key(ino, name));
        } else {
            batch.put(self.core.layout.imap, layout::xattr_key(ino, name), value.to_vec());
        }
        // The new value replaces a lost one whose removal is pending.
        let lost = name == CAPABILITY && std::mem::take(&mut state.buffer.lost_capability);
        let committed = self.commit_xattrs(ino, &mut state, all, batch);
        if committed.is_err() {
            state.buffer.lost_capability |= lost;
        }
        committed
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        self.core.locks.retry(|| self.removexattr_once(ino, name))
    }

    fn removexattr_once(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let _call = self.enter()?;
        let inode = self.inode(ino)?;
        let mut state = self.lock(&inode)?;
        let mut all = state.xattrs.as_deref().cloned().unwrap_or_default();
        match all.remove(name).ok_or(Error::NoAttribute)? {
            XattrValue::Inline(_) => {
                state.xattrs = Some(Box::new(all));
                state.attr.ctime = self.now();
                self.changed(&inode, &mut state)
            }
            XattrValue::External(_) => {
                let mut batch = Batch::new();
                batch.delete(self.core.layout.imap, layout::xattr_key(ino, name));
                self.commit_xattrs(ino, &mut state, all, batch)
            }
        }
    }

    /// Commits the node with new extended attributes, together with their changes in `batch`.
    fn commit_xattrs(
        &self,
        ino: Ino,
        state: &mut crate::inode::InodeState,
        all: Xattrs,
        mut batch: Batch,
    ) -> Result<()> {
        self.core.pages.count(ino, state)?;
        let mut attr = state.attr;
        attr.ctime = self.now();
        request::completes(&mut batch, ino);
        let before = state.xattrs.replace(Box::new(all));
        let committed = self.stage(ino, state, &attr, &mut batch).and_then(|()| self.apply(batch));
        match committed {
            Ok(()) => {
                // An undo that brings the file back does not know of the value and of the orphan
                // record that may have been made for it.
                state.written_nameless |= attr.nlink == 0;
                self.mark_committed(state, attr);
            }
            Err(_) => state.xattrs = before,
        }
        committed
    }
}

fn inline_bytes(all: &Xattrs) -> usize {
    all.iter()
        .map(|(name, value)| match value {
            XattrValue::Inline(value) => name.len() + value.len(),
            XattrValue::External(_) => name.len(),
        })
        .sum()
}

fn find<'a>(ino: Ino, state: &'a InodeState, name: &[u8]) -> Result<&'a XattrValue> {
    match &state.xattrs {
        _ if state.gone => Err(Error::Stale(ino)),
        Some(all) => all.get(name).ok_or(Error::NoAttribute),
        None => Err(Error::NoAttribute),
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Error::Invalid("an extended attribute without a name")),
        // Access control lists would have to be enforced, not only stored.
        _ if name.starts_with(b"system.posix_acl_") => {
            Err(Error::Unsupported("access control lists"))
        }
        _ if !layout::is_xattr_name(name) => {
            Err(Error::Invalid("a malformed name of an extended attribute"))
        }
        // The answer is that of the kernel's own file systems, so that a program learns that its
        // attribute has no meaning here.
        _ if !NAME_SPACES.iter().any(|space| name.starts_with(space)) => {
            Err(Error::Unsupported("extended attributes outside of user, trusted and security"))
        }
        _ if NAME_SPACES.contains(&name) => {
            Err(Error::Invalid("an extended attribute with nothing behind its name space"))
        }
        _ => Ok(()),
    }
}
