//! What transactions cost: `cargo run --release -p measure --bin kvdb_transactions -- FILE
//! [what…]`, where what is any of `latency` (begin, commit and abort, by the size of the store),
//! `large` (a transaction of 2 GiB under 256 MiB of memory), `partitioned` (writers on keys of
//! their own, in transactions and on the mainline) and `many` (reads with open transactions).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{
    CreateOptions, DictionaryId, Durability, Isolation, Kvdb, OpenOptions, Transaction,
    TransactionOptions,
};
use zones::FileDevice;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = Path::new(args.first().ok_or("which file?")?);
    let all = ["latency", "large", "partitioned", "many"];
    let wanted: Vec<&str> =
        if args.len() > 1 { args[1..].iter().map(String::as_str).collect() } else { all.to_vec() };
    for what in wanted {
        match what {
            "latency" => latency(path)?,
            "large" => large(path)?,
            "partitioned" => partitioned(path)?,
            "many" => many(path)?,
            other => return Err(format!("{other}? one of {all:?}").into()),
        }
    }
    Ok(std::fs::remove_file(path)?)
}

fn store(path: &Path) -> Result<(Kvdb, DictionaryId), Box<dyn std::error::Error>> {
    let _ = std::fs::remove_file(path);
    let open = OpenOptions { memory: 256 << 20, ..OpenOptions::default() };
    let db = Kvdb::create(
        Arc::new(FileDevice::create(path)?),
        Arc::new(Machine::default()),
        CreateOptions { open, ..CreateOptions::default() },
    )?;
    let d = db.open_dictionary("d")?.id();
    Ok((db, d))
}

fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

fn times(
    rounds: usize,
    mut what: impl FnMut(usize) -> Outcome,
) -> Result<(Duration, Duration), Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for i in 0..rounds {
        let begun = Instant::now();
        what(i)?;
        all.push(begun.elapsed());
    }
    Ok(median(all))
}

fn latency(path: &Path) -> Outcome {
    for keys in [1_000u64, 500_000, 5_000_000] {
        let (db, d) = store(path)?;
        (0..keys).try_for_each(|i| db.put(d, &i.to_be_bytes(), &[7; 64], Durability::Buffered))?;
        db.sync()?;
        println!("{keys} keys: median (worst) of 1000");
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let mut open: Vec<Transaction> = Vec::new();
            let begin = times(1000, |_| {
                open.push(db.begin(isolation)?);
                Ok(())
            })?;
            open.iter().enumerate().try_for_each(|(i, t)| t.put(d, format!("{i}"), "changed"))?;
            let mut rest = open.split_off(500).into_iter();
            let commit = times(500, |i| Ok(open[i].commit(Durability::Buffered)?))?;
            let synced = times(100, |_| {
                Ok(rest.next().map_or(Ok(()), |t| t.commit(Durability::Synced))?)
            })?;
            let abort = times(400, |_| {
                drop(rest.next());
                Ok(())
            })?;
            println!(
                "  {isolation:?}: begin {begin:?}, commit {commit:?}, synced commit {synced:?}, abort {abort:?}"
            );
        }
    }
    Ok(())
}

fn large(path: &Path) -> Outcome {
    for (value, mib) in [(4096usize, 2048u64), (64, 256)] {
        let (db, d) = store(path)?;
        let t = db.begin(Isolation::Snapshot)?;
        let (mut noise, count) = (Random::new(1), (mib << 20) / (value as u64 + 16));
        let data: Vec<u8> = (0..value + 4096).map(|_| noise.number() as u8).collect();
        let begun = Instant::now();
        for _ in 0..count {
            let at = noise.below(4096) as usize;
            t.put(d, format!("{:016x}", noise.number()), &data[at..at + value])?;
        }
        let wrote = begun.elapsed();
        let (info, before) = (t.info(), db.stats().io);
        let begun = Instant::now();
        t.commit(Durability::Synced)?;
        let committed = begun.elapsed();
        let user = count * (value as u64 + 16);
        let moved = db.stats().io.total().write_bytes - before.total().write_bytes;
        println!(
            "{mib} MiB of {value} bytes in one transaction: {:.2} million puts/s, {:.2} bytes written for each, {} KiB in memory, commit {committed:?} ({moved} bytes)",
            count as f64 / wrote.as_secs_f64() / 1e6,
            before.total().write_bytes as f64 / user as f64,
            info.memory >> 10,
        );
    }
    Ok(())
}

