//! Lookup of fields of hashes and members of sets and sorted sets by their names. A long name is
//! compared with the name that is stored.

use bytes::Bytes;
use kvdb::Batch;

use super::{Collection, Seen};
use crate::failure::Failure;
use crate::keyspace::{Head, head_key, member_key};
use crate::names;

impl Collection {
    /// Returns whether the collection may have elements with long names.
    pub fn has_long_names(&self) -> bool {
        self.live.head.is_some_and(|head| head.long)
    }
}

impl Seen<'_> {
    /// Returns the value that is stored for a name, even if it belongs to a field that has
    /// expired.
    pub fn member(&self, of: &Collection, name: &[u8]) -> Result<Option<Bytes>, Failure> {
        let found = self.get(of.types, &member_key(of.id, name))?;
        found.map(|found| names::value_of(name, found)).transpose()
    }
    /// Reads like [`Seen::member`], in a range that has been announced.
    pub fn member_in_range(&self, of: &Collection, name: &[u8]) -> Result<Option<Bytes>, Failure> {
        let found = self.get_in_range(of.types, &member_key(of.id, name))?;
        found.map(|found| names::value_of(name, found)).transpose()
    }
    /// Returns whether a name is stored, without reading a large value unless the name is long.
    pub fn has_member(&self, of: &Collection, name: &[u8]) -> Result<bool, Failure> {
        match names::is_long(name) {
            true => Ok(self.member(of, name)?.is_some()),
            false => self.has(of.types, &member_key(of.id, name)),
        }
    }
    /// Stores a value for a name. The command must have read the name before, unless the batch
    /// creates the collection, because that read refuses a name that has the hash of another
    /// name.
    pub fn put_member(
        &self,
        key: &[u8],
        of: &Collection,
        name: &[u8],
        value: impl Into<Bytes>,
        batch: &mut Batch,
    ) {
        if names::is_long(name)
            && let Some(head) = of.live.head.filter(|head| !head.long)
        {
            let first = self.long.borrow_mut().insert(head.id);
            if first {
                batch.put(of.types, head_key(key), Head { long: true, ..head }.encode());
            }
        }
        batch.put(of.types, member_key(of.id, name), names::stored(name, value.into()));
    }
    /// Returns a head in the state in which the batch leaves it, with the mark that the
    /// collection has long names.
    pub(super) fn with_long(&self, head: Head) -> Head {
        Head { long: head.long || self.long.borrow().contains(&head.id), ..head }
    }
}
