//! The layout of the store: the only module that knows the keys of the three dictionaries.
//!
//! ```text
//! nmap   parent(8, BE) name        kind, inode number
//! imap   ino(8, BE)                node: attributes, extended attributes, content of a small file
//!        ino(8, BE) 0x01 name      value of an extended attribute too large for the node
//!        0(8) 's'                  the file system itself: version, key of the directory hash
//!        0(8) 'o' ino(8, BE)       orphan: unlinked, but something of it is still stored
//!        0(8) 'p' ino(8, BE)       space that is promised to a file: ranges of its bytes
//!        0(8) 'm'                  the last move of a directory to another one: new parent, its
//!                                  inode number
//!        0(8) 'c'                  the last scrub that came to its end: when, and how much it
//!                                  found
//!        0(8) 'b' clone(4, BE)      states that a clone has in common with this branch, see
//!                                  `views/common_states`
//!        0(8) 'l' n(8, BE)         something that a repair could not bring back
//!        0(8) 'n'                  of older versions: bound below which all inode numbers lie that
//!                                  were given, and the first one that a directory may have
//!                                  reserved
//!        0(8) 'r'                  mark of the branch, and the first inode number that a directory
//!                                  may have reserved (see `counter`)
//! dmap   ino(8, BE) block(8, BE)   page: up to 4096 bytes, what is missing at its end is zero; one
//!                                  more byte: its content is lost
//! ```
//!
//! All other modules use inodes, names and blocks, so that keys by zone and relative path could
//! replace keys by inode in this module.

pub(crate) mod counter;
mod node;
pub(crate) mod reservation;

use bytes::{Bytes, BytesMut};
use kvdb::{Batch, DictionaryId, DictionaryOptions, Kvdb};

use self::reservation::INO_LIMIT;
use crate::attr::{FileKind, Ino, ROOT};
use crate::error::{Error, Result};
pub(crate) use node::{
    Attributes, Body, XattrValue, Xattrs, decode_node, encode_node, is_xattr_name, kind_code,
    kind_of, parse_node, put_node, put_varint, take_varint,
};

/// The size of a page, which is the unit of file data, in bytes.
pub(crate) const PAGE: u64 = 4096;
/// The length of the longest name, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// The length of the longest target of a symbolic link, in bytes.
pub(crate) const TARGET_MAX: usize = 4095;
/// The maximum number of bytes of data that a file keeps in its node.
/// `docs/decisions/003-small-files.md` explains the limit.
pub(crate) const INLINE_MAX: u64 = 512;
const XATTR: u8 = 1;
const SUPER: u8 = b's';
const ORPHAN: u8 = b'o';
const PROMISE: u8 = b'p';
const MOVES: u8 = b'm';
const SCRUB: u8 = b'c';
const NUMBERS: u8 = b'n';
const RESERVED: u8 = b'r';
const LOSS: u8 = b'l';
const BASES: u8 = b'b';
/// The version of a record with the default zone size, which has no field for the zone size.
const SUPER_VERSION: u8 = 7;
/// The version of a record with another zone size.
const SUPER_WITH_ZONES: u8 = 8;
/// The older versions of a record with another zone size: version 6, in which each branch counted
/// its own inode numbers, and version 4, which had no notes of promised space.
const OLDER_WITH_ZONES: [u8; 2] = [6, 4];
/// The oldest version that can be read. Version 1 has no hints to the directories of files, version
/// 2 no reserved inode numbers of directories, versions 3 and 4 no notes of promised space,
/// versions 5 and 6 a counter of inode numbers for each branch. Everything else is the same.
const OLDEST_SUPER: u8 = 1;
const NAME_VERSION: u8 = 1;

/// The dictionaries of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub nmap: DictionaryId,
    pub imap: DictionaryId,
    pub dmap: DictionaryId,
}

impl Layout {
    /// Returns the dictionaries of `db`, or `None` if one of them is missing.
    pub fn find(db: &Kvdb) -> Option<Layout> {
        Layout::of_names(|name| db.dictionary(name))
    }

    /// Returns the dictionaries of a branch, or `None` if one of them is missing.
    pub fn find_in(db: &Kvdb, branch: &str) -> Option<Layout> {
        Layout::of_names(|name| db.dictionary_in(branch, name))
    }

