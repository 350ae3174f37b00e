//! Opens and creates stores in files of the host, by path, with defaults that fit most uses. A
//! store appears under its name only when it is complete. Until then its name ends in `.partial`.
//! If a crash has left a file with this name, the next attempt replaces the file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use env::Machine;
use zones::FileDevice;

use crate::db::Kvdb;
use crate::db::recovery;
use crate::db::recovery::Recovery;
use crate::error::{Error, Result};
use crate::options::{CreateOptions, OpenOptions};

impl Kvdb {
    /// Opens the store in the file at `path`, or creates one if no file exists there. The store
    /// uses 256 MiB of memory and background threads, and writes each change to disk within a
    /// second.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fruit.kvfs");
    /// let db = kvdb::Kvdb::open_path(&path)?;
    /// db.open_dictionary("fruit")?.insert("apple", "red")?;
    /// drop(db);
    /// let db = kvdb::Kvdb::open_path(&path)?;
    /// assert_eq!(db.open_dictionary("fruit")?.get("apple")?.as_deref(), Some(&b"red"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_path(path: impl AsRef<Path>) -> Result<Kvdb> {
        Self::open_path_with(path, OpenOptions::default())
    }

    /// Opens the store in the file at `path` with the given options, or creates one if no file
    /// exists there. If `read_only` is set, the file must exist.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fruit.kvfs");
    /// use kvdb::{Kvdb, OpenOptions};
    /// let small = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
    /// let db = Kvdb::open_path_with(&path, small)?;
    /// # drop(db);
    /// let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    /// let reader = Kvdb::open_path_with(&path, read_only)?;
    /// assert!(reader.dictionaries().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_path_with(path: impl AsRef<Path>, options: OpenOptions) -> Result<Kvdb> {
        let path = path.as_ref();
        if !options.read_only && !path.try_exists()? {
            return Self::create_path(
                path,
                CreateOptions { open: options, ..CreateOptions::default() },
            );
        }
        Ok(Self::recover_path(path, options)?.0)
    }

    /// Opens the store in the file at `path`, and returns the report of the recovery.
    pub fn recover_path(path: impl AsRef<Path>, options: OpenOptions) -> Result<(Kvdb, Recovery)> {
        // A reader of a store in object storage keeps the parts of zones that it has fetched in the
        // file, so the file must be writable.
        let device = FileDevice::open(path, options.read_only && options.remote.is_none())?;
        Self::open(Arc::new(device), Arc::new(Machine::default()), options)
    }

    /// Makes an empty store in a new file. If the file exists already, the call fails.
    pub fn create_path(path: impl AsRef<Path>, options: CreateOptions) -> Result<Kvdb> {
        let partial = Partial::begin(path.as_ref())?;
        let device = FileDevice::create(&partial.name)?;
        let db = recovery::create(Arc::new(device), Arc::new(Machine::default()), options)?;
        let db = Kvdb::of(db);
        partial.finish()?;
        Ok(db)
    }
}

/// A file that is being written. The file is removed if its `Partial` is dropped before it is
/// finished.
pub(crate) struct Partial {
    pub name: PathBuf,
    path: PathBuf,
    done: bool,
}

impl Partial {
    /// Begins a new file. No file may exist at `path`. A partial file that an earlier attempt has
    /// left is removed.
    pub(crate) fn begin(path: &Path) -> Result<Partial> {
        if path.try_exists()? {
            return Err(Error::Io(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} is there already", path.display()),
            )));
        }
        let Some(file_name) = path.file_name() else {
            return Err(Error::Invalid(format!("{} is no name for a file", path.display())));
        };
        let mut partial: OsString = file_name.to_owned();
        partial.push(".partial");
        let name = path.with_file_name(partial);
        if name.try_exists()? {
            // The open fails if another process is still writing the file and has locked it.
            let left = FileDevice::open(&name, false)?;
            fs::remove_file(&name)?;
            drop(left);
        }
        Ok(Partial { name, path: path.to_owned(), done: false })
    }

    /// Gives the file its final name, durably. The contents of the file are already durable.
    pub(crate) fn finish(mut self) -> Result<()> {
        // A link, unlike a rename, never replaces a file that another process has put there.
        match fs::hard_link(&self.name, &self.path) {
            Ok(()) => fs::remove_file(&self.name)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(e.into()),
            // Some hosts do not support links.
            Err(_) => fs::rename(&self.name, &self.path)?,
        }
        self.done = true;
        let parent =
            self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()?;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.done {
            // Ignore errors, because the next attempt removes the file, too.
            let _ = fs::remove_file(&self.name);
        }
    }
}
