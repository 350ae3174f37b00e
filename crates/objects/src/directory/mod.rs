//! Objects in a folder. Each object is a file, and the parts of its key are folders. Any number of
//! processes may use the folder, on one machine, or on several if the file system provides locks
//! across machines (as NFS does). The objects are plain files, so they may be copied to a bucket
//! and back.
//!
//! The following invariants hold:
//!
//! - A file of an object never changes. A put writes a new file among the fresh ones, syncs it, and
//!   renames it to the name of the object. So a reader that has opened a file reads one version to
//!   its end.
//! - All puts and deletions of a key hold the lock of its shard from before they read the current
//!   state until the folder is synced. So the condition of a put still holds when the put is
//!   applied, and the data that a later put replaces is durable. Readers take no lock.
//! - Names that do not belong to keys of this crate have a `~`. No key refers to them, and no list
//!   contains them.
//! - Folders are never removed: a put could be about to use one.

mod fresh;
mod locks;
mod root;
mod tags;
mod walk;

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fmt, io};

use bytes::Bytes;
use rustix::fs::{AtFlags, fsync, linkat, renameat, unlinkat};
use rustix::io::Errno;

use crate::Objects;
use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::object::{Condition, Object, Page, Part, Tag};

use fresh::{Fresh, FreshFiles};
use locks::Locks;
use root::{Found, Root};
use tags::Tags;

/// The number of entries of a page, which is the same as on servers.
const PAGE: usize = 1000;

/// Objects in a folder. Only the owner may read its files, because objects may hold data whose
/// permissions deny other users access.
pub struct DirectoryObjects {
    root: Root,
    fresh: FreshFiles,
    locks: Locks,
    tags: Tags,
    page: usize,
}

impl DirectoryObjects {
    /// Opens an existing folder, and removes the files that killed processes have left in it.
    /// Returns [`ObjectsError::NoBucket`] if the folder does not exist, and an error if its file
    /// system has no locks.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let root = Root::open(path.as_ref())?;
        let failed = |e: Errno| ObjectsError::io(format!("opening {}", root.place()), e);
        let locks = Locks::open(&root).map_err(failed)?;
        // Report a file system without locks now, instead of when the first writer uses it.
        locks.of(&Key::new("probe")?).map_err(failed)?;
        let fresh = FreshFiles::open(&root).map_err(failed)?;
        let removed = fresh.remove_orphans().map_err(failed)?;
        if removed > 0 {
            tracing::info!(removed, place = root.place(), "removed files of killed writers");
        }
        Ok(DirectoryObjects { root, fresh, locks, tags: Tags::default(), page: PAGE })
    }

    /// Opens a folder. Creates the folder and its parents if they do not exist.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Root::create(path.as_ref())?;
        Self::open(path)
    }

    /// Limits the pages of lists to this many entries, at least one.
    #[must_use]
    pub fn with_pages_of(self, entries: usize) -> Self {
        DirectoryObjects { page: entries.max(1), ..self }
    }

    fn failed<'a>(&'a self, doing: &'a str, key: &'a Key) -> impl Fn(Errno) -> ObjectsError + 'a {
        move |e| match e {
            Errno::NAMETOOLONG => ObjectsError::Invalid(format!(
                "the file system of {} has no names as long as {key}; choose a shorter one",
                self.place()
            )),
            Errno::NOTDIR => self.occupied(key),
            Errno::NOENT if self.root.is_gone() => ObjectsError::NoBucket { place: self.place() },
            _ => ObjectsError::io(format!("{doing} {key} in {}", self.place()), e),
        }
    }

    /// Returns the error for a key that cannot be an object because a folder, an object or a link
    /// has its name, or the name of one of its folders.
    fn occupied(&self, key: &Key) -> ObjectsError {
        ObjectsError::Invalid(format!(
            "{key} cannot be an object in {}: a folder, an object or a link has its name or the \
             start of it; choose another key, or remove that",
            self.place()
        ))
    }

    fn not_found(&self, key: &Key) -> ObjectsError {
        if self.root.is_gone() {
            return ObjectsError::NoBucket { place: self.place() };
        }
        ObjectsError::NotFound { key: key.clone() }
    }

    /// Renames a fresh file to the name of its object if the condition holds. The caller holds the
    /// lock of the key.
    fn place_fresh(
        &self,
        key: &Key,
        folder: &OwnedFd,
        fresh: &mut Fresh<'_>,
        condition: &Condition,
    ) -> Result<()> {
        let (_, name) = key.split();
        let failed = self.failed("putting", key);
        let changed = || ObjectsError::ConditionFailed { key: key.clone() };
        let found = root::find(folder, name).map_err(&failed)?;
        match (condition, &found) {
            (_, Found::Other | Found::Folder) => return Err(self.occupied(key)),
            (Condition::Absent, Found::Object(..)) => return Err(changed()),
            (Condition::Matches(_), Found::Nothing) => return Err(self.not_found(key)),
            (Condition::Matches(tag), Found::Object(file, stat)) => {
                let there = self.tags.of_file(file, stat);
                if there.map_err(|e| ObjectsError::io(format!("reading {key}"), e))? != *tag {
                    return Err(changed());
                }
            }
            _ => {}
        }
        if *condition == Condition::Absent {
            // The lock suffices among processes that take it. In addition, creating a link never
            // replaces a file, even if another process takes no lock.
            match linkat(fresh.folder(), fresh.name(), folder, name, AtFlags::empty()) {
                Ok(()) => return Ok(()),
                // An NFS server may have created the link, and then answered a repetition of the
                // request.
                Err(Errno::EXIST) if fresh.links().map_err(&failed)? > 1 => return Ok(()),
                Err(Errno::EXIST) => return Err(changed()),
                // These are the errors of file systems without links, such as those of USB disks.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::MLINK) => {
                }
                Err(e) => return Err(failed(e)),
            }
        }
        renameat(fresh.folder(), fresh.name(), folder, name).map_err(|e| match e {
            Errno::ISDIR | Errno::NOTEMPTY => self.occupied(key),
            e => failed(e),
        })?;
        fresh.was_renamed();
        Ok(())
    }

    /// Makes a change of names in a folder durable. The change is already applied, so after an
    /// error it is unknown whether the change will last.
    fn sync_change(&self, key: &Key, folder: &OwnedFd) -> Result<()> {
        rustix::io::retry_on_intr(|| fsync(folder)).map_err(|e| ObjectsError::Unsure {
            key: key.to_string(),
            why: format!("syncing its folder in {} failed: {}", self.place(), io::Error::from(e)),
        })
    }
}

