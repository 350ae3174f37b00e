//! The operations on files that a connection has under way: an import, and a walk or an export.
//! Both end with the connection.

use crate::files::{FileResult, Imported, Importing, Walking};

/// The operations on files under way.
#[derive(Default)]
pub struct FileWork {
    import: Option<Box<dyn Importing>>,
    walk: Option<Box<dyn Walking>>,
}

impl FileWork {
    pub fn is_importing(&self) -> bool {
        self.import.is_some()
    }
    /// Returns whether an operation is in progress.
    pub fn is_under_way(&self) -> bool {
        self.import.is_some() || self.walk.is_some()
    }
    pub fn begin_import(&mut self, import: Box<dyn Importing>) {
        self.import = Some(import);
    }
    /// Takes some more entries for the import. After a failure there is none any more. Returns
    /// `None` if there was none before.
    pub fn add(&mut self, entries: &[u8]) -> Option<FileResult<()>> {
        let mut import = self.import.take()?;
        let added = import.add(entries);
        if added.is_ok() {
            self.import = Some(import);
        }
        Some(added)
    }
    /// Ends the import. Returns `None` if there is none.
    pub fn finish_import(&mut self) -> Option<FileResult<Imported>> {
        Some(self.import.take()?.finish())
    }
    /// Gives up the import. Returns whether there was one.
    pub fn drop_import(&mut self) -> bool {
        self.import.take().is_some()
    }

    #[cfg(test)]
    pub fn is_walking(&self) -> bool {
        self.walk.is_some()
    }
    pub fn begin_walk(&mut self, walk: Box<dyn Walking>) {
        self.walk = Some(walk);
    }
    /// Returns the next piece of the walk, which is empty at its end. After that, and after a
    /// failure, there is none any more. Returns `None` if there was none before.
    pub fn next_piece(&mut self) -> Option<FileResult<Vec<u8>>> {
        let mut walk = self.walk.take()?;
        let piece = walk.next();
        if piece.as_ref().is_ok_and(|piece| !piece.is_empty()) {
            self.walk = Some(walk);
        }
        Some(piece)
    }
    /// Gives up the walk. Returns whether there was one.
    pub fn drop_walk(&mut self) -> bool {
        self.walk.take().is_some()
    }
}
