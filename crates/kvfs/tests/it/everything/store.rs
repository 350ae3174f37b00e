//! Operations on keys, syncs and time, and on the store below the files.

use std::sync::Arc;
use std::time::Duration;

use env::Env;
use kvdb::{Batch, Compression, DefragOptions, DictionaryId, DictionaryOptions, Durability, Scope};
use kvfs::{Error, FSync, ViewId};

use super::content;
use super::found::DICTIONARIES;
use super::tree::{Key, Overlay};
use super::world::{Dead, Site, World, mainline};

impl World {
    /// Returns a dictionary of the model that exists in the site.
    fn dictionary(&mut self, site: &Site) -> Option<(String, DictionaryId)> {
        let branch = self.branch_of(site);
        let there = DICTIONARIES.iter().filter_map(|name| {
            let id = if branch.is_empty() {
                self.db.dictionary(name)
            } else {
                self.db.dictionary_in(&branch, name)
            };
            id.map(|id| (name.to_string(), id))
        });
        let there: Vec<_> = there.collect();
        self.pick(&there)
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key{:02}", self.random.below(60)).into_bytes()
    }

    fn value(&mut self) -> Arc<Vec<u8>> {
        let len = match self.random.below(12) {
            0 => self.random.below(40_000),
            1..=4 => self.random.below(5000),
            _ => self.random.below(100),
        };
        let mut value = vec![0; len as usize];
        self.random.fill(&mut value);
        Arc::new(value)
    }
}

pub fn keys(w: &mut World, site: &Site) -> Result<(), Dead> {
    let Some((dict, id)) = w.dictionary(site) else { return Ok(()) };
    let tree = w.tree(site);
    let (mut over, mut batch) = (Overlay::default(), Batch::new());
    for _ in 0..1 + w.random.below(4) {
        let key = w.key();
        match w.random.below(8) {
            0 => {
                let end = w.key();
                let (start, end) = (key.clone().min(end.clone()), key.max(end));
                batch.delete_range(id, start.clone(), end.clone());
                let gone: Vec<Key> = tree
                    .keys
                    .keys()
                    .chain(over.keys.keys())
                    .filter(|(d, k)| *d == dict && *k >= start && *k < end)
                    .cloned()
                    .collect();
                over.keys.extend(gone.into_iter().map(|key| (key, None)));
                over.ranges.insert((dict.clone(), start, end));
            }
            1 => {
                batch.delete(id, key.clone());
                over.keys.insert((dict.clone(), key), None);
            }
            _ => {
                let value = w.value();
                batch.put(id, key.clone(), value.to_vec());
                over.puts = true;
                over.keys.insert((dict.clone(), key), Some(value));
            }
        }
    }
    let synced = w.random.one_in(5);
    let durability = if synced { Durability::Synced } else { Durability::Buffered };
    let scope = match site {
        Site::Branch(_) => Scope::Mainline(w.db.clone()),
        Site::Transaction(label) => {
            Scope::Transaction(w.ok(w.views.transaction(w.running(label).id))?)
        }
    };
    let done = w.act(site, format!("keys {:?}", over.keys.keys()), Ok(over), |_| {
        Ok(kvdb::without_lock_waits(|| scope.apply(batch, durability))?)
    })?;
    if done.is_some() && synced && matches!(site, Site::Branch(_)) {
        w.history.certain();
    }
    Ok(())
}

/// Keys in order, past the journal.
pub fn ingest(w: &mut World) -> Result<(), Dead> {
    let clones =
        Site::Branch(w.history.newest().branches.keys().next_back().cloned().unwrap_or_default());
    let site = if w.random.one_in(3) { clones } else { mainline() };
    let Some((dict, id)) = w.dictionary(&site) else { return Ok(()) };
    let from = w.random.below(60);
    let tuples: Vec<(Vec<u8>, Arc<Vec<u8>>)> = (from..from + 1 + w.random.below(30))
        .map(|n| (format!("key{n:02}").into_bytes(), w.value()))
        .collect();
    let keys = tuples.iter().map(|(k, v)| ((dict.clone(), k.clone()), Some(v.clone()))).collect();
    let over = Overlay { keys, ..Overlay::default() };
    let db = w.db.clone();
    w.call(&["Kvdb::ingest"]);
    let tuples = tuples.into_iter().map(|(k, v)| (k, v.to_vec()));
    let done = w.act(&site, format!("ingest {from}.."), Ok(over), |_| {
        Ok(kvdb::without_lock_waits(|| db.ingest(id, tuples)).map(drop)?)
    })?;
    if done.is_some() {
        w.history.certain();
    }
    Ok(())
}

