//! Plans what readers of a tree will read next, and measures which part of the plans is used.
//!
//! A *walk* begins when a few files were read in the order of a listing (`listing_order`) and some
//! of them had to wait for the device. Its *frontier* is the rest of the tree as far as the reader
//! is expected to go: the rest of the directory, and, if the reader was seen to go from one
//! subdirectory to the next, the directories after it. The next files of the frontier are looked up
//! and announced together, by place (`reading_ahead`). When half of them were read, more are taken
//! from the frontier: four times as many each time, since the denser the announced files lie, the
//! fewer seeks they take.
//!
//! Each file that was announced is counted as used when it is read, or as wasted when the reader
//! skips it or the walk is abandoned. When less than half are used, nothing is planned for a while,
//! then again for twice as long. A reader that opens one file in each directory begins no walk at
//! all.

mod frontier;

use std::collections::{HashMap, VecDeque, hash_map};

use env::sync::Mutex;

pub(crate) use self::frontier::{Frontier, Next};
use crate::attr::Ino;
use crate::names::listing_order::{Entry, Orders};

/// The files that are read in order before a walk begins, and those of them that had to wait.
const FILES: u32 = 3;
const WAITS: u32 = 2;
/// The first and the largest number of files that are announced and not read, and the factor by
/// which it grows.
const WINDOW_MIN: usize = 64;
const WINDOW_MAX: usize = 4096;
const GROWTH: usize = 4;
/// The number of files by which a reader must be ahead of an announced file before the file counts
/// as skipped.
const PASSED: usize = 64;
/// The maximum number of walks. The second limit is that of the walks of which little was used so
/// far.
const WALKS: usize = 4;
const UNPROVEN: usize = 2;
/// The number of files of a walk that are used before it counts as proven.
const PROVEN: u64 = 16;
/// The number of files after which plans are evaluated, and after which older files count half.
const JUDGED: u64 = 64;
const REMEMBERED: u64 = 1024;
/// The number of reads for which nothing is planned after less than half was used, at first and at
/// most.
const PAUSE_MIN: u32 = 1024;
const PAUSE_MAX: u32 = 1 << 16;
/// The entries of one directory that are taken into a frontier, and the number of directories, each
/// in the one before it, with which a frontier begins.
const OF_DIRECTORY: usize = 1 << 14;
const ABOVE: usize = 16;
/// The number of directories that a walk remembers to have planned.
const COVERED: usize = 256;

/// The outcome of plans since the file system was opened, in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlanCounts {
    /// The number of files whose pages were announced.
    pub announced: u64,
    /// The number of these files that were read.
    pub used: u64,
    /// The number of these files that were not read.
    pub wasted: u64,
}

/// Files that are to be announced for a walk.
pub(crate) struct Extension {
    walk: u64,
    /// The number of files.
    pub files: usize,
    pub frontier: Frontier,
    /// The caller sets this if only a part of the files was announced, because they take too many
    /// bytes or lie too far apart. The rest is put back into the frontier.
    pub is_cut: bool,
}

/// The work to be done for a file that is about to be read.
#[derive(Default)]
pub(crate) struct Step {
    /// The directory in the order of whose listing it is read. If the read waits for the device,
    /// [`ReadPlans::waited`] should be called.
    pub dir: Option<Ino>,
    pub extension: Option<Extension>,
}

/// A file that was announced and not read.
struct Ahead {
    /// Its position in the walk.
    position: u64,
    ino: Ino,
    bytes: u64,
}

struct Walk {
    number: u64,
    /// `None` while a thread extends the walk.
    frontier: Option<Frontier>,
    /// Files that were announced and not read, in the order of the walk.
    ahead: VecDeque<Ahead>,
    /// The bytes of these, and of those that the last extension has announced.
    bytes: u64,
    announced: u64,
    window: usize,
    used: u64,
    wasted: u64,
    /// The last extension has announced no file, or only a part of its files.
    barren: bool,
    is_cut: bool,
    /// Directories that the walk has planned, the last ones.
    covered: VecDeque<Ino>,
    /// The clock when it was last used.
    last: u64,
}

impl Walk {
    /// Returns the number of files that should be announced now.
    fn wants(&self) -> usize {
        let low = self.ahead.len() * 2 <= self.window && self.bytes <= self.announced;
        if low { self.window - self.ahead.len() } else { 0 }
    }

    fn has_ended(&self) -> bool {
        self.ahead.is_empty() && self.frontier.as_ref().is_some_and(Frontier::is_empty)
    }
}

