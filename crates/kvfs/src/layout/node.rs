//! The node: everything about an inode except the pages of a large file, in one value of `imap`.
//!
//! ```text
//! version (1)  flags (u16 LE)  kind << 12 | permissions (u16 LE)
//! nlink uid gid size (varints)
//! btime (zigzag varint seconds, u32 LE nanoseconds)
//! ctime mtime atime, each only if its flag says that it differs from the one before it
//! rdev (varint, if flagged)   parent (varint, directories; others if flagged)
//! page count (varint, if paged)
//! reserved inode numbers (directories, if flagged): the first and how many (varints)
//! xattrs (if flagged): count, then name length, name, and either 0, value length, value,
//!     or 1, length (the value has its own key)
//! content: the rest of the value (if not paged)
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::attr::{Attr, FileKind, Ino, Timestamp};
use crate::error::{Error, Result};
use crate::layout::reservation::Reservation;

const VERSION: u8 = 1;
const CTIME: u16 = 1;
const MTIME: u16 = 2;
const ATIME: u16 = 4;
const RDEV: u16 = 8;
const PARENT: u16 = 16;
const PAGED: u16 = 32;
const XATTRS: u16 = 64;
const RESERVED: u16 = 128;
const KNOWN: u16 = 255;

/// The place of an inode's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// The data is in the node, with this number of bytes from offset 0. The rest up to the size is
    /// a hole.
    Inline(u32),
    /// The data is in pages. This is the number of stored pages.
    Paged(u64),
}

/// The fixed part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub kind: FileKind,
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// The number of bytes of a file or of the target of a symbolic link, or the number of entries
    /// of a directory.
    pub size: u64,
    pub body: Body,
    /// The parent of a directory. For any other inode, a hint: a directory in which the inode had a
    /// name when it was last made, moved or linked, or 0 without a hint.
    pub parent: Ino,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// The numbers that a directory assigns to its next files.
    pub reserved: Reservation,
}

impl Attributes {
    pub fn public(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: match self.body {
                Body::Inline(len) => u64::from(len).div_ceil(512),
                Body::Paged(pages) => sectors_of(pages, self.size),
            },
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }
}

/// Returns the space that `pages` pages of a file of `size` bytes take, in units of 512 bytes. In a
/// file without holes, the last page ends at the size. In a file with holes, it is unknown whether
/// the last page exists.
fn sectors_of(pages: u64, size: u64) -> u64 {
    let dense = pages > 0 && pages == crate::layout::blocks_of(size);
    if dense { size.div_ceil(512) } else { pages * 8 }
}

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, XattrValue>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum XattrValue {
    Inline(Box<[u8]>),
    /// The value is stored under its own key. The number is its length.
    External(u32),
}

pub(crate) fn kind_code(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 0,
        FileKind::Dir => 1,
        FileKind::Symlink => 2,
        FileKind::Fifo => 3,
        FileKind::Socket => 4,
        FileKind::CharDevice => 5,
        FileKind::BlockDevice => 6,
    }
}

pub(crate) fn kind_of(code: u8) -> Option<FileKind> {
    Some(match code {
        0 => FileKind::File,
        1 => FileKind::Dir,
        2 => FileKind::Symlink,
        3 => FileKind::Fifo,
        4 => FileKind::Socket,
        5 => FileKind::CharDevice,
        6 => FileKind::BlockDevice,
        _ => return None,
    })
}

/// Appends a number as LEB128: seven bits per byte, the lowest bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(crate) fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (&b, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(b & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        n |= bits << shift;
        if b < 0x80 {
            return Some(n);
        }
    }
    None
}

fn put_time(out: &mut Vec<u8>, t: Timestamp) {
    put_varint(out, (t.secs << 1 ^ t.secs >> 63) as u64);
    out.extend_from_slice(&t.nanos.to_le_bytes());
}

fn take_time(input: &mut &[u8]) -> Option<Timestamp> {
    let n = take_varint(input)?;
    let (nanos, rest) = input.split_first_chunk::<4>()?;
    *input = rest;
    let nanos = u32::from_le_bytes(*nanos);
    (nanos < 1_000_000_000)
        .then_some(Timestamp { secs: (n >> 1) as i64 ^ -((n & 1) as i64), nanos })
}

/// Encodes a node. `content` is the inline data, of the length in `attr.body`; it is empty for a
/// paged file.
pub(crate) fn encode_node(attr: &Attributes, xattrs: Option<&Xattrs>, content: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(96 + content.len() + xattrs.map_or(0, |x| x.len() * 64));
    put_node(&mut out, attr, xattrs, content);
    out.into()
}

