//! Random histories. A history does not depend on what its calls answer; the generator only
//! remembers which slots are likely to be open, so that most calls have something to work on.

use crate::call::{Call, Mode, Name, Step, Time};
use crate::flags::{AllocMode, LockKind, OpenFlags, RenameFlags, Whence, XattrFlags};
use crate::random::Random;
use crate::worker::{MAPS, SCANS, SLOTS};

/// The ingredients of histories.
#[derive(Clone, Debug)]
pub struct Taste {
    pub workers: u8,
    /// Programs (`cp`, `tar`, `rsync`), which cost as much as a thousand calls.
    pub programs: bool,
    /// Steps whose effect on times is watched, each of which waits for a tick of the clock.
    pub timed: bool,
    /// Marks at which a mode that restarts the daemon does so.
    pub kills: bool,
    /// SEEK_DATA and SEEK_HOLE.
    pub seeks: bool,
    /// FALLOC_FL_ZERO_RANGE, which not every reference has.
    pub zero_range: bool,
}

/// The open files, mappings and listings of a worker, as far as they are known before the calls are
/// made.
struct WorkerState {
    open: [bool; SLOTS],
    mapped: [bool; MAPS],
    scanning: [bool; SCANS],
    away: bool,
}

struct Generator<'t> {
    taste: &'t Taste,
    random: Random,
    workers: Vec<WorkerState>,
}

const OWN: &str = "fixed";
const DIRECTORIES: &[&str] = &["", "d0/", "d1/", "d0/d2/"];
const LEAVES: &[&str] = &["a", "b", "c", "e", "f", "g"];

/// A history of `calls` calls.
pub fn history(seed: u64, stream: u64, calls: usize, taste: &Taste) -> Vec<Step> {
    let workers = (0..taste.workers).map(|_| WorkerState {
        open: [false; SLOTS],
        mapped: [false; MAPS],
        scanning: [false; SCANS],
        away: false,
    });
    let mut generator =
        Generator { taste, random: Random::new(seed, stream), workers: workers.collect() };
    let mut steps = Vec::with_capacity(calls);
    for (path, mode) in [("d0", 0o777), ("d1", 0o1777), ("d0/d2", 0o755)] {
        let path = Name(path.to_owned());
        steps.push(Step {
            worker: 0,
            timed: false,
            call: Call::Mkdir { path: path.clone(), mode: Mode(mode) },
        });
        steps.push(Step { worker: 0, timed: false, call: Call::Chmod { path, mode: Mode(mode) } });
    }
    let mut worker = 0;
    while steps.len() < calls {
        if generator.random.one_in(3) {
            worker = generator.random.below(u64::from(taste.workers)) as u8;
        }
        let call = generator.call(worker);
        let timed = taste.timed && generator.random.one_in(60);
        steps.push(Step { worker, timed, call });
        if taste.kills && generator.random.one_in(400) {
            steps.push(Step { worker: 0, timed: false, call: Call::Kill {} });
            for state in &mut generator.workers {
                *state = WorkerState {
                    open: [false; SLOTS],
                    mapped: [false; MAPS],
                    scanning: [false; SCANS],
                    away: false,
                };
            }
        }
    }
    steps
}

