//! `kvfs bench DIR`: times file operations in any directory, so that two file systems can be
//! compared by the same code. Prints operations and seconds for each step;
//! `scripts/bench_operations.py` also runs it on other file systems for `make bench-files`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use crate::support::mounts::place;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// Time file operations in a directory, of a mount or of any other file system.
#[derive(clap::Args)]
#[command(
    after_help = "Creates a directory `kvfs-bench` in DIR and removes it at the end. Reads after a write come from the page cache, \
                        unless the cases run in separate calls (--keep) and the caches are dropped in between."
)]
pub struct Args {
    /// Directory to work in.
    dir: PathBuf,
    /// Run only this case; may be repeated. Without it, all cases run in this order.
    #[arg(long = "case", value_enum)]
    cases: Vec<Case>,
    /// Number of files in the cases with many files.
    #[arg(long, default_value_t = 10_000)]
    files: u32,
    /// Size of the large file, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Keep the files for a later call.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Case {
    /// Create empty files.
    Create,
    /// Create files of 4 KiB.
    Create4k,
    /// Call stat on each file, in a shuffled order.
    Stat,
    /// List the directories with the attributes of each entry.
    ReaddirStat,
    /// Read each file completely, in a shuffled order.
    Read,
    /// Rename each file within its directory.
    Rename,
    /// Remove all files.
    Unlink,
    /// Create directories next to each other.
    Mkdir,
    /// Remove these directories.
    Rmdir,
    /// Write the large file in pieces of 1 MiB, then fsync.
    SeqWrite,
    /// Read the large file.
    SeqRead,
    /// Overwrite random blocks of 4 KiB of the large file, then fsync.
    RandWrite,
    /// Read random blocks of 4 KiB of the large file.
    RandRead,
    /// Overwrite 4 bytes of random pages of the large file, then fsync.
    Poke,
    /// Append 100 bytes at a time to a file.
    Append,
    /// Create a file, write 4 KiB and fsync, in one thread.
    Fsync1,
    /// Create a file, write 4 KiB and fsync, in 16 threads.
    Fsync16,
    /// Append 4 KiB and fsync, in 16 threads with a file each.
    AppendFsync16,
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
    Case::Read,
    Case::Rename,
    Case::Unlink,
    Case::Mkdir,
    Case::Rmdir,
    Case::SeqWrite,
    Case::SeqRead,
    Case::RandWrite,
    Case::RandRead,
    Case::Poke,
    Case::Append,
    Case::Fsync1,
    Case::Fsync16,
    Case::AppendFsync16,
];

pub fn run(args: Args, output: &Output) -> Outcome {
    let root = args.dir.join("kvfs-bench");
    let cases = if args.cases.is_empty() { ALL } else { &args.cases };
    let failed =
        |what: Case, e: io::Error| Failure::io(format!("{what:?} in {}", root.shown()), &e);
    begin(&args.dir, &root)?;
    let bench = Bench { root: root.clone(), files: args.files, mib: args.mib.max(1) };
    let mut timings = Vec::new();
    for &case in cases {
        timings.push(bench.time(case).map_err(|e| failed(case, e))?);
    }
    if !args.keep {
        fs::remove_dir_all(&root)
            .map_err(|e| Failure::io(format!("cannot remove {}", root.shown()), &e))?;
    }
    let text: String = timings
        .iter()
        .map(|t| {
            let name =
                t.case.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
            let rate = t.ops as f64 / t.seconds.max(1e-9);
            let mbs = t.bytes as f64 / t.seconds.max(1e-9) / 1e6;
            format!(
                "{name:<14}{:>9} ops {:>9.3} s {rate:>12.0} ops/s {mbs:>9.1} MB/s\n",
                t.ops, t.seconds
            )
        })
        .collect();
    output.print(text, &timings)
}

/// A file that marks the directory as made by this command, which may therefore overwrite and
/// remove its content.
const MARK: &str = "made-by-kvfs-bench";

