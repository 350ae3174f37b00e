//! The elements of message bodies, and their limits.

use bytes::Bytes;
use kvdb::{DictionaryId, MAX_KEY, MAX_VALUE};
use zones::varint::{get_bytes, get_u32, get_u64, put_bytes, put_u64};

use crate::error::{Error, Result};

/// The magic bytes at the start of a greeting.
pub const MAGIC: [u8; 4] = *b"kvfw";
/// Limit of the keys in one request.
pub const MAX_KEYS: usize = 4096;
/// Limit of the tuples in one page.
pub const MAX_TUPLES: u32 = 4096;
/// Limit of the bytes of the name of a snapshot, a branch or a dictionary.
pub const MAX_NAME: usize = 1024;
/// Limit of the bytes of a token.
pub const MAX_TOKEN: usize = 1024;
/// Limit of the dictionaries that are listed for one view.
pub const MAX_DICTIONARIES: usize = 4096;
/// Limit of the snapshots or clones in one answer to a list.
pub const MAX_LISTED: usize = 1024;
/// Limit of the keys in conflict that are listed in one answer.
pub const MAX_CONFLICTS: usize = 64;
/// Identifies a transaction: random bytes that its client draws. A client that knows them may use
/// the transaction.
pub type TransactionKey = [u8; 16];
/// Limit of the bytes of keys and values in one answer. If the first value alone is longer, it is
/// sent alone: the longest value fits a frame.
pub const ANSWER_BYTES: usize = 4 << 20;
/// Flag: a value follows.
const HERE: u8 = 1;

/// Reads the elements of a body.
pub(crate) struct Body<'a> {
    pub whole: &'a Bytes,
    pub rest: &'a [u8],
}

impl<'a> Body<'a> {
    pub fn of(whole: &'a Bytes) -> Body<'a> {
        Body { whole, rest: whole }
    }

    pub fn byte(&mut self) -> Result<u8> {
        let Some((&byte, rest)) = self.rest.split_first() else {
            return Err(Error::Malformed("a message that is cut"));
        };
        self.rest = rest;
        Ok(byte)
    }

    /// Reads a byte of flags. Fails if a flag other than those in `known` is set.
    pub fn flags(&mut self, known: u8) -> Result<u8> {
        match self.byte()? {
            flags if flags & !known == 0 => Ok(flags),
            _ => Err(Error::Malformed("a flag that is not known")),
        }
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Error::Malformed("a message that is cut"));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    pub fn number(&mut self) -> Result<u64> {
        Ok(get_u64(&mut self.rest)?)
    }

    pub fn small(&mut self) -> Result<u32> {
        Ok(get_u32(&mut self.rest)?)
    }

    /// Reads the number of elements that follow. Fails if there are more than `most`, or more than
    /// bytes remain, since an element takes at least one byte.
    pub fn count(&mut self, most: usize) -> Result<usize> {
        match self.small()? as usize {
            count if count > most.min(self.rest.len()) => {
                Err(Error::Malformed("more of something than there can be"))
            }
            count => Ok(count),
        }
    }

    pub fn dict(&mut self) -> Result<DictionaryId> {
        Ok(DictionaryId(self.small()?))
    }

    pub fn bytes(&mut self, most: usize) -> Result<Bytes> {
        match get_bytes(&mut self.rest)? {
            bytes if bytes.len() > most => Err(Error::Malformed("a part that is too long")),
            bytes => Ok(self.whole.slice_ref(bytes)),
        }
    }

    pub fn key(&mut self) -> Result<Bytes> {
        self.bytes(MAX_KEY)
    }

    /// Reads the end of a range, which may be the successor of the longest key and so one byte
    /// longer than a key.
    pub fn end(&mut self) -> Result<Bytes> {
        self.bytes(MAX_KEY + 1)
    }

    pub fn name(&mut self) -> Result<String> {
        let bytes = self.bytes(MAX_NAME)?;
        match std::str::from_utf8(&bytes) {
            Ok(name) => Ok(name.into()),
            Err(_) => Err(Error::Malformed("a name that is no text")),
        }
    }

    /// Reads an optional value.
    pub fn value(&mut self) -> Result<Option<Bytes>> {
        match self.flags(HERE)? {
            0 => Ok(None),
            _ => Ok(Some(self.bytes(MAX_VALUE)?)),
        }
    }

    pub fn end_of_body(&self) -> Result<()> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Error::Malformed("more bytes than the message has")),
        }
    }
}

pub(crate) fn put_value(out: &mut Vec<u8>, value: &Option<Bytes>) {
    out.push(flag(value.is_some(), HERE));
    value.iter().for_each(|value| put_bytes(out, value));
}

pub(crate) fn put_dict(out: &mut Vec<u8>, dict: DictionaryId) {
    put_u64(out, u64::from(dict.0));
}

pub(crate) fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}
