//! The values that a batch puts by reference. They are those that the view of its client had before
//! the batch, so that a batch has the same effect however its changes are put together.

use kvdb::{ServedChange, StoredValue, View};

use crate::changes::{REFERRED, memory_of_change, reference_of};
use crate::failure::{Failure, FailureCode};
use crate::unfinished::MAX_CHANGE;

/// The values of a batch's references, in the order of these.
#[derive(Default)]
pub(crate) struct Referred {
    /// `None` for a key that has no value.
    pub values: Vec<Option<StoredValue>>,
    /// Their bytes, which count as if they were sent.
    pub bytes: u64,
}

impl Referred {
    /// Finds the values in the view. None of them is read that has a place of its own. The caller
    /// has checked that the client may read the dictionaries.
    pub fn of(
        view: &View,
        changes: &[ServedChange],
        failed: impl Fn(kvdb::Error) -> Failure,
    ) -> Result<Referred, Failure> {
        let mut referred = Referred::default();
        let mut memory = changes.iter().map(memory_of_change).sum::<usize>();
        for (dict, key) in changes.iter().filter_map(reference_of).map(|one| &one.of) {
            let value = view.stored(*dict, key).map_err(&failed)?;
            if let Some(value) = &value {
                referred.bytes = referred.bytes.saturating_add(value.len() as u64);
                memory = memory.saturating_add(value.copied().saturating_sub(REFERRED));
            }
            if memory > MAX_CHANGE {
                let what =
                    format!("the values by reference in a batch take over {MAX_CHANGE} bytes");
                return Err(Failure { code: FailureCode::Limit, what });
            }
            referred.values.push(value);
        }
        Ok(referred)
    }
}
