//! The reads after a load: gets, missing keys, full scans and short ranges. Every value is compared
//! with the one that was written.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::engines::Engine;
use crate::histogram::Histogram;
use crate::keys::{Dice, Values};
use crate::spec::{Kind, Load, Spec};

/// Tuples of a short range.
const SHORT: u64 = 100;

/// The counts of a read phase.
#[derive(Default)]
pub struct Seen {
    pub ops: u64,
    pub bytes: u64,
    pub misses: u64,
    pub latencies: Histogram,
    pub elapsed: Duration,
}

/// Runs `ops` operations of `kind` (a scan counts one operation for each tuple), for at most
/// `limit`.
pub fn run(
    engine: &dyn Engine,
    spec: &Spec,
    kind: Kind,
    ops: u64,
    limit: Duration,
    seed: u64,
) -> Result<Seen> {
    let (shape, count, first) = (spec.shape(), spec.count(), spec.first_live());
    let values = Values::new(spec.settings.value_bytes as usize);
    let right = |i: u64, v: &[u8]| v == values.of(i, 0) || v == values.of(i, 1);
    let mut dice = Dice::new(seed);
    let mut seen = Seen::default();
    let begun = Instant::now();
    if kind == Kind::Scan {
        let mut last = Vec::new();
        let mut bytes = 0;
        let mut disorder = false;
        seen.ops = engine.scan(b"", u64::MAX >> 1, &mut |k, v| {
            bytes += (k.len() + v.len()) as u64;
            disorder |= !last.is_empty() && *last >= *k;
            last.clear();
            last.extend_from_slice(k);
        })?;
        (seen.bytes, seen.elapsed) = (bytes, begun.elapsed());
        if disorder {
            bail!("{}: the scan is not in order", spec.engine);
        }
        let grown = matches!(spec.load, Load::YcsbD | Load::YcsbE);
        if seen.ops != count - first && !(grown && seen.ops > count) {
            bail!("{}: the scan saw {} tuples, not {}", spec.engine, seen.ops, count - first);
        }
        return Ok(seen);
    }
    let mut before = begun;
    while seen.ops < ops && before.duration_since(begun) < limit {
        let i = first + dice.below(count - first);
        let mut wrong = false;
        match kind {
            Kind::Get => {
                let mut bytes = 0;
                let found = engine.get(&shape.key(i), &mut |v| {
                    bytes = v.len() as u64;
                    wrong = !right(i, v);
                })?;
                seen.bytes += bytes;
                seen.misses += u64::from(!found);
            }
            Kind::Missing => {
                let found = engine.get(&shape.missing(i, count), &mut |_| {})?;
                wrong = found;
                seen.misses += 1;
            }
            Kind::Short | Kind::Scan => {
                let mut bytes = 0;
                engine
                    .scan(&shape.key(i), SHORT, &mut |k, v| bytes += (k.len() + v.len()) as u64)?;
                seen.bytes += bytes;
            }
        }
        if wrong {
            bail!("{}: tuple {i} is not what was written", spec.engine);
        }
        let now = Instant::now();
        seen.latencies.record(now.duration_since(before).as_nanos() as u64);
        before = now;
        seen.ops += 1;
    }
    seen.elapsed = before.duration_since(begun);
    if kind == Kind::Get && seen.misses > 0 {
        bail!("{}: {} of {} tuples are missing", spec.engine, seen.misses, seen.ops);
    }
    Ok(seen)
}
