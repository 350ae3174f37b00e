//! Reads the source of an import item by item: a tar stream, or a directory of this machine.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, ReadDir};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use kvfs::{FileKind, Timestamp};
use rustix::fs::SeekFrom;

use crate::support::archives::import_items::{Item, Meta, PIECE};
use crate::support::archives::pax;
use crate::support::archives::tar_stream::TarStream;
use crate::support::stores::tree;
use crate::support::terminal::output::{Failure, Outcome, Output};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Reads a source, and passes its items to `give`.
pub struct Source<'a> {
    output: &'a Output,
    give: &'a mut dyn FnMut(Item) -> Outcome,
    /// Entries of a kind that a store does not support.
    pub skipped: u64,
}

impl<'a> Source<'a> {
    pub fn new(output: &'a Output, give: &'a mut dyn FnMut(Item) -> Outcome) -> Self {
        Source { output, give, skipped: 0 }
    }

    fn skip(&mut self, what: String) {
        self.skipped += 1;
        match self.skipped {
            ..=10 => self.output.note(what),
            11 => self.output.note("more of this kind is not shown"),
            _ => {}
        }
    }

    /// Passes on an item.
    pub fn give(&mut self, item: Item) -> Outcome {
        (self.give)(item)
    }

    /// Passes on data at offset `at`, at most `len` bytes, that `read` appends to a buffer. Returns
    /// the number of bytes. `read` gets the number of bytes to append, and may append fewer only at
    /// the end.
    fn copy(
        &mut self,
        path: &[u8],
        mut read: impl FnMut(usize, &mut Vec<u8>) -> io::Result<()>,
        at: u64,
        len: u64,
    ) -> Outcome<u64> {
        let mut done = 0;
        while done < len {
            // Allocate once, and trust the length that an archive claims for at most one piece.
            let most = (len - done).min(PIECE as u64) as usize;
            let mut bytes = Vec::with_capacity(most);
            read(most, &mut bytes).map_err(|e| {
                Failure::io(format!("the content of {} cannot be read", text::show(path)), &e)
            })?;
            let got = bytes.len() as u64;
            if got == 0 {
                break;
            }
            self.give(Item::Data { at: at + done, bytes: bytes.into() })?;
            done += got;
        }
        Ok(done)
    }

