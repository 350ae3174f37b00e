//! How a store is made and opened, and how its one memory budget is shared out.

use std::sync::Arc;
use std::time::Duration;

use zones::Profile;

use crate::mirror::Mirror;
use crate::remote::RemoteZones;

/// What values that wait for their place take when they are given one while syncs are expected.
/// Less would cost more than the sync gains: each write has the values of few keys, and bulk loads
/// are slowed down.
const EARLY_VALUES: usize = 1 << 20;

/// What a seek costs on a hard disk, in bytes that it reads in the same time.
const HARD_DISK_SEEK: u64 = 1 << 20;

/// How a new store is made.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Bytes the store may grow to; `None`: as far as the host lets it.
    pub capacity: Option<u64>,
    /// Zones of 8 MiB that user data must leave for flushing, merging and deleting.
    pub reserve_zones: u32,
    /// What kind of device it is made for: stored with it, the default of
    /// [`OpenOptions::seek_bytes`] whenever it is opened.
    pub profile: Profile,
    /// How it is opened afterwards.
    pub open: OpenOptions,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            capacity: None,
            reserve_zones: 8,
            profile: Profile::Unknown,
            open: OpenOptions::default(),
        }
    }
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Bytes for memtables, journal buffer and caches together. At least 1 MiB.
    pub memory: usize,
    /// Buffered commits are on disk after this time at the latest.
    pub flush_interval: Duration,
    /// Values that lie outside their block anyway are written straight to their final place, before
    /// the commit, by a batch that has at least this many bytes of them, or 256 KiB if that is less
    /// (a longer wait would take more memory). Fewer, in a buffered commit, wait a little to be
    /// placed together with others. Either way the journal carries their places. `u64::MAX`: never.
    pub late_bind_at: u64,
    /// A merge is installed in parts of this many written bytes, or less when space is short: what
    /// it may hold twice for a while.
    pub merge_part: u64,
    /// Bytes that the device reads in the time that a seek takes, at the queue depth of a scan: 8
    /// KiB suits solid state, 1 MiB hard disks. 0: as the store's profile says. What the adaptive
    /// stitching threshold goes by; where seeks are dear (64 KiB or more), it moves large values
    /// too. Reads pass over gaps that cost less than a seek.
    pub seek_bytes: u64,
    /// Commits are logged. Without a journal they are on disk when their memtable is flushed, which
    /// `sync` and synced commits then do; a crash brings back the state of the last flush.
    pub journal: bool,
    /// How runs are kept.
    pub compaction: CompactionPolicy,
    /// Bytes a second that defragmentation moves when it runs by itself, more when much is lost. 0:
    /// it does not run by itself.
    pub defrag_rate: u64,
    /// Threads that merge, in parallel where they can: each a merge of its own, or a range of
    /// keys of a large one. 0: as many as half the machine's processors, at most 4. Without
    /// threads, large merges go on at so many places in turn (0: at one).
    pub merge_threads: usize,
    /// Nothing is written to the device, recovery included.
    pub read_only: bool,
    /// Background work in threads. Without them, and always in a simulated environment, commits do
    /// what is overdue and [`crate::Kvdb::step`] does the rest.
    pub threads: bool,
    /// Once commits are synced, new zones of the journal are filled with zeros ahead of time, so
    /// that such a commit finds its space allocated.
    pub zero_journal: bool,
    /// A memtable with deletions is written out after this time without commits, so that their
    /// space comes back.
    pub idle_flush: Duration,
    /// `close` writes the memtables out, so that the next open has nothing to replay.
    pub flush_on_close: bool,
    /// Commits are in this file as well until they are on the device: whoever opens the store with
    /// the mirror of a process that was killed has all commits that returned, synced or not. It has
    /// to be empty, or that of the process which had the store open before.
    pub mirror: Option<Arc<Mirror>>,
    /// Where the zones of the store lie, if it is a local file that refers to a published state
    /// ([`crate::LocalCopy`]); other stores do not need it. The device must allow writes even for
    /// readers, since what was fetched is kept there.
    pub remote: Option<RemoteZones>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            memory: 256 << 20,
            flush_interval: Duration::from_secs(1),
            late_bind_at: 64 << 10,
            merge_part: 64 << 20,
            seek_bytes: 0,
            journal: true,
            compaction: CompactionPolicy::default(),
            defrag_rate: 32 << 20,
            merge_threads: 0,
            read_only: false,
            threads: true,
            zero_journal: true,
            idle_flush: Duration::from_secs(3),
            flush_on_close: true,
            mirror: None,
            remote: None,
        }
    }
}

