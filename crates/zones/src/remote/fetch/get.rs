//! Reads objects, and waits for object storage that cannot be reached.

use std::io;
use std::ops::Range;
use std::time::Duration;

use env::thread;
use objects::{Object, ObjectsError};

use super::{Remote, io_error};
use crate::{Error, Purpose};

/// The first pause after a failed attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause after a failed attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Remote {
    /// Reads a range of an object, with retries until the timeout.
    pub(super) fn get(
        &self,
        purpose: Purpose,
        key: objects::Key,
        range: Range<u64>,
    ) -> io::Result<bytes::Bytes> {
        let len = range.end - range.start;
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        let mut was_damaged = false;
        loop {
            self.counters.asked(purpose);
            let answer = self.second_gets.get(&self.objects, &key, range.clone());
            let error = match answer {
                Ok(object) if object.bytes.len() as u64 == len => {
                    self.counters.got(purpose, len);
                    if waited > Duration::ZERO {
                        self.counters.reached();
                    }
                    return Ok(object.bytes);
                }
                answer => self.reason_to_retry(answer, &key, &range, &mut was_damaged)?,
            };
            // A wait must not keep a closed store open.
            if waited >= self.options.timeout || self.is_closed() {
                return Err(error);
            }
            if waited.is_zero() {
                self.counters.waits(&self.objects.place(), &error);
            }
            thread::sleep(pause);
            waited += pause;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Returns the reason for another attempt after an answer without all bytes of `range`. Returns
    /// an error if no attempt can succeed. `was_damaged` is set after a damaged answer; a second
    /// damaged answer is final.
    fn reason_to_retry(
        &self,
        answer: objects::Result<Object>,
        key: &objects::Key,
        range: &Range<u64>,
        was_damaged: &mut bool,
    ) -> io::Result<io::Error> {
        match answer {
            // The end of an answer can be lost in transit, but an object that is too short does not
            // become longer.
            Ok(object) if object.len < range.end => Err(damage(format!(
                "object {key} in {} has {} bytes where {} are referred to",
                self.objects.place(),
                object.len,
                range.end
            ))),
            Ok(object) => Ok(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "{} bytes of {} of object {key} arrived",
                    object.bytes.len(),
                    range.end - range.start
                ),
            )),
            Err(e @ (ObjectsError::NotFound { .. } | ObjectsError::OutOfRange { .. })) => {
                Err(damage(format!(
                    "zones are missing in {}: {e}; if they were deleted there because the state \
                     was replaced long ago, mount or fork the newest one",
                    self.objects.place()
                )))
            }
            // The answer may have been damaged in transit.
            Err(e @ ObjectsError::Damaged { .. }) if *was_damaged => Err(damage(e.to_string())),
            Err(e @ ObjectsError::Secret { .. }) => Err(io::Error::other(e.to_string())),
            Err(e) => {
                *was_damaged = matches!(e, ObjectsError::Damaged { .. });
                Ok(io::Error::other(e.to_string()))
            }
        }
    }
}

/// Returns an error that waiting does not resolve.
fn damage(what: String) -> io::Error {
    io_error(Error::corrupt(what, 0))
}
