//! What calls of the file system take by themselves, without a kernel: processor time of one
//! thread, by call.
//!
//! `calls [FILES]`: a store in a temporary file, all of it in memory. Median of seven rounds, µs a
//! call.

use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{CreateOptions, Kvdb};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, WriteHints};
use rustix::time::{ClockId, clock_gettime};
use zones::FileDevice;

const NOBODY: Caller = Caller { uid: 1, gid: 1, pid: 1 };

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: u32 = std::env::args().nth(1).map_or(Ok(20_000), |n| n.parse())?;
    let path = std::env::temp_dir().join(format!("kvfs-calls-{}", std::process::id()));
    let env = Arc::new(Machine::default());
    let device = Arc::new(FileDevice::create(&path)?);
    let db = Kvdb::create(device, env.clone(), CreateOptions::default())?;
    let fs = Fs::open(db.clone(), env, FsOptions::default())?;
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    let names = [
        "mknod",
        "write 4 KiB",
        "lookup",
        "getattr",
        "read 4 KiB",
        "unlink",
        "forget",
        "mkdir",
        "rmdir",
        "forget",
    ];
    for round in 0..7 {
        let dirs: Vec<Ino> = (0..files.div_ceil(500))
            .map(|d| {
                fs.mkdir(ROOT, format!("{round}-{d}").as_bytes(), 0o755, NOBODY)
                    .map(|attr| attr.ino)
            })
            .collect::<Result<_, _>>()?;
        let dir = |n: u32| dirs[(n / 500) as usize];
        let name = |n: u32| format!("file-{n:06}");
        let mut inos = vec![0; files as usize];
        let mut took = Vec::new();
        let mut time = |work: &mut dyn FnMut(u32) -> kvfs::Result<()>| {
            let begun = cpu();
            (0..files).try_for_each(work)?;
            took.push((cpu() - begun).as_secs_f64() * 1e6 / f64::from(files));
            kvfs::Result::Ok(())
        };
        time(&mut |n| {
            inos[n as usize] =
                fs.mknod(dir(n), name(n).as_bytes(), FileKind::File, 0o644, 0, NOBODY)?.ino;
            Ok(())
        })?;
        time(&mut |n| {
            fs.write(inos[n as usize], 0, &[n as u8; 4096], WriteHints::default()).map(drop)
        })?;
        time(&mut |n| fs.lookup(dir(n), name(n).as_bytes()).map(drop))?;
        time(&mut |n| fs.getattr(inos[n as usize]).map(drop))?;
        time(&mut |n| fs.read(inos[n as usize], 0, 4096).map(drop))?;
        time(&mut |n| fs.unlink(dir(n), name(n).as_bytes()).map(drop))?;
        time(&mut |n| {
            fs.forget(inos[n as usize], 2);
            Ok(())
        })?;
        time(&mut |n| {
            inos[n as usize] = fs.mkdir(dir(n), name(n).as_bytes(), 0o755, NOBODY)?.ino;
            Ok(())
        })?;
        time(&mut |n| fs.rmdir(dir(n), name(n).as_bytes()).map(drop))?;
        time(&mut |n| {
            fs.forget(inos[n as usize], 1);
            Ok(())
        })?;
        rounds.push(took);
    }
    for (i, name) in names.iter().enumerate() {
        let mut each: Vec<f64> = rounds.iter().map(|round| round[i]).collect();
        each.sort_by(f64::total_cmp);
        println!(
            "{name:<12} {:>7.2} µs  ({:.2} to {:.2})",
            each[each.len() / 2],
            each[0],
            each[each.len() - 1]
        );
    }
    fs.shutdown()?;
    db.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
