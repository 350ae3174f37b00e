//! Draws random steps.

use env::Random;
use kvdb::Durability;

use super::history::History;
use super::step::Step;

fn pick(random: &mut Random, from: &[String]) -> Option<String> {
    random.pick(from).cloned()
}

/// Returns a step that may be possible now.
pub fn step(h: &History, random: &mut Random) -> Option<Step> {
    let (dirs, files) = (h.dirs(), h.files());
    let fresh = |random: &mut Random| {
        let parent = pick(random, &dirs)?;
        let path = format!("{parent}/n{}", random.below(12));
        (path.len() <= 40).then_some(path)
    };
    let target = |random: &mut Random| match random.one_in(2) {
        true => pick(random, &files),
        false => fresh(random),
    };
    Some(match random.below(34) {
        0 => Step::Dir(fresh(random)?),
        1 => Step::Symlink(fresh(random)?),
        2..=6 => Step::File(fresh(random)?),
        7 => Step::Truncate(pick(random, &files)?, random.below(30_000) as usize),
        8 => Step::Punch {
            path: pick(random, &files)?,
            at: random.below(20_000) as usize,
            len: 1 + random.below(20_000) as usize,
        },
        9..=15 => {
            let sizes = [10, 300, 4096, 9000, 40_000, 100_000];
            let at = if random.one_in(2) { 0 } else { random.below(20_000) } as usize;
            let most = sizes[random.below(6) as usize];
            let mut data = vec![0; 1 + random.below(most) as usize];
            random.fill(&mut data);
            Step::Write { path: pick(random, &files)?, at, data }
        }
        16..=18 => Step::Rename { from: pick(random, &files)?, to: target(random)? },
        19 => Step::Rename { from: pick(random, &dirs)?, to: fresh(random)? },
        20 => Step::Exchange(pick(random, &files)?, pick(random, &files)?),
        21 => Step::Link { from: pick(random, &files)?, to: fresh(random)? },
        22 | 23 => Step::Unlink(pick(random, &files)?),
        24 => Step::Rmdir(pick(random, &dirs)?),
        25 => Step::Mode(pick(random, &files)?, 0o600 + random.below(8) as u16),
        26 => {
            let mut value = vec![0; [10, 3000][random.below(2) as usize]];
            random.fill(&mut value);
            Step::Xattr(pick(random, &files)?, (!random.one_in(3)).then_some(value))
        }
        27 | 28 => {
            Step::Fsync(if random.one_in(6) { pick(random, &dirs)? } else { pick(random, &files)? })
        }
        // Without a draw of its own, so that a seed makes the same draws as before.
        29 if h.states.len() % 3 == 2 => Step::Branch,
        29 => Step::SyncAll,
        _ => {
            let durability =
                if random.one_in(5) { Durability::Synced } else { Durability::Buffered };
            let change = |random: &mut Random| {
                let mut value = vec![0; random.below(3000) as usize];
                random.fill(&mut value);
                (format!("key{}", random.below(40)).into_bytes(), value)
            };
            Step::Keys((0..1 + random.below(3)).map(|_| change(random)).collect(), durability)
        }
    })
}
