//! Losses that a repair could not undo, listed in the store as long as they last.
//!
//! A page whose content is lost has a special value (`layout::LOST_PAGE`), which is copied wherever
//! a page is copied: into copies, snapshots and streams. Reading it fails. A write of the whole
//! page, a truncation or a removal replaces it.

use kvdb::{Kvdb, View};

use crate::attr::Ino;
use crate::error::Result;
use crate::fs::Fs;
use crate::layout::{self, Layout};

/// A loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The time at which the repair noted it, in seconds since 1970.
    pub time: u64,
    /// A description in words, such as `bytes 4096..8192 of /a`.
    pub what: String,
    pub(crate) pages: Option<Pages>,
}

/// Consecutive pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub ino: Ino,
    pub from: u64,
    pub to: u64,
}

impl Loss {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let pages = self.pages.unwrap_or(Pages { ino: 0, from: 0, to: 0 });
        let mut value = Vec::with_capacity(32 + self.what.len());
        for number in [self.time, pages.ino, pages.from, pages.to] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(self.what.as_bytes());
        value
    }

    /// Decodes a loss, or returns `None` if the value is malformed.
    pub(crate) fn decode(value: &[u8]) -> Option<Loss> {
        let (numbers, what) = value.split_at_checked(32)?;
        let mut numbers =
            numbers.chunks_exact(8).map(|number| number.try_into().map_or(0, u64::from_le_bytes));
        let (time, ino) = (numbers.next()?, numbers.next()?);
        let (from, to) = (numbers.next()?, numbers.next()?);
        let what = String::from_utf8_lossy(what).into_owned();
        Some(Loss { time, what, pages: (ino != 0).then_some(Pages { ino, from, to }) })
    }
}

/// Returns the losses in a store that a repair has noted. Pages that were written again, or were
/// removed with their file, are not lost any more.
pub fn losses(db: &Kvdb) -> Result<Vec<Loss>> {
    match Layout::find(db) {
        Some(layout) => of_state(&db.view(), layout),
        None => Ok(Vec::new()),
    }
}

impl Fs {
    /// Like [`losses`], for the committed state of this view.
    pub fn losses(&self) -> Result<Vec<Loss>> {
        of_state(&self.core.scope.view()?, self.core.layout)
    }
}

fn of_state(view: &View, layout: Layout) -> Result<Vec<Loss>> {
    let (start, end) = layout::loss_range();
    let mut cursor = view.cursor(layout.imap, &start, &end)?;
    let mut all = Vec::new();
    while let Some(tuple) = cursor.next()? {
        let Some(loss) = Loss::decode(&tuple.value()?) else { continue };
        let there = match loss.pages {
            Some(pages) => are_lost(view, layout, pages)?,
            None => true,
        };
        if there {
            all.push(loss);
        }
    }
    Ok(all)
}

/// Returns whether one of the pages is still lost.
fn are_lost(view: &View, layout: Layout, Pages { ino, from, to }: Pages) -> Result<bool> {
    let (start, end) = (layout::page_key(ino, from), layout::page_key(ino, to));
    let mut cursor = view.cursor(layout.dmap, &start, &end)?;
    while let Some(tuple) = cursor.next()? {
        if layout::is_lost_page(tuple.value_len() as u64) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_what_it_was_and_any_bytes_are_taken() {
        let pages = Some(Pages { ino: 7, from: 1, to: 9 });
        for loss in [
            Loss { time: 1_700_000_000, what: "bytes 1..2 of /a".into(), pages },
            Loss { time: 0, what: String::new(), pages: None },
        ] {
            assert_eq!(Loss::decode(&loss.encode()), Some(loss));
        }
        for len in 0..40 {
            let decoded = Loss::decode(&vec![0xff; len]);
            assert_eq!(decoded.is_some(), len >= 32);
        }
    }
}
