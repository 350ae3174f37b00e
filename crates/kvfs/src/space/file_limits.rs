//! Limits the number of files that a transaction may make, and the number of files that a clone may
//! have in addition to the states beneath it. A directory, a symbolic link or a device counts as a
//! file; a further name of a file does not count, nor does a file without a name that a program has
//! open.
//!
//! A file is a view's own if the states beneath it do not have it. For a transaction, this is the
//! state that the transaction reads. For a clone, these are the snapshot of which the clone was
//! made, and the snapshots at which it was merged or rebased. If a transaction removes files that
//! the views around it have made, these are subtracted from their counts. Nothing is stored: a view
//! with a limit is compared with the state beneath it when the count is first needed, and again
//! after its state was replaced as a whole or by a commit. From then on, calls count the files that
//! they make and remove. Views without a limit count nothing.

use std::sync::Arc;

use kvdb::{DictionaryId, Scope, View};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::layout::{self, ImapKey, Layout};
use crate::space::file_account::{AdmittedFiles, FileAccount, FileMoment, Files};

/// A number that no dictionary has. It stands for an empty dictionary with which a view is
/// compared.
const NO_DICTIONARY: DictionaryId = DictionaryId(u32::MAX);

/// The limits of the files of a view, and its count of them.
pub(crate) struct FileLimits {
    scope: Scope,
    imap: DictionaryId,
    account: FileAccount,
    /// The limits of the view in which the transaction of this view began.
    around: Option<Arc<FileLimits>>,
}

impl FileLimits {
    /// Returns the limits of a view that reads and writes `scope`, whose inodes are in `imap`.
    pub fn new(scope: Scope, imap: DictionaryId, around: Option<Arc<FileLimits>>) -> FileLimits {
        FileLimits { scope, imap, account: FileAccount::default(), around }
    }

    /// Returns this view and the views around it. Each view began in the next one.
    fn and_around(&self) -> impl Iterator<Item = &FileLimits> {
        std::iter::successors(Some(self), |view| view.around.as_deref())
    }

    /// Forgets the counts, because the state of the view, or a state beneath it, was replaced.
    pub fn forget(&self) {
        self.account.forget();
    }

    /// Returns the current moment, for a change that [`FileLimits::removed`] counts afterwards.
    pub fn moment(&self) -> FileMoment {
        self.account.moment()
    }

    /// Returns the limit of the view itself, and the error for a call that exceeds it.
    fn limit(&self) -> Option<(u64, kvdb::Error)> {
        match &self.scope {
            Scope::Transaction(one) => one.options().limit_of_files.map(|limit| {
                let id = one.id();
                (limit, kvdb::Error::TooManyFiles { id, limit })
            }),
            Scope::Mainline(db) => {
                let (branch, limit) = db.limit_of_files(self.imap)?;
                Some((limit, kvdb::Error::CloneTooManyFiles { branch, limit }))
            }
            Scope::Frozen(_) | Scope::Served(_) => None,
        }
    }

    fn has_limit(&self) -> bool {
        self.and_around().any(|view| view.limit().is_some())
    }

