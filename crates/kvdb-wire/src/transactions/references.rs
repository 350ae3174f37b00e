//! The values that a batch of a transaction puts by reference. They come from the dictionaries of
//! the transaction alone.

use kvdb::{Isolation, ServedChange};

use super::{Answer, Held, Transactions, no_dictionary};
use crate::changes::reference_of;
use crate::referred::Referred;

impl Transactions {
    /// Finds the values that these changes refer to. In a serializable transaction it locks their
    /// keys first.
    pub(super) fn referred(&self, opened: &Held, changes: &[ServedChange]) -> Answer<Referred> {
        let references = || changes.iter().filter_map(reference_of).map(|one| &one.of);
        if let Some((dict, _)) = references().find(|(dict, _)| !opened.may(*dict)) {
            return Err(no_dictionary(*dict));
        }
        if references().next().is_none() {
            return Ok(Referred::default());
        }
        let transaction = &opened.transaction;
        if transaction.isolation() == Isolation::Serializable {
            for (dict, key) in references() {
                transaction.lock_key(*dict, key, false).map_err(|e| self.failed(opened, e))?;
            }
        }
        let view = transaction.view().map_err(|e| self.failed(opened, e))?;
        Referred::of(&self.db, &view, changes, |e| self.failed(opened, e))
    }
}
