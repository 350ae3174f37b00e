//! Makes views of the newest commit, and of states that are not visible yet.

use std::sync::Arc;

use vt_tree::Seq;
use zones::remote::TableHold;

use crate::error::Result;
use crate::manifest::ManifestState;
use crate::read::view::View;
use crate::version::Version;
use crate::version::read_snapshots::PinnedVersion;
use crate::version::tree::OpenRun;
use crate::version::version_set::{VersionEdit, VersionSet};

impl VersionSet {
    /// Returns a view of the newest commit: it contains every commit up to the number that it pins,
    /// and no later commit.
    pub(crate) fn view(&self) -> View {
        self.view_of(self.pin())
    }

    fn view_of(&self, version: PinnedVersion) -> View {
        View {
            at: version.pin.at,
            cache: self.cache().clone(),
            version,
            write_set: None,
            around: None,
            of_transaction: false,
            snapshot: None,
        }
    }

    /// Returns a view of the store in `state`, which is not yet the state of the manifest. `change`
    /// has the runs of that state.
    pub(crate) fn preview(&self, state: &ManifestState, change: &VersionEdit) -> Result<View> {
        let mut view = self.view();
        let mut version = Version::clone(&view.version);
        change.apply_to(&mut version, state)?;
        view.version.version = Arc::new(version);
        Ok(view)
    }

    /// Opens a view of a state that is not visible yet, like [`VersionSet::preview`]. `seq` is the
    /// newest commit of the state. `table` keeps the locations of its zones.
    pub(crate) fn preview_published(
        &self,
        state: &ManifestState,
        (seq, table): (Seq, TableHold),
        open: &mut OpenRun<'_>,
    ) -> Result<View> {
        let mut view = self.view();
        let mut version = Version::clone(&view.version);
        version.follow(state, open)?;
        version.table = table;
        (view.at, view.version.version) = (seq, Arc::new(version));
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Batch, DictionaryId, DictionaryOptions, Durability, Isolation, Kvdb};

    /// Makes a view, and calls `between` between its two steps.
    fn view_with(db: &Kvdb, between: impl FnMut()) -> View {
        let versions = db.version_set();
        versions.view_of(versions.pin_with(between))
    }

    /// Runs `others` once between the two steps of making a view, and checks that the view shows
    /// one consistent state of the store.
    fn between(others: impl Fn(&Kvdb, DictionaryId)) {
        let db = Kvdb::in_memory();
        let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
        let put = |key: &str, value: &str| {
            db.put(d, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put")
        };
        put("a", "1");
        put("b", "1");
        db.snapshot("one").expect("made");
        db.flush().expect("flushed");
        put("a", "2");
        let done = Cell::new(false);
        let view = view_with(&db, || {
            if !done.replace(true) {
                others(&db, d);
                put("b", "behind");
            }
        });
        let read = |view: &View, key: &str| view.get(d, key.as_bytes()).expect("read");
        let now = db.view();
        if view.at == now.at {
            // The view has the number of the newest commit, so it must contain all changes.
            assert_eq!(
                ["a", "b"].map(|key| read(&view, key)),
                ["a", "b"].map(|key| read(&now, key)),
            );
        } else {
            assert_eq!(
                ["a", "b"].map(|key| read(&view, key)),
                [Some("2".into()), Some("1".into())],
            );
        }
    }

    #[test]
    fn a_view_and_a_rollback() {
        between(|db, _| db.rollback("one").expect("rolled back"));
    }

    #[test]
    fn a_view_and_an_ingest() {
        between(|db, d| _ = db.ingest(d, [("a", "ingested")]).expect("ingested"));
    }

    #[test]
    fn a_view_and_a_transaction_that_binds_runs() {
        between(|db, d| {
            let t = db.begin(Isolation::Snapshot).expect("begun");
            let mut bulk = t.bulk(d, &db.view()).expect("begun");
            bulk.push(b"a", b"bound").expect("pushed");
            t.adopt(bulk.finish().expect("written")).expect("adopted");
            t.commit(Durability::Buffered).expect("committed");
        });
    }

    /// A view contains every commit up to its number, including commits that were made between its
    /// two steps and went into memtables that its version did not have.
    #[test]
    fn a_view_and_what_goes_into_other_memtables() {
        let new_generation = |db: &Kvdb, d| {
            let generation = db.version_set().load().generation.number;
            db.pipeline().seal(generation).expect("sealed");
            db.put(d, b"a", b"3", Durability::Buffered).expect("put");
        };
        let new_dictionary = |db: &Kvdb, _| {
            let e = db.create_dictionary("e", DictionaryOptions::default()).expect("made");
            db.put(e, b"a", b"3", Durability::Buffered).expect("put");
        };
        type Others<'a> = &'a dyn Fn(&Kvdb, DictionaryId);
        // Make the first commit to a dictionary, after one to another dictionary that already has a
        // memtable.
        let two_dictionaries = |db: &Kvdb, d| {
            let f = db.dictionary("f").expect("there");
            db.put(f, b"a", b"4", Durability::Buffered).expect("put");
            db.put(d, b"a", b"4", Durability::Buffered).expect("put");
        };
        let cases: [Others; 3] = [&new_generation, &new_dictionary, &two_dictionaries];
        for others in cases {
            let db = Kvdb::in_memory();
            let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
            db.create_dictionary("f", DictionaryOptions::default()).expect("made");
            let mut batch = Batch::new();
            batch.put(d, "a", "1");
            db.commit(batch, Durability::Buffered).expect("committed");
            let done = Cell::new(false);
            let view = view_with(&db, || {
                if !done.replace(true) {
                    others(&db, d);
                }
            });
            let now = db.view();
            assert_eq!(view.at, now.at);
            for dict in now.dictionaries() {
                let read = |view: &View| {
                    view.dictionary(&dict.name).map(|d| view.get(d, b"a").expect("read"))
                };
                assert_eq!(read(&view), read(&now), "dictionary {}", dict.name);
            }
        }
    }
}
