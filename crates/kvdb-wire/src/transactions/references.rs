//! The values that a batch puts by reference. They are those that the transaction had before the
//! batch, so that a batch has the same effect however its changes are put together, and they come
//! from the dictionaries of the transaction alone.

use kvdb::{Isolation, ServedChange, StoredValue};

use super::{Answer, Held, Transactions, no_dictionary};
use crate::changes::{REFERRED, memory_of_change, reference_of};
use crate::failure::{Failure, FailureCode};
use crate::unfinished::MAX_CHANGE;

/// The values of a batch's references, in the order of these.
#[derive(Default)]
pub(super) struct Referred {
    /// `None` for a key that has no value.
    pub values: Vec<Option<StoredValue>>,
    /// Their bytes, which count as if they were sent.
    pub bytes: u64,
}

impl Transactions {
    /// Finds the values that these changes refer to. None of them is read that has a place of its
    /// own.
    pub(super) fn referred(&self, opened: &Held, changes: &[ServedChange]) -> Answer<Referred> {
        let mut referred = Referred::default();
        let references = || changes.iter().filter_map(reference_of).map(|one| &one.of);
        if let Some((dict, _)) = references().find(|(dict, _)| !opened.may(*dict)) {
            return Err(no_dictionary(*dict));
        }
        if references().next().is_none() {
            return Ok(referred);
        }
        let transaction = &opened.transaction;
        if transaction.isolation() == Isolation::Serializable {
            for (dict, key) in references() {
                transaction.lock_key(*dict, key, false).map_err(|e| self.failed(opened, e))?;
            }
        }
        let view = transaction.view().map_err(|e| self.failed(opened, e))?;
        let mut memory = changes.iter().map(memory_of_change).sum::<usize>();
        for (dict, key) in references() {
            let value = view.stored(*dict, key).map_err(|e| self.failed(opened, e))?;
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