    /// Fails if `more` files would exceed the limit of the view or of a view around it.
    pub fn admit(&self, more: u64) -> Result<AdmittedFiles<'_>> {
        let account = &self.account;
        if more == 0 || !self.has_limit() {
            return Ok(AdmittedFiles::uncounted());
        }
        let mut counted = account.counted.lock();
        let (own, admitted) = account.files(&mut counted, || self.look_for_files())?;
        self.check_files((own, admitted), more, 0)?;
        Ok(AdmittedFiles::of(account, &mut counted, more))
    }

    /// Checks the limits like [`FileLimits::admit`], for a file without a name that gets a name.
    pub fn admit_named(&self, ino: Ino) -> Result<AdmittedFiles<'_>> {
        // A file that exists in a state beneath the view does not count when it gets a name again.
        let own = self.has_limit() && !self.is_beneath(ino)?;
        self.admit(own.into())
    }

    /// Fails if the commit of a transaction would make the view around it exceed a limit. A commit
    /// that removes at least as many files of that view as it makes never fails.
    pub fn check_commit(&self) -> Result<()> {
        if !self.around.as_ref().is_some_and(|around| around.has_limit()) {
            return Ok(());
        }
        self.check_files((self.look_for_files()?, 0), 0, 1)
    }

    /// Adds up the files that this view and the views around it have made, and checks the limits
    /// from the view `first` on.
    fn check_files(&self, of_this: (Files, u64), more: u64, first: usize) -> Result<()> {
        self.each_limit(of_this, |level, limit, taken, added, refused| {
            let within = taken.saturating_add(more) <= limit || level > 0 && more + added == 0;
            if within || level < first { Ok(()) } else { Err(refused.into()) }
        })
    }

    /// Calls `see` for each limit, with the level of its view (counted outwards), the limit, the
    /// number of files that count toward it, the number of these files that this view has added,
    /// and the error for exceeding the limit.
    fn each_limit(
        &self,
        of_this: (Files, u64),
        mut see: impl FnMut(usize, u64, u64, u64, kvdb::Error) -> Result<()>,
    ) -> Result<()> {
        // Views outside of the outermost limit are not counted.
        let limited = self.and_around().map(|view| view.limit().is_some());
        let limited: Vec<bool> = limited.collect();
        let levels = limited.iter().rposition(|limited| *limited).map_or(0, |last| last + 1);
        let mut all = Vec::new();
        for (level, view) in self.and_around().take(levels).enumerate() {
            all.push(match level {
                0 => of_this.clone(),
                _ => {
                    let account = &view.account;
                    account.files(&mut account.counted.lock(), || view.look_for_files())?
                }
            });
            let Some((limit, refused)) = view.limit() else { continue };
            let (mut made, mut removed) = (0u64, 0u64);
            for (at, (files, admitted)) in all.iter().enumerate() {
                made = made.saturating_add(files.made).saturating_add(*admitted);
                removed = removed.saturating_add(files.removed_up_to(level - at));
            }
            let (own, admitted) = &all[0];
            let added = (own.made + admitted).saturating_sub(own.removed_up_to(level));
            see(level, limit, made.saturating_sub(removed), added, refused)?;
        }
        Ok(())
    }

    /// Returns the number of files that may still be made, or `None` if no limit applies.
    pub fn room(&self) -> Result<Option<u64>> {
        if !self.has_limit() {
            return Ok(None);
        }
        let account = &self.account;
        let of_this = account.files(&mut account.counted.lock(), || self.look_for_files())?;
        let mut least = None;
        self.each_limit(of_this, |_, limit, taken, _, _| {
            let room = limit.saturating_sub(taken);
            least = Some(least.map_or(room, |least: u64| least.min(room)));
            Ok(())
        })?;
        Ok(least)
    }

    /// Returns the number of the view's own files.
    pub fn own(&self) -> Result<u64> {
        let account = &self.account;
        Ok(account.files(&mut account.counted.lock(), || self.look_for_files())?.0.made)
    }

    /// Counts a file that has lost its last name. `at` is a moment before the removal of that name.
    pub fn removed(&self, ino: Ino, at: FileMoment) {
        let account = &self.account;
        if !account.is_used() {
            return;
        }
        let mut counted = account.counted.lock();
        let Some(files) = &mut counted.files else { return };
        let level = match account.moment() == at {
            true => self.made_in(ino),
            false => Err(Error::NotFound),
        };
        match level {
            Ok(None) => {}
            Ok(Some(0)) if files.made > 0 => files.made -= 1,
            Ok(Some(level)) if level > 0 => files.remove(level - 1),
            // The counts are dropped, and the files are counted again when a number is needed.
            _ => counted.files = None,
        }
    }

    /// Returns the level of the view that has made a file, among this view and those around it.
    /// Returns `None` if the file is older than these views, or has come back.
    fn made_in(&self, ino: Ino) -> Result<Option<usize>> {
        let mut made = None;
        for (level, view) in self.and_around().enumerate() {
            match (view.is_beneath(ino)?, made) {
                (true, Some(_)) => return Ok(None),
                (true, None) | (false, Some(_)) => {}
                (false, None) => made = Some(level),
            }
        }
        Ok(made)
    }

    /// Returns whether a state beneath the view has a file.
    fn is_beneath(&self, ino: Ino) -> Result<bool> {
        let key = layout::node_key(ino);
        for (state, imap) in self.beneath()? {
            if state.get(imap, &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the states beneath the view, the newest last, each with its dictionary of inodes.
    fn beneath(&self) -> Result<Vec<(View, DictionaryId)>> {
        let imap = self.imap;
        Ok(match &self.scope {
            Scope::Transaction(transaction) => vec![(transaction.view()?.beneath(), imap)],
            Scope::Mainline(db) => {
                // The mainline has no states beneath it, so its current state is used.
                let states = db.states_beneath(imap).unwrap_or_else(|| vec![db.view()]);
                let with_inodes = |state: View| Layout::of_state(&state).map(|of| (state, of.imap));
                states.into_iter().filter_map(with_inodes).collect()
            }
            Scope::Frozen(view) => vec![(view.clone(), imap)],
            Scope::Served(_) => Vec::new(),
        })
    }

    /// Compares the view with the states beneath it.
    fn look_for_files(&self) -> Result<Files> {
        let imap = self.imap;
        let mut files = Files::default();
        match &self.scope {
            Scope::Mainline(db) if db.states_beneath(imap).is_none() => return Ok(files),
            Scope::Frozen(_) | Scope::Served(_) => return Ok(files),
            _ => {}
        }
        let now = self.scope.view()?;
        let beneath = self.beneath()?;
        let (base, older) = match beneath.split_last() {
            Some(((base, of), older)) => (base.difference(*of, &now, imap)?, older),
            None => (now.difference(NO_DICTIONARY, &now, imap)?, &[][..]),
        };
        'changes: for change in base {
            let change = change?;
            let ImapKey::Node(ino) = layout::decode_imap_key(&change.key)? else { continue };
            match (&change.before, &change.after) {
                (None, Some(_)) => {
                    for (state, of) in older {
                        if state.get(*of, &change.key)?.is_some() {
                            continue 'changes;
                        }
                    }
                    // After a rebase, a clone may have files that exist in a state beneath it. Such
                    // files do not count.
                    for around in self.and_around().skip(1) {
                        if around.is_beneath(ino)? {
                            continue 'changes;
                        }
                    }
                    files.made += 1;
                }
                (Some(_), None) => {
                    let level =
                        self.around.as_ref().map(|around| around.made_in(ino)).transpose()?;
                    level.flatten().into_iter().for_each(|level| files.remove(level));
                }
                _ => {}
            }
        }
        Ok(files)
    }
}
