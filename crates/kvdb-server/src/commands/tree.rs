//! `CLONETREE`, `RMTREE`, `IMPORT`, `EXPORT` and `WALK`: trees of files copied by reference,
//! removed, brought in and out, and looked through.

use kvdb::TransactionId;

use super::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::transactions::{Walking, Whose};

/// The transaction that a command is for: `TXN id` from argument `at` on, or else the joined one.
fn transaction(
    s: &Session,
    args: &Arguments<'_>,
    at: usize,
) -> Result<Option<TransactionId>, Failure> {
    match (args.len() - at, args.get(at)) {
        (0, _) => Ok(s.joined.as_ref().map(|(transaction, _)| transaction.id())),
        (2, Some(word)) if is(word, "txn") => {
            let id = integer(args.at(at + 1))
                .and_then(|id| u64::try_from(id).ok())
                .ok_or(Failure::NOT_AN_INTEGER)?;
            Ok(Some(TransactionId(id)))
        }
        _ => Err(Failure::SYNTAX),
    }
}

/// What was done, as names and numbers in turn.
fn counted(fields: &[(&str, u64)], out: &mut Output) -> Outcome {
    out.array(fields.len() * 2);
    for &(name, value) in fields {
        out.bulk(name.as_bytes());
        out.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// `CLONETREE from to [from to ...] [TXN id]`, by paths from the root of the file system, in the
/// transaction of that number, or the joined one, or the mainline. Several trees come from one
/// earlier state into a transaction. Names and numbers in turn: what was copied.
pub fn clonetree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    if args.len().is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    let last = args.len() - 2;
    let named = last > 1 && is(args.at(last), "txn");
    let end = if named { last } else { args.len() };
    let id = transaction(s, &args, end)?;
    let places: Vec<(&[u8], &[u8])> =
        (1..end).step_by(2).map(|at| (args.at(at), args.at(at + 1))).collect();
    let made = match (&places[..], id) {
        ([(from, to)], _) => s.shared.transactions.clone_tree(id, from, to)?,
        (_, Some(id)) => s.shared.transactions.clone_trees(id, &places)?,
        (_, None) => return Err(Failure::request("several trees are copied in a transaction")),
    };
    counted(&[("directories", made.directories), ("files", made.files), ("bytes", made.bytes)], out)
}

/// `RMTREE path [TXN id]`: the same for removing. What was removed.
pub fn rmtree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let id = transaction(s, &args, 2)?;
    let gone = s.shared.transactions.remove_tree(id, args.at(1))?;
    counted(&[("directories", gone.directories), ("files", gone.files), ("bytes", gone.bytes)], out)
}

pub const IMPORT_USAGE: &str = "BEGIN path [TXN id] | ADD entries | END | DROP";

/// `IMPORT BEGIN path [TXN id]`, then `IMPORT ADD entries` any number of times, then `IMPORT END`:
/// files for the directory at a path, in the form that `kvfs import` sends. `IMPORT DROP`, an
/// error, or the end of the connection gives up.
pub fn import(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let none = || {
        Failure::request(
            "there is no import under way: IMPORT BEGIN, or see why the one before was given up",
        )
    };
    match (args.at(1), args.len()) {
        (c, 3 | 5) if is(c, "begin") => {
            if s.importing.is_some() {
                return Err(Failure::request(
                    "an import is under way on this connection: IMPORT END or IMPORT DROP",
                ));
            }
            let id = transaction(s, &args, 3)?;
            s.importing = Some(s.shared.transactions.import(id, args.at(2), s.user)?);
        }
        (c, 3) if is(c, "add") => {
            let mut importing = s.importing.take().ok_or_else(none)?;
            importing.add(args.at(2))?;
            s.importing = Some(importing);
        }
        (c, 2) if is(c, "end") => {
            return counted(&s.importing.take().ok_or_else(none)?.finish()?, out);
        }
        (c, 2) if is(c, "drop") => drop(s.importing.take().ok_or_else(none)?),
        _ => return Err(Failure::SYNTAX),
    }
    out.ok();
    Ok(())
}

pub const WALK_USAGE: &str = "BEGIN path [TXN id | SNAPSHOT name | CLONE name] | NEXT | DROP";

/// `WALK BEGIN path [TXN id | SNAPSHOT name | CLONE name]`, then `WALK NEXT` until that gives an
/// empty string: everything at a path and below, from one state, in the form that `kvfs find` and
/// `kvfs du` read. A walk keeps its state from being freed until it ends, which the end of the
/// connection does, too.
pub fn walk(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    pieces(s, args, out, |s, whose, path| s.shared.transactions.walk(whose, path))
}

/// `EXPORT BEGIN path [TXN id | SNAPSHOT name | CLONE name]`, then `EXPORT NEXT` until that gives
/// an empty string: the same as a tar stream. A connection has one walk or export at a time.
pub fn export(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    pieces(s, args, out, |s, whose, path| s.shared.transactions.export(whose, path, s.user))
}

type Begin = fn(&Session, Whose, &[u8]) -> kvdb::Result<Box<dyn Walking>>;

fn pieces(s: &mut Session, args: Arguments<'_>, out: &mut Output, begin: Begin) -> Outcome {
    let none = || Failure::request("there is none under way: BEGIN");
    match (args.at(1), args.len()) {
        (c, 3 | 5) if is(c, "begin") => {
            let name = || {
                String::from_utf8(args.at(4).to_vec())
                    .map_err(|_| Failure::request("a name is UTF-8 text"))
            };
            let whose = match args.get(3) {
                Some(word) if is(word, "snapshot") => Whose::Snapshot(name()?),
                Some(word) if is(word, "clone") => Whose::Clone(name()?),
                _ => transaction(s, &args, 3)?.map_or(Whose::Store, Whose::Transaction),
            };
            // The state of the one before is let go first.
            s.walking = None;
            s.walking = Some(begin(s, whose, args.at(2))?);
        }
        (c, 2) if is(c, "next") => {
            let mut walking = s.walking.take().ok_or_else(none)?;
            let entries = walking.next()?;
            if !entries.is_empty() {
                s.walking = Some(walking);
            }
            out.bulk(&entries);
            return Ok(());
        }
        (c, 2) if is(c, "drop") => drop(s.walking.take().ok_or_else(none)?),
        _ => return Err(Failure::SYNTAX),
    }
    out.ok();
    Ok(())
}
