//! The merge routine of `imap`: joins a transaction's change of an inode with concurrent changes of
//! others.
//!
//! Adding and removing names changes their directory: its number of entries, its links, its times.
//! These changes join, so that transactions that work on different names of one directory do not
//! conflict. The following do conflict: changes of the same name (a key of `nmap`, which has no
//! merge routine) or of the same file, changes of one attribute of a directory on both sides, a
//! directory that one side removed while the other added an entry, and two moves of directories
//! (see `layout::MOVES_KEY`).

pub(crate) mod merging;
pub(crate) mod three_way;

use bytes::Bytes;

use crate::attr::FileKind;
use crate::layout::{self, Attributes, ImapKey, Xattrs};

/// Returns the value of `key` with the changes of both `mine` and `theirs` to `base`, or `None` if
/// they conflict.
pub(crate) fn join(
    key: &[u8],
    base: Option<&[u8]>,
    mine: Option<&[u8]>,
    theirs: Option<&[u8]>,
) -> Option<Bytes> {
    let ino = match layout::decode_imap_key(key).ok()? {
        ImapKey::Node(ino) => ino,
        ImapKey::Bases(_) => return marks(base, mine, theirs),
        _ => return None,
    };
    let node = |value: Option<&[u8]>| {
        let (attr, xattrs, _) = layout::decode_node(ino, &Bytes::copy_from_slice(value?)).ok()?;
        (attr.kind == FileKind::Dir).then_some((attr, xattrs.unwrap_or_default()))
    };
    // A value that is missing was removed on its side, or is not a directory.
    let (attr, xattrs) = join_directories(&node(base)?, &node(mine)?, &node(theirs)?)?;
    Some(layout::encode_node(&attr, Some(&xattrs), b""))
}

/// Joins the marks of common states if an undo removes some of them. Later common states contain
/// the undone changes, and stop being common states, too. Two concurrent merges of one clone
/// conflict.
fn marks(base: Option<&[u8]>, mine: Option<&[u8]>, theirs: Option<&[u8]>) -> Option<Bytes> {
    let [base, mine, theirs] =
        [base, mine, theirs].map(|note| layout::decode_marks(note.unwrap_or_default()));
    if mine.iter().any(|mark| !base.contains(mark)) {
        return None;
    }
    let stays = |mark: &&u64| mine.contains(mark) || !base.contains(mark);
    let left: Vec<u64> = theirs.iter().take_while(stays).copied().collect();
    Some(layout::encode_marks(&left).into())
}

type DirectoryNode = (Attributes, Xattrs);

fn join_directories(
    base: &DirectoryNode,
    mine: &DirectoryNode,
    theirs: &DirectoryNode,
) -> Option<DirectoryNode> {
    let (b, m, t) = (&base.0, &mine.0, &theirs.0);
    let links = sum(b.nlink.into(), m.nlink.into(), t.nlink.into())?;
    let attr = Attributes {
        kind: FileKind::Dir,
        perm: either(b.perm, m.perm, t.perm)?,
        nlink: u32::try_from(links).ok().filter(|&n| n >= 2)?,
        uid: either(b.uid, m.uid, t.uid)?,
        gid: either(b.gid, m.gid, t.gid)?,
        rdev: either(b.rdev, m.rdev, t.rdev)?,
        size: sum(b.size, m.size, t.size)?,
        body: t.body,
        parent: either(b.parent, m.parent, t.parent)?,
        atime: m.atime.max(t.atime),
        mtime: m.mtime.max(t.mtime),
        ctime: m.ctime.max(t.ctime),
        btime: t.btime,
        // Only the mainline assigns numbers from the reservation.
        reserved: t.reserved,
    };
    Some((attr, either(&base.1, &mine.1, &theirs.1)?.clone()))
}

/// Returns the value that only one side has changed, or that both have changed in the same way.
fn either<T: PartialEq>(base: T, mine: T, theirs: T) -> Option<T> {
    match () {
        () if mine == base => Some(theirs),
        () if theirs == base || theirs == mine => Some(mine),
        () => None,
    }
}

