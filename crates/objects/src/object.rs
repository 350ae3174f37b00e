//! The types that operations on objects take and return: parts, conditions, tags, and pages of
//! lists.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::error::{ObjectsError, Result};
use crate::key::Key;

/// The bytes of an object that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All bytes.
    Whole,
    /// The bytes from `start` to before `end`, or to the end of the object if that comes first.
    Range(Range<u64>),
}

impl Part {
    /// Returns the range of this part in an object of `len` bytes. Returns
    /// [`ObjectsError::OutOfRange`] if the range begins at or after the end, and
    /// [`ObjectsError::Invalid`] if the range is empty for every object, which an HTTP request
    /// cannot express.
    pub fn within(&self, key: &Key, len: u64) -> Result<Range<u64>> {
        match self {
            Part::Whole => Ok(0..len),
            Part::Range(range) if range.start >= range.end => Err(ObjectsError::Invalid(format!(
                "the range {}..{} of {key} has no bytes; ask for one at least",
                range.start, range.end
            ))),
            Part::Range(range) if range.start >= len => {
                Err(ObjectsError::OutOfRange { key: key.clone(), start: range.start, len })
            }
            Part::Range(range) => Ok(range.start..range.end.min(len)),
        }
    }
}

/// The version of an object, in the notation of its server. Servers derive the tag from the bytes
/// alone, so the same bytes always have the same tag, and different bytes never share a tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tag(String);

impl Tag {
    /// Creates a tag from the text that a server sent.
    pub fn new(text: impl Into<String>) -> Tag {
        Tag(text.into())
    }

    /// Returns the tag that the places of this crate use for these bytes: the SHA-256 in
    /// hexadecimal digits.
    pub fn of(bytes: &[u8]) -> Tag {
        Hasher::over(bytes).tag()
    }

    /// Returns the text of the tag.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Computes the tag of bytes that arrive in pieces.
#[derive(Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub fn over(bytes: &[u8]) -> Hasher {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn digest(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    pub fn tag(self) -> Tag {
        Tag(self.digest().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// An object that was read, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The bytes of the part.
    pub bytes: Bytes,
    /// The tag of the version to which the bytes belong.
    pub tag: Tag,
    /// The length of the whole object, in bytes.
    pub len: u64,
}

/// The condition under which a put is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The put is always applied, and replaces an existing object.
    Always,
    /// No object with this key exists: `If-None-Match: *`.
    Absent,
    /// The object has this tag: `If-Match`.
    Matches(Tag),
}

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects, by ascending key.
    pub entries: Vec<Listed>,
    /// `true` if there may be more objects after the last entry. In that case there is at least one
    /// entry from which the list can continue.
    pub more: bool,
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key of the object.
    pub key: Key,
    /// The length of the object, in bytes.
    pub len: u64,
    /// The time of the last put of the object since 1970, by the clock of the place.
    pub modified: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_end_of_the_object() -> Result<()> {
        let key = Key::new("a")?;
        assert_eq!(Part::Whole.within(&key, 0)?, 0..0);
        assert_eq!(Part::Range(2..5).within(&key, 10)?, 2..5);
        assert_eq!(Part::Range(9..u64::MAX).within(&key, 10)?, 9..10);
        let beyond = Part::Range(10..11).within(&key, 10);
        assert!(matches!(beyond, Err(ObjectsError::OutOfRange { start: 10, len: 10, .. })));
        let reversed = Range { start: 5, end: 2 };
        for none in [3..3, reversed] {
            let refused = Part::Range(none).within(&key, 10);
            assert!(matches!(refused, Err(ObjectsError::Invalid(_))));
        }
        Ok(())
    }

    #[test]
    fn a_tag_in_pieces_is_that_of_the_whole() {
        let mut pieces = Hasher::over(b"ab");
        pieces.update(b"c");
        assert_eq!(pieces.tag(), Tag::of(b"abc"));
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Tag::of(b"abc").as_str(), known);
    }
}
