//! The privileges that a file gives to a program: set-uid and set-gid bits, and capabilities. A
//! change of its content or its owner takes them away.

use crate::attr::Timestamp;
use crate::inode::InodeState;
use crate::layout::XattrValue;

const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// The attribute that holds a file's capabilities. A change of content clears it like the set-uid
/// bit, since it grants rights to the content that the file had when it was set.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl InodeState {
    /// Updates the attributes after a change of content. If `unprivileged_group` is set, the caller
    /// with this group is not privileged, and the set-uid and set-gid bits are cleared. Returns
    /// whether the permission bits have changed.
    pub fn touch_content(&mut self, now: Timestamp, unprivileged_group: Option<u32>) -> bool {
        self.attr.mtime = now;
        self.attr.ctime = now;
        self.written_nameless |= self.attr.nlink == 0;
        let before = self.attr.perm;
        if unprivileged_group.is_some() {
            clear_bits(self, unprivileged_group);
        }
        kill_capability(self);
        self.attr.perm != before
    }

    /// Takes all privileges away, after a change of owner.
    pub fn drop_privileges(&mut self) {
        clear_bits(self, None);
        kill_capability(self);
    }
}

/// Clears set-uid, and set-gid as Linux does since 6.2: set-gid without group execute, which once
/// meant mandatory locks, stays for root and for members of the file's group, and is cleared for
/// others. `group` is the group of a caller who is not root.
fn clear_bits(state: &mut InodeState, group: Option<u32>) {
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
