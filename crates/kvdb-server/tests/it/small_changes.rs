//! Tests of small changes to strings that are stored outside of their blocks and are not in memory.

use crate::served::{clocked_store, serve_db};
use kvdb_server::{Client, Limits, Reply, ServerOptions};

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

/// Bytes that changes of a string of 200 kB cost, and reads of four bytes of it.
#[derive(Debug)]
struct Cost {
    /// Written by a change and a sync of all changes.
    written: u64,
    /// Written by a merge of the changes, for all of them.
    merged: u64,
    /// Read by a `SETBIT` of a string that is not in memory, and by a `GETRANGE`.
    read: [u64; 2],
}

fn cost_of_small_changes(patched: usize) -> Cost {
    const CHANGES: usize = 200;
    let limits = Limits { patched, ..Limits::default() };
    let served = serve_db(clocked_store().1, ServerOptions { limits, ..Default::default() });
    let mut client = Client::connect(&served.path).expect("connected");
    let mut ask = |words: &[&[u8]]| client.call(words).expect("a reply");
    let mut value: Vec<u8> = (0..200_000_u32).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
    assert_eq!(ask(&[b"SET", b"k", &value]), Reply::Status("OK".into()));
    assert_eq!(ask(&[b"APPEND", b"k", b"first"]), Reply::Integer(200_005));
    value.extend_from_slice(b"first");
    let merge = || {
        for dict in ["0", ":types:0"].iter().filter_map(|name| served.db.dictionary(name)) {
            served.db.compact(dict).expect("compacted");
        }
        served.db.flush().expect("flushed");
    };
    merge();
    let io = || served.db.stats().io;
    let pages = || io().of(zones::Purpose::Pages).read_bytes;
    let (before, of_pages) = (io().total().write_bytes, pages());
    for n in 0..CHANGES {
        let at = n * 13 % 4000;
        ask(&[b"SETRANGE", b"k", at.to_string().as_bytes(), b"abcd"]);
        value[at..at + 4].copy_from_slice(b"abcd");
        ask(&[b"APPEND", b"k", b"xy"]);
        value.extend_from_slice(b"xy");
    }
    served.db.sync().expect("synced");
    assert_eq!(pages(), of_pages, "no change reads the string");
    let written = (io().total().write_bytes - before) / (2 * CHANGES as u64);
    let before = io().total().write_bytes;
    merge();
    let merged = io().total().write_bytes - before;
    let before = pages();
    assert_eq!(ask(&[b"SETBIT", b"k", b"900000", b"1"]), Reply::Integer(bit(&value, 900_000)));
    value[112_500] |= 1 << 7;
    let of_bit = pages() - before;
    let before = pages();
    let part = Reply::Bulk(value[150_000..150_004].to_vec());
    assert_eq!(ask(&[b"GETRANGE", b"k", b"150000", b"150003"]), part);
    let read = [of_bit, pages() - before];
    assert_eq!(ask(&[b"GET", b"k"]), Reply::Bulk(value));
    Cost { written, merged, read }
}

fn bit(value: &[u8], at: usize) -> i64 {
    i64::from(value[at / 8] >> (7 - at % 8) & 1)
}

/// A string of which a part changes is in pages: later changes read nothing and write what they
/// name, the merge that meets them writes the pages that changed, and a read of a part reads its
/// page. As one tuple, the string is written and read as a whole.
#[test]
fn a_small_change_of_a_string_of_200_kb_costs_what_it_names() {
    let (tuple, pages) = (cost_of_small_changes(usize::MAX), cost_of_small_changes(16 << 10));
    println!("one tuple: {tuple:?}\npages: {pages:?}");
    assert!(pages.written <= 200, "{pages:?}");
    assert!(pages.merged <= 64 << 10, "{pages:?}");
    assert!(pages.read.iter().all(|read| (1..=8 << 10).contains(read)), "{pages:?}");
    assert!(tuple.merged > 200_000 && tuple.read[1] > 200_000, "{tuple:?}");
}
