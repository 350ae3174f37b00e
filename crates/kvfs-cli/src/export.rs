//! `kvfs export`: the files of a store that is not mounted, as a tar stream or into a folder of the host.
//!
//! The tar stream is POSIX (PAX), the form that GNU tar, bsdtar and Python read: times with nanoseconds, names of any length, extended
//! attributes as `SCHILY.xattr.*`, sparse files as GNU's version 1.0.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use kvfs::{Attr, FileKind, Fs, Ino};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::output::{Exit, Failure, Outcome, Output};
use crate::store::{self, Access, human_size};
use crate::{pax, text, tree};

/// Copy files of an unmounted store into a tar stream or a folder.
#[derive(clap::Args)]
#[command(after_help = "\
Keeps owners (as numbers; into a folder only as root), modes, times, hard links, symbolic links, devices, extended attributes
and holes. A folder that exists is added to; a path that ends in a slash is made a folder.")]
pub struct Args {
    /// The store's file.
    store: PathBuf,
    /// A tar file to make, `-` for a tar stream on standard output, or a folder.
    to: PathBuf,
    /// What to copy: a folder's content, or one file.
    #[arg(long, value_name = "PATH", default_value = "/")]
    from: OsString,
    /// Leave out what is damaged, name it, and end with exit code 5; without this the first damage ends the export.
    #[arg(long)]
    keep_going: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let begun = Instant::now();
    let store = store::open_waiting(&args.store, Access::ReadOnly, None)?;
    let fs = store.file_system()?;
    let root = tree::find(&fs, args.from.as_bytes())?;
    let stdout = args.to.as_os_str() == "-";
    let bar = output.progress("exporting", None, true);
    let cannot = |e: io::Error| Failure::io(format!("cannot write {}", args.to.display()), &e);
    let name = tree::names(args.from.as_bytes()).last().unwrap_or(b"file").to_vec();
    let walk = || Walk { fs: &fs, bar: &bar, keep_going: args.keep_going, counts: Counts::default(), output };
    let tar = |file: File, what: &str| -> Outcome<Counts> {
        let cannot = |e: io::Error| Failure::io(format!("cannot write {what}"), &e);
        let out: Box<dyn Write> = Box::new(io::BufWriter::with_capacity(1 << 20, file));
        let builder = tar::Builder::new(out);
        let mut tar = Tar { builder, linked: HashMap::new(), proof_read: args.keep_going, skipped: Skipped::new(output) };
        let counts = walk().run(&mut tar, root, &name)?;
        tar.builder.into_inner().and_then(|mut out| out.flush()).map_err(cannot)?;
        Ok(counts)
    };
    let counts = if args.to.is_dir() || args.to.as_os_str().as_bytes().ends_with(b"/") {
        std::fs::create_dir_all(&args.to).map_err(cannot)?;
        let at = rustix::fs::open(&args.to, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| cannot(e.into()))?;
        raise_open_files();
        let mut folder =
            Folder { at: vec![at], root: args.to.clone(), linked: HashMap::new(), owner: is_root(), skipped: Skipped::new(output) };
        walk().run(&mut folder, root, &name)?
    } else if stdout {
        if std::io::IsTerminal::is_terminal(&io::stdout()) {
            return Err(Failure::new(Exit::Usage, "a tar stream is not for a terminal")
                .hint("give a file's name instead of -, or use a pipe"));
        }
        let out = io::stdout().as_fd().try_clone_to_owned().map_err(cannot)?;
        tar(File::from(out), "standard output")?
    } else {
        let file = File::create(&args.to).map_err(cannot)?;
        tar(file, &args.to.display().to_string())?
    };
    bar.finish_and_clear();
    drop(fs);
    store.close()?;
    let whole = match counts.damaged {
        0 => Ok(()),
        n => Err(Failure::new(Exit::Damaged, format!("{n} entries of {} are damaged and were left out", args.store.display()))),
    };
    if stdout {
        return whole;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let skipped = if counts.skipped > 0 { format!(", {} skipped", counts.skipped) } else { String::new() };
    let text = format!("exported {} entries, {} in {seconds:.1} s{skipped}", counts.entries, human_size(counts.bytes));
    output.print(text, counts)?;
    whole
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder is held open for each level of the tree.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted);
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    entries: u64,
    /// Data written.
    bytes: u64,
    /// Entries or attributes that the target does not take.
    skipped: u64,
    /// Entries left out because they, or what is in them, could not be read.
    damaged: u64,
}

/// What is left out, told for the first ones.
struct Skipped<'a> {
    output: &'a Output,
    count: u64,
}

