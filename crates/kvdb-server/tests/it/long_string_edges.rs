//! Tests of cases in which the pages or heads of long strings could be confused: a command that
//! names one key twice, states that diverged from a common one, and strings that are almost
//! entirely holes.

use crate::served::{pages_soon, serve, tuples};

#[test]
fn of_two_values_for_one_key_the_last_one_counts() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[("MSET k a-long-string k short", "OK"), ("GET k", "\"short\"")]);
    assert_eq!(tuples(&served.db).0, 1);
    c.expect(&[
        ("MSET k short k a-long-string", "OK"),
        ("GET k", "\"a-long-string\""),
        ("MSET k another-long-string l 1 k yet-another-one", "OK"),
        ("GET k", "\"yet-another-one\""),
        ("DEL k l", "(integer) 2"),
        ("MSETNX k a-long-string k short", "(integer) 1"),
        ("GET k", "\"short\""),
        ("DEL k", "(integer) 1"),
        ("MSETNX k a-long-string k another-long-string", "(integer) 1"),
        ("GET k", "\"another-long-string\""),
        ("DEL k", "(integer) 1"),
    ]);
    assert_eq!(tuples(&served.db), (0, 0), "no pages are left of the values that did not count");
}

#[test]
fn states_that_were_changed_as_often_are_told_apart() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("SET k a-long-string", "OK"),
        ("SNAPSHOT CREATE s", "OK"),
        ("CLONE CREATE s c", "OK"),
        ("CLONE USE c SETRANGE k 0 X", "(integer) 13"),
        ("SETRANGE k 0 Y", "(integer) 13"),
        ("SNAPSHOT CREATE of-clone OF c", "OK"),
        // The first is compared with the current state of the clone, the second with the store.
        ("SNAPSHOT CHANGES of-clone", "[]"),
        ("SNAPSHOT CREATE of-store", "OK"),
        ("SNAPSHOT CHANGES of-clone of-store", "[[\"0\" \"k\" (integer) 13 (integer) 13]]"),
        // The string before the rollback, and the one that replaced it.
        ("SNAPSHOT CREATE before", "OK"),
        ("SNAPSHOT ROLLBACK s", "OK"),
        ("SETRANGE k 0 Z", "(integer) 13"),
        ("SNAPSHOT CHANGES before", "[[\"0\" \"k\" (integer) 13 (integer) 13]]"),
    ]);
    // In a transaction.
    let mut other = served.connect();
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    for c in [&mut c, &mut other] {
        assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
    }
    c.expect(&[("TXN SAVEPOINT a", "OK"), ("SETRANGE k 0 1", "(integer) 13"), ("WATCH k", "OK")]);
    other.expect(&[("TXN ROLLBACK a", "OK"), ("SETRANGE k 0 2", "(integer) 13")]);
    c.expect(&[("MULTI", "OK"), ("SET k 3", "QUEUED"), ("EXEC", "(nil)")]);
    assert_eq!(c.run("GET k"), "\"2-long-string\"");
}

#[test]
fn bits_of_a_sparse_string_cost_what_is_stored() {
    let served = serve(pages_soon());
    let mut c = served.connect();
    let last = (8u64 << 40) - 1;
    let begun = std::time::Instant::now();
    c.expect(&[
        (&format!("SETBIT k {last} 1"), "(integer) 0"),
        ("SETBIT k 40000 1", "(integer) 0"),
        ("SETBIT k 40007 1", "(integer) 0"),
        ("BITCOUNT k", "(integer) 3"),
        ("BITCOUNT k 5000 5000", "(integer) 2"),
        ("BITCOUNT k 40001 -1 BIT", "(integer) 2"),
        ("BITCOUNT k 40008 -2 BIT", "(integer) 0"),
        ("BITPOS k 1", "(integer) 40000"),
        ("BITPOS k 1 40001 -1 BIT", "(integer) 40007"),
        ("BITPOS k 1 5001", &format!("(integer) {last}")),
        ("BITPOS k 1 5001 -2", "(integer) -1"),
        ("BITPOS k 0", "(integer) 0"),
        ("BITPOS k 0 3", "(integer) 24"),
        ("BITPOS k 0 40000 -1 BIT", "(integer) 40001"),
        ("BITPOS k 0 40007 -1 BIT", "(integer) 40008"),
        (&format!("BITPOS k 0 {last} -1 BIT"), "(integer) -1"),
        ("SETRANGE ones 8192 x", "(integer) 8193"),
        ("BITPOS ones 1", "(integer) 65537"),
        ("BITPOS ones 0 8192", "(integer) 65536"),
    ]);
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(30),
        "a tebibyte was not gone through"
    );
}
