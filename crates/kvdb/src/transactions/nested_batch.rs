//! A nested batch: changes that are applied to a transaction atomically. Until then, only reads
//! through the batch see them.
//!
//! The changes are kept in memtables of their own, with sequence numbers of their own, above the
//! transaction's write set as of the beginning of the batch. Changes that other callers make to the
//! transaction in the meantime are not visible in the batch, and dropping the batch does not undo
//! them, as a rollback to a savepoint would.

use bytes::Bytes;
use env::sync::atomic::Ordering;

use super::handle::Transaction;
use crate::commit::batch::Batch;
use crate::commit::{SpaceClaim, Valid};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::Ops;
use crate::read::view::View;
use crate::write_set::WriteSet;

/// Approximate memory of a change in addition to its key and value. These are counted twice, as
/// each change is kept for reads and for being applied.
const OVERHEAD: usize = 128;

/// Changes of a transaction that are not applied yet. Dropping the batch discards them; locks that
/// a serializable transaction has taken for them are kept.
pub struct NestedBatch {
    transaction: Transaction,
    write_set: WriteSet,
    changes: Ops,
    bytes: usize,
    claim: SpaceClaim,
}

impl NestedBatch {
    pub(super) fn new(transaction: Transaction, write_set: &WriteSet) -> NestedBatch {
        NestedBatch {
            transaction,
            write_set: write_set.above(),
            changes: Ops::new(),
            bytes: 0,
            claim: SpaceClaim { removes: true, promised: false },
        }
    }

    /// Returns the value of `key` with the changes of the batch.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.transaction.lock_key(dict, key, false)?;
        self.view()?.get(dict, key)
    }

    /// Returns a view of the transaction as if the batch were finished now. Reading it takes no
    /// locks.
    pub fn view(&self) -> Result<View> {
        Ok(self.transaction.base()?.with(self.write_set.clone()))
    }

    /// Adds the changes of a batch; on any error none of them is added.
    pub fn apply(&mut self, batch: Batch) -> Result<()> {
        let Valid { changes, claim, pin, .. } = self.transaction.validate(batch)?;
        let bytes = changes.iter().map(|(_, op)| 2 * op.bytes() + OVERHEAD).sum::<usize>();
        self.transaction.shared.registry.reserve_nested(bytes)?;
        self.bytes += bytes;
        self.claim.removes &= claim.removes;
        // The pin keeps the places of the values for the transaction as well as for the nested
        // batch, as both share it.
        self.write_set.write(&changes, pin);
        self.changes.extend(changes);
        Ok(())
    }

    /// Applies the changes to the transaction; on any error none of them is made.
    pub fn finish(self) -> Result<()> {
        self.transaction.make(&self.changes, self.claim)
    }
}

impl Drop for NestedBatch {
    fn drop(&mut self) {
        self.transaction.shared.registry.nested_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Error, Isolation, Kvdb, TransactionOptions};

    fn batch(dict: DictionaryId, keys: &[&'static str], value: &'static str) -> Batch {
        let mut batch = Batch::new();
        keys.iter().for_each(|key| batch.put(dict, *key, value));
        batch
    }

    #[test]
    fn a_nested_batch_is_seen_in_itself_until_it_is_finished() {
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let db = Kvdb::in_memory();
            let dict = db.open_dictionary("d").expect("made").id();
            let t = db.begin(isolation).expect("begun");
            t.put(dict, "a", "0").expect("put");
            let mut nested = t.nested_batch().expect("begun");
            nested.apply(batch(dict, &["a", "b"], "1")).expect("applied");
            let mut gone = Batch::new();
            gone.delete(dict, "b");
            nested.apply(gone).expect("applied");
            assert_eq!(nested.get(dict, b"a").expect("read").as_deref(), Some(&b"1"[..]));
            assert_eq!(nested.get(dict, b"b").expect("read"), None);
            assert_eq!(
                t.get(dict, b"a").expect("read").as_deref(),
                Some(&b"0"[..]),
                "not made yet"
            );
            // Changes that others have made to the transaction stay, whether or not the nested
            // batch is finished.
            t.put(dict, "c", "1").expect("put");
            drop(nested);
            let mut nested = t.nested_batch().expect("begun");
            nested.apply(batch(dict, &["b"], "2")).expect("applied");
            nested.finish().expect("made");
            t.commit(Durability::Buffered).expect("committed");
            let values = [b"a", b"b", b"c"].map(|key| db.get(dict, key).expect("read"));
            assert_eq!(
                values.map(|v| v.map(|v| v.to_vec())),
                [Some(b"0".to_vec()), Some(b"2".to_vec()), Some(b"1".to_vec())]
            );
        }
    }

    #[test]
    fn a_nested_batch_does_not_see_what_others_change_in_the_transaction() {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").expect("made").id();
        let t = db.begin(Isolation::Snapshot).expect("begun");
        t.put(dict, "a", "0").expect("put");
        t.put(dict, "b", "0").expect("put");
        let mut nested = t.nested_batch().expect("begun");
        nested.apply(batch(dict, &["mine", "more", "most"], "1")).expect("applied");
        t.put(dict, "a", "theirs").expect("put");
        t.put(dict, "new", "theirs").expect("put");
        t.delete(dict, "b").expect("deleted");
        let seen = |nested: &NestedBatch| -> Vec<(Bytes, Bytes)> {
            let view = nested.view().expect("read");
            let found = view.scan(dict, b"", b"", 100).expect("read");
            for (key, value) in &found {
                assert_eq!(nested.get(dict, key).expect("read").as_ref(), Some(value));
            }
            found
        };
        let want = [("a", "0"), ("b", "0"), ("mine", "1"), ("more", "1"), ("most", "1")];
        let want: Vec<(Bytes, Bytes)> =
            want.iter().map(|(k, v)| (Bytes::from(*k), Bytes::from(*v))).collect();
        assert_eq!(seen(&nested), want);
        assert_eq!(nested.get(dict, b"new").expect("read"), None);
        // Nor does the batch see changes that the transaction spills.
        for i in 0..40 {
            t.put(dict, format!("much/{i}"), vec![0; 100_000]).expect("put");
        }
        assert!(t.info().run_bytes > 0, "it was written out");
        assert_eq!(seen(&nested), want);
        nested.finish().expect("made");
        assert_eq!(t.get(dict, b"a").expect("read").as_deref(), Some(&b"theirs"[..]));
        assert_eq!(t.get(dict, b"most").expect("read").as_deref(), Some(&b"1"[..]));
    }

    #[test]
    fn a_nested_batch_of_a_transaction_that_has_ended_is_refused() {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").expect("made").id();
        let t = db.begin_with(TransactionOptions::default()).expect("begun");
        let mut nested = t.nested_batch().expect("begun");
        nested.apply(batch(dict, &["a"], "1")).expect("applied");
        t.abort();
        assert!(matches!(nested.get(dict, b"a"), Err(Error::NoTransaction(_))));
        assert!(matches!(nested.apply(batch(dict, &["b"], "1")), Err(Error::NoTransaction(_))));
        assert!(matches!(nested.finish(), Err(Error::NoTransaction(_))));
        assert!(matches!(t.nested_batch(), Err(Error::NoTransaction(_))));
    }
}
