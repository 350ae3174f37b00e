//! The commands: for each one its name, the number of its arguments and its properties, which the
//! rows of `table` list. Each family of handlers has a file of its own.

use crate::failure::{Failure, Outcome};
use crate::metrics::Metrics;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

mod administration;
mod authors;
mod bits;
mod blocking;
mod changes;
mod client;
mod collections;
mod config;
mod connection;
mod copy;
mod debug;
mod defrag;
mod dict;
mod dispatch;
mod dump;
mod eval;
mod expiry;
mod feed;
mod field_values;
mod fields;
mod functions;
mod hashes;
mod hyperloglog;
mod info;
mod introspection;
mod keys;
mod lcs;
mod lists;
mod long_double;
mod merge;
mod monitor;
mod multi;
mod numbers;
mod pubsub;
mod ranges;
mod revert;
mod scan;
mod scrub;
mod sealed;
mod server;
mod sets;
mod snapshot;
mod sort;
mod sorted_sets;
mod specs;
mod streams;
mod strings;
mod table;
mod tell;
mod tracking;
mod tree;
mod txn;
mod undo;
mod zones;

use dispatch::run_one;
pub use dispatch::{refuse, run};
pub use dump::is_sound as is_sound_payload;
pub use table::COMMANDS;
use table::NONE;

pub struct Command {
    /// The name in lower case.
    pub name: &'static str,
    /// The arguments, as shown to users.
    pub usage: &'static str,
    /// Number of arguments including the name. A negative number is a minimum.
    pub arity: i32,
    /// A success reply acknowledges a change of the store.
    pub writes: bool,
    /// Allowed before the client has authenticated.
    pub open: bool,
    /// First and last argument that is a key, and the step between keys. A negative last one counts
    /// from the end. All 0 if there are no keys.
    pub keys: (i32, i32, i32),
    pub run: Handler,
    pub in_multi: InMulti,
    /// The command may set a deadline on a key, or store a value that is not a string.
    pub typed: bool,
    /// The command sends messages instead of replies (`pushes`).
    pub pushes: bool,
}

impl Command {
    /// Returns the keys among the command's arguments.
    pub fn keys_of<'a>(&self, args: Arguments<'a>) -> Vec<&'a [u8]> {
        if matches!(self.name, "xread" | "xreadgroup") {
            return streams::keys_of_read(args);
        }
        let (first, last, step) = self.keys;
        // Commands that have the number of their keys as an argument.
        let counted = match self.name {
            "lmpop" | "sintercard" | "zdiff" | "zinter" | "zintercard" | "zmpop" | "zunion" => {
                Some(1)
            }
            "blmpop" | "bzmpop" => Some(2),
            "zdiffstore" | "zinterstore" | "zunionstore" => Some(2),
            "eval" | "evalsha" | "eval_ro" | "evalsha_ro" | "fcall" | "fcall_ro" => Some(2),
            _ => None,
        };
        if let Some(at) = counted {
            let count = crate::request::integer(args.at(at)).and_then(|n| usize::try_from(n).ok());
            let stored = args.from(1).take(usize::from(self.name.ends_with("store")));
            return stored.chain(args.from(at + 1).take(count.unwrap_or(0))).collect();
        }
        if first == 0 {
            return Vec::new();
        }
        if self.name == "sort" {
            return args.from(1).take(1).chain(sort::destination(args)).collect();
        }
        if matches!(self.name, "georadius" | "georadiusbymember") {
            return args.from(1).take(1).chain(sorted_sets::destination(args)).collect();
        }
        let len = args.len() as i32;
        let last = if last < 0 { len + last + 1 } else { (last + 1).min(len) };
        let last = usize::try_from(last).unwrap_or(0);
        (first as usize..last).step_by(step as usize).map(|i| args.at(i)).collect()
    }
}

/// Treatment of a command between `MULTI` and `EXEC`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InMulti {
    /// `EXEC` runs it.
    Queued,
    /// It runs at once, and handles `MULTI` itself.
    AtOnce,
    Refused,
}

/// A handler writes exactly one reply, or writes none and returns the failure that becomes the
/// reply.
pub type Handler = fn(&mut Session, Arguments<'_>, &mut Output) -> Outcome;

/// A name as two integers, so that two names are compared in few instructions.
type Name = (u128, u64);

/// Longest name that has this form.
const NAME: usize = 24;

const fn packed(name: &[u8; NAME]) -> Name {
    let (mut first, mut second, mut at) = ([0; 16], [0; 8], 0);
    while at < NAME {
        if at < 16 {
            first[at] = name[at];
        } else {
            second[at - 16] = name[at];
        }
        at += 1;
    }
    (u128::from_be_bytes(first), u64::from_be_bytes(second))
}

/// The names of the commands, in the same order.
const NAMES: [Name; COMMANDS.len()] = {
    let mut names = [(0, 0); COMMANDS.len()];
    let mut i = 0;
    while i < names.len() {
        let (name, mut bytes, mut at) = (COMMANDS[i].name.as_bytes(), [0; NAME], 0);
        while at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        names[i] = packed(&bytes);
        if i > 0 {
            let (before, this) = (names[i - 1], names[i]);
            let sorted = before.0 < this.0 || before.0 == this.0 && before.1 < this.1;
            assert!(sorted, "the table is in the order of its names");
        }
        i += 1;
    }
    names
};

/// Returns the index in `COMMANDS` of the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    let mut lower = [0; NAME];
    lower.get_mut(..name.len())?.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let place = NAMES.binary_search(&packed(&lower)).ok()?;
    // A name with trailing zero bytes is another name.
    (COMMANDS[place].name.len() == name.len()).then_some(place)
}

/// Returns counters for all commands of the table.
pub fn metrics() -> Metrics {
    Metrics::new(COMMANDS.iter().map(|command| command.name))
}

/// Returns whether a command may need the types dictionary, so that `EXEC` creates it before it
/// begins. Strings longer than `tuple` bytes need it, which `APPEND` and others can build from
/// shorter arguments.
fn may_need_types(args: Arguments<'_>, tuple: usize) -> bool {
    let plain = |command: &Command| match command.name {
        "set" => args.len() == 3,
        "sort" => sort::destination(args).is_none(),
        "georadius" | "georadiusbymember" => sorted_sets::destination(args).is_none(),
        "getex" => args.len() == 2,
        _ => false,
    };
    let long = || args.from(1).any(|arg| arg.len() > tuple);
    find(args.at(0))
        .map(|i| &COMMANDS[i])
        .is_some_and(|c| c.typed && !plain(c) || c.writes && long())
}

/// Returns the error for a first argument that is no subcommand of `command`, or has the wrong
/// number of arguments.
fn unknown_subcommand(args: Arguments<'_>, command: &str) -> Failure {
    let given = args.at(1);
    let given = String::from_utf8_lossy(&given[..given.len().min(128)]).into_owned();
    Failure::request(format!(
        "unknown subcommand or wrong number of arguments for '{given}'. Try {command} HELP."
    ))
}

fn wrong_arity(name: &str) -> Failure {
    Failure::request(format!("wrong number of arguments for '{name}' command"))
}

/// Returns whether `arg` is the option `name`, in any case.
fn is(arg: &[u8], name: &str) -> bool {
    arg.eq_ignore_ascii_case(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_found() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for (i, c) in COMMANDS.iter().enumerate() {
            assert_eq!(find(c.name.to_uppercase().as_bytes()), Some(i));
        }
        assert_eq!(find(b""), None);
        assert_eq!(find(b"get\0"), None);
        assert_eq!(find(&[b'x'; 100]), None);
    }
}
