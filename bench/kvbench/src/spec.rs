//! The work of a run: a load, its size, and the reads after it. It is passed to child processes as
//! JSON.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::engines::Settings;
use crate::keys::{KEY_BYTES, Shape};

/// The loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    Sequential,
    Random,
    /// The paper's RANDOM-APPEND: a range is picked at random for each tuple, ranges grow in order.
    Append,
    /// Random overwrites of every tuple of a random load; the load itself is not measured.
    Overwrite,
    /// Random load, half of it deleted, random load again (DeLSM).
    WriteDeleteWrite,
    /// Half of a random load deleted by range tombstones, each of which covers one tuple; the load
    /// itself is not measured.
    RangeDelete,
    /// Half reads, half updates.
    YcsbA,
    /// 95% reads, 5% updates.
    YcsbB,
    /// Reads only.
    YcsbC,
    /// 95% reads of the latest, 5% inserts.
    YcsbD,
    /// 95% scans of up to 100, 5% inserts.
    YcsbE,
    /// Half reads, half read-modify-writes.
    YcsbF,
}

/// What is read after a load. Cold: a fresh process, the page cache dropped. Warm: everything
/// touched before. Limited: memory, page cache included, is a quarter of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Read {
    GetCold,
    GetWarm,
    GetLimited,
    MissingCold,
    MissingWarm,
    MissingLimited,
    ScanCold,
    ScanWarm,
    ScanLimited,
    ShortCold,
    ShortWarm,
    ShortLimited,
}

/// The name of a value on the command line.
pub fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get,
    Missing,
    Scan,
    Short,
}

impl Read {
    pub fn kind(self) -> Kind {
        match self {
            Read::GetCold | Read::GetWarm | Read::GetLimited => Kind::Get,
            Read::MissingCold | Read::MissingWarm | Read::MissingLimited => Kind::Missing,
            Read::ScanCold | Read::ScanWarm | Read::ScanLimited => Kind::Scan,
            Read::ShortCold | Read::ShortWarm | Read::ShortLimited => Kind::Short,
        }
    }
    pub fn limited(self) -> bool {
        matches!(
            self,
            Read::GetLimited | Read::MissingLimited | Read::ScanLimited | Read::ShortLimited
        )
    }
    pub fn warm(self) -> bool {
        matches!(self, Read::GetWarm | Read::MissingWarm | Read::ScanWarm | Read::ShortWarm)
    }
}

/// One phase of a case, for a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub engine: String,
    pub load: Load,
    /// `None`: the load itself.
    pub read: Option<Read>,
    pub settings: Settings,
    /// Keys and values of the data set, bytes.
    pub bytes: u64,
    /// Ranges of the load `append`.
    pub ranges: u64,
    /// Bytes that one range gets before the next is picked.
    pub burst: u64,
    pub clients: u64,
    /// Operations of a YCSB load, or of a read phase; at least one.
    pub ops: u64,
    /// A read phase ends after this time.
    pub read_seconds: f64,
    pub round: u32,
    /// The cgroup to enter.
    pub group: Option<PathBuf>,
    pub memory_limit: Option<u64>,
    /// Where the full time series goes.
    pub series: Option<PathBuf>,
}

impl Spec {
    pub fn tuple_bytes(&self) -> u64 {
        KEY_BYTES as u64 + self.settings.value_bytes
    }
    /// Tuples of the data set; ranges of `append` are equally long.
    pub fn count(&self) -> u64 {
        let n = (self.bytes / self.tuple_bytes()).max(1);
        match self.shape() {
            Shape::Append { ranges } => n.div_ceil(ranges) * ranges,
            _ => n,
        }
    }
    /// Tuples before this one were deleted.
    pub fn first_live(&self) -> u64 {
        if self.load == Load::RangeDelete { self.count() / 2 } else { 0 }
    }
    pub fn shape(&self) -> Shape {
        match self.load {
            Load::Sequential => Shape::Sequential,
            Load::Append => Shape::Append { ranges: self.ranges.max(1) },
            _ => Shape::Random,
        }
    }
}