impl Generator<'_> {
    fn slot(&mut self, worker: u8) -> u8 {
        let open: Vec<u8> = (0..SLOTS as u8)
            .filter(|&slot| self.workers[usize::from(worker)].open[usize::from(slot)])
            .collect();
        if open.is_empty() || self.random.one_in(40) {
            self.random.below(SLOTS as u64) as u8
        } else {
            self.random.of(&open)
        }
    }

    fn map(&mut self, worker: u8) -> u8 {
        let mapped: Vec<u8> = (0..MAPS as u8)
            .filter(|&map| self.workers[usize::from(worker)].mapped[usize::from(map)])
            .collect();
        if mapped.is_empty() {
            self.random.below(MAPS as u64) as u8
        } else {
            self.random.of(&mapped)
        }
    }

    fn name(&mut self, worker: u8) -> Name {
        let random = &mut self.random;
        let text = match random.below(100) {
            0..80 => {
                let directory = random.of(DIRECTORIES);
                format!("{directory}{}", random.of(LEAVES))
            }
            80..86 => random.of(&["d0", "d1", "d0/d2", "d1/d3", "d0/d2/d4"]).to_owned(),
            86..89 => format!("{}%255", random.of(DIRECTORIES)),
            89 => format!("{}%256", random.of(DIRECTORIES)),
            90..92 => format!("{}/{}", random.of(LEAVES), random.of(LEAVES)),
            92..95 => format!("{}l{}", random.of(DIRECTORIES), random.below(2)),
            95 => format!("l{}/{}", random.below(2), random.of(LEAVES)),
            96 => random.of(&[".", "d0/.", "d0/..", "a/", "d1/../d0/b", "d0//c", "%0"]).to_owned(),
            _ => {
                let leaf = random.of(LEAVES);
                let slot = self.slot(worker);
                format!("@{slot}/{leaf}")
            }
        };
        Name(text)
    }

    fn directory(&mut self) -> Name {
        Name(self.random.of(&[".", "d0", "d1", "d0/d2", "d1/d3", "d0/d2/d4", "l0", "a"]).to_owned())
    }

    fn at(&mut self) -> i64 {
        let random = &mut self.random;
        let at = match random.below(20) {
            0..4 => 0,
            4..9 => random.below(5000),
            9..14 => (random.below(20) * 4096 + random.below(5)).saturating_sub(2),
            14..18 => random.below(200_000),
            18 => random.below(16) * 65536,
            _ => random.below(3 << 20),
        };
        at as i64
    }

    fn len(&mut self) -> u32 {
        let random = &mut self.random;
        let len = match random.below(40) {
            0 => 0,
            1..6 => 1 + random.below(10),
            6..18 => random.below(6000),
            18..26 => 4096 * (1 + random.below(4)),
            26..34 => random.below(30_000),
            34..39 => random.below(140_000),
            _ => random.below(2 << 20),
        };
        len as u32
    }

    fn tag(&mut self) -> u32 {
        self.random.below(100_000) as u32
    }

    fn mode(&mut self) -> Mode {
        let usual = [
            0o644, 0o666, 0o600, 0o777, 0o755, 0o640, 0o444, 0o222, 0o000, 0o4755, 0o2755, 0o6777,
            0o1777, 0o2770, 0o700, 0o664,
        ];
        Mode(self.random.of(&usual))
    }

    fn time(&mut self) -> Time {
        match self.random.below(8) {
            0 => Time::Now,
            1 => Time::Omit,
            2 => Time::At(
                -1 - self.random.below(1000) as i64,
                self.random.below(1_000_000_000) as i64,
            ),
            _ => Time::At(
                self.random.below(1_000_000_000) as i64,
                self.random.below(1_000_000_000) as i64,
            ),
        }
    }

    fn open_flags(&mut self) -> OpenFlags {
        let random = &mut self.random;
        let mut flags =
            random.weighted(&[(3, libc::O_RDONLY), (8, libc::O_RDWR), (2, libc::O_WRONLY)]);
        for (often, flag) in [
            (65, libc::O_CREAT),
            (6, libc::O_EXCL),
            (8, libc::O_TRUNC),
            (10, libc::O_APPEND),
            (6, libc::O_DIRECT),
            (3, libc::O_SYNC),
            (3, libc::O_DSYNC),
            (6, libc::O_NOFOLLOW),
            (4, libc::O_DIRECTORY),
            (2, libc::O_PATH),
            (1, libc::O_NOATIME),
        ] {
            if random.below(100) < often {
                flags |= flag;
            }
        }
        // Some file systems refuse a direct write after an odd end.
        if flags & libc::O_APPEND != 0 {
            flags &= !libc::O_DIRECT;
        }
        if random.one_in(25) {
            flags =
                random.of(&[libc::O_RDONLY | libc::O_DIRECTORY, libc::O_PATH | libc::O_DIRECTORY]);
        }
        OpenFlags(flags)
    }

    fn call(&mut self, worker: u8) -> Call {
        let index = usize::from(worker);
        if self.workers[index].away && self.random.one_in(12) {
            self.workers[index].away = false;
            return Call::Home {};
        }
        let open = self.workers[index].open.iter().filter(|open| **open).count();
        let kind = self.random.below(1000);
        if open == 0 || (open < 5 && kind < 80) {
            return self.open(worker);
        }
        match kind {
            0..300 => self.file(worker),
            300..480 => self.size_and_copy(worker),
            480..560 => self.mapping(worker),
            560..760 => self.naming(worker),
            760..900 => self.attribute(worker),
            900..996 => self.looking(worker),
            _ if self.taste.programs => self.program(worker),
            _ => self.looking(worker),
        }
    }

    fn open(&mut self, worker: u8) -> Call {
        let slot = self.random.below(SLOTS as u64) as u8;
        self.workers[usize::from(worker)].open[usize::from(slot)] = true;
        let mode = self.mode();
        if self.random.one_in(20) {
            let flags = OpenFlags(
                libc::O_TMPFILE
                    | libc::O_RDWR
                    | if self.random.one_in(4) { libc::O_EXCL } else { 0 },
            );
            return Call::Open { slot, path: self.directory(), flags, mode };
        }
        let flags = self.open_flags();
        let directory = libc::O_RDONLY | libc::O_DIRECTORY;
        let path = if flags.0 & directory == directory && flags.0 & libc::O_CREAT == 0 {
            self.directory()
        } else {
            self.name(worker)
        };
        Call::Open { slot, path, flags, mode }
    }

    fn file(&mut self, worker: u8) -> Call {
        let slot = self.slot(worker);
        let (at, len, tag) = (self.at(), self.len(), self.tag());
        match self.random.below(34) {
            0..3 => Call::Read { slot, len },
            3..7 => Call::Pread { slot, at, len },
            7 => Call::Readv { slot, at, len },
            8..13 => Call::Write { slot, len, tag },
            13..20 => Call::Pwrite { slot, at, len, tag },
            20..22 => Call::Writev { slot, at, len, tag },
            22..24 => Call::Append { slot, len, tag },
            24..27 => {
                let whence = self.random.of(Whence::ALL);
                let back = if self.random.one_in(3) { -1 } else { 1 };
                Call::Seek {
                    slot,
                    at: if whence == Whence::End { -at.min(5000) } else { at * back },
                    whence,
                }
            }
            27 => Call::Fsync { slot },
            28 => Call::Fdatasync { slot },
            29 => Call::SyncRange { slot, at, len },
            30 => Call::Forget { slot },
            31 => {
                let to = self.random.below(SLOTS as u64) as u8;
                self.workers[usize::from(worker)].open[usize::from(to)] = true;
                Call::Dup { slot, to }
            }
            _ => {
                self.workers[usize::from(worker)].open[usize::from(slot)] = false;
                Call::Close { slot }
            }
        }
    }

    fn size_and_copy(&mut self, worker: u8) -> Call {
        let (slot, other) = (self.slot(worker), self.slot(worker));
        let (at, to_at, len) = (self.at(), self.at(), self.len());
        match self.random.below(30) {
            0..3 => Call::Truncate {
                path: self.name(worker),
                len: if self.random.one_in(50) { -1 } else { at },
            },
            3..8 => Call::Ftruncate { slot, len: at },
            8..14 => {
                let (keep, punch, zero) = (
                    libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                );
                let mode = self.random.weighted(&[
                    (2, 0),
                    (2, keep),
                    (6, punch | keep),
                    (3, zero),
                    (2, zero | keep),
                    (1, punch),
                    (1, punch | zero | keep),
                ]);
                let mode = if self.taste.zero_range { mode } else { mode & !zero };
                Call::Fallocate {
                    slot,
                    mode: AllocMode(mode),
                    at,
                    len: if self.random.one_in(40) { 0 } else { i64::from(len) },
                }
            }
            14..17 => Call::CopyRange { from: slot, from_at: at, to: other, to_at, len },
            17..19 => Call::Sendfile { from: slot, at, to: other, len },
            19..21 => Call::Splice { from: slot, from_at: at, to: other, to_at, len },
            21..27 if !self.taste.seeks => Call::Fstat { slot },
            21..24 => Call::SeekData { slot, at, hole: self.random.one_in(2) },
            24..27 => Call::Holes { slot },
            _ => {
                let kind = self.random.of(LockKind::ALL);
                match self.random.below(3) {
                    0 => Call::Flock { slot, kind },
                    1 => Call::Lock { slot, kind, at, len: i64::from(len) },
                    _ => Call::GetLock {
                        slot,
                        kind: if kind == LockKind::Free { LockKind::Exclusive } else { kind },
                        at,
                        len: i64::from(len),
                    },
                }
            }
        }
    }

    fn mapping(&mut self, worker: u8) -> Call {
        let mapped =
            self.workers[usize::from(worker)].mapped.iter().filter(|mapped| **mapped).count();
        let slot = self.slot(worker);
        let map = self.map(worker);
        let (at, len, tag) = (self.at(), self.len(), self.tag());
        let map_at = self.random.below(40_000) as u32;
        match if mapped == 0 { 0 } else { self.random.below(16) } {
            0..3 => {
                let map = self.random.below(MAPS as u64) as u8;
                self.workers[usize::from(worker)].mapped[usize::from(map)] = true;
                let shared = !self.random.one_in(4);
                Call::Mmap {
                    map,
                    slot,
                    shared,
                    writable: !self.random.one_in(4),
                    at: if self.random.one_in(2) { 0 } else { at },
                    len,
                }
            }
            3..7 => Call::Load { map, at: map_at, len },
            7..11 => Call::Store { map, at: map_at, len, tag },
            11 => Call::Msync { map },
            12 => Call::WriteMap { slot, at, map, map_at, len },
            13 => Call::ReadMap { slot, at, map, map_at, len },
            _ => {
                self.workers[usize::from(worker)].mapped[usize::from(map)] = false;
                Call::Munmap { map }
            }
        }
    }

    fn naming(&mut self, worker: u8) -> Call {
        let (path, other) = (self.name(worker), self.name(worker));
        match self.random.below(40) {
            0..3 => Call::Mkdir {
                path: if self.random.one_in(2) { self.directory() } else { path },
                mode: self.mode(),
            },
            3..6 => {
                Call::Rmdir { path: if self.random.one_in(2) { self.directory() } else { path } }
            }
            6..13 => Call::Unlink { path },
            13..22 => {
                let flags = self.random.weighted(&[
                    (10, 0),
                    (2, libc::RENAME_NOREPLACE as i32),
                    (3, libc::RENAME_EXCHANGE as i32),
                ]);
                Call::Rename { from: path, to: other, flags: RenameFlags(flags) }
            }
            22 => {
                Call::Rename { from: self.directory(), to: self.directory(), flags: RenameFlags(0) }
            }
            23..29 => Call::Link { from: path, to: other, follow: self.random.one_in(4) },
            29..31 => Call::LinkOpen { slot: self.slot(worker), to: path },
            31..34 => {
                let targets = [
                    "a",
                    "b",
                    "d0",
                    "../d1",
                    "d0/a",
                    "l0",
                    "l1",
                    "nowhere/x",
                    "../a",
                    ".",
                    "%255",
                    "d0/d2",
                ];
                let target = Name(self.random.of(&targets).to_owned());
                let path =
                    Name(format!("{}l{}", self.random.of(DIRECTORIES), self.random.below(2)));
                Call::Symlink { target, path }
            }
            34..36 => Call::Readlink { path },
            36 => Call::Mkfifo { path, mode: self.mode() },
            37..39 => {
                let text = self.random.of(&["d0", "d1", "d0/d2", "l0", "a"]).to_owned();
                self.workers[usize::from(worker)].away = true;
                Call::Chdir { path: Name(text) }
            }
            _ => Call::Umask { mode: Mode(self.random.of(&[0o022, 0o077, 0o000, 0o002])) },
        }
    }

    fn attribute(&mut self, worker: u8) -> Call {
        let path = if self.random.one_in(12) { self.directory() } else { self.name(worker) };
        let slot = self.slot(worker);
        let name = Name(
            self.random
                .of(&[
                    "user.a",
                    "user.b",
                    "user.%250",
                    "user.%251",
                    "trusted.t",
                    "user.",
                    "nonsense.x",
                ])
                .to_owned(),
        );
        let (tag, flags) = (
            self.tag(),
            XattrFlags(self.random.weighted(&[
                (4, 0),
                (1, libc::XATTR_CREATE),
                (1, libc::XATTR_REPLACE),
            ])),
        );
        let len = self.random.weighted(&[(2, 0), (6, 20), (3, 300), (1, 1500)]);
        let ids = [-1, 0, 1000, 1001, 0];
        let user = self.random.of(&ids);
        // If neither is given, ext4 drops set-user-ID bits nevertheless, and the kernel does not
        // notify a FUSE file system.
        let group = if user == -1 { self.random.of(&ids[1..]) } else { self.random.of(&ids) };
        let (atime, mtime, follow) = (self.time(), self.time(), self.random.one_in(2));
        match self.random.below(22) {
            0..3 => Call::Chmod { path, mode: self.mode() },
            3..5 => Call::Fchmod { slot, mode: self.mode() },
            5..7 => Call::Chown { path, user, group, follow },
            7 => Call::Fchown { slot, user, group },
            8..10 => Call::Utimens { path, atime, mtime, follow },
            10..12 => Call::Futimens { slot, atime, mtime },
            12..14 => Call::SetXattr { path, name, len, tag, flags },
            14..16 => Call::GetXattr { path, name },
            16 => Call::ListXattr { path },
            17 => Call::RemoveXattr { path, name },
            18..20 => Call::FsetXattr { slot, name, len, tag, flags },
            20 => Call::FgetXattr { slot, name },
            _ => Call::FremoveXattr { slot, name },
        }
    }

    fn looking(&mut self, worker: u8) -> Call {
        let path = self.name(worker);
        let slot = self.slot(worker);
        let scan = self.random.below(SCANS as u64) as u8;
        match self.random.below(30) {
            0..10 => Call::Stat { path, follow: self.random.one_in(2) },
            10..17 => Call::Fstat { slot },
            17..20 => Call::Access { path, mode: self.random.below(8) as u32 },
            20..23 => Call::List { path: self.directory() },
            23 if self.random.one_in(4) => Call::Tree { path: Name(".".to_owned()) },
            _ if !self.workers[usize::from(worker)].scanning[usize::from(scan)] => {
                self.workers[usize::from(worker)].scanning[usize::from(scan)] = true;
                Call::ScanStart { scan, path: self.directory() }
            }
            _ if self.random.one_in(3) => {
                self.workers[usize::from(worker)].scanning[usize::from(scan)] = false;
                Call::ScanEnd { scan }
            }
            _ => Call::ScanSome { scan },
        }
    }

    fn program(&mut self, worker: u8) -> Call {
        let (from, to) = (self.name(worker), self.name(worker));
        // A tree is never copied into itself, since the result depends on the order of listings.
        let from_tree = Name(self.random.of(&["d0", "d0/d2"]).to_owned());
        let to_tree = Name("d1".to_owned());
        match self.random.below(5) {
            0 => Call::Cp { from, to, sparse: false },
            1 => Call::Cp { from, to, sparse: true },
            2 => Call::CpTree {
                from: from_tree,
                to: Name(format!("d1/{OWN}{}", self.random.below(3))),
            },
            3 => Call::Tar { from: from_tree, to: to_tree },
            _ => Call::Rsync { from, to },
        }
    }
}
