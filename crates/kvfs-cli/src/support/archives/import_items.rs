//! The items of a source (a tar stream or a directory) on the way to their destination: another
//! thread, or over the socket to the daemon of a mounted store. The daemon trusts none of it: every
//! length is checked here, every name and path where it is used.

use bytes::{Buf, Bytes};
use kvfs::{FileKind, Timestamp};

use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The limit of data in one item, in bytes.
pub const PIECE: usize = 1 << 20;
/// The approximate size of a batch of items, in bytes; it may be exceeded by one whole piece.
pub const BATCH: usize = 1 << 20;

/// The attributes of an entry, except for its kind and content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    pub atime: Option<Timestamp>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An entry, or a part of one. Paths are relative to the destination.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Directory {
        path: Vec<u8>,
        meta: Meta,
    },
    Symlink {
        path: Vec<u8>,
        target: Vec<u8>,
        meta: Meta,
    },
    Special {
        path: Vec<u8>,
        kind: FileKind,
        rdev: u32,
        meta: Meta,
    },
    Link {
        path: Vec<u8>,
        to: Vec<u8>,
    },
    /// A file; its content follows.
    File {
        path: Vec<u8>,
        meta: Meta,
        /// The final size; ranges without data are holes.
        size: u64,
    },
    Data {
        at: u64,
        bytes: Bytes,
    },
    /// The end of a file.
    End,
}

impl Item {
    /// Returns the approximate memory use.
    pub fn size(&self) -> usize {
        match self {
            Item::Data { bytes, .. } => bytes.len() + 64,
            Item::Directory { meta, .. }
            | Item::Symlink { meta, .. }
            | Item::Special { meta, .. }
            | Item::File { meta, .. } => {
                256 + meta
                    .xattrs
                    .iter()
                    .map(|(name, value)| name.len() + value.len())
                    .sum::<usize>()
            }
            Item::Link { .. } => 256,
            Item::End => 16,
        }
    }

    /// Appends the encoding for the socket.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Item::Directory { path, meta } => {
                out.push(b'd');
                put_bytes(out, path);
                put_meta(out, meta);
            }
            Item::Symlink { path, target, meta } => {
                out.push(b'l');
                put_bytes(out, path);
                put_bytes(out, target);
                put_meta(out, meta);
            }
            Item::Special { path, kind, rdev, meta } => {
                out.push(match kind {
                    FileKind::CharDevice => b'c',
                    FileKind::BlockDevice => b'b',
                    FileKind::Fifo => b'p',
                    _ => b's',
                });
                put_bytes(out, path);
                out.extend_from_slice(&rdev.to_le_bytes());
                put_meta(out, meta);
            }
            Item::Link { path, to } => {
                out.push(b'h');
                put_bytes(out, path);
                put_bytes(out, to);
            }
            Item::File { path, meta, size } => {
                out.push(b'f');
                put_bytes(out, path);
                out.extend_from_slice(&size.to_le_bytes());
                put_meta(out, meta);
            }
            Item::Data { at, bytes } => {
                out.push(b'+');
                out.extend_from_slice(&at.to_le_bytes());
                put_bytes(out, bytes);
            }
            Item::End => out.push(b'.'),
        }
    }

    /// Decodes the item at the front of `from`, or returns `None` if that is empty. Data is a slice
    /// of the buffer.
    pub fn decode(from: &mut Bytes) -> Outcome<Option<Item>> {
        let mut left = &from[..];
        let item = Item::decode_slice(&mut left, from)?;
        let taken = from.len() - left.len();
        from.advance(taken);
        Ok(item)
    }

    /// Decodes the item at the front of a slice of `buffer`.
    fn decode_slice(from: &mut &[u8], buffer: &Bytes) -> Outcome<Option<Item>> {
        let Some((&kind, rest)) = from.split_first() else { return Ok(None) };
        *from = rest;
        let special = |kind, from: &mut &[u8]| {
            Some(Item::Special {
                path: take_bytes(from)?,
                kind,
                rdev: u32::from_le_bytes(take(from)?),
                meta: take_meta(from)?,
            })
        };
        let item = match kind {
            b'd' => {
                (|| Some(Item::Directory { path: take_bytes(from)?, meta: take_meta(from)? }))()
            }
            b'l' => (|| {
                Some(Item::Symlink {
                    path: take_bytes(from)?,
                    target: take_bytes(from)?,
                    meta: take_meta(from)?,
                })
            })(),
            b'c' => special(FileKind::CharDevice, from),
            b'b' => special(FileKind::BlockDevice, from),
            b'p' => special(FileKind::Fifo, from),
            b's' => special(FileKind::Socket, from),
            b'h' => (|| Some(Item::Link { path: take_bytes(from)?, to: take_bytes(from)? }))(),
            b'f' => (|| {
                Some(Item::File {
                    path: take_bytes(from)?,
                    size: u64::from_le_bytes(take(from)?),
                    meta: take_meta(from)?,
                })
            })(),
            b'+' => (|| {
                let at = u64::from_le_bytes(take(from)?);
                Some(Item::Data { at, bytes: buffer.slice_ref(take_slice(from)?) })
            })(),
            b'.' => Some(Item::End),
            _ => None,
        };
        item.map(Some)
            .ok_or_else(|| Failure::new(Exit::Failed, "the entries that came are not well formed"))
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

fn put_meta(out: &mut Vec<u8>, meta: &Meta) {
    out.extend_from_slice(&meta.perm.to_le_bytes());
    out.extend_from_slice(&meta.uid.to_le_bytes());
    out.extend_from_slice(&meta.gid.to_le_bytes());
    put_time(out, meta.mtime);
    out.push(u8::from(meta.atime.is_some()));
    put_time(out, meta.atime.unwrap_or_default());
    out.extend_from_slice(&(meta.xattrs.len() as u32).to_le_bytes());
    for (name, value) in &meta.xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}

fn take_slice<'b>(from: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = u32::from_le_bytes(take(from)?) as usize;
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes)
}

