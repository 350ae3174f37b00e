//! Shrinks a failing history: leaves out parts of it as long as the rest fails in the same way.

use std::time::{Duration, Instant};

use crate::bench::{Bench, Difference};
use crate::call::Step;
use crate::mounted::Outcome;

/// The smallest history found, and how it fails.
pub fn shrink(
    bench: &mut Bench,
    steps: &[Step],
    first: Difference,
    time: Duration,
) -> Outcome<(Vec<Step>, Difference)> {
    let end = Instant::now() + time;
    let kind = word(&first);
    let mut best = (steps[..steps.len().min(first.at + 1)].to_vec(), first);
    let mut tries = |candidate: &[Step]| -> Outcome<Option<Difference>> {
        // Failures that depend on time are tried again.
        for _ in 0..2 {
            if let Some(difference) =
                bench.run(candidate)?.filter(|difference| word(difference) == kind)
            {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    };
    match tries(&best.0)? {
        Some(difference) => best.1 = difference,
        None => match tries(steps)? {
            Some(difference) => best = (steps.to_vec(), difference),
            None => return Ok((steps.to_vec(), best.1)),
        },
    }
    let mut part = best.0.len() / 2;
    while part > 0 && Instant::now() < end {
        let mut at = 0;
        let mut smaller = false;
        while at < best.0.len() && Instant::now() < end {
            let mut candidate = best.0.clone();
            candidate.drain(at..(at + part).min(best.0.len()));
            match tries(&candidate)? {
                Some(difference) => {
                    candidate.truncate(difference.at + 1);
                    best = (candidate, difference);
                    smaller = true;
                }
                None => at += part,
            }
        }
        // With single steps it continues until none can be left out.
        if part > 1 || !smaller {
            part /= 2;
        }
    }
    let mut alone = best.0.clone();
    alone.iter_mut().for_each(|step| step.worker = 0);
    if let Some(difference) = tries(&alone)? {
        best = (alone, difference);
    }
    Ok(best)
}

/// The word of the call that differs.
fn word(difference: &Difference) -> String {
    let mut words = difference.what.split([' ', '~']).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    if first.parse::<u8>().is_ok() {
        words.next().unwrap_or_default().to_owned()
    } else {
        first.to_owned()
    }
}
