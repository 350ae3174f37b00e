//! The stored form of the names of fields and members. A name is a part of the key of a tuple.
//! This part has a length limit, so a longer name is kept in the value.
//!
//! A name of up to [`LONGEST_IN_KEY`] bytes is itself the last part of the key. A longer name is
//! replaced in the key by its first [`LONGEST_IN_KEY`] bytes and its SHA-256. The value is then
//! the length of the name as u32, the name, and the value that a short name would have. No short
//! name is as long as the part of a long one, so the length of the part shows its form. The parts
//! sort in the same order as the names, except that names that agree in the first
//! [`LONGEST_IN_KEY`] bytes sort by their hashes.
//!
//! A lookup by a name compares the name that is stored, so two names with the same hash are never
//! confused: the second one is refused.

use std::borrow::Cow;
use std::cmp::Ordering;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::glob;

/// The longest name that is stored in a key unchanged, in bytes. It must never change, because it
/// decides where the names in existing stores are.
pub const LONGEST_IN_KEY: usize = 16 << 10;

/// Size of a hash, in bytes.
pub const HASH: usize = 32;

/// The length of the part of a key that represents a long name.
const PART: usize = LONGEST_IN_KEY + HASH;

/// The longest key that contains such a part has 18 bytes before the part.
const _: () = assert!(PART + 18 <= kvdb::MAX_KEY);

/// The longest field or member, in bytes. It must fit into a value, together with its length and
/// a score. The value of a field shares the limit of values with the name of the field.
pub const LONGEST: usize = kvdb::MAX_VALUE - 64;

/// Returns whether a name is too long to be a part of a key.
pub fn is_long(name: &[u8]) -> bool {
    name.len() > LONGEST_IN_KEY
}

fn hash(name: &[u8]) -> [u8; HASH] {
    Sha256::digest(name).into()
}

/// Returns the part of a key that represents a name.
pub fn in_key(name: &[u8]) -> Cow<'_, [u8]> {
    match is_long(name) {
        false => Cow::Borrowed(name),
        true => Cow::Owned([&name[..LONGEST_IN_KEY], &hash(name)[..]].concat()),
    }
}

/// Returns whether a part of a key represents a long name. It also returns `false` for the parts
/// of lists and streams, because none of them has that length.
pub fn is_long_in_key(part: &[u8]) -> bool {
    part.len() == PART
}

/// Returns the value to store for a name and the value that belongs to it.
pub fn stored(name: &[u8], value: Bytes) -> Bytes {
    if !is_long(name) {
        return value;
    }
    // The limit of names is far below the largest number.
    let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes()[..], name, &value[..]].concat().into()
}

/// Returns the name and the value that belongs to it, for a tuple whose key has this part. The
/// value of a short name is returned unchanged.
pub fn split(part: &Bytes, value: Bytes) -> Result<(Bytes, Bytes), Failure> {
    match is_long_in_key(part) {
        false => Ok((part.clone(), value)),
        true => split_long(part, &value),
    }
}

/// Returns the name for a part of a key. The value is read only if the name is long.
pub fn name(
    part: Bytes,
    value: impl FnOnce() -> Result<Bytes, kvdb::Error>,
) -> Result<Bytes, Failure> {
    match is_long_in_key(&part) {
        false => Ok(part),
        true => Ok(split_long(&part, &value()?)?.0),
    }
}

/// Returns the value that belongs to a name. `found` is the value that was stored for the name.
pub fn value_of(name: &[u8], found: Bytes) -> Result<Bytes, Failure> {
    if !is_long(name) {
        return Ok(found);
    }
    let (stored, value) = split_long(&in_key(name), &found)?;
    if stored != name {
        return Err(one_hash(name));
    }
    Ok(value)
}

/// Returns the error for a name that has the same hash as another name.
pub fn one_hash(name: &[u8]) -> Failure {
    Failure::request(format!(
        "a field or member of {} bytes has the SHA-256 of another one, so only one of them can be stored: change a byte at its end",
        name.len()
    ))
}

fn split_long(part: &[u8], value: &Bytes) -> Result<(Bytes, Bytes), Failure> {
    let found = value.split_first_chunk::<4>().and_then(|(len, rest)| {
        let (name, own) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        let belongs = is_long(name) && part.get(..LONGEST_IN_KEY) == name.get(..LONGEST_IN_KEY);
        belongs.then(|| (value.slice_ref(name), value.slice_ref(own)))
    });
    found.ok_or_else(|| {
        let begin = &part[..part.len().min(32)];
        let begin = begin.escape_ascii();
        Failure::Corrupt(format!(
            "the name of the element that begins with '{begin}' does not decode"
        ))
    })
}

