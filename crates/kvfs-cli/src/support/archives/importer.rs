//! Makes the items of a source in a file system, or in a transaction's view of one.
//!
//! Existing entries are treated as tar does: a directory is kept and gets the new attributes,
//! everything else is replaced. Owners are numbers, never looked up by name. No symbolic link
//! inside the store is followed: an entry whose path would pass through one is an error, so that an
//! archive can only write where its paths say.

use bytes::Bytes;
use kvfs::{
    COMPRESS_ATTRIBUTE, Caller, FileKind, Fs, Ino, ROOT, SetAttr, TimeSet, Untold, WriteHints,
    XattrFlags,
};
use serde::Serialize;

use crate::support::archives::import_items::{Item, Meta, PIECE};
use crate::support::archives::waiting_files::Waiting;
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;

/// Counts of the imported entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    /// Devices, FIFOs, sockets.
    pub special: u64,
    /// The bytes of data written.
    pub bytes: u64,
    /// Entries or attributes of a kind that a store does not support.
    pub skipped: u64,
}

/// A file being received.
struct Open {
    at: At,
    path: Vec<u8>,
    meta: Meta,
    size: u64,
}

/// The destination of a file's data.
enum At {
    /// The entry has no name, and so no place.
    Nowhere,
    /// The data is written to this inode.
    Made(Ino),
    /// The data is collected, so that the file is made at once with everything: one piece that is
    /// its whole content, or consecutive pieces.
    Gathered { parent: Ino, name: Vec<u8>, all: Bytes, pieces: Vec<u8> },
}

/// The largest file whose content is collected.
const GATHERED: u64 = PIECE as u64;

pub struct Importer {
    fs: Fs,
    root: Ino,
    caller: Caller,
    pub counts: Counts,
    /// The directory of the last entry.
    last: Option<(Vec<u8>, Ino)>,
    /// Directories whose attributes are set at the end, since making entries changes their times.
    directories: Vec<(Ino, Meta)>,
    file: Option<Open>,
    /// Complete files that are not made yet.
    waiting: Waiting,
    /// The first attributes that were left out.
    pub left_out: Vec<String>,
    /// Changes that a kernel may have to be notified of: names in directories that it knows, and
    /// other existing inodes.
    pub names: Vec<(Ino, Box<[u8]>)>,
    pub inodes: Vec<Ino>,
    /// Records those changes before they are made.
    untold: Untold,
}

/// The number of left-out attributes that are named.
const LEFT_OUT: usize = 10;

/// The name of the directory with the views in the root of a mounted store.
const HIDDEN: &[u8] = b".kvfs";

/// Returns the failure for an entry with the name of the views, which would be unreachable.
pub fn hidden(path: &[u8]) -> Failure {
    let what = format!(
        "cannot import {}: in the root of a store the name .kvfs belongs to its views (transactions, snapshots)",
        text::show(path)
    );
    Failure::new(Exit::Failed, what)
        .hint("rename it, leave it out, or import into a directory: --to /DIRECTORY")
}

/// Returns whether a path from the root leads to the views.
pub fn is_hidden(path: &[u8]) -> bool {
    tree::names(path).next() == Some(HIDDEN)
}

impl Importer {
    /// Returns an importer into the directory `to`, which is made if it does not exist.
    pub fn new(fs: Fs, to: &[u8], caller: Caller) -> Outcome<Importer> {
        Importer::noted(fs, to, caller, Untold::default())
    }

