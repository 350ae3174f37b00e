//! `MAXLEN` and `MINID`: these options remove the oldest entries of a stream.

use kvdb::Batch;

use super::ids::{Id, Wanted};
use super::state::{State, Stream, entry_id, entry_key};
use crate::commands::is;
use crate::failure::Failure;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Seen;

/// With `~`, entries are removed in whole hundreds of those that were ever added, because Redis has
/// nodes of this size.
const LUMP: u64 = 100;
/// Limit on the number of entries that `~` removes without a `LIMIT`.
const USUAL: u64 = 100 * LUMP;
/// Largest number of removed entries for which each gets its own tombstone.
const ONE_BY_ONE: u64 = 64;

#[derive(Clone, Copy, Debug)]
enum Kept {
    /// At most this many entries are kept.
    Most(u64),
    /// The entries from this ID on are kept.
    From(Id),
}

/// A request to remove entries.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    kept: Kept,
    roughly: bool,
    limit: Option<u64>,
}

/// The options before the ID of `XADD`, or all options of `XTRIM`.
pub struct Options {
    pub trim: Option<Trim>,
    pub only_old: bool,
    /// The ID, and the index of the fields after it.
    pub id: Option<(Wanted, usize)>,
}

/// Parses the number of an option, which must not be negative.
fn count(arg: &[u8], option: &str) -> Result<u64, Failure> {
    let number = integer(arg).ok_or(Failure::NOT_AN_INTEGER)?;
    let negative = |_| Failure::request(format!("The {option} argument must be >= 0."));
    u64::try_from(number).map_err(negative)
}

impl Options {
    pub fn parse(args: Arguments<'_>, adds: bool) -> Result<Options, Failure> {
        let (mut kept, mut roughly, mut limit) = (None, false, None);
        let mut options = Options { trim: None, only_old: false, id: None };
        let mut at = 2;
        while let Some(word) = args.get(at) {
            let left = args.len() - 1 - at;
            if adds && word == b"*" {
                options.id = Some((Wanted::Auto, at + 1));
                break;
            }
            let by_len = is(word, "maxlen");
            if (by_len || is(word, "minid")) && left > 0 {
                if kept.is_some() {
                    return Err(Failure::request(
                        "syntax error, MAXLEN and MINID options at the same time are not \
                         compatible",
                    ));
                }
                roughly = left > 1 && args.at(at + 1) == b"~";
                if left > 1 && matches!(args.at(at + 1), b"~" | b"=") {
                    at += 1;
                }
                let bound = args.at(at + 1);
                kept = Some(match by_len {
                    true => Kept::Most(count(bound, "MAXLEN")?),
                    false => Kept::From(Id::parse(bound, 0)?),
                });
                at += 1;
            } else if is(word, "limit") && left > 0 {
                limit = Some(count(args.at(at + 1), "LIMIT")?);
                at += 1;
            } else if adds && is(word, "nomkstream") {
                options.only_old = true;
            } else if adds {
                options.id = Some((Wanted::parse(word, 0)?, at + 1));
                break;
            } else {
                return Err(Failure::SYNTAX);
            }
            at += 1;
        }
        if limit.is_some_and(|limit| limit > 0) && kept.is_none() {
            return Err(Failure::request(
                "syntax error, LIMIT cannot be used without specifying a trimming strategy",
            ));
        }
        if !adds && kept.is_none() {
            return Err(Failure::request(
                "syntax error, XTRIM must be called with trimming strategy",
            ));
        }
        if limit.is_some() && !roughly {
            return Err(Failure::request(
                "syntax error, LIMIT cannot be used without the special ~ option",
            ));
        }
        options.trim = kept.map(|kept| Trim { kept, roughly, limit });
        Ok(options)
    }
}