impl Objects for DirectoryObjects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        let failed = self.failed("reading", key);
        let folder = match self.root.folder_of(key) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(self.not_found(key)),
            Err(e) => return Err(failed(e)),
        };
        let (file, stat) = match root::find(&folder, key.split().1).map_err(&failed)? {
            Found::Object(file, stat) => (file, stat),
            Found::Nothing | Found::Folder => return Err(self.not_found(key)),
            Found::Other => return Err(self.occupied(key)),
        };
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let range = part.within(key, len)?;
        let failed = |e| ObjectsError::io(format!("reading {key} in {}", self.place()), e);
        let size = usize::try_from(range.end - range.start)
            .map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(size, 0);
        file.read_exact_at(&mut bytes, range.start).map_err(failed)?;
        let tag = self.tags.of_file(&file, &stat).map_err(failed)?;
        Ok(Object { bytes: bytes.into(), tag, len })
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        let failed = self.failed("putting", key);
        if self.root.is_gone() {
            return Err(ObjectsError::NoBucket { place: self.place() });
        }
        // A put with a condition on an existing object creates no folders.
        let folder = match &condition {
            Condition::Matches(_) => self.root.folder_of(key),
            Condition::Always | Condition::Absent => self.root.make_folder_of(key),
        };
        let folder = match folder {
            Err(Errno::NOENT) => return Err(self.not_found(key)),
            folder => folder.map_err(&failed)?,
        };
        let tag = Tag::of(&bytes);
        let doing = || format!("writing {key} to {}", self.place());
        let mut fresh = self.fresh.write(&bytes, &tag).map_err(|e| ObjectsError::io(doing(), e))?;
        let lock = self.locks.of(key).map_err(&failed)?;
        self.place_fresh(key, &folder, &mut fresh, &condition)?;
        self.sync_change(key, &folder)?;
        drop(lock);
        Ok(tag)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        let failed = self.failed("deleting", key);
        let folder = match self.root.folder_of(key) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR) if !self.root.is_gone() => return Ok(()),
            Err(e) => return Err(failed(e)),
        };
        let (_, name) = key.split();
        let _lock = self.locks.of(key).map_err(&failed)?;
        match root::find(&folder, name).map_err(&failed)? {
            Found::Nothing | Found::Folder => return Ok(()),
            Found::Other => return Err(self.occupied(key)),
            Found::Object(..) => {}
        }
        match unlinkat(&folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.sync_change(key, &folder),
            Err(e) => Err(failed(e)),
        }
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        if self.root.is_gone() {
            return Err(ObjectsError::NoBucket { place: self.place() });
        }
        let doing = || format!("listing {prefix:?} in {}", self.place());
        let page = walk::page(self.root.fd(), prefix, after, self.page);
        page.map_err(|e| ObjectsError::io(doing(), e))
    }

    fn place(&self) -> String {
        self.root.place()
    }
}

impl fmt::Debug for DirectoryObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryObjects").field("place", &self.place()).finish_non_exhaustive()
    }
}
