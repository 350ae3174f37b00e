//! The open views and their numbers, and the numbers of ended views that are not free yet
//! (`retired`).

mod retired;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use env::sync::RwLock;
use kvdb::{Kvdb, Transaction};

use self::retired::Retired;
use super::ViewId;
use super::notes::KeptNotes;
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;

/// The largest number that a view can have.
pub(super) const MAX_NUMBER: u16 = 0xfff0;

pub(crate) struct OpenView {
    pub view: ViewId,
    pub number: u16,
    pub fs: Fs,
    pub transaction: Option<Transaction>,
}

#[derive(Default)]
struct Table {
    by_number: BTreeMap<u16, Arc<OpenView>>,
    retired: HashMap<u16, Retired>,
    numbers: HashMap<ViewId, u16>,
    /// The number that was given last.
    last: u16,
}

impl Table {
    fn find(&self, view: &ViewId) -> Option<Arc<OpenView>> {
        self.numbers.get(view).and_then(|number| self.by_number.get(number)).cloned()
    }
}

/// The numbers that are in use: of all views but the mainline.
pub(crate) struct NumbersInUse {
    /// The open views, by their numbers.
    pub open: Vec<Arc<OpenView>>,
    /// References to inodes of views that have ended, by the views' numbers.
    pub retired: Vec<(u16, Vec<(Ino, u64)>)>,
    /// The number that was given last.
    pub last: u16,
}

pub(crate) struct OpenViews {
    db: Kvdb,
    /// Notes for a process that follows this one when it is killed.
    notes: KeptNotes,
    table: RwLock<Table>,
}

impl OpenViews {
    pub fn new(db: Kvdb, notes: KeptNotes) -> OpenViews {
        OpenViews { db, notes, table: RwLock::default() }
    }

    /// Returns a view if it is open.
    pub fn find(&self, view: &ViewId) -> Option<Arc<OpenView>> {
        self.table.read().find(view)
    }

    /// Returns the open view with this number.
    pub fn by_number(&self, number: u16) -> Option<Arc<OpenView>> {
        self.table.read().by_number.get(&number).cloned()
    }

    /// Returns the open views, in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<OpenView>> {
        self.table.read().by_number.values().cloned().collect()
    }

    /// Adds a view, or returns the one that another thread has opened in the meantime. `exists` is
    /// called when no other thread can end the view, since its state may have been dropped after
    /// `fs` was made.
    pub fn add(
        &self,
        view: ViewId,
        fs: Fs,
        transaction: Option<Transaction>,
        exists: impl FnOnce() -> bool,
    ) -> Result<Arc<OpenView>> {
        let mut table = self.table.write();
        if !exists() {
            return Err(Error::NotFound);
        }
        if let Some(entry) = table.find(&view) {
            return Ok(entry);
        }
        if table.by_number.len() + table.retired.len() >= usize::from(MAX_NUMBER) {
            let many = "too many views are open: end some transactions, and close what programs have open of ended ones";
            return Err(Error::Store(kvdb::Error::Invalid(many.into())));
        }
        let mut number = table.last % MAX_NUMBER + 1;
        while table.by_number.contains_key(&number) || table.retired.contains_key(&number) {
            number = number % MAX_NUMBER + 1;
        }
        table.last = number;
        self.notes.opened(&self.db, number, &view);
        let entry = Arc::new(OpenView { view: view.clone(), number, fs, transaction });
        table.by_number.insert(number, entry.clone());
        table.numbers.insert(view, number);
        Ok(entry)
    }

    /// Takes a view that ends out of the open ones. Its number stays in use until
    /// [`OpenViews::retire`]. Returns `false` if the view has ended already.
    pub fn begin_to_end(&self, entry: &OpenView) -> bool {
        let mut table = self.table.write();
        let Some(ending) = table.by_number.remove(&entry.number) else { return false };
        table.numbers.remove(&entry.view);
        table.retired.insert(entry.number, Retired::Ending(ending));
        true
    }

    /// Returns the numbers that are in use.
    pub fn in_use(&self) -> NumbersInUse {
        let table = self.table.read();
        let of = |(number, retired): (&u16, &Retired)| (*number, retired.references());
        let mut retired: Vec<_> = table.retired.iter().map(of).collect();
        retired.sort_unstable();
        NumbersInUse {
            open: table.by_number.values().cloned().collect(),
            retired,
            last: table.last,
        }
    }

    /// Makes the next view get the number after this one, or the next free one after that.
    pub fn go_on_after(&self, last: u16) {
        self.table.write().last = last;
    }
}
