//! The outcomes of requests: a snapshot or clone exists, or none exists with a name. The outcome is
//! in the record of a request that was begun (`once`), so that a server which begins after a crash
//! finds out what was done before any other request is.

use kvdb::Kvdb;
use zones::varint::{get_bytes, get_u64, put_bytes, put_u64};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Snapshot = 0,
    NoSnapshot = 1,
    Clone = 2,
    NoClone = 3,
}

/// The limits of a clone, of bytes and of files.
pub(crate) type Limits = (Option<u64>, Option<u64>);

/// The outcome of a request.
pub(crate) struct Wanted {
    kind: Kind,
    name: String,
    /// The branch of the snapshot, or the snapshot that the clone is of.
    of: String,
    /// The limits that the clone is to have.
    limits: Limits,
}

impl Wanted {
    fn new(kind: Kind, name: &str, of: &str) -> Wanted {
        Wanted { kind, name: name.into(), of: of.into(), limits: (None, None) }
    }

    pub fn snapshot(branch: &str, name: &str) -> Wanted {
        Wanted::new(Kind::Snapshot, name, branch)
    }

    pub fn no_snapshot(name: &str) -> Wanted {
        Wanted::new(Kind::NoSnapshot, name, "")
    }

    pub fn clone_of(snapshot: &str, name: &str, limits: Limits) -> Wanted {
        Wanted { limits, ..Wanted::new(Kind::Clone, name, snapshot) }
    }

    pub fn no_clone(name: &str) -> Wanted {
        Wanted::new(Kind::NoClone, name, "")
    }

    /// Returns whether the store shows the outcome, which may be that of another request.
    pub fn is_in(&self, db: &Kvdb) -> bool {
        match self.kind {
            Kind::Snapshot => {
                db.snapshot_label(&self.name).is_some_and(|label| label.branch == self.of)
            }
            Kind::NoSnapshot => db.snapshot_label(&self.name).is_none(),
            Kind::Clone => {
                let mut all = db.branches().into_iter();
                all.any(|info| info.name == self.name && info.snapshot.as_ref() == Some(&self.of))
            }
            Kind::NoClone => !db.has_branch(&self.name),
        }
    }

    /// Sets the limits of the clone that the store has. A clone is made first and limited then, so
    /// a crash in between leaves it without limits.
    pub fn complete(&self, db: &Kvdb) -> kvdb::Result<()> {
        let (bytes, files) = self.limits;
        if bytes.is_some() {
            db.limit_branch(&self.name, bytes)?;
        }
        if files.is_some() {
            db.limit_files(&self.name, files)?;
        }
        Ok(())
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        put_bytes(out, self.name.as_bytes());
        put_bytes(out, self.of.as_bytes());
        let (bytes, files) = self.limits;
        if bytes.is_some() || files.is_some() {
            for limit in [bytes, files] {
                // 0 means no limit.
                put_u64(out, limit.map_or(0, |most| most.saturating_add(1)));
            }
        }
    }

    /// Decodes what `put` has encoded. Anything else belongs to another version.
    pub fn of(bytes: &[u8]) -> Option<Wanted> {
        let (&kind, mut rest) = bytes.split_first()?;
        let all = [Kind::Snapshot, Kind::NoSnapshot, Kind::Clone, Kind::NoClone];
        let kind = all.into_iter().find(|known| *known as u8 == kind)?;
        let mut text = || String::from_utf8(get_bytes(&mut rest).ok()?.to_vec()).ok();
        let (name, of) = (text()?, text()?);
        let mut limit = || get_u64(&mut rest).ok().and_then(|more| more.checked_sub(1));
        // A record without limits ends here.
        let limits = (limit(), limit());
        Some(Wanted { kind, name, of, limits })
    }
}
