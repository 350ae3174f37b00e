//! The table of operations: each does something to the store and to what it must hold, and compares
//! every answer.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{
    Batch, Compression, CreateOptions, DefragOptions, DictionaryOptions, Durability, Error, Kvdb,
    MergeRoutine, Merged, OpenOptions, ReceiveOptions, Received, Scope, ScrubOptions, StoredValue,
};
use zones::MemoryDevice;

use crate::full;
use crate::oracle::{Branch, Change, Kind, ManifestState, branch_of, observe, seen, tuples};
use crate::transactions;
use crate::world::{Dead, World};

type Run = fn(&mut World) -> Result<(), Dead>;

/// Name, how often, and what is done.
pub const OPERATIONS: &[(&str, u64, Run)] = &[
    ("put", 8, put),
    ("batch", 14, batch),
    ("dictionary", 8, dictionary),
    ("read", 6, read),
    ("views", 3, views),
    ("stored", 3, stored),
    ("ingest", 3, ingest),
    ("begin", 4, transactions::begin),
    ("work", 24, transactions::work),
    ("end", 4, transactions::end),
    ("serializable", 2, transactions::serializable),
    ("snapshot", 3, snapshot),
    ("drop snapshot", 2, drop_snapshot),
    ("rollback", 1, rollback),
    ("clone", 1, clone),
    ("drop branch", 1, drop_branch),
    ("send and receive", 1, send),
    ("make and drop dictionaries", 2, dictionaries),
    ("maintenance", 6, maintenance),
    ("time", 6, time),
    ("sync", 3, sync),
    ("checkpoint", 1, checkpoint),
    ("files", 1, files),
    ("fill", 6, full::fill),
    ("drain", 4, full::drain),
    ("compare everything", 2, everything),
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
    let (changes, mut batch) = w.batch(&[a, b], true);
    if w.random.one_in(6) {
        w.call("Batch::releases_space");
        batch.releases_space();
    }
    if w.random.one_in(3) {
        w.call("Batch::sync_follows");
        batch.sync_follows();
    }
    let durability = w.durability();
    w.call("Kvdb::commit");
    w.change(changes, durability == Durability::Synced, |w| w.db.commit(batch, durability))
}

/// By a dictionary in hand.
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
            // Of nothing, and one that is given up.
            assert_eq!(w.ok(d.ingest(Vec::<(Vec<u8>, Vec<u8>)>::new()))?.tuples, 0);
            if let Some(mut given_up) = w.unless_full(d.begin_ingest())? {
                w.unless_full(given_up.push("k", "given up"))?;
            }
            Ok(())
        }
    }
}

