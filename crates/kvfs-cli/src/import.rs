//! `kvfs import`: a tar stream or a folder straight into a store that is not mounted.
//!
//! What exists already is treated as tar does: a folder is kept and gets the new attributes, everything else is replaced. Owners are
//! numbers, never looked up by name. Nothing is followed inside the store: an entry that would go through a symbolic link is an error,
//! so that no archive can write where its paths do not say.

#[cfg(test)]
mod hostile_tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;
use kvfs::{Caller, FileKind, Fs, Ino, ROOT, SetAttr, TimeSet, Timestamp, WriteHints, XattrFlags};
use rustix::fs::SeekFrom;
use serde::Serialize;

use crate::identity::{self, Identity};
use crate::output::{Exit, Failure, Outcome, Output};
use crate::store::{self, Access, human_size};
use crate::tar_stream::TarStream;
use crate::{pax, text, tree};

/// Copy a tar stream or a folder into an unmounted store.
#[derive(clap::Args)]
#[command(
    after_help = "Keeps owners (as numbers), modes, times, hard links, symbolic links, devices, extended attributes and holes."
)]
pub struct Args {
    /// The store's file.
    store: PathBuf,
    /// A tar file, `-` for a tar stream on standard input, or a folder.
    from: PathBuf,
    /// The folder in the store to copy into; made if it does not exist.
    #[arg(long, value_name = "PATH", default_value = "/")]
    to: OsString,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let folder = args.from.is_dir();
    let stdin = args.from.as_os_str() == "-";
    let tar = match () {
        () if folder => None,
        () if stdin => Some((File::from(rustix_stdin()?), None)),
        () => {
            let cannot = |e| Failure::io(format!("cannot read {}", args.from.display()), &e);
            let file = File::open(&args.from).map_err(cannot)?;
            let meta = file.metadata().map_err(cannot)?;
            Some((file, Some(meta.len()).filter(|_| meta.is_file())))
        }
    };
    if let Some((file, _)) = &tar {
        identity::refuse(Identity::of_path(&args.store), Identity::of_open(file), &args.from)?;
    }
    let begun = Instant::now();
    let store = store::open_waiting(&args.store, Access::ReadWrite, None)?;
    let fs = store.file_system()?;
    let caller =
        Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), pid: std::process::id() };
    // Before anything is made.
    if tree::names(args.to.as_bytes()).next() == Some(HIDDEN) {
        return Err(hidden(args.to.as_bytes()));
    }
    if folder && tree::names(args.to.as_bytes()).next().is_none() && args.from.join(".kvfs").symlink_metadata().is_ok() {
        return Err(hidden(args.from.join(".kvfs").as_os_str().as_bytes()));
    }
    let root = tree::make_folders(&fs, args.to.as_bytes(), caller)?;
    let mut import = Import::new(&fs, root, caller, output);
    let done = match tar {
        Some((file, len)) => {
            let bar = output.progress("importing", len, true);
            import.tar(bar.wrap_read(io::BufReader::with_capacity(1 << 20, file))).inspect(|()| bar.finish_and_clear())
        }
        None => {
            let bar = output.progress("importing", None, true);
            import.folder(&args.from, &args.store, &bar).inspect(|()| bar.finish_and_clear())
        }
    };
    let done = done.and_then(|()| import.finish());
    let counts = import.counts;
    // What was copied before a failure stays, and is on disk.
    let saved = fs.shutdown().map_err(|e| tree::failure("the last changes could not be written", e));
    drop(fs);
    let closed = store.close();
    done.and(saved).and(closed)?;
    let seconds = begun.elapsed().as_secs_f64();
    let entries = counts.files + counts.folders + counts.symlinks + counts.hard_links + counts.special;
    let skipped = if counts.skipped > 0 { format!(", {} skipped", counts.skipped) } else { String::new() };
    let text = format!("imported {entries} entries, {} in {seconds:.1} s{skipped}", human_size(counts.bytes));
    output.print(text, counts)
}

fn rustix_stdin() -> Outcome<std::os::fd::OwnedFd> {
    use std::os::fd::AsFd;
    io::stdin().as_fd().try_clone_to_owned().map_err(|e| Failure::io("cannot read standard input", &e))
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    files: u64,
    folders: u64,
    symlinks: u64,
    hard_links: u64,
    /// Devices, fifos, sockets.
    special: u64,
    /// Data written.
    bytes: u64,
    /// Entries or attributes of a kind that a store does not take.
    skipped: u64,
}

