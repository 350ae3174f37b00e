//! One history that contains everything: random operations of every kind on one file system, its
//! views and its keys, in one thread, with power cuts, closes and reopenings in between. An oracle
//! checks every answer, and after each recovery the whole store: its state is the one after some
//! step, not older than the last step that was certainly durable, except that a file may lack data
//! that still waited in memory. A public operation that occurs in no history fails a test.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few, from `KVFS_SEED_BASE` on; `KVFS_SEED=n`
//! runs one, of which `KVFS_STEPS` gives the steps that are run (see `steps.rs`), `KVFS_EACH=1`
//! compares everything after each step, `KVFS_WHOLE=1` prints the whole history of one that fails.

mod branches;
mod content;
#[path = "../../../../kvdb/tests/it/everything/coverage.rs"]
mod coverage;
mod effects;
mod found;
mod full;
mod kernel;
mod names;
#[path = "../../../../kvdb/tests/it/everything/possible.rs"]
mod possible;
mod state;
#[path = "../../../../kvdb/tests/it/everything/steps.rs"]
mod steps;
mod store;
mod transactions;
mod tree;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use env::{Random, Simulated};
use kvdb::{CompactionPolicy, CreateOptions, DictionaryOptions, Kvdb, OpenOptions};
use kvfs::{Atime, Fs, FsOptions, GoingDown, Views, Watcher};
use zones::{CrashDevice, MemoryDevice, Profile};

use found::Exactly;
use state::{History, State, observe};
use steps::{Steps, random_of, random_of_life};
use tree::{Overlay, Tree};
use world::{Dead, Site, World};

pub const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// The types whose operations must be called, and the other draws.
const TYPES: [&str; 4] = ["Fs", "Views", "Report", "FileChange"];
const FUNCTIONS: [&str; 2] = ["verify", "difference_of_states"];
/// Operations that no history uses. A file system continues in another process: `views::in_use` and
/// `kvfs-fuse --test it handover::` test this, and for a killed first process `views::notes` and
/// `kvfs-cli --test it keeper_views::`. `kvdb-wire --test it files::`, `served_files::` and
/// `leases::` test a file system whose store is on a server, and `views::the_files_beneath` reads
/// the state beneath a transaction there. `directory_locks::` tests locks of directories.
const ELSEWHERE: [&str; 19] = [
    "Fs::end_served",
    "Fs::leave_served",
    "Fs::lock_directory",
    "Fs::served",
    "Fs::served_transaction",
    "Fs::take_over",
    "Views::beneath",
    "Views::forget_ended",
    "Views::hand_over_written",
    "Views::in_use",
    "Views::lend",
    "Views::pause",
    "Views::reserve_inodes",
    "Views::reserve_inodes_of_mainline",
    "Views::take_back",
    "Views::take_over",
    "Views::take_over_noted",
    "Views::tell_left",
    "Views::untold",
];

/// The least that a store is made with (`kvfs create --size`).
const LEAST: u64 = 20 * zones::ZONE_SIZE;

enum Run {
    Anywhere(fn(&mut World, &Site) -> Result<(), Dead>),
    Once(fn(&mut World) -> Result<(), Dead>),
}
use Run::{Anywhere, Once};

