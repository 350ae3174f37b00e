//! Values longer than one command can take: they are written in pieces within one transaction, so
//! that readers, and a crash, see either the whole value or nothing.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use kvdb_server::Reply;

use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Failure, Outcome};

/// The size of a piece in bytes. A command can take more, but holding more in memory has no
/// benefit.
const PIECE: usize = 4 << 20;

/// A value to be written.
#[derive(Default)]
pub struct NewValue {
    /// The beginning of the value, or all of it.
    first: Vec<u8>,
    /// True if the rest is still to be read from standard input.
    more: bool,
}

/// Reads the next piece from standard input.
fn piece() -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(PIECE as u64)
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::io("cannot read the value from standard input", &e))?;
    Ok(bytes)
}

impl NewValue {
    /// Returns the value of an argument, or the beginning of the one on standard input.
    pub fn of(value: Option<&OsStr>) -> Outcome<NewValue> {
        if let Some(value) = value.filter(|v| *v != "-") {
            return Ok(NewValue { first: value.as_bytes().to_vec(), more: false });
        }
        let first = piece()?;
        let more = first.len() == PIECE;
        Ok(NewValue { first, more })
    }
}

/// Sets a key. Returns `false` if it exists but was to be new.
pub fn put(
    connection: &mut Connection,
    key: &[u8],
    value: &mut NewValue,
    new: bool,
) -> Outcome<bool> {
    let first = std::mem::take(&mut value.first);
    let next = if value.more { piece()? } else { Vec::new() };
    let mut words: Vec<&[u8]> = vec![b"SET", key, &first];
    words.extend(new.then_some(b"NX".as_slice()));
    if next.is_empty() {
        return Ok(connection.call(&words)? != Reply::Null);
    }
    if connection.is_joined()? {
        return put_in_transaction(connection, key, (&first, next), new);
    }
    let id = super::integer(connection.call(&[b"TXN", b"BEGIN", b"ATTACHED"])?)?;
    connection.call(&[b"TXN", b"JOIN", id.to_string().as_bytes()])?;
    if connection.call(&words)? == Reply::Null {
        return Ok(false);
    }
    append(connection, key, next)?;
    connection.call(&[b"TXN", b"COMMIT"])?;
    Ok(true)
}

/// Appends `next`, and the rest of standard input.
fn append(connection: &mut Connection, key: &[u8], mut next: Vec<u8>) -> Outcome {
    while !next.is_empty() {
        connection.call(&[b"APPEND", key, &next])?;
        next = piece()?;
    }
    Ok(())
}

/// Sets a key in the caller's transaction, which continues if this fails: the value is written
/// under a temporary name and renamed in one step, which copies no data. A savepoint would not do,
/// since other programs may work in the transaction at the same time.
fn put_in_transaction(
    connection: &mut Connection,
    key: &[u8],
    (first, next): (&[u8], Vec<u8>),
    new: bool,
) -> Outcome<bool> {
    if new && connection.call(&[b"EXISTS", key])? != Reply::Integer(0) {
        return Ok(false);
    }
    let name = format!("kvfs kv put {} {}", std::process::id(), nanoseconds());
    let name = name.as_bytes();
    let put = connection
        .call(&[b"SET", name, first])
        .and_then(|_| append(connection, name, next))
        .and_then(|()| {
            let rename: &[u8] = if new { b"RENAMENX" } else { b"RENAME" };
            Ok(connection.call(&[rename, name, key])? != Reply::Integer(0))
        });
    if !matches!(put, Ok(true)) {
        // Ignore a failure: if the transaction has ended, the key is dropped with it.
        let _ = connection.call(&[b"DEL", name]);
    }
    put
}

/// Returns the time in nanoseconds, for a name that no other program uses.
fn nanoseconds() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos())
}
