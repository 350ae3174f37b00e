//! Tests of functions in libraries (`FUNCTION`, `FCALL`): their semantics, and that their libraries
//! are a part of the state of the store.

use std::time::{Duration, Instant};

use crate::command_server::{Raw, serve, serve_db, show};
use kvdb_server::{Limits, Reply, ServerOptions};

fn with_scripts() -> ServerOptions {
    let command = vec![env!("CARGO_BIN_EXE_kvfs").into(), "lua-worker".into()];
    ServerOptions { scripts: Some(command), ..ServerOptions::default() }
}

/// Sends a command of these words.
fn call(c: &mut Raw, words: &[&[u8]]) -> Reply {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    c.send(&request);
    c.reply().expect("a reply")
}

/// Loads a library whose code is that.
fn load(c: &mut Raw, name: &str, code: &str) -> String {
    let text = format!("#!lua name={name}\n{code}");
    show(&call(c, &[b"FUNCTION", b"LOAD", b"REPLACE", text.as_bytes()]))
}

/// Loads a library whose one function, `f`, has this body.
#[track_caller]
fn define(c: &mut Raw, body: &str) {
    let code = format!("redis.register_function('f', function(keys, args) {body} end)");
    assert_eq!(load(c, "one", &code), "\"one\"", "{body}");
}

const TWICE: &str = "redis.register_function{function_name = 'twice', description = 'doubles', \
     callback = function(keys, args) return args[1] * 2 end, flags = {'no-writes'}}
     redis.register_function('put', function(keys, args) \
     return redis.call('SET', keys[1], args[1]) end)";

/// The reply of `FUNCTION LIST` about the library `lib` with the code [`TWICE`].
const LISTED: &str = "[[\"library_name\" \"lib\" \"engine\" \"LUA\" \"functions\" \
     [[\"name\" \"twice\" \"description\" \"doubles\" \"flags\" [no-writes]] \
     [\"name\" \"put\" \"description\" (nil) \"flags\" []]]]]";

#[test]
fn libraries_are_loaded_listed_and_deleted() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    assert_eq!(load(c, "lib", TWICE), "\"lib\"");
    c.expect(&[
        ("FUNCTION LIST", LISTED),
        ("FUNCTION LIST LIBRARYNAME L?B", LISTED),
        ("FUNCTION LIST LIBRARYNAME x*", "[]"),
        (
            "FUNCTION STATS",
            "[\"running_script\" (nil) \"engines\" [\"LUA\" [\"libraries_count\" (integer) 1 \
             \"functions_count\" (integer) 2]]]",
        ),
        ("FCALL twice 0 21", "(integer) 42"),
        ("FCALL Put 1 key value", "OK"),
        ("GET key", "\"value\""),
        ("FCALL_RO TWICE 0 4", "(integer) 8"),
    ]);
    let listed = c.run("FUNCTION LIST WITHCODE");
    assert!(listed.contains("\"library_code\" \"#!lua name=lib\\nredis."), "{listed}");
    let info = c.run("INFO memory");
    for field in ["number_of_functions:2", "number_of_libraries:1", "number_of_cached_scripts:0"] {
        assert!(info.contains(field), "{field}: {info}");
    }
    // A new text replaces all functions of the old one.
    assert_eq!(load(c, "lib", "redis.register_function('put', function() end)"), "\"lib\"");
    c.expect(&[
        ("FCALL put 0", "(nil)"),
        ("FCALL twice 0 21", "(error) ERR Function not found"),
        ("FUNCTION DELETE LIB", "(error) ERR Library not found"),
        ("FUNCTION DELETE lib", "OK"),
        ("FCALL put 0", "(error) ERR Function not found"),
        ("FUNCTION LIST", "[]"),
        ("FUNCTION DELETE lib", "(error) ERR Library not found"),
    ]);
    load(c, "a", "redis.register_function('a', function() return 1 end)");
    load(c, "b", "redis.register_function('b', function() return 2 end)");
    c.expect(&[
        ("FCALL b 0", "(integer) 2"),
        ("FUNCTION FLUSH SYNC", "OK"),
        ("FUNCTION LIST", "[]"),
        ("FCALL b 0", "(error) ERR Function not found"),
    ]);
}

