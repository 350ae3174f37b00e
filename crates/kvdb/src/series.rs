//! The codecs of series of large values. A series is the values of a dictionary whose keys begin
//! with the same prefix, such as the pages of one file. The values of a series compress alike,
//! while the values of another series may be incompressible.
//!
//! The codec of a value is chosen when the value gets its place: by a batch that binds the value,
//! by the journal's thread, by a flush, by a compaction if updates have made the value longer, or
//! when a transaction spills. The reference to the value names the codec, so code that reads or
//! moves values need not know of series, and the codecs of series are not stored. The program sets
//! the codec of a series before it commits values. A series that was forgotten has the codec of its
//! dictionary.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, Ordering};
use vt_tree::{ChooseCodec, Compression, ExtentRef, Packer, place_packed};
use zones::ExtentWriter;

use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};

/// The codec that [`SeriesCodec::Auto`] tries. Each write that may compress tries this codec, so an
/// attempt must be cheap.
const TRIED: Compression = Compression::Lz4;
/// The number of values that are stored without an attempt after a value that did not compress. The
/// number doubles with each further value that does not compress, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: u32 = 8;
/// The largest number of values that are stored without an attempt: 4 MiB of pages.
const LONGEST_PAUSE: u32 = 1024;
/// The minimum number of series that are remembered. The maximum is twice this number.
const KEPT: usize = 16 << 10;
/// The maximum length of the prefix of a series, in bytes. This bounds the memory of all series,
/// since keys may be hundreds of times as long.
const LONGEST_PREFIX: usize = 128;

/// The codec of a series of values. See [`crate::Kvdb::set_codec_of_series`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesCodec {
    /// Each value is compressed with this codec if this makes the value short enough.
    Fixed(Compression),
    /// Values are compressed with LZ4 while this makes them short enough. After a value that LZ4
    /// does not make short enough, a number of values are stored without an attempt.
    Auto,
}

/// A function that reads a key of another dictionary in the same branch, by the dictionary's name.
pub type ReadOther<'a> = dyn FnMut(&str, &[u8]) -> Result<Option<Bytes>> + 'a;

/// The length of the prefix of a series in bytes, and the codec of the series. `None` means the
/// codec of the dictionary.
pub type SeriesOf = (usize, Option<SeriesCodec>);

/// A source of the codecs of series whose values arrive in a stream from another store, without
/// being committed by the program.
pub trait SeriesSource: Send + Sync {
    /// Returns the series of a key in this dictionary, or `None` if the dictionary has no series.
    fn series_of(
        &self,
        dict: &DictionaryInfo,
        key: &[u8],
        read: &mut ReadOther<'_>,
    ) -> Result<Option<SeriesOf>>;
}

/// The codec of a series, and the results of earlier attempts to compress its values.
#[derive(Clone, Copy)]
struct Series {
    codec: SeriesCodec,
    /// The number of values that are stored without an attempt after the last attempt, or 0 if the
    /// last attempt succeeded.
    pause: u32,
    /// The number of further values that are stored without an attempt.
    left: u32,
}

impl Series {
    fn new(codec: SeriesCodec) -> Series {
        Series { codec, pause: 0, left: 0 }
    }

    /// Returns the codec that the values of the series may have.
    fn codec(&self) -> Compression {
        match self.codec {
            SeriesCodec::Fixed(codec) => codec,
            SeriesCodec::Auto => TRIED,
        }
    }

    /// Returns whether the next value is stored without an attempt.
    fn pauses(&mut self) -> bool {
        let pauses = self.codec == SeriesCodec::Auto && self.left > 0;
        self.left -= u32::from(pauses);
        pauses
    }

    /// Records the result of an attempt.
    fn tried(&mut self, compressed: bool) {
        self.pause = match compressed {
            true => 0,
            false => (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE),
        };
        self.left = self.pause;
    }
}

/// The series of a dictionary. Recently set series are young. When there are too many young series,
/// they become old, and the series that were old before are forgotten.
struct Table {
    /// The length of the prefixes, in bytes.
    len: usize,
    young: HashMap<Box<[u8]>, Series>,
    old: HashMap<Box<[u8]>, Series>,
}

impl Table {
    fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }
}

#[derive(Default)]
struct Tables {
    by_dictionary: BTreeMap<DictionaryId, Table>,
    /// The number of young series in all tables.
    young: usize,
}

impl Tables {
    fn remember(&mut self, dict: DictionaryId, prefix: &[u8], codec: SeriesCodec) -> Result<()> {
        let len = prefix.len();
        if len > LONGEST_PREFIX {
            return Err(Error::Invalid(format!(
                "a series with a prefix of {len} bytes: it may have {LONGEST_PREFIX}"
            )));
        }
        if self.young >= KEPT {
            self.age();
        }
        let Tables { by_dictionary, young } = self;
        let table = by_dictionary.entry(dict).or_insert_with(|| Table {
            len,
            young: HashMap::new(),
            old: HashMap::new(),
        });
        if table.len != len {
            return Err(Error::Invalid(format!(
                "a series with a prefix of {len} bytes, where all others have prefixes of {}",
                table.len
            )));
        }
        match table.young.get_mut(prefix) {
            Some(series) if series.codec == codec => {}
            Some(series) => *series = Series::new(codec),
            None => {
                let known = table.old.remove(prefix).filter(|known| known.codec == codec);
                table.young.insert(prefix.into(), known.unwrap_or(Series::new(codec)));
                *young += 1;
            }
        }
        Ok(())
    }