/// What an entry is beside its kind and content.
#[derive(Clone, Default)]
struct Meta {
    perm: u16,
    uid: u32,
    gid: u32,
    mtime: Timestamp,
    atime: Option<Timestamp>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What any tar stream leaves in a file system, for the fuzz targets under `fuzz/`.
#[cfg(fuzzing)]
pub fn any_tar(fs: &Fs, bytes: &[u8]) {
    let output = Output::new(true);
    let mut import = Import::new(fs, ROOT, Caller::default(), &output);
    let _ = import.tar(bytes).and_then(|()| import.finish());
}

struct Import<'a> {
    fs: &'a Fs,
    root: Ino,
    caller: Caller,
    output: &'a Output,
    counts: Counts,
    /// The folder that the last entry was in.
    last: Option<(Vec<u8>, Ino)>,
    /// Folders get their attributes at the end: what is put into them changes their times.
    folders: Vec<(Ino, Meta)>,
    notes: u32,
}

/// The name in the root where a mounted store has its views.
const HIDDEN: &[u8] = b".kvfs";

/// What would lie there could not be reached: the views have that name.
fn hidden(path: &[u8]) -> Failure {
    let what = format!(
        "cannot import {}: in the root of a store the name .kvfs belongs to its views (transactions, snapshots)",
        text::show(path)
    );
    Failure::new(Exit::Failed, what).hint("rename it, leave it out, or import into a folder: --to /FOLDER")
}

impl<'a> Import<'a> {
    fn new(fs: &'a Fs, root: Ino, caller: Caller, output: &'a Output) -> Self {
        Import { fs, root, caller, output, counts: Counts::default(), last: None, folders: Vec::new(), notes: 0 }
    }

    fn skip(&mut self, what: String) {
        self.counts.skipped += 1;
        self.notes += 1;
        match self.notes {
            ..=10 => self.output.note(what),
            11 => self.output.note("more of this kind is not shown"),
            _ => {}
        }
    }

    // --- making entries ----------------------------------------------------------------------------------------------

