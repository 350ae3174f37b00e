//! The table of operations, and the operations that write tuples. Each changes the store and the
//! oracle in the same way, and compares every answer.

use kvdb::{Batch, Durability, Error, Note, Reads};

use super::full;
use super::maintenance;
use super::oracle::{Change, Kind};
use super::reads;
use super::snapshots;
use super::transactions;
use super::world::{Dead, World};

type Run = fn(&mut World) -> Result<(), Dead>;

/// The name, the weight and the action of each operation.
pub const OPERATIONS: &[(&str, u64, Run)] = &[
    ("put", 8, put),
    ("batch", 14, batch),
    ("dictionary", 8, dictionary),
    ("read", 6, reads::read),
    ("views", 3, reads::views),
    ("stored", 3, reads::stored),
    ("ingest", 3, ingest),
    ("begin", 4, transactions::begin),
    ("work", 24, transactions::work),
    ("end", 4, transactions::end),
    ("serializable", 2, transactions::serializable),
    ("undo", 3, transactions::undo),
    ("snapshot", 3, snapshots::snapshot),
    ("drop snapshot", 2, snapshots::drop_snapshot),
    ("rollback", 1, snapshots::rollback),
    ("clone", 1, snapshots::clone),
    ("states in common", 1, snapshots::in_common),
    ("limit of a clone", 1, snapshots::limit),
    ("drop branch", 1, snapshots::drop_branch),
    ("send and receive", 1, snapshots::send),
    ("make and drop dictionaries", 2, maintenance::dictionaries),
    ("maintenance", 6, maintenance::maintenance),
    ("time", 6, maintenance::time),
    ("sync", 3, maintenance::sync),
    ("checkpoint", 1, maintenance::checkpoint),
    ("push", 1, maintenance::push),
    ("files", 1, maintenance::files),
    ("fill", 6, full::fill),
    ("drain", 4, full::drain),
    ("recent commits", 4, reads::recent_commits),
    ("compare everything", 2, reads::everything),
    ("known", 6, known),
];

fn put(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    let (key, value, durability) = (w.key(), w.value(), w.durability());
    let change = Change { branch, dict, kind: Kind::Put(key.clone(), value.clone()) };
    w.call("Kvdb::put");
    w.change(vec![change], durability == Durability::Synced, |w| {
        w.db.put(id, &key, &value, durability)
    })
}

fn batch(w: &mut World) -> Result<(), Dead> {
    let (Some(a), Some(b)) = (w.place(), w.place()) else { return Ok(()) };
    let (first, second) = (a.2, b.2);
    let (changes, mut batch) = w.batch(&[a, b], true);
    if w.random.one_in(6) {
        w.call("Batch::releases_space");
        batch.releases_space();
    }
    if w.random.one_in(3) {
        w.call("Batch::sync_follows");
        batch.sync_follows();
    }
    if w.random.one_in(6) {
        // A store without a mirror has no place for it.
        w.call("Batch::note");
        batch.note(Note { slot: 0, request: w.step + 1, value: 0 });
    }
    let durability = w.durability();
    w.call("Batch::bytes");
    assert!(batch.bytes() > 0 || batch.is_empty());
    if durability == Durability::Buffered && w.random.one_in(3) {
        for name in ["Kvdb::commit_if_unchanged", "Reads::key", "Reads::range"] {
            w.call(name);
        }
        let mut reads = Reads::default();
        reads.key(first, b"k");
        reads.range(second, b"", b"");
        // While flushes are in progress, the version may change between two calls, so the commit is
        // repeated.
        return w.change(changes, false, |w| {
            while !w.db.commit_if_unchanged(batch.clone(), w.db.view(), reads.clone())? {}
            Ok(())
        });
    }
    w.call("Kvdb::commit");
    w.change(changes, durability == Durability::Synced, |w| w.db.commit(batch, durability))
}

/// A change of a key that is conditional on whether the key exists.
fn known(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    let (key, value) = (w.key(), w.value());
    let there = w.history.newest().table(&branch, &dict).is_some_and(|t| t.contains_key(&key));
    let (mut batch, mut reads) = (Batch::new(), Reads::default());
    reads.key(id, &key);
    let kind = match there {
        true => {
            w.call("Batch::delete_present");
            batch.delete_present(id, key.clone());
            Kind::Delete(key)
        }
        false => {
            w.call("Batch::put_new");
            batch.put_new(id, key.clone(), value.clone());
            Kind::Put(key, value)
        }
    };
    w.change(vec![Change { branch, dict, kind }], false, |w| {
        while !w.db.commit_if_unchanged(batch.clone(), w.db.view(), reads.clone())? {}
        Ok(())
    })
}

