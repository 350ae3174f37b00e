//! The payload of a key, as `DUMP` returns it and `RESTORE` takes it:
//!
//! ```text
//! kind u8       1 string, 2 hash, 3 set, 4 sorted set, 5 list, 6 stream, 7 hash whose fields have
//!               deadlines
//! what it holds
//! version u16   1
//! CRC32C u32    of everything before it
//! ```
//!
//! Numbers are little-endian. A string is its bytes. A collection is the sequence of its
//! elements: in a hash the name and the value, in a set the name, in a sorted set the score as 8
//! sortable bytes and the name, in a list the value, in a stream the name and the value as they
//! are stored, with the state first. In a hash of kind 7 each name is preceded by the deadline of
//! its field, u64, in milliseconds since 1970, or 0; at least one field has a deadline. A name or
//! value is its length as u32, followed by its bytes. The names of all types except lists ascend,
//! so that one content has one payload; names of more than 16 KiB that agree in the first 16 KiB
//! are in the order of their SHA-256. No version of Redis uses this format. As in Redis, it does
//! not contain the deadline of the key.

use super::super::streams;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, from_sortable, sortable};
use crate::names;

const VERSION: u16 = 1;
/// Size of version and checksum, in bytes.
const FOOTER: usize = 6;

const KINDS: [Kind; 6] =
    [Kind::String, Kind::Hash, Kind::Set, Kind::SortedSet, Kind::List, Kind::Stream];

/// The kind of a hash whose fields have deadlines.
const EXPIRING: u8 = 7;

/// A payload under construction, of at most `most` bytes.
pub struct Payload {
    bytes: Vec<u8>,
    most: usize,
}