/// Makes or drops a dictionary other than those of the files, only if nothing else is in progress.
pub fn dictionaries(w: &mut World) -> Result<(), Dead> {
    if !w.open.is_empty() {
        return Ok(());
    }
    w.call(&["Kvdb::create_dictionary", "Kvdb::drop_dictionary", "Kvdb::set_stitch_at"]);
    match w.db.dictionary("more") {
        None => {
            w.note("create dictionary".into());
            let compress_values = [Compression::None, Compression::Lz4][w.random.below(2) as usize];
            let options = DictionaryOptions {
                separate_at: [512, u32::MAX][w.random.below(2) as usize],
                compress_values,
                ..DictionaryOptions::default()
            };
            w.add(|_| {}, |w| Ok(w.db.create_dictionary("more", options).map(drop)?)).map(drop)
        }
        Some(id) if w.random.one_in(3) => {
            w.note("drop dictionary".into());
            let gone = |s: &mut super::state::State| {
                if let Some(tree) = s.branches.get_mut("") {
                    Arc::make_mut(tree).keys.retain(|(dict, _), _| dict != "more");
                }
            };
            w.alter(gone, |w| Ok(w.db.drop_dictionary(id)?)).map(drop)
        }
        Some(id) => {
            let bytes = [0, 4096, 64 << 10, u64::MAX, kvdb::ADAPTIVE][w.random.below(5) as usize];
            w.stored(w.db.set_stitch_at(id, bytes))
        }
    }
}

pub fn sync(w: &mut World, site: &Site) -> Result<(), Dead> {
    w.note(format!("{site:?} sync"));
    let branch = w.branch_of(site);
    match (w.random.below(8), site) {
        (0, _) => {
            w.stored(w.db.sync())?;
            w.history.certain();
        }
        (1, _) => sync_views(w)?,
        (5, _) => {
            w.call(&["Views::settle"]);
            let view = ViewId::of_branch(&branch);
            if let Err(e) = w.views.settle(&view) {
                return w.judge(&Site::Branch(branch), e, "settle", &[]);
            }
            w.settle(&branch);
        }
        (2, Site::Branch(_)) => {
            w.call(&["Fs::verify"]);
            match w.fs(site)?.verify() {
                Ok(report) => assert!(report.is_clean(), "{}: {:?}", w.what(), report.findings),
                Err(e) => return w.judge(site, e, "verify", &[]),
            }
            w.call(&["Fs::losses"]);
            match w.fs(site)?.losses() {
                Ok(losses) => assert_eq!(losses, [], "{}", w.what()),
                Err(e) => return w.judge(site, e, "losses", &[]),
            }
            w.settle(&branch);
            w.history.certain();
        }
        (3, Site::Branch(_)) => {
            w.call(&["Fs::sync_all"]);
            match w.fs(site)?.sync_all() {
                Ok(()) => {}
                Err(e) => return w.judge(site, e, "sync_all", &[]),
            }
            w.settle(&branch);
            w.history.certain();
        }
        (4, Site::Branch(_)) => {
            w.call(&["Fs::note_scrub", "Fs::last_scrub"]);
            let (fs, faults) = (w.fs(site)?, w.random.below(3));
            match fs.note_scrub(faults).and_then(|()| fs.last_scrub()) {
                Ok(last) => {
                    assert_eq!(last.map(|(_, faults)| faults), Some(faults), "{}", w.what())
                }
                Err(e) => return w.judge(site, e, "note_scrub", &[]),
            }
        }
        _ => fsync(w, site)?,
    }
    Ok(())
}

/// Syncs the mainline and the clones, or only the clones.
pub fn sync_views(w: &mut World) -> Result<(), Dead> {
    if w.random.one_in(4) {
        w.call(&["Views::commit_written"]);
        if let Err(e) = w.views.commit_written() {
            return w.judge(&mainline(), e, "commit_written", &[]);
        }
    }
    w.call(&["Views::sync_all", "Views::shutdown"]);
    // Without the mainline this is what an adapter does when the kernel holds no more data.
    let only_clones = !w.kernel.holds() && w.random.one_in(3);
    let done = if only_clones { w.views.shutdown() } else { w.views.sync_all() };
    if let Err(e) = done {
        return w.judge(&mainline(), e, "sync_all", &[]);
    }
    let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
    for branch in branches.iter().filter(|b| !only_clones || !b.is_empty()) {
        w.settle(branch);
    }
    if !only_clones {
        w.history.certain();
    }
    Ok(())
}

