//! The file system of a store that follows what is published elsewhere: each newer state is shown
//! as one commit. Files that are open show it, too; one that was removed there is stale.

use std::sync::Arc;

use kvdb::{Follower, NewerState};

use crate::apply_commit::ChangeSet;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::Layout;
use crate::views::{OpenView, ViewId, Views};

/// A view that goes on as the newer state has it.
struct Continuing {
    number: u16,
    fs: Fs,
    changes: ChangeSet,
}

impl Views {
    /// Shows the newest state that was published, if that is not shown yet. Otherwise it returns
    /// `false`. `follower` is of the store of these views. What is asked of object storage is asked
    /// before calls have to wait; they wait for a moment.
    pub fn follow(&self, follower: &mut Follower) -> Result<bool> {
        let Some(mut newer) = follower.look()? else { return Ok(false) };
        // No clone is opened between the comparison and what follows from it.
        let opening = self.shared.opening.lock();
        let (continuing, over) = self.compare(&newer)?;
        let named = self.all();
        self.show(&mut newer, &continuing)?;
        drop(opening);
        for view in &continuing {
            self.tell(|watcher| watcher.changed(view.number, &view.fs, &view.changes));
        }
        over.iter().for_each(|entry| self.end_view(entry, None));
        // Those that are new, and those that are gone and were not open.
        let now = self.all();
        let listed = named.iter().chain(&now);
        for view in listed.filter(|view| !(named.contains(view) && now.contains(view))) {
            self.tell(|watcher| watcher.appeared(view));
        }
        follower.keep(newer)?;
        Ok(true)
    }

    fn show(&self, newer: &mut NewerState, continuing: &[Continuing]) -> Result<()> {
        let _frozen: Vec<_> =
            continuing.iter().map(|view| view.fs.core.freeze_lock.freeze()).collect();
        let known = continuing.iter().map(|view| view.fs.known_of(&view.changes));
        let known = known.collect::<Result<Vec<_>>>()?;
        newer.show()?;
        for (view, known) in continuing.iter().zip(known) {
            // It has happened: what cannot be read now returns its error when it is asked for.
            if let Err(e) = view.fs.follow_changes(&view.changes, known) {
                tracing::warn!("what is in memory may be older than what was published: {e}");
            }
        }
        Ok(())
    }

    /// What changes in the mainline and in each clone that is open; and the views that are over.
    fn compare(&self, newer: &NewerState) -> Result<(Vec<Continuing>, Vec<Arc<OpenView>>)> {
        let (before, after) = (newer.before(), newer.after());
        let mainline = &self.shared.mainline;
        if Layout::of_state(after) != Some(mainline.core.layout) {
            let why = "another main branch was published, which a received one has replaced: mount it again";
            return Err(Error::Invalid(why));
        }
        let of = |number, fs: &Fs| -> Result<Continuing> {
            let changes = ChangeSet::between(before, after, &fs.core.layout)?;
            Ok(Continuing { number, fs: fs.clone(), changes })
        };
        let mut continuing = vec![of(0, mainline)?];
        let mut over = Vec::new();
        let open: Vec<_> = self.shared.open.read().by_number.values().cloned().collect();
        for entry in open {
            match &entry.view {
                ViewId::Clone(_) if newer.has_dictionary(entry.fs.core.layout.imap) => {
                    continuing.push(of(entry.number, &entry.fs)?);
                }
                ViewId::Snapshot(name) if newer.keeps_snapshot(name) => {}
                _ => over.push(entry),
            }
        }
        Ok((continuing, over))
    }
}