/// Calls the operations of a `Dictionary`.
fn dictionary(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    for name in [
        "Kvdb::open_dictionary_in",
        "Kvdb::open_dictionary",
        "Dictionary::id",
        "Dictionary::store",
        "Dictionary::info",
    ] {
        w.call(name);
    }
    w.call("Kvdb::has_dictionary");
    assert_eq!(w.db.has_dictionary(id), branch.is_empty());
    let d = match branch.is_empty() {
        true => w.ok(w.db.open_dictionary(&dict))?,
        false => w.ok(w.db.open_dictionary_in(&branch, &dict))?,
    };
    assert_eq!(
        (d.id(), d.info().map(|i| (i.name, i.branch))),
        (id, Some((dict.clone(), branch.clone())))
    );
    assert!(d.store().dictionaries_in(&branch).iter().any(|i| i.id == id));
    let key = w.key();
    let table = w.history.newest().table(&branch, &dict).cloned().unwrap_or_default();
    let change = |kind| Change { branch: branch.clone(), dict: dict.clone(), kind };
    let (a, b) = w.range();
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    match w.random.below(8) {
        0 => {
            let value = w.value();
            w.call("Dictionary::insert");
            w.change(vec![change(Kind::Put(key.clone(), value.clone()))], false, |_| {
                d.insert(key, value)
            })
        }
        1 if w.random.one_in(2) => {
            let update = w.update(true);
            w.call("Dictionary::update");
            w.change(vec![change(Kind::Update(key.clone(), update.clone()))], false, |_| {
                d.update(key, update)
            })
        }
        1 => {
            w.call("Dictionary::remove");
            w.change(vec![change(Kind::Delete(key.clone()))], false, |_| d.remove(key))
        }
        2 => {
            w.call("Dictionary::remove_range");
            w.change(vec![change(Kind::DeleteRange(a.clone(), b.clone()))], false, |_| {
                d.remove_range(a..b)
            })
        }
        3 => {
            w.call("Dictionary::remove_prefix");
            let prefix = &key[..3];
            let end = kvdb::prefix_end(prefix).expect("it has one");
            w.change(vec![change(Kind::DeleteRange(prefix.to_vec(), end.to_vec()))], false, |_| {
                d.remove_prefix(prefix)
            })
        }
        4 => {
            for name in [
                "Dictionary::get",
                "Dictionary::contains",
                "Dictionary::iter",
                "Dictionary::range",
                "Dictionary::prefix",
            ] {
                w.call(name);
            }
            assert_eq!(
                w.ok(d.get(&key))?.map(|v| v.to_vec()),
                table.get(&key).cloned(),
                "{}",
                w.what()
            );
            assert_eq!(w.ok(d.contains(&key))?, table.contains_key(&key), "{}", w.what());
            let all = w.ok(d.iter().rev().collect::<kvdb::Result<Vec<_>>>())?;
            assert!(
                all.iter()
                    .map(|(k, v)| (&k[..], &v[..]))
                    .eq(table.iter().rev().map(|(k, v)| (&k[..], &v[..]))),
                "{}",
                w.what()
            );
            let some = w.ok(d.range(a.clone()..b.clone()).collect::<kvdb::Result<Vec<_>>>())?;
            assert!(
                some.iter().map(|(k, _)| &k[..]).eq(table.range(a..b).map(|(k, _)| &k[..])),
                "{}",
                w.what()
            );
            let keys = w.ok(d.prefix(&key[..3]).keys().collect::<kvdb::Result<Vec<_>>>())?;
            assert!(
                keys.iter()
                    .map(|k| &k[..])
                    .eq(table.keys().filter(|k| k.starts_with(&key[..3])).map(|k| &k[..])),
                "{}",
                w.what()
            );
            Ok(())
        }
        5 => {
            w.call("Dictionary::estimate");
            let found = w.ok(d.estimate(a.clone()..b.clone()))?;
            let real = table.range(a..b).count() as u64;
            // Older versions and tombstones count as well.
            assert!(
                real <= found.items + found.items_error,
                "{}: {found:?}, really {real}",
                w.what()
            );
            Ok(())
        }
        6 => {
            w.call("Dictionary::compact");
            w.call("Dictionary::compact_range");
            let whole = w.random.one_in(2);
            let done = w.unless_full(if whole { d.compact() } else { d.compact_range(a..b) })?;
            if whole && done.is_some() {
                w.history.certain();
            }
            Ok(())
        }
        _ => {
            for name in [
                "Dictionary::ingest",
                "Dictionary::begin_ingest",
                "Ingest::push",
                "Ingest::written",
                "Ingest::finish",
            ] {
                w.call(name);
            }
            let (key, value) = (w.key(), w.value());
            w.change(vec![change(Kind::Put(key.clone(), value.clone()))], true, |_| {
                let mut ingest = d.begin_ingest()?;
                ingest.push(key, value)?;
                assert!(ingest.written() < 1 << 20);
                ingest.finish().map(drop)
            })?;
            // One ingest has no tuples, and one is abandoned.
            assert_eq!(w.ok(d.ingest(Vec::<(Vec<u8>, Vec<u8>)>::new()))?.tuples, 0);
            if let Some(mut given_up) = w.unless_full(d.begin_ingest())? {
                w.unless_full(given_up.push("k", "given up"))?;
            }
            Ok(())
        }
    }
}

fn ingest(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    let from = w.random.below(150);
    let count = 1 + w.random.below(80);
    let tuples: Vec<(Vec<u8>, Vec<u8>)> =
        (from..from + count).map(|i| (format!("k{i:03}").into_bytes(), w.value())).collect();
    let change = |(k, v): (Vec<u8>, Vec<u8>)| Change {
        branch: branch.clone(),
        dict: dict.clone(),
        kind: Kind::Put(k, v),
    };
    let changes = tuples.iter().cloned().map(change).collect();
    for name in ["Kvdb::ingest", "Kvdb::begin_ingest"] {
        w.call(name);
    }
    w.change(changes, true, |w| w.db.ingest(id, tuples).map(drop))?;
    // An ingest of unsorted keys changes nothing.
    let Some(mut wrong) = w.unless_full(w.db.begin_ingest(id))? else { return Ok(()) };
    let pushed = wrong.push("k2", "wrong");
    if w.unless_full(pushed)?.is_none() {
        return Ok(());
    }
    assert!(matches!(wrong.push("k1", "wrong"), Err(Error::Invalid(_))));
    Ok(())
}
