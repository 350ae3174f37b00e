//! Dictionaries: the ordered key spaces of a store, and how each keeps its tuples.

/// A dictionary: one ordered key space of the store. Numbered from 1 in the order of creation; a number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DictionaryId(pub u32);

/// How a dictionary keeps its tuples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryOptions {
    /// Values of at least this many bytes lie outside their key block as raw extents.
    pub separate_at: u32,
    /// Stitching threshold in bytes of contiguous span (VT-tree §3.1): 0 is a log-structured file system, `u64::MAX` a plain LSM-tree.
    pub stitch_at: u64,
    /// Dictionaries of the file system are reserved: the key-value doors refuse them.
    pub reserved: bool,
}

impl Default for DictionaryOptions {
    fn default() -> Self {
        DictionaryOptions { separate_at: 2048, stitch_at: 64 << 10, reserved: false }
    }
}

/// One dictionary as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryInfo {
    pub id: DictionaryId,
    pub name: String,
    pub options: DictionaryOptions,
}

/// Longest name of a dictionary, bytes.
pub const MAX_DICTIONARY_NAME: usize = 255;
