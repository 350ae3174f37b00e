//! The options for creating and opening a store, and the shares of its memory budget.

use std::sync::Arc;
use std::time::Duration;

use zones::Profile;

use crate::mirror::Mirror;
use crate::remote::RemoteZones;

/// The number of bytes of deferred values at which they are placed while syncs are expected. A
/// lower limit would cost more than the syncs would gain, because each write would have the values
/// of few keys, and bulk loads would slow down.
const EARLY_VALUES: usize = 1 << 20;

/// The cost of a seek on a hard disk, as the number of bytes that the disk reads in the same time.
const HARD_DISK_SEEK: u64 = 1 << 20;

/// Options for creating a store.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The maximum size of the store, in bytes. If this is `None`, only the host limits the size.
    pub capacity: Option<u64>,
    /// The number of 8 MiB zones that user data must leave for flushes, merges and deletions.
    pub reserve_zones: u32,
    /// The kind of device for which the store is made. This profile is stored in the store, and
    /// determines the default of [`OpenOptions::seek_bytes`] at each opening.
    pub profile: Profile,
    /// The options for opening the store after its creation.
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

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The number of bytes for memtables, journal buffer and caches together. The minimum is 1 MiB.
    pub memory: usize,
    /// The longest time after which a buffered commit is on disk.
    pub flush_interval: Duration,
    /// The number of bytes of values outside of their blocks from which on a batch writes these
    /// values to their final place before it commits, unless the values are held
    /// ([`OpenOptions::hold_values`]). The limit is 256 KiB if this number is larger, because
    /// deferring more would take more memory. A buffered commit with fewer bytes defers its values,
    /// so that they are placed together with others. In both cases the journal has only the places
    /// of the values. `u64::MAX` logs all values in the journal instead.
    pub late_bind_at: u64,
    /// The number of bytes of large values that may wait in memory until the next sync or the end
    /// of the flush interval. Values that are overwritten or deleted before then are never written.
    /// At most a quarter of `memory` is used, and less while memtables are large. The oldest values
    /// are written when more values arrive. A sync writes all waiting values. While callers wait
    /// for syncs from time to time, values are written early, as without this option. 0 turns the
    /// option off; values of batches that `late_bind_at` does not place still wait in up to a
    /// sixteenth of the memory. The option has no effect on a store with a mirror.
    pub hold_values: usize,
    /// The number of written bytes after which a part of a merge is installed. Parts are smaller
    /// when space is short. The size of the parts bounds the space that a merge temporarily holds
    /// twice.
    pub merge_part: u64,
    /// The number of bytes that the device reads in the time of a seek, at the queue depth of a
    /// scan. 8 KiB suits solid state, and 1 MiB suits hard disks. If the number is 0, the store's
    /// profile determines it. The adaptive stitching threshold depends on this number; if seeks are
    /// expensive (64 KiB or more), large values are moved, too. A read continues through gaps that
    /// cost less than a seek.
    pub seek_bytes: u64,
    /// Logs commits in the journal. Without a journal, commits are on disk once their memtable is
    /// flushed, so `sync` and synced commits flush the memtables, and after a crash the store has
    /// the state of the last flush.
    pub journal: bool,
    /// The compaction policy of all dictionaries.
    pub compaction: CompactionPolicy,
    /// The rate of background defragmentation, in bytes per second. The rate is exceeded when much
    /// space is lost. 0 turns background defragmentation off.
    pub defrag_rate: u64,
    /// Lays large values in the order of [`crate::Kvdb::set_value_order`] while clients neither
    /// commit nor read from the device, if an eighth of the data was written since the last time.
    /// Laying writes at most about twice as many bytes as commits have written, and ends when
    /// clients become active. The option has no effect without threads, or on a store with zones in
    /// object storage.
    pub lay_when_quiet: bool,
    /// The number of threads that merge, in parallel where possible. Each thread takes a whole
    /// merge, or a range of keys of a large merge. 0 means half of the machine's processors, but at
    /// most 4. In a store without threads, a large merge is divided into this many ranges, which
    /// advance in turn; 0 means one range.
    pub merge_threads: usize,
    /// Writes nothing to the device, not even during recovery.
    pub read_only: bool,
    /// Does background work in threads. Without threads, and always in a simulated environment,
    /// commits do overdue work and [`crate::Kvdb::step`] does the rest.
    pub threads: bool,
    /// Fills new zones of the journal with zeros in advance once commits are synced, so that the
    /// space for a synced commit is already allocated.
    pub zero_journal: bool,
    /// The time without commits after which a memtable with deletions is flushed, so that the space
    /// of the deleted data is freed.
    pub idle_flush: Duration,
    /// Flushes the memtables in `close`, so that the next open has nothing to replay.
    pub flush_on_close: bool,
    /// A file that also holds each commit until the commit is on the device. An opening with the
    /// mirror of a killed process recovers all commits that had returned, synced or not. The mirror
    /// must be empty, or must be the mirror of the process that had the store open before.
    pub mirror: Option<Arc<Mirror>>,
    /// The zones in object storage, if the store is a local file that refers to a published state
    /// ([`crate::LocalCopy`]). Other stores do not need this option. The device must allow writes
    /// even for readers, since fetched data is kept on the device.
    pub remote: Option<RemoteZones>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            memory: 256 << 20,
            flush_interval: Duration::from_secs(1),
            late_bind_at: 64 << 10,
            hold_values: 0,
            merge_part: 64 << 20,
            seek_bytes: 0,
            journal: true,
            compaction: CompactionPolicy::default(),
            defrag_rate: 32 << 20,
            lay_when_quiet: false,
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