fn partitioned(path: &Path) -> Outcome {
    const EACH: u64 = 1_000_000;
    for value in [64usize, 1024] {
        let each = if value > 64 { EACH / 4 } else { EACH };
        for writers in [1u64, 2, 4] {
            let mut rates: [Vec<f64>; 2] = Default::default();
            for _ in 0..3 {
                for (kind, rates) in rates.iter_mut().enumerate() {
                    let (db, d) = store(path)?;
                    let begun = Instant::now();
                    std::thread::scope(|scope| {
                        for w in 0..writers {
                            let db = db.clone();
                            scope.spawn(move || -> Result<(), kvdb::Error> {
                                let mut noise = Random::new(w + 1);
                                let value = vec![w as u8; value];
                                let mut key = [0; 16];
                                key[0] = w as u8;
                                let options = TransactionOptions {
                                    check_conflicts: false,
                                    ..Default::default()
                                };
                                let t = (kind == 1).then(|| db.begin_with(options)).transpose()?;
                                for _ in 0..each / writers {
                                    key[8..].copy_from_slice(&noise.number().to_be_bytes());
                                    match &t {
                                        None => db.put(d, &key, &value, Durability::Buffered)?,
                                        Some(t) => t.put(d, key, &value)?,
                                    }
                                }
                                t.map_or(Ok(()), |t| t.commit(Durability::Buffered))
                            });
                        }
                    });
                    db.sync()?;
                    rates.push((each / writers * writers) as f64 / begun.elapsed().as_secs_f64());
                }
            }
            let mid = |rates: &mut Vec<f64>| {
                rates.sort_by(f64::total_cmp);
                rates[rates.len() / 2]
            };
            let [mut main, mut own] = rates;
            let (main, own) = (mid(&mut main), mid(&mut own));
            println!(
                "{writers} writers of {value} bytes: mainline {main:.0}/s, transactions {own:.0}/s, {:.2} times",
                own / main
            );
        }
    }
    Ok(())
}

fn many(path: &Path) -> Outcome {
    let (db, d) = store(path)?;
    const KEYS: u64 = 500_000;
    (0..KEYS).try_for_each(|i| db.put(d, &i.to_be_bytes(), &[7; 64], Durability::Buffered))?;
    db.compact(d)?;
    let mut noise = Random::new(1);
    let mut gets = |db: &Kvdb| -> Result<f64, Box<dyn std::error::Error>> {
        let begun = Instant::now();
        for _ in 0..300_000 {
            db.get(d, &noise.below(KEYS).to_be_bytes())?.ok_or("a key is missing")?;
        }
        Ok(300_000.0 / begun.elapsed().as_secs_f64())
    };
    gets(&db)?;
    let alone = gets(&db)?;
    let open: Vec<Transaction> =
        (0..100).map(|_| db.begin(Isolation::Snapshot)).collect::<Result<_, _>>()?;
    for (i, t) in open.iter().enumerate() {
        (0..1000u64).try_for_each(|k| t.put(d, (i as u64 * 1000 + k).to_be_bytes(), [1; 64]))?;
    }
    let memory: u64 = open.iter().map(|t| t.info().memory).sum();
    let first = gets(&db)?;
    let again = gets(&db)?;
    println!(
        "gets: {alone:.0}/s alone, {first:.0}/s and {again:.0}/s with 100 open transactions ({} KiB in memory)",
        memory >> 10
    );
    Ok(())
}
