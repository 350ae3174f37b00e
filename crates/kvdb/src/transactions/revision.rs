//! Revisions of a transaction, so that a commit takes exactly the changes that were inspected.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A revision of the changes of a transaction. Every change, made by any handle, and every rollback
/// to a savepoint produces a new revision; two equal revisions stand for one state. The text form
/// is for people and programs to hand back unchanged.
///
/// ```
/// # use kvdb::{CommitOptions, Durability, Error, Isolation, Kvdb, Revision};
/// # let db = Kvdb::in_memory();
/// # let fruit = db.open_dictionary("fruit")?;
/// let t = db.begin(Isolation::Snapshot)?;
/// t.put(fruit.id(), "apple", "red")?;
/// let seen: Revision = t.revision()?.to_string().parse()?;
/// t.put(fruit.id(), "apple", "blue")?;
/// let only = CommitOptions { only_in: Some(seen), ..CommitOptions::default() };
/// assert!(matches!(t.commit_with(only), Err(Error::Changed(_))));
/// let only = CommitOptions { only_in: Some(t.revision()?), ..only };
/// t.commit_with(only)?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Number of changes so far.
    pub(super) changes: u64,
    /// Seconds since 1970 at which the transaction began, or was resumed by this opening of the
    /// store. It is needed since transaction numbers are reused, and so are the change counts of a
    /// durable transaction.
    pub(super) begun: u64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.changes, self.begun)
    }
}

impl FromStr for Revision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Revision, Error> {
        let number = |text: &str| -> Option<u64> {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        let parts = text.split_once('.').and_then(|(changes, begun)| {
            Some(Revision { changes: number(changes)?, begun: number(begun)? })
        });
        parts.ok_or_else(|| Error::Invalid("no state of a transaction is named so".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommitOptions, Durability, Isolation, Kvdb};

    #[test]
    fn a_state_is_read_from_its_text_and_from_nothing_else() {
        let state = Revision { changes: 17, begun: 1_764_167_000 };
        assert_eq!(state.to_string().parse::<Revision>().expect("a state"), state);
        for wrong in
            ["", ".", "17", "17.", ".5", "17.5.6", "+1.5", "-1.5", "1.99999999999999999999"]
        {
            assert!(wrong.parse::<Revision>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_change_is_another_state_and_a_commit_takes_the_one_it_names() {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").expect("made").id();
        let t = db.begin(Isolation::Snapshot).expect("begun");
        let mut states = vec![t.revision().expect("open")];
        let mut another = |what: &str| {
            let state = t.revision().expect("open");
            assert!(!states.contains(&state), "after {what}");
            states.push(state);
        };
        let savepoint = t.savepoint().expect("marked");
        t.put(dict, "a", "1").expect("put");
        another("a put");
        t.put(dict, "a", "1").expect("put");
        another("the same put");
        t.delete(dict, "a").expect("deleted");
        another("a delete");
        let mut nested = t.nested_batch().expect("begun");
        let mut batch = crate::Batch::new();
        batch.put(dict, "b", "1");
        nested.apply(batch).expect("applied");
        nested.finish().expect("made");
        another("a nested batch");
        let mut bulk = t.bulk(dict, &db.view()).expect("begun");
        bulk.push(b"c", b"1").expect("pushed");
        t.adopt(bulk.finish().expect("written")).expect("adopted");
        another("a run");
        t.rollback_to(&savepoint).expect("rolled back");
        another("going back, though all is as it was");
        t.put(dict, "a", "2").expect("put");
        another("a put");
        let now = t.revision().expect("open");
        assert_eq!(t.get(dict, b"a").expect("read").as_deref(), Some(&b"2"[..]));
        let _ = t.savepoint().expect("marked");
        assert_eq!(t.revision().expect("open"), now, "after a look and a savepoint");
        states.pop();
        for old in states {
            let only = CommitOptions { only_in: Some(old), ..CommitOptions::default() };
            assert!(matches!(t.commit_with(only), Err(Error::Changed(id)) if id == t.id()));
        }
        assert_eq!(db.get(dict, b"a").expect("read"), None, "nothing is committed");
        let durability = Durability::Synced;
        let only = CommitOptions { only_in: Some(now), durability, ..CommitOptions::default() };
        t.commit_with(only).expect("committed");
        assert_eq!(db.get(dict, b"a").expect("read").as_deref(), Some(&b"2"[..]));
    }

    #[test]
    fn after_a_conflict_a_transaction_stays_where_that_is_asked_for() {
        let db = Kvdb::in_memory();
        let dict = db.open_dictionary("d").expect("made").id();
        let t = db.begin(Isolation::Snapshot).expect("begun");
        t.put(dict, "a", "mine").expect("put");
        t.put(dict, "b", "mine").expect("put");
        db.put(dict, b"a", b"theirs", Durability::Buffered).expect("put");
        let stays = CommitOptions { stays: true, ..CommitOptions::default() };
        for _ in 0..2 {
            let committed = t.commit_with(stays);
            assert!(matches!(committed, Err(Error::Conflict { keys }) if keys.len() == 1));
            assert_eq!(t.get(dict, b"a").expect("open").as_deref(), Some(&b"mine"[..]));
        }
        assert_eq!(db.get(dict, b"a").expect("read").as_deref(), Some(&b"theirs"[..]));
        assert!(matches!(t.commit(Durability::Buffered), Err(Error::Conflict { .. })));
        assert!(matches!(t.get(dict, b"a"), Err(Error::NoTransaction(_))));
    }
}
