//! The interface through which a cache of the file system is notified of changes.

use std::any::Any;

use super::ViewId;
use crate::attr::Ino;
use crate::commit::apply_commit::ChangeSet;
use crate::fs::Fs;

/// The extent to which [`Watcher::write_back`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Waits for every page.
    ForAll,
    /// Does not wait for pages that cannot be written until a serializable transaction ends: the
    /// caller may be about to end that very transaction.
    ButForLocks,
}

/// Files that programs run from.
#[derive(Default)]
pub struct Running {
    /// The files.
    pub files: Vec<Ino>,
    held: Vec<Box<dyn Any + Send>>,
}

impl Running {
    /// Returns these files. Until `held` is dropped, no program begins to run from any other file
    /// that was asked about.
    pub fn new(files: Vec<Ino>, held: Box<dyn Any + Send>) -> Running {
        Running { files, held: vec![held] }
    }

    pub(super) fn add(&mut self, other: Running) {
        self.files.extend(other.files);
        self.held.extend(other.held);
    }
}

/// The changes that the commit of a transaction has made.
#[derive(Clone, Copy)]
pub struct CommittedTo<'a> {
    /// The view to which it was committed: the mainline or a clone.
    pub fs: &'a Fs,
    /// The number of that view.
    pub number: u16,
    /// The changes there.
    pub changes: &'a ChangeSet,
}

/// A cache of the file system that is notified of changes: a kernel, through an adapter.
pub trait Watcher: Send + Sync {
    /// Hands over the data written so far that the cache holds back, of all views. Returns when it
    /// is handed over, or the reason why it cannot be.
    fn write_back(&self, wait: Wait) -> std::result::Result<(), String>;
    /// Reports a new view. (Not called for views that existed before and are opened when they are
    /// first used.)
    fn appeared(&self, view: &ViewId);
    /// Reports the end of a view: `fs` then only answers for inodes to which there are references.
    /// `committed` has the changes of the view's commit, or is `None` if there are none.
    fn ended(&self, view: &ViewId, number: u16, fs: &Fs, committed: Option<CommittedTo<'_>>);
    /// Reports that a view, or the mainline, was replaced by another state as a whole.
    fn changed(&self, number: u16, fs: &Fs, changes: &ChangeSet);
    /// Announces that a name is about to be removed with everything below it: the cache drops all
    /// inodes there that no program uses, so that nothing has to be kept for them. `path` is
    /// relative to the view's root. Returns the reason if the name must stay.
    fn goes(
        &self,
        view: &ViewId,
        number: u16,
        fs: &Fs,
        at: (Ino, &[u8]),
        path: &[u8],
    ) -> std::result::Result<(), String> {
        let _ = (view, number, fs, at, path);
        Ok(())
    }
    /// Returns those of these files of a view from which programs run, or which are mapped for
    /// execution.
    fn running(&self, number: u16, files: &[Ino]) -> Running {
        let _ = (number, files);
        Running::default()
    }
    /// Reports that the file system does not answer any more; see [`Views::go_down`].
    fn went_down(&self) {}
}
