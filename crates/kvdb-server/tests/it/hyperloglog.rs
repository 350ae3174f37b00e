//! Tests of HyperLogLogs. Their counts and their bytes equal those of Redis 7.0.

use crate::served::{clocked_store, pages_soon, serve, serve_db};
use kvdb_server::ServerOptions;

const NOT_ONE: &str = "(error) WRONGTYPE Key is not a valid HyperLogLog string value.";

#[test]
fn elements_are_counted() {
    serve(ServerOptions::default()).connect().expect(&[
        ("PFADD h a b c d e f g", "(integer) 1"),
        ("PFADD h a g", "(integer) 0"),
        ("PFCOUNT h", "(integer) 7"),
        ("PFADD other h i a", "(integer) 1"),
        ("PFCOUNT h other none", "(integer) 9"),
        ("PFCOUNT none", "(integer) 0"),
        ("PFMERGE all h other", "OK"),
        ("PFCOUNT all", "(integer) 9"),
        ("PFADD empty", "(integer) 1"),
        ("PFADD empty", "(integer) 0"),
        ("PFCOUNT empty", "(integer) 0"),
        ("TYPE h", "string"),
        ("SET s v", "OK"),
        ("PFADD s a", NOT_ONE),
        ("PFCOUNT s", NOT_ONE),
        ("PFCOUNT h s", NOT_ONE),
        ("PFMERGE s h", NOT_ONE),
        ("LPUSH l a", "(integer) 1"),
        ("PFADD l a", "(error) WRONGTYPE Operation against a key holding the wrong kind of value"),
        // Runs that do not cover all registers.
        ("APPEND h \"\\x00\"", "(integer) 39"),
        ("PFCOUNT h", "(error) INVALIDOBJ Corrupted HLL object detected"),
    ]);
}

#[test]
fn the_bytes_are_those_of_redis() {
    serve(ServerOptions::default()).connect().expect(&[
        ("PFADD empty", "(integer) 1"),
        (
            "GET empty",
            "\"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x7f\\xff\"",
        ),
        ("PFADD h a b c d", "(integer) 1"),
        ("GETRANGE h 16 -1", "\"\\\\{\\x80Dv\\x80P\\xb1\\x84K\\xfb\\x80BZ\""),
        // A cached count from Redis is trusted.
        ("SETRANGE h 8 \"\\x2a\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"", "(integer) 30"),
        ("PFCOUNT h", "(integer) 42"),
        ("PFADD h a", "(integer) 0"),
        ("PFCOUNT h", "(integer) 42"),
        ("PFADD h e", "(integer) 1"),
        ("PFCOUNT h", "(integer) 5"),
    ]);
}

#[test]
fn a_large_one_is_dense_and_counts_as_well() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    for i in 0..100 {
        let elements: Vec<String> = (i * 50..(i + 1) * 50).map(|n| format!("e{n}")).collect();
        assert_eq!(c.run(&format!("PFADD h {}", elements.join(" "))), "(integer) 1");
    }
    c.expect(&[("STRLEN h", "(integer) 12304"), ("PFCOUNT h", "(integer) 4968")]);
    c.expect(&[("PFADD small e1 x", "(integer) 1"), ("PFMERGE small h", "OK")]);
    c.expect(&[("STRLEN small", "(integer) 12304")]);
}

#[test]
fn a_count_changes_with_its_transaction_and_keeps_its_deadline() {
    let (clock, db) = clocked_store();
    // Strings of more than ten bytes are in pages.
    let served = serve_db(db, pages_soon());
    let mut c = served.connect();
    c.expect(&[
        ("PFADD h a", "(integer) 1"),
        ("PEXPIRE h 1000", "(integer) 1"),
        ("PFADD h b", "(integer) 1"),
        ("PTTL h", "(integer) 1000"),
        ("MULTI", "OK"),
        ("PFADD h c", "QUEUED"),
        ("PFCOUNT h", "QUEUED"),
        ("EXEC", "[(integer) 1 (integer) 3]"),
    ]);
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    c.expect(&[
        ("PFADD h d e", "(integer) 1"),
        ("PFCOUNT h", "(integer) 5"),
        ("TXN ABORT", "OK"),
        ("PFCOUNT h", "(integer) 3"),
    ]);
    clock.advance(std::time::Duration::from_secs(2));
    c.expect(&[
        ("PFCOUNT h", "(integer) 0"),
        ("PFADD h", "(integer) 1"),
        ("PTTL h", "(integer) -1"),
    ]);
}

#[test]
fn how_registers_are_kept_is_shown_as_redis_shows_it() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("PFDEBUG ENCODING h", "(error) ERR The specified key does not exist"),
        ("EXISTS h", "(integer) 0"),
        ("PFADD h a", "(integer) 1"),
        ("PFDEBUG ENCODING h", "sparse"),
        ("PFDEBUG DECODE h", "\"Z:12711 v:2,1 Z:3672\""),
        ("PFDEBUG FOO h", "(error) ERR Unknown PFDEBUG subcommand 'FOO'"),
        ("PFDEBUG FOO", "(error) ERR wrong number of arguments for 'pfdebug' command"),
        ("SET s v", "OK"),
        ("PFDEBUG ENCODING s", NOT_ONE),
    ]);
    let registers = c.run("PFDEBUG GETREG h");
    let values = registers.matches("(integer) ").count();
    assert_eq!((values, registers.matches("(integer) 2").count()), (16_384, 1));
    c.expect(&[
        ("PFDEBUG ENCODING h", "sparse"),
        ("EXPIRE h 1000", "(integer) 1"),
        ("PFDEBUG TODENSE h", "(integer) 1"),
        ("PFDEBUG TODENSE h", "(integer) 0"),
        ("PFDEBUG ENCODING h", "dense"),
        ("PFDEBUG DECODE h", "(error) ERR HLL encoding is not sparse"),
        ("STRLEN h", "(integer) 12304"),
        ("PFCOUNT h", "(integer) 1"),
        ("PERSIST h", "(integer) 1"),
    ]);
    assert_eq!(c.run("PFDEBUG GETREG h"), registers);
}
