//! The parsers of this crate as functions of bytes, for the fuzz targets under `fuzz/` and the
//! generator in `tests/it/parsers.rs`. Each takes arbitrary bytes, must not panic, and must
//! terminate.

use std::hint::black_box;

use crate::limits::Limits;
use crate::request::{Parser, Progress};

/// Parses the requests of a client, one after another. The first byte is the number of bytes that
/// arrive before the rest, because the result must not depend on the pieces in which a request
/// arrives.
pub fn requests(data: &[u8]) {
    let Some((&first, mut bytes)) = data.split_first() else { return };
    let limits = Limits::default();
    for trusted in [true, false] {
        loop {
            let (mut whole, mut pieces) = (Parser::default(), Parser::default());
            let found = whole.parse(bytes, &limits, trusted);
            let cut = usize::from(first).min(bytes.len());
            let again = match pieces.parse(&bytes[..cut], &limits, trusted) {
                Ok(Progress::More) => pieces.parse(bytes, &limits, trusted),
                // Bytes after a request do not change the result.
                early => early,
            };
            let passed_over =
                |found| matches!(found, Ok(Progress::Empty(_) | Progress::Refused(..)));
            if found != again && passed_over(found.clone()) && passed_over(again.clone()) {
                // A request that is too large is skipped in the pieces in which it arrives.
                break;
            }
            assert_eq!(found, again, "cut after {cut} bytes");
            let len = match found {
                Ok(Progress::Request(len)) => {
                    let arguments: Vec<&[u8]> = whole.arguments(bytes).from(0).collect();
                    let others: Vec<&[u8]> = pieces.arguments(bytes).from(0).collect();
                    assert_eq!(arguments, others, "cut after {cut} bytes");
                    assert!(len > 0 && len <= bytes.len());
                    black_box(whole.arguments(bytes).to_request().size());
                    len
                }
                Ok(Progress::Empty(len) | Progress::Refused(len, _)) => len,
                Ok(Progress::More) | Err(_) => break,
            };
            assert!(len > 0 && len <= bytes.len(), "{len} of {} bytes", bytes.len());
            bytes = &bytes[len..];
        }
    }
}

/// Parses a payload of `RESTORE`, without the version and the checksum, which fuzzing cannot guess.
pub fn payloads(data: &[u8]) {
    black_box(crate::commands::is_sound_payload(data));
}

/// Parses the replies that a server sends.
pub fn replies(mut data: &[u8]) {
    while crate::read_reply(&mut data, 0).is_ok() {}
}