    fn forget(&mut self, dict: DictionaryId, prefix: &[u8]) {
        let Tables { by_dictionary, young } = self;
        let Some(table) = by_dictionary.get_mut(&dict) else { return };
        *young -= usize::from(table.young.remove(prefix).is_some());
        table.old.remove(prefix);
        if table.is_empty() {
            by_dictionary.remove(&dict);
        }
    }

    /// Forgets the old series, and makes the young series old.
    fn age(&mut self) {
        for table in self.by_dictionary.values_mut() {
            table.old = std::mem::take(&mut table.young);
        }
        self.by_dictionary.retain(|_, table| !table.is_empty());
        self.young = 0;
    }
}

/// The codecs of all series of an open store.
#[derive(Default)]
pub(crate) struct SeriesCodecs {
    /// Is `true` if some series has its own codec. Stores without such a series pay only for
    /// reading this flag.
    any: AtomicBool,
    tables: Mutex<Tables>,
    source: OnceLock<Arc<dyn SeriesSource>>,
}

impl SeriesCodecs {
    /// Sets the codec of a series, or forgets the series. The results of earlier attempts are kept
    /// if the codec is the same as before.
    pub(crate) fn set(
        &self,
        dict: DictionaryId,
        prefix: &[u8],
        codec: Option<SeriesCodec>,
    ) -> Result<()> {
        if codec.is_none() && !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut tables = self.tables.lock();
        match codec {
            Some(codec) => tables.remember(dict, prefix, codec)?,
            None => tables.forget(dict, prefix),
        }
        self.any.store(!tables.by_dictionary.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Calls `look` with the series of a key, if the series has its own codec.
    fn with<T>(
        &self,
        dict: DictionaryId,
        key: &[u8],
        look: impl FnOnce(&mut Series) -> T,
    ) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut tables = self.tables.lock();
        let table = tables.by_dictionary.get_mut(&dict)?;
        let prefix = key.get(..table.len)?;
        let series = match table.young.get_mut(prefix) {
            Some(series) => series,
            None => table.old.get_mut(prefix)?,
        };
        Some(look(series))
    }

    /// Returns the codec that the value of a key may have, in a dictionary whose codec is
    /// `default`.
    pub(crate) fn codec(
        &self,
        dict: DictionaryId,
        key: &[u8],
        default: Compression,
    ) -> Compression {
        self.with(dict, key, |series| series.codec()).unwrap_or(default)
    }

    /// Places the value of a key, and compresses it with `codec` if this is worthwhile.
    pub(crate) fn place(
        &self,
        (dict, key): (DictionaryId, &[u8]),
        writer: &mut ExtentWriter,
        packer: &mut Packer,
        codec: Compression,
        value: &[u8],
    ) -> vt_tree::Result<ExtentRef> {
        let tried = self.attempt(dict, key, codec);
        let extent = place_packed(writer, packer, tried, value)?;
        self.tried(dict, key, tried, &extent);
        Ok(extent)
    }

    /// Returns the codec to try for a value that may have `codec`: either `codec` or no
    /// compression.
    fn attempt(&self, dict: DictionaryId, key: &[u8], codec: Compression) -> Compression {
        let pauses = codec != Compression::None
            && self.with(dict, key, |series| series.pauses()).unwrap_or(false);
        if pauses { Compression::None } else { codec }
    }

    fn tried(&self, dict: DictionaryId, key: &[u8], tried: Compression, extent: &ExtentRef) {
        if tried != Compression::None {
            self.with(dict, key, |series| series.tried(extent.codec != Compression::None));
        }
    }

    /// Sets the source of the codecs of received values. Only the first source is kept.
    pub(crate) fn set_source(&self, source: Arc<dyn SeriesSource>) {
        let _ = self.source.set(source);
    }

    pub(crate) fn source(&self) -> Option<&dyn SeriesSource> {
        self.source.get().map(|source| &**source)
    }

    /// Returns the choice of codecs for a merge that places values of a dictionary whose codec is
    /// `default`. Returns `None` if no series has its own codec and none can get one during the
    /// merge.
    pub(crate) fn choice(
        self: &Arc<Self>,
        dict: DictionaryId,
        default: Compression,
    ) -> Option<Arc<dyn ChooseCodec>> {
        if !self.any.load(Ordering::Acquire) && self.source().is_none() {
            return None;
        }
        Some(Arc::new(Choice { codecs: self.clone(), dict, default }))
    }
}

/// The choice of codecs for the values of one dictionary.
struct Choice {
    codecs: Arc<SeriesCodecs>,
    dict: DictionaryId,
    default: Compression,
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choice")
            .field("dict", &self.dict)
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}

impl ChooseCodec for Choice {
    fn choose(&self, key: &[u8]) -> Compression {
        let codec = self.codecs.codec(self.dict, key, self.default);
        self.codecs.attempt(self.dict, key, codec)
    }

