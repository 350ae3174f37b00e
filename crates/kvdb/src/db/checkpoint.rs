//! Makes checkpoints. A checkpoint is a copy of the store as of one commit, and is a complete store
//! itself. The zones of the runs are copied to the same addresses of a sparse file, so no pointer
//! changes. The copy gets a manifest that lists these runs, and no journal. Writes continue during
//! the copy, because the copied versions, including those of the snapshots, pin their zones.

use env::sync::atomic::Ordering;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use vt_tree::Seq;
use zones::{Device, FileDevice, ZONE_SIZE, ZoneUse};

use crate::db::Kvdb;
use crate::db::database::Database;
use crate::db::files::Partial;
use crate::dictionary::DictionaryInfo;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::manifest::{Edit, JournalStart, Manifest, ManifestState, make_branches};
use crate::remote::random_id;
use crate::version::Version;
use crate::version::version_set::encode_run;

/// The number of flushes that are tried while other edits of the manifest may still intervene. If
/// an edit has intervened each time, the next flush makes such edits wait.
const ATTEMPTS: usize = 3;

/// The size of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointStats {
    /// The number of dictionaries in the checkpoint.
    pub dictionaries: u64,
    /// The number of runs in the checkpoint.
    pub runs: u64,
    /// The number of bytes that were copied, or that the host shares if it can: whole zones of 8
    /// MiB.
    pub copied_bytes: u64,
    /// The number of bytes of `copied_bytes` to which the copy refers.
    pub live_bytes: u64,
}

/// The state of a store at one moment.
pub(crate) struct Checkpoint {
    pub state: ManifestState,
    /// The zones to which the state refers.
    pub uses: ZoneUse,
    pub stats: CheckpointStats,
    /// The versions that pin the zones.
    pub held: (Arc<Version>, Vec<Arc<Version>>),
}

impl Kvdb {
    /// Copies the store, as of a moment during the call, to a new file at `path`. The copy has all
    /// commits before the call, with branches and snapshots, and is a complete store that was
    /// closed properly. Memtables are flushed first. The copy takes the space of the zones in use,
    /// or none if the host shares them (XFS, Btrfs). Reads and writes continue during the call. The
    /// file appears under its name once it is complete and durable. If the file exists already, the
    /// call fails.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fruit.kvfs");
    /// # let copy = directory.path().join("monday.kvfs");
    /// let db = kvdb::Kvdb::open_path(&path)?;
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// db.checkpoint(&copy)?;
    /// fruit.insert("apple", "rotten")?;
    ///
    /// let monday = kvdb::Kvdb::open_path(&copy)?;
    /// assert_eq!(monday.open_dictionary("fruit")?.get("apple")?.unwrap(), "red");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<CheckpointStats> {
        let partial = Partial::begin(path.as_ref())?;
        let stats = self.checkpoint_to(Arc::new(FileDevice::create(&partial.name)?))?;
        partial.finish()?;
        Ok(stats)
    }

    /// Writes a checkpoint to a device, whose contents are lost. The device holds a durable store
    /// only after this has returned without an error.
    pub fn checkpoint_to(&self, device: Arc<dyn Device>) -> Result<CheckpointStats> {
        self.db.checkpoint_to(device)
    }
}

impl Database {
    /// Returns the number that the next dictionary will get, which is above the numbers of all
    /// earlier dictionaries, or 0 if the manifest is not available.
    fn next_dictionary(&self) -> u32 {
        self.engine.versions.manifest().map_or(0, |m| m.state().next_dictionary)
    }

    /// Returns the edits that build the branches of a version, without their dictionaries, and the
    /// snapshots. Also returns the snapshots' versions, which pin their zones even after the
    /// snapshots are dropped.
    fn kept(
        &self,
        (of, seq): (&Version, Seq),
        uses: &mut ZoneUse,
    ) -> (Vec<Edit>, Vec<Arc<Version>>) {
        let mut edits: Vec<Edit> =
            make_branches(&of.branches, &of.limits, &of.limits_of_files).collect();
        let (mut runs, mut trees) = (HashMap::new(), HashMap::new());
        let all: Vec<_> = self
            .engine
            .snapshots
            .list()
            .into_iter()
            .map(|s| (s.label.clone(), s.version()))
            .collect();
        // Skip snapshots that are newer than the copy. They have a later commit number, or still
        // have memtables because they were made just now.
        let is_flushed = |v: &Version| v.trees.values().all(|t| t.layers.is_empty());
        for (label, version) in all.iter().filter(|(l, v)| l.seq <= seq && is_flushed(v)) {
            let mut dictionaries = Vec::new();
            for tree in version.trees.values() {
                let next = trees.len() as u64;
                dictionaries.push(*trees.entry((Arc::as_ptr(tree), &label.branch)).or_insert_with(
                    || {
                        let mut kept = Vec::new();
                        for (level, numbered) in tree.by_level() {
                            let next = runs.len() as u64;
                            let n = *runs.entry(Arc::as_ptr(&numbered.run)).or_insert_with(|| {
                                uses.merge(numbered.run.uses());
                                edits.push(Edit::KeptRun(encode_run(&numbered.run)));
                                next
                            });
                            kept.push((level as u32, numbered.id, n));
                        }
                        let info = DictionaryInfo {
                            branch: label.branch.clone(),
                            ..tree.info().to_info()
                        };
                        edits.push(Edit::KeptDictionary(info, kept));
                        next
                    },
                ));
            }
            edits.push(Edit::KeptSnapshot(label.clone(), dictionaries));
        }
        (edits, all.into_iter().map(|(_, version)| version).collect())
    }

