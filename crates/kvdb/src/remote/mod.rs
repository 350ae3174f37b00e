//! Stores in object storage: what a bucket or a shared folder has of a store, how a store gets
//! there, and how it is opened from there on any machine.
//!
//! ```text
//! m/<name>/head                        the newest state; replaced by compare-and-set alone
//! c/<name>/<epoch>-<number>            a state: what the manifest says, and the zone table
//! p/<name>/<epoch>-<number>            how far a publication is that has not ended
//! z/<hash>/<origin>/<epoch>-<number>   bytes of zones
//! f/<name>/<id>                        a fork, and the state that it began as
//! d/<id>                               objects that nothing refers to, and since when
//! j/<name>/<chain>-<number>            commits since the newest state, of a store that syncs there
//! ```
//!
//! Only a head is ever replaced. Who replaces it first raises its epoch, and names all objects by
//! that: what one writes that was overtaken has names that no head refers to.
//!
//! - `head` is that object, and who may replace it; it has an `owner`.
//! - `state` is a published state, as an object or as `changes` to one.
//! - `claim` is the right to publish, and what is done with it.
//! - `copy` makes a local file that refers to a published state; `db::writer` one by which the
//!   store itself goes on.
//! - `journal` has the commits since the newest state, where syncs wait until they are there.
//! - `pull` keeps a local file that has all of the newest state.
//! - `registry` keeps the forks of a store, so that what they refer to stays.
//! - `contents` is all that a place has: keys, lists, the time there.
//! - `mark` finds what heads and forks refer to, and `collect` deletes the rest when it has been
//!   `dead` for long enough; `survey` tells whether all is there that should be.

mod changes;
mod claim;
mod collect;
mod contents;
mod copy;
mod dead;
mod head;
mod journal;
mod mark;
mod owner;
mod pull;
mod registry;
mod state;
mod survey;

use std::sync::Arc;
use std::time::Duration;

use changes::{KeptObject, MOST_CHANGES};
use env::Env;
use objects::{Key, Objects};
use zones::{Device, Zones};

pub use changes::{StateChanges, StateName, StateObject};
pub use claim::PushProgress;
pub(crate) use claim::{Claim, Right, ToPublish};
pub use collect::{Amount, CollectOptions, CollectProgress, Collected};
pub use contents::RemotePlace;
pub use copy::LocalCopy;
pub(crate) use copy::{Kind, check_places};
pub use head::Head;
pub use journal::JournalPlace;
pub(crate) use journal::{JournalCommit, JournalContent};
pub use owner::Owner;
pub(crate) use owner::{ClaimNote, Claimant};
pub use pull::PullProgress;
pub(crate) use registry::LONGEST_LABEL;
pub use registry::{ForkId, ForkInfo, ForkOptions};
pub use survey::{MissingObject, Survey};

use crate::error::{Error, Result};

/// How a store is opened whose zones lie in object storage.
#[derive(Clone, Debug)]
pub struct RemoteZones {
    /// Where they lie.
    pub objects: Arc<dyn Objects>,
    /// Bytes of the local file that parts of them may take.
    pub cache_bytes: u64,
    /// A read fails when the place was not to be reached for so long.
    pub timeout: Duration,
}

impl RemoteZones {
    /// Zones in `objects`, with as much of them in the local file as was read, and reads that wait
    /// for five minutes.
    pub fn new(objects: Arc<dyn Objects>) -> RemoteZones {
        let defaults = zones::remote::RemoteOptions::default();
        let (cache_bytes, timeout) = (defaults.cache_bytes, defaults.timeout);
        RemoteZones { objects, cache_bytes, timeout }
    }

    pub(crate) fn options(&self) -> zones::remote::RemoteOptions {
        let (cache_bytes, timeout) = (self.cache_bytes, self.timeout);
        zones::remote::RemoteOptions { cache_bytes, timeout, ..Default::default() }
    }
}

/// Requests under way may take the memory of the store divided by this.
const SHARE: usize = 4;

/// Opens the zones of a store that may take so much memory: those that lie in object storage, if it
/// is one of these.
pub(crate) fn open_zones(
    device: Arc<dyn Device>,
    remote: Option<&RemoteZones>,
    memory: usize,
) -> Result<Arc<Zones>> {
    let Some(remote) = remote else { return Ok(Zones::open(device)?) };
    let mut options = remote.options();
    options.memory = options.memory.min((memory / SHARE) as u64);
    Ok(Zones::open_remote(device, remote.objects.clone(), options)?)
}

/// A store in object storage: a place, and a name there. It may not be there yet.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    objects: Arc<dyn Objects>,
    name: String,
    kept: KeptObject,
    /// See [`RemoteStore::with_state_in_head`].
    in_head: usize,
}

/// Parses what object storage and local files have, for the fuzz targets. What was parsed and is
/// encoded must parse to the same.
#[cfg(any(test, fuzzing))]
pub(crate) fn parse(data: &[u8]) {
    head::parse(data);
    journal::parse(data);
    state::parse(data);
    copy::parse(data);
    owner::parse(data);
    registry::parse(data);
    dead::parse(data);
}

/// Sixteen random bytes.
pub(crate) fn random_id(env: &dyn Env) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&env.random().to_le_bytes());
    id[8..].copy_from_slice(&env.random().to_le_bytes());
    id
}

/// The longest name of a store, bytes.
const LONGEST_NAME: usize = 100;

impl RemoteStore {
    /// The store of this name. Names have 1 to 100 of the characters `a-z A-Z 0-9 - _ .`, and do
    /// not begin with a dot.
    pub fn new(objects: Arc<dyn Objects>, name: &str) -> Result<RemoteStore> {
        RemoteStore::check_name(name)?;
        Ok(RemoteStore {
            objects,
            name: name.to_owned(),
            kept: KeptObject::default(),
            in_head: MOST_CHANGES,
        })
    }

    /// Fails for what is no name of a store.
    pub fn check_name(name: &str) -> Result<()> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty()
            || name.len() > LONGEST_NAME
            || name.starts_with('.')
            || !name.bytes().all(allowed)
        {
            return Err(Error::Invalid(format!(
                "{name:?} is no name of a store in object storage: it has 1 to {LONGEST_NAME} of \
                 a-z, A-Z, 0-9, -, _ and ., and does not begin with a dot"
            )));
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Has heads with at most so many bytes of a state, or of changes to one: 32 KiB at most, which
    /// is the default. A state that needs more is an object, which takes a put of its own.
    /// Everyone who asks for the newest state reads the head.
    #[must_use]
    pub fn with_state_in_head(self, bytes: usize) -> RemoteStore {
        RemoteStore { in_head: bytes.min(MOST_CHANGES), ..self }
    }

    /// Where it lies.
    pub fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    /// How it is called in messages.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.objects.place(), self.name)
    }

    /// The key of an object of this store alone.
    fn key(&self, kind: char, rest: std::fmt::Arguments<'_>) -> Result<Key> {
        Key::new(format!("{kind}/{}/{rest}", self.name)).map_err(|e| Error::Invalid(e.to_string()))
    }
}
