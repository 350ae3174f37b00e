//! Reads objects, and waits for object storage that cannot be reached.

use std::io;
use std::ops::Range;
use std::time::Duration;

use env::thread;
use objects::ObjectsError;

use super::{Remote, io_error};
use crate::{Error, Purpose};

/// The first pause after an attempt that failed, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
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
            let error = match self.second_gets.get(&self.objects, &key, range.clone()) {
                Ok(object) if object.bytes.len() as u64 == len => {
                    self.counters.got(purpose, len);
                    if waited > Duration::ZERO {
                        self.counters.reached();
                    }
                    return Ok(object.bytes);
                }
                // The end of an answer can be lost on the way, but a short object does not become
                // longer.
                Ok(object) if object.len < range.end => {
                    return Err(damage(format!(
                        "object {key} in {} has {} bytes where {} are referred to",
                        self.objects.place(),
                        object.len,
                        range.end
                    )));
                }
                Ok(object) => io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("{} bytes of {len} of object {key} arrived", object.bytes.len()),
                ),
                Err(e @ (ObjectsError::NotFound { .. } | ObjectsError::OutOfRange { .. })) => {
                    return Err(damage(format!(
                        "zones are missing in {}: {e}; if they were deleted there because the state \
                         was replaced long ago, mount or fork the newest one",
                        self.objects.place()
                    )));
                }
                // The answer may have been damaged on its way.
                Err(e @ ObjectsError::Damaged { .. }) if was_damaged => {
                    return Err(damage(e.to_string()));
                }
                Err(e @ ObjectsError::Secret { .. }) => {
                    return Err(io::Error::other(e.to_string()));
                }
                Err(e) => {
                    was_damaged = matches!(e, ObjectsError::Damaged { .. });
                    io::Error::other(e.to_string())
                }
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
}

/// Returns an error that waiting does not mend.
fn damage(what: String) -> io::Error {
    io_error(Error::corrupt(what, 0))
}
