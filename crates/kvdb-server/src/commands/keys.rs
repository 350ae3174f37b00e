//! Commands on keys as such.

use std::collections::HashSet;

use bytes::Bytes;
use kvdb::Batch;

use super::strings::len;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

pub fn del(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut deleted = 0;
    if let Some(dict) = s.existing()? {
        let keys: HashSet<&[u8]> = args.from(1).collect();
        s.amend(dict, keys.iter().copied(), |view| {
            deleted = 0;
            let mut batch = Batch::new();
            for key in &keys {
                if view.value_len(dict, key)?.is_some() {
                    batch.delete(dict, Bytes::copy_from_slice(key));
                    deleted += 1;
                }
            }
            Ok(batch)
        })?;
    }
    out.integer(deleted);
    Ok(())
}

pub fn exists(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut found = 0;
    for key in args.from(1) {
        found += i64::from(len(s, key)?.is_some());
    }
    out.integer(found);
    Ok(())
}

pub fn kind(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let found = len(s, args.at(1))?.is_some();
    out.status(if found { "string" } else { "none" });
    Ok(())
}

/// -1: the key has no time to live; -2: there is no such key.
pub fn ttl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let found = len(s, args.at(1))?.is_some();
    out.integer(if found { -1 } else { -2 });
    Ok(())
}

/// There is never a time to live to take away.
pub fn persist(_: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.integer(0);
    Ok(())
}

pub fn expiry(_: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    Err(Failure::EXPIRY)
}
