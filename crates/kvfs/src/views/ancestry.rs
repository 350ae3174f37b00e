//! Finds the newest state that two branches share. The branches need not be a clone and its parent.
//!
//! Each clone records the state of which it was made, so the paths of both branches up to the main
//! branch are known. The paths join at a branch that is a common ancestor, or one of the two
//! branches. They leave that branch at two of its states, and the older state is part of both
//! branches.

use kvdb::{Kvdb, Lineage, View};

use crate::error::{Error, Result};

/// A branch on the way up, and the lineage of the clone that was made of this branch and lies on
/// the way, or `None` at the start of the way.
type Step = (String, Option<Lineage>);

/// Returns the way from a branch up to the main one, or to a branch without a known origin.
fn way_up(db: &Kvdb, branch: &str) -> Vec<Step> {
    let mut way = vec![(branch.to_owned(), None)];
    let mut at = branch.to_owned();
    while !at.is_empty()
        && let Ok(lineage) = db.lineage(&at)
        && way.iter().all(|(name, _)| *name != lineage.parent)
    {
        at.clone_from(&lineage.parent);
        way.push((at.clone(), Some(lineage)));
    }
    way
}

/// Returns the newest state that two branches share, according to their origins, and the number of
/// the newest commit in it.
pub(super) fn shared_state(db: &Kvdb, from: &str, into: &str) -> Result<(View, u64)> {
    let (from_way, into_way) = (way_up(db, from), way_up(db, into));
    for (branch, left) in &from_way {
        let Some((_, entered)) = into_way.iter().find(|(name, _)| name == branch) else { continue };
        let states = [left, entered].into_iter().flatten();
        let oldest = states.min_by_key(|lineage| lineage.made_at);
        if let Some(lineage) = oldest {
            return Ok((lineage.origin.clone(), lineage.made_at));
        }
    }
    let shown = |name: &str| match name {
        "" => "the store".to_owned(),
        name => format!("clone {name}"),
    };
    let why = format!(
        "{} and {} share no state that is known, so nothing says what each of them has changed",
        shown(from),
        shown(into)
    );
    Err(Error::Store(kvdb::Error::Invalid(why)))
}
