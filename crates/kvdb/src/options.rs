//! Options for creating and opening a store, and the shares of its memory budget.

use std::sync::Arc;
use std::time::Duration;

use zones::Profile;

use crate::mirror::Mirror;
use crate::remote::RemoteZones;

/// Deferred values are placed once they take this many bytes while syncs are expected. A lower
/// limit would cost more than the sync gains: each write would hold the values of few keys, and
/// bulk loads would slow down.
const EARLY_VALUES: usize = 1 << 20;

/// The cost of a seek on a hard disk, in bytes that it reads in the same time.
const HARD_DISK_SEEK: u64 = 1 << 20;

/// Options for creating a store.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The size that the store may grow to, bytes. If `None`, it is limited by its host only.
    pub capacity: Option<u64>,
    /// Zones of 8 MiB that user data must leave for flushing, merging and deleting.
    pub reserve_zones: u32,
    /// The kind of device that the store is made for. It is stored with it, and sets the default of
    /// [`OpenOptions::seek_bytes`] at each opening.
    pub profile: Profile,
    /// Options for opening the store after its creation.
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
    /// Bytes for memtables, journal buffer and caches together. At least 1 MiB.
    pub memory: usize,
    /// The longest time until a buffered commit is on disk.
    pub flush_interval: Duration,
    /// A batch with at least this many bytes of values that are to lie outside their blocks (or 256
    /// KiB, if that is less: deferring more would take more memory) writes them to their final
    /// place before it commits, unless they are held ([`OpenOptions::hold_values`]). A buffered
    /// commit with fewer bytes defers its values, so that they are placed together with others. In
    /// all cases the journal carries their places only. `u64::MAX` logs all values in the journal
    /// instead.
    pub late_bind_at: u64,
    /// Large values wait in memory, up to this many bytes, until the next sync or the end of the
    /// flush interval, so that those that are overwritten or deleted before then are never written.
    /// At most a quarter of `memory` is used, less while memtables are large, and the oldest values
    /// are written when more arrive. A sync writes all waiting values; while callers wait for syncs
    /// from time to time, values are written early as without this option. 0 turns it off; a
    /// sixteenth of the memory, in values of batches that `late_bind_at` does not place, waits
    /// nevertheless. It has no effect on a store with a mirror.
    pub hold_values: usize,
    /// A merge is installed in parts of this many written bytes, or less when space is short. It
    /// bounds the space that a merge holds twice for a while.
    pub merge_part: u64,
    /// Bytes that the device reads in the time that a seek takes, at the queue depth of a scan: 8
    /// KiB suits solid state, 1 MiB hard disks. If 0, the store's profile decides. The adaptive
    /// stitching threshold follows this value; where seeks are expensive (64 KiB or more), it moves
    /// large values too. Reads read through gaps that cost less than a seek.
    pub seek_bytes: u64,
    /// Logs commits in the journal. Without a journal they are on disk once their memtable is
    /// flushed, which `sync` and synced commits then do; after a crash the store has the state of
    /// the last flush.
    pub journal: bool,
    /// The compaction policy of all dictionaries.
    pub compaction: CompactionPolicy,
    /// The rate of background defragmentation in bytes a second; it is exceeded when much space is
    /// lost. 0 turns background defragmentation off.
    pub defrag_rate: u64,
    /// Lays large values in the order of [`crate::Kvdb::set_value_order`] while clients neither
    /// commit nor read from the device, if an eighth of the data was written since the last time.
    /// It writes at most about twice as many bytes as commits have written, and ends when clients
    /// come. Without threads, and for a store with zones in object storage, it does nothing.
    pub lay_when_quiet: bool,
    /// Threads that merge, in parallel where they can: each takes a merge of its own, or a range of
    /// keys of a large one. 0 stands for half the machine's processors, at most 4. Without threads,
    /// large merges are divided into this many ranges, which advance in turn (0: one range).
    pub merge_threads: usize,
    /// Writes nothing to the device, not even in recovery.
    pub read_only: bool,
    /// Does background work in threads. Without them, and always in a simulated environment,
    /// commits do the work that is overdue and [`crate::Kvdb::step`] does the rest.
    pub threads: bool,
    /// Fills new zones of the journal with zeros ahead of time once commits are synced, so that a
    /// synced commit finds its space allocated.
    pub zero_journal: bool,
    /// A memtable with deletions is flushed after this time without commits, so that the space that
    /// they free is returned.
    pub idle_flush: Duration,
    /// Flushes the memtables in `close`, so that the next open has nothing to replay.
    pub flush_on_close: bool,
    /// A file that also holds each commit until it is on the device. An opening with the mirror of
    /// a process that was killed recovers all commits that returned, synced or not. The mirror has
    /// to be empty, or that of the process which had the store open before.
    pub mirror: Option<Arc<Mirror>>,
    /// The zones in object storage, if the store is a local file that refers to a published state
    /// ([`crate::LocalCopy`]); other stores do not need it. The device must allow writes even for
    /// readers, since fetched data is kept on it.
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

/// The policy by which the runs of a dictionary are merged. See `docs/decisions/012-shape.md`. It
/// may change from one opening to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// Runs that a level collects before they are merged into one of the next level. At least 2.
    pub runs_per_level: usize,
    /// The bottom run is merged when the runs above it reach this fraction of its size: 4 stands
    /// for a quarter. At least 1.
    pub size_ratio: u64,
    /// Merges all data into one run in the end. Otherwise levels are merged into the next one
    /// without limit, and reads have to look into more runs.
    pub single_bottom: bool,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        CompactionPolicy { runs_per_level: 8, size_ratio: 4, single_bottom: true }
    }
}

impl CompactionPolicy {
    /// Returns the policy with its values clamped to bounds that work.
    pub(crate) fn sane(self) -> CompactionPolicy {
        CompactionPolicy {
            runs_per_level: self.runs_per_level.clamp(2, 64),
            size_ratio: self.size_ratio.clamp(1, 1 << 20),
            ..self
        }
    }
}

impl OpenOptions {
    /// Returns the options with the defaults of the store's profile for those that are not set.
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

/// The shares of the memory budget, in bytes. The rest, an eighth, is for merges under way and for
/// other temporary memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// All memtables, sealed ones included.
    pub memtables: usize,
    /// The size at which a generation of memtables is sealed.
    pub seal_at: usize,
    /// Deferred values are placed once they take this many bytes; commits wait at twice that.
    pub window: usize,
    /// Values are held until they take this many bytes ([`OpenOptions::hold_values`]). It is 0 if
    /// they are not held, otherwise at least `window`.
    pub hold: usize,
    /// Deferred values are placed once they take this many bytes while syncs are expected.
    pub early_values: u64,
    /// The size at which the journal's buffer is written out.
    pub journal_write_at: usize,
    /// The bound of the journal's buffer, which only a single larger record exceeds.
    pub journal_buffer: usize,
    pub cache: usize,
    /// The memory for the locks of serializable transactions.
    pub locks: usize,
    /// The memory for the indexes of ranks.
    pub ranks: usize,
    /// The journal forces a flush when it takes more than this on the device.
    pub journal_device: u64,
    /// The largest record of one commit.
    pub largest_record: usize,
}

const MIN_MEMORY: usize = 1 << 20;

impl Shares {
    pub(crate) fn of(options: &OpenOptions) -> Shares {
        let memory = options.memory.max(MIN_MEMORY);
        // A memtable addresses 32 GiB.
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

    /// Returns how many bytes of values may be held next to memtables of `memtables` bytes, values
    /// excluded: no more than half of what these leave of their share, and at least a window.
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
