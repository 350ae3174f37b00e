//! `TXN SAVEPOINT` and `TXN ROLLBACK`, and changes that are made completely or not made.

use super::{arity, joined};
use crate::effects::Effects;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;
use crate::transactions::Named;

pub(super) fn savepoint(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 3, 3)?;
    let most = s.shared.limits.name;
    if args.at(2).len() > most {
        return Err(Failure::request(format!("a savepoint's name has up to {most} bytes")));
    }
    let transaction = joined(s)?;
    if let Some((_, state)) = &s.joined {
        // Under these locks no command is between its change and its effects, and savepoints are
        // listed in the order in which they are created.
        let _held = state.locks.all();
        let savepoint = s.shared.owner.transactions().savepoint(transaction)?;
        let effects = state.effects.lock().as_ref().map_or(0, Effects::len);
        let name = args.at(2).to_vec();
        state.savepoints.lock().push(Named { name, savepoint, effects });
    }
    out.ok();
    Ok(())
}

/// Undoes the changes since a savepoint. The savepoint stays, and later ones are removed.
pub(super) fn rollback(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 3, 3)?;
    let transaction = joined(s)?;
    if let Some((_, state)) = &s.joined {
        let _held = state.locks.all();
        let mut savepoints = state.savepoints.lock();
        let missing = || Failure::request("this transaction has no savepoint of that name");
        let at = savepoints.iter().rposition(|one| one.name == args.at(2)).ok_or_else(missing)?;
        s.shared.owner.transactions().rollback(transaction, &savepoints[at].savepoint)?;
        if let Some(kept) = &mut *state.effects.lock() {
            kept.cut(savepoints[at].effects);
        }
        savepoints.truncate(at + 1);
    }
    out.ok();
    Ok(())
}

/// Makes changes in the joined transaction. If they fail, the transaction is restored as by a
/// rollback to a savepoint, which also undoes changes that others have made in it in the
/// meantime.
pub(super) fn all_or_none(
    s: &mut Session,
    change: impl FnOnce(&mut Session) -> Outcome,
) -> Outcome {
    let Some((transaction, state)) = s.joined.clone() else { return joined(s).map(|_| ()) };
    let host = s.shared.owner.transactions().clone();
    let (before, effects, named) = {
        let _held = state.locks.all();
        let before = host.savepoint(&transaction)?;
        let effects = state.effects.lock().as_ref().map_or(0, Effects::len);
        (before, effects, state.savepoints.lock().len())
    };
    let changed = change(s);
    if changed.is_err() {
        let _held = state.locks.all();
        let mut savepoints = state.savepoints.lock();
        host.rollback(&transaction, &before)?;
        if let Some(kept) = &mut *state.effects.lock() {
            kept.cut(effects);
        }
        savepoints.truncate(named);
    }
    changed
}
