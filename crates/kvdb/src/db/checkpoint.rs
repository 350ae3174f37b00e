//! A checkpoint: a copy of the store as of one commit, a store of its own. The zones that its runs
//! lie in are copied to the same addresses of a sparse file, so no pointer changes; a manifest is
//! written that names these runs, and no journal. Writes go on: the versions that are copied, those
//! of the snapshots among them, hold their zones.

use env::sync::atomic::Ordering;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use zones::{Device, FileDevice, ZONE_SIZE, ZoneUse};

use crate::db::Kvdb;
use crate::db::database::Database;
use crate::db::files::Partial;
use crate::dictionary::DictionaryInfo;
use crate::error::Result;
use crate::health::Health;
use crate::manifest::{Edit, JournalStart, Manifest, ManifestState, make_branches};
use crate::read::version::Version;
use crate::read::version_set::encode_run;
use crate::remote::random_id;

/// What a checkpoint consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Dictionaries in it.
    pub dictionaries: u64,
    /// Runs in it, each counted once.
    pub runs: u64,
    /// Bytes copied, or shared by the host where it can: whole zones of 8 MiB.
    pub copied_bytes: u64,
    /// The part of `copied_bytes` that the copy refers to.
    pub live_bytes: u64,
}

/// The state of a store at a moment.
pub(crate) struct Checkpoint {
    pub state: ManifestState,
    /// The zones that it lies in.
    pub uses: ZoneUse,
    pub stats: CheckpointStats,
    /// These hold the zones.
    pub held: (Arc<Version>, Vec<Arc<Version>>),
}

impl Kvdb {
    /// Copies the store to a new file at `path`, as of a moment during the call: everything
    /// committed before it is in the copy, branches and snapshots too, which is a store of its own,
    /// closed properly. What is in memory is flushed first; the copy costs what the zones in use
    /// weigh, or nothing where the host shares them (XFS, Btrfs). Reads and writes continue during
    /// the call. The file appears under its name when it is whole and durable; a file that is there
    /// already is an error.
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

    /// Writes a checkpoint to a device, whose contents are lost. It is a store, and durable, when
    /// this returns without an error, and not before.
    pub fn checkpoint_to(&self, device: Arc<dyn Device>) -> Result<CheckpointStats> {
        self.db.0.checkpoint_to(device)
    }
}

impl Database {
    /// Above the numbers of all dictionaries that there were, as far as is still known of
    /// them.
    fn next_dictionary(&self) -> u32 {
        self.versions.manifest().map_or(0, |m| m.state().next_dictionary)
    }

    /// Edits that build the branches of a version, without their dictionaries, and the snapshots;
    /// and the versions of these, which hold their zones even when they are dropped.
    fn kept(&self, of: &Version, uses: &mut ZoneUse) -> (Vec<Edit>, Vec<Arc<Version>>) {
        let mut edits: Vec<Edit> =
            make_branches(&of.branches, &of.limits, &of.limits_of_files).collect();
        let (mut runs, mut trees) = (HashMap::new(), HashMap::new());
        let all: Vec<_> =
            self.snapshots.list().into_iter().map(|s| (s.label.clone(), s.version())).collect();
        // One that was made this moment and has memtables is newer than the copy.
        for (label, version) in
            all.iter().filter(|(_, v)| v.trees.values().all(|t| t.layers.is_empty()))
        {
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
                        let info =
                            DictionaryInfo { branch: label.branch.clone(), ..tree.info().clone() };
                        edits.push(Edit::KeptDictionary(info, kept));
                        next
                    },
                ));
            }
            edits.push(Edit::KeptSnapshot(label.clone(), dictionaries));
        }
        (edits, all.into_iter().map(|(_, version)| version).collect())
    }

    /// The state of the store as of a moment during the call, with the zones that it lies in, which
    /// stay as they are until it is dropped. What is in memory is flushed first.
    pub(crate) fn checkpoint_state(&self) -> Result<Checkpoint> {
        if !self.options.read_only || !self.versions.load().is_flushed() {
            self.health.writable()?;
            self.flusher.flush_all()?;
        }
        // Runs are always those of a prefix of the commits: a flush installs what it has of all
        // dictionaries at once.
        let version = self.versions.load_full();
        let seq = self.versions.visible.load(Ordering::Acquire);
        let mut stats = CheckpointStats::default();
        let mut uses = ZoneUse::new();
        let mut state = ManifestState::new();
        let (edits, snapshots) = self.kept(&version, &mut uses);
        state.apply_all(edits)?;
        for (&dict, tree) in &version.trees {
            stats.dictionaries += 1;
            state.apply(Edit::Dictionary(tree.info().clone()))?;
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

        // Under a name of its own, so that one is not taken for the other.
        let uuid = random_id(&*self.env);
        let zones = self.zones.copy_to(device, &uses, uuid)?;
        drop(held);
        let kept = zones.pin(&uses)?;
        zones.start();
        // Syncs the copied zones and the manifest, then the superblocks that lead to it.
        let mut manifest =
            Manifest::begin(zones, self.env.clone(), Arc::new(Health::default()), state, 0)?;
        manifest.vouch()?;
        drop((manifest, kept));
        Ok(stats)
    }
}
