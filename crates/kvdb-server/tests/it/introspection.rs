//! Tests of the commands by which clients inspect the server and each other, and act on other
//! clients: `CLIENT`, `SLOWLOG`, `CONFIG`, `LATENCY`, `INFO errorstats`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::served::{Raw, clocked_store, serve, serve_db, show};
use kvdb_server::{Reply, ServerOptions};

fn id(c: &mut Raw) -> String {
    c.run("CLIENT ID").replace("(integer) ", "")
}

/// The lines of `CLIENT LIST`, or of another such command.
fn lines(c: &mut Raw, command: &str) -> Vec<String> {
    c.send(format!("{command}\r\n").as_bytes());
    let reply = c.reply().expect("a reply");
    let Reply::Bulk(text) = reply else { panic!("{command}: {}", show(&reply)) };
    String::from_utf8_lossy(&text).lines().map(str::to_string).collect()
}

#[test]
fn clients_are_listed() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut c) = (served.connect(), served.connect(), served.connect());
    a.expect(&[
        ("CLIENT SETNAME worker", "OK"),
        ("SELECT 3", "OK"),
        ("MULTI", "OK"),
        ("PING", "QUEUED"),
    ]);
    b.run("HELLO 3");
    b.run("SUBSCRIBE c");
    b.run("PSUBSCRIBE x*");
    let (of_a, all) = (c.run("CLIENT LIST TYPE normal"), lines(&mut c, "CLIENT LIST"));
    assert!(of_a.contains("name=worker") && !of_a.contains("psub=1"), "{of_a}");
    assert_eq!(all.len(), 3);
    let line = all.iter().find(|line| line.contains("name=worker")).expect("it is listed");
    for part in [" addr=unix ", " flags=x ", " db=3 ", " multi=1 ", " resp=2 "] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let line = all.iter().find(|line| line.contains("flags=P")).expect("it is listed");
    for part in [" sub=1 ", " psub=1 ", " multi=-1 ", " resp=3 ", " cmd=psubscribe "] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let own = id(&mut c);
    let info = lines(&mut c, "CLIENT INFO");
    assert!(info[0].starts_with(&format!("id={own} ")) && info[0].contains(" cmd=client "));
    assert_eq!(lines(&mut c, &format!("CLIENT LIST ID {own} 12345")).len(), 1);
    assert_eq!(lines(&mut c, "CLIENT LIST TYPE pubsub").len(), 1);
    assert_eq!(lines(&mut c, "CLIENT LIST TYPE replica").len(), 0);
    let one = lines(&mut c, "INFO clients");
    assert!(one.contains(&"pubsub_clients:1".to_string()), "{one:?}");
    c.expect(&[
        ("CLIENT LIST TYPE x", "(error) ERR Unknown client type 'x'"),
        ("CLIENT LIST ID x", "(error) ERR Invalid client ID"),
        ("CLIENT LIST ID", "(error) ERR syntax error"),
        ("CLIENT NO-EVICT on", "OK"),
        ("CLIENT NO-EVICT maybe", "(error) ERR syntax error"),
        ("CLIENT TRACKING off", "OK"),
    ]);
}

#[test]
fn clients_are_closed_by_others() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b, mut c) = (served.connect(), served.connect(), served.connect());
    let (of_a, own) = (id(&mut a), id(&mut c));
    b.run("SUBSCRIBE c");
    c.expect(&[
        ("CLIENT KILL ID 12345", "(integer) 0"),
        ("CLIENT KILL ID x", "(error) ERR client-id should be greater than 0"),
        ("CLIENT KILL ID", "(error) ERR No such client"),
        ("CLIENT KILL nobody:1", "(error) ERR No such client"),
        ("CLIENT KILL USER nobody", "(error) ERR No such user 'nobody'"),
        ("CLIENT KILL TYPE master", "(integer) 0"),
        ("CLIENT KILL TYPE pubsub", "(integer) 1"),
        (&format!("CLIENT KILL ID {of_a} SKIPME yes"), "(integer) 1"),
        // Oneself is left out unless asked for.
        (&format!("CLIENT KILL ID {own}"), "(integer) 0"),
    ]);
    assert!(a.reply().is_err() && b.reply().is_err());
    assert_eq!(c.run(&format!("CLIENT KILL ID {own} SKIPME no")), "(integer) 1");
    assert!(c.reply().is_err());
}

