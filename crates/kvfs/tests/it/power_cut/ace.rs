//! Runs small workloads, all that exist, with a power cut at every device operation (after ACE:
//! Mohan, Martinez, Ponnapalli, Raju, Chidambaram, OSDI '18). A workload is one or two calls on a
//! fixed set of names, each followed by a persistence point: an fsync of one of the files or
//! directories, a sync of everything, or none. It runs once to count the device's operations, and
//! then once for each of them with the power cut there.
//!
//! `KVFS_ACE=n` runs n workloads of two calls instead of a sample; `KVFS_ACE_FROM=n` begins with
//! that one, so that a long run can be continued.

use std::sync::Arc;

use env::Simulated;
use kvdb::{DictionaryId, Durability};
use zones::{CrashDevice, MemoryDevice};

use super::history::History;
use super::step::{Step, Store};
use super::{created, judge, number, open};

const FILES: [&str; 4] = ["/foo", "/bar", "/A/foo", "/B/foo"];
const DIRS: [&str; 2] = ["/A", "/B"];

/// Every call on these names.
fn calls() -> Vec<Step> {
    let s = |p: &str| p.to_string();
    let mut all = Vec::new();
    for path in FILES {
        all.push(Step::File(s(path)));
        all.push(Step::Symlink(s(path)));
        all.push(Step::Unlink(s(path)));
        // A small write, one across a page boundary, and one appended after a hole.
        for (at, len) in [(0, 10), (4000, 200), (20_000, 9000)] {
            all.push(Step::Write { path: s(path), at, data: vec![b'w'; len] });
        }
        all.push(Step::Truncate(s(path), 0));
        all.push(Step::Truncate(s(path), 5000));
        all.push(Step::Punch { path: s(path), at: 1000, len: 8000 });
        all.push(Step::Mode(s(path), 0o600));
        all.push(Step::Xattr(s(path), Some(b"value".to_vec())));
        all.push(Step::Xattr(s(path), None));
        for other in FILES.into_iter().filter(|other| *other != path) {
            all.push(Step::Rename { from: s(path), to: s(other) });
            all.push(Step::Link { from: s(path), to: s(other) });
        }
    }
    all.push(Step::Exchange(s("/foo"), s("/A/foo")));
    all.push(Step::Exchange(s("/foo"), s("/bar")));
    for dir in DIRS {
        all.push(Step::Dir(s(dir)));
        all.push(Step::Dir(format!("{dir}/new")));
        all.push(Step::Rmdir(s(dir)));
        all.push(Step::Rename { from: s(dir), to: s("/C") });
    }
    all.push(Step::Rename { from: s("/A"), to: s("/B") });
    all.push(Step::Rename { from: s("/A"), to: s("/B/A") });
    all.push(Step::Keys(vec![(b"k".to_vec(), b"v".to_vec())], Durability::Buffered));
    all
}

/// Returns the steps that may follow a call.
fn persistence() -> Vec<Option<Step>> {
    let fsyncs =
        FILES.into_iter().chain(DIRS).chain([""]).map(|p| Some(Step::Fsync(p.to_string())));
    let key = Step::Keys(vec![(b"p".to_vec(), b"v".to_vec())], Durability::Synced);
    [None, Some(Step::SyncAll), Some(key)].into_iter().chain(fsyncs).collect()
}

/// The names that exist when a workload begins, some with data, all on disk.
fn prepared(env: &Arc<Simulated>) -> (MemoryDevice, DictionaryId, History) {
    let (image, dict) = created(env);
    let device = Arc::new(CrashDevice::over(image));
    let (fs, db) = open(device.clone(), env).expect("it opens");
    let mut h = History::new();
    let store = Store { fs: &fs, db: &db, dict };
    let file = |path: &str| Step::File(path.into());
    let data =
        |path: &str, len: usize| Step::Write { path: path.into(), at: 0, data: vec![b'0'; len] };
    let steps = [
        Step::Dir("/A".into()),
        Step::Dir("/B".into()),
        file("/foo"),
        data("/foo", 12_000),
        file("/A/foo"),
        data("/A/foo", 100),
    ];
    for step in steps.into_iter().chain([Step::SyncAll]) {
        assert!(store.perform(&step, &mut h).expect("a sound device"), "{step:?}");
    }
    fs.shutdown().expect("shuts down");
    db.close().expect("closes");
    drop((fs, db));
    (device.durable(), dict, h)
}

