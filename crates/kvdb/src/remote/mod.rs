//! Stores in object storage: their layout in a bucket or a shared folder, how a store is published
//! there, and how it is opened from there on any machine.
//!
//! ```text
//! m/<name>/head                        the newest state; replaced by compare-and-set alone
//! c/<name>/<epoch>-<number>            a state: the content of the manifest, and the zone table
//! p/<name>/<epoch>-<number>            a note of the progress of an unfinished publication
//! z/<hash>/<origin>/<epoch>-<number>   bytes of zones
//! f/<name>/<id>                        the registration of a fork, which names its base state
//! d/<id>                               a list of objects that nothing refers to, with its time
//! j/<name>/<chain>-<number>            commits since the newest state, if syncs wait for them
//! ```
//!
//! Only a head is ever replaced. A publisher first raises the epoch in the head, and uses that
//! epoch in the names of all objects that it writes. A displaced publisher may go on writing
//! objects, but under names that no head refers to.
//!
//! - `head` is the head object with the rules for replacing it; it names an `owner`.
//! - `state` is a published state, stored as an object or as `changes` to one.
//! - `claim` is the right to publish, and makes publications.
//! - `copy` makes a local file that refers to a published state; `db::writer` makes a local file
//!   through which the store itself is written.
//! - `journal` holds the commits since the newest state, if syncs wait until the commits are there.
//! - `pull` maintains a local file that has all data of the newest state.
//! - `registry` registers the forks of a store, so that the objects they refer to are not deleted.
//! - `contents` knows everything that a place contains: keys, listings, and its clock.
//! - `mark` finds the objects that heads and forks refer to, and `collect` deletes the others once
//!   they have been `dead` for long enough; `survey` checks that all referenced objects exist.

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

/// Options for opening a store whose zones are in object storage.
#[derive(Clone, Debug)]
pub struct RemoteZones {
    /// The object storage that contains the zones.
    pub objects: Arc<dyn Objects>,
    /// Maximum bytes of the local file for cached parts of zones.
    pub cache_bytes: u64,
    /// The time after which a read fails if the place is unreachable.
    pub timeout: Duration,
}

impl RemoteZones {
    /// Returns the default options for zones in `objects`: the local file caches all parts that are
    /// read, and reads wait for up to five minutes.
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

/// The fraction of the store's memory that requests in progress may take: one divided by this.
const SHARE: usize = 4;

/// Opens the zones of a store that may take `memory` bytes. This includes its zones in object
/// storage, if it has any.
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

/// A store in object storage: a place, and a name in that place. The store may not exist yet.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    objects: Arc<dyn Objects>,
    name: String,
    kept: KeptObject,
    /// The limit set by [`RemoteStore::with_state_in_head`].
    in_head: usize,
}

/// Parses the formats of object storage and local files, for the fuzz targets. A parsed value must
/// encode to bytes that parse to the same value.
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

/// Returns sixteen random bytes.
pub(crate) fn random_id(env: &dyn Env) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&env.random().to_le_bytes());
    id[8..].copy_from_slice(&env.random().to_le_bytes());
    id
}

/// Maximum length of a store's name, bytes.
const LONGEST_NAME: usize = 100;

impl RemoteStore {
    /// Returns the store of this name. Names have 1 to 100 of the characters `a-z A-Z 0-9 - _ .`,
    /// and do not begin with a dot.
    pub fn new(objects: Arc<dyn Objects>, name: &str) -> Result<RemoteStore> {
        RemoteStore::check_name(name)?;
        Ok(RemoteStore {
            objects,
            name: name.to_owned(),
            kept: KeptObject::default(),
            in_head: MOST_CHANGES,
        })
    }

    /// Fails if `name` is not a valid name of a store.
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

    /// Returns the name of the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Limits the bytes of a state, or of changes to one, that are stored in the head. The maximum
    /// and the default are 32 KiB. A larger state is written as an object, which needs an
    /// additional put. A low limit keeps the head small, which every reader of the newest state
    /// reads.
    #[must_use]
    pub fn with_state_in_head(self, bytes: usize) -> RemoteStore {
        RemoteStore { in_head: bytes.min(MOST_CHANGES), ..self }
    }

    /// Returns the object storage that contains the store.
    pub fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    /// Returns the place and name of the store, for messages.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.objects.place(), self.name)
    }

    /// Returns the key of an object that belongs to this store alone.
    fn key(&self, kind: char, rest: std::fmt::Arguments<'_>) -> Result<Key> {
        Key::new(format!("{kind}/{}/{rest}", self.name)).map_err(|e| Error::Invalid(e.to_string()))
    }
}
