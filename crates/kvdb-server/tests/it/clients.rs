//! Runs client programs that were written for Redis.

use std::process::Command;
use std::sync::Arc;

use crate::served::{Served, serve};
use kvdb_server::{Client, Describe, Reply, ServerOptions};
use redis::{Commands, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

fn connection(served: &Served, protocol: ProtocolVersion) -> redis::Connection {
    let url = format!("redis+unix://{}?db=2", served.path.display());
    let info: ConnectionInfo = url.as_str().into_connection_info().expect("a URL");
    let settings = info.redis_settings().clone().set_protocol(protocol);
    redis::Client::open(info.set_redis_settings(settings))
        .expect("a client")
        .get_connection()
        .expect("connected")
}

#[test]
fn the_rust_client_in_both_protocols() {
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        let served = serve(ServerOptions::default());
        let mut c = connection(&served, protocol);
        let _: () = c.set("key", b"\x00\xff\r\n".as_slice()).expect("set");
        assert_eq!(c.get::<_, Vec<u8>>("key").expect("get"), b"\x00\xff\r\n");
        assert_eq!(c.get::<_, Option<String>>("none").expect("get"), None);
        assert_eq!(c.incr::<_, _, i64>("n", 5).expect("incr"), 5);
        assert_eq!(c.incr::<_, _, f64>("n", 0.5).expect("incrbyfloat"), 5.5);
        assert!(c.mset::<_, _, ()>(&[("a", "1"), ("b", "2")]).is_ok());
        assert_eq!(
            c.mget::<_, Vec<Option<i64>>>(&["a", "x", "b"]).expect("mget"),
            [Some(1), None, Some(2)]
        );
        assert_eq!(c.del::<_, i64>(&["a", "b", "x"]).expect("del"), 2);
        assert!(!c.exists::<_, bool>("a").expect("exists"));
        assert_eq!(c.append::<_, _, usize>("s", "abc").expect("append"), 3);
        assert_eq!(c.getrange::<_, String>("s", 1, -1).expect("getrange"), "bc");
        let pipelined: (i64, i64, String) =
            redis::pipe().incr("p", 1).incr("p", 1).get("s").query(&mut c).expect("pipeline");
        assert_eq!(pipelined, (1, 2, "abc".into()));
        for i in 0..100 {
            let _: () = c.set(format!("scan:{i}"), i).expect("set");
        }
        let mut scanned: Vec<String> = c
            .scan_match("scan:*")
            .expect("scan")
            .collect::<Result<_, _>>()
            .expect("every page is readable");
        scanned.sort();
        scanned.dedup();
        assert_eq!(scanned.len(), 100);
        let error = c.incr::<_, _, i64>("s", 1).expect_err("not a number");
        assert!(error.to_string().contains("not an integer"), "{error}");
        let range: Vec<(String, i64)> = redis::cmd("RANGE")
            .arg("scan:1")
            .arg("scan:2")
            .arg("LIMIT")
            .arg(2)
            .query(&mut c)
            .expect("range");
        assert_eq!(range, [("scan:1".into(), 1), ("scan:10".into(), 10)]);
        let dicts: Vec<String> = redis::cmd("DICTS").query(&mut c).expect("dicts");
        assert_eq!(dicts, ["2"]);
        let info: redis::InfoDict = redis::cmd("INFO").query(&mut c).expect("info");
        assert_eq!(info.get::<u64>("connected_clients"), Some(1));
    }
}

