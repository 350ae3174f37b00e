//! `TXN LOCK`: locks keys, ranges and directories for a client before it uses them.

use kvdb::Isolation;

use super::arity;
use crate::commands::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::head_key;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// Executes `TXN LOCK KEY key [SHARED]`, `TXN LOCK RANGE start end [SHARED]` or `TXN LOCK DIR
/// path [SHARED]`. Locks keys, or the names of a directory, against changes by others for the
/// rest of the joined serializable transaction. Without `SHARED` they are also locked against
/// reads by others.
pub(super) fn lock(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let keys = match args.get(2) {
        Some(c) if is(c, "key") || is(c, "dir") => 1,
        Some(c) if is(c, "range") => 2,
        _ => return Err(Failure::SYNTAX),
    };
    let exclusive = match args.get(3 + keys) {
        None => true,
        Some(c) if is(c, "shared") => false,
        Some(_) => return Err(Failure::SYNTAX),
    };
    arity(args, 3 + keys, 4 + keys)?;
    let transaction =
        s.inside().ok_or(Failure::request("TXN LOCK works in a transaction: join one"))?;
    if transaction.isolation() == Isolation::Snapshot {
        return Err(Failure::request("a transaction of snapshot isolation locks nothing"));
    }
    if is(args.at(2), "dir") {
        s.shared.owner.files().lock_directory(transaction.id(), args.at(3), exclusive)?;
        out.ok();
        return Ok(());
    }
    let space = s.writable()?;
    match keys {
        1 => {
            transaction.lock_key(space.strings, args.at(3), exclusive)?;
            if let Some(types) = space.types {
                transaction.lock_key(types, &head_key(args.at(3)), exclusive)?;
                // The elements are locked as well, because others can change them without
                // changing the head.
                let live = s.see()?.live(args.at(3))?;
                if let Some((start, end)) = live.head.and_then(|head| head.beneath()) {
                    transaction.lock_range(types, &start, &end, exclusive)?;
                }
            }
        }
        _ => {
            let (start, end) = (args.at(3), args.at(4));
            let (start, end) =
                (if start == b"-" { b"" } else { start }, if end == b"+" { b"" } else { end });
            transaction.lock_range(space.strings, start, end, exclusive)?;
            if let Some(types) = space.types {
                let end = if end.is_empty() { b"l".to_vec() } else { head_key(end) };
                transaction.lock_range(types, &head_key(start), &end, exclusive)?;
            }
        }
    }
    out.ok();
    Ok(())
}
