//! The operations of transactions: their writes, reads, locks and comparisons.

use std::sync::Arc;

use kvdb::{
    Batch, Durability, Error, Isolation, Kvdb, MergeRoutine, Merged, Result, Transaction,
    TransactionOptions, Update,
};

use crate::{Step, World, key, large, options, small, within_limits};

pub const STEPS: &[Step] = &[
    (&["Kvdb::begin", "Transaction::put", "Transaction::commit", "Transaction::commit_with"], put),
    (
        &[
            "Transaction::delete_range",
            "Transaction::apply",
            "Transaction::apply_at_commit",
            "Transaction::abort",
        ],
        delete_range,
    ),
    (&["Transaction::update", "Transaction::delete"], change_each),
    (&["Kvdb::begin_with", "Transaction::sync"], durable),
    (&["Kvdb::recover_path"], restored),
    (&["Transaction::is_outdated"], conflicts),
    (&["Kvdb::set_merge"], joined),
    (
        &[
            "Transaction::change_back",
            "Kvdb::undoable_commits",
            "Kvdb::undoable_commits_and_bytes",
            "Kvdb::states_around",
        ],
        undone,
    ),
    (&["Transaction::lock_key"], lock_each),
    (&["Transaction::lock_range"], lock_all),
    (
        &[
            "Transaction::read_conflict_key",
            "Transaction::read_conflict_range",
            "Transaction::depend_on",
        ],
        depend,
    ),
    (
        &["Transaction::savepoint", "Transaction::rollback_to", "Transaction::rollback_and_apply"],
        savepoints,
    ),
    (&["Transaction::nested_batch"], nested),
    (&["Transaction::nested"], within),
    (&["Transaction::changes", "Transaction::changes_of", "Transaction::changes_in"], changes),
    (
        &["Transaction::view", "Transaction::renew", "Transaction::cursor", "Transaction::scan"],
        read,
    ),
    (&["Transaction::bulk", "Transaction::adopt"], bulk),
    (&["Kvdb::transactions", "Transaction::info"], many),
    (&["Transaction::room", "Transaction::make_room"], limited),
];

fn begin(w: &World, isolation: Isolation) -> Result<Transaction> {
    w.db.begin(isolation)
}

/// Many changes: each small tuple gets `mark`, and each large one.
fn change(w: &World, t: &Transaction, mark: u8) -> Result<()> {
    small(w.times, mark).try_for_each(|(key, value)| t.put(w.small, key, value))?;
    large(w.times, mark).try_for_each(|(key, value)| t.put(w.large, key, value))
}

fn put(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    change(w, &t, 7)?;
    t.commit(Durability::Synced)?;
    w.settled()
}

fn delete_range(w: &mut World) -> Result<()> {
    for end in [true, false] {
        let t = begin(w, Isolation::Snapshot)?;
        t.delete_range(w.small, "", "z")?;
        t.apply(w.delete_all())?;
        match end {
            true => t.abort(),
            false => t.commit(Durability::Buffered)?,
        }
    }
    w.filled()
}

fn change_each(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    for i in 0..300_000 * w.times {
        match i % 2 {
            0 => t.delete(w.small, key(i))?,
            _ => t.update(w.small, key(i), Update::append(b"more").expect("short"))?,
        }
    }
    t.commit(Durability::Buffered)?;
    w.filled()
}

fn begin_durable(w: &World) -> Result<Transaction> {
    w.db.begin_with(TransactionOptions { durable: true, ..TransactionOptions::default() })
}

fn durable(w: &mut World) -> Result<()> {
    let t = begin_durable(w)?;
    t.apply(w.delete_all())?;
    t.commit(Durability::Synced)?;
    w.filled()?;
    let t = begin_durable(w)?;
    change(w, &t, 8)?;
    t.sync()?;
    t.commit(Durability::Synced)?;
    w.filled()
}

