//! Tests of the scripts of clients: their semantics, that each is one transaction, and that none
//! harms the server, whatever it does to the process in which it runs.

use std::time::{Duration, Instant};

use crate::command_server::{Raw, Served, serve, show};
use kvdb_server::{Limits, Reply, ServerOptions};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

fn with_scripts() -> ServerOptions {
    let command = vec![env!("CARGO_BIN_EXE_kvfs").into(), "lua-worker".into()];
    ServerOptions { scripts: Some(command), ..ServerOptions::default() }
}

/// A command of these words, as it is sent.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// Sends a command of these words and waits for the reply.
fn call(c: &mut Raw, words: &[&[u8]]) -> Reply {
    c.send(&request(words));
    c.reply().expect("a reply")
}

/// Runs a script with one key, `key`, and these arguments.
fn eval(c: &mut Raw, script: &str, arguments: &[&str]) -> String {
    let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"1", b"key"];
    words.extend(arguments.iter().map(|word| word.as_bytes()));
    show(&call(c, &words))
}

#[track_caller]
fn gives(c: &mut Raw, script: &str, want: &str) {
    assert_eq!(eval(c, script, &["one", "two"]), want, "{script}");
}

/// An error in which these words stand.
#[track_caller]
fn fails(c: &mut Raw, script: &str, why: &str) {
    let reply = eval(c, script, &["one", "two"]);
    assert!(reply.starts_with("(error)") && reply.contains(why), "{script}: {reply}");
}

#[test]
fn what_a_script_publishes_and_fills_is_heard_of_when_it_is_done() {
    let served = serve(with_scripts());
    let (mut a, mut c) = (served.connect(), served.connect());
    let mut waiting = served.connect();
    a.run("SUBSCRIBE c");
    waiting.send(b"BLPOP key 0\r\n");
    while !c.run("INFO clients").contains("blocked_clients:1") {
        std::thread::yield_now();
    }
    // A script that fails has published nothing and filled no key.
    let both = "redis.call('RPUSH', KEYS[1], 'x') redis.call('PUBLISH', 'c', 'm')";
    fails(&mut c, &format!("{both} error('no')"), "no");
    gives(&mut c, &format!("{both} return redis.call('PUBLISH', 'c', 'n')"), "(integer) 1");
    let next = |c: &mut Raw| show(&c.reply().expect("a reply"));
    assert_eq!(next(&mut a), "[\"message\" \"c\" \"m\"]");
    assert_eq!(next(&mut a), "[\"message\" \"c\" \"n\"]");
    assert_eq!(next(&mut waiting), "[\"key\" \"x\"]");
    // In a script nothing is waited for.
    fails(&mut c, "return redis.call('BLPOP', KEYS[1], 0)", "not allowed from script");
    gives(&mut c, "return redis.call('BLMPOP', 0, 1, KEYS[1], 'LEFT')", "(nil)");
}

#[test]
fn values_are_translated_as_redis_does() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    for (script, want) in [
        ("return 'hello'", "\"hello\""),
        ("return 100.9", "(integer) 100"),
        ("return -7.5", "(integer) -7"),
        ("return true", "(integer) 1"),
        ("return false", "(nil)"),
        ("return nil", "(nil)"),
        ("return", "(nil)"),
        ("return {1, 2, 'x', {4}, nil, 6}", "[(integer) 1 (integer) 2 \"x\" [(integer) 4]]"),
        ("return {ok = 'fine'}", "fine"),
        ("return {err = 'MINE no'}", "(error) MINE no"),
        ("return redis.error_reply('MINE no')", "(error) MINE no"),
        ("return redis.error_reply('no')", "(error) ERR no"),
        ("return redis.status_reply('fine')", "fine"),
        ("return {double = 3.5}", "\"3.5\""),
        ("return {map = {a = 1}}", "[\"a\" (integer) 1]"),
        ("return {set = {a = true}}", "[\"a\"]"),
        ("return {KEYS[1], ARGV[1], ARGV[2], ARGV[3]}", "[\"key\" \"one\" \"two\"]"),
        ("return #ARGV + #KEYS", "(integer) 3"),
        ("return function() end", "(nil)"),
        ("return redis.sha1hex('')", "\"da39a3ee5e6b4b0d3255bfef95601890afd80709\""),
        ("return redis.call('SET', KEYS[1], 10)", "OK"),
        ("return redis.call('GET', KEYS[1])", "\"10\""),
        ("return redis.call('GET', 'none')", "(nil)"),
        ("return redis.call('GET', 'none') == false", "(integer) 1"),
        ("return type(redis.call('INCR', KEYS[1]))", "\"number\""),
        ("return redis.call('SET', 'x', 3.25) and redis.call('GET', 'x')", "\"3.25\""),
        (
            "return redis.call('SET', 'x', 0.1) and redis.call('GET', 'x')",
            "\"0.10000000000000001\"",
        ),
        ("return redis.call('SET', 'x', 2^53) and redis.call('GET', 'x')", "\"9007199254740992\""),
        ("return redis.call('MGET', 'key', 'none')[2] == false", "(integer) 1"),
        (
            "return redis.call('RPUSH', 'l', 'a', 'b') .. #redis.call('LRANGE', 'l', 0, -1)",
            "\"22\"",
        ),
        (
            "return redis.pcall('INCR', 'l').err",
            "\"WRONGTYPE Operation against a key holding the wrong kind of value\"",
        ),
        ("return {redis.call('PING').ok}", "[\"PONG\"]"),
        ("return #loadstring('return \"a\\0b\"')()", "(integer) 3"),
        ("return redis.call('ECHO', 'a\\0\\r\\nb')", "\"a\\x00\\r\\nb\""),
    ] {
        gives(c, script, want);
    }
    // Numbers that no reply can have.
    for script in ["return 1/0", "return -1/0", "return 0/0", "return 1e300"] {
        assert!(eval(c, script, &[]).starts_with("(integer)"), "{script}");
    }
}

