//! `CLONETREE`: a tree of files copied by reference.

use kvdb::TransactionId;

use super::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// `CLONETREE from to [TXN id]`, by paths from the root of the file system, in the transaction of that number, or the joined one, or the
/// mainline. Names and numbers in turn: what was copied.
pub fn clonetree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let id = match (args.len(), args.get(3)) {
        (3, _) => s.joined.as_ref().map(|(transaction, _)| transaction.id()),
        (5, Some(word)) if is(word, "txn") => {
            let id = integer(args.at(4)).and_then(|id| u64::try_from(id).ok()).ok_or(Failure::NOT_AN_INTEGER)?;
            Some(TransactionId(id))
        }
        _ => return Err(Failure::SYNTAX),
    };
    let made = s.shared.transactions.clone_tree(id, args.at(1), args.at(2))?;
    let fields = [("directories", made.directories), ("files", made.files), ("bytes", made.bytes)];
    out.array(fields.len() * 2);
    for (name, value) in fields {
        out.bulk(name.as_bytes());
        out.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
    Ok(())
}
