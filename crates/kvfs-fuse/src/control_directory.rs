//! The control directory is `.kvfs` in the root; no listing shows it. It has one directory for each
//! kind of view, which contains every view of that kind under its name. The name of a view leads to
//! the root of the view.
//!
//! ```text
//! .kvfs/txn/17/...           the file system as transaction 17 has it
//! .kvfs/snapshot/NAME/...    as it was when the snapshot was made; read-only
//! .kvfs/clone/NAME/...       a branch
//! ```
//!
//! **Names with slashes.** A view whose name has slashes lies in one directory, like any other
//! (`view_names`). The parts of its name are directories above a link to it (`name_parts`), and
//! these are listed.
//!
//! **Access.** A view shows its files to all users whom the modes of the files admit. These modes
//! may be older than those in the store, or not yet intended for other users. So the directories of
//! snapshots and clones admit only the user of this process (and root), and a transaction admits
//! the user who began it: `.kvfs/txn/17` is a symbolic link to `.kvfs/user/UID/17`, and that
//! directory belongs to the user alone. The kernel checks the modes of that directory as usual, and
//! the modes of the root of the view are not changed. A mount option can open all views instead.
//!
//! **Transactions within transactions.** A transaction that was begun within another transaction is
//! part of the state of the outer one, and lies only in the view of the outer one: `.kvfs/txn/18`
//! in the root of the view of 17. So a program to which the view of 17 is shown in place of the
//! store finds transaction 18, and nothing else of the store. In the root of the store itself,
//! `.kvfs/txn/18` is a link to the view.
//!
//! **A mount of one clone alone.** The root of such a mount is the root of the clone, and no
//! directory above the clone can be reached. So the root of the clone has a control directory
//! there. It contains the transactions, snapshots and clones of this clone and of its clones, to
//! any depth, with the same content as in the control directory of a mount of the whole store. Its
//! directory of clones has a different inode from the directory in which the clone itself lies,
//! because the kernel allows a directory only one name.
//!
//! A file `barrier`, which is not listed, is used to find out that the kernel has handed over
//! everything (`quiesce_barrier`).
//!
//! The kernel may cache the entries of the control directory; the thread that begins or ends a view
//! notifies the kernel. The kernel may not cache the absence of a name.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvfs::{Attr, FileKind, Ino, Timestamp, TransactionId, ViewId};

use crate::view_names::{directory_name, view_name};

/// The name of the control directory in the root.
pub(crate) const NAME: &[u8] = b".kvfs";

/// The inode number of the control directory in the root of the store.
pub(crate) const TOP: Ino = 1;
pub(crate) const TRANSACTIONS: Ino = 2;
pub(crate) const SNAPSHOTS: Ino = 3;
pub(crate) const CLONES: Ino = 4;
pub(crate) const BARRIER: Ino = 5;
/// The directory with the transactions of each user, which is not listed.
pub(crate) const USERS: Ino = 6;
/// The control directory in the root of the clone that a mount shows alone.
pub(crate) const TOP_ALONE: Ino = 7;
/// The directory of the clones in that control directory.
pub(crate) const CLONES_ALONE: Ino = 8;
/// The first inode number of the directories of users. The number of a user is added to it.
const HOME: Ino = 1 << 40;
/// The first inode number of the names of transactions. The number of a transaction is added to it.
const LINK: Ino = 2 << 40;

/// The first inode number of the control directories in the roots of the views of transactions. The
/// number of a transaction is added to it. `WITHIN` is the first inode number of the directories
/// that contain the transactions within a transaction.
const TOP_OF: Ino = 3 << 40;
const WITHIN: Ino = 4 << 40;

/// The name of the directory of the users, in the control directory.
pub(crate) const USERS_NAME: &str = "user";

/// The name of the file in the control directory that is not listed.
pub(crate) const BARRIER_NAME: &str = "barrier";

/// The size of that file. It has room for more pages, 128 KiB apart, than threads can exist
/// (`barrier`).
pub(crate) const BARRIER_SIZE: u64 = 160 * (128 << 10);

