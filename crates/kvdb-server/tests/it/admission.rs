//! Tests of admission: which clients the server accepts, how many, how much memory they may use,
//! and what happens to those that misbehave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::served::{Raw, serve, serve_db, show};
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use kvdb_server::{Client, Error, Limits, Reply, Server, ServerOptions, read_reply};

#[test]
fn the_socket_is_the_owners_alone_and_goes_with_the_server() {
    let served = serve(ServerOptions::default());
    let meta = std::fs::symlink_metadata(&served.path).expect("the socket is there");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    let mut c = served.connect();
    assert_eq!(c.run("PING"), "PONG");
    served.server.stop();
    assert!(!served.path.exists(), "the socket is removed");
    assert!(c.reply().is_err(), "the connection is closed");
    assert_eq!(
        std::fs::read_dir(served.dir.path()).expect("the directory").count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn a_dead_servers_socket_is_replaced_and_a_living_ones_is_not() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).expect("a socket"));
    assert!(path.exists(), "nobody listens, but the name is there");
    let db = Kvdb::in_memory();
    let server = Server::start(db.clone(), &path, ServerOptions::default())
        .expect("the stale socket is replaced");
    let second = Server::start(db.clone(), &path, ServerOptions::default());
    assert!(matches!(second.err(), Some(Error::InUse(p)) if p == path));
    Client::connect(&path).expect("the first one still listens");
    drop(server);

    std::fs::write(&path, "precious").expect("a file");
    assert!(matches!(
        Server::start(db.clone(), &path, ServerOptions::default()).err(),
        Some(Error::NotASocket(_))
    ));
    assert_eq!(std::fs::read(&path).expect("the file"), b"precious");

    // Under this name a socket is made, before it is moved.
    std::fs::remove_file(&path).expect("removed");
    let making = dir.path().join("s~");
    std::fs::write(&making, "precious").expect("a file");
    let refused = Server::start(db.clone(), &path, ServerOptions::default()).err();
    assert!(matches!(refused, Some(Error::NotASocket(p)) if p == making));
    assert_eq!(std::fs::read(&making).expect("the file"), b"precious");
    std::fs::remove_file(&making).expect("removed");
    drop(UnixListener::bind(&making).expect("a socket"));
    drop(Server::start(db.clone(), &path, ServerOptions::default()).expect("a dead server's"));

    let long = dir.path().join("x".repeat(120));
    assert!(matches!(
        Server::start(db, &long, ServerOptions::default()).err(),
        Some(Error::PathTooLong(_))
    ));
}

#[test]
fn reserved_dictionaries_cannot_be_reached() {
    let db = Kvdb::in_memory();
    let reserved = DictionaryOptions { reserved: true, ..DictionaryOptions::default() };
    // One dictionary has a name that SELECT makes.
    let mut before = Vec::new();
    for name in ["nmap", "imap", "dmap", "7"] {
        let id = db.create_dictionary(name, reserved.clone()).expect("made");
        let mut batch = Batch::new();
        batch.put(id, "key", "the file system's");
        db.commit(batch, Durability::Buffered).expect("committed");
        before.push(id);
    }
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    for name in ["nmap", "imap", "dmap", "7"] {
        assert_eq!(
            c.run(&format!("USE {name}")),
            format!("(error) RESERVED dictionary '{name}' is reserved for the file system")
        );
    }
    assert_eq!(
        c.run("SELECT 7"),
        "(error) RESERVED dictionary '7' is reserved for the file system"
    );
    // Names that look alike are other dictionaries, the user's own.
    for name in ["NMAP", "'nmap '", "' nmap'", "nmap/", "./nmap", "ｎmap"] {
        c.expect(&[
            (&format!("USE {name}"), "OK"),
            ("GET key", "(nil)"),
            ("SET key mine", "OK"),
            ("FLUSHDB", "OK"),
        ]);
    }
    assert!(c.run("USE \"nmap\\x00\"").starts_with("(error)"));
    assert!(!c.run("DICTS").contains("\"nmap\""));
    c.run("FLUSHALL");
    for id in before {
        assert_eq!(
            served.db.get(id, b"key").expect("read").as_deref(),
            Some(b"the file system's".as_slice())
        );
    }
}