#[test]
fn what_resp3_adds_is_there_on_request() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    gives(c, "redis.setresp(3) return redis.call('HSET', 'h', 'f', 1)", "(integer) 1");
    gives(c, "redis.setresp(3) return redis.call('HGETALL', 'h').map.f", "\"1\"");
    gives(c, "return redis.call('HGETALL', 'h')", "[\"f\" \"1\"]");
    gives(c, "redis.setresp(3) return redis.call('GET', 'none') == nil", "(integer) 1");
    fails(c, "redis.setresp(4)", "RESP version must be 2 or 3");
    c.run("HELLO 3");
    c.send(
        b"EVAL \"redis.setresp(3) return {true, {double = 1.5}, {map = {a = 1}}, false}\" 0\r\n",
    );
    let mut bytes = vec![0; 33];
    std::io::Read::read_exact(&mut c.0, &mut bytes).expect("the reply");
    assert_eq!(
        bytes.escape_ascii().to_string(),
        "*4\\r\\n#t\\r\\n,1.5\\r\\n%1\\r\\n$1\\r\\na\\r\\n:1\\r\\n#f\\r\\n"
    );
}

#[test]
fn errors_are_worded_as_redis_words_them() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    c.expect(&[("RPUSH l a", "(integer) 1")]);
    for (script, why) in [
        (
            "return redis.call('INCR', 'l')",
            "(error) WRONGTYPE Operation against a key holding the wrong kind of value script: ",
        ),
        ("\n\nerror('mine')", "ERR user_script:3: mine script: "),
        ("\n\nerror('mine')", ", on @user_script:3."),
        ("error({err = 'MINE no'})", "(error) MINE no script: "),
        ("return redis.call('nosuch')", "ERR Unknown Redis command called from script script: "),
        ("return redis.call('get')", "ERR Wrong number of args calling Redis command from script"),
        ("return redis.call()", "ERR Please specify at least one argument for this redis lib call"),
        (
            "return redis.call({})",
            "ERR Lua redis lib command arguments must be strings or integers",
        ),
        ("return redis.call('MULTI')", "ERR This Redis command is not allowed from script"),
        (
            "return redis.call('EVAL', 'return 1', 0)",
            "ERR This Redis command is not allowed from script",
        ),
        ("return redis.call('TXN', 'BEGIN')", "ERR This Redis command is not allowed from script"),
        (
            "return nosuch",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'nosuch' script: ",
        ),
        ("new = 1", "ERR user_script:1: Attempt to modify a readonly table script: "),
        ("redis.call = 1", "Attempt to modify a readonly table"),
        ("KEYS = 1", "Attempt to modify a readonly table"),
        ("setmetatable(_G, {})", "Attempt to modify a readonly table"),
        ("getmetatable(_G).__index = 1", "Attempt to modify a readonly table"),
        ("rawset(_G, 'x', 1)", "Attempt to modify a readonly table"),
        ("return {", "ERR Error compiling script (new function): user_script:1: "),
        ("redis.log()", "ERR redis.log() requires two arguments or more."),
        ("return cjson.decode('{')", "Expected object key string but found T_END at character 2"),
        (
            "return loadstring(string.dump(function() return 1 end))()",
            "attempt to call a nil value",
        ),
        (
            "return loadstring(string.dump(function() return 1 end), 'named')()",
            "attempt to call a nil value",
        ),
    ] {
        fails(c, script, why);
    }
    // Caught by the script, errors are texts, as before they were tables.
    gives(
        c,
        "return {pcall(function() redis.call('INCR', 'l') end)}",
        "[(nil) \"WRONGTYPE Operation against a key holding the wrong kind of value\"]",
    );
    gives(c, "return select(2, pcall(error, {err = 'MINE'}))", "\"MINE\"");
    c.expect(&[
        ("EVAL \"return 1\" x", "(error) ERR value is not an integer or out of range"),
        ("EVAL \"return 1\" -1", "(error) ERR Number of keys can't be negative"),
        ("EVAL \"return 1\" 1", "(error) ERR Number of keys can't be greater than number of args"),
        ("EVALSHA nosuch 0", "(error) NOSCRIPT No matching script. Please use EVAL."),
    ]);
}

