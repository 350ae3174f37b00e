//! The file system of a scope, accessed by paths.

use std::sync::Arc;

use kvfs::{
    Attr, Caller, Error, FileKind, Fs, RenameFlags, SetAttr, TimeSet, Timestamp, TransactionId,
    XattrFlags,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{Failure, Outcome};
use crate::home::Home;
use crate::octets::Octets;
use crate::open_file::OpenFile;
use crate::paths;
use crate::slot::Slot;

/// The mode (with the type), inode, links, user, group, size, 512-byte blocks, and the times of
/// the last access, of the change of content, of the change of attributes, and of birth, in
/// nanoseconds since 1970.
pub type Stat = (u32, u64, u32, u32, u32, u64, u64, (i128, i128, i128, i128));

/// The files of the store, of a transaction or of a snapshot.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Files {
    home: Home,
    fs: Arc<Slot<Fs>>,
    writes: bool,
    transaction: Option<TransactionId>,
}

/// Returns the user and group of files that are created.
pub fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: std::process::id(),
    }
}

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 0o010000,
        FileKind::CharDevice => 0o020000,
        FileKind::Dir => 0o040000,
        FileKind::BlockDevice => 0o060000,
        FileKind::File => 0o100000,
        FileKind::Symlink => 0o120000,
        FileKind::Socket => 0o140000,
    }
}

/// Converts attributes to the form for Python.
pub fn stat_of(attr: &Attr) -> Stat {
    let nanos = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let times = (nanos(attr.atime), nanos(attr.mtime), nanos(attr.ctime), nanos(attr.btime));
    let mode = type_bits(attr.kind) | u32::from(attr.perm);
    (mode, attr.ino, attr.nlink, attr.uid, attr.gid, attr.size, attr.blocks, times)
}

fn timestamp(nanos: i128) -> Outcome<Timestamp> {
    let secs = i64::try_from(nanos.div_euclid(1_000_000_000))
        .map_err(|_| Failure::Invalid(format!("{nanos} ns since 1970 are out of range")))?;
    Ok(Timestamp { secs, nanos: nanos.rem_euclid(1_000_000_000) as u32 })
}

impl Files {
    /// Makes the files of a state whose file system lies in a slot of `home`.
    pub fn new(
        home: Home,
        fs: Arc<Slot<Fs>>,
        writes: bool,
        transaction: Option<TransactionId>,
    ) -> Files {
        Files { home, fs, writes, transaction }
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        call: impl FnOnce(&Fs) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        Ok(py
            .detach(|| self.home.call(None, || call(&self.fs.get()?)))
            .map_err(|failure| failure.at(path))?)
    }
}

#[pymethods]
impl Files {
    fn stat(&self, py: Python<'_>, path: Octets, follow: bool) -> PyResult<Stat> {
        self.call(py, &path, |fs| Ok(stat_of(&paths::resolve(fs, &path, follow)?)))
    }

