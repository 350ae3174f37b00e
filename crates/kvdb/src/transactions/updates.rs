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

#[cfg(test)]
mod tests {
    use vt_tree::Update;

    use super::super::conflicts::{Now, Others, any};
    use crate::{Isolation, Kvdb};

    /// A text cannot be added to, which shows whether the value was read.
    #[test]
    fn a_value_that_others_have_only_added_to_is_not_read_under_the_lock() {
        // The side with fewer items is compared with the other one.
        for more in [0, 10] {
            let db = Kvdb::in_memory();
            let d = db.open_dictionary("d").expect("made");
            d.insert("n", "text").expect("put");
            db.flush().expect("flushed");
            let t = db.begin(Isolation::Snapshot).expect("begun");
            t.update(d.id(), "n", Update::add(1)).expect("added");
            (0..more).for_each(|n| t.put(d.id(), format!("m{n}"), "1").expect("put"));
            let registry = db.transaction_registry();
            let check = |now: Now<'_>| {
                let state = t.shared.state.read();
                let write_set = &state.open.as_ref().expect("open").write_set;
                any(registry, write_set, Others::Store(t.begun_after()), None, now)
            };
            d.update("n", Update::add(5)).expect("added");
            assert!(check(Now::Newest(registry)).expect("checked"));
            assert!(!check(Now::Locked(registry)).expect("checked"), "it was read");
            d.insert("n", "other").expect("put");
            assert!(check(Now::Locked(registry)).expect("checked"), "others have put it");
        }
    }
}
