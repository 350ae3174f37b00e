//! `kvfs export`: writes the files of a store as a tar stream, or, if the store is not mounted,
//! into a directory of the host.
//!
//! The tar stream is in the POSIX (PAX) format, which GNU tar, bsdtar and Python read: times with
//! nanoseconds, names of any length, extended attributes as `SCHILY.xattr.*`, sparse files as in
//! GNU's version 1.0.

mod archive;
mod directory;
mod mounted;
mod stream;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::ProgressBar;
use kvfs::{Attr, FileKind, Fs, Ino};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::destination::{self, Judge, Making};
use crate::mounted::Mounted;
use crate::output::{Exit, Failure, Outcome, Output};
use crate::sizes::human_size;
use crate::store::{self, Access};
use crate::{pax, text, tree, walks};
use archive::Tar;
pub(crate) use directory::Directory;
pub(crate) use stream::Stream;

/// Copy files of a store into a tar stream or a directory.
#[derive(clap::Args)]
#[command(after_help = "\
The daemon of a mounted store writes the tar stream itself, without a system call for each file, \
and from one consistent state: changes made during the export are not included. To export a \
mounted store into a directory: kvfs export /mnt/work - | tar x -C DIRECTORY.

  kvfs export my.kvfs project/ --from /project     a store that is not mounted, into a directory
  kvfs export /mnt/work/project project.tar        a directory of a mounted store
  kvfs export /mnt/work/.kvfs/snapshot/monday -    a snapshot