#[derive(Default)]
struct Plans {
    orders: Orders,
    walks: Vec<Walk>,
    /// The files that were announced and not read, each with the number of its walk.
    ahead: HashMap<Ino, u64>,
    counts: PlanCounts,
    /// The counts of used and wasted files that the next evaluation covers.
    recent: (u64, u64),
    clock: u64,
    /// Reads that are still to pass, and the length of the last pause.
    pass: u32,
    pause: u32,
}

/// The plans of a file system.
#[derive(Default)]
pub(crate) struct ReadPlans(Mutex<Plans>);

impl ReadPlans {
    /// Notes the entries that a call has listed; see [`Orders::listed`].
    pub fn listed(&self, dir: Ino, positions: (u64, u64), entries: &[Entry]) {
        let mut plans = self.0.lock();
        plans.orders.listed(dir, positions, entries);
        if positions.0 == 0 {
            // The file may be read once more.
            plans.walks.iter_mut().for_each(|walk| walk.covered.retain(|covered| *covered != dir));
        }
    }

    /// Notes that a file is about to be read from its start. A caller that gets an extension
    /// announces the next files of its frontier and passes them to [`ReadPlans::extended`].
    pub fn begins(&self, ino: Ino) -> Step {
        self.0.lock().begins(ino)
    }

    /// Notes that the read of a file in the listing of this directory had to wait for the device.
    pub fn waited(&self, dir: Ino) {
        self.0.lock().orders.waited(dir);
    }

    /// Notes the files that were announced, in the order of the walk, each with its bytes.
    pub fn extended(&self, extension: Extension, files: Vec<(Ino, u64)>) {
        self.0.lock().extended(extension, files);
    }

    pub fn counts(&self) -> PlanCounts {
        self.0.lock().counts
    }
}

impl Plans {
    fn begins(&mut self, ino: Ino) -> Step {
        if self.pass > 0 {
            self.pass -= 1;
            return Step::default();
        }
        self.clock += 1;
        let order = self.orders.follow(ino);
        let in_order = order.map(|order| order.dir);
        let waits = order.is_some_and(|order| order.files >= FILES && order.waits >= WAITS);
        // A few reads of a listing in memory wait, too: their thread was preempted.
        let often = order.is_some_and(|order| order.waits.saturating_mul(4) >= order.files);
        let extension = match (self.ahead.remove(&ino), in_order) {
            (Some(number), _) => self.used(number, ino),
            (None, Some(dir)) => self.not_planned(dir, waits, often),
            (None, None) => None,
        };
        Step { dir: in_order, extension }
    }

    /// A file was read that had been announced.
    fn used(&mut self, number: u64, ino: Ino) -> Option<Extension> {
        let walk = self.walks.iter_mut().find(|walk| walk.number == number)?;
        let at = walk.ahead.iter().position(|ahead| ahead.ino == ino)?;
        walk.bytes -= walk.ahead.remove(at).map_or(0, |ahead| ahead.bytes);
        (walk.used, walk.last) = (walk.used + 1, self.clock);
        self.counts.used += 1;
        self.recent.0 += 1;
        let passed: Vec<Ahead> = walk.ahead.drain(..at.saturating_sub(PASSED)).collect();
        walk.bytes -= passed.iter().map(|ahead| ahead.bytes).sum::<u64>();
        walk.wasted += passed.len() as u64;
        self.waste(passed.into_iter().map(|ahead| ahead.ino));
        self.extend(number)
    }

    /// A file was read in the order of a listing, but had not been announced: it lies in its node,
    /// or the walk has not begun, or has ended.
    fn not_planned(&mut self, dir: Ino, waits: bool, often: bool) -> Option<Extension> {
        match self.walks.iter().find(|walk| walk.covered.contains(&dir)) {
            Some(walk) if walk.barren => None,
            // The listing may have gone on.
            Some(walk) if walk.has_ended() && waits => {
                let number = walk.number;
                let frontier = self.frontier(dir);
                let walk = self.walks.iter_mut().find(|walk| walk.number == number)?;
                walk.frontier = Some(frontier);
                self.extend(number)
            }
            Some(walk) => {
                let number = walk.number;
                self.extend(number)
            }
            None if waits && often => self.begin(dir),
            None => None,
        }
    }