impl Payload {
    pub fn new(kind: Kind, most: usize) -> Self {
        let number = KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8 + 1;
        Payload { bytes: vec![number], most }
    }
    /// Begins the payload of a hash whose fields have deadlines.
    pub fn of_expiring(most: usize) -> Self {
        Payload { bytes: vec![EXPIRING], most }
    }
    /// Returns an error if `more` bytes do not fit.
    pub fn fits(&self, more: u64) -> Outcome {
        let left = self.most.saturating_sub(self.bytes.len() + FOOTER);
        if more > left as u64 {
            return Err(Failure::Limit(format!(
                "what the key holds takes more than the {} bytes that RESTORE takes: copy it in parts",
                self.most
            )));
        }
        Ok(())
    }
    /// Adds bytes without a length: their number is known, or they extend to the end of the
    /// payload.
    pub fn raw(&mut self, bytes: &[u8]) -> Outcome {
        self.fits(bytes.len() as u64)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
    /// Adds the length of the bytes, and then the bytes.
    pub fn sized(&mut self, bytes: &[u8]) -> Outcome {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.raw(&len.to_le_bytes())?;
        self.raw(bytes)
    }
    /// Returns the bytes of the payload, with version and checksum.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&VERSION.to_le_bytes());
        let sum = crc32c(&self.bytes);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The value of a key.
#[derive(Debug, PartialEq)]
pub enum Content<'a> {
    String(&'a [u8]),
    Hash(Vec<(&'a [u8], &'a [u8])>),
    /// A hash with the deadlines of its fields; 0 stands for a field without a deadline.
    Expiring(Vec<(u64, &'a [u8], &'a [u8])>),
    Set(Vec<&'a [u8]>),
    SortedSet(Vec<(&'a [u8], f64)>),
    List(Vec<&'a [u8]>),
    Stream(Vec<(&'a [u8], &'a [u8])>),
}

const UNKNOWN: Failure =
    Failure::Request(std::borrow::Cow::Borrowed("DUMP payload version or checksum are wrong"));
const BAD: Failure = Failure::Request(std::borrow::Cow::Borrowed("Bad data format"));

/// The rest of a payload that has not been parsed yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn sized(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        self.0 = rest;
        Some(bytes)
    }
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }
    fn score(&mut self) -> Option<f64> {
        let (score, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        // Only one of the two floating-point zeros is stored.
        let found = from_sortable(*score);
        (!found.is_nan() && sortable(found) == *score).then_some(found)
    }
    /// Parses one or more elements, up to the end.
    fn all<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = vec![one(self)?];
        while !self.0.is_empty() {
            all.push(one(self)?);
        }
        Some(all)
    }
}

fn ascend<'a>(mut names: impl Iterator<Item = &'a [u8]>) -> Option<()> {
    let mut last = names.next()?;
    names.all(|name| names::order(std::mem::replace(&mut last, name), name).is_lt()).then_some(())
}

impl<'a> Content<'a> {
    /// Parses a payload, which may be any bytes.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Failure> {
        let (checked, sum) = payload.split_last_chunk().ok_or(UNKNOWN)?;
        let (body, version) = checked.split_last_chunk().ok_or(UNKNOWN)?;
        if u16::from_le_bytes(*version) != VERSION || u32::from_le_bytes(*sum) != crc32c(checked) {
            return Err(UNKNOWN);
        }
        let (kind, rest) = body.split_first().ok_or(BAD)?;
        if *kind == EXPIRING {
            return Content::expiring(Rest(rest)).ok_or(BAD);
        }
        let kind = usize::from(*kind).checked_sub(1).and_then(|at| KINDS.get(at)).ok_or(BAD)?;
        Content::of(*kind, Rest(rest)).ok_or(BAD)
    }

    fn expiring(mut rest: Rest<'a>) -> Option<Self> {
        let fields = rest.all(|rest| Some((rest.number()?, rest.sized()?, rest.sized()?)))?;
        let any = fields.iter().any(|field| field.0 > 0).then_some(());
        any.and_then(|()| ascend(fields.iter().map(|field| field.1)))?;
        Some(Content::Expiring(fields))
    }

    fn of(kind: Kind, mut rest: Rest<'a>) -> Option<Self> {
        match kind {
            Kind::String | Kind::Pages => Some(Content::String(rest.0)),
            Kind::Hash => {
                let fields = rest.all(|rest| Some((rest.sized()?, rest.sized()?)))?;
                ascend(fields.iter().map(|field| field.0)).map(|()| Content::Hash(fields))
            }
            Kind::Set => {
                let members = rest.all(Rest::sized)?;
                ascend(members.iter().copied()).map(|()| Content::Set(members))
            }
            Kind::SortedSet => {
                let members = rest.all(|rest| {
                    let score = rest.score()?;
                    Some((rest.sized()?, score))
                })?;
                ascend(members.iter().map(|member| member.0)).map(|()| Content::SortedSet(members))
            }
            Kind::List => rest.all(Rest::sized).map(Content::List),
            Kind::Stream => {
                let elements = rest.all(|rest| Some((rest.sized()?, rest.sized()?)))?;
                streams::is_sound(&elements).then_some(Content::Stream(elements))
            }
        }
    }
}

/// Returns whether `body`, completed by the right version and checksum, is a valid payload.
pub fn is_sound(body: &[u8]) -> bool {
    let payload = Payload { bytes: body.to_vec(), most: usize::MAX }.finish();
    Content::decode(&payload).is_ok()
}

#[cfg(test)]
mod tests {
    use env::Random;

    use super::*;

    fn encoded(content: &Content<'_>) -> Vec<u8> {
        let put = |kind, fill: &dyn Fn(&mut Payload) -> Outcome| {
            let mut payload = Payload::new(kind, 1 << 20);
            fill(&mut payload).expect("it fits");
            payload.finish()
        };
        match content {
            Content::String(value) => put(Kind::String, &|to| to.raw(value)),
            Content::Hash(fields) => put(Kind::Hash, &|to| {
                fields.iter().try_for_each(|(name, value)| {
                    to.sized(name)?;
                    to.sized(value)
                })
            }),
            Content::Expiring(fields) => put(Kind::Hash, &|to| {
                to.bytes[0] = EXPIRING;
                fields.iter().try_for_each(|(deadline, name, value)| {
                    to.raw(&deadline.to_le_bytes())?;
                    to.sized(name)?;
                    to.sized(value)
                })
            }),
            Content::Stream(elements) => put(Kind::Stream, &|to| {
                elements.iter().try_for_each(|(name, value)| {
                    to.sized(name)?;
                    to.sized(value)
                })
            }),
            Content::Set(members) => {
                put(Kind::Set, &|to| members.iter().try_for_each(|member| to.sized(member)))
            }
            Content::SortedSet(members) => put(Kind::SortedSet, &|to| {
                members.iter().try_for_each(|(member, score)| {
                    to.raw(&sortable(*score))?;
                    to.sized(member)
                })
            }),
            Content::List(values) => {
                put(Kind::List, &|to| values.iter().try_for_each(|value| to.sized(value)))
            }
        }
    }

