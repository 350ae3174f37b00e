//! What snapshots, clones and differences cost:
//! `cargo run --release -p measure --bin kvdb_snapshots -- FILE`, which is overwritten.
//!
//! The same at 1,000 and at 500,000 keys (16 B, values of 100 B): a snapshot of what is in memory
//! and one of what is in runs, a clone, a drop, a rollback, and the difference after ten changes.
//! Then 1,000 snapshots with ten changes each: what opening, reading and the manifest are like with
//! them. Last, the 500,000 keys sent to another store. Times are medians and the longest.

use std::time::{Duration, Instant};

use kvdb::{Batch, Durability, Kvdb, OpenOptions};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn key(i: u32) -> Vec<u8> {
    format!("key{:013}", u64::from(i) * 7919 % 1_000_003).into_bytes()
}

/// The median and the longest of a few.
fn times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    println!(
        "  {name:34} {:8.3} ms, at most {:8.3} ms",
        ms(times[times.len() / 2]),
        ms(times[times.len() - 1])
    );
}

fn timed(all: &mut Vec<Duration>, work: impl FnOnce() -> kvdb::Result<()>) -> kvdb::Result<()> {
    let begun = Instant::now();
    work()?;
    all.push(begun.elapsed());
    Ok(())
}

fn change(db: &Kvdb, d: kvdb::DictionaryId, keys: u32, round: u32) -> kvdb::Result<()> {
    let mut batch = Batch::new();
    for i in 0..10 {
        batch.put(d, key((i * 49_999 + round * 31) % keys), format!("changed {round}"));
    }
    db.commit(batch, Durability::Buffered)
}

fn read(db: &Kvdb, d: kvdb::DictionaryId, keys: u32) -> Outcome<f64> {
    let begun = Instant::now();
    for i in 0..50_000u32 {
        db.get(d, &key(i.wrapping_mul(2_654_435_761) % keys))?.ok_or("a key is missing")?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / 50_000.0)
}

fn run(path: &str, keys: u32) -> Outcome<()> {
    let _ = std::fs::remove_file(path);
    let db = Kvdb::open_path(path)?;
    let d = db.open_dictionary("d")?;
    println!("{keys} keys");
    for i in 0..keys {
        d.insert(key(i), vec![i as u8; 100])?;
    }
    db.flush()?;
    let [mut of_memory, mut of_runs, mut clones, mut drops, mut rollbacks, mut differences] =
        [(); 6].map(|()| Vec::new());
    for round in 0..20 {
        change(&db, d.id(), keys, round)?;
        db.sync()?;
        timed(&mut of_memory, || db.snapshot("a"))?;
        db.flush()?;
        timed(&mut of_runs, || db.snapshot("b"))?;
        timed(&mut clones, || db.clone_snapshot("b", "branch"))?;
        change(&db, d.id(), keys, round + 100)?;
        db.flush()?;
        let begun = Instant::now();
        let changes = db.open_snapshot("b")?.difference(d.id(), &db.view(), d.id())?.count();
        differences.push(begun.elapsed());
        if changes == 0 || changes > 10 {
            return Err(format!("{changes} changes found").into());
        }
        timed(&mut rollbacks, || db.rollback("b"))?;
        timed(&mut drops, || db.drop_snapshot("a"))?;
        db.drop_snapshot("b")?;
        db.drop_branch("branch")?;
    }
    times("snapshot of what is in memory", of_memory);
    times("snapshot of what is in runs", of_runs);
    times("clone", clones);
    times("difference after 10 changes", differences);
    times("rollback", rollbacks);
    times("drop", drops);
    Ok(())
}

fn many(path: &str, keys: u32) -> Outcome<()> {
    let db = Kvdb::open_path(path)?;
    let d = db.open_dictionary("d")?;
    let before = read(&db, d.id(), keys)?;
    let written = db.stats().io.total().write_bytes;
    let mut all = Vec::new();
    for round in 0..1000 {
        change(&db, d.id(), keys, round)?;
        timed(&mut all, || db.snapshot(&format!("s{round:04}")))?;
    }
    println!("1,000 snapshots, ten changes before each");
    times("snapshot", all);
    db.flush()?;
    let written = (db.stats().io.total().write_bytes - written) >> 10;
    let after = read(&db, d.id(), keys)?;
    println!("  {written} KiB written in all; a read takes {:.2} of what it took", after / before);
    let begun = Instant::now();
    let list = db.snapshots();
    println!("  listing {}: {:.1} ms", list.len(), begun.elapsed().as_secs_f64() * 1e3);
    db.close()?;
    drop((d, db));
    let mut opens = Vec::new();
    for _ in 0..10 {
        let begun = Instant::now();
        let (db, recovery) = Kvdb::recover_path(path, OpenOptions::default())?;
        opens.push(begun.elapsed());
        println!(
            "  opening: {:.1} ms, {} runs, {} edits",
            begun.elapsed().as_secs_f64() * 1e3,
            recovery.runs,
            recovery.edits
        );
        db.close()?;
    }
    times("opening", opens);
    let db = Kvdb::open_path(path)?;
    let mut drops = Vec::new();
    for s in db.snapshots() {
        timed(&mut drops, || db.drop_snapshot(&s.name))?;
    }
    times("drop", drops);
    Ok(())
}

/// The store as it is, sent through memory to another one.
fn copy(path: &str) -> Outcome<()> {
    let other = format!("{path}.copy");
    let _ = std::fs::remove_file(&other);
    let db = Kvdb::open_path(path)?;
    db.snapshot("all")?;
    let begun = Instant::now();
    let mut stream = Vec::new();
    db.send("all", None, &mut stream, None)?;
    println!("  sending {} MiB: {:.0} ms", stream.len() >> 20, begun.elapsed().as_secs_f64() * 1e3);
    let to = Kvdb::open_path(&other)?;
    let written = to.stats().io.total().write_bytes;
    let begun = Instant::now();
    to.receive(&stream[..], &kvdb::ReceiveOptions::default())?;
    let (took, written) = (begun.elapsed(), to.stats().io.total().write_bytes - written);
    println!("  receiving: {:.0} ms, {} MiB written", took.as_secs_f64() * 1e3, written >> 20);
    to.close()?;
    std::fs::remove_file(&other)?;
    Ok(())
}

fn main() -> Outcome<()> {
    let path = std::env::args().nth(1).ok_or("give the name of a file, which is overwritten")?;
    run(&path, 1_000)?;
    run(&path, 500_000)?;
    many(&path, 500_000)?;
    copy(&path)?;
    std::fs::remove_file(&path)?;
    Ok(())
}