#[test]
fn errors_of_libraries_are_worded_as_redis_words_them() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    const NAMES: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";
    let registering = |why: &str| format!("(error) ERR Error registering functions: ERR {why}");
    for (code, why) in [
        ("local x = 1", "(error) ERR No functions registered".into()),
        (
            "syntax error here",
            "(error) ERR Error compiling function: user_function:2: '=' expected near 'error'"
                .into(),
        ),
        ("x = 1", registering("user_function:2: Attempt to modify a readonly table")),
        (
            "local a = nil + 1",
            registering("user_function:2: attempt to perform arithmetic on a nil value"),
        ),
        (
            "redis.call('PING')",
            registering(
                "user_function:2: Script attempted to access nonexistent global variable 'call'",
            ),
        ),
        (
            "local a = tostring(1)",
            registering(
                "user_function:2: Script attempted to access nonexistent global variable 'tostring'",
            ),
        ),
        (
            "redis.register_function()",
            registering("wrong number of arguments to redis.register_function"),
        ),
        (
            "redis.register_function('a', 'b')",
            registering("second argument to redis.register_function must be a function"),
        ),
        (
            "redis.register_function{function_name = 'a'}",
            registering("redis.register_function must get a callback argument"),
        ),
        (
            "redis.register_function{function_name = 'a', callback = function() end, flags = {'x'}}",
            registering("unknown flag given"),
        ),
        ("redis.register_function('a-b', function() end)", registering(NAMES)),
        (
            "redis.register_function('a', function() end) redis.register_function('a', function() end)",
            registering("Function already exists in the library"),
        ),
    ] {
        assert_eq!(load(c, "lib", code), why, "{code}");
    }
    assert_eq!(load(c, "lib", TWICE), "\"lib\"");
    assert_eq!(load(c, "other", TWICE), "(error) ERR Function twice already exists");
    let again = format!("#!lua name=lib\n{TWICE}");
    let again: &[&[u8]] = &[b"FUNCTION", b"LOAD", again.as_bytes()];
    assert_eq!(show(&call(c, again)), "(error) ERR Library 'lib' already exists");
    c.expect(&[
        ("FUNCTION LIST", LISTED),
        ("FUNCTION", "(error) ERR wrong number of arguments for 'function' command"),
        ("FUNCTION DELETE", "(error) ERR wrong number of arguments for 'function|delete' command"),
        ("FUNCTION foo", "(error) ERR unknown subcommand 'foo'. Try FUNCTION HELP."),
        ("FUNCTION LOAD x y", "(error) ERR Unknown option given: x"),
        ("FUNCTION LIST foo", "(error) ERR Unknown argument foo"),
        ("FUNCTION LIST LIBRARYNAME", "(error) ERR library name argument was not given"),
        ("FUNCTION FLUSH x", "(error) ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        (
            "FUNCTION FLUSH SYNC x",
            "(error) ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP.",
        ),
        ("FUNCTION RESTORE x", "(error) ERR DUMP payload version or checksum are wrong"),
        (
            "FUNCTION RESTORE x y",
            "(error) ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
        ),
        ("FCALL twice x", "(error) ERR Bad number of keys provided"),
        ("FCALL nosuch x", "(error) ERR Function not found"),
        ("FCALL twice -1", "(error) ERR Number of keys can't be negative"),
        ("FCALL twice 1", "(error) ERR Number of keys can't be greater than number of args"),
        (
            "FCALL_RO put 1 k v",
            "(error) ERR Can not execute a script with write flag using *_ro command.",
        ),
        ("EXISTS k", "(integer) 0"),
    ]);
    assert!(c.run("FUNCTION HELP").starts_with("[FUNCTION <subcommand> [<arg> [value]"));
}

