//! A batch on the wire: changes in their order, each with a kind.

use bytes::Bytes;
use kvdb::{DictionaryId, MAX_KEY, MAX_UPDATE, MAX_VALUE, Update};
use zones::varint::{get_bytes, get_u32, put_bytes, put_u64};

use crate::error::{Error, Result};

const PUT: u8 = 1;
const UPDATE: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;

/// A change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of a key.
    Put(DictionaryId, Bytes, Bytes),
    /// Changes the value of a key by an encoded [`Update`].
    Update(DictionaryId, Bytes, Bytes),
    /// Deletes a key.
    Delete(DictionaryId, Bytes),
    /// Deletes the keys from the first to before the second.
    DeleteRange(DictionaryId, Bytes, Bytes),
}

impl Change {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let (kind, dict, key, more) = match self {
            Change::Put(dict, key, value) => (PUT, dict, key, Some(value)),
            Change::Update(dict, key, update) => (UPDATE, dict, key, Some(update)),
            Change::Delete(dict, key) => (DELETE, dict, key, None),
            Change::DeleteRange(dict, start, end) => (DELETE_RANGE, dict, start, Some(end)),
        };
        out.push(kind);
        put_u64(out, u64::from(dict.0));
        put_bytes(out, key);
        if let Some(more) = more {
            put_bytes(out, more);
        }
    }

    /// Takes a change off the front of `input`, a part of `whole`.
    pub(crate) fn take(whole: &Bytes, input: &mut &[u8]) -> Result<Change> {
        let Some((&kind, rest)) = input.split_first() else {
            return Err(Error::Malformed("a change that is cut"));
        };
        *input = rest;
        let dict = DictionaryId(get_u32(input)?);
        let mut bytes = |most: usize| match get_bytes(input)? {
            bytes if bytes.len() > most => Err(Error::Malformed("a key or a value too long")),
            bytes => Ok(whole.slice_ref(bytes)),
        };
        Ok(match kind {
            PUT => Change::Put(dict, bytes(MAX_KEY)?, bytes(MAX_VALUE)?),
            UPDATE => {
                let (key, update) = (bytes(MAX_KEY)?, bytes(MAX_UPDATE)?);
                if Update::decode(&update).is_err() {
                    return Err(Error::Malformed("an update that does not decode"));
                }
                Change::Update(dict, key, update)
            }
            DELETE => Change::Delete(dict, bytes(MAX_KEY)?),
            DELETE_RANGE => Change::DeleteRange(dict, bytes(MAX_KEY)?, bytes(MAX_KEY)?),
            _ => return Err(Error::Malformed("a change of an unknown kind")),
        })
    }
}
