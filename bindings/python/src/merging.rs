//! Merges the changes of a fork into the store from which the fork was made.

use kvdb::{Kvdb, Settled, TransactionId, TransactionOptions};
use kvfs::{Choice, MergeConflict, MergeForkOptions};

use crate::failure::{Failure, Outcome};
use crate::shared::Open;

/// The path or `dictionary:key`, whether it is a key, and the changes that the store and the fork
/// have made.
pub type Conflicting = (Vec<u8>, bool, &'static str, &'static str);

/// Returns the choice with this name.
pub fn choice(name: &str) -> Outcome<Choice> {
    match name {
        "ours" => Ok(Choice::Ours),
        "theirs" => Ok(Choice::Theirs),
        "both" => Ok(Choice::Both),
        other => {
            Err(Failure::Invalid(format!("a conflict goes to ours, theirs or both, not {other:?}")))
        }
    }
}

/// Begins a transaction with the changes of the fork, or returns the conflicts.
pub fn merge(
    open: &Open,
    (name, fork): (String, Kvdb),
    choices: Vec<(Vec<u8>, Choice)>,
    transaction: TransactionOptions,
) -> Outcome<Result<TransactionId, Vec<MergeConflict>>> {
    let views = open.views()?;
    let options = MergeForkOptions { name, choices, dry_run: false, transaction };
    let merged = views.merge_fork(&fork, &options, &|_, _| Settled::Conflict);
    // The file of the fork keeps the parts that were fetched.
    let closed = fork.close();
    let merged = merged?;
    if merged.conflicts.is_empty() && closed.is_ok() {
        return Ok(Ok(merged.transaction));
    }
    views.abort(merged.transaction)?;
    closed?;
    Ok(Err(merged.conflicts))
}

/// Converts conflicts to the form for Python.
pub fn listed(conflicts: Vec<MergeConflict>) -> Vec<Conflicting> {
    let one = |c: MergeConflict| (c.path, c.key, c.ours.word(), c.theirs.word());
    conflicts.into_iter().map(one).collect()
}
