//! Lists what a run changes in its folder, in the form in which the daemon of a store lists the
//! changes of a transaction, so that they are shown and selected alike.

use std::io;
use std::path::PathBuf;

use kvdb_server::Reply;
use kvfs::Timestamp;
use rustix::fs::FileType;

use crate::support::layers::layer::{Attributes, Layer, Xattr, is_below, join};
use crate::support::layers::reader::{Change, Layers};
use crate::support::over::log::Log;
use crate::support::over::plan::Left;
use crate::support::review::changes::Changes;
use crate::support::stores::tree;
use crate::support::terminal::output::Outcome;

/// One difference of a file: what differs, and the values of both sides.
type Detail = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Returns what a run changes without what was left out. Unless `all` is set, what lies in
/// directories that were added or removed is counted instead of listed. `roots` are the directories
/// with the files before and after.
pub fn of_run(
    layers: &Layers,
    left: &Left,
    all: bool,
    roots: (PathBuf, PathBuf),
) -> Outcome<Changes> {
    let mut rows = Vec::new();
    let mut top: Option<Top> = None;
    for change in layers.changes() {
        let change = change?;
        let failed = |e: io::Error| layers.upper.failure("cannot read", &change.path, &e);
        if let Some(top) = &mut top
            && is_below(&change.path, &top.path)
        {
            match (top.is_left, all, &change.after) {
                (false, true, _) => {
                    let details = details_of(layers, &change).map_err(failed)?;
                    rows.push(row(&change.path, &change.before, &change.after, details));
                }
                (false, false, Some(file)) => top.below.count(file),
                _ => {}
            }
            continue;
        }
        rows.extend(top.take().and_then(Top::row));
        let is_left = left.contains(&change.path);
        if !change.is_whole() && is_left {
            continue;
        }
        let mut details = details_of(layers, &change).map_err(failed)?;
        if change.is_whole() {
            if all && !is_left {
                rows.push(row(&change.path, &change.before, &change.after, details));
                details = Vec::new();
            }
            let (path, below) = (change.path.clone(), Below::default());
            let rest = (!all && !is_left).then_some((change, details));
            top = Some(Top { path, is_left, below, rest });
            continue;
        }
        let goes = change.before.is_some_and(|before| before.is_directory());
        let goes = goes && !change.is_of_directory();
        if goes && !all {
            let below = Below::of(&layers.lower, &change.path).map_err(failed)?;
            details.extend(below.detail(false));
        }
        rows.push(row(&change.path, &change.before, &change.after, details));
        if goes && all {
            removed(&layers.lower, &change.path, &mut rows).map_err(failed)?;
        }
    }
    rows.extend(top.take().and_then(Top::row));
    Changes::between(Reply::Array(rows), Reply::Array(Vec::new()), Some(roots))
}

/// Returns what an undo changes. `now` is the folder, and `before` has the old versions.
pub fn of_undo(now: &Layer, before: &Layer, log: &Log) -> Outcome<Changes> {
    let mut rows = Vec::new();
    for swap in &log.swaps {
        let path = &swap.path.0;
        let failed = |e: io::Error| now.failure("cannot read", path, &e);
        let both =
            (now.attributes(path).map_err(failed)?, before.attributes(path).map_err(failed)?);
        let mut details = compare(&both.0, &both.1);
        if is_file(&both.0) && is_file(&both.1) {
            details.push((b"content".to_vec(), None, None));
        }
        let is_directory = |file: &Option<Attributes>| file.is_some_and(|f| f.is_directory());
        if is_directory(&both.0) {
            details.extend(Below::of(now, path).map_err(failed)?.detail(false));
        } else if is_directory(&both.1) {
            details.extend(Below::of(before, path).map_err(failed)?.detail(true));
        }
        rows.push((path, row(path, &both.0, &both.1, details)));
    }
    for directory in &log.directories {
        let path = &directory.path.0;
        let failed = |e: io::Error| now.failure("cannot read", path, &e);
        let Some(file) = now.attributes(path).map_err(failed)? else { continue };
        let state = &directory.before;
        let mtime = state.mtime.unwrap_or(file.mtime);
        let after = Attributes { mode: state.mode, uid: state.uid, gid: state.gid, mtime, ..file };
        let (file, after) = (Some(file), Some(after));
        rows.push((path, row(path, &file, &after, compare(&file, &after))));
    }
    rows.sort_by_key(|row| row.0);
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    Changes::between(Reply::Array(rows), Reply::Array(Vec::new()), None)
}

