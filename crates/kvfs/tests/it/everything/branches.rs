//! Operations on snapshots, clones, rollbacks, streams and copies of the whole store.

use std::sync::Arc;
use std::time::Duration;

use kvdb::{
    Durability, ForkOptions, Kvdb, OpenOptions, ReceiveOptions, Received, RemoteStore, RemoteZones,
    TransactionOptions,
};
use kvfs::{
    Caller, Choice, FileKind, Fs, FsOptions, MergeForkOptions, MergeOptions, ROOT, ViewId, Views,
    difference_of_states,
};
use objects::MemoryObjects;
use zones::MemoryDevice;

use super::found::{Exactly, Found, is, keys_of, look};
use super::state::{State, branch_in, observe};
use super::tree::Tree;
use super::world::{Dead, Reader, Site, World, mainline};

pub fn any_snapshot(w: &mut World) -> Option<(String, String, Arc<Tree>)> {
    let all: Vec<_> = w
        .history
        .newest()
        .snapshots
        .iter()
        .map(|(name, (of, tree))| (name.clone(), of.clone(), tree.clone()))
        .collect();
    w.pick(&all)
}

pub fn snapshot(w: &mut World) -> Result<(), Dead> {
    if w.history.newest().snapshots.len() >= 4 {
        return drop_snapshot(w);
    }
    let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
    let of =
        if w.random.one_in(3) { w.pick(&branches).expect("the mainline") } else { String::new() };
    let (name, durability) = (w.new_name('s'), w.durability());
    w.note(format!("snapshot {name} of {of:?} {durability:?}"));
    let unsettled = w.history.newest().branches[&of].clone();
    w.settle(&of);
    let tree = w.history.newest().branches[&of].clone();
    w.history.attempt(|s| drop(s.snapshots.insert(name.clone(), (of.clone(), tree))));
    let view = w.view_of(&Site::Branch(of.clone()));
    w.call(&["Views::snapshot", "Views::snapshots", "Views::snapshot_labels"]);
    if let Err(e) = w.views.snapshot(&view, &name, durability) {
        w.judge(&mainline(), e, "snapshot", &[])?;
        w.history.refused();
        w.unsettle(&of, unsettled);
        return Ok(());
    }
    if durability == Durability::Synced {
        w.history.certain();
    }
    assert!(w.views.snapshots().iter().any(|s| s.name == name && s.branch == of), "{}", w.what());
    let labels = w.views.snapshot_labels();
    assert!(labels.iter().any(|s| s.name == name && s.branch == of), "{}", w.what());
    assert!(w.views.snapshot(&view, &name, durability).is_err(), "{}: twice", w.what());
    assert!(w.views.snapshot(&ViewId::Snapshot(name.clone()), "of", durability).is_err());
    Ok(())
}

/// Reads a snapshot, and lists the differences since.
pub fn see(w: &mut World) -> Result<(), Dead> {
    let Some((name, branch, tree)) = any_snapshot(w) else { return snapshot(w) };
    w.note(format!("see {name}"));
    let fs = w.ok(w.views.fs(&ViewId::Snapshot(name.clone())))?;
    let keys = w.stored(w.db.open_snapshot(&name).and_then(|state| keys_of(&state, "")))?;
    let found = Found { keys, ..w.ok(look(&fs))? };
    is(&tree, &found, Exactly::Now, &w.inos)
        .unwrap_or_else(|e| panic!("{}: snapshot {name}: {e}", w.what()));
    let refused = fs.mkdir(kvfs::ROOT, b"no", 0o755, Default::default());
    assert_eq!(refused.map_err(|e| e.errno()), Err(libc::EROFS), "{}", w.what());
    w.call(&["Views::difference_of_snapshots", "difference_of_states", "Views::all"]);
    let paths = |changes: kvfs::Difference| -> Vec<Vec<u8>> {
        let mut all: Vec<_> =
            changes.into_iter().filter(|c| !c.times_alone()).map(|c| c.path).collect();
        all.sort();
        all
    };
    if w.history.newest().branches.contains_key(&branch) {
        // Uncommitted changes are committed first.
        let differs = match w.views.difference_of_snapshots(&name, None, Default::default()) {
            Ok(differs) => differs,
            Err(e) => return w.judge(&mainline(), e, "difference_of_snapshots", &[]),
        };
        w.settle(&branch);
        assert_eq!(
            paths(differs),
            tree.differing(&w.history.newest().branches[&branch]),
            "{}: since {name}",
            w.what()
        );
    }
    let Some((other, _, then)) = any_snapshot(w) else { return Ok(()) };
    let differs = w.ok(w.views.difference_of_snapshots(&name, Some(&other), Default::default()))?;
    assert_eq!(paths(differs), tree.differing(&then), "{}: from {name} to {other}", w.what());
    let states = (w.stored(w.db.open_snapshot(&other))?, w.stored(w.db.open_snapshot(&name))?);
    let differs = w.ok(difference_of_states(&states.0, &states.1, Default::default()))?;
    assert_eq!(paths(differs), then.differing(&tree), "{}: from {other} to {name}", w.what());
    assert_eq!(
        w.views.all().len(),
        w.open.len() + w.history.newest().snapshots.len() + w.history.newest().branches.len() - 1
    );
    Ok(())
}