impl<'a> Skipped<'a> {
    fn new(output: &'a Output) -> Self {
        Skipped { output, count: 0 }
    }
    fn note(&mut self, path: &[u8], what: &str) {
        self.count += 1;
        match self.count {
            ..=10 => self.output.note(format!("{}: {what}", text::show(path))),
            11 => self.output.note("more of this kind is not shown"),
            _ => {}
        }
    }
}

/// One entry on its way out.
struct Item<'a> {
    /// From the folder that is exported; empty for itself.
    path: &'a [u8],
    name: &'a [u8],
    attr: Attr,
    target: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where entries go.
trait Target {
    /// Gives the bytes of data that were written.
    fn put(&mut self, fs: &Fs, item: &Item<'_>, bar: &ProgressBar) -> Outcome<u64>;
    /// Everything in the folder has been put.
    fn leave(&mut self, item: &Item<'_>) -> Outcome;
    fn skipped(&self) -> u64;
}

/// One export under way.
struct Walk<'a> {
    fs: &'a Fs,
    bar: &'a ProgressBar,
    keep_going: bool,
    counts: Counts,
    output: &'a Output,
}

impl Walk<'_> {
    /// Puts `root`, and everything below where it is a folder, each folder before what is in it.
    fn run(mut self, to: &mut dyn Target, root: Attr, name: &[u8]) -> Outcome<Counts> {
        if root.kind != FileKind::Dir {
            self.put(to, name, name, root)?;
        } else if self.put(to, b"", b"", root)? {
            self.below(to, root)?;
        }
        self.counts.skipped = to.skipped();
        Ok(self.counts)
    }