#[test]
fn a_dictionary_that_becomes_reserved_before_the_first_write_is_refused() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    assert_eq!(c.run("USE later"), "OK");
    served
        .db
        .create_dictionary("later", DictionaryOptions { reserved: true, ..Default::default() })
        .expect("made");
    for command in [
        "SET a 1",
        "GET a",
        "INCR a",
        "FLUSHDB",
        "RANGE - +",
        "KEYS *",
        "DBSIZE",
        "DEL a",
        "MGET a",
        "SCAN 0",
    ] {
        assert_eq!(
            c.run(command),
            "(error) RESERVED dictionary 'later' is reserved for the file system",
            "{command}"
        );
    }
}

#[test]
fn tcp_wants_the_password_and_the_socket_of_the_owner_does_not() {
    let tcp = Some("127.0.0.1:0".parse().expect("an address"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = ServerOptions { tcp, ..Default::default() };
    let started = Server::start(Kvdb::in_memory(), &dir.path().join("s"), open);
    assert!(matches!(started.err(), Some(Error::NoPassword)));

    let served =
        serve(ServerOptions { tcp, password: Some("s3cret".into()), ..Default::default() });
    let mut stream = std::io::BufReader::new(
        TcpStream::connect(served.server.tcp_address().expect("bound")).expect("connected"),
    );
    let mut run = |command: &str| {
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("the server reads");
        show(&read_reply(&mut stream, 0).expect("a reply"))
    };
    for command in ["GET a", "PING", "SET a 1", "KVFS.STAT", "SELECT 0", "NOSUCH", "INFO"] {
        assert_eq!(run(command), "(error) NOAUTH Authentication required.", "{command}");
    }
    assert!(run("HELLO 3").starts_with("(error) NOAUTH HELLO must be called"));
    let wrong = "(error) WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(run("AUTH wrong"), wrong);
    assert_eq!(run("AUTH s3cre"), wrong);
    assert_eq!(run("AUTH s3cret2"), wrong);
    assert_eq!(run("AUTH ''"), wrong);
    assert_eq!(run("AUTH other s3cret"), wrong);
    assert_eq!(run("AUTH a b c"), "(error) ERR syntax error");
    assert_eq!(run("GET a"), "(error) NOAUTH Authentication required.");
    assert_eq!(run("AUTH s3cret"), "OK");
    assert_eq!(run("CONFIG GET requirepass"), "[\"requirepass\" \"s3cret\"]");
    assert_eq!(served.connect().run("CONFIG GET requirepass"), "[]", "it has told none");
    assert_eq!(run("SET a 1"), "OK");
    assert_eq!(run("RESET"), "RESET");
    assert_eq!(run("GET a"), "(error) NOAUTH Authentication required.");
    assert!(run("HELLO 3 AUTH default s3cret SETNAME me").contains("\"proto\" (integer) 3"));
    assert_eq!(run("GET a"), "\"1\"");
    assert_eq!(served.connect().run("GET a"), "\"1\"");
    assert!(run("CONFIG SET requirepass ''").ends_with("a server on the network needs a password"));
    assert_eq!(run("CONFIG SET requirepass changed"), "OK");
    assert_eq!(run("GET a"), "\"1\"", "who is there stays");
    assert_eq!(run("RESET"), "RESET");
    assert_eq!(run("AUTH s3cret"), wrong);
    assert_eq!(run("AUTH changed"), "OK");

    let mut stranger =
        TcpStream::connect(served.server.tcp_address().expect("bound")).expect("connected");
    stranger.write_all(b"*2\r\n$4\r\nAUTH\r\n$100000\r\n").expect("the server reads");
    let mut said = String::new();
    stranger.read_to_string(&mut said).expect("the server closes");
    assert_eq!(said, "-ERR Protocol error: unauthenticated bulk length\r\n");
}

#[test]
fn without_a_password_auth_says_so() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    assert!(
        c.run("AUTH x")
            .starts_with("(error) ERR AUTH <password> called without any password configured")
    );
    assert_eq!(c.run("AUTH default x"), "OK");
}

#[test]
fn one_connection_too_many() {
    let served = serve(ServerOptions {
        limits: Limits { connections: 2, ..Limits::default() },
        ..Default::default()
    });
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("PING", "PONG")]);
    b.expect(&[("PING", "PONG")]);
    let mut third = served.connect();
    assert_eq!(show(&third.reply().expect("a reply")), "(error) ERR max number of clients reached");
    assert!(third.reply().is_err());
    assert!(a.run("INFO stats").contains("rejected_connections:1"));
    drop(a);
    // The place is free as soon as the server has noticed.
    while !b.run("INFO clients").contains("connected_clients:1\\r") {}
    served.connect().expect(&[("PING", "PONG")]);
}

