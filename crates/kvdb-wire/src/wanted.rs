//! The outcomes of requests: a snapshot or clone that is there, or that there is none of a name.
//! The outcome is in the record of a request that was begun (`once`), so that a server which begins
//! after a crash finds out what was done before any other request is.

use kvdb::Kvdb;
use zones::varint::{get_bytes, put_bytes};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Snapshot = 0,
    NoSnapshot = 1,
    Clone = 2,
    NoClone = 3,
}

/// The outcome of a request.
pub(crate) struct Wanted {
    kind: Kind,
    name: String,
    /// The branch of the snapshot, or the snapshot that the clone is of.
    of: String,
}

impl Wanted {
    pub fn snapshot(branch: &str, name: &str) -> Wanted {
        Wanted { kind: Kind::Snapshot, name: name.into(), of: branch.into() }
    }

    pub fn no_snapshot(name: &str) -> Wanted {
        Wanted { kind: Kind::NoSnapshot, name: name.into(), of: String::new() }
    }

    pub fn clone_of(snapshot: &str, name: &str) -> Wanted {
        Wanted { kind: Kind::Clone, name: name.into(), of: snapshot.into() }
    }

    pub fn no_clone(name: &str) -> Wanted {
        Wanted { kind: Kind::NoClone, name: name.into(), of: String::new() }
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

    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        put_bytes(out, self.name.as_bytes());
        put_bytes(out, self.of.as_bytes());
    }

    /// Decodes what `put` has encoded. Anything else belongs to another version.
    pub fn of(bytes: &[u8]) -> Option<Wanted> {
        let (&kind, mut rest) = bytes.split_first()?;
        let all = [Kind::Snapshot, Kind::NoSnapshot, Kind::Clone, Kind::NoClone];
        let kind = all.into_iter().find(|known| *known as u8 == kind)?;
        let mut text = || String::from_utf8(get_bytes(&mut rest).ok()?.to_vec()).ok();
        let (name, of) = (text()?, text()?);
        Some(Wanted { kind, name, of })
    }
}
