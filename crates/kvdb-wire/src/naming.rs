//! The snapshots and clones that clients make, list and drop, by name, on the server. A client that
//! got no answer sends its request again, with the same key, and it is done once (`once`).
//!
//! A client that may begin transactions in a branch may make snapshots of it, since it reads and
//! changes all of the branch anyway. A snapshot may be there to keep what such a client removes, so
//! only a client that administers the store drops any.
//!
//! A client that may begin transactions in a clone may make it, of a snapshot that it may read, and
//! drop it: it may remove all that the clone has of its own anyway.

use std::sync::Arc;

use kvdb::{BranchInfo, DictionaryId, Durability, Error, Kvdb, SnapshotLabel};

use crate::body::{MAX_LISTED, TransactionKey};
use crate::failure::{Failure, FailureCode, of_store};
use crate::host::Host;
use crate::once::Once;
use crate::reply::{Listed, Reply};
use crate::roles::Role;
use crate::wanted::{Limits, Wanted};

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
    /// store has `most`, and one alone of a clone that has a limit.
    pub fn make_snapshot(
        &self,
        role: &Role,
        key: &TransactionKey,
        (branch, name): (&str, &str),
        synced: bool,
        most: usize,
    ) -> Answer<()> {
        allow(role.may_write(branch))?;
        if !role.administers && ends_with_time(name) {
            let what = "a name that ends with a time is for snapshots that are kept by rules: \
                        take another one";
            return Err(Failure { code: FailureCode::NotAllowed, what: what.into() });
        }
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        let make = || {
            if !role.administers && self.db.snapshot_labels().len() >= most {
                let what = format!("the store has {most} snapshots: have some of them dropped");
                return Err(Error::Limit(what));
            }
            if !role.administers {
                self.check_uncounted(branch)?;
            }
            self.host.make_snapshot(branch, name, durability)
        };
        self.once.run(key, durability, &Wanted::snapshot(branch, name), make).map_err(of_store)
    }

    /// Fails if a clone has a limit, and a snapshot. What a snapshot keeps does not count towards
    /// the limit, so a client that made one after each change would take any space. With one
    /// snapshot it takes at most twice the limit.
    fn check_uncounted(&self, branch: &str) -> kvdb::Result<()> {
        let mut all = self.db.branches().into_iter();
        if !all.any(|info| info.name == branch && info.limit.is_some()) {
            return Ok(());
        }
        match self.db.snapshot_labels().into_iter().find(|label| label.branch == branch) {
            Some(label) => Err(Error::Limit(format!(
                "the clone '{branch}' has a limit, towards which its snapshots do not count, and \
                 the snapshot '{}': have that one dropped by who administers the store",
                label.name
            ))),
            None => Ok(()),
        }
    }

    /// Drops a snapshot.
    pub fn remove_snapshot(&self, role: &Role, key: &TransactionKey, name: &str) -> Answer<()> {
        allow(role.administers)?;
        let remove = || self.host.remove_snapshot(name);
        let wanted = Wanted::no_snapshot(name);
        self.once.run(key, Durability::Synced, &wanted, remove).map_err(of_store)
    }

    /// Makes a clone of a snapshot. A client that does not administer the store makes none if the
    /// store has `most`, and one of a clone that has limits has the same ones.
    pub fn make_clone(
        &self,
        role: &Role,
        key: &TransactionKey,
        (snapshot, name): (&str, &str),
        most: usize,
    ) -> Answer<()> {
        // Transactions of the clone read all of the snapshot.
        allow(role.may_write(name) && role.may_read(snapshot))?;
        let limits = if role.administers { (None, None) } else { self.limits_of_origin(snapshot) };
        let wanted = Wanted::clone_of(snapshot, name, limits);
        let make = || {
            if !role.administers && self.db.branches().len() >= most {
                let what = format!("the store has {most} clones: drop some of them");
                return Err(Error::Limit(what));
            }
            self.host.make_clone(snapshot, name)?;
            wanted.complete(&self.db).inspect_err(|_| {
                if let Err(e) = self.host.remove_clone(name) {
                    tracing::warn!("the clone {name} has no limit, and is not dropped: {e}");
                }
            })
        };
        self.once.run(key, Durability::Synced, &wanted, make).map_err(of_store)
    }

    /// Returns the limits of the clone that a snapshot was made of.
    fn limits_of_origin(&self, snapshot: &str) -> Limits {
        let Some(label) = self.db.snapshot_label(snapshot) else { return (None, None) };
        let mut all = self.db.branches().into_iter();
        match all.find(|info| info.name == label.branch) {
            Some(info) => (info.limit.map(|limit| limit.bytes), info.limit_of_files),
            None => (None, None),
        }
    }

    /// Drops a clone. One that has a limit is dropped by those alone who administer the store:
    /// others could make it again, without the limit.
    pub fn remove_clone(&self, role: &Role, key: &TransactionKey, name: &str) -> Answer<()> {
        allow(role.may_write(name))?;
        if name.is_empty() {
            // The main branch is no clone, and its transactions continue.
            let what = "a clone has a name".into();
            return Err(Failure { code: FailureCode::Invalid, what });
        }
        let remove = || {
            let mut all = self.db.branches().into_iter();
            let is_limited = |info: BranchInfo| {
                info.name == name && (info.limit.is_some() || info.limit_of_files.is_some())
            };
            if !role.administers && all.any(is_limited) {
                let what = "the clone has a limit, which another one in its place would not have: \
                            have it dropped by who administers the store";
                return Err(Error::Limit(what.into()));
            }
            self.host.remove_clone(name)
        };
        self.once.run(key, Durability::Synced, &Wanted::no_clone(name), remove).map_err(of_store)
    }
}

