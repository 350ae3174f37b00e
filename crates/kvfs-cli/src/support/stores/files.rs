//! The files of a store for the commands that show them. An unmounted store is opened here; a
//! mounted one is accessed through its mount, where the kernel checks permissions.
//!
//! On a mount, a path is resolved beneath the root of its view, including symbolic links on the way
//! and at its end: an absolute link starts at that root, and no link leads out of the store.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvfs::{Attr, FileKind, Fs, Timestamp};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use serde_json::{Map, Value};

use crate::support::machine::paths;
use crate::support::mounts::place::{self, View};
use crate::support::mounts::sockets;
use crate::support::mounts::waiting::{self, Waiting};
use crate::support::stores::store::{self, Access, Store};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// The files of a store, or of one of its views.
pub enum Files {
    Store { fs: Fs, store: Store },
    Mount(Mount),
}

/// A view on a mount.
pub struct Mount {
    /// The root of the view.
    root: OwnedFd,
    /// The directory that paths are relative to, below the root.
    base: PathBuf,
    /// Reports waiting, since all operations on this view may block.
    _waiting: Waiting,
}

/// The longest path that the kernel takes, without the zero at its end.
const LONGEST_PATH: usize = 4095;

/// An entry of a directory.
pub struct Entry {
    pub name: Vec<u8>,
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// A directory listing in progress.
pub enum Listing {
    Store(tree::Listing),
    Mount { directory: OwnedFd, entries: Dir },
}

fn cannot(doing: &str, path: &[u8], error: impl Into<io::Error>) -> Failure {
    Failure::io(format!("cannot {doing} {}", text::show(path)), &error.into())
}

impl Files {
    /// Returns the files of the store that a target is, or that is mounted there. Paths are
    /// relative to the target, if it is a directory of the mount or of a view in it.
    pub fn of(target: &Path) -> Outcome<Files> {
        if let Some(place) = place::of_target(target)? {
            if place.view == View::Listing {
                let what = format!("{} leads into a list of views", target.shown());
                return Err(Failure::new(Exit::Usage, what).hint("give one of the views in it"));
            }
            let full = paths::full_path(target)
                .map_err(|e| Failure::io(format!("cannot find {}", target.shown()), &e))?;
            let mut root = full.clone();
            for _ in place.rest.components() {
                root.pop();
            }
            return Ok(Files::Mount(Mount::open(&root, place.rest)?));
        }
        if let Some(record) = sockets::served(target)? {
            return Ok(Files::Mount(Mount::open(&record.mount_point, PathBuf::new())?));
        }
        let store = store::open_waiting(target, Access::ReadOnly, None)?;
        Ok(Files::Store { fs: store.file_system()?, store })
    }

    /// Returns the attributes of a file as JSON, without its time of birth on a mount, which does
    /// not report it.
    pub fn json(&self, attr: &Attr) -> Map<String, Value> {
        let mut object = tree::attr_json(attr);
        if !self.know_births() {
            object.remove("btime");
        }
        object
    }

    pub fn know_births(&self) -> bool {
        matches!(self, Files::Store { .. })
    }

    /// Returns the attributes of a path. A symbolic link at its end is followed if `follow` is set.
    pub fn look(&self, path: &[u8], follow: bool) -> Outcome<Attr> {
        match self {
            Files::Store { fs, .. } if follow => tree::find(fs, path),
            Files::Store { fs, .. } => fs
                .resolve(path)
                .map_err(|e| tree::failure(format!("cannot look at {}", text::show(path)), e)),
            Files::Mount(mount) => {
                let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
                mount.attr(path, flags)
            }
        }
    }

    /// Returns the target of a symbolic link.
    pub fn target(&self, path: &[u8], attr: &Attr) -> Outcome<Vec<u8>> {
        match self {
            Files::Store { fs, .. } => fs
                .readlink(attr.ino)
                .map_err(|e| tree::failure(format!("cannot read {}", text::show(path)), e)),
            Files::Mount(mount) => {
                let link = mount.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
                link_target(&link, c"").map_err(|e| cannot("read", path, e))
            }
        }
    }

    /// Returns the names of the extended attributes.
    pub fn xattrs(&self, path: &[u8], attr: &Attr) -> Outcome<Vec<Vec<u8>>> {
        let names = match self {
            Files::Store { fs, .. } => fs
                .listxattr(attr.ino)
                .map_err(|e| tree::failure(format!("cannot look at {}", text::show(path)), e))?,
            Files::Mount(mount) => {
                let it = mount.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
                xattr_names(&it).map_err(|e| cannot("look at", path, e))?
            }
        };
        Ok(names.split(|c| *c == 0).filter(|n| !n.is_empty()).map(Into::into).collect())
    }

    /// Begins to list a directory.
    pub fn list(&self, path: &[u8], attr: &Attr) -> Outcome<Listing> {
        match self {
            Files::Store { .. } => Ok(Listing::Store(tree::Listing::new(attr.ino))),
            Files::Mount(mount) => {
                let directory = mount.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                let entries = Dir::read_from(&directory).map_err(|e| cannot("list", path, e))?;
                Ok(Listing::Mount { directory, entries })
            }
        }
    }