pub fn drop_snapshot(w: &mut World) -> Result<(), Dead> {
    let Some((name, ..)) = any_snapshot(w) else { return Ok(()) };
    w.note(format!("drop snapshot {name}"));
    w.call(&["Views::drop_snapshot"]);
    w.alter(|s| drop(s.snapshots.remove(&name)), |w| w.views.drop_snapshot(&name))?;
    w.written_before_a_drop();
    assert!(w.views.fs(&ViewId::Snapshot(name)).is_err(), "{}", w.what());
    Ok(())
}

pub fn clone(w: &mut World) -> Result<(), Dead> {
    if w.history.newest().branches.len() >= 4 {
        return drop_clone(w);
    }
    let Some((snapshot, of, tree)) = any_snapshot(w) else { return Ok(()) };
    let name = w.new_name('c');
    w.note(format!("clone {snapshot} as {name}"));
    let alter = |s: &mut State| {
        s.branches.insert(name.clone(), tree.clone());
        s.snapshots.insert(snapshot.clone(), (of.clone(), tree.clone()));
    };
    w.call(&["Views::clone_snapshot", "Views::clones"]);
    if w.add(alter, |w| w.views.clone_snapshot(&snapshot, &name))? {
        assert!(w.views.clones().iter().any(|b| b.name == name), "{}", w.what());
        w.numbers_of(&name);
    }
    Ok(())
}

impl World {
    /// The inode numbers that a branch, its snapshots, and its open transactions have when it is
    /// opened.
    pub fn numbers_of(&mut self, branch: &str) {
        let state = self.history.newest();
        let snapshots =
            state.snapshots.values().filter(|(of, _)| of == branch).map(|(_, tree)| &**tree);
        let trees = state.branches.get(branch).map(|tree| &**tree).into_iter().chain(snapshots);
        let mut ids: Vec<_> = trees.flat_map(|tree| tree.nodes.keys().copied()).collect();
        let durable = state.durable.iter().filter(|(label, _)| branch_in(label) == branch);
        let made =
            durable.flat_map(|(_, over)| over.nodes.iter().filter(|(_, node)| node.is_some()));
        ids.extend(made.map(|(id, _)| *id));
        let inos: Vec<_> = ids.iter().filter_map(|id| self.inos.get(id).copied()).collect();
        self.taken.entry(branch.into()).or_default().extend(inos);
    }
}

pub fn drop_clone(w: &mut World) -> Result<(), Dead> {
    let names: Vec<String> =
        w.history.newest().branches.keys().filter(|name| !name.is_empty()).cloned().collect();
    let Some(name) = w.pick(&names) else { return Ok(()) };
    w.note(format!("drop clone {name}"));
    let number = w.ok(w.views.number(&ViewId::Clone(name.clone())))?;
    w.call(&["Views::drop_clone"]);
    w.will_end_those_of(&name);
    let alter = |s: &mut State| {
        s.branches.remove(&name);
        s.durable.retain(|label, _| branch_in(label) != name);
    };
    let done = w.alter(alter, |w| w.views.drop_clone(&name))?;
    w.have_ended_those_of(&name);
    if done {
        w.view_is_over(&Site::Branch(name.clone()), number);
        w.taken.remove(&name);
        w.written_before_a_drop();
    }
    Ok(())
}

