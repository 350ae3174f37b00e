//! Follows the states of a store that are published elsewhere: each newer state is shown as one
//! commit. Open files show the new state, too; a removed file is stale.

use std::sync::Arc;

use kvdb::{Follower, NewerState};

use crate::commit::apply_commit::ChangeSet;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::Layout;
use crate::views::{OpenView, Shared, ViewId, Views};

/// A view that continues in the newer state.
struct Continuing {
    number: u16,
    fs: Fs,
    changes: ChangeSet,
}

impl Views {
    /// Shows the newest published state, or returns `false` if it is shown already. `follower`
    /// belongs to the store of these views. Object storage is asked before calls have to wait, so
    /// that they wait only for a moment.
    pub fn follow(&self, follower: &mut Follower) -> Result<bool> {
        let Some(mut newer) = follower.look()? else { return Ok(false) };
        // No clone may be opened between the comparison and the switch of states.
        let opening = self.shared.opener.opens_no_clone();
        let (continuing, over) = compare(&self.shared, &newer)?;
        let named = self.all();
        show(&mut newer, &continuing)?;
        drop(opening);
        for view in &continuing {
            self.shared
                .watchers
                .tell(|watcher| watcher.changed(view.number, &view.fs, &view.changes));
        }
        over.iter().for_each(|entry| self.shared.opener.end_view(entry, None));
        // Reports new views, and removed views that were not open.
        let now = self.all();
        let listed = named.iter().chain(&now);
        for view in listed.filter(|view| !(named.contains(view) && now.contains(view))) {
            self.shared.watchers.tell(|watcher| watcher.appeared(view));
        }
        follower.keep(newer)?;
        Ok(true)
    }
}

fn show(newer: &mut NewerState, continuing: &[Continuing]) -> Result<()> {
    let _frozen: Vec<_> = continuing.iter().map(|view| view.fs.core.freeze_lock.freeze()).collect();
    let known = continuing.iter().map(|view| view.fs.known_of(&view.changes));
    let known = known.collect::<Result<Vec<_>>>()?;
    newer.show()?;
    for (view, known) in continuing.iter().zip(known) {
        // The state is switched: an inode that cannot be read now returns the error when it is
        // accessed.
        if let Err(e) = view.fs.follow_changes(&view.changes, known) {
            tracing::warn!("what is in memory may be older than what was published: {e}");
        }
    }
    Ok(())
}

/// Returns the changes in the mainline and in each open clone, and the views that end.
fn compare(shared: &Shared, newer: &NewerState) -> Result<(Vec<Continuing>, Vec<Arc<OpenView>>)> {
    let (before, after) = (newer.before(), newer.after());
    let mainline = &shared.mainline;
    if Layout::of_state(after) != Some(mainline.core.layout) {
        let why =
            "another main branch was published, which a received one has replaced: mount it again";
        return Err(Error::Invalid(why));
    }
    let of = |number, fs: &Fs| -> Result<Continuing> {
        let changes = ChangeSet::between(before, after, &fs.core.layout)?;
        Ok(Continuing { number, fs: fs.clone(), changes })
    };
    let mut continuing = vec![of(0, mainline)?];
    let mut over = Vec::new();
    for entry in shared.open.all() {
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