    fn below(&mut self, to: &mut dyn Target, root: Attr) -> Outcome {
        let mut path = Vec::new();
        // (listing, attributes of the folder, length of its path)
        let mut open = vec![(tree::Listing::new(root.ino), root, 0)];
        while let Some((listing, folder, len)) = open.last_mut() {
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
                let item = match read(self.fs, &path, b"", *folder) {
                    Ok(item) => item,
                    Err(failure) => {
                        self.damaged(failure)?;
                        Item { path: &path, name: b"", attr: *folder, target: Vec::new(), xattrs: Vec::new() }
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
            if self.put(to, &path, &entry.name, attr)? && attr.kind == FileKind::Dir {
                open.push((tree::Listing::new(attr.ino), attr, path.len()));
            }
        }
        Ok(())
    }

    /// `false`: it is damaged and was left out.
    fn put(&mut self, to: &mut dyn Target, path: &[u8], name: &[u8], attr: Attr) -> Outcome<bool> {
        let done = read(self.fs, path, name, attr).and_then(|item| to.put(self.fs, &item, self.bar));
        match done {
            Ok(bytes) => {
                self.counts.bytes += bytes;
                self.counts.entries += 1;
                Ok(true)
            }
            Err(failure) => self.damaged(failure).map(|()| false),
        }
    }

    /// Notes the damage, or gives it back where it ends the export.
    fn damaged(&mut self, failure: Failure) -> Outcome {
        if !self.keep_going || failure.exit != Exit::Damaged {
            return Err(failure);
        }
        self.counts.damaged += 1;
        self.bar.suspend(|| self.output.note(&failure.message));
        Ok(())
    }
}

fn read<'a>(fs: &Fs, path: &'a [u8], name: &'a [u8], attr: Attr) -> Outcome<Item<'a>> {
    let failed = |e| tree::failure(format!("cannot read {}", text::show(path)), e);
    let target = if attr.kind == FileKind::Symlink { fs.readlink(attr.ino).map_err(failed)? } else { Vec::new() };
    let mut xattrs = Vec::new();
    for name in fs.listxattr(attr.ino).map_err(failed)?.split(|c| *c == 0).filter(|n| !n.is_empty()) {
        xattrs.push((name.to_vec(), fs.getxattr(attr.ino, name).map_err(failed)?));
    }
    Ok(Item { path, name, attr, target, xattrs })
}

// --- tar -----------------------------------------------------------------------------------------------------------

struct Tar<'a> {
    builder: tar::Builder<Box<dyn Write>>,
    /// The first name of each file that has several.
    linked: HashMap<Ino, Vec<u8>>,
    /// Each file is read before its header is written, because an entry that has begun cannot be taken back.
    proof_read: bool,
    skipped: Skipped<'a>,
}

/// What an octal field of the header holds at most.
const SMALL: u64 = 0o7_777_777;
const LARGE: u64 = 0o77_777_777_777;

impl Target for Tar<'_> {
    fn put(&mut self, fs: &Fs, item: &Item<'_>, bar: &ProgressBar) -> Outcome<u64> {
        let attr = &item.attr;
        if attr.kind == FileKind::Socket {
            self.skipped.note(item.path, "tar has no sockets");
            return Ok(0);
        }
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        let mut header = tar::Header::new_ustar();
        let mut path = item.path.to_vec();
        if path.is_empty() {
            path = b".".to_vec();
        }
        let mut link = item.target.clone();
        let mut stretches = Vec::new();
        let mut kind = match attr.kind {
            FileKind::Dir => {
                path.push(b'/');
                tar::EntryType::Directory
            }
            FileKind::Symlink => tar::EntryType::Symlink,
            FileKind::Fifo => tar::EntryType::Fifo,
            FileKind::CharDevice => tar::EntryType::Char,
            FileKind::BlockDevice => tar::EntryType::Block,
            FileKind::File | FileKind::Socket => tar::EntryType::Regular,
        };
        let several = attr.nlink > 1 && attr.kind != FileKind::Dir;
        if several && let Some(first) = self.linked.get(&attr.ino) {
            kind = tar::EntryType::Link;
            link = first.clone();
        }
        let first_name = path.clone();
        let mut map = Vec::new();
        let mut size = 0;
        if kind == tar::EntryType::Regular {
            stretches =
                tree::stretches(fs, attr).map_err(|e| tree::failure(format!("cannot read {}", text::show(item.path)), e))?;
            if self.proof_read {
                let mut content = Content::new(fs, attr.ino, stretches.clone(), None);
                io::copy(&mut content, &mut io::sink()).map_err(|e| cannot_write(item, e))?;
            }
            size = stretches.iter().map(|(_, len)| len).sum();
            if size < attr.size {
                // A sparse file ends with an empty stretch at its end, so that its last hole is in the map.
                let mut parts = stretches.clone();
                if parts.last().is_none_or(|(at, len)| at + len < attr.size) {
                    parts.push((attr.size, 0));
                }
                map = format!("{}\n", parts.len()).into_bytes();
                parts.iter().for_each(|(at, len)| map.extend_from_slice(format!("{at}\n{len}\n").as_bytes()));
                map.resize(map.len().next_multiple_of(512), 0);
                size += map.len() as u64;
                records.push(("GNU.sparse.major".into(), b"1".to_vec()));
                records.push(("GNU.sparse.minor".into(), b"0".to_vec()));
                records.push(("GNU.sparse.name".into(), path.clone()));
                records.push(("GNU.sparse.realsize".into(), attr.size.to_string().into_bytes()));
                let (folder, name) = path.split_at(path.len() - item.name.len().min(path.len()));
                path = [folder, b"GNUSparseFile.0/", name].concat();
            }
        }
        {
            let header = header.as_mut_bytes();
            for (text, at, most, key) in [(&path, 0, 100, "path"), (&link, 157, 100, "linkpath")] {
                let len = text.len().min(most);
                header[at..at + len].copy_from_slice(&text[..len]);
                // What is not ASCII goes into a record, too, where it says that it is UTF-8; other bytes are taken as they are.
                if text.len() > most || !text.is_ascii() {
                    records.push((key.into(), text.clone()));
                }
            }
        }
        header.set_entry_type(kind);
        header.set_mode(u32::from(attr.perm));
        let mut number = |key: &str, value: u64, most: u64| {
            if value > most {
                records.push((key.into(), value.to_string().into_bytes()));
            }
            value.min(most)
        };
        header.set_uid(number("uid", u64::from(attr.uid), SMALL));
        header.set_gid(number("gid", u64::from(attr.gid), SMALL));
        header.set_size(number("size", size, LARGE));
        header.set_mtime(u64::try_from(attr.mtime.secs).unwrap_or(0).min(LARGE));
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            let (major, minor) = tree::device_numbers(attr.rdev);
            let fits = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
            fits.map_err(|e| Failure::io(format!("cannot write {}", text::show(item.path)), &e))?;
        }
        records.push(("mtime".into(), pax::time_record(attr.mtime).into_bytes()));
        records.push(("atime".into(), pax::time_record(attr.atime).into_bytes()));
        for (name, value) in &item.xattrs {
            match pax::xattr_key(name) {
                Some(key) => records.push((key, value.clone())),
                None => self.skipped.note(item.path, "an extended attribute's name cannot be written"),
            }
        }
        header.set_cksum();
        let records = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.builder.append_pax_extensions(records).map_err(|e| cannot_write(item, e))?;
        let data = size - map.len() as u64;
        let content = Content::new(fs, attr.ino, stretches, Some(bar));
        self.builder.append(&header, io::Read::chain(map.as_slice(), content)).map_err(|e| cannot_write(item, e))?;
        if several && kind != tar::EntryType::Link {
            self.linked.insert(attr.ino, first_name);
        }
        Ok(data)
    }

    fn leave(&mut self, _: &Item<'_>) -> Outcome {
        Ok(())
    }

    fn skipped(&self) -> u64 {
        self.skipped.count
    }
}