/// Appends the value of a node to `out`.
pub(crate) fn put_node(
    out: &mut Vec<u8>,
    attr: &Attributes,
    xattrs: Option<&Xattrs>,
    content: &[u8],
) {
    debug_assert!(match attr.body {
        Body::Inline(len) => len as usize == content.len(),
        Body::Paged(_) => content.is_empty(),
    });
    let xattrs = xattrs.filter(|x| !x.is_empty());
    let flag = |on: bool, bit: u16| if on { bit } else { 0 };
    let flags = flag(attr.ctime != attr.btime, CTIME)
        | flag(attr.mtime != attr.ctime, MTIME)
        | flag(attr.atime != attr.mtime, ATIME)
        | flag(attr.rdev != 0, RDEV)
        | flag(attr.kind == FileKind::Dir || attr.parent != 0, PARENT)
        | flag(matches!(attr.body, Body::Paged(_)), PAGED)
        | flag(xattrs.is_some(), XATTRS)
        | flag(attr.kind == FileKind::Dir && !attr.reserved.is_empty(), RESERVED);
    out.push(VERSION);
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(
        &(u16::from(kind_code(attr.kind)) << 12 | attr.perm & 0o7777).to_le_bytes(),
    );
    for n in [u64::from(attr.nlink), u64::from(attr.uid), u64::from(attr.gid), attr.size] {
        put_varint(out, n);
    }
    put_time(out, attr.btime);
    for (bit, time) in [(CTIME, attr.ctime), (MTIME, attr.mtime), (ATIME, attr.atime)] {
        if flags & bit != 0 {
            put_time(out, time);
        }
    }
    if flags & RDEV != 0 {
        put_varint(out, u64::from(attr.rdev));
    }
    if flags & PARENT != 0 {
        put_varint(out, attr.parent);
    }
    if let Body::Paged(pages) = attr.body {
        put_varint(out, pages);
    }
    if flags & RESERVED != 0 {
        put_varint(out, attr.reserved.next);
        put_varint(out, attr.reserved.len());
    }
    if let Some(xattrs) = xattrs {
        put_varint(out, xattrs.len() as u64);
        for (name, value) in xattrs {
            put_varint(out, name.len() as u64);
            out.extend_from_slice(name);
            match value {
                XattrValue::Inline(value) => {
                    out.push(0);
                    put_varint(out, value.len() as u64);
                    out.extend_from_slice(value);
                }
                XattrValue::External(len) => {
                    out.push(1);
                    put_varint(out, u64::from(*len));
                }
            }
        }
    }
    out.extend_from_slice(content);
}

/// Decodes a node; the content is a slice of `value`, not a copy.
pub(crate) fn decode_node(ino: Ino, value: &Bytes) -> Result<(Attributes, Option<Xattrs>, Bytes)> {
    let (attr, xattrs, content) = parse_node(ino, value)?;
    Ok((attr, xattrs, value.slice(value.len() - content.len()..)))
}

/// Decodes a node; its content is borrowed from `value`.
pub(crate) fn parse_node(ino: Ino, value: &[u8]) -> Result<(Attributes, Option<Xattrs>, &[u8])> {
    parse(value).ok_or_else(|| Error::Corrupt { ino, what: "its node is malformed".into() })
}

fn parse(value: &[u8]) -> Option<(Attributes, Option<Xattrs>, &[u8])> {
    let mut input = value;
    let (head, rest) = input.split_first_chunk::<5>()?;
    input = rest;
    let flags = u16::from_le_bytes([head[1], head[2]]);
    let mode = u16::from_le_bytes([head[3], head[4]]);
    if head[0] != VERSION || flags & !KNOWN != 0 {
        return None;
    }
    let kind = kind_of((mode >> 12) as u8)?;
    let small = |input: &mut &[u8]| take_varint(input).and_then(|n| u32::try_from(n).ok());
    let (nlink, uid, gid) = (small(&mut input)?, small(&mut input)?, small(&mut input)?);
    let size = take_varint(&mut input)?;
    let btime = take_time(&mut input)?;
    let ctime = if flags & CTIME != 0 { take_time(&mut input)? } else { btime };
    let mtime = if flags & MTIME != 0 { take_time(&mut input)? } else { ctime };
    let atime = if flags & ATIME != 0 { take_time(&mut input)? } else { mtime };
    let rdev = if flags & RDEV != 0 { small(&mut input)? } else { 0 };
    let parent = if flags & PARENT != 0 { take_varint(&mut input)? } else { 0 };
    if kind == FileKind::Dir && flags & PARENT == 0 {
        return None;
    }
    let pages = if flags & PAGED != 0 { Some(take_varint(&mut input)?) } else { None };
    let reserved = if flags & RESERVED != 0 {
        let (next, len) = (take_varint(&mut input)?, take_varint(&mut input)?);
        Reservation::of(next, len).filter(|_| kind == FileKind::Dir)?
    } else {
        Reservation::default()
    };
    let xattrs = if flags & XATTRS != 0 { Some(take_xattrs(&mut input)?) } else { None };
    let body = match pages {
        Some(pages)
            if kind == FileKind::File
                && pages <= crate::layout::blocks_of(size)
                && input.is_empty() =>
        {
            Body::Paged(pages)
        }
        Some(_) => return None,
        None => {
            let holds_data = matches!(kind, FileKind::File | FileKind::Symlink);
            let most = if holds_data { size.min(crate::layout::PAGE) } else { 0 };
            if input.len() as u64 > most
                || kind == FileKind::Symlink && !(input.len() as u64 == size && is_target(input))
            {
                return None;
            }
            Body::Inline(input.len() as u32)
        }
    };
    let content = input;
    let perm = mode & 0o7777;
    Some((
        Attributes {
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            size,
            body,
            parent,
            atime,
            mtime,
            ctime,
            btime,
            reserved,
        },
        xattrs,
        content,
    ))
}

