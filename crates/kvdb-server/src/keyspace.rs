//! Layout of the data that belongs to the keys of a dictionary: deadlines, and the values that are
//! not strings.
//!
//! A string is a tuple of the dictionary itself, whose value is the bytes that the client sent,
//! so that every other interface can read it. Everything else is in the dictionary's *types
//! dictionary*, `:types:NAME`, which the first command that needs it creates. A batch changes
//! both dictionaries atomically.
//! at once.
//!
//! ```text
//! k ‖ key                        head: what the key is, and when it expires
//! t ‖ deadline ‖ key             nothing: deadlines in their order, for the sweeper
//! e ‖ id ‖ 0                     how many elements a collection has, in decimal digits
//! e ‖ id ‖ 1 ‖ name              a field's value; a member; a member's score; an element of a
//!                                list; what makes a stream (`commands/streams/state.rs`)
//! e ‖ id ‖ 2 ‖ score ‖ member    nothing: the members of a sorted set in the order of their scores
//! e ‖ id ‖ 3                     the key that the collection lies under, for who meets an element
//! e ‖ id ‖ 4 ‖ 0 or 1            of a list: the number that no element is below, or above
//! e ‖ id ‖ 5 ‖ name              of a hash: the deadline of a field
//! e ‖ id ‖ 6 ‖ deadline ‖ name   nothing: the fields of a hash in the order of their deadlines
//! p ‖ id ‖ number                a page of a long string
//! ```
//!
//! A field or member whose name is longer than a key can be has its name in the value. In each of
//! these keys the place of the name then has a part whose length is the same for all such names
//! (`names`).
//!
//! A string without a deadline has no head. A collection is identified by an id, so that a rename
//! moves only its head, and a deletion is one range tombstone. Its length is changed by
//! commutative updates, and a collection without elements does not exist. Each of two concurrent
//! transactions may therefore remove an element without a conflict, even if they remove the last
//! two elements together.
//!
//! A string that is too long for one tuple is kept in pages under an id, and does not have a
//! tuple. Its head holds its length, and a mark that every change draws at random. So two
//! transactions that change the same long string conflict, like two that change the same short
//! string. Any two different states of a string have different heads, even if one of them goes
//! back to an earlier state or both continue from it. A page that is missing or short reads as
//! zeros, up to the length of the string. `docs/format.md` describes the bytes.

use bytes::Bytes;
use kvdb::DictionaryId;

use crate::error_code::ErrorCode;
use crate::failure::Failure;
use crate::names::in_key;

/// Prefix of the names of types dictionaries. Users cannot choose such names.
pub const TYPES_PREFIX: &str = ":types:";

/// Returns the name of the types dictionary of a dictionary.
pub fn types_name(dictionary: &str) -> String {
    format!("{TYPES_PREFIX}{dictionary}")
}

/// A dictionary of the user, and its types dictionary.
#[derive(Clone, Copy, Debug)]
pub struct Keyspace {
    pub strings: DictionaryId,
    /// The types dictionary, or `None` until a command needs it.
    pub types: Option<DictionaryId>,
}

/// The type of the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    String,
    Hash,
    Set,
    SortedSet,
    List,
    /// A string that is kept in pages.
    Pages,
    Stream,
}

impl Kind {
    /// All kinds, in the order of their numbers on disk.
    const ALL: [Kind; 7] = [
        Kind::String,
        Kind::Hash,
        Kind::Set,
        Kind::SortedSet,
        Kind::List,
        Kind::Pages,
        Kind::Stream,
    ];

    /// Returns the name that `TYPE` shows.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String | Kind::Pages => "string",
            Kind::Hash => "hash",
            Kind::Set => "set",
            Kind::SortedSet => "zset",
            Kind::List => "list",
            Kind::Stream => "stream",
        }
    }
    fn of(byte: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(byte)).copied()
    }
}

/// The stored head of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    /// The deadline, in milliseconds since 1970.
    pub deadline: Option<u64>,
    /// The id of a collection, or of the pages.
    pub id: u64,
    /// The length of a string in pages, in bytes.
    pub len: u64,
    /// The mark of a string in pages, which is a random number that every change draws again.
    pub mark: u64,
    /// Set for a list that stores the bounds of its elements' numbers. See [`bound_key`].
    pub bounded: bool,
    /// Set for a hash whose fields may have deadlines. See [`field_deadline_key`].
    pub expiring: bool,
    /// Set for a hash, set or sorted set that may have long names. See [`member_key`].
    pub long: bool,
}