#[test]
fn more_connections_are_allowed_while_the_server_runs() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let (mut a, mut b) = (served.connect(), served.connect());
    a.expect(&[("PING", "PONG"), ("CONFIG GET maxclients", "[\"maxclients\" \"2\"]")]);
    b.expect(&[("PING", "PONG")]);
    assert!(show(&served.connect().reply().expect("a reply")).contains("max number of clients"));
    a.expect(&[
        ("CONFIG SET maxclients 3", "OK"),
        ("CONFIG GET maxclients", "[\"maxclients\" \"3\"]"),
    ]);
    let mut third = served.connect();
    third.expect(&[("PING", "PONG")]);
    assert!(show(&served.connect().reply().expect("a reply")).contains("max number of clients"));
    // Existing connections stay open.
    a.expect(&[("CONFIG SET maxclients 1", "OK"), ("PING", "PONG")]);
    third.expect(&[("PING", "PONG")]);
    assert!(a.run("CONFIG SET maxclients 0").contains("must be between 1 and"));
    assert!(a.run("CONFIG SET maxclients many").contains("must be between 1 and"));
    assert_eq!(a.run("CONFIG GET maxclients"), "[\"maxclients\" \"1\"]");
}

#[test]
fn a_thousand_and_more_clients_are_served_at_once() {
    const CLIENTS: usize = 1500;
    let served = serve(ServerOptions::default());
    let mut first = served.connect();
    let most = first.run("CONFIG GET maxclients");
    let most: usize = most.split('"').nth(3).and_then(|n| n.parse().ok()).expect("a number");
    if most < 2 * CLIENTS {
        println!("SKIPPED: the process may have too few descriptors, {most} clients");
        return;
    }
    // Each takes two descriptors here, where both ends are in one process.
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| served.connect()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.run(&format!("INCR n{}", i % 7)), format!("(integer) {}", i / 7 + 1));
    }
    assert!(first.run("INFO clients").contains(&format!("connected_clients:{}", CLIENTS + 1)));
}

#[test]
fn protocol_errors_close_the_connection_after_what_was_asked_before() {
    let served = serve(ServerOptions::default());
    for (bytes, want) in [
        (b"PING\r\n*1\r\n$536870913\r\n".as_slice(), "ERR Protocol error: invalid bulk length"),
        (b"PING\r\n*1000000000\r\n", "ERR Protocol error: invalid multibulk length"),
        (b"PING\r\n*1\r\n+OK\r\n", "ERR Protocol error: expected '$', got '+'"),
        (b"PING\r\nSET 'a\r\n", "ERR Protocol error: unbalanced quotes in request"),
    ] {
        let mut c = served.connect();
        c.send(bytes);
        assert_eq!(c.reply().expect("a reply"), Reply::Status("PONG".into()));
        assert_eq!(c.reply().expect("a reply"), Reply::Error(want.into()));
        assert!(c.reply().is_err(), "closed");
    }
    let mut c = served.connect();
    c.send(&[b'x'; 70_000]);
    assert_eq!(
        c.reply().expect("a reply"),
        Reply::Error("ERR Protocol error: too big inline request".into())
    );
    assert!(served.connect().run("INFO stats").contains("protocol_errors:5"));
}

