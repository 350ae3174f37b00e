//! Operations on transactions, snapshots and clones of many files.

use std::fs::File;
use std::sync::Arc;

use env::Machine;
use kvdb::{
    Durability, ForkOptions, Isolation, Kvdb, OpenOptions, ReceiveOptions, RemoteStore,
    RemoteZones, TransactionOptions,
};
use kvfs::{
    Earlier, Fs, GoingDown, Listing, MergeForkOptions, MergeOptions, ROOT, Result, TransactionId,
    ViewId,
};
use objects::{DirectoryObjects, Objects};

use crate::{FILES, LARGE, Step, World, fill, plant};

pub const STEPS: &[Step] = &[
    (
        &[
            "Views::begin",
            "Views::difference",
            "Views::change_set",
            "Views::revision",
            "Views::transaction",
            "Views::commit",
        ],
        commit,
    ),
    (&["Views::commit_with", "Views::keep", "Views::changed_paths"], both),
    (&["Views::abort", "Views::savepoint", "Views::rollback_to"], abort),
    (&["Views::undo"], undo),
    (&["Views::snapshot", "Views::difference_of_snapshots", "Views::drop_snapshot"], snapshot),
    (&["Views::clone_earlier", "Views::clone_several_earlier"], earlier),
    (&["Views::clone_snapshot", "Views::drop_clone"], clone),
    (&["Views::merge"], merge),
    (&["Views::merge_fork"], merge_fork),
    (&["Views::follow"], follow),
    (&["Views::rebase"], rebase),
    (
        &[
            "Views::receive",
            "Views::rollback",
            "Views::commit_written",
            "Views::sync_all",
            "Fs::sync_all",
        ],
        receive,
    ),
    (&["Views::settle", "Views::go_down"], go_down),
];

fn begin(w: &World, durable: bool) -> Result<TransactionId> {
    w.views.begin(TransactionOptions {
        isolation: Isolation::Snapshot,
        durable,
        undoable: !durable,
        ..TransactionOptions::default()
    })
}

/// Writes the large file, removes the tree, and plants another one.
fn change(w: &World, id: TransactionId, name: &str) -> Result<()> {
    let fs = w.views.fs(&ViewId::Transaction(id))?;
    let large = fs.resolve(b"/large")?.ino;
    fill(&fs, large, 7)?;
    fs.remove_tree(ROOT, b"tree")?;
    plant(&fs, ROOT, "tree", 8)?;
    plant(&fs, ROOT, name, 9)?;
    Ok(())
}

fn commit(w: &mut World) -> Result<()> {
    for (durable, name) in [(false, "committed"), (true, "durable")] {
        let id = begin(w, durable)?;
        change(w, id, name)?;
        w.views.revision(id)?;
        w.views.transaction(id)?;
        assert!(w.views.change_set(id)?.inodes.len() as u64 > FILES);
        assert!(w.views.difference(id, Listing::All)?.len() as u64 > FILES);
        w.views.commit(id, Durability::Synced)?;
        w.settle()?;
    }
    Ok(())
}

/// Two transactions that work on different files.
fn both(w: &mut World) -> Result<()> {
    let since = w.db.follow_commits_with(8 << 20, &w.views.followed(&ViewId::Mainline)?);
    let (one, two) = (begin(w, true)?, begin(w, false)?);
    let fs = w.views.fs(&ViewId::Transaction(one))?;
    plant(&fs, ROOT, "of one", 1)?;
    plant(&w.views.fs(&ViewId::Transaction(two))?, ROOT, "of two", 2)?;
    w.views.keep(one)?;
    for id in [two, one] {
        w.views.commit_with(id, Default::default())?;
    }
    for commit in w.db.commits_since(since, 1 << 20).into_iter().flat_map(|keys| keys.commits) {
        w.views.changed_paths(&ViewId::Mainline, &commit.changes)?;
    }
    w.settle()
}

