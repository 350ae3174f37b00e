//! Applies the changes that one branch has made since a state that it has in common with another to
//! a transaction of that other branch. Each key that still is as it was in the common state gets
//! the value that the first branch has given it. No large value is read for this, unless the states
//! belong to another store: then values are copied.

use std::sync::Arc;

use bytes::Bytes;

use super::conflicts::{self, Merged};
use super::handle::Transaction;
use super::undo::is_still;
use crate::commit::batch::Batch;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::cursor::Tuple;
use crate::read::view::{StoredValue, View};

/// Changes that are applied at once, and the bytes of values copied from another store that are.
const STEP: usize = 1024;
const STEP_BYTES: usize = 1 << 20;

/// A key that both branches have changed since the common state, and that no merge routine joins.
#[derive(Clone, Copy, Debug)]
pub struct Clash<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value in the common state. `None` if the key did not exist.
    pub base: Option<&'a [u8]>,
    /// The value in the other branch.
    pub changed: Option<&'a [u8]>,
    /// The value in the transaction.
    pub here: Option<&'a [u8]>,
}

/// The resolution of a [`Clash`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The key gets the value of the other branch.
    Taken,
    /// The key keeps the value of the transaction.
    Left,
    /// The key gets this value.
    Put(Bytes),
    /// The key is returned as a conflict.
    Conflict,
}

impl Transaction {
    /// Applies to the dictionary `into` the changes of a dictionary between the states `base` and
    /// `changed`. The dictionary may have a different number in each of the two states and in the
    /// transaction, and both may be states of another store. A key that in `into` is no longer as
    /// it was in `base` is joined by the merge routine of `into`, or resolved by `settle`. Returns
    /// the keys in conflict: if there are any, the transaction should only be inspected and not
    /// committed.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "green")?;
    /// db.snapshot("monday")?;
    /// db.clone_snapshot("monday", "try")?;
    /// let other = db.open_dictionary_in("try", "fruit")?;
    /// other.insert("apple", "red")?;
    /// fruit.insert("pear", "green")?;
    ///
    /// let (base, tried) = (db.lineage("try")?.origin, db.view());
    /// let t = db.begin(kvdb::Isolation::Snapshot)?;
    /// let (from, to) = ((&base, fruit.id()), (&tried, other.id()));
    /// let clashes = t.carry(from, to, fruit.id(), &mut |_| kvdb::Settled::Conflict)?;
    /// assert!(clashes.is_empty());
    /// t.commit(kvdb::Durability::Buffered)?;
    /// assert_eq!(fruit.get("apple")?.unwrap(), "red");
    /// assert_eq!(fruit.get("pear")?.unwrap(), "green");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn carry(
        &self,
        base: (&View, DictionaryId),
        changed: (&View, DictionaryId),
        into: DictionaryId,
        settle: &mut dyn FnMut(Clash<'_>) -> Settled,
    ) -> Result<Vec<Bytes>> {
        let (now, source) = (self.view()?, Arc::new(changed.0.clone()));
        let routine = conflicts::routine(&self.shared.registry, into);
        let by_value = !changed.0.is_of_store(&now);
        let (mut clashes, mut batch, mut copied) = (Vec::new(), Batch::new(), 0);
        for change in base.0.difference(base.1, changed.0, changed.1)? {
            let change = change?;
            let (key, was, is) = (change.key, change.before, change.after);
            let mut taken = is_still(&now, into, &key, was.as_ref())?;
            if !taken && !is_still(&now, into, &key, is.as_ref())? {
                let value = |tuple: Option<&Tuple>| tuple.map(Tuple::value).transpose();
                let (was, mine) = (value(was.as_ref())?, value(is.as_ref())?);
                let theirs = now.get(into, &key)?;
                let (was, mine, theirs) = (was.as_deref(), mine.as_deref(), theirs.as_deref());
                let joined = routine
                    .as_ref()
                    .map_or(Merged::Conflict, |routine| routine.merge(&key, was, mine, theirs));
                match joined {
                    Merged::Put(value) => batch.put(into, key.clone(), value),
                    Merged::Delete => batch.delete(into, key.clone()),
                    Merged::Conflict => {
                        let clash = Clash { key: &key, base: was, changed: mine, here: theirs };
                        match settle(clash) {
                            Settled::Taken => taken = true,
                            Settled::Left => {}
                            Settled::Put(value) => batch.put(into, key.clone(), value),
                            Settled::Conflict => clashes.push(key.clone()),
                        }
                    }
                }
            }
            if taken {
                match &is {
                    Some(is) => {
                        copied += if by_value { is.value_len() } else { 0 };
                        batch.put_stored(into, key, StoredValue::of(is, &source)?);
                    }
                    None => batch.delete(into, key),
                }
            }
            if batch.len() >= STEP || copied >= STEP_BYTES {
                self.apply(std::mem::take(&mut batch))?;
                copied = 0;
            }
        }
        self.apply(batch)?;
        Ok(clashes)
    }
}
