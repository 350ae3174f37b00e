//! Tests of the snapshots and clones that clients make and use.

use std::net::Shutdown;

use crate::served::{serve, show};
use kvdb_server::ServerOptions;

#[test]
fn a_snapshot_keeps_a_state_to_compare_with_and_to_go_back_to() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("MSET a 1 b 22 c 333", "OK"),
        ("SNAPSHOT CREATE monday", "OK"),
        ("SNAPSHOT CHANGES monday", "[]"),
        ("SET b four", "OK"),
        ("DEL c", "(integer) 1"),
        ("USE new", "OK"),
        ("SET x 1", "OK"),
        ("SNAPSHOT CREATE tuesday", "OK"),
        ("SET x 2", "OK"),
        (
            "SNAPSHOT CHANGES monday tuesday",
            r#"[["0" "b" (integer) 2 (integer) 4] ["0" "c" (integer) 3 (nil)] ["new" "x" (nil) (integer) 1]]"#,
        ),
        ("SNAPSHOT CHANGES tuesday", r#"[["new" "x" (integer) 1 (integer) 1]]"#),
        ("SNAPSHOT FILES monday", "[]"),
        ("SNAPSHOT ROLLBACK monday", "OK"),
        ("SELECT 0", "OK"),
        ("MGET a b c", r#"["1" "22" "333"]"#),
        ("DICTS", "[\"0\"]"),
        ("SNAPSHOT DROP monday", "OK"),
        ("SNAPSHOT CREATE tuesday", "(error) EXISTS snapshot tuesday exists already"),
    ]);
    let list = c.run("SNAPSHOT LIST");
    assert!(
        list.starts_with(r#"[["name" "tuesday" "clone" "" "created" (integer) "#)
            && !list.contains("monday"),
        "{list}"
    );
    for missing in [
        "SNAPSHOT DROP none",
        "SNAPSHOT ROLLBACK none",
        "SNAPSHOT CHANGES none",
        "CLONE CREATE none x",
        "CLONE DROP none",
    ] {
        let reply = c.run(missing);
        assert!(reply.starts_with("(error) NOSNAPSHOT "), "{missing}: {reply}");
    }
    assert!(c.run("SNAPSHOT FRY x").contains("SNAPSHOT CREATE name"));
}

#[test]
fn a_dictionary_that_a_rollback_has_taken_away_is_made_again_by_the_next_write() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (served.connect(), served.connect());
    c.expect(&[("SNAPSHOT CREATE empty", "OK"), ("SET a 1", "OK")]);
    other.expect(&[("GET a", "\"1\"")]);
    c.expect(&[("SNAPSHOT ROLLBACK empty", "OK"), ("GET a", "(nil)"), ("DBSIZE", "(integer) 0")]);
    // Both had found the dictionary before. It has another number now.
    c.expect(&[("SET a 2", "OK")]);
    other.expect(&[("GET a", "\"2\"")]);
    let begun = other.run("TXN BEGIN");
    let id = begun.strip_prefix("(integer) ").expect("a number");
    for command in
        [format!("TXN JOIN {id}"), "SET b 3".into(), "TXN LEAVE".into(), format!("TXN COMMIT {id}")]
    {
        assert_eq!(other.run(&command), "OK", "{command}");
    }
    c.expect(&[("MGET a b", r#"["2" "3"]"#)]);
}

#[test]
fn a_clone_goes_its_own_way() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("SET a 1", "OK"),
        ("SNAPSHOT CREATE base", "OK"),
        ("CLONE CREATE base other", "OK"),
        (
            "CLONE LIST",
            r#"[["name" "other" "snapshot" "base" "limit" (nil) "taken" (nil) "limit_of_files" (nil) "files" (nil) "parent" ""]]"#,
        ),
        // Its dictionaries have their names, and are not those of the store.
        ("DICTS", "[\"0\"]"),
        ("SET a 2", "OK"),
        ("SNAPSHOT CREATE of-other OF other", "OK"),
        ("SNAPSHOT CHANGES base of-other", "[]"),
        ("CLONE DROP other", "OK"),
        ("CLONE LIST", "[]"),
        ("SNAPSHOT CHANGES of-other", r#"[["0" "a" (integer) 1 (integer) 1]]"#),
    ]);
}

