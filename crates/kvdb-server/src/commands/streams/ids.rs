//! The IDs of entries, and their parsing and formatting. An ID is a time in milliseconds and a
//! sequence number within this time.

use crate::failure::Failure;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub ms: u64,
    pub seq: u64,
}

pub const INVALID: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "Invalid stream ID specified as stream command argument",
));

/// The longest ID that Redis accepts, in bytes.
const LONGEST: usize = 127;

impl Id {
    pub const MIN: Id = Id { ms: 0, seq: 0 };
    pub const MAX: Id = Id { ms: u64::MAX, seq: u64::MAX };

    pub fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => self.ms.checked_add(1).map(|ms| Id { ms, seq: 0 }),
        }
    }
    fn previous(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => self.ms.checked_sub(1).map(|ms| Id { ms, seq: u64::MAX }),
        }
    }
    pub fn bytes(self) -> [u8; 16] {
        ((u128::from(self.ms) << 64) | u128::from(self.seq)).to_be_bytes()
    }
    pub fn from_bytes(bytes: [u8; 16]) -> Id {
        let both = u128::from_be_bytes(bytes);
        Id { ms: (both >> 64) as u64, seq: both as u64 }
    }
    pub fn text(self) -> String {
        format!("{}-{}", self.ms, self.seq)
    }

    /// Parses an ID. `seq` is the sequence number if the argument has none.
    pub fn parse(arg: &[u8], seq: u64) -> Result<Id, Failure> {
        match Wanted::parse(arg, seq)? {
            Wanted::Id(id) => Ok(id),
            Wanted::Auto | Wanted::Within(_) => Err(INVALID),
        }
    }
    /// Parses an ID like [`Id::parse`], or `-` or `+` for the ends of a stream.
    pub fn parse_bound(arg: &[u8], seq: u64) -> Result<Id, Failure> {
        match arg {
            b"-" => Ok(Id::MIN),
            b"+" => Ok(Id::MAX),
            _ => Id::parse(arg, seq),
        }
    }
    /// Parses the first ID of a range. The argument names this ID or, after `(`, the ID before
    /// it.
    pub fn parse_start(arg: &[u8]) -> Result<Id, Failure> {
        match arg.strip_prefix(b"(").filter(|rest| !rest.is_empty()) {
            Some(rest) => Id::parse(rest, 0)?
                .next()
                .ok_or(Failure::request("invalid start ID for the interval")),
            None => Id::parse_bound(arg, 0),
        }
    }
    /// Parses the last ID of a range.
    pub fn parse_end(arg: &[u8]) -> Result<Id, Failure> {
        match arg.strip_prefix(b"(").filter(|rest| !rest.is_empty()) {
            Some(rest) => Id::parse(rest, u64::MAX)?
                .previous()
                .ok_or(Failure::request("invalid end ID for the interval")),
            None => Id::parse_bound(arg, u64::MAX),
        }
    }
}

/// The requested ID of a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The server chooses the ID (`*`).
    Auto,
    /// The server chooses the sequence number within this time (`ms-*`).
    Within(u64),
    Id(Id),
}

impl Wanted {
    pub fn parse(arg: &[u8], seq: u64) -> Result<Wanted, Failure> {
        if arg == b"*" {
            return Ok(Wanted::Auto);
        }
        if arg.len() > LONGEST {
            return Err(INVALID);
        }
        let at = arg.iter().position(|byte| *byte == b'-');
        let ms = number(&arg[..at.unwrap_or(arg.len())]).ok_or(INVALID)?;
        match at.map(|at| &arg[at + 1..]) {
            None => Ok(Wanted::Id(Id { ms, seq })),
            Some(b"*") => Ok(Wanted::Within(ms)),
            Some(rest) => Ok(Wanted::Id(Id { ms, seq: number(rest).ok_or(INVALID)? })),
        }
    }

    /// Returns the requested ID, which must be greater than `last`. `now` is in milliseconds since
    /// 1970.
    pub fn after(self, last: Id, now: u64) -> Result<Id, Failure> {
        const SMALL: Failure = Failure::Request(std::borrow::Cow::Borrowed(
            "The ID specified in XADD is equal or smaller than the target stream top item",
        ));
        let id = match self {
            Wanted::Auto if now > last.ms => Some(Id { ms: now, seq: 0 }),
            Wanted::Auto => last.next(),
            Wanted::Within(ms) if ms == last.ms => last.next().filter(|id| id.ms == ms),
            Wanted::Within(ms) => Some(Id { ms, seq: 0 }),
            Wanted::Id(id) => Some(id),
        };
        id.filter(|id| *id > last).ok_or(SMALL)
    }
}

/// Parses a number like C; the only sign that is accepted is a plus.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.trim_start_matches([' ', '\t', '\n', '\r', '\u{b}', '\u{c}']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_redis_reads_them() {
        let id = |ms, seq| Some(Id { ms, seq });
        assert_eq!(Id::parse(b"5", 7).ok(), id(5, 7));
        assert_eq!(Id::parse(b"5-3", 7).ok(), id(5, 3));
        assert_eq!(Id::parse(b"18446744073709551615-18446744073709551615", 0).ok(), Some(Id::MAX));
        for wrong in ["", "-", "+", "*", "5-*", "5-", "-5", "5--1", "x", "18446744073709551616"] {
            assert!(Id::parse(wrong.as_bytes(), 0).is_err(), "{wrong}");
        }
        assert_eq!(Id::parse_start(b"(5").ok(), id(5, 1));
        assert_eq!(Id::parse_end(b"(5-0").ok(), id(4, u64::MAX));
        assert!(Id::parse_end(b"(0-0").is_err() && Id::parse_start(b"(-").is_err());
        assert_eq!(Id::from_bytes(Id { ms: 1, seq: 2 }.bytes()), Id { ms: 1, seq: 2 });
    }

    #[test]
    fn a_new_id_is_above_the_last_one() {
        let last = Id { ms: 9, seq: u64::MAX };
        assert_eq!(Wanted::Auto.after(last, 5).ok(), Some(Id { ms: 10, seq: 0 }));
        assert_eq!(Wanted::Auto.after(last, 11).ok(), Some(Id { ms: 11, seq: 0 }));
        assert!(Wanted::Within(9).after(last, 11).is_err(), "there is none left in it");
        assert_eq!(Wanted::Within(0).after(Id::MIN, 1).ok(), Some(Id { ms: 0, seq: 1 }));
        assert!(Wanted::Id(last).after(last, 11).is_err());
        assert!(Wanted::Auto.after(Id::MAX, 1).is_err());
    }
}
