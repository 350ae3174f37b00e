//! Files of the upper layer as items of an import.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use indicatif::ProgressBar;
use kvfs::{FileKind, Timestamp};
use rustix::fs::{FileType, Mode, OFlags};

use crate::support::archives::import_items::{Item, Meta};
use crate::support::archives::sources::Source;
use crate::support::layers::layer::{Attributes, Time, Xattr};
use crate::support::layers::reader::Layers;
use crate::support::machine::beneath;
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::show;

/// Attributes that the host gives to files of the scratch directory by itself.
const OF_HOST: [&[u8]; 1] = [b"security.selinux"];

/// Returns whether an extended attribute of the upper layer belongs to the file.
pub fn is_kept(name: &[u8]) -> bool {
    !OF_HOST.contains(&name)
}

/// Returns the extended attributes of a file of the upper layer.
pub fn xattrs(layers: &Layers, path: &[u8]) -> io::Result<Vec<Xattr>> {
    let mut all = layers.xattrs(path)?;
    all.retain(|(name, _)| is_kept(name));
    Ok(all)
}

/// Returns whether the extended attributes of a file that both layers have differ.
pub fn differ(layers: &Layers, path: &[u8]) -> io::Result<bool> {
    let mut before = layers.xattrs_before(path)?;
    before.retain(|(name, _)| is_kept(name));
    Ok(before != xattrs(layers, path)?)
}

fn time((secs, nanos): Time) -> Timestamp {
    Timestamp { secs, nanos }
}

/// Returns the attributes of a file of the upper layer.
pub fn meta(layers: &Layers, path: &[u8], file: &Attributes) -> io::Result<Meta> {
    let at: &[u8] = if path.is_empty() { b"." } else { path };
    let opened = beneath::open(layers.upper.as_fd(), at, OFlags::PATH, Mode::empty())?;
    let stat = rustix::fs::fstat(&opened)?;
    Ok(Meta {
        perm: (file.mode & 0o7777) as u16,
        uid: file.uid,
        gid: file.gid,
        mtime: time(file.mtime),
        atime: Some(time((stat.st_atime, stat.st_atime_nsec as u32))),
        xattrs: xattrs(layers, path)?,
    })
}

/// Opens a regular file of the upper layer for reading, even one that its owner may not read: the
/// layer is thrown away afterwards.
pub fn open(layers: &Layers, path: &[u8]) -> io::Result<File> {
    match layers.upper.file(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let file = beneath::open(layers.upper.as_fd(), path, OFlags::PATH, Mode::empty())?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::RUSR)?;
            layers.upper.file(path)
        }
        opened => opened,
    }
}

/// Passes on a file of the upper layer.
pub fn send(source: &mut Source<'_>, layers: &Layers, path: &[u8], bar: &ProgressBar) -> Outcome {
    let cannot = |e: io::Error| layers.upper.failure("cannot read", path, &e);
    let found = layers.upper.attributes(path).map_err(cannot)?;
    let Some(file) = found else {
        let what = format!("{} has gone while the layer was folded", show(path));
        return Err(Failure::new(Exit::Failed, what));
    };
    let meta = meta(layers, path, &file).map_err(cannot)?;
    let path = path.to_vec();
    let rdev = || tree::device_number(rustix::fs::major(file.rdev), rustix::fs::minor(file.rdev));
    let (kind, rdev) = match file.kind {
        FileType::Directory => return source.give(Item::Directory { path, meta }),
        FileType::Symlink => {
            let target = layers.upper.target(&path).map_err(cannot)?;
            return source.give(Item::Symlink { path, target, meta });
        }
        FileType::RegularFile => {
            let opened = open(layers, &path).map_err(cannot)?;
            let shown = Path::new(OsStr::from_bytes(&path));
            return source.open_file(opened, shown, &path, meta, bar);
        }
        FileType::CharacterDevice => (FileKind::CharDevice, rdev()),
        FileType::BlockDevice => (FileKind::BlockDevice, rdev()),
        FileType::Fifo => (FileKind::Fifo, 0),
        _ => (FileKind::Socket, 0),
    };
    source.give(Item::Special { path, kind, rdev, meta })
}
