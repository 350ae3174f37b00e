//! The way in which the pages of a file are compressed. Each file has a way of compression as an
//! extended attribute, which files and directories inherit from the directory in which they are
//! made.
//!
//! Each page is compressed separately when it gets its place in the store, so random reads and
//! overwrites of single pages cost no more than without compression. The reference to a page says
//! how the page is stored. The attribute only says how pages are stored from now on, and reads do
//! not need it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvdb::{
    Compression, DictionaryId, DictionaryInfo, Kvdb, ReadOther, SeriesCodec, SeriesOf,
    SeriesSource, ServedChange,
};

use crate::attr::{FileKind, Ino};
use crate::error::{Error, Result};
use crate::layout::{self, ImapKey, Layout, XattrValue, Xattrs};
use crate::space::store::Store;

/// The name of the extended attribute that contains the way of a file, or the way that a directory
/// passes on. The value of the attribute is a word of [`Compress::name`].
pub const COMPRESS_ATTRIBUTE: &str = "user.kvfs.compress";

/// The way in which the pages of a file are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    /// Pages are stored as they are.
    None,
    /// Pages are compressed by LZ4.
    Lz4,
    /// Pages are compressed by Zstandard, which compresses better but takes several times the work.
    Zstd,
    /// Pages are compressed by LZ4 if that saves space. For a file whose pages do not shrink,
    /// compression is tried again only from time to time.
    Auto,
}

impl Compress {
    /// All ways of compression.
    pub const ALL: [Compress; 4] = [Compress::None, Compress::Lz4, Compress::Zstd, Compress::Auto];

    /// Returns the word for this way in attributes and options.
    pub fn name(self) -> &'static str {
        match self {
            Compress::None => "none",
            Compress::Lz4 => "lz4",
            Compress::Zstd => "zstd",
            Compress::Auto => "auto",
        }
    }

    /// Returns the way that this word names.
    pub fn named(word: &[u8]) -> Option<Compress> {
        Compress::ALL.into_iter().find(|way| way.name().as_bytes() == word)
    }

    fn codec(self) -> SeriesCodec {
        match self {
            Compress::None => SeriesCodec::Fixed(Compression::None),
            Compress::Lz4 => SeriesCodec::Fixed(Compression::Lz4),
            Compress::Zstd => SeriesCodec::Fixed(Compression::Zstd),
            Compress::Auto => SeriesCodec::Auto,
        }
    }
}

/// Returns whether `name` is the name of the attribute.
pub(crate) fn is_attribute(name: &[u8]) -> bool {
    name == COMPRESS_ATTRIBUTE.as_bytes()
}

/// Checks the value of an extended attribute that is set.
pub(crate) fn check(name: &[u8], value: &[u8]) -> Result<()> {
    if is_attribute(name) && Compress::named(value).is_none() {
        return Err(Error::Invalid("user.kvfs.compress is one of none, lz4, zstd and auto"));
    }
    Ok(())
}

/// Returns the way that an inode has by its attribute. A word of a newer version has no effect.
fn way_of(xattrs: Option<&Xattrs>) -> Option<Compress> {
    match xattrs?.get(COMPRESS_ATTRIBUTE.as_bytes())? {
        XattrValue::Inline(word) => Compress::named(word),
        XattrValue::External(_) => None,
    }
}

/// Returns whether pages of a file may be compressed, by its attribute or by the way of files
/// without it.
pub(crate) fn may_apply(xattrs: Option<&Xattrs>, default: Option<Compress>) -> bool {
    way_of(xattrs).or(default).is_some_and(|way| way != Compress::None)
}

/// Returns the extended attributes with which an inode of this kind begins in a directory with
/// `dir`.
pub(crate) fn inherited(dir: Option<&Xattrs>, kind: FileKind) -> Option<Xattrs> {
    // The kernel allows `user` attributes only for files and directories.
    if !matches!(kind, FileKind::File | FileKind::Dir) {
        return None;
    }
    let value = XattrValue::Inline(way_of(dir)?.name().as_bytes().into());
    Some(Xattrs::from([(COMPRESS_ATTRIBUTE.as_bytes().into(), value)]))
}

/// Tells the store the way of a file whose pages are about to be committed. `default` is the way of
/// files without the attribute. If a server has the store, the server calls [`announce_ways`]
/// instead.
pub(crate) fn announce(
    store: &Store,
    layout: &Layout,
    ino: Ino,
    xattrs: Option<&Xattrs>,
    default: Option<Compress>,
) -> Result<()> {
    let Store::Here(db) = store else { return Ok(()) };
    let codec = way_of(xattrs).or(default).map(Compress::codec);
    Ok(db.set_codec_of_series(layout.dmap, &layout::pages_of(ino), codec)?)
}

