//! The table of commands: name, number of arguments, what it does to whom. One file for each family
//! of handlers.

use crate::failure::{Failure, Outcome};
use crate::metrics::Metrics;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

mod connection;
mod defrag;
mod dict;
mod dispatch;
mod keys;
mod multi;
mod numbers;
mod ranges;
mod scan;
mod scrub;
mod server;
mod snapshot;
mod strings;
mod tree;
mod txn;

pub use dispatch::run;
use dispatch::run_one;

pub struct Command {
    /// In lower case.
    pub name: &'static str,
    /// Its arguments, for people.
    pub usage: &'static str,
    /// Arguments with the name; negative: at least so many.
    pub arity: i32,
    /// Its success acknowledges a change of the store.
    pub writes: bool,
    /// Allowed before the password is shown.
    pub open: bool,
    /// First and last argument that is a key, and the step between keys; last -1: to the end. All
    /// 0: no keys.
    pub keys: (i32, i32, i32),
    pub run: Handler,
    pub in_multi: InMulti,
}

/// What becomes of a command between `MULTI` and `EXEC`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InMulti {
    /// It is run by `EXEC`.
    Queued,
    /// It is run at once, and knows what it does.
    AtOnce,
    Refused,
}

/// Writes exactly one reply, or none and returns the failure that becomes the reply.
pub type Handler = fn(&mut Session, Arguments<'_>, &mut Output) -> Outcome;

const fn open(name: &'static str, usage: &'static str, arity: i32, run: Handler) -> Command {
    Command {
        name,
        usage,
        arity,
        writes: false,
        open: true,
        keys: (0, 0, 0),
        run,
        in_multi: InMulti::Queued,
    }
}
const fn reads(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command { name, usage, arity, writes: false, open: false, keys, run, in_multi: InMulti::Queued }
}
const fn writes(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command { name, usage, arity, writes: true, open: false, keys, run, in_multi: InMulti::Queued }
}

const fn in_multi(in_multi: InMulti, command: Command) -> Command {
    Command { in_multi, ..command }
}

const NONE: (i32, i32, i32) = (0, 0, 0);
const FIRST: (i32, i32, i32) = (1, 1, 1);
const EACH: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

/// All commands, sorted by name.
pub static COMMANDS: &[Command] = &[
    writes("append", "key value", 3, FIRST, strings::append),
    in_multi(InMulti::Refused, open("auth", "[user] password", -2, connection::auth)),
    reads(
        "client",
        "ID | GETNAME | SETNAME name | SETINFO LIB-NAME|LIB-VER value | INFO | LIST",
        -2,
        NONE,
        connection::client,
    ),
    in_multi(InMulti::Refused, reads("clone", snapshot::CLONE_USAGE, -2, NONE, snapshot::clone)),
    in_multi(InMulti::Refused, writes("clonetree", "from to [TXN id]", -3, NONE, tree::clonetree)),
    reads("command", "[COUNT | LIST | INFO name ... | DOCS name ...]", -1, NONE, server::command),
    in_multi(InMulti::Refused, reads("compact", "[start end] | STORE", -1, NONE, dict::compact)),
    reads("config", "GET pattern ... | SET durable yes|no | RESETSTAT", -2, NONE, server::config),
    reads("dbsize", "", 1, NONE, scan::dbsize),
    writes("decr", "key", 2, FIRST, numbers::decr),
    writes("decrby", "key decrement", 3, FIRST, numbers::decrby),
    in_multi(
        InMulti::Refused,
        reads(
            "defrag",
            "START [RATE bytes] [FULLEST percent] | STATUS | STOP",
            -2,
            NONE,
            defrag::defrag,
        ),
    ),
    writes("del", "key ...", -2, EACH, keys::del),
    writes("delprefix", "prefix", 2, NONE, ranges::delprefix),
    writes("delrange", "start end [EXACT]", -3, NONE, ranges::delrange),
    in_multi(InMulti::Refused, reads("dict", dict::USAGE, -2, NONE, dict::dict)),
    reads("dicts", "", 1, NONE, connection::dicts),
    in_multi(InMulti::AtOnce, reads("discard", "", 1, NONE, multi::discard)),
    reads("durable", "[yes|no]", -1, NONE, connection::durable),
    reads("echo", "message", 2, NONE, connection::echo),
    reads("estimate", "start end [EXACT]", -3, NONE, ranges::estimate),
    in_multi(InMulti::AtOnce, writes("exec", "", 1, NONE, multi::exec)),
    reads("exists", "key ...", -2, EACH, keys::exists),
    reads("expire", "(not supported)", -3, FIRST, keys::expiry),
    reads("expireat", "(not supported)", -3, FIRST, keys::expiry),
    in_multi(InMulti::Refused, reads("export", tree::WALK_USAGE, -2, NONE, tree::export)),
    writes("flushall", "[ASYNC|SYNC]", -1, NONE, ranges::flushall),
    writes("flushdb", "[ASYNC|SYNC]", -1, NONE, ranges::flushdb),
    reads("get", "key", 2, FIRST, strings::get),
    writes("getdel", "key", 2, FIRST, strings::getdel),
    reads("getex", "key [PERSIST]", -2, FIRST, strings::getex),
    reads("getrange", "key start end", 4, FIRST, strings::getrange),
    writes("getset", "key value", 3, FIRST, strings::getset),
    in_multi(
        InMulti::Refused,
        open("hello", "[2|3 [AUTH user password] [SETNAME name]]", -1, connection::hello),
    ),
    in_multi(InMulti::Refused, writes("import", tree::IMPORT_USAGE, -2, NONE, tree::import)),
    writes("incr", "key", 2, FIRST, numbers::incr),
    writes("incrby", "key increment", 3, FIRST, numbers::incrby),
    writes("incrbyfloat", "key increment", 3, FIRST, numbers::incrbyfloat),
    reads("info", "[section ...]", -1, NONE, server::info),
    reads("keys", "pattern", 2, NONE, scan::keys),
    reads("kvfs.stat", "", 1, NONE, server::stat),
    reads("mget", "key ...", -2, EACH, strings::mget),
    writes("mset", "key value ...", -3, PAIRS, strings::mset),
    writes("msetnx", "key value ...", -3, PAIRS, strings::msetnx),
    in_multi(InMulti::AtOnce, reads("multi", "", 1, NONE, multi::multi)),
    reads("persist", "key", 2, FIRST, keys::persist),
    reads("pexpire", "(not supported)", -3, FIRST, keys::expiry),
    reads("pexpireat", "(not supported)", -3, FIRST, keys::expiry),
    reads("ping", "[message]", -1, NONE, connection::ping),
    reads("psetex", "(not supported)", 4, FIRST, keys::expiry),
    reads("pttl", "key", 2, FIRST, keys::ttl),
    in_multi(InMulti::AtOnce, open("quit", "", -1, connection::quit)),
    reads("range", "start end [REV] [LIMIT count] [NOVALUES] [EXACT]", -3, NONE, ranges::range),
    in_multi(InMulti::AtOnce, open("reset", "", 1, connection::reset)),
    in_multi(InMulti::Refused, writes("rmtree", "path [TXN id]", -2, NONE, tree::rmtree)),
    in_multi(InMulti::Refused, reads("save", "", 1, NONE, server::sync)),
    reads("scan", "cursor [MATCH pattern] [COUNT count] [TYPE type]", -2, NONE, scan::scan),
    in_multi(
        InMulti::Refused,
        reads("scrub", "START [RATE bytes] | STATUS | FAULTS | STOP", -2, NONE, scrub::scrub),
    ),
    reads("select", "number", 2, NONE, connection::select),
    writes("set", "key value [NX|XX] [GET] [KEEPTTL]", -3, FIRST, strings::set),
    reads("setex", "(not supported)", 4, FIRST, keys::expiry),
    writes("setnx", "key value", 3, FIRST, strings::setnx),
    writes("setrange", "key offset value", 4, FIRST, strings::setrange),
    in_multi(InMulti::Refused, reads("snapshot", snapshot::USAGE, -2, NONE, snapshot::snapshot)),
    reads("strlen", "key", 2, FIRST, strings::strlen),
    reads("substr", "key start end", 4, FIRST, strings::getrange),
    in_multi(InMulti::Refused, reads("sync", "", 1, NONE, server::sync)),
    reads("time", "", 1, NONE, server::time),
    reads("touch", "key ...", -2, EACH, keys::exists),
    reads("ttl", "key", 2, FIRST, keys::ttl),
    in_multi(InMulti::Refused, reads("txn", txn::USAGE, -2, NONE, txn::txn)),
    reads("type", "key", 2, FIRST, keys::kind),
    writes("unlink", "key ...", -2, EACH, keys::del),
    reads("unwatch", "", 1, NONE, multi::unwatch),
    reads("use", "dictionary", 2, NONE, connection::choose),
    reads("wait", "replicas timeout", 3, NONE, server::wait),
    in_multi(
        InMulti::Refused,
        reads("waitaof", "local replicas timeout", 4, NONE, server::waitaof),
    ),
    in_multi(InMulti::Refused, reads("walk", tree::WALK_USAGE, -2, NONE, tree::walk)),
    in_multi(InMulti::AtOnce, reads("watch", "key ...", -2, EACH, multi::watch)),
];

/// The place in `COMMANDS` of the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    let mut lower = [0u8; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    COMMANDS.binary_search_by(|c| c.name.as_bytes().cmp(lower)).ok()
}

/// Counters for all commands of the table.
pub fn metrics() -> Metrics {
    Metrics::new(COMMANDS.iter().map(|command| command.name))
}

fn wrong_arity(name: &str) -> Failure {
    Failure::request(format!("wrong number of arguments for '{name}' command"))
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
