//! Reads of keys in a scope of the engine, with the locks that a serializable transaction takes.

use bytes::Bytes;
use kvdb::DictionaryId;

use crate::batches::check_key;
use crate::failure::Outcome;
use crate::range::Walk;

/// Returns the state that a scope sees of `[start, end)`, which a serializable transaction locks.
/// An empty end is the end of the dictionary.
pub(super) fn read_range(
    scope: &kvdb::Scope,
    dict: DictionaryId,
    start: &[u8],
    end: &[u8],
) -> Outcome<kvdb::View> {
    if let kvdb::Scope::Transaction(transaction) = scope {
        transaction.lock_range(dict, start, end, false)?;
    }
    Ok(scope.view()?)
}

pub(super) fn value(scope: &kvdb::Scope, dict: DictionaryId, key: &[u8]) -> Outcome<Option<Bytes>> {
    // A longer key would end the connection.
    if scope.is_served() {
        check_key(key)?;
    }
    Ok(scope.get(dict, key)?)
}

pub(super) fn contains(scope: &kvdb::Scope, dict: DictionaryId, key: &[u8]) -> Outcome<bool> {
    match scope {
        kvdb::Scope::Served(_) => return Ok(value(scope, dict, key)?.is_some()),
        kvdb::Scope::Transaction(transaction) => transaction.lock_key(dict, key, false)?,
        kvdb::Scope::Mainline(_) | kvdb::Scope::Frozen(_) => {}
    }
    Ok(scope.view()?.contains(dict, key)?)
}

/// Returns the length of a value, or 0 if there is none. If the store is open in this process,
/// the value is not read.
pub(super) fn length(scope: &kvdb::Scope, dict: DictionaryId, key: &[u8]) -> Outcome<usize> {
    if let kvdb::Scope::Served(_) = scope {
        return Ok(value(scope, dict, key)?.map_or(0, |value| value.len()));
    }
    if let kvdb::Scope::Transaction(transaction) = scope {
        transaction.lock_key(dict, key, true)?;
    }
    Ok(scope.view()?.value_len(dict, key)?.unwrap_or(0))
}

/// Returns a walk over `[start, stop)` of a view that a server holds. An empty stop is the end of
/// the dictionary.
pub(super) fn walk_there(
    scope: &kvdb::Scope,
    dict: DictionaryId,
    (start, stop): (&[u8], &[u8]),
    reverse: bool,
    values: bool,
) -> Outcome<Walk> {
    check_key(start)?;
    check_key(stop)?;
    let mut cursor = scope.cursor(dict, start, stop)?;
    if !values {
        cursor = cursor.keys_only();
    }
    if reverse {
        cursor.seek_to_end()?;
    }
    Ok(Walk::served(cursor, reverse, values))
}