    /// Returns the dictionaries of a snapshot, or of the main branch of a state, or `None` if one
    /// of them is missing.
    pub fn of_state(state: &kvdb::View) -> Option<Layout> {
        Layout::of_names(|name| state.dictionary(name))
    }

    /// Returns the dictionaries with these names, or `None` if one of them is missing.
    pub fn of_names(find: impl Fn(&str) -> Option<DictionaryId>) -> Option<Layout> {
        Some(Layout { nmap: find("nmap")?, imap: find("imap")?, dmap: find("dmap")? })
    }

    pub fn create(db: &Kvdb) -> Result<Layout> {
        // The threshold is fixed, because pages, including the last page of a file, must stay at
        // their places, by which they are read.
        let reserved =
            DictionaryOptions { reserved: true, separate_at: 2048, ..Default::default() };
        // Nodes stay in their blocks, including their content, so that a small file is read by one
        // read.
        let nodes = DictionaryOptions { separate_at: 32 << 10, ..reserved.clone() };
        Ok(Layout {
            nmap: db.create_dictionary("nmap", reserved.clone())?,
            imap: db.create_dictionary("imap", nodes)?,
            dmap: db.create_dictionary("dmap", reserved)?,
        })
    }

    /// Adds to `batch` the removal of everything that an inode has, except for its names and its
    /// orphan record.
    pub fn stage_removal(&self, ino: Ino, batch: &mut Batch) {
        let (start, end) = node_range(ino);
        batch.delete_range(self.imap, start.to_vec(), end.to_vec());
        self.stage_removal_of_pages(ino, batch);
    }

    /// Adds to `batch` the removal of the extended attributes and pages of an inode.
    pub fn stage_content_removal(&self, ino: Ino, batch: &mut Batch) {
        let end = node_range(ino).1;
        batch.delete_range(self.imap, xattr_key(ino, b"\0"), end.to_vec());
        self.stage_removal_of_pages(ino, batch);
    }

    fn stage_removal_of_pages(&self, ino: Ino, batch: &mut Batch) {
        batch.delete_range(self.dmap, page_key(ino, 0).to_vec(), pages_end(ino).to_vec());
    }
}

/// Returns the number of pages that `size` bytes touch.
pub(crate) fn blocks_of(size: u64) -> u64 {
    size.div_ceil(PAGE)
}

// --- nmap

