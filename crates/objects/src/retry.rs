//! Repeats requests while the patience of the caller lasts.

use std::time::Duration;

use env::thread;

use crate::Objects;
use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::object::{Object, Part, Tag};

/// The patience of a caller: the number of requests, and the time to sleep before each repetition.
/// The time is `first` before the first repetition, and doubles with each further one, up to
/// `longest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The largest number of requests. 0 counts as 1.
    pub requests: u32,
    /// The sleep before the second request.
    pub first: Duration,
    /// The longest sleep.
    pub longest: Duration,
}

impl Default for Patience {
    /// Returns a patience of eight requests within about 6 seconds.
    fn default() -> Self {
        Patience { requests: 8, first: Duration::from_millis(50), longest: Duration::from_secs(2) }
    }
}

impl Patience {
    /// Starts to count the requests of one operation.
    pub(crate) fn begin(self) -> Attempts {
        Attempts { left: self.requests.max(1) - 1, sleep: self.first, longest: self.longest }
    }
}

/// The requests and sleeps that remain of a patience.
pub(crate) struct Attempts {
    left: u32,
    sleep: Duration,
    longest: Duration,
}

impl Attempts {
    /// Sleeps before the next request, or returns `false` if no request remains.
    pub fn next(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if !self.sleep.is_zero() {
            thread::sleep(self.sleep.min(self.longest));
        }
        self.sleep = self.sleep.saturating_mul(2).min(self.longest);
        true
    }
}

/// Reads like [`Objects::get`], and repeats the read after transient errors and after answers that
/// are shorter than the requested part. The bytes may still be damaged, which only a checksum in
/// them can reveal.
pub fn get_patiently(
    objects: &dyn Objects,
    key: &Key,
    part: Part,
    patience: Patience,
) -> Result<Object> {
    patiently(patience, || {
        objects.get(key, part.clone()).and_then(|object| whole(key, &part, object))
    })
}

/// Reads like [`get_patiently`], but by [`Objects::get_other`], so that the object is not read if
/// it has this tag.
pub fn get_other_patiently(
    objects: &dyn Objects,
    key: &Key,
    part: Part,
    tag: &Tag,
    patience: Patience,
) -> Result<Option<Object>> {
    patiently(patience, || {
        let other = objects.get_other(key, part.clone(), tag)?;
        other.map(|object| whole(key, &part, object)).transpose()
    })
}

/// Returns an error unless the object has all bytes of the part.
fn whole(key: &Key, part: &Part, object: Object) -> Result<Object> {
    let range = part.within(key, object.len)?;
    if object.bytes.len() as u64 == range.end - range.start {
        return Ok(object);
    }
    let why = "the answer was cut off".into();
    Err(ObjectsError::Unsure { key: key.to_string(), why })
}

fn patiently<T>(patience: Patience, request: impl Fn() -> Result<T>) -> Result<T> {
    let mut attempts = patience.begin();
    loop {
        match request() {
            Err(error) if error.may_be_retried() && attempts.next() => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_double_up_to_the_longest() {
        let run = env::schedule::run(1, || {
            let patience = Patience {
                requests: 5,
                first: Duration::from_secs(1),
                longest: Duration::from_secs(3),
            };
            let mut attempts = patience.begin();
            let mut times = Vec::new();
            while attempts.next() {
                times.push(env::schedule::now().as_secs());
            }
            times
        });
        assert_eq!(run.expect("it ends").value, [1, 3, 6, 9]);
    }
}
