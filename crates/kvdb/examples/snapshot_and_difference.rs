//! A snapshot, what has changed since, and the way back:
//! `cargo run -p kvdb --example snapshot_and_difference`.

use kvdb::{Kvdb, Result};

pub fn main() -> Result<()> {
    let db = Kvdb::in_memory();
    let fruit = db.open_dictionary("fruit")?;
    for i in 0..1000 {
        fruit.insert(format!("fruit {i:04}"), "green")?;
    }
    // It shares everything with the store, and takes the time of a synced commit.
    db.snapshot("monday")?;

    fruit.insert("fruit 0007", "red")?;
    fruit.insert("fruit 1000", "yellow")?;
    fruit.remove("fruit 0009")?;

    // The difference reads what differs, however much there is that does not.
    let (before, now) = (db.open_snapshot("monday")?, db.view());
    let mut changes = Vec::new();
    for change in before.difference(fruit.id(), &now, fruit.id())? {
        let change = change?;
        let what = match (&change.before, &change.after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        changes.push(format!("{what} {}", change.key.escape_ascii()));
    }
    println!("{}", changes.join("\n"));
    assert_eq!(changes, ["changed fruit 0007", "removed fruit 0009", "added fruit 1000"]);
    drop((before, now));

    db.rollback("monday")?;
    let fruit = db.open_dictionary("fruit")?;
    assert_eq!(fruit.get("fruit 0007")?.as_deref(), Some(&b"green"[..]));
    assert_eq!(fruit.iter().count(), 1000);
    Ok(())
}
