//! Files whose content has arrived and that are not made yet: many small ones are made together.

use std::collections::HashSet;

use bytes::Bytes;
use kvfs::{FileKind, Fs, Ino, Whole};

use crate::support::archives::import_items::Meta;

/// Files that are made together: at most this many, with at most this many bytes.
const TOGETHER: usize = 1024;
const BYTES_TOGETHER: usize = 4 << 20;

pub struct Waiting {
    fs: Fs,
    files: Vec<Whole>,
    names: HashSet<(Ino, Box<[u8]>)>,
    /// The bytes of the files' contents.
    bytes: usize,
}

impl Waiting {
    pub fn new(fs: Fs) -> Waiting {
        Waiting { fs, files: Vec::new(), names: HashSet::new(), bytes: 0 }
    }

    /// Adds a complete file, and makes all of them if they are many.
    pub fn add(
        &mut self,
        parent: Ino,
        name: Vec<u8>,
        content: Bytes,
        meta: &Meta,
    ) -> kvfs::Result<()> {
        let name: Box<[u8]> = name.into();
        self.names.insert((parent, name.clone()));
        self.bytes += content.len();
        self.files.push(Whole {
            parent,
            name,
            kind: FileKind::File,
            perm: meta.perm,
            uid: meta.uid,
            gid: meta.gid,
            rdev: 0,
            atime: meta.atime.unwrap_or(meta.mtime),
            mtime: meta.mtime,
            content,
        });
        let full = self.files.len() >= TOGETHER || self.bytes >= BYTES_TOGETHER;
        if full { self.make() } else { Ok(()) }
    }

    /// Makes the files that wait.
    pub fn make(&mut self) -> kvfs::Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        self.names.clear();
        self.bytes = 0;
        self.fs.make_whole(&std::mem::take(&mut self.files))
    }

    /// Makes the files that wait if one of them has this name.
    pub fn settle(&mut self, parent: Ino, name: &[u8]) -> kvfs::Result<()> {
        let waits = !self.files.is_empty() && self.names.contains(&(parent, Box::from(name)));
        if waits { self.make() } else { Ok(()) }
    }
}
