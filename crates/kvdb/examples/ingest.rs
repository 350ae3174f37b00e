//! Sorted data in bulk, past journal and memtable: `cargo run -p kvdb --example ingest`.

use kvdb::{Kvdb, Result};

pub fn main() -> Result<()> {
    let db = Kvdb::in_memory();
    let words = db.open_dictionary("words")?;
    words.insert("word 000005", "was here before")?;

    // All of it becomes visible at once, above what is there, when `finish` returns.
    let mut ingest = words.begin_ingest()?;
    for i in 0..100_000 {
        ingest.push(format!("word {i:06}"), format!("value {i}"))?;
    }
    assert_eq!(words.iter().count(), 1);
    let stats = ingest.finish()?;
    println!("{stats:?}");

    assert_eq!(words.iter().count(), 100_000);
    assert_eq!(words.get("word 000005")?.as_deref(), Some(&b"value 5"[..]));
    Ok(())
}
