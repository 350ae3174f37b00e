//! Random calls on one file through a real mount, compared with a model in memory (the idea of
//! `fsx`): buffered and direct writes, shared mappings, truncation, holes, copies within the file,
//! syncs, dropped caches and reopening, in any order.
//!
//! `KVFS_RANDOM_FILE_DIR` runs it in a directory of your choice instead of a mount of its own,
//! `KVFS_RANDOM_FILE_STEPS` sets the number of calls, `KVFS_RANDOM_FILE_SEED` the seed.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::mounted::Mount;
use rustix::fs::FallocateFlags;

const LARGEST: u64 = 600_000;

/// A small generator of random numbers: the same calls for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n.max(1)
    }

    /// A range inside `0..limit`: often small, sometimes at page boundaries.
    fn range(&mut self, limit: u64) -> (u64, u64) {
        let longest = [17, 5_000, 70_000, 300_000][self.below(4) as usize];
        let (mut at, mut length) = (self.below(limit), 1 + self.below(longest));
        if self.below(3) == 0 {
            (at, length) = (at / 4096 * 4096, length.next_multiple_of(4096));
        }
        (at, length.min(limit - at))
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let start = self.below(1 << 40);
        (0..length).map(|i| ((start + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }
}

/// Memory that direct I/O may use.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

struct Run {
    path: PathBuf,
    file: File,
    direct: Option<File>,
    model: Vec<u8>,
    random: Random,
    /// The actions so far, for the reader of a failure.
    log: Vec<String>,
}

impl Run {
    fn new(dir: &Path, seed: u64) -> Run {
        let path = dir.join(format!("random-{seed}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .expect("create");
        let direct =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).ok();
        Run { path, file, direct, model: Vec::new(), random: Random(seed), log: Vec::new() }
    }

    fn grow(&mut self, to: u64) {
        if self.model.len() < to as usize {
            self.model.resize(to as usize, 0);
        }
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        self.grow(at + data.len() as u64);
        self.model[at as usize..at as usize + data.len()].copy_from_slice(data);
    }

    fn zero(&mut self, at: u64, length: u64) {
        let end = self.model.len().min((at + length) as usize);
        if (at as usize) < end {
            self.model[at as usize..end].fill(0);
        }
    }

    fn check(&self, what: &str, got: &[u8], want: &[u8], at: u64) {
        if let Some(i) = got.iter().zip(want).position(|(a, b)| a != b) {
            let from = self.log.len().saturating_sub(30);
            panic!(
                "{what}: byte {} is {:#x}, should be {:#x}; the last calls:\n{}",
                at + i as u64,
                got[i],
                want[i],
                self.log[from..].join("\n")
            );
        }
        assert_eq!(
            got.len(),
            want.len(),
            "{what} at {at}; the last calls:\n{}",
            self.log[self.log.len().saturating_sub(30)..].join("\n")
        );
    }

    fn step(&mut self) {
        let kind = self.random.below(100);
        match kind {
            0..25 => {
                let (at, length) = self.random.range(LARGEST);
                let data = self.random.bytes(length);
                self.log.push(format!("write {at}+{length}"));
                self.file.write_all_at(&data, at).expect("write");
                self.put(at, &data);
            }
            25..45 => {
                let (at, length) = self.random.range(LARGEST);
                self.log.push(format!("read {at}+{length}"));
                let mut got = vec![0; length as usize];
                let n = self.file.read_at(&mut got, at).expect("read");
                let want = self
                    .model
                    .get(at as usize..)
                    .map_or(&[][..], |rest| &rest[..rest.len().min(length as usize)]);
                self.check("read", &got[..n], want, at);
            }
            45..55 => {
                let to = self.random.below(LARGEST);
                self.log.push(format!("truncate {to}"));
                self.file.set_len(to).expect("truncate");
                self.model.resize(to as usize, 0);
            }
            55..65 => self.map(),
            65..72 => {
                let (at, length) = self.random.range(LARGEST);
                self.log.push(format!("punch {at}+{length}"));
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, at, length).expect("punch");
                self.zero(at, length);
            }
            72..76 => {
                let (at, length) = self.random.range(LARGEST);
                self.log.push(format!("zero {at}+{length}"));
                rustix::fs::fallocate(&self.file, FallocateFlags::ZERO_RANGE, at, length)
                    .expect("zero");
                self.zero(at, length);
                self.grow(at + length);
            }
            76..80 => {
                let (at, length) = self.random.range(LARGEST);
                self.log.push(format!("allocate {at}+{length}"));
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), at, length)
                    .expect("allocate");
                self.grow(at + length);
            }
            80..86 => self.copy(),
            86..92 => self.write_directly(),
            92..95 => {
                self.log.push("sync".into());
                self.file.sync_all().expect("sync");
            }
            95..98 => {
                self.log.push("drop caches".into());
                self.file.sync_all().expect("sync");
                rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)
                    .expect("fadvise");
            }
            _ => {
                self.log.push("reopen".into());
                self.file =
                    OpenOptions::new().read(true).write(true).open(&self.path).expect("open");
                self.verify();
            }
        }
        let size = self.file.metadata().expect("stat").len();
        assert_eq!(
            size,
            self.model.len() as u64,
            "size; the last calls:\n{}",
            self.log[self.log.len().saturating_sub(30)..].join("\n")
        );
    }

    fn map(&mut self) {
        if self.model.is_empty() {
            return;
        }
        let (at, length) = self.random.range(self.model.len() as u64);
        let data = self.random.bytes(length);
        self.log.push(format!("map and write {at}+{length}"));
        let size = self.model.len();
        // SAFETY: a fresh shared mapping at a place the kernel chooses.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: the mapping is as long as the file, which is not shortened while it exists.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), size) };
        let range = at as usize..(at + length) as usize;
        self.check("mapping", &bytes[range.clone()], &self.model[range.clone()], at);
        bytes[range].copy_from_slice(&data);
        // SAFETY: the mapping made above; `bytes` is not used any more.
        assert_eq!(unsafe { libc::munmap(map, size) }, 0);
        self.put(at, &data);
    }

    fn copy(&mut self) {
        let length = self.model.len() as u64;
        if length < 2 {
            return;
        }
        // Two halves: source and destination must not overlap.
        let half = length / 2;
        let (at, n) = self.random.range(half);
        let to = half + self.random.below(LARGEST - half - n);
        self.log.push(format!("copy {at}+{n} to {to}"));
        let (mut offset_in, mut offset_out, mut left) = (at, to, n as usize);
        while left > 0 {
            let fd = self.file.as_fd();
            let copied = rustix::fs::copy_file_range(
                fd,
                Some(&mut offset_in),
                fd,
                Some(&mut offset_out),
                left,
            )
            .expect("copy");
            assert!(copied > 0, "copy stopped with {left} bytes left");
            left -= copied;
        }
        let data = self.model[at as usize..(at + n) as usize].to_vec();
        self.put(to, &data);
    }

    fn write_directly(&mut self) {
        let Some(direct) = &self.direct else { return };
        let pages = 1 + self.random.below(20);
        let at = self.random.below(LARGEST / 4096 - pages) * 4096;
        let data = self.random.bytes(pages * 4096);
        let mut aligned = vec![Page([0; 4096]); pages as usize];
        for (page, chunk) in aligned.iter_mut().zip(data.chunks(4096)) {
            page.0.copy_from_slice(chunk);
        }
        // SAFETY: `Page` is 4096 plain bytes without padding, so the vector is one run of
        // initialised bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts(aligned.as_ptr().cast::<u8>(), data.len()) };
        self.log.push(format!("direct write {at}+{}", data.len()));
        direct.write_all_at(bytes, at).expect("direct write");
        self.put(at, &data);
    }

    fn verify(&self) {
        let got = fs::read(&self.path).expect("read");
        self.check("whole file", &got, &self.model, 0);
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn a_file_is_its_model_after_any_calls() {
    let steps = number("KVFS_RANDOM_FILE_STEPS", 1_500);
    let seed = number("KVFS_RANDOM_FILE_SEED", 1);
    if let Ok(dir) = std::env::var("KVFS_RANDOM_FILE_DIR") {
        let mut run = Run::new(Path::new(&dir), seed);
        (0..steps).for_each(|_| run.step());
        return run.verify();
    }
    for write_back in [false, true] {
        random_files(seed, steps, write_back);
    }
}

fn random_files(seed: u64, steps: u64, write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let mut models = Vec::new();
    for seed in seed..seed + 3 {
        let mut run = Run::new(&m.root(), seed);
        (0..steps).for_each(|_| run.step());
        run.verify();
        models.push((run.path, run.model));
    }
    let m = m.again();
    for (path, model) in models {
        assert!(
            fs::read(&path).expect("read") == model,
            "{} after a remount of {}",
            path.display(),
            m.root().display()
        );
    }
}
