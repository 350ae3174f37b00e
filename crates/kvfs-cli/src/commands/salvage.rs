//! `kvfs salvage`: extracts the readable data of a damaged store, and reports exactly what is
//! missing.

mod keys;
mod report;

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use kvdb::Salvage;
use kvfs::{Attr, FileKind, Ino, Left, LeftEntries, LeftEntry, LeftNode, ROOT, Remains, Timestamp};
use rustix::io::Errno;
use zones::FileDevice;

use crate::support::archives::export_tree::directory::Directory;
use crate::support::archives::export_tree::{Item, Target};
use crate::support::machine::destination::{self, Judge, Making};
use crate::support::machine::paths;
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use report::Report;

/// Copy what is readable in a damaged store into a directory.
#[derive(clap::Args)]
#[command(after_help = "\
Nothing is written to the store. Data under damaged blocks is left out and listed: a partly \
unreadable file has its readable bytes at their offsets and zeros in between, and its missing \
ranges are listed. Files whose names are lost are written to lost+found. If the superblock or the \
manifest cannot be read, an older one is used, and the report says so. The exit code is 5 if \
anything is missing or may be older than it was. Snapshots and clones are not copied.")]
pub struct Args {
    /// The store's file.
    store: PathBuf,
    /// Directory for the files: a new one, or an empty one.
    directory: PathBuf,
    /// Write the keys and values to FILE, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    making: Making,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let device = FileDevice::open(&args.store, true).map_err(|e| unopened(&args.store, e))?;
    let judge = Judge::reading(&args.store, args.making);
    let cannot =
        |e: std::io::Error| Failure::io(format!("cannot write {}", args.directory.shown()), &e);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.directory)
        .map_err(cannot)?;
    if std::fs::read_dir(&args.directory).map_err(cannot)?.next().is_some() {
        return Err(Failure::new(Exit::Usage, format!("{} is not empty", args.directory.shown()))
            .hint("give a new directory"));
    }
    // Make the file before hours of work, and before any file of the store could have its name.
    let keys = args.keys.as_deref().map(|path| keys_file(path, &args, judge)).transpose()?;
    let bar = output.progress("looking for what is left", Some(0), false);
    let found = Salvage::open(Arc::new(device), &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let remains = Remains::new(found.map_err(|e| {
        failures::of_database(format!("nothing can be brought out of {}", args.store.shown()), e)
    })?);

    let mut report = Report::new(remains.salvage().notes());
    remains.salvage().left_out().iter().for_each(|what| output.note(what));
    let bar = output.progress("bringing out", None, true);
    if remains.has_files() {
        let directory = Directory::open(&args.directory, judge, output).map_err(cannot)?;
        Walk {
            remains: &remains,
            directory,
            report: &mut report,
            bar: &bar,
            seen: HashSet::new(),
            dirs: HashSet::new(),
            data_alone: false,
        }
        .run()?;
    }
    keys::bring_out(remains.salvage(), args.keys.as_deref().zip(keys), &bar, &mut report)?;
    bar.finish_and_clear();
    report.finish(&args.store, &args.directory, output)
}

fn unopened(store: &Path, error: zones::Error) -> Failure {
    match error {
        zones::Error::Busy(_) => Failure::new(Exit::Busy, format!("{} is in use", store.shown()))
            .hint("unmount it first: kvfs umount"),
        e => failures::of_database(format!("cannot open {}", store.shown()), e.into()),
    }
}

fn keys_file(path: &Path, args: &Args, judge: Judge) -> Outcome<File> {
    let full = |path: &Path| {
        let found = paths::full_path(path).or_else(|_| paths::path_beside(path));
        found.map_err(|e| Failure::io(format!("cannot write {}", path.shown()), &e))
    };
    if full(path)?.starts_with(full(&args.directory)?) {
        let what = format!(
            "{} lies in {}, where a file of the store could have its name",
            path.shown(),
            args.directory.shown()
        );
        return Err(Failure::new(Exit::Usage, what).hint("write the keys to another directory"));
    }
    destination::create(path, args.making, judge)
}

/// Extracts files.
struct Walk<'a> {
    remains: &'a Remains,
    directory: Directory<'a>,
    report: &'a mut Report,
    bar: &'a ProgressBar,
    /// Inodes that were extracted or tried.
    seen: HashSet<Ino>,
    /// Directories among them: if one has several names, the first counts.
    dirs: HashSet<Ino>,
    /// True if only files remain of which nothing but data is known.
    data_alone: bool,
}

/// A directory being filled.
struct Open<'a> {
    entries: LeftEntries<'a>,
    /// The length of its path.
    len: usize,
    dir: Dir,
    /// The number of certain entries, and the damage if there may be more.
    found: u64,
    gap: Option<String>,
}

