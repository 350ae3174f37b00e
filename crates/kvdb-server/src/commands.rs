//! The commands. Each command is one row of `table`; the fields of the row (`row`) are all that
//! the rest of the server knows about the command. Each family of handlers has its own file.

use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::request::Arguments;

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
mod row;
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
mod work;
mod zones;

use dispatch::run_one;
pub use dispatch::{refuse, run};
pub use dump::is_sound as is_sound_payload;
pub use row::Command;
pub use table::COMMANDS;

/// A name as two integers, so that two names can be compared in few instructions.
type Name = (u128, u64);

/// Longest name that fits into this form.
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

/// The names of the commands, in the order of `COMMANDS`.
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

/// Returns the index in `COMMANDS` of the command with this name; case is ignored.
pub fn find(name: &[u8]) -> Option<usize> {
    let mut lower = [0; NAME];
    lower.get_mut(..name.len())?.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let place = NAMES.binary_search(&packed(&lower)).ok()?;
    // A name with trailing zero bytes is a different name.
    (COMMANDS[place].name.len() == name.len()).then_some(place)
}

/// Returns counters for all commands of the table.
pub fn metrics() -> Metrics {
    Metrics::new(COMMANDS.iter().map(|command| command.name))
}

/// Returns whether a command may need the types dictionary; `EXEC` then creates the dictionary
/// before it begins. Strings longer than `tuple` bytes need it, and `APPEND` and other commands
/// can build such strings from shorter arguments.
fn may_need_types(args: Arguments<'_>, tuple: usize) -> bool {
    let long = || args.from(1).any(|arg| arg.len() > tuple);
    find(args.at(0))
        .map(|i| &COMMANDS[i])
        .is_some_and(|command| command.needs_types(args) || command.writes && long())
}

/// Returns the error for a first argument that is not a subcommand of `command`, or for a wrong
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

/// Returns whether `arg` is the option `name`; case is ignored.
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