Preserves owners (as numbers; in a directory only as root), modes, times, hard links, symbolic \
links, devices, extended attributes and holes. Files are added to a directory that exists; a path \
that ends in a slash is created as a directory.")]
pub struct Args {
    /// The store's file, or a directory in a mounted store or in any of its views.
    store: PathBuf,
    /// Tar file to create, `-` for a tar stream on standard output, or a directory.
    to: PathBuf,
    /// Directory whose contents are copied, or a single file.
    #[arg(long, value_name = "PATH", default_value = "/")]
    from: OsString,
    /// Skip damaged data, list it, and exit with 5. Without this option, the first damage ends the
    /// export.
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    making: Making,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let begun = Instant::now();
    if let Some(directory) = mounted::source(&args.store)? {
        return of_mounted(&args, directory, output);
    }
    let store = store::open_waiting(&args.store, Access::ReadOnly, None)?;
    let fs = store.file_system()?;
    let root = tree::find(&fs, args.from.as_bytes())?;
    let stdout = args.to.as_os_str() == "-";
    let judge = Judge::reading(&args.store, args.making);
    let bar = output.progress("exporting", None, true);
    let cannot = |e: io::Error| Failure::io(format!("cannot write {}", args.to.display()), &e);
    let name = tree::names(args.from.as_bytes()).last().unwrap_or(b"file").to_vec();
    let walk = || Walk {
        fs: &fs,
        bar: &bar,
        keep_going: args.keep_going,
        counts: Counts::default(),
        output,
    };
    let tar = |file: File, what: &str| -> Outcome<Counts> {
        let cannot = |e: io::Error| Failure::io(format!("cannot write {what}"), &e);
        let out: Box<dyn Write> = Box::new(io::BufWriter::with_capacity(1 << 20, file));
        let mut tar = Tar::new(out, args.keep_going, output);
        let counts = walk().run(&mut tar, root, &name)?;
        tar.builder.into_inner().and_then(|mut out| out.flush()).map_err(cannot)?;
        Ok(counts)
    };
    let counts = if args.to.is_dir() || args.to.as_os_str().as_bytes().ends_with(b"/") {
        // Keep other users out until the directory is complete and has its own permissions.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&args.to).map_err(cannot)?;
        let at = rustix::fs::open(&args.to, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| cannot(e.into()))?;
        raise_open_files();
        let mut directory = Directory {
            at: vec![at],
            root: args.to.clone(),
            linked: HashMap::new(),
            owner: is_root(),
            judge,
            skipped: Skipped::new(output),
        };
        walk().run(&mut directory, root, &name)?
    } else if stdout {
        tar(standard_output()?, "standard output")?
    } else {
        let file = destination::create(&args.to, args.making, judge)?;
        let writer = file.try_clone().map_err(cannot)?;
        tar(writer, &args.to.display().to_string())
            .inspect_err(|_| destination::discard(&file, &args.to))?
    };
    bar.finish_and_clear();
    drop(fs);
    store.close()?;
    let whole = match counts.damaged {
        0 => Ok(()),
        n => Err(Failure::new(
            Exit::Damaged,
            format!("{n} entries of {} are damaged and were left out", args.store.display()),
        )),
    };
    if stdout {
        return whole;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let skipped =
        if counts.skipped > 0 { format!(", {} skipped", counts.skipped) } else { String::new() };
    let text = format!(
        "exported {} entries, {} in {seconds:.1} s{skipped}",
        counts.entries,
        human_size(counts.bytes)
    );
    output.print(text, counts)?;
    whole
}

/// Returns standard output, unless it is a terminal.
fn standard_output() -> Outcome<File> {
    if std::io::IsTerminal::is_terminal(&io::stdout()) {
        return Err(Failure::new(Exit::Usage, "a tar stream is not for a terminal")
            .hint("give a file's name instead of -, or use a pipe"));
    }
    let out = io::stdout().as_fd().try_clone_to_owned();
    out.map(File::from).map_err(|e| Failure::io("cannot write standard output", &e))
}

/// Exports a directory on a mount.
fn of_mounted(args: &Args, directory: PathBuf, output: &Output) -> Outcome {
    let begun = Instant::now();
    if args.to.is_dir() || args.to.as_os_str().as_bytes().ends_with(b"/") {
        let what = "a mounted store is exported as a tar stream";
        return Err(Failure::new(Exit::Usage, what).hint("kvfs export PATH - | tar x -C DIRECTORY"));
    }
    if args.keep_going {
        let what = "what is damaged can be left out where the store is not mounted";
        return Err(Failure::new(Exit::Usage, what).hint("unmount it: kvfs umount STORE"));
    }
    let from = tree::names(args.from.as_bytes()).map(std::ffi::OsStr::from_bytes);
    let path = from.fold(directory, |path, name| path.join(name));
    let judge = Judge::reading(&args.store, args.making);
    let stdout = args.to.as_os_str() == "-";
    // Find the source before an existing output file is truncated.
    let mounted = walks::begin(&path, "EXPORT")?;
    let (file, shown) = match stdout {
        true => (standard_output()?, "standard output".to_string()),
        false => {
            (destination::create(&args.to, args.making, judge)?, args.to.display().to_string())
        }
    };
    let bar = output.progress("exporting", None, true);
    let written = mounted::write(
        mounted,
        &mut &file,
        |e| Failure::io(format!("cannot write {shown}"), &e),
        &bar,
    );
    bar.finish_and_clear();
    if written.is_err() && !stdout {
        destination::discard(&file, &args.to);
    }
    let written = written?;
    if stdout {
        return Ok(());
    }
    let seconds = begun.elapsed().as_secs_f64();
    output.print(
        format!("exported {} in {seconds:.1} s", human_size(written)),
        serde_json::json!({ "archive": written }),
    )
}

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
struct Counts {
    entries: u64,
    /// The bytes of data written.
    bytes: u64,
    /// Entries or attributes that the target does not support.
    skipped: u64,
    /// Entries left out because they, or their content, could not be read.
    damaged: u64,
}

/// Counts the entries left out, and reports the first ones.
pub struct Skipped<'a> {
    output: &'a Output,
    pub count: u64,
}

impl<'a> Skipped<'a> {
    pub fn new(output: &'a Output) -> Self {
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
struct Walk<'a> {
    fs: &'a Fs,
    bar: &'a ProgressBar,
    keep_going: bool,
    counts: Counts,
    output: &'a Output,
}

impl Walk<'_> {
    /// Exports `root` and, if it is a directory, everything below, each directory before its
    /// entries.
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
    fn put(&mut self, to: &mut dyn Target, path: &[u8], name: &[u8], attr: Attr) -> Outcome<bool> {
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