    /// Returns an importer like [`Importer::new`] that records changes in `untold` before they are
    /// made.
    pub fn noted(fs: Fs, to: &[u8], caller: Caller, untold: Untold) -> Outcome<Importer> {
        if is_hidden(to) {
            return Err(hidden(to));
        }
        if tree::names(to).any(|name| name == b"..") {
            return Err(Failure::new(
                Exit::Failed,
                format!("the path {} leads out of its directory by `..`", text::show(to)),
            ));
        }
        // The kernel knows no names in a directory that does not exist.
        let mut at = ROOT;
        for name in tree::names(to) {
            untold.add(&[(at, name)], &[at]);
            match fs.peek(at, name) {
                Ok(Some((ino, FileKind::Dir))) => at = ino,
                _ => break,
            }
        }
        untold.add(&[], &[at]);
        let root = tree::make_directories(&fs, to, caller)?;
        let counts = Counts::default();
        let (last, directories, file, left_out) = (None, Vec::new(), None, Vec::new());
        let (names, inodes) = (Vec::new(), vec![root]);
        let waiting = Waiting::new(fs.clone());
        let mut importer = Importer {
            fs,
            root,
            caller,
            counts,
            last,
            directories,
            file,
            waiting,
            left_out,
            names,
            inodes,
            untold,
        };
        // Directories on the way may have been made just now.
        let mut at = ROOT;
        for name in tree::names(to) {
            importer.tell(at, name);
            match importer.fs.peek(at, name) {
                Ok(Some((ino, FileKind::Dir))) => at = ino,
                _ => break,
            }
        }
        Ok(importer)
    }

    pub fn take(&mut self, item: Item) -> Outcome {
        let unexpected =
            || Failure::new(Exit::Failed, "the entries that came are in no order that makes sense");
        match item {
            Item::Data { at, bytes } => {
                let file = self.file.as_mut().ok_or_else(unexpected)?;
                self.counts.bytes +=
                    if matches!(file.at, At::Nowhere) { 0 } else { bytes.len() as u64 };
                if let At::Gathered { all, pieces, .. } = &mut file.at {
                    let came = (all.len() + pieces.len()) as u64;
                    match at == came && bytes.len() as u64 <= file.size - came {
                        true if bytes.len() as u64 == file.size => *all = bytes,
                        true => pieces.extend_from_slice(&bytes),
                        false => {
                            self.make_gathered()?;
                            return self.write(at, &bytes);
                        }
                    }
                    return Ok(());
                }
                self.write(at, &bytes)
            }
            Item::End => {
                let file = self.file.as_ref().ok_or_else(unexpected)?;
                if let At::Gathered { all, pieces, .. } = &file.at
                    && (all.len() + pieces.len()) as u64 != file.size
                {
                    self.make_gathered()?;
                }
                let Open { at, path, meta, size } = self.file.take().ok_or_else(unexpected)?;
                match at {
                    At::Nowhere => Ok(()),
                    At::Made(ino) => {
                        let done = self.dress(ino, &path, &meta, true, Some(size));
                        self.fs.forget(ino, 1);
                        done
                    }
                    At::Gathered { parent, name, all, pieces } => {
                        let content = if all.is_empty() { pieces.into() } else { all };
                        let added = self.waiting.add(parent, name, content, &meta);
                        added.map_err(last_failed)
                    }
                }
            }
            _ if self.file.is_some() => Err(unexpected()),
            Item::Directory { path, meta } => self.make_directory(&path, meta),
            Item::Symlink { path, target, meta } => self.make_symlink(&path, &target, &meta),
            Item::Special { path, kind, rdev, meta } => self.make_special(&path, kind, rdev, &meta),
            Item::Link { path, to } => self.make_hard_link(&path, &to),
            Item::File { path, meta, size } => self.make_file(path, meta, size),
        }
    }

    /// Records that a name of a directory is about to change.
    fn tell(&mut self, dir: Ino, name: &[u8]) {
        if self.fs.is_referenced(dir) {
            self.names.push((dir, name.into()));
            self.untold.add(&[(dir, name)], &[dir]);
            if self.inodes.last() != Some(&dir) {
                self.inodes.push(dir);
            }
        }
    }

    /// Records that an existing inode is about to change.
    fn tell_inode(&mut self, ino: Ino) {
        self.untold.add(&[], &[ino]);
        self.inodes.push(ino);
    }

    fn skip(&mut self, what: String) {
        self.counts.skipped += 1;
        if self.left_out.len() < LEFT_OUT {
            self.left_out.push(what);
        }
    }