#[test]
fn large_values_go_through_and_larger_ones_do_not() {
    let served = serve(ServerOptions::default());
    let mut client = Client::connect(&served.path).expect("connected");
    let value: Vec<u8> = (0..4usize << 20).map(|i| ((i * i) >> 7) as u8).collect();
    assert_eq!(
        client.call(&[b"SET", b"large", &value]).expect("a reply"),
        Reply::Status("OK".into())
    );
    assert_eq!(client.call(&[b"GET", b"large"]).expect("a reply"), Reply::Bulk(value.clone()));
    // A string may be longer than an argument.
    let append = client.call(&[b"APPEND", b"large", b"x"]).expect("a reply");
    assert_eq!(append, Reply::Integer((4 << 20) + 1));
    let longer = [&value[..], b"x"].concat();
    assert_eq!(client.call(&[b"GET", b"large"]).expect("a reply"), Reply::Bulk(longer));
    let key = vec![b'k'; (16 << 10) + 1];
    let refused = client.call(&[b"SET", &key, b"v"]).expect("a reply");
    assert_eq!(
        refused,
        Reply::Error("ERR key of 16385 bytes is longer than the limit of 16384".into())
    );
    assert_eq!(client.call(&[b"GET", &key]).expect("a reply"), Reply::Null);
    let larger = vec![7; 31 << 20];
    let set = client.call(&[b"SET", b"larger", &larger]).expect("a reply");
    assert_eq!(set, Reply::Status("OK".into()));
    assert_eq!(client.call(&[b"GET", b"larger"]).expect("a reply"), Reply::Bulk(larger));
    // The connection stays.
    let refused = client.call(&[b"SET", b"larger", &vec![8; 100 << 20]]).expect("a reply");
    let why = "LIMIT an argument of 104857600 bytes, and one has at most 32505856: write a long string in parts, by APPEND or SETRANGE";
    assert_eq!(refused, Reply::Error(why.into()));
    let len = client.call(&[b"STRLEN", b"larger"]).expect("a reply");
    assert_eq!(len, Reply::Integer(31 << 20), "nothing was changed");
    // A command between `MULTI` and `EXEC` that was refused spoils them.
    for (command, reply) in [(&b"MULTI"[..], "OK"), (b"PING", "QUEUED")] {
        assert_eq!(client.call(&[command]).expect("a reply"), Reply::Status(reply.into()));
    }
    assert!(matches!(client.call(&[b"ECHO", &vec![8; 40 << 20]]), Ok(Reply::Error(_))));
    let aborted = client.call(&[b"EXEC"]).expect("a reply");
    assert!(matches!(aborted, Reply::Error(why) if why.starts_with("EXECABORT")));
}

#[test]
fn large_requests_share_a_bound() {
    let limits = Limits { requests: 1 << 20, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..Default::default() });
    let mut greedy = UnixStream::connect(&served.path).expect("connected");
    let _ = greedy.write_all(b"*2\r\n$4\r\nECHO\r\n$4194304\r\n");
    let _ = greedy.write_all(&vec![0; 4 << 20]);
    let reply = read_reply(&mut std::io::BufReader::new(&greedy), 0).expect("a reply");
    assert_eq!(reply, Reply::Error("ERR too many large requests at once; try again later".into()));
    drop(greedy);
    let mut c = served.connect();
    let value = "v".repeat(500 << 10);
    c.send(format!("*2\r\n$4\r\nECHO\r\n${}\r\n{value}\r\n", value.len()).as_bytes());
    assert_eq!(
        c.reply().expect("what the other took is given back"),
        Reply::Bulk(value.into_bytes())
    );
}