#[test]
fn scripts_are_known_by_their_names() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let name = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    c.expect(&[
        ("SCRIPT LOAD \"return 1\"", "\"e0e1f9fabfc9d4800c877a703b823ac0578ff8db\""),
        (&format!("SCRIPT EXISTS {name} nosuch"), "[(integer) 1 (integer) 0]"),
        (&format!("EVALSHA {} 0", name.to_uppercase()), "(integer) 1"),
        (&format!("EVALSHA_RO {name} 0"), "(integer) 1"),
        ("SCRIPT FLUSH", "OK"),
        (&format!("EVALSHA {name} 0"), "(error) NOSCRIPT No matching script. Please use EVAL."),
        ("EVAL \"return 1\" 0", "(integer) 1"),
        (&format!("EVALSHA {name} 0"), "(integer) 1"),
        ("SCRIPT FLUSH ASYNC", "OK"),
        ("SCRIPT FLUSH NOW", "(error) ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
        ("SCRIPT KILL", "(error) NOTBUSY No scripts in execution right now."),
    ]);
    assert!(c.run("SCRIPT LOAD \"return {\"").contains("Error compiling script"));
    assert!(c.run("SCRIPT NOSUCH").contains("unknown subcommand"));
}

#[test]
fn a_script_that_only_reads_changes_nothing() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    c.expect(&[
        ("SET a 1", "OK"),
        ("EVAL_RO \"return redis.call('GET', 'a')\" 0", "\"1\""),
        ("SNAPSHOT CREATE s", "OK"),
        ("SET a 2", "OK"),
        ("SNAPSHOT USE s EVAL_RO \"return redis.call('GET', 'a')\" 0", "\"1\""),
    ]);
    for command in [
        "EVAL_RO \"return redis.call('SET', 'a', 5)\" 0",
        "EVAL \"#!lua flags=no-writes\\nreturn redis.call('SET', 'a', 5)\" 0",
    ] {
        let reply = c.run(command);
        assert!(
            reply.contains("Write commands are not allowed from read-only scripts."),
            "{reply}"
        );
    }
    let reply = c.run("EVAL_RO \"#!lua\\nreturn 1\" 0");
    assert!(reply.contains("Can not execute a script with write flag using *_ro command."));
    let reply = c.run("SNAPSHOT USE s EVAL \"return 1\" 0");
    assert!(reply.contains("READONLY"), "{reply}");
    c.expect(&[
        ("GET a", "\"2\""),
        ("CLONE CREATE s c", "OK"),
        ("CLONE USE c EVAL \"return redis.call('SET', 'a', 7)\" 0", "OK"),
        ("CLONE USE c GET a", "\"7\""),
        ("GET a", "\"2\""),
    ]);
}

#[test]
fn locks_and_rates_are_as_clients_write_them() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let release = "local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        redis.call('del', KEYS[1]) return 1";
    let extend = "local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        local expiration = redis.call('pttl', KEYS[1])
        if not expiration then expiration = 0 end
        if expiration < 0 then return 0 end
        local newttl = ARGV[2]
        if ARGV[3] == '0' then newttl = ARGV[2] + expiration end
        redis.call('pexpire', KEYS[1], newttl) return 1";
    c.expect(&[("SET key mine NX PX 100000", "OK")]);
    assert_eq!(eval(c, release, &["other"]), "(integer) 0");
    assert_eq!(eval(c, extend, &["mine", "1000000", "0"]), "(integer) 1");
    assert_eq!(eval(c, "return redis.call('PTTL', 'key') > 1000000", &[]), "(integer) 1");
    assert_eq!(eval(c, release, &["mine"]), "(integer) 1");
    assert_eq!(eval(c, release, &["mine"]), "(integer) 0");
    let rate = "local n = redis.call('INCR', KEYS[1])
        if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
        return n <= tonumber(ARGV[2])";
    let asked: Vec<_> = (0..4).map(|_| eval(c, rate, &["100", "3"])).collect();
    assert_eq!(asked, ["(integer) 1", "(integer) 1", "(integer) 1", "(nil)"]);
}

