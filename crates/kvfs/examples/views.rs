//! What transactions over files and keys cost in the library, without a mount:
//! `cargo run --release -p kvfs --example views -- STORE WHAT`, where what is one of
//!
//! - `fill N`: makes N files of 100 bytes, 100 in a directory;
//! - `together CLIENTS SECONDS`: a file of 4 KiB and its key in one synced transaction, over and over;
//! - `latency`: begin, abort, snapshot, clone, drop, and the difference after ten files have changed, beside what is in the store;
//! - `many`: gets and lookups beside 1,000 snapshots and 100 open transactions, against the same without them.
//!
//! The store is made if it is not there. Each figure is a line of JSON.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{Durability, Isolation, Kvdb, TransactionOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, View, Views};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const IN_A_DIRECTORY: u64 = 100;
/// Where keys go: the dictionary that clients of the socket begin in.
const KEYS: &str = "0";

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(path), Some(what)) = (args.first(), args.get(1)) else { return Err("STORE and what?".into()) };
    let number = |at: usize| -> Outcome<u64> { Ok(args.get(at).ok_or("a number is missing")?.parse()?) };
    let db = Kvdb::open_path(Path::new(path))?;
    let fs = Fs::open(db.clone(), Arc::new(Machine::default()), FsOptions::default())?;
    let views = Views::new(db.clone(), fs.clone());
    match what.as_str() {
        "fill" => fill(&fs, number(2)?)?,
        "together" => together(&views, &db, number(2)?, Duration::from_secs(number(3)?))?,
        "latency" => latency(&views)?,
        "many" => many(&views, &db)?,
        other => return Err(format!("{other}? fill, together, latency or many").into()),
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
    println!("{{\"what\": \"fill\", \"files\": {files}, \"seconds\": {:.2}}}", begun.elapsed().as_secs_f64());
    Ok(())
}

fn together(views: &Views, db: &Kvdb, clients: u64, seconds: Duration) -> Outcome {
    let keys = db.open_dictionary(KEYS)?.id();
    let folder = |me: u64| format!("together{me}");
    for me in 0..clients {
        if views.mainline().lookup(ROOT, folder(me).as_bytes()).is_err() {
            views.mainline().mkdir(ROOT, folder(me).as_bytes(), 0o755, CALLER)?;
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
            let fs = views.fs(&View::Transaction(id))?;
            let dir = fs.lookup(ROOT, folder(me).as_bytes())?.ino;
            match fs.lookup(dir, name.as_bytes()) {
                Ok(file) => {
                    fs.write(file.ino, 0, &data, Default::default())?;
                }
                Err(_) => write_file(&fs, dir, &name, &data)?,
            }
            views.transaction(id)?.put(keys, format!("together:{me}:{name}"), format!("{round}"))?;
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
    fn of<T>(&mut self, name: &'static str, work: impl FnOnce() -> kvfs::Result<T>) -> kvfs::Result<T> {
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
            println!("{{\"what\": \"{name}\", \"median_ms\": {median:.3}, \"worst_ms\": {worst:.3}, \"times\": {}}}", times.len());
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
        for (isolation, begin) in [(Isolation::Snapshot, "begin si"), (Isolation::Serializable, "begin ser")] {
            let id = times.of(begin, || views.begin(TransactionOptions { isolation, ..Default::default() }))?;
            times.of("abort", || views.abort(id))?;
        }
        change_ten(fs, &dirs, &mut noise)?;
        times.of("snapshot", || views.snapshot(&View::Mainline, "a", Durability::Buffered))?;
        times.of("snapshot, synced", || views.snapshot(&View::Mainline, "b", Durability::Synced))?;
        times.of("clone", || views.clone_snapshot("b", "branch"))?;
        change_ten(fs, &dirs, &mut noise)?;
        let found = times.of("difference of 10 files", || views.difference_of_snapshots("b", None))?;
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

fn many(views: &Views, db: &Kvdb) -> Outcome {
    const GETS: u64 = 300_000;
    const KEPT: u64 = 500_000;
    let (fs, keys, mut noise) = (views.mainline(), db.open_dictionary(KEYS)?.id(), Random::new(1));
    let dirs = directories(fs)?;
    for i in 0..KEPT {
        db.put(keys, &i.to_be_bytes(), &[7; 64], Durability::Buffered)?;
    }
    db.flush()?;
    let mut speed = |what: &str| -> Outcome<(f64, f64)> {
        let begun = Instant::now();
        for _ in 0..GETS {
            db.get(keys, &noise.below(KEPT).to_be_bytes())?.ok_or("a key is missing")?;
        }
        let gets = GETS as f64 / begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        for _ in 0..GETS {
            let (dir, name) = some_file(&dirs, &mut noise);
            let ino = fs.lookup(dir, name.as_bytes())?.ino;
            fs.forget(ino, 1);
        }
        let lookups = GETS as f64 / begun.elapsed().as_secs_f64();
        println!("{{\"what\": \"{what}\", \"gets_per_second\": {gets:.0}, \"lookups_per_second\": {lookups:.0}}}");
        Ok((gets, lookups))
    };
    for _ in 0..3 {
        speed("alone")?;
    }
    let mut noise = Random::new(2);
    let begun = Instant::now();
    for i in 0..1000 {
        for _ in 0..10 {
            db.put(keys, &noise.below(KEPT).to_be_bytes(), &[8; 64], Durability::Buffered)?;
        }
        change_ten(fs, &dirs, &mut noise)?;
        views.snapshot(&View::Mainline, &format!("s{i:04}"), Durability::Buffered)?;
    }
    println!("{{\"what\": \"1000 snapshots made\", \"seconds\": {:.2}}}", begun.elapsed().as_secs_f64());
    for _ in 0..3 {
        speed("beside 1000 snapshots")?;
    }
    let mut open = Vec::new();
    for i in 0..100u64 {
        let id = views.begin(TransactionOptions::default())?;
        let transaction = views.transaction(id)?;
        (0..100).try_for_each(|k| transaction.put(keys, (i * 1000 + k).to_be_bytes(), [1; 64]))?;
        change_ten(&views.fs(&View::Transaction(id))?, &dirs, &mut noise)?;
        open.push(id);
    }
    for _ in 0..3 {
        speed("beside 1000 snapshots and 100 transactions")?;
    }
    let memory: u64 = views.list().iter().map(|info| info.memory).sum();
    println!("{{\"what\": \"memory of 100 transactions\", \"kib\": {}}}", memory >> 10);
    open.into_iter().try_for_each(|id| views.abort(id))?;
    for snapshot in views.snapshots() {
        views.drop_snapshot(&snapshot.name)?;
    }
    Ok(())
}