    pub fn tar(&mut self, stream: impl BufRead) -> Outcome {
        let stream = TarStream::new(stream);
        let mut archive = tar::Archive::new(stream.clone());
        archive.set_ignore_zeros(false);
        let mut entries = archive.entries().map_err(broken)?;
        let mut passed = 0;
        loop {
            stream.pass(passed);
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(broken)?;
            let (end, holes) = stream.found(&entry).map_err(broken)?;
            passed = end;
            let records = pax::Records::read(&mut entry).map_err(broken)?;
            let path =
                records.sparse_name.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
            let meta = meta_of(entry.header(), &records).map_err(broken)?;
            match entry.header().entry_type() {
                tar::EntryType::Directory => self.give(Item::Directory { path, meta })?,
                tar::EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                    self.give(Item::Symlink { path, target, meta })?;
                }
                tar::EntryType::Link => {
                    let to = entry.link_name_bytes().unwrap_or_default().into_owned();
                    self.give(Item::Link { path, to })?;
                }
                tar::EntryType::Char => {
                    let (kind, rdev) = (FileKind::CharDevice, device_of(entry.header()));
                    self.give(Item::Special { path, kind, rdev, meta })?;
                }
                tar::EntryType::Block => {
                    let (kind, rdev) = (FileKind::BlockDevice, device_of(entry.header()));
                    self.give(Item::Special { path, kind, rdev, meta })?;
                }
                tar::EntryType::Fifo => {
                    self.give(Item::Special { path, kind: FileKind::Fifo, rdev: 0, meta })?
                }
                // Old archives mark a directory as a file whose name ends with a slash.
                tar::EntryType::Regular if path.ends_with(b"/") => {
                    self.give(Item::Directory { path, meta })?
                }
                tar::EntryType::Regular | tar::EntryType::Continuous => {
                    self.tar_file(&mut entry, &stream, &records, (path, meta))?;
                }
                tar::EntryType::GNUSparse => {
                    let in_header = || entry.header().as_gnu().and_then(|h| h.real_size().ok());
                    let size = records.real_size.or_else(in_header).unwrap_or(0);
                    self.give(Item::File { path: path.clone(), meta, size })?;
                    for (at, len) in holes.iter().flatten() {
                        let read = |most, bytes: &mut Vec<u8>| stream.read_content(most, bytes);
                        if self.copy(&path, read, *at, *len)? != *len {
                            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
                        }
                    }
                    self.give(Item::End)?;
                }
                other => self
                    .skip(format!("{}: entries of kind {other:?} are left out", text::show(&path))),
            }
        }
        Ok(())
    }

    /// Passes on a file of an archive. Its records may say where its data lies.
    fn tar_file<R: BufRead>(
        &mut self,
        entry: &mut tar::Entry<'_, TarStream<R>>,
        stream: &TarStream<R>,
        records: &pax::Records,
        (path, meta): (Vec<u8>, Meta),
    ) -> Outcome {
        match records.sparse_map(entry).map_err(broken)? {
            Some(map) => {
                let size = records.real_size.or(map.last().map(|(at, len)| at + len)).unwrap_or(0);
                self.give(Item::File { path: path.clone(), meta, size })?;
                for (at, len) in &map {
                    let read = |most, bytes: &mut Vec<u8>| append(entry, most, bytes);
                    self.copy(&path, read, *at, *len)?;
                }
            }
            None => {
                let size = entry.size();
                self.give(Item::File { path: path.clone(), meta, size })?;
                self.copy(&path, |most, bytes| stream.read_content(most, bytes), 0, size)?;
            }
        }
        self.give(Item::End)
    }

    pub fn directory(&mut self, from: &Path, store: &Path, bar: &ProgressBar) -> Outcome {
        let store = std::fs::metadata(store).map(|m| (m.dev(), m.ino())).ok();
        // The first name of each file that has several.
        let mut linked: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        let meta = host_meta(from, &std::fs::metadata(from).map_err(|e| cannot_read(from, e))?)?;
        self.give(Item::Directory { path: Vec::new(), meta })?;
        let mut open = vec![Listing::of(from, Vec::new())?];
        while let Some(listing) = open.last_mut() {
            let Some(name) = listing.next()? else {
                open.pop();
                continue;
            };
            let source = listing.directory.join(&name);
            let mut path = listing.inside.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let m = match std::fs::symlink_metadata(&source) {
                // The file was removed after it was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                m => m.map_err(|e| cannot_read(&source, e))?,
            };
            let identity = (m.dev(), m.ino());
            if Some(identity) == store {
                self.skip(format!("{}: the store itself is left out", source.shown()));
                continue;
            }
            let meta = host_meta(&source, &m)?;
            let kind = m.file_type();
            if kind.is_dir() {
                self.give(Item::Directory { path: path.clone(), meta })?;
                open.push(Listing::of(&source, path)?);
                continue;
            }
            if m.nlink() > 1 {
                if let Some(other) = linked.get(&identity) {
                    let other = other.clone();
                    self.give(Item::Link { path, to: other })?;
                    continue;
                }
                linked.insert(identity, path.clone());
            }
            let rdev =
                tree::device_number(rustix::fs::major(m.rdev()), rustix::fs::minor(m.rdev()));
            if kind.is_file() {
                self.host_file(&source, &path, meta, bar)?;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&source).map_err(|e| cannot_read(&source, e))?;
                self.give(Item::Symlink {
                    path,
                    target: target.as_os_str().as_bytes().to_vec(),
                    meta,
                })?;
            } else {
                let (kind, rdev) = match () {
                    () if kind.is_char_device() => (FileKind::CharDevice, rdev),
                    () if kind.is_block_device() => (FileKind::BlockDevice, rdev),
                    () if kind.is_fifo() => (FileKind::Fifo, 0),
                    () => (FileKind::Socket, 0),
                };
                self.give(Item::Special { path, kind, rdev, meta })?;
            }
        }
        Ok(())
    }

    fn host_file(&mut self, source: &Path, path: &[u8], meta: Meta, bar: &ProgressBar) -> Outcome {
        let file = File::open(source).map_err(|e| cannot_read(source, e))?;
        self.open_file(file, source, path, meta, bar)
    }

    /// Passes on an open file of this machine, with its holes. `source` is its path for messages.
    pub fn open_file(
        &mut self,
        mut file: File,
        source: &Path,
        path: &[u8],
        meta: Meta,
        bar: &ProgressBar,
    ) -> Outcome {
        let m = file.metadata().map_err(|e| cannot_read(source, e))?;
        let size = m.len();
        let sparse = m.blocks().saturating_mul(512) < size;
        self.give(Item::File { path: path.to_vec(), meta, size })?;
        let mut at = 0;
        while at < size {
            let (from, to) = if sparse { data_from(&file, at, size) } else { (at, size) };
            if from >= size {
                break;
            }
            if sparse {
                rustix::fs::seek(&file, SeekFrom::Start(from))
                    .map_err(|e| cannot_read(source, e.into()))?;
            }
            // Stop at the size: a file that grows during the import would never end.
            let read = |most, bytes: &mut Vec<u8>| {
                // The bar's own reader would zero the buffer first.
                append(&mut file, most, bytes).inspect(|()| bar.inc(bytes.len() as u64))
            };
            at = from + self.copy(path, read, from, to - from)?;
            if at < to {
                break;
            }
        }
        self.give(Item::End)
    }
}