/// Returns whether a name ends like those of snapshots that are made and dropped by rules
/// (`kvfs snapshot auto`): `-2026-11-24T22:04:36Z`. The rules count all snapshots with such names,
/// so a client that makes some of them causes others to be dropped.
fn ends_with_time(name: &str) -> bool {
    const FORM: &[u8] = b"-0000-00-00T00:00:00Z";
    let end = name.len().checked_sub(FORM.len()).and_then(|at| name.as_bytes().get(at..));
    let fits = |(byte, form): (&u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        form => byte == form,
    };
    end.is_some_and(|end| end.iter().zip(FORM).all(fits))
}

/// Returns the snapshots that the client may know.
pub(crate) fn snapshots(db: &Kvdb, role: &Role) -> Vec<Listed> {
    let one = |label: SnapshotLabel| Listed {
        name: label.name,
        of: label.branch,
        created: label.created.as_nanos() as u64,
    };
    let all = db.snapshot_labels().into_iter().map(one);
    all.filter(|one| role.may_list(&one.name, &one.of)).collect()
}

/// Returns the clones that the client may know.
pub(crate) fn clones(db: &Kvdb, role: &Role) -> Vec<Listed> {
    let all = db.branches().into_iter().filter(|info| role.may_write(&info.name));
    let one = |info: BranchInfo| {
        let of = info.snapshot.unwrap_or_default();
        Listed { name: info.name, of, created: 0 }
    };
    all.map(one).collect()
}

/// Returns the answer with the first of these, in the order of their names, whose names are not
/// less than `from`.
pub(crate) fn listed(mut all: Vec<Listed>, from: &str) -> Reply {
    all.retain(|one| *one.name >= *from);
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let ended = all.len() <= MAX_LISTED;
    all.truncate(MAX_LISTED);
    Reply::Listed { ended, all }
}

fn allow(may: bool) -> Answer<()> {
    if may { Ok(()) } else { Err(not_allowed()) }
}

/// Returns the failure of a request that the role of the client does not allow.
pub(crate) fn not_allowed() -> Failure {
    Failure { code: FailureCode::NotAllowed, what: "the token does not let do that".into() }
}