/// The version of the encoding of a head in general. The other versions exist because an older
/// program that does not know bounds, deadlines of fields or long names would neither heed nor
/// update them, so it must not recognize the collection.
const VERSION: u8 = 1;
/// The version of the head of a string in pages.
const VERSION_OF_PAGES: u8 = 2;
/// The version of the head of a list with bounds.
const VERSION_OF_BOUNDED: u8 = 3;
/// The version of the head of a hash whose fields may have deadlines.
const VERSION_OF_EXPIRING: u8 = 4;
/// The version of the head of a collection that may have long names.
const VERSION_OF_LONG: u8 = 5;
/// The version of the head of a hash that may have both deadlines of fields and long names.
const VERSION_OF_LONG_AND_EXPIRING: u8 = 6;

impl Head {
    /// Returns the head of a string that is a tuple, or of a collection.
    pub fn new(kind: Kind, deadline: Option<u64>, id: u64) -> Head {
        let bounded = kind == Kind::List;
        Head { kind, deadline, id, len: 0, mark: 0, bounded, expiring: false, long: false }
    }
    /// Encodes the head: version u8, kind u8, deadline u64 (0 if none), id u64 (absent for a string
    /// in one tuple); for pages also length u64 and mark u64.
    pub fn encode(&self) -> Vec<u8> {
        let version = match self.kind {
            Kind::Pages => VERSION_OF_PAGES,
            _ if self.bounded => VERSION_OF_BOUNDED,
            _ if self.expiring && self.long => VERSION_OF_LONG_AND_EXPIRING,
            _ if self.expiring => VERSION_OF_EXPIRING,
            _ if self.long => VERSION_OF_LONG,
            _ => VERSION,
        };
        let mut out = vec![version, self.kind as u8];
        out.extend_from_slice(&self.deadline.unwrap_or(0).to_be_bytes());
        if self.kind != Kind::String {
            out.extend_from_slice(&self.id.to_be_bytes());
        }
        if self.kind == Kind::Pages {
            out.extend_from_slice(&self.len.to_be_bytes());
            out.extend_from_slice(&self.mark.to_be_bytes());
        }
        out
    }
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let number = |at: usize| {
            bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes)
        };
        let (&[version, kind], deadline) = (bytes.first_chunk()?, number(2)?);
        let kind = Kind::of(kind)?;
        let (expected, size) = match kind {
            Kind::String => (VERSION, 10),
            Kind::Pages => (VERSION_OF_PAGES, 34),
            Kind::List if version == VERSION_OF_BOUNDED => (VERSION_OF_BOUNDED, 18),
            Kind::Hash
                if [VERSION_OF_EXPIRING, VERSION_OF_LONG_AND_EXPIRING].contains(&version) =>
            {
                (version, 18)
            }
            Kind::Hash | Kind::Set | Kind::SortedSet if version == VERSION_OF_LONG => (version, 18),
            _ => (VERSION, 18),
        };
        if version != expected || bytes.len() != size {
            return None;
        }
        let deadline = Some(deadline).filter(|d| *d > 0);
        let mut head = Head::new(kind, deadline, 0);
        head.bounded = version == VERSION_OF_BOUNDED;
        head.expiring = [VERSION_OF_EXPIRING, VERSION_OF_LONG_AND_EXPIRING].contains(&version);
        head.long = [VERSION_OF_LONG, VERSION_OF_LONG_AND_EXPIRING].contains(&version);
        if kind != Kind::String {
            head.id = number(10)?;
        }
        if kind == Kind::Pages {
            // A client addresses each bit by a signed number.
            head.len = number(18).filter(|len| *len <= i64::MAX as u64 / 8)?;
            head.mark = number(26)?;
        }
        Some(head)
    }
    pub fn is_expired(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| is_past(deadline, now))
    }
    /// Returns the range `[start, end)` of the tuples under the id of this head: elements, or
    /// pages.
    pub fn beneath(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        match self.kind {
            Kind::String => None,
            Kind::Pages => Some((page_key(self.id, 0), page_key(self.id, u64::MAX))),
            _ => Some(whole(self.id)),
        }
    }
}