/// The number of a directory's names that are sorted at a time.
const SORTED: usize = 64 << 10;

/// A directory of the host that is being read. A store lists names in sorted order, so its files
/// should be made, and numbered, in that order instead of the host's.
struct Listing {
    directory: PathBuf,
    entries: ReadDir,
    /// The path in the import.
    inside: Vec<u8>,
    /// Names that were read but not returned yet, last first.
    names: Vec<OsString>,
}

impl Listing {
    fn of(directory: &Path, inside: Vec<u8>) -> Outcome<Listing> {
        let entries = std::fs::read_dir(directory).map_err(|e| cannot_read(directory, e))?;
        Ok(Listing { directory: directory.into(), entries, inside, names: Vec::new() })
    }

    fn next(&mut self) -> Outcome<Option<OsString>> {
        if self.names.is_empty() {
            for entry in self.entries.by_ref().take(SORTED) {
                let entry = entry.map_err(|e| cannot_read(&self.directory, e))?;
                self.names.push(entry.file_name());
            }
            self.names.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(self.names.pop())
    }
}

fn broken(e: io::Error) -> Failure {
    Failure::io("the tar stream cannot be read", &e).hint(
        "is it whole? A compressed one must be unpacked first: zcat FILE | kvfs import STORE -",
    )
}

/// Returns the attributes of an entry. Those that its records do not have are in its header.
fn meta_of(header: &tar::Header, records: &pax::Records) -> io::Result<Meta> {
    let number = |n: io::Result<u64>| n.ok().and_then(|n| u32::try_from(n).ok());
    Ok(Meta {
        perm: (header.mode()? & 0o7777) as u16,
        uid: records.uid.or_else(|| number(header.uid())).unwrap_or(0),
        gid: records.gid.or_else(|| number(header.gid())).unwrap_or(0),
        mtime: records
            .mtime
            .unwrap_or(Timestamp { secs: header.mtime().unwrap_or(0) as i64, nanos: 0 }),
        atime: records.atime,
        xattrs: records.xattrs.clone(),
    })
}

fn device_of(header: &tar::Header) -> u32 {
    let (major, minor) =
        (header.device_major().ok().flatten(), header.device_minor().ok().flatten());
    tree::device_number(major.unwrap_or(0), minor.unwrap_or(0))
}

/// Appends the next `most` bytes of `from`, or as many as there are.
fn append(from: &mut impl Read, most: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    from.take(most as u64).read_to_end(bytes).map(drop)
}

/// Returns the next extent of data at or after `at`, or all the rest if the host does not report
/// extents. It ends at `size`, and begins there or later if there is no more data. Moves the file's
/// position.
pub fn data_from(file: &File, at: u64, size: u64) -> (u64, u64) {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(rustix::io::Errno::NXIO) => return (size, size),
        Err(_) => return (at, size),
    };
    (data, rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(size).min(size))
}

fn cannot_read(path: &Path, error: io::Error) -> Failure {
    Failure::io(format!("cannot read {}", path.shown()), &error)
}

fn host_meta(path: &Path, m: &std::fs::Metadata) -> Outcome<Meta> {
    Ok(Meta {
        perm: (m.mode() & 0o7777) as u16,
        uid: m.uid(),
        gid: m.gid(),
        mtime: Timestamp { secs: m.mtime(), nanos: m.mtime_nsec() as u32 },
        atime: Some(Timestamp { secs: m.atime(), nanos: m.atime_nsec() as u32 }),
        xattrs: host_xattrs(path).map_err(|e| cannot_read(path, e))?,
    })
}

/// Returns the extended attributes of a file of the host, or none if the host does not support
/// them.
fn host_xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::NOSYS) => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    let mut all = Vec::new();
    for name in names[..len].split(|c| *c == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 64 << 10];
        match rustix::fs::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => all.push((name.to_vec(), value[..len].to_vec())),
            // This user cannot read it, or it was removed.
            Err(_) => continue,
        }
    }
    Ok(all)
}
