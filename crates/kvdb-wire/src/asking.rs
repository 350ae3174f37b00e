//! How views of a client ask: again after a connection has failed, until the deadline of the call,
//! and for what they have not got yet.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use env::Instant;

use crate::body::MAX_KEYS;
use crate::error::Result;
use crate::reply::Reply;

/// Pauses before a failed request is sent again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Bytes of the keys of one request, about.
const KEY_BYTES: usize = 1 << 20;

/// Calls `call` until its connection does not fail, or the deadline is over.
pub(crate) fn retried(deadline: Instant, mut call: impl FnMut() -> Result<Reply>) -> Result<Reply> {
    let mut pause = PAUSES.0;
    loop {
        match call() {
            Err(e) if e.is_of_connection() && Instant::now() + pause <= deadline => {
                tracing::debug!("asked again after {pause:?}: {e}");
                env::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
            answered => return answered,
        }
    }
}

/// The first of these keys, as many as one request may have.
pub(crate) fn first_keys(keys: &[Bytes]) -> Vec<Bytes> {
    let mut bytes = 0;
    let fitting = keys.iter().take(MAX_KEYS).take_while(|key| {
        bytes += key.len();
        bytes <= KEY_BYTES.max(key.len())
    });
    fitting.cloned().collect()
}

/// The values of keys of which some are `found`. The others are asked for, each once, however often
/// it is among them; an answer may be of the first ones only.
pub(crate) fn with_missing(
    keys: &[Bytes],
    mut found: Vec<Option<Option<Bytes>>>,
    mut ask: impl FnMut(&[Bytes]) -> kvdb::Result<Vec<Option<Bytes>>>,
) -> kvdb::Result<Vec<Option<Bytes>>> {
    let mut places: Vec<usize> = (0..keys.len()).filter(|&i| found[i].is_none()).collect();
    while !places.is_empty() {
        let mut seen = HashSet::new();
        let missing = places.iter().map(|&i| &keys[i]).filter(|key| seen.insert(*key));
        let missing: Vec<Bytes> = missing.cloned().collect();
        let values = ask(&missing)?;
        let known: HashMap<&Bytes, Option<Bytes>> = missing.iter().zip(values).collect();
        places.retain(|&place| match known.get(&keys[place]) {
            Some(value) => {
                found[place] = Some(value.clone());
                false
            }
            None => true,
        });
    }
    Ok(found.into_iter().map(Option::flatten).collect())
}