pub fn head_key(key: &[u8]) -> Vec<u8> {
    [b"k", key].concat()
}

/// Returns whether a deadline has passed. Both times are whole milliseconds, rounded down, so the
/// key still exists within the millisecond of its deadline. Otherwise it would vanish up to a
/// millisecond early.
pub fn is_past(deadline: u64, now: u64) -> bool {
    deadline < now
}

pub fn deadline_key(deadline: u64, key: &[u8]) -> Vec<u8> {
    [b"t".as_slice(), &deadline.to_be_bytes(), key].concat()
}

/// Returns the deadline and the key in a tuple of the deadline index.
pub fn parse_deadline_key(tuple: &[u8]) -> Option<(u64, &[u8])> {
    let (deadline, key) = tuple.strip_prefix(b"t")?.split_first_chunk()?;
    Some((u64::from_be_bytes(*deadline), key))
}

/// Returns the user's key in the tuple of a head or of a deadline.
pub fn key_in_tuple(tuple: &Bytes) -> Option<Bytes> {
    let key = tuple.strip_prefix(b"k").or_else(|| Some(parse_deadline_key(tuple)?.1))?;
    Some(tuple.slice_ref(key))
}

fn element(id: u64, part: u8, rest: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(10 + rest.iter().map(|r| r.len()).sum::<usize>());
    out.push(b'e');
    out.extend_from_slice(&id.to_be_bytes());
    out.push(part);
    rest.iter().for_each(|r| out.extend_from_slice(r));
    out
}

/// Number of bytes before an element's name in its key.
pub const ELEMENT: usize = 10;

pub fn count_key(id: u64) -> Vec<u8> {
    element(id, 0, &[])
}

/// Returns the tuple key of an element, from the part of its key that represents its name. For a
/// list and a stream this part is always the name.
pub fn element_key(id: u64, part: &[u8]) -> Vec<u8> {
    element(id, 1, &[part])
}

/// Returns the tuple key of a field or a member, from its name, which may be long.
pub fn member_key(id: u64, name: &[u8]) -> Vec<u8> {
    element_key(id, &in_key(name))
}

/// Returns the tuple key of a member in the order of scores, from its name, which may be long.
pub fn order_key(id: u64, score: f64, member: &[u8]) -> Vec<u8> {
    element(id, 2, &[&sortable(score), &in_key(member)])
}

/// Returns the range `[start, end)` of all elements in the order of their names.
pub fn elements(id: u64) -> (Vec<u8>, Vec<u8>) {
    (element(id, 1, &[]), element(id, 2, &[]))
}

/// Returns the range `[start, end)` of all members in the order of their scores.
pub fn ordered(id: u64) -> (Vec<u8>, Vec<u8>) {
    (element(id, 2, &[]), element(id, 3, &[]))
}

/// Returns the tuple key of the back reference from a collection to its key. A collection that an
/// older program created or renamed has no back reference, or a stale one, so its head is
/// authoritative.
pub fn owner_key(id: u64) -> Vec<u8> {
    element(id, 3, &[])
}

/// Returns the tuple key of the lower or the upper bound of a list. No element has a number below
/// the lower bound or above the upper bound.
pub fn bound_key(id: u64, right: bool) -> Vec<u8> {
    element(id, 4, &[&[u8::from(right)]])
}

/// Returns the tuple key of the deadline of a field, from the part of its key that represents its
/// name. A deadline without the field was left over by an older program, and has no meaning.
pub fn field_deadline_key(id: u64, part: &[u8]) -> Vec<u8> {
    element(id, 5, &[part])
}

/// Returns the tuple key of a field in the order of deadlines, from the part of its key that
/// represents its name. The tuple is valid only if the deadline of the field is `deadline`.
pub fn field_order_key(id: u64, deadline: u64, part: &[u8]) -> Vec<u8> {
    element(id, 6, &[&deadline.to_be_bytes(), part])
}