#[test]
fn a_script_is_one_transaction() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let half = "redis.call('SET', 'a', 1) redis.call('HSET', 'h', 'f', 1) error('no')";
    fails(c, half, "no");
    c.expect(&[("EXISTS a h", "(integer) 0")]);
    // The dictionary of types was made in the meantime, and once more in another dictionary.
    fails(c, half, "no");
    gives(c, "redis.call('SELECT', 5) return redis.call('HSET', 'h', 'f', 1)", "(integer) 1");
    c.expect(&[
        ("EXISTS h", "(integer) 0"),
        ("SELECT 5", "OK"),
        ("HGET h f", "\"1\""),
        ("SELECT 0", "OK"),
    ]);
    // In a joined transaction the script works there, and undoes its changes if it fails.
    let id = c.run("TXN BEGIN");
    let id = id.strip_prefix("(integer) ").expect("a number");
    c.expect(&[
        (&format!("TXN JOIN {id}"), "OK"),
        ("SET mine 1", "OK"),
        ("TXN SAVEPOINT before", "OK"),
        ("EVAL \"return redis.call('HINCRBY', 'h', 'f', 5)\" 0", "(integer) 5"),
    ]);
    fails(c, "redis.call('SET', 'mine', 2) redis.call('HSET', 'h', 'f', 99) error('no')", "no");
    c.expect(&[
        ("GET mine", "\"1\""),
        ("HGET h f", "\"5\""),
        ("TXN ROLLBACK before", "OK"),
        ("EXISTS h", "(integer) 0"),
        ("EVAL \"return redis.call('HINCRBY', 'h', 'f', 7)\" 0", "(integer) 7"),
        ("TXN COMMIT", "OK"),
        ("HGET h f", "\"7\""),
    ]);
    c.run("TXN LEAVE");
}

#[test]
fn in_exec_a_script_is_a_part_of_it() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    let add = "EVAL \"return redis.call('HINCRBY', 'h', 'f', ARGV[1])\" 0";
    c.expect(&[
        ("MULTI", "OK"),
        (&format!("{add} 5"), "QUEUED"),
        ("SET a 1", "QUEUED"),
        (&format!("{add} 6"), "QUEUED"),
        ("SCRIPT LOAD \"return 1\"", "QUEUED"),
        ("EXEC", "[(integer) 5 OK (integer) 11 \"e0e1f9fabfc9d4800c877a703b823ac0578ff8db\"]"),
        // A script that fails before it has changed anything causes an error among the replies.
        ("MULTI", "OK"),
        ("SET a 2", "QUEUED"),
        ("EVAL \"error({err = 'MINE no'})\" 0", "QUEUED"),
    ]);
    let replies = c.run("EXEC");
    assert!(replies.starts_with("[OK (error) MINE no script: "), "{replies}");
    // A script that fails after changes aborts the whole transaction.
    c.expect(&[
        ("GET a", "\"2\""),
        ("MULTI", "OK"),
        ("SET a 3", "QUEUED"),
        ("EVAL \"redis.call('SET', 'b', 1) error({err = 'MINE no'})\" 0", "QUEUED"),
    ]);
    let reply = c.run("EXEC");
    assert!(reply.starts_with("(error) EXECABORT") && reply.contains("MINE no"), "{reply}");
    c.expect(&[("GET a", "\"2\""), ("EXISTS b", "(integer) 0")]);
}

#[test]
fn nothing_comes_between_the_commands_of_a_script() {
    let served = serve(with_scripts());
    // The keys are not declared, so that only the transaction keeps the clients apart.
    let script = "local n = tonumber(redis.call('GET', 'n') or '0')
        redis.call('SET', 'n', n + 1) redis.call('RPUSH', 'l', n) return n";
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let c = &mut served.connect();
                for _ in 0..20 {
                    let reply = show(&call(c, &[b"EVAL", script.as_bytes(), b"0"]));
                    assert!(reply.starts_with("(integer)"), "{reply}");
                }
            });
        }
    });
    let c = &mut served.connect();
    c.expect(&[("GET n", "\"120\""), ("LLEN l", "(integer) 120")]);
}