    /// Returns the names of a directory with their attributes, in order, without `.` and `..`.
    fn list<'py>(
        &self,
        py: Python<'py>,
        path: Octets,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Stat)>> {
        let found = self.call(py, &path, |fs| {
            let dir = paths::resolve(fs, &path, true)?;
            let (mut found, mut referenced) = (Vec::new(), Vec::new());
            let listed = fs.readdir(dir.ino, 0, true, &mut |entry| {
                if matches!(entry.name, b"." | b"..") {
                    return true;
                }
                if let Some(attr) = entry.attr {
                    referenced.push(entry.ino);
                    found.push((entry.name.to_vec(), stat_of(&attr)));
                }
                true
            });
            referenced.into_iter().for_each(|ino| fs.forget(ino, 1));
            listed?;
            Ok(found)
        })?;
        Ok(found.into_iter().map(|(name, stat)| (PyBytes::new(py, &name), stat)).collect())
    }

    fn mkdir(&self, py: Python<'_>, path: Octets, mode: u16) -> PyResult<()> {
        self.call(py, &path, |fs| {
            let (dir, name) = match paths::parent(fs, &path) {
                Err(Failure::Files(Error::Invalid(_), _)) if is_root(&path) => {
                    return Err(Error::Exists.into());
                }
                found => found?,
            };
            let made = fs.mkdir(dir, name, mode & 0o7777, caller())?;
            fs.forget(made.ino, 1);
            Ok(())
        })
    }

    fn rmdir(&self, py: Python<'_>, path: Octets) -> PyResult<()> {
        self.call(py, &path, |fs| {
            let (dir, name) = paths::parent(fs, &path)?;
            Ok(fs.rmdir(dir, name)?)
        })
    }

    fn unlink(&self, py: Python<'_>, path: Octets) -> PyResult<()> {
        self.call(py, &path, |fs| {
            let (dir, name) = paths::parent(fs, &path)?;
            Ok(fs.unlink(dir, name)?)
        })
    }

    /// Removes a tree. Returns the number of directories, other names and bytes that were
    /// removed.
    fn remove_tree(&self, py: Python<'_>, path: Octets) -> PyResult<(u64, u64, u64)> {
        self.call(py, &path, |fs| {
            let (dir, name) = paths::parent(fs, &path)?;
            let removed = fs.remove_tree(dir, name)?;
            Ok((removed.directories, removed.files, removed.bytes))
        })
    }

    /// Copies a file or a tree by reference. Returns the number of directories, other names and
    /// bytes.
    fn clone_tree(&self, py: Python<'_>, from: Octets, to: Octets) -> PyResult<(u64, u64, u64)> {
        self.call(py, &from, |fs| {
            let from = paths::resolve(fs, &from, false)?;
            let (dir, name) = paths::parent(fs, &to)?;
            let copied =
                fs.clone_tree(from.ino, dir, name).map_err(|e| Failure::from(e).at(&to))?;
            Ok((copied.directories, copied.files, copied.bytes))
        })
    }

    fn rename(&self, py: Python<'_>, from: Octets, to: Octets, replace: bool) -> PyResult<()> {
        self.call(py, &from, |fs| {
            let (dir, name) = paths::parent(fs, &from)?;
            let (new_dir, new_name) = paths::parent(fs, &to).map_err(|e| e.at(&to))?;
            let flags = RenameFlags { no_replace: !replace, ..RenameFlags::default() };
            Ok(fs.rename(dir, name, new_dir, new_name, flags)?)
        })
    }

    fn link(&self, py: Python<'_>, from: Octets, to: Octets) -> PyResult<()> {
        self.call(py, &from, |fs| {
            let from = paths::resolve(fs, &from, false)?;
            let (dir, name) = paths::parent(fs, &to)?;
            let linked = fs.link(from.ino, dir, name).map_err(|e| Failure::from(e).at(&to))?;
            fs.forget(linked.ino, 1);
            Ok(())
        })
    }

    fn symlink(&self, py: Python<'_>, target: Octets, path: Octets) -> PyResult<()> {
        self.call(py, &path, |fs| {
            let (dir, name) = paths::parent(fs, &path)?;
            let made = fs.symlink(dir, name, &target, caller())?;
            fs.forget(made.ino, 1);
            Ok(())
        })
    }

    fn readlink<'py>(&self, py: Python<'py>, path: Octets) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.call(py, &path, |fs| {
            let link = paths::resolve(fs, &path, false)?;
            if link.kind != FileKind::Symlink {
                return Err(Error::Invalid("it is no symbolic link").into());
            }
            Ok(fs.readlink(link.ino)?)
        })?;
        Ok(PyBytes::new(py, &target))
    }

    fn chmod(&self, py: Python<'_>, path: Octets, mode: u16) -> PyResult<()> {
        self.change(py, path, SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() })
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: Octets,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> PyResult<()> {
        self.change(py, path, SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// Sets the times of the last access and change, in nanoseconds since 1970. `None` means now.
    fn utime(
        &self,
        py: Python<'_>,
        path: Octets,
        atime: Option<i128>,
        mtime: Option<i128>,
    ) -> PyResult<()> {
        let time = |nanos: Option<i128>| -> Outcome<Option<TimeSet>> {
            Ok(Some(nanos.map_or(Ok(TimeSet::Now), |nanos| timestamp(nanos).map(TimeSet::At))?))
        };
        let set = SetAttr { atime: time(atime)?, mtime: time(mtime)?, ..SetAttr::default() };
        self.change(py, path, set)
    }

    fn truncate(&self, py: Python<'_>, path: Octets, size: u64) -> PyResult<()> {
        self.change(py, path, SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: Octets,
        name: Octets,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self
            .call(py, &path, |fs| Ok(fs.getxattr(paths::resolve(fs, &path, true)?.ino, &name)?))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(&self, py: Python<'_>, path: Octets, name: Octets, value: Octets) -> PyResult<()> {
        self.call(py, &path, |fs| {
            let ino = paths::resolve(fs, &path, true)?.ino;
            Ok(fs.setxattr(ino, &name, &value, XattrFlags::Any)?)
        })
    }

    fn removexattr(&self, py: Python<'_>, path: Octets, name: Octets) -> PyResult<()> {
        self.call(py, &path, |fs| Ok(fs.removexattr(paths::resolve(fs, &path, true)?.ino, &name)?))
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: Octets) -> PyResult<Bound<'py, PyBytes>> {
        let names =
            self.call(py, &path, |fs| Ok(fs.listxattr(paths::resolve(fs, &path, true)?.ino)?))?;
        Ok(PyBytes::new(py, &names))
    }

    /// Makes everything in the file system, and everything that the store had before, durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, b"", |fs| Ok(fs.sync_all()?))
    }

    /// Opens a file. With `create` a missing file is created; with `exclusive` the file must not
    /// exist.
    #[allow(clippy::too_many_arguments)]
    fn open(
        &self,
        py: Python<'_>,
        path: Octets,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: u16,
    ) -> PyResult<OpenFile> {
        let writes = self.writes;
        let (fs, ino) = self.call(py, &path, |fs| {
            if write && !writes {
                return Err(Error::ReadOnly.into());
            }
            let ino = open(fs, &path, create, exclusive, mode)?;
            let opened = (|| {
                let attr = fs.getattr(ino)?;
                match attr.kind {
                    FileKind::Dir => return Err(Error::IsDirectory),
                    FileKind::File => {}
                    _ => return Err(Error::Unsupported("opening what is no regular file")),
                }
                if truncate && attr.size > 0 {
                    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }, caller())?;
                }
                Ok(())
            })();
            if let Err(error) = opened {
                fs.forget(ino, 1);
                return Err(error.into());
            }
            Ok((fs.clone(), ino))
        })?;
        let path = path.to_vec();
        Ok(OpenFile::new(self.home.clone(), (fs, ino), write, path, self.transaction))
    }
}

