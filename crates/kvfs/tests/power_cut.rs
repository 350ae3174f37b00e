//! Power cuts through the whole engine, files and keys in one store. What comes back is one state of the common history of names
//! and keys, not older than the last sync; every file in it holds one of its versions, not older than its last fsync, nor than
//! the rename that gave it a name which another file had.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use kvdb::{Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, RenameFlags, SetAttr};
use zones::{CrashDevice, MemoryDevice};

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1 };

type FileId = usize;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(FileId),
}

/// One state of names and keys.
#[derive(Clone, Debug, Default)]
struct State {
    /// By path, parents before children.
    names: BTreeMap<String, Node>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The oldest version that each file may hold in this state.
    least: BTreeMap<FileId, usize>,
}

#[derive(Default)]
struct History {
    /// Oldest first; the first one is certain.
    states: Vec<State>,
    /// All contents that a file had.
    versions: Vec<Vec<Vec<u8>>>,
    inos: BTreeMap<String, Ino>,
}

impl History {
    fn now(&self) -> &State {
        &self.states[self.states.len() - 1]
    }
    fn now_mut(&mut self) -> &mut State {
        let last = self.states.len() - 1;
        &mut self.states[last]
    }
    /// A state that the next call attempts.
    fn attempt(&mut self) -> &mut State {
        self.states.push(self.now().clone());
        self.now_mut()
    }
    /// Everything up to now is on disk, but for data that waits in files.
    fn certain(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }
    fn newest(&self, file: FileId) -> usize {
        self.versions[file].len() - 1
    }
    fn paths(&self, dirs: bool) -> Vec<String> {
        self.now().names.iter().filter(|(_, n)| (**n == Node::Dir) == dirs).map(|(p, _)| p.clone()).collect()
    }
    fn ino(&self, path: &str) -> Ino {
        if path.is_empty() { ROOT } else { self.inos[path] }
    }
}

fn split(path: &str) -> (&str, &[u8]) {
    let (parent, name) = path.rsplit_once('/').expect("every path but the root's has a slash");
    (parent, name.as_bytes())
}

fn pick(random: &mut Random, from: &[String]) -> Option<String> {
    (!from.is_empty()).then(|| from[random.below(from.len() as u64) as usize].clone())
}