/// An added directory whose entries come next.
struct Top {
    path: Vec<u8>,
    is_left: bool,
    below: Below,
    /// The change of the directory and its details, if it is listed with the counts of its entries.
    rest: Option<(Change, Vec<Detail>)>,
}

impl Top {
    fn row(self) -> Option<Reply> {
        let (change, mut details) = self.rest?;
        details.extend(self.below.detail(true));
        Some(row(&change.path, &change.before, &change.after, details))
    }
}

/// Counts of what lies in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Below {
    files: u64,
    directories: u64,
    bytes: u64,
}

impl Below {
    fn count(&mut self, file: &Attributes) {
        match file.kind {
            FileType::Directory => self.directories += 1,
            FileType::RegularFile => {
                self.files += 1;
                self.bytes += file.size;
            }
            _ => self.files += 1,
        }
    }

    fn of(layer: &Layer, directory: &[u8]) -> io::Result<Below> {
        let mut below = Below::default();
        each_below(layer, directory, &mut |_, file| below.count(file))?;
        Ok(below)
    }

    fn detail(self, is_added: bool) -> Option<Detail> {
        let Below { files, directories, bytes } = self;
        let told = format!("{files} {directories} {bytes} 0").into_bytes();
        let told = match is_added {
            true => (b"below".to_vec(), None, Some(told)),
            false => (b"below".to_vec(), Some(told), None),
        };
        (self != Below::default()).then_some(told)
    }
}

/// Calls `each` with everything in a directory, in the order of paths.
fn each_below(
    layer: &Layer,
    directory: &[u8],
    each: &mut dyn FnMut(&[u8], &Attributes),
) -> io::Result<()> {
    let entries = |directory: &[u8]| -> io::Result<Vec<Vec<u8>>> {
        Ok(layer.names(directory)?.iter().rev().map(|name| join(directory, name)).collect())
    };
    let mut todo = entries(directory)?;
    while let Some(path) = todo.pop() {
        let Some(file) = layer.attributes(&path)? else { continue };
        each(&path, &file);
        if file.is_directory() {
            todo.extend(entries(&path)?);
        }
    }
    Ok(())
}

/// Lists what lies in a removed directory.
fn removed(layer: &Layer, directory: &[u8], rows: &mut Vec<Reply>) -> io::Result<()> {
    each_below(layer, directory, &mut |path, file| {
        let before = Some(*file);
        rows.push(row(path, &before, &None, compare(&before, &None)));
    })
}

fn row(
    path: &[u8],
    before: &Option<Attributes>,
    after: &Option<Attributes>,
    details: Vec<Detail>,
) -> Reply {
    let kind = match after.or(*before).map(|file| file.kind) {
        Some(FileType::Directory) => "d",
        Some(FileType::RegularFile) => "f",
        Some(FileType::Symlink) => "l",
        _ => "o",
    };
    let size = |file: &Option<Attributes>| match file {
        Some(file) if file.is_directory() => Reply::Integer(0),
        Some(file) => Reply::Integer(i64::try_from(file.size).unwrap_or(i64::MAX)),
        None => Reply::Null,
    };
    let value = |value: Option<Vec<u8>>| value.map_or(Reply::Null, Reply::Bulk);
    let detail = |(what, before, after): Detail| {
        Reply::Array(vec![Reply::Bulk(what), value(before), value(after)])
    };
    Reply::Array(vec![
        Reply::Bulk(path.to_vec()),
        Reply::Bulk(kind.into()),
        size(before),
        size(after),
        Reply::Array(details.into_iter().map(detail).collect()),
    ])
}