/// Returns the range `[start, end)` of the fields in the order of deadlines whose deadlines have
/// passed at `now`.
pub fn due_fields(id: u64, now: u64) -> (Vec<u8>, Vec<u8>) {
    // A deadline has passed when it is before the present millisecond. See `is_past`.
    (element(id, 6, &[]), element(id, 6, &[&now.to_be_bytes()]))
}

/// Returns the range `[start, end)` of the fields whose deadlines are at `from` or later.
pub fn fields_from(id: u64, from: u64) -> (Vec<u8>, Vec<u8>) {
    (element(id, 6, &[&from.to_be_bytes()]), element(id, 7, &[]))
}

/// Returns the deadline in a tuple of the order of deadlines, and the part that represents the
/// field.
pub fn parse_field_order(tuple: &[u8]) -> Option<(u64, &[u8])> {
    let (deadline, name) = tuple.get(ELEMENT..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*deadline), name))
}

/// Converts the tuple key of a field, or a bound of a range of fields, to the tuple key of its
/// deadline.
pub fn deadline_of_element(tuple: &[u8]) -> Vec<u8> {
    let mut tuple = tuple.to_vec();
    if let Some(part) = tuple.get_mut(ELEMENT - 1) {
        *part = part.wrapping_add(4);
    }
    tuple
}

/// Parses the tuple key of a collection into its id, the number of the part, and the rest. In
/// part 1 the rest represents the name of an element.
pub fn parse_element(tuple: &[u8]) -> Option<(u64, u8, &[u8])> {
    let (id, rest) = tuple.strip_prefix(b"e")?.split_first_chunk()?;
    let (part, name) = rest.split_first()?;
    Some((u64::from_be_bytes(*id), *part, name))
}

/// Returns the range of all tuples of a collection except its head.
pub fn whole(id: u64) -> (Vec<u8>, Vec<u8>) {
    (element(id, 0, &[]), element(id, u8::MAX, &[]))
}

/// Size of a page of a long string, in bytes.
pub const PAGE: usize = 4096;

/// Returns the tuple key of a page.
pub fn page_key(id: u64, number: u64) -> Vec<u8> {
    [b"p".as_slice(), &id.to_be_bytes(), &number.to_be_bytes()].concat()
}

/// Returns the number of the page with this tuple key.
pub fn page_number(key: &[u8]) -> Option<u64> {
    let (_, number) = key.strip_prefix(b"p")?.split_first_chunk::<8>()?;
    number.try_into().ok().map(u64::from_be_bytes)
}

/// Encodes a number as bytes that have the same order. NaN does not occur, and both zeros have
/// the same encoding.
pub fn sortable(score: f64) -> [u8; 8] {
    let bits = (score + 0.0).to_bits();
    let bits = if bits >> 63 == 1 { !bits } else { bits ^ (1 << 63) };
    bits.to_be_bytes()
}

/// Decodes the bytes of [`sortable`].
pub fn from_sortable(bytes: [u8; 8]) -> f64 {
    let bits = u64::from_be_bytes(bytes);
    f64::from_bits(if bits >> 63 == 1 { bits ^ (1 << 63) } else { !bits })
}

pub const WRONGTYPE: Failure = Failure::Coded(
    ErrorCode::WrongType,
    std::borrow::Cow::Borrowed("Operation against a key holding the wrong kind of value"),
);

/// The current state of a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    /// The type of the value, or `None` if the key does not exist or has expired.
    pub kind: Option<Kind>,
    /// The stored head, even if the key has expired.
    pub head: Option<Head>,
    /// The number of elements of a collection, or of bytes of a string in pages.
    pub count: i64,
}

