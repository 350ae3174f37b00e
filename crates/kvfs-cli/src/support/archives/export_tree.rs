//! Writes a tree of files out of a store: into a tar stream (`archive`, `stream`) or a directory
//! (`directory`).

pub mod archive;
pub mod directory;
pub mod stream;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use archive::Tar;
use indicatif::ProgressBar;
use kvfs::{Attr, FileKind, Fs, Ino};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::support::archives::pax;
use crate::support::machine::destination::Judge;
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Raises the limit of open files, since one directory is held open for each level of the tree.
pub fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted);
}

#[derive(Clone, Copy, Default, Serialize)]
pub struct Counts {
    pub entries: u64,
    /// The bytes of data written.
    pub bytes: u64,
    /// Entries or attributes that the target does not support.
    pub skipped: u64,
    /// Entries left out because they, or their content, could not be read.
    pub damaged: u64,
}

/// Counts the entries left out, and reports the first ones.
pub struct Skipped<'a> {
    pub output: &'a Output,
    pub count: u64,
}

impl<'a> Skipped<'a> {
    pub fn new(output: &'a Output) -> Self {
        Skipped { output, count: 0 }
    }
    pub fn note(&mut self, path: &[u8], what: &str) {
        self.count += 1;
        match self.count {
            ..=10 => self.output.note(format!("{}: {what}", text::show(path))),
            11 => self.output.note("more of this kind is not shown"),
            _ => {}
        }
    }
}

/// An entry to export.
pub struct Item<'a> {
    /// The path relative to the exported directory; empty for the directory itself.
    pub path: &'a [u8],
    pub name: &'a [u8],
    pub attr: Attr,
    pub target: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The destination of an export.
pub trait Target {
    /// Writes an entry, and returns the number of data bytes written.
    fn put(&mut self, fs: &Fs, item: &Item<'_>, bar: &ProgressBar) -> Outcome<u64>;
    /// Called after everything in the directory has been written.
    fn leave(&mut self, item: &Item<'_>) -> Outcome;
    fn skipped(&self) -> u64;
}

/// An export in progress.
pub struct Walk<'a> {
    pub fs: &'a Fs,
    pub bar: &'a ProgressBar,
    pub keep_going: bool,
    pub counts: Counts,
    pub output: &'a Output,
}

impl Walk<'_> {
    /// Exports `root` and, if it is a directory, everything below, each directory before its
    /// entries.
    pub fn run(mut self, to: &mut dyn Target, root: Attr, name: &[u8]) -> Outcome<Counts> {
        if root.kind != FileKind::Dir {
            self.put(to, name, name, root)?;
        } else if self.put(to, b"", b"", root)? {
            self.below(to, root)?;
        }
        self.counts.skipped = to.skipped();
        Ok(self.counts)
    }

    pub fn below(&mut self, to: &mut dyn Target, root: Attr) -> Outcome {
        let mut path = Vec::new();
        // Open directories: (listing, attributes of the directory, length of its path).
        let mut open = vec![(tree::Listing::new(root.ino), root, 0)];
        let mut walked = tree::Walked::from(root.ino);
        while let Some((listing, directory, len)) = open.last_mut() {
            path.truncate(*len);
            let cannot = |e| tree::failure(format!("cannot list {}", text::show(&path)), e);
            let entry = match listing.next(self.fs).map_err(cannot) {
                Ok(entry) => entry,
                Err(failure) => {
                    self.damaged(failure)?;
                    None
                }
            };
            let Some(entry) = entry else {
                let item = match read(self.fs, &path, b"", *directory) {
                    Ok(item) => item,
                    Err(failure) => {
                        self.damaged(failure)?;
                        Item {
                            path: &path,
                            name: b"",
                            attr: *directory,
                            target: Vec::new(),
                            xattrs: Vec::new(),
                        }
                    }
                };
                to.leave(&item)?;
                open.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            let attr = match self.fs.getattr(entry.ino) {
                Ok(attr) => attr,
                Err(e) => {
                    self.damaged(tree::failure(format!("cannot read {}", text::show(&path)), e))?;
                    continue;
                }
            };
            if attr.kind == FileKind::Dir
                && let Err(e) = walked.enter(entry.ino)
            {
                self.damaged(tree::failure(format!("cannot read {}", text::show(&path)), e))?;
                continue;
            }
            if self.put(to, &path, &entry.name, attr)? && attr.kind == FileKind::Dir {
                open.push((tree::Listing::new(attr.ino), attr, path.len()));
            }
        }
        Ok(())
    }

    /// Writes an entry. Returns `false` if it is damaged and was left out.
    pub fn put(
        &mut self,
        to: &mut dyn Target,
        path: &[u8],
        name: &[u8],
        attr: Attr,
    ) -> Outcome<bool> {
        let done =
            read(self.fs, path, name, attr).and_then(|item| to.put(self.fs, &item, self.bar));
        match done {
            Ok(bytes) => {
                self.counts.bytes += bytes;
                self.counts.entries += 1;
                Ok(true)
            }
            Err(failure) => self.damaged(failure).map(|()| false),
        }
    }

    /// Reports damage, or returns it as an error unless the export keeps going.
    pub fn damaged(&mut self, failure: Failure) -> Outcome {
        if !self.keep_going || failure.exit != Exit::Damaged {
            return Err(failure);
        }
        self.counts.damaged += 1;
        self.bar.suspend(|| self.output.note(&failure.message));
        Ok(())
    }
}

pub fn read<'a>(fs: &Fs, path: &'a [u8], name: &'a [u8], attr: Attr) -> Outcome<Item<'a>> {
    let failed = |e| tree::failure(format!("cannot read {}", text::show(path)), e);
    let target = if attr.kind == FileKind::Symlink {
        fs.readlink(attr.ino).map_err(failed)?
    } else {
        Vec::new()
    };
    let mut xattrs = Vec::new();
    for name in fs.listxattr(attr.ino).map_err(failed)?.split(|c| *c == 0).filter(|n| !n.is_empty())
    {
        xattrs.push((name.to_vec(), fs.getxattr(attr.ino, name).map_err(failed)?));
    }
    Ok(Item { path, name, attr, target, xattrs })
}
