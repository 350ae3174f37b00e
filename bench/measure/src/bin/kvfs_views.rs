//! What transactions over files and keys cost in the library, without a mount:
//! `cargo run --release -p measure --bin kvfs_views -- STORE WHAT`, where what is one of
//!
//! - `fill N`: makes N files of 100 bytes, 100 in a directory;
//! - `together CLIENTS SECONDS`: a file of 4 KiB and its key in one synced transaction, over and
//!   over;
//! - `latency`: begin, abort, snapshot, clone, drop, and the difference after ten files have
//!   changed, by what is in the store;
//! - `many`: gets and lookups with 1,000 snapshots and 100 open transactions, against the same in
//!   `STORE.alone`, which has had the same changes without them; in short slices, in turn;
//! - `gets TIMES`: how quick gets and lookups are in what `many` has left.
//!
//! The store is made if it is not there. Each figure is a line of JSON.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{Durability, Isolation, Kvdb, TransactionOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, ViewId, Views};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const IN_A_DIRECTORY: u64 = 100;
/// Where keys go: the dictionary that clients of the socket begin in.
const KEYS: &str = "0";

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(path), Some(what)) = (args.first(), args.get(1)) else {
        return Err("STORE and what?".into());
    };
    let number =
        |at: usize| -> Outcome<u64> { Ok(args.get(at).ok_or("a number is missing")?.parse()?) };
    let db = Kvdb::open_path(Path::new(path))?;
    let fs = Fs::open(db.clone(), Arc::new(Machine::default()), FsOptions::default())?;
    let views = Views::new(db.clone(), fs.clone());
    match what.as_str() {
        "fill" => fill(&fs, number(2)?)?,
        "together" => together(&views, &db, number(2)?, Duration::from_secs(number(3)?))?,
        "latency" => latency(&views)?,
        "gets" => {
            let mut store = Alike {
                views: views.clone(),
                db: db.clone(),
                dirs: directories(&fs)?,
                noise: Random::new(3),
            };
            println!("runs: {:?}", runs(&db));
            for _ in 0..number(2)? {
                let [gets, lookups] = store.speed(200_000)?.map(|seconds| 200_000.0 / seconds);
                println!(
                    "{{\"what\": \"gets\", \"gets_per_second\": {gets:.0}, \"lookups_per_second\": {lookups:.0}}}"
                );
            }
        }
        "many" => {
            let other = Kvdb::open_path(Path::new(&format!("{path}.alone")))?;
            let its = Fs::open(other.clone(), Arc::new(Machine::default()), FsOptions::default())?;
            let alone = Alike::new(other.clone(), Views::new(other, its))?;
            many(Alike::new(db.clone(), views.clone())?, alone)?;
        }
        other => return Err(format!("{other}? fill, together, latency, many or gets").into()),
    }
    drop(views);
    fs.shutdown()?;
    drop(fs);
    Ok(db.close()?)
}

fn write_file(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Outcome {
    let ino = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, CALLER)?.ino;
    fs.write(ino, 0, data, Default::default())?;
    fs.forget(ino, 1);
    Ok(())
}

