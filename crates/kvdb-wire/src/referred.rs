//! The values that a batch puts by reference. They are those that the view of its client had before
//! the batch, so that a batch has the same effect however its changes are put together.

use kvdb::{Kvdb, ServedChange, StoredValue, View};

use crate::changes::{REFERRED, memory_of_change, reference_of};
use crate::failure::{Failure, FailureCode};
use crate::unfinished::MAX_CHANGE;

/// Bytes of values without a place from which on they get one before they are referred to.
const WORTH_PLACING: usize = 64 << 10;

/// The values of a batch's references, in the order of these.
#[derive(Default)]
pub(crate) struct Referred {
    /// `None` for a key that has no value.
    pub values: Vec<Option<StoredValue>>,
    /// Their bytes, which count as if they were sent.
    pub bytes: u64,
    /// Bytes of the values that would be copied and can have a place.
    waiting: usize,
}

impl Referred {
    /// Finds the values in a view of `db`. None of them is read that has a place of its own. The
    /// caller has checked that the client may read the dictionaries.
    pub fn of(
        db: &Kvdb,
        view: &View,
        changes: &[ServedChange],
        failed: impl Fn(kvdb::Error) -> Failure,
    ) -> Result<Referred, Failure> {
        let (mut referred, mut fits) = Referred::found(view, changes, &failed)?;
        // Values that wait in memory for their places would be copied. They get them now, unless
        // the store is full.
        if referred.waiting >= WORTH_PLACING && db.write_out().is_ok() {
            (referred, fits) = Referred::found(view, changes, &failed)?;
        }
        if fits {
            return Ok(referred);
        }
        let what = format!("the values by reference in a batch take over {MAX_CHANGE} bytes");
        Err(Failure { code: FailureCode::Limit, what })
    }

    /// Finds the values, and returns whether a batch has room for them. Those that are found do not
    /// take more than that in memory.
    fn found(
        view: &View,
        changes: &[ServedChange],
        failed: &impl Fn(kvdb::Error) -> Failure,
    ) -> Result<(Referred, bool), Failure> {
        let mut referred = Referred::default();
        let mut memory = changes.iter().map(memory_of_change).sum::<usize>();
        for (dict, key) in changes.iter().filter_map(reference_of).map(|one| &one.of) {
            let value = view.stored(*dict, key).map_err(failed)?;
            if let Some(value) = &value {
                referred.bytes = referred.bytes.saturating_add(value.len() as u64);
                memory = memory.saturating_add(value.copied().saturating_sub(REFERRED));
                // Shorter ones may lie in blocks of keys, where they stay.
                if value.copied() >= REFERRED {
                    referred.waiting = referred.waiting.saturating_add(value.copied());
                }
            }
            if memory > MAX_CHANGE {
                return Ok((referred, false));
            }
            referred.values.push(value);
        }
        Ok((referred, true))
    }
}