/// How the runs of a dictionary are kept, see `docs/decisions/012-shape.md`. May change from one
/// opening to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// Runs that a level gathers before they are merged into one of the next. At least 2.
    pub runs_per_level: usize,
    /// The bottom run is merged when what lies above it weighs this part of it: 4 stands for a
    /// quarter. At least 1.
    pub size_ratio: u64,
    /// All data ends in one run. Otherwise levels are merged into the next for ever, and reads meet
    /// more runs.
    pub single_bottom: bool,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        CompactionPolicy { runs_per_level: 8, size_ratio: 4, single_bottom: true }
    }
}

impl CompactionPolicy {
    /// Within bounds that work.
    pub(crate) fn sane(self) -> CompactionPolicy {
        CompactionPolicy {
            runs_per_level: self.runs_per_level.clamp(2, 64),
            size_ratio: self.size_ratio.clamp(1, 1 << 20),
            ..self
        }
    }
}

impl OpenOptions {
    /// With what the store's profile says where nothing else is asked for.
    pub(crate) fn of_profile(self, profile: Profile) -> OpenOptions {
        let seek_bytes = match (self.seek_bytes, profile) {
            (0, Profile::HardDisk) => HARD_DISK_SEEK,
            (0, Profile::SolidState | Profile::Unknown) => vt_tree::SOLID_STATE_SEEK,
            (asked, _) => asked,
        };
        OpenOptions { seek_bytes, ..self }
    }

    pub(crate) fn merge_threads(&self) -> usize {
        match self.merge_threads {
            0 => (env::thread::available_parallelism().map_or(1, |n| n.get()) / 2).clamp(1, 4),
            n => n.min(64),
        }
    }

    /// The number of subcompactions of a large merge. A store without threads does the same on
    /// every machine.
    pub(crate) fn merge_subcompactions(&self, inline: bool) -> usize {
        if inline { self.merge_threads.clamp(1, 64) } else { self.merge_threads() }
    }
}

/// The shares of the memory budget, bytes. The rest, an eighth, is for merges under way and
/// whatever else is in the air.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// All memtables, sealed ones included.
    pub memtables: usize,
    /// A memtable generation is sealed at this size.
    pub seal_at: usize,
    /// Values that wait for their place are given one when they are this many bytes; commits wait
    /// at twice as many.
    pub window: usize,
    /// What values that wait for their place take when they are given one while syncs are expected.
    pub early_values: u64,
    /// The journal's buffer is written out at this size.
    pub journal_write_at: usize,
    /// The journal's buffer never grows beyond this but for a single record.
    pub journal_buffer: usize,
    pub cache: usize,
    /// The memory that locks of serializable transactions may take.
    pub locks: usize,
    /// The memory that the indexes of ranks may take.
    pub ranks: usize,
    /// The journal forces a flush when it takes more of the device than this.
    pub journal_device: u64,
    /// Largest record that a commit may make.
    pub largest_record: usize,
}

const MIN_MEMORY: usize = 1 << 20;

impl Shares {
    pub(crate) fn of(options: &OpenOptions) -> Shares {
        let memory = options.memory.max(MIN_MEMORY);
        // A memtable addresses 32 GiB.
        let (memtables, seal_at) = (memory / 2, (memory / 4).min(8 << 30));
        let journal_write_at = (memory / 256).clamp(16 << 10, 1 << 20);
        Shares {
            memtables,
            seal_at,
            window: memory / 16,
            early_values: EARLY_VALUES.min(memory / 16) as u64,
            journal_write_at,
            journal_buffer: 4 * journal_write_at,
            cache: memory / 8 * 3 - 4 * journal_write_at,
            locks: memory / 16,
            ranks: memory / 32,
            journal_device: (4 * seal_at as u64).max(4 * zones::ZONE_SIZE),
            largest_record: memtables.max(4 << 20).min(u32::MAX as usize / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_seek_costs_is_what_the_profile_says_but_for_what_is_asked() {
        let seek = |seek_bytes, profile| {
            OpenOptions { seek_bytes, ..Default::default() }.of_profile(profile).seek_bytes
        };
        assert_eq!(seek(0, Profile::Unknown), 8 << 10);
        assert_eq!(seek(0, Profile::SolidState), 8 << 10);
        assert_eq!(seek(0, Profile::HardDisk), 1 << 20);
        assert_eq!(seek(100_000, Profile::HardDisk), 100_000);
    }

    #[test]
    fn the_shares_stay_within_the_budget() {
        for memory in [0, 1 << 20, 3 << 20, 64 << 20, 256 << 20, 8 << 30] {
            let s = Shares::of(&OpenOptions { memory, ..Default::default() });
            assert!(
                s.memtables + s.journal_buffer + s.cache + s.locks + s.ranks
                    <= memory.max(MIN_MEMORY),
                "{memory}: {s:?}"
            );
            assert!(s.seal_at * 2 <= s.memtables);
        }
    }
}