    fn placed(&self, key: &[u8], tried: Compression, extent: &ExtentRef) {
        self.codecs.tried(self.dict, key, tried, extent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DICT: DictionaryId = DictionaryId(7);

    fn extent(compressed: bool) -> ExtentRef {
        match compressed {
            true => ExtentRef::packed(4096, 4096, 512, 0, TRIED).unwrap(),
            false => ExtentRef::plain(4096, 4096, 0),
        }
    }

    /// Simulates storing a value of a key, and returns whether its compression was tried.
    fn store(codecs: &SeriesCodecs, key: &[u8], compresses: bool) -> bool {
        let codec = codecs.codec(DICT, key, Compression::None);
        let tried = codecs.attempt(DICT, key, codec);
        codecs.tried(DICT, key, tried, &extent(compresses && tried != Compression::None));
        tried != Compression::None
    }

    #[test]
    fn values_that_do_not_compress_are_tried_ever_more_seldom() {
        let codecs = SeriesCodecs::default();
        codecs.set(DICT, b"noise", Some(SeriesCodec::Auto)).unwrap();
        codecs.set(DICT, b"text.", Some(SeriesCodec::Auto)).unwrap();
        let tries = |key: &[u8], compresses, count| {
            (0..count).filter(|_| store(&codecs, key, compresses)).count()
        };
        assert_eq!(tries(b"text.1", true, 100), 100);
        // The attempts are at values 0, 9, 26, 59, 124, 253, 510 and 1023.
        assert_eq!(tries(b"noise1", false, 1024), 8);
        let rest = tries(b"noise2", false, 100 * 1024);
        assert!((90..=100).contains(&rest), "{rest}");
        assert_eq!(tries(b"text.2", true, 100), 100, "a series does not depend on another");
        // Setting the same codec again, as each commit does, keeps the results of earlier attempts.
        codecs.set(DICT, b"noise", Some(SeriesCodec::Auto)).unwrap();
        assert!(tries(b"noise3", false, 1024) <= 1);
        // Once a value compresses, each further value is tried.
        assert!(tries(b"noise4", true, 1025) >= 1);
        assert_eq!(tries(b"noise5", true, 10), 10);
    }

    #[test]
    fn a_fixed_codec_is_tried_for_each_value() {
        let codecs = SeriesCodecs::default();
        codecs.set(DICT, b"a", Some(SeriesCodec::Fixed(Compression::Zstd))).unwrap();
        assert!((0..100).all(|_| store(&codecs, b"a1", false)));
        codecs.set(DICT, b"a", Some(SeriesCodec::Fixed(Compression::None))).unwrap();
        assert_eq!(codecs.codec(DICT, b"a1", Compression::Lz4), Compression::None);
        codecs.set(DICT, b"a", None).unwrap();
        assert_eq!(codecs.codec(DICT, b"a1", Compression::Lz4), Compression::Lz4);
        assert!(!codecs.any.load(Ordering::Acquire), "nothing is left");
        codecs.set(DICT, b"a", None).unwrap();
    }

    #[test]
    fn keys_belong_to_the_series_of_their_own_dictionary() {
        let codecs = SeriesCodecs::default();
        codecs.set(DICT, b"ab", Some(SeriesCodec::Fixed(Compression::Zstd))).unwrap();
        let of = |dict, key: &[u8]| codecs.codec(dict, key, Compression::None);
        assert_eq!(of(DICT, b"ab"), Compression::Zstd);
        assert_eq!(of(DICT, b"abc"), Compression::Zstd);
        for key in [&b"a"[..], b"", b"ac", b"b"] {
            assert_eq!(of(DICT, key), Compression::None);
        }
        assert_eq!(of(DictionaryId(8), b"abc"), Compression::None);
        assert!(codecs.set(DICT, b"a", Some(SeriesCodec::Auto)).is_err(), "another length");
        let long = codecs.set(DictionaryId(9), &[b'a'; 129], Some(SeriesCodec::Auto)).unwrap_err();
        assert!(long.to_string().contains("it may have 128"), "{long}");
        assert_eq!(of(DictionaryId(9), &[b'a'; 129]), Compression::None);
        codecs.set(DictionaryId(8), b"a", Some(SeriesCodec::Auto)).unwrap();
    }

    #[test]
    fn the_number_of_series_is_bounded_and_the_last_ones_are_kept() {
        let codecs = SeriesCodecs::default();
        let count = KEPT as u32 * 5;
        for i in 0..count {
            let dict = DictionaryId(1 + i % 3);
            codecs.set(dict, &i.to_be_bytes(), Some(SeriesCodec::Auto)).unwrap();
        }
        let known = |i: u32| {
            let dict = DictionaryId(1 + i % 3);
            codecs.codec(dict, &i.to_be_bytes(), Compression::None) != Compression::None
        };
        assert!((count - KEPT as u32..count).all(known));
        assert!((0..count).filter(|i| known(*i)).count() <= 2 * KEPT);
        assert!(!known(0));
    }
}
