//! Merges a fork: a separate store that began as a copy of a state, either of this store or of the
//! store of which this one is a later fork, and has changed its own files and keys since. The fork
//! keeps the state with which both began (`kvdb::Kvdb::fork_base`), so its changes are computed
//! there, and copied into this store.

use kvdb::{Kvdb, TransactionOptions, View};

use super::merger::Merger;
use super::merging::{Rules, State, Three};
use crate::difference::Numbering;
use crate::error::{Error, Result};
use crate::fs::counter::{check_possible, forked_at, noted_bound, notes_of, shown_below};
use crate::layout::{self, Layout, Super};
use crate::merge::merging::{Choices, Conflicts, MergeForkOptions, Merged, SettleKeys};

/// The maximum number of inode numbers that are reserved for a fork: enough for a million large
/// directories. An untrusted fork must not use up all numbers of the store.
const MOST_GIVEN: u64 = 1 << 40;

/// Returns the layout of a fork's files. Fails if a newer version wrote them, or if there are none.
fn layout_of(fork: &Kvdb) -> Result<Layout> {
    let none = || kvdb::Error::Invalid("the fork has no file system".into());
    let layout = Layout::find(fork).ok_or_else(none)?;
    let record = fork.get(layout.imap, &layout::SUPER_KEY)?.ok_or_else(none)?;
    Super::decode(&record)?;
    Ok(layout)
}

impl Merger {
    /// Begins a transaction that brings the changes that a fork of this store has made into the
    /// main branch, when it commits.
    pub fn merge_fork(
        &self,
        fork: &Kvdb,
        options: &MergeForkOptions,
        settle: &SettleKeys<'_>,
    ) -> Result<Merged> {
        let db = &self.db;
        self.mainline.writable()?;
        let (store, base) = common_base(db, fork, &options.name)?;
        let state = fork.view();
        let layout = layout_of(fork)?;
        let mut from = State::new(&state, "", layout);
        from.numbers = self.numbering(fork, &store, &state, &layout)?;
        if !options.dry_run {
            self.make_dictionaries(&from, &base, "")?;
        }
        let begun = TransactionOptions { branch: String::new(), ..options.transaction.clone() };
        let (transaction, parent) = self.transactions.begin_at_rest(begun)?;
        let merged = || {
            let view = transaction.view()?;
            let into = State::new(&view, "", parent.fs.core.layout);
            let three = Three { base: State::kept(&base)?, from, into };
            let choices = Choices::new(&options.choices);
            let rules = Rules { choices: &choices, settle, suffix: &options.name };
            three.merge(&rules, &parent.fs, &transaction)
        };
        let Conflicts { named: conflicts, more: more_conflicts } =
            merged().inspect_err(|_| transaction.abort())?;
        let id = self.transactions.show_begun(transaction, parent)?;
        let (into, from) = (String::new(), options.name.clone());
        Ok(Merged { transaction: id, into, from, conflicts, more_conflicts, since: None })
    }

    /// Sets numbers aside for all numbers that the fork has given since it began.
    fn numbering(
        &self,
        fork: &Kvdb,
        store: &[u8; 16],
        state: &View,
        layout: &Layout,
    ) -> Result<Numbering> {
        let (fs, db) = (&self.mainline, &self.db);
        let Some(bound) = forked_at(fork, store)? else { return Ok(Numbering::PLAIN) };
        // Numbers below `bound` mean the same files in both.
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
        // This store must not assign numbers that both have, either.
        fs.count(bound, None)?;
        Ok(Numbering::shifted(bound, fs.new_inos(given)?))
    }
}

/// Returns the store from which both descend, and the state of it with which the fork began.
fn common_base(db: &Kvdb, fork: &Kvdb, name: &str) -> Result<([u8; 16], View)> {
    if let Some(base) = fork.fork_base(&db.store_id()) {
        return Ok((db.store_id(), base.state));
    }
    // The nearest common origin is taken.
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
