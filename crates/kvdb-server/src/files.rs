//! Operations on trees of files that a client of the file system requests over the socket: copies
//! by reference, removals, imports, walks and exports. [`Files`] carries them out. Each consists
//! of a request and a reply. Their bytes are encoded and decoded here, so that both ends agree;
//! `docs/resp.md` describes them. Only the entries of an import are decoded by the host, because
//! they become files there.

use kvdb::TransactionId;

use crate::reply::Reply;

mod walked;

pub use walked::{EntryKind, EntryTime, WalkedEntry};

/// The state to whose files a path refers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The files of the store itself.
    Store,
    /// The files of a transaction.
    Transaction(TransactionId),
    /// The files of a snapshot.
    Snapshot(String),
    /// The files of a clone.
    Clone(String),
}

/// The failure of an operation on files. Each failure except the last one has its own code on the
/// socket.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no file at a path.
    #[error("no such file or directory")]
    NotFound,
    /// A path leads through something that is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// A name is already in use.
    #[error("the name exists already")]
    Exists,
    /// The store, or a clone or transaction with a limit, is full. The text says which.
    #[error("{0}")]
    NoSpace(String),
    /// Any other failure.
    #[error(transparent)]
    Store(#[from] kvdb::Error),
}

/// The result of an operation on files.
pub type FileResult<T> = Result<T, FileError>;

/// Statistics of a copy of a tree of files, which are the reply to `CLONETREE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// The number of directories created.
    pub directories: u64,
    /// The number of files created.
    pub files: u64,
    /// The number of bytes of the files. The copies share them with the originals.
    pub bytes: u64,
}

/// Statistics of the removal of a file or a tree, which are the reply to `RMTREE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of directories removed.
    pub directories: u64,
    /// The number of files removed.
    pub files: u64,
    /// The size of the content of files whose last name was removed, in bytes.
    pub bytes: u64,
}

/// Statistics of an import, which are the reply to `IMPORT END`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The number of files created.
    pub files: u64,
    /// The number of directories created.
    pub directories: u64,
    /// The number of symbolic links created.
    pub symlinks: u64,
    /// The number of further names of files.
    pub hard_links: u64,
    /// The number of devices, FIFOs and sockets created.
    pub special: u64,
    /// The number of bytes of data written.
    pub bytes: u64,
    /// The number of entries or attributes of a kind that a store does not support.
    pub skipped: u64,
}

impl Cloned {
    /// Returns the names and numbers of the reply.
    pub fn fields(&self) -> Vec<(&'static str, u64)> {
        vec![("directories", self.directories), ("files", self.files), ("bytes", self.bytes)]
    }

    /// Parses the reply. Returns `None` if it has another form.
    pub fn of_reply(reply: &Reply) -> Option<Cloned> {
        let number = numbers(reply)?;
        let (directories, files) = (number("directories"), number("files"));
        Some(Cloned { directories, files, bytes: number("bytes") })
    }
}

impl Removed {
    /// Returns the names and numbers of the reply.
    pub fn fields(&self) -> Vec<(&'static str, u64)> {
        vec![("directories", self.directories), ("files", self.files), ("bytes", self.bytes)]
    }

    /// Parses the reply. Returns `None` if it has another form.
    pub fn of_reply(reply: &Reply) -> Option<Removed> {
        let number = numbers(reply)?;
        let (directories, files) = (number("directories"), number("files"));
        Some(Removed { directories, files, bytes: number("bytes") })
    }
}

impl Imported {
    /// Returns the names and numbers of the reply.
    pub fn fields(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("files", self.files),
            ("directories", self.directories),
            ("symlinks", self.symlinks),
            ("hard-links", self.hard_links),
            ("special", self.special),
            ("bytes", self.bytes),
            ("skipped", self.skipped),
        ]
    }

    /// Parses the reply. Returns `None` if it has another form.
    pub fn of_reply(reply: &Reply) -> Option<Imported> {
        let number = numbers(reply)?;
        Some(Imported {
            files: number("files"),
            directories: number("directories"),
            symlinks: number("symlinks"),
            hard_links: number("hard-links"),
            special: number("special"),
            bytes: number("bytes"),
            skipped: number("skipped"),
        })
    }
}

/// Parses names and numbers in alternation. A name that is missing in the reply has the number 0.
fn numbers(reply: &Reply) -> Option<impl Fn(&str) -> u64> {
    let Reply::Array(all) = reply else { return None };
    Some(|name: &str| {
        let pairs = all.chunks_exact(2);
        let found = pairs.filter_map(|pair| match pair {
            [Reply::Bulk(key), Reply::Integer(n)] if key == name.as_bytes() => Some(*n),
            _ => None,
        });
        found.map(|n| u64::try_from(n).unwrap_or(0)).next().unwrap_or(0)
    })
}