/// A failure of the tar writer; one to read the store travels through it as an I/O error.
fn cannot_write(item: &Item<'_>, error: io::Error) -> Failure {
    match error.downcast::<StoreError>() {
        Ok(StoreError(e)) => tree::failure(format!("cannot read {}", text::show(item.path)), e),
        Err(e) => Failure::io("cannot write the tar stream", &e),
    }
}

#[derive(Debug)]
struct StoreError(kvfs::Error);

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
impl std::error::Error for StoreError {}

/// The stored stretches of a file, one after the other.
struct Content<'a> {
    fs: &'a Fs,
    ino: Ino,
    stretches: std::vec::IntoIter<(u64, u64)>,
    /// (offset, length) of what is left of the stretch at hand.
    now: (u64, u64),
    /// Read and not handed out.
    piece: io::Cursor<Vec<u8>>,
    bar: Option<&'a ProgressBar>,
}

impl<'a> Content<'a> {
    fn new(fs: &'a Fs, ino: Ino, stretches: Vec<(u64, u64)>, bar: Option<&'a ProgressBar>) -> Self {
        Content { fs, ino, stretches: stretches.into_iter(), now: (0, 0), piece: io::Cursor::default(), bar }
    }
}

impl io::Read for Content<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = self.piece.read(out)?;
            if got > 0 || out.is_empty() {
                return Ok(got);
            }
            if self.now.1 == 0 {
                match self.stretches.next() {
                    Some(next) => self.now = next,
                    None => return Ok(0),
                }
                continue;
            }
            let len = self.now.1.min(u64::from(tree::PIECE)) as u32;
            let piece = self.fs.read(self.ino, self.now.0, len).map_err(|e| io::Error::other(StoreError(e)))?;
            if piece.len() != len as usize {
                return Err(io::Error::other("a file ended before its size"));
            }
            self.now = (self.now.0 + u64::from(len), self.now.1 - u64::from(len));
            self.bar.inspect(|bar| bar.inc(u64::from(len)));
            self.piece = io::Cursor::new(piece.to_vec());
        }
    }
}

// --- a folder of the host --------------------------------------------------------------------------------------------

struct Folder<'a> {
    /// The target folder and those below it that are being filled, each held open: a name is made in its folder and nowhere else,
    /// whatever symbolic links lie about.
    at: Vec<OwnedFd>,
    root: PathBuf,
    /// The first name of each file that has several, from the target folder.
    linked: HashMap<Ino, Vec<u8>>,
    /// Owners can be set.
    owner: bool,
    skipped: Skipped<'a>,
}

impl Folder<'_> {
    fn dress(&mut self, fd: impl AsFd, item: &Item<'_>) -> Result<(), Errno> {
        let attr = &item.attr;
        if self.owner {
            rustix::fs::fchown(&fd, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)))?;
        }
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(u32::from(attr.perm)))?;
        for (name, value) in &item.xattrs {
            if rustix::fs::fsetxattr(&fd, name.as_slice(), value, XattrFlags::empty()).is_err() {
                self.skipped.note(item.path, &format!("the attribute {} is left out", text::show(name)));
            }
        }
        rustix::fs::futimens(&fd, &times(attr))
    }

    /// As `dress`, for what cannot be opened.
    fn dress_name(&mut self, parent: &OwnedFd, item: &Item<'_>) -> Result<(), Errno> {
        let attr = &item.attr;
        if self.owner {
            let (uid, gid) = (Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
            rustix::fs::chownat(parent, item.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if attr.kind != FileKind::Symlink {
            rustix::fs::chmodat(parent, item.name, Mode::from_raw_mode(u32::from(attr.perm)), AtFlags::empty())?;
        }
        rustix::fs::utimensat(parent, item.name, &times(attr), AtFlags::SYMLINK_NOFOLLOW)
    }
}

fn times(attr: &Attr) -> Timestamps {
    let spec = |t: kvfs::Timestamp| Timespec { tv_sec: t.secs, tv_nsec: i64::from(t.nanos) };
    Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) }
}

