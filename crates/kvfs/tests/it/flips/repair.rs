//! Tests of repairs of stores with bad blocks. Afterwards everything is sound, and whatever did not
//! depend on the lost data is unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use env::{Random, Simulated};
use kvdb::{FaultKeys, Kvdb, OpenOptions};
use kvfs::{FileKind, Fs, Repaired};
use zones::{CrashDevice, Device, MemoryDevice};

use super::image::{End, Image};
use super::live::{Class, Live};
use super::number;
use super::reading::fs_options;
use super::salvage;

fn repair(image: &Image, device: Arc<dyn Device>) -> kvfs::Result<Repaired> {
    let options = OpenOptions { threads: false, flush_on_close: true, ..image.options() };
    let env = Arc::new(Simulated::new(77));
    let (db, _) = Kvdb::open(device, env.clone(), options)?;
    let repaired = kvfs::repair(&db, &*env, kvfs::Losses::Keep)?;
    db.close()?;
    Ok(repaired)
}

fn open(image: &Image, device: &MemoryDevice) -> Kvdb {
    let options = OpenOptions { read_only: true, ..image.options() };
    Kvdb::open(Arc::new(device.clone()), Arc::new(Simulated::new(1)), options).expect("it opens").0
}

/// The store is sound.
fn sound(image: &Image, device: &MemoryDevice) {
    let report = kvdb::check(Arc::new(device.clone()), &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
    let found = kvfs::verify(&open(image, device)).expect("it can be read");
    assert!(found.findings.is_empty(), "{:?}", found.findings);
}

fn compare(image: &Image, device: &MemoryDevice, touched: &[FaultKeys]) -> usize {
    let db = open(image, device);
    let mut lost = 0;
    for (name, tuples) in image
        .expected
        .dictionaries
        .iter()
        .filter(|(name, _)| !matches!(&name[..], "nmap" | "imap" | "dmap"))
    {
        let dict = db.dictionary(name).expect("it is there");
        let found: BTreeMap<Bytes, Bytes> =
            db.view().scan(dict, b"", b"", usize::MAX).expect("readable").into_iter().collect();
        let expected: BTreeMap<Bytes, Bytes> = tuples.iter().cloned().collect();
        for (key, value) in &found {
            assert_eq!(expected.get(key), Some(value), "{name}: {key:?}");
        }
        for key in expected.keys().filter(|key| !found.contains_key(*key)) {
            assert!(
                salvage::is_touched(touched, name, key),
                "{name}: {key:?} was whole and is gone"
            );
            lost += 1;
        }
    }
    let fs = Fs::open(
        db,
        Arc::new(Simulated::new(1)),
        kvfs::FsOptions { read_only: true, ..fs_options() },
    )
    .expect("a file system");
    let any = |dict: &str| touched.iter().any(|t| t.dictionary == dict);
    for (path, node) in &image.expected.nodes {
        let (ino, shown) = (node.attr.ino, path.escape_ascii().to_string());
        let near = |dict: &str| {
            let (from, to) = (ino.to_be_bytes(), (ino + 1).to_be_bytes());
            touched
                .iter()
                .any(|t| t.dictionary == dict && t.start[..] < to[..] && t.end[..] > from[..])
        };
        if near("imap") || near("dmap") {
            lost += 1;
            continue;
        }
        let mut attr = fs.getattr(ino).unwrap_or_else(|e| panic!("{shown} was whole: {e}"));
        if any("nmap") || any("imap") {
            // Names that were lost with others, and entries that referred to lost inodes.
            attr.nlink = node.attr.nlink;
            attr.size = if attr.kind == FileKind::Dir { node.attr.size } else { attr.size };
        } else {
            assert_eq!(fs.resolve(path).expect("by its path").ino, ino, "{shown}");
        }
        assert_eq!(attr, node.attr, "{shown}");
        if attr.kind == FileKind::File {
            let mut content = Vec::new();
            while (content.len() as u64) < attr.size {
                content.extend_from_slice(
                    &fs.read(ino, content.len() as u64, 1 << 20).expect("readable"),
                );
            }
            assert!(content == node.content, "{shown}");
        }
    }
    lost
}

fn flips(live: &Live, random: &mut Random) -> Vec<(u64, u8)> {
    let mut flips = Vec::new();
    while flips.is_empty() || (flips.len() < 6 && random.one_in(2)) {
        let class =
            [Class::Tuples, Class::Tuples, Class::Index, Class::Value][random.below(4) as usize];
        flips.push((live.pick_of(class, random), random.below(8) as u8));
    }
    flips.sort();
    flips.dedup();
    flips
}

fn damage(end: End, share: u64) {
    let image = Image::new(end);
    let live = Live::of(&image);
    let mut random = Random::new(number("KVFS_SEED").unwrap_or(8) ^ share << 32);
    let (mut removed, mut mended, mut lost) = (0, 0, 0);
    for round in 0..(number("KVFS_FLIPS").unwrap_or(320) * share).div_ceil(32) {
        let flips = flips(&live, &mut random);
        let touched = salvage::touched(&image, &flips);
        let device = image.device.clone();
        flips.iter().for_each(|&(at, bit)| device.flip_bit(at, bit));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let device = Arc::new(device.clone());
            let repaired = repair(&image, device.clone()).expect("it can be repaired");
            sound(&image, &device);
            lost += compare(&image, &device, &touched);
            let again = repair(&image, device.clone()).expect("again");
            assert!(
                again.store.removed.is_empty() && again.mended.is_empty(),
                "nothing is left to repair: {again:?}"
            );
            removed += repaired.store.removed.len();
            mended += repaired.mended.len();
        }));
        if let Err(panic) = outcome {
            eprintln!("round {round} of {end:?}: {flips:?}, which touches {touched:?}");
            std::panic::resume_unwind(panic);
        }
    }
    assert!(
        removed > 0 && mended > 0 && lost > 0,
        "{removed} removed, {mended} mended, {lost} lost"
    );
}