    /// Returns the directory of `path`, made if it is missing, and the last name. Returns `None` if
    /// the path is the root itself.
    fn place<'p>(&mut self, path: &'p [u8]) -> Outcome<Option<(Ino, &'p [u8])>> {
        let names: Vec<&[u8]> = tree::names(path).collect();
        if names.contains(&b"..".as_slice()) {
            let what = format!("the entry {} leads out of its directory by `..`", text::show(path));
            return Err(Failure::new(Exit::Failed, what)
                .hint("an archive with such names is not to be trusted"));
        }
        if self.root == ROOT && names.first() == Some(&HIDDEN) {
            return Err(hidden(path));
        }
        let Some((name, directories)) = names.split_last() else { return Ok(None) };
        let key = directories.join(&b'/');
        if let Some((last, ino)) = &self.last
            && *last == key
        {
            return Ok(Some((*ino, name)));
        }
        let mut at = self.root;
        for directory in directories {
            self.waiting
                .settle(at, directory)
                .map_err(|e| cannot("make the directories of", path, e))?;
            let found = match self.fs.lookup(at, directory) {
                Err(kvfs::Error::NotFound) => {
                    self.tell(at, directory);
                    self.fs.mkdir(at, directory, 0o755, self.caller)
                }
                found => found,
            };
            let attr = found.map_err(|e| cannot("make the directories of", path, e))?;
            self.fs.forget(attr.ino, 1);
            if attr.kind != FileKind::Dir {
                let what = format!(
                    "the entry {} lies in {}, which is a {}",
                    text::show(path),
                    text::show(directory),
                    tree::kind_name(attr.kind)
                );
                return Err(Failure::new(Exit::Failed, what));
            }
            at = attr.ino;
        }
        self.last = Some((key, at));
        Ok(Some((at, name)))
    }

    /// Removes an existing entry in favour of a new one. An existing directory is returned instead
    /// if `keep_directory` is set.
    fn clear(
        &mut self,
        parent: Ino,
        name: &[u8],
        keep_directory: bool,
    ) -> kvfs::Result<Option<Ino>> {
        self.tell(parent, name);
        self.waiting.settle(parent, name)?;
        let attr = match self.fs.lookup(parent, name) {
            Err(kvfs::Error::NotFound) => return Ok(None),
            found => found?,
        };
        self.fs.forget(attr.ino, 1);
        match attr.kind {
            FileKind::Dir if keep_directory => {
                self.tell_inode(attr.ino);
                return Ok(Some(attr.ino));
            }
            FileKind::Dir => {
                // Make the pending files first: a directory with pending files is not empty.
                self.make_waiting()?;
                self.fs.rmdir(parent, name)?;
            }
            _ => {
                // The file may have other names, and its link count changes.
                if self.fs.is_referenced(attr.ino) {
                    self.tell_inode(attr.ino);
                }
                self.fs.unlink(parent, name)?;
            }
        }
        self.last = None;
        Ok(None)
    }

    fn make_directory(&mut self, path: &[u8], meta: Meta) -> Outcome {
        let ino = match self.place(path)? {
            None => self.root,
            Some((parent, name)) => {
                let there = self.clear(parent, name, true);
                let made = there.and_then(|there| match there {
                    Some(ino) => Ok(ino),
                    None => self.fs.mkdir(parent, name, 0o700, self.caller).map(|attr| {
                        self.fs.forget(attr.ino, 1);
                        attr.ino
                    }),
                });
                made.map_err(|e| cannot("make", path, e))?
            }
        };
        self.counts.directories += 1;
        self.directories.push((ino, meta));
        Ok(())
    }

    fn make_symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Outcome {
        let Some((parent, name)) = self.place(path)? else { return Ok(()) };
        let made = self
            .clear(parent, name, false)
            .and_then(|_| self.fs.symlink(parent, name, target, self.caller));
        let ino = made.map_err(|e| cannot("make the symbolic link", path, e))?.ino;
        self.counts.symlinks += 1;
        let done = self.dress(ino, path, meta, false, None);
        self.fs.forget(ino, 1);
        done
    }

    fn make_special(&mut self, path: &[u8], kind: FileKind, rdev: u32, meta: &Meta) -> Outcome {
        let Some((parent, name)) = self.place(path)? else { return Ok(()) };
        let made = self
            .clear(parent, name, false)
            .and_then(|_| self.fs.mknod(parent, name, kind, meta.perm, rdev, self.caller));
        let ino = made.map_err(|e| cannot("make", path, e))?.ino;
        self.counts.special += 1;
        let done = self.dress(ino, path, meta, true, None);
        self.fs.forget(ino, 1);
        done
    }

    fn make_hard_link(&mut self, path: &[u8], to: &[u8]) -> Outcome {
        let Some((from, name)) = self.place(to)? else { return Ok(()) };
        self.waiting
            .settle(from, name)
            .map_err(|e| cannot("find the other name of the hard link", to, e))?;
        let source = self
            .fs
            .lookup(from, name)
            .map_err(|e| cannot("find the other name of the hard link", to, e))?;
        let made = self.place(path).and_then(|place| match place {
            Some((parent, name)) => {
                let same = self.fs.lookup(parent, name).is_ok_and(|there| {
                    self.fs.forget(there.ino, 1);
                    there.ino == source.ino
                });
                if same {
                    return Ok(());
                }
                let cleared = self.clear(parent, name, false);
                self.tell_inode(source.ino);
                let linked = cleared.and_then(|_| self.fs.link(source.ino, parent, name));
                linked
                    .map(|attr| self.fs.forget(attr.ino, 1))
                    .map_err(|e| cannot("make the hard link", path, e))
            }
            None => Ok(()),
        });
        self.fs.forget(source.ino, 1);
        self.counts.hard_links += 1;
        made
    }

    fn make_file(&mut self, path: Vec<u8>, meta: Meta, size: u64) -> Outcome {
        let Some((parent, name)) = self.place(&path)? else {
            self.file = Some(Open { at: At::Nowhere, path, meta, size });
            return Ok(());
        };
        self.clear(parent, name, false).map_err(|e| cannot("make", &path, e))?;
        self.counts.files += 1;
        let name = name.to_vec();
        let at = At::Gathered { parent, name, all: Bytes::new(), pieces: Vec::new() };
        let whole = size <= GATHERED && meta.xattrs.is_empty();
        self.file = Some(Open { at, path, meta, size });
        if whole { Ok(()) } else { self.make_gathered() }
    }

    /// Makes the file being received, because its data is too much to collect, or is out of order.
    fn make_gathered(&mut self) -> Outcome {
        let Some(Open { at: At::Gathered { parent, name, all, pieces }, path, meta, .. }) =
            &self.file
        else {
            return Ok(());
        };
        let made = self.fs.mknod(*parent, name, FileKind::File, 0o600, 0, self.caller);
        let ino = made.map_err(|e| cannot("make", path, e))?.ino;
        // Pages of a large file are committed, and compressed, before its other attributes are set.
        // If this one is refused, it is left out then.
        let ways = meta.xattrs.iter().filter(|(name, _)| name == COMPRESS_ATTRIBUTE.as_bytes());
        for (name, value) in ways {
            let _ = self.fs.setxattr(ino, name, value, XattrFlags::Any);
        }
        let data = if all.is_empty() { Bytes::copy_from_slice(pieces) } else { all.clone() };
        if let Some(file) = &mut self.file {
            file.at = At::Made(ino);
        }
        self.write(0, &data)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Outcome {
        match &self.file {
            Some(Open { at: At::Made(ino), path, .. }) if !data.is_empty() => self
                .fs
                .write(*ino, at, data, WriteHints::default())
                .map(drop)
                .map_err(|e| cannot("write", path, e)),
            _ => Ok(()),
        }
    }

    /// Makes the pending files.
    pub fn make_waiting(&mut self) -> kvfs::Result<()> {
        self.waiting.make()
    }

    /// Sets owner, mode, size, times and extended attributes, in this order: a change of owner
    /// clears bits of the mode, and a write would clear capabilities.
    fn dress(
        &mut self,
        ino: Ino,
        path: &[u8],
        meta: &Meta,
        mode: bool,
        size: Option<u64>,
    ) -> Outcome {
        let set = SetAttr {
            mode: mode.then_some(meta.perm),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            size: size.filter(|size| *size > 0),
            atime: Some(TimeSet::At(meta.atime.unwrap_or(meta.mtime))),
            mtime: Some(TimeSet::At(meta.mtime)),
            ..SetAttr::default()
        };
        self.fs
            .setattr(ino, &set, self.caller)
            .map_err(|e| cannot("set the attributes of", path, e))?;
        for (name, value) in &meta.xattrs {
            match self.fs.setxattr(ino, name, value, XattrFlags::Any) {
                Ok(()) => {}
                Err(
                    kvfs::Error::Unsupported(_)
                    | kvfs::Error::NotPermitted(_)
                    | kvfs::Error::Invalid(_)
                    | kvfs::Error::ArgumentTooLong,
                ) => {
                    self.skip(format!(
                        "{}: the attribute {} is left out",
                        text::show(path),
                        text::show(name)
                    ));
                }
                Err(e) => return Err(cannot("set the extended attributes of", path, e)),
            }
        }
        Ok(())
    }

    /// Finishes the import after the last item.
    pub fn finish(&mut self) -> Outcome {
        if self.file.is_some() {
            return Err(Failure::new(Exit::Failed, "a file without its end"));
        }
        self.make_waiting().map_err(last_failed)?;
        for (ino, meta) in std::mem::take(&mut self.directories) {
            match self.dress(ino, b"a directory", &meta, true, None) {
                // A later entry has replaced the directory.
                Err(_) if self.fs.getattr(ino).is_err() => {}
                done => done?,
            }
        }
        Ok(())
    }
}

