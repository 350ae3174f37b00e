//! Reads the data that a mount reads first. A publication of the store includes these bytes.

use std::sync::Arc;

use env::Machine;
use kvdb::Kvdb;

use crate::attr::ROOT;
use crate::error::Result;
use crate::fs::{Fs, FsOptions};
use crate::views::{ViewId, Views};

/// The number of newest snapshots whose roots are read, too.
const SNAPSHOTS: usize = 4;
/// The number of entries of a root that are listed.
const ENTRIES: usize = 2000;
/// The memory for inodes, in bytes.
const MEMORY: usize = 1 << 20;

/// Opens the file system in `db`, and lists its root and the roots of the newest snapshots. See
/// [`kvdb::Publisher::rehearse`]. The file system is opened for writing, like a fork, because such
/// an opening reads more. An error ends the rehearsal; a later mount reports the error.
pub fn rehearse(db: &Kvdb) {
    if db.dictionaries().is_empty() {
        return;
    }
    let options = FsOptions { inode_memory: MEMORY, ..FsOptions::default() };
    let Ok(fs) = Fs::open(db.clone(), Arc::new(Machine::default()), options) else { return };
    let views = Views::new(db.clone(), fs.clone());
    let newest = views.snapshot_labels().into_iter().rev().take(SNAPSHOTS);
    let mut states = newest.map(|label| ViewId::Snapshot(label.name));
    let read = list_root(&fs)
        .and_then(|()| states.try_for_each(|snapshot| list_root(&views.fs(&snapshot)?)));
    if let Err(e) = read {
        tracing::debug!("the first reads of a mount are not known: {e}");
    }
    if let Err(e) = fs.shutdown() {
        tracing::debug!("the file system was not closed: {e}");
    }
}

/// Reads the same data of the root as `ls -l`.
fn list_root(fs: &Fs) -> Result<()> {
    fs.statfs()?;
    fs.getattr(ROOT)?;
    let mut entries = Vec::new();
    let listed = fs.readdir(ROOT, 0, true, &mut |entry| {
        if entries.len() == ENTRIES {
            return false;
        }
        // `.` and `..` add no reference.
        if !matches!(entry.name, b"." | b"..") {
            entries.push(entry.ino);
        }
        true
    });
    entries.into_iter().for_each(|ino| fs.forget(ino, 1));
    listed
}
