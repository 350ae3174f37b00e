//! Bounds the accumulated updates of one key in a transaction, as `commit::updates` does outside of
//! transactions.

use bytes::Bytes;
use vt_tree::{Lookup, Value};

use super::handle::Transaction;
use super::registry::Transactions;
use super::state::Open;
use crate::commit::updates;
use crate::error::Result;
use crate::journal::record::{Op, Ops};

impl Transaction {
    pub(super) fn fold_updates(&self, changes: &mut Ops) -> Result<()> {
        if !changes.iter().any(|(_, op)| matches!(op, Op::Update(..))) {
            return Ok(());
        }
        match &self.read()?.open {
            Some(open) => open.fold_updates(&self.shared.registry, changes),
            None => Ok(()),
        }
    }
}

impl Open {
    /// Replaces an update in `changes` by a put of the resulting value if the transaction already
    /// has many updates of that key.
    pub(super) fn fold_updates(&self, registry: &Transactions, changes: &mut Ops) -> Result<()> {
        for at in 0..changes.len() {
            let (dict, Op::Update(key, update)) = &changes[at] else { continue };
            let own = self.write_set.get(*dict, key)?;
            let Lookup::Updated { base: None, update: before, .. } = &own else { continue };
            let len = before.bytes().len();
            // The value does not yet include earlier changes of the same batch to the key.
            let touched = |(_, op): &(_, Op)| op.key() == key || matches!(op, Op::DeleteRange(..));
            if len <= updates::SHORT || changes[..at].iter().any(touched) {
                continue;
            }
            let value = self.view(registry).get(*dict, key)?;
            if updates::are_long(len, value.as_ref().map_or(0, Bytes::len)) {
                let value = Value::Inline(update.apply(value.as_deref()));
                changes[at].1 = Op::Put(key.clone(), value);
            }
        }
        Ok(())
    }
}
