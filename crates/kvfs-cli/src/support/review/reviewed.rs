//! The transaction of a server that a person reviews before its commit.

use std::path::Path;
use std::sync::Arc;

use kvdb_server::Reply;

use crate::support::mounts::daemons::Record;
use crate::support::review::changes::{Changes, LARGEST, ReadBefore, Wanted};
use crate::support::review::proposed::odd;
use crate::support::serving::guest;
use crate::support::terminal::output::Outcome;

/// A transaction of a server, mounted on a directory.
pub struct OfServer<'a> {
    pub record: &'a Record,
    pub dir: &'a Path,
}

impl OfServer<'_> {
    fn ask(&self, words: &[&[u8]]) -> Outcome<Reply> {
        guest::review(self.record, words)
    }

    /// Returns what the transaction has changed.
    pub fn changes(&mut self, wanted: Wanted) -> Outcome<Changes> {
        // Read the state first: a change during the listing then makes it differ.
        let Reply::Bulk(state) = self.ask(&[b"state"])? else { return Err(odd()) };
        let files = match wanted.all {
            true => self.ask(&[b"files"])?,
            false => self.ask(&[b"files", b"collapsed"])?,
        };
        let keys = match wanted.fields {
            true => self.ask(&[b"changes", b"fields"])?,
            false => self.ask(&[b"changes"])?,
        };
        let record = self.record.clone();
        let before: ReadBefore = Arc::new(move |path: &[u8]| {
            let most = LARGEST.to_string();
            match guest::review(&record, &[b"read", path, most.as_bytes()]) {
                Ok(Reply::Bulk(content)) => Some(content),
                _ => None,
            }
        });
        let state = String::from_utf8_lossy(&state).into_owned();
        Changes::of_server(state, (files, keys), self.dir, before)
    }
}