fn last_failed(error: kvfs::Error) -> Failure {
    tree::failure("cannot make the files that came last", error)
}

fn cannot(doing: &str, path: &[u8], error: kvfs::Error) -> Failure {
    tree::failure(format!("cannot {doing} {}", text::show(path)), error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvdb::Kvdb;
    use kvfs::{FsOptions, Timestamp};

    use super::*;

    #[test]
    fn a_large_file_is_compressed_by_the_way_that_the_archive_tells() {
        let db = Kvdb::in_memory();
        // Pages are committed long before the file is complete.
        let options = FsOptions { write_buffer: 1 << 20, ..FsOptions::default() };
        let env = Arc::new(env::Simulated::new(1));
        let fs = Fs::open(db.clone(), env, options).expect("a file system");
        let way = (COMPRESS_ATTRIBUTE.as_bytes().to_vec(), b"zstd".to_vec());
        let meta = Meta {
            perm: 0o644,
            uid: 1,
            gid: 1,
            mtime: Timestamp { secs: 1, nanos: 0 },
            atime: None,
            xattrs: vec![way],
        };
        let mut importer = Importer::new(fs.clone(), b"/", Caller::default()).expect("a directory");
        let mut text = b"a line of a text like many others\n".repeat(PIECE / 32);
        text.truncate(PIECE);
        let size = 4 * PIECE as u64;
        importer.take(Item::File { path: b"log".to_vec(), meta, size }).expect("made");
        for n in 0..4 {
            let (at, bytes) = (n * PIECE as u64, Bytes::copy_from_slice(&text));
            importer.take(Item::Data { at, bytes }).expect("written");
        }
        importer.take(Item::End).expect("complete");
        importer.finish().expect("all is made");
        fs.shutdown().expect("written");
        db.flush().expect("flushed");
        let dmap = db.dictionary("dmap").expect("the pages");
        let view = db.view();
        let mut pages = view.stored_tuples(dmap).expect("pages");
        let mut count = 0;
        while pages.advance().expect("a page") {
            let stored = pages.current().map_or(0, |page| page.stored_bytes());
            assert!(stored < 2048, "page {count} takes {stored} bytes");
            count += 1;
        }
        assert_eq!(count, size / 4096);
    }
}
