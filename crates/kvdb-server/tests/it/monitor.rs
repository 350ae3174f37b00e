//! Tests of `MONITOR`, which shows commands to a watching client.

use crate::served::{Raw, clocked_store, serve, serve_db, show};
use kvdb_server::ServerOptions;

/// The next line that a watching client is shown, without its time.
fn line(c: &mut Raw) -> String {
    let shown = show(&c.reply().expect("a line"));
    let (time, rest) = shown.split_once(' ').expect("a time and a command");
    assert!(time.parse::<f64>().is_ok(), "{shown}");
    rest.to_string()
}

#[test]
fn commands_are_shown_when_they_have_been_run() {
    let served = serve(ServerOptions::default());
    let (mut watching, mut c) = (served.connect(), served.connect());
    watching.expect(&[("MONITOR", "OK")]);
    c.expect(&[
        ("SET k \"a\\\"b\\\\ \\x00\\n\\xff\"", "OK"),
        ("SELECT 3", "OK"),
        ("LPUSH k x", "(integer) 1"),
        ("GET k", "(error) WRONGTYPE Operation against a key holding the wrong kind of value"),
        // These are not shown.
        ("GET", "(error) ERR wrong number of arguments for 'get' command"),
        ("CONFIG GET save", "[\"save\" \"\"]"),
        ("SLOWLOG LEN", "(integer) 0"),
        ("AUTH me secret", "(error) WRONGPASS invalid username-password pair or user is disabled."),
        ("PING", "PONG"),
    ]);
    for want in [
        "[0 unix] \"SET\" \"k\" \"a\\\"b\\\\ \\x00\\n\\xff\"",
        "[3 unix] \"SELECT\" \"3\"",
        "[3 unix] \"LPUSH\" \"k\" \"x\"",
        "[3 unix] \"GET\" \"k\"",
        "[3 unix] \"AUTH\" \"(redacted)\" \"(redacted)\"",
        "[3 unix] \"PING\"",
    ] {
        assert_eq!(line(&mut watching), want);
    }
    // The client may continue to use commands, and sees them after their replies.
    assert_eq!(watching.run("PING"), "PONG");
    assert_eq!(line(&mut watching), "[0 unix] \"PING\"");
    watching.expect(&[("RESET", "RESET"), ("PING", "PONG")]);
    c.expect(&[("PING", "PONG")]);
    watching.expect(&[("ECHO x", "\"x\"")]);
}

#[test]
fn a_command_that_waits_is_shown_when_it_begins_to_wait() {
    let served = serve(ServerOptions::default());
    let (mut watching, mut waits, mut c) = (served.connect(), served.connect(), served.connect());
    watching.expect(&[("MONITOR", "OK")]);
    waits.send(b"BLPOP list 0\r\n");
    assert_eq!(line(&mut watching), "[0 unix] \"BLPOP\" \"list\" \"0\"");
    c.expect(&[("RPUSH list x", "(integer) 1")]);
    assert_eq!(line(&mut watching), "[0 unix] \"RPUSH\" \"list\" \"x\"");
    assert_eq!(show(&waits.reply().expect("a reply")), "[\"list\" \"x\"]");
    waits.send(b"XREAD BLOCK 0 STREAMS s $\r\n");
    assert_eq!(line(&mut watching), "[0 unix] \"XREAD\" \"BLOCK\" \"0\" \"STREAMS\" \"s\" \"$\"");
}

#[test]
fn the_commands_of_a_transaction_are_shown_once_it_has_committed() {
    let (_, db) = clocked_store();
    let served = serve_db(db, ServerOptions::default());
    let (mut watching, mut c) = (served.connect(), served.connect());
    watching.expect(&[("MONITOR", "OK")]);
    c.expect(&[
        ("MULTI", "OK"),
        ("MONITOR", "(error) ERR 'monitor' is not possible between MULTI and EXEC"),
        ("EXEC", "(error) EXECABORT Transaction discarded because of previous errors."),
        ("WATCH k", "OK"),
        ("SET k v", "OK"),
        ("MULTI", "OK"),
        ("INCR n", "QUEUED"),
        ("EXEC", "(nil)"),
        ("MULTI", "OK"),
        ("INCR n", "QUEUED"),
        ("GET n", "QUEUED"),
        ("EXEC", "[(integer) 1 \"1\"]"),
    ]);
    for want in [
        "\"MULTI\"",
        "\"EXEC\"",
        "\"WATCH\" \"k\"",
        "\"SET\" \"k\" \"v\"",
        "\"MULTI\"",
        "\"EXEC\"",
        "\"MULTI\"",
        "\"INCR\" \"n\"",
        "\"GET\" \"n\"",
        "\"EXEC\"",
    ] {
        assert_eq!(line(&mut watching), format!("[0 unix] {want}"));
    }
}
