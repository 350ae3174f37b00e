//! How long a copy of a tree by reference takes, against `cp -a` of the same tree on the file
//! system that the store lies on: `cargo run --release -p measure --bin kvfs_clone_tree -- FILE
//! [files [rounds]]`. Both in turn, round by round.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use env::Machine;
use kvdb::{CreateOptions, Kvdb};
use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT};
use zones::FileDevice;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which file?")?;
    let files: u64 = args.get(2).map_or(Ok(20_000), |n| n.parse())?;
    let rounds: usize = args.get(3).map_or(Ok(7), |n| n.parse())?;
    let _ = std::fs::remove_file(path);
    let trees = format!("{path}.trees");
    let _ = std::fs::remove_dir_all(&trees);
    let machine = Arc::new(Machine::default());
    let db = Kvdb::create(
        Arc::new(FileDevice::create(path)?),
        machine.clone(),
        CreateOptions::default(),
    )?;
    let fs = Fs::open(db.clone(), machine, FsOptions::default())?;
    let who = Caller::default();
    let top = fs.mkdir(ROOT, b"tree", 0o755, who)?.ino;
    let (mut dir, mut dir_path) = (top, Path::new(&trees).join("tree"));
    let plain = dir_path.clone();
    for i in 0..files {
        if i % 10 == 0 {
            let name = format!("package{}", i / 10);
            dir = fs.mkdir(top, name.as_bytes(), 0o755, who)?.ino;
            dir_path = plain.join(name);
            std::fs::create_dir_all(&dir_path)?;
        }
        let name = format!("file{i}");
        let ino = fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, who)?.ino;
        let content = vec![i as u8; [200, 900, 3000, 9000, 30_000][i as usize % 5]];
        fs.write(ino, 0, &content, Default::default())?;
        fs.forget(ino, 1);
        std::fs::write(dir_path.join(name), &content)?;
    }
    fs.sync_all()?;
    let mut times: [Vec<Duration>; 2] = Default::default();
    for round in 0..rounds {
        // What the round before has left to be written is none of this one's business.
        std::process::Command::new("sync").status()?;
        let copy = format!("copy{round}");
        let begun = Instant::now();
        let stats = fs.clone_tree(top, ROOT, copy.as_bytes())?;
        times[0].push(begun.elapsed());
        // It stays until the end: ext4 is slow to use again the inodes of what was just removed.
        let to = Path::new(&trees).join(&copy);
        let begun = Instant::now();
        if !std::process::Command::new("cp").arg("-a").arg(&plain).arg(&to).status()?.success() {
            return Err("cp -a has failed".into());
        }
        times[1].push(begun.elapsed());
        println!("{stats:?} in {:?}; cp -a in {:?}", times[0][round], times[1][round]);
    }
    for times in &mut times {
        times.sort_unstable();
    }
    let median = times.each_ref().map(|times| times[times.len() / 2]);
    println!(
        "medians {:?}, cp -a {:?}: {:.1} times",
        median[0],
        median[1],
        median[1].as_secs_f64() / median[0].as_secs_f64()
    );
    fs.shutdown()?;
    std::fs::remove_dir_all(&trees)?;
    std::fs::remove_file(path)?;
    Ok(())
}
