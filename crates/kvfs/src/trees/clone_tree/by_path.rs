//! Copies within a view, or from an earlier state of the view, by paths from its root.

use std::sync::Arc;

use super::{CloneStats, Linked};
use crate::commit::apply_commit::ChangeSet;
use crate::difference::Side;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::trees::same_file::{Place, is_own_place};
use crate::views::{ViewId, Views, Wait};

/// A state of a view before its current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// The state of the snapshot with this name.
    Snapshot(String),
    /// The state on which a transaction is based, without the changes of the transaction.
    Beneath,
}

impl Views {
    /// Copies a tree within a view, by paths from its root, and notifies the kernels that have
    /// cached the destination. The last part of `to` must not exist.
    pub fn clone_tree(&self, view: &ViewId, from: &[u8], to: &[u8]) -> Result<CloneStats> {
        self.clone_into(view, None, from, to, &mut Linked::new())
    }

    /// Copies the object at `from` in an earlier state to a name in the current state of the view.
    /// Symbolic links in `from` are not followed.
    pub fn clone_earlier(
        &self,
        view: &ViewId,
        earlier: &Earlier,
        from: &[u8],
        to: &[u8],
    ) -> Result<CloneStats> {
        let mut linked = self.linked_now(view, earlier, &[(from, to)])?;
        self.clone_into(view, Some(earlier), from, to, &mut linked)
    }

    /// Copies several places, each with a `from` and a `to`, one after the other, as
    /// `clone_earlier` does. Hard links between the places become links between the copies.
    pub fn clone_several_earlier(
        &self,
        view: &ViewId,
        earlier: &Earlier,
        places: &[(&[u8], &[u8])],
    ) -> Result<CloneStats> {
        let (mut all, mut linked) =
            (CloneStats::default(), self.linked_now(view, earlier, places)?);
        for (from, to) in places {
            let stats = self.clone_into(view, Some(earlier), from, to, &mut linked)?;
            all.directories += stats.directories;
            all.files += stats.files;
            all.bytes = all.bytes.saturating_add(stats.bytes);
        }
        Ok(all)
    }

    /// Returns the files that are restored to their own places and still exist in the view under
    /// other names.
    fn linked_now(&self, view: &ViewId, earlier: &Earlier, places: &[Place<'_>]) -> Result<Linked> {
        if !places.iter().any(is_own_place) {
            return Ok(Linked::new());
        }
        self.shared.watchers.write_back(Wait::ForAll)?;
        let (fs, state) = (self.fs(view)?, self.state_of(view, earlier)?);
        let layout = Layout::of_state(&state).ok_or(Error::NotFound)?;
        fs.same_files(&Side::new(state, layout), places)
    }

    fn clone_into(
        &self,
        view: &ViewId,
        earlier: Option<&Earlier>,
        from: &[u8],
        to: &[u8],
        linked: &mut Linked,
    ) -> Result<CloneStats> {
        let to = to.strip_suffix(b"/").unwrap_or(to);
        let (parent, name) = to
            .iter()
            .rposition(|&b| b == b'/')
            .map_or((&b""[..], to), |at| (&to[..at], &to[at + 1..]));
        // Make kernels hand over data that programs have written, so that it is copied, too.
        self.shared.watchers.write_back(Wait::ForAll)?;
        let (fs, number) = (self.fs(view)?, self.number(view)?);
        let parent = fs.resolve(parent)?.ino;
        let note = |changes: &ChangeSet| self.shared.notes.will_tell(number, changes);
        let (copied, untold) = match earlier {
            None => fs.clone_of(None, fs.resolve(from)?.ino, parent, name, linked, &note)?,
            Some(earlier) => {
                let state = self.state_of(view, earlier)?;
                let layout = Layout::of_state(&state).ok_or(Error::NotFound)?;
                let side = Side::new(state, layout);
                let ino = side.find(from)?.ok_or(Error::NotFound)?.ino;
                let state = (Arc::new(side.state), layout);
                fs.clone_of(Some(&state), ino, parent, name, linked, &note)?
            }
        };
        let changes = copied.changes(parent, name);
        self.shared.watchers.tell(|watcher| watcher.changed(number, &fs, &changes));
        drop(untold);
        Ok(copied.stats)
    }

    fn state_of(&self, view: &ViewId, earlier: &Earlier) -> Result<kvdb::View> {
        let db = &self.shared.db;
        match (earlier, view) {
            (Earlier::Snapshot(name), _) => Ok(db.open_snapshot(name)?),
            (Earlier::Beneath, ViewId::Transaction(id)) => {
                Ok(db.transaction(*id)?.view()?.beneath())
            }
            _ => Err(Error::Invalid("only a transaction has a state beneath it")),
        }
    }
}