pub(crate) fn name_key(parent: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + name.len());
    key.extend_from_slice(&parent.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// Returns the key at which the range of all names of `parent` begins.
pub(crate) fn names_start(parent: Ino) -> [u8; 8] {
    parent.to_be_bytes()
}

/// Returns the smallest key after all names of `parent`.
pub(crate) fn names_end(parent: Ino) -> [u8; 8] {
    parent.saturating_add(1).to_be_bytes()
}

/// Returns whether an entry can have this name. All names from the store and from callers are
/// checked by this function, so a valid name can be used as a component of a path that does not
/// leave its directory.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

/// Decodes a directory and a name. A store may come from an untrusted source, so valid checksums do
/// not prove that its names are valid. Names are checked here, so that no reader can omit the
/// check.
pub(crate) fn decode_name_key(key: &[u8]) -> Result<(Ino, &[u8])> {
    let Some((parent, name)) = key.split_first_chunk::<8>() else {
        return Err(Error::Corrupt { ino: 0, what: format!("a name key of {} bytes", key.len()) });
    };
    let parent = u64::from_be_bytes(*parent);
    if !is_name(name) {
        let shown = name[..name.len().min(NAME_MAX)].escape_ascii();
        return Err(Error::Corrupt {
            ino: parent,
            what: format!("an entry with the impossible name `{shown}`"),
        });
    }
    Ok((parent, name))
}

pub(crate) fn encode_name(ino: Ino, kind: FileKind) -> Vec<u8> {
    let mut value = Vec::with_capacity(10);
    put_name(&mut value, ino, kind);
    value
}

/// Appends the value of a name to `out`.
pub(crate) fn put_name(out: &mut Vec<u8>, ino: Ino, kind: FileKind) {
    out.push(NAME_VERSION << 4 | node::kind_code(kind));
    node::put_varint(out, ino);
}

/// Decodes the inode and kind of a name; `parent` is used in the error message only. An entry that
/// refers to the root is refused: the tree would have a cycle.
pub(crate) fn decode_name(parent: Ino, mut value: &[u8]) -> Result<(Ino, FileKind)> {
    let corrupt = || Error::Corrupt { ino: parent, what: "a directory entry is malformed".into() };
    let (&head, rest) = value.split_first().ok_or_else(corrupt)?;
    value = rest;
    let kind =
        node::kind_of(head & 15).filter(|_| head >> 4 == NAME_VERSION).ok_or_else(corrupt)?;
    let ino = node::take_varint(&mut value)
        .filter(|&ino| ino > ROOT && ino < INO_LIMIT && value.is_empty())
        .ok_or_else(corrupt)?;
    Ok((ino, kind))
}

// --- imap

pub(crate) fn node_key(ino: Ino) -> Vec<u8> {
    ino.to_be_bytes().to_vec()
}

/// The meaning of a key of `imap`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ImapKey<'a> {
    Super,
    Moves,
    Scrub,
    Numbers,
    Bases(u32),
    Reserved,
    Loss(u64),
    Orphan(Ino),
    Promise(Ino),
    Node(Ino),
    Xattr(Ino, &'a [u8]),
}

pub(crate) fn decode_imap_key(key: &[u8]) -> Result<ImapKey<'_>> {
    let corrupt = |ino| Error::Corrupt { ino, what: "a key in imap that means nothing".into() };
    let (ino, rest) = key.split_first_chunk::<8>().ok_or_else(|| corrupt(0))?;
    let ino = u64::from_be_bytes(*ino);
    match (ino, rest) {
        (0, [SUPER]) => Ok(ImapKey::Super),
        (0, [MOVES]) => Ok(ImapKey::Moves),
        (0, [SCRUB]) => Ok(ImapKey::Scrub),
        (0, [NUMBERS]) => Ok(ImapKey::Numbers),
        (0, [BASES, clone @ ..]) => {
            let clone = clone.try_into().map_err(|_| corrupt(0))?;
            Ok(ImapKey::Bases(u32::from_be_bytes(clone)))
        }
        (0, [RESERVED]) => Ok(ImapKey::Reserved),
        (0, [LOSS, number @ ..]) => {
            let number = number.try_into().map_err(|_| corrupt(0))?;
            Ok(ImapKey::Loss(u64::from_be_bytes(number)))
        }
        (0, [ORPHAN, orphan @ ..]) => {
            let orphan = u64::from_be_bytes(orphan.try_into().map_err(|_| corrupt(0))?);
            // Orphan records with other numbers are refused: with number 0, the removal would
            // delete the file system's own records.
            match orphan > ROOT && orphan < INO_LIMIT {
                true => Ok(ImapKey::Orphan(orphan)),
                false => Err(corrupt(orphan)),
            }
        }
        (0, [PROMISE, file @ ..]) => {
            let file = u64::from_be_bytes(file.try_into().map_err(|_| corrupt(0))?);
            match file > ROOT && file < INO_LIMIT {
                true => Ok(ImapKey::Promise(file)),
                false => Err(corrupt(file)),
            }
        }
        (1..INO_LIMIT, []) => Ok(ImapKey::Node(ino)),
        (1..INO_LIMIT, [XATTR, name @ ..]) if node::is_xattr_name(name) => {
            Ok(ImapKey::Xattr(ino, name))
        }
        _ => Err(corrupt(ino)),
    }
}

pub(crate) fn xattr_key(ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + name.len());
    key.extend_from_slice(&ino.to_be_bytes());
    key.push(XATTR);
    key.extend_from_slice(name);
    key
}

/// Returns the range of `imap` that contains all keys of `ino`.
pub(crate) fn node_range(ino: Ino) -> ([u8; 8], [u8; 8]) {
    (ino.to_be_bytes(), ino.saturating_add(1).to_be_bytes())
}

pub(crate) fn orphan_key(ino: Ino) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.extend_from_slice(&[0; 8]);
    key.push(ORPHAN);
    key.extend_from_slice(&ino.to_be_bytes());
    key
}

