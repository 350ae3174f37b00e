//! The worked example of `docs/format.md`. It reads a small store by that page alone, from the
//! superblock down to each value. Nothing here uses the readers of the product, so the test fails
//! if the page leaves anything out.
//!
//! `KVFS_BLESS=1 cargo test -p kvdb --test it format::` writes the example into the page again.

mod dump;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use env::Simulated;
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::{Device, MemoryDevice, Purpose};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
const BEGIN: &str =
    "<!-- written by: KVFS_BLESS=1 cargo test -p kvdb --test it format:: -->\n```text\n";
const END: &str = "```\n";

/// A store with a small and a large value in a run, and a change in the journal.
fn store() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions {
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..OpenOptions::default()
    };
    let create = CreateOptions { capacity: Some(256 << 20), open, ..CreateOptions::default() };
    let env = Arc::new(Simulated::new(1));
    env.advance(Duration::from_secs(1));
    let db = Kvdb::create(device.clone(), env, create).expect("a store");
    let options = DictionaryOptions { separate_at: 2048, ..DictionaryOptions::default() };
    let fruit = db.create_dictionary("fruit", options).expect("a dictionary");
    let mut batch = Batch::new();
    batch.put(fruit, "apple", "red");
    batch.put(fruit, "apricot", vec![b'o'; 4096]);
    db.commit(batch, Durability::Synced).expect("committed");
    db.flush().expect("a run");
    db.put(fruit, b"pear", b"green", Durability::Synced).expect("committed");
    db.close().expect("closed");
    (*device).clone()
}

#[test]
fn a_small_store_can_be_read_by_what_the_page_says() {
    let device = store();
    let mut image = vec![0; device.len().expect("memory") as usize];
    device.read_at(Purpose::Pages, 0, &mut image).expect("all of it");
    let (found, text) = reader::read(&image);
    let expected =
        [("apple", b"red".to_vec()), ("apricot", vec![b'o'; 4096]), ("pear", b"green".to_vec())];
    assert_eq!(found, expected.map(|(key, value)| (key.as_bytes().to_vec(), value)).into());

    let page = std::fs::read_to_string(PAGE).expect("docs/format.md");
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the example");
    let (shown, after) = rest.split_once(END).expect("the example ends");
    if std::env::var_os("KVFS_BLESS").is_some() {
        std::fs::write(PAGE, [before, BEGIN, &text, END, after].concat()).expect("the page");
    } else {
        assert_eq!(
            shown, text,
            "docs/format.md shows another store: KVFS_BLESS=1 writes it anew, if the format was meant to change"
        );
    }
}