/// Prepares a merge or a rebase of a clone and checks it. Its tree is sound, and nothing else
/// changes.
pub fn merge(w: &mut World) -> Result<(), Dead> {
    let names: Vec<String> =
        w.history.newest().branches.keys().filter(|name| !name.is_empty()).cloned().collect();
    let Some(clone) = w.pick(&names) else { return Ok(()) };
    let choice = [None, Some(Choice::Ours), Some(Choice::Theirs), Some(Choice::Both)];
    let choice = choice[w.random.below(4) as usize];
    let options = MergeOptions {
        into: None,
        clone: clone.clone(),
        rebase: w.random.one_in(2),
        choices: choice.into_iter().map(|choice| (Vec::new(), choice)).collect(),
        dry_run: true,
        transaction: TransactionOptions { lock_timeout: Duration::ZERO, ..Default::default() },
    };
    w.note(format!("merge {clone}, rebase {}, {choice:?}", options.rebase));
    w.call(&["Views::merge"]);
    let Ok(lineage) = w.db.lineage(&clone) else {
        let refused = w.views.merge(&options, &|_, _| kvdb::Settled::Conflict);
        assert!(refused.is_err(), "{}: it has nothing in common", w.what());
        return Ok(());
    };
    let sides = [clone, lineage.parent];
    let unsettled = sides.clone().map(|side| w.history.newest().branches[&side].clone());
    sides.iter().for_each(|side| w.settle(side));
    let merged = match w.views.merge(&options, &|_, _| kvdb::Settled::Conflict) {
        Ok(merged) => merged,
        Err(e) => {
            w.judge(&mainline(), e, "merge", &[])?;
            for (side, before) in sides.iter().zip(unsettled) {
                w.unsettle(side, before);
            }
            return Ok(());
        }
    };
    if merged.conflicts.is_empty() {
        let inside = w.ok(w.views.fs(&ViewId::Transaction(merged.transaction)))?;
        let report = w.ok(inside.verify())?;
        assert!(report.findings.is_empty(), "{}: {:?}", w.what(), report.findings);
    }
    w.ok(w.views.abort(merged.transaction))
}

pub fn rollback(w: &mut World) -> Result<(), Dead> {
    let Some((name, branch, tree)) = any_snapshot(w) else { return Ok(()) };
    w.note(format!("rollback of {branch:?} to {name}"));
    if !w.history.newest().branches.contains_key(&branch) {
        assert!(w.views.rollback(&name).is_err(), "{}: what it is of is gone", w.what());
        return Ok(());
    }
    w.will_end_those_of(&branch);
    // Data in memory may be committed before.
    w.settle(&branch);
    let alter = |s: &mut State| {
        s.branches.insert(branch.clone(), tree.clone());
        s.snapshots.insert(name.clone(), (branch.clone(), tree.clone()));
        s.durable.retain(|label, _| branch_in(label) != branch);
    };
    let before = w.history.newest().branches[&branch].clone();
    w.call(&["Views::rollback"]);
    w.listen();
    let number = w.ok(w.views.number(&w.view_of(&Site::Branch(branch.clone()))))?;
    let done = w.alter(alter, |w| w.views.rollback(&name))?;
    w.have_ended_those_of(&branch);
    if done {
        w.was_told(&Site::Branch(branch.clone()), number, &before, &tree);
        w.became_another(&Site::Branch(branch.clone()));
        w.numbers_of(&branch);
        w.changed_at.retain(|(of, _), _| *of != branch);
        compare(w)?;
    }
    Ok(())
}