#[test]
fn functions_see_what_redis_shows_to_them() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let at = "script: f, on @user_function:2.";
    for (body, want) in [
        ("return {keys[1], args[1], args[2]}", "[\"k\" \"x\" \"y\"]".into()),
        ("return redis.call('INCR', keys[1])", "(integer) 1".into()),
        ("redis.setresp(3) return redis.call('GET', keys[1])", "\"1\"".into()),
        ("return redis.status_reply('fine')", "fine".into()),
        ("return bit.band(3, 1) .. cjson.encode({1})", "\"1[1]\"".into()),
        ("error({err = 'MINE no'})", format!("(error) MINE no {at}")),
        ("error('no')", format!("(error) ERR user_function:2: no {at}")),
        (
            "return redis.call('LPUSH', keys[1], 'x')",
            format!(
                "(error) WRONGTYPE Operation against a key holding the wrong kind of value {at}"
            ),
        ),
        (
            "return KEYS",
            format!(
                "(error) ERR user_function:2: Script attempted to access nonexistent global variable 'KEYS' {at}"
            ),
        ),
        (
            "return os",
            format!(
                "(error) ERR user_function:2: Script attempted to access nonexistent global variable 'os' {at}"
            ),
        ),
        ("x = 1", format!("(error) ERR user_function:2: Attempt to modify a readonly table {at}")),
        (
            "return redis.call('FCALL', 'f', 0)",
            format!("(error) ERR This Redis command is not allowed from script {at}"),
        ),
        (
            "return redis.call('FUNCTION', 'LIST')",
            format!("(error) ERR This Redis command is not allowed from script {at}"),
        ),
    ] {
        define(c, body);
        assert_eq!(c.run("FCALL f 1 k x y"), want, "{body}");
    }
    // The text of an earlier script in the same process is not the text of a library.
    c.expect(&[("EVAL \"return KEYS[1]\" 1 secret", "\"secret\"")]);
    define(c, "return pcall(function() return KEYS[1] end)");
    assert!(c.run("FCALL f 0").starts_with("(nil)"));
    // Nothing is kept from one call to the next, and a function that only reads changes nothing.
    load(
        c,
        "one",
        "local n = 0 redis.register_function('f', function() n = n + 1 return n end)
         redis.register_function{function_name = 'r', flags = {'no-writes'},
             callback = function(keys) return redis.call('SET', keys[1], 'x') end}",
    );
    c.expect(&[("FCALL f 0", "(integer) 1"), ("FCALL f 0", "(integer) 1")]);
    let refused = c.run("FCALL r 1 k");
    assert!(refused.contains("Write commands are not allowed from read-only scripts"), "{refused}");
    c.expect(&[("GET k", "\"1\"")]);
}

#[test]
fn libraries_belong_to_the_state_of_the_store() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let version = |n: u8| format!("redis.register_function('v', function() return {n} end)");
    c.expect(&[("SNAPSHOT CREATE before", "OK")]);
    load(c, "lib", &version(1));
    c.expect(&[("SNAPSHOT CREATE first", "OK"), ("FCALL v 0", "(integer) 1")]);
    // In EXEC, where the functions that it loads are called.
    let text = format!("#!lua name=lib\n{}", version(2));
    c.run("MULTI");
    call(c, &[b"FUNCTION", b"LOAD", b"REPLACE", text.as_bytes()]);
    c.expect(&[
        ("FCALL v 0", "QUEUED"),
        ("EXEC", "[\"lib\" (integer) 2]"),
        ("FCALL v 0", "(integer) 2"),
    ]);
    // In a transaction, unseen by others until it commits.
    let inside = &mut served.connect();
    let id = inside.run("TXN BEGIN").replace("(integer) ", "");
    inside.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
    load(inside, "lib", &version(3));
    inside.expect(&[("FCALL v 0", "(integer) 3")]);
    c.expect(&[("FCALL v 0", "(integer) 2")]);
    inside.expect(&[("TXN ABORT", "OK"), ("FCALL v 0", "(integer) 2")]);
    // A snapshot and a clone have their own.
    c.expect(&[
        ("SNAPSHOT USE first", "OK"),
        (
            "FCALL_RO v 0",
            "(error) ERR Can not execute a script with write flag using *_ro command.",
        ),
    ]);
    assert!(c.run("FUNCTION LIST").contains("\"v\""));
    assert!(c.run("FUNCTION FLUSH").contains("a snapshot does not change"));
    c.expect(&[
        ("SNAPSHOT USE before", "OK"),
        ("FUNCTION LIST", "[]"),
        ("SNAPSHOT LEAVE", "OK"),
        ("CLONE CREATE first other", "OK"),
        ("CLONE USE other", "OK"),
        ("FCALL v 0", "(integer) 1"),
        ("FUNCTION FLUSH", "OK"),
        ("FUNCTION LIST", "[]"),
        ("CLONE LEAVE", "OK"),
        ("FCALL v 0", "(integer) 2"),
        // Libraries are not keys.
        ("FLUSHALL", "OK"),
        ("DBSIZE", "(integer) 0"),
        ("FCALL v 0", "(integer) 2"),
    ]);
    assert!(!c.run("DICTS").contains("functions"));
    // The server keeps none of them itself.
    let db = served.db.clone();
    served.server.stop();
    let served = serve_db(db, with_scripts());
    let c = &mut served.connect();
    c.expect(&[("FCALL v 0", "(integer) 2"), ("SNAPSHOT ROLLBACK first", "OK")]);
    c.expect(&[("FCALL v 0", "(integer) 1")]);
}