/// Returns whether an extended attribute can have this name. NUL is excluded, because it separates
/// names in lists.
pub(crate) fn is_xattr_name(name: &[u8]) -> bool {
    (1..=crate::layout::NAME_MAX).contains(&name.len()) && !name.contains(&0)
}

/// Returns whether a symbolic link can have this target.
fn is_target(target: &[u8]) -> bool {
    (1..=crate::layout::TARGET_MAX).contains(&target.len()) && !target.contains(&0)
}

fn take_xattrs(input: &mut &[u8]) -> Option<Xattrs> {
    let take = |input: &mut &[u8], len: u64| {
        let (bytes, rest) = input.split_at_checked(usize::try_from(len).ok()?)?;
        *input = rest;
        Some(Box::<[u8]>::from(bytes))
    };
    let count = take_varint(input)?;
    let mut all = Xattrs::new();
    for _ in 0..count {
        let len = take_varint(input)?;
        let name = take(input, len).filter(|name| is_xattr_name(name))?;
        let (&place, rest) = input.split_first()?;
        *input = rest;
        let len = take_varint(input)?;
        let value = match place {
            0 => XattrValue::Inline(take(input, len)?),
            1 => XattrValue::External(u32::try_from(len).ok()?),
            _ => return None,
        };
        all.insert(name, value);
    }
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time() -> impl Strategy<Value = Timestamp> {
        (prop_oneof![Just(0i64), Just(i64::MIN), Just(i64::MAX), any::<i64>()], 0u32..1_000_000_000)
            .prop_map(|(secs, nanos)| Timestamp { secs, nanos })
    }

    prop_compose! {
        fn attributes()(
            kind in (0u8..7).prop_map(|c| kind_of(c).expect("seven kinds")), perm in 0u16..0o10000, nlink: u32, uid: u32, gid: u32, rdev: u32,
            size: u64, len in 1u32..4096, pages: u64, paged: bool, parent: u64,
            times in (time(), time(), time(), time()), same: bool,
            (next, most) in (2u64..1 << 48, 0u64..1 << 20),
        ) -> Attributes {
            let holds = matches!(kind, FileKind::File | FileKind::Symlink);
            // The size of a symbolic link is the length of its target.
            let size = if kind == FileKind::Symlink { u64::from(len) } else { size };
            let body = match kind {
                FileKind::File if paged => Body::Paged(pages % (crate::layout::blocks_of(size) + 1)),
                _ if holds => Body::Inline(u64::from(len).min(size) as u32),
                _ => Body::Inline(0),
            };
            let (atime, mtime, ctime) = if same { (times.3, times.3, times.3) } else { (times.0, times.1, times.2) };
            let reserved = Reservation::of(next, most.min((1 << 48) - next))
                .filter(|_| kind == FileKind::Dir)
                .unwrap_or_default();
            Attributes {
                kind, perm, nlink, uid, gid, rdev, size, body, parent, atime, mtime, ctime,
                btime: times.3, reserved,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            attr in attributes(),
            xattrs in prop::collection::btree_map(
                prop::collection::vec(1u8.., 1..20).prop_map(Vec::into_boxed_slice),
                prop_oneof![
                    any::<u32>().prop_map(XattrValue::External),
                    prop::collection::vec(any::<u8>(), 0..40).prop_map(|v| XattrValue::Inline(v.into())),
                ],
                0..4,
            ),
            fill in 1u8..,
        ) {
            let content = vec![fill; match attr.body { Body::Inline(len) => len as usize, Body::Paged(_) => 0 }];
            let value = encode_node(&attr, Some(&xattrs), &content);
            let (a, x, c) = decode_node(5, &value).unwrap();
            prop_assert_eq!(a, attr);
            prop_assert_eq!(x.unwrap_or_default(), xattrs);
            prop_assert_eq!(&c[..], &content[..]);
        }

        #[test]
        fn garbage_is_an_error_and_never_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), version: bool) {
            if version && !bytes.is_empty() {
                bytes[0] = VERSION;
                if bytes.len() > 2 {
                    bytes[1] &= KNOWN as u8;
                    bytes[2] = 0;
                }
            }
            let _ = decode_node(5, &Bytes::from(bytes));
        }
    }

    #[test]
    fn a_fresh_small_file_takes_few_bytes() {
        let t = Timestamp { secs: 1_767_225_600, nanos: 5 };
        let attr = Attributes {
            kind: FileKind::File,
            perm: 0o644,
            nlink: 1,
            uid: 1000,
            gid: 1000,
            rdev: 0,
            size: 0,
            body: Body::Inline(0),
            parent: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            reserved: Reservation::default(),
        };
        assert!(encode_node(&attr, None, b"").len() <= 24);
    }
}
