//! Transactions, and what to do when two of them change the same key:
//! `cargo run -p kvdb --example transaction`.

use kvdb::{Dictionary, Durability, Error, Kvdb, Result, TransactionOptions};

/// Moves an amount from one account to another, both or neither.
fn transfer(db: &Kvdb, accounts: &Dictionary, from: &str, to: &str, amount: i64) -> Result<()> {
    loop {
        let transaction = db.begin_with(TransactionOptions::default())?;
        let balance = |name: &str| -> Result<i64> {
            let value = transaction.get(accounts.id(), name.as_bytes())?;
            Ok(value.map_or(0, |v| String::from_utf8_lossy(&v).parse().expect("a number")))
        };
        let (source, target) = (balance(from)? - amount, balance(to)? + amount);
        if source < 0 {
            // Nothing of it happens: a transaction that is dropped is aborted.
            return Err(Error::Invalid(format!("{from} has less than {amount}")));
        }
        let mut batch = kvdb::Batch::new();
        batch.put(accounts.id(), from.to_string(), source.to_string());
        batch.put(accounts.id(), to.to_string(), target.to_string());
        transaction.apply(batch)?;
        match transaction.commit(Durability::Synced) {
            // Another transaction has changed one of the accounts since this one began: again.
            Err(Error::Conflict { .. }) => continue,
            committed => return committed,
        }
    }
}

pub fn main() -> Result<()> {
    let db = Kvdb::in_memory();
    let accounts = db.open_dictionary("accounts")?;
    accounts.insert("ann", "100")?;

    transfer(&db, &accounts, "ann", "bob", 30)?;
    assert_eq!(accounts.get("ann")?.as_deref(), Some(&b"70"[..]));
    assert!(transfer(&db, &accounts, "bob", "ann", 31).is_err());
    assert_eq!(accounts.get("bob")?.as_deref(), Some(&b"30"[..]));

    // Two transactions that change one key: the first to commit wins.
    let (first, second) = (
        db.begin_with(TransactionOptions::default())?,
        db.begin_with(TransactionOptions::default())?,
    );
    for transaction in [&first, &second] {
        let mut batch = kvdb::Batch::new();
        batch.put(accounts.id(), "ann", "0");
        transaction.apply(batch)?;
    }
    first.commit(Durability::Buffered)?;
    assert!(matches!(second.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    println!("ann has {}", accounts.get("ann")?.expect("it is there").escape_ascii());
    Ok(())
}
