//! The rows of the table of commands. `row` has the fields of a row and the functions that build
//! rows.

use super::row::{
    BUT_LAST, Command, EACH, FIRST, InScripts, NONE, OnSnapshots,
    OtherKeys::{self, Destination, StoredAndCounted},
    PAIRS, SECOND,
    Sealed::Forms,
    Secret, TWO, acts, asks, open, pushes, reads, typed, writes,
};
use super::{
    administration, bits, blocking, client, config, connection, debug, defrag, dict, dump, eval,
    expiry, feed, field_values, fields, functions, hashes, hyperloglog, info, introspection, keys,
    lcs, lists, monitor, multi, numbers, pubsub, ranges, scan, scrub, sealed, server, sets,
    snapshot, sort, sorted_sets, specs, streams, strings, tree, txn, zones,
};

const EVAL_USAGE: &str = "script numkeys [key ...] [arg ...]";
const EVALSHA_USAGE: &str = "sha1 numkeys [key ...] [arg ...]";
const GETEX_USAGE: &str =
    "key [EX seconds|PX milliseconds|EXAT unix-time|PXAT unix-time-milliseconds|PERSIST]";
const FIELDS_USAGE: &str = "key FIELDS numfields field ...";
const HEXPIRE_USAGE: &str = "key seconds [NX|XX|GT|LT] FIELDS numfields field ...";
const HEXPIREAT_USAGE: &str = "key unix-time [NX|XX|GT|LT] FIELDS numfields field ...";
const HGETEX_USAGE: &str = "key [EX seconds|PX milliseconds|EXAT unix-time|PXAT unix-time-milliseconds|PERSIST] FIELDS numfields field ...";
const HSETEX_USAGE: &str = "key [FNX|FXX] [EX seconds|PX milliseconds|EXAT unix-time|PXAT unix-time-milliseconds|KEEPTTL] FIELDS numfields field value ...";
const HPEXPIRE_USAGE: &str = "key milliseconds [NX|XX|GT|LT] FIELDS numfields field ...";
const HPEXPIREAT_USAGE: &str =
    "key unix-time-milliseconds [NX|XX|GT|LT] FIELDS numfields field ...";
const SET_USAGE: &str = "key value [NX|XX] [GET] [EX seconds|PX milliseconds|EXAT unix-time|PXAT unix-time-milliseconds|KEEPTTL]";
const BITFIELD_USAGE: &str =
    "key [GET type offset | [OVERFLOW WRAP|SAT|FAIL] SET|INCRBY type offset number ...]";
const DEFRAG_USAGE: &str = "START [RATE bytes] [FULLEST percent] [OBJECTS 0|1] | STATUS | STOP";
const GEORADIUS_USAGE: &str = "key longitude latitude radius M|KM|FT|MI [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC|DESC] [STORE key|STOREDIST key]";
const GEORADIUSBYMEMBER_USAGE: &str = "key member radius M|KM|FT|MI [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC|DESC] [STORE key|STOREDIST key]";
const XREADGROUP_USAGE: &str =
    "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key ... id ...";
const ZINTER_USAGE: &str =
    "numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]";
const ZINTERSTORE_USAGE: &str =
    "destination numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]";
const ZUNION_USAGE: &str =
    "numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]";
const ZUNIONSTORE_USAGE: &str =
    "destination numkeys key ... [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]";

