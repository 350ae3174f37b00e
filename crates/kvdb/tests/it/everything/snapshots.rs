//! Operations on snapshots and branches: differences, rollbacks, clones, and streams between
//! stores.

use std::sync::Arc;
use std::time::Duration;

use kvdb::{Durability, Error, Kvdb, ReceiveOptions, Received};

use super::oracle::{Branch, ManifestState, branch_of};
use super::reads::everything;
use super::world::{Dead, World};

pub fn snapshot(w: &mut World) -> Result<(), Dead> {
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
    for name in [
        "Kvdb::snapshots",
        "Kvdb::snapshot_label",
        "Kvdb::snapshot_labels",
        "Kvdb::open_snapshot",
        "View::difference",
    ] {
        w.call(name);
    }
    let made = w.db.snapshots().into_iter().find(|s| s.name == name && s.branch == branch);
    let label = w.db.snapshot_label(&name);
    assert_eq!(made.as_ref().map(|s| s.id), label.as_ref().map(|label| label.id), "{}", w.what());
    assert!(label.is_some_and(|label| w.db.snapshot_labels().contains(&label)), "{}", w.what());
    w.call("Kvdb::wall_clock");
    // Snapshots of one tick of the clock are dated a nanosecond apart, the store's own as well.
    let behind = w.db.wall_clock() + Duration::from_micros(1);
    assert!(made.is_some_and(|s| s.created < behind));
    w.call("Kvdb::random");
    assert_ne!(w.db.random(), w.db.random());
    assert!(matches!(w.db.snapshot_of(&branch, &name, durability), Err(Error::Exists(_))));
    differences(w)
}