#[test]
fn a_hundred_clients_share_the_workers() {
    let served = serve(with_scripts());
    std::thread::scope(|scope| {
        for i in 0..100 {
            let served = &served;
            scope.spawn(move || {
                let c = &mut served.connect();
                let key = format!("k{}", i % 10);
                let script = b"return redis.call('INCR', KEYS[1])";
                let reply = show(&call(c, &[b"EVAL", script, b"1", key.as_bytes()]));
                assert!(reply.starts_with("(integer)"), "{reply}");
            });
        }
    });
    let c = &mut served.connect();
    c.expect(&[("MGET k0 k9", "[\"10\" \"10\"]")]);
}

#[test]
fn nothing_of_the_machine_is_there() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    for name in
        ["io", "require", "dofile", "loadfile", "debug", "package", "print", "module", "arg"]
    {
        fails(c, &format!("return {name}"), "nonexistent global variable");
    }
    gives(c, "local n = '' for k in pairs({os.clock}) do n = n .. k end return n", "\"1\"");
    gives(c, "return os.execute == nil and os.getenv == nil and os.exit == nil", "(integer) 1");
    gives(c, "return type(os.clock())", "\"number\"");
    // No state is left for the next script.
    gives(c, "string.mine = 1 return string.mine", "(integer) 1");
    gives(c, "return string.mine == nil", "(integer) 1");
    gives(c, "return loadstring('return ...')(7)", "(integer) 7");
    gives(
        c,
        "local parts = {'return ', '9'} return load(function() return table.remove(parts, 1) end)()",
        "(integer) 9",
    );
}

/// Lists everything that a script sees of the state that all scripts share.
const PROBE: &str = "local seen = {}
    for _, library in ipairs({string, table, math}) do
        for name, value in pairs(library) do table.insert(seen, name .. type(value)) end
    end
    table.sort(seen)
    for _, value in ipairs({
        {redis[1], cjson[1], ('x').mine, KEYS.mine, math.pi},
        {pcall(function() return mine end)}, {pcall(function() return 'a' + 1 end)},
        {pcall(cjson.encode, {{{{{0.123456789}}}}})}, {pcall(cjson.encode, {[1] = 1, [99] = 2})},
        {string.format('%d', 7), ('x'):rep(3), redis.error_reply('A b').err, #redis.sha1hex('')},
    }) do
        for i = 1, 5 do table.insert(seen, tostring(value[i])) end
    end
    return table.concat(seen, ' ')";

#[test]
fn a_script_finds_nothing_of_the_one_before() {
    let fresh = eval(&mut serve(with_scripts()).connect(), PROBE, &["one"]);
    assert!(fresh.contains("formatfunction"), "{fresh}");
    let served = serve(with_scripts());
    let c = &mut served.connect();
    for script in [
        "return 1",
        "string.mine = 1",
        "string.format = nil",
        "string.rep = string.len",
        "math.pi = 3",
        "table.insert(redis, 'mine') table.insert(cjson, 'mine')",
        "getmetatable('').__index = function() return 'mine' end",
        "getmetatable('').__add = function() return 'mine' end",
        "setmetatable(string, {__index = function() return 'mine' end})",
        "rawset(string, 'mine', 1)",
        "getfenv(0).mine = 1",
        "getfenv(redis.error_reply).type = function() return 'mine' end",
        "setfenv(redis.error_reply, {})",
        "_G['get' .. 'fenv'](0).mine = 1",
        "loadstring('getfenv(0).mine = 1')()",
        "cjson.encode_number_precision(3)",
        "cjson['encode_' .. 'max_depth'](2)",
        "cjson.encode_sparse_array(true)",
        "coroutine.wrap(function() string.mine = 1 end)()",
        "KEYS.mine = 1 ARGV.mine = 1 KEYS[1] = 'mine'",
        "string.mine = 1 error('failed')",
        "local function deeper() return 1 + deeper() end return pcall(deeper)",
        "redis.setresp(3)",
    ] {
        eval(c, script, &["one"]);
        // The first one may get another interpreter, the second one this one's.
        for _ in 0..2 {
            assert_eq!(eval(c, PROBE, &["one"]), fresh, "after {script}");
        }
    }
}

/// Milliseconds that scripts have in the tests of those that take too long.
const SHORT: u64 = 500;

fn hostile() -> Served {
    let script_time = Duration::from_millis(SHORT);
    let limits = Limits { script_time, scripts: 2, ..Limits::default() };
    serve(ServerOptions { limits, ..with_scripts() })
}

#[test]
fn no_script_outlives_its_time() {
    let served = hostile();
    let c = &mut served.connect();
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() return pcall(f) end while true do f() end",
        "local function f() while true do pcall(f) end end f()",
        "repeat until false",
        "local s = ('a'):rep(30) return s:find(('a?'):rep(30) .. ('a'):rep(30) .. 'b')",
        "local s = ('a'):rep(5000) return s:find(('.-'):rep(12) .. 'b')",
        "local co = coroutine.wrap(function() while true do end end) co()",
        "while true do coroutine.resume(coroutine.create(function() pcall(error) end)) end",
        "setmetatable({}, {__index = function(t, k) return t[k] end}) while true do end",
        "while true do redis.pcall('nosuch') end",
        "while true do redis.pcall('SET', 'x', 1) end",
        "while true do redis.log(redis.LOG_NOTICE, 'x') end",
        "table.sort({1, 2, 3}, function() while true do end end)",
    ] {
        let begun = Instant::now();
        fails(c, &format!("redis.call('SET', 'touched', 1) {script}"), "it took longer than");
        assert!(begun.elapsed() < Duration::from_millis(20 * SHORT), "{script}");
        c.expect(&[("EXISTS touched x", "(integer) 0")]);
    }
    gives(c, "return 1", "(integer) 1");
}