/// Sends the snapshot to another store, with a stream that is cut off at first, and back as a
/// clone.
pub fn send(w: &mut World) -> Result<(), Dead> {
    let Some((name, _, tree)) = any_snapshot(w) else { return Ok(()) };
    w.note(format!("send {name}"));
    w.call(&["Kvdb::send", "Kvdb::receive"]);
    let mut stream = Vec::new();
    w.stored(w.db.send(&name, None, &mut stream, None))?;
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
    match other.receiving().expect("memory does not fail").first() {
        Some(so_far) => {
            let from = Received::from_bytes(&so_far.to_bytes()).expect("as it was");
            let mut rest = Vec::new();
            w.stored(w.db.send(&name, None, &mut rest, Some(&from)))?;
            other.receive(&rest[..], &options).expect("received");
        }
        None => drop(other.receive(&stream[..], &options).expect("received")),
    }
    let fs = Fs::open(other.clone(), w.env.clone(), FsOptions::default()).expect("its own files");
    let views = Views::new(other.clone(), fs);
    let came = views.fs(&ViewId::Clone("came".into())).expect("it came");
    let keys = keys_of(&other.view(), "came").expect("memory does not fail");
    let found = Found { keys, ..look(&came).expect("memory does not fail") };
    is(&tree, &found, Exactly::Now, &w.inos)
        .unwrap_or_else(|e| panic!("{}: what was sent: {e}", w.what()));
    if w.history.newest().branches.len() >= 4 {
        return Ok(());
    }
    // The copy changes there and is sent back.
    let back = w.new_name('r');
    w.fresh += 1;
    let (id, now) = (w.fresh, w.now());
    let name_there = format!("came{id}").into_bytes();
    let mut own = tree.newborn(0, kvfs::FileKind::File, 0o600, Default::default(), now);
    own.data = Arc::new(vec![7; 9000]);
    let node = super::tree::Node::new(kvfs::FileKind::File, 0, own);
    let over = tree.make(&(0, name_there.clone()), id, node).expect("a new name");
    let attr = came
        .mknod(kvfs::ROOT, &name_there, kvfs::FileKind::File, 0o600, 0, Default::default())
        .expect("made");
    came.write(attr.ino, 0, &[7; 9000], Default::default()).expect("written");
    views.snapshot(&ViewId::Clone("came".into()), &back, Durability::Synced).expect("made");
    let base = w.random.one_in(2).then_some(name.as_str());
    let mut stream = Vec::new();
    other.send(&back, base, &mut stream, None).expect("sent");
    let tree = Arc::new(tree.with(&over));
    w.inos.insert(id, attr.ino);
    let options =
        ReceiveOptions { branch: back.clone(), replace: true, ..ReceiveOptions::default() };
    let alter = |s: &mut State| {
        s.branches.insert(back.clone(), tree.clone());
        s.snapshots.insert(back.clone(), (back.clone(), tree.clone()));
    };
    w.call(&["Views::receive"]);
    if w.add(alter, |w| w.views.receive(&stream[..], &options).map(drop))? {
        w.numbers_of(&back);
    }
    Ok(())
}

/// Changes a fork of the store, merges it, and checks the result.
fn merge_fork(w: &mut World) -> Result<(), Dead> {
    w.call(&["Views::merge_fork"]);
    let (copy, objects) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryObjects::new()));
    let of = RemoteStore::new(objects.clone(), "store").expect("a name");
    match w.db.push(&of, &mut |_| Ok(())) {
        Ok(_) => w.history.certain(),
        Err(e) => return w.judge(&mainline(), e.into(), "publish", &[]),
    }
    let forked = of.fork_to(copy.clone(), w.env.clone(), &ForkOptions::default());
    forked.expect("memory does not fail");
    let remote = Some(RemoteZones::new(objects));
    let options = OpenOptions { threads: false, memory: 1 << 30, remote, ..Default::default() };
    let (fork, _) = Kvdb::open(copy, w.env.clone(), options).expect("memory does not fail");
    let fs = Fs::open(fork.clone(), w.env.clone(), FsOptions::default());
    let fs = fs.expect("memory does not fail");
    let name = format!("made in a fork {}", w.random.below(u64::MAX));
    let made = fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default());
    let made = made.expect("memory does not fail").ino;
    fs.write(made, 0, &[7; 20_000], Default::default()).expect("memory does not fail");
    fs.shutdown().expect("memory does not fail");
    let options = MergeForkOptions {
        name: "fork".into(),
        dry_run: true,
        choices: vec![(Vec::new(), Choice::Theirs)],
        transaction: TransactionOptions { lock_timeout: Duration::ZERO, ..Default::default() },
    };
    let unsettled = w.history.newest().branches[""].clone();
    w.settle("");
    let merged = match w.views.merge_fork(&fork, &options, &|_, _| kvdb::Settled::Conflict) {
        Ok(merged) => merged,
        Err(e) => {
            w.judge(&mainline(), e, "merge of a fork", &[])?;
            w.unsettle("", unsettled);
            return Ok(());
        }
    };
    assert_eq!(merged.conflicts, [], "{}", w.what());
    let inside = w.ok(w.views.fs(&ViewId::Transaction(merged.transaction)))?;
    let found = w.ok(inside.lookup(ROOT, name.as_bytes()))?;
    assert_eq!(found.size, 20_000, "{}", w.what());
    let report = w.ok(inside.verify())?;
    assert!(report.findings.is_empty(), "{}: {:?}", w.what(), report.findings);
    inside.forget(found.ino, 1);
    w.ok(w.views.abort(merged.transaction))
}

