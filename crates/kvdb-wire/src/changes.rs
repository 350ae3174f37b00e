//! The encoding of a batch: its changes in their order, each with a kind.

use bytes::Bytes;
use kvdb::{
    Batch, DictionaryId, MAX_KEY, MAX_UPDATE, MAX_VALUE, Reference, ServedChange, StoredValue,
    Update,
};
use zones::varint::{get_bytes, get_u32, put_bytes, put_u64};

use crate::body::Body;
use crate::error::{Error, Result};

/// Limit of the changes in one request. A change of a few bytes in a frame takes more in memory.
pub const MAX_CHANGES: usize = 1 << 16;
/// Upper bound of the bytes of a change in a frame in addition to its key and value.
pub(crate) const CHANGE_OVERHEAD: usize = 16;
/// Upper bound of the further bytes that a reference takes in a frame: a dictionary and a length.
const REFERENCE_OVERHEAD: usize = 8;
/// The bytes with which a value by reference counts in memory: a small value is copied. A server
/// counts a longer one that it copies with its length.
pub(crate) const REFERRED: usize = 4 << 10;

/// A batch counts as one that releases space if it puts at most this number of bytes for each key
/// or range that it deletes.
const PUT_FOR_DELETED: usize = 1 << 10;

const PUT: u8 = 1;
const UPDATE: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const REFER: u8 = 5;

/// Returns whether all changes are deletions.
pub(crate) fn only_deletes(changes: &[ServedChange]) -> bool {
    changes
        .iter()
        .all(|change| matches!(change, ServedChange::Delete(..) | ServedChange::DeleteRange(..)))
}

/// Estimates whether the changes release more space than they take. A removal also puts a few
/// bytes, for the data that remains.
pub(crate) fn gives_back(changes: &[ServedChange]) -> bool {
    let (mut put, mut deleted) = (0, 0);
    for change in changes {
        match change {
            ServedChange::Put(..) | ServedChange::Update(..) => put += size_of_change(change),
            ServedChange::Refer(..) => put += size_of_change(change) + REFERRED,
            ServedChange::Delete(..) | ServedChange::DeleteRange(..) => deleted += 1,
        }
    }
    deleted > 0 && put <= deleted * PUT_FOR_DELETED
}

/// Appends the number of changes and the changes to a body.
pub(crate) fn put_changes(out: &mut Vec<u8>, changes: &[ServedChange]) {
    put_u64(out, changes.len() as u64);
    changes.iter().for_each(|change| put_change(out, change));
}

/// Reads changes from a body.
pub(crate) fn take_changes(body: &mut Body<'_>) -> Result<Vec<ServedChange>> {
    let count = body.count(MAX_CHANGES)?;
    let mut changes = Vec::new();
    for _ in 0..count {
        changes.push(take_change(body.whole, &mut body.rest)?);
    }
    Ok(changes)
}

fn put_change(out: &mut Vec<u8>, change: &ServedChange) {
    let (kind, dict, key, more) = match change {
        ServedChange::Put(dict, key, value) => (PUT, dict, key, Some(value)),
        ServedChange::Update(dict, key, update) => (UPDATE, dict, key, Some(update.bytes())),
        ServedChange::Delete(dict, key) => (DELETE, dict, key, None),
        ServedChange::DeleteRange(dict, start, end) => (DELETE_RANGE, dict, start, Some(end)),
        ServedChange::Refer(one) => (REFER, &one.dict, &one.key, Some(&one.of.1)),
    };
    out.push(kind);
    put_u64(out, u64::from(dict.0));
    put_bytes(out, key);
    if let ServedChange::Refer(one) = change {
        put_u64(out, u64::from(one.of.0.0));
    }
    if let Some(more) = more {
        put_bytes(out, more);
    }
}

