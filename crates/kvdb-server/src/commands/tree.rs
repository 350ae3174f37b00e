//! `CLONETREE` and `RMTREE`: trees of files copied by reference, and removed.

use kvdb::TransactionId;

use super::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// The transaction that a command is for: `TXN id` from argument `at` on, or else the joined one.
fn transaction(s: &Session, args: &Arguments<'_>, at: usize) -> Result<Option<TransactionId>, Failure> {
    match (args.len() - at, args.get(at)) {
        (0, _) => Ok(s.joined.as_ref().map(|(transaction, _)| transaction.id())),
        (2, Some(word)) if is(word, "txn") => {
            let id = integer(args.at(at + 1)).and_then(|id| u64::try_from(id).ok()).ok_or(Failure::NOT_AN_INTEGER)?;
            Ok(Some(TransactionId(id)))
        }
        _ => Err(Failure::SYNTAX),
    }
}

/// What was done, as names and numbers in turn.
fn counted(fields: [(&str, u64); 3], out: &mut Output) -> Outcome {
    out.array(fields.len() * 2);
    for (name, value) in fields {
        out.bulk(name.as_bytes());
        out.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// `CLONETREE from to [TXN id]`, by paths from the root of the file system, in the transaction of that number, or the joined one, or the
/// mainline. Names and numbers in turn: what was copied.
pub fn clonetree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let id = transaction(s, &args, 3)?;
    let made = s.shared.transactions.clone_tree(id, args.at(1), args.at(2))?;
    counted([("directories", made.directories), ("files", made.files), ("bytes", made.bytes)], out)
}

/// `RMTREE path [TXN id]`: the same for removing. What was removed.
pub fn rmtree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let id = transaction(s, &args, 2)?;
    let gone = s.shared.transactions.remove_tree(id, args.at(1))?;
    counted([("directories", gone.directories), ("files", gone.files), ("bytes", gone.bytes)], out)
}