#[test]
fn a_pause_holds_commands_back() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.run("SET k v");
    b.expect(&[
        ("CLIENT PAUSE x", "(error) ERR timeout is not an integer or out of range"),
        ("CLIENT PAUSE -1", "(error) ERR timeout is negative"),
        ("CLIENT PAUSE 1 SOME", "(error) ERR CLIENT PAUSE mode must be WRITE or ALL"),
        ("CLIENT PAUSE 600000 WRITE", "OK"),
    ]);
    assert_eq!(a.run("GET k"), "\"v\"");
    let begun = Instant::now();
    a.send(b"SET k w\r\n");
    // The command is not executed while others continue, whatever the schedule.
    for _ in 0..100 {
        assert_eq!(b.run("GET k"), "\"v\"");
    }
    b.expect(&[("CLIENT UNPAUSE", "OK")]);
    assert_eq!(show(&a.reply().expect("a reply")), "OK");
    assert!(begun.elapsed() < Duration::from_secs(300));
    // Messages change what others see, on a channel of the shard as on any other.
    let mut c = served.connect();
    c.expect(&[("SUBSCRIBE any", "[\"subscribe\" \"any\" (integer) 1]")]);
    c.expect(&[("SSUBSCRIBE shard", "[\"ssubscribe\" \"shard\" (integer) 1]")]);
    for (publish, message) in [
        ("PUBLISH any m", "[\"message\" \"any\" \"m\"]"),
        ("SPUBLISH shard m", "[\"smessage\" \"shard\" \"m\"]"),
    ] {
        b.expect(&[("CLIENT PAUSE 600000 WRITE", "OK")]);
        a.send(format!("{publish}\r\n").as_bytes());
        for _ in 0..100 {
            assert_eq!(b.run("GET k"), "\"w\"");
            assert_eq!(c.run("PING"), "[\"pong\" \"\"]", "{publish}");
        }
        b.expect(&[("CLIENT UNPAUSE", "OK")]);
        assert_eq!(show(&a.reply().expect("a reply")), "(integer) 1");
        assert_eq!(show(&c.reply().expect("a message")), message);
    }
    b.expect(&[("GET k", "\"w\""), ("CLIENT PAUSE 50", "OK")]);
    let begun = Instant::now();
    assert_eq!(a.run("GET k"), "\"w\"");
    assert!(begun.elapsed() >= Duration::from_millis(20));
    // A server that stops does not wait for the end of a pause.
    b.expect(&[("CLIENT PAUSE 600000", "OK")]);
    a.send(b"GET k\r\n");
    served.server.stop();
}

#[test]
fn slow_commands_are_kept() {
    let served = serve(ServerOptions::default());
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[
        (
            "CONFIG GET slowlog*",
            "[\"slowlog-log-slower-than\" \"10000\" \"slowlog-max-len\" \"128\"]",
        ),
        ("SLOWLOG LEN", "(integer) 0"),
        ("CLIENT SETNAME me", "OK"),
        ("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3", "OK"),
        ("SET key value", "OK"),
        ("CONFIG SET slowlog-log-slower-than -1", "OK"),
        ("SET key again", "OK"),
        ("SLOWLOG LEN", "(integer) 2"),
    ]);
    let got = a.run("SLOWLOG GET -1");
    assert!(got.contains("[\"SET\" \"key\" \"value\"] \"unix\" \"me\""), "{got}");
    assert!(!got.contains("again"), "{got}");
    // The time for which a command waits does not count as slow.
    a.run("CONFIG SET slowlog-log-slower-than 30000");
    a.run("SLOWLOG RESET");
    b.run("BLPOP l 0.05");
    assert_eq!(a.run("SLOWLOG LEN"), "(integer) 0");
    b.run("DEBUG SLEEP 0.05");
    assert_eq!(a.run("SLOWLOG LEN"), "(integer) 1");
    a.expect(&[
        ("CONFIG SET slowlog-max-len 0", "OK"),
        ("SLOWLOG LEN", "(integer) 0"),
        (
            "CONFIG SET slowlog-max-len 100000",
            "(error) ERR argument must be between 0 and 10000 inclusive",
        ),
        ("SLOWLOG GET -2", "(error) ERR count should be greater than or equal to -1"),
        ("SLOWLOG GET x", "(error) ERR count should be greater than or equal to -1"),
        ("LATENCY LATEST", "[]"),
        ("LATENCY RESET", "(integer) 0"),
    ]);
}