fn is_file(file: &Option<Attributes>) -> bool {
    file.is_some_and(|file| file.kind == FileType::RegularFile)
}

fn kind_name(kind: FileType) -> &'static str {
    tree::kind_name(match kind {
        FileType::Directory => kvfs::FileKind::Dir,
        FileType::Symlink => kvfs::FileKind::Symlink,
        FileType::Fifo => kvfs::FileKind::Fifo,
        FileType::Socket => kvfs::FileKind::Socket,
        FileType::CharacterDevice => kvfs::FileKind::CharDevice,
        FileType::BlockDevice => kvfs::FileKind::BlockDevice,
        _ => kvfs::FileKind::File,
    })
}

/// Returns in what the attributes of two files differ.
fn compare(before: &Option<Attributes>, after: &Option<Attributes>) -> Vec<Detail> {
    let mut details = Vec::new();
    let mut compare = |what: &str, of: &dyn Fn(&Attributes) -> Option<String>| {
        let value = |file: &Option<Attributes>| file.as_ref().and_then(of).map(String::into_bytes);
        let (before, after) = (value(before), value(after));
        if before != after {
            details.push((what.as_bytes().to_vec(), before, after));
        }
    };
    compare("kind", &|file| Some(kind_name(file.kind).to_owned()));
    compare("mode", &|file| Some(format!("{:04o}", file.mode)));
    compare("owner", &|file| Some(format!("{}:{}", file.uid, file.gid)));
    compare("device", &|file| {
        let (major, minor) = (rustix::fs::major(file.rdev), rustix::fs::minor(file.rdev));
        matches!(file.kind, FileType::CharacterDevice | FileType::BlockDevice)
            .then(|| format!("{major}:{minor}"))
    });
    if before.is_some() && after.is_some() {
        compare("time", &|file| {
            let (secs, nanos) = file.mtime;
            Some(format!("{}.{nanos:09}", tree::time_text(Timestamp { secs, nanos })))
        });
    }
    details
}

/// Returns in what both sides of a change differ, except for what lies in a directory.
fn details_of(layers: &Layers, change: &Change) -> io::Result<Vec<Detail>> {
    let (path, before, after) = (&change.path, &change.before, &change.after);
    let mut details = compare(before, after);
    if change.content && is_file(before) && is_file(after) {
        details.push((b"content".to_vec(), None, None));
    }
    let target = |layer: &Layer, file: &Option<Attributes>| match file {
        Some(file) if file.kind == FileType::Symlink => layer.target(path).map(Some),
        _ => Ok(None),
    };
    let targets = (target(&layers.lower, before)?, target(&layers.upper, after)?);
    if targets.0 != targets.1 {
        details.push((b"target".to_vec(), targets.0, targets.1));
    }
    if let Some(first) = &change.first {
        details.push((b"linked-to".to_vec(), None, Some(first.clone())));
    }
    if change.xattrs && after.is_some() {
        let before = match before {
            Some(_) => layers.xattrs_before(path)?,
            None => Vec::new(),
        };
        xattrs(&before, &layers.xattrs(path)?, &mut details);
    }
    Ok(details)
}

fn xattrs(before: &[Xattr], after: &[Xattr], details: &mut Vec<Detail>) {
    let value = |all: &[Xattr], name: &[u8]| {
        all.iter().find(|(one, _)| one == name).map(|(_, value)| value.clone())
    };
    let mut names: Vec<&Vec<u8>> = before.iter().chain(after).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (before, after) = (value(before, name), value(after, name));
        if before != after {
            let what = [&b"xattr:"[..], name].concat();
            details.push((what, before, after));
        }
    }
}