impl Live {
    pub fn exists(&self) -> bool {
        self.kind.is_some()
    }
    /// Returns the deadline of an existing key.
    pub fn deadline(&self) -> Option<u64> {
        self.kind.and(self.head).and_then(|head| head.deadline)
    }
    /// Returns the head of an existing string in pages.
    pub fn pages(&self) -> Option<Head> {
        self.kind.filter(|kind| *kind == Kind::Pages).and(self.head)
    }
    /// Returns the id of the collection of this kind, or `None` if the key does not exist.
    /// Returns an error if the key has a value of another kind.
    pub fn collection(&self, kind: Kind) -> Result<Option<u64>, Failure> {
        match (self.kind, self.head) {
            (None, _) => Ok(None),
            (Some(found), Some(head)) if found == kind => Ok(Some(head.id)),
            _ => Err(WRONGTYPE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        for kind in Kind::ALL {
            for deadline in [None, Some(1), Some(u64::MAX)] {
                let id = if kind == Kind::String { 0 } else { 0x0102_0304_0506_0708 };
                let mut head = Head::new(kind, deadline, id);
                if kind == Kind::Pages {
                    (head.len, head.mark) = (1 << 40, u64::MAX);
                }
                let bytes = head.encode();
                assert_eq!(Head::decode(&bytes), Some(head));
                for cut in 0..bytes.len() {
                    assert_eq!(Head::decode(&bytes[..cut]), None);
                }
                assert_eq!(Head::decode(&[bytes.as_slice(), b"x"].concat()), None);
            }
        }
        let old = Head { bounded: false, ..Head::new(Kind::List, None, 7) };
        assert_eq!(old.encode()[0], 1);
        assert_eq!(Head::decode(&old.encode()), Some(old), "a list without bounds");
        let hash = [&[3, 1][..], &[0; 16]].concat();
        assert_eq!(Head::decode(&hash), None, "only lists have bounds");
        let expiring = Head { expiring: true, ..Head::new(Kind::Hash, Some(9), 7) };
        assert_eq!(expiring.encode()[0], 4);
        assert_eq!(Head::decode(&expiring.encode()), Some(expiring), "fields with deadlines");
        let set = [&[4, 2][..], &[0; 16]].concat();
        assert_eq!(Head::decode(&set), None, "only fields have deadlines");
        for kind in [Kind::Hash, Kind::Set, Kind::SortedSet] {
            let long = Head { long: true, ..Head::new(kind, Some(9), 7) };
            assert_eq!(long.encode()[0], 5);
            assert_eq!(Head::decode(&long.encode()), Some(long), "long names");
        }
        let both = Head { long: true, ..expiring };
        assert_eq!(both.encode()[0], 6);
        assert_eq!(Head::decode(&both.encode()), Some(both), "long names and deadlines");
        for (version, kind) in [(5, 4), (6, 2), (5, 6), (7, 1)] {
            let other = [&[version, kind][..], &[0; 16]].concat();
            assert_eq!(Head::decode(&other), None, "{version} of kind {kind}");
        }
        assert_eq!(Head::decode(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 1]), None, "another version");
        assert_eq!(Head::decode(&[1, 9, 0, 0, 0, 0, 0, 0, 0, 1]), None, "an unknown kind");
        let mut long = Head::new(Kind::Pages, None, 7).encode();
        for first in [0x80, 0x10] {
            long[18] = first;
            assert_eq!(Head::decode(&long), None, "a length beyond all bounds");
        }
    }

    #[test]
    fn scores_sort_as_numbers_do() {
        let scores = [f64::NEG_INFINITY, -1e300, -2.5, -1.0, -1e-300, 0.0, 1e-300, 1.0, 2.5, 1e300];
        for pair in scores.windows(2) {
            assert!(sortable(pair[0]) < sortable(pair[1]), "{pair:?}");
        }
        for score in scores.into_iter().chain([f64::INFINITY]) {
            assert_eq!(from_sortable(sortable(score)), score);
        }
        assert_eq!(sortable(-0.0), sortable(0.0));
    }

    #[test]
    fn deadlines_sort_by_time_and_name_their_key() {
        assert!(deadline_key(255, b"z") < deadline_key(256, b"a"));
        assert_eq!(parse_deadline_key(&deadline_key(7, b"key")), Some((7, b"key".as_slice())));
        assert_eq!(parse_deadline_key(b"t1234567"), None);
        let of_field = field_order_key(1, 255, b"z");
        assert!(of_field < field_order_key(1, 256, b"a"));
        assert_eq!(parse_field_order(&of_field), Some((255, b"z".as_slice())));
        let (start, end) = due_fields(1, 256);
        assert!(start <= of_field && of_field < end && field_order_key(1, 256, b"") >= end);
        assert_eq!(deadline_of_element(&element_key(1, b"f")), field_deadline_key(1, b"f"));
        assert_eq!(parse_deadline_key(b"k12345678"), None);
    }
}
