//! Encodes and decodes the few types of which journal records and manifest edits consist: fixed
//! integers (little-endian), varints, and byte strings after a varint length. The decoder accepts
//! any bytes, and returns an error for invalid bytes.

pub(crate) use zones::varint::{put_bytes, put_u64 as put_varint};

use crate::error::{Error, Result};

/// Decodes fields from bytes that were read from a device, one after another.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
    /// The name of the decoded data in error messages.
    what: &'static str,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Decoder { rest: bytes, what }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    pub(crate) fn corrupt(&self, why: &str) -> Error {
        Error::Corrupt(format!("{}: {why}", self.what))
    }
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        if len > self.rest.len() {
            return Err(self.corrupt("it ends too early"));
        }
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        Ok(head)
    }
    /// Returns the remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut a = [0; N];
        a.copy_from_slice(self.take(N)?);
        Ok(a)
    }
    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut rest = self.rest;
        let v = zones::varint::get_u64(&mut rest).map_err(|e| self.corrupt(&e.to_string()))?;
        self.rest = rest;
        Ok(v)
    }
    pub(crate) fn varint_u32(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| self.corrupt("a number is too large"))
    }
    /// Decodes a count of items that each take at least `each` bytes. The remaining bytes bound the
    /// count, so memory for that many items can be allocated safely.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize> {
        let n = self.varint()?;
        if n > (self.rest.len() / each.max(1)) as u64 {
            return Err(self.corrupt("a count is larger than what follows"));
        }
        Ok(n as usize)
    }
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        if len > self.rest.len() as u64 {
            return Err(self.corrupt("it ends too early"));
        }
        self.take(len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_survive_the_way_there_and_back() {
        for v in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, v);
            let mut r = Decoder::new(&out, "number");
            assert_eq!(r.varint().unwrap(), v);
            assert!(r.is_empty());
        }
    }

    #[test]
    fn short_or_absurd_bytes_are_errors() {
        assert!(Decoder::new(&[0x80], "number").varint().is_err());
        assert!(Decoder::new(&[0xff; 11], "number").varint().is_err());
        assert!(Decoder::new(&[5, 1, 2], "string").bytes().is_err());
        assert!(Decoder::new(&[200, 1, 0], "list").count(1).is_err());
    }
}
