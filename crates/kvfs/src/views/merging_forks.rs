//! Merging a fork: a store of its own that began as this one was, or as another one was of which
//! this is a later fork, and has its own files and keys since. What both began as is kept in the
//! fork (`kvdb::Kvdb::fork_base`), so that what it has changed is found there; into this store it
//! is copied.

use kvdb::{Kvdb, TransactionOptions, View};

use super::Views;
use super::merging::{Rules, State, Three};
use crate::difference::Numbering;
use crate::error::{Error, Result};
use crate::fs::counter::{check_possible, forked_at, noted_bound, notes_of, shown_below};
use crate::layout::{self, Layout, Super};
use crate::merging::{Choices, MergeForkOptions, Merged, SettleKeys};

/// The most numbers that are set aside for a fork: of a million large directories. What a stranger
/// has written may not use up all numbers of the store.
const MOST_GIVEN: u64 = 1 << 40;

/// The layout of a fork's files. An error where a newer version wrote them, or there are none.
fn layout_of(fork: &Kvdb) -> Result<Layout> {
    let none = || kvdb::Error::Invalid("the fork has no file system".into());
    let layout = Layout::find(fork).ok_or_else(none)?;
    let record = fork.get(layout.imap, &layout::SUPER_KEY)?.ok_or_else(none)?;
    Super::decode(&record)?;
    Ok(layout)
}

impl Views {
    /// Begins a transaction that brings what a fork of this store has changed since it was made
    /// into the main branch, when it commits: as [`Views::merge`] does of a clone, but what comes
    /// is copied. The fork is only read. It may be the fork of a fork of this store, and so on; or
    /// this store is a fork itself, of the same store, and began as a state of that which was not
    /// older: then it gets what the other fork has changed.
    ///
    /// A fork can be merged again: what was taken over is alike on both sides then. What it has
    /// changed since of files that it has made, or of keys, is a conflict, as if both sides had
    /// made them.
    ///
    /// An error where `fork` has no such state in common with this store.
    pub fn merge_fork(
        &self,
        fork: &Kvdb,
        options: &MergeForkOptions,
        settle: &SettleKeys<'_>,
    ) -> Result<Merged> {
        let db = &self.shared.db;
        self.shared.mainline.writable()?;
        let (store, base) = common_base(db, fork, &options.name)?;
        let state = fork.view();
        let layout = layout_of(fork)?;
        let mut from = State::new(&state, "", layout);
        from.numbers = self.numbering(fork, &store, &state, &layout)?;
        if !options.dry_run {
            self.make_dictionaries(&from, &base, "")?;
        }
        let begun = TransactionOptions { branch: String::new(), ..options.transaction.clone() };
        let (transaction, parent) = self.begin_at_rest(begun)?;
        let merged = || {
            let view = transaction.view()?;
            let into = State::new(&view, "", parent.fs.core.layout);
            let three = Three { base: State::kept(&base)?, from, into };
            let choices = Choices::new(&options.choices);
            let rules = Rules { choices: &choices, settle, suffix: &options.name };
            three.merge(&rules, &parent.fs, &transaction)
        };
        let conflicts = merged().inspect_err(|_| transaction.abort())?;
        let id = transaction.id();
        let entry = self.open_begun(transaction, parent)?;
        self.tell(|watcher| watcher.appeared(&entry.view));
        let (into, from) = (String::new(), options.name.clone());
        Ok(Merged { transaction: id, into, from, conflicts, since: None })
    }

    /// Sets numbers aside for all that the fork has given since it began.
    fn numbering(
        &self,
        fork: &Kvdb,
        store: &[u8; 16],
        state: &View,
        layout: &Layout,
    ) -> Result<Numbering> {
        let (fs, db) = (&self.shared.mainline, &self.shared.db);
        let Some(bound) = forked_at(fork, store)? else { return Ok(Numbering::PLAIN) };
        // Numbers below it mean the same files in both.
        let known = match notes_of(db) {
            _ if *store != db.store_id() => forked_at(db, store)?,
            Some(notes) => noted_bound(&db.view(), notes)?,
            None => None,
        };
        if known.is_none_or(|known| known < bound) {
            let why = "the store has not given the numbers that the fork began with: it is an older \
                       copy of the one that was published";
            return Err(kvdb::Error::Invalid(why.into()).into());
        }
        let given = check_possible(shown_below(state, layout)?)?.saturating_sub(bound);
        if given > MOST_GIVEN {
            let why = "the fork has inode numbers that no fork can have given";
            return Err(kvdb::Error::Invalid(why.into()).into());
        }
        let _call = fs.enter()?;
        // Nor does this store give a number that both have.
        fs.count(bound, None)?;
        Ok(Numbering::shifted(bound, fs.new_inos(given)?))
    }
}

/// The store that both come from, and the state of that which the fork began as.
fn common_base(db: &Kvdb, fork: &Kvdb, name: &str) -> Result<([u8; 16], View)> {
    if let Some(base) = fork.fork_base(&db.store_id()) {
        return Ok((db.store_id(), base.state));
    }
    // The nearest one.
    for store in db.fork_origins().into_iter().rev() {
        let (Some(own), Some(base)) = (db.fork_base(&store), fork.fork_base(&store)) else {
            continue;
        };
        if fork.store_id() == db.store_id() {
            break;
        }
        if own.commit < base.commit {
            let why = "both are forks of one store, and it began as a later state of that: rebase \
                       this one first (kvfs rebase)";
            let what = format!("{name} cannot be merged into this store: {why}");
            return Err(kvdb::Error::Invalid(what).into());
        }
        return Ok((store, base.state));
    }
    Err(no_fork(db, fork, name))
}

fn no_fork(db: &Kvdb, fork: &Kvdb, name: &str) -> Error {
    let why = match () {
        () if fork.store_id() == db.store_id() => "is the store itself, and no fork of it",
        () if fork.fork_origins().is_empty() => "is no fork, or an older version has made it",
        () => "is a fork of another store",
    };
    kvdb::Error::Invalid(format!("{name} cannot be merged into this store: it {why}")).into()
}