/// All commands, sorted by name.
pub static COMMANDS: &[Command] = &[
    asks("acl", administration::ACL_USAGE, -2, administration::acl).hidden(),
    writes("append", "key value", 3, FIRST, strings::append),
    asks("asking", "", 1, administration::cluster),
    open("auth", "[user] password", -2, connection::auth).not_in_multi().secret(Secret::All),
    asks("bgsave", "[SCHEDULE]", -1, server::bgsave).not_in_multi().hidden(),
    reads("bitcount", "key [start end [BYTE|BIT]]", -2, FIRST, bits::bitcount),
    writes("bitfield", BITFIELD_USAGE, -2, FIRST, bits::bitfield).key_flags(specs::of_bitfield),
    reads("bitfield_ro", "key [GET type offset ...]", -2, FIRST, bits::bitfield_ro),
    writes("bitop", "AND|OR|XOR|NOT destination key ...", -4, (2, -1, 1), bits::bitop),
    reads("bitpos", "key bit [start [end [BYTE|BIT]]]", -3, FIRST, bits::bitpos),
    typed("blmove", "source destination LEFT|RIGHT LEFT|RIGHT timeout", 6, TWO, blocking::blmove)
        .not_in_scripts()
        .shown_before(),
    writes(
        "blmpop",
        "timeout numkeys key ... LEFT|RIGHT [COUNT count]",
        -5,
        NONE,
        blocking::blmpop,
    )
    .counted(2)
    .shown_before(),
    writes("blpop", "key ... timeout", -3, BUT_LAST, blocking::blpop)
        .not_in_scripts()
        .shown_before(),
    writes("brpop", "key ... timeout", -3, BUT_LAST, blocking::brpop)
        .not_in_scripts()
        .shown_before(),
    typed("brpoplpush", "source destination timeout", 4, TWO, blocking::brpoplpush)
        .not_in_scripts()
        .shown_before(),
    writes("bzmpop", "timeout numkeys key ... MIN|MAX [COUNT count]", -5, NONE, blocking::bzmpop)
        .counted(2)
        .shown_before(),
    writes("bzpopmax", "key ... timeout", -3, BUT_LAST, blocking::bzpopmax)
        .not_in_scripts()
        .shown_before(),
    writes("bzpopmin", "key ... timeout", -3, BUT_LAST, blocking::bzpopmin)
        .not_in_scripts()
        .shown_before(),
    asks("changes", feed::USAGE, -1, feed::changes),
    acts("client", client::USAGE, -2, sealed::CLIENT, client::client).not_in_scripts().controls(),
    acts("clone", snapshot::CLONE_USAGE, -2, Forms(&["leave", "list", "use"]), snapshot::clone)
        .not_in_multi()
        .paused_with_writes()
        .moves_connection(),
    writes("clonetree", "from to [from to ...] [TXN id]", -3, NONE, tree::clonetree)
        .not_in_multi()
        .files(tree::changed_by_clonetree),
    asks("cluster", "INFO", -2, administration::cluster),
    asks(
        "command",
        "[COUNT | LIST [FILTERBY PATTERN pattern] | INFO [name ...] | DOCS [name ...] | GETKEYS command ...]",
        -1,
        introspection::command,
    ),
    acts("compact", "[start end] | STORE", -1, Forms(&[]), dict::compact).not_in_multi(),
    acts("config", config::USAGE, -2, Forms(&["get", "help"]), config::config)
        .secret(Secret::IfNamed("requirepass"))
        .not_in_scripts()
        .hidden(),
    writes("copy", "source destination [DB n] [REPLACE]", -3, TWO, keys::copy),
    asks("count", "start end [EXACT]", -3, ranges::count),
    asks("dbsize", "", 1, scan::dbsize),
    acts("debug", debug::USAGE, -2, Forms(&["help", "protocol"]), debug::debug)
        .in_scripts(InScripts::Debugging)
        .hidden(),
    writes("decr", "key", 2, FIRST, numbers::decr),
    writes("decrby", "key decrement", 3, FIRST, numbers::decrby),
    acts("defrag", DEFRAG_USAGE, -2, Forms(&["status"]), defrag::defrag).not_in_multi(),
    writes("del", "key ...", -2, EACH, keys::del),
    writes("delprefix", "prefix", 2, NONE, ranges::delprefix),
    writes("delrange", "start end [EXACT]", -3, NONE, ranges::delrange),
    acts("dict", dict::USAGE, -2, Forms(&["info", "list"]), dict::dict)
        .not_in_multi()
        .paused_with_writes(),
    asks("dicts", "", 1, connection::dicts),
    asks("discard", "", 1, multi::discard).at_once_in_multi(),
    reads("dump", "key", 2, FIRST, dump::dump),
    asks("durable", "[yes|no]", -1, connection::durable).not_in_scripts(),
    asks("echo", "message", 2, connection::echo),
    asks("estimate", "start end [EXACT]", -3, ranges::estimate),
    writes("eval", EVAL_USAGE, -3, NONE, eval::eval).runs_script(),
    asks("eval_ro", EVAL_USAGE, -3, eval::eval_ro).runs_script(),
    writes("evalsha", EVALSHA_USAGE, -3, NONE, eval::evalsha).runs_script(),
    asks("evalsha_ro", EVALSHA_USAGE, -3, eval::evalsha_ro).runs_script(),
    writes("exec", "", 1, NONE, multi::exec).at_once_in_multi().runs_queue().moves_connection(),
    reads("exists", "key ...", -2, EACH, keys::exists),
    typed("expire", "key seconds [NX|XX|GT|LT]", -3, FIRST, expiry::expire),
    typed("expireat", "key unix-time [NX|XX|GT|LT]", -3, FIRST, expiry::expireat),
    reads("expiretime", "key", 2, FIRST, expiry::expiretime),
    asks("export", tree::WALK_USAGE, -2, tree::export).not_in_multi(),
    writes("fcall", functions::FCALL_USAGE, -3, NONE, functions::fcall).runs_script(),
    asks("fcall_ro", functions::FCALL_USAGE, -3, functions::fcall_ro).runs_script(),
    writes("flushall", "[ASYNC|SYNC]", -1, NONE, ranges::flushall),
    writes("flushdb", "[ASYNC|SYNC]", -1, NONE, ranges::flushdb),
    writes("function", functions::USAGE, -2, NONE, functions::function)
        .sealed(Forms(&["delete", "dump", "flush", "help", "list", "load", "restore", "stats"]))
        .needs_worker()
        .on_snapshots(OnSnapshots::Forms(&["dump", "help", "list", "stats"])),
    typed(
        "geoadd",
        "key [NX|XX] [CH] longitude latitude member ...",
        -5,
        FIRST,
        sorted_sets::geoadd,
    ),
    reads("geodist", "key member1 member2 [M|KM|FT|MI]", -4, FIRST, sorted_sets::geodist),
    reads("geohash", "key [member ...]", -2, FIRST, sorted_sets::geohash),
    reads("geopos", "key [member ...]", -2, FIRST, sorted_sets::geopos),
    typed("georadius", GEORADIUS_USAGE, -6, FIRST, sorted_sets::georadius)
        .other_keys(Destination(sorted_sets::destination))
        .plain_if(|args| sorted_sets::destination(args).is_none()),
    reads(
        "georadius_ro",
        "key longitude latitude radius M|KM|FT|MI [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC|DESC]",
        -6,
        FIRST,
        sorted_sets::georadius_ro,
    ),
    typed("georadiusbymember", GEORADIUSBYMEMBER_USAGE, -5, FIRST, sorted_sets::georadiusbymember)
        .other_keys(Destination(sorted_sets::destination))
        .plain_if(|args| sorted_sets::destination(args).is_none()),
    reads(
        "georadiusbymember_ro",
        "key member radius M|KM|FT|MI [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] [ASC|DESC]",
        -5,
        FIRST,
        sorted_sets::georadiusbymember_ro,
    ),
    reads(
        "geosearch",
        "key FROMMEMBER member|FROMLONLAT longitude latitude BYRADIUS radius M|KM|FT|MI|BYBOX width height M|KM|FT|MI [ASC|DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]",
        -7,
        FIRST,
        sorted_sets::geosearch,
    ),
    typed(
        "geosearchstore",
        "destination source FROMMEMBER member|FROMLONLAT longitude latitude BYRADIUS radius M|KM|FT|MI|BYBOX width height M|KM|FT|MI [ASC|DESC] [COUNT count [ANY]] [STOREDIST]",
        -8,
        TWO,
        sorted_sets::geosearchstore,
    ),
    reads("get", "key", 2, FIRST, strings::get),
    reads("getbit", "key offset", 3, FIRST, bits::getbit),
    writes("getdel", "key", 2, FIRST, strings::getdel),
    typed("getex", GETEX_USAGE, -2, FIRST, strings::getex).plain_if(|args| args.len() == 2),
    reads("getrange", "key start end", 4, FIRST, strings::getrange),
    writes("getset", "key value", 3, FIRST, strings::getset),
    writes("hdel", "key field ...", -3, FIRST, hashes::hdel),
    open("hello", "[2|3 [AUTH user password] [SETNAME name]]", -1, connection::hello)
        .not_in_multi()
        .secret(Secret::AfterAuth),
    reads("hexists", "key field", 3, FIRST, hashes::hexists),
    typed("hexpire", HEXPIRE_USAGE, -6, FIRST, fields::hexpire),
    typed("hexpireat", HEXPIREAT_USAGE, -6, FIRST, fields::hexpireat),
    reads("hexpiretime", FIELDS_USAGE, -5, FIRST, fields::hexpiretime),
    reads("hget", "key field", 3, FIRST, hashes::hget),
    reads("hgetall", "key", 2, FIRST, hashes::hgetall),
    writes("hgetdel", FIELDS_USAGE, -5, FIRST, field_values::hgetdel),
    typed("hgetex", HGETEX_USAGE, -5, FIRST, field_values::hgetex),
    typed("hincrby", "key field increment", 4, FIRST, hashes::hincrby),
    typed("hincrbyfloat", "key field increment", 4, FIRST, hashes::hincrbyfloat),
    reads("hkeys", "key", 2, FIRST, hashes::hkeys),
    reads("hlen", "key", 2, FIRST, hashes::hlen),
    reads("hmget", "key field ...", -3, FIRST, hashes::hmget),
    typed("hmset", "key field value ...", -4, FIRST, hashes::hmset),
    writes("hpersist", FIELDS_USAGE, -5, FIRST, fields::hpersist),
    typed("hpexpire", HPEXPIRE_USAGE, -6, FIRST, fields::hpexpire),
    typed("hpexpireat", HPEXPIREAT_USAGE, -6, FIRST, fields::hpexpireat),
    reads("hpexpiretime", FIELDS_USAGE, -5, FIRST, fields::hpexpiretime),
    reads("hpttl", FIELDS_USAGE, -5, FIRST, fields::hpttl),
    reads("hrandfield", "key [count [WITHVALUES]]", -2, FIRST, hashes::hrandfield),
    reads("hscan", "key cursor [MATCH pattern] [COUNT count] [NOVALUES]", -3, FIRST, hashes::hscan),
    typed("hset", "key field value ...", -4, FIRST, hashes::hset),
    typed("hsetex", HSETEX_USAGE, -6, FIRST, field_values::hsetex),
    typed("hsetnx", "key field value", 4, FIRST, hashes::hsetnx),
    reads("hstrlen", "key field", 3, FIRST, hashes::hstrlen),
    reads("httl", FIELDS_USAGE, -5, FIRST, fields::httl),
    reads("hvals", "key", 2, FIRST, hashes::hvals),
    writes("import", tree::IMPORT_USAGE, -2, NONE, tree::import)
        .sealed(Forms(&["add", "begin", "drop", "end"]))
        .not_in_multi()
        .files(tree::changed_by_import),
    writes("incr", "key", 2, FIRST, numbers::incr),
    writes("incrby", "key increment", 3, FIRST, numbers::incrby),
    writes("incrbyfloat", "key increment", 3, FIRST, numbers::incrbyfloat),
    asks("info", "[section ...]", -1, info::info),
    asks("keys", "pattern", 2, scan::keys),
    acts("kvfs.check", "", 1, Forms(&[]), server::check).not_in_multi().hidden(),
    acts("kvfs.push", "address", 2, Forms(&[]), server::push).not_in_multi().hidden(),
    asks("kvfs.stat", "", 1, server::stat),
    asks("kvfs.zones", "[cells]", -1, zones::zones),
    asks("lastsave", "", 1, server::lastsave),
    acts(
        "latency",
        introspection::LATENCY_USAGE,
        -2,
        Forms(&["doctor", "help", "histogram", "history", "latest"]),
        introspection::latency,
    )
    .hidden(),
    reads("lcs", "key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]", -3, TWO, lcs::lcs),
    reads("lindex", "key index", 3, FIRST, lists::lindex),
    writes("linsert", "key BEFORE|AFTER pivot element", 5, FIRST, lists::linsert),
    reads("llen", "key", 2, FIRST, lists::llen),
    typed("lmove", "source destination LEFT|RIGHT LEFT|RIGHT", 5, TWO, lists::lmove),
    writes("lmpop", "numkeys key ... LEFT|RIGHT [COUNT count]", -4, NONE, blocking::lmpop)
        .counted(1),
    asks("lolwut", "[VERSION version [arg ...]]", -1, administration::lolwut),
    writes("lpop", "key [count]", -2, FIRST, lists::lpop),
    reads("lpos", "key element [RANK rank] [COUNT count] [MAXLEN len]", -3, FIRST, lists::lpos),
    typed("lpush", "key element ...", -3, FIRST, lists::lpush),
    typed("lpushx", "key element ...", -3, FIRST, lists::lpushx),
    reads("lrange", "key start stop", 4, FIRST, lists::lrange),
    writes("lrem", "key count element", 4, FIRST, lists::lrem),
    writes("lset", "key index element", 4, FIRST, lists::lset),
    writes("ltrim", "key start stop", 4, FIRST, lists::ltrim),
    reads("memory", "USAGE key [SAMPLES count] | STATS | DOCTOR | PURGE", -2, SECOND, keys::memory),
    reads("mget", "key ...", -2, EACH, strings::mget),
    asks("module", "LIST", -2, administration::module).hidden(),
    acts("monitor", "", 1, Forms(&[]), monitor::monitor).not_in_multi().hidden(),
    writes("mset", "key value ...", -3, PAIRS, strings::mset),
    writes("msetnx", "key value ...", -3, PAIRS, strings::msetnx),
    asks("multi", "", 1, multi::multi)
        .at_once_in_multi()
        .on_snapshots(OnSnapshots::Refused)
        .moves_connection(),
    reads("object", "ENCODING|REFCOUNT|IDLETIME|FREQ key", -2, SECOND, keys::object),
    writes("persist", "key", 2, FIRST, expiry::persist),
    typed("pexpire", "key milliseconds [NX|XX|GT|LT]", -3, FIRST, expiry::pexpire),
    typed("pexpireat", "key unix-time-milliseconds [NX|XX|GT|LT]", -3, FIRST, expiry::pexpireat),
    reads("pexpiretime", "key", 2, FIRST, expiry::pexpiretime),
    writes("pfadd", "key [element ...]", -2, FIRST, hyperloglog::pfadd),
    reads("pfcount", "key ...", -2, EACH, hyperloglog::pfcount),
    writes("pfdebug", "ENCODING|DECODE|GETREG|TODENSE key", 3, SECOND, hyperloglog::pfdebug)
        .hidden(),
    writes("pfmerge", "destination [source ...]", -2, EACH, hyperloglog::pfmerge),
    asks("ping", "[message]", -1, connection::ping).among_messages(),
    typed("psetex", "key milliseconds value", 4, FIRST, strings::psetex),
    pushes("psubscribe", "pattern ...", -2, pubsub::psubscribe),
    asks("psync", "replid offset", -3, administration::psync).not_in_multi().hidden(),
    reads("pttl", "key", 2, FIRST, expiry::pttl),
    acts("publish", "channel message", 3, Forms(&[]), pubsub::publish).paused_with_writes(),
    asks("pubsub", pubsub::PUBSUB_USAGE, -2, pubsub::pubsub),
    pushes("punsubscribe", "[pattern ...]", -1, pubsub::punsubscribe),
    open("quit", "", -1, connection::quit).at_once_in_multi().among_messages(),
    asks("randomkey", "", 1, scan::randomkey),
    asks(
        "range",
        "start end [REV] [OFFSET count] [LIMIT count] [NOVALUES] [EXACT]",
        -3,
        ranges::range,
    ),
    asks("readonly", "", 1, administration::cluster),
    asks("readwrite", "", 1, administration::cluster),
    writes("rename", "key newkey", 3, TWO, keys::rename),
    writes("renamenx", "key newkey", 3, TWO, keys::renamenx),
    asks("replconf", "option value ...", -1, administration::replconf).not_in_multi().hidden(),
    asks("replicaof", "NO ONE", 3, administration::replicaof).not_in_multi().hidden(),
    open("reset", "", 1, connection::reset).at_once_in_multi().among_messages().moves_connection(),
    typed(
        "restore",
        "key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        -4,
        FIRST,
        dump::restore,
    ),
    writes("rmtree", "path [TXN id]", -2, NONE, tree::rmtree)
        .not_in_multi()
        .files(tree::changed_by_rmtree),
    asks("role", "", 1, administration::role),
    writes("rpop", "key [count]", -2, FIRST, lists::rpop),
    typed("rpoplpush", "source destination", 3, TWO, lists::rpoplpush),
    typed("rpush", "key element ...", -3, FIRST, lists::rpush),
    typed("rpushx", "key element ...", -3, FIRST, lists::rpushx),
    typed("sadd", "key member ...", -3, FIRST, sets::sadd),
    asks("save", "", 1, server::sync).not_in_multi().hidden(),
    asks("scan", "cursor [MATCH pattern] [COUNT count] [TYPE type]", -2, scan::scan),
    reads("scard", "key", 2, FIRST, sets::scard),
    acts(
        "script",
        eval::SCRIPT_USAGE,
        -2,
        Forms(&["debug", "exists", "help", "load"]),
        eval::script,
    )
    .needs_worker(),
    acts(
        "scrub",
        "START [RATE bytes] | STATUS | FAULTS | STOP",
        -2,
        Forms(&["faults", "status"]),
        scrub::scrub,
    )
    .not_in_multi(),
    reads("sdiff", "key ...", -2, EACH, sets::sdiff),
    typed("sdiffstore", "destination key ...", -3, EACH, sets::sdiffstore),
    asks("select", "number", 2, connection::select).moves(),
    typed("set", SET_USAGE, -3, FIRST, strings::set)
        .plain_if(|args| args.len() == 3)
        .key_flags(specs::of_set),
    writes("setbit", "key offset bit", 4, FIRST, bits::setbit),
    typed("setex", "key seconds value", 4, FIRST, strings::setex),
    writes("setnx", "key value", 3, FIRST, strings::setnx),
    writes("setrange", "key offset value", 4, FIRST, strings::setrange),
    asks("shutdown", "[NOSAVE|SAVE] [NOW] [FORCE] [ABORT]", -1, server::shutdown)
        .not_in_multi()
        .hidden(),
    reads("sinter", "key ...", -2, EACH, sets::sinter),
    asks("sintercard", "numkeys key ... [LIMIT limit]", -3, sets::sintercard).counted(1),
    typed("sinterstore", "destination key ...", -3, EACH, sets::sinterstore),
    reads("sismember", "key member", 3, FIRST, sets::sismember),
    asks("slaveof", "NO ONE", 3, administration::replicaof).not_in_multi().hidden(),
    acts(
        "slowlog",
        "GET [count] | LEN | RESET",
        -2,
        Forms(&["get", "help", "len"]),
        introspection::slowlog,
    )
    .hidden(),
    reads("smembers", "key", 2, FIRST, sets::smembers),
    reads("smismember", "key member ...", -3, FIRST, sets::smismember),
    typed("smove", "source destination member", 4, TWO, sets::smove),
    acts(
        "snapshot",
        snapshot::USAGE,
        -2,
        Forms(&["changes", "files", "leave", "list", "receiving", "use"]),
        snapshot::snapshot,
    )
    .not_in_multi()
    .paused_with_writes()
    .moves_connection(),
    typed("sort", sort::USAGE, -2, FIRST, sort::sort)
        .other_keys(Destination(sort::destination))
        .plain_if(|args| sort::destination(args).is_none()),
    reads("sort_ro", sort::RO_USAGE, -2, FIRST, sort::sort_ro),
    writes("spop", "key [count]", -2, FIRST, sets::spop),
    acts("spublish", "channel message", 3, Forms(&[]), pubsub::spublish).paused_with_writes(),
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
    asks("sync", "", 1, server::sync).not_in_multi().hidden(),
    asks("time", "", 1, server::time),
    reads("touch", "key ...", -2, EACH, keys::exists),
    reads("ttl", "key", 2, FIRST, expiry::ttl),
    acts("txn", txn::USAGE, -2, sealed::TXN, txn::txn)
        .not_in_multi()
        .paused_with_writes()
        .moves_connection(),
    reads("type", "key", 2, FIRST, keys::kind),
    writes("unlink", "key ...", -2, EACH, keys::del),
    pushes("unsubscribe", "[channel ...]", -1, pubsub::unsubscribe),
    asks("unwatch", "", 1, multi::unwatch).not_in_scripts(),
    asks("use", "dictionary", 2, connection::choose).moves(),
    asks("wait", "replicas timeout", 3, server::wait),
    asks("waitaof", "local replicas timeout", 4, server::waitaof).not_in_multi().hidden(),
    asks("walk", tree::WALK_USAGE, -2, tree::walk).not_in_multi(),
    reads("watch", "key ...", -2, EACH, multi::watch)
        .at_once_in_multi()
        .on_snapshots(OnSnapshots::Refused)
        .untracked()
        .moves_connection(),
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
        SECOND,
        streams::xgroup,
    ),
    reads(
        "xinfo",
        "STREAM key [FULL [COUNT count]] | GROUPS key | CONSUMERS key group",
        -2,
        SECOND,
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
    asks("xread", "[COUNT count] [BLOCK milliseconds] STREAMS key ... id ...", -4, streams::xread)
        .other_keys(OtherKeys::Found(streams::keys_of_read))
        .in_scripts(InScripts::AllowedWithoutBlock)
        .shown_before(),
    writes("xreadgroup", XREADGROUP_USAGE, -7, NONE, streams::xreadgroup)
        .other_keys(OtherKeys::Found(streams::keys_of_read))
        .in_scripts(InScripts::AllowedWithoutBlock)
        .shown_before(),
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
    asks("zdiff", "numkeys key ... [WITHSCORES]", -3, sorted_sets::zdiff).counted(1),
    typed("zdiffstore", "destination numkeys key ...", -4, NONE, sorted_sets::zdiffstore)
        .other_keys(StoredAndCounted),
    typed("zincrby", "key increment member", 4, FIRST, sorted_sets::zincrby),
    asks("zinter", ZINTER_USAGE, -3, sorted_sets::zinter).counted(1),
    asks("zintercard", "numkeys key ... [LIMIT limit]", -3, sorted_sets::zintercard).counted(1),
    typed("zinterstore", ZINTERSTORE_USAGE, -4, NONE, sorted_sets::zinterstore)
        .other_keys(StoredAndCounted),
    reads("zlexcount", "key min max", 4, FIRST, sorted_sets::zlexcount),
    writes("zmpop", "numkeys key ... MIN|MAX [COUNT count]", -4, NONE, blocking::zmpop).counted(1),
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
    asks("zunion", ZUNION_USAGE, -3, sorted_sets::zunion).counted(1),
    typed("zunionstore", ZUNIONSTORE_USAGE, -4, NONE, sorted_sets::zunionstore)
        .other_keys(StoredAndCounted),
];

#[cfg(test)]
mod tests;
