//! The table of commands: for each one its name, the number of its arguments and its properties.
//! Each family of handlers has a file of its own.

use crate::failure::{Failure, Outcome};
use crate::metrics::Metrics;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

mod authors;
mod bits;
mod blocking;
mod changes;
mod client;
mod collections;
mod config;
mod connection;
mod debug;
mod defrag;
mod dict;
mod dispatch;
mod dump;
mod eval;
mod expiry;
mod feed;
mod hashes;
mod introspection;
mod keys;
mod lcs;
mod lists;
mod long_double;
mod merge;
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
mod streams;
mod strings;
mod tell;
mod tree;
mod txn;
mod undo;
mod zones;

use dispatch::run_one;
pub use dispatch::{refuse, run};
pub use dump::is_sound as is_sound_payload;

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
            "eval" | "evalsha" | "eval_ro" | "evalsha_ro" => Some(2),
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
        typed: false,
        pushes: false,
    }
}
const fn reads(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command { keys, open: false, ..open(name, usage, arity, run) }
}
const fn writes(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command { writes: true, ..reads(name, usage, arity, keys, run) }
}

const fn typed(
    name: &'static str,
    usage: &'static str,
    arity: i32,
    keys: (i32, i32, i32),
    run: Handler,
) -> Command {
    Command { typed: true, ..writes(name, usage, arity, keys, run) }
}

const fn in_multi(in_multi: InMulti, command: Command) -> Command {
    Command { in_multi, ..command }
}

/// Makes a command of subscriptions: it sends messages, even where replies are suppressed, and is
/// allowed while a RESP2 client expects nothing but messages.
const fn pushes(name: &'static str, usage: &'static str, arity: i32, run: Handler) -> Command {
    Command { pushes: true, ..in_multi(InMulti::Refused, reads(name, usage, arity, NONE, run)) }
}

const NONE: (i32, i32, i32) = (0, 0, 0);
const FIRST: (i32, i32, i32) = (1, 1, 1);
const EACH: (i32, i32, i32) = (1, -1, 1);
const BUT_LAST: (i32, i32, i32) = (1, -2, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);
const TWO: (i32, i32, i32) = (1, 2, 1);

const EVAL_USAGE: &str = "script numkeys [key ...] [arg ...]";
const EVALSHA_USAGE: &str = "sha1 numkeys [key ...] [arg ...]";
const GETEX_USAGE: &str =
    "key [EX seconds|PX milliseconds|EXAT unix-time|PXAT unix-time-milliseconds|PERSIST]";
const SET_USAGE: &str = "key value [NX|XX] [GET] [EX seconds|PX milliseconds|EXAT unix-time|PXAT unix-time-milliseconds|KEEPTTL]";