/// Limit on the bytes of patterns that one command compares with names, including repeated
/// comparisons, in addition to [`EACH`] for each byte of a name.
const COMPARED: usize = 1 << 27;
/// Number of bytes of a pattern that may be compared for each byte of a name. Most patterns need
/// only one; a class needs its length.
const EACH: usize = 64;

/// The work that one command may still do to compare names with patterns. Patterns and names of
/// elements may both have megabytes, so a comparison must not cost the product of their lengths.
pub struct Compared {
    left: usize,
}

impl Default for Compared {
    fn default() -> Self {
        Compared { left: COMPARED }
    }
}

impl Compared {
    /// Returns whether a pattern matches a name, or an error if the command has compared too much.
    pub fn matches(&mut self, pattern: &[u8], name: &[u8]) -> Result<bool, Failure> {
        self.left = self.left.saturating_add(EACH * (name.len() + 1));
        glob::matches_within(pattern, name, &mut self.left).ok_or_else(|| {
            let (pattern, name) = (pattern.len(), name.len());
            Failure::Limit(format!(
                "comparing a pattern of {pattern} bytes with a name of {name} bytes takes too long"
            ))
        })
    }
}

/// Compares names in the order of the parts that represent them in keys.
pub fn order(a: &[u8], b: &[u8]) -> Ordering {
    match share_begin(a, b) {
        true => hash(a).cmp(&hash(b)),
        false => a.cmp(b),
    }
}

/// Returns whether both names are long and agree in all bytes that are in their keys, so that the
/// parts in the keys may not be in the order of the names.
pub fn share_begin(a: &[u8], b: &[u8]) -> bool {
    is_long(a) && is_long(b) && a[..LONGEST_IN_KEY] == b[..LONGEST_IN_KEY]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(len: usize, last: u8) -> Vec<u8> {
        let mut name = vec![b'n'; len];
        *name.last_mut().expect("not empty") = last;
        name
    }

    #[test]
    fn a_short_name_and_its_value_are_stored_as_they_are() {
        for len in [1, 100, LONGEST_IN_KEY] {
            let name = name(len, b'x');
            assert_eq!(in_key(&name)[..], name[..]);
            let value = stored(&name, Bytes::from_static(b"value"));
            assert_eq!(&value[..], b"value");
            let part = Bytes::from(name.clone());
            assert_eq!(split(&part, value).expect("short"), (part.clone(), "value".into()));
            assert_eq!(super::name(part.clone(), || unreachable!()).expect("short"), part);
        }
    }

    #[test]
    fn a_long_name_is_read_from_the_value() {
        for len in [LONGEST_IN_KEY + 1, PART, PART + 1, 1 << 20] {
            let name = name(len, b'x');
            let part = Bytes::from(in_key(&name).into_owned());
            assert!(is_long_in_key(&part) && part.starts_with(&name[..LONGEST_IN_KEY]));
            let value = stored(&name, Bytes::from_static(b"value"));
            let (found, own) = split(&part, value.clone()).expect("its own");
            assert_eq!((&found[..], &own[..]), (&name[..], &b"value"[..]));
            assert_eq!(value_of(&name, value.clone()).expect("its own"), "value");
            for cut in [0, 3, 4, 4 + len - 1] {
                assert!(split(&part, value.slice(..cut)).is_err(), "cut at {cut}");
            }
            let short = [&5u32.to_be_bytes()[..], b"nnnnn"].concat();
            assert!(split(&part, short.into()).is_err(), "a short name under a long one");
        }
    }

    #[test]
    fn another_name_under_the_same_key_is_not_taken_for_this_one() {
        let (this, other) = (name(20_000, b'x'), name(20_000, b'y'));
        let there = stored(&other, Bytes::from_static(b"value"));
        let refused = value_of(&this, there).expect_err("not its name").to_string();
        assert!(refused.contains("of 20000 bytes has the SHA-256 of another one"), "{refused}");
    }

    #[test]
    fn parts_of_keys_sort_as_names_up_to_the_limit() {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for len in [1, LONGEST_IN_KEY - 1, LONGEST_IN_KEY, LONGEST_IN_KEY + 1, PART, 30_000] {
            for first in [b'a', b'n', b'z'] {
                let mut name = name(len, b'n');
                name[0] = first;
                names.push(name);
            }
        }
        for a in &names {
            for b in &names {
                assert_eq!(in_key(a).cmp(&in_key(b)), order(a, b));
                if !share_begin(a, b) {
                    assert_eq!(order(a, b), a.cmp(b));
                }
            }
        }
    }
}
