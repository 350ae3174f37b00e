//! Creates stores, and opens stores in these phases:
//!
//! 1. `found` reads the manifest, to which the superblock refers and which lists all runs.
//! 2. `journal` makes a first pass over the journal, which finds its end and marks the data that it
//!    binds. Records hold the places of large values that no run lists yet, and the zones of these
//!    values must not be reused. A record that may not have been synced is valid only if the values
//!    that it binds exist. The values were written before the record, but without a sync the device
//!    may have kept the record and lost the values.
//! 3. `resume` begins allocation, and writes a new manifest that records the end of the journal.
//! 4. `replay` makes a second pass over the journal, which applies its commits to the new database.
//! 5. `mirrored` commits again the commits that are in a mirror and did not reach the journal.

mod found;
mod journal;
mod mirrored;
mod replay;
mod resume;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use vt_tree::{BlockCache, ExtentRef};
use zones::{Device, FormatOptions, Zones};

pub(crate) use self::found::{Found, Runs, check_sums};
pub(crate) use self::journal::{Journal, read_journal};
use crate::db::database::Database;
use crate::db::writer::unsettle;
use crate::engine::{Contents, Engine};
use crate::error::Result;
use crate::health::Health;
use crate::journal::Writer;
use crate::manifest::{Manifest, ManifestState};
use crate::options::{CreateOptions, OpenOptions, Shares};
use crate::remote::open_zones;
use crate::version::Version;
use crate::version::generation::Generation;
use crate::version::snapshot_set::Snapshots;

/// The report of an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Is `true` if the store was closed properly.
    pub clean: bool,
    /// The number of edits of the manifest.
    pub edits: u64,
    /// The number of runs in the manifest. Each run counts once.
    pub runs: u64,
    /// The number of commits that were replayed from the journal.
    pub records: u64,
    /// The number of bytes of these commits in the journal.
    pub bytes: u64,
    /// The number of bytes of their large values that already had a place.
    pub bound_bytes: u64,
    /// The number of bytes of unfinished writes after the journal's end.
    pub torn_bytes: u64,
    /// The number of commits that only the mirror had ([`OpenOptions::mirror`]).
    pub mirrored: u64,
    /// The duration of the opening.
    pub duration: Duration,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.clean { "closed properly" } else { "recovered" };
        write!(
            f,
            "{how}: {} runs, {} commits replayed ({} bytes of journal",
            self.runs, self.records, self.bytes
        )?;
        write!(
            f,
            ", {} bytes bound in place), {} torn bytes left out",
            self.bound_bytes, self.torn_bytes
        )?;
        write!(f, ", {:.1} ms", self.duration.as_secs_f64() * 1000.0)
    }
}

/// Makes an empty store on `device`, whose contents are lost.
pub(in crate::db) fn create(
    device: Arc<dyn Device>,
    env: Arc<dyn Env>,
    options: CreateOptions,
) -> Result<Arc<Database>> {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.random().to_le_bytes());
    uuid[8..].copy_from_slice(&env.random().to_le_bytes());
    let CreateOptions { capacity, reserve_zones, profile, .. } = options;
    let format = FormatOptions { capacity, reserve_zones, profile };
    let zones = Zones::format_as(device, format, uuid)?;
    let health = Arc::new(Health::default());
    let manifest =
        Manifest::begin(zones.clone(), env.clone(), health.clone(), ManifestState::new(), 0)?;
    let cache = BlockCache::new(zones.clone(), Shares::of(&options.open).cache);
    let version = Version::empty(Generation::first());
    let snapshots = Snapshots::new();
    let options = OpenOptions { read_only: false, ..options.open }.of_profile(profile);
    cache.set_seek_bytes(options.seek_bytes);
    let writer = Writer::new(zones.clone(), 0);
    let contents = Contents { version, seq: 0, manifest: Some(manifest), snapshots };
    let engine = Engine::new(env, zones, cache, options, health, contents);
    let db = Arc::new(Database::new(engine, 1, writer));
    db.start_threads()?;
    Ok(db)
}

/// Opens the store on `device`.
pub(in crate::db) fn open(
    device: Arc<dyn Device>,
    env: Arc<dyn Env>,
    options: OpenOptions,
) -> Result<(Arc<Database>, Recovery)> {
    let begun = env.monotonic();
    let zones = open_zones(device, options.remote.as_ref(), options.memory)?;
    let options = options.of_profile(zones.superblock().profile);
    let cache = BlockCache::new(zones.clone(), Shares::of(&options).cache);
    cache.set_seek_bytes(options.seek_bytes);
    let found = Found::read(&zones, &cache)?;
    let mut recovery = found.recovery;
    let state = &found.loaded.state;
    // Writes to open zones continue after the data that commits have bound since the manifest
    // recorded the positions of these zones.
    let mut bound = |e: &ExtentRef| zones.saw_extent(e.addr, u64::from(e.stored));
    let mut journal = read_journal(&zones, &cache, state, &mut recovery, &mut bound)?;
    let next = journal.last_seq.max(state.start.seq) + 1;
    let mirrored = options.mirror.as_ref().map(|mirror| mirrored::behind(&zones, mirror, next));
    let mirrored = mirrored.transpose()?.unwrap_or_default();
    mirrored::keep_places(&mirrored, &mut journal.bound, &mut bound);
    recovery.mirrored = mirrored.len() as u64;
    journal.runs.iter().for_each(|runs| runs.saw(&zones));
    // Pin the bound data before allocation begins.
    let bound = zones.pin(&journal.bound)?;

    let mut version = found.version;
    let next_seq = journal.last_seq.max(state.start.seq) + 1;
    version.lower_since(next_seq - 1);
    let health = Arc::new(Health::new(options.read_only));
    let (manifest, writer) = match options.read_only {
        true => (None, Writer::new(zones.clone(), journal.end)),
        false => {
            unsettle(&zones)?;
            let loaded = &found.loaded;
            let (manifest, writer) =
                resume::resume(&zones, &env, &health, loaded, found.segments, &journal, next_seq)?;
            (Some(manifest), writer)
        }
    };
    drop(found.manifest_pin);

    version.generation.pin(zones.pin(bound.uses())?);
    let contents = Contents { version, seq: next_seq - 1, manifest, snapshots: found.snapshots };
    let engine = Engine::new(env.clone(), zones, cache, options, health, contents);
    let db = Arc::new(Database::new(engine, next_seq, writer));
    replay::replay_journal(&db, journal, &state.start, &state.since, bound.uses())?;
    if !db.engine.options.read_only {
        mirrored::replay(&db, &mirrored)?;
        db.transactions.restore()?;
    }
    db.start_threads()?;
    recovery.duration = env.monotonic().saturating_sub(begun);
    tracing::info!("{recovery}");
    Ok((db, recovery))
}