/// All commands, sorted by name.
pub static COMMANDS: &[Command] = &[
    writes("append", "key value", 3, FIRST, strings::append),
    in_multi(InMulti::Refused, open("auth", "[user] password", -2, connection::auth)),
    reads("bitcount", "key [start end [BYTE|BIT]]", -2, FIRST, bits::bitcount),
    writes(
        "bitfield",
        "key [GET type offset | [OVERFLOW WRAP|SAT|FAIL] SET|INCRBY type offset number ...]",
        -2,
        FIRST,
        bits::bitfield,
    ),
    reads("bitfield_ro", "key [GET type offset ...]", -2, FIRST, bits::bitfield_ro),
    writes("bitop", "AND|OR|XOR|NOT destination key ...", -4, (2, -1, 1), bits::bitop),
    reads("bitpos", "key bit [start [end [BYTE|BIT]]]", -3, FIRST, bits::bitpos),
    typed("blmove", "source destination LEFT|RIGHT LEFT|RIGHT timeout", 6, TWO, blocking::blmove),
    writes(
        "blmpop",
        "timeout numkeys key ... LEFT|RIGHT [COUNT count]",
        -5,
        NONE,
        blocking::blmpop,
    ),
    writes("blpop", "key ... timeout", -3, BUT_LAST, blocking::blpop),
    writes("brpop", "key ... timeout", -3, BUT_LAST, blocking::brpop),
    typed("brpoplpush", "source destination timeout", 4, TWO, blocking::brpoplpush),
    writes("bzmpop", "timeout numkeys key ... MIN|MAX [COUNT count]", -5, NONE, blocking::bzmpop),
    writes("bzpopmax", "key ... timeout", -3, BUT_LAST, blocking::bzpopmax),
    writes("bzpopmin", "key ... timeout", -3, BUT_LAST, blocking::bzpopmin),
    reads("changes", feed::USAGE, -1, NONE, feed::changes),
    reads("client", client::USAGE, -2, NONE, client::client),
    in_multi(InMulti::Refused, reads("clone", snapshot::CLONE_USAGE, -2, NONE, snapshot::clone)),
    in_multi(
        InMulti::Refused,
        writes("clonetree", "from to [from to ...] [TXN id]", -3, NONE, tree::clonetree),
    ),
    reads(
        "command",
        "[COUNT | LIST [FILTERBY PATTERN pattern] | INFO [name ...] | DOCS [name ...] | GETKEYS command ...]",
        -1,
        NONE,
        introspection::command,
    ),
    in_multi(InMulti::Refused, reads("compact", "[start end] | STORE", -1, NONE, dict::compact)),
    reads("config", config::USAGE, -2, NONE, config::config),
    writes("copy", "source destination [REPLACE]", -3, TWO, keys::copy),
    reads("count", "start end [EXACT]", -3, NONE, ranges::count),
    reads("dbsize", "", 1, NONE, scan::dbsize),
    in_multi(InMulti::Refused, reads("debug", debug::USAGE, -2, NONE, debug::debug)),
    writes("decr", "key", 2, FIRST, numbers::decr),
    writes("decrby", "key decrement", 3, FIRST, numbers::decrby),
    in_multi(
        InMulti::Refused,
        reads(
            "defrag",
            "START [RATE bytes] [FULLEST percent] [OBJECTS 0|1] | STATUS | STOP",
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
    reads("dump", "key", 2, FIRST, dump::dump),
    reads("durable", "[yes|no]", -1, NONE, connection::durable),
    reads("echo", "message", 2, NONE, connection::echo),
    reads("estimate", "start end [EXACT]", -3, NONE, ranges::estimate),
    writes("eval", EVAL_USAGE, -3, NONE, eval::eval),
    reads("eval_ro", EVAL_USAGE, -3, NONE, eval::eval_ro),
    writes("evalsha", EVALSHA_USAGE, -3, NONE, eval::evalsha),
    reads("evalsha_ro", EVALSHA_USAGE, -3, NONE, eval::evalsha_ro),
    in_multi(InMulti::AtOnce, writes("exec", "", 1, NONE, multi::exec)),
    reads("exists", "key ...", -2, EACH, keys::exists),
    typed("expire", "key seconds [NX|XX|GT|LT]", -3, FIRST, expiry::expire),
    typed("expireat", "key unix-time [NX|XX|GT|LT]", -3, FIRST, expiry::expireat),
    reads("expiretime", "key", 2, FIRST, expiry::expiretime),
    in_multi(InMulti::Refused, reads("export", tree::WALK_USAGE, -2, NONE, tree::export)),
    writes("flushall", "[ASYNC|SYNC]", -1, NONE, ranges::flushall),
    writes("flushdb", "[ASYNC|SYNC]", -1, NONE, ranges::flushdb),
    reads("get", "key", 2, FIRST, strings::get),
    reads("getbit", "key offset", 3, FIRST, bits::getbit),
    writes("getdel", "key", 2, FIRST, strings::getdel),
    typed("getex", GETEX_USAGE, -2, FIRST, strings::getex),
    reads("getrange", "key start end", 4, FIRST, strings::getrange),
    writes("getset", "key value", 3, FIRST, strings::getset),
    writes("hdel", "key field ...", -3, FIRST, hashes::hdel),
    in_multi(
        InMulti::Refused,
        open("hello", "[2|3 [AUTH user password] [SETNAME name]]", -1, connection::hello),
    ),
    reads("hexists", "key field", 3, FIRST, hashes::hexists),
    reads("hget", "key field", 3, FIRST, hashes::hget),
    reads("hgetall", "key", 2, FIRST, hashes::hgetall),
    typed("hincrby", "key field increment", 4, FIRST, hashes::hincrby),
    typed("hincrbyfloat", "key field increment", 4, FIRST, hashes::hincrbyfloat),
    reads("hkeys", "key", 2, FIRST, hashes::hkeys),
    reads("hlen", "key", 2, FIRST, hashes::hlen),
    reads("hmget", "key field ...", -3, FIRST, hashes::hmget),
    typed("hmset", "key field value ...", -4, FIRST, hashes::hmset),
    reads("hrandfield", "key [count [WITHVALUES]]", -2, FIRST, hashes::hrandfield),
    reads("hscan", "key cursor [MATCH pattern] [COUNT count] [NOVALUES]", -3, FIRST, hashes::hscan),
    typed("hset", "key field value ...", -4, FIRST, hashes::hset),
    typed("hsetnx", "key field value", 4, FIRST, hashes::hsetnx),
    reads("hstrlen", "key field", 3, FIRST, hashes::hstrlen),
    reads("hvals", "key", 2, FIRST, hashes::hvals),
    in_multi(InMulti::Refused, writes("import", tree::IMPORT_USAGE, -2, NONE, tree::import)),
    writes("incr", "key", 2, FIRST, numbers::incr),
    writes("incrby", "key increment", 3, FIRST, numbers::incrby),
    writes("incrbyfloat", "key increment", 3, FIRST, numbers::incrbyfloat),
    reads("info", "[section ...]", -1, NONE, server::info),
    reads("keys", "pattern", 2, NONE, scan::keys),
    in_multi(InMulti::Refused, reads("kvfs.check", "", 1, NONE, server::check)),
    in_multi(InMulti::Refused, reads("kvfs.push", "address", 2, NONE, server::push)),
    reads("kvfs.stat", "", 1, NONE, server::stat),
    reads("kvfs.zones", "[cells]", -1, NONE, zones::zones),
    reads("latency", introspection::LATENCY_USAGE, -2, NONE, introspection::latency),
    reads("lcs", "key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]", -3, TWO, lcs::lcs),
    reads("lindex", "key index", 3, FIRST, lists::lindex),
    writes("linsert", "key BEFORE|AFTER pivot element", 5, FIRST, lists::linsert),
    reads("llen", "key", 2, FIRST, lists::llen),
    typed("lmove", "source destination LEFT|RIGHT LEFT|RIGHT", 5, TWO, lists::lmove),
    writes("lmpop", "numkeys key ... LEFT|RIGHT [COUNT count]", -4, NONE, blocking::lmpop),
    writes("lpop", "key [count]", -2, FIRST, lists::lpop),
    reads("lpos", "key element [RANK rank] [COUNT count] [MAXLEN len]", -3, FIRST, lists::lpos),
    typed("lpush", "key element ...", -3, FIRST, lists::lpush),
    typed("lpushx", "key element ...", -3, FIRST, lists::lpushx),
    reads("lrange", "key start stop", 4, FIRST, lists::lrange),
    writes("lrem", "key count element", 4, FIRST, lists::lrem),
    writes("lset", "key index element", 4, FIRST, lists::lset),
    writes("ltrim", "key start stop", 4, FIRST, lists::ltrim),
    reads("memory", "USAGE key [SAMPLES count]", -2, NONE, keys::memory),
    reads("mget", "key ...", -2, EACH, strings::mget),
    writes("mset", "key value ...", -3, PAIRS, strings::mset),
    writes("msetnx", "key value ...", -3, PAIRS, strings::msetnx),
    in_multi(InMulti::AtOnce, reads("multi", "", 1, NONE, multi::multi)),
    reads("object", "ENCODING|REFCOUNT|IDLETIME|FREQ key", -2, (2, 2, 1), keys::object),
    writes("persist", "key", 2, FIRST, expiry::persist),
    typed("pexpire", "key milliseconds [NX|XX|GT|LT]", -3, FIRST, expiry::pexpire),
    typed("pexpireat", "key unix-time-milliseconds [NX|XX|GT|LT]", -3, FIRST, expiry::pexpireat),
    reads("pexpiretime", "key", 2, FIRST, expiry::pexpiretime),
    reads("ping", "[message]", -1, NONE, connection::ping),
    typed("psetex", "key milliseconds value", 4, FIRST, strings::psetex),
    pushes("psubscribe", "pattern ...", -2, pubsub::psubscribe),
    reads("pttl", "key", 2, FIRST, expiry::pttl),
    reads("publish", "channel message", 3, NONE, pubsub::publish),
    reads("pubsub", pubsub::PUBSUB_USAGE, -2, NONE, pubsub::pubsub),
    pushes("punsubscribe", "[pattern ...]", -1, pubsub::punsubscribe),
    in_multi(InMulti::AtOnce, open("quit", "", -1, connection::quit)),
    reads("randomkey", "", 1, NONE, scan::randomkey),
    reads(
        "range",
        "start end [REV] [OFFSET count] [LIMIT count] [NOVALUES] [EXACT]",
        -3,
        NONE,
        ranges::range,
    ),
    writes("rename", "key newkey", 3, TWO, keys::rename),
    writes("renamenx", "key newkey", 3, TWO, keys::renamenx),
    in_multi(InMulti::AtOnce, open("reset", "", 1, connection::reset)),
    typed(
        "restore",
        "key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        -4,
        FIRST,
        dump::restore,
    ),
    in_multi(InMulti::Refused, writes("rmtree", "path [TXN id]", -2, NONE, tree::rmtree)),
    writes("rpop", "key [count]", -2, FIRST, lists::rpop),
    typed("rpoplpush", "source destination", 3, TWO, lists::rpoplpush),
    typed("rpush", "key element ...", -3, FIRST, lists::rpush),
    typed("rpushx", "key element ...", -3, FIRST, lists::rpushx),
    typed("sadd", "key member ...", -3, FIRST, sets::sadd),
    in_multi(InMulti::Refused, reads("save", "", 1, NONE, server::sync)),
    reads("scan", "cursor [MATCH pattern] [COUNT count] [TYPE type]", -2, NONE, scan::scan),
    reads("scard", "key", 2, FIRST, sets::scard),
    reads("script", eval::SCRIPT_USAGE, -2, NONE, eval::script),
    in_multi(
        InMulti::Refused,
        reads("scrub", "START [RATE bytes] | STATUS | FAULTS | STOP", -2, NONE, scrub::scrub),
    ),
    reads("sdiff", "key ...", -2, EACH, sets::sdiff),
    typed("sdiffstore", "destination key ...", -3, EACH, sets::sdiffstore),
    reads("select", "number", 2, NONE, connection::select),
    typed("set", SET_USAGE, -3, FIRST, strings::set),
    writes("setbit", "key offset bit", 4, FIRST, bits::setbit),
    typed("setex", "key seconds value", 4, FIRST, strings::setex),
    writes("setnx", "key value", 3, FIRST, strings::setnx),
    writes("setrange", "key offset value", 4, FIRST, strings::setrange),
    reads("sinter", "key ...", -2, EACH, sets::sinter),
    reads("sintercard", "numkeys key ... [LIMIT limit]", -3, NONE, sets::sintercard),
    typed("sinterstore", "destination key ...", -3, EACH, sets::sinterstore),
    reads("sismember", "key member", 3, FIRST, sets::sismember),
    reads("slowlog", "GET [count] | LEN | RESET", -2, NONE, introspection::slowlog),
    reads("smembers", "key", 2, FIRST, sets::smembers),
    reads("smismember", "key member ...", -3, FIRST, sets::smismember),
    typed("smove", "source destination member", 4, TWO, sets::smove),
    in_multi(InMulti::Refused, reads("snapshot", snapshot::USAGE, -2, NONE, snapshot::snapshot)),
    typed("sort", sort::USAGE, -2, FIRST, sort::sort),
    reads("sort_ro", sort::RO_USAGE, -2, FIRST, sort::sort_ro),
    writes("spop", "key [count]", -2, FIRST, sets::spop),
    reads("spublish", "channel message", 3, NONE, pubsub::spublish),
    reads("srandmember", "key [count]", -2, FIRST, sets::srandmember),
    writes("srem", "key member ...", -3, FIRST, sets::srem),
    reads("sscan", "key cursor [MATCH pattern] [COUNT count]", -3, FIRST, sets::sscan),
    pushes("ssubscribe", "channel ...", -2, pubsub::ssubscribe),
    reads("strlen", "key", 2, FIRST, strings::strlen),
    pushes("subscribe", "channel ...", -2, pubsub::subscribe),
    reads("substr", "key start end", 4, FIRST, strings::getrange),
    reads("sunion", "key ...", -2, EACH, sets::sunion),
    typed("sunionstore", "destination key ...", -3, EACH, sets::sunionstore),
    pushes("sunsubscribe", "[channel ...]", -1, pubsub::sunsubscribe),
    in_multi(InMulti::Refused, reads("sync", "", 1, NONE, server::sync)),
    reads("time", "", 1, NONE, server::time),
    reads("touch", "key ...", -2, EACH, keys::exists),
    reads("ttl", "key", 2, FIRST, expiry::ttl),
    in_multi(InMulti::Refused, reads("txn", txn::USAGE, -2, NONE, txn::txn)),
    reads("type", "key", 2, FIRST, keys::kind),
    writes("unlink", "key ...", -2, EACH, keys::del),
    pushes("unsubscribe", "[channel ...]", -1, pubsub::unsubscribe),
    reads("unwatch", "", 1, NONE, multi::unwatch),
    reads("use", "dictionary", 2, NONE, connection::choose),
    reads("wait", "replicas timeout", 3, NONE, server::wait),
    in_multi(
        InMulti::Refused,
        reads("waitaof", "local replicas timeout", 4, NONE, server::waitaof),
    ),
    in_multi(InMulti::Refused, reads("walk", tree::WALK_USAGE, -2, NONE, tree::walk)),
    in_multi(InMulti::AtOnce, reads("watch", "key ...", -2, EACH, multi::watch)),
    writes("xack", "key group id ...", -4, FIRST, streams::xack),
    typed(
        "xadd",
        "key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value ...",
        -5,
        FIRST,
        streams::xadd,
    ),
    writes(
        "xautoclaim",
        "key group consumer min-idle-time start [COUNT count] [JUSTID]",
        -6,
        FIRST,
        streams::xautoclaim,
    ),
    writes(
        "xclaim",
        "key group consumer min-idle-time id ... [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID id]",
        -6,
        FIRST,
        streams::xclaim,
    ),
    writes("xdel", "key id ...", -3, FIRST, streams::xdel),
    typed(
        "xgroup",
        "CREATE|SETID|DESTROY|CREATECONSUMER|DELCONSUMER key group [id|$|consumer] [MKSTREAM] [ENTRIESREAD count]",
        -2,
        (2, 2, 1),
        streams::xgroup,
    ),
    reads(
        "xinfo",
        "STREAM key [FULL [COUNT count]] | GROUPS key | CONSUMERS key group",
        -2,
        (2, 2, 1),
        streams::xinfo,
    ),
    reads("xlen", "key", 2, FIRST, streams::xlen),
    reads(
        "xpending",
        "key group [[IDLE min-idle-time] start end count [consumer]]",
        -3,
        FIRST,
        streams::xpending,
    ),
    reads("xrange", "key start end [COUNT count]", -4, FIRST, streams::xrange),
    reads(
        "xread",
        "[COUNT count] [BLOCK milliseconds] STREAMS key ... id ...",
        -4,
        NONE,
        streams::xread,
    ),
    writes(
        "xreadgroup",
        "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key ... id ...",
        -7,
        NONE,
        streams::xreadgroup,
    ),
    reads("xrevrange", "key end start [COUNT count]", -4, FIRST, streams::xrevrange),
    writes(
        "xsetid",
        "key last-id [ENTRIESADDED count] [MAXDELETEDID id]",
        -3,
        FIRST,
        streams::xsetid,
    ),
    writes("xtrim", "key MAXLEN|MINID [=|~] threshold [LIMIT count]", -4, FIRST, streams::xtrim),
    typed("zadd", "key [NX|XX] [GT|LT] [CH] [INCR] score member ...", -4, FIRST, sorted_sets::zadd),
    reads("zcard", "key", 2, FIRST, sorted_sets::zcard),
    reads("zcount", "key min max", 4, FIRST, sorted_sets::zcount),
    reads("zdiff", "numkeys key ... [WITHSCORES]", -3, NONE, sorted_sets::zdiff),
    typed("zdiffstore", "destination numkeys key ...", -4, NONE, sorted_sets::zdiffstore),
    typed("zincrby", "key increment member", 4, FIRST, sorted_sets::zincrby),
    reads(
        "zinter",
        "numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]",
        -3,
        NONE,
        sorted_sets::zinter,
    ),
    reads("zintercard", "numkeys key ... [LIMIT limit]", -3, NONE, sorted_sets::zintercard),
    typed(
        "zinterstore",
        "destination numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]",
        -4,
        NONE,
        sorted_sets::zinterstore,
    ),
    reads("zlexcount", "key min max", 4, FIRST, sorted_sets::zlexcount),
    writes("zmpop", "numkeys key ... MIN|MAX [COUNT count]", -4, NONE, blocking::zmpop),
    reads("zmscore", "key member ...", -3, FIRST, sorted_sets::zmscore),
    writes("zpopmax", "key [count]", -2, FIRST, sorted_sets::zpopmax),
    writes("zpopmin", "key [count]", -2, FIRST, sorted_sets::zpopmin),
    reads("zrandmember", "key [count [WITHSCORES]]", -2, FIRST, sorted_sets::zrandmember),
    reads(
        "zrange",
        "key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
        -4,
        FIRST,
        sorted_sets::zrange,
    ),
    reads("zrangebylex", "key min max [LIMIT offset count]", -4, FIRST, sorted_sets::zrangebylex),
    reads(
        "zrangebyscore",
        "key min max [WITHSCORES] [LIMIT offset count]",
        -4,
        FIRST,
        sorted_sets::zrangebyscore,
    ),
    typed(
        "zrangestore",
        "destination source start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count]",
        -5,
        TWO,
        sorted_sets::zrangestore,
    ),
    reads("zrank", "key member [WITHSCORE]", -3, FIRST, sorted_sets::zrank),
    writes("zrem", "key member ...", -3, FIRST, sorted_sets::zrem),
    writes("zremrangebylex", "key min max", 4, FIRST, sorted_sets::zremrangebylex),
    writes("zremrangebyrank", "key start stop", 4, FIRST, sorted_sets::zremrangebyrank),
    writes("zremrangebyscore", "key min max", 4, FIRST, sorted_sets::zremrangebyscore),
    reads("zrevrange", "key start stop [WITHSCORES]", -4, FIRST, sorted_sets::zrevrange),
    reads(
        "zrevrangebylex",
        "key max min [LIMIT offset count]",
        -4,
        FIRST,
        sorted_sets::zrevrangebylex,
    ),
    reads(
        "zrevrangebyscore",
        "key max min [WITHSCORES] [LIMIT offset count]",
        -4,
        FIRST,
        sorted_sets::zrevrangebyscore,
    ),
    reads("zrevrank", "key member [WITHSCORE]", -3, FIRST, sorted_sets::zrevrank),
    reads("zscan", "key cursor [MATCH pattern] [COUNT count]", -3, FIRST, sorted_sets::zscan),
    reads("zscore", "key member", 3, FIRST, sorted_sets::zscore),
    reads(
        "zunion",
        "numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]",
        -3,
        NONE,
        sorted_sets::zunion,
    ),
    typed(
        "zunionstore",
        "destination numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]",
        -4,
        NONE,
        sorted_sets::zunionstore,
    ),
];

/// The names as integers, in the same order, so that two names are compared in two instructions.
const NAMES: [u128; COMMANDS.len()] = {
    let mut names = [0; COMMANDS.len()];
    let mut i = 0;
    while i < names.len() {
        let (name, mut bytes, mut at) = (COMMANDS[i].name.as_bytes(), [0; 16], 0);
        while at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        names[i] = u128::from_be_bytes(bytes);
        assert!(i == 0 || names[i - 1] < names[i], "the table is in the order of its names");
        i += 1;
    }
    names
};

/// Returns the index in `COMMANDS` of the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    let mut lower = [0; 16];
    lower.get_mut(..name.len())?.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let place = NAMES.binary_search(&u128::from_be_bytes(lower)).ok()?;
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