/// Informs the store of a server of the ways of the files whose pages a client changes. The client
/// commits the node of a file together with its pages, so the changes contain the attribute;
/// `default` is the way of files without the attribute. Changes that cannot be decoded are ignored
/// here, because the client itself checks them.
pub fn announce_ways(db: &Kvdb, changes: &[ServedChange], default: Option<Compress>) {
    let puts = || {
        changes.iter().filter_map(|change| match change {
            ServedChange::Put(dict, key, value) => Some((*dict, key, value)),
            _ => None,
        })
    };
    let changed: BTreeSet<DictionaryId> = puts().map(|(dict, ..)| dict).collect();
    let of_files = |dict: &DictionaryId| {
        db.dictionary_info(*dict).filter(|info| info.options.reserved).map(|info| (*dict, info))
    };
    let tables: BTreeMap<DictionaryId, DictionaryInfo> =
        changed.iter().filter_map(of_files).collect();
    let is = |dict: DictionaryId, name: &str| tables.get(&dict).is_some_and(|t| t.name == name);
    let pages: BTreeSet<(DictionaryId, Ino)> = puts()
        .filter(|(dict, ..)| is(*dict, "dmap"))
        .filter_map(|(dict, key, _)| Some((dict, layout::decode_page_key(key).ok()?.0)))
        .collect();
    for (dict, key, value) in puts().filter(|(dict, ..)| is(*dict, "imap")) {
        let Ok(ImapKey::Node(ino)) = layout::decode_imap_key(key) else { continue };
        let is_changed = |dmap: &&DictionaryInfo| {
            let of_branch = tables.get(&dict).is_some_and(|imap| imap.branch == dmap.branch);
            of_branch && pages.contains(&(dmap.id, ino))
        };
        let Some(dmap) = tables.values().find(is_changed) else { continue };
        let Ok((_, xattrs, _)) = layout::decode_node(ino, value) else { continue };
        let codec = way_of(xattrs.as_ref()).or(default).map(Compress::codec);
        // The call fails only for prefixes of different lengths.
        let _ = db.set_codec_of_series(dmap.id, &layout::pages_of(ino), codec);
    }
}

/// Makes a store compress the pages of files that it receives from a stream according to the ways
/// of these files.
pub fn receive_by_ways(db: &Kvdb) {
    db.set_series_source(Arc::new(Received));
}

/// Finds the ways of files whose pages arrive in a stream. The pages come after the nodes of the
/// files.
struct Received;

impl SeriesSource for Received {
    fn series_of(
        &self,
        dict: &DictionaryInfo,
        key: &[u8],
        read: &mut ReadOther<'_>,
    ) -> kvdb::Result<Option<SeriesOf>> {
        if dict.name != "dmap" || !dict.options.reserved {
            return Ok(None);
        }
        let Ok((ino, _)) = layout::decode_page_key(key) else { return Ok(None) };
        let node = read("imap", &layout::node_key(ino))?;
        let node = node.and_then(|node| layout::decode_node(ino, &node).ok());
        let way = node.and_then(|(_, xattrs, _)| way_of(xattrs.as_ref()));
        Ok(Some((layout::pages_of(ino).len(), way.map(Compress::codec))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_word_and_other_words_are_refused() {
        for way in Compress::ALL {
            assert_eq!(Compress::named(way.name().as_bytes()), Some(way));
            assert!(check(COMPRESS_ATTRIBUTE.as_bytes(), way.name().as_bytes()).is_ok());
        }
        for word in [&b""[..], b"LZ4", b"gzip", b"lz4\n", b"zstd "] {
            assert!(Compress::named(word).is_none());
            let refused = check(COMPRESS_ATTRIBUTE.as_bytes(), word).unwrap_err();
            assert!(refused.to_string().contains("none, lz4, zstd and auto"), "{refused}");
            assert!(check(b"user.kvfs.compressed", word).is_ok());
        }
    }

    #[test]
    fn files_and_directories_inherit_the_way_and_nothing_else() {
        let value = |word: &[u8]| XattrValue::Inline(word.into());
        let name: Box<[u8]> = COMPRESS_ATTRIBUTE.as_bytes().into();
        let dir = Xattrs::from([
            (name.clone(), value(b"zstd")),
            (Box::from(&b"user.x"[..]), value(b"1")),
        ]);
        for kind in [FileKind::File, FileKind::Dir] {
            let made = inherited(Some(&dir), kind).unwrap();
            assert_eq!(made, Xattrs::from([(name.clone(), value(b"zstd"))]));
            assert_eq!(way_of(Some(&made)), Some(Compress::Zstd));
        }
        assert_eq!(inherited(Some(&dir), FileKind::Symlink), None);
        assert_eq!(inherited(None, FileKind::File), None);
        let newer = Xattrs::from([(name, value(b"brotli"))]);
        assert_eq!(inherited(Some(&newer), FileKind::File), None);
    }
}