#[test]
fn changes_of_libraries_conflict_and_are_undone_as_those_of_keys() {
    let served = serve(with_scripts());
    let (c, inside) = (&mut served.connect(), &mut served.connect());
    let version = |n: u8| format!("redis.register_function('v', function() return {n} end)");
    load(c, "lib", &version(1));
    let begin = |inside: &mut Raw, words: &str| {
        let id = inside.run(&format!("TXN BEGIN {words}")).replace("(integer) ", "");
        inside.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
    };
    begin(inside, "SI");
    load(inside, "lib", &version(2));
    load(c, "lib", &version(3));
    let reply = inside.run("TXN COMMIT");
    assert!(reply.starts_with("(error) CONFLICT") && reply.contains("\"lib\""), "{reply}");
    inside.run("TXN LEAVE");
    begin(inside, "UNDOABLE");
    load(inside, "lib", &version(4));
    inside.expect(&[("TXN COMMIT", "OK"), ("FCALL v 0", "(integer) 4")]);
    inside.run("TXN LEAVE");
    let Reply::Array(begun) = call(inside, &[b"TXN", b"UNDO", b"ATTACHED"]) else {
        panic!("nothing is undone")
    };
    let id = show(&begun[0]).replace("(integer) ", "");
    inside.expect(&[(&format!("TXN COMMIT {id}"), "OK"), ("FCALL v 0", "(integer) 3")]);
}

#[test]
fn payloads_go_from_one_server_to_another() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let restore = |c: &mut Raw, payload: &[u8], policy: &[u8]| {
        show(&call(c, &[b"FUNCTION", b"RESTORE", payload, policy]))
    };
    // `FUNCTION DUMP` of Redis 7.0.15, which has compressed the text.
    let of_redis = b"\xf5\xc3@H@\xe4\x1f#!lua name=l\nredis.register_func\x08tion('f',\xe0\x00\x0c\x12) return 1 end)\n--a\xe0\x94\x00\x01aa\n\x00\x958E\xec\x08\xf6\xba\xd2";
    assert_eq!(restore(c, of_redis, b"APPEND"), "OK");
    c.expect(&[("FCALL f 0", "(integer) 1")]);
    assert_eq!(restore(c, of_redis, b"APPEND"), "(error) ERR Library l already exists");
    assert_eq!(restore(c, of_redis, b"REPLACE"), "OK");
    load(c, "other", "redis.register_function('g', function() return 2 end)");
    let Reply::Bulk(both) = call(c, &[b"FUNCTION", b"DUMP"]) else { panic!("no payload") };
    assert_eq!(restore(c, of_redis, b"FLUSH"), "OK");
    c.expect(&[
        ("FCALL g 0", "(error) ERR Function not found"),
        ("FCALL f 0", "(integer) 1"),
        ("FUNCTION FLUSH", "OK"),
    ]);
    assert_eq!(restore(c, &both, b"APPEND"), "OK");
    c.expect(&[("FCALL g 0", "(integer) 2"), ("FCALL f 0", "(integer) 1")]);
    // Nothing of a payload is restored if a part of it cannot be.
    c.expect(&[("FUNCTION FLUSH", "OK")]);
    load(c, "third", "redis.register_function('G', function() return 3 end)");
    assert_eq!(restore(c, &both, b"REPLACE"), "(error) ERR Function g already exists");
    c.expect(&[
        ("FCALL f 0", "(error) ERR Function not found"),
        ("FCALL g 0", "(integer) 3"),
        ("SET k v", "OK"),
    ]);
}