impl Files {
    fn change(&self, py: Python<'_>, path: Octets, set: SetAttr) -> PyResult<()> {
        self.call(py, &path, |fs| {
            fs.setattr(paths::resolve(fs, &path, true)?.ino, &set, caller())?;
            Ok(())
        })
    }
}

fn is_root(path: &[u8]) -> bool {
    path.iter().all(|b| *b == b'/')
}

/// Returns the inode at a path, with a reference that keeps the inode when its name is removed.
fn open(fs: &Fs, path: &[u8], create: bool, exclusive: bool, mode: u16) -> Outcome<kvfs::Ino> {
    let mut path = path.to_vec();
    for _ in 0..40 {
        let (dir, name) = match paths::parent(fs, &path) {
            Err(Failure::Files(Error::Invalid(_), _)) if is_root(&path) => {
                return Err(Error::IsDirectory.into());
            }
            found => found?,
        };
        let slash = path.ends_with(b"/");
        let found = match fs.lookup(dir, name) {
            Err(Error::NotFound) if create && slash => return Err(Error::IsDirectory.into()),
            Err(Error::NotFound) if create => {
                match fs.mknod(dir, name, FileKind::File, mode & 0o7777, 0, caller()) {
                    // Another caller has created the file in between.
                    Err(Error::Exists) if !exclusive => continue,
                    made => return Ok(made?.ino),
                }
            }
            found => found?,
        };
        let refused = match found.kind {
            _ if exclusive => Some(Error::Exists),
            FileKind::Symlink => {
                let behind = paths::behind(fs, &path, found.ino);
                fs.forget(found.ino, 1);
                path = behind?;
                continue;
            }
            FileKind::Dir => None,
            _ if slash => Some(Error::NotDirectory),
            _ => None,
        };
        if let Some(error) = refused {
            fs.forget(found.ino, 1);
            return Err(error.into());
        }
        return Ok(found.ino);
    }
    Err(Error::TooManySymlinks.into())
}
