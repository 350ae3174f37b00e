//! Snapshots and branches, copies, streams, and the maintenance of the store itself.

use std::fs::File;
use std::sync::Arc;

use kvdb::{
    Batch, BranchLimit, CheckpointStats, CreateOptions, DefragOptions, DictionaryOptions,
    Durability, ForkOptions, Kvdb, OpenOptions, ReceiveOptions, RemoteStore, RemoteZones, Result,
    ScrubOptions,
};
use objects::{DirectoryObjects, Objects};
use zones::FileDevice;

use crate::{Step, World, large, options, small};

pub const STEPS: &[Step] = &[
    (&["Kvdb::flush", "Kvdb::write_out", "Kvdb::sync", "Kvdb::sync_at_interval"], flush),
    (&["Kvdb::step"], step),
    (&["Kvdb::compact"], compact),
    (&["Kvdb::compact_range"], compact_range),
    (&["Kvdb::reclaim", "Kvdb::defragment"], defragment),
    (&["Kvdb::scrub", "Kvdb::scrub_faults"], scrub),
    (&["Kvdb::stats", "Kvdb::space", "Kvdb::zone_map"], stats),
    (
        &[
            "Kvdb::snapshot",
            "Kvdb::snapshot_of",
            "Kvdb::snapshots",
            "Kvdb::snapshot_label",
            "Kvdb::snapshot_labels",
            "Kvdb::open_snapshot",
        ],
        snapshot,
    ),
    (
        &[
            "Kvdb::clone_snapshot",
            "Kvdb::limit_branch",
            "Kvdb::limit_of",
            "Kvdb::limit_files",
            "Kvdb::limit_of_files",
            "Kvdb::states_beneath",
            "Kvdb::make_room_for",
            "Kvdb::has_branch",
            "Kvdb::drop_branch",
            "Kvdb::rollback",
        ],
        clone,
    ),
    (
        &[
            "Kvdb::lineage",
            "Kvdb::keep_common_state",
            "Kvdb::common_state",
            "Kvdb::drop_common_states",
            "Transaction::carry",
        ],
        in_common,
    ),
    (&["Kvdb::checkpoint", "Kvdb::checkpoint_to"], checkpoint),
    (&["Kvdb::push", "Kvdb::publisher", "Kvdb::remote_stats"], push),
    (&["Kvdb::follower", "Kvdb::prefetch", "Kvdb::warm", "Kvdb::warm_view"], follow),
    (&["Kvdb::store_id", "Kvdb::fork_origins", "Kvdb::fork_base"], fork),
    (
        &[
            "Kvdb::send",
            "Kvdb::may_send",
            "Kvdb::receive",
            "Kvdb::receive_within",
            "Kvdb::receiving",
            "Kvdb::forget_received",
        ],
        send,
    ),
    (&["Kvdb::drop_snapshot", "Kvdb::drop_dictionary", "Kvdb::drop_dictionaries"], drop_all),
    (&["Kvdb::close", "Kvdb::open", "Kvdb::open_path", "Kvdb::open_path_with"], reopen),
    (&["Kvdb::repair"], repair),
];

fn flush(w: &mut World) -> Result<()> {
    for (i, (key, value)) in small(w.times, 30).enumerate().step_by(10) {
        w.db.put(w.small, &key, &value, Durability::Buffered)?;
        match i % 30_000 {
            0 => w.db.flush()?,
            10_000 => w.db.write_out()?,
            20_000 => w.db.sync()?,
            _ => w.db.sync_at_interval()?,
        }
    }
    w.db.flush()
}

fn step(w: &mut World) -> Result<()> {
    for (key, value) in large(w.times, 31) {
        w.db.put(w.large, &key, &value, Durability::Buffered)?;
        w.db.step()?;
    }
    w.settled()
}

fn compact(w: &mut World) -> Result<()> {
    [w.small, w.large].iter().try_for_each(|dict| w.db.compact(*dict))
}

fn compact_range(w: &mut World) -> Result<()> {
    w.db.ingest(w.small, small(w.times, 32))?;
    [w.small, w.large].iter().try_for_each(|dict| w.db.compact_range(*dict, "a".."z"))
}

fn defragment(w: &mut World) -> Result<()> {
    let mut batch = Batch::new();
    for (key, _) in small(w.times, 0).step_by(3) {
        batch.delete(w.small, key);
        if batch.len() == 100 {
            w.commit(std::mem::take(&mut batch))?;
        }
    }
    large(w.times, 0).step_by(3).for_each(|(key, _)| batch.delete(w.large, key));
    w.commit(batch)?;
    compact(w)?;
    w.db.defragment(DefragOptions::default())?;
    w.db.reclaim();
    w.filled()
}

fn scrub(w: &mut World) -> Result<()> {
    w.db.scrub(ScrubOptions::default())?;
    w.settled()?;
    w.db.wait_for_scrub();
    assert!(w.db.scrub_faults().is_empty());
    Ok(())
}