/// Returns the range of all orphan records.
pub(crate) fn orphan_range() -> ([u8; 9], [u8; 9]) {
    ([0, 0, 0, 0, 0, 0, 0, 0, ORPHAN], [0, 0, 0, 0, 0, 0, 0, 0, ORPHAN + 1])
}

pub(crate) fn promise_key(ino: Ino) -> Vec<u8> {
    [&[0, 0, 0, 0, 0, 0, 0, 0, PROMISE][..], &ino.to_be_bytes()].concat()
}

/// Returns the range of all notes of promised space.
pub(crate) fn promise_range() -> ([u8; 9], [u8; 9]) {
    ([0, 0, 0, 0, 0, 0, 0, 0, PROMISE], [0, 0, 0, 0, 0, 0, 0, 0, PROMISE + 1])
}

pub(crate) fn loss_key(number: u64) -> Vec<u8> {
    [&[0, 0, 0, 0, 0, 0, 0, 0, LOSS][..], &number.to_be_bytes()].concat()
}

/// Returns the range of all notes of losses.
pub(crate) fn loss_range() -> ([u8; 9], [u8; 9]) {
    ([0, 0, 0, 0, 0, 0, 0, 0, LOSS], [0, 0, 0, 0, 0, 0, 0, 0, LOSS + 1])
}

/// Returns the key of the note about the states that a branch has in common with a clone. The clone
/// is identified by the number of one of its dictionaries.
pub(crate) fn bases_key(clone: DictionaryId) -> Vec<u8> {
    [&[0, 0, 0, 0, 0, 0, 0, 0, BASES][..], &clone.0.to_be_bytes()].concat()
}

pub(crate) fn encode_marks(marks: &[u64]) -> Vec<u8> {
    marks.iter().flat_map(|mark| mark.to_le_bytes()).collect()
}

/// Decodes the marks of a note under [`bases_key`]. The result is empty for a malformed note.
pub(crate) fn decode_marks(value: &[u8]) -> Vec<u64> {
    let (marks, rest) = value.as_chunks::<8>();
    if rest.is_empty() {
        marks.iter().map(|mark| u64::from_le_bytes(*mark)).collect()
    } else {
        vec![]
    }
}

pub(crate) const SCRUB_KEY: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, SCRUB];
pub(crate) const NUMBERS_KEY: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, NUMBERS];
pub(crate) const RESERVED_KEY: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, RESERVED];
pub(crate) const SUPER_KEY: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, SUPER];

/// The key that every move of a directory into another directory writes, so that two transactions
/// that both move directories conflict.
pub(crate) const MOVES_KEY: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, MOVES];

/// Decodes the note of an older version about inode numbers, and returns the bound of all numbers
/// that were allocated. Returns `None` if the value is malformed. Version 2 has only the bound.
pub(crate) fn decode_numbers(value: &[u8]) -> Option<Ino> {
    let (bound, rest) = value.split_first_chunk::<8>()?;
    let bound = u64::from_le_bytes(*bound);
    let first_reserved = match rest {
        [] => bound,
        rest => u64::from_le_bytes(rest.try_into().ok()?),
    };
    (bound > ROOT && bound <= INO_LIMIT && first_reserved <= bound).then_some(bound)
}

/// Encodes a note on a scrub: the time at which it ended, in seconds since 1970, and the number of
/// places at which it found damage.
pub(crate) fn encode_scrub(time: u64, faults: u64) -> Vec<u8> {
    [time.to_le_bytes(), faults.to_le_bytes()].concat()
}

/// Decodes a note on a scrub, or returns `None` if it is malformed.
pub(crate) fn decode_scrub(value: &[u8]) -> Option<(u64, u64)> {
    let time = value.get(..8)?.try_into().ok()?;
    let faults = value.get(8..)?.try_into().ok()?;
    Some((u64::from_le_bytes(time), u64::from_le_bytes(faults)))
}

/// The record of the file system itself. Its presence shows that the dictionaries contain a file
/// system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Super {
    /// The key of the hash that maps names to directory positions. It is random, so that names
    /// cannot be chosen to collide.
    pub hash_key: [u8; 16],
    /// The number of bytes of small files for which a directory reserves inode numbers, if the file
    /// system was made with a size other than the default.
    pub zone_size: Option<u64>,
}

