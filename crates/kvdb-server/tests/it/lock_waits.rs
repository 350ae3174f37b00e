//! Tests of commands on the store that wait for the lock of a serializable transaction. During the
//! wait they delay neither the transaction nor any other client.

use std::time::{Duration, Instant};

use crate::served::{Raw, Served, serve, show};
use kvdb_server::ServerOptions;

/// A connection in a serializable transaction that has locked the key `k`.
fn locks_k(served: &Served) -> Raw {
    let mut client = served.connect();
    assert_eq!(client.run("SET k 1"), "OK");
    let id = client.run("TXN BEGIN SER");
    client.expect(&[
        (&format!("TXN JOIN {}", id.trim_start_matches("(integer) ")), "OK"),
        ("SET k 2", "OK"),
    ]);
    client
}

/// Sends commands that will wait for the lock, and returns when the server executes the last of
/// them, which has this name.
fn waits(served: &Served, words: &str, last: &str) -> Raw {
    let (mut client, mut other) = (served.connect(), served.connect());
    let id = client.run("CLIENT ID");
    let list = format!("CLIENT LIST ID {}", id.trim_start_matches("(integer) "));
    client.send(words.as_bytes());
    let begun = Instant::now();
    while !other.run(&list).contains(&format!("cmd={last} ")) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{last} does not begin");
    }
    client
}

#[test]
fn a_transaction_makes_types_while_a_client_waits_for_what_it_holds() {
    let served = serve(ServerOptions::default());
    let mut inside = locks_k(&served);
    let mut outside = waits(&served, "SET k 3\r\n", "set");
    // The dictionary has no types so far, and all keys are locked while they are made.
    inside.expect(&[("LPUSH list a", "(integer) 1"), ("TXN COMMIT", "OK")]);
    assert_eq!(show(&outside.reply().expect("a reply")), "OK", "it had not waited in vain by then");
    outside.expect(&[("GET k", "\"3\""), ("LLEN list", "(integer) 1")]);
}

#[test]
fn others_go_on_while_a_command_on_many_keys_waits_for_one_that_is_locked() {
    for (words, last, replies) in [
        ("DELRANGE a z\r\n", "delrange", 1),
        ("FLUSHDB\r\n", "flushdb", 1),
        ("MULTI\r\nSET k 3\r\nUSE elsewhere\r\nEXEC\r\n", "use", 4),
        ("MSET k 3 l 4 m 5\r\n", "mset", 1),
    ] {
        let served = serve(ServerOptions::default());
        let mut inside = locks_k(&served);
        let mut outside = waits(&served, words, last);
        let mut third = served.connect();
        for i in 0..300 {
            assert_eq!(third.run(&format!("SET other{i} 1")), "OK");
        }
        assert_eq!(inside.run("TXN COMMIT"), "OK");
        let replies: Vec<String> =
            (0..replies).map(|_| show(&outside.reply().expect("a reply"))).collect();
        assert!(!replies.concat().contains("(error)"), "{last} waited in vain: {replies:?}");
    }
}