fn stats(w: &mut World) -> Result<()> {
    w.db.stats();
    w.db.space();
    assert!(!w.db.zone_map().is_empty());
    Ok(())
}

fn snapshot(w: &mut World) -> Result<()> {
    w.db.put(w.small, b"k", b"v", Durability::Buffered)?;
    w.db.snapshot("one")?;
    w.db.snapshot_of("", "two", Durability::Synced)?;
    w.db.flush()?;
    w.db.ingest(w.large, large(w.times, 33))?;
    assert_eq!(w.db.snapshots().len(), 2);
    assert!(w.db.snapshot_label("one").is_some() && w.db.snapshot_labels().len() == 2);
    let view = w.db.open_snapshot("one")?;
    let changes = view.difference(w.large, &w.db.view(), w.large)?;
    assert_eq!(changes.count() as u64, 100 * w.times);
    Ok(())
}

fn clone(w: &mut World) -> Result<()> {
    w.db.clone_snapshot("two", "branch")?;
    let there = w.db.dictionary_in("branch", "large").expect("it is there");
    w.db.limit_branch("branch", Some(1 << 40))?;
    w.db.limit_files("branch", Some(1 << 40))?;
    assert_eq!(w.db.limit_of_files(there), Some(("branch".into(), 1 << 40)));
    assert_eq!(w.db.states_beneath(there).map(|states| states.len()), Some(1));
    w.db.ingest(there, large(w.times, 34))?;
    w.db.put(there, b"small", b"value", Durability::Buffered)?;
    let (before, after) = (w.db.limit_of(there).map(|limit| limit.1), w.db.make_room_for(there)?);
    let taken = |limit: Option<BranchLimit>| limit.expect("it has one").taken;
    assert!(taken(before) > 0 && taken(after) <= taken(before), "{before:?}, {after:?}");
    assert!(w.db.has_branch("branch"));
    w.db.drop_branch("branch")?;
    w.db.rollback("one")?;
    w.settled()
}

fn in_common(w: &mut World) -> Result<()> {
    w.db.snapshot("base")?;
    w.db.clone_snapshot("base", "branch")?;
    w.db.drop_snapshot("base")?;
    let there = w.db.dictionary_in("branch", "large").expect("it is there");
    w.db.ingest(there, large(w.times, 34))?;
    let state = w.db.keep_common_state("branch", "branch", 1)?;
    let origin = w.db.lineage("branch")?.origin;
    let t = w.db.begin(kvdb::Isolation::Snapshot)?;
    let from = (&w.db.common_state("branch", 1)?, there);
    let carried = t.carry((&origin, w.large), from, w.large, &mut |_| kvdb::Settled::Taken)?;
    assert!(carried.is_empty());
    t.commit(kvdb::Durability::Buffered)?;
    drop((state, origin));
    w.db.drop_common_states("branch", &[])?;
    w.db.drop_branch("branch")?;
    w.settled()
}

fn checkpoint(w: &mut World) -> Result<()> {
    let path = w.directory.path().join("copy.kvfs");
    let CheckpointStats { .. } = w.db.checkpoint(&path)?;
    std::fs::remove_file(&path)?;
    w.db.checkpoint_to(Arc::new(FileDevice::create(&path)?))?;
    Ok(std::fs::remove_file(&path)?)
}

fn push(w: &mut World) -> Result<()> {
    let place = w.directory.path().join("share");
    let failed = |e: objects::ObjectsError| std::io::Error::other(e.to_string());
    let objects = DirectoryObjects::create(&place).map_err(failed)?;
    let store = RemoteStore::new(Arc::new(objects), "store")?;
    w.db.push(&store, &mut |_| Ok(()))?;
    let mut publisher = w.db.publisher(&store).unwrap();
    publisher.check()?;
    for _ in 0..2 {
        publisher.publish(&mut |_| Ok(()))?;
        assert!(!publisher.is_due());
    }
    drop(publisher);
    assert!(w.db.remote_stats().is_none());
    Ok(std::fs::remove_dir_all(&place)?)
}

