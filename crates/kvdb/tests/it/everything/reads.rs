//! Operations that read the store and compare the results: gets, scans, cursors, held views, and
//! the places of values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{Batch, CommittedKey, Durability, Error, Scope, StoredValue, ZoneInfo, ZoneState};

use super::oracle::{BALLAST, Change, Kind, ManifestState, observe, seen, tuples};
use super::world::{Dead, World};

pub fn read(w: &mut World) -> Result<(), Dead> {
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
        "View::announce_by_place",
        "View::estimate",
        "View::dictionaries",
        "View::dictionaries_in",
        "View::dictionary_info",
        "View::mark_of",
        "Kvdb::dictionary_info",
    ] {
        w.call(name);
    }
    let table = w.history.newest().table(&branch, &dict).cloned().unwrap_or_default();
    let keys: Vec<Vec<u8>> = (0..5).map(|_| w.key()).collect();
    let want: Vec<Option<Vec<u8>>> = keys.iter().map(|key| table.get(key).cloned()).collect();
    let view = w.db.view();
    let of_branch = view.dictionaries().into_iter().filter(|info| info.branch == branch);
    assert_eq!(view.dictionaries_in(&branch), of_branch.collect::<Vec<_>>(), "{}", w.what());
    assert!(view.mark_of(id).is_some(), "{}", w.what());
    let info = w.db.dictionary_info(id).map(|info| (info.branch, info.name));
    assert_eq!(info, Some((branch.clone(), dict.clone())), "{}", w.what());
    let info = view.dictionary_info(id).map(|info| (info.branch, info.name));
    assert_eq!(info, Some((branch.clone(), dict.clone())), "{}", w.what());
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
        let announced = w.ok(view.announce_by_place(id, &[(&a, &b)], u64::MAX))?;
        assert_eq!(announced.len(), 1, "{}", w.what());
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
        // Reads in reverse, with an estimate of the number of tuples.
        cursor.will_visit(want.len() / 2);
        w.ok(cursor.seek_to_end())?;
        let mut walked = Vec::new();
        w.ok(cursor.visit(true, |tuple| {
            walked.push((tuple.key.to_vec(), tuple.with_value(<[u8]>::to_vec)?));
            Ok::<_, kvdb::Error>(ControlFlow::Continue(()))
        }))?;
        walked.reverse();
        assert_eq!(walked, want, "{}", w.what());
        // Keys alone, from the end to the start.
        let mut cursor = w.ok(view.cursor(id, &a, &b))?.keys_only();
        w.ok(cursor.seek_to_end())?;
        let mut keys = Vec::new();
        while let Some(tuple) = w.ok(cursor.prev())? {
            keys.push(tuple.key.to_vec());
        }
        assert!(keys.iter().rev().eq(want.iter().map(|(k, _)| k)), "{}", w.what());
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
    for name in ["Kvdb::rank", "Kvdb::select", "Kvdb::count"] {
        w.call(name);
    }
    let counted = w.ok(w.db.count(&view, id, a.clone()..b.clone()))?;
    assert_eq!(counted, want.len() as u64, "{}", w.what());
    let rank = w.ok(w.db.rank::<Vec<u8>>(&view, id, .., &a))?;
    assert_eq!(rank, table.range(..a.clone()).count() as u64, "{}", w.what());
    let nth = w.ok(w.db.select::<Vec<u8>>(&view, id, .., rank))?;
    assert_eq!(
        nth.map(|key| key.to_vec()).as_ref(),
        table.range(a.clone()..).next().map(|(key, _)| key),
        "{}",
        w.what()
    );
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
    for name in ["Kvdb::stats", "Kvdb::space", "Kvdb::defrag_progress", "Kvdb::zone_map"] {
        w.call(name);
    }
    zones_make_sense(&w.db.zone_map(), &w.what());
    assert!(w.db.space().free <= w.db.space().total);
    assert!(!w.db.defrag_progress().running);
    assert!(w.db.stats().write_amplification() >= 0.0);
    Ok(())
}

/// Zones that are in use and no others have bytes and an age, and no two are equally old.
fn zones_make_sense(map: &[ZoneInfo], what: &str) {
    let mut ages = BTreeSet::new();
    for (number, zone) in map.iter().enumerate() {
        let used = matches!(zone.state, ZoneState::Open | ZoneState::Held);
        assert_eq!(number == 0, zone.state == ZoneState::Superblock, "{what}: {zone:?}");
        assert!(zone.live <= zones::ZONE_SIZE, "{what}: zone {number}: {zone:?}");
        let bare = zone.live == 0 && zone.purpose.is_none() && zone.age.is_none();
        assert!(used || bare, "{what}: zone {number} is free: {zone:?}");
        assert!(zone.age.is_none_or(|age| ages.insert(age)), "{what}: zone {number}: {zone:?}");
    }
}

