//! `CLONETREE`, `RMTREE`, `IMPORT`, `EXPORT` and `WALK`: these commands copy trees of files by
//! reference, and remove, import, export and list them.

use kvdb::TransactionId;

use super::{is, snapshot};
use crate::dictionaries::Place;
use crate::failure::{Failure, Outcome};
use crate::files::{FileResult, Walking, Whose};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// Returns the files to which a command refers: `TXN id`, `CLONE name` or `SNAPSHOT name` from
/// argument `at` on, or otherwise the files of the place in which the connection works.
fn whose(s: &Session, args: &Arguments<'_>, at: usize) -> Result<Whose, Failure> {
    let name = || snapshot::name(args.at(at + 1)).map(String::from);
    match (args.len() - at, args.get(at)) {
        (0, _) => Ok(match (&s.joined, &s.place) {
            (Some((transaction, _)), _) => Whose::Transaction(transaction.id()),
            (None, Place::Clone(name)) => Whose::Clone(name.clone()),
            (None, Place::Store | Place::Snapshot(..)) => Whose::Store,
        }),
        (2, Some(word)) if is(word, "txn") => {
            let id = integer(args.at(at + 1))
                .and_then(|id| u64::try_from(id).ok())
                .ok_or(Failure::NOT_AN_INTEGER)?;
            Ok(Whose::Transaction(TransactionId(id)))
        }
        (2, Some(word)) if is(word, "clone") => Ok(Whose::Clone(name()?)),
        (2, Some(word)) if is(word, "snapshot") => Ok(Whose::Snapshot(name()?)),
        _ => Err(Failure::SYNTAX),
    }
}

/// Returns the index after the paths of a `CLONETREE` command.
fn end_of_places(args: &Arguments<'_>) -> usize {
    let last = args.len().saturating_sub(2);
    let named = last > 1 && ["txn", "clone"].iter().any(|word| is(args.at(last), word));
    if named { last } else { args.len() }
}

/// Returns the files that `IMPORT BEGIN` changes, or `None` for the other forms, which continue
/// an import.
pub fn changed_by_import(s: &Session, args: &Arguments<'_>) -> Option<Result<Whose, Failure>> {
    is(args.at(1), "begin").then(|| whose(s, args, 3))
}
/// Returns the files that `CLONETREE` changes.
pub fn changed_by_clonetree(s: &Session, args: &Arguments<'_>) -> Option<Result<Whose, Failure>> {
    Some(whose(s, args, end_of_places(args)))
}
/// Returns the files that `RMTREE` changes.
pub fn changed_by_rmtree(s: &Session, args: &Arguments<'_>) -> Option<Result<Whose, Failure>> {
    Some(whose(s, args, 2))
}

/// `CLONETREE from to [from to ...] [TXN id | CLONE name]` copies trees, by paths from the root
/// of the file system, in that transaction or clone, or in the connection's place. Several trees
/// are copied from one earlier state into a transaction. The reply is the numbers of copied
/// objects, as names and numbers in alternation.
pub fn clonetree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    if args.len().is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    let end = end_of_places(&args);
    let whose = whose(s, &args, end)?;
    let places: Vec<(&[u8], &[u8])> =
        (1..end).step_by(2).map(|at| (args.at(at), args.at(at + 1))).collect();
    let made = match (&places[..], whose) {
        ([(from, to)], whose) => s.shared.owner.files().clone_tree(whose, from, to)?,
        (_, Whose::Transaction(id)) => s.shared.owner.files().clone_trees(id, &places)?,
        _ => return Err(Failure::request("several trees are copied in a transaction")),
    };
    out.counted(&made.fields());
    Ok(())
}

/// `RMTREE path [TXN id | CLONE name]` removes a tree in the same way. The reply is the numbers
/// of removed objects.
pub fn rmtree(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let whose = whose(s, &args, 2)?;
    let gone = s.shared.owner.files().remove_tree(whose, args.at(1))?;
    out.counted(&gone.fields());
    Ok(())
}

pub const IMPORT_USAGE: &str = "BEGIN path [TXN id | CLONE name] | ADD entries | END | DROP";

/// `IMPORT BEGIN path [TXN id | CLONE name]`, then `IMPORT ADD entries` any number of times, then
/// `IMPORT END`: imports files into the directory at a path, in the format that `kvfs import`
/// sends. `IMPORT DROP`, an error, or the end of the connection cancels the import.
pub fn import(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let none = || {
        Failure::request(
            "there is no import under way: IMPORT BEGIN, or see why the one before was given up",
        )
    };
    match (args.at(1), args.len()) {
        (c, 3 | 5) if is(c, "begin") => {
            if s.file_work.is_importing() {
                return Err(Failure::request(
                    "an import is under way on this connection: IMPORT END or IMPORT DROP",
                ));
            }
            let whose = whose(s, &args, 3)?;
            let user = s.identity.user();
            s.file_work.begin_import(s.shared.owner.files().import(whose, args.at(2), user)?);
        }
        (c, 3) if is(c, "add") => {
            s.file_work.add(args.at(2)).ok_or_else(none)??;
        }
        (c, 2) if is(c, "end") => {
            let made = s.file_work.finish_import().ok_or_else(none)??;
            out.counted(&made.fields());
            return Ok(());
        }
        (c, 2) if is(c, "drop") && s.file_work.drop_import() => {}
        (c, 2) if is(c, "drop") => return Err(none()),
        _ => return Err(Failure::SYNTAX),
    }
    out.ok();
    Ok(())
}

pub const WALK_USAGE: &str = "BEGIN path [TXN id | SNAPSHOT name | CLONE name] | NEXT | DROP";

/// `WALK BEGIN path [TXN id | SNAPSHOT name | CLONE name]`, then `WALK NEXT` until it returns an
/// empty string: lists the whole tree at a path, from one state, in the format that `kvfs find`
/// and `kvfs du` read. A walk pins its state until the walk or the connection ends.
pub fn walk(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    pieces(s, args, out, |s, whose, path| s.shared.owner.files().walk(whose, path))
}

/// `EXPORT BEGIN path [TXN id | SNAPSHOT name | CLONE name]`, then `EXPORT NEXT` until it returns
/// an empty string: exports the tree at a path as a tar stream, in the same way. A connection has
/// at most one walk or export at a time.
pub fn export(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    pieces(s, args, out, |s, whose, path| {
        s.shared.owner.files().export(whose, path, s.identity.user())
    })
}

type Begin = fn(&Session, Whose, &[u8]) -> FileResult<Box<dyn Walking>>;

fn pieces(s: &mut Session, args: Arguments<'_>, out: &mut Output, begin: Begin) -> Outcome {
    let none = || Failure::request("there is none under way: BEGIN");
    match (args.at(1), args.len()) {
        (c, 3 | 5) if is(c, "begin") => {
            let whose = whose(s, &args, 3)?;
            // The state of the previous walk is released first.
            s.file_work.drop_walk();
            s.file_work.begin_walk(begin(s, whose, args.at(2))?);
        }
        (c, 2) if is(c, "next") => {
            let entries = s.file_work.next_piece().ok_or_else(none)??;
            out.bulk(&entries);
            return Ok(());
        }
        (c, 2) if is(c, "drop") && s.file_work.drop_walk() => {}
        (c, 2) if is(c, "drop") => return Err(none()),
        _ => return Err(Failure::SYNTAX),
    }
    out.ok();
    Ok(())
}