    /// Returns the next entry of the directory at `path`, without `.` and `..`.
    pub fn next(&self, listing: &mut Listing, path: &[u8]) -> Outcome<Option<Entry>> {
        match (self, listing) {
            (Files::Store { fs, .. }, Listing::Store(listing)) => {
                let failed = |e| tree::failure(format!("cannot list {}", text::show(path)), e);
                let Some(entry) = listing.next(fs).map_err(failed)? else { return Ok(None) };
                let attr = fs.getattr(entry.ino).map_err(failed)?;
                let target = match attr.kind {
                    FileKind::Symlink => Some(fs.readlink(attr.ino).map_err(failed)?),
                    _ => None,
                };
                Ok(Some(Entry { name: entry.name, attr, target }))
            }
            (_, Listing::Mount { directory, entries }) => {
                next_in(directory, entries).map_err(|e| cannot("list", path, e))
            }
            _ => Ok(None),
        }
    }

    /// Passes the content of a file to `put` in pieces, until `put` returns `false`.
    pub fn read(
        &self,
        path: &[u8],
        attr: &Attr,
        put: &mut dyn FnMut(&[u8]) -> Outcome<bool>,
    ) -> Outcome<bool> {
        match self {
            Files::Store { fs, .. } => {
                let mut at = 0;
                while at < attr.size {
                    let piece = fs.read(attr.ino, at, tree::PIECE).map_err(|e| {
                        tree::failure(format!("cannot read {}", text::show(path)), e)
                    })?;
                    if piece.is_empty() {
                        break;
                    }
                    at += piece.len() as u64;
                    if !put(&piece)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Files::Mount(mount) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = mount.open_at(path, flags)?;
                let mut piece = vec![0; tree::PIECE as usize];
                loop {
                    let read = rustix::io::read(&file, &mut piece[..])
                        .map_err(|e| cannot("read", path, e))?;
                    if read == 0 || !put(&piece[..read])? {
                        return Ok(read == 0);
                    }
                }
            }
        }
    }

    pub fn close(self) -> Outcome {
        match self {
            Files::Store { fs, store } => {
                drop(fs);
                store.close()
            }
            Files::Mount(_) => Ok(()),
        }
    }
}

impl Mount {
    fn open(root: &Path, base: PathBuf) -> Outcome<Mount> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let waiting = waiting::on(root);
        let opened = rustix::fs::open(root, flags, Mode::empty())
            .map_err(|e| cannot("open", root.as_os_str().as_bytes(), e))?;
        Ok(Mount { root: opened, base, _waiting: waiting })
    }

    fn open_at(&self, path: &[u8], flags: OFlags) -> Outcome<OwnedFd> {
        // A leading slash is relative to the target, too.
        let below = tree::names(path).collect::<Vec<_>>().join(&b'/');
        let way = self.base.join(std::ffi::OsStr::from_bytes(&below));
        let same = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let mut resolve = ResolveFlags::IN_ROOT | same;
        let mut rest = way.as_os_str().as_bytes();
        let mut directory: Option<OwnedFd> = None;
        // A path that is too long for the kernel is walked in pieces. Only walks lead that deep,
        // and they follow no links.
        while rest.len() > LONGEST_PATH {
            let slash = rest[..=LONGEST_PATH].iter().rposition(|byte| *byte == b'/');
            let Some(at) = slash.filter(|at| *at > 0) else { break };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let from = directory.as_ref().unwrap_or(&self.root);
            let opened = rustix::fs::openat2(from, &rest[..at], flags, Mode::empty(), resolve)
                .map_err(|e| cannot("find", path, e))?;
            directory = Some(opened);
            rest = &rest[at + 1..];
            resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | same;
        }
        let from = directory.as_ref().unwrap_or(&self.root);
        let rest: &[u8] = if rest.is_empty() { b"." } else { rest };
        let flags = flags | OFlags::CLOEXEC;
        rustix::fs::openat2(from, rest, flags, Mode::empty(), resolve)
            .map_err(|e| cannot("find", path, e))
    }

    fn attr(&self, path: &[u8], flags: OFlags) -> Outcome<Attr> {
        let it = self.open_at(path, flags)?;
        attr_at(&it, c"").map_err(|e| cannot("look at", path, e))
    }
}

/// Returns the attributes of a name in an open directory, or of the open file itself.
fn attr_at(of: &OwnedFd, name: &std::ffi::CStr) -> io::Result<Attr> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let mask = StatxFlags::BASIC_STATS;
    let stat = rustix::fs::statx(of, name, flags, mask)?;
    let time = |t: rustix::fs::StatxTimestamp| Timestamp { secs: t.tv_sec, nanos: t.tv_nsec };
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return Err(io::Error::other("it is of no known kind")),
    };
    Ok(Attr {
        ino: stat.stx_ino,
        kind,
        perm: stat.stx_mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: tree::device_number(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: Timestamp::default(),
    })
}

fn link_target(of: &OwnedFd, name: &std::ffi::CStr) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(of, name, Vec::new())?.into_bytes())
}

fn next_in(directory: &OwnedFd, entries: &mut Dir) -> io::Result<Option<Entry>> {
    for entry in entries.by_ref() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let attr = match attr_at(directory, name) {
            // The entry was removed in the meantime.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            attr => attr?,
        };
        let target = match attr.kind {
            FileKind::Symlink => Some(link_target(directory, name)?),
            _ => None,
        };
        return Ok(Some(Entry { name: name.to_bytes().to_vec(), attr, target }));
    }
    Ok(None)
}

/// Returns the names of the extended attributes of a file opened with `O_PATH`.
fn xattr_names(of: &OwnedFd) -> io::Result<Vec<u8>> {
    let place = format!("/proc/self/fd/{}", of.as_raw_fd());
    // The kernel's limit for the list.
    let mut names = vec![0u8; 64 << 10];
    let length = rustix::fs::listxattr(&*place, &mut names[..])?;
    names.truncate(length);
    Ok(names)
}