impl Super {
    pub fn encode(&self) -> Vec<u8> {
        let mut value = b"kvfs".to_vec();
        value.push(if self.zone_size.is_some() { SUPER_WITH_ZONES } else { SUPER_VERSION });
        value.extend_from_slice(&self.hash_key);
        value.extend(self.zone_size.into_iter().flat_map(u64::to_le_bytes));
        value
    }

    /// Returns whether a record that decodes has a version that [`Super::encode`] writes. Otherwise
    /// it must be rewritten before anything else is written.
    pub fn is_current(value: &[u8]) -> bool {
        value.get(4).is_some_and(|&version| version >= SUPER_VERSION)
    }

    pub fn decode(value: &[u8]) -> Result<Super> {
        let corrupt = |what: &str| Error::Corrupt { ino: 0, what: what.into() };
        let rest = value
            .strip_prefix(b"kvfs")
            .ok_or_else(|| corrupt("the file system's own record is malformed"))?;
        let (&version, rest) = rest
            .split_first()
            .ok_or_else(|| corrupt("the file system's own record is cut short"))?;
        if !(OLDEST_SUPER..=SUPER_WITH_ZONES).contains(&version) {
            return Err(corrupt(&format!(
                "made by another version of the format ({version}, this program knows up to {SUPER_WITH_ZONES})"
            )));
        }
        let short = || corrupt("the file system's own record is cut short, or too long");
        let (hash_key, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let zone_size = match (version, rest.try_into()) {
            (version, Ok(size))
                if version == SUPER_WITH_ZONES || OLDER_WITH_ZONES.contains(&version) =>
            {
                Some(u64::from_le_bytes(size))
            }
            (1..=3 | 5 | SUPER_VERSION, _) if rest.is_empty() => None,
            _ => return Err(short()),
        };
        Ok(Super { hash_key: *hash_key, zone_size })
    }
}

// --- dmap

/// Returns the beginning of the keys of all pages of a file.
pub(crate) fn pages_of(ino: Ino) -> [u8; 8] {
    ino.to_be_bytes()
}

pub(crate) fn page_key(ino: Ino, block: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&ino.to_be_bytes());
    key[8..].copy_from_slice(&block.to_be_bytes());
    key
}

/// Returns the smallest key after all pages of `ino`.
pub(crate) fn pages_end(ino: Ino) -> [u8; 8] {
    ino.saturating_add(1).to_be_bytes()
}

pub(crate) fn decode_page_key(key: &[u8]) -> Result<(Ino, u64)> {
    match key.split_first_chunk::<8>() {
        Some((ino, block)) if block.len() == 8 => {
            let block = block.iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
            Ok((u64::from_be_bytes(*ino), block))
        }
        _ => Err(Error::Corrupt { ino: 0, what: format!("page key of {} bytes", key.len()) }),
    }
}

/// The value of a page whose content is lost. It is longer than any page, so that no reader treats
/// it as content.
pub(crate) const LOST_PAGE: [u8; PAGE as usize + 1] = [0; PAGE as usize + 1];

/// Returns whether the length of a page's value says that its content is lost. Small writes may
/// have been applied to the page since, as updates; they keep its length.
pub(crate) fn is_lost_page(len: u64) -> bool {
    len == PAGE + 1
}

/// Builds many page keys in one allocation.
pub(crate) struct PageKeys {
    room: BytesMut,
}