#[test]
fn settings_are_made_together_or_not_at_all() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("CONFIG SET durable yes notify-keyspace-events Q", "(error) ERR CONFIG SET failed - argument 'notify-keyspace-events': a letter of it means no class of events"),
        ("DURABLE", "\"no\""),
        ("CONFIG SET durable yes notify-keyspace-events KEA", "OK"),
        ("DURABLE", "\"yes\""),
        ("CONFIG GET notify-keyspace-events", "[\"notify-keyspace-events\" \"AKE\"]"),
        ("CONFIG SET durable", "(error) ERR unknown subcommand or wrong number of arguments for 'SET'. Try CONFIG HELP."),
    ]);
}

#[test]
fn a_setting_that_is_fixed_takes_the_value_that_it_has_and_no_other() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let fixed = |name: &str| {
        format!(
            "(error) ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
        )
    };
    c.expect(&[
        ("CONFIG SET save \"\" appendonly YES timeout 0 maxmemory 0 requirepass \"\"", "OK"),
        ("CONFIG GET requirepass", "[\"requirepass\" \"\"]"),
        ("CONFIG SET durable yes databases 3", &fixed("databases")),
        ("DURABLE", "\"no\""),
        ("CONFIG SET maxmemory-policy allkeys-lru", &fixed("maxmemory-policy")),
        ("CONFIG GET hash-max-listpack-entries", "[\"hash-max-listpack-entries\" \"128\"]"),
        ("PING", "PONG"),
    ]);
}

#[test]
fn a_password_can_be_set_and_is_told_to_no_one() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    const WRONG: &str = "(error) WRONGPASS invalid username-password pair or user is disabled.";
    c.expect(&[
        ("CONFIG SET slowlog-log-slower-than 0", "OK"),
        ("CONFIG SET requirepass s3cret", "OK"),
        ("CONFIG SET slowlog-log-slower-than -1", "OK"),
        ("CONFIG GET requirepass", "[]"),
        ("ACL LIST", "[\"user default on # ~* &* +@all\"]"),
        ("AUTH wrong", WRONG),
        ("AUTH s3cret", "OK"),
        ("AUTH nobody s3cret", WRONG),
    ]);
    let slow = c.run("SLOWLOG GET");
    assert!(slow.contains("(redacted)") && !slow.contains("s3cret"), "{slow}");
    other.expect(&[
        ("PING", "PONG"),
        ("CONFIG SET requirepass \"\"", "OK"),
        ("CONFIG GET requirepass", "[\"requirepass\" \"\"]"),
    ]);
    assert!(c.run("AUTH s3cret").contains("without any password configured"));
}