/// One call with its effect on the model. `Ok(())` also when the model has nothing to do it on.
fn call(fs: &Fs, db: &Kvdb, keys: DictionaryId, h: &mut History, random: &mut Random) -> kvfs::Result<()> {
    let mut dirs = h.paths(true);
    dirs.push(String::new());
    let files = h.paths(false);
    let fresh = |random: &mut Random| format!("n{}", random.below(12));
    match random.below(30) {
        // A new file or directory.
        kind @ 0..=6 => {
            let parent = pick(random, &dirs).expect("the root is there");
            let path = format!("{parent}/{}", fresh(random));
            if h.now().names.contains_key(&path) || path.len() > 40 {
                return Ok(());
            }
            let dir = kind == 0;
            let id = h.versions.len();
            let state = h.attempt();
            state.names.insert(path.clone(), if dir { Node::Dir } else { Node::File(id) });
            if !dir {
                state.least.insert(id, 0);
                h.versions.push(vec![Vec::new()]);
            }
            let (parent, name) = split(&path);
            let parent = h.ino(parent);
            let attr =
                if dir { fs.mkdir(parent, name, 0o755, USER) } else { fs.mknod(parent, name, FileKind::File, 0o644, 0, USER) }?;
            h.inos.insert(path, attr.ino);
            if random.one_in(2) {
                fs.forget(attr.ino, 1);
            }
            Ok(())
        }
        // Data: a write anywhere, or a truncation.
        kind @ 7..=14 => {
            let Some(path) = pick(random, &files) else { return Ok(()) };
            let Node::File(id) = h.now().names[&path] else { return Ok(()) };
            let mut content = h.versions[id][h.newest(id)].clone();
            let ino = h.ino(&path);
            if kind == 7 {
                let size = random.below(30_000);
                content.resize(size as usize, 0);
                h.versions[id].push(content);
                fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }, USER)?;
                return Ok(());
            }
            let sizes = [10, 300, 4096, 9000, 40_000, 100_000];
            let at = if random.one_in(2) { 0 } else { random.below(20_000) } as usize;
            let most = sizes[random.below(6) as usize];
            let mut data = vec![0; 1 + random.below(most) as usize];
            random.fill(&mut data);
            if content.len() < at + data.len() {
                content.resize(at + data.len(), 0);
            }
            content[at..at + data.len()].copy_from_slice(&data);
            h.versions[id].push(content);
            fs.write(ino, at as u64, &data, Default::default())?;
            Ok(())
        }
        // A file gets another name, which may be taken.
        15..=18 => {
            let (Some(from), Some(parent)) = (pick(random, &files), pick(random, &dirs)) else { return Ok(()) };
            let to = match pick(random, &files) {
                Some(taken) if random.one_in(2) => taken,
                _ => format!("{parent}/{}", fresh(random)),
            };
            if from == to || h.now().names.get(&to) == Some(&Node::Dir) || to.len() > 40 {
                return Ok(());
            }
            let Node::File(id) = h.now().names[&from] else { return Ok(()) };
            if h.now().names.get(&to) == Some(&Node::File(id)) {
                return Ok(()); // two links of one file: nothing happens
            }
            let newest = h.newest(id);
            let over = h.now().names.contains_key(&to);
            let state = h.attempt();
            state.names.remove(&from);
            state.names.insert(to.clone(), Node::File(id));
            if over {
                state.least.insert(id, newest);
            }
            let ino = h.inos.remove(&from).expect("every name has an inode");
            let ((p, n), (p2, n2)) = (split(&from), split(&to));
            let (p, p2) = (h.ino(p), h.ino(p2));
            let done = fs.rename(p, n, p2, n2, RenameFlags::default());
            h.inos.insert(to.clone(), ino);
            done
        }
        19 => {
            let (Some(from), Some(parent)) = (pick(random, &files), pick(random, &dirs)) else { return Ok(()) };
            let to = format!("{parent}/{}", fresh(random));
            if h.now().names.contains_key(&to) || to.len() > 40 {
                return Ok(());
            }
            let node = h.now().names[&from].clone();
            h.attempt().names.insert(to.clone(), node);
            let ino = h.ino(&from);
            h.inos.insert(to.clone(), ino);
            let (parent, name) = split(&to);
            fs.link(ino, h.ino(parent), name)?;
            fs.forget(ino, 1);
            Ok(())
        }
        20 | 21 => {
            let Some(path) = pick(random, &files) else { return Ok(()) };
            h.attempt().names.remove(&path);
            let (parent, name) = split(&path);
            fs.unlink(h.ino(parent), name)
        }
        22 => {
            let empty: Vec<_> =
                h.paths(true).into_iter().filter(|d| !h.now().names.keys().any(|p| p.starts_with(&format!("{d}/")))).collect();
            let Some(path) = pick(random, &empty) else { return Ok(()) };
            h.attempt().names.remove(&path);
            let (parent, name) = split(&path);
            fs.rmdir(h.ino(parent), name)
        }
        // fsync: this file's data, and all names and keys before it.
        23 | 24 => {
            let Some(path) = pick(random, &files) else { return Ok(()) };
            let Node::File(id) = h.now().names[&path] else { return Ok(()) };
            fs.fsync(h.ino(&path), false)?;
            let newest = h.newest(id);
            h.now_mut().least.insert(id, newest);
            h.certain();
            Ok(())
        }
        25 => {
            fs.sync_all()?;
            let all: Vec<_> = h.versions.iter().enumerate().map(|(id, v)| (id, v.len() - 1)).collect();
            h.now_mut().least.extend(all);
            h.certain();
            Ok(())
        }
        // Keys, beside the files and in the same history.
        _ => {
            let durability = if random.one_in(5) { Durability::Synced } else { Durability::Buffered };
            let mut batch = Batch::new();
            let mut changes = Vec::new();
            for _ in 0..1 + random.below(3) {
                let key = format!("key{}", random.below(40)).into_bytes();
                let mut value = vec![0; random.below(3000) as usize];
                random.fill(&mut value);
                batch.put(keys, key.clone(), value.clone());
                changes.push((key, value));
            }
            h.attempt().keys.extend(changes);
            db.commit(batch, durability)?;
            if durability == Durability::Synced {
                h.certain();
            }
            Ok(())
        }
    }
}

/// What is on the file system: inode (0 for a directory), size and content by path.
fn tree(fs: &Fs) -> BTreeMap<String, (Ino, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = todo.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, false, &mut |e| {
            entries.push((String::from_utf8_lossy(e.name).into_owned(), e.ino, e.kind));
            true
        })
        .expect("directories are readable");
        for (name, ino, kind) in entries.into_iter().filter(|(n, ..)| n != "." && n != "..") {
            let path = format!("{path}/{name}");
            if kind == FileKind::Dir {
                todo.push((path.clone(), ino));
                found.insert(path, (ino, None));
            } else {
                let size = fs.getattr(ino).expect("an inode is there").size;
                let data = fs.read(ino, 0, size as u32).expect("files are readable").to_vec();
                assert_eq!(data.len() as u64, size, "{path}: a read to the end gives the size");
                found.insert(path, (ino, Some(data)));
            }
        }
    }
    found
}