/// Runs `redis-cli` with `args`; `None` where it is not installed.
fn redis_cli(served: &Served, args: &[&str]) -> Option<String> {
    let output = Command::new("redis-cli").arg("-s").arg(&served.path).args(args).output().ok()?;
    Some(
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn redis_cli_works() {
    let served = serve(ServerOptions::default());
    let Some(pong) = redis_cli(&served, &["PING"]) else {
        eprintln!("redis-cli is not installed; nothing to see here");
        return;
    };
    assert_eq!(pong, "PONG\n");
    let run = |args: &[&str]| redis_cli(&served, args).unwrap_or_default();
    assert_eq!(run(&["-n", "4", "SET", "greeting", "hello world"]), "OK\n");
    assert_eq!(run(&["-n", "4", "GET", "greeting"]), "hello world\n");
    assert_eq!(run(&["-3", "-n", "4", "STRLEN", "greeting"]), "11\n");
    assert_eq!(run(&["-3", "GET", "none"]), "\n");
    assert!(run(&["-3", "INFO"]).contains("# Server"));
    assert_eq!(run(&["-n", "4", "--scan"]), "greeting\n");
    assert_eq!(run(&["-n", "4", "--scan", "--pattern", "x*"]), "");
    assert!(run(&["-n", "4", "--bigkeys"]).contains("Sampled 1 keys"));
    assert!(run(&["SET", "a"]).contains("ERR wrong number of arguments"));
    assert_eq!(run(&["-n", "4", "RANGE", "-", "+"]), "greeting\nhello world\n");
}

#[test]
fn redis_cli_is_refused_a_copy_at_once() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    let refused = "(error) ERR the store cannot be copied";
    for command in ["PSYNC ? -1", "REPLCONF capa eof", "SYNC"] {
        assert!(c.run(command).starts_with(refused), "{command}");
    }
    // After a reset of the connection the name means the other command again.
    c.expect(&[("SAVE", "OK"), ("RESET", "RESET"), ("SYNC", "OK"), ("REPLICAOF NO ONE", "OK")]);
    assert!(c.run("REPLICAOF there 6379").starts_with("(error) ERR the store cannot become"));
    // The program would wait for the file forever if the reply were not an error.
    let file = served.dir.path().join("copy.rdb").display().to_string();
    match redis_cli(&served, &["--rdb", &file]) {
        None => eprintln!("redis-cli is not installed; nothing to see here"),
        Some(said) => assert!(said.contains("the store cannot be copied"), "{said}"),
    }
}

#[test]
fn redis_cli_shows_transactions() {
    let served = serve(ServerOptions::default());
    let run = |args: &[&str]| redis_cli(&served, args);
    let Some(id) = run(&["TXN", "BEGIN", "LABEL", "by hand"]) else {
        eprintln!("redis-cli is not installed; nothing to see here");
        return;
    };
    assert_eq!(id, "1\n");
    assert!(run(&["TXN", "LIST"]).unwrap_or_default().contains("by hand"));
    let mut typed = Command::new("redis-cli")
        .arg("-s")
        .arg(&served.path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    std::io::Write::write_all(
        &mut typed.stdin.take().expect("a pipe"),
        b"TXN JOIN 1\nSET a 1\nMULTI\nINCR a\nEXEC\nTXN COMMIT\n",
    )
    .expect("it reads");
    assert!(typed.wait().expect("it ends").success());
    assert_eq!(run(&["GET", "a"]).as_deref(), Some("2\n"));
}

/// A counter raised in the way that redis-py's manual shows, and a transaction of ours.
const PYTHON: &str = r#"
import sys, redis
r = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)
r.mset({"a": 1, "b": 2})
with r.pipeline() as p:
    p.incr("a"); p.get("b"); p.set("c", "x")
    assert p.execute() == [2, "2", True]
def raise_it(p):
    n = int(p.get("a"))
    p.multi()
    p.set("a", n + 1)
assert r.transaction(raise_it, "a") == [True]
with r.pipeline() as p:
    p.watch("a")
    r.set("a", 10)
    p.multi()
    p.set("a", 11)
    try:
        p.execute()
        raise SystemExit("no WatchError")
    except redis.WatchError:
        pass
id = r.execute_command("TXN", "BEGIN")
with r.client() as c:
    c.execute_command("TXN", "JOIN", id)
    c.set("a", 12)
    assert r.get("a") == "10"
    c.execute_command("TXN", "COMMIT")
assert r.get("a") == "12"
one, two = (r.execute_command("TXN", "BEGIN") for _ in "12")
for id in (one, two):
    with r.client() as c:
        c.execute_command("TXN", "JOIN", id)
        c.set("a", id)
        c.execute_command("TXN", "LEAVE")
r.execute_command("TXN", "COMMIT", one)
try:
    r.execute_command("TXN", "COMMIT", two)
    raise SystemExit("no conflict")
except redis.ResponseError as e:
    assert str(e).startswith("CONFLICT "), e
print("done")
"#;

#[test]
fn redis_py_works() {
    let served = serve(ServerOptions::default());
    let has_it = |python: &&str| {
        Command::new(python).args(["-c", "import redis"]).output().is_ok_and(|o| o.status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_it) else {
        eprintln!("redis-py is not installed; nothing to see here");
        return;
    };
    let done =
        Command::new(python).args(["-c", PYTHON]).arg(&served.path).output().expect("it runs");
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "done\n",
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn a_reply_in_this_process_comes_as_its_bytes_where_that_is_asked() {
    let served = serve(ServerOptions::default());
    let mut client = Client::local(served.db.clone());
    let mut bytes = |words: &[&[u8]]| client.call_unparsed(words).expect("a reply");
    assert_eq!(bytes(&[b"SET", b"key", b"value"]), b"+OK\r\n");
    assert_eq!(bytes(&[b"MGET", b"key", b"none"]), b"*2\r\n$5\r\nvalue\r\n$-1\r\n");
    assert!(bytes(&[b"NOSUCHCOMMAND"]).starts_with(b"-ERR unknown command"));
    let mut other = Client::connect(&served.path).expect("connected");
    assert!(other.call_unparsed(&[b"PING"]).is_err(), "a socket has no end of a reply");
}

#[test]
fn a_client_over_another_host_takes_as_many_words_as_a_server_of_a_wire_passes_on() {
    let db = kvdb::Kvdb::in_memory();
    let describe: Describe = Arc::new(|_: &str, _: &[u8], _: &[u8]| None);
    let mut client = Client::local_over(db.clone(), Arc::new(db.clone()), describe);
    // A frame of a wire has room for more words than a client of a socket may send.
    let mut words: Vec<&[u8]> = vec![b"EXISTS"];
    words.resize(300_000, b"none");
    assert_eq!(client.call(&words).expect("a reply"), Reply::Integer(0));
}