/// Creates the working directory, or reuses one that an earlier call has left.
fn begin(dir: &Path, root: &Path) -> Outcome {
    place::must_let_us_in(dir)?;
    if !dir.is_dir() {
        let what = format!("there is no directory {}", dir.shown());
        return Err(Failure::new(Exit::NotFound, what).hint("make it, or give another"));
    }
    let cannot = |e: io::Error| Failure::io(format!("cannot make {}", root.shown()), &e);
    match fs::create_dir(root) {
        Ok(()) => File::create_new(root.join(MARK)).map(drop).map_err(cannot),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let ours = fs::symlink_metadata(root).is_ok_and(|meta| meta.is_dir())
                && fs::symlink_metadata(root.join(MARK)).is_ok_and(|meta| meta.is_file());
            let what = format!("{} is there, and not of an earlier bench", root.shown());
            match ours {
                true => Ok(()),
                false => Err(Failure::new(Exit::Usage, what)
                    .hint("move it away, or give another directory; nothing was written")),
            }
        }
        Err(e) => Err(cannot(e)),
    }
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
            Case::Read => self.read()?,
            Case::Rename => self.rename()?,
            Case::Unlink => self.unlink()?,
            Case::Mkdir => self.directories(fs::create_dir)?,
            Case::Rmdir => self.directories(fs::remove_dir)?,
            Case::SeqWrite => self.write_large()?,
            Case::SeqRead => self.read_large()?,
            Case::RandWrite => self.random(10_000, Some(&[b'r'; 4096]))?,
            Case::RandRead => self.random(10_000, None)?,
            Case::Poke => self.random(1_000, Some(b"four"))?,
            Case::Append => self.append()?,
            Case::Fsync1 => self.fsync(1, create_and_sync)?,
            Case::Fsync16 => self.fsync(16, create_and_sync)?,
            Case::AppendFsync16 => self.fsync(16, append_and_sync)?,
        };
        let seconds = begin.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        Ok(Timing { case, ops, bytes, seconds })
    }

    /// Prepares the files that a case needs, outside its timing.
    fn prepare(&self, case: Case) -> io::Result<()> {
        match case {
            Case::Create | Case::Create4k => {
                for d in 0..self.files.div_ceil(PER_DIR) {
                    let dir = self.root.join(format!("d{d}"));
                    remove_if_there(&dir)?;
                    fs::create_dir(&dir)?;
                }
            }
            Case::Stat | Case::ReaddirStat | Case::Rename | Case::Unlink | Case::Read
                if !self.file(0).exists() =>
            {
                let content = if case == Case::Read { &[b'x'; 4096][..] } else { &[] };
                self.prepare(Case::Create)?;
                self.create(content)?;
            }
            Case::Mkdir => {
                remove_if_there(&self.root.join("directories"))?;
                fs::create_dir(self.root.join("directories"))?;
            }
            Case::Rmdir if !self.directory(0).exists() => {
                self.prepare(Case::Mkdir)?;
                self.directories(fs::create_dir)?;
            }
            Case::SeqRead | Case::RandRead | Case::RandWrite | Case::Poke
                if !self.large().exists() =>
            {
                self.write_large()?;
            }
            Case::Fsync1 | Case::Fsync16 | Case::AppendFsync16 => {
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

    /// Returns each file once, in an order unrelated to the directory's: indices are multiplied by
    /// a prime.
    fn shuffled(&self) -> impl Iterator<Item = PathBuf> {
        (0..u64::from(self.files))
            .map(|n| self.file((n * 1_000_003 % u64::from(self.files)) as u32))
    }

    fn stat(&self) -> io::Result<(u64, u64)> {
        self.shuffled().try_for_each(|path| fs::symlink_metadata(path).map(drop))?;
        Ok((u64::from(self.files), 0))
    }

    fn read(&self) -> io::Result<(u64, u64)> {
        let bytes = self
            .shuffled()
            .try_fold(0, |bytes, path| Ok::<_, io::Error>(bytes + fs::read(path)?.len() as u64))?;
        Ok((u64::from(self.files), bytes))
    }

    fn rename(&self) -> io::Result<(u64, u64)> {
        for n in 0..self.files {
            // Rename back, so that later cases find the files unchanged.
            let (file, to) = (self.file(n), self.file(n).with_file_name("renamed"));
            fs::rename(&file, &to)?;
            fs::rename(&to, &file)?;
        }
        Ok((2 * u64::from(self.files), 0))
    }

    fn directory(&self, n: u32) -> PathBuf {
        self.root.join("directories").join(format!("directory-{n:06}"))
    }

    fn directories(&self, what: impl Fn(PathBuf) -> io::Result<()>) -> io::Result<(u64, u64)> {
        (0..self.files).try_for_each(|n| what(self.directory(n)))?;
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
            // Fill each piece with different words, so that it does not compress as a repetition.
            for (j, word) in piece.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(
                    &(i << 32 | j as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes(),
                );
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

    /// Reads random 4 KiB of the large file, or writes `content` at the start of random pages and
    /// syncs.
    fn random(&self, ops: u64, content: Option<&[u8]>) -> io::Result<(u64, u64)> {
        let f = OpenOptions::new().read(true).write(content.is_some()).open(self.large())?;
        let blocks = self.mib * (PIECE as u64 / 4096);
        let mut piece = [0; 4096];
        let mut state = 42u64;
        for _ in 0..ops {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) % blocks * 4096;
            match content {
                Some(content) => f.write_all_at(content, at)?,
                None => f.read_exact_at(&mut piece, at)?,
            }
        }
        if content.is_some() {
            f.sync_all()?;
        }
        Ok((ops, ops * content.map_or(4096, |c| c.len() as u64)))
    }

    fn append(&self) -> io::Result<(u64, u64)> {
        const LINE: [u8; 100] = [b'l'; 100];
        let mut log = OpenOptions::new().append(true).create(true).open(self.root.join("log"))?;
        for _ in 0..self.files {
            log.write_all(&LINE)?;
        }
        Ok((self.files.into(), u64::from(self.files) * LINE.len() as u64))
    }

    fn fsync(
        &self,
        threads: u32,
        step: impl Fn(&Path, u32, u32) -> io::Result<()> + Sync,
    ) -> io::Result<(u64, u64)> {
        let each = 1600 / threads.max(1) / if threads == 1 { 2 } else { 1 };
        let (dir, step) = (self.root.join("fsync"), &step);
        std::thread::scope(|scope| {
            let work = |t: u32| {
                let dir = &dir;
                scope.spawn(move || (0..each).try_for_each(|n| step(dir, t, n)))
            };
            let workers: Vec<_> = (0..threads).map(work).collect();
            workers.into_iter().try_for_each(|w| {
                w.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
            })
        })?;
        let ops = u64::from(each * threads);
        Ok((ops, ops * 4096))
    }
}

fn create_and_sync(dir: &Path, thread: u32, n: u32) -> io::Result<()> {
    let mut f =
        OpenOptions::new().write(true).create_new(true).open(dir.join(format!("{thread}-{n}")))?;
    f.write_all(&[b'f'; 4096])?;
    f.sync_all()
}

fn append_and_sync(dir: &Path, thread: u32, _: u32) -> io::Result<()> {
    let mut f = OpenOptions::new().append(true).create(true).open(dir.join(thread.to_string()))?;
    f.write_all(&[b'a'; 4096])?;
    f.sync_all()
}

fn remove_if_there(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
