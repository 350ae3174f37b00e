//! The plan of an apply: the log of what is swapped, from the changes of an upper layer without
//! those that were left out, and the upper layer made ready for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::io::Errno;

use crate::support::layers::layer::{Attributes, Time, is_below, join, split};
use crate::support::layers::reader::{Change, Layers};
use crate::support::over::log::{Directory, Log, Name, State, Swap, VERSION};
use crate::support::terminal::output::Outcome;

/// Paths of changes that are left out, each with all beneath it if it is a directory on one side
/// only.
pub type Left = BTreeSet<Vec<u8>>;

/// Calls `each` with every change that is separable and was not left out: what lies in a directory
/// that was added as a whole, or that replaces another file, goes with that.
pub fn for_each_separable(
    layers: &Layers,
    left: &Left,
    each: &mut dyn FnMut(Change) -> Outcome,
) -> Outcome {
    let mut whole: Option<Vec<u8>> = None;
    for change in layers.changes() {
        let change = change?;
        if whole.as_ref().is_some_and(|whole| is_below(&change.path, whole)) {
            continue;
        }
        whole = change.is_whole().then(|| change.path.clone());
        if !left.contains(&change.path) {
            each(change)?;
        }
    }
    Ok(())
}

/// Returns the log of a run whose changes are applied, without those that were left out. `started`
/// is when the run began. The log does not have the birth of the folder.
pub fn plan(layers: &Layers, left: &Left, started: Time, label: &str) -> Outcome<Log> {
    let (mut swaps, mut own, mut parents) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    for_each_separable(layers, left, &mut |change| {
        if change.is_of_directory() {
            own.insert(change.path.clone(), change);
            return Ok(());
        }
        parents.insert(split(&change.path).0.to_vec());
        let inode = |file: Option<Attributes>| file.map(|file| file.inode);
        let is_closed = |file: &Attributes| file.is_directory() && file.mode & 0o200 == 0;
        let mode = |file: Option<Attributes>| file.filter(is_closed).map(|file| file.mode);
        let (before, after) = (inode(change.before), inode(change.after));
        let closed = (mode(change.before), mode(change.after));
        swaps.push(Swap { path: Name(change.path), before, after, closed });
        Ok(())
    })?;
    // The entries of a directory that were left out have changed its time.
    let is_around = |path: &[u8]| left.iter().any(|one| split(one).0 == path);
    own.retain(|path, change: &mut Change| {
        change.access() || change.xattrs || parents.contains(path) || !is_around(path)
    });
    let paths: BTreeSet<&Vec<u8>> = own.keys().chain(&parents).collect();
    let mut directories = Vec::new();
    for path in paths {
        let both = (layers.lower.attributes(path), layers.upper.attributes(path));
        let failed = |e: io::Error| layers.lower.failure("cannot read", path, &e);
        let (Some(lower), Some(upper)) = (both.0.map_err(failed)?, both.1.map_err(failed)?) else {
            // Another program has removed the directory, which the first swap in it detects.
            continue;
        };
        let change = own.get(path);
        let is_own = change.is_some_and(|change| change.access() || change.xattrs);
        if lower.ctime > started && !is_own && !parents.contains(path) {
            // Only its time differs, since others have changed its entries.
            continue;
        }
        let (mut before, mut after) = match change.is_some_and(|change| change.xattrs) {
            true => (
                State::of(&lower, Some(layers.lower.xattrs(path).map_err(failed)?)),
                State::of(&upper, Some(layers.xattrs(path).map_err(failed)?)),
            ),
            false => (State::of(&lower, None), State::of(&upper, None)),
        };
        if change.is_none() {
            (after.mode, after.uid, after.gid) = (before.mode, before.uid, before.gid);
        }
        if lower.ctime > started {
            // Other programs have changed its entries during the run, perhaps later than the run
            // did.
            after.mtime = after.mtime.max(before.mtime);
            before.mtime = None;
        }
        let (path, inode) = (Name(path.clone()), lower.inode);
        directories.push(Directory { path, inode, before, after });
    }
    Ok(Log { version: VERSION, label: label.to_owned(), started, born: None, swaps, directories })
}

/// Makes the upper layer ready for the swaps: removes the marks of removed paths, whose places get
/// the old files, and the overlay's notes from what comes into the folder. May be called again
/// after an interruption.
pub fn prepare(layers: &Layers, log: &Log) -> Outcome {
    for swap in &log.swaps {
        let mut todo = vec![swap.path.0.clone()];
        while let Some(path) = todo.pop() {
            make_ready(layers, &path, &mut todo)
                .map_err(|e| layers.upper.failure("cannot prepare", &path, &e))?;
        }
    }
    Ok(())
}

fn make_ready(layers: &Layers, path: &[u8], todo: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let Some(file) = layers.upper.attributes(path)? else { return Ok(()) };
    if layers.is_whiteout(path, &file)? {
        return layers.upper.unlink(path);
    }
    if file.is_directory() {
        todo.extend(layers.upper.names(path)?.iter().map(|name| join(path, name)));
    }
    for (name, value) in layers.upper.xattrs(path)? {
        let seen = layers.marks.seen(&name);
        if seen.as_ref() == Some(&name) {
            continue;
        }
        let change = || {
            if let Some(seen) = &seen {
                layers.upper.set_xattr(path, seen, Some(&value))?;
            }
            layers.upper.set_xattr(path, &name, None)
        };
        match change() {
            // The owner of a file that is not writable may make it so.
            Err(e) if e.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) => {
                layers.upper.set_mode(path, file.mode | 0o200)?;
                let done = change();
                layers.upper.set_mode(path, file.mode)?;
                done?;
            }
            done => done?,
        }
    }
    Ok(())
}
