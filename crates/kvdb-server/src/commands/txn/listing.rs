//! Replies that describe transactions and the files that they have changed: `TXN STATUS`, `TXN
//! FILES`, and the rows of `TXN LIST`.

use std::time::Duration;

use kvdb::{Isolation, TransactionInfo};

use super::{arity, joined, named};
use crate::commands::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;
use crate::transactions::FileChange;

/// Writes one transaction as a map of names and values.
pub(super) fn describe(info: &TransactionInfo, out: &mut Output) {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    out.map(12);
    out.bulk(b"id");
    out.integer(info.id.0 as i64);
    out.bulk(b"within");
    match info.within {
        Some(around) => out.integer(around.0 as i64),
        None => out.null(),
    }
    out.bulk(b"clone");
    out.bulk(info.branch.as_bytes());
    out.bulk(b"isolation");
    out.bulk(match info.isolation {
        Isolation::Snapshot => b"si",
        Isolation::Serializable => b"ser",
    });
    out.bulk(b"label");
    out.bulk(info.label.as_bytes());
    for (name, value) in [
        ("age_ms", millis(info.age)),
        ("idle_ms", millis(info.idle)),
        ("changes", info.changes as i64),
        ("memory", info.memory as i64),
        ("run_bytes", info.run_bytes as i64),
    ] {
        out.bulk(name.as_bytes());
        out.integer(value);
    }
    for (name, limit) in [("limit", info.limit), ("limit_of_files", info.limit_of_files)] {
        out.bulk(name.as_bytes());
        match limit {
            Some(limit) => out.integer(i64::try_from(limit).unwrap_or(i64::MAX)),
            None => out.null(),
        }
    }
}

/// Replies with the status of the named transaction, or otherwise of the joined one, or with nil
/// if there is none.
pub(super) fn status(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    if args.len() == 2 && s.joined.is_none() {
        out.null();
        return Ok(());
    }
    let transaction = named(s, args, 2)?;
    if s.db().transaction(transaction.id()).is_err() {
        return Err(kvdb::Error::NoTransaction(transaction.id()).into());
    }
    describe(&transaction.info(), out);
    Ok(())
}

/// `TXN FILES [id] [COLLAPSED]` lists the files that the transaction has changed, by path. Each
/// is an array of path, kind (`d`, `f`, `l`, `o`), bytes before (nil if it did not exist), bytes
/// now (nil if it no longer exists), and the differences. Each difference is an array of its
/// name, and the values before and now (nil if absent); see [`crate::FileDetail`]. With
/// `COLLAPSED`, most entries below directories that were added or removed are only counted.
pub(super) fn files(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 4)?;
    let collapsed = args.len() > 2 && is(args.at(args.len() - 1), "collapsed");
    let id = match args.len() - usize::from(collapsed) {
        2 => joined(s)?.id(),
        3 => named(s, args, 2)?.id(),
        _ => return Err(Failure::SYNTAX),
    };
    list_files(s.shared.owner.transactions().files(id, collapsed)?, out);
    Ok(())
}

pub fn list_files(all: Vec<FileChange>, out: &mut Output) {
    out.array(all.len());
    for file in all {
        out.array(5);
        out.bulk(&file.path);
        out.bulk(file.kind.to_string().as_bytes());
        for bytes in [file.before, file.after] {
            size(bytes, out);
        }
        out.array(file.details.len());
        for detail in &file.details {
            out.array(3);
            out.bulk(&detail.what);
            for value in [&detail.before, &detail.after] {
                match value {
                    Some(value) => out.bulk(value),
                    None => out.null(),
                }
            }
        }
        out.send_if_large();
    }
}

/// Writes a number of bytes, or nil for `None`.
pub fn size(bytes: Option<u64>, out: &mut Output) {
    match bytes {
        Some(bytes) => out.integer(i64::try_from(bytes).unwrap_or(i64::MAX)),
        None => out.null(),
    }
}
