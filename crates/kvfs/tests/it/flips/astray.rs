//! Tests of misdirected and lost writes. A sector or a whole block has its earlier content (the
//! write was lost) or content that belongs elsewhere (a write or a read went to another place).
//! Each byte of it was written by a correct write, and so were its checksums. `check` finds the
//! error, or it is harmless: every read returns an error or exactly what was written.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use env::Random;
use zones::{Device, MemoryDevice, Purpose, SECTOR};

use super::image::{End, Image};
use super::live::{Class, Live};
use super::{merged, number, read};

fn bytes(device: &MemoryDevice, range: &Range<u64>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    device.read_at(Purpose::Pages, range.start, &mut bytes).ok()?;
    Some(bytes)
}

/// The effect of one misdirected write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Found,
    Harmless,
}

/// Picks the bytes that are overwritten, and those that overwrite them. Returns `None` if these are
/// the same.
fn stray(
    image: &Image,
    live: &Live,
    random: &mut Random,
) -> Option<(Range<u64>, Vec<u8>, &'static str)> {
    let (class, at) = live.pick(random);
    let sector = at / SECTOR * SECTOR..at / SECTOR * SECTOR + SECTOR;
    // Overwrites a whole frame, chunk or value, or one sector.
    let whole =
        live.range_of(class, at).filter(|r| class != Class::Dead && r.end - r.start <= 1 << 20);
    let target = if random.one_in(2) { whole.unwrap_or(sector) } else { sector };
    let older = random.pick(&image.older).unwrap_or(&image.device);
    let (from, what) = match random.below(4) {
        0 | 1 => (bytes(older, &target), "as it was earlier"),
        n => {
            // The bytes come from a structure of the same kind, or from any other.
            let other =
                if random.one_in(4) { live.pick(random).1 } else { live.pick_of(class, random) };
            let start = live.range_of(class, other).map_or(other / SECTOR * SECTOR, |r| r.start);
            let start = if target.start.is_multiple_of(SECTOR) && random.one_in(2) {
                start / SECTOR * SECTOR
            } else {
                start
            };
            let range = start..start + (target.end - target.start);
            (
                bytes(if n == 2 { &image.device } else { older }, &range),
                "with what belongs elsewhere",
            )
        }
    };
    let from = from?;
    (bytes(&image.device, &target)? != from).then_some((target, from, what))
}

fn judge(image: &Image, live: &Live, target: &Range<u64>, from: &[u8], deep: bool) -> Outcome {
    let device = image.device.clone();
    let before = bytes(&device, target).expect("on the device");
    device.write_at(Purpose::Pages, target.start, from).expect("memory");
    let changed = (target.start..)
        .zip(before.iter().zip(from))
        .filter(|(_, (a, b))| a != b)
        .map(|(at, _)| at);
    let counts = changed.map(|at| live.class_at(at)).fold((false, false), |(must, may), class| {
        let (at_end, dead) =
            (matches!(class, Class::End | Class::Superblock | Class::Value), class == Class::Dead);
        (must || !at_end && !dead, may || at_end)
    });
    let report = kvdb::check(Arc::new(device.clone()), &mut |_, _| {});
    let clean = report.is_clean();
    if counts == (false, false) {
        assert!(clean, "nothing that is alive was changed, but: {:?}", report.faults);
    }
    // An older copy of the superblock is valid, and the other copy is newer. An unreferenced place
    // may contain old bytes of a value.
    assert!(!clean || !counts.0, "something that is alive was changed, and check found nothing");
    let hurt = read(image, device.clone(), true) | read(image, device.clone(), false);
    assert!(!hurt || !clean, "reading failed on something that check calls clean");
    if deep {
        merged(image, device, if counts == (false, false) { Class::Dead } else { Class::Index });
    }
    if clean { Outcome::Harmless } else { Outcome::Found }
}

fn astray(image: &Image, share: u64) {
    let live = Live::of(image);
    let count = (number("KVFS_STRAYS").unwrap_or(80) * share).div_ceil(16);
    let mut random = Random::new(number("KVFS_SEED").unwrap_or(1) ^ share << 32 ^ 77);
    let (mut done, mut found) = (0, 0);
    while done < count {
        let Some((target, from, what)) = stray(image, &live, &mut random) else { continue };
        match catch_unwind(AssertUnwindSafe(|| judge(image, &live, &target, &from, done % 4 == 0)))
        {
            Ok(outcome) => found += u64::from(outcome == Outcome::Found),
            Err(panic) => {
                eprintln!(
                    "stray {done} of {:?}: {target:x?} ({:?}) {what}",
                    image.end,
                    live.class_at(target.start)
                );
                std::panic::resume_unwind(panic);
            }
        }
        done += 1;
    }
    eprintln!("{:?}: {count} blocks astray, {found} found, {} harmless", image.end, count - found);
    assert!(found * 8 > count, "many hit something that is alive");
}

#[test]
fn blocks_astray_in_a_store_that_lost_power_with_commits_in_the_journal() {
    astray(&Image::new(End::PowerCut), 6);
}

#[test]
fn blocks_astray_in_a_store_whose_journal_is_longer_than_a_segment() {
    astray(&Image::new(End::LongJournal), 3);
}

#[test]
fn blocks_astray_in_a_store_that_was_closed_with_all_in_runs() {
    astray(&Image::new(End::Closed), 5);
}

#[test]
fn blocks_astray_in_a_store_that_was_closed_with_commits_in_the_journal() {
    astray(&Image::new(End::ClosedUnflushed), 4);
}
