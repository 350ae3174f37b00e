//! Tests of clients that cache the values they have read, and are notified when one changes
//! (`CLIENT TRACKING`).

use crate::served::{Raw, Served, serve, show};
use kvdb::Durability;
use kvdb_server::{Limits, ServerOptions};

fn told(c: &mut Raw) -> String {
    show(&c.reply().expect("a message"))
}

/// A connection in RESP3.
fn third(served: &Served) -> Raw {
    let mut c = served.connect();
    c.run("HELLO 3");
    c
}

#[test]
fn a_client_is_told_once_of_what_it_has_read() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (third(&served), served.connect());
    c.expect(&[
        ("CLIENT TRACKING ON", "OK"),
        ("CLIENT TRACKINGINFO", "[\"flags\" [\"on\"] \"redirect\" (integer) 0 \"prefixes\" []]"),
        ("CLIENT GETREDIR", "(integer) 0"),
        ("GET k", "(nil)"),
        ("MGET a b", "[(nil) (nil)]"),
        ("SMEMBERS s", "[]"),
    ]);
    other.expect(&[
        ("SET never-read 1", "OK"),
        ("SET k 1", "OK"),
        ("SET k 2", "OK"),
        ("SADD s x", "(integer) 1"),
        ("MULTI", "OK"),
        ("INCR b", "QUEUED"),
        ("EXEC", "[(integer) 1]"),
    ]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k\"]]");
    assert_eq!(told(&mut c), "[\"invalidate\" [\"s\"]]");
    assert_eq!(told(&mut c), "[\"invalidate\" [\"b\"]]");
    // After it has read the key again, the client is notified again. A change of an element counts
    // as a change of its key.
    c.expect(&[("SISMEMBER s x", "(integer) 1"), ("GET k", "\"2\"")]);
    other.expect(&[("SADD s y", "(integer) 1"), ("DEL k", "(integer) 1")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"s\"]]");
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k\"]]");
    // Other programs that use the store change keys as well.
    c.expect(&[("GET k", "(nil)")]);
    let dict = served.db.dictionary("0").expect("it exists");
    served.db.put(dict, b"k", b"by a program", Durability::Buffered).expect("stored");
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k\"]]");
    c.expect(&[("GET k", "\"by a program\""), ("CLIENT TRACKING OFF", "OK")]);
    other.expect(&[("SET k 3", "OK")]);
    c.expect(&[("ECHO nothing", "\"nothing\"")]);
}

