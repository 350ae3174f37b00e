//! Operations that write and read tuples.

use std::ops::ControlFlow;

use bytes::Bytes;
use kvdb::{Batch, DictionaryOptions, Durability, Reads, Reference, Result, Scope};

use crate::{Step, World, key, large, small};

pub const STEPS: &[Step] = &[
    (&["Kvdb::put"], put),
    (&["Kvdb::commit"], commit),
    (&["Kvdb::ingest", "Kvdb::begin_ingest"], ingest),
    (&["Kvdb::view", "Kvdb::multi_get"], read),
    (&["Kvdb::commit_if_unchanged"], commit_if_unchanged),
    (&["Kvdb::rank", "Kvdb::select", "Kvdb::count"], ranks),
    (&["Kvdb::follow_commits", "Kvdb::follow_commits_with", "Kvdb::commits_since"], follow),
    (&["Kvdb::follow_branch"], follow_branch),
    (&["Scope::cursor", "Scope::scan", "Scope::view"], scope_reads),
    (
        &["Scope::apply", "Scope::apply_with", "Scope::sync", "Scope::sync_at_interval"],
        scope_writes,
    ),
];

fn put(w: &mut World) -> Result<()> {
    for (key, value) in large(w.times, 2) {
        w.db.put(w.large, &key, &value, Durability::Buffered)?;
    }
    for (key, value) in small(w.times, 2).step_by(10) {
        w.db.put(w.small, &key, &value, Durability::Buffered)?;
    }
    Ok(())
}

fn commit(w: &mut World) -> Result<()> {
    w.commit(w.delete_all())?;
    w.settled()?;
    let mut batch = Batch::new();
    for (key, value) in small(w.times, 1) {
        batch.put(w.small, key, value);
        if batch.len() == 100 {
            w.commit(std::mem::take(&mut batch))?;
        }
    }
    w.commit(batch)
}

fn ingest(w: &mut World) -> Result<()> {
    w.commit(w.delete_all())?;
    w.filled()?;
    let mut ingest = w.db.begin_ingest(w.small)?;
    small(w.times, 2).try_for_each(|(key, value)| ingest.push(key, value))?;
    ingest.finish().map(drop)
}

fn read(w: &mut World) -> Result<()> {
    let view = w.db.view();
    for dict in [w.small, w.large] {
        let (mut tuples, mut bytes) = (0, 0);
        view.for_each(dict, b"", b"", |_, value| {
            (tuples, bytes) = (tuples + 1, bytes + value.len());
            ControlFlow::Continue(())
        })?;
        assert!(bytes > 90 << 20, "{tuples} tuples, {bytes} bytes");
        assert_eq!(view.iter(dict).count(), tuples);
        assert_eq!(view.iter(dict).rev().count(), tuples);
        view.estimate(dict, "a".."z")?;
    }
    let keys: Vec<_> = small(w.times, 0).step_by(1000).map(|(key, _)| key).collect();
    w.db.multi_get(w.small, &keys).map(drop)
}

fn ranks(w: &mut World) -> Result<()> {
    let view = w.db.view();
    let all = w.db.count::<&str>(&view, w.small, ..)?;
    assert_eq!(w.db.rank::<&str>(&view, w.small, .., key(all / 2))?, all / 2);
    assert_eq!(w.db.select::<&str>(&view, w.small, .., all / 2)?, Some(key(all / 2).into()));
    for (key, value) in small(w.times, 4).step_by(10) {
        w.db.put(w.small, &key, &value, Durability::Buffered)?;
    }
    // The rank is taken in a state that lies many changes back.
    assert_eq!(w.db.rank::<&str>(&view, w.small, .., key(all / 3))?, all / 3);
    Ok(())
}

fn commit_if_unchanged(w: &mut World) -> Result<()> {
    for changed in [false, true] {
        let mut reads = Reads::default();
        [w.small, w.large].iter().for_each(|dict| reads.range(*dict, b"", b""));
        let mut batch = Batch::new();
        batch.put(w.free, "seen", "all of it");
        let view = w.db.view();
        if changed {
            w.commit(w.delete_all())?;
        }
        assert_eq!(w.db.commit_if_unchanged(batch, view, reads)?, !changed);
    }
    w.filled()
}

fn follow(w: &mut World) -> Result<()> {
    let since = w.db.follow_commits(64 << 10);
    w.db.follow_commits_with(64 << 10, &[]);
    for (key, value) in small(w.times, 4).step_by(10) {
        w.db.put(w.small, &key, &value, Durability::Buffered)?;
    }
    w.db.ingest(w.small, small(w.times, 5))?;
    _ = w.db.commits_since(since, 10);
    Ok(())
}

/// The lists of several branches have one bound.
fn follow_branch(w: &mut World) -> Result<()> {
    w.db.create_branch("followed")?;
    let dict = w.db.create_dictionary_in("followed", "d", DictionaryOptions::default())?;
    for branch in ["", "followed"] {
        w.db.follow_branch(branch, 64 << 10, &[])?;
    }
    for (key, value) in small(w.times, 6).step_by(10) {
        w.db.put(w.small, &key, &value, Durability::Buffered)?;
        w.db.put(dict, &key, &value, Durability::Buffered)?;
    }
    w.db.drop_branch("followed")
}

fn scopes(w: &World) -> Result<[Scope; 3]> {
    Ok([
        Scope::Mainline(w.db.clone()),
        Scope::Transaction(w.db.begin(kvdb::Isolation::Snapshot)?),
        Scope::Frozen(w.db.view()),
    ])
}

fn scope_reads(w: &mut World) -> Result<()> {
    for scope in scopes(w)? {
        let mut cursor = scope.cursor(w.large, b"", b"")?;
        while let Some(tuple) = cursor.next()? {
            tuple.value()?;
        }
        assert_eq!(scope.scan(w.small, b"", b"", 1000)?.len(), 1000);
        assert_eq!(scope.view()?.iter(w.small).keys().count() as u64, 300_000 * w.times);
    }
    Ok(())
}

fn scope_writes(w: &mut World) -> Result<()> {
    let [mainline, transaction, _] = scopes(w)?;
    for scope in [transaction, mainline] {
        scope.apply(w.delete_all(), Durability::Buffered)?;
        for (key, value) in large(w.times, 6) {
            let mut batch = Batch::new();
            batch.put(w.large, key, value);
            scope.apply(batch, Durability::Buffered)?;
        }
        for (key, _) in large(w.times, 6) {
            let (dict, of) = (w.large, (w.large, Bytes::from(key)));
            let reference = Reference { dict, key: of.1.clone(), of };
            scope.apply_with(Batch::new(), vec![reference], Durability::Buffered)?;
        }
        scope.sync_at_interval()?;
        scope.sync()?;
    }
    w.filled()
}
