//! Changes of keys in the form in which Python passes them, and the checks of keys and values.

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, MAX_KEY, MAX_VALUE};
use pyo3::pybacked::PyBackedStr;

use crate::failure::{Failure, Outcome};
use crate::octets::Octets;

/// A change of a batch in the form in which Python passes it: the kind of change, the dictionary,
/// the key or start, and the value or stop.
pub type Change = (PyBackedStr, PyBackedStr, Octets, Option<Octets>);

/// Checks a key before any other effect of a change, such as the creation of its dictionary.
pub fn check_key(key: &[u8]) -> Outcome<()> {
    if key.len() <= MAX_KEY {
        return Ok(());
    }
    Err(Failure::Invalid(format!("a key has at most {MAX_KEY} bytes, not {}", key.len())))
}

/// Checks the length of a value. A longer value would end the connection.
pub fn check_value(value: &[u8]) -> Outcome<()> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    Err(Failure::Invalid(format!("a value has at most {MAX_VALUE} bytes, not {}", value.len())))
}

fn delete_range(batch: &mut Batch, dict: DictionaryId, start: &[u8], stop: Option<&[u8]>) {
    let start = Bytes::copy_from_slice(start);
    match stop {
        Some(stop) if *stop > *start => {
            batch.delete_range(dict, start, Bytes::copy_from_slice(stop));
        }
        Some(_) => {}
        None => {
            // This deletes the keys before the last possible key, and that key.
            let last = Bytes::from(vec![0xff; MAX_KEY]);
            batch.delete_range(dict, start, last.clone());
            batch.delete(dict, last);
        }
    }
}

/// Adds a change to a batch.
pub fn add_change(
    batch: &mut Batch,
    dict: DictionaryId,
    (what, _, key, value): &Change,
) -> Outcome<()> {
    let copied = |octets: &Octets| Bytes::copy_from_slice(octets);
    check_key(key)?;
    match (&**what, value) {
        ("put", Some(value)) => batch.put(dict, copied(key), copied(value)),
        ("delete", None) => batch.delete(dict, copied(key)),
        ("delete_range", stop) => delete_range(batch, dict, key, stop.as_deref()),
        ("delete_prefix", None) => batch.delete_prefix(dict, &**key),
        (what, _) => return Err(Failure::Invalid(format!("{what} is no change of a key"))),
    }
    Ok(())
}

/// Returns the number that a value represents in decimal.
pub fn number_of(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}
