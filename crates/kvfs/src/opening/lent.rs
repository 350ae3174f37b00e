//! The mainline while a server lends it to a client, which changes the mainline in the store
//! without the `Fs` of this process. A note in the store records the lending, with a number that no
//! other lending has. Any other opening for changes removes the note, so after a restart of its
//! server, a client detects whether the files may have changed without it.

use kvdb::{Batch, Durability, Kvdb};

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::counter::notes_of;
use crate::fs::superseded::ChangeTurn;
use crate::layout::counter::{LENT_KEY, encode_number};

/// Removes the note.
pub(super) fn end_lending(db: &Kvdb) -> Result<()> {
    let Some(notes) = notes_of(db) else { return Ok(()) };
    if db.get(notes, LENT_KEY)?.is_none() {
        return Ok(());
    }
    let mut batch = Batch::new();
    batch.delete(notes, LENT_KEY);
    // A full store must open, too.
    batch.releases_space();
    Ok(db.commit(batch, Durability::Buffered)?)
}

impl Fs {
    /// Notes that the mainline is lent, and returns the number of the note. With `since`, it is
    /// lent already, with this number; then this fails if there is another note or none.
    pub(crate) fn lend(&self, since: Option<u64>) -> Result<u64> {
        self.writable()?;
        let db = self.core.db.here()?;
        let notes = notes_of(db).ok_or(Error::ReadOnly)?;
        if let Some(since) = since {
            let noted = db.get(notes, LENT_KEY)?;
            if noted.is_some_and(|noted| noted == encode_number(since)) {
                return Ok(since);
            }
            let why = "the store was opened in the meantime, and its files may have changed";
            return Err(kvdb::Error::Invalid(why.into()).into());
        }
        // Everything that was written here before is part of the state that is lent.
        self.sync_all()?;
        let number = db.random();
        let mut batch = Batch::new();
        batch.put(notes, LENT_KEY, encode_number(number));
        batch.releases_space();
        db.commit(batch, Durability::Buffered)?;
        Ok(number)
    }

    /// Ends the lending: what is in memory is brought up to date, and the files without a name that
    /// the client has left are removed.
    pub(crate) fn take_back(&self, turn: &ChangeTurn<'_>) -> Result<()> {
        end_lending(self.core.db.here()?)?;
        self.revert(turn, |_| Ok(()))?;
        if let Err(e) = self.empty_orphans() {
            self.leave_orphans(&self.orphans()?, &e);
        }
        Ok(())
    }
}
