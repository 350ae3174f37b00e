//! `COPY … DB`: copies a key of the selected dictionary to another dictionary, in one
//! transaction, as the payload that `DUMP` makes of it. The value is therefore limited to the
//! number of bytes that `RESTORE` accepts.

use super::dump;
use super::multi::{Locks, atomically};
use crate::dictionaries::{Place, Selected};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::session::Session;

/// Copies the key `from` to the key `to` of another dictionary. Returns whether it was copied:
/// `from` must exist, and `to` must not exist unless `replace` is set.
pub fn to_other(
    s: &mut Session,
    (from, to): (&[u8], &[u8]),
    other: &Selected,
    replace: bool,
    out: &mut Output,
) -> Result<bool, Failure> {
    let mut copied = false;
    let mut work = |s: &mut Session, _: &mut Output| -> Outcome {
        copied = copy(s, (from, to), other, replace)?;
        Ok(())
    };
    if matches!(s.place, Place::Snapshot(..)) {
        work(s, out)?;
    } else if s.exec.is_running() {
        // `EXEC` and scripts lock only keys of the selected dictionary, so they run again under
        // all locks. Without the lock of `to`, the order of its events could differ from the
        // order of its commits.
        if !s.exec.are_all_locked() {
            return Err(Failure::again_and_again());
        }
        work(s, out)?;
    } else {
        let selected = s.dictionary.clone();
        let places = [(&selected, from), (other, to)];
        atomically(s, &[], Locks::Places(&places), out, work)?;
    }
    Ok(copied)
}

fn copy(
    s: &mut Session,
    (from, to): (&[u8], &[u8]),
    other: &Selected,
    replace: bool,
) -> Result<bool, Failure> {
    let seen = s.see()?;
    let deadline = seen.live(from)?.deadline();
    let payload = dump::payload_of(s, &seen, from)?;
    drop(seen);
    let Some(payload) = payload else { return Ok(false) };
    let selected = std::mem::replace(&mut s.dictionary, other.clone());
    let stored = dump::store(s, to, &payload, deadline, replace);
    s.dictionary = selected;
    stored
}