/// The directories that a control directory lists.
pub(crate) const KINDS: [(&str, Ino); 4] =
    [("txn", TRANSACTIONS), ("snapshot", SNAPSHOTS), ("clone", CLONES), ("clone", CLONES_ALONE)];

/// Returns the directory of a user's transactions.
pub(crate) fn home(user: u32) -> Ino {
    HOME | Ino::from(user)
}

/// Returns the user to whom the directory `ino` belongs.
pub(crate) fn user_of(ino: Ino) -> Option<u32> {
    if ino & !(HOME - 1) == HOME { u32::try_from(ino & (HOME - 1)).ok() } else { None }
}

/// Returns the inode of the name of a transaction, or `None` if its number is too large.
pub(crate) fn link(id: TransactionId) -> Option<Ino> {
    (id.0 < HOME).then_some(LINK | id.0)
}

/// Returns the transaction whose name has the inode `ino`.
pub(crate) fn linked(ino: Ino) -> Option<TransactionId> {
    (ino & !(HOME - 1) == LINK).then_some(TransactionId(ino & (HOME - 1)))
}

/// Returns the control directory in the root of the view of a transaction, or `None` if the number
/// is too large.
pub(crate) fn top_of(id: TransactionId) -> Option<Ino> {
    (id.0 < HOME).then_some(TOP_OF | id.0)
}

/// Returns the directory of the transactions within a transaction.
pub(crate) fn within(id: TransactionId) -> Option<Ino> {
    (id.0 < HOME).then_some(WITHIN | id.0)
}

/// Returns the transaction whose view has the control directory `ino` in its root.
pub(crate) fn topped(ino: Ino) -> Option<TransactionId> {
    (ino & !(HOME - 1) == TOP_OF).then_some(TransactionId(ino & (HOME - 1)))
}

/// Returns the transaction that is around the transactions in the directory `ino`.
pub(crate) fn around(ino: Ino) -> Option<TransactionId> {
    (ino & !(HOME - 1) == WITHIN).then_some(TransactionId(ino & (HOME - 1)))
}

/// Returns the path to a transaction's view from the directory of its user. `chain` has the
/// transactions that the transaction is within, the outermost first, and the transaction itself.
fn way(chain: &[TransactionId]) -> String {
    let names: Vec<String> = chain.iter().map(ToString::to_string).collect();
    names.join("/.kvfs/txn/")
}

/// Returns the target of the link that is a transaction's name.
pub(crate) fn target(chain: &[TransactionId], user: u32) -> String {
    format!("../{USERS_NAME}/{user}/{}", way(chain))
}

/// Returns the path from the root of the file system to `path` in a view. For a transaction, `user`
/// is its user, and `chain` has the transactions that it is within and the transaction itself.
/// `alone` is the clone that the mount shows alone.
pub(crate) fn path_in(
    view: &ViewId,
    user: Option<u32>,
    chain: &[TransactionId],
    path: &[u8],
    alone: Option<&str>,
) -> PathBuf {
    let clone = |name: &str| Path::new(".kvfs/clone").join(directory_name(name));
    let root = alone.map(clone).unwrap_or_default();
    let above = match view {
        ViewId::Mainline => PathBuf::new(),
        ViewId::Transaction(_) => {
            let user = user.unwrap_or_else(own_user);
            root.join(format!(".kvfs/{USERS_NAME}/{user}/{}", way(chain)))
        }
        ViewId::Snapshot(name) => root.join(".kvfs/snapshot").join(directory_name(name)),
        ViewId::Clone(name) if alone.is_some_and(|alone| alone != name) => root.join(clone(name)),
        ViewId::Clone(name) => clone(name),
    };
    above.join(OsStr::from_bytes(path))
}

/// Returns the user of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the user that a directory or file name names.
pub(crate) fn user_named(name: &[u8]) -> Option<u32> {
    let name = std::str::from_utf8(name).ok()?;
    let user: u32 = name.parse().ok()?;
    (name == user.to_string()).then_some(user)
}

