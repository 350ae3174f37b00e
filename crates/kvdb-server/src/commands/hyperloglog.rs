//! `PFADD`, `PFCOUNT`, `PFMERGE`, `PFDEBUG`: strings that estimate the number of distinct
//! elements added to them (`sketch`).

use kvdb::Batch;

use super::is;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Live;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;
use crate::session::seen::Seen;

mod sketch;

use sketch::{Broken, DENSE, Registers, Sketch};

impl From<Broken> for Failure {
    fn from(_: Broken) -> Failure {
        Failure::coded(ErrorCode::InvalidObject, "Corrupted HLL object detected")
    }
}

/// Parses the string of a key as a HyperLogLog.
fn parse(bytes: &[u8]) -> Result<Sketch, Failure> {
    let wrong =
        |_| Failure::coded(ErrorCode::WrongType, "Key is not a valid HyperLogLog string value.");
    Sketch::new(bytes).map_err(wrong)
}

fn read(seen: &Seen<'_>, key: &[u8]) -> Result<Option<Sketch>, Failure> {
    seen.string(key)?.1.map(|bytes| parse(&bytes)).transpose()
}

/// Replaces the HyperLogLog of a key by the result of `change`, unless `change` returns `false`.
/// The key keeps its deadline.
fn change(
    s: &Session,
    keys: &[&[u8]],
    mut change: impl FnMut(&Seen<'_>, &mut Sketch, bool) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let key = keys[0];
    s.check_key(key)?;
    s.change(s.writable_for(DENSE)?, keys.iter().copied(), |seen, batch| {
        let (live, old) = seen.string(key)?;
        let mut sketch = old.as_deref().map(parse).transpose()?.unwrap_or_default();
        let changed = change(seen, &mut sketch, old.is_none())?;
        if changed {
            sketch.touch();
            put(seen, key, &live, sketch, batch)?;
            seen.event(Classes::STRING, "pfadd", key);
        }
        Ok(changed)
    })
}

/// Stores a HyperLogLog under a key. The key keeps its deadline.
fn put(seen: &Seen<'_>, key: &[u8], live: &Live, sketch: Sketch, batch: &mut Batch) -> Outcome {
    let deadline = live.deadline().filter(|_| live.exists());
    let live = seen.put_string(key, live, sketch.into_bytes(), batch)?;
    if deadline.is_some() {
        seen.set_deadline(key, &live, deadline, batch);
    }
    Ok(())
}

/// Executes `PFADD key [element ...]`.
pub fn pfadd(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let changed = change(s, &[args.at(1)], |_, sketch, new| {
        let mut changed = new;
        for element in args.from(2) {
            changed |= sketch.add(element)?;
        }
        Ok(changed)
    })?;
    out.integer(i64::from(changed));
    Ok(())
}

/// Executes `PFMERGE destination [source ...]`.
pub fn pfmerge(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let keys: Vec<&[u8]> = args.from(1).collect();
    change(s, &keys, |seen, sketch, _| {
        let mut registers = Registers::default();
        let mut dense = sketch.is_dense();
        registers.merge(sketch)?;
        for key in args.from(2) {
            if let Some(other) = read(seen, key)? {
                dense |= other.is_dense();
                registers.merge(&other)?;
            }
        }
        if dense {
            sketch.make_dense()?;
        }
        sketch.raise_all(&registers)?;
        Ok(true)
    })?;
    out.ok();
    Ok(())
}

/// `PFCOUNT key ...`: replies with the number of distinct elements of all keys together. The
/// command only reads: it does not cache the number in the string, so that transactions that
/// count do not conflict.
pub fn pfcount(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let count = match args.len() {
        2 => read(&seen, args.at(1))?.map_or(Ok(0), |sketch| sketch.count())?,
        _ => {
            let mut registers = Registers::default();
            for key in args.from(1) {
                if let Some(sketch) = read(&seen, key)? {
                    registers.merge(&sketch)?;
                }
            }
            registers.count()
        }
    };
    out.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// `PFDEBUG ENCODING|DECODE|GETREG|TODENSE key`: shows how the string of a key stores its
/// registers. In contrast to Redis, `GETREG` does not change the string.
pub fn pfdebug(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (form, key) = (args.at(1), args.at(2));
    let missing = || Failure::request("The specified key does not exist");
    let sketch = read(&s.see()?, key)?.ok_or_else(missing)?;
    match form {
        f if is(f, "encoding") => out.status(if sketch.is_dense() { "dense" } else { "sparse" }),
        f if is(f, "decode") => {
            let runs = sketch.runs().ok_or(Failure::request("HLL encoding is not sparse"))?;
            out.bulk(runs.as_bytes());
        }
        f if is(f, "getreg") => {
            let mut registers = Registers::default();
            registers.merge(&sketch)?;
            let values = registers.values();
            out.array(values.len());
            values.iter().for_each(|value| out.integer(i64::from(*value)));
        }
        f if is(f, "todense") => {
            let converted = s.change(s.writable_for(DENSE)?, [key], |seen, batch| {
                let (live, bytes) = seen.string(key)?;
                let mut sketch = parse(&bytes.ok_or_else(missing)?)?;
                if sketch.is_dense() {
                    return Ok(false);
                }
                sketch.make_dense()?;
                put(seen, key, &live, sketch, batch)?;
                Ok(true)
            })?;
            out.integer(i64::from(converted));
        }
        f => {
            let given = String::from_utf8_lossy(&f[..f.len().min(128)]);
            return Err(Failure::request(format!("Unknown PFDEBUG subcommand '{given}'")));
        }
    }
    Ok(())
}
