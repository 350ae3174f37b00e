//! The payload of `FUNCTION DUMP` and `RESTORE`. It has the same bytes as the libraries in an RDB
//! file of Redis, so that libraries can be moved between the two servers.
//!
//! ```text
//! 0xf5, and the code of a library as a string   for each library
//! version u16                                   10, that of Redis 7.0
//! CRC-64 u64                                    of everything before it
//! ```
//!
//! The numbers at the end are little-endian. A string begins with its length, in one, two, five
//! or nine bytes, or is compressed by LZF. This server does not write compressed strings.

use crc_fast::CrcAlgorithm::Crc64Redis;

use crate::failure::Failure;

const FUNCTION: u8 = 0xf5;
/// The opcode that libraries had before Redis 7.0 was released.
const BEFORE_RELEASE: u8 = 0xf6;
const VERSION: u16 = 10;
/// The newest version in which libraries have this form: Redis 8.
const NEWEST: u16 = 12;

/// Makes the payload of libraries.
pub fn write<'a>(codes: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for code in codes {
        out.push(FUNCTION);
        match code.len() {
            len @ ..64 => out.push(len as u8),
            len @ ..0x4000 => out.extend_from_slice(&(len as u16 | 0x4000).to_be_bytes()),
            len => {
                out.push(0x80);
                out.extend_from_slice(&(len as u32).to_be_bytes());
            }
        }
        out.extend_from_slice(code);
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    let sum = crc_fast::checksum(Crc64Redis, &out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Returns the codes of the libraries of a payload. Each may have up to `longest` bytes, and all
/// of them up to `together`, because a few compressed bytes may expand to many.
pub fn read(payload: &[u8], (longest, together): (usize, usize)) -> Result<Vec<Vec<u8>>, Failure> {
    const WRONG: Failure =
        Failure::Request(std::borrow::Cow::Borrowed("DUMP payload version or checksum are wrong"));
    let (checked, sum) = payload.split_last_chunk().ok_or(WRONG)?;
    let (mut rest, version) = checked.split_last_chunk().ok_or(WRONG)?;
    let is_right = u64::from_le_bytes(*sum) == crc_fast::checksum(Crc64Redis, checked);
    if u16::from_le_bytes(*version) > NEWEST || !is_right {
        return Err(WRONG);
    }
    let (mut codes, mut left) = (Vec::new(), together);
    while let Some((kind, tail)) = rest.split_first() {
        match *kind {
            FUNCTION => {}
            BEFORE_RELEASE => {
                return Err(Failure::request("Pre-GA function format not supported"));
            }
            _ => return Err(Failure::request("given type is not a function")),
        }
        let (code, tail) =
            string(tail, longest).ok_or(Failure::request("Failed loading library payload"))?;
        left = left.checked_sub(code.len()).ok_or_else(|| {
            Failure::Limit(format!("all libraries together have {together} bytes at most"))
        })?;
        codes.push(code);
        rest = tail;
    }
    Ok(codes)
}

/// The length of a string, or the way in which the string is encoded.
enum Length {
    Bytes(usize),
    Encoded(u8),
}

fn length(bytes: &[u8]) -> Option<(Length, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let low = first & 0x3f;
    Some(match (first >> 6, first) {
        (0, _) => (Length::Bytes(usize::from(low)), rest),
        (1, _) => {
            let (&second, rest) = rest.split_first()?;
            (Length::Bytes(usize::from(low) << 8 | usize::from(second)), rest)
        }
        (2, 0x80) => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (Length::Bytes(usize::try_from(u32::from_be_bytes(*bytes)).ok()?), rest)
        }
        (2, 0x81) => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (Length::Bytes(usize::try_from(u64::from_be_bytes(*bytes)).ok()?), rest)
        }
        (3, _) => (Length::Encoded(low), rest),
        _ => return None,
    })
}

/// Reads a string of up to `longest` bytes. A string that encodes a number is refused, because it
/// is not code.
fn string(bytes: &[u8], longest: usize) -> Option<(Vec<u8>, &[u8])> {
    let plain = |bytes| match length(bytes)? {
        (Length::Bytes(len), rest) => Some((len, rest)),
        (Length::Encoded(_), _) => None,
    };
    match length(bytes)? {
        (Length::Bytes(len), rest) if len <= longest => {
            let (string, rest) = rest.split_at_checked(len)?;
            Some((string.to_vec(), rest))
        }
        (Length::Encoded(3), rest) => {
            let (compressed, rest) = plain(rest)?;
            let (len, rest) = plain(rest)?;
            let (compressed, rest) = rest.split_at_checked(compressed)?;
            Some((decompress(compressed, len.min(longest + 1), longest)?, rest))
                .filter(|(string, _)| string.len() == len)
        }
        _ => None,
    }
}

