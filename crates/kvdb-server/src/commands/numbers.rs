//! Commands for counters, which are values that are decimal numbers.

use bytes::Bytes;
use kvdb::{Batch, Update};

use super::long_double::LongDouble;
use super::strings::rewrite;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Keyspace, head_key};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Seen;

pub fn incr(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    add(s, args.at(1), 1, out)
}

pub fn decr(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    add(s, args.at(1), -1, out)
}

pub fn incrby(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    add(s, args.at(1), by, out)
}

pub fn decrby(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let by = by.checked_neg().ok_or(Failure::request("decrement would overflow"))?;
    add(s, args.at(1), by, out)
}

fn add(s: &Session, key: &[u8], by: i64, out: &mut Output) -> Outcome {
    s.check_key(key)?;
    let joined = s.is_joined();
    // The update reads the types dictionary, so the commit detects that others have changed the
    // type of the key.
    let space = if joined { s.typed()? } else { s.writable()? };
    // Two transactions that add to one key can both commit. `EXEC` replies with sums that must
    // still be valid when it commits, so its additions do not commute.
    let commutes = joined && keeps_its_type(s, space, key)?;
    let change = |seen: &Seen<'_>, batch: &mut Batch| {
        let (live, value) = seen.number(key, Failure::NOT_AN_INTEGER)?;
        let old = value.as_deref().map_or(Some(0), integer).ok_or(Failure::NOT_AN_INTEGER)?;
        let sum =
            old.checked_add(by).ok_or(Failure::request("increment or decrement would overflow"))?;
        // An expired key still has a tuple, which must be replaced instead of being added to.
        match commutes && (live.exists() || live.head.is_none()) {
            true => batch.update(space.strings, Bytes::copy_from_slice(key), Update::add(by)),
            false => seen.change_string(key, &live, sum.to_string(), batch)?,
        }
        seen.event(Classes::STRING, "incrby", key);
        Ok(sum)
    };
    let sum = match joined {
        true => s.change_commuting(space, [key], change)?,
        false => s.change(space, [key], change)?,
    };
    out.integer(sum);
    Ok(())
}

/// Makes the commit of the joined transaction a conflict if others store a collection or a long
/// string under the key, or change its deadline. An addition commutes with a deletion of the
/// string, and would leave a counter in addition to the collection. Returns `false` if the
/// transaction cannot record this dependency: a durable transaction keeps no reads, and any other
/// keeps a limited number.
fn keeps_its_type(s: &Session, space: Keyspace, key: &[u8]) -> Result<bool, Failure> {
    let (Some((transaction, _)), Some(types)) = (&s.joined, space.types) else { return Ok(false) };
    if !transaction.checks_conflicts() {
        return Ok(true);
    }
    match transaction.read_conflict_key(types, &head_key(key)) {
        Ok(()) => Ok(true),
        Err(kvdb::Error::Invalid(_) | kvdb::Error::Limit(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub fn incrbyfloat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = LongDouble::parse(args.at(2)).ok_or(Failure::NOT_A_FLOAT)?;
    let sum = rewrite(
        s,
        args.at(1),
        || Failure::NOT_A_FLOAT,
        "incrbyfloat",
        |old| {
            let old = old.map_or(Some(LongDouble::ZERO), LongDouble::parse);
            let sum = old.ok_or(Failure::NOT_A_FLOAT)?.plus(by);
            let sum = sum.ok_or(Failure::request("increment would produce NaN or Infinity"))?;
            Ok((Some(sum.text().into_bytes()), sum.text()))
        },
    )?;
    out.bulk(sum.as_bytes());
    Ok(())
}
