//! Keys of the view that is open: one by one, and in ranges.

use bytes::Bytes;
use kvdb::{Batch, Durability, MAX_KEY, MAX_VALUE, ScopeCursor};

use crate::failure::{Failure, Outcome};
use crate::store::Store;

/// A longer key would end the connection.
fn check_key(key: &[u8]) -> Outcome<()> {
    if key.len() <= MAX_KEY {
        return Ok(());
    }
    let what = format!("a key has at most {MAX_KEY} bytes, not {}", key.len());
    Err(Failure::invalid(what))
}

/// A longer value would end the connection.
fn check_value(value: &[u8]) -> Outcome<()> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    let what = format!("a value has at most {MAX_VALUE} bytes, not {}", value.len());
    Err(Failure::invalid(what))
}

fn apply(store: &Store, batch: Batch) -> Outcome<()> {
    // The changes are on the disk of the server with the commit of their transaction.
    Ok(store.scope()?.apply(batch, Durability::Buffered)?)
}

/// Fails if the view does not change, before anything else is found to be wrong.
fn must_be_writable(store: &Store) -> Outcome<()> {
    match store.scope()?.writable() {
        true => Ok(()),
        false => Err(kvdb::Error::ReadOnly("it is a snapshot".into()).into()),
    }
}

/// Returns the value of a key.
pub fn get(store: &Store, key: &[u8]) -> Outcome<Option<Bytes>> {
    check_key(key)?;
    match store.dictionary()? {
        Some(dict) => Ok(store.scope()?.get(dict, key)?),
        None => Ok(None),
    }
}

/// Sets a key to a value.
pub fn put(store: &Store, key: &[u8], value: &[u8]) -> Outcome<()> {
    must_be_writable(store)?;
    check_key(key)?;
    check_value(value)?;
    let dict = store.dictionary_to_write()?;
    let mut batch = Batch::new();
    batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    apply(store, batch)
}

/// Deletes a key. Returns whether it was there.
pub fn delete(store: &Store, key: &[u8]) -> Outcome<bool> {
    must_be_writable(store)?;
    if get(store, key)?.is_none() {
        return Ok(false);
    }
    let mut batch = Batch::new();
    batch.delete(store.dictionary_to_write()?, Bytes::copy_from_slice(key));
    apply(store, batch)?;
    Ok(true)
}

/// Deletes the keys of `[from, to)`. An empty `to` is no bound.
pub fn delete_range(store: &Store, from: &[u8], to: &[u8]) -> Outcome<()> {
    must_be_writable(store)?;
    check_key(from)?;
    check_key(to)?;
    let Some(dict) = store.dictionary()? else { return Ok(()) };
    let mut batch = Batch::new();
    if to.is_empty() {
        // The range ends before the last key that there can be, which is deleted besides.
        let last = Bytes::from(vec![0xff; MAX_KEY]);
        batch.delete_range(dict, Bytes::copy_from_slice(from), last.clone());
        batch.delete(dict, last);
    } else if from < to {
        batch.delete_range(dict, Bytes::copy_from_slice(from), Bytes::copy_from_slice(to));
    } else {
        return Ok(());
    }
    apply(store, batch)
}

/// A walk over a range.
pub struct Walk {
    /// `None` if the range can have no keys.
    cursor: Option<ScopeCursor>,
    reverse: bool,
    /// The values are read, too.
    pub values: bool,
}

impl Walk {
    /// Begins a walk over `[from, to)`. An empty `to` is no bound.
    pub fn begin(
        store: &Store,
        (from, to): (&[u8], &[u8]),
        reverse: bool,
        values: bool,
    ) -> Outcome<Walk> {
        check_key(from)?;
        check_key(to)?;
        let may_have_some = to.is_empty() || from < to;
        let cursor = match store.dictionary()?.filter(|_| may_have_some) {
            None => None,
            Some(dict) => {
                let mut cursor = store.scope()?.cursor(dict, from, to)?;
                if !values {
                    cursor = cursor.keys_only();
                }
                if reverse {
                    cursor.seek_to_end()?;
                }
                Some(cursor)
            }
        };
        Ok(Walk { cursor, reverse, values })
    }

    /// Returns the next key and its value, which is empty if values are not read. Returns `None`
    /// after the last key.
    pub fn step(&mut self) -> Outcome<Option<(Bytes, Bytes)>> {
        let Some(cursor) = &mut self.cursor else { return Ok(None) };
        let tuple = if self.reverse { cursor.prev()? } else { cursor.next()? };
        match tuple {
            Some(tuple) => Ok(Some(tuple.into_parts()?)),
            None => Ok(None),
        }
    }
}