fn fsync(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let Some(on) = w.target(site, &tree, |_| true)? else { return Ok(()) };
    let content::Target { id, ino, .. } = on;
    w.note(format!("{site:?} fsync {id}"));
    w.call(&["Fs::fsync", "Fs::fsyncdir", "Fs::begin_fsync", "Fs::sync_store"]);
    let (fs, data_only, halves) = (w.fs(site)?, w.random.one_in(2), w.random.one_in(2));
    let whole = || if on.node.is_dir() { fs.fsyncdir(ino) } else { fs.fsync(ino, data_only) };
    let done = match halves {
        false => whole(),
        true => fs.begin_fsync(ino).and_then(|begun| match begun {
            FSync::Done => Ok(()),
            // The sync of the mainline covers this one as well, with all others that began before.
            FSync::WithNext => w.views.mainline().sync_store(),
            FSync::Alone => whole(),
        }),
    };
    if let Err(e) = done {
        return w.judge(site, e, "fsync", &[]);
    }
    let named = w.tree(site).nodes.get(&id).cloned();
    // A file without a name cannot be found after a crash.
    let Some(node) = named else { return Ok(()) };
    let over =
        Overlay { nodes: [(id, Some(Arc::new(node.settled())))].into(), ..Overlay::default() };
    match site {
        Site::Branch(branch) => {
            let next = Arc::new(w.tree(site).with(&over));
            w.history.attempt(|s| drop(s.branches.insert(branch.clone(), next)));
            w.history.certain();
        }
        Site::Transaction(label) => {
            let open = w.running_mut(label);
            // A transaction does not commit a node that it has not changed.
            if open.over.nodes.contains_key(&id) {
                open.over.add(&over);
            }
            if open.durable {
                let over = open.over.clone();
                w.history.attempt(|s| drop(s.durable.insert(label.clone(), Arc::new(over))));
                w.history.certain();
            }
        }
    }
    Ok(())
}

/// Advances time and runs the background work.
pub fn time(w: &mut World) -> Result<(), Dead> {
    w.env.advance(Duration::from_millis(w.random.below(400)));
    match w.random.below(4) {
        0 => {
            w.note("tick".into());
            w.call(&["Fs::tick"]);
            let limit = w.env.monotonic().saturating_sub(super::FLUSH_INTERVAL / 2);
            match w.views.mainline().tick() {
                Ok(()) => {}
                Err(e) => return w.judge(&mainline(), e, "tick", &[]),
            }
            // Data must be on disk within the flush interval, so data that has waited for half of
            // it is written now.
            let mut tree = (*w.history.newest().branches[""]).clone();
            for (id, node) in &mut tree.nodes {
                if w.changed_at.get(&(String::new(), *id)).is_some_and(|at| *at <= limit) {
                    *node = Arc::new(node.settled());
                }
            }
            w.history.attempt(|s| drop(s.branches.insert(String::new(), Arc::new(tree))));
            w.history.certain();
        }
        1 => {
            w.note("tick of the views".into());
            w.call(&["Views::tick"]);
            w.views.tick();
        }
        _ => {
            for _ in 0..w.random.below(10) {
                if !w.stored(w.db.step())? {
                    break;
                }
            }
        }
    }
    Ok(())
}

pub fn maintenance(w: &mut World) -> Result<(), Dead> {
    let all: Vec<DictionaryId> = w.db.dictionaries().into_iter().map(|info| info.id).collect();
    let id = w.pick(&all).expect("there are the files'");
    let what = w.random.below(7);
    w.note(format!("maintenance {what}"));
    let done = match what {
        0 => w.db.flush(),
        1 => w.db.compact(id),
        2 => w.db.compact_range(id, b"a".to_vec()..b"zz".to_vec()),
        3 => {
            let started =
                w.db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() });
            if w.random.one_in(2) {
                w.db.stop_defragment();
            }
            w.db.wait_for_defragment();
            started.map(drop)
        }
        4 => {
            w.db.reclaim();
            Ok(())
        }
        5 => w.db.write_out(),
        _ => {
            w.db.set_stitch_at(id, [0, 4096, u64::MAX, kvdb::ADAPTIVE][w.random.below(4) as usize])
        }
    };
    match done {
        Ok(()) if what < 2 => w.history.certain(),
        Ok(()) => {}
        Err(e) => return w.judge(&mainline(), Error::from(e), "maintenance", &[]),
    }
    Ok(())
}

/// Releases references into ended views.
pub fn left(w: &mut World) -> Result<(), Dead> {
    let all = w.left.clone();
    let Some((number, ino, count)) = w.pick(&all) else { return Ok(()) };
    w.call(&["Views::forget", "Views::numbers_taken"]);
    let before = w.views.numbers_taken();
    w.views.forget(number, ino, count);
    w.left.retain(|l| *l != (number, ino, count));
    let last = !w.left.iter().any(|(n, ..)| *n == number);
    assert_eq!(
        w.views.numbers_taken(),
        before - usize::from(last),
        "{}: view {number}, inode {ino}",
        w.what()
    );
    Ok(())
}
