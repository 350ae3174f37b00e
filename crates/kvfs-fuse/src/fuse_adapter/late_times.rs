//! The answer to times that the kernel writes back after the file's view has ended.

use crate::handler::*;

/// Returns the answer to a kernel that writes back the times of a file whose view has ended, or
/// `None` if `changes` contain any other attribute.
///
/// A kernel that gathers writes keeps the times of a file. When a mapping of the file ends, the
/// kernel treats an error of the write-back of times like an error of the write-back of pages, and
/// reports it to the next syncfs(2), that is, to each program that begins a transaction. The kernel
/// ignores the attributes in the answer to such a write-back, but checks them if a program has set
/// the times. The daemon cannot distinguish the two cases, so the answer has no valid attributes of
/// a file, and a program that has set the times gets EIO.
pub(super) fn answer_to_late_times(node: NodeId, changes: &SetAttr) -> Option<NodeAttr> {
    let SetAttr { mtime: Some(TimeSet::At(mtime)), ctime: Some(ctime), .. } = *changes else {
        return None;
    };
    let of_the_cache = SetAttr {
        mtime: changes.mtime,
        ctime: changes.ctime,
        unprivileged_group: changes.unprivileged_group,
        ..SetAttr::default()
    };
    let nothing = Attr {
        ino: 0,
        kind: FileKind::Dir,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: mtime,
        mtime,
        ctime,
        btime: ctime,
    };
    (*changes == of_the_cache).then_some(NodeAttr { node, attr: nothing })
}