fn take_bytes(from: &mut &[u8]) -> Option<Vec<u8>> {
    take_slice(from).map(<[u8]>::to_vec)
}

fn take_time(from: &mut &[u8]) -> Option<Timestamp> {
    let time =
        Timestamp { secs: i64::from_le_bytes(take(from)?), nanos: u32::from_le_bytes(take(from)?) };
    (time.nanos < 1_000_000_000).then_some(time)
}

fn take_meta(from: &mut &[u8]) -> Option<Meta> {
    let perm = u16::from_le_bytes(take(from)?) & 0o7777;
    let (uid, gid) = (u32::from_le_bytes(take(from)?), u32::from_le_bytes(take(from)?));
    let mtime = take_time(from)?;
    let has_atime = take::<1>(from)?[0] != 0;
    let atime = Some(take_time(from)?).filter(|_| has_atime);
    let count = u32::from_le_bytes(take(from)?);
    let mut xattrs = Vec::new();
    for _ in 0..count {
        xattrs.push((take_bytes(from)?, take_bytes(from)?));
    }
    Some(Meta { perm, uid, gid, mtime, atime, xattrs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Item> {
        let meta = Meta {
            perm: 0o4755,
            uid: 7,
            gid: u32::MAX,
            mtime: Timestamp { secs: -5, nanos: 999_999_999 },
            atime: Some(Timestamp { secs: 1 << 40, nanos: 0 }),
            xattrs: vec![(b"user.a".to_vec(), vec![1; 300]), (b"user.b".to_vec(), Vec::new())],
        };
        let path = || b"a/b".to_vec();
        vec![
            Item::Directory { path: Vec::new(), meta: Meta::default() },
            Item::Symlink { path: path(), target: b"../x".to_vec(), meta: meta.clone() },
            Item::Special {
                path: path(),
                kind: FileKind::BlockDevice,
                rdev: 259,
                meta: meta.clone(),
            },
            Item::Special { path: path(), kind: FileKind::Socket, rdev: 0, meta: Meta::default() },
            Item::Link { path: path(), to: b"c".to_vec() },
            Item::File { path: path(), meta, size: 1 << 60 },
            Item::Data { at: 1 << 50, bytes: vec![7; 5000].into() },
            Item::End,
        ]
    }

    #[test]
    fn items_come_as_they_were_sent() {
        let mut bytes = Vec::new();
        all().iter().for_each(|item| item.encode(&mut bytes));
        let (mut from, mut came) = (Bytes::from(bytes), Vec::new());
        while let Some(item) = Item::decode(&mut from).expect("well formed") {
            came.push(item);
        }
        assert_eq!(came, all());
    }

    #[test]
    fn what_is_cut_short_or_changed_is_an_error_or_an_item_and_takes_no_more_memory_than_it_is_long()
     {
        for item in all() {
            let mut bytes = Vec::new();
            item.encode(&mut bytes);
            for len in 1..bytes.len() {
                assert!(
                    Item::decode(&mut Bytes::copy_from_slice(&bytes[..len])).is_err(),
                    "{item:?} of {len} bytes"
                );
            }
            for at in 0..bytes.len().min(100) {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[at] = value;
                    let mut from = Bytes::from(bytes);
                    while let Ok(Some(_)) = Item::decode(&mut from) {}
                }
            }
        }
        let many = [&b"d\0\0\0\0"[..], &[0; 35], &u32::MAX.to_le_bytes()].concat();
        assert!(Item::decode(&mut Bytes::from(many)).is_err());
    }
}
