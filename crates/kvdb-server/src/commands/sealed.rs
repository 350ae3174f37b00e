//! The rights of clients that are confined by a seal ([`crate::seals`]). They may read, write in
//! the transactions of the seal, and begin and end other transactions within these. They may
//! neither end the sealed transactions nor act on the store or on other clients.

use kvdb::TransactionId;

use super::{Command, is, tree};
use crate::failure::{Failure, Outcome};
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::transactions::Whose;

/// The allowed subcommands of commands that do not write, or that write only in some forms.
const FORMS: [(&str, &[&str]); 20] = [
    (
        "client",
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
    ),
    ("clone", &["leave", "list", "use"]),
    ("compact", &[]),
    ("config", &["get", "help"]),
    ("debug", &["help", "protocol"]),
    ("defrag", &["status"]),
    ("dict", &["info", "list"]),
    ("function", &["delete", "dump", "flush", "help", "list", "load", "restore", "stats"]),
    ("import", &["add", "begin", "drop", "end"]),
    ("kvfs.check", &[]),
    ("kvfs.push", &[]),
    ("latency", &["doctor", "help", "histogram", "history", "latest"]),
    ("monitor", &[]),
    ("publish", &[]),
    ("script", &["debug", "exists", "help", "load"]),
    ("scrub", &["faults", "status"]),
    ("slowlog", &["get", "help", "len"]),
    ("snapshot", &["changes", "files", "leave", "list", "receiving", "use"]),
    ("spublish", &[]),
    (
        "txn",
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
            "state",
            "status",
        ],
    ),
];

const SEALED: Failure = Failure::Coded(std::borrow::Cow::Borrowed(
    "SEALED this program was started in a sealed transaction: it writes there alone (TXN JOIN it), \
     and whoever started it decides about its end",
));

/// Checks that a confined client may run the command.
pub fn admit(s: &Session, command: &Command, args: Arguments<'_>) -> Outcome {
    let Some(confined) = s.confined else { return Ok(()) };
    let allowed = |id: TransactionId| s.shared.seals.allow(confined, id);
    if let Some((name, forms)) = FORMS.iter().find(|(name, _)| *name == command.name) {
        if !args.get(1).is_some_and(|form| forms.iter().any(|allowed| is(form, allowed))) {
            return Err(SEALED);
        }
        let number = |word: &[u8]| integer(word).and_then(|id| u64::try_from(id).ok());
        if *name == "txn" && is(args.at(1), "join") {
            return if number(args.at(2)).is_none_or(|id| allowed(TransactionId(id))) {
                Ok(())
            } else {
                Err(SEALED)
            };
        }
        // It would fill the mailbox of another client.
        let redirects = || args.from(3).any(|word| is(word, "redirect"));
        if *name == "client" && is(args.at(1), "tracking") && redirects() {
            return Err(SEALED);
        }
        if *name == "txn" && is(args.at(1), "begin") {
            let mut words = args.from(2).skip_while(|word| !is(word, "within"));
            let around = words.nth(1).and_then(number).map(TransactionId);
            return if around.is_some_and(allowed) { Ok(()) } else { Err(SEALED) };
        }
        if *name == "txn" && ["abort", "commit", "keep"].iter().any(|form| is(args.at(1), form)) {
            let joined = s.joined.as_ref().map(|(transaction, _)| transaction.id());
            let named: Vec<_> = args.from(2).filter_map(number).map(TransactionId).collect();
            let all = if named.is_empty() { Vec::from_iter(joined) } else { named };
            let around = |id| s.db().transaction(id).ok().and_then(|t| t.within());
            let inner = |id: &TransactionId| allowed(*id) && around(*id).is_some_and(allowed);
            let ends_inner = !all.is_empty() && all.iter().all(inner);
            return if ends_inner { Ok(()) } else { Err(SEALED) };
        }
    }
    // `EXEC` is allowed: the commands in its queue are checked one by one.
    if !command.writes || command.name == "exec" {
        return Ok(());
    }
    let id = match (tree::changed_by(s, command.name, &args), command.name) {
        (Some(Ok(Whose::Transaction(id))), _) => Some(id),
        (Some(_), _) => None,
        // It continues an import that was checked when it began.
        (None, "import") => return Ok(()),
        (None, _) => s.joined.as_ref().map(|(transaction, _)| transaction.id()),
    };
    if id.is_some_and(allowed) { Ok(()) } else { Err(SEALED) }
}

#[cfg(test)]
mod tests {
    use super::super::COMMANDS;
    use super::*;

    /// A new command has to be classified in this list.
    #[test]
    fn every_command_that_does_not_write_is_known_to_change_nothing_of_others() {
        const HARMLESS: &[&str] = &[
            "acl",
            "asking",
            "auth",
            "bgsave",
            "changes",
            "cluster",
            "command",
            "count",
            "dbsize",
            "dicts",
            "discard",
            "durable",
            "echo",
            "estimate",
            "eval_ro",
            "evalsha_ro",
            "export",
            "fcall_ro",
            "hello",
            "info",
            "keys",
            "kvfs.stat",
            "kvfs.zones",
            "lastsave",
            "lolwut",
            "memory",
            "module",
            "multi",
            "ping",
            "psubscribe",
            "psync",
            "pubsub",
            "punsubscribe",
            "quit",
            "randomkey",
            "range",
            "readonly",
            "readwrite",
            "replconf",
            "replicaof",
            "reset",
            "role",
            "save",
            "scan",
            "select",
            "shutdown",
            "sintercard",
            "slaveof",
            "ssubscribe",
            "subscribe",
            "sunsubscribe",
            "sync",
            "time",
            "unsubscribe",
            "unwatch",
            "use",
            "wait",
            "waitaof",
            "walk",
            "xread",
            "zdiff",
            "zinter",
            "zintercard",
            "zunion",
        ];
        for command in COMMANDS {
            let reads_keys = !command.writes && command.keys != (0, 0, 0);
            let known = command.writes
                || reads_keys
                || HARMLESS.contains(&command.name)
                || FORMS.iter().any(|(name, _)| *name == command.name);
            assert!(known, "{}: what may a program do with it that is sealed?", command.name);
        }
        for name in HARMLESS.iter().chain(FORMS.iter().map(|(name, _)| name)) {
            assert!(COMMANDS.iter().any(|command| command.name == *name), "{name} is no command");
        }
    }
}
