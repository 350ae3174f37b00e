//! The table of commands: name, number of arguments, what it does to whom. One file for each family of handlers.

use crate::failure::Outcome;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

mod connection;
mod keys;
mod numbers;
mod ranges;
mod scan;
mod server;
mod strings;

pub struct Command {
    /// In lower case.
    pub name: &'static str,
    /// Arguments with the name; negative: at least so many.
    pub arity: i32,
    /// Its success acknowledges a change of the store.
    pub writes: bool,
    /// Allowed before the password is shown.
    pub open: bool,
    /// First and last argument that is a key, and the step between keys; last -1: to the end. All 0: no keys.
    pub keys: (i32, i32, i32),
    pub run: Handler,
}

/// Writes exactly one reply, or none and returns the failure that becomes the reply.
pub type Handler = fn(&mut Session, Arguments<'_>, &mut Output) -> Outcome;

const fn open(name: &'static str, arity: i32, run: Handler) -> Command {
    Command { name, arity, writes: false, open: true, keys: (0, 0, 0), run }
}
const fn reads(name: &'static str, arity: i32, keys: (i32, i32, i32), run: Handler) -> Command {
    Command { name, arity, writes: false, open: false, keys, run }
}
const fn writes(name: &'static str, arity: i32, keys: (i32, i32, i32), run: Handler) -> Command {
    Command { name, arity, writes: true, open: false, keys, run }
}

const NONE: (i32, i32, i32) = (0, 0, 0);
const FIRST: (i32, i32, i32) = (1, 1, 1);
const EACH: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

/// All commands, sorted by name.
pub static COMMANDS: &[Command] = &[
    writes("append", 3, FIRST, strings::append),
    open("auth", -2, connection::auth),
    reads("client", -2, NONE, connection::client),
    reads("command", -1, NONE, server::command),
    reads("config", -2, NONE, server::config),
    reads("dbsize", 1, NONE, scan::dbsize),
    writes("decr", 2, FIRST, numbers::decr),
    writes("decrby", 3, FIRST, numbers::decrby),
    writes("del", -2, EACH, keys::del),
    writes("delrange", -3, NONE, ranges::delrange),
    reads("dicts", 1, NONE, connection::dicts),
    reads("durable", -1, NONE, connection::durable),
    reads("echo", 2, NONE, connection::echo),
    reads("exists", -2, EACH, keys::exists),
    reads("expire", -3, FIRST, keys::expiry),
    reads("expireat", -3, FIRST, keys::expiry),
    writes("flushall", -1, NONE, ranges::flushall),
    writes("flushdb", -1, NONE, ranges::flushdb),
    reads("get", 2, FIRST, strings::get),
    writes("getdel", 2, FIRST, strings::getdel),
    reads("getex", -2, FIRST, strings::getex),
    reads("getrange", 4, FIRST, strings::getrange),
    writes("getset", 3, FIRST, strings::getset),
    open("hello", -1, connection::hello),
    writes("incr", 2, FIRST, numbers::incr),
    writes("incrby", 3, FIRST, numbers::incrby),
    writes("incrbyfloat", 3, FIRST, numbers::incrbyfloat),
    reads("info", -1, NONE, server::info),
    reads("keys", 2, NONE, scan::keys),
    reads("kvfs.stat", 1, NONE, server::stat),
    reads("mget", -2, EACH, strings::mget),
    writes("mset", -3, PAIRS, strings::mset),
    writes("msetnx", -3, PAIRS, strings::msetnx),
    reads("persist", 2, FIRST, keys::persist),
    reads("pexpire", -3, FIRST, keys::expiry),
    reads("pexpireat", -3, FIRST, keys::expiry),
    reads("ping", -1, NONE, connection::ping),
    reads("psetex", 4, FIRST, keys::expiry),
    reads("pttl", 2, FIRST, keys::ttl),
    open("quit", -1, connection::quit),
    reads("range", -3, NONE, ranges::range),
    open("reset", 1, connection::reset),
    reads("save", 1, NONE, server::sync),
    reads("scan", -2, NONE, scan::scan),
    reads("select", 2, NONE, connection::select),
    writes("set", -3, FIRST, strings::set),
    reads("setex", 4, FIRST, keys::expiry),
    writes("setnx", 3, FIRST, strings::setnx),
    writes("setrange", 4, FIRST, strings::setrange),
    reads("strlen", 2, FIRST, strings::strlen),
    reads("substr", 4, FIRST, strings::getrange),
    reads("sync", 1, NONE, server::sync),
    reads("time", 1, NONE, server::time),
    reads("touch", -2, EACH, keys::exists),
    reads("ttl", 2, FIRST, keys::ttl),
    reads("type", 2, FIRST, keys::kind),
    writes("unlink", -2, EACH, keys::del),
    reads("use", 2, NONE, connection::choose),
    reads("wait", 3, NONE, server::wait),
    reads("waitaof", 4, NONE, server::waitaof),
];

/// The place in `COMMANDS` of the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    let mut lower = [0u8; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    COMMANDS.binary_search_by(|c| c.name.as_bytes().cmp(lower)).ok()
}

/// `true` when `arg` is the option `name`, in any case.
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
        assert_eq!(find(&[b'x'; 100]), None);
    }
}