/// An import of files in progress. If it is dropped before `finish`, it has no effect, unless it
/// runs in a transaction that was open before.
pub trait Importing: Send {
    /// Accepts more entries. They are the argument of `IMPORT ADD`, in the form that
    /// `docs/resp.md` describes.
    fn add(&mut self, entries: &[u8]) -> FileResult<()>;
    /// Ends the import. The files then exist and are on disk. If the import runs in a transaction
    /// that was open before, they exist in the transaction.
    fn finish(self: Box<Self>) -> FileResult<Imported>;
}

/// A walk through files, or an export, in progress.
pub trait Walking: Send {
    /// Returns more entries, each encoded by [`WalkedEntry::encode`], or bytes of the tar stream.
    /// An empty result marks the end.
    fn next(&mut self) -> FileResult<Vec<u8>>;
}

/// The host of files. A store without files refuses each operation.
pub trait Files: Send + Sync {
    /// Copies a tree of files by reference, by paths from the root.
    fn clone_tree(&self, whose: Whose, from: &[u8], to: &[u8]) -> FileResult<Cloned> {
        let _ = (whose, from, to);
        Err(no_files())
    }
    /// Copies several trees of one earlier state in the same way, with `from` and `to` of each.
    /// Hard links among them are preserved.
    fn clone_trees(&self, id: TransactionId, places: &[(&[u8], &[u8])]) -> FileResult<Cloned> {
        let _ = (id, places);
        Err(no_files())
    }
    /// Begins to import files into the directory at a path from the root, which is created if
    /// necessary. The import runs in a transaction that was open before. An import into the store
    /// or a clone runs in its own transaction, which `user` has begun.
    fn import(&self, whose: Whose, to: &[u8], user: Option<u32>) -> FileResult<Box<dyn Importing>> {
        let _ = (whose, to, user);
        Err(no_files())
    }
    /// Begins to walk through the tree at a path from the root.
    fn walk(&self, whose: Whose, path: &[u8]) -> FileResult<Box<dyn Walking>> {
        let _ = (whose, path);
        Err(no_files())
    }
    /// Begins to export the tree at a path from the root as a tar stream of one state, on behalf of
    /// `user`.
    fn export(&self, whose: Whose, path: &[u8], user: Option<u32>) -> FileResult<Box<dyn Walking>> {
        let _ = (whose, path, user);
        Err(no_files())
    }
    /// Locks the names of the directory at a path from the root against changes by others, for
    /// the rest of a serializable transaction. With `exclusive` it also locks them against reads
    /// by others.
    fn lock_directory(&self, id: TransactionId, path: &[u8], exclusive: bool) -> FileResult<()> {
        let _ = (id, path, exclusive);
        Err(no_files())
    }
    /// Removes the file or the tree at a path from the root.
    fn remove_tree(&self, whose: Whose, path: &[u8]) -> FileResult<Removed> {
        let _ = (whose, path);
        Err(no_files())
    }
}

/// A store without files.
impl Files for kvdb::Kvdb {}

fn no_files() -> FileError {
    kvdb::Error::Invalid("there are no files: the store is not mounted".into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(fields: &[(&str, u64)]) -> Reply {
        let pair = |(name, n): &(&str, u64)| {
            [Reply::Bulk(name.as_bytes().to_vec()), Reply::Integer(*n as i64)]
        };
        Reply::Array(fields.iter().flat_map(pair).collect())
    }

    #[test]
    fn statistics_come_as_they_were_sent() {
        let cloned = Cloned { directories: 1, files: 2, bytes: 3 };
        assert_eq!(Cloned::of_reply(&reply(&cloned.fields())), Some(cloned));
        let removed = Removed { directories: 4, files: 5, bytes: 6 };
        assert_eq!(Removed::of_reply(&reply(&removed.fields())), Some(removed));
        let imported = Imported {
            files: 1,
            directories: 2,
            symlinks: 3,
            hard_links: 4,
            special: 5,
            bytes: 6,
            skipped: 7,
        };
        assert_eq!(Imported::of_reply(&reply(&imported.fields())), Some(imported));
        assert_eq!(Imported::of_reply(&Reply::Null), None);
        let few = Removed::of_reply(&reply(&[("files", 1), ("others", 9)]));
        assert_eq!(few, Some(Removed { files: 1, ..Removed::default() }));
    }
}
