//! Transactions that a person reviews before their commit: of a store that is mounted here, or of
//! a server.

use std::path::Path;
use std::sync::Arc;

use kvdb_server::Reply;

use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted::Mounted;
use crate::support::review::changes::{Changes, Choice, LARGEST, ReadBefore, Wanted};
use crate::support::review::proposed::odd;
use crate::support::serving::guest;
use crate::support::terminal::output::Outcome;

/// An open transaction.
pub trait Reviewed {
    /// Returns what it has changed.
    fn changes(&mut self, wanted: Wanted) -> Outcome<Changes>;

    /// Takes choices out of it, as if those changes had never been made.
    fn revert(&mut self, changes: &Changes, choices: &[Choice]) -> Outcome;

    /// Returns the process that serves its files, if that was started for the review.
    fn served_by(&self) -> Option<i32> {
        None
    }
}

/// A transaction of a store that is mounted here.
pub struct OfMount<'a> {
    pub mounted: &'a mut Mounted,
    pub id: u64,
}

impl Reviewed for OfMount<'_> {
    fn changes(&mut self, wanted: Wanted) -> Outcome<Changes> {
        Changes::of(self.mounted, self.id, wanted)
    }

    fn revert(&mut self, changes: &Changes, choices: &[Choice]) -> Outcome {
        changes.revert(self.mounted, self.id, choices)
    }
}

/// Returns what a transaction of a server has changed that is mounted on a directory.
pub fn changes_of_server(record: &Record, dir: &Path, wanted: Wanted) -> Outcome<Changes> {
    let shown = guest::shown_by(record);
    let top = shown.as_ref().map_or(Path::new(""), |shown| shown.path());
    // Read the state first: a change during the listing then makes it differ.
    let Reply::Bulk(state) = guest::review(record, &[b"state"])? else { return Err(odd()) };
    let files = match wanted.all {
        true => guest::review(record, &[b"files"])?,
        false => guest::review(record, &[b"files", b"collapsed"])?,
    };
    let keys = match wanted.fields {
        true => guest::review(record, &[b"changes", b"fields"])?,
        false => guest::review(record, &[b"changes"])?,
    };
    let record = record.clone();
    let before: ReadBefore = Arc::new(move |path: &[u8]| {
        let most = LARGEST.to_string();
        match guest::review(&record, &[b"read", path, most.as_bytes()]) {
            Ok(Reply::Bulk(content)) => Some(content),
            _ => None,
        }
    });
    let state = String::from_utf8_lossy(&state).into_owned();
    Changes::of_server(state, (files, keys), (dir, top), before)
}
