//! The rights of clients that are confined by a seal ([`crate::seals`]). They may read, write in
//! the transactions of the seal, and begin and end other transactions within these. They may
//! neither end the sealed transactions nor act on the store or on other clients.

use kvdb::TransactionId;

use super::row::Sealed;
use super::{Command, is};
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::files::Whose;
use crate::request::{Arguments, integer};
use crate::seals::Confined;
use crate::session::Session;

/// The rights of a confined client in `CLIENT`.
pub const CLIENT: Sealed = Sealed::Checked(
    &[
        "caching",
        "getname",
        "getredir",
        "help",
        "id",
        "info",
        "list",
        "no-evict",
        "no-touch",
        "reply",
        "setinfo",
        "setname",
        "tracking",
        "trackinginfo",
    ],
    check_client,
);

/// The rights of a confined client in `TXN`.
pub const TXN: Sealed = Sealed::Checked(
    &[
        "abort",
        "against",
        "begin",
        "changes",
        "commit",
        "commits",
        "files",
        "join",
        "keep",
        "leave",
        "list",
        "lock",
        "revert",
        "rollback",
        "savepoint",
        "seal",
        "state",
        "status",
    ],
    check_txn,
);

const SEALED: Failure = Failure::Coded(
    ErrorCode::Sealed,
    std::borrow::Cow::Borrowed(
        "this program was started in a sealed transaction: it writes there alone (TXN JOIN it), \
         and whoever started it decides about its end",
    ),
);

/// Checks that a confined client may run the command.
pub fn admit(s: &Session, command: &Command, args: Arguments<'_>) -> Outcome {
    let Some(confined) = s.identity.confined() else { return Ok(()) };
    let are_named = |forms: &[&str]| {
        args.get(1).is_some_and(|form| forms.iter().any(|allowed| is(form, allowed)))
    };
    match command.sealed {
        Sealed::AsItWrites | Sealed::Harmless => {}
        Sealed::Forms(forms) | Sealed::Checked(forms, _) if !are_named(forms) => {
            return Err(SEALED);
        }
        Sealed::Forms(_) => {}
        Sealed::Checked(_, check) => check(s, confined, args)?,
    }
    // `EXEC` is allowed, because the commands in its queue are checked one by one.
    if !command.writes || command.runs_queue {
        return Ok(());
    }
    let id = match command.files.map(|files| files(s, &args)) {
        Some(Some(Ok(Whose::Transaction(id)))) => Some(id),
        Some(Some(_)) => None,
        // The command continues an import that was checked when it began.
        Some(None) => return Ok(()),
        None => s.joined.as_ref().map(|(transaction, _)| transaction.id()),
    };
    allow(id.is_some_and(|id| s.shared.seals.allow(confined, id)))
}

fn allow(allowed: bool) -> Outcome {
    if allowed { Ok(()) } else { Err(SEALED) }
}

fn number(word: &[u8]) -> Option<u64> {
    integer(word).and_then(|id| u64::try_from(id).ok())
}

/// Checks `CLIENT TRACKING`, which must not fill the mailbox of another client.
fn check_client(_: &Session, _: Confined, args: Arguments<'_>) -> Outcome {
    let redirects = || args.from(3).any(|word| is(word, "redirect"));
    allow(!(is(args.at(1), "tracking") && redirects()))
}

/// Checks that `TXN` joins, begins, ends and reverts only transactions within the transactions of
/// the seal.
fn check_txn(s: &Session, confined: Confined, args: Arguments<'_>) -> Outcome {
    let allowed = |id: TransactionId| s.shared.seals.allow(confined, id);
    match args.at(1) {
        form if is(form, "join") => {
            allow(number(args.at(2)).is_none_or(|id| allowed(TransactionId(id))))
        }
        form if is(form, "begin") => {
            let mut words = args.from(2).skip_while(|word| !is(word, "within"));
            let around = words.nth(1).and_then(number).map(TransactionId);
            allow(around.is_some_and(allowed))
        }
        form if ["abort", "commit", "keep"].iter().any(|one| is(form, one)) => {
            let joined = s.joined.as_ref().map(|(transaction, _)| transaction.id());
            let named: Vec<_> = args.from(2).filter_map(number).map(TransactionId).collect();
            let all = if named.is_empty() { Vec::from_iter(joined) } else { named };
            let around = |id| s.db().transaction(id).ok().and_then(|t| t.within());
            let inner = |id: &TransactionId| allowed(*id) && around(*id).is_some_and(allowed);
            allow(!all.is_empty() && all.iter().all(inner))
        }
        // `TXN SEAL` without a number confines the programs that this client starts to a subset
        // of the client's own rights. A number could name a transaction outside of this subset.
        form if is(form, "seal") => allow(args.len() == 2),
        // `TXN REVERT` changes files and keys, although the row of `TXN` does not count as a
        // write.
        form if is(form, "revert") => {
            let joined = s.joined.as_ref().map(|(transaction, _)| transaction.id());
            allow(joined.is_none_or(allowed))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::COMMANDS;
    use super::*;

    #[test]
    fn every_command_that_does_not_write_is_known_to_change_nothing_of_others() {
        for command in COMMANDS {
            let reads_keys = !command.writes && command.keys != (0, 0, 0);
            let known =
                command.writes || reads_keys || !matches!(command.sealed, Sealed::AsItWrites);
            assert!(known, "{}: what may a program do with it that is sealed?", command.name);
            let harmless = matches!(command.sealed, Sealed::Harmless);
            assert!(!(command.writes && harmless), "{} writes", command.name);
        }
    }
}