/// Returns the attributes of an inode of the control directory, or `None` if there is no such
/// inode. The directories belong to the owner of the root, except those that admit one user; the
/// file belongs to the user of this process. With `open`, the directories admit all users.
pub(crate) fn attr(ino: Ino, root: &Attr, open: bool) -> Option<Attr> {
    let perm = if open { 0o555 } else { 0o500 };
    let directory = Attr {
        ino,
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
        TOP | TOP_ALONE | TRANSACTIONS | USERS => Some(directory),
        SNAPSHOTS | CLONES | CLONES_ALONE => Some(Attr { perm, uid, gid, ..directory }),
        BARRIER => Some(Attr {
            kind: FileKind::File,
            perm: 0o600,
            nlink: 1,
            uid,
            gid,
            size: BARRIER_SIZE,
            ..directory
        }),
        ino => match user_of(ino) {
            Some(uid) => Some(Attr { perm, uid, ..directory }),
            None if topped(ino).is_some() => Some(directory),
            // The directory belongs to the user of the transaction.
            None if around(ino).is_some() => Some(Attr { perm, ..directory }),
            None => linked(ino).map(|_| Attr {
                kind: FileKind::Symlink,
                perm: 0o777,
                nlink: 1,
                ..directory
            }),
        },
    }
}

/// Returns the view that `name` stands for in a directory.
pub(crate) fn view(dir: Ino, name: &[u8]) -> Option<ViewId> {
    let name = std::str::from_utf8(name).ok()?;
    match dir {
        dir if dir == TRANSACTIONS || user_of(dir).is_some() || around(dir).is_some() => {
            let id = name.parse().ok()?;
            // Each transaction has one name only.
            (name == format!("{id}")).then_some(ViewId::Transaction(TransactionId(id)))
        }
        // Each view has one name only.
        _ if directory_name(&view_name(name)) != name => None,
        SNAPSHOTS => Some(ViewId::Snapshot(view_name(name))),
        CLONES | CLONES_ALONE => Some(ViewId::Clone(view_name(name))),
        _ => None,
    }
}

/// Returns the directory and the name of a view. The mainline has none.
pub(crate) fn place(view: &ViewId) -> Option<(Ino, String)> {
    match view {
        ViewId::Mainline => None,
        ViewId::Transaction(id) => Some((TRANSACTIONS, id.to_string())),
        ViewId::Snapshot(name) => Some((SNAPSHOTS, directory_name(name))),
        ViewId::Clone(name) => Some((CLONES, directory_name(name))),
    }
}

/// Returns all names of a view. A transaction has a second name in the directory of its user, if
/// the user is known, or in the directory of the transaction that it is within (`chain`, see
/// [`path_in`]). A clone has a second name in a mount that shows another clone alone.
pub(crate) fn places(
    view: &ViewId,
    user: Option<u32>,
    chain: &[TransactionId],
) -> Vec<(Ino, String)> {
    let home = match (view, chain) {
        (ViewId::Transaction(id), [.., parent, _]) => {
            within(*parent).map(|dir| (dir, id.to_string()))
        }
        (ViewId::Transaction(id), _) => user.map(|user| (home(user), id.to_string())),
        (ViewId::Clone(name), _) => Some((CLONES_ALONE, directory_name(name))),
        _ => None,
    };
    place(view).into_iter().chain(home).collect()
}