/// A transaction that began before the store was opened compares its changes by values.
fn restored(w: &mut World) -> Result<()> {
    // In between, all keys are rewritten with their earlier values.
    for others in [false, true] {
        let (t, u) = (begin_durable(w)?, begin_durable(w)?);
        t.apply(w.delete_all())?;
        change(w, &u, 1)?;
        w.commit(w.delete_all())?;
        w.filled()?;
        if others {
            w.db.put(w.large, &key(3), b"changed", Durability::Buffered)?;
        }
        w.settled()?;
        let ids = [t.id(), u.id()];
        drop((t, u));
        w.db.close()?;
        let path = w.directory.path().join("s.kvfs");
        w.db = Kvdb::in_memory();
        w.db = Kvdb::recover_path(path, options())?.0;
        let [t, u] = ids.map(|id| w.db.transaction(id));
        let outcome = u?.commit(Durability::Buffered);
        assert_eq!(matches!(outcome, Err(Error::Conflict { .. })), others, "{outcome:?}");
        if others {
            let outcome = t?.commit(Durability::Buffered);
            assert!(matches!(outcome, Err(Error::Conflict { .. })), "{outcome:?}");
        } else {
            t?.abort();
        }
    }
    Ok(())
}

/// Two transactions change the same keys, without a rule that joins the changes.
fn conflicts(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    let u = begin(w, Isolation::Snapshot)?;
    let range = begin(w, Isolation::Snapshot)?;
    range.apply(w.delete_all())?;
    change(w, &t, 9)?;
    change(w, &u, 10)?;
    t.commit(Durability::Buffered)?;
    for lost in [u, range] {
        assert!(lost.is_outdated()?);
        let outcome = lost.commit(Durability::Buffered);
        assert!(matches!(outcome, Err(Error::Conflict { .. })), "{outcome:?}");
    }
    w.settled()
}

struct Mine;

impl MergeRoutine for Mine {
    fn merge(&self, _: &[u8], _: Option<&[u8]>, mine: Option<&[u8]>, _: Option<&[u8]>) -> Merged {
        mine.map_or(Merged::Delete, |mine| Merged::Put(mine.to_vec().into()))
    }
}

fn joined(w: &mut World) -> Result<()> {
    [w.small, w.large].iter().for_each(|dict| w.db.set_merge(*dict, Arc::new(Mine)));
    let (t, u) = (begin(w, Isolation::Snapshot)?, begin(w, Isolation::Snapshot)?);
    change(w, &t, 11)?;
    change(w, &u, 12)?;
    t.commit(Durability::Buffered)?;
    u.commit(Durability::Buffered)?;
    assert_eq!(w.db.get(w.small, &key(5))?.as_deref(), Some(&[12; 330][..]));
    w.settled()
}

fn undone(w: &mut World) -> Result<()> {
    for round in 0..2 {
        let undoable = TransactionOptions { undoable: true, ..TransactionOptions::default() };
        let t = w.db.begin_with(undoable)?;
        match round {
            0 => t.apply(w.delete_all())?,
            _ => change(w, &t, 13)?,
        }
        t.commit(Durability::Buffered)?;
        let commit = w.db.undoable_commits().pop().expect("it can be undone");
        let counted = w.db.undoable_commits_and_bytes().pop().expect("the same one");
        assert_eq!(counted.0, commit);
        let (before, after) = w.db.states_around(commit.number)?;
        let undo = begin(w, Isolation::Snapshot)?;
        assert_eq!(undo.change_back(&[w.small, w.large, w.free], &before, &after)?, []);
        undo.commit(Durability::Buffered)?;
    }
    w.settled()
}

/// Locks keys one by one, until the transaction reports that there are too many.
fn lock_each(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Serializable)?;
    for i in 0..300_000 * w.times {
        t.lock_key(w.small, &key(2 * i), i % 2 == 0)?;
    }
    t.abort();
    Ok(())
}

fn lock_all(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Serializable)?;
    [w.small, w.large].iter().try_for_each(|dict| t.lock_range(*dict, b"", b"", true))?;
    change(w, &t, 14)?;
    t.commit(Durability::Buffered)?;
    w.settled()
}

