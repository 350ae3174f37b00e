//! The ends of a transaction: `TXN COMMIT`, `TXN ABORT`, and the error for a transaction that has
//! already ended.

use kvdb::{CommitOptions, Durability, TransactionId};

use super::conflict::conflict;
use super::{arity, id_of, over};
use crate::commands::is;
use crate::commands::tell::tell_all;
use crate::dictionaries::{self, Place};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// Parses the arguments of a commit: the transaction, if the command names one, and the options.
fn commit_options<'a>(
    s: &Session,
    args: Arguments<'a>,
) -> Result<(Option<&'a [u8]>, CommitOptions), Failure> {
    let durability = if s.durable { Durability::Synced } else { Durability::Buffered };
    let mut options = CommitOptions { durability, ..CommitOptions::default() };
    let mut id = None;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        match word {
            o if is(o, "sync") => options.durability = Durability::Synced,
            o if is(o, "stay") => options.stays = true,
            o if is(o, "abortnested") => options.aborts_nested = true,
            o if is(o, "if") => {
                let state = words.next().and_then(|word| std::str::from_utf8(word).ok());
                options.only_in = Some(state.ok_or(Failure::SYNTAX)?.parse()?);
            }
            o if id.is_none() => id = Some(o),
            _ => return Err(Failure::SYNTAX),
        }
    }
    Ok((id, options))
}

/// `TXN COMMIT [id] [SYNC] [IF state] [STAY] [ABORTNESTED]`. `IF` commits only in the state that
/// `TXN STATE` returned; in any other state the command fails with `CHANGED`. With `STAY` the
/// transaction stays open after a conflict. With `ABORTNESTED` open transactions within it are
/// aborted; without it they make the command fail with `NESTED`.
pub(super) fn commit(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 8)?;
    let (id, options) = commit_options(s, args)?;
    let id = id_of(s, id)?;
    if s.shared.prevented.has(id) {
        return Err(Failure::Conflict(format!(
            "transaction {id} undoes or merges what others have changed since, and can only be \
             read: TXN ABORT {id} ends it"
        )));
    }
    let (around, branch, since) = match s.db().transaction(id) {
        Ok(transaction) => {
            (transaction.within(), transaction.branch().to_owned(), transaction.begun_after())
        }
        Err(_) => (None, String::new(), u64::MAX),
    };
    let done = s.shared.owner.transactions().commit(id, options);
    // The commit is visible, although it may not be on disk.
    let (done, unsynced) = match done {
        Err(error @ kvdb::Error::NotSynced(_)) => (Ok(()), Some(error)),
        done => (done, None),
    };
    match done {
        Err(kvdb::Error::Conflict { keys }) => {
            if !options.stays {
                over(s, id);
            }
            Err(Failure::Conflict(conflict(s, (around, since), &keys, options.stays)))
        }
        Err(error) => {
            if s.db().transaction(id).is_err() {
                over(s, id);
            }
            Err(ended(s, id, error).into())
        }
        Ok(()) => {
            tell_committed(s, id, around, &branch);
            s.shared.waiters.wake_all();
            over(s, id);
            if let Some(error) = unsynced {
                return Err(error.into());
            }
            out.ok();
            Ok(())
        }
    }
}

/// Carries out the effects of a transaction that has committed: on waiters and listeners, or on
/// the enclosing transaction `around`. The effects of a transaction that was begun before the
/// store was opened are not known, so clients are notified that they have missed changes of its
/// branch.
fn tell_committed(s: &Session, id: TransactionId, around: Option<TransactionId>, branch: &str) {
    if let Some(state) = s.shared.transaction_states.end(id) {
        let effects = state.effects.lock().take().unwrap_or_default();
        match around {
            Some(around) => s.settle_in(around, effects),
            None => s.shared.reached().carry_out(effects),
        }
    }
    if s.shared.transaction_states.is_older(id) {
        let place = Place::of_branch(branch);
        let all = dictionaries::listed_at(&place, s.db()).into_iter().map(|(name, _)| name);
        tell_all("lost", branch, all, s);
    }
}

pub(super) fn abort(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    let id = id_of(s, args.get(2))?;
    over(s, id);
    s.shared.owner.transactions().abort(id).map_err(|error| ended(s, id, error))?;
    // A connection that waits in this transaction must notice that it has ended.
    s.shared.waiters.wake_all();
    out.ok();
    Ok(())
}

/// Returns the error for a transaction that has already ended. The error says whether a retry is
/// worthwhile.
pub(super) fn ended(s: &Session, id: TransactionId, error: kvdb::Error) -> kvdb::Error {
    match error {
        kvdb::Error::NoTransaction(_) => s.db().lost_to_another(id).unwrap_or(error),
        other => other,
    }
}