/// A directory's own attributes, `None` if they are lost.
struct Dir {
    node: Option<Box<LeftNode>>,
}

impl<'a> Walk<'a> {
    fn run(mut self) -> Outcome {
        self.seen.insert(ROOT);
        self.dirs.insert(ROOT);
        let node = match self.remains.node(ROOT) {
            Left::Node(node) => Some(node),
            Left::Lost(what) => {
                self.report.damaged(
                    b"/",
                    vec![format!("its attributes are lost: {what}")],
                    Vec::new(),
                );
                None
            }
            Left::None => {
                self.report.damaged(b"/", vec!["there is no root directory".into()], Vec::new());
                None
            }
        };
        // Set the attributes of the root last, after lost+found.
        let root = self.below(Vec::new(), ROOT, Dir { node })?;
        self.lost_and_found()?;
        self.dress(b"", &root);
        Ok(())
    }

    /// Extracts everything in the innermost open directory, and returns that directory.
    fn below(&mut self, mut path: Vec<u8>, ino: Ino, dir: Dir) -> Outcome<Dir> {
        let remains = self.remains;
        let open = |ino: Ino, len: usize, dir: Dir| Open {
            entries: remains.entries(ino),
            len,
            dir,
            found: 0,
            gap: None,
        };
        let mut all = vec![open(ino, path.len(), dir)];
        loop {
            let Some(top) = all.last_mut() else {
                return Err(Failure::new(Exit::Failed, "no directory is open"));
            };
            path.truncate(top.len);
            match top.entries.next() {
                Some(LeftEntry::Gap(what)) => drop(top.gap.get_or_insert(what)),
                Some(LeftEntry::Malformed(what)) => {
                    self.report.damaged(&shown(&path), vec![what], Vec::new())
                }
                Some(LeftEntry::Entry { name, ino, kind, stale }) => {
                    top.found += u64::from(!stale);
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(&name);
                    if let Some(dir) = self.entry(&path, &name, ino, kind, stale)? {
                        let len = path.len();
                        all.push(open(ino, len, dir));
                    }
                }
                None => {
                    let Some(done) = all.pop() else { continue };
                    // If all names were found, none is in the gap.
                    let complete = done
                        .dir
                        .node
                        .as_ref()
                        .is_some_and(|node| !node.stale && node.attr.size == done.found);
                    if let Some(what) = done.gap.filter(|_| !complete) {
                        self.report.damaged(
                            &shown(&path),
                            vec![format!("names may be missing: {what}")],
                            Vec::new(),
                        );
                    }
                    if all.is_empty() {
                        return Ok(done.dir);
                    }
                    self.dress(&path, &done.dir);
                }
            }
        }
    }

    /// Extracts one entry. Returns the directory if its content is to follow.
    fn entry(
        &mut self,
        path: &[u8],
        name: &[u8],
        ino: Ino,
        kind: FileKind,
        stale: bool,
    ) -> Outcome<Option<Dir>> {
        let mut what = Vec::new();
        if stale {
            what.push("this name may have been removed".to_string());
        }
        let node = match self.remains.node(ino) {
            Left::Node(node) => Some(node),
            Left::Lost(why) => {
                what.push(format!("its attributes are lost: {why}"));
                None
            }
            Left::None if self.data_alone => {
                what.push("its attributes are lost".into());
                None
            }
            Left::None => {
                self.report.damaged(
                    &shown(path),
                    vec![format!("it names inode {ino}, which does not exist")],
                    Vec::new(),
                );
                return Ok(None);
            }
        };
        let new = self.seen.insert(ino);
        if let Some(node) = &node {
            if node.stale {
                what.push("its attributes may be older than they were".into());
            }
            what.extend(node.lost_xattrs.iter().map(|name| {
                format!("the attribute {} is lost", crate::support::terminal::text::show(name))
            }));
        }
        let kind = node.as_ref().map_or(kind, |node| node.attr.kind);
        if kind == FileKind::Dir && !self.dirs.insert(ino) {
            what.push("a directory with more than one name: it is brought out by another".into());
            self.report.damaged(&shown(path), what, Vec::new());
            return Ok(None);
        }
        let attr = node.as_ref().map_or_else(|| unknown(ino, kind), |node| node.attr);
        if node.is_none() && !matches!(kind, FileKind::File | FileKind::Dir) {
            self.report.damaged(&shown(path), what, Vec::new());
            return Ok(None);
        }
        let (target, xattrs) = node
            .as_ref()
            .map_or_else(Default::default, |node| (node.target.clone(), node.xattrs.clone()));
        let item = Item { path, name, attr, target, xattrs };
        let (remains, bar) = (self.remains, self.bar);
        let mut missing = Vec::new();
        let made = self.directory.make(&item, &mut |file, cannot| {
            let (written, lost) = write(remains, file, ino, node.as_deref(), bar, cannot)?;
            missing = lost;
            Ok(written)
        });
        match made {
            Ok(bytes) => self.report.wrote(kind, bytes),
            Err(failure) if matches!(failure.exit, Exit::NoSpace | Exit::Usage) => {
                return Err(failure);
            }
            Err(failure) => {
                what.push(failure.message);
                self.report.damaged(&shown(path), what, Vec::new());
                return Ok(None);
            }
        }
        // Report a file with several names only once.
        if !missing.is_empty() || (!what.is_empty() && (new || stale)) {
            self.report.damaged(&shown(path), what, missing);
        }
        Ok((kind == FileKind::Dir).then_some(Dir { node }))
    }