/// Decompresses LZF. A control byte below 32 precedes that number of literal bytes plus one; any
/// other control byte has a length and a distance back.
fn decompress(mut from: &[u8], len: usize, longest: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(len.min(64 << 10));
    while let Some((&control, rest)) = from.split_first() {
        let control = usize::from(control);
        if control < 32 {
            let (literal, rest) = rest.split_at_checked(control + 1)?;
            out.extend_from_slice(literal);
            from = rest;
        } else {
            let (more, rest) = match control >> 5 {
                7 => rest.split_first().map(|(more, rest)| (usize::from(*more), rest))?,
                _ => (0, rest),
            };
            let (&low, rest) = rest.split_first()?;
            let distance = (control & 0x1f) << 8 | usize::from(low);
            let begin = out.len().checked_sub(distance + 1)?;
            // The copied bytes may overlap with the bytes that are being added.
            for at in begin..begin + (control >> 5) + more + 2 {
                out.push(out[at]);
            }
            from = rest;
        }
        if out.len() > longest {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: (usize, usize) = (1000, 1000);
    const CODE: &[u8] = b"#!lua name=l\nredis.register_function('f',function() return 1 end)\n--";

    #[test]
    fn payloads_of_redis_are_read() {
        // These are payloads of `FUNCTION DUMP` of Redis 7.0.15, with and without
        // `rdbcompression`.
        let code = [CODE, &[b'a'; 160]].concat();
        let compressed = b"\xf5\xc3@H@\xe4\x1f#!lua name=l\nredis.register_func\x08tion('f',\xe0\x00\x0c\x12) return 1 end)\n--a\xe0\x94\x00\x01aa\n\x00\x958E\xec\x08\xf6\xba\xd2";
        assert_eq!(read(compressed, MOST).expect("sound"), std::slice::from_ref(&code));
        let plain = [&b"\xf5@\xe4"[..], &code, b"\n\x00\x04\xdb\x12e\xb0\xf0\xb1\xb6"].concat();
        assert_eq!(read(&plain, MOST).expect("sound"), std::slice::from_ref(&code));
        assert_eq!(write([&code[..]].into_iter()), plain);
        let none = b"\n\x00]\x9b\\@\x0f\x7f\xa2\xda";
        assert_eq!(write([].into_iter()), none);
        assert!(read(none, MOST).expect("sound").is_empty());
        let short = (200, 1000);
        assert!(read(compressed, short).is_err() && read(&plain, short).is_err(), "too long");
    }

    #[test]
    fn libraries_of_a_payload_are_bounded_together() {
        let codes = [&[b'a'; 400][..], &[b'b'; 400], &[b'c'; 400]];
        let payload = write(codes.into_iter());
        assert_eq!(read(&payload, (400, 1200)).expect("sound"), codes);
        let refused = read(&payload, (400, 1199)).expect_err("too long").to_string();
        assert!(refused.contains("all libraries together have 1199 bytes at most"), "{refused}");
    }

    #[test]
    fn what_is_no_payload_is_refused() {
        let sealed = |bytes: &[u8]| {
            let mut out = [bytes, &VERSION.to_le_bytes()].concat();
            let sum = crc_fast::checksum(Crc64Redis, &out);
            out.extend_from_slice(&sum.to_le_bytes());
            out
        };
        let told = |bytes: &[u8]| read(bytes, MOST).expect_err("no payload").to_string();
        const WRONG: &str = "ERR DUMP payload version or checksum are wrong";
        let sound = write([CODE].into_iter());
        for cut in 0..sound.len() {
            assert_eq!(told(&sound[..cut]), WRONG, "cut at {cut}");
        }
        assert_eq!(told(&[&sound[..sound.len() - 1], b"x"].concat()), WRONG);
        assert_eq!(told(&sealed(b"\x00\x01v")), "ERR given type is not a function");
        assert_eq!(told(&sealed(b"\xf6\x01v")), "ERR Pre-GA function format not supported");
        for string in [
            &b"\xf5"[..],
            b"\xf5\x05abc",
            b"\xf5\xc0\x01",
            b"\xf5\xc3",
            b"\xf5\xc3\x02\x05\x20\x00",
            b"\xf5\xc3\x03\x05\x00a\x20",
            b"\xf5\xc3\x02\x09\x00a",
            b"\xf5\x81\xff\xff\xff\xff\xff\xff\xff\xffabc",
            b"\xf5\x82abc",
        ] {
            assert_eq!(told(&sealed(string)), "ERR Failed loading library payload", "{string:?}");
        }
    }
}