#[test]
fn a_client_that_does_not_read_is_dropped_and_holds_nobody_up() {
    let limits =
        Limits { write_timeout: std::time::Duration::from_millis(100), ..Limits::default() };
    let served = serve(ServerOptions { limits, ..Default::default() });
    let mut lazy = served.connect();
    lazy.run(&format!("SET big {}", "x".repeat(60_000)));
    let asks = format!("{}\r\n", "MGET".to_string() + &" big".repeat(1000));
    lazy.send(asks.as_bytes());
    let mut c = served.connect();
    c.expect(&[("INCR n", "(integer) 1")]);
    while !c.run("INFO clients").contains("connected_clients:1\\r") {}
}

#[test]
fn increments_of_many_connections_all_count() {
    let served = serve(ServerOptions::default());
    const THREADS: i64 = 8;
    const EACH: i64 = 300;
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let mut c = served.connect();
            scope.spawn(move || {
                for i in 0..EACH {
                    c.run("INCR counter");
                    c.run("APPEND log x");
                    c.run(&format!("MSET a {t} b {t}"));
                    c.run(&format!("SETNX once:{i} {t}"));
                }
            });
        }
        let mut c = served.connect();
        scope.spawn(move || {
            for _ in 0..EACH {
                let pair = c.run("MGET a b");
                let (a, b) = pair.trim_matches(['[', ']']).split_once(' ').expect("two values");
                assert_eq!(a, b, "MSET is seen whole or not at all");
            }
        });
    });
    let mut c = served.connect();
    assert_eq!(c.run("GET counter"), format!("\"{}\"", THREADS * EACH));
    assert_eq!(c.run("STRLEN log"), format!("(integer) {}", THREADS * EACH));
    assert_eq!(c.run("KEYS once:*").split(' ').count(), EACH as usize);
}

#[test]
fn no_reply_acknowledges_a_durable_write_that_is_not_on_disk() {
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db =
        Kvdb::create(device.clone(), Arc::new(env::Machine::default()), options).expect("a store");
    let served = serve_db(db, ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[("SET a 1", "OK"), ("DURABLE yes", "OK"), ("SET a 2", "OK")]);
    device.inject(Fault::always(Operation::Sync, FaultKind::Error));
    c.send(b"GET a\r\nSET a 3\r\nECHO between\r\nINCR a\r\nGET none\r\n");
    let replies: Vec<String> = (0..5).map(|_| show(&c.reply().expect("a reply"))).collect();
    assert_eq!(
        (replies[0].as_str(), replies[2].as_str(), replies[4].as_str()),
        ("\"2\"", "\"between\"", "(nil)")
    );
    // Both were executed, as `GET a` would show.
    for reply in [&replies[1], &replies[3]] {
        assert!(reply.starts_with("(error) NOTSYNCED"), "{reply}");
    }
    // The store does not forget that a sync failed.
    device.clear();
    let later = c.run("SET a 5");
    assert!(later.starts_with("(error) READONLY"), "{later}");
    assert!(c.run("SYNC").starts_with("(error)"));
    assert_eq!(c.run("PING"), "PONG");
}