fn line(c: &mut Raw) -> String {
    let mut line = String::new();
    std::io::BufRead::read_line(&mut c.0, &mut line).expect("a line");
    line
}

#[test]
fn no_script_takes_more_than_its_memory() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    for script in [
        "return string.rep('x', 1024 * 1024 * 1024)",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1e9 do t[i] = {} end",
        "local t = {} while true do t[#t + 1] = ('x'):rep(1000000) .. #t end",
        "local s = ('x'):rep(30000000) return {s, s, s, s, s, s, s, s}",
        "local function f() return 1 + f() end return f()",
        "local function f() return f() .. '' end return f()",
        "local s = ('('):rep(100000) return loadstring('return ' .. s)()",
        "local function f(...) return f(1, ...) end return f()",
        "return ('x'):rep(200):gsub('x', ('y'):rep(1000000))",
        "local function f() return ('a'):gsub('a', f) end return f()",
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) return t[1]",
        "return unpack({}, 1, 1e8)",
        "return cjson.encode({('x'):rep(30000000), ('\\1'):rep(30000000)})",
        "local t = {} for i = 1, 2000 do t = {t} end return cjson.encode(t)",
        "return cjson.decode(('['):rep(2000))",
        "return struct.pack('i33', 1)",
        "return cmsgpack.unpack(('\\221'):rep(5000))",
    ] {
        let reply = eval(c, &format!("redis.call('SET', 'touched', 1) {script}"), &[]);
        assert!(reply.starts_with("(error)"), "{script}: {}", &reply[..reply.len().min(200)]);
        c.expect(&[("EXISTS touched", "(integer) 0")]);
    }
    // A table that contains itself is deep, and conversion ends at a limit. With two references to
    // itself it would be too wide for any reply.
    c.send(b"EVAL \"local t = {} t[1] = t return t\" 0\r\n");
    for _ in 0..128 {
        assert_eq!(line(c), "*1\r\n");
    }
    assert_eq!(line(c), "-ERR reached lua stack limit\r\n");
    fails(c, "local t = {} t[1] = t t[2] = t return t", "");
    gives(c, "return 1", "(integer) 1");
}

/// A server whose workers are distinguished from those of other tests by the path of their program.
fn with_marked_workers() -> (Served, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = dir.path().join("worker");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kvfs"), &program).expect("a link");
    let command = vec![program.into_os_string(), "lua-worker".into()];
    (serve(ServerOptions { scripts: Some(command), ..ServerOptions::default() }), dir)
}

/// The workers of such a server, once there are some.
fn workers(dir: &TempDir) -> Vec<Pid> {
    let program = dir.path().join("worker");
    let is_worker = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(program.as_os_str().as_encoded_bytes())
    };
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let all = std::fs::read_dir("/proc").expect("there is /proc");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let found: Vec<_> = pids.filter(is_worker).filter_map(Pid::from_raw).collect();
        if !found.is_empty() {
            return found;
        }
        assert!(Instant::now() < until, "no worker was started");
        std::thread::yield_now();
    }
}