#[test]
fn multi_queues_debug_and_the_sweeper_waits_for_no_locks_of_its_own_exec() {
    serve(ServerOptions::default()).connect().expect(&[
        ("MULTI", "OK"),
        ("DEBUG PROTOCOL integer", "QUEUED"),
        ("DEBUG SWEEP", "QUEUED"),
        ("DEBUG ERROR 'MINE no'", "QUEUED"),
        ("SET k v", "QUEUED"),
        (
            "EXEC",
            "[(integer) 12345 (error) ERR DEBUG sweep is not possible in MULTI and in scripts \
             (error) MINE no OK]",
        ),
        ("DEBUG SWEEP", "(integer) 0"),
        // A sleep in that place holds locks.
        ("MULTI", "OK"),
        ("SET key value", "QUEUED"),
        ("DEBUG SLEEP 2", "QUEUED"),
        ("DEBUG SLEEP 0.01", "QUEUED"),
        ("DEBUG SLEEP 0.995", "QUEUED"),
        (
            "EXEC",
            "[OK (error) ERR DEBUG SLEEP takes at most 1s in all in MULTI and in scripts, where \
             it holds locks OK (error) ERR DEBUG SLEEP takes at most 1s in all in MULTI and in \
             scripts, where it holds locks]",
        ),
    ]);
}

#[test]
fn errors_are_counted_by_their_codes() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.run("SET s x");
    c.run("LPUSH s x");
    c.run("NOSUCHCOMMAND");
    c.run("INCR s");
    let stats = lines(&mut c, "INFO errorstats");
    assert_eq!(stats, ["# Errorstats", "errorstat_ERR:count=2", "errorstat_WRONGTYPE:count=1"]);
    c.run("CONFIG RESETSTAT");
    assert_eq!(lines(&mut c, "INFO errorstats"), ["# Errorstats"]);
}

#[test]
fn a_client_gets_the_error_that_it_asks_for() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("DEBUG ERROR 'LOADING a message'", "(error) LOADING a message"),
        ("DEBUG ERROR \"ERR two\\r\\nlines\"", "(error) ERR two  lines"),
        ("PING", "PONG"),
        ("DEBUG ERROR 'READONLY no'", "(error) READONLY no"),
    ]);
    assert_eq!(
        lines(&mut c, "INFO errorstats"),
        [
            "# Errorstats",
            "errorstat_ERR:count=1",
            "errorstat_LOADING:count=1",
            "errorstat_READONLY:count=1",
        ]
    );
}

/// The fields of a text of `INFO` or `CLIENT INFO`, each of which occurs once.
fn fields(text: &[String], ends: &[char]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for field in text.iter().flat_map(|line| line.split(' ')).filter(|word| !word.is_empty()) {
        if let Some((name, value)) = field.split_once(ends) {
            let before = found.insert(name.to_string(), value.to_string());
            assert!(before.is_none(), "{name} is there twice");
        }
    }
    found
}

#[test]
fn the_fields_that_programs_index_are_there() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    // Programs read these without asking first: redis-py, redis-cli, exporters, consoles.
    let info = fields(&lines(&mut c, "INFO"), &[':']);
    for name in [
        "redis_version",
        "redis_git_sha1",
        "redis_mode",
        "os",
        "arch_bits",
        "multiplexing_api",
        "process_id",
        "run_id",
        "tcp_port",
        "uptime_in_seconds",
        "uptime_in_days",
        "hz",
        "lru_clock",
        "executable",
        "config_file",
        "connected_clients",
        "blocked_clients",
        "tracking_clients",
        "used_memory",
        "used_memory_human",
        "used_memory_rss",
        "used_memory_peak",
        "used_memory_peak_human",
        "used_memory_lua",
        "total_system_memory",
        "maxmemory",
        "maxmemory_policy",
        "mem_fragmentation_ratio",
        "mem_allocator",
        "loading",
        "rdb_changes_since_last_save",
        "rdb_bgsave_in_progress",
        "rdb_last_save_time",
        "rdb_last_bgsave_status",
        "aof_enabled",
        "aof_rewrite_in_progress",
        "total_connections_received",
        "total_commands_processed",
        "instantaneous_ops_per_sec",
        "rejected_connections",
        "expired_keys",
        "evicted_keys",
        "keyspace_hits",
        "keyspace_misses",
        "pubsub_channels",
        "pubsub_patterns",
        "latest_fork_usec",
        "total_error_replies",
        "role",
        "connected_slaves",
        "master_replid",
        "master_repl_offset",
        "used_cpu_sys",
        "used_cpu_user",
        "used_cpu_sys_children",
        "used_cpu_user_children",
        "cluster_enabled",
    ] {
        assert!(info.contains_key(name), "INFO has no {name}");
    }
    assert_eq!(info["run_id"].len(), 40);
    assert!(info["used_memory"].parse::<u64>().is_ok_and(|bytes| bytes > 1 << 20));
    assert!(info["used_memory_human"].ends_with(['M', 'G']), "{}", info["used_memory_human"]);
    assert!(info["used_cpu_user"].parse::<f64>().is_ok());
    assert_eq!(lines(&mut c, "INFO cpu")[0], "# CPU");
    assert_eq!(lines(&mut c, "INFO modules"), ["# Modules"]);
    assert_eq!(lines(&mut c, "INFO cluster"), ["# Cluster", "cluster_enabled:0"]);
    let client = fields(&lines(&mut c, "CLIENT INFO"), &['=']);
    for name in [
        "id",
        "addr",
        "laddr",
        "fd",
        "name",
        "age",
        "idle",
        "flags",
        "db",
        "sub",
        "psub",
        "ssub",
        "multi",
        "qbuf",
        "qbuf-free",
        "argv-mem",
        "multi-mem",
        "rbs",
        "rbp",
        "obl",
        "oll",
        "omem",
        "tot-mem",
        "events",
        "cmd",
        "user",
        "redir",
        "resp",
        "lib-name",
        "lib-ver",
    ] {
        assert!(client.contains_key(name), "CLIENT INFO has no {name}");
    }
    c.expect(&[("CLIENT KILL LADDR elsewhere SKIPME no", "(integer) 0")]);
    assert_eq!(c.run("CLIENT KILL LADDR unix SKIPME no"), "(integer) 1");
}