/// Returns an upper estimate of the bytes that a change takes in a frame.
pub(crate) fn size_of_change(change: &ServedChange) -> usize {
    let bytes = match change {
        ServedChange::Put(_, key, value) => key.len() + value.len(),
        ServedChange::Update(_, key, update) => key.len() + update.bytes().len(),
        ServedChange::Delete(_, key) => key.len(),
        ServedChange::DeleteRange(_, start, end) => start.len() + end.len(),
        ServedChange::Refer(one) => one.key.len() + one.of.1.len() + REFERENCE_OVERHEAD,
    };
    bytes + CHANGE_OVERHEAD
}

/// Returns an upper estimate of the bytes that a change takes in memory.
pub(crate) fn memory_of_change(change: &ServedChange) -> usize {
    let referred = if reference_of(change).is_some() { REFERRED } else { 0 };
    size_of_change(change) + size_of::<ServedChange>() + referred
}

/// Returns the reference if the change puts a value by reference.
pub(crate) fn reference_of(change: &ServedChange) -> Option<&Reference> {
    match change {
        ServedChange::Refer(one) => Some(one),
        _ => None,
    }
}

/// Returns the dictionary of a change.
pub(crate) fn dictionary_of(change: &ServedChange) -> DictionaryId {
    match change {
        ServedChange::Refer(one) => one.dict,
        ServedChange::Put(dict, ..)
        | ServedChange::Update(dict, ..)
        | ServedChange::Delete(dict, ..)
        | ServedChange::DeleteRange(dict, ..) => *dict,
    }
}

/// Adds changes to a batch, in their order. `values` are those that the references name, in the
/// order of these, and `None` for a key without a value.
pub(crate) fn add_changes(
    batch: &mut Batch,
    changes: Vec<ServedChange>,
    values: Vec<Option<StoredValue>>,
) {
    let mut values = values.into_iter();
    for change in changes {
        match change {
            ServedChange::Put(dict, key, value) => batch.put(dict, key, value),
            ServedChange::Update(dict, key, update) => batch.update(dict, key, update),
            ServedChange::Delete(dict, key) => batch.delete(dict, key),
            ServedChange::DeleteRange(dict, start, end) => batch.delete_range(dict, start, end),
            ServedChange::Refer(one) => match values.next().flatten() {
                Some(value) => batch.put_stored(one.dict, one.key, value),
                None => batch.delete(one.dict, one.key),
            },
        }
    }
}

/// Reads a change from the front of `input`, which is a part of `whole`.
fn take_change(whole: &Bytes, input: &mut &[u8]) -> Result<ServedChange> {
    let Some((&kind, rest)) = input.split_first() else {
        return Err(Error::Malformed("a change that is cut"));
    };
    *input = rest;
    let dict = DictionaryId(get_u32(input)?);
    if kind == REFER {
        let key = take_bytes(whole, input, MAX_KEY)?;
        let of = (DictionaryId(get_u32(input)?), take_bytes(whole, input, MAX_KEY)?);
        return Ok(ServedChange::Refer(Reference { dict, key, of }));
    }
    let mut bytes = |most: usize| take_bytes(whole, input, most);
    Ok(match kind {
        PUT => ServedChange::Put(dict, bytes(MAX_KEY)?, bytes(MAX_VALUE)?),
        UPDATE => {
            let (key, update) = (bytes(MAX_KEY)?, bytes(MAX_UPDATE)?);
            let update = Update::decode(&update)
                .map_err(|_| Error::Malformed("an update that does not decode"))?;
            ServedChange::Update(dict, key, update)
        }
        DELETE => ServedChange::Delete(dict, bytes(MAX_KEY)?),
        DELETE_RANGE => ServedChange::DeleteRange(dict, bytes(MAX_KEY)?, bytes(MAX_KEY)?),
        _ => return Err(Error::Malformed("a change of an unknown kind")),
    })
}

fn take_bytes(whole: &Bytes, input: &mut &[u8], most: usize) -> Result<Bytes> {
    match get_bytes(input)? {
        bytes if bytes.len() > most => Err(Error::Malformed("a key or a value too long")),
        bytes => Ok(whole.slice_ref(bytes)),
    }
}