    /// Sets the attributes of the innermost directory, which is complete.
    fn dress(&mut self, path: &[u8], dir: &Dir) {
        let (attr, xattrs) = match &dir.node {
            Some(node) => (node.attr, node.xattrs.clone()),
            None => (unknown(0, FileKind::Dir), Vec::new()),
        };
        let item = Item { path, name: b"", attr, target: Vec::new(), xattrs };
        if let Err(failure) = self.directory.leave(&item) {
            self.report.damaged(&shown(path), vec![failure.message], Vec::new());
        }
    }

    /// Extracts inodes without a name: directories first, since they lead to others.
    fn lost_and_found(&mut self) -> Outcome {
        for dirs in [true, false] {
            let mut lost: Vec<(Ino, FileKind)> = Vec::new();
            // Take only the top of an unnamed part of the tree; the directories below are found
            // through it.
            self.remains.each_node(|ino, kind, parent| {
                let top = !dirs
                    || self.seen.contains(&parent)
                    || matches!(self.remains.node(parent), Left::None | Left::Lost(_));
                if !self.seen.contains(&ino) && (!dirs || kind == FileKind::Dir) && top {
                    lost.push((ino, kind));
                }
                Ok::<(), Failure>(())
            })?;
            for (ino, kind) in lost {
                if self.seen.contains(&ino) {
                    continue;
                }
                self.found(ino, kind)?;
            }
        }
        self.data_alone = true;
        let mut lost = Vec::new();
        self.remains.each_data(|ino| {
            lost.extend((!self.seen.contains(&ino)).then_some(ino));
            Ok::<(), Failure>(())
        })?;
        lost.into_iter().try_for_each(|ino| self.found(ino, FileKind::File))
    }

    fn found(&mut self, ino: Ino, kind: FileKind) -> Outcome {
        let directory = self.report.lost_found(&self.directory.root);
        let own = unknown(0, FileKind::Dir);
        let item = Item {
            path: &directory,
            name: &directory,
            attr: own,
            target: Vec::new(),
            xattrs: Vec::new(),
        };
        self.directory.make(&item, &mut |_, _| Ok(0))?;
        let name = format!("inode-{ino}").into_bytes();
        let path = [&directory[..], b"/", &name].concat();
        self.report.damaged(&shown(&path), vec!["its name is lost".into()], Vec::new());
        if let Some(dir) = self.entry(&path, &name, ino, kind, false)? {
            let dir = self.below(path.clone(), ino, dir)?;
            self.dress(&path, &dir);
        }
        self.dress(&directory, &Dir { node: None });
        Ok(())
    }
}

/// Returns a path as shown in messages, from the root of the file system.
fn shown(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [b"/", path].concat() }
}

/// Returns substitutes for lost attributes: accessible to the owner only.
fn unknown(ino: Ino, kind: FileKind) -> Attr {
    let perm = if kind == FileKind::Dir { 0o700 } else { 0o600 };
    let time = Timestamp::default();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Attr {
        ino,
        kind,
        perm,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

/// Writes the remains of a file. Returns the number of bytes written, and the missing ranges.
fn write(
    remains: &Remains,
    file: &File,
    ino: Ino,
    node: Option<&LeftNode>,
    bar: &ProgressBar,
    cannot: &dyn Fn(Errno) -> Failure,
) -> Outcome<(u64, Vec<Range<u64>>)> {
    let mut written = 0;
    let failed = |e: std::io::Error| {
        cannot(Errno::from_raw_os_error(e.raw_os_error().unwrap_or(Errno::IO.raw_os_error())))
    };
    let missing = remains.data(ino, node, |at, bytes| {
        written += bytes.len() as u64;
        bar.inc(bytes.len() as u64);
        file.write_all_at(bytes, at).map_err(failed)
    })?;
    if let Some(node) = node {
        rustix::fs::ftruncate(file, node.attr.size).map_err(cannot)?;
    }
    Ok((written, missing))
}
