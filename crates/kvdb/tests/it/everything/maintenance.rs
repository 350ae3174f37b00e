//! Operations on whole dictionaries and on the whole store: options, merges, defragmentation,
//! scrubs, syncs, checkpoints and stores in files.

use std::sync::Arc;
use std::time::Duration;

use kvdb::{
    ADAPTIVE_SEPARATION, Batch, Compression, CreateOptions, DefragOptions, DictionaryInfo,
    DictionaryOptions, ForkOptions, Kvdb, MergeRoutine, Merged, OpenOptions, ReadOther,
    RemoteZones, Scope, ScrubOptions, SeriesCodec, SeriesOf, SeriesSource,
};
use zones::MemoryDevice;

use crate::model::Backwards;

use super::oracle::{ManifestState, observe};
use super::world::{Dead, World};

pub fn dictionaries(w: &mut World) -> Result<(), Dead> {
    let Some((branch, dict, id)) = w.place() else { return Ok(()) };
    if w.history.newest().branches[&branch].len() > 2 && w.random.one_in(3) {
        let mut all = w.db.dictionaries_in(&branch).into_iter().filter(|info| info.id != id);
        let other = if w.history.newest().branches[&branch].len() > 3 { all.next() } else { None };
        let names: Vec<_> =
            [dict].into_iter().chain(other.as_ref().map(|info| info.name.clone())).collect();
        let gone = |state: &mut ManifestState| {
            if let Some(branch) = state.branches.get_mut(&branch) {
                branch.retain(|name, _| !names.contains(name));
            }
        };
        match other {
            None => {
                w.call("Kvdb::drop_dictionary");
                w.alter(gone, |w| w.db.drop_dictionary(id))?;
            }
            Some(other) => {
                w.call("Kvdb::drop_dictionaries");
                w.alter(gone, |w| w.db.drop_dictionaries(&[id, other.id]))?;
            }
        }
        names.iter().for_each(|name| w.replaced(&branch, name));
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
        // This rule never runs here: other tests compare concurrent changes.
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
    if w.random.one_in(8) {
        // None of the compared results shows this option.
        w.call("Kvdb::create_dictionary_of_store");
        let options = options(w);
        let made = |w: &mut World| w.db.create_dictionary_of_store("notes", options).map(drop);
        return w.add(|_| (), made).map(drop);
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
        separate_at: [512, 2048, u32::MAX, ADAPTIVE_SEPARATION][random.below(4) as usize],
        compression: [Compression::None, Compression::Lz4, Compression::Zstd]
            [random.below(3) as usize],
        compress_values: [Compression::None, Compression::Lz4][random.below(2) as usize],
        false_positives: [0, 80][random.below(2) as usize],
        ..DictionaryOptions::default()
    }
}

/// Each dictionary is one series with this codec.
struct Whole(Option<SeriesCodec>);

impl SeriesSource for Whole {
    fn series_of(
        &self,
        _: &DictionaryInfo,
        _: &[u8],
        _: &mut ReadOther<'_>,
    ) -> kvdb::Result<Option<SeriesOf>> {
        Ok(Some((0, self.0)))
    }
}

pub fn maintenance(w: &mut World) -> Result<(), Dead> {
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
            if w.random.one_in(2) {
                w.call("Kvdb::set_codec_of_series");
                let zstd = SeriesCodec::Fixed(Compression::Zstd);
                let codec = [None, Some(SeriesCodec::Auto), Some(zstd)][w.random.below(3) as usize];
                w.db.set_codec_of_series(id, b"", codec).expect("its prefixes have one length");
                w.call("Kvdb::set_series_source");
                w.db.set_series_source(Arc::new(Whole(codec)));
            }
        }
        3 => {
            for name in ["Kvdb::defragment", "Kvdb::stop_defragment", "Kvdb::wait_for_defragment"] {
                w.call(name);
            }
            if w.random.one_in(2) {
                w.call("Kvdb::set_value_order");
                w.db.set_value_order(Arc::new(Backwards));
            }
            w.unless_full(
                w.db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() }),
            )?;
            w.db.stop_defragment();
            w.db.wait_for_defragment();
        }
        7 => {
            w.call("Kvdb::repair");
            let repaired = w.db.repair(|_| {}, |_, _| Ok::<_, kvdb::Error>(Batch::new()));
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
            // A scrub reports a failing device, and never damage.
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

pub fn time(w: &mut World) -> Result<(), Dead> {
    w.env.advance(Duration::from_millis(w.random.below(60)));
    w.unless_full(w.db.step()).map(drop)
}

pub fn sync(w: &mut World) -> Result<(), Dead> {
    let scope = Scope::Mainline(w.db.clone());
    let synced = match w.random.below(4) {
        0 => {
            w.call("Kvdb::sync");
            w.db.sync()
        }
        1 => {
            w.call("Kvdb::sync_at_interval");
            w.db.sync_at_interval()
        }
        2 => {
            w.call("Scope::sync");
            scope.sync()
        }
        _ => {
            w.call("Scope::sync_at_interval");
            scope.sync_at_interval()
        }
    };
    w.ok(synced)?;
    w.history.certain();
    Ok(())
}

pub fn checkpoint(w: &mut World) -> Result<(), Dead> {
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

/// Publishes the store. The published state equals the committed one, whatever earlier publications
/// have written, in this life and before.
pub fn push(w: &mut World) -> Result<(), Dead> {
    let published = if w.random.one_in(2) {
        w.call("Kvdb::push");
        // This publisher displaces an earlier one.
        w.publisher = None;
        w.db.push(&w.bucket, &mut |_| Ok(()))
    } else {
        ["Kvdb::publisher", "Publisher::publish"].iter().for_each(|name| w.call(name));
        let mut publisher =
            w.publisher.take().unwrap_or_else(|| w.db.publisher(&w.bucket).unwrap());
        if w.random.one_in(2) {
            w.call("Publisher::rehearse");
            publisher.rehearse(Box::new(|db| drop(observe(db))));
        }
        if w.random.one_in(4) {
            w.call("Publisher::take");
            publisher.take();
        }
        if w.random.one_in(4) {
            w.call("Publisher::take_from_writer");
            publisher.take_from_writer();
        }
        if w.random.one_in(4) {
            w.call("Publisher::stay_open");
            publisher.stay_open("the only machine");
        }
        let published = publisher.publish(&mut |_| Ok(()));
        w.publisher = Some(publisher);
        published
    };
    if w.unless_full(published)?.is_none() {
        return Ok(());
    }
    w.history.certain();
    if let Some(mut publisher) = w.publisher.take() {
        let (due, checked) = (publisher.is_due(), publisher.check());
        assert!(!due, "{}: nothing was committed since", w.what());
        checked.expect("it is this store");
        assert!(!publisher.is_writer(), "it is its own file");
        let publish = || Err(kvdb::Error::Invalid("nothing is committed meanwhile".into()));
        publisher.sync_remotely(Box::new(publish)).unwrap();
        assert!(publisher.syncs_remotely());
        publisher.sync_here();
        assert!(!publisher.syncs_remotely());
        ["Publisher::sync_remotely", "Publisher::sync_here", "Publisher::syncs_remotely"]
            .iter()
            .for_each(|name| w.call(name));
        publisher.close().expect("all is published");
        assert!(!w.bucket.head().expect("memory").expect("a head").owner.open);
        ["Publisher::is_due", "Publisher::check", "Publisher::is_writer", "Publisher::close"]
            .iter()
            .for_each(|name| w.call(name));
        w.publisher = Some(publisher);
    }
    assert!(w.db.remote_stats().is_none(), "its zones are here");
    let (copy, is_fork) = (Arc::new(MemoryDevice::new()), w.publisher.is_some());
    let made = match is_fork {
        true => w.bucket.fork_to(copy.clone(), w.env.clone(), &ForkOptions::default()),
        false => w.bucket.copy_to(copy.clone(), w.env.clone()),
    };
    made.expect("memory does not fail");
    let remote = Some(RemoteZones::new(w.bucket.objects().clone()));
    let options = OpenOptions { threads: false, remote, ..OpenOptions::default() };
    let (db, _) = Kvdb::open(copy, w.env.clone(), options)
        .unwrap_or_else(|e| panic!("{}: a published state: {e}", w.what()));
    let dicts: Vec<_> = db.dictionaries().iter().map(|info| info.id).collect();
    w.call("Kvdb::prefetch");
    db.prefetch(&dicts);
    w.call("Kvdb::warm");
    db.warm(&dicts, &dicts);
    w.call("Kvdb::warm_view");
    db.warm_view(&db.view(), &dicts, &[]);
    let found = observe(&db).expect("memory does not fail");
    assert!(
        found == *w.history.newest(),
        "{}: a published state: {}",
        w.what(),
        found.differs(w.history.newest())
    );
    if is_fork {
        ["Kvdb::store_id", "Kvdb::fork_origins", "Kvdb::fork_base"].iter().for_each(|n| w.call(n));
        assert_eq!(db.fork_origins(), [w.db.store_id()], "{}", w.what());
        let (base, now) = (db.fork_base(&w.db.store_id()).expect("it is a fork").state, db.view());
        for info in base.dictionaries() {
            let is = now.dictionary(&info.name).expect("it began as that");
            let changed = base.difference(info.id, &now, is).expect("memory does not fail").count();
            assert_eq!(changed, 0, "{}: {}", w.what(), info.name);
        }
    }
    w.call("Kvdb::remote_stats");
    assert!(db.remote_stats().is_some());
    follow(w);
    Ok(())
}

/// A reader with a store that stays open shows the published state.
fn follow(w: &mut World) {
    w.call("Kvdb::follower");
    if let Some((reader, follower)) = &mut w.reader {
        let followed = follower.follow().unwrap_or_else(|e| panic!("{}: {e}", w.operation));
        assert!(followed, "{}: there is a newer state", w.operation);
        let found = observe(reader).expect("memory does not fail");
        assert!(
            found == *w.history.newest(),
            "{}: a state that was followed: {}",
            w.what(),
            found.differs(w.history.newest())
        );
        return;
    }
    let copy = Arc::new(MemoryDevice::new());
    w.bucket.copy_to(copy.clone(), w.env.clone()).expect("memory does not fail");
    let remote = Some(RemoteZones::new(w.bucket.objects().clone()));
    let options = OpenOptions { threads: false, remote, read_only: true, ..OpenOptions::default() };
    let (reader, _) = Kvdb::open(copy, w.env.clone(), options).expect("memory does not fail");
    let follower = reader.follower(&w.bucket).expect("it is a reader of this store");
    w.reader = Some((reader, follower));
}

/// Makes a checkpoint in a file, and opens stores in files.
pub fn files(w: &mut World) -> Result<(), Dead> {
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
