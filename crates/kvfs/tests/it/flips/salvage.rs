//! Tests of the data that is salvaged from a damaged store: everything whose blocks are intact,
//! nothing that never existed, and a report of everything that is missing.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{FaultKeys, Kvdb, OpenOptions, Remnant, Salvage, ScrubOptions};
use kvfs::{FileKind, Left, LeftEntry, ROOT, Remains};
use zones::{Device, MemoryDevice, Purpose, ZONE_SIZE};

use super::image::{End, Image};
use super::live::{Class, Live};
use super::number;
use super::reading::{Expected, Node};

/// Returns the keys that depend on the damage, according to a scrub, which shares no reader with
/// salvage.
pub fn touched(image: &Image, flips: &[(u64, u8)]) -> Vec<FaultKeys> {
    let device = Arc::new(image.device.clone());
    let options = OpenOptions { read_only: true, ..image.options() };
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Simulated::new(1)), options).unwrap();
    flips.iter().for_each(|&(at, bit)| device.flip_bit(at, bit));
    db.scrub(ScrubOptions::default()).unwrap();
    // For a value in the journal the key is reported; nothing else of journal or manifest is
    // damaged here.
    db.scrub_faults().into_iter().map(|f| f.keys.expect("keys")).collect()
}

pub fn is_touched(touched: &[FaultKeys], dictionary: &str, key: &[u8]) -> bool {
    touched.iter().any(|t| t.dictionary == dictionary && &t.start[..] <= key && key < &t.end[..])
}

pub fn open(device: MemoryDevice) -> kvdb::Result<Salvage> {
    Salvage::open(Arc::new(device), &mut |_, _| {})
}

/// The result of a scan of all keys: certain tuples, and the keys that may be lost.
pub struct Scanned {
    pub tuples: BTreeMap<Bytes, Bytes>,
    lost: Vec<(Bytes, Bytes)>,
}

pub fn scan(salvage: &Salvage, dictionary: &str) -> Scanned {
    let mut all = Scanned { tuples: BTreeMap::new(), lost: Vec::new() };
    let mut last: Option<Bytes> = None;
    for remnant in salvage.scan(dictionary, b"", b"") {
        match remnant {
            Remnant::Gap { start, end, .. } => all.lost.push((start, end)),
            Remnant::Tuple { key, value, stale } => {
                assert!(last.as_ref().is_none_or(|last| *last < key), "{dictionary}: keys ascend");
                last = Some(key.clone());
                match salvage.value(&value) {
                    Ok(value) if !stale => drop(all.tuples.insert(key, value)),
                    Ok(_) => {}
                    Err(_) => all.lost.push((key.clone(), Bytes::from([&key, &[0][..]].concat()))),
                }
            }
        }
    }
    all
}

impl Scanned {
    fn may_lack(&self, key: &[u8]) -> bool {
        self.lost.iter().any(|(start, end)| &start[..] <= key && (end.is_empty() || key < &end[..]))
    }
}

fn compare_keys(expected: &Expected, salvage: &Salvage, touched: &[FaultKeys]) -> usize {
    let mut lacking = 0;
    for (dictionary, tuples) in &expected.dictionaries {
        let found = scan(salvage, dictionary);
        let expected: BTreeMap<&Bytes, &Bytes> = tuples.iter().map(|(k, v)| (k, v)).collect();
        for (key, value) in &found.tuples {
            let was = expected
                .get(key)
                .unwrap_or_else(|| panic!("{dictionary}: {key:?} was never there"));
            assert!(*was == value, "{dictionary}: another value of {key:?}");
        }
        for key in expected.keys().filter(|key| !found.tuples.contains_key(**key)) {
            assert!(
                is_touched(touched, dictionary, key),
                "{dictionary}: {key:?} is whole and did not come out"
            );
            assert!(found.may_lack(key), "{dictionary}: nothing says that {key:?} is missing");
            lacking += 1;
        }
    }
    lacking
}

fn ino_key(ino: u64) -> [u8; 8] {
    ino.to_be_bytes()
}

