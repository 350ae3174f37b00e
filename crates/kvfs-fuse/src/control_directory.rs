//! The control directory: `.kvfs` in the root, which no listing shows, with a directory for each
//! kind of view that has every view by its name. Everything below a view's name is the view's own
//! root.
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
//! **Access.** A view shows its files to those whom their modes admit, and these modes may be older
//! than the store's, or not meant for others yet. So the directories of snapshots and clones admit
//! only the user of this process (and root), and a transaction admits the user who began it:
//! `.kvfs/txn/17` is a symbolic link to `.kvfs/user/UID/17`, and that directory belongs to the user
//! alone. The kernel checks it as it checks everything; the modes of the view's own root are not
//! changed. A mount may be open instead.
//!
//! **Transactions within transactions.** A transaction that was begun within another one is a part
//! of its state, and lies in its view alone: `.kvfs/txn/18` in the root of the view of 17. So a
//! program to which that view is shown in place of the store finds it, and nothing else of the
//! store. In the store's own root `.kvfs/txn/18` is a link that leads to it.
//!
//! **A mount of one clone alone.** Its root is the clone's, above which nothing is reached. So the
//! clone's root has a control directory in such a mount, with this clone's transactions, snapshots
//! and clones, and those of its clones to any depth; its content is the same as in the one of the
//! store's root elsewhere. The directory of the clones there is another one than that above the
//! clone: the kernel allows a directory only one name.
//!
//! A file `barrier`, which is not listed, is used to find out that the kernel has handed over
//! everything (`quiesce_barrier`).
//!
//! The kernel may cache what it found here; the thread that begins or ends a view notifies the
//! kernel. It may not remember that something is missing.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvfs::{Attr, FileKind, Ino, Timestamp, TransactionId, ViewId};

use crate::view_names::{directory_name, view_name};

/// The name in the root.
pub(crate) const NAME: &[u8] = b".kvfs";

/// The directories, by inode number.
pub(crate) const TOP: Ino = 1;
pub(crate) const TRANSACTIONS: Ino = 2;
pub(crate) const SNAPSHOTS: Ino = 3;
pub(crate) const CLONES: Ino = 4;
pub(crate) const BARRIER: Ino = 5;
/// The directory with the transactions of each user; not listed.
pub(crate) const USERS: Ino = 6;
/// The control directory in the root of the clone that a mount shows alone.
pub(crate) const TOP_ALONE: Ino = 7;
/// The directory of the clones in that control directory.
pub(crate) const CLONES_ALONE: Ino = 8;
/// The directory of a user, with the user's number.
const HOME: Ino = 1 << 40;
/// The name of a transaction, with its number.
const LINK: Ino = 2 << 40;

/// The control directory in the root of a transaction's view, with its number, and in that the
/// directory of the transactions within it.
const TOP_OF: Ino = 3 << 40;
const WITHIN: Ino = 4 << 40;

/// The name of the directory of the users, in the control directory.
pub(crate) const USERS_NAME: &str = "user";

/// The name of the file in the control directory that is not listed.
pub(crate) const BARRIER_NAME: &str = "barrier";

/// The size of that file: room for more pages, 128 KiB apart, than there can be threads
/// (`barrier`).
pub(crate) const BARRIER_SIZE: u64 = 160 * (128 << 10);

/// The directories that a control directory lists.
pub(crate) const KINDS: [(&str, Ino); 4] =
    [("txn", TRANSACTIONS), ("snapshot", SNAPSHOTS), ("clone", CLONES), ("clone", CLONES_ALONE)];

/// Returns the directory of a user's transactions.
pub(crate) fn home(user: u32) -> Ino {
    HOME | Ino::from(user)
}

/// Returns the user whose directory it is.
pub(crate) fn user_of(ino: Ino) -> Option<u32> {
    if ino & !(HOME - 1) == HOME { u32::try_from(ino & (HOME - 1)).ok() } else { None }
}

/// Returns the inode of the name of a transaction, or `None` if its number is too large.
pub(crate) fn link(id: TransactionId) -> Option<Ino> {
    (id.0 < HOME).then_some(LINK | id.0)
}

/// Returns the transaction that it is the name of.
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

/// Returns the transaction in whose view's root it is the control directory.
pub(crate) fn topped(ino: Ino) -> Option<TransactionId> {
    (ino & !(HOME - 1) == TOP_OF).then_some(TransactionId(ino & (HOME - 1)))
}

/// Returns the transaction around those in this directory.
pub(crate) fn around(ino: Ino) -> Option<TransactionId> {
    (ino & !(HOME - 1) == WITHIN).then_some(TransactionId(ino & (HOME - 1)))
}

/// Returns the path to a transaction's view from the directory of its user. `chain` has the
/// transactions that it is within, the outermost first, and itself.
fn way(chain: &[TransactionId]) -> String {
    let names: Vec<String> = chain.iter().map(ToString::to_string).collect();
    names.join("/.kvfs/txn/")
}

/// Returns the target of the link that is a transaction's name.
pub(crate) fn target(chain: &[TransactionId], user: u32) -> String {
    format!("../{USERS_NAME}/{user}/{}", way(chain))
}

/// Returns the path from the root of the file system to `path` in a view. For a transaction, `user`
/// is its user, and `chain` has the transactions that it is within, and itself. `alone` is the
/// clone that the mount shows alone.
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
/// file belongs to this process. With `open`, they admit everyone.
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
            // It belongs to the user of the transaction.
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

/// Returns all names of a view. A transaction also has one in the directory of its user, if that is
/// known, or of the transaction that it is within (`chain`, see [`path_in`]); a clone has one where
/// another clone is mounted alone.
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
/// any depth. `parents` has all clones by name, each with the branch that it was made of, if that
/// is known.
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
