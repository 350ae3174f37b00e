//! The hidden directory: `.kvfs` in the root, which no listing shows, with a directory for each kind of view and in that every view by
//! its name. What lies below a view's name is the view's own root.
//!
//! ```text
//! .kvfs/txn/17/...           the file system as transaction 17 has it
//! .kvfs/snapshot/NAME/...    as it was when the snapshot was made; read-only
//! .kvfs/clone/NAME/...       a branch
//! ```
//!
//! A file `barrier`, which is listed nowhere, takes part in finding out that the kernel has handed over everything (`rendezvous`).
//!
//! The kernel may cache what it found here; who begins or ends a view tells it. It may not remember that something is missing.

use kvfs::{Attr, FileKind, Ino, Timestamp, TransactionId, View};

use crate::{barrier, wire_ino};

/// The name in the root.
pub(crate) const NAME: &[u8] = b".kvfs";

/// The directories, by inode number.
pub(crate) const TOP: Ino = 1;
pub(crate) const TRANSACTIONS: Ino = 2;
pub(crate) const SNAPSHOTS: Ino = 3;
pub(crate) const CLONES: Ino = 4;
pub(crate) const BARRIER: Ino = 5;

/// The file in the top one that is not listed.
pub(crate) const BARRIER_NAME: &str = "barrier";

/// What lies in the top one.
pub(crate) const KINDS: [(&str, Ino); 3] = [("txn", TRANSACTIONS), ("snapshot", SNAPSHOTS), ("clone", CLONES)];

/// One of them. The directories belong to whom the root belongs, the file to this process. `None`: there is no such inode.
pub(crate) fn attr(ino: Ino, root: &Attr) -> Option<Attr> {
    let directory = Attr {
        ino: wire_ino::of(wire_ino::HIDDEN, ino),
        kind: FileKind::Dir,
        perm: 0o555,
        nlink: 2,
        size: 0,
        blocks: 0,
        rdev: 0,
        ctime: Timestamp::default(),
        ..*root
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match ino {
        TOP..=CLONES => Some(directory),
        BARRIER => Some(Attr { kind: FileKind::File, perm: 0o600, nlink: 1, uid, gid, size: barrier::SIZE, ..directory }),
        _ => None,
    }
}

/// The view that `name` stands for in a directory.
pub(crate) fn view(dir: Ino, name: &[u8]) -> Option<View> {
    let name = std::str::from_utf8(name).ok()?;
    match dir {
        TRANSACTIONS => {
            let id = name.parse().ok()?;
            // One name for each.
            (name == format!("{id}")).then_some(View::Transaction(TransactionId(id)))
        }
        SNAPSHOTS => Some(View::Snapshot(name.into())),
        CLONES => Some(View::Clone(name.into())),
        _ => None,
    }
}

/// Where a view lies, and under which name. The mainline lies nowhere here.
pub(crate) fn place(view: &View) -> Option<(Ino, String)> {
    match view {
        View::Mainline => None,
        View::Transaction(id) => Some((TRANSACTIONS, id.to_string())),
        View::Snapshot(name) => Some((SNAPSHOTS, name.clone())),
        View::Clone(name) => Some((CLONES, name.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_is_found_under_its_name_and_no_other() {
        for view in [View::Transaction(TransactionId(17)), View::Snapshot("monday".into()), View::Clone("ü".into())] {
            let (dir, name) = place(&view).unwrap();
            assert_eq!(super::view(dir, name.as_bytes()), Some(view));
        }
        for name in [&b"017"[..], b"+17", b"", b"x", b"\xff", b"99999999999999999999999"] {
            assert_eq!(super::view(TRANSACTIONS, name), None);
        }
        assert_eq!(super::view(TOP, b"17"), None);
    }
}