    fn begin(&mut self, dir: Ino) -> Option<Extension> {
        let is_unproven = |walk: &&Walk| walk.used < PROVEN;
        let unproven = self.walks.iter().filter(is_unproven).count();
        let all = self.walks.len();
        let oldest = self
            .walks
            .iter()
            .filter(|walk| all >= WALKS || unproven >= UNPROVEN && is_unproven(walk))
            .filter(|walk| walk.frontier.is_some())
            .min_by_key(|walk| walk.last)
            .map(|walk| walk.number);
        if all >= WALKS || unproven >= UNPROVEN {
            self.give_up(oldest?);
            if self.pass > 0 {
                return None;
            }
        }
        let frontier = self.frontier(dir);
        let number = self.clock;
        // Readers that have used what was announced before will probably do so again.
        let (used, wasted) = self.recent;
        let grown = used >= JUDGED && used > wasted * GROWTH as u64;
        let window = if grown { WINDOW_MIN * GROWTH } else { WINDOW_MIN };
        self.walks.push(Walk {
            number,
            frontier: Some(frontier),
            ahead: VecDeque::new(),
            bytes: 0,
            announced: 0,
            window,
            used: 0,
            wasted: 0,
            barren: false,
            is_cut: false,
            covered: VecDeque::from([dir]),
            last: self.clock,
        });
        self.extend(number)
    }

    /// Returns the rest of a directory and of those above it from which the reader continues.
    fn frontier(&self, dir: Ino) -> Frontier {
        let mut frontier = Frontier::default();
        let mut order = self.orders.of(dir);
        for _ in 0..ABOVE {
            let Some(of) = order else { break };
            frontier.surround(of.dir, of.rest(OF_DIRECTORY), of.descends());
            order = self.orders.above(of.dir).filter(|above| above.descends());
        }
        frontier
    }

    /// Takes the frontier of a walk, if it is time to announce more of it.
    fn extend(&mut self, number: u64) -> Option<Extension> {
        if self.pass > 0 {
            return None;
        }
        let walk = self.walks.iter_mut().find(|walk| walk.number == number)?;
        if walk.wants() == 0 || walk.frontier.as_ref().is_none_or(Frontier::is_empty) {
            return None;
        }
        if walk.used >= walk.window as u64 / 2 && walk.used > walk.wasted && !walk.is_cut {
            walk.window = (walk.window * GROWTH).min(WINDOW_MAX);
        }
        let files = walk.wants();
        let frontier = walk.frontier.take()?;
        Some(Extension { walk: number, files, frontier, is_cut: false })
    }

    fn extended(&mut self, mut extension: Extension, files: Vec<(Ino, u64)>) {
        let Some(walk) = self.walks.iter_mut().find(|walk| walk.number == extension.walk) else {
            self.counts.announced += files.len() as u64;
            return self.waste(files.into_iter().map(|(ino, _)| ino));
        };
        walk.covered.extend(extension.frontier.take_entered());
        let excess = walk.covered.len().saturating_sub(COVERED);
        walk.covered.drain(..excess);
        (walk.barren, walk.is_cut) = (files.is_empty(), extension.is_cut);
        if extension.is_cut {
            // Twice what can be announced at a time: the next half while this one is read.
            walk.window = (files.len() * 2).clamp(WINDOW_MIN, walk.window);
        }
        walk.announced = files.iter().map(|(_, bytes)| bytes).sum();
        for (ino, bytes) in files {
            // A file with several names may be announced for each of them, and counts once.
            if let hash_map::Entry::Vacant(vacant) = self.ahead.entry(ino) {
                vacant.insert(walk.number);
                walk.bytes += bytes;
                let position = extension.frontier.take_position(ino);
                walk.ahead.push_back(Ahead { position, ino, bytes });
                self.counts.announced += 1;
            }
        }
        // A file that was put back is announced after ones that are read after it.
        walk.ahead.make_contiguous().sort_unstable_by_key(|ahead| ahead.position);
        extension.frontier.settle();
        walk.frontier = Some(extension.frontier);
    }

    fn give_up(&mut self, number: u64) {
        let Some(at) = self.walks.iter().position(|walk| walk.number == number) else { return };
        let walk = self.walks.remove(at);
        self.waste(walk.ahead.into_iter().map(|ahead| ahead.ino));
    }

    /// Counts files that were announced and will not be read, and stops planning if less than half
    /// of the last ones were used.
    fn waste(&mut self, files: impl IntoIterator<Item = Ino>) {
        let mut wasted = 0;
        for ino in files {
            self.ahead.remove(&ino);
            wasted += 1;
        }
        self.counts.wasted += wasted;
        self.recent.1 += wasted;
        let (used, wasted) = self.recent;
        if used + wasted < JUDGED {
            return;
        }
        if used >= wasted {
            self.pause = 0;
            if used + wasted >= REMEMBERED {
                self.recent = (used / 2, wasted / 2);
            }
            return;
        }
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pass = self.pause;
        self.recent = (0, 0);
        // None of the walks continues.
        let ahead = std::mem::take(&mut self.ahead);
        self.counts.wasted += ahead.len() as u64;
        self.walks.clear();
    }
}

#[cfg(test)]
mod tests;