/// A reader shows the published state in files that stay open.
fn follow(w: &mut World) -> Result<(), Dead> {
    w.call(&["Views::follow"]);
    let store = match &w.reader {
        Some(reader) => reader.store.clone(),
        None => RemoteStore::new(Arc::new(MemoryObjects::new()), "store").expect("a name"),
    };
    let mut publisher = w.db.publisher(&store).expect("no request");
    publisher.rehearse(Box::new(kvfs::rehearse));
    match publisher.publish(&mut |_| Ok(())) {
        Ok(_) => w.history.certain(),
        Err(e) => return w.judge(&mainline(), e.into(), "publish", &[]),
    }
    let Some(mut reader) = w.reader.take() else {
        let copy = Arc::new(MemoryDevice::new());
        store.copy_to(copy.clone(), w.env.clone()).expect("memory does not fail");
        let remote = Some(RemoteZones::new(store.objects().clone()));
        let options = OpenOptions { threads: false, read_only: true, remote, ..Default::default() };
        let (db, _) = Kvdb::open(copy, w.env.clone(), options).expect("memory does not fail");
        let follower = db.follower(&store).expect("it is a reader of this store");
        let options = FsOptions { read_only: true, ..FsOptions::default() };
        let fs = Fs::open(db.clone(), w.env.clone(), options).expect("memory does not fail");
        let views = Views::new(db.clone(), fs);
        w.reader = Some(Reader { store, db, views, follower });
        return Ok(());
    };
    let followed = reader.views.follow(&mut reader.follower);
    assert!(followed.expect("memory does not fail"), "{}: there is a newer state", w.what());
    let found = observe(&reader.db, &reader.views).expect("memory does not fail");
    // A store that is opened for reading only knows nothing of durable transactions.
    let expected = State { durable: Default::default(), ..w.history.newest().clone() };
    let matched = expected.matches(&found, &w.bases, Exactly::Stored, &w.inos);
    matched.map(drop).unwrap_or_else(|e| panic!("{}: what was followed: {e}", w.what()));
    w.reader = Some(reader);
    Ok(())
}

/// A copy of the whole store, opened.
pub fn checkpoint(w: &mut World) -> Result<(), Dead> {
    w.note("checkpoint".into());
    w.call(&["Kvdb::checkpoint_to", "Fs::open", "Views::new"]);
    let copy = Arc::new(MemoryDevice::new());
    match w.db.checkpoint_to(copy.clone()) {
        Ok(_) => w.history.certain(),
        Err(e) => return w.judge(&mainline(), e.into(), "checkpoint", &[]),
    }
    // So much memory that durable transactions fit: the copy of a full store has no space for the
    // runs that hold the rest, and leaves such a transaction for the next time that it is opened.
    let options = OpenOptions { threads: false, memory: 1 << 30, ..OpenOptions::default() };
    let (db, _) = Kvdb::open(copy, w.env.clone(), options)
        .unwrap_or_else(|e| panic!("{}: a checkpoint: {e}", w.what()));
    w.call(&["verify", "Report::is_clean"]);
    let report = kvfs::verify(&db).expect("memory does not fail");
    assert!(report.is_clean(), "{}: {:?}", w.what(), report.findings);
    let fs =
        Fs::open(db.clone(), w.env.clone(), FsOptions::default()).expect("memory does not fail");
    let views = Views::new(db.clone(), fs);
    let found = observe(&db, &views).expect("memory does not fail");
    let matched = w.history.newest().matches(&found, &w.bases, Exactly::Stored, &w.inos);
    matched.map(drop).unwrap_or_else(|e| panic!("{}: a checkpoint: {e}", w.what()));
    follow(w)?;
    merge_fork(w)
}

/// The whole committed state, as others see it.
pub fn compare(w: &mut World) -> Result<(), Dead> {
    w.hand_over()?;
    let found = w.ok(observe(&w.db, &w.views))?;
    let matched = w.history.newest().matches(&found, &w.bases, Exactly::Now, &w.inos);
    matched.map(drop).unwrap_or_else(|e| panic!("{}: {e}", w.what()));
    let open: Vec<String> = w.open.iter().map(|open| open.label.clone()).collect();
    open.iter().try_for_each(|label| super::transactions::see(w, label))?;
    w.call(&["Views::mainline", "Views::opened", "Fs::statistics"]);
    // Reading it may have ended the younger transaction in favour of an older one.
    let opened = w.views.opened();
    assert!(
        opened.len() > w.open.len() && opened[0].0 == 0,
        "{}: {} views are open",
        w.what(),
        opened.len()
    );
    assert_eq!(opened[0].1.statistics(), w.views.mainline().statistics(), "{}", w.what());
    Ok(())
}