#[test]
fn what_is_not_there_is_told_in_the_words_of_redis() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    const NO_CLUSTER: &str = "(error) ERR This instance has cluster support disabled";
    c.expect(&[
        ("ROLE", "[\"master\" (integer) 0 []]"),
        ("MODULE LIST", "[]"),
        ("ACL WHOAMI", "\"default\""),
        ("ACL USERS", "[\"default\"]"),
        ("ACL LIST", "[\"user default on nopass ~* &* +@all\"]"),
        ("ACL GETUSER nobody", "(nil)"),
        ("ACL SETUSER me on", "(error) ERR there are no users here except 'default'"),
        ("ACL CAT hyperloglog", "[\"pfadd\" \"pfcount\" \"pfdebug\" \"pfmerge\"]"),
        ("ACL CAT nosuch", "(error) ERR Unknown category 'nosuch'"),
        ("ACL DRYRUN default GET k", "OK"),
        ("ACL DRYRUN default GET", "(error) ERR wrong number of arguments for 'get' command"),
        ("ACL DRYRUN default nosuch", "(error) ERR Command 'nosuch' not found"),
        ("ACL DRYRUN nobody GET k", "(error) ERR User 'nobody' not found"),
        ("ACL LOG", "[]"),
        ("ACL LOG 5", "[]"),
        ("ACL LOG RESET", "OK"),
        ("ACL SAVE", "(error) ERR there is no file of users here"),
        ("CLUSTER INFO", NO_CLUSTER),
        ("CLUSTER KEYSLOT k", NO_CLUSTER),
        ("READONLY", NO_CLUSTER),
        ("FUNCTION LIST", "[]"),
        ("FUNCTION FLUSH", "OK"),
        ("LATENCY HISTOGRAM", "[]"),
        ("MEMORY PURGE", "OK"),
        ("BGSAVE NOW", "(error) ERR syntax error"),
        (
            "SHUTDOWN NOSAVE",
            "(error) ERR no client ends this server: unmount the store, or end the program that serves it",
        ),
        ("SHUTDOWN ABORT", "(error) ERR No shutdown in progress."),
        ("SHUTDOWN ABORT NOW", "(error) ERR syntax error"),
        ("SHUTDOWN SAVE NOSAVE", "(error) ERR syntax error"),
        ("SHUTDOWN soon", "(error) ERR syntax error"),
        ("MULTI", "OK"),
        ("ROLE", "QUEUED"),
        ("EXEC", "[[\"master\" (integer) 0 []]]"),
    ]);
    let categories = c.run("ACL CAT");
    for name in ["\"admin\"", "\"hash\"", "\"write\""] {
        assert!(categories.contains(name), "{categories}");
    }
    let (long, short) = (c.run("ACL GENPASS"), c.run("ACL GENPASS 5"));
    assert!((long.len(), short.len()) == (64 + 2, 2 + 2), "{long} and {short}");
    assert_ne!(c.run("ACL GENPASS"), long);
    assert!(c.run("ACL GENPASS 0").contains("a positive number up to 4096"));
    assert!(c.run("LOLWUT").contains("Redis ver. 7."));
    let stats = c.run("MEMORY STATS");
    for name in ["\"peak.allocated\" (integer) ", "\"dataset.percentage\" \"100\""] {
        assert!(stats.contains(name), "{stats}");
    }
    assert!(c.run("FUNCTION LOAD x").contains("Missing library metadata"));
    assert!(c.run("FUNCTION LOAD \"#!lua name=x\\n\"").contains("no scripts are run here"));
}

