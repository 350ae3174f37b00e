//! Dictionaries: the ordered key spaces of a store, and the options of each.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

pub use vt_tree::{ADAPTIVE, Compression, FALSE_POSITIVES};
use vt_tree::{MergeOptions, Placement};

/// The value of [`DictionaryOptions::separate_at`] that adapts to the use of the dictionary.
pub const ADAPTIVE_SEPARATION: u32 = u32::MAX - 1;

/// The lengths of short values, bytes: those that are placed inside or outside their block by the
/// use of the dictionary. Values outside take whole units of 512 bytes on the device. From 2 KiB on
/// that wastes a quarter at most, and a scan reads them one by one as fast as in blocks.
pub(crate) const SHORT_VALUES: std::ops::Range<u32> = 512..2048;

/// The number of a dictionary, which is one ordered key space of the store. Dictionaries are
/// numbered from 1 in the order of creation; a number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DictionaryId(pub u32);

/// The storage options of a dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryOptions {
    /// Values of at least this many bytes lie outside their key block as raw extents. The default,
    /// [`ADAPTIVE_SEPARATION`], stands for 2 KiB, and for 512 bytes while the dictionary is being
    /// overwritten. See [`DictionaryInfo::short_outside`].
    pub separate_at: u32,
    /// Stitching threshold (VT-tree §3.1): merges copy a span of data that needs no merging if
    /// fewer bytes than this are contiguous in it. 0 is a log-structured file system: nothing is
    /// ever copied. `u64::MAX` is a plain LSM-tree: everything is copied, at every level. Between
    /// these, key blocks are copied until their spans are that long, and large values are moved
    /// once, at the bottom, where fewer bytes than this are contiguous in 16 MiB of them in key
    /// order. The default, [`ADAPTIVE`], follows the spans that exist and
    /// [`crate::OpenOptions::seek_bytes`]; on solid state it leaves large values where they are.
    /// [`crate::Kvdb::set_stitch_at`] changes it at any time.
    pub stitch_at: u64,
    /// Dictionaries of the file system are reserved: key-value interfaces refuse them.
    pub reserved: bool,
    /// The compression of blocks of keys and small values. The block cache counts their
    /// decompressed size.
    pub compression: Compression,
    /// The compression of large values. A value is stored compressed if that makes it an eighth
    /// smaller and saves units of 512 bytes. It is compressed once, when it is placed, and
    /// decompressed at each read. Off by default: decision 023 has the figures.
    pub compress_values: Compression,
    /// The largest rate of false positives of the filters, in ten-thousandths: that share of
    /// lookups of missing keys costs a read of the device. The default is 80 (0.8%), for about
    /// eleven bits of filter a key. Half the rate costs one more bit a key. 0 means no filters, for
    /// dictionaries whose missing keys are never looked up.
    pub false_positives: u16,
    /// The rule by which a commit joins a key that its transaction and others have changed.
    pub join: Join,
}

/// The rule by which a commit joins a value that its transaction has changed with the changes of
/// others since the transaction began (snapshot isolation). These are KEVIN's and the VT-tree's
/// merge routines, of the kinds that need no code of the user. Changes that a rule cannot join are
/// a conflict, as they are without a rule. A routine of the program, [`crate::Kvdb::set_merge`],
/// takes precedence over the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// Does not join: the first to commit wins.
    #[default]
    None,
    /// Values are whole numbers in decimal, as `INCR` keeps them; both changes are added.
    Add,
    /// Values are whole numbers in decimal; the larger one stays.
    Max,
    /// Values are whole numbers in decimal; the smaller one stays.
    Min,
    /// Values are sets of lines. The result has the lines that either side has added, without those
    /// that either side has removed. A missing key is a set without lines.
    Union,
}

impl Join {
    /// All rules, in the order of their codes.
    pub const ALL: [Join; 5] = [Join::None, Join::Add, Join::Max, Join::Min, Join::Union];

    /// Returns the rule's name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Join::None => "none",
            Join::Add => "add",
            Join::Max => "max",
            Join::Min => "min",
            Join::Union => "union",
        }
    }

    /// Returns the rule of that name, in upper or lower case.
    pub fn named(name: &[u8]) -> Option<Join> {
        Join::ALL.into_iter().find(|join| name.eq_ignore_ascii_case(join.name().as_bytes()))
    }

    /// Returns the rule's number in the manifest.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Join> {
        Join::ALL.get(usize::from(code)).copied()
    }
}

impl DictionaryOptions {
    /// Returns the length from which on values lie outside their block while no short values do,
    /// bytes.
    pub(crate) fn fixed_separation(&self) -> u32 {
        match self.separate_at {
            ADAPTIVE_SEPARATION => SHORT_VALUES.end,
            at => at,
        }
    }

    /// Returns the options with which a merge writes data of this dictionary, for this placement.
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

/// The description of a dictionary, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryInfo {
    /// The number by which reads and writes name it.
    pub id: DictionaryId,
    /// Its name, unique within its branch.
    pub name: String,
    /// The branch that it belongs to; empty for the main one.
    pub branch: String,
    /// Its storage options.
    pub options: DictionaryOptions,
    /// Values of 512 bytes to 2 KiB lie outside their blocks, until the dictionary is read in order
    /// or at rest. `true` only with [`ADAPTIVE_SEPARATION`]: see decision 061.
    pub short_outside: bool,
}

/// The description of a dictionary in the manifest and in versions. Clones share the parts that
/// they have from their snapshot ([`Kind`]), to which this dereferences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub id: DictionaryId,
    /// The branch that it belongs to; empty for the main one. The dictionaries of a branch share
    /// its name.
    pub branch: Arc<str>,
    kind: Arc<Kind>,
}

/// The part of a description that a dictionary has in common with those of clones. See
/// [`DictionaryInfo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub name: String,
    pub options: DictionaryOptions,
    pub short_outside: bool,
}

impl Deref for Described {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        &self.kind
    }
}

impl Described {
    /// Returns the description of the same dictionary in a clone.
    pub(crate) fn in_branch(&self, id: DictionaryId, branch: Arc<str>) -> Described {
        Described { id, branch, kind: self.kind.clone() }
    }

    /// Shares the common part with another dictionary if it is the same.
    pub(crate) fn share_with(&mut self, other: &Described) {
        if self.is_like(other) {
            self.kind = other.kind.clone();
        }
    }

    /// Returns whether name and options are those of another dictionary.
    pub(crate) fn is_like(&self, other: &Described) -> bool {
        self.kind == other.kind
    }

    /// Returns the common part for a change of this dictionary only.
    pub(crate) fn change(&mut self) -> &mut Kind {
        Arc::make_mut(&mut self.kind)
    }

    /// Returns the description as it is listed.
    pub(crate) fn to_info(&self) -> DictionaryInfo {
        let Kind { name, options, short_outside } = Kind::clone(&self.kind);
        DictionaryInfo {
            id: self.id,
            name,
            branch: self.branch.to_string(),
            options,
            short_outside,
        }
    }
}

impl From<DictionaryInfo> for Described {
    fn from(info: DictionaryInfo) -> Described {
        let DictionaryInfo { id, name, branch, options, short_outside } = info;
        let branch = if branch.is_empty() { main_branch() } else { branch.into() };
        Described { id, branch, kind: Arc::new(Kind { name, options, short_outside }) }
    }
}

/// Returns the name of the main branch, which is empty.
fn main_branch() -> Arc<str> {
    static NAME: LazyLock<Arc<str>> = LazyLock::new(|| "".into());
    NAME.clone()
}

/// The longest name of a dictionary, bytes.
pub const MAX_DICTIONARY_NAME: usize = 255;