#[test]
fn a_closed_store_with_bad_blocks_is_sound_afterwards() {
    damage(End::Closed, 6);
}

#[test]
fn a_store_that_lost_power_with_bad_blocks_is_sound_afterwards() {
    damage(End::PowerCut, 5);
}

#[test]
fn of_a_sound_store_nothing_is_changed() {
    let image = Image::new(End::PowerCut);
    let device = Arc::new(image.device.clone());
    let repaired = repair(&image, device.clone()).expect("it opens");
    assert!(repaired.store.removed.is_empty() && repaired.mended.is_empty(), "{repaired:?}");
    assert_eq!((repaired.store.runs, repaired.store.changes), (0, 0));
    assert_eq!(compare(&image, &device, &[]), 0);
}

/// The power fails while it is repaired: the store is the old one, or the repaired one.
#[test]
fn a_power_cut_leaves_the_old_store_or_the_repaired_one() {
    let image = Image::new(End::Closed);
    let live = Live::of(&image);
    let contents = |device: MemoryDevice| {
        let salvage = salvage::open(device).expect("it can be read");
        let all: Vec<_> =
            image.expected.dictionaries.keys().map(|d| salvage::scan(&salvage, d).tuples).collect();
        all
    };
    let mut random = Random::new(number("KVFS_SEED").unwrap_or(4));
    let (mut olds, mut news) = (0, 0);
    let mut rounds = number("KVFS_SEEDS").unwrap_or(3);
    while rounds > 0 {
        // Names and nodes, so that there is something to mend.
        let flips: Vec<(u64, u8)> =
            (0..4).map(|_| (live.pick_of(Class::Tuples, &mut random), 1)).collect();
        let damaged = image.device.clone();
        flips.iter().for_each(|&(at, bit)| damaged.flip_bit(at, bit));
        let device = Arc::new(CrashDevice::over(damaged.clone()));
        repair(&image, device.clone()).expect("it can be repaired");
        let (old, new) = (contents(damaged.clone()), contents(device.current()));
        // Damage to keys alone may need no repair: then both stores have the same content.
        if old == new {
            continue;
        }
        rounds -= 1;
        let operations = device.operations();
        for cut in 0..operations {
            let device = Arc::new(CrashDevice::over(damaged.clone()));
            device.cut_power_after(cut);
            let _ = repair(&image, device.clone());
            for seed in 0..2 {
                let left = device.crash(random.below(1 << 40) + seed);
                let is = contents(left.clone());
                assert!(
                    is == old || is == new,
                    "power cut in operation {cut} of {operations}: neither the old store nor the new one"
                );
                olds += usize::from(is == old);
                news += usize::from(is == new);
                if cut % 8 == 0 {
                    let left = Arc::new(left);
                    repair(&image, left.clone()).expect("it can be repaired after all");
                    sound(&image, &left);
                    assert!(contents((*left).clone()) == new);
                }
            }
        }
    }
    assert!(olds > 0 && news > 0, "{olds} old ones, {news} new ones");
}
