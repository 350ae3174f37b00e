//! Dictionaries: the ordered key spaces of a store, and how each keeps its tuples.

pub use vt_tree::{ADAPTIVE, Compression, FALSE_POSITIVES};
use vt_tree::{MergeOptions, Placement};

/// A [`DictionaryOptions::separate_at`] that adapts to what the dictionary does.
pub const ADAPTIVE_SEPARATION: u32 = u32::MAX - 1;

/// The lengths of values whose place follows what the dictionary does, bytes. On the device values
/// take whole units of 512 bytes. From 2 KiB on that costs a quarter at most, and a scan reads one
/// by one as fast as in blocks.
pub(crate) const SHORT_VALUES: std::ops::Range<u32> = 512..2048;

/// A dictionary: one ordered key space of the store. Numbered from 1 in the order of creation; a
/// number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DictionaryId(pub u32);

/// How a dictionary keeps its tuples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryOptions {
    /// Values of at least this many bytes lie outside their key block as raw extents.
    /// [`ADAPTIVE_SEPARATION`], the default, is 2 KiB, and 512 bytes while the dictionary is being
    /// overwritten, see [`DictionaryInfo::short_outside`].
    pub separate_at: u32,
    /// Stitching threshold (VT-tree §3.1): merges copy spans of data that need no merging when
    /// fewer bytes than this lie contiguous. 0 is a log-structured file system: nothing is ever
    /// copied. `u64::MAX` is a plain LSM-tree: everything is, at every level. In between, key
    /// blocks are copied until their spans are that long, and large values are moved once, at the
    /// bottom, where of 16 MiB of them in key order fewer bytes than this are contiguous.
    /// [`ADAPTIVE`], the default, follows the spans that are there and
    /// [`crate::OpenOptions::seek_bytes`]; on solid state it leaves large values where they are.
    /// Can be changed at any time: [`crate::Kvdb::set_stitch_at`].
    pub stitch_at: u64,
    /// Dictionaries of the file system are reserved: key-value interfaces refuse them.
    pub reserved: bool,
    /// How blocks of keys and small values are stored. They count as many bytes of the cache as
    /// they have when read.
    pub compression: Compression,
    /// How large values are stored that get an eighth smaller for it, and take fewer units of 512
    /// bytes. They are compressed once, when they get their place; what reads them decompresses
    /// them, each time. Off by default: decision 023 has the figures.
    pub compress_values: Compression,
    /// Of ten thousand keys that are not there, so many at most seem to be, and cost a read of the
    /// device: the default is 80, 0.8%, for about eleven bits of filter a key. Half the rate costs
    /// a bit more. 0: no filters, for dictionaries whose missing keys are never asked for.
    pub false_positives: u16,
    /// How a commit joins a key that its transaction and others have changed.
    pub join: Join,
}

/// How a commit joins a value that its transaction has changed with what others have made of it
/// since the transaction began (snapshot isolation): KEVIN's and the VT-tree's merge routines, of
/// the kinds that need no code of the user. What a rule cannot join is a conflict, as without one.
/// A routine of the program, [`crate::Kvdb::set_merge`], comes before the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// It does not: the first to commit wins.
    #[default]
    None,
    /// Values are whole numbers in decimal, as `INCR` keeps them: both changes are added.
    Add,
    /// Whole numbers in decimal: the larger one stays.
    Max,
    /// Whole numbers in decimal: the smaller one stays.
    Min,
    /// Values are sets of lines: it has those that either side has added, without those that either
    /// side has removed. A key that is not there is a set without lines.
    Union,
}

impl Join {
    /// All of them, in the order of their codes.
    pub const ALL: [Join; 5] = [Join::None, Join::Add, Join::Max, Join::Min, Join::Union];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Join::None => "none",
            Join::Add => "add",
            Join::Max => "max",
            Join::Min => "min",
            Join::Union => "union",
        }
    }

    /// The rule of that name, in upper or lower case.
    pub fn named(name: &[u8]) -> Option<Join> {
        Join::ALL.into_iter().find(|join| name.eq_ignore_ascii_case(join.name().as_bytes()))
    }

    /// Its number in the manifest.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Join> {
        Join::ALL.get(usize::from(code)).copied()
    }
}

impl DictionaryOptions {
    /// From which length on values lie outside their block when no short ones do, bytes.
    pub(crate) fn fixed_separation(&self) -> u32 {
        match self.separate_at {
            ADAPTIVE_SEPARATION => SHORT_VALUES.end,
            at => at,
        }
    }

    /// For what is written of this dictionary: how it is stored, and by what placement.
    pub(crate) fn storage(&self, placement: Placement) -> MergeOptions {
        MergeOptions {
            placement,
            separate_at: self.fixed_separation(),
            compression: self.compression,
            compress_values: self.compress_values,
            false_positives: self.false_positives,
            ..MergeOptions::default()
        }
    }
}

impl Default for DictionaryOptions {
    fn default() -> Self {
        DictionaryOptions {
            separate_at: ADAPTIVE_SEPARATION,
            stitch_at: ADAPTIVE,
            reserved: false,
            compression: Compression::None,
            compress_values: Compression::None,
            false_positives: FALSE_POSITIVES,
            join: Join::None,
        }
    }
}

/// One dictionary as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryInfo {
    /// The number that reads and writes name it by.
    pub id: DictionaryId,
    /// Its name, unique within its branch.
    pub name: String,
    /// The branch that it belongs to; empty: the main one.
    pub branch: String,
    /// How it is kept.
    pub options: DictionaryOptions,
    /// Values of 512 bytes to 2 KiB lie outside their blocks, until the dictionary is read in order
    /// or at rest. Only with [`ADAPTIVE_SEPARATION`]: see decision 061.
    pub short_outside: bool,
}

/// Longest name of a dictionary, bytes.
pub const MAX_DICTIONARY_NAME: usize = 255;
