//! Lists the losses that a repair could not undo. The store keeps the list while the losses last.
//!
//! A page whose content is lost has a special value (`layout::LOST_PAGE`), which is copied together
//! with the page into copies, snapshots and streams. Reading such a page fails. A write of the
//! whole page, a truncation or a removal replaces it. The list belongs to the main branch, and a
//! loss stays in the list while a snapshot or a clone still has a lost page.
//!
//! Pages that were lost together with the block that led to them are marked in all states that
//! shared the block, if the nodes of these states say which pages are lost. If the nodes are lost,
//! too, or the pages are too many, only the main branch can be marked, because snapshots do not
//! change. Such a loss has a second note for the states that existed then.

use std::collections::BTreeMap;

use kvdb::{Kvdb, Scope, View};

use crate::attr::{Ino, ROOT};
use crate::error::Result;
use crate::fs::Fs;
use crate::layout::{self, Layout};

/// Data that a repair could not restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The time at which the repair recorded the loss, in seconds since 1970.
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

impl Pages {
    /// Returns a value for pages that read as zeros in the clones, and in the snapshots of a commit
    /// up to `newest`. Its inode is the root, which has no pages.
    pub fn unmarked_before(newest: u64) -> Pages {
        Pages { ino: ROOT, from: 0, to: newest }
    }
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

/// Returns the losses in a store that a repair has recorded. Pages that were written again, or were
/// removed with their file, in the main branch, in all clones and in all snapshots, are not lost
/// any more.
pub fn losses(db: &Kvdb) -> Result<Vec<Loss>> {
    let Some(layout) = Layout::find(db) else { return Ok(Vec::new()) };
    let (branches, labels) = (db.branches(), db.snapshot_labels());
    let main = db.view();
    let mut search = Search::default();
    for (number, loss) in noted(&main, layout)?.into_iter().enumerate() {
        match loss.pages {
            Some(pages) if pages.ino == ROOT => {
                if !branches.is_empty() || labels.iter().any(|label| label.seq <= pages.to) {
                    search.lost.insert(number, loss);
                }
            }
            _ => drop(search.left.insert(number, loss)),
        }
    }
    search.look(&main, layout, "")?;
    for branch in &branches {
        if let Some(layout) = Layout::find_in(db, &branch.name) {
            search.look(&db.view(), layout, &format!(", in clone {}", branch.name))?;
        }
    }
    for label in labels {
        if search.left.is_empty() {
            break;
        }
        // A branch that was dropped in the meantime has no losses any more.
        let Ok(view) = db.open_snapshot(&label.name) else { continue };
        if let Some(layout) = Layout::of_state(&view) {
            search.look(&view, layout, &format!(", in snapshot {}", label.name))?;
        }
    }
    Ok(search.lost.into_values().collect())
}

impl Fs {
    /// Returns losses like [`losses`]. For a clone, a snapshot or a transaction, the result is the
    /// losses in its committed state.
    pub fn losses(&self) -> Result<Vec<Loss>> {
        let layout = self.core.layout;
        if let Scope::Mainline(db) = &self.core.scope
            && Layout::find(db) == Some(layout)
        {
            return losses(db);
        }
        let view = self.core.scope.view()?;
        let mut search = Search::default();
        search.left.extend(noted(&view, layout)?.into_iter().enumerate());
        search.look(&view, layout, "")?;
        Ok(search.lost.into_values().collect())
    }
}

/// Searches states for losses, which are identified by the numbers of their notes.
#[derive(Default)]
struct Search {
    /// The losses that were not found in any state so far.
    left: BTreeMap<usize, Loss>,
    lost: BTreeMap<usize, Loss>,
}

impl Search {
    /// Finds those losses that a state has, and adds `of` to their description.
    fn look(&mut self, view: &View, layout: Layout, of: &str) -> Result<()> {
        for (number, mut loss) in std::mem::take(&mut self.left) {
            let has_it = match loss.pages {
                Some(pages) => are_lost(view, layout, pages)?,
                None => true,
            };
            if has_it {
                loss.what.push_str(of);
                self.lost.insert(number, loss);
            } else {
                self.left.insert(number, loss);
            }
        }
        Ok(())
    }
}

/// Returns all losses that a state has recorded, including those that are not lost any more.
fn noted(view: &View, layout: Layout) -> Result<Vec<Loss>> {
    let (start, end) = layout::loss_range();
    let mut cursor = view.cursor(layout.imap, &start, &end)?;
    let mut all = Vec::new();
    while let Some(tuple) = cursor.next()? {
        all.extend(Loss::decode(&tuple.value()?));
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
    use std::sync::Arc;

    use env::Simulated;
    use kvdb::{Batch, Durability};

    use super::*;
    use crate::FsOptions;

    #[test]
    fn pages_without_a_mark_are_lost_while_a_clone_or_a_snapshot_of_that_time_is_there() {
        let db = Kvdb::in_memory();
        let env = Arc::new(Simulated::new(1));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
        db.snapshot("s").expect("a snapshot");
        let newest = db.snapshot_label("s").expect("its label").seq;
        let pages = Some(Pages::unmarked_before(newest));
        let loss = Loss { time: 1, what: "bytes 1..2 of /a".into(), pages };
        let mut note = Batch::new();
        note.put(fs.core.layout.imap, layout::loss_key(0), loss.encode());
        db.commit(note, Durability::Buffered).expect("noted");
        db.snapshot("later").expect("a snapshot");
        let listed = || losses(&db).expect("readable");
        assert_eq!(listed(), std::slice::from_ref(&loss));
        db.clone_snapshot("s", "c").expect("a clone");
        db.drop_snapshot("s").expect("dropped");
        assert_eq!(listed(), std::slice::from_ref(&loss));
        db.drop_branch("c").expect("dropped");
        assert!(listed().is_empty(), "the later snapshot has marks");
    }

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