/// Rebases a transaction with many changes onto many later changes of others.
fn rebase(w: &mut World) -> Result<()> {
    let id = begin(w, false)?;
    plant(&w.views.fs(&ViewId::Transaction(id))?, ROOT, "rebased", 1)?;
    plant(w.fs(), ROOT, "of others", 2)?;
    let never = |_: &str, _: &kvdb::Clash<'_>| kvdb::Settled::Conflict;
    let rebased = w.views.rebase(id, &[], &never, &|_| Ok(true))?;
    assert_eq!(rebased.conflicts, []);
    w.views.commit(rebased.transaction.expect("without conflicts"), Durability::Synced)?;
    for name in [&b"rebased"[..], b"of others"] {
        w.fs().remove_tree(ROOT, name)?;
    }
    w.settle()
}

fn abort(w: &mut World) -> Result<()> {
    let id = begin(w, false)?;
    let mark = w.views.savepoint(id)?;
    change(w, id, "never")?;
    w.views.rollback_to(id, &mark)?;
    change(w, id, "never")?;
    w.views.abort(id)?;
    w.settle()
}

fn undo(w: &mut World) -> Result<()> {
    let id = begin(w, false)?;
    change(w, id, "undone")?;
    w.views.commit(id, Durability::Buffered)?;
    let commit = w.db.undoable_commits().pop().expect("it can be undone");
    let (undone, _) = w.views.undo(commit.number, TransactionOptions::default())?;
    w.views.commit(undone, Durability::Buffered)?;
    assert!(w.fs().resolve(b"/undone").is_err());
    w.settle()
}

fn snapshot(w: &mut World) -> Result<()> {
    w.views.snapshot(&ViewId::Mainline, "one", Durability::Synced)?;
    w.fs().remove_tree(ROOT, b"tree")?;
    plant(w.fs(), ROOT, "tree", 3)?;
    fill(w.fs(), w.large, 3)?;
    w.views.snapshot(&ViewId::Mainline, "two", Durability::Buffered)?;
    for after in [Some("two"), None] {
        let changes = w.views.difference_of_snapshots("one", after, Listing::All)?;
        assert!(changes.len() as u64 > FILES, "{}", changes.len());
    }
    w.views.drop_snapshot("two")?;
    w.settle()
}

fn earlier(w: &mut World) -> Result<()> {
    let one = Earlier::Snapshot("one".into());
    w.views.clone_earlier(&ViewId::Mainline, &one, b"/tree", b"/as it was")?;
    let places: [(&[u8], &[u8]); 2] = [(b"/tree", b"/again"), (b"/large", b"/large again")];
    w.views.clone_several_earlier(&ViewId::Mainline, &one, &places)?;
    w.settle()
}

fn clone(w: &mut World) -> Result<()> {
    w.views.clone_snapshot("one", "clone")?;
    let fs = w.views.fs(&ViewId::Clone("clone".into()))?;
    plant(&fs, ROOT, "planted", 4)?;
    let large = fs.resolve(b"/large")?.ino;
    fill(&fs, large, 5)?;
    fs.forget(large, 1);
    drop(fs);
    w.settle()?;
    w.views.drop_clone("clone")?;
    w.settle()
}

/// A clone with many files and a large one, whose parent has as many changes.
fn merge(w: &mut World) -> Result<()> {
    w.views.snapshot(&ViewId::Mainline, "base", Durability::Synced)?;
    w.views.clone_snapshot("base", "merged")?;
    w.views.drop_snapshot("base")?;
    let fs = w.views.fs(&ViewId::Clone("merged".into()))?;
    plant(&fs, ROOT, "of the clone", 4)?;
    let large = fs.resolve(b"/large")?.ino;
    fill(&fs, large, 5)?;
    fs.forget(large, 1);
    plant(w.fs(), ROOT, "of the parent", 6)?;
    for rebase in [false, true] {
        let options = MergeOptions { clone: "merged".into(), rebase, ..MergeOptions::default() };
        let merged = w.views.merge(&options, &|_, _| kvdb::Settled::Conflict)?;
        assert_eq!(merged.conflicts, []);
        w.views.commit(merged.transaction, Durability::Synced)?;
        w.settle()?;
    }
    assert!(w.fs().resolve(b"/of the clone").is_ok() && fs.resolve(b"/of the parent").is_ok());
    for name in [&b"of the clone"[..], b"of the parent"] {
        w.fs().remove_tree(ROOT, name)?;
    }
    drop(fs);
    w.views.drop_clone("merged")?;
    w.settle()
}