/// Compares a snapshot with the current state.
pub fn differences(w: &mut World) -> Result<(), Dead> {
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

pub fn drop_snapshot(w: &mut World) -> Result<(), Dead> {
    let Some((name, _)) = pick_snapshot(w) else { return Ok(()) };
    w.call("Kvdb::drop_snapshot");
    w.alter(|state| drop(state.snapshots.remove(&name)), |w| w.db.drop_snapshot(&name))?;
    assert!(matches!(w.db.drop_snapshot(&name), Err(Error::NoSnapshot(_))));
    Ok(())
}

pub fn rollback(w: &mut World) -> Result<(), Dead> {
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

pub fn clone(w: &mut World) -> Result<(), Dead> {
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

fn pick_clone(w: &mut World) -> Option<String> {
    let names: Vec<String> =
        w.history.newest().branches.keys().filter(|name| !name.is_empty()).cloned().collect();
    names.get(w.random.below(names.len().max(1) as u64) as usize).cloned()
}

/// A limit that is never reached, so that all commits check it, and that a crash may undo.
pub fn limit(w: &mut World) -> Result<(), Dead> {
    let Some(name) = pick_clone(w) else { return Ok(()) };
    w.call("Kvdb::limit_branch");
    let bytes = (1 << 40) + w.random.below(1 << 40);
    let limit = (w.random.below(4) > 0).then_some(bytes);
    let done = w.db.limit_branch(&name, limit);
    if w.unless_full(done)?.is_none() {
        return Ok(());
    }
    let files = (w.random.below(4) > 0).then(|| w.random.below(1 << 20));
    w.call("Kvdb::limit_files");
    let done = w.db.limit_files(&name, files);
    let limited = w.unless_full(done)?.is_some();
    for name in [
        "Kvdb::limit_of",
        "Kvdb::make_room_for",
        "Kvdb::has_branch",
        "Kvdb::limit_of_files",
        "Kvdb::states_beneath",
    ] {
        w.call(name);
    }
    assert!(w.db.has_branch(&name), "{}", w.what());
    let content = w.history.newest().branches[&name].clone();
    for dict in content.keys() {
        let dict = w.db.dictionary_in(&name, dict).expect("the history has it");
        let found = w.db.limit_of(dict);
        assert_eq!(found.map(|(_, found)| found.bytes), limit, "{}", w.what());
        if limited {
            let found = w.db.limit_of_files(dict);
            assert_eq!(found, files.map(|files| (name.clone(), files)), "{}", w.what());
        }
        assert!(w.db.states_beneath(dict).is_some(), "{}", w.what());
        let room = w.db.make_room_for(dict);
        w.unless_full(room)?;
    }
    Ok(())
}

/// Keeps a state that a clone and its parent branch have in common, takes over the changes in a
/// transaction, checks the result, and drops it. Other readers see no change.
pub fn in_common(w: &mut World) -> Result<(), Dead> {
    let Some(name) = pick_clone(w) else { return Ok(()) };
    w.call("Kvdb::lineage");
    let Ok(lineage) = w.db.lineage(&name) else { return Ok(()) };
    assert!(w.history.newest().branches.contains_key(&lineage.parent), "{}", w.what());
    for name in ["Kvdb::keep_common_state", "Kvdb::common_state", "Kvdb::drop_common_states"] {
        w.call(name);
    }
    let mark = w.random.below(u64::MAX);
    let kept = w.db.keep_common_state(&name, &name, mark);
    if w.unless_full(kept)?.is_none() {
        return Ok(());
    }
    let state = w.ok(w.db.common_state(&name, mark))?;
    assert!(w.ok(w.db.lineage(&name))?.kept.contains(&mark), "{}", w.what());
    for name in ["Transaction::carry", "View::difference_between"] {
        w.call(name);
    }
    let content = w.history.newest().branches[&name].clone();
    for dict in content.keys() {
        let (Some(was), Some(is)) = (lineage.origin.dictionary(dict), state.dictionary(dict))
        else {
            continue;
        };
        let whole = w.ok(lineage.origin.difference(was, &state, is))?.count();
        let all = lineage.origin.difference_between(was, &state, is, (b"", b"\xff\xff\xff"));
        assert!(w.ok(all)?.count() <= whole, "{}", w.what());
        let Some(into) = w.db.dictionary_in(&lineage.parent, dict) else { continue };
        let options = kvdb::TransactionOptions {
            branch: lineage.parent.clone(),
            lock_timeout: std::time::Duration::ZERO,
            ..Default::default()
        };
        let t = w.ok(w.db.begin_with(options))?;
        let ends = ((&lineage.origin, was), (&state, is));
        let carried = t.carry(ends.0, ends.1, into, &mut |_| kvdb::Settled::Taken);
        if let Some(clashes) = w.unless_full(carried)? {
            assert_eq!(clashes, Vec::<bytes::Bytes>::new(), "{}", w.what());
        }
        t.abort();
    }
    let dropped = w.db.drop_common_states(&name, &[]);
    w.unless_full(dropped).map(drop)
}

pub fn drop_branch(w: &mut World) -> Result<(), Dead> {
    let Some(name) = pick_clone(w) else { return Ok(()) };
    w.call("Kvdb::drop_branch");
    w.alter(|state| drop(state.branches.remove(&name)), |w| w.db.drop_branch(&name))?;
    w.replaced(&name, "");
    Ok(())
}

/// Sends the snapshot to another store, with a stream that is cut off at first, and back as a
/// branch.
pub fn send(w: &mut World) -> Result<(), Dead> {
    let Some((name, (branch, content))) = pick_snapshot(w) else { return Ok(()) };
    for name in [
        "Kvdb::send",
        "Kvdb::may_send",
        "Kvdb::receive",
        "Kvdb::receive_within",
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
        // Ballast takes long to send and tests nothing.
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
            w.ok(w.db.may_send(&name, None, Some(&from)))?;
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
    // The copy changes there and is sent back.
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
        |w| {
            let last = |replace: &mut dyn FnMut() -> kvdb::Result<()>| replace();
            w.db.receive_within(&stream[..], &options, last).map(drop)
        },
    )?;
    if !came {
        return everything(w);
    }
    w.replaced(&back, "");
    assert_eq!(w.ok(branch_of(&w.db.view(), &back))?, content, "{}: what came back", w.what());
    Ok(())
}