fn fill(fs: &Fs, files: u64) -> Outcome {
    let begun = Instant::now();
    for d in 0..files.div_ceil(IN_A_DIRECTORY) {
        let dir = fs.mkdir(ROOT, format!("d{d:05}").as_bytes(), 0o755, CALLER)?.ino;
        for i in 0..IN_A_DIRECTORY.min(files - d * IN_A_DIRECTORY) {
            write_file(fs, dir, &format!("f{i:02}"), &[d as u8; 100])?;
        }
        fs.forget(dir, 1);
    }
    fs.sync_all()?;
    println!(
        "{{\"what\": \"fill\", \"files\": {files}, \"seconds\": {:.2}}}",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn together(views: &Views, db: &Kvdb, clients: u64, seconds: Duration) -> Outcome {
    let keys = db.open_dictionary(KEYS)?.id();
    let directory = |me: u64| format!("together{me}");
    for me in 0..clients {
        if views.mainline().lookup(ROOT, directory(me).as_bytes()).is_err() {
            views.mainline().mkdir(ROOT, directory(me).as_bytes(), 0o755, CALLER)?;
        }
    }
    views.mainline().sync_all()?;
    let (done, begun) = (AtomicU64::new(0), Instant::now());
    let client = |me: u64| -> Outcome {
        let data = [me as u8; 4096];
        let mut round = 0;
        while begun.elapsed() < seconds {
            let name = format!("f{}", round % 100);
            let id = views.begin(TransactionOptions::default())?;
            let fs = views.fs(&ViewId::Transaction(id))?;
            let dir = fs.lookup(ROOT, directory(me).as_bytes())?.ino;
            match fs.lookup(dir, name.as_bytes()) {
                Ok(file) => {
                    fs.write(file.ino, 0, &data, Default::default())?;
                }
                Err(_) => write_file(&fs, dir, &name, &data)?,
            }
            views.transaction(id)?.put(
                keys,
                format!("together:{me}:{name}"),
                format!("{round}"),
            )?;
            views.commit(id, Durability::Synced)?;
            round += 1;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let client = &client;
        let all: Vec<_> = (0..clients).map(|me| scope.spawn(move || client(me))).collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a client has panicked")?)
    })?;
    let rate = done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    println!("{{\"what\": \"together\", \"clients\": {clients}, \"per_second\": {rate:.0}}}");
    Ok(())
}

/// How long each thing took, by name.
#[derive(Default)]
struct Times(Vec<(&'static str, Vec<Duration>)>);

impl Times {
    fn of<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> kvfs::Result<T>,
    ) -> kvfs::Result<T> {
        let begun = Instant::now();
        let made = work()?;
        let took = begun.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => times.push(took),
            None => self.0.push((name, vec![took])),
        }
        Ok(made)
    }

    fn print(self) {
        for (name, mut times) in self.0 {
            times.sort_unstable();
            let ms = |d: Duration| d.as_secs_f64() * 1e3;
            let (median, worst) = (ms(times[times.len() / 2]), ms(times[times.len() - 1]));
            println!(
                "{{\"what\": \"{name}\", \"median_ms\": {median:.3}, \"worst_ms\": {worst:.3}, \"times\": {}}}",
                times.len()
            );
        }
    }
}

fn directories(fs: &Fs) -> Outcome<Vec<Ino>> {
    let mut all = Vec::new();
    fs.readdir(ROOT, 2, false, &mut |e| {
        if e.name.starts_with(b"d") {
            all.push(e.ino);
        }
        true
    })?;
    if all.is_empty() { Err("fill it first".into()) } else { Ok(all) }
}

fn some_file(dirs: &[Ino], noise: &mut Random) -> (Ino, String) {
    (dirs[noise.below(dirs.len() as u64) as usize], format!("f{:02}", noise.below(IN_A_DIRECTORY)))
}

fn change_ten(fs: &Fs, dirs: &[Ino], noise: &mut Random) -> Outcome {
    for _ in 0..10 {
        let (dir, name) = some_file(dirs, noise);
        let file = fs.lookup(dir, name.as_bytes())?;
        fs.write(file.ino, 0, &noise.number().to_be_bytes(), Default::default())?;
        fs.forget(file.ino, 1);
    }
    Ok(())
}

fn latency(views: &Views) -> Outcome {
    let (fs, mut noise, mut times) = (views.mainline(), Random::new(1), Times::default());
    let dirs = directories(fs)?;
    for round in 0..20 {
        for (isolation, begin) in
            [(Isolation::Snapshot, "begin si"), (Isolation::Serializable, "begin ser")]
        {
            let id = times.of(begin, || {
                views.begin(TransactionOptions { isolation, ..Default::default() })
            })?;
            times.of("abort", || views.abort(id))?;
        }
        change_ten(fs, &dirs, &mut noise)?;
        times.of("snapshot", || views.snapshot(&ViewId::Mainline, "a", Durability::Buffered))?;
        times.of("snapshot, synced", || {
            views.snapshot(&ViewId::Mainline, "b", Durability::Synced)
        })?;
        times.of("clone", || views.clone_snapshot("b", "branch"))?;
        change_ten(fs, &dirs, &mut noise)?;
        let found = times.of("difference of 10 files", || {
            views.difference_of_snapshots("b", None, Default::default())
        })?;
        if found.is_empty() || found.len() > 10 {
            return Err(format!("round {round}: {} differences found", found.len()).into());
        }
        times.of("drop a clone", || views.drop_clone("branch"))?;
        times.of("drop", || views.drop_snapshot("a"))?;
        views.drop_snapshot("b")?;
    }
    times.print();
    Ok(())
}

/// A store with files and keys, one of two alike.
struct Alike {
    views: Views,
    db: Kvdb,
    dirs: Vec<Ino>,
    noise: Random,
}

const KEPT: u64 = 500_000;
const FILES: u64 = 100_000;

impl Alike {
    fn new(db: Kvdb, views: Views) -> Outcome<Alike> {
        if directories(views.mainline()).is_err() {
            fill(views.mainline(), FILES)?;
        }
        let keys = db.open_dictionary(KEYS)?;
        if keys.get(0u64.to_be_bytes())?.is_none() {
            for i in 0..KEPT {
                db.put(keys.id(), &i.to_be_bytes(), &[7; 64], Durability::Buffered)?;
            }
        }
        db.flush()?;
        let dirs = directories(views.mainline())?;
        Ok(Alike { views, db, dirs, noise: Random::new(2) })
    }

    /// A thousand times ten keys and ten files, with a snapshot each time or without.
    fn change(&mut self, snapshots: bool) -> Outcome {
        let keys = self.db.open_dictionary(KEYS)?.id();
        for i in 0..1000 {
            for _ in 0..10 {
                self.db.put(
                    keys,
                    &self.noise.below(KEPT).to_be_bytes(),
                    &[8; 64],
                    Durability::Buffered,
                )?;
            }
            change_ten(self.views.mainline(), &self.dirs, &mut self.noise)?;
            if snapshots {
                self.views.snapshot(
                    &ViewId::Mainline,
                    &format!("s{i:04}"),
                    Durability::Buffered,
                )?;
            }
        }
        Ok(self.views.mainline().sync_all()?)
    }

    /// How long so many gets and lookups take.
    fn speed(&mut self, times: u64) -> Outcome<[f64; 2]> {
        let (fs, keys) = (self.views.mainline(), self.db.open_dictionary(KEYS)?.id());
        let begun = Instant::now();
        for _ in 0..times {
            self.db.get(keys, &self.noise.below(KEPT).to_be_bytes())?.ok_or("a key is missing")?;
        }
        let gets = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        for _ in 0..times {
            let (dir, name) = some_file(&self.dirs, &mut self.noise);
            let ino = fs.lookup(dir, name.as_bytes())?.ino;
            fs.forget(ino, 1);
        }
        Ok([gets, begun.elapsed().as_secs_f64()])
    }
}

/// Short slices of the one and the other in turn.
fn compare(what: &str, alone: &mut Alike, loaded: &mut Alike) -> Outcome {
    const SLICE: u64 = 10_000;
    const SLICES: usize = 40;
    let mut slices = Vec::new();
    for _ in 0..SLICES {
        slices.push((alone.speed(SLICE)?, loaded.speed(SLICE)?));
    }
    for (at, name) in ["gets", "lookups"].into_iter().enumerate() {
        let middle = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            (all[all.len() / 2], all[all.len() / 10], all[all.len() * 9 / 10])
        };
        let (ratio, low, high) = middle(slices.iter().map(|(a, b)| b[at] / a[at]).collect());
        let (a, ..) = middle(slices.iter().map(|(a, _)| SLICE as f64 / a[at]).collect());
        let (b, ..) = middle(slices.iter().map(|(_, b)| SLICE as f64 / b[at]).collect());
        println!(
            "{{\"what\": \"{name} {what}\", \"alone_per_second\": {a:.0}, \"per_second\": {b:.0}, \"ratio\": {ratio:.3}, \"low\": {low:.3}, \
             \"high\": {high:.3}}}"
        );
    }
    Ok(())
}

fn runs(db: &Kvdb) -> Vec<(String, usize)> {
    db.stats()
        .dictionaries
        .iter()
        .map(|d| (d.info.name.clone(), d.levels.iter().map(Vec::len).sum()))
        .collect()
}

fn many(mut loaded: Alike, mut alone: Alike) -> Outcome {
    compare("before", &mut alone, &mut loaded)?;
    alone.change(false)?;
    let begun = Instant::now();
    loaded.change(true)?;
    println!(
        "{{\"what\": \"1000 snapshots made\", \"seconds\": {:.2}}}",
        begun.elapsed().as_secs_f64()
    );
    eprintln!("runs: {:?} and {:?}", runs(&alone.db), runs(&loaded.db));
    compare("beside 1000 snapshots", &mut alone, &mut loaded)?;
    let mut open = Vec::new();
    let keys = loaded.db.open_dictionary(KEYS)?.id();
    for i in 0..100u64 {
        let id = loaded.views.begin(TransactionOptions::default())?;
        let transaction = loaded.views.transaction(id)?;
        (0..100).try_for_each(|k| transaction.put(keys, (i * 1000 + k).to_be_bytes(), [1; 64]))?;
        change_ten(&loaded.views.fs(&ViewId::Transaction(id))?, &loaded.dirs, &mut loaded.noise)?;
        open.push(id);
    }
    compare("beside 1000 snapshots and 100 transactions", &mut alone, &mut loaded)?;
    let memory: u64 = loaded.views.list().iter().map(|info| info.memory).sum();
    println!("{{\"what\": \"memory of 100 transactions\", \"kib\": {}}}", memory >> 10);
    alone.db.flush()?;
    loaded.db.flush()?;
    eprintln!("runs: {:?} and {:?}", runs(&alone.db), runs(&loaded.db));
    compare("the same, with nothing in memory", &mut alone, &mut loaded)?;
    open.into_iter().try_for_each(|id| loaded.views.abort(id))?;
    compare("beside 1000 snapshots again", &mut alone, &mut loaded)?;
    for snapshot in loaded.views.snapshots() {
        loaded.views.drop_snapshot(&snapshot.name)?;
    }
    compare("after it all", &mut alone, &mut loaded)
}
