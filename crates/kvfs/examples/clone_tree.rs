//! How long a copy of a tree by reference takes: `cargo run --release -p kvfs --example clone_tree -- FILE [files]`.

use std::sync::Arc;
use std::time::Instant;

use env::Machine;
use kvdb::{CreateOptions, Kvdb};
use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT};
use zones::FileDevice;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which file?")?;
    let files: u64 = args.get(2).map_or(Ok(20_000), |n| n.parse())?;
    let _ = std::fs::remove_file(path);
    let machine = Arc::new(Machine::default());
    let db = Kvdb::create(Arc::new(FileDevice::create(path)?), machine.clone(), CreateOptions::default())?;
    let fs = Fs::open(db.clone(), machine, FsOptions::default())?;
    let who = Caller::default();
    let top = fs.mkdir(ROOT, b"tree", 0o755, who)?.ino;
    let mut dir = top;
    for i in 0..files {
        if i % 10 == 0 {
            dir = fs.mkdir(top, format!("package{}", i / 10).as_bytes(), 0o755, who)?.ino;
        }
        let ino = fs.mknod(dir, format!("file{i}").as_bytes(), FileKind::File, 0o644, 0, who)?.ino;
        let len = [200, 900, 3000, 9000, 30_000][i as usize % 5];
        fs.write(ino, 0, &vec![i as u8; len], Default::default())?;
        fs.forget(ino, 1);
    }
    fs.sync_all()?;
    for round in 0..7 {
        let begun = Instant::now();
        let stats = fs.clone_tree(top, ROOT, format!("copy{round}").as_bytes())?;
        println!("{stats:?} in {:?}", begun.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok(())
}