/// Whether `state` is what was found; the reason why not.
fn matches(
    state: &State,
    h: &History,
    found: &BTreeMap<String, (Ino, Option<Vec<u8>>)>,
    keys: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<(), String> {
    if state.keys != *keys {
        return Err("the keys differ".into());
    }
    if !state.names.keys().eq(found.keys()) {
        return Err("the names differ".into());
    }
    let mut inos: BTreeMap<FileId, Ino> = BTreeMap::new();
    for (path, node) in &state.names {
        let (ino, content) = &found[path];
        match (node, content) {
            (Node::Dir, None) => {}
            (Node::File(id), Some(content)) => {
                if *inos.entry(*id).or_insert(*ino) != *ino {
                    return Err(format!("{path}: no longer a link of the same file"));
                }
                let least = state.least.get(id).copied().unwrap_or(0);
                if !h.versions[*id][least..].contains(content) {
                    return Err(format!("{path}: {} bytes, no version from {least} to {}", content.len(), h.newest(*id)));
                }
            }
            _ => return Err(format!("{path}: of another kind")),
        }
    }
    Ok(())
}

fn small() -> OpenOptions {
    OpenOptions {
        memory: 1 << 20,
        flush_interval: Duration::from_millis(10),
        late_bind_at: 16 << 10,
        threads: false,
        zero_journal: false,
        idle_flush: Duration::from_millis(50),
        ..OpenOptions::default()
    }
}

fn options() -> FsOptions {
    FsOptions { write_buffer: 128 << 10, ..FsOptions::default() }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let create = CreateOptions { open: small(), reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("a new store");
    let keys = db.create_dictionary("user", DictionaryOptions::default()).expect("a dictionary");
    Fs::open(db.clone(), env.clone(), options()).and_then(|fs| fs.shutdown()).expect("a new file system");
    drop(db);
    let mut image = device.crash(seed);
    let mut h = History { states: vec![State::default()], ..History::default() };
    for life in 0..2 + random.below(3) {
        let device = Arc::new(CrashDevice::over(image.clone()));
        device.cut_power_after(20 + random.below(500));
        let opened = Kvdb::open(device.clone(), env.clone(), small())
            .map_err(kvfs::Error::from)
            .and_then(|(db, _)| Ok((Fs::open(db.clone(), env.clone(), options())?, db)));
        match &opened {
            Err(e) => assert!(device.is_dead(), "seed {seed}, life {life}: opening failed: {e}"),
            Ok((fs, db)) => {
                for _ in 0..30 + random.below(200) {
                    let done = match random.below(12) {
                        0 => fs.tick(),
                        1 => db.step().map(drop).map_err(kvfs::Error::from),
                        2 => {
                            env.advance(Duration::from_millis(random.below(800)));
                            Ok(())
                        }
                        _ => call(fs, db, keys, &mut h, &mut random),
                    };
                    if let Err(e) = done {
                        assert!(device.is_dead(), "seed {seed}, life {life}: {e}");
                        break;
                    }
                }
            }
        }
        image = device.crash(seed ^ life.wrapping_mul(77));
        drop(opened);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);

        // The power is back.
        let device = Arc::new(CrashDevice::over(image.clone()));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), small()).unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
        let committed = kvfs::verify(&db).expect("verifies");
        assert!(committed.is_clean(), "seed {seed}, life {life}: {:?}", committed.findings);
        let fs = Fs::open(db.clone(), env.clone(), options()).unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
        let found = tree(&fs);
        let stored = db.view().scan(keys, b"", b"", usize::MAX).expect("keys are readable");
        let stored: BTreeMap<_, _> = stored.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        let mut reasons = Vec::new();
        let at = h.states.iter().rposition(|s| matches(s, &h, &found, &stored).map_err(|e| reasons.push(e)).is_ok());
        let at = at.unwrap_or_else(|| panic!("seed {seed}, life {life}: none of {} states: {reasons:?}", h.states.len()));
        // What was found is what goes on from here.
        let mut state = h.states.swap_remove(at);
        let mut versions = Vec::new();
        let mut ids = BTreeMap::new();
        state.least.clear();
        for (path, node) in &mut state.names {
            if let (Node::File(id), (_, Some(content))) = (node, &found[path]) {
                *id = *ids.entry(*id).or_insert_with(|| {
                    versions.push(vec![content.clone()]);
                    versions.len() - 1
                });
            }
        }
        h = History { states: vec![state], versions, inos: found.into_iter().map(|(p, (ino, _))| (p, ino)).collect() };
        fs.shutdown().expect("shuts down");
        db.close().expect("closes");
        drop((fs, db));
        image = device.durable();
    }
}

#[test]
fn files_and_keys_survive_power_cuts_together() {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVFS_SEEDS").unwrap_or(100),
    };
    for seed in seeds {
        run(seed);
    }
}
