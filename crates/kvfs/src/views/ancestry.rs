//! The state that two branches share, which need not be a clone and its parent: the newest one that
//! both come from.
//!
//! Each clone says what it was made of, so the ways of both up to the main branch are known. Where
//! they meet is a branch that both come from, or one of them is. Of its states the older one of
//! those at which the two ways leave it is in both.

use kvdb::{Kvdb, Lineage, View};

use crate::error::{Error, Result};

/// A branch on the way up, and the clone below it that was made of it; `None`: where the way
/// begins.
type Step = (String, Option<Lineage>);

/// The way from a branch up to the main one, or to one that was made of nothing that is known.
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

/// Returns the newest state that two branches share, as far as what they were made of says, and the
/// number of the newest commit in it.
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
