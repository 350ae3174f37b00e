//! Keys and values in a store on disk: `cargo run -p kvdb --example quickstart`.

use kvdb::{Kvdb, Result};

pub fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("fruit.kvfs");

    // A store has any number of dictionaries, each an ordered key space of its own.
    let db = Kvdb::open_path(&path)?;
    let fruit = db.open_dictionary("fruit")?;
    fruit.insert("apple", "red")?;
    fruit.insert("banana", "yellow")?;
    fruit.insert("pear", "green")?;
    assert_eq!(fruit.get("apple")?.as_deref(), Some(&b"red"[..]));

    // Keys are ordered: ranges and prefixes are read in their order, as of one moment.
    for tuple in fruit.range("b".."z") {
        let (key, value) = tuple?;
        println!("{} is {}", key.escape_ascii(), value.escape_ascii());
    }
    fruit.remove_range("b".."c")?;
    assert_eq!(fruit.iter().count(), 2);

    // An insertion is on disk within a second; after this call it is on disk already.
    db.sync()?;
    db.close()?;
    // One process at a time has a store open: the last handle lets go of it.
    drop((fruit, db));

    let db = Kvdb::open_path(&path)?;
    assert_eq!(db.open_dictionary("fruit")?.get("pear")?.as_deref(), Some(&b"green"[..]));
    Ok(())
}
