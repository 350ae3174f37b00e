//! The snapshots that clients make, list and drop, by name, on the server. A client that got no
//! answer sends its request again, with the same key, and it is done once (`once`).
//!
//! A client that may begin transactions in a branch may make snapshots of it, since it reads and
//! changes all of the branch anyway. A snapshot may be there to keep what such a client removes, so
//! only a client that administers the store drops any.

use std::sync::Arc;

use kvdb::{DictionaryId, Durability, Error, Kvdb, SnapshotLabel};

use crate::body::{MAX_LISTED, TransactionKey};
use crate::failure::{Failure, FailureCode, of_store};
use crate::host::Host;
use crate::once::Once;
use crate::reply::{Listed, Reply};
use crate::roles::Role;

type Answer<T> = Result<T, Failure>;

pub(crate) struct Naming {
    db: Kvdb,
    host: Arc<dyn Host>,
    once: Once,
}

impl Naming {
    /// `dict` has the records of requests.
    pub fn open(db: &Kvdb, host: Arc<dyn Host>, dict: DictionaryId) -> kvdb::Result<Naming> {
        Ok(Naming { db: db.clone(), host, once: Once::open(db, dict)? })
    }

    /// Makes a snapshot of a branch. A client that does not administer the store makes none if the
    /// store has `most`.
    pub fn make_snapshot(
        &self,
        role: &Role,
        key: &TransactionKey,
        (branch, name): (&str, &str),
        synced: bool,
        most: usize,
    ) -> Answer<()> {
        allow(role.may_write(branch))?;
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        let is_there = || self.db.snapshot_label(name).is_some_and(|label| label.branch == branch);
        let make = || {
            if !role.administers && self.db.snapshot_labels().len() >= most {
                let what = format!("the store has {most} snapshots: have some of them dropped");
                return Err(Error::Limit(what));
            }
            self.host.make_snapshot(branch, name, durability)
        };
        self.once.run(key, durability, is_there, make).map_err(of_store)
    }

    /// Drops a snapshot.
    pub fn remove_snapshot(&self, role: &Role, key: &TransactionKey, name: &str) -> Answer<()> {
        allow(role.administers)?;
        let is_gone = || self.db.snapshot_label(name).is_none();
        let remove = || self.host.remove_snapshot(name);
        self.once.run(key, Durability::Synced, is_gone, remove).map_err(of_store)
    }
}

/// Returns the answer with the first of these snapshots, in the order of their names, that the
/// client may know and whose names are not less than `from`.
pub(crate) fn listed(all: Vec<SnapshotLabel>, role: &Role, from: &str) -> Reply {
    let mut all: Vec<SnapshotLabel> = all
        .into_iter()
        .filter(|label| *label.name >= *from && role.may_list(&label.name, &label.branch))
        .collect();
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let ended = all.len() <= MAX_LISTED;
    all.truncate(MAX_LISTED);
    let one = |label: SnapshotLabel| Listed {
        name: label.name,
        of: label.branch,
        created: label.created.as_nanos() as u64,
    };
    Reply::Listed { ended, all: all.into_iter().map(one).collect() }
}

fn allow(may: bool) -> Answer<()> {
    if may { Ok(()) } else { Err(not_allowed()) }
}

/// Returns the failure of a request that the role of the client does not allow.
pub(crate) fn not_allowed() -> Failure {
    Failure { code: FailureCode::NotAllowed, what: "the token does not let do that".into() }
}