    /// The folder that `path` lies in, made where it is missing, and the last name. `None`: the path is the root itself.
    fn place<'p>(&mut self, path: &'p [u8]) -> Outcome<Option<(Ino, &'p [u8])>> {
        let names: Vec<&[u8]> = tree::names(path).collect();
        if names.contains(&b"..".as_slice()) {
            let what = format!("the entry {} leads out of its folder by `..`", text::show(path));
            return Err(Failure::new(Exit::Failed, what).hint("an archive with such names is not to be trusted"));
        }
        if self.root == ROOT && names.first() == Some(&HIDDEN) {
            return Err(hidden(path));
        }
        let Some((name, folders)) = names.split_last() else { return Ok(None) };
        let key = folders.join(&b'/');
        if let Some((last, ino)) = &self.last
            && *last == key
        {
            return Ok(Some((*ino, name)));
        }
        let mut at = self.root;
        for folder in folders {
            let found = match self.fs.lookup(at, folder) {
                Err(kvfs::Error::NotFound) => self.fs.mkdir(at, folder, 0o755, self.caller),
                found => found,
            };
            let attr = found.map_err(|e| cannot("make the folders of", path, e))?;
            self.fs.forget(attr.ino, 1);
            if attr.kind != FileKind::Dir {
                let what = format!(
                    "the entry {} lies in {}, which is a {}",
                    text::show(path),
                    text::show(folder),
                    tree::kind_name(attr.kind)
                );
                return Err(Failure::new(Exit::Failed, what));
            }
            at = attr.ino;
        }
        self.last = Some((key, at));
        Ok(Some((at, name)))
    }

    /// Removes what is in the way of a new entry. Gives a folder that is there, if `keep_folder`.
    fn clear(&mut self, parent: Ino, name: &[u8], keep_folder: bool) -> kvfs::Result<Option<Ino>> {
        let attr = match self.fs.lookup(parent, name) {
            Err(kvfs::Error::NotFound) => return Ok(None),
            found => found?,
        };
        self.fs.forget(attr.ino, 1);
        match attr.kind {
            FileKind::Dir if keep_folder => return Ok(Some(attr.ino)),
            FileKind::Dir => self.fs.rmdir(parent, name)?,
            _ => self.fs.unlink(parent, name)?,
        }
        self.last = None;
        Ok(None)
    }

    fn make_folder(&mut self, path: &[u8], meta: Meta) -> Outcome {
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
        self.counts.folders += 1;
        self.folders.push((ino, meta));
        Ok(())
    }

    fn make_symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Outcome {
        let Some((parent, name)) = self.place(path)? else { return Ok(()) };
        let made = self.clear(parent, name, false).and_then(|_| self.fs.symlink(parent, name, target, self.caller));
        let ino = made.map_err(|e| cannot("make the symbolic link", path, e))?.ino;
        self.counts.symlinks += 1;
        let done = self.dress(ino, path, meta, false, None);
        self.fs.forget(ino, 1);
        done
    }

    fn make_special(&mut self, path: &[u8], kind: FileKind, rdev: u32, meta: &Meta) -> Outcome {
        let Some((parent, name)) = self.place(path)? else { return Ok(()) };
        let made = self.clear(parent, name, false).and_then(|_| self.fs.mknod(parent, name, kind, meta.perm, rdev, self.caller));
        let ino = made.map_err(|e| cannot("make", path, e))?.ino;
        self.counts.special += 1;
        let done = self.dress(ino, path, meta, true, None);
        self.fs.forget(ino, 1);
        done
    }

    fn make_hard_link(&mut self, path: &[u8], to: &[u8]) -> Outcome {
        let Some((from, name)) = self.place(to)? else { return Ok(()) };
        let source = self.fs.lookup(from, name).map_err(|e| cannot("find the other name of the hard link", to, e))?;
        let made = self.place(path).and_then(|place| match place {
            Some((parent, name)) => {
                let same = self.fs.lookup(parent, name).is_ok_and(|there| {
                    self.fs.forget(there.ino, 1);
                    there.ino == source.ino
                });
                if same {
                    return Ok(());
                }
                let linked = self.clear(parent, name, false).and_then(|_| self.fs.link(source.ino, parent, name));
                linked.map(|attr| self.fs.forget(attr.ino, 1)).map_err(|e| cannot("make the hard link", path, e))
            }
            None => Ok(()),
        });
        self.fs.forget(source.ino, 1);
        self.counts.hard_links += 1;
        made
    }

    /// Makes a file of `size` bytes; `fill` writes what is not zeros.
    fn make_file(&mut self, path: &[u8], meta: &Meta, size: u64, fill: impl FnOnce(&mut Sheet) -> Outcome) -> Outcome {
        let Some((parent, name)) = self.place(path)? else { return Ok(()) };
        let made = self.clear(parent, name, false).and_then(|_| self.fs.mknod(parent, name, FileKind::File, 0o600, 0, self.caller));
        let ino = made.map_err(|e| cannot("make", path, e))?.ino;
        self.counts.files += 1;
        let mut sheet = Sheet { fs: self.fs, ino, path, written: 0 };
        let done = fill(&mut sheet);
        self.counts.bytes += sheet.written;
        let done = done.and_then(|()| self.dress(ino, path, meta, true, Some(size)));
        self.fs.forget(ino, 1);
        done
    }

    /// Owner, mode, size, times, extended attributes; in this order, for a change of owner clears bits of the mode, and a write
    /// would clear capabilities.
    fn dress(&mut self, ino: Ino, path: &[u8], meta: &Meta, mode: bool, size: Option<u64>) -> Outcome {
        let set = SetAttr {
            mode: mode.then_some(meta.perm),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            size: size.filter(|size| *size > 0),
            atime: Some(TimeSet::At(meta.atime.unwrap_or(meta.mtime))),
            mtime: Some(TimeSet::At(meta.mtime)),
            ..SetAttr::default()
        };
        self.fs.setattr(ino, &set, self.caller).map_err(|e| cannot("set the attributes of", path, e))?;
        for (name, value) in &meta.xattrs {
            match self.fs.setxattr(ino, name, value, XattrFlags::Any) {
                Ok(()) => {}
                Err(kvfs::Error::Unsupported(_) | kvfs::Error::NotPermitted(_) | kvfs::Error::ArgumentTooLong) => {
                    self.skip(format!("{}: the attribute {} is left out", text::show(path), text::show(name)));
                }
                Err(e) => return Err(cannot("set the extended attributes of", path, e)),
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome {
        for (ino, meta) in std::mem::take(&mut self.folders) {
            match self.dress(ino, b"a folder", &meta, true, None) {
                // It was replaced by a later entry.
                Err(_) if self.fs.getattr(ino).is_err() => {}
                done => done?,
            }
        }
        Ok(())
    }

    // --- from a tar stream -------------------------------------------------------------------------------------------

    fn tar(&mut self, stream: impl Read) -> Outcome {
        let broken = |e: io::Error| {
            Failure::io("the tar stream cannot be read", &e)
                .hint("is it whole? A compressed one must be unpacked first: zcat FILE | kvfs import STORE -")
        };
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
            let path = records.sparse_name.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
            let header = entry.header();
            let number = |n: io::Result<u64>| n.ok().and_then(|n| u32::try_from(n).ok());
            let meta = Meta {
                perm: (header.mode().map_err(broken)? & 0o7777) as u16,
                uid: records.uid.or_else(|| number(header.uid())).unwrap_or(0),
                gid: records.gid.or_else(|| number(header.gid())).unwrap_or(0),
                mtime: records.mtime.unwrap_or(Timestamp { secs: header.mtime().unwrap_or(0) as i64, nanos: 0 }),
                atime: records.atime,
                xattrs: records.xattrs.clone(),
            };
            let kind = header.entry_type();
            let device = || {
                let (major, minor) = (header.device_major().ok().flatten(), header.device_minor().ok().flatten());
                tree::device_number(major.unwrap_or(0), minor.unwrap_or(0))
            };
            match kind {
                tar::EntryType::Directory => self.make_folder(&path, meta)?,
                tar::EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                    self.make_symlink(&path, &target, &meta)?;
                }
                tar::EntryType::Link => {
                    let to = entry.link_name_bytes().unwrap_or_default().into_owned();
                    self.make_hard_link(&path, &to)?;
                }
                tar::EntryType::Char => self.make_special(&path, FileKind::CharDevice, device(), &meta)?,
                tar::EntryType::Block => self.make_special(&path, FileKind::BlockDevice, device(), &meta)?,
                tar::EntryType::Fifo => self.make_special(&path, FileKind::Fifo, 0, &meta)?,
                // Old archives end a folder's name with a slash and call it a file.
                tar::EntryType::Regular if path.ends_with(b"/") => self.make_folder(&path, meta)?,
                tar::EntryType::Regular | tar::EntryType::Continuous => match records.sparse_map(&mut entry).map_err(broken)? {
                    Some(map) => {
                        let size = records.real_size.or(map.last().map(|(at, len)| at + len)).unwrap_or(0);
                        self.make_file(&path, &meta, size, |sheet| {
                            map.iter().try_for_each(|(at, len)| sheet.copy(&mut (&mut entry).take(*len), *at, false).map(drop))
                        })?;
                    }
                    None => {
                        let size = entry.size();
                        self.make_file(&path, &meta, size, |sheet| sheet.copy(&mut entry, 0, false).map(drop))?;
                    }
                },
                tar::EntryType::GNUSparse => {
                    let size = records.real_size.or_else(|| entry.header().as_gnu().and_then(|h| h.real_size().ok()));
                    self.make_file(&path, &meta, size.unwrap_or(0), |sheet| {
                        let mut parts = holes.iter().flatten();
                        parts.try_for_each(|(at, len)| match sheet.copy(&mut stream.beside(*len), *at, false)? {
                            all if all == *len => Ok(()),
                            _ => Err(broken(io::ErrorKind::UnexpectedEof.into())),
                        })
                    })?;
                }
                other => self.skip(format!("{}: entries of kind {other:?} are left out", text::show(&path))),
            }
        }
        Ok(())
    }

    // --- from a folder -----------------------------------------------------------------------------------------------

    fn folder(&mut self, from: &Path, store: &Path, bar: &ProgressBar) -> Outcome {
        let store = std::fs::metadata(store).map(|m| (m.dev(), m.ino())).ok();
        // The other name of each file that has several.
        let mut linked: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        let meta = host_meta(from, &std::fs::metadata(from).map_err(|e| cannot_read(from, e))?)?;
        self.make_folder(b"", meta)?;
        let mut open = vec![(std::fs::read_dir(from).map_err(|e| cannot_read(from, e))?, Vec::<u8>::new())];
        while let Some((entries, inside)) = open.last_mut() {
            let Some(entry) = entries.next() else {
                open.pop();
                continue;
            };
            let entry = entry.map_err(|e| cannot_read(from, e))?;
            let source = entry.path();
            let mut path = inside.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.file_name().as_bytes());
            let m = match std::fs::symlink_metadata(&source) {
                // It went away since it was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                m => m.map_err(|e| cannot_read(&source, e))?,
            };
            let identity = (m.dev(), m.ino());
            if Some(identity) == store {
                self.skip(format!("{}: the store itself is left out", source.display()));
                continue;
            }
            let meta = host_meta(&source, &m)?;
            let kind = m.file_type();
            if kind.is_dir() {
                self.make_folder(&path, meta)?;
                open.push((std::fs::read_dir(&source).map_err(|e| cannot_read(&source, e))?, path));
                continue;
            }
            if m.nlink() > 1 {
                if let Some(other) = linked.get(&identity) {
                    let other = other.clone();
                    self.make_hard_link(&path, &other)?;
                    continue;
                }
                linked.insert(identity, path.clone());
            }
            let rdev = tree::device_number(rustix::fs::major(m.rdev()), rustix::fs::minor(m.rdev()));
            if kind.is_file() {
                self.host_file(&source, &path, &meta, bar)?;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&source).map_err(|e| cannot_read(&source, e))?;
                self.make_symlink(&path, target.as_os_str().as_bytes(), &meta)?;
            } else {
                let (kind, rdev) = match () {
                    () if kind.is_char_device() => (FileKind::CharDevice, rdev),
                    () if kind.is_block_device() => (FileKind::BlockDevice, rdev),
                    () if kind.is_fifo() => (FileKind::Fifo, 0),
                    () => (FileKind::Socket, 0),
                };
                self.make_special(&path, kind, rdev, &meta)?;
            }
        }
        Ok(())
    }

    fn host_file(&mut self, source: &Path, path: &[u8], meta: &Meta, bar: &ProgressBar) -> Outcome {
        let mut file = File::open(source).map_err(|e| cannot_read(source, e))?;
        let m = file.metadata().map_err(|e| cannot_read(source, e))?;
        let size = m.len();
        let sparse = m.blocks().saturating_mul(512) < size;
        self.make_file(path, meta, size, |sheet| {
            let mut at = 0;
            while at < size {
                let (from, to) = if sparse { data_from(&file, at, size)? } else { (at, size) };
                if from >= size {
                    break;
                }
                if sparse {
                    rustix::fs::seek(&file, SeekFrom::Start(from)).map_err(|e| cannot_read(source, e.into()))?;
                }
                // Not behind the size: a file that grows meanwhile would never end.
                at = from + sheet.copy(&mut bar.wrap_read(&mut file).take(to - from), from, false)?;
                if at < to {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// The next stretch of data at or behind `at`; all the rest where the host does not tell.
fn data_from(file: &File, at: u64, size: u64) -> Outcome<(u64, u64)> {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(rustix::io::Errno::NXIO) => return Ok((size, size)),
        Err(_) => return Ok((at, size)),
    };
    Ok((data, rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(size).min(size)))
}

/// A file being written.
struct Sheet<'a> {
    fs: &'a Fs,
    ino: Ino,
    path: &'a [u8],
    written: u64,
}

impl Sheet<'_> {
    /// Copies all of `from` to `at`; gives how much that was. With `holes`, pages of zeros are left out.
    fn copy(&mut self, from: &mut impl Read, mut at: u64, holes: bool) -> Outcome<u64> {
        let begun = at;
        let mut piece = Vec::with_capacity(64 << 10);
        loop {
            piece.clear();
            let got = from.take(u64::from(tree::PIECE)).read_to_end(&mut piece);
            let got = got.map_err(|e| Failure::io(format!("the content of {} cannot be read", text::show(self.path)), &e))?;
            if got == 0 {
                return Ok(at - begun);
            }
            if holes {
                for (i, page) in piece.chunks(4096).enumerate() {
                    if page.iter().any(|b| *b != 0) {
                        self.write(at + i as u64 * 4096, page)?;
                    }
                }
            } else {
                self.write(at, &piece)?;
            }
            at += got as u64;
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Outcome {
        self.fs.write(self.ino, at, data, WriteHints::default()).map_err(|e| cannot("write", self.path, e))?;
        self.written += data.len() as u64;
        Ok(())
    }
}

fn cannot(doing: &str, path: &[u8], error: kvfs::Error) -> Failure {
    tree::failure(format!("cannot {doing} {}", text::show(path)), error)
}

fn cannot_read(path: &Path, error: io::Error) -> Failure {
    Failure::io(format!("cannot read {}", path.display()), &error)
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

/// The extended attributes of a file of the host; none where the host has none.
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
            // Not for us to read, or gone.
            Err(_) => continue,
        }
    }
    Ok(all)
}
