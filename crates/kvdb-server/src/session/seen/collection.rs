//! The collection that a command has found or creates.

use kvdb::DictionaryId;

use crate::keyspace::Live;

/// The collection on which a command works.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    pub id: u64,
    pub types: DictionaryId,
    pub live: Live,
    /// Set if the batch of this command creates the collection.
    pub(super) fresh: bool,
    /// Set if the collection has no more elements than `live` states.
    pub(super) exact: bool,
}

impl Collection {
    /// Makes a collection of any kind that already existed before this command.
    pub fn found(id: u64, types: DictionaryId, live: Live) -> Collection {
        Collection { id, types, live, fresh: false, exact: true }
    }
}
