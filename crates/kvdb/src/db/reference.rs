//! Puts values by reference through a scope. Only the keys of the values are passed, however large
//! the values are. A local store refers to the place of a large value ([`Batch::put_stored`]). A
//! server that holds the store does the same when it receives the keys.

use bytes::Bytes;

use crate::commit::batch::{Batch, Durability};
use crate::db::scope::Scope;
use crate::db::served::ServedChange;
use crate::dictionary::DictionaryId;
use crate::error::Result;

/// A value by reference: a key gets the value that another key had before the batch. If the other
/// key had no value, the key is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The dictionary of the key that gets the value.
    pub dict: DictionaryId,
    /// The key that gets the value.
    pub key: Bytes,
    /// The dictionary and the key that have the value.
    pub of: (DictionaryId, Bytes),
}

impl Scope {
    /// Applies, as one change, a batch and then the puts of these references. A reference has the
    /// value that its key had before the batch. On the mainline, the caller must prevent other
    /// changes of these keys; a serializable transaction locks them.
    ///
    /// ```
    /// # use kvdb::{Batch, Durability, Kvdb, Reference, Scope};
    /// # let db = Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// d.insert("here", vec![7; 1 << 20])?;
    /// let of = (d.id(), "here".into());
    /// let reference = Reference { dict: d.id(), key: "there".into(), of };
    /// let scope = Scope::Mainline(db.clone());
    /// scope.apply_with(Batch::new(), vec![reference], Durability::Buffered)?;
    /// assert_eq!(d.get("there")?, d.get("here")?);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn apply_with(
        &self,
        mut batch: Batch,
        references: Vec<Reference>,
        durability: Durability,
    ) -> Result<()> {
        if let Scope::Served(view) = self {
            let mut changes = ServedChange::of(batch)?;
            changes.extend(references.into_iter().map(ServedChange::Refer));
            return view.apply(changes);
        }
        if let Scope::Transaction(transaction) = self {
            for Reference { of: (dict, key), .. } in &references {
                transaction.lock_key(*dict, key, false)?;
            }
        }
        if !references.is_empty() {
            let view = self.view()?;
            for Reference { dict, key, of: (of_dict, of) } in references {
                match view.stored(of_dict, &of)? {
                    Some(value) => batch.put_stored(dict, key, value),
                    None => batch.delete(dict, key),
                }
            }
        }
        self.apply(batch, durability)
    }
}