impl PageKeys {
    pub fn with_capacity(keys: usize) -> Self {
        PageKeys { room: BytesMut::with_capacity(keys * 16) }
    }
    pub fn key(&mut self, ino: Ino, block: u64) -> Bytes {
        self.room.extend_from_slice(&page_key(ino, block));
        self.room.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_garbage_is_an_error() {
        let key = name_key(7, b"hello");
        assert_eq!(decode_name_key(&key).unwrap(), (7, &b"hello"[..]));
        assert!(key.as_slice() < names_end(7).as_slice());
        for kind in [FileKind::File, FileKind::Dir, FileKind::Socket] {
            assert_eq!(decode_name(7, &encode_name(1 << 40, kind)).unwrap(), (1 << 40, kind));
        }
        for bad in
            [&b""[..], b"\x10", b"\x1f\x02", b"\x20\x02", b"\x10\x00", b"\x10\x02\x02", &[0x10; 20]]
        {
            assert!(decode_name(7, bad).is_err(), "{bad:?}");
        }
        // The root has no name, and inode numbers end where the numbers of views begin.
        assert!(decode_name(7, &encode_name(ROOT, FileKind::Dir)).is_err());
        assert!(decode_name(7, &encode_name(INO_LIMIT, FileKind::File)).is_err());
        assert!(decode_name(7, &encode_name(INO_LIMIT - 1, FileKind::File)).is_ok());
        assert!(decode_name_key(&[0; 8]).is_err() && decode_name_key(&[0; 3]).is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_not_decoded() {
        for bad in
            [&b""[..], b".", b"..", b"/", b"/abs", b"a/b", b"../a", b"a\0", b"\0", &[b'n'; 256]]
        {
            let error = decode_name_key(&name_key(7, bad)).unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt { ino: 7, what } if what.contains("impossible name")),
                "{error}"
            );
        }
        for good in [&b"..."[..], b".a", b"a.", b"\xff", b"a b", &[b'n'; 255]] {
            assert_eq!(decode_name_key(&name_key(7, good)).unwrap(), (7, good));
        }
    }

    #[test]
    fn keys_of_the_node_table_are_told_apart() {
        assert_eq!(decode_imap_key(&node_key(9)).unwrap(), ImapKey::Node(9));
        assert_eq!(
            decode_imap_key(&xattr_key(9, b"user.a")).unwrap(),
            ImapKey::Xattr(9, b"user.a")
        );
        assert_eq!(decode_imap_key(&orphan_key(9)).unwrap(), ImapKey::Orphan(9));
        assert_eq!(decode_imap_key(&promise_key(9)).unwrap(), ImapKey::Promise(9));
        assert_eq!(decode_imap_key(&SUPER_KEY).unwrap(), ImapKey::Super);
        assert_eq!(decode_imap_key(&MOVES_KEY).unwrap(), ImapKey::Moves);
        for bad in [
            &[0u8; 8][..],
            &[1; 7],
            &[0, 0, 0, 0, 0, 0, 0, 1, 2],
            &[0, 0, 0, 0, 0, 0, 0, 1, 1],
            &orphan_key(9)[..12],
            &promise_key(9)[..12],
            &promise_key(ROOT),
        ] {
            assert!(decode_imap_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_super_record_refuses_other_versions() {
        let s = Super { hash_key: [3; 16], zone_size: None };
        assert_eq!(Super::decode(&s.encode()).unwrap(), s);
        let mut other = s.encode();
        other[4] = 1;
        assert_eq!(Super::decode(&other).unwrap(), s);
        assert!(!Super::is_current(&other) && Super::is_current(&s.encode()));
        other[4] = 2;
        assert_eq!(Super::decode(&other).unwrap(), s);
        assert!(!Super::is_current(&other));
        other[4] = 3;
        assert_eq!(Super::decode(&other).unwrap(), s);
        assert!(!Super::is_current(&other));
        other[4] = 9;
        assert!(Super::decode(&other).unwrap_err().to_string().contains("another version"));
        let zoned = Super { zone_size: Some(0), ..s };
        assert!(Super::is_current(&zoned.encode()));
        for record in [s, zoned] {
            let value = record.encode();
            assert_eq!(Super::decode(&value).unwrap(), record);
            for n in 0..value.len() {
                assert!(Super::decode(&value[..n]).is_err());
            }
            assert!(Super::decode(&[&value[..], b"x"].concat()).is_err());
        }
    }

    #[test]
    fn page_keys_sort_by_inode_then_block() {
        let mut keys = PageKeys::with_capacity(3);
        let all = [keys.key(5, 0), keys.key(5, 256), keys.key(6, 1)];
        assert!(all.is_sorted());
        assert_eq!(decode_page_key(&all[1]).unwrap(), (5, 256));
        assert!(decode_page_key(&all[1][..15]).is_err());
        assert!(
            all[1].as_ref() < pages_end(5).as_slice() && all[2].as_ref() > pages_end(5).as_slice()
        );
    }
}
