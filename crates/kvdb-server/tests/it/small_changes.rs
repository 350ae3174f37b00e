//! Tests of small changes to strings that are stored outside of their blocks and are not in memory.

use crate::served::{clocked_store, serve_db};
use kvdb_server::{Client, Reply, ServerOptions};

#[test]
fn a_small_change_of_a_string_of_three_kib_costs_what_it_names() {
    const STRINGS: usize = 50;
    let served = serve_db(clocked_store().1, ServerOptions::default());
    let mut client = Client::connect(&served.path).expect("connected");
    let mut ask = |words: &[&[u8]]| client.call(words).expect("a reply");
    let value: Vec<u8> = (0..3000_u32).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
    let key = |n: usize| format!("k{n:02}").into_bytes();
    for n in 0..STRINGS {
        assert_eq!(ask(&[b"SET", &key(n), &value]), Reply::Status("OK".into()));
    }
    served.db.compact(served.db.dictionary("0").expect("made")).expect("compacted");
    served.db.flush().expect("flushed");
    let io = || served.db.stats().io;
    let pages = || io().of(zones::Purpose::Pages).read_bytes;
    let (before, of_pages) = (io().total(), pages());
    for n in 0..STRINGS {
        assert_eq!(ask(&[b"APPEND", &key(n), b"xy"]), Reply::Integer(3002));
        assert_eq!(ask(&[b"SETRANGE", &key(n), b"100", b"ab"]), Reply::Integer(3002));
    }
    served.db.sync().expect("synced");
    assert_eq!(pages(), of_pages, "no string is read");
    let written = io().total().write_bytes - before.write_bytes;
    assert!(written <= (STRINGS * 1000) as u64, "{written} bytes written for {STRINGS} changes");
    let mut changed = value.clone();
    changed[100..102].copy_from_slice(b"ab");
    changed.extend_from_slice(b"xy");
    for n in 0..STRINGS {
        assert_eq!(ask(&[b"GET", &key(n)]), Reply::Bulk(changed.clone()));
    }
    assert!(pages() > of_pages, "the strings have places of their own, and are read there");
    // After a merge the changes are a part of the strings.
    served.db.compact(served.db.dictionary("0").expect("made")).expect("compacted");
    assert_eq!(ask(&[b"GET", &key(7)]), Reply::Bulk(changed));
}
