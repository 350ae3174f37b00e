//! `kvfs bench DIR`: times what programs do to a file system, in any directory, so that two of them can be compared by the same
//! code. It prints operations and seconds for each step; `scripts/bench_first.py` interleaves it with a peer and makes ratios.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use crate::output::{Failure, Outcome, Output};

/// Time file operations in a directory, of a mount or of any other file system.
#[derive(clap::Args)]
#[command(
    after_help = "Makes and removes a directory `kvfs-bench` in DIR. Reads after a write come from the page cache unless the cases \
                        are run in calls of their own with the caches dropped in between (--keep)."
)]
pub struct Args {
    /// Where to work.
    dir: PathBuf,
    /// What to time; all, in this order, when not given.
    #[arg(long = "case", value_enum)]
    cases: Vec<Case>,
    /// Files in the cases with many files.
    #[arg(long, default_value_t = 10_000)]
    files: u32,
    /// Size of the large file, MiB.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Leave the files for a later call.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Case {
    /// Empty files.
    Create,
    /// Files of 4 KiB.
    Create4k,
    /// stat of each file, in a shuffled order.
    Stat,
    /// List the directories with the attributes of each entry.
    ReaddirStat,
    /// Remove all files.
    Unlink,
    /// Write the large file in pieces of 1 MiB, then fsync.
    SeqWrite,
    /// Read it.
    SeqRead,
    /// Overwrite random 4 KiB of it, then fsync.
    RandWrite,
    /// Read random 4 KiB of it.
    RandRead,
    /// Create, write 4 KiB, fsync; one thread.
    Fsync1,
    /// The same with 16 threads.
    Fsync16,
}

#[derive(Serialize)]
struct Timing {
    case: Case,
    ops: u64,
    bytes: u64,
    seconds: f64,
}

const ALL: &[Case] = &[
    Case::Create,
    Case::Create4k,
    Case::Stat,
    Case::ReaddirStat,
    Case::Unlink,
    Case::SeqWrite,
    Case::SeqRead,
    Case::RandWrite,
    Case::RandRead,
    Case::Fsync1,
    Case::Fsync16,
];

pub fn run(args: Args, output: &Output) -> Outcome {
    let root = args.dir.join("kvfs-bench");
    let cases = if args.cases.is_empty() { ALL } else { &args.cases };
    let failed = |what: Case, e: io::Error| Failure::io(format!("{what:?} in {}", root.display()), &e);
    fs::create_dir_all(&root).map_err(|e| Failure::io(format!("cannot make {}", root.display()), &e))?;
    let bench = Bench { root: root.clone(), files: args.files, mib: args.mib.max(1) };
    let mut timings = Vec::new();
    for &case in cases {
        timings.push(bench.time(case).map_err(|e| failed(case, e))?);
    }
    if !args.keep {
        fs::remove_dir_all(&root).map_err(|e| Failure::io(format!("cannot remove {}", root.display()), &e))?;
    }
    let text: String = timings
        .iter()
        .map(|t| {
            let name = t.case.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
            let rate = t.ops as f64 / t.seconds.max(1e-9);
            let mbs = t.bytes as f64 / t.seconds.max(1e-9) / 1e6;
            format!("{name:<14}{:>9} ops {:>9.3} s {rate:>12.0} ops/s {mbs:>9.1} MB/s\n", t.ops, t.seconds)
        })
        .collect();
    output.print(text, &timings)
}

struct Bench {
    root: PathBuf,
    files: u32,
    mib: u64,
}

const PER_DIR: u32 = 500;
const PIECE: usize = 1 << 20;

impl Bench {
    fn file(&self, n: u32) -> PathBuf {
        self.root.join(format!("d{}", n / PER_DIR)).join(format!("file-{n:06}"))
    }

    fn large(&self) -> PathBuf {
        self.root.join("large")
    }

    fn time(&self, case: Case) -> io::Result<Timing> {
        self.prepare(case)?;
        let begin = Instant::now();
        let (ops, bytes) = match case {
            Case::Create => self.create(&[])?,
            Case::Create4k => self.create(&[b'x'; 4096])?,
            Case::Stat => self.stat()?,
            Case::ReaddirStat => self.list()?,
            Case::Unlink => self.unlink()?,
            Case::SeqWrite => self.write_large()?,
            Case::SeqRead => self.read_large()?,
            Case::RandWrite => self.random(true)?,
            Case::RandRead => self.random(false)?,
            Case::Fsync1 => self.fsync(1)?,
            Case::Fsync16 => self.fsync(16)?,
        };
        let seconds = begin.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        Ok(Timing { case, ops, bytes, seconds })
    }