/// A reader follows a publication with many changes.
fn follow(w: &mut World) -> Result<()> {
    let (place, path) = (w.directory.path().join("share"), w.directory.path().join("copy.kvfs"));
    let failed = |e: objects::ObjectsError| std::io::Error::other(e.to_string());
    let objects: Arc<dyn Objects> = Arc::new(DirectoryObjects::create(&place).map_err(failed)?);
    let store = RemoteStore::new(objects.clone(), "store")?;
    let mut publisher = w.db.publisher(&store)?;
    // More data than the cache has room for.
    publisher.rehearse(Box::new(|db| {
        let (view, all) = (db.view(), db.dictionaries());
        let cursors = all.iter().map(|info| view.cursor(info.id, b"", b"").unwrap());
        cursors.for_each(|mut cursor| while let Ok(Some(_)) = cursor.next() {});
    }));
    publisher.publish(&mut |_| Ok(()))?;
    store.copy_to_path(&path)?;
    let remote = Some(RemoteZones::new(objects));
    let reader = Kvdb::open_path_with(&path, OpenOptions { remote, read_only: true, ..options() })?;
    let mut follower = reader.follower(&store)?;
    reader.follow_commits(1 << 16);
    reader.prefetch(&[w.large]);
    reader.warm(&[], &[w.large]);
    reader.warm_view(&reader.view(), &[w.large], &[]);
    for (key, _) in w.db.view().scan(w.large, b"", b"", 2)? {
        assert!(reader.get(w.large, &key)?.is_some());
    }
    w.db.ingest(w.large, large(w.times, 41))?;
    publisher.publish(&mut |_| Ok(()))?;
    assert!(follower.follow()?);
    drop((follower, reader, publisher));
    std::fs::remove_file(&path)?;
    std::fs::remove_dir_all(&place)?;
    w.settled()
}

/// The store takes over changes of a fork by copying values.
fn fork(w: &mut World) -> Result<()> {
    let (place, path) = (w.directory.path().join("share"), w.directory.path().join("fork.kvfs"));
    let failed = |e: objects::ObjectsError| std::io::Error::other(e.to_string());
    let objects: Arc<dyn Objects> = Arc::new(DirectoryObjects::create(&place).map_err(failed)?);
    let store = RemoteStore::new(objects.clone(), "store")?;
    w.db.push(&store, &mut |_| Ok(()))?;
    store.fork_to_path(&path, &ForkOptions::default())?;
    let remote = Some(RemoteZones::new(objects));
    let fork = Kvdb::open_path_with(&path, OpenOptions { remote, ..options() })?;
    let id = w.db.store_id();
    assert_eq!(fork.fork_origins(), [id]);
    let there = fork.dictionary_in("", "large").expect("it is there");
    fork.ingest(there, large(w.times, 37))?;
    let (base, now) = (fork.fork_base(&id).expect("it is a fork").state, fork.view());
    let t = w.db.begin(kvdb::Isolation::Snapshot)?;
    let taken = &mut |_: kvdb::Clash<'_>| kvdb::Settled::Taken;
    assert!(t.carry((&base, there), (&now, there), w.large, taken)?.is_empty());
    t.commit(Durability::Buffered)?;
    drop((base, now));
    fork.close()?;
    std::fs::remove_file(&path)?;
    std::fs::remove_dir_all(&place)?;
    w.settled()
}

fn send(w: &mut World) -> Result<()> {
    let path = w.directory.path().join("stream");
    let copy = w.directory.path().join("copy.kvfs");
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let other = Kvdb::create_path(&copy, create)?;
    for within in [false, true] {
        w.db.ingest(w.large, large(w.times, 35 + u8::from(within)))?;
        let name = if within { "second" } else { "first" };
        w.db.snapshot(name)?;
        w.db.may_send(name, within.then_some("first"), None)?;
        w.db.send(name, within.then_some("first"), File::create(&path)?, None)?;
        let (stream, options) = (File::open(&path)?, ReceiveOptions::default());
        match within {
            false => other.receive(stream, &options)?,
            true => other.receive_within(stream, &options, |replace| replace())?,
        };
    }
    for received in other.receiving()? {
        other.forget_received(&received)?;
    }
    drop(other);
    std::fs::remove_file(&path)?;
    Ok(std::fs::remove_file(&copy)?)
}

fn drop_all(w: &mut World) -> Result<()> {
    for name in ["first", "second", "one", "two"] {
        w.db.drop_snapshot(name)?;
    }
    w.db.drop_dictionary(w.small)?;
    w.db.drop_dictionaries(&[w.large, w.free])?;
    let make = |name| w.db.create_dictionary(name, DictionaryOptions::default());
    (w.small, w.large, w.free) = (make("small")?, make("large")?, make("free")?);
    w.filled()
}

fn reopen(w: &mut World) -> Result<()> {
    let path = w.directory.path().join("s.kvfs");
    for how in 0..3 {
        let all = large(w.times, 40 + how);
        for (key, value) in all {
            w.db.put(w.large, &key, &value, Durability::Buffered)?;
        }
        if how > 0 {
            w.db.close()?;
        }
        w.db = Kvdb::in_memory();
        w.db = match how {
            0 => Kvdb::open_path_with(&path, options())?,
            1 => {
                let device = Arc::new(FileDevice::open(&path, false)?);
                Kvdb::open(device, Arc::new(env::Machine::default()), options())?.0
            }
            _ => {
                // Opens the store with the default of 256 MiB of memory, and with its background
                // threads.
                drop(Kvdb::open_path(&path)?);
                Kvdb::open_path_with(&path, options())?
            }
        };
    }
    Ok(())
}

fn repair(w: &mut World) -> Result<()> {
    w.db.repair(|_| {}, |_, _| Ok::<_, kvdb::Error>(Batch::new())).map(drop)
}