/// The policy by which the runs of a dictionary are merged. See `docs/decisions/012-shape.md`. The
/// policy may change from one opening to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// The number of runs that a level collects before they are merged into one run of the next
    /// level. The minimum is 2.
    pub runs_per_level: usize,
    /// The divisor of the size of the bottom run. The bottom run is merged when the runs above it
    /// reach this fraction of its size; 4 means a quarter. The minimum is 1.
    pub size_ratio: u64,
    /// Merges all data into one run in the end. Otherwise each level is merged into the next level
    /// without a limit on the number of levels, and reads have to search more runs.
    pub single_bottom: bool,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        CompactionPolicy { runs_per_level: 8, size_ratio: 4, single_bottom: true }
    }
}

impl CompactionPolicy {
    /// Returns the policy with its values clamped to valid bounds.
    pub(crate) fn sane(self) -> CompactionPolicy {
        CompactionPolicy {
            runs_per_level: self.runs_per_level.clamp(2, 64),
            size_ratio: self.size_ratio.clamp(1, 1 << 20),
            ..self
        }
    }
}

impl OpenOptions {
    /// Returns the options, with options that are not set replaced by the defaults of the store's
    /// profile.
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

    /// Returns the number of subcompactions of a large merge. A store without threads uses the same
    /// number on every machine.
    pub(crate) fn merge_subcompactions(&self, inline: bool) -> usize {
        if inline { self.merge_threads.clamp(1, 64) } else { self.merge_threads() }
    }
}

/// The shares of the memory budget, in bytes. The remaining eighth is for merges in progress and
/// for other temporary memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// The memory of all memtables, including sealed memtables.
    pub memtables: usize,
    /// The size at which a generation of memtables is sealed.
    pub seal_at: usize,
    /// The number of bytes of deferred values at which they are placed. Commits wait at twice this
    /// number.
    pub window: usize,
    /// The number of bytes up to which values are held ([`OpenOptions::hold_values`]). The number
    /// is 0 if values are not held, and otherwise at least `window`.
    pub hold: usize,
    /// The number of bytes of deferred values at which they are placed while syncs are expected.
    pub early_values: u64,
    /// The size at which the journal's buffer is written out.
    pub journal_write_at: usize,
    /// The maximum size of the journal's buffer. Only a single larger record exceeds this size.
    pub journal_buffer: usize,
    pub cache: usize,
    /// The memory for the locks of serializable transactions.
    pub locks: usize,
    /// The memory for the indexes of ranks.
    pub ranks: usize,
    /// The number of bytes on the device at which the journal forces a flush.
    pub journal_device: u64,
    /// The largest record of one commit.
    pub largest_record: usize,
}

const MIN_MEMORY: usize = 1 << 20;

impl Shares {
    pub(crate) fn of(options: &OpenOptions) -> Shares {
        let memory = options.memory.max(MIN_MEMORY);
        // Stay well below 32 GiB, which is the most that a memtable can address.
        let (memtables, seal_at) = (memory / 2, (memory / 4).min(8 << 30));
        let journal_write_at = (memory / 256).clamp(16 << 10, 1 << 20);
        let hold = match options.hold_values {
            0 => 0,
            bytes => bytes.clamp(memory / 16, memory / 4),
        };
        Shares {
            memtables,
            seal_at,
            window: memory / 16,
            hold,
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

    /// Returns the number of bytes of values that may be held in addition to memtables of
    /// `memtables` bytes without values: at most half of the unused part of the memtables' share,
    /// but at least a window.
    pub(crate) fn hold_next_to(&self, memtables: usize) -> usize {
        let left = self.memtables.saturating_sub(memtables) / 2;
        self.hold.min(left.max(self.window))
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

    #[test]
    fn held_values_leave_room_for_memtables() {
        let shares = |hold_values| {
            Shares::of(&OpenOptions { memory: 64 << 20, hold_values, ..Default::default() })
        };
        assert_eq!(shares(0).hold_next_to(0), 0);
        let s = shares(usize::MAX);
        assert_eq!(s.hold, 16 << 20, "a quarter");
        assert_eq!(shares(1).hold, s.window, "no less than what waits anyway");
        for memtables in (0..=s.seal_at).step_by(1 << 20) {
            let held = s.hold_next_to(memtables);
            assert!(held >= s.window, "{memtables}: {held}");
            assert!(memtables + held + s.window <= s.memtables, "{memtables}: {held}");
        }
    }
}
