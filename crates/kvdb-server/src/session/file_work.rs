//! The operations on files that a connection has in progress: an import, and a walk or an export.
//! All of them end with the connection.

use crate::files::{FileResult, Imported, Importing, Walking};

/// The operations on files in progress.
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
    /// Passes more entries to the import. A failure ends the import. Returns `None` if no import
    /// is in progress.
    pub fn add(&mut self, entries: &[u8]) -> Option<FileResult<()>> {
        let mut import = self.import.take()?;
        let added = import.add(entries);
        if added.is_ok() {
            self.import = Some(import);
        }
        Some(added)
    }
    /// Ends the import. Returns `None` if no import is in progress.
    pub fn finish_import(&mut self) -> Option<FileResult<Imported>> {
        Some(self.import.take()?.finish())
    }
    /// Cancels the import. Returns whether there was one.
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
    /// Returns the next piece of the walk, which is empty at its end. The end and a failure both
    /// end the walk. Returns `None` if no walk is in progress.
    pub fn next_piece(&mut self) -> Option<FileResult<Vec<u8>>> {
        let mut walk = self.walk.take()?;
        let piece = walk.next();
        if piece.as_ref().is_ok_and(|piece| !piece.is_empty()) {
            self.walk = Some(walk);
        }
        Some(piece)
    }
    /// Cancels the walk. Returns whether there was one.
    pub fn drop_walk(&mut self) -> bool {
        self.walk.take().is_some()
    }
}