/// The name, the weight and the action of each operation.
const OPERATIONS: &[(&str, u64, Run)] = &[
    ("make", 14, Anywhere(names::make)),
    ("make whole", 3, Anywhere(names::make_whole)),
    ("tmpfile", 2, Anywhere(names::tmpfile)),
    ("link", 5, Anywhere(names::link)),
    ("remove", 6, Anywhere(names::remove)),
    ("remove tree", 1, Anywhere(names::remove_tree)),
    ("remove a tree at once", 2, Anywhere(names::remove_at_once)),
    ("rename", 9, Anywhere(names::rename)),
    ("clone tree", 2, Anywhere(names::clone_tree)),
    ("clone out of a snapshot", 2, Anywhere(names::clone_earlier)),
    ("walk", 2, Anywhere(names::walk)),
    ("handles", 6, Anywhere(names::handles)),
    ("write", 20, Anywhere(content::write)),
    ("small writes", 8, Anywhere(content::small_writes)),
    ("allocate", 6, Anywhere(content::allocate)),
    ("copy", 6, Anywhere(content::copy)),
    ("read", 6, Anywhere(content::read)),
    ("attributes", 7, Anywhere(content::attributes)),
    ("extended attributes", 6, Anywhere(content::xattrs)),
    ("held write", 3, Anywhere(kernel::held_write)),
    ("list", 6, Anywhere(kernel::list)),
    ("keys", 8, Anywhere(store::keys)),
    ("ingest", 2, Once(store::ingest)),
    ("dictionaries", 1, Once(store::dictionaries)),
    ("sync", 4, Anywhere(store::sync)),
    ("time", 6, Once(store::time)),
    ("maintenance", 4, Once(store::maintenance)),
    ("left references", 2, Once(store::left)),
    ("begin", 4, Once(transactions::begin)),
    ("look after a transaction", 6, Once(transactions::look_after)),
    ("end", 4, Once(transactions::end)),
    ("snapshot", 2, Once(branches::snapshot)),
    ("see a snapshot", 2, Once(branches::see)),
    ("drop snapshot", 1, Once(branches::drop_snapshot)),
    ("clone", 1, Once(branches::clone)),
    ("drop clone", 1, Once(branches::drop_clone)),
    ("merge", 1, Once(branches::merge)),
    ("rebase", 1, Once(transactions::rebase)),
    ("rollback", 1, Once(branches::rollback)),
    ("send and receive", 1, Once(branches::send)),
    ("checkpoint", 1, Once(branches::checkpoint)),
    ("fill", 6, Once(full::fill)),
    ("drain", 4, Once(full::drain)),
    ("compare everything", 2, Once(branches::compare)),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Everything that may differ from one opening to the next.
fn store_options(random: &mut Random) -> OpenOptions {
    let open = OpenOptions {
        memory: (1 << 20) << random.below(3),
        flush_interval: Duration::from_millis(10),
        late_bind_at: [4 << 10, 16 << 10, u64::MAX][random.below(3) as usize],
        merge_part: (16 << 10) << random.below(4),
        merge_threads: 1 + random.below(3) as usize,
        seek_bytes: [0, 8 << 10, 1 << 20][random.below(3) as usize],
        compaction: CompactionPolicy {
            runs_per_level: 2 + random.below(7) as usize,
            ..CompactionPolicy::default()
        },
        threads: false,
        zero_journal: false,
        idle_flush: Duration::from_millis(50),
        flush_on_close: random.one_in(2),
        ..OpenOptions::default()
    };
    // Without a draw of its own, so that a seed makes the same history as before.
    let hold_values = if open.merge_threads == 2 { usize::MAX } else { 0 };
    OpenOptions { hold_values, ..open }
}

fn file_options(random: &mut Random) -> FsOptions {
    FsOptions {
        write_buffer: (64 << 10) << (2 * random.below(4)),
        inode_memory: [0, 1 << 20][random.below(2) as usize],
        flush_interval: FLUSH_INTERVAL,
        atime: [Atime::Never, Atime::Relative][random.below(2) as usize],
        zone_size: [None, Some(0), Some(16 << 10), Some(512 << 10)][random.below(4) as usize],
        ..FsOptions::default()
    }
}

/// Runs these steps until the power fails.
fn live(w: &mut World, range: Range<u64>, steps: &Steps) -> Result<(), Dead> {
    let all: u64 = OPERATIONS.iter().map(|(_, weight, _)| weight).sum();
    for step in range {
        if !steps.take(step) {
            continue;
        }
        w.step = step;
        w.random = random_of(w.seed, step);
        // No two changes at one time: a file's times say after a restart who has changed it.
        w.env.advance(Duration::from_micros(1));
        let mut at = w.random.below(all);
        let chosen = OPERATIONS.iter().find(|(_, weight, _)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let (name, _, run) = chosen.expect("the weights add up");
        w.operation = name;
        match run {
            Anywhere(run) => {
                let site = w.site();
                run(w, &site)?;
            }
            Once(run) => run(w)?,
        }
        w.reap();
        // Helps a reader to find the step at which the failure began.
        if number("KVFS_EACH").is_some() {
            branches::compare(w)?;
        }
    }
    Ok(())
}

fn open(
    device: Arc<CrashDevice>,
    env: &Arc<Simulated>,
    random: &mut Random,
) -> kvfs::Result<(Kvdb, Views)> {
    let (options, files) = (store_options(random), file_options(random));
    let (db, _) = Kvdb::open(device, env.clone(), options)?;
    let fs = Fs::open(db.clone(), env.clone(), files)?;
    let views = Views::new(db.clone(), fs);
    Ok((db, views))
}

fn close(w: &mut World) {
    w.note("close".into());
    w.call(&["Fs::shutdown", "Views::shutdown"]);
    let open: Vec<String> =
        w.open.iter().filter(|open| !open.durable).map(|open| open.label.clone()).collect();
    for label in open {
        // Locks would keep files from being committed.
        let id = w.running(&label).id;
        if w.views.abort(id).is_ok() {
            w.ended(&label);
        }
    }
    let ended = w.views.shutdown().and_then(|()| w.views.mainline().shutdown());
    match ended.and_then(|()| Ok(w.db.close()?)) {
        Ok(()) => {
            let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
            branches.iter().for_each(|branch| w.settle(branch));
            w.history.certain();
        }
        Err(e) => assert!(w.device.is_dead(), "{}: {e}", w.what()),
    }
}

/// Shuts down as by the ioctl. All calls end, and the requested data is on disk.
fn go_down(w: &mut World) {
    let how =
        [GoingDown::Synced, GoingDown::Committed, GoingDown::AsItIs][w.random.below(3) as usize];
    w.note(format!("going down {how:?}"));
    w.call(&["Views::go_down", "Views::is_down"]);
    let locked = w.views.takes_locks();
    match w.views.go_down(how) {
        Ok(()) => {
            assert!(w.views.is_down(), "{}", w.what());
            let refused = w.views.mainline().mkdir(kvfs::ROOT, b"no more", 0o755, world::USER);
            assert!(refused.is_err(), "{}: it is down", w.what());
        }
        Err(e) => {
            assert!(w.device.is_dead(), "{}: {e}", w.what());
            return;
        }
    }
    // Locked data may still wait.
    if how == GoingDown::Synced && !locked {
        for open in &mut w.open {
            open.over.settle();
        }
        let kept: Vec<(String, Arc<Overlay>)> = w
            .open
            .iter()
            .filter(|open| open.durable)
            .map(|open| (open.label.clone(), Arc::new(open.over.clone())))
            .collect();
        w.history.attempt(|s| s.durable.extend(kept));
        let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
        branches.iter().for_each(|branch| w.settle(branch));
    }
    if how != GoingDown::AsItIs {
        w.history.certain();
    }
}

/// Runs one seed. Returns the operations that it has called, and how often the store was full.
fn run(seed: u64, steps: &Steps) -> (BTreeSet<&'static str>, u64) {
    let mut random = random_of_life(seed, 0);
    let env = Arc::new(Simulated::new(seed));
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let limited = seed.is_multiple_of(8);
    let (capacity, reserve_zones) = if limited { (Some(LEAST), 8) } else { (None, 4) };
    let profiles = [Profile::Unknown, Profile::SolidState, Profile::HardDisk];
    let profile = profiles[random.below(3) as usize];
    let create =
        CreateOptions { open: store_options(&mut random), capacity, reserve_zones, profile };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("memory does not fail");
    db.create_dictionary("user", DictionaryOptions::default()).expect("made");
    let fs =
        Fs::open(db.clone(), env.clone(), file_options(&mut random)).expect("memory does not fail");
    let views = Views::new(db.clone(), fs);
    let first =
        State { branches: [(String::new(), Arc::new(Tree::new()))].into(), ..State::default() };
    let mut w = World {
        seed,
        step: 0,
        operation: "",
        random,
        env: env.clone(),
        device,
        db,
        views,
        history: History::new(first),
        bases: BTreeMap::new(),
        open: Vec::new(),
        committed: Vec::new(),
        references: BTreeMap::new(),
        nameless: BTreeMap::new(),
        stale: BTreeSet::new(),
        left: Vec::new(),
        inos: BTreeMap::new(),
        taken: BTreeMap::new(),
        lost: BTreeSet::new(),
        changed_at: BTreeMap::new(),
        fresh: 0,
        names: 0,
        limited,
        full: 0,
        called: BTreeSet::new(),
        kernel: Arc::default(),
        reader: None,
        listing: None,
        log: Vec::new(),
    };
    let watcher: Arc<dyn Watcher> = w.kernel.clone();
    w.views.watch(&watcher);
    let mut next_step = 1;
    for life in 1..3 + w.random.below(3) {
        let mut random = random_of_life(seed, life);
        if !random.one_in(3) {
            w.device.cut_power_after(random.below(800));
        }
        // A life that ends early leaves its numbers unused, so that the next one has its own.
        let first = next_step;
        next_step += 20 + random.below(250);
        let lived = live(&mut w, first..next_step, steps);
        w.random = random;
        w.operation = "closing";
        match w.random.below(4) {
            _ if lived.is_err() => {}
            0 | 1 => close(&mut w),
            2 => go_down(&mut w),
            _ => {}
        }
        w.note(format!("the power is cut: {}", w.device.is_dead()));
        let image = w.device.crash(seed ^ life);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "{}: {:?}", w.what(), report.faults);
        w.operation = "opening";
        // Sometimes the power fails again during recovery, or right after it.
        let mut image = image;
        while w.random.one_in(4) {
            let device = Arc::new(CrashDevice::over(image.clone()));
            device.cut_power_after(w.random.below(16));
            drop(open(device.clone(), &env, &mut w.random));
            image = device.crash(seed ^ life);
        }
        let bare = Kvdb::open(
            Arc::new(CrashDevice::over(image.clone())),
            env.clone(),
            store_options(&mut w.random),
        );
        let (bare, _) = bare.unwrap_or_else(|e| panic!("{}: {e}", w.what()));
        let report = kvfs::verify(&bare).unwrap_or_else(|e| panic!("{}: {e}", w.what()));
        assert!(report.is_clean(), "{}: {:?}", w.what(), report.findings);
        drop(bare);
        let device = Arc::new(CrashDevice::over(image));
        let opened = open(device.clone(), &env, &mut w.random);
        let (db, views) = opened.unwrap_or_else(|e| panic!("{}: {e}", w.what()));
        (w.device, w.db, w.views) = (device, db, views);
        reopened(&mut w);
    }
    w.operation = "the end";
    branches::compare(&mut w).expect("the power is on");
    (std::mem::take(&mut w.called), w.full)
}

/// The store is open again, and its content must be a possible state.
fn reopened(w: &mut World) {
    let found = observe(&w.db, &w.views).unwrap_or_else(|e| panic!("{}: {e}", w.what()));
    let (mut reasons, mut matched) = (Vec::new(), None);
    let n = w.history.len();
    w.history.keep(|state| match state.matches(&found, &w.bases, Exactly::Stored, &w.inos) {
        Ok(is) => {
            matched = Some(is);
            true
        }
        Err(e) => {
            reasons.push(e);
            false
        }
    });
    reasons.truncate(20);
    let (state, numbers) = matched.unwrap_or_else(|| {
        panic!("{}: none of {n} possible states, the newest first: {reasons:#?}", w.what())
    });
    w.history = History::new(state);
    w.inos.extend(numbers);
    // Data that a kernel held back is lost with it.
    w.kernel = Arc::default();
    let watcher: Arc<dyn Watcher> = w.kernel.clone();
    w.views.watch(&watcher);
    w.references.clear();
    w.listing = None;
    w.nameless.clear();
    w.stale.clear();
    w.left.clear();
    w.open.clear();
    w.committed.clear();
    w.changed_at.clear();
    w.lost.clear();
    w.taken.clear();
    let branches: Vec<String> = w.history.newest().branches.keys().cloned().collect();
    branches.iter().for_each(|branch| w.numbers_of(branch));
    let durable = found.durable.iter().map(|(label, (id, _))| (label.clone(), *id)).collect();
    transactions::restored(w, &durable);
}

#[test]
fn a_file_system_does_everything_that_it_says() {
    let one = number("KVFS_SEED");
    let (seeds, base) = (number("KVFS_SEEDS").unwrap_or(40), number("KVFS_SEED_BASE").unwrap_or(1));
    let (seeds, base) = one.map_or((seeds, base), |seed| (1, seed));
    let started = Instant::now();
    let (mut called, mut full) = (BTreeSet::new(), 0);
    for seed in base..base + seeds {
        let (also, refused) =
            steps::run(seed, "cargo test -p kvfs --test it everything::", |steps| run(seed, steps));
        called.extend(also);
        full += refused;
    }
    println!(
        "{seeds} seeds, {base}..{}, in {:.1} s, {full} times refused by a full store; go on: KVFS_SEED_BASE={}",
        base + seeds,
        started.elapsed().as_secs_f64(),
        base + seeds
    );
    // A single seed need not contain every operation.
    if seeds >= 40 {
        assert!(full >= seeds, "only {full} times was a store full");
        let mut wanted = coverage::public_operations(&TYPES);
        wanted.extend(FUNCTIONS.map(String::from));
        wanted.retain(|name| !ELSEWHERE.contains(&name.as_str()));
        let missing: Vec<_> =
            wanted.into_iter().filter(|name| !called.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "in no history: {missing:?}");
    }
}