/// A fork with many files and a large one, all of which are copied.
fn merge_fork(w: &mut World) -> Result<()> {
    let (place, path) = (w.directory.path().join("share"), w.directory.path().join("fork.kvfs"));
    let objects: Arc<dyn Objects> = Arc::new(DirectoryObjects::create(&place).expect("made"));
    let store = RemoteStore::new(objects.clone(), "store")?;
    w.fs().sync_all()?;
    w.db.push(&store, &mut |_| Ok(()))?;
    store.fork_to_path(&path, &ForkOptions::default())?;
    let remote = Some(RemoteZones::new(objects));
    let fork = Kvdb::open_path_with(&path, OpenOptions { remote, ..crate::options() })?;
    let fs = Fs::open(fork.clone(), Arc::new(Machine::default()), crate::files())?;
    plant(&fs, ROOT, "of the fork", 7)?;
    let large = fs.resolve(b"/large")?.ino;
    fill(&fs, large, 8)?;
    fs.forget(large, 1);
    fs.shutdown()?;
    let options = MergeForkOptions { name: "fork".into(), ..MergeForkOptions::default() };
    let merged = w.views.merge_fork(&fork, &options, &|_, _| kvdb::Settled::Conflict)?;
    assert_eq!(merged.conflicts, []);
    w.views.commit(merged.transaction, Durability::Synced)?;
    drop(fs);
    fork.close()?;
    w.settle()?;
    w.fs().remove_tree(ROOT, b"of the fork")?;
    std::fs::remove_file(&path).expect("removed");
    std::fs::remove_dir_all(&place).expect("removed");
    w.settle()
}

/// A reader follows a publication with many new files, and a large one that has changed.
fn follow(w: &mut World) -> Result<()> {
    let (place, path) = (w.directory.path().join("share"), w.directory.path().join("copy.kvfs"));
    let objects: Arc<dyn Objects> = Arc::new(DirectoryObjects::create(&place).expect("made"));
    let store = RemoteStore::new(objects.clone(), "store")?;
    w.fs().sync_all()?;
    let mut publisher = w.db.publisher(&store)?;
    publisher.rehearse(Box::new(kvfs::rehearse));
    publisher.publish(&mut |_| Ok(()))?;
    store.pull_to_path(&path, &mut |_| Ok(()))?;
    let remote = Some(RemoteZones::new(objects));
    let options = OpenOptions { remote, read_only: true, ..crate::options() };
    let reader = Kvdb::open_path_with(&path, options)?;
    let options = kvfs::FsOptions { read_only: true, ..crate::files() };
    let fs = Fs::open(reader.clone(), Arc::new(Machine::default()), options)?;
    let views = kvfs::Views::new(reader.clone(), fs);
    let mut follower = reader.follower(&store)?;
    plant(w.fs(), ROOT, "followed", 8)?;
    let large = w.fs().resolve(b"/large")?.ino;
    fill(w.fs(), large, 9)?;
    w.fs().forget(large, 1);
    w.fs().sync_all()?;
    publisher.publish(&mut |_| Ok(()))?;
    assert!(views.follow(&mut follower)?);
    drop((views, follower, reader, publisher));
    w.fs().remove_tree(ROOT, b"followed")?;
    std::fs::remove_file(&path).expect("removed");
    std::fs::remove_dir_all(&place).expect("removed");
    w.settle()
}

fn receive(w: &mut World) -> Result<()> {
    let path = w.directory.path().join("stream");
    w.views.snapshot(&ViewId::Mainline, "sent", Durability::Synced)?;
    w.db.send("sent", None, File::create(&path).expect("made"), None)?;
    w.views.drop_snapshot("sent")?;
    let into = ReceiveOptions { branch: "received".into(), ..ReceiveOptions::default() };
    w.views.receive(File::open(&path).expect("there"), &into)?;
    w.views.commit_written()?;
    w.fs().sync_all()?;
    w.views.rollback("one")?;
    w.settle()?;
    w.large = w.fs().resolve(b"/large")?.ino;
    assert_eq!(w.fs().getattr(w.large)?.size, LARGE);
    Ok(())
}

fn go_down(w: &mut World) -> Result<()> {
    fill(w.fs(), w.large, 6)?;
    w.views.settle(&ViewId::Mainline)?;
    w.views.go_down(GoingDown::Synced)
}