fn depend(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    let each = || -> Result<()> {
        (0..300_000 * w.times).try_for_each(|i| t.read_conflict_key(w.small, &key(2 * i)))
    };
    within_limits(each())?;
    let u = begin(w, Isolation::Snapshot)?;
    u.read_conflict_range(w.large, b"", b"")?;
    u.put(w.free, "other", "key")?;
    u.depend_on(&t)?;
    w.commit(w.delete_all())?;
    assert!(matches!(u.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    w.filled()
}

fn savepoints(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    t.put(w.free, "a", "1")?;
    let mark = t.savepoint()?;
    change(w, &t, 15)?;
    t.savepoint()?;
    t.apply(w.delete_all())?;
    t.rollback_to(&mark)?;
    t.commit(Durability::Buffered)
}

fn nested(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    let mut nested = t.nested_batch()?;
    nested.apply(w.delete_all())?;
    let refused = large(w.times, 16).try_for_each(|(key, value)| {
        let mut batch = Batch::new();
        batch.put(w.large, key, value);
        nested.apply(batch)
    });
    assert!(matches!(refused, Err(Error::Limit(_))), "{refused:?}");
    drop(nested);
    t.commit(Durability::Buffered)
}

fn within(w: &mut World) -> Result<()> {
    for durable in [false, true] {
        let t = w.db.begin_with(TransactionOptions { durable, ..Default::default() })?;
        for mark in [19, 20] {
            let options = TransactionOptions { within: Some(t.id()), ..Default::default() };
            let inner = w.db.begin_with(options)?;
            change(w, &inner, mark)?;
            assert_eq!(t.nested()?, [inner.id()]);
            inner.commit(Durability::Buffered)?;
        }
        t.commit(Durability::Buffered)?;
    }
    w.settled()
}

fn changes(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    change(w, &t, 17)?;
    t.apply(w.delete_all())?;
    change(w, &t, 18)?;
    let view = t.view()?;
    let all = [w.small, w.large];
    for changes in [t.changes()?, t.changes_of(&all)?, t.changes_in(&view, &all)?] {
        assert!(changes.count() as u64 > 300_000 * w.times);
    }
    Ok(())
}

fn read(w: &mut World) -> Result<()> {
    let t = begin(w, Isolation::Snapshot)?;
    change(w, &t, 19)?;
    let view = t.renew(&t.view()?)?;
    assert_eq!(view.iter(w.small).count() as u64, 300_000 * w.times);
    let mut cursor = t.cursor(w.large, b"", b"")?;
    while let Some(tuple) = cursor.next()? {
        tuple.value()?;
    }
    t.scan(w.small, b"", b"", 1000).map(drop)
}

fn bulk(w: &mut World) -> Result<()> {
    let (t, view) = (begin(w, Isolation::Snapshot)?, w.db.view());
    let mut bulk = t.bulk(w.free, &view)?;
    let mut tuples = view.stored_tuples(w.large)?;
    while tuples.advance()? {
        if let Some(tuple) = tuples.current() {
            bulk.push_stored(tuple.key, &tuple)?;
        }
    }
    t.adopt(bulk.finish()?)?;
    let mut bulk = t.bulk(w.small, &view)?;
    small(w.times, 20).try_for_each(|(key, value)| bulk.push(&key, &value))?;
    t.adopt(bulk.finish()?)?;
    t.commit(Durability::Buffered)
}

/// Many transactions, each with a change.
fn limited(w: &mut World) -> Result<()> {
    let t = w.db.begin_with(TransactionOptions { limit: Some(1 << 40), ..Default::default() })?;
    for mark in [22, 23] {
        change(w, &t, mark)?;
        t.make_room()?;
    }
    t.delete_range(w.small, "", vec![0xff])?;
    t.delete_range(w.large, "", vec![0xff])?;
    let room = t.make_room()?;
    assert!(room.is_some_and(|room| room > (1 << 40) - (1 << 20)), "{room:?}");
    t.abort();
    Ok(())
}

fn many(w: &mut World) -> Result<()> {
    let mut all = Vec::new();
    for i in 0..200 {
        let t = begin(w, Isolation::Snapshot)?;
        (0..50).try_for_each(|j| t.put(w.small, key(i * 50 + j), [21; 10_000]))?;
        t.info();
        all.push(t);
    }
    assert_eq!(w.db.transactions().len(), 200);
    all.iter().for_each(Transaction::abort);
    Ok(())
}