fn compare_files(expected: &Expected, remains: &Remains, touched: &[FaultKeys]) -> usize {
    let mut damaged = 0;
    for (path, node) in &expected.nodes {
        let ino = node.attr.ino;
        let shown = path.escape_ascii();
        let near = |dict: &str| {
            touched.iter().any(|t| {
                t.dictionary == dict
                    && t.start[..] < ino_key(ino + 1)[..]
                    && t.end[..] > ino_key(ino)[..]
            })
        };
        match remains.node(ino) {
            Left::Node(left) => {
                assert!(
                    near("imap") || (!left.stale && left.lost_xattrs.is_empty()),
                    "{shown} is whole"
                );
                if left.stale {
                    damaged += 1;
                    continue;
                }
                assert_eq!(left.attr, node.attr, "{shown}");
                let xattrs: BTreeMap<Vec<u8>, Vec<u8>> = left.xattrs.iter().cloned().collect();
                assert!(
                    xattrs.iter().all(|(name, value)| node.xattrs.get(name) == Some(value)),
                    "{shown}"
                );
                assert_eq!(xattrs.len() + left.lost_xattrs.len(), node.xattrs.len(), "{shown}");
                if node.attr.kind == FileKind::File {
                    damaged += compare_data(remains, &left, node, near("dmap"), &shown.to_string());
                }
            }
            Left::Lost(_) => {
                assert!(near("imap"), "the node of {shown} is whole");
                damaged += 1;
            }
            Left::None => panic!("{shown} is not there at all"),
        }
        if node.attr.kind == FileKind::Dir {
            let wanted: BTreeMap<&[u8], u64> = node
                .entries
                .iter()
                .filter(|(n, _)| !matches!(&n[..], b"." | b".."))
                .map(|(n, ino)| (&n[..], *ino))
                .collect();
            let (mut found, mut gap) = (0, false);
            for entry in remains.entries(ino) {
                match entry {
                    LeftEntry::Gap(_) => gap = true,
                    LeftEntry::Malformed(what) => panic!("{shown}: {what}"),
                    LeftEntry::Entry { stale: true, .. } => {}
                    LeftEntry::Entry { name, ino, .. } => {
                        assert_eq!(
                            wanted.get(&name[..]),
                            Some(&ino),
                            "{shown}/{}",
                            name.escape_ascii()
                        );
                        found += 1;
                    }
                }
            }
            assert!(
                found == wanted.len() || (gap && near("nmap")),
                "{shown}: {found} of {} names",
                wanted.len()
            );
        }
    }
    damaged
}

fn compare_data(
    remains: &Remains,
    left: &kvfs::LeftNode,
    node: &Node,
    near: bool,
    shown: &str,
) -> usize {
    let mut content = vec![0; node.content.len()];
    let missing: Vec<Range<u64>> = remains
        .data(node.attr.ino, Some(left), |at, bytes| {
            content[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok::<(), ()>(())
        })
        .unwrap();
    assert!(missing.is_empty() || near, "{shown} is whole, but misses {missing:?}");
    assert!(missing.windows(2).all(|w| w[0].end < w[1].start), "{shown}: {missing:?}");
    assert!(
        missing.iter().all(|r| r.start < r.end && r.end <= node.attr.size),
        "{shown}: {missing:?}"
    );
    for (at, (a, b)) in content.iter().zip(&node.content).enumerate() {
        assert!(
            a == b || missing.iter().any(|r| r.contains(&(at as u64))),
            "{shown}: byte {at} is wrong"
        );
    }
    missing.len()
}

/// All names that are reachable from the root, with their inodes.
fn reachable(remains: &Remains) -> HashSet<u64> {
    let (mut seen, mut todo) = (HashSet::from([ROOT]), vec![ROOT]);
    while let Some(dir) = todo.pop() {
        for entry in remains.entries(dir) {
            if let LeftEntry::Entry { ino, kind, stale: false, .. } = entry
                && seen.insert(ino)
                && kind == FileKind::Dir
            {
                todo.push(ino);
            }
        }
    }
    seen
}

fn damage(end: End, share: u64) {
    let image = Image::new(end);
    let live = Live::of(&image);
    let whole = open(image.device.clone()).unwrap();
    assert_eq!(whole.notes(), [] as [String; 0]);
    assert_eq!(compare_keys(&image.expected, &whole, &[]), 0);
    let whole = Remains::new(whole);
    assert_eq!(compare_files(&image.expected, &whole, &[]), 0);
    assert_eq!(reachable(&whole), image.expected.nodes.values().map(|n| n.attr.ino).collect());

    let mut random = Random::new(number("KVFS_SEED").unwrap_or(5) ^ share << 32);
    let (mut lacking, mut damaged) = (0, 0);
    let rounds = (number("KVFS_FLIPS").unwrap_or(320) * share).div_ceil(16);
    for round in 0..rounds {
        let mut flips = Vec::new();
        while flips.is_empty() || (flips.len() < 6 && random.one_in(2)) {
            let class = [Class::Tuples, Class::Tuples, Class::Index, Class::Value]
                [random.below(4) as usize];
            flips.push((live.pick_of(class, &mut random), random.below(8) as u8));
        }
        // Flipping the same bit twice changes nothing.
        flips.sort();
        flips.dedup();
        let touched = touched(&image, &flips);
        let device = image.device.clone();
        flips.iter().for_each(|&(at, bit)| device.flip_bit(at, bit));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let salvage = open(device.clone()).unwrap();
            assert_eq!(salvage.notes(), [] as [String; 0]);
            lacking += compare_keys(&image.expected, &salvage, &touched);
            damaged += compare_files(&image.expected, &Remains::new(salvage), &touched);
        }));
        if let Err(panic) = outcome {
            eprintln!("round {round} of {end:?}: {flips:?}, which touches {touched:?}");
            std::panic::resume_unwind(panic);
        }
    }
    assert!(lacking > 0 && damaged > 0, "something was hit: {lacking} keys, {damaged} files");
    eprintln!("{end:?}: {rounds} rounds; {lacking} keys were lost, {damaged} files damaged");
}