struct Ace {
    env: Arc<Simulated>,
    image: MemoryDevice,
    dict: DictionaryId,
    history: History,
    workloads: u64,
    cuts: u64,
}

impl Ace {
    fn new() -> Ace {
        let env = Arc::new(Simulated::new(1));
        let (image, dict, history) = prepared(&env);
        Ace { env, image, dict, history, workloads: 0, cuts: 0 }
    }

    /// Runs a workload with the power cut in operation `cut`. Returns whether the power was cut, or
    /// `None` if the workload makes no sense.
    fn live(&self, workload: &[&Step], cut: u64) -> Option<bool> {
        let device = Arc::new(CrashDevice::over(self.image.clone()));
        let mut h = self.history.clone();
        let when = format!("power cut in operation {cut} of {workload:?}");
        let opened = open(device.clone(), &self.env).expect("a sound device");
        device.cut_power_after(cut);
        let store = Store { fs: &opened.0, db: &opened.1, dict: self.dict };
        for step in workload {
            match store.perform(step, &mut h) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => {
                    assert!(device.is_dead(), "{when}: {e}");
                    break;
                }
            }
        }
        // A call without a persistence point after it reaches the disk an interval later.
        if !device.is_dead() {
            self.env.advance(std::time::Duration::from_secs(2));
            if opened.0.tick().is_ok() {
                h.synced(None);
            } else {
                assert!(device.is_dead(), "{when}: the interval failed");
            }
        }
        let dead = device.is_dead();
        let images = [device.durable(), device.current(), device.crash(cut)];
        drop(opened);
        for image in &images[..if dead { 3 } else { 1 }] {
            judge(image, self.dict, &self.env, &mut h.clone(), &when);
        }
        Some(dead)
    }

    fn run(&mut self, workload: &[&Step]) {
        let mut cut = 0;
        while let Some(true) = self.live(workload, cut) {
            cut += 1;
        }
        if cut > 0 {
            self.workloads += 1;
            self.cuts += cut;
        }
    }
}

fn tell(ace: &Ace) {
    println!("{} workloads, {} power cuts", ace.workloads, ace.cuts);
}

#[test]
fn every_workload_of_one_call_survives_a_cut_everywhere() {
    let mut ace = Ace::new();
    let (calls, points) = (calls(), persistence());
    // Runs the call without a persistence point after it, and with each of them. The quick run
    // leaves out most points that name other files.
    let every = if number("KVFS_ACE").is_some() { 1 } else { 5 };
    for (i, call) in calls.iter().enumerate() {
        for (j, point) in
            points.iter().enumerate().filter(|(j, _)| *j < 2 || (i + j).is_multiple_of(every))
        {
            let _ = j;
            let workload: Vec<&Step> = [Some(call), point.as_ref()].into_iter().flatten().collect();
            ace.run(&workload);
        }
    }
    tell(&ace);
    assert!(ace.workloads > 100 && ace.cuts > ace.workloads);
}

#[test]
fn workloads_of_two_calls_survive_a_cut_everywhere() {
    let mut ace = Ace::new();
    let (calls, points) = (calls(), persistence());
    let all = (calls.len() * points.len()).pow(2) as u64;
    let wanted = number("KVFS_ACE").unwrap_or(40);
    // Neighbours in this order differ in everything, since the step and their number have no common
    // factor.
    let stride = (all / 7 * 3) | 1;
    let mut n = number("KVFS_ACE_FROM").unwrap_or(0);
    while ace.workloads < wanted {
        let mut index = (u128::from(n) * u128::from(stride) % u128::from(all)) as usize;
        let mut digit = |base: usize| {
            let d = index % base;
            index /= base;
            d
        };
        let [a, p, b, q] =
            [digit(calls.len()), digit(points.len()), digit(calls.len()), digit(points.len())];
        let workload: Vec<&Step> =
            [Some(&calls[a]), points[p].as_ref(), Some(&calls[b]), points[q].as_ref()]
                .into_iter()
                .flatten()
                .collect();
        ace.run(&workload);
        n += 1;
        if n >= all {
            break;
        }
    }
    tell(&ace);
    println!("to go on: KVFS_ACE_FROM={n}");
    assert!(ace.cuts > ace.workloads);
}
