//! What clients see of each other and of the server, and what they do to others: `CLIENT`,
//! `SLOWLOG`, `CONFIG`, `LATENCY`, `INFO errorstats`.

use std::time::{Duration, Instant};

use crate::served::{Raw, serve, show};
use kvdb_server::{Reply, ServerOptions};

fn id(c: &mut Raw) -> String {
    c.run("CLIENT ID").replace("(integer) ", "")
}

/// The lines of `CLIENT LIST`, or of what else is asked for.
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
    assert!(c.run("CLIENT TRACKING on").starts_with("(error) ERR keys that clients keep"));
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
    // It has not been done while others go on, whatever the schedule.
    for _ in 0..100 {
        assert_eq!(b.run("GET k"), "\"v\"");
    }
    b.expect(&[("CLIENT UNPAUSE", "OK")]);
    assert_eq!(show(&a.reply().expect("a reply")), "OK");
    assert!(begun.elapsed() < Duration::from_secs(300));
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
    // What a command waits for is not slow.
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