    /// Flushes memtables, and returns a version whose runs contain exactly the commits up to some
    /// number, with this number. Commits that happen during the call may have higher numbers, so
    /// anything that continues the state, such as the journal in object storage, must continue
    /// after the returned number.
    fn flushed_prefix(&self) -> Result<(Arc<Version>, Seq)> {
        if self.engine.options.read_only && self.engine.versions.load().is_flushed() {
            return Ok((
                self.engine.versions.load_full(),
                self.engine.versions.visible.load(Ordering::Acquire),
            ));
        }
        self.engine.health.writable()?;
        for _ in 0..ATTEMPTS {
            self.flusher.flush_all()?;
            if let Some(found) = self.engine.versions.flushed_prefix() {
                return Ok(found);
            }
        }
        // A long sequence of ingests could make every attempt fail. Every edit that is a commit
        // holds `naming`, so no such edit can happen while the lock is held here.
        let _flushing = self.flusher.lock();
        let _naming = self.engine.snapshots.naming.lock();
        // The commit number of the last edit needs no flush, so the first flush may find nothing to
        // do. If another commit follows before the version is loaded, the second flush seals that
        // commit, and the start of the journal moves past both.
        for _ in 0..2 {
            self.flusher.flush_all_locked()?;
            if let Some(found) = self.engine.versions.flushed_prefix() {
                return Ok(found);
            }
        }
        Err(Error::Invalid("an edit came in between, though none may".into()))
    }

    /// Flushes the memtables, and returns the state of the store as of a moment during the call.
    /// The zones to which the state refers are pinned until the returned checkpoint is dropped.
    pub(crate) fn checkpoint_state(&self) -> Result<Checkpoint> {
        let (version, seq) = self.flushed_prefix()?;
        let mut stats = CheckpointStats::default();
        let mut uses = ZoneUse::new();
        let mut state = ManifestState::new();
        let (edits, snapshots) = self.kept((&version, seq), &mut uses);
        state.apply_all(edits)?;
        for (&dict, tree) in &version.trees {
            stats.dictionaries += 1;
            state.apply(Edit::Dictionary(tree.info().to_info()))?;
            for (level, numbered) in tree.by_level() {
                stats.runs += 1;
                uses.merge(numbered.run.uses());
                let run = encode_run(&numbered.run);
                state.apply(Edit::AddRun { dict, level: level as u32, id: numbered.id, run })?;
            }
        }
        state.apply(Edit::NextIds { dictionary: self.next_dictionary(), run: 0, segment: 0 })?;
        stats.copied_bytes = uses.len() as u64 * ZONE_SIZE;
        stats.live_bytes = uses.iter().map(|(_, bytes)| bytes.min(ZONE_SIZE)).sum();
        state.apply(Edit::JournalStart(JournalStart { seq, ..state.start }))?;
        state.apply(Edit::Closed)?;
        Ok(Checkpoint { state, uses, stats, held: (version, snapshots) })
    }

    fn checkpoint_to(&self, device: Arc<dyn Device>) -> Result<CheckpointStats> {
        let Checkpoint { state, uses, stats, held } = self.checkpoint_state()?;

        // Give the copy a new identity, so that it is not mistaken for the original.
        let uuid = random_id(&*self.engine.env);
        let zones = self.engine.zones.copy_to(device, &uses, uuid)?;
        drop(held);
        let kept = zones.pin(&uses)?;
        zones.start();
        // Sync the copied zones and the manifest before the superblocks that refer to the manifest.
        let mut manifest =
            Manifest::begin(zones, self.engine.env.clone(), Arc::new(Health::default()), state, 0)?;
        manifest.vouch()?;
        drop((manifest, kept));
        Ok(stats)
    }
}
