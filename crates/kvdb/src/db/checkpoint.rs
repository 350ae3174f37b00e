//! A checkpoint: a copy of the store as of one commit, which is a store of its own. The zones of
//! its runs are copied to the same addresses of a sparse file, so no pointer changes. It gets a
//! manifest that lists these runs, and no journal. Writes continue: the versions that are copied,
//! including those of the snapshots, pin their zones.

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

/// The most flushes after each of which an edit of the manifest has come in between. The one that
/// follows them keeps edits waiting.
const ATTEMPTS: usize = 3;

/// The size of a checkpoint.
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

/// The state of a store at one moment.
pub(crate) struct Checkpoint {
    pub state: ManifestState,
    /// The zones that the state refers to.
    pub uses: ZoneUse,
    pub stats: CheckpointStats,
    /// The versions that pin the zones.
    pub held: (Arc<Version>, Vec<Arc<Version>>),
}

impl Kvdb {
    /// Copies the store to a new file at `path`, as of a moment during the call. The copy has all
    /// commits before the call, with branches and snapshots; it is a store of its own that was
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
    /// once this has returned without an error, and not before.
    pub fn checkpoint_to(&self, device: Arc<dyn Device>) -> Result<CheckpointStats> {
        self.db.checkpoint_to(device)
    }
}

impl Database {
    /// Returns the number of the next dictionary, above all earlier ones, or 0 if the manifest is
    /// not available.
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
        // A snapshot that still has memtables was made just now, and is newer than the copy, as is
        // one of a later commit.
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

    /// Flushes memtables, and returns a version whose runs contain the commits up to some number,
    /// and no others. Commits that happen during the call may have numbers above that one: what
    /// continues after the state, as the journal in object storage does, has to continue there.
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
        // A sequence of ingests would continue like that. Every edit that is a commit holds
        // `naming`, so none comes from here on.
        let _flushing = self.flusher.lock();
        let _naming = self.engine.snapshots.naming.lock();
        // The number of the last edit needs no flush, so the first flush may find nothing to do. If
        // a commit follows before the version is looked at, the second flush seals it, which moves
        // the start of the journal past both.
        for _ in 0..2 {
            self.flusher.flush_all_locked()?;
            if let Some(found) = self.engine.versions.flushed_prefix() {
                return Ok(found);
            }
        }
        Err(Error::Invalid("an edit came in between, though none may".into()))
    }

    /// Returns the state of the store as of a moment during the call, and the zones that it refers
    /// to, which are pinned until it is dropped. Memtables are flushed first.
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

        // A new identity, so that the copy is not taken for the original.
        let uuid = random_id(&*self.engine.env);
        let zones = self.engine.zones.copy_to(device, &uses, uuid)?;
        drop(held);
        let kept = zones.pin(&uses)?;
        zones.start();
        // Syncs the copied zones and the manifest, then the superblocks that refer to it.
        let mut manifest =
            Manifest::begin(zones, self.engine.env.clone(), Arc::new(Health::default()), state, 0)?;
        manifest.vouch()?;
        drop((manifest, kept));
        Ok(stats)
    }
}
