//! The readers of bytes of this crate as functions of bytes, for the fuzz targets under `fuzz/`
//! and the generator in `tests/it/parsers.rs`: each takes any bytes, and must neither panic nor run
//! away.

use std::hint::black_box;

use crate::limits::Limits;
use crate::request::{Parser, Progress};

/// Requests that a client sends, one behind the other. The first byte says after how many bytes the
/// rest comes later: what is found must not depend on the pieces in which it arrives.
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
                // What comes behind a request does not change it.
                early => early,
            };
            let passed_over =
                |found| matches!(found, Ok(Progress::Empty(_) | Progress::Refused(..)));
            if found != again && passed_over(found.clone()) && passed_over(again.clone()) {
                // One that is too large goes in the pieces in which it comes.
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

/// What `RESTORE` is given, behind the version and the checksum, which fuzzing cannot guess.
pub fn payloads(data: &[u8]) {
    black_box(crate::commands::is_sound_payload(data));
}

/// Replies that a server sends.
pub fn replies(mut data: &[u8]) {
    while crate::read_reply(&mut data, 0).is_ok() {}
}
