//! What one branch has changed since a state that it has in common with another, taken over by a
//! transaction of that other one: each key that is there as it was in the common state becomes what
//! the first branch has made of it. No large value is read for it, unless the states are those of
//! another store: then values are copied.

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

/// Changes that are made at once, and bytes of values of another store, which are copied.
const STEP: usize = 1024;
const STEP_BYTES: usize = 1 << 20;

/// A key that both branches have changed since, and that no merge routine joins.
#[derive(Clone, Copy, Debug)]
pub struct Clash<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value that both had; `None`: no such key.
    pub base: Option<&'a [u8]>,
    /// The other branch's value.
    pub changed: Option<&'a [u8]>,
    /// The transaction's value.
    pub here: Option<&'a [u8]>,
}

/// The decision on such a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It gets what the other branch has.
    Taken,
    /// It stays as it is here.
    Left,
    /// It gets this value.
    Put(Bytes),
    /// It is given back as a conflict.
    Conflict,
}

impl Transaction {
    /// Takes over what differs in a dictionary between the states `base` and `changed`, where it
    /// may have another number in each of the two and in the transaction. Both may be states of
    /// another store. What `into` has no more
    /// as it was in `base` is joined by the merge routine of `into`, or settled by `settle`. Gives
    /// the keys in conflict: if there are any, the transaction is of no use but to look at.
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
