//! `TXN`: transactions over keys, and over files if the store is mounted. Any number of
//! connections and processes can share a transaction.

mod begin;
mod conflict;
mod end;
mod listing;
mod lock;
mod savepoints;
mod together;

use kvdb::{Transaction, TransactionId};

use super::{authors, changes, is, merge, revert, undo, wrong_arity};
use crate::dictionaries::Place;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

pub use begin::attach;
use begin::begin;
pub use conflict::names_of;
use end::{abort, commit, ended};
use listing::{describe, files, status};
pub use listing::{list_files, size};
use lock::lock;
use savepoints::{rollback, savepoint};
use together::together;

pub const USAGE: &str = "BEGIN [OF clone] [WITHIN id] [SI|SER] [LABEL text] [IDLE seconds] [TIMEOUT seconds] [LIMIT bytes] [FILES n] [NOCHECK] [DURABLE] [UNDOABLE] [INPLACE] [ATTACHED] | JOIN id | LEAVE | \
                         COMMIT [id] [SYNC] [IF state] [STAY] [ABORTNESTED] | ABORT [id] | KEEP id | SEAL [id] | LIST | STATUS [id] | STATE [id] | LOCK KEY key [SHARED] | LOCK RANGE start end [SHARED] | LOCK DIR path [SHARED] | CHANGES [id] [BEFORE] [FIELDS] | REVERT KEY key | REVERT TOGETHER [REMOVE path] [RESTORE path] [KEY dictionary key] | FILES [id] [COLLAPSED] | SAVEPOINT name | ROLLBACK name | COMMITS [number FILES [COLLAPSED]] [number CHANGES [FIELDS]] | UNDO [number] [ATTACHED] | AGAINST [id] | MERGE clone [REBASE|INTO branch|FORK place] [DRY] [OURS path] [THEIRS path] [BOTH path] [ATTACHED] | REBASE id [OURS path] [THEIRS path] [BOTH path] [ATTACHED]";

pub fn txn(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    // The other subcommands wait for the mount, for a sync or for a lock, or read a large amount
    // of data.
    const SHORT: [&str; 5] = ["files", "join", "leave", "list", "status"];
    if !SHORT.iter().any(|short| is(args.at(1), short)) {
        out.will_wait();
    }
    match args.at(1) {
        c if is(c, "begin") => begin(s, args, out),
        c if is(c, "join") => join(s, args, out),
        c if is(c, "leave") => {
            arity(args, 2, 2)?;
            s.leave();
            out.ok();
            Ok(())
        }
        c if is(c, "commit") => commit(s, args, out),
        c if is(c, "abort") => abort(s, args, out),
        c if is(c, "keep") => {
            arity(args, 3, 3)?;
            let id = number(args.at(2))?;
            s.shared.owner.transactions().keep(id).map_err(|error| ended(s, id, error))?;
            s.attached.retain(|attached| *attached != id);
            out.ok();
            Ok(())
        }
        c if is(c, "list") => {
            arity(args, 2, 2)?;
            let all = s.db().transactions();
            out.array(all.len());
            all.iter().for_each(|info| describe(info, out));
            Ok(())
        }
        c if is(c, "status") => status(s, args, out),
        c if is(c, "state") => {
            arity(args, 2, 3)?;
            let id = named(s, args, 2)?.id();
            out.bulk(s.shared.owner.transactions().revision(id)?.to_string().as_bytes());
            Ok(())
        }
        c if is(c, "seal") => seal(s, args, out),
        c if is(c, "lock") => lock(s, args, out),
        c if is(c, "changes") => changes::of_transaction(s, args, out),
        c if is(c, "revert") && is(args.at(2), "together") => together(s, args, out),
        c if is(c, "revert") => revert::revert(s, args, out),
        c if is(c, "files") => files(s, args, out),
        c if is(c, "savepoint") => savepoint(s, args, out),
        c if is(c, "rollback") => rollback(s, args, out),
        c if is(c, "commits") => undo::commits(s, args, out),
        c if is(c, "undo") => undo::undo(s, args, out),
        c if is(c, "against") => authors::against(s, args, out),
        c if is(c, "merge") => merge::merge(s, args, out),
        c if is(c, "rebase") => merge::rebase(s, args, out),
        c => {
            let c = String::from_utf8_lossy(&c[..c.len().min(64)]).into_owned();
            Err(Failure::request(format!("unknown subcommand '{c}'. TXN {USAGE}")))
        }
    }
}

pub fn arity(args: Arguments<'_>, least: usize, most: usize) -> Outcome {
    if (least..=most).contains(&args.len()) { Ok(()) } else { Err(wrong_arity("txn")) }
}

fn number(arg: &[u8]) -> Result<TransactionId, Failure> {
    let id = integer(arg).and_then(|id| u64::try_from(id).ok());
    id.map(TransactionId)
        .ok_or_else(|| Failure::request("a transaction is named by the number that TXN BEGIN gave"))
}

/// Returns the transaction named by argument `at`, or otherwise the joined one.
pub fn named(s: &Session, args: Arguments<'_>, at: usize) -> Result<Transaction, Failure> {
    match args.get(at) {
        Some(id) => Ok(s.db().transaction(number(id)?)?),
        None => joined(s).cloned(),
    }
}

pub fn joined(s: &Session) -> Result<&Transaction, Failure> {
    let none = || {
        Failure::request("this connection is in no transaction: TXN JOIN one, or give its number")
    };
    s.joined.as_ref().map(|(transaction, _)| transaction).ok_or_else(none)
}

/// `TXN SEAL [id]`: confines the programs that descend from the client's process until this
/// connection ends. They can write only in this transaction and in the transactions that this
/// connection begins, and cannot end them; see [`crate::seals`].
fn seal(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    let also = args.get(2).map(number).transpose()?;
    let process = s.identity.process().ok_or_else(|| {
        Failure::request(
            "the process at the other end of this connection cannot be seen from the store's \
             daemon, so what it starts cannot be confined",
        )
    })?;
    s.shared.seals.seal(s.id, process);
    if let Some(id) = also {
        s.shared.seals.begun(s.id, id);
    }
    out.ok();
    Ok(())
}

fn join(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 3, 3)?;
    let transaction = s.db().transaction(number(args.at(2))?)?;
    enter(s, transaction);
    out.ok();
    Ok(())
}

/// Moves the connection into a transaction.
pub fn enter(s: &mut Session, transaction: Transaction) {
    let state = s.shared.transaction_states.of(s.db(), transaction.id());
    s.leave();
    s.place = Place::of(&transaction);
    s.joined = Some((transaction, state));
}

/// Removes the connection from a transaction that has ended.
pub fn over(s: &mut Session, id: TransactionId) {
    s.attached.retain(|attached| *attached != id);
    if s.joined.as_ref().is_some_and(|(transaction, _)| transaction.id() == id) {
        s.leave();
    }
}

/// Returns the number in argument 2, or the number of the joined transaction, which may have
/// ended.
fn id_of(s: &Session, id: Option<&[u8]>) -> Result<TransactionId, Failure> {
    match id {
        Some(id) => number(id),
        None => joined(s).map(Transaction::id),
    }
}
