//! The mainline while a server lends it to a client (`docs/decisions/170-main-files-by-lease.md`).
//! No one may use the mainline here in the meantime.

use std::ops::Range;

use super::Views;
use crate::attr::Ino;
use crate::error::Result;

impl Views {
    /// Lends the mainline to a process elsewhere, which changes it in the store, past these views,
    /// until [`Views::take_back`]. Returns the number of this lending. `since` is that number if
    /// the mainline was lent before the store was opened: then this fails if others may have
    /// changed it in the meantime.
    pub fn lend(&self, since: Option<u64>) -> Result<u64> {
        self.shared.mainline.lend(since)
    }

    /// Takes the mainline back: brings the views up to date with what was changed in the store, and
    /// removes the files that were open there without a name.
    pub fn take_back(&self) -> Result<()> {
        let fs = &self.shared.mainline;
        let turn = fs.core.superseded.turn();
        fs.take_back(&turn)
    }

    /// Takes inode numbers for objects that are made in the mainline where it is lent to.
    pub fn reserve_inodes_of_mainline(&self, count: u64) -> Result<Range<Ino>> {
        self.shared.mainline.new_inos(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::Simulated;
    use kvdb::Kvdb;

    use super::*;
    use crate::fs::counter::notes_of;
    use crate::layout::counter::LENT_KEY;
    use crate::{Caller, FileKind, Fs, FsOptions, ROOT};

    fn opened(db: &Kvdb, lent: bool) -> Views {
        let options = FsOptions { lent, ..FsOptions::default() };
        let fs = Fs::open(db.clone(), Arc::new(Simulated::new(1)), options).unwrap();
        Views::new(db.clone(), fs)
    }

    fn make(fs: &Fs, name: &[u8]) -> Ino {
        let made = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap();
        fs.write(made.ino, 0, &[7; 100_000], Default::default()).unwrap();
        fs.sync_all().unwrap();
        made.ino
    }

    #[test]
    fn a_mainline_that_is_taken_back_is_as_it_was_left() {
        let db = Kvdb::in_memory();
        let here = opened(&db, false);
        let file = make(here.mainline(), b"file");
        here.mainline().forget(file, 1);
        here.lend(None).unwrap();
        // The same in the place of the client: a file goes, and stays open, and another one comes.
        let there = opened(&db, true);
        let file = there.mainline().lookup(ROOT, b"file").unwrap().ino;
        there.mainline().unlink(ROOT, b"file").unwrap();
        make(there.mainline(), b"other");
        // A server that is begun again leaves its content alone.
        assert_eq!(opened(&db, true).mainline().orphans().unwrap(), [file]);
        assert_eq!(there.mainline().read(file, 0, 3).unwrap().to_vec(), [7; 3]);
        here.take_back().unwrap();
        assert!(here.mainline().lookup(ROOT, b"file").is_err());
        assert_eq!(here.mainline().lookup(ROOT, b"other").unwrap().size, 100_000);
        let report = here.mainline().verify().unwrap();
        assert_eq!(report.findings, []);
        assert_eq!(report.orphans, 0);
    }

    #[test]
    fn a_repair_ends_a_lending() {
        let db = Kvdb::in_memory();
        opened(&db, false).lend(None).unwrap();
        let notes = notes_of(&db).unwrap();
        assert!(db.get(notes, LENT_KEY).unwrap().is_some());
        crate::repair(&db, &Simulated::new(1), crate::Losses::Keep).unwrap();
        assert!(db.get(notes, LENT_KEY).unwrap().is_none());
    }

    #[test]
    fn a_lending_goes_on_unless_the_store_was_opened_without_it() {
        let db = Kvdb::in_memory();
        let number = opened(&db, false).lend(None).unwrap();
        let again = opened(&db, true);
        assert_eq!(again.lend(Some(number)).unwrap(), number);
        assert!(again.lend(Some(number ^ 1)).is_err());
        opened(&db, false);
        let why = opened(&db, true).lend(Some(number)).unwrap_err().to_string();
        assert!(why.contains("opened in the meantime"), "{why}");
        let next = again.lend(None).unwrap();
        again.take_back().unwrap();
        assert!(again.lend(Some(next)).is_err());
    }
}