#[test]
fn no_part_of_a_long_reply_leaves_before_the_write_is_on_disk() {
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};
    let limits = Limits { reply: 1000, tuple: 100, ..Limits::default() };
    let commands = [
        ("LPUSH", "LPOP k 300"),
        ("RPUSH", "RPOP k 300"),
        ("SADD", "SPOP k 300"),
        // The command changes nothing, but its reply counts as that of a write.
        ("APPEND", "GETEX k"),
    ];
    // No command before it waits for the sync, or only another write does.
    for ((make, take), before) in
        commands.iter().flat_map(|command| ["ECHO 1", "APPEND other 1"].map(|b| (command, b)))
    {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), Arc::new(env::Machine::default()), options)
            .expect("a store");
        let served =
            serve_db(db, ServerOptions { limits: limits.clone(), ..ServerOptions::default() });
        let mut c = served.connect();
        let elements: Vec<String> = (0..300).map(|i| format!("element-{i:04}")).collect();
        let elements = elements.join(if *make == "APPEND" { "" } else { " " });
        assert!(c.run(&format!("{make} k {elements}")).starts_with("(integer)"));
        // A durable copy is acknowledged in full.
        c.expect(&[("DURABLE yes", "OK"), ("COPY k copy", "(integer) 1")]);
        assert!(c.run(&take.replace(" k", " copy")).contains("element-0299"), "{take}");
        device.inject(Fault::always(Operation::Sync, FaultKind::Error));
        c.send(format!("ECHO begins\r\n{before}\r\n{take}\r\nECHO behind\r\n").as_bytes());
        let replies: Vec<String> = (0..4).map(|_| show(&c.reply().expect("a reply"))).collect();
        assert_eq!((&replies[0][..], &replies[3][..]), ("\"begins\"", "\"behind\""), "{take}");
        let denied = match (before.starts_with("ECHO"), *make) {
            // Nothing has been written that is not on disk.
            (true, "APPEND") => continue,
            (true, _) => &replies[2..3],
            (false, _) => &replies[1..3],
        };
        for reply in denied {
            let shown = &reply[..reply.len().min(200)];
            assert!(reply.starts_with("(error) NOTSYNCED"), "{take}: {shown}");
        }
    }
}

#[test]
fn idle_clients_are_disconnected_after_the_timeout_unless_they_hold_or_wait_for_something() {
    let served = serve(ServerOptions::default());
    let mut a = served.connect();
    let [mut idle, mut silent, mut listens, mut within, mut waits] =
        std::array::from_fn(|_| served.connect());
    a.expect(&[
        ("CONFIG GET timeout", "[\"timeout\" \"0\"]"),
        (
            "CONFIG SET timeout -1",
            "(error) ERR argument must be between 0 and 2147483647 inclusive",
        ),
    ]);
    // The idle client sends its last request after this moment.
    let began = Instant::now();
    idle.expect(&[("PING", "PONG")]);
    listens.run("SUBSCRIBE c");
    let begun = within.run("TXN BEGIN");
    let id = begun.strip_prefix("(integer) ").expect("a number");
    within.expect(&[(&format!("TXN JOIN {id}"), "OK")]);
    waits.send(b"BLPOP list 0\r\n");
    // A machine under load may let the working client wait, too.
    a.expect(&[("CONFIG SET timeout 3", "OK")]);
    // A client that continues to work stays.
    let ended = |c: &mut Raw| {
        c.0.get_ref().set_read_timeout(Some(Duration::from_millis(10))).expect("set");
        let mut byte = [0];
        matches!(std::io::Read::read(&mut c.0, &mut byte), Ok(0))
    };
    while !(ended(&mut idle) && ended(&mut silent)) {
        a.expect(&[("PING", "PONG")]);
        assert!(began.elapsed() < Duration::from_secs(60), "idle clients stay");
    }
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    // The others had been idle for as long.
    a.expect(&[("PUBLISH c hello", "(integer) 1"), ("RPUSH list x", "(integer) 1")]);
    assert_eq!(show(&waits.reply().expect("a reply")), "[\"list\" \"x\"]");
    assert_eq!(show(&listens.reply().expect("a message")), "[\"message\" \"c\" \"hello\"]");
    a.expect(&[("CONFIG SET timeout 0", "OK")]);
    assert_ne!(within.run("TXN STATUS"), "(nil)", "the transaction is open");
}