    /// What a case needs and does not time.
    fn prepare(&self, case: Case) -> io::Result<()> {
        match case {
            Case::Create | Case::Create4k => {
                for d in 0..self.files.div_ceil(PER_DIR) {
                    let dir = self.root.join(format!("d{d}"));
                    remove_if_there(&dir)?;
                    fs::create_dir(&dir)?;
                }
            }
            Case::Stat | Case::ReaddirStat | Case::Unlink if !self.file(0).exists() => {
                self.prepare(Case::Create)?;
                self.create(&[])?;
            }
            Case::SeqRead | Case::RandRead | Case::RandWrite if !self.large().exists() => {
                self.write_large()?;
            }
            Case::Fsync1 | Case::Fsync16 => {
                let dir = self.root.join("fsync");
                remove_if_there(&dir)?;
                fs::create_dir(&dir)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn create(&self, content: &[u8]) -> io::Result<(u64, u64)> {
        for n in 0..self.files {
            let mut f = OpenOptions::new().write(true).create_new(true).open(self.file(n))?;
            if !content.is_empty() {
                f.write_all(content)?;
            }
        }
        Ok((u64::from(self.files), u64::from(self.files) * content.len() as u64))
    }

    fn stat(&self) -> io::Result<(u64, u64)> {
        for n in 0..self.files {
            // A multiplication by an odd prime visits every file once, in no order of the directory.
            let n = (u64::from(n) * 1_000_003 % u64::from(self.files)) as u32;
            fs::symlink_metadata(self.file(n))?;
        }
        Ok((u64::from(self.files), 0))
    }

    fn list(&self) -> io::Result<(u64, u64)> {
        let mut seen = 0;
        for d in 0..self.files.div_ceil(PER_DIR) {
            for entry in fs::read_dir(self.root.join(format!("d{d}")))? {
                fs::symlink_metadata(entry?.path())?;
                seen += 1;
            }
        }
        Ok((seen, 0))
    }

    fn unlink(&self) -> io::Result<(u64, u64)> {
        for n in 0..self.files {
            fs::remove_file(self.file(n))?;
        }
        Ok((u64::from(self.files), 0))
    }

    fn write_large(&self) -> io::Result<(u64, u64)> {
        let mut f = File::create(self.large())?;
        let mut piece = vec![0u8; PIECE];
        for i in 0..self.mib {
            // Not compressible by repetition of the piece.
            for (j, word) in piece.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&(i << 32 | j as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            }
            f.write_all(&piece)?;
        }
        f.sync_all()?;
        Ok((self.mib, self.mib * PIECE as u64))
    }

    fn read_large(&self) -> io::Result<(u64, u64)> {
        let mut f = File::open(self.large())?;
        let mut piece = vec![0u8; PIECE];
        let mut bytes = 0;
        loop {
            match f.read(&mut piece)? {
                0 => break,
                n => bytes += n as u64,
            }
        }
        Ok((bytes / PIECE as u64, bytes))
    }

    fn random(&self, write: bool) -> io::Result<(u64, u64)> {
        let f = OpenOptions::new().read(true).write(write).open(self.large())?;
        let blocks = self.mib * (PIECE as u64 / 4096);
        let ops = 10_000u64;
        let mut piece = [b'r'; 4096];
        let mut state = 42u64;
        for _ in 0..ops {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) % blocks * 4096;
            if write { f.write_all_at(&piece, at)? } else { f.read_exact_at(&mut piece, at)? }
        }
        if write {
            f.sync_all()?;
        }
        Ok((ops, ops * 4096))
    }

    fn fsync(&self, threads: u32) -> io::Result<(u64, u64)> {
        let each = 1600 / threads.max(1) / if threads == 1 { 2 } else { 1 };
        let dir = self.root.join("fsync");
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|t| {
                    scope.spawn({
                        let dir = &dir;
                        move || -> io::Result<()> {
                            for n in 0..each {
                                let mut f = OpenOptions::new().write(true).create_new(true).open(dir.join(format!("{t}-{n}")))?;
                                f.write_all(&[b'f'; 4096])?;
                                f.sync_all()?;
                            }
                            Ok(())
                        }
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked"))))
        })?;
        let ops = u64::from(each * threads);
        Ok((ops, ops * 4096))
    }
}

fn remove_if_there(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
