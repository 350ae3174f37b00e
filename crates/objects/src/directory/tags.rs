//! Tags of files. A tag is the hash of all bytes of an object, but a read of a part must not have
//! to read all bytes. So the writer of a file stores the tag in an extended attribute, with the
//! length and the time of the file. A file may lack a valid attribute because it was copied into
//! the folder, or because its file system has no attributes. Such a file is hashed once, and its
//! tag is remembered while the file does not change.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use env::sync::Mutex;
use rustix::fs::{Stat, XattrFlags, fgetxattr, fsetxattr, fstat};

use crate::object::{Hasher, Tag};

/// The name of the extended attribute.
const NOTE: &str = "user.kvfs.tag";
/// The number of tags of files without a note that are remembered.
const MOST: usize = 4096;
/// The number of bytes of a file that are hashed at once.
const PIECE: usize = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct Tags {
    /// Tags by device and inode, each with the version of the file to which it belongs.
    of_files: Mutex<HashMap<(u64, u64), (String, Tag)>>,
}

/// Returns the length and the time of a file. A file that was edited or copied has a different
/// length or time.
fn version(stat: &Stat) -> String {
    format!("{} {}.{:09}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// Stores the tag of a complete file in its attribute. If that is not possible, readers hash the
/// file.
pub(super) fn note(file: &File, tag: &Tag) {
    if let Ok(stat) = fstat(file) {
        let note = format!("{tag} {}", version(&stat));
        let _ = fsetxattr(file, NOTE, note.as_bytes(), XattrFlags::empty());
    }
}

fn noted(file: &File, stat: &Stat) -> Option<Tag> {
    let mut note = [0; 256];
    let len = fgetxattr(file, NOTE, &mut note[..]).ok()?;
    let (tag, of) = std::str::from_utf8(note.get(..len)?).ok()?.split_once(' ')?;
    (of == version(stat)).then(|| Tag::new(tag))
}

impl Tags {
    pub fn of_file(&self, file: &File, stat: &Stat) -> io::Result<Tag> {
        if let Some(tag) = noted(file, stat) {
            return Ok(tag);
        }
        let inode = (stat.st_dev, stat.st_ino);
        // A file that reuses the inode number of a deleted file has a different time of its last
        // change.
        let version = format!("{} {}.{:09}", version(stat), stat.st_ctime, stat.st_ctime_nsec);
        if let Some((of, tag)) = self.of_files.lock().get(&inode)
            && *of == version
        {
            return Ok(tag.clone());
        }
        let tag = hash(file)?;
        let mut of_files = self.of_files.lock();
        if of_files.len() >= MOST {
            of_files.clear();
        }
        of_files.insert(inode, (version, tag.clone()));
        Ok(tag)
    }
}

fn hash(file: &File) -> io::Result<Tag> {
    let mut hasher = Hasher::default();
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        match file.read_at(&mut piece, at) {
            Ok(0) => return Ok(hasher.tag()),
            Ok(n) => {
                hasher.update(&piece[..n]);
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
