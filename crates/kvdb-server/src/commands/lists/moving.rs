//! Moves elements from an end of a list to an end of another list or of the same one.

use bytes::Bytes;
use kvdb::Batch;

use super::ends::{End, at_bound, number, outermost, place, set_bound};
use super::{nth, push_all, take, value_at};
use crate::commands::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

/// Returns the end of a list that a word of `LMOVE` or `LMPOP` names.
pub fn end_of(word: &[u8]) -> Result<End, Failure> {
    match word {
        o if is(o, "left") => Ok(End::Left),
        o if is(o, "right") => Ok(End::Right),
        _ => Err(Failure::SYNTAX),
    }
}

/// Executes `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`.
pub fn lmove(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (from, to) = (end_of(args.at(3))?, end_of(args.at(4))?);
    carry(s, args, from, to, out)
}

pub fn rpoplpush(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    carry(s, args, End::Right, End::Left, out)
}

fn carry(s: &Session, args: Arguments<'_>, from: End, to: End, out: &mut Output) -> Outcome {
    s.check_key(args.at(2))?;
    let carried = carry_over(s, args.at(1), args.at(2), from, to)?;
    out.value(carried.as_deref());
    Ok(())
}

/// Moves an element from an end of a list to an end of another list or of the same one. Returns
/// `None` if the source has no element.
pub fn carry_over(
    s: &Session,
    source: &[u8],
    target: &[u8],
    from: End,
    to: End,
) -> Result<Option<Bytes>, Failure> {
    if s.existing()?.is_none() {
        return Ok(None);
    }
    s.change(s.typed()?, [source, target], |seen, batch| {
        let Some(of) = seen.collection(source, Kind::List)? else { return Ok(None) };
        if source == target {
            return rotate(s, seen, source, &of, from, to, batch);
        }
        // If the target has another type, the push fails, and nothing is committed.
        let value = take(s, seen, source, &of, from, 1, batch)?.pop();
        if let Some(value) = &value {
            push_all(s, seen, target, to, [&value[..]].into_iter(), batch)?;
        }
        Ok(value)
    })
}

/// Moves an element from an end of a list to an end of the same list.
fn rotate(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    of: &Collection,
    from: End,
    to: End,
    batch: &mut Batch,
) -> Result<Option<Bytes>, Failure> {
    let (at, value) = match at_bound(seen, of, from)? {
        Some(found) => found,
        None => {
            let index = if from == End::Left { 0 } else { -1 };
            let Some(place_of) = nth(s, seen, of, index)? else { return Ok(None) };
            (number(&place_of)?, value_at(seen, of, &place_of)?)
        }
    };
    seen.event(Classes::LIST, to.pushed(), key);
    seen.event(Classes::LIST, from.popped(), key);
    if from != to && of.live.count > 1 {
        let beyond = to.beyond(outermost(s, seen, of, to)?);
        set_bound(of, from, to.beyond(at), batch);
        set_bound(of, to, beyond, batch);
        batch.delete(of.types, place(of, at));
        batch.put(of.types, place(of, beyond), value.clone());
    }
    Ok(Some(value))
}