#[test]
fn keys_of_snapshots_and_clones_are_read_in_place() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("MSET a 1 b 2", "OK"),
        ("SNAPSHOT CREATE monday", "OK"),
        ("MSET a 10 c 30", "OK"),
        ("USE later", "OK"),
        ("SET x 1", "OK"),
        ("SELECT 0", "OK"),
        // Sends one command.
        ("SNAPSHOT USE monday GET a", "\"1\""),
        ("SNAPSHOT USE monday MGET a b c", r#"["1" "2" (nil)]"#),
        ("GET a", "\"10\""),
        // Sends all following commands.
        ("SNAPSHOT USE monday", "OK"),
        ("RANGE - +", r#"["a" "1" "b" "2"]"#),
        ("KEYS *", r#"["a" "b"]"#),
        ("DBSIZE", "(integer) 2"),
        ("DICTS", "[\"0\"]"),
        ("STRLEN c", "(integer) 0"),
        ("USE later", "OK"),
        ("GET x", "(nil)"),
        ("SELECT 0", "OK"),
        ("SNAPSHOT LEAVE", "OK"),
        ("MGET a b c", r#"["10" "2" "30"]"#),
        // A clone takes changes, and no other branch sees them.
        ("CLONE CREATE monday what-if", "OK"),
        ("CLONE USE what-if INCR a", "(integer) 2"),
        ("CLONE USE what-if", "OK"),
        ("SET new 5", "OK"),
        ("USE later", "OK"),
        ("SET y 7", "OK"),
        ("DICTS", r#"["0" "later"]"#),
        ("SELECT 0", "OK"),
        ("MULTI", "OK"),
        ("INCR a", "QUEUED"),
        ("EXEC", "[(integer) 3]"),
        ("MGET a new", r#"["3" "5"]"#),
        ("RESET", "RESET"),
        ("MGET a new", r#"["10" (nil)]"#),
        ("USE later", "OK"),
        ("GET y", "(nil)"),
        ("SELECT 0", "OK"),
        ("CLONE USE what-if", "OK"),
        ("FLUSHALL", "OK"),
        ("DBSIZE", "(integer) 0"),
        ("CLONE LEAVE", "OK"),
        ("DBSIZE", "(integer) 3"),
    ]);
    for refused in ["SET a 1", "DEL a", "FLUSHALL", "MULTI", "DELRANGE a b", "EXEC"] {
        let reply = c.run(&format!("SNAPSHOT USE monday {refused}"));
        assert!(reply.starts_with("(error)"), "{refused}: {reply}");
        c.expect(&[("SNAPSHOT USE monday", "OK")]);
        let reply = c.run(refused);
        assert!(reply.starts_with("(error) READONLY"), "{refused}: {reply}");
        c.expect(&[("SNAPSHOT LEAVE", "OK")]);
    }
    c.expect(&[("SNAPSHOT USE none GET a", "(error) NOSNAPSHOT no snapshot none")]);
    // A client that reads a dropped snapshot can read it to the end. A dropped clone disappears at
    // once.
    let mut other = served.connect();
    other.expect(&[("SNAPSHOT USE monday", "OK")]);
    c.expect(&[
        ("CLONE USE what-if", "OK"),
        ("CLONE DROP what-if", "OK"),
        ("SNAPSHOT DROP monday", "OK"),
    ]);
    other.expect(&[("GET a", "\"1\"")]);
    assert!(c.run("GET a").starts_with("(error) NOSNAPSHOT"), "{}", c.run("GET a"));
    assert!(c.run("SET a 1").starts_with("(error) NOSNAPSHOT"));
    c.expect(&[("CLONE LEAVE", "OK"), ("GET a", "\"10\"")]);
}

#[test]
fn a_clone_is_received_beside_what_others_do() {
    let (from, to) = (serve(ServerOptions::default()), serve(ServerOptions::default()));
    let mut source = from.connect();
    source.expect(&[("SET a 1", "OK"), ("RPUSH l x y", "(integer) 2")]);
    source.expect(&[("SNAPSHOT CREATE monday", "OK")]);
    let mut stream = Vec::new();
    from.db.send("monday", None, &mut stream, None).expect("sent");
    let receive = |words: &str, stream: &[u8]| {
        let mut client = to.connect();
        assert_eq!(client.run(&format!("SNAPSHOT RECEIVE {words}")), "OK");
        client.send(stream);
        client.0.get_mut().shutdown(Shutdown::Write).expect("shut");
        let reply = show(&client.reply().expect("a reply"));
        assert!(client.reply().is_err(), "the connection has ended");
        reply
    };
    let mut c = to.connect();
    c.expect(&[("SET a own", "OK")]);
    for (words, error) in [
        ("SNAPSHOT RECEIVE", "(error) ERR unknown subcommand"),
        ("SNAPSHOT RECEIVE ''", "(error) ERR a clone is wanted"),
        ("SNAPSHOT RECEIVE c AS", "(error) ERR syntax error"),
        ("SNAPSHOT RECEIVE c REPLACE REPLACE", "(error) ERR syntax error"),
        ("SNAPSHOT RECEIVE c FROM x", "(error) ERR syntax error"),
    ] {
        let said = c.run(words);
        assert!(said.starts_with(error), "{words}: {said}");
    }
    // Input that is not a stream, a part of a stream, and empty input.
    for bytes in [&b"*1\r\n$4\r\nPING\r\n"[..], &stream[..stream.len() - 1], b""] {
        let said = receive("c", bytes);
        assert!(said.starts_with("(error)"), "{said}");
        c.expect(&[("CLONE LIST", "[]"), ("SNAPSHOT LIST", "[]"), ("GET a", "\"own\"")]);
    }
    assert!(c.run("SNAPSHOT RECEIVING").contains("\"chunks\""));
    // A stream that has begun and sends no data delays no other, and ends with its client.
    let mut stuck = to.connect();
    assert_eq!(stuck.run("SNAPSHOT RECEIVE other"), "OK");
    let said = receive("c AS mine", &stream);
    assert!(said.starts_with("[[\"snapshot\" \"mine\" \"tuples\" (integer) "), "{said}");
    c.expect(&[
        ("SNAPSHOT RECEIVING", "[]"),
        ("CLONE USE c GET a", "\"1\""),
        ("CLONE USE c LRANGE l 0 -1", "[\"x\" \"y\"]"),
        ("SNAPSHOT USE mine GET a", "\"1\""),
        ("GET a", "\"own\""),
        ("EXISTS l", "(integer) 0"),
    ]);
    stuck.0.get_mut().shutdown(Shutdown::Write).expect("shut");
    assert!(show(&stuck.reply().expect("a reply")).starts_with("(error)"));
    let said = receive("c", &stream);
    assert!(said.contains("exists already"), "{said}");
}