impl Target for Folder<'_> {
    fn put(&mut self, fs: &Fs, item: &Item<'_>, bar: &ProgressBar) -> Outcome<u64> {
        if item.path.is_empty() {
            return Ok(0);
        }
        let path = self.root.join(std::ffi::OsStr::from_bytes(item.path));
        let cannot = |e: Errno| Failure::io(format!("cannot write {}", path.display()), &e.into());
        let Some(parent) = self.at.last() else { return Err(Failure::new(Exit::Failed, "no folder is open")) };
        let parent = parent.try_clone().map_err(|e| Failure::io("cannot open folders so deep", &e))?;
        let attr = &item.attr;
        if attr.kind == FileKind::Dir {
            match rustix::fs::mkdirat(&parent, item.name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(cannot(e)),
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&parent, item.name, flags, Mode::empty()).map_err(cannot)?;
            self.at.push(fd);
            return Ok(0);
        }
        match rustix::fs::unlinkat(&parent, item.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(cannot(e)),
        }
        if attr.nlink > 1 {
            if let Some(first) = self.linked.get(&attr.ino) {
                rustix::fs::linkat(&self.at[0], first.as_slice(), &parent, item.name, AtFlags::empty()).map_err(cannot)?;
                return Ok(0);
            }
            self.linked.insert(attr.ino, item.path.to_vec());
        }
        let special = match attr.kind {
            FileKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&parent, item.name, flags, Mode::RUSR | Mode::WUSR).map_err(cannot)?;
                let file = File::from(fd);
                let written = write_file(fs, &file, item, bar, &cannot).inspect_err(|_| {
                    // Half a file must not pass for the whole.
                    let _ = rustix::fs::unlinkat(&parent, item.name, AtFlags::empty());
                    self.linked.remove(&attr.ino);
                })?;
                let dressed = self.dress(&file, item);
                dressed.map_err(|e| Failure::io(format!("cannot set the attributes of {}", text::show(item.path)), &e.into()))?;
                return Ok(written);
            }
            FileKind::Symlink => rustix::fs::symlinkat(item.target.as_slice(), &parent, item.name),
            kind => {
                let kind = match kind {
                    FileKind::CharDevice => FileType::CharacterDevice,
                    FileKind::BlockDevice => FileType::BlockDevice,
                    FileKind::Socket => FileType::Socket,
                    _ => FileType::Fifo,
                };
                let (major, minor) = tree::device_numbers(attr.rdev);
                let rdev = rustix::fs::makedev(major, minor);
                rustix::fs::mknodat(&parent, item.name, kind, Mode::RUSR | Mode::WUSR, rdev)
            }
        };
        match special {
            Err(Errno::PERM) if attr.kind != FileKind::Symlink => {
                self.skipped.note(item.path, "only root may make devices");
                return Ok(0);
            }
            made => made.map_err(cannot)?,
        }
        let dressed = self.dress_name(&parent, item);
        dressed.map_err(|e| Failure::io(format!("cannot set the attributes of {}", text::show(item.path)), &e.into()))?;
        for (name, value) in &item.xattrs {
            if rustix::fs::lsetxattr(&path, name.as_slice(), value, XattrFlags::empty()).is_err() {
                self.skipped.note(item.path, &format!("the attribute {} is left out", text::show(name)));
            }
        }
        Ok(0)
    }

    /// The attributes of a folder come last: what is put into it changes its times, and its mode may forbid to.
    fn leave(&mut self, item: &Item<'_>) -> Outcome {
        let Some(fd) = self.at.pop() else { return Ok(()) };
        let dressed = self.dress(&fd, item);
        dressed.map_err(|e| Failure::io(format!("cannot set the attributes of the folder {}", text::show(item.path)), &e.into()))
    }

    fn skipped(&self) -> u64 {
        self.skipped.count
    }
}

fn write_file(fs: &Fs, file: &File, item: &Item<'_>, bar: &ProgressBar, cannot: &dyn Fn(Errno) -> Failure) -> Outcome<u64> {
    let attr = &item.attr;
    let failed = |e| tree::failure(format!("cannot read {}", text::show(item.path)), e);
    let mut written = 0;
    for (mut at, mut len) in tree::stretches(fs, attr).map_err(failed)? {
        while len > 0 {
            let piece = fs.read(attr.ino, at, len.min(u64::from(tree::PIECE)) as u32).map_err(failed)?;
            if piece.is_empty() {
                break;
            }
            file.write_all_at(&piece, at)
                .map_err(|e| cannot(Errno::from_raw_os_error(e.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()))))?;
            at += piece.len() as u64;
            len -= piece.len() as u64;
            written += piece.len() as u64;
            bar.inc(piece.len() as u64);
        }
    }
    rustix::fs::ftruncate(file, attr.size).map_err(cannot)?;
    Ok(written)
}