/// Returns `theirs` plus the growth of `mine`.
fn sum(base: u64, mine: u64, theirs: u64) -> Option<u64> {
    let sum = i128::from(theirs) + i128::from(mine) - i128::from(base);
    u64::try_from(sum).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Timestamp;
    use crate::layout::{Body, XattrValue};

    const KEY: [u8; 8] = 9u64.to_be_bytes();

    fn directory(change: impl FnOnce(&mut Attributes)) -> Attributes {
        let t = Timestamp { secs: 100, nanos: 0 };
        let mut attr = Attributes {
            kind: FileKind::Dir,
            perm: 0o755,
            nlink: 4,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 10,
            body: Body::Inline(0),
            parent: 1,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            reserved: Default::default(),
        };
        change(&mut attr);
        attr
    }

    fn joined(base: &Attributes, mine: &Attributes, theirs: &Attributes) -> Option<Attributes> {
        let value = |attr| layout::encode_node(attr, None, b"");
        let joined = join(&KEY, Some(&value(base)), Some(&value(mine)), Some(&value(theirs)))?;
        Some(layout::decode_node(9, &joined).unwrap().0)
    }

    #[test]
    fn entries_links_and_times_of_a_directory_join() {
        let base = directory(|_| {});
        let mine = directory(|d| (d.size, d.nlink, d.mtime.secs) = (13, 5, 200));
        let theirs = directory(|d| (d.size, d.nlink, d.ctime.secs) = (8, 3, 300));
        let both = joined(&base, &mine, &theirs).unwrap();
        assert_eq!((both.size, both.nlink, both.mtime.secs, both.ctime.secs), (11, 4, 200, 300));
    }

    #[test]
    fn an_attribute_that_one_side_changed_is_taken_and_one_that_both_changed_is_a_conflict() {
        let base = directory(|_| {});
        let mine = directory(|d| (d.perm, d.parent) = (0o700, 5));
        let theirs = directory(|d| d.uid = 7);
        let both = joined(&base, &mine, &theirs).unwrap();
        assert_eq!((both.perm, both.parent, both.uid), (0o700, 5, 7));
        assert_eq!(joined(&base, &mine, &directory(|d| d.perm = 0o711)), None);
        assert_eq!(joined(&base, &mine, &directory(|d| d.parent = 6)), None);
        assert!(joined(&base, &mine, &mine).is_some());
    }

    #[test]
    fn extended_attributes_of_a_directory_join_when_one_side_changed_them() {
        let value = |names: &[&[u8]]| {
            let xattrs: Xattrs =
                names.iter().map(|n| (Box::from(*n), XattrValue::Inline(Box::from(*n)))).collect();
            layout::encode_node(&directory(|_| {}), Some(&xattrs), b"")
        };
        let (none, a, b) = (value(&[]), value(&[b"user.a"]), value(&[b"user.b"]));
        assert_eq!(join(&KEY, Some(&none), Some(&a), Some(&none)), Some(a.clone()));
        assert_eq!(join(&KEY, Some(&none), Some(&a), Some(&b)), None);
    }

    #[test]
    fn removed_directories_files_and_other_keys_conflict() {
        let dir = layout::encode_node(&directory(|_| {}), None, b"");
        let changed = layout::encode_node(&directory(|d| d.size = 11), None, b"");
        assert_eq!(join(&KEY, Some(&dir), None, Some(&changed)), None);
        assert_eq!(join(&KEY, Some(&dir), Some(&changed), None), None);
        assert_eq!(join(&KEY, None, Some(&changed), Some(&changed)), None);
        let file = layout::encode_node(
            &directory(|f| (f.kind, f.parent, f.nlink) = (FileKind::File, 0, 1)),
            None,
            b"",
        );
        assert_eq!(join(&KEY, Some(&file), Some(&file), Some(&file)), None);
        assert_eq!(join(&layout::MOVES_KEY, Some(b"a"), Some(b"b"), Some(b"b")), None);
        assert_eq!(join(b"?", Some(&dir), Some(&dir), Some(&dir)), None);
    }

    #[test]
    fn a_directory_that_would_lose_more_than_it_has_is_a_conflict() {
        let base = directory(|_| {});
        let empty = directory(|d| (d.size, d.nlink) = (0, 2));
        assert_eq!(joined(&base, &empty, &empty), None);
    }
}