#[test]
fn changes_of_ranges_are_told_of_each_key_that_was_read() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (third(&served), served.connect());
    other.expect(&[("MSET a:1 x a:2 y b:1 z", "OK"), ("SNAPSHOT CREATE s", "OK")]);
    c.expect(&[("CLIENT TRACKING ON", "OK"), ("MGET a:1 a:2 b:1", "[\"x\" \"y\" \"z\"]")]);
    other.expect(&[("DELPREFIX a:", "OK")]);
    let mut both = [told(&mut c), told(&mut c)];
    both.sort();
    assert_eq!(both, ["[\"invalidate\" [\"a:1\"]]", "[\"invalidate\" [\"a:2\"]]"]);
    // After a rollback the changes are not known, so everything may have changed.
    other.expect(&[("SNAPSHOT ROLLBACK s", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" (nil)]");
    c.expect(&[("GET a:1", "\"x\"")]);
    other.expect(&[("SET a:1 new", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"a:1\"]]");
}

#[test]
fn a_client_may_hear_of_all_keys_with_a_prefix() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (third(&served), served.connect());
    c.expect(&[
        (
            "CLIENT TRACKING ON PREFIX u:",
            "(error) ERR PREFIX option requires BCAST mode to be enabled",
        ),
        (
            "CLIENT TRACKING ON BCAST PREFIX u: PREFIX u:1",
            "(error) ERR Prefix 'u:' overlaps with another provided prefix 'u:1'. Prefixes for a single client must not overlap.",
        ),
        (
            "CLIENT TRACKING ON BCAST OPTIN",
            "(error) ERR OPTIN and OPTOUT are not compatible with BCAST",
        ),
        ("CLIENT TRACKING ON BCAST PREFIX u: PREFIX v:", "OK"),
        (
            "CLIENT TRACKING ON BCAST PREFIX u:2",
            "(error) ERR Prefix 'u:2' overlaps with an existing prefix 'u:'. Prefixes for a single client must not overlap.",
        ),
        (
            "CLIENT TRACKINGINFO",
            "[\"flags\" [\"on\" \"bcast\"] \"redirect\" (integer) 0 \"prefixes\" [\"u:\" \"v:\"]]",
        ),
    ]);
    other.expect(&[("SET u:1 x", "OK"), ("SET w:1 x", "OK"), ("LPUSH v:1 x", "(integer) 1")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"u:1\"]]");
    let (first, mut last) = (told(&mut c), String::new());
    assert_eq!(first, "[\"invalidate\" [\"v:1\"]]");
    // A list may be reported more than once: for its head, and for its elements.
    other.expect(&[("SET u:2 x", "OK")]);
    while last != "[\"invalidate\" [\"u:2\"]]" {
        last = told(&mut c);
        assert!(last.contains("v:1") || last.contains("u:2"), "{last}");
    }
    // For a range of many keys, the client is only notified that all keys are invalid.
    other.expect(&[("DELRANGE u: v:", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" (nil)]");
}

#[test]
fn a_client_may_choose_the_commands_whose_keys_it_keeps() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (third(&served), served.connect());
    c.expect(&[
        (
            "CLIENT CACHING YES",
            "(error) ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ),
        (
            "CLIENT TRACKING ON OPTIN OPTOUT",
            "(error) ERR You can't specify both OPTIN mode and OPTOUT mode",
        ),
        ("CLIENT TRACKING ON OPTIN", "OK"),
        ("GET a", "(nil)"),
        (
            "CLIENT CACHING NO",
            "(error) ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        ),
        ("CLIENT CACHING YES", "OK"),
        ("GET b", "(nil)"),
        ("GET c", "(nil)"),
        ("CLIENT CACHING YES", "OK"),
        ("MULTI", "OK"),
        ("GET d", "QUEUED"),
        ("GET e", "QUEUED"),
        ("EXEC", "[(nil) (nil)]"),
        ("GET f", "(nil)"),
    ]);
    for key in ["a", "b", "c", "d", "e", "f"] {
        other.run(&format!("SET {key} 1"));
    }
    for key in ["b", "d", "e"] {
        assert_eq!(told(&mut c), format!("[\"invalidate\" [\"{key}\"]]"));
    }
    c.expect(&[
        ("CLIENT TRACKING OFF", "OK"),
        ("CLIENT TRACKING ON OPTOUT", "OK"),
        ("CLIENT CACHING NO", "OK"),
        ("GET a", "\"1\""),
        ("GET b", "\"1\""),
    ]);
    other.expect(&[("SET a 2", "OK"), ("SET b 2", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"b\"]]");
}

#[test]
fn a_resp2_client_is_told_by_another_connection() {
    let served = serve(ServerOptions::default());
    let (mut c, mut hears, mut other) = (served.connect(), served.connect(), served.connect());
    let id = hears.run("CLIENT ID").replace("(integer) ", "");
    hears.run("SUBSCRIBE __redis__:invalidate");
    c.expect(&[
        (
            "CLIENT TRACKING ON REDIRECT 999999",
            "(error) ERR The client ID you want redirect to does not exist",
        ),
        (&format!("CLIENT TRACKING ON REDIRECT {id}"), "OK"),
        ("GET k", "(nil)"),
        ("CLIENT GETREDIR", &format!("(integer) {id}")),
    ]);
    other.expect(&[("SET k 1", "OK")]);
    assert_eq!(told(&mut hears), "[\"message\" \"__redis__:invalidate\" [\"k\"]]");
    let all = other.run("INFO clients");
    assert!(all.contains("tracking_clients:1"), "{all}");
    c.expect(&[("RESET", "RESET"), ("CLIENT GETREDIR", "(integer) -1")]);
    let all = other.run("INFO clients");
    assert!(all.contains("tracking_clients:0"), "{all}");
}

#[test]
fn a_client_may_leave_out_its_own_changes() {
    let served = serve(ServerOptions::default());
    let (mut c, mut prefixes, mut other) = (third(&served), third(&served), served.connect());
    c.expect(&[
        ("CLIENT TRACKING ON NOLOOP", "OK"),
        ("MGET k n a:1 last", "[(nil) (nil) (nil) (nil)]"),
        ("SET k 1", "OK"),
        ("MULTI", "OK"),
        ("INCR n", "QUEUED"),
        ("EXEC", "[(integer) 1]"),
        ("SET a:1 x", "OK"),
        ("DELPREFIX a:", "OK"),
    ]);
    other.expect(&[("SET last 1", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"last\"]]");
    // The key that it has changed is still tracked, since it may have read it again.
    other.expect(&[("SET k 2", "OK"), ("SET a:1 y", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k\"]]");
    assert_eq!(told(&mut c), "[\"invalidate\" [\"a:1\"]]");
    prefixes.expect(&[
        ("CLIENT TRACKING ON BCAST NOLOOP PREFIX p:", "OK"),
        ("SET p:own x", "OK"),
        ("DELPREFIX p:", "OK"),
    ]);
    other.expect(&[("SET p:other x", "OK")]);
    assert_eq!(told(&mut prefixes), "[\"invalidate\" [\"p:other\"]]");
}

#[test]
fn a_client_hears_that_the_one_to_be_told_instead_is_gone() {
    let served = serve(ServerOptions::default());
    let (mut c, mut hears, mut other) = (third(&served), third(&served), served.connect());
    let id = hears.run("CLIENT ID").replace("(integer) ", "");
    hears.run("SUBSCRIBE __redis__:invalidate");
    c.expect(&[(&format!("CLIENT TRACKING ON REDIRECT {id}"), "OK"), ("GET k", "(nil)")]);
    assert!(!c.run("CLIENT LIST").contains(" flags=tR "));
    other.expect(&[(&format!("CLIENT KILL ID {id}"), "(integer) 1")]);
    while !other.run("CLIENT LIST").contains(" flags=tR ") {
        std::thread::yield_now();
    }
    other.expect(&[("SET k 1", "OK")]);
    assert_eq!(told(&mut c), format!("[\"tracking-redir-broken\" (integer) {id}]"));
    let info = c.run("CLIENT TRACKINGINFO");
    assert!(info.contains("[\"on\" \"broken_redirect\"]"), "{info}");
}

#[test]
fn keys_for_which_there_is_no_room_are_told_at_once() {
    let limits = Limits { tracked: 1000, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut c = third(&served);
    c.expect(&[("CLIENT TRACKING ON", "OK")]);
    for i in 0..6 {
        c.expect(&[(&format!("GET k{i}"), "(nil)")]);
    }
    c.expect(&[("GET k6", "(nil)")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k0\"]]");
    // In a clone nothing is tracked.
    c.expect(&[("SNAPSHOT CREATE s", "OK"), ("CLONE CREATE s trial", "OK")]);
    c.expect(&[("CLIENT TRACKING OFF", "OK"), ("CLONE USE trial", "OK")]);
    assert!(c.run("CLIENT TRACKING ON").starts_with("(error) ERR keys of a clone"));
}

#[test]
fn what_is_read_in_a_transaction_is_not_kept() {
    let served = serve(ServerOptions::default());
    let mut c = third(&served);
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.expect(&[
        ("CLIENT TRACKING ON", "OK"),
        (&format!("TXN JOIN {id}"), "OK"),
        ("SET k dirty", "OK"),
        ("GET k", "\"dirty\""),
    ]);
    // The end of the transaction is not reported, so the client must not keep the value.
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k\"]]");
    c.expect(&[(&format!("TXN ABORT {id}"), "OK"), ("GET k", "(nil)")]);
}

#[test]
fn one_that_listens_to_nothing_is_not_flooded() {
    let limits = Limits { mailbox: 4096, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let (mut c, mut idle) = (served.connect(), served.connect());
    let (mut other, mut hears) = (served.connect(), third(&served));
    let id = idle.run("CLIENT ID").replace("(integer) ", "");
    hears.expect(&[("CLIENT TRACKING ON BCAST PREFIX last", "OK")]);
    c.expect(&[(&format!("CLIENT TRACKING ON BCAST REDIRECT {id}"), "OK")]);
    for i in 0..100 {
        other.expect(&[(&format!("SET key-{i} x"), "OK")]);
    }
    other.expect(&[("SET last x", "OK")]);
    assert_eq!(told(&mut hears), "[\"invalidate\" [\"last\"]]");
    idle.expect(&[("PING", "PONG")]);
}

#[test]
fn a_client_that_has_read_many_keys_is_told_once_that_all_are_gone() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (third(&served), served.connect());
    let keys: Vec<String> = (0..1100).map(|i| format!("k{i}")).collect();
    c.expect(&[("CLIENT TRACKING ON", "OK")]);
    c.run(&format!("MGET {}", keys.join(" ")));
    other.expect(&[("SET k0 x", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" [\"k0\"]]");
    other.expect(&[("DELPREFIX k", "OK")]);
    assert_eq!(told(&mut c), "[\"invalidate\" (nil)]");
    c.expect(&[("PING", "PONG")]);
}

#[test]
fn prefixes_are_given_in_any_order() {
    let served = serve(ServerOptions::default());
    let (mut c, mut other) = (third(&served), served.connect());
    c.expect(&[("CLIENT TRACKING ON BCAST PREFIX v PREFIX u:2 PREFIX u:1", "OK")]);
    for (without, with) in [("t", "u:15"), ("u:0", "u:2"), ("u:3", "v")] {
        other.expect(&[(&format!("SET {without} x"), "OK"), (&format!("SET {with} x"), "OK")]);
        assert_eq!(told(&mut c), format!("[\"invalidate\" [\"{with}\"]]"));
    }
}

#[test]
fn the_prefixes_of_a_client_are_limited() {
    let served = serve(ServerOptions::default());
    let mut c = third(&served);
    let prefixes: String = (0..1024).map(|i| format!(" PREFIX {i:04}")).collect();
    c.expect(&[(&format!("CLIENT TRACKING ON BCAST{prefixes}"), "OK")]);
    let refused = c.run("CLIENT TRACKING ON BCAST PREFIX more");
    assert!(refused.contains("1024 prefixes at most"), "{refused}");
}
