//! Paths that others have changed in the folder during a run which has changed them, too.
//!
//! The time of the last change of a file's inode (ctime) cannot be set by programs, and a rename
//! sets it, too. So a change of another program since the run began has a later time than the state
//! of the run, which was made on the same file system. No record of the folder is made beforehand.

use std::io;

use crate::support::layers::layer::{Attributes, Layer, Time, join, split};
use crate::support::layers::reader::{Change, Layers};
use crate::support::over::plan::{Left, for_each_separable};
use crate::support::terminal::output::Outcome;

/// Returns the paths of changes that are not left out, and that others have changed after
/// `started`.
pub fn conflicts(layers: &Layers, left: &Left, started: Time) -> Outcome<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for_each_separable(layers, left, &mut |change| {
        let theirs = theirs(layers, &change, started)
            .map_err(|e| layers.lower.failure("cannot read", &change.path, &e))?;
        found.extend(theirs);
        Ok(())
    })?;
    Ok(found)
}

/// Returns a path at which others have changed something that the change is about.
fn theirs(layers: &Layers, change: &Change, started: Time) -> io::Result<Option<Vec<u8>>> {
    let path = &change.path;
    if change.is_of_directory() {
        // Others may have changed its entries: only attributes are changed here.
        let is_theirs = change.before.is_some_and(|before| is_later(&before, started));
        let is_own = change.access() || change.xattrs;
        return Ok((is_theirs && is_own).then(|| path.clone()));
    }
    match &change.before {
        Some(_) => later(&layers.lower, path, &|file| is_later(file, started)),
        // The overlay has copied the file, so it was there.
        None if change.is_copy => {
            let directory = layers.lower.attributes(split(path).0)?;
            let is_same = directory.is_some_and(|directory| directory.ctime <= started);
            Ok((!is_same).then(|| path.clone()))
        }
        None => Ok(None),
    }
}

/// Returns whether a file was changed after a time.
pub fn is_later(file: &Attributes, started: Time) -> bool {
    file.ctime > started
}

/// Returns a path at or beneath this one that is gone, or whose file was changed later.
pub fn later(
    layer: &Layer,
    path: &[u8],
    is_theirs: &dyn Fn(&Attributes) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut todo = vec![path.to_vec()];
    while let Some(path) = todo.pop() {
        let Some(file) = layer.attributes(&path)? else { return Ok(Some(path)) };
        if is_theirs(&file) {
            return Ok(Some(path));
        }
        if file.is_directory() {
            todo.extend(layer.names(&path)?.iter().map(|name| join(&path, name)));
        }
    }
    Ok(None)
}
