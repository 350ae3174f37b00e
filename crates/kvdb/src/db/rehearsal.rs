//! Rehearses the opening of a state before it is published, and keeps the bytes that it reads, so
//! that they are published with the state. Another machine then opens the store with two requests.

use std::sync::Arc;

use tracing::subscriber::NoSubscriber;
use zones::remote::FirstReads;

use crate::db::checkpoint::Checkpoint;
use crate::db::database::Database;
use crate::db::{Kvdb, recovery};
use crate::error::Result;
use crate::health::Health;
use crate::manifest::Manifest;
use crate::options::OpenOptions;

/// The memory of the store that is opened for the rehearsal, bytes.
const MEMORY: usize = 2 << 20;

/// Reads the data of a store that its users read first. Its changes are lost. See
/// [`crate::Publisher::rehearse`].
pub type Rehearse = dyn Fn(&Kvdb) + Send + Sync;

impl Database {
    /// Returns the bytes of zones that an opening of the state and `rehearse` read.
    pub(super) fn rehearse(
        &self,
        checkpoint: &Checkpoint,
        rehearse: &Rehearse,
    ) -> Result<FirstReads> {
        let (device, zones) = self.zones.rehearse(&checkpoint.uses)?;
        let kept = zones.pin(&checkpoint.uses)?;
        zones.start();
        let (env, health) = (self.env.clone(), Arc::new(Health::default()));
        let state = checkpoint.state.clone();
        Manifest::begin(zones, env.clone(), health, state, 0)?.vouch()?;
        drop(kept);
        let options = OpenOptions {
            memory: MEMORY,
            journal: false,
            threads: false,
            flush_on_close: false,
            ..OpenOptions::default()
        };
        let open_and_read = || {
            let (db, _) = recovery::open(device.clone(), env, options)?;
            let db = Kvdb::of(db);
            rehearse(&db);
            db.close()
        };
        // The log messages of this opening are not about the store that is published.
        let ended = tracing::subscriber::with_default(NoSubscriber::default(), open_and_read);
        // The rehearsal fails like this when there is no room for more bytes.
        ended.unwrap_or_else(|e| tracing::debug!("a rehearsal ended early: {e}"));
        Ok(device.first_reads())
    }
}