impl Trim {
    /// Returns the number of entries to remove when `wanted` entries should be removed after
    /// `gone` earlier ones. `all` means that the stream has no other entries.
    fn rounded(&self, wanted: u64, gone: u64, all: bool) -> u64 {
        if !self.roughly {
            return wanted;
        }
        let most = match self.limit {
            None => USUAL,
            Some(0) => u64::MAX,
            Some(limit) => limit,
        };
        if all && wanted <= most {
            return wanted;
        }
        (gone.saturating_add(wanted.min(most)) / LUMP * LUMP).saturating_sub(gone)
    }

    /// Returns whether an entry that is being added is removed immediately.
    pub fn takes(&self, id: Id) -> bool {
        !self.roughly
            && match self.kept {
                Kept::Most(most) => most == 0,
                Kept::From(first) => id < first,
            }
    }

    /// Finds the first entry that stays if up to `most` entries are removed after `gone` earlier
    /// ones, and counts the entries before it. The ID is `None` if no entry stays. Returns `None`
    /// if no entry is removed.
    fn first_kept(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        stream: &Stream,
        (gone, most): (u64, u64),
    ) -> Result<Option<(u64, Option<Id>)>, Failure> {
        let below = match self.kept {
            Kept::Most(_) => Id::MAX,
            Kept::From(id) => id,
        };
        let (mut found, mut first, mut at_lump) = (0, None, None);
        stream.entries(s, seen, (Id::MIN, Id::MAX), false, |tuple| {
            let id = entry_id(&stream.of, tuple)?;
            if self.roughly && found > 0 && (gone + found).is_multiple_of(LUMP) {
                at_lump = Some((found, id));
            }
            if found == most || id >= below {
                first = Some(id);
                return Ok(false);
            }
            found += 1;
            Ok(true)
        })?;
        if !self.roughly {
            return Ok(Some((found, first)));
        }
        // If an entry stays, only whole hundreds before it are removed.
        Ok(match (at_lump, first) {
            (_, None) if found == stream.state.len => Some((found, None)),
            (Some((lumps, id)), _) => Some((lumps, Some(id))),
            (None, _) => None,
        })
    }

    /// Adds the removal of existing entries to the batch. The same batch is going to add `coming`
    /// new entries. Returns the number of removed entries.
    pub fn apply(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        stream: &mut Stream,
        coming: u64,
        batch: &mut Batch,
    ) -> Result<u64, Failure> {
        let wanted = match self.kept {
            Kept::Most(most) => stream.state.len.saturating_add(coming).saturating_sub(most),
            Kept::From(id) if id <= stream.state.first => 0,
            Kept::From(_) => stream.state.len,
        };
        let State { added, len, .. } = stream.state;
        let gone = added.saturating_sub(len);
        let most = self.rounded(wanted, gone, wanted == len && coming == 0).min(len);
        if most == 0 {
            return Ok(0);
        }
        if let (Kept::Most(_), true) = (self.kept, most == stream.state.len) {
            return Ok(clear(stream, batch));
        }
        let Some((found, first)) = self.first_kept(s, seen, stream, (gone, most))? else {
            return Ok(0);
        };
        let Some(first) = first else { return Ok(clear(stream, batch)) };
        let (of, old) = (stream.of, stream.state.first);
        if found <= ONE_BY_ONE {
            let last = first;
            stream.entries(s, seen, (old, last), false, |tuple| {
                let goes = entry_id(&of, tuple)? < first;
                if goes {
                    batch.delete(of.types, tuple.key.clone());
                }
                Ok(goes)
            })?;
        } else {
            batch.delete_range(of.types, entry_key(&of, old), entry_key(&of, first));
        }
        stream.state.first = first;
        stream.state.len -= found;
        stream.more -= found as i64;
        Ok(found)
    }
}

/// Removes all entries.
fn clear(stream: &mut Stream, batch: &mut Batch) -> u64 {
    let (of, found) = (stream.of, stream.state.len);
    let end = [&entry_key(&of, stream.state.last)[..], b"\0"].concat();
    batch.delete_range(of.types, entry_key(&of, stream.state.first), end);
    (stream.state.first, stream.state.len) = (Id::MIN, 0);
    stream.more -= found as i64;
    found
}
