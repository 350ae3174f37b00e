//! The last phase of opening a store: recovers the commits that only the mirror of a killed process
//! has. These commits follow the end of the journal. They are committed again with their old
//! numbers, and are on the device before the mirror is emptied. If this process is killed as well,
//! the next process does the same with the commits that are still missing.

use std::sync::Arc;

use vt_tree::{ExtentRef, Seq, Value};
use zones::{ZoneUse, Zones};

use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::ids::TransactionId;
use crate::journal::record::{self, Op, Ops, Record};
use crate::mirror::Mirror;

/// Returns the commits of the mirror that the journal lacks. `next` is the number of the change
/// that would follow the journal's last change.
pub(super) fn behind(
    zones: &Zones,
    mirror: &Arc<Mirror>,
    mut next: Seq,
) -> Result<Vec<(Seq, Ops)>> {
    if !mirror.is_of(&zones.superblock().uuid) {
        return Err(Error::Invalid("the mirror is of another store".into()));
    }
    let mut commits = Vec::new();
    for entry in mirror.entries()? {
        if entry.next() <= next {
            continue;
        }
        let changes = match record::decode(&entry.record)? {
            Record::Commit(changes)
                if entry.first == next && changes.len() as u64 == entry.changes =>
            {
                changes
            }
            _ => {
                return Err(Error::Corrupt(format!(
                    "the mirror has changes {} to {}, where the journal goes on with {next}",
                    entry.first,
                    entry.next()
                )));
            }
        };
        next = entry.next();
        commits.push((entry.first, changes));
    }
    Ok(commits)
}

/// Adds the places of the commits' values to `bound`, so that nothing else is written there. Each
/// extent is passed to `saw`.
pub(super) fn keep_places(
    commits: &[(Seq, Ops)],
    bound: &mut ZoneUse,
    saw: &mut dyn FnMut(&ExtentRef),
) {
    for (_, op) in commits.iter().flat_map(|(_, changes)| changes) {
        if let Op::Put(_, Value::Extent(extent)) = op {
            bound.add_extent(extent.addr, u64::from(extent.stored));
            saw(extent);
        }
    }
}

/// Commits the recovered commits again, and mirrors all commits from then on.
pub(super) fn replay(db: &Database, commits: &[(Seq, Ops)]) -> Result<()> {
    let Some(mirror) = &db.engine.options.mirror else { return Ok(()) };
    for (first, changes) in commits {
        db.commits.replay_mirrored(&*db.admission, *first, changes)?;
    }
    db.commits.log.begin_mirror(mirror)?;
    // Do not use the old transaction numbers again, since clients may still know transactions by
    // them.
    db.transactions.number_used(TransactionId(mirror.first_transaction()));
    Ok(())
}