/// Holds views and scopes on them, which must always show the same content.
pub fn views(w: &mut World) -> Result<(), Dead> {
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
pub fn stored(w: &mut World) -> Result<(), Dead> {
    let (Some((branch, dict, id)), Some((to_branch, to_dict, to))) = (w.place(), w.place()) else {
        return Ok(());
    };
    for name in [
        "View::stored",
        "View::scan_stored",
        "StoredValue::len",
        "StoredValue::copied",
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
    assert!(value.as_ref().is_none_or(|value| [0, value.len()].contains(&value.copied())));
    let mut all = w.ok(view.scan_stored(id, &key, b"", 3))?;
    assert_eq!(all.len(), table.range(key.clone()..).take(3).count(), "{}", w.what());
    let mut cursor = w.ok(view.cursor(id, &key, b""))?;
    if let Some(tuple) = w.ok(cursor.next())? {
        all.push((tuple.key.clone(), StoredValue::of(&tuple, &view).unwrap()));
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
    // An empty synced commit syncs the commits before it.
    w.change(changes, durability == Durability::Synced, |w| w.db.commit(batch, durability))
}

/// Compares the whole content of the store.
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

/// The keys of recent commits to a branch are those that were changed.
pub fn recent_commits(w: &mut World) -> Result<(), Dead> {
    for name in [
        "Kvdb::follow_commits",
        "Kvdb::follow_commits_with",
        "Kvdb::follow_branch",
        "Kvdb::commits_since",
        "Kvdb::wait_for_commits",
    ] {
        w.call(name);
    }
    // Some histories ask for commits that are no longer kept.
    let bytes = if w.seed.is_multiple_of(3) { 4 << 10 } else { 1 << 20 };
    let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
    let branch = w.random.pick(&branches).expect("the main one").clone();
    let newest = match (w.random.below(3), branch.is_empty()) {
        (0, true) => w.db.follow_commits(bytes),
        (1, true) => w.db.follow_commits_with(bytes, &[]),
        _ => w.ok(w.db.follow_branch(&branch, bytes, &[]))?,
    };
    let none = w.db.follow_branch("no such branch", bytes, &[]);
    assert!(matches!(none, Err(kvdb::Error::NoBranch(_))), "{}: {none:?}", w.what());
    let followed = w.followed.insert(branch.clone(), (newest, w.committed.len()));
    let Some((mut since, index)) = followed else { return Ok(()) };
    let (mut listed, most) = (Vec::new(), w.random.below(40) as usize);
    while since != newest {
        let Some(recent) = w.db.commits_since(since, most) else {
            assert!(w.db.wait_for_commits(since, Duration::ZERO), "{}: it says so", w.what());
            return Ok(());
        };
        for commit in &recent.commits {
            assert!(since.number < commit.number, "{}: in their order", w.what());
            assert!(commit.number <= newest.number, "{}: none is newer", w.what());
            listed.extend(commit.changes.iter().cloned());
        }
        assert!(since < recent.up_to, "{}: it goes on", w.what());
        since = recent.up_to;
    }
    assert!(!w.db.wait_for_commits(newest, Duration::ZERO), "{}: that was all", w.what());
    let names: BTreeMap<_, _> =
        w.db.dictionaries_in(&branch).into_iter().map(|info| (info.id, info.name)).collect();
    let told = |dict: &str, key: &[u8]| {
        listed.iter().any(|(id, touched)| {
            let of = names.get(id).is_some_and(|name| name == dict);
            of && match touched {
                CommittedKey::Put(at) | CommittedKey::Delete(at) => at == key,
                CommittedKey::DeleteRange(start, end) => (&start[..]..&end[..]).contains(&key),
                CommittedKey::Unlisted => false,
            }
        })
    };
    let changed: Vec<&Change> =
        w.committed[index..].iter().filter(|change| change.branch == branch).collect();
    for number in 0..150 {
        let key = format!("k{number:03}").into_bytes();
        for change in changes_at(&changed, None, &key) {
            assert!(told(&change.dict, &key), "{}: {change:?} is not listed", w.what());
        }
    }
    for (id, touched) in &listed {
        let Some(name) = names.get(id).filter(|name| *name != BALLAST) else { continue };
        if let CommittedKey::Put(key) | CommittedKey::Delete(key) = touched {
            let found = changes_at(&changed, Some(name), key).next().is_some();
            assert!(found, "{}: {name} {touched:?} was not changed", w.what());
        }
    }
    Ok(())
}

/// The changes of a key, in one dictionary or in any.
fn changes_at<'a>(
    all: &'a [&Change],
    dict: Option<&'a str>,
    key: &'a [u8],
) -> impl Iterator<Item = &'a Change> {
    let at = |change: &Change| Change {
        kind: Kind::Delete(key.to_vec()),
        branch: change.branch.clone(),
        dict: change.dict.clone(),
    };
    all.iter()
        .copied()
        .filter(move |change| dict.is_none_or(|dict| change.dict == dict))
        .filter(move |change| change.meets(&at(change)))
}
