//! Writes an export into a directory of the host.

use std::os::fd::AsRawFd;
use std::path::Path;

use super::*;
use crate::support::machine::beneath;
use crate::support::terminal::text::Shown;

pub struct Directory<'a> {
    /// The target directory and the nested directories being filled, all held open: a name is made
    /// in its own directory and nowhere else, whatever symbolic links exist.
    pub at: Vec<OwnedFd>,
    pub root: PathBuf,
    /// The first name of each file that has several, relative to the target directory.
    pub linked: HashMap<Ino, Vec<u8>>,
    /// True if owners can be set.
    pub owner: bool,
    /// Decides which existing files must not be replaced.
    pub judge: Judge,
    pub skipped: Skipped<'a>,
}

impl<'a> Directory<'a> {
    /// Opens the directory `root`, and lets this process open as many files as it may.
    pub fn open(root: &Path, judge: Judge, output: &'a Output) -> io::Result<Directory<'a>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = rustix::fs::open(root, flags, Mode::empty())?;
        raise_open_files();
        Ok(Directory {
            at: vec![at],
            root: root.to_owned(),
            linked: HashMap::new(),
            owner: is_root(),
            judge,
            skipped: Skipped::new(output),
        })
    }
}

impl Directory<'_> {
    fn dress(&mut self, fd: impl AsFd, item: &Item<'_>) -> Result<(), Errno> {
        let attr = &item.attr;
        if self.owner {
            rustix::fs::fchown(&fd, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)))?;
        }
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(u32::from(attr.perm)))?;
        for (name, value) in &item.xattrs {
            if rustix::fs::fsetxattr(&fd, name.as_slice(), value, XattrFlags::empty()).is_err() {
                self.skipped
                    .note(item.path, &format!("the attribute {} is left out", text::show(name)));
            }
        }
        rustix::fs::futimens(&fd, &times(attr))
    }

    /// Sets the attributes of an entry that cannot be opened, like `dress`. `it` refers to the
    /// entry itself, so that a later entry of the same name is not affected.
    fn dress_name(&mut self, it: &OwnedFd, item: &Item<'_>) -> Result<(), Errno> {
        let attr = &item.attr;
        if self.owner {
            let (uid, gid) = (Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
            rustix::fs::chownat(it, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        let place = format!("/proc/self/fd/{}", it.as_raw_fd());
        if attr.kind != FileKind::Symlink {
            rustix::fs::chmod(&place, Mode::from_raw_mode(u32::from(attr.perm)))?;
        }
        for (name, value) in &item.xattrs {
            if rustix::fs::setxattr(&place, name.as_slice(), value, XattrFlags::empty()).is_err() {
                self.skipped
                    .note(item.path, &format!("the attribute {} is left out", text::show(name)));
            }
        }
        rustix::fs::utimensat(it, "", &times(attr), AtFlags::EMPTY_PATH)
    }
}

fn times(attr: &Attr) -> Timestamps {
    let spec = |t: kvfs::Timestamp| Timespec { tv_sec: t.secs, tv_nsec: i64::from(t.nanos) };
    Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) }
}

/// Fills a new file and returns the number of bytes written. If it fails, the file is removed.
type Fill<'a> = &'a mut dyn FnMut(&File, &dyn Fn(Errno) -> Failure) -> Outcome<u64>;

impl Directory<'_> {
    /// Makes the entry; `fill` writes the content of a file.
    pub fn make(&mut self, item: &Item<'_>, fill: Fill<'_>) -> Outcome<u64> {
        if item.path.is_empty() {
            return Ok(0);
        }
        let path = self.root.join(std::ffi::OsStr::from_bytes(item.path));
        let cannot = |e: Errno| Failure::io(format!("cannot write {}", path.shown()), &e.into());
        let Some(parent) = self.at.last() else {
            return Err(Failure::new(Exit::Failed, "no directory is open"));
        };
        let parent =
            parent.try_clone().map_err(|e| Failure::io("cannot open directories so deep", &e))?;
        let attr = &item.attr;
        if attr.kind == FileKind::Dir {
            match rustix::fs::mkdirat(&parent, item.name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(cannot(e)),
            }
            let fd = beneath::open(&parent, item.name, OFlags::DIRECTORY, Mode::empty())
                .map_err(cannot)?;
            self.at.push(fd);
            return Ok(0);
        }
        self.judge.judge_entry(&parent, item.name, &path)?;
        match rustix::fs::unlinkat(&parent, item.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(cannot(e)),
        }
        if attr.nlink > 1 {
            if let Some(first) = self.linked.get(&attr.ino) {
                link(&self.at[0], first, (&parent, item.name)).map_err(cannot)?;
                return Ok(0);
            }
            self.linked.insert(attr.ino, item.path.to_vec());
        }
        let special = match attr.kind {
            FileKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let fd = beneath::open(&parent, item.name, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(cannot)?;
                let file = File::from(fd);
                let written = fill(&file, &cannot).inspect_err(|_| {
                    // Remove the file, since half of it must not pass for the whole.
                    let _ = rustix::fs::unlinkat(&parent, item.name, AtFlags::empty());
                    self.linked.remove(&attr.ino);
                })?;
                self.dress(&file, item).map_err(|e| undressed(item, e))?;
                return Ok(written);
            }
            FileKind::Symlink => rustix::fs::symlinkat(item.target.as_slice(), &parent, item.name),
            _ => make_special(&parent, item),
        };
        match special {
            Err(Errno::PERM) if attr.kind != FileKind::Symlink => {
                // Forget the device, so that its other names are not made as links to it.
                self.linked.remove(&attr.ino);
                self.skipped.note(item.path, "only root may make devices");
                return Ok(0);
            }
            made => made.map_err(cannot)?,
        }
        let it = beneath::open(&parent, item.name, OFlags::PATH, Mode::empty()).map_err(cannot)?;
        self.dress_name(&it, item).map_err(|e| undressed(item, e))?;
        Ok(0)
    }
}