/// Returns the names of the clones that were made of snapshots of a clone, or of clones of it, to
/// any depth. `parents` maps the name of every clone to the branch of which the clone was made, if
/// that branch is known.
pub(crate) fn clones_below(
    clone: &str,
    parents: &HashMap<String, Option<String>>,
) -> HashSet<String> {
    fn parent<'a>(parents: &'a HashMap<String, Option<String>>, name: &str) -> Option<&'a str> {
        parents.get(name)?.as_deref()
    }
    let is_below = |name: &&String| {
        let above = std::iter::successors(parent(parents, name), |above| parent(parents, above));
        // A line of parents is at most as long as the list.
        above.take(parents.len()).any(|above| above == clone)
    };
    parents.keys().filter(is_below).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_clones_are_below_them() {
        let parents = [("a", ""), ("b", "a"), ("c", "b"), ("d", "gone"), ("e", "")];
        let parents = parents.map(|(name, parent)| (name.to_owned(), Some(parent.to_owned())));
        let mut parents = HashMap::from(parents);
        parents.insert("unknown".into(), None);
        let below = |name: &str| {
            let mut names: Vec<String> = clones_below(name, &parents).into_iter().collect();
            names.sort();
            names.concat()
        };
        assert_eq!(["a", "b", "c", "e", "gone"].map(below), ["bc", "c", "", "", "d"]);
    }

    #[test]
    fn every_view_is_found_under_its_name_and_no_other() {
        for view in [
            ViewId::Transaction(TransactionId(17)),
            ViewId::Snapshot("monday".into()),
            ViewId::Clone("ü".into()),
            ViewId::Clone("agents/7/try-2".into()),
        ] {
            let (dir, name) = place(&view).unwrap();
            assert_eq!(super::view(dir, name.as_bytes()), Some(view));
        }
        for name in [&b"017"[..], b"+17", b"", b"x", b"\xff", b"99999999999999999999999"] {
            assert_eq!(super::view(TRANSACTIONS, name), None);
        }
        assert_eq!(super::view(TOP, b"17"), None);
        assert_eq!(super::view(CLONES, b"a/b"), None, "a slash is written otherwise");
    }

    #[test]
    fn one_within_another_lies_in_that_ones_view() {
        let chain = [3, 17, 18].map(TransactionId);
        let view = ViewId::Transaction(chain[2]);
        let path = path_in(&view, Some(7), &chain, b"a/b", None);
        assert_eq!(path, Path::new(".kvfs/user/7/3/.kvfs/txn/17/.kvfs/txn/18/a/b"));
        let clone = ViewId::Clone("cc".into());
        let below = path_in(&clone, None, &[], b"a", Some("c"));
        assert_eq!(below, Path::new(".kvfs/clone/c/.kvfs/clone/cc/a"));
        assert_eq!(path_in(&clone, None, &[], b"a", Some("cc")), Path::new(".kvfs/clone/cc/a"));
        let alone = path_in(&view, Some(7), &chain, b"a/b", Some("c"));
        assert_eq!(alone, Path::new(".kvfs/clone/c").join(path));
        assert_eq!(target(&chain, 7), "../user/7/3/.kvfs/txn/17/.kvfs/txn/18");
        let dirs: Vec<Ino> = places(&view, Some(7), &chain).into_iter().map(|p| p.0).collect();
        assert_eq!(dirs, [TRANSACTIONS, within(chain[1]).unwrap()]);
        let dirs: Vec<Ino> = places(&view, Some(7), &chain[2..]).into_iter().map(|p| p.0).collect();
        assert_eq!(dirs, [TRANSACTIONS, home(7)]);
    }

    #[test]
    fn directories_of_users_and_names_of_transactions_have_numbers_of_their_own() {
        for user in [0, 1000, u32::MAX] {
            assert_eq!((user_of(home(user)), linked(home(user))), (Some(user), None));
            assert_eq!(user_named(user.to_string().as_bytes()), Some(user));
        }
        for id in [1, 17, HOME - 1].map(TransactionId) {
            let link = link(id).unwrap();
            assert_eq!((linked(link), user_of(link)), (Some(id), None));
            let (top, in_it) = (top_of(id).unwrap(), within(id).unwrap());
            assert_eq!((topped(top), around(top), linked(top)), (Some(id), None, None));
            assert_eq!((topped(in_it), around(in_it), user_of(in_it)), (None, Some(id), None));
        }
        assert_eq!(link(TransactionId(HOME)), None);
        assert!((TOP..=CLONES_ALONE).all(|ino| user_of(ino).is_none() && linked(ino).is_none()));
        assert!(
            [&b"01"[..], b"", b"-1", b"x", b"4294967296"]
                .iter()
                .all(|name| user_named(name).is_none())
        );
    }
}