fn read(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    for name in [
        "Kvdb::get",
        "Kvdb::multi_get",
        "Kvdb::view",
        "View::get",
        "View::value_len",
        "View::contains",
        "View::multi_get",
    ] {
        w.call(name);
    }
    for name in [
        "View::iter",
        "View::range",
        "View::prefix",
        "View::scan",
        "View::cursor",
        "View::for_each",
        "View::estimate",
        "View::dictionaries",
    ] {
        w.call(name);
    }
    let table = w.history.newest().table(&branch, &dict).cloned().unwrap_or_default();
    let keys: Vec<Vec<u8>> = (0..5).map(|_| w.key()).collect();
    let want: Vec<Option<Vec<u8>>> = keys.iter().map(|key| table.get(key).cloned()).collect();
    let view = w.db.view();
    let plain = |found: Vec<Option<bytes::Bytes>>| {
        found.into_iter().map(|v| v.map(|v| v.to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(plain(w.ok(w.db.multi_get(id, &keys))?), want, "{}", w.what());
    assert_eq!(plain(w.ok(view.multi_get(id, &keys))?), want, "{}", w.what());
    for (key, want) in keys.iter().zip(&want) {
        assert_eq!(w.ok(w.db.get(id, key))?.map(|v| v.to_vec()), *want, "{}", w.what());
        assert_eq!(w.ok(view.get(id, key))?.map(|v| v.to_vec()), *want, "{}", w.what());
        assert_eq!(w.ok(view.value_len(id, key))?, want.as_ref().map(Vec::len), "{}", w.what());
        assert_eq!(w.ok(view.contains(id, key))?, want.is_some(), "{}", w.what());
    }
    let (a, b) = (keys[0].clone().min(keys[1].clone()), keys[0].clone().max(keys[1].clone()));
    let want: Vec<(Vec<u8>, Vec<u8>)> =
        table.range(a.clone()..b.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let plain = |all: Vec<(bytes::Bytes, bytes::Bytes)>| {
        all.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Vec<_>>()
    };
    assert_eq!(plain(w.ok(view.range(id, a.clone()..b.clone()).collect())?), want, "{}", w.what());
    if a < b {
        assert_eq!(plain(w.ok(view.scan(id, &a, &b, usize::MAX))?), want, "{}", w.what());
        let mut walked = Vec::new();
        w.ok(view.for_each(id, &a, &b, |key, value| {
            walked.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        }))?;
        assert_eq!(walked, want, "{}", w.what());
        let mut cursor = w.ok(view.cursor(id, &a, &b))?;
        w.ok(cursor.seek_to_end())?;
        let last = w.ok(cursor.prev())?;
        assert_eq!(
            last.map(|t| t.key.to_vec()),
            want.last().map(|(k, _)| k.clone()),
            "{}",
            w.what()
        );
    }
    assert_eq!(
        w.ok(view.iter(id).collect::<kvdb::Result<Vec<_>>>())?.len(),
        table.len(),
        "{}",
        w.what()
    );
    assert_eq!(
        view.prefix(id, "k0").count(),
        table.keys().filter(|k| k.starts_with(b"k0")).count(),
        "{}",
        w.what()
    );
    let all = w.ok(view.estimate::<Vec<u8>>(id, ..))?;
    assert!(table.len() as u64 <= all.items + all.items_error, "{}: {all:?}", w.what());
    assert!(view.dictionaries().iter().any(|info| info.id == id));
    for name in [
        "View::dictionary",
        "View::dictionary_in",
        "Kvdb::dictionaries",
        "Kvdb::dictionaries_in",
        "Kvdb::branches",
        "Kvdb::takes_writes",
    ] {
        w.call(name);
    }
    assert_eq!(view.dictionary_in(&branch, &dict), Some(id));
    assert_eq!(view.dictionary("no such one"), None);
    assert_eq!(w.db.dictionaries().len(), w.db.dictionaries_in("").len());
    w.ok(w.db.takes_writes())?;
    for name in ["Kvdb::stats", "Kvdb::space", "Kvdb::defrag_progress"] {
        w.call(name);
    }
    assert!(w.db.space().free <= w.db.space().total);
    assert!(!w.db.defrag_progress().running);
    assert!(w.db.stats().write_amplification() >= 0.0);
    Ok(())
}

/// Views, and scopes on them, are held, and show the same for ever.
fn views(w: &mut World) -> Result<(), Dead> {
    if w.views.len() < 4 {
        let state = ManifestState {
            branches: w.history.newest().branches.clone(),
            ..ManifestState::default()
        };
        w.views.push((w.db.view(), state));
        return Ok(());
    }
    let at = w.random.below(4) as usize;
    let (view, state) = w.views.swap_remove(at);
    let found = w.ok(seen(&view, &state))?;
    assert!(found == state, "{}: a view that was held: {}", w.what(), found.differs(&state));
    let scope = Scope::Frozen(view);
    assert!(!scope.writable());
    assert!(matches!(scope.apply(Batch::new(), Durability::Buffered), Err(Error::ReadOnly(_))));
    Ok(())
}

/// Values are put under other keys where they are stored.
fn stored(w: &mut World) -> Result<(), Dead> {
    let (Some((branch, dict, id)), Some((to_branch, to_dict, to))) = (w.place(), w.place()) else {
        return Ok(());
    };
    for name in [
        "View::stored",
        "View::scan_stored",
        "StoredValue::len",
        "StoredValue::of",
        "StoredTuple::stored",
        "Batch::put_stored",
    ] {
        w.call(name);
    }
    let table = w.history.newest().table(&branch, &dict).cloned().unwrap_or_default();
    let view = Arc::new(w.db.view());
    let (key, new) = (w.key(), w.key());
    let value = w.ok(view.stored(id, &key))?;
    assert_eq!(value.as_ref().map(StoredValue::len), table.get(&key).map(Vec::len), "{}", w.what());
    let mut all = w.ok(view.scan_stored(id, &key, b"", 3))?;
    assert_eq!(all.len(), table.range(key.clone()..).take(3).count(), "{}", w.what());
    let mut cursor = w.ok(view.cursor(id, &key, b""))?;
    if let Some(tuple) = w.ok(cursor.next())? {
        all.push((tuple.key.clone(), StoredValue::of(&tuple, &view)));
    }
    let mut tuples = w.ok(view.stored_tuples(id))?;
    tuples.seek(&key);
    if w.ok(tuples.advance())?
        && let Some(tuple) = tuples.current()
    {
        all.push((bytes::Bytes::copy_from_slice(tuple.key), tuple.stored(&view)));
    }
    let mut batch = Batch::new();
    let mut changes = Vec::new();
    for (i, (key, value)) in all.into_iter().enumerate() {
        let name = [&new[..], &[b'a' + i as u8]].concat();
        batch.put_stored(to, name.clone(), value);
        let kind = Kind::Put(name, table[&key[..]].clone());
        changes.push(Change { branch: to_branch.clone(), dict: to_dict.clone(), kind });
    }
    drop((cursor, tuples, view));
    let durability = w.durability();
    // One of nothing syncs what was before.
    w.change(changes, durability == Durability::Synced, |w| w.db.commit(batch, durability))
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
    // What is not sorted changes nothing.
    let Some(mut wrong) = w.unless_full(w.db.begin_ingest(id))? else { return Ok(()) };
    let pushed = wrong.push("k2", "wrong");
    if w.unless_full(pushed)?.is_none() {
        return Ok(());
    }
    assert!(matches!(wrong.push("k1", "wrong"), Err(Error::Invalid(_))));
    Ok(())
}

fn snapshot(w: &mut World) -> Result<(), Dead> {
    if w.history.newest().snapshots.len() >= 5 {
        return drop_snapshot(w);
    }
    let name = w.new_name('s');
    let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
    let branch = branches[w.random.below(branches.len() as u64) as usize].clone();
    let durability = w.durability();
    let content = w.history.newest().branches[&branch].clone();
    w.history
        .attempt(|state| drop(state.snapshots.insert(name.clone(), (branch.clone(), content))));
    let done = if branch.is_empty() && durability == Durability::Synced {
        w.call("Kvdb::snapshot");
        w.db.snapshot(&name)
    } else {
        w.call("Kvdb::snapshot_of");
        w.db.snapshot_of(&branch, &name, durability)
    };
    if w.unless_full(done)?.is_none() {
        w.history.refused();
        return Ok(());
    }
    if durability == Durability::Synced {
        w.history.certain();
    }
    for name in ["Kvdb::snapshots", "Kvdb::open_snapshot", "View::difference"] {
        w.call(name);
    }
    assert!(w.db.snapshots().iter().any(|s| s.name == name && s.branch == branch));
    assert!(matches!(w.db.snapshot_of(&branch, &name, durability), Err(Error::Exists(_))));
    differences(w)
}

/// What differs between a snapshot and now.
fn differences(w: &mut World) -> Result<(), Dead> {
    let Some((name, (branch, content))) = pick_snapshot(w) else { return Ok(()) };
    let (before, after) = (w.ok(w.db.open_snapshot(&name))?, w.db.view());
    let Some(now) = w.history.newest().branches.get(&branch).cloned() else { return Ok(()) };
    for (dict, old) in &content {
        let (Some(a), Some(b), Some(new)) =
            (before.dictionary(dict), after.dictionary_in(&branch, dict), now.get(dict))
        else {
            continue;
        };
        let mut keys: Vec<&Vec<u8>> =
            old.keys().chain(new.keys()).filter(|k| old.get(*k) != new.get(*k)).collect();
        keys.sort();
        keys.dedup();
        let found =
            w.ok(w.ok(before.difference(a, &after, b))?.collect::<kvdb::Result<Vec<_>>>())?;
        let found: Vec<Vec<u8>> = found.iter().map(|c| c.key.to_vec()).collect();
        let wrong = |key: &&Vec<u8>| found.contains(key) != (old.get(*key) != new.get(*key));
        let wrong: Vec<_> = found
            .iter()
            .chain(old.keys())
            .chain(new.keys())
            .filter(wrong)
            .map(|k| (k, found.contains(k)))
            .collect();
        assert!(
            wrong.is_empty() && found.len() == keys.len(),
            "{}: from {name} to {branch:?} now, {dict}: {wrong:?}",
            w.what()
        );
    }
    Ok(())
}

fn pick_snapshot(w: &mut World) -> Option<(String, (String, Branch))> {
    let all: Vec<_> =
        w.history.newest().snapshots.iter().map(|(name, of)| (name.clone(), of.clone())).collect();
    all.get(w.random.below(all.len().max(1) as u64) as usize).cloned()
}

fn drop_snapshot(w: &mut World) -> Result<(), Dead> {
    let Some((name, _)) = pick_snapshot(w) else { return Ok(()) };
    w.call("Kvdb::drop_snapshot");
    w.alter(|state| drop(state.snapshots.remove(&name)), |w| w.db.drop_snapshot(&name))?;
    assert!(matches!(w.db.drop_snapshot(&name), Err(Error::NoSnapshot(_))));
    Ok(())
}

fn rollback(w: &mut World) -> Result<(), Dead> {
    let Some((name, (branch, content))) = pick_snapshot(w) else { return Ok(()) };
    w.call("Kvdb::rollback");
    let alter = |state: &mut ManifestState| {
        state.branches.insert(branch.clone(), content.clone());
        state.snapshots.insert(name.clone(), (branch.clone(), content.clone()));
    };
    if !w.add(alter, |w| w.db.rollback(&name))? {
        return everything(w);
    }
    w.replaced(&branch, "");
    everything(w)
}

fn clone(w: &mut World) -> Result<(), Dead> {
    if w.history.newest().branches.len() >= 4 {
        return drop_branch(w);
    }
    let name = w.new_name('b');
    if w.random.one_in(4) {
        w.call("Kvdb::create_branch");
        if !w.add(
            |state| drop(state.branches.insert(name.clone(), Branch::new())),
            |w| w.db.create_branch(&name),
        )? {
            return Ok(());
        }
    } else {
        let Some((snapshot, of)) = pick_snapshot(w) else { return Ok(()) };
        w.call("Kvdb::clone_snapshot");
        let alter = |state: &mut ManifestState| {
            state.branches.insert(name.clone(), of.1.clone());
            state.snapshots.insert(snapshot.clone(), of.clone());
        };
        if !w.add(alter, |w| w.db.clone_snapshot(&snapshot, &name))? {
            return Ok(());
        }
    }
    w.replaced(&name, "");
    Ok(())
}

fn drop_branch(w: &mut World) -> Result<(), Dead> {
    let names: Vec<String> =
        w.history.newest().branches.keys().filter(|name| !name.is_empty()).cloned().collect();
    let Some(name) = names.get(w.random.below(names.len().max(1) as u64) as usize).cloned() else {
        return Ok(());
    };
    w.call("Kvdb::drop_branch");
    w.alter(|state| drop(state.branches.remove(&name)), |w| w.db.drop_branch(&name))?;
    w.replaced(&name, "");
    Ok(())
}

/// To another store, with a stream that is cut off at first; and back as a branch.
fn send(w: &mut World) -> Result<(), Dead> {
    let Some((name, (branch, content))) = pick_snapshot(w) else { return Ok(()) };
    for name in [
        "Kvdb::send",
        "Kvdb::receive",
        "Kvdb::receiving",
        "Kvdb::forget_received",
        "Kvdb::in_memory",
        "Received::to_bytes",
        "Received::from_bytes",
    ] {
        w.call(name);
    }
    let mut stream = Vec::new();
    w.ok(w.db.send(&name, None, &mut stream, None))?;
    if stream.len() > 8 << 20 {
        // Ballast, which takes long and says nothing.
        return Ok(());
    }
    let other = Kvdb::in_memory();
    let options = ReceiveOptions { branch: "came".into(), ..ReceiveOptions::default() };
    let cut = 1 + w.random.below(stream.len() as u64 - 1) as usize;
    assert!(
        other.receive(&stream[..cut], &options).is_err(),
        "{}: a stream that is cut off",
        w.what()
    );
    let so_far = other.receiving().expect("memory does not fail");
    match so_far.first() {
        Some(received) if w.random.one_in(3) => {
            other.forget_received(received).expect("it was there");
            other.receive(&stream[..], &options).expect("received");
        }
        Some(received) => {
            let from = Received::from_bytes(&received.to_bytes()).expect("as it was");
            let mut rest = Vec::new();
            w.ok(w.db.send(&name, None, &mut rest, Some(&from)))?;
            other.receive(&rest[..], &options).expect("received");
        }
        None => drop(other.receive(&stream[..], &options).expect("received")),
    }
    let came = branch_of(&other.view(), "came").expect("memory does not fail");
    assert!(came == content, "{}: what was sent of {branch:?}", w.what());
    if w.history.newest().branches.len() >= 4 {
        return Ok(());
    }
    // It goes its own way there, and comes back.
    let dict = other.open_dictionary_in("came", "a").expect("made");
    let value = w.value();
    dict.insert("back", value.clone()).expect("put");
    let back = w.new_name('r');
    other.snapshot_of("came", &back, Durability::Synced).expect("made");
    let mut stream = Vec::new();
    let base = w.random.one_in(2).then_some(name.as_str());
    other.send(&back, base, &mut stream, None).expect("sent");
    let mut content = content;
    Arc::make_mut(content.entry("a".into()).or_default()).insert(b"back".to_vec(), value);
    let options =
        ReceiveOptions { branch: back.clone(), replace: true, ..ReceiveOptions::default() };
    let state = content.clone();
    let came = w.add(
        |s| {
            s.branches.insert(back.clone(), state.clone());
            s.snapshots.insert(back.clone(), (back.clone(), state.clone()));
        },
        |w| w.db.receive(&stream[..], &options).map(drop),
    )?;
    if !came {
        return everything(w);
    }
    w.replaced(&back, "");
    assert_eq!(w.ok(branch_of(&w.db.view(), &back))?, content, "{}: what came back", w.what());
    Ok(())
}

fn dictionaries(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    if w.history.newest().branches[&branch].len() > 2 && w.random.one_in(3) {
        w.call("Kvdb::drop_dictionary");
        let gone = |state: &mut ManifestState| {
            drop(state.branches.get_mut(&branch).and_then(|b| b.remove(&dict)))
        };
        w.alter(gone, |w| w.db.drop_dictionary(id))?;
        w.replaced(&branch, &dict);
        return Ok(());
    }
    if w.random.one_in(4) {
        w.call("Kvdb::set_dictionary_options");
        let options = options(w);
        if w.unless_full(w.db.set_dictionary_options(id, options.clone()))?.is_none() {
            return Ok(());
        }
        let info = w.db.dictionaries_in(&branch).into_iter().find(|i| i.id == id);
        assert_eq!(info.map(|i| i.options), Some(options), "{}", w.what());
        return Ok(());
    }
    if w.random.one_in(3) {
        w.call("Kvdb::set_stitch_at");
        let bytes = [0, 4096, 64 << 10, u64::MAX, kvdb::ADAPTIVE][w.random.below(5) as usize];
        if w.unless_full(w.db.set_stitch_at(id, bytes))?.is_none() {
            return Ok(());
        }
        let info = w.db.dictionaries_in(&branch).into_iter().find(|i| i.id == id);
        assert_eq!(info.map(|i| i.options.stitch_at), Some(bytes), "{}", w.what());
        return Ok(());
    }
    if w.random.one_in(4) {
        // It does not run: changes that meet are compared elsewhere.
        struct Never;
        impl MergeRoutine for Never {
            fn merge(
                &self,
                _: &[u8],
                _: Option<&[u8]>,
                _: Option<&[u8]>,
                _: Option<&[u8]>,
            ) -> Merged {
                Merged::Conflict
            }
        }
        w.call("Kvdb::set_merge");
        w.db.set_merge(id, Arc::new(Never));
        return Ok(());
    }
    let name = ["a", "b", "c", "d"][w.random.below(4) as usize];
    if w.history.newest().table(&branch, name).is_some() {
        return Ok(());
    }
    let options = options(w);
    for name in
        ["Kvdb::create_dictionary", "Kvdb::create_dictionary_in", "Kvdb::open_dictionary_with"]
    {
        w.call(name);
    }
    let way = w.random.below(2);
    let made = |state: &mut ManifestState| {
        if let Some(dicts) = state.branches.get_mut(&branch) {
            dicts.entry(name.into()).or_default();
        }
    };
    let done = w.add(made, |w| match (branch.is_empty(), way) {
        (true, 0) => w.db.create_dictionary(name, options).map(drop),
        (true, _) => w.db.open_dictionary_with(name, options).map(drop),
        (false, _) => w.db.create_dictionary_in(&branch, name, options).map(drop),
    })?;
    if done {
        w.replaced(&branch, name);
    }
    Ok(())
}

fn options(w: &mut World) -> DictionaryOptions {
    let random = &mut w.random;
    DictionaryOptions {
        separate_at: [512, 2048, u32::MAX][random.below(3) as usize],
        compression: [Compression::None, Compression::Lz4, Compression::Zstd]
            [random.below(3) as usize],
        compress_values: [Compression::None, Compression::Lz4][random.below(2) as usize],
        false_positives: [0, 80][random.below(2) as usize],
        ..DictionaryOptions::default()
    }
}

fn maintenance(w: &mut World) -> Result<(), Dead> {
    let Some((_, _, id)) = w.place() else { return Ok(()) };
    match w.random.below(10) {
        0 => {
            w.call("Kvdb::flush");
            if w.unless_full(w.db.flush())?.is_some() {
                w.history.certain();
            }
        }
        1 => {
            w.call("Kvdb::compact");
            if w.unless_full(w.db.compact(id))?.is_some() {
                w.history.certain();
            }
        }
        2 => {
            w.call("Kvdb::compact_range");
            let (a, b) = w.range();
            let (a, b) = if a < b { (a, b) } else { (b, a) };
            w.unless_full(w.db.compact_range(id, a..b))?;
        }
        3 => {
            for name in ["Kvdb::defragment", "Kvdb::stop_defragment", "Kvdb::wait_for_defragment"] {
                w.call(name);
            }
            w.unless_full(
                w.db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() }),
            )?;
            w.db.stop_defragment();
            w.db.wait_for_defragment();
        }
        7 => {
            w.call("Kvdb::repair");
            let repaired = w.db.repair(|_| Ok::<_, kvdb::Error>(Batch::new()));
            let Some(report) = w.unless_full(repaired)? else { return Ok(()) };
            assert_eq!(report, kvdb::RepairReport::default(), "nothing is damaged");
            w.history.certain();
        }
        6 => {
            for name in [
                "Kvdb::scrub",
                "Kvdb::scrub_progress",
                "Kvdb::scrub_faults",
                "Kvdb::stop_scrub",
                "Kvdb::wait_for_scrub",
            ] {
                w.call(name);
            }
            w.ok(w.db.scrub(ScrubOptions::default()))?;
            w.db.wait_for_scrub();
            w.db.stop_scrub();
            // A device that fails is found to; damage there is none.
            let failed = |what: &str| what.contains("reading ");
            assert!(
                w.db.scrub_faults().iter().all(|fault| failed(&fault.what)),
                "{:?}",
                w.db.scrub_faults()
            );
            assert!(w.db.scrub_progress().complete);
        }
        4 => {
            w.call("Kvdb::reclaim");
            w.db.reclaim();
        }
        5 => {
            w.call("Kvdb::write_out");
            w.unless_full(w.db.write_out())?;
        }
        _ => {
            w.call("Kvdb::step");
            for _ in 0..w.random.below(20) {
                if w.unless_full(w.db.step())? != Some(true) {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn time(w: &mut World) -> Result<(), Dead> {
    w.env.advance(Duration::from_millis(w.random.below(60)));
    w.unless_full(w.db.step()).map(drop)
}

fn sync(w: &mut World) -> Result<(), Dead> {
    w.call("Kvdb::sync");
    let scope = Scope::Mainline(w.db.clone());
    let plain = w.random.one_in(2);
    w.ok(if plain { w.db.sync() } else { scope.sync() })?;
    w.history.certain();
    Ok(())
}

fn checkpoint(w: &mut World) -> Result<(), Dead> {
    w.call("Kvdb::checkpoint_to");
    let copy = Arc::new(MemoryDevice::new());
    if w.unless_full(w.db.checkpoint_to(copy.clone()))?.is_none() {
        return Ok(());
    }
    w.history.certain();
    w.call("Kvdb::open");
    let (db, _) =
        Kvdb::open(copy, w.env.clone(), OpenOptions { threads: false, ..OpenOptions::default() })
            .unwrap_or_else(|e| panic!("{}: a checkpoint: {e}", w.what()));
    let found = observe(&db).expect("memory does not fail");
    assert!(
        found == *w.history.newest(),
        "{}: a checkpoint: {}",
        w.what(),
        found.differs(w.history.newest())
    );
    Ok(())
}

/// Makes a checkpoint in a file, and opens stores in files.
fn files(w: &mut World) -> Result<(), Dead> {
    if !w.random.one_in(4) {
        return Ok(());
    }
    for name in [
        "Kvdb::checkpoint",
        "Kvdb::open_path",
        "Kvdb::open_path_with",
        "Kvdb::recover_path",
        "Kvdb::create_path",
    ] {
        w.call(name);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("copy.kvfs");
    if w.unless_full(w.db.checkpoint(&path))?.is_none() {
        return Ok(());
    }
    w.history.certain();
    let options = OpenOptions { threads: false, ..OpenOptions::default() };
    let whole = |db: &Kvdb, how: &str| {
        let found = observe(db).unwrap_or_else(|e| panic!("{}: {how}: {e}", w.what()));
        assert!(
            found == *w.history.newest(),
            "{}: {how}: {}",
            w.what(),
            found.differs(w.history.newest())
        );
    };
    whole(&Kvdb::open_path(&path).expect("it is a store"), "a checkpoint in a file");
    let (db, recovery) = Kvdb::recover_path(&path, options.clone()).expect("it is a store");
    assert!(recovery.clean);
    whole(&db, "the same, opened again");
    drop(db);
    whole(&Kvdb::open_path_with(&path, options.clone()).expect("it is a store"), "and once more");
    let new = Kvdb::create_path(
        dir.path().join("new.kvfs"),
        CreateOptions { open: options, ..CreateOptions::default() },
    );
    assert!(observe(&new.expect("made")).expect("it is empty").branches[""].is_empty());
    Ok(())
}

/// All that there is.
pub fn everything(w: &mut World) -> Result<(), Dead> {
    let found = w.ok(observe(&w.db))?;
    assert!(found == *w.history.newest(), "{}: {}", w.what(), found.differs(w.history.newest()));
    for (branch, dicts) in &found.branches {
        for (dict, table) in dicts {
            let id = w.db.dictionary_in(branch, dict).expect("it was listed");
            assert_eq!(w.ok(tuples(&w.db.view(), id))?, **table);
        }
    }
    Ok(())
}