    fn contents() -> [Content<'static>; 7] {
        [
            Content::String(b""),
            Content::String(b"value"),
            Content::Hash(vec![(b"", b"1"), (b"f", b""), (b"g", b"2")]),
            Content::Expiring(vec![(0, b"f", b"1"), (9, b"g", b"")]),
            Content::Set(vec![b"a", b"b"]),
            Content::SortedSet(vec![(b"a", f64::NEG_INFINITY), (b"b", 1.5), (b"c", -2.0)]),
            Content::List(vec![b"b", b"", b"a", b"b"]),
        ]
    }

    #[test]
    fn a_payload_is_read_as_it_was_written() {
        for content in contents() {
            assert_eq!(Content::decode(&encoded(&content)).expect("its own"), content);
        }
    }

    #[test]
    fn a_payload_that_was_damaged_or_is_of_another_version_is_refused() {
        for content in contents() {
            let whole = encoded(&content);
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                assert!(Content::decode(&damaged).is_err(), "a bit at {at} of {content:?}");
                assert!(Content::decode(&whole[..at]).is_err(), "cut at {at}: {content:?}");
            }
            let mut newer = whole[..whole.len() - FOOTER].to_vec();
            newer.extend_from_slice(&2u16.to_le_bytes());
            newer.extend_from_slice(&crc32c(&newer).to_le_bytes());
            assert!(Content::decode(&newer).is_err(), "version 2");
        }
    }

    /// Payloads of arbitrary bytes with a correct checksum are either refused, or decode to
    /// content that can be stored.
    #[test]
    fn hostile_payloads_are_refused() {
        let sealed = |body: &[u8]| Payload { bytes: body.to_vec(), most: usize::MAX }.finish();
        for body in [
            &b""[..],
            b"\0",
            b"\x06",
            b"\x02",
            b"\x03",
            b"\x04",
            b"\x05",
            b"\x02\x01\0\0\0f",
            b"\x03\xff\xff\xff\xffa",
            b"\x03\x01\0\0\0b\x01\0\0\0a",
            b"\x03\x01\0\0\0a\x01\0\0\0a",
            b"\x02\x01\0\0\0a\0\0\0\0\x01\0\0\0a\0\0\0\0",
            b"\x04\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0\0a",
            b"\x05\x01\0\0\0ab",
            b"\x07",
            b"\x07\0\0\0\0\0\0\0\0\x01\0\0\0a\0\0\0\0",
        ] {
            assert!(Content::decode(&sealed(body)).is_err(), "{}", body.escape_ascii());
        }
        let mut random = Random::new(14);
        for content in contents() {
            let whole = encoded(&content);
            let body = &whole[..whole.len() - FOOTER];
            for _ in 0..2000 {
                let mut other = body.to_vec();
                for _ in 0..1 + random.below(3) {
                    let at = random.below(other.len() as u64) as usize;
                    match random.below(3) {
                        0 => other[at] = random.below(256) as u8,
                        1 => other.insert(at, random.below(4) as u8),
                        _ if other.len() > 1 => drop(other.remove(at)),
                        _ => {}
                    }
                }
                if let Ok(read) = Content::decode(&sealed(&other)) {
                    assert_eq!(encoded(&read), sealed(&other), "one content has one payload");
                }
            }
        }
    }
}