#[test]
fn the_keys_of_commands_are_told_with_what_is_done_to_them() {
    serve(ServerOptions::default()).connect().expect(&[
        (
            "COMMAND INFO xread",
            "[[\"xread\" (integer) -4 [readonly blocking movablekeys] (integer) 0 (integer) 0 (integer) 0 \
             [@read @stream @slow @blocking] [] [[\"flags\" [RO access] \"begin_search\" [\"type\" \"keyword\" \"spec\" \
             [\"keyword\" \"STREAMS\" \"startfrom\" (integer) 1]] \"find_keys\" [\"type\" \"range\" \"spec\" [\"lastkey\" \
             (integer) -1 \"keystep\" (integer) 1 \"limit\" (integer) 2]]]] []]]",
        ),
        ("COMMAND GETKEYSANDFLAGS SET a b", "[[\"a\" [OW update]]]"),
        ("COMMAND GETKEYSANDFLAGS SET a b GET", "[[\"a\" [RW access update]]]"),
        ("COMMAND GETKEYSANDFLAGS BITFIELD a GET u8 0", "[[\"a\" [RO access]]]"),
        (
            "COMMAND GETKEYSANDFLAGS LMOVE a b LEFT RIGHT",
            "[[\"a\" [RW access delete]] [\"b\" [RW insert]]]",
        ),
        (
            "COMMAND GETKEYSANDFLAGS ZUNIONSTORE d 2 a b",
            "[[\"d\" [OW update]] [\"a\" [RO access]] [\"b\" [RO access]]]",
        ),
        (
            "COMMAND GETKEYSANDFLAGS SORT a STORE b",
            "[[\"a\" [RO access]] [\"b\" [OW update]]]",
        ),
        ("COMMAND GETKEYSANDFLAGS PING x", "(error) ERR The command has no key arguments"),
        ("COMMAND LIST FILTERBY ACLCAT hyperloglog", "[\"pfadd\" \"pfcount\" \"pfdebug\" \"pfmerge\"]"),
        ("COMMAND LIST FILTERBY ACLCAT nosuch", "[]"),
    ]);
}

#[test]
fn a_save_is_a_sync_and_lastsave_tells_when() {
    let (clock, db) = clocked_store();
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    let saved = |c: &mut Raw| c.run("LASTSAVE").replace("(integer) ", "").parse::<u64>();
    let before = saved(&mut c).expect("a time");
    for command in ["BGSAVE", "SAVE", "SYNC", "BGSAVE SCHEDULE"] {
        clock.advance(Duration::from_secs(2));
        let last = saved(&mut c).expect("a time");
        let reply = c.run(command);
        assert!(["OK", "Background saving started"].contains(&&reply[..]), "{command}: {reply}");
        assert_eq!(saved(&mut c), Ok(last + 2), "{command}");
    }
    assert_eq!(saved(&mut c), Ok(before + 8));
}
