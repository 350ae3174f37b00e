//! Walks over a stretch of a dictionary, and answers of a length that is not known beforehand.
//!
//! An array's length stands in front of it. An answer that turns out to be short is gathered and
//! gets its header when it is whole. Of a long one the rest is counted first, by keys only, and
//! then read again from the same view while it is sent: the view is one state of the store, so both
//! walks see the same tuples, and memory stays bounded however long the answer is.

use kvdb::{Cursor, DictionaryId, Tuple, View};

use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::output::Output;
use crate::session::Session;

/// Which tuples: those of `[start, end)` (`end` empty: to the end) that match, at most `limit` of
/// them.
#[derive(Clone)]
pub struct Stretch {
    pub dict: DictionaryId,
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    /// From the last to the first.
    pub backward: bool,
    pub limit: u64,
    pub pattern: Option<Vec<u8>>,
}

impl Stretch {
    /// Everything whose key matches `pattern`; its literal start bounds what is read.
    pub fn matching(dict: DictionaryId, pattern: &[u8]) -> Self {
        let (prefix, only_prefix) = glob::literal_prefix(pattern);
        let end = glob::prefix_end(&prefix);
        let pattern = (!only_prefix).then(|| pattern.to_vec());
        Stretch { dict, start: prefix, end, backward: false, limit: u64::MAX, pattern }
    }

    pub fn walk<'s>(&'s self, view: &View, session: &'s Session) -> Result<Walk<'s>, Failure> {
        let mut cursor = view.cursor(self.dict, &self.start, &self.end)?;
        if self.backward {
            cursor.seek_to_end()?;
        }
        Ok(Walk { stretch: self, session, cursor, left: self.limit, steps: 0 })
    }

    /// What is left of the stretch behind `key`, with `done` tuples taken.
    fn behind(&self, key: &[u8], done: u64) -> Self {
        let mut rest = Stretch { limit: self.limit - done, ..self.clone() };
        if self.backward {
            rest.end = key.to_vec();
        } else {
            rest.start = [key, b"\0"].concat();
        }
        rest
    }
}

pub struct Walk<'s> {
    stretch: &'s Stretch,
    session: &'s Session,
    cursor: Cursor,
    left: u64,
    steps: u32,
}

impl Walk<'_> {
    pub fn step(&mut self) -> Result<Option<Tuple>, Failure> {
        while self.left > 0 {
            self.steps = self.steps.wrapping_add(1);
            if self.steps.is_multiple_of(256) {
                self.session.check_stopping()?;
            }
            let tuple =
                if self.stretch.backward { self.cursor.prev()? } else { self.cursor.next()? };
            let Some(tuple) = tuple else { break };
            if self.stretch.pattern.as_ref().is_none_or(|p| glob::matches(p, &tuple.key)) {
                self.left -= 1;
                return Ok(Some(tuple));
            }
        }
        self.left = 0;
        Ok(None)
    }
}

/// Answers with the array of what `write` makes of each tuple: `each` replies.
pub fn answer(
    s: &Session,
    stretch: &Stretch,
    out: &mut Output,
    each: usize,
    write: impl Fn(&Tuple, &mut Output) -> Outcome,
) -> Outcome {
    let position = out.position();
    let result = write_what_fits(s, stretch, out, each, &write);
    if result.is_err() {
        out.rewind(position);
    }
    let Some((view, rest, mut owed)) = result? else { return Ok(()) };
    // From here on the header is out: whatever fails, as many replies as it says must follow.
    let mut stream = || -> Outcome {
        let mut walk = rest.walk(&view, s)?;
        while owed > 0
            && !out.is_broken()
            && let Some(tuple) = walk.step()?
        {
            write(&tuple, out)?;
            owed -= 1;
            out.send_if_large();
        }
        Ok(())
    };
    if let Err(failure) = stream() {
        let text = failure.to_string();
        for _ in 0..owed * each as u64 {
            out.error(&text);
            out.send_if_large();
        }
    }
    Ok(())
}

/// Writes the header and as much as fits; gives what is left, and how many tuples that is, where
/// not all of it does.
fn write_what_fits(
    s: &Session,
    stretch: &Stretch,
    out: &mut Output,
    each: usize,
    write: impl Fn(&Tuple, &mut Output) -> Outcome,
) -> Result<Option<(View, Stretch, u64)>, Failure> {
    let view = s.view_of(stretch.dict, &stretch.start, &stretch.end)?;
    let position = out.position();
    let room = s.shared.limits.reply / 4;
    let mut walk = stretch.walk(&view, s)?;
    let (mut written, mut last) = (0u64, None);
    while out.position() - position < room {
        let Some(tuple) = walk.step()? else {
            out.insert_array_header(position, written as usize * each);
            return Ok(None);
        };
        write(&tuple, out)?;
        written += 1;
        last = Some(tuple.key);
    }
    let mut owed = 0;
    while walk.step()?.is_some() {
        owed += 1;
    }
    out.insert_array_header(position, (written + owed) as usize * each);
    drop(walk);
    let rest = stretch.behind(last.as_deref().unwrap_or_default(), written);
    Ok((owed > 0).then_some((view, rest, owed)))
}
