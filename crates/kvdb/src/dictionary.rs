//! Dictionaries, which are the ordered key spaces of a store, and their options.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

pub use vt_tree::{ADAPTIVE, Compression, FALSE_POSITIVES};
use vt_tree::{MergeOptions, Placement};

/// The value of [`DictionaryOptions::separate_at`] that lets the store adapt it to the use of the
/// dictionary.
pub const ADAPTIVE_SEPARATION: u32 = u32::MAX - 1;

/// The range of the lengths of short values, in bytes. The use of the dictionary determines whether
/// short values are placed inside or outside of their block. Values outside take whole units of 512
/// bytes on the device. For values of at least 2 KiB this wastes at most a quarter of the space,
/// and a scan reads such values one by one as fast as in blocks.
pub(crate) const SHORT_VALUES: std::ops::Range<u32> = 512..2048;

/// The number of a dictionary, which is one ordered key space of the store. Dictionaries are
/// numbered from 1 in the order of their creation. A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DictionaryId(pub u32);

/// The storage options of a dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryOptions {
    /// The length in bytes from which on values lie outside of their key block as raw extents. The
    /// default, [`ADAPTIVE_SEPARATION`], means 2 KiB, or 512 bytes while the dictionary is being
    /// overwritten. See [`DictionaryInfo::short_outside`].
    pub separate_at: u32,
    /// The stitching threshold, in bytes (VT-tree §3.1). A merge copies a span of data that needs
    /// no merging if fewer bytes than this are contiguous in it. With 0, nothing is ever copied, as
    /// in a log-structured file system. With `u64::MAX`, everything is copied at every level, as in
    /// a plain LSM-tree. With a value between these, key blocks are copied until their spans reach
    /// this length. Large values are moved once, at the bottom level, where fewer bytes than this
    /// are contiguous in 16 MiB of values in key order. The default, [`ADAPTIVE`], is derived from
    /// the spans that exist and from [`crate::OpenOptions::seek_bytes`]; on solid state it leaves
    /// large values where they are. [`crate::Kvdb::set_stitch_at`] changes the threshold at any
    /// time.
    pub stitch_at: u64,
    /// Reserves the dictionary. The dictionaries of the file system are reserved, and key-value
    /// interfaces refuse to use them.
    pub reserved: bool,
    /// The compression of blocks of keys and small values. The block cache counts their
    /// decompressed size.
    pub compression: Compression,
    /// The compression of large values. A value is stored compressed if this makes the value an
    /// eighth smaller and saves units of 512 bytes. A value is compressed once, when it is placed,
    /// and decompressed at each read. The default is no compression; decision 023 has the
    /// measurements.
    pub compress_values: Compression,
    /// The largest rate of false positives of the filters, in ten-thousandths. A false positive
    /// makes the lookup of a missing key read from the device. The default is 80 (0.8%), which
    /// takes about eleven bits of filter for each key. Half the rate costs one more bit for each
    /// key. 0 means no filters, which suits dictionaries whose missing keys are never looked up.
    pub false_positives: u16,
    /// The rule by which a commit joins the changes of a key that both its transaction and other
    /// commits have changed.
    pub join: Join,
}

/// The rule by which a commit joins a value that its transaction has changed with the changes that
/// other commits have made since the transaction began (snapshot isolation). The rules correspond
/// to the merge routines of KEVIN and the VT-tree that need no code of the user. Changes that a
/// rule cannot join are a conflict, as they are without a rule. A routine of the program
/// ([`crate::Kvdb::set_merge`]) takes precedence over the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// Joins nothing. The first transaction that commits wins.
    #[default]
    None,
    /// Adds both changes. Values are whole numbers in decimal, as `INCR` stores them.
    Add,
    /// Keeps the larger value. Values are whole numbers in decimal.
    Max,
    /// Keeps the smaller value. Values are whole numbers in decimal.
    Min,
    /// Joins sets of lines. The result has the lines that either side has added, without the lines
    /// that either side has removed. A missing key is a set without lines.
    Union,
}

impl Join {
    /// All rules, in the order of their codes.
    pub const ALL: [Join; 5] = [Join::None, Join::Add, Join::Max, Join::Min, Join::Union];

    /// Returns the name of the rule in commands.
    pub fn name(self) -> &'static str {
        match self {
            Join::None => "none",
            Join::Add => "add",
            Join::Max => "max",
            Join::Min => "min",
            Join::Union => "union",
        }
    }

    /// Returns the rule with this name, which may be in upper or lower case.
    pub fn named(name: &[u8]) -> Option<Join> {
        Join::ALL.into_iter().find(|join| name.eq_ignore_ascii_case(join.name().as_bytes()))
    }

    /// Returns the number of the rule in the manifest.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Join> {
        Join::ALL.get(usize::from(code)).copied()
    }
}

impl DictionaryOptions {
    /// Returns the length, in bytes, from which on values lie outside of their block while short
    /// values lie inside.
    pub(crate) fn fixed_separation(&self) -> u32 {
        match self.separate_at {
            ADAPTIVE_SEPARATION => SHORT_VALUES.end,
            at => at,
        }
    }

    /// Returns the options with which a merge with this placement writes data of the dictionary.
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

/// The description of a dictionary in lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryInfo {
    /// The number by which reads and writes refer to the dictionary.
    pub id: DictionaryId,
    /// The name of the dictionary, which is unique within its branch.
    pub name: String,
    /// The branch to which the dictionary belongs. The name is empty for the main branch.
    pub branch: String,
    /// The storage options of the dictionary.
    pub options: DictionaryOptions,
    /// Is `true` if values of 512 bytes to 2 KiB may lie outside of their blocks, until the
    /// dictionary is read in order or is at rest. This is possible only with
    /// [`ADAPTIVE_SEPARATION`]; see decision 061.
    pub short_outside: bool,
}

/// The description of a dictionary in the manifest and in versions. A clone shares the part that it
/// has from its snapshot ([`Kind`]). The description dereferences to this part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub id: DictionaryId,
    /// The branch to which the dictionary belongs. The name is empty for the main branch. The
    /// dictionaries of a branch share one copy of the name.
    pub branch: Arc<str>,
    kind: Arc<Kind>,
}

/// The part of a description that a dictionary has in common with its clones. See
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

    /// Shares the common part with another dictionary if the two parts are equal.
    pub(crate) fn share_with(&mut self, other: &Described) {
        if self.is_like(other) {
            self.kind = other.kind.clone();
        }
    }

    /// Returns whether another dictionary has the same name and options.
    pub(crate) fn is_like(&self, other: &Described) -> bool {
        self.kind == other.kind
    }

    /// Returns the common part for a change that affects only this dictionary.
    pub(crate) fn change(&mut self) -> &mut Kind {
        Arc::make_mut(&mut self.kind)
    }

    /// Returns the description for lists.
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

/// The maximum length of the name of a dictionary, in bytes.
pub const MAX_DICTIONARY_NAME: usize = 255;