/// Kills them and waits until they have ended.
fn kill(workers: Vec<Pid>) {
    for pid in workers {
        rustix::process::kill_process(pid, Signal::KILL).expect("it is there");
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_worker_that_is_killed_has_done_nothing() {
    let (served, dir) = with_marked_workers();
    let c = &mut served.connect();
    c.send(b"EVAL \"redis.call('SET', 'touched', 1) while true do end\" 0\r\n");
    kill(workers(&dir));
    let reply = show(&c.reply().expect("a reply"));
    assert!(reply.contains("its process has ended"), "{reply}");
    c.expect(&[("EXISTS touched", "(integer) 0")]);
    gives(c, "return 1", "(integer) 1");
    // The death of an idle worker has no visible effect.
    kill(workers(&dir));
    gives(c, "return 2", "(integer) 2");
}

#[test]
fn a_worker_has_its_socket_and_nothing_else() {
    let (served, dir) = with_marked_workers();
    let c = &mut served.connect();
    gives(c, "return 1", "(integer) 1");
    let pid = workers(&dir)[0].as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(line("Seccomp:"), "2", "system calls are filtered");
    assert_eq!(line("NoNewPrivs:"), "1");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it is there");
    let space = limits.lines().find(|line| line.starts_with("Max address space")).expect("a limit");
    assert!(!space.contains("unlimited"), "{space}");
    let mut open: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("it is there")
        .map(|entry| std::fs::read_link(entry.expect("an entry").path()).expect("a link"))
        .collect();
    open.retain(|path| path.as_os_str() != "/dev/null");
    assert!(open.iter().all(|path| path.to_string_lossy().starts_with("socket:")), "{open:?}");
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it is there");
    assert!(environment.is_empty(), "{}", environment.escape_ascii());
}

#[test]
fn a_worker_ends_with_its_server() {
    let (served, dir) = with_marked_workers();
    gives(&mut served.connect(), "return 1", "(integer) 1");
    let pids = workers(&dir);
    drop(served);
    let until = Instant::now() + Duration::from_secs(30);
    while pids.iter().any(|pid| rustix::process::test_kill_process(*pid).is_ok()) {
        assert!(Instant::now() < until, "it is still there");
        std::thread::yield_now();
    }
}

#[test]
fn a_script_can_be_killed_by_another_client() {
    let served = serve(with_scripts());
    let (c, other) = (&mut served.connect(), &mut served.connect());
    c.send(b"EVAL \"redis.call('SET', 'touched', 1) while true do end\" 0\r\n");
    let until = Instant::now() + Duration::from_secs(30);
    while other.run("SCRIPT KILL") != "OK" {
        assert!(Instant::now() < until, "the script never ran");
    }
    let reply = show(&c.reply().expect("a reply"));
    assert!(reply.contains("Script killed by user with SCRIPT KILL"), "{reply}");
    c.expect(&[
        ("EXISTS touched", "(integer) 0"),
        ("CONFIG SET lua-time-limit 100", "OK"),
        ("CONFIG GET busy-reply-threshold", "[\"busy-reply-threshold\" \"100\"]"),
    ]);
    fails(c, "while true do end", "lua-time-limit (100 ms)");
    assert!(c.run("CONFIG SET lua-time-limit 0").contains("argument must be between"));
}

#[test]
fn a_server_that_stops_ends_its_scripts() {
    let (served, dir) = with_marked_workers();
    let c = &mut served.connect();
    c.send(b"EVAL \"redis.call('SET', 'touched', 1) while true do end\" 0\r\n");
    workers(&dir);
    let begun = Instant::now();
    let db = served.db.clone();
    served.server.stop();
    assert!(begun.elapsed() < Duration::from_secs(4), "it did not wait for the script");
    let dict = db.dictionary("0");
    assert!(dict.is_none_or(|dict| db.get(dict, b"touched").expect("readable").is_none()));
}

#[test]
fn without_a_process_for_them_scripts_are_refused() {
    let served = serve(ServerOptions::default());
    let c = &mut served.connect();
    let refused =
        "(error) ERR no scripts are run here: this server was started without a process for them";
    c.expect(&[("EVAL \"return 1\" 0", refused), ("SCRIPT LOAD \"return 1\"", refused)]);
    for command in ["/nonexistent/program", "/bin/true", "/bin/cat"] {
        let served = serve(ServerOptions {
            scripts: Some(vec![command.into()]),
            limits: Limits { script_time: Duration::from_secs(2), ..Limits::default() },
            ..ServerOptions::default()
        });
        let reply = served.connect().run("EVAL \"return 1\" 0");
        assert!(reply.starts_with("(error) ERR"), "{command}: {reply}");
    }
}

#[test]
fn what_a_worker_says_is_not_believed() {
    // Frames as `printf` writes them, of a worker that has been taken over.
    let said = |frames: &str| {
        let talk = format!("printf '{frames}' >&0; cat >/dev/null");
        let served = serve(ServerOptions {
            scripts: Some(vec!["/bin/sh".into(), "-c".into(), talk.into()]),
            limits: Limits { script_time: Duration::from_secs(2), ..Limits::default() },
            ..ServerOptions::default()
        });
        let reply = served.connect().run("EVAL \"return 1\" 0");
        assert_eq!(served.connect().run("PING"), "PONG");
        reply
    };
    assert_eq!(said("D\\005\\000\\000\\000+OK\\r\\n"), "OK");
    for frames in [
        // Two replies, half of one, one of another protocol, one that announces what does not come.
        "D\\012\\000\\000\\000+OK\\r\\n+OK\\r\\n",
        "D\\003\\000\\000\\000+OK",
        "D\\003\\000\\000\\000_\\r\\n",
        "D\\011\\000\\000\\000*9999999\\r\\n",
        // Invalid frames: no frame, one that is too long, one for the other direction, and a
        // truncated one.
        "nonsense",
        "D\\377\\377\\377\\377",
        "R\\000\\000\\000\\000",
        "D\\377\\000\\000\\000+OK\\r\\n",
        // Invalid calls.
        "C\\000\\000\\000\\000",
        "C\\001\\000\\000\\000\\002",
        "C\\005\\000\\000\\000\\002\\377\\377\\377\\377",
        "C\\011\\000\\000\\000\\002\\001\\000\\000\\000\\377\\000\\000\\000",
    ] {
        let reply = said(frames);
        assert!(reply.starts_with("(error) ERR Error running script"), "{frames}: {reply}");
    }
}

#[test]
fn nothing_of_a_script_runs_when_it_has_ended() {
    let served = hostile();
    let c = &mut served.connect();
    // A finalizer would act with the worker of the next script.
    for finalizer in ["while true do end", "redis.call('SET', 'of-the-dead', 1)"] {
        let script = format!(
            "local p = newproxy(true) getmetatable(p).__gc = function() {finalizer} end return 1"
        );
        eval(c, &script, &[]);
        let begun = Instant::now();
        gives(c, "return redis.call('GET', 'none') or 'nothing'", "\"nothing\"");
        assert!(begun.elapsed() < Duration::from_millis(SHORT), "{finalizer}");
        c.expect(&[("EXISTS of-the-dead", "(integer) 0")]);
    }
    fails(c, "return newproxy(true)", "nonexistent global variable 'newproxy'");
}

#[test]
fn a_worker_that_speaks_unasked_is_not_asked_again() {
    // The worker answers the first script, and calls a command afterwards. The next script must get
    // another worker, which does the same. With the same worker, the call would count as one of
    // that script.
    let talk = "printf 'D\\005\\000\\000\\000+OK\\r\\n\
                C\\024\\000\\000\\000\\002\\002\\000\\000\\000\\004\\000\\000\\000INCR\\003\\000\\000\\000key' >&0; \
                cat >/dev/null";
    let served = serve(ServerOptions {
        scripts: Some(vec!["/bin/sh".into(), "-c".into(), talk.into()]),
        limits: Limits { script_time: Duration::from_secs(2), ..Limits::default() },
        ..ServerOptions::default()
    });
    for _ in 0..3 {
        assert_eq!(served.connect().run("EVAL \"return 1\" 0"), "OK");
    }
    assert_eq!(served.connect().run("EXISTS key"), "(integer) 0");
}

#[test]
fn a_script_waits_for_no_commits() {
    let served = hostile();
    let c = &mut served.connect();
    c.0.get_ref().set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
    c.expect(&[("SET k 1", "OK"), ("SNAPSHOT CREATE s", "OK")]);
    let now = c.run("CHANGES").trim_matches('"').to_owned();
    let script =
        format!("EVAL_RO \"return #redis.call('CHANGES', 'SINCE', '{now}', 'BLOCK', '0')[2]\" 0");
    // In a snapshot, where nothing changes, a script has no transaction.
    for place in ["SNAPSHOT LEAVE", "SNAPSHOT USE s"] {
        c.expect(&[(place, "OK"), (&script, "(integer) 0")]);
    }
}

#[test]
fn a_client_may_send_all_its_scripts_before_it_reads_a_reply() {
    let served = serve(with_scripts());
    let c = &mut served.connect();
    // Each request, each message to and from the worker, and each reply exceed the buffers of a
    // socket.
    let value = vec![b'v'; 1 << 20];
    let script = "redis.call('SET', KEYS[1], ARGV[1])
        local got = redis.call('GET', KEYS[1])
        return {#got, got == ARGV[1], got}";
    let count = 8;
    for n in 0..count {
        let key = format!("key{n}");
        let words: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"1", key.as_bytes(), &value];
        c.send(&request(&words));
    }
    for n in 0..count {
        let Reply::Array(parts) = c.reply().expect("a reply") else { panic!("{n}: no array") };
        assert!(matches!(parts[..2], [Reply::Integer(1048576), Reply::Integer(1)]), "{n}");
        assert!(matches!(&parts[2], Reply::Bulk(got) if *got == value), "{n}");
    }
    assert_eq!(c.run("DBSIZE"), format!("(integer) {count}"));
}