#[test]
fn a_function_and_a_script_are_killed_each_by_its_own_command() {
    let served = serve(with_scripts());
    let (c, other) = (&mut served.connect(), &mut served.connect());
    define(c, "redis.call('SET', 'touched', 1) while true do end");
    other.expect(&[
        ("FUNCTION KILL", "(error) NOTBUSY No scripts in execution right now."),
        ("SCRIPT KILL", "(error) NOTBUSY No scripts in execution right now."),
    ]);
    c.send(b"FCALL f 0 x\r\n");
    let until = Instant::now() + Duration::from_secs(30);
    let running = "[\"running_script\" [\"name\" \"f\" \"command\" [\"FCALL\" \"f\" \"0\" \"x\"] ";
    while !other.run("FUNCTION STATS").starts_with(running) {
        assert!(Instant::now() < until, "the function never ran");
    }
    other.expect(&[
        (
            "SCRIPT KILL",
            "(error) BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
        ),
        ("FUNCTION KILL", "OK"),
    ]);
    let reply = show(&c.reply().expect("a reply"));
    assert!(reply.contains("Script killed by user"), "{reply}");
    c.expect(&[("EXISTS touched", "(integer) 0")]);
    c.send(b"EVAL \"while true do end\" 0\r\n");
    while other.run("FUNCTION KILL")
        != "(error) BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    {
        assert!(Instant::now() < until, "the script never ran");
    }
    other.expect(&[("SCRIPT KILL", "OK")]);
    assert!(show(&c.reply().expect("a reply")).contains("Script killed by user"));
}

#[test]
fn no_library_outlives_its_time() {
    let limits = Limits { script_time: Duration::from_millis(500), ..Limits::default() };
    let served = serve(ServerOptions { limits, ..with_scripts() });
    let c = &mut served.connect();
    assert_eq!(
        load(c, "lib", "while true do end"),
        "(error) ERR Error registering functions: ERR FUNCTION LOAD timeout"
    );
    c.expect(&[("FUNCTION LIST", "[]")]);
    define(c, "while true do end");
    assert!(c.run("FCALL f 0").contains("lua-time-limit (500 ms)"));
    define(c, "return 1");
    c.expect(&[("FCALL f 0", "(integer) 1")]);
}

#[test]
fn a_function_that_goes_to_another_library_is_found_at_any_time() {
    let served = serve(with_scripts());
    let (c, other) = (&mut served.connect(), &mut served.connect());
    let payloads = ["one", "two"].map(|library| {
        c.expect(&[("FUNCTION FLUSH", "OK")]);
        load(c, library, "redis.register_function('f', function() return 1 end)");
        match call(c, &[b"FUNCTION", b"DUMP"]) {
            Reply::Bulk(payload) => payload,
            other => panic!("no payload: {other:?}"),
        }
    });
    std::thread::scope(|threads| {
        let moves = threads.spawn(|| {
            for payload in payloads.iter().cycle().take(200) {
                let restored = call(other, &[b"FUNCTION", b"RESTORE", payload, b"FLUSH"]);
                assert_eq!(show(&restored), "OK");
            }
        });
        while !moves.is_finished() {
            assert_eq!(c.run("FCALL f 0"), "(integer) 1");
        }
    });
}
