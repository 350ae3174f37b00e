//! What a cache of the file system is told.

use std::any::Any;

use super::ViewId;
use crate::apply_commit::ChangeSet;
use crate::attr::Ino;
use crate::fs::Fs;

/// What [`Watcher::write_back`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For every page.
    ForAll,
    /// Not for what cannot be written until a serializable transaction ends: the caller may be
    /// about to end that very one.
    ButForLocks,
}

/// Files that programs run from.
#[derive(Default)]
pub struct Running {
    /// Which.
    pub files: Vec<Ino>,
    held: Vec<Box<dyn Any + Send>>,
}

impl Running {
    /// These files. As long as `held` is not dropped no program begins to run from any other file
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
    /// The view that it was committed to: the mainline or a clone.
    pub fs: &'a Fs,
    /// The number of that view.
    pub number: u16,
    /// The changes there.
    pub changes: &'a ChangeSet,
}

/// A cache of the file system that is told of changes: a kernel, behind an adapter.
pub trait Watcher: Send + Sync {
    /// Hands over what was written and is held back so far, of all views. Returns when it is handed
    /// over; or says what is in the way.
    fn write_back(&self, wait: Wait) -> std::result::Result<(), String>;
    /// There is a new view. (Not called for those that existed before and are opened when they are
    /// first asked for.)
    fn appeared(&self, view: &ViewId);
    /// A view is over, and `fs` answers nothing any more but what was referred to. `committed`:
    /// what has changed with its commit; `None`: nothing.
    fn ended(&self, view: &ViewId, number: u16, fs: &Fs, committed: Option<CommittedTo<'_>>);
    /// A view, or the mainline, has become another one all at once.
    fn changed(&self, number: u16, fs: &Fs, changes: &ChangeSet);
    /// A name is about to be removed with all below it: what of that no program uses is let go of,
    /// so that nothing has to be kept for it. `path`: from the view's root. Or it says why the name
    /// must stay.
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
    /// Which of these files of a view programs run from, or have mapped to run.
    fn running(&self, number: u16, files: &[Ino]) -> Running {
        let _ = (number, files);
        Running::default()
    }
    /// The file system answers nothing any more; see [`Views::go_down`].
    fn went_down(&self) {}
}