#[test]
fn of_a_closed_store_with_bad_blocks() {
    damage(End::Closed, 6);
}

#[test]
fn of_a_store_that_lost_power_with_bad_blocks() {
    damage(End::PowerCut, 5);
}

/// If the superblock is lost or the manifest is truncated, the data is salvaged through other
/// structures.
#[test]
fn without_the_superblock_the_manifest_is_found() {
    for end in [End::Closed, End::PowerCut, End::ClosedUnflushed] {
        let image = Image::new(end);
        for both in [false, true] {
            let device = image.device.clone();
            device.flip_bit(100, 1);
            if both {
                device.flip_bit((4 << 20) + 80, 1);
            }
            let salvage = open(device).unwrap();
            assert!(!salvage.notes().is_empty(), "it is said");
            assert_eq!(
                compare_keys(&image.expected, &salvage, &[]),
                0,
                "{end:?}: everything is there all the same"
            );
            assert_eq!(compare_files(&image.expected, &Remains::new(salvage), &[]), 0);
        }
    }
}

/// The structures above everything else are damaged. The salvaged data was there before, unless it
/// is reported as perhaps older, and most of the data is salvaged.
#[test]
fn with_holes_in_manifest_and_journal_most_comes_out() {
    for end in [End::PowerCut, End::ClosedUnflushed, End::LongJournal] {
        let image = Image::new(end);
        let live = Live::of(&image);
        let mut random = Random::new(number("KVFS_SEED").unwrap_or(3));
        let all: usize = image.expected.dictionaries.values().map(Vec::len).sum();
        for round in 0..number("KVFS_FLIPS").unwrap_or(320) / 20 {
            let device = image.device.clone();
            let class = if round % 2 == 0 { Class::Journal } else { Class::Manifest };
            let at = live.pick_of(class, &mut random);
            device.flip_bit(at, 3);
            if class == Class::Manifest {
                // Damages both copies. The second copy lies before or after the first, so a whole
                // MiB there hits it.
                let zone = at / ZONE_SIZE * ZONE_SIZE;
                let from = at.saturating_sub(32 << 10).max(zone + 4096);
                for at in (from..from + (64 << 10)).step_by(4096) {
                    device.flip_bit(at + 1, 3);
                }
            }
            let salvage = match open(device) {
                Ok(salvage) => salvage,
                // Its only manifest, or the beginning of it.
                Err(e) => {
                    assert!(
                        class == Class::Manifest && e.to_string().contains("no manifest was found"),
                        "{end:?}: {e}"
                    );
                    continue;
                }
            };
            let mut right = 0;
            for (dictionary, tuples) in &image.expected.dictionaries {
                let found = scan(&salvage, dictionary);
                right += tuples.iter().filter(|(k, v)| found.tuples.get(k) == Some(v)).count();
            }
            let told = !salvage.notes().is_empty();
            assert!(
                told || right == all,
                "{end:?}: {right} of {all}, and nothing is said, {class:?} {at:#x}"
            );
            if class == Class::Journal && end != End::LongJournal {
                assert!(right * 10 > all * 9, "{end:?}: {right} of {all}, {:?}", salvage.notes());
            }
        }
    }
}

/// A salvage of noise finds nothing, does not hang and does not panic.
#[test]
fn of_a_store_that_is_mostly_noise() {
    let image = Image::new(End::PowerCut);
    let len = image.device.len().unwrap();
    for seed in 0..12 {
        let device = image.device.clone();
        let mut random = Random::new(seed);
        let mut noise = vec![0; 64 << 10];
        for at in (ZONE_SIZE..len).step_by(noise.len()) {
            if random.one_in(1 + seed) {
                random.fill(&mut noise);
                let part = noise.len().min((len - at) as usize);
                device.write_at(Purpose::Pages, at, &noise[..part]).unwrap();
            }
        }
        let Ok(salvage) = open(device) else { continue };
        for dictionary in salvage.dictionaries() {
            scan(&salvage, &dictionary);
        }
        reachable(&Remains::new(salvage));
    }
}