/// Links a name in a directory to a file that the export has made. `first` is the first name of the
/// file, relative to the target directory `top`.
fn link(top: &OwnedFd, first: &[u8], (parent, name): (&OwnedFd, &[u8])) -> Result<(), Errno> {
    let (directory, old) =
        first.split_at(first.iter().rposition(|c| *c == b'/').map_or(0, |at| at + 1));
    match directory.strip_suffix(b"/") {
        None => rustix::fs::linkat(top, old, parent, name, AtFlags::empty()),
        Some(directory) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let directory = beneath::open(top, directory, flags, Mode::empty())?;
            rustix::fs::linkat(directory, old, parent, name, AtFlags::empty())
        }
    }
}

/// Makes a device, a socket or a pipe.
fn make_special(parent: &OwnedFd, item: &Item<'_>) -> Result<(), Errno> {
    let kind = match item.attr.kind {
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Socket => FileType::Socket,
        _ => FileType::Fifo,
    };
    let (major, minor) = tree::device_numbers(item.attr.rdev);
    let rdev = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(parent, item.name, kind, Mode::RUSR | Mode::WUSR, rdev)
}

fn undressed(item: &Item<'_>, error: Errno) -> Failure {
    let what = format!("cannot set the attributes of {}", text::show(item.path));
    Failure::io(what, &error.into())
}

impl Target for Directory<'_> {
    fn put(&mut self, fs: &Fs, item: &Item<'_>, bar: &ProgressBar) -> Outcome<u64> {
        self.make(item, &mut |file, cannot| write_file(fs, file, item, bar, cannot))
    }

    /// Sets the attributes of a directory last: making its entries changes its times, and its mode
    /// may not permit that.
    fn leave(&mut self, item: &Item<'_>) -> Outcome {
        let Some(fd) = self.at.pop() else { return Ok(()) };
        let dressed = self.dress(&fd, item);
        dressed.map_err(|e| {
            Failure::io(
                format!("cannot set the attributes of the directory {}", text::show(item.path)),
                &e.into(),
            )
        })
    }

    fn skipped(&self) -> u64 {
        self.skipped.count
    }
}

fn write_file(
    fs: &Fs,
    file: &File,
    item: &Item<'_>,
    bar: &ProgressBar,
    cannot: &dyn Fn(Errno) -> Failure,
) -> Outcome<u64> {
    let attr = &item.attr;
    let failed = |e| tree::failure(format!("cannot read {}", text::show(item.path)), e);
    let mut written = 0;
    for (mut at, mut len) in tree::extents(fs, attr).map_err(failed)? {
        while len > 0 {
            let piece =
                fs.read(attr.ino, at, len.min(u64::from(tree::PIECE)) as u32).map_err(failed)?;
            if piece.is_empty() {
                break;
            }
            file.write_all_at(&piece, at).map_err(|e| {
                cannot(Errno::from_raw_os_error(
                    e.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()),
                ))
            })?;
            at += piece.len() as u64;
            len -= piece.len() as u64;
            written += piece.len() as u64;
            bar.inc(piece.len() as u64);
        }
    }
    rustix::fs::ftruncate(file, attr.size).map_err(cannot)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use kvfs::Timestamp;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// Runs `work` on a thread that is not permitted to make devices.
    fn without_devices<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut sets = capabilities(None).expect("the thread's own");
                sets.effective.remove(CapabilitySet::MKNOD);
                set_capabilities(None, sets).expect("fewer are always allowed");
                work()
            });
            thread.join().expect("no panic")
        })
    }

    #[test]
    fn every_name_of_a_device_that_cannot_be_made_is_left_out() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = rustix::fs::open(root.path(), OFlags::DIRECTORY, Mode::empty()).expect("opened");
        let output = Output::silent();
        let mut directory = Directory {
            at: vec![at],
            root: root.path().into(),
            linked: HashMap::new(),
            owner: false,
            judge: Judge::strict(),
            skipped: Skipped::new(&output),
        };
        let attr = Attr {
            ino: 7,
            kind: FileKind::CharDevice,
            perm: 0o600,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0x103,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
        };
        without_devices(|| {
            for name in [&b"first"[..], b"second"] {
                let (target, xattrs) = (Vec::new(), Vec::new());
                let item = Item { path: name, name, attr, target, xattrs };
                let made = directory.make(&item, &mut |_, _| Ok(0));
                made.unwrap_or_else(|e| panic!("{}: {}", text::show(name), e.message));
            }
        });
        assert_eq!(directory.skipped.count, 2);
        assert_eq!(std::fs::read_dir(root.path()).expect("read").count(), 0);
    }
}
