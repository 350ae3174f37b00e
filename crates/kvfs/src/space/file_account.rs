//! Counts the files that a view has made and removed, beginning when the numbers are first needed;
//! see `file_limits`.

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;

/// The counts of a view's files, which begin when they are first needed.
#[derive(Default)]
pub(crate) struct FileAccount {
    pub counted: Mutex<Counted>,
    /// The number of comparisons of the view with the state beneath it. A change that is in
    /// progress during a comparison may or may not be included in the counts.
    looks: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Counted {
    /// The counts, or `None` if they were not needed since the state was replaced.
    pub files: Option<Files>,
    /// The number of files that calls are about to make.
    pub admitted: u64,
}

/// The number of files that a view has made, and the numbers of files that it has removed.
#[derive(Clone, Default)]
pub(crate) struct Files {
    pub made: u64,
    /// The number of removed files for each view that has made them. The first entry belongs to the
    /// view in which this view began, the second entry to the view around that one, and so on.
    removed: Vec<u64>,
}

impl Files {
    pub fn remove(&mut self, level: usize) {
        if self.removed.len() <= level {
            self.removed.resize(level + 1, 0);
        }
        self.removed[level] += 1;
    }

    /// Returns the number of removed files that the views up to `level` have made.
    pub fn removed_up_to(&self, level: usize) -> u64 {
        self.removed.iter().take(level).sum()
    }
}

/// A moment before a change of a view's files. With it, a comparison that ran concurrently with the
/// change is detected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileMoment(u64);

/// Files that a call is about to make and that are within the limits.
pub(crate) struct AdmittedFiles<'a> {
    account: Option<&'a FileAccount>,
    files: u64,
    at: FileMoment,
}

impl<'a> AdmittedFiles<'a> {
    /// Returns a guard that counts nothing.
    pub fn uncounted() -> AdmittedFiles<'a> {
        AdmittedFiles { account: None, files: 0, at: FileMoment(0) }
    }

    /// Admits files to an account whose lock is held.
    pub fn of(account: &'a FileAccount, counted: &mut Counted, files: u64) -> AdmittedFiles<'a> {
        counted.admitted += files;
        AdmittedFiles { account: Some(account), files, at: account.moment() }
    }

    /// Counts the files as made.
    pub fn made(mut self) {
        if let Some(account) = self.account.take() {
            let mut counted = account.counted.lock();
            counted.admitted -= self.files;
            match &mut counted.files {
                Some(files) if account.moment() == self.at => files.made += self.files,
                // A comparison that ran concurrently may or may not have counted the files, so the
                // counts are dropped.
                files => *files = None,
            }
        }
    }
}

impl Drop for AdmittedFiles<'_> {
    fn drop(&mut self) {
        if let Some(account) = self.account {
            account.counted.lock().admitted -= self.files;
        }
    }
}

impl FileAccount {
    pub fn moment(&self) -> FileMoment {
        FileMoment(self.looks.load(Ordering::Acquire))
    }

    /// Returns whether the numbers were ever needed.
    pub fn is_used(&self) -> bool {
        self.moment() != FileMoment(0)
    }

    /// Forgets the counts, because the state of the view, or a state beneath it, was replaced.
    pub fn forget(&self) {
        if self.is_used() {
            self.counted.lock().files = None;
        }
    }

    /// Returns the files that the view has made and removed, and the number that calls are about to
    /// make. `look` compares the view with the state beneath it.
    pub fn files(
        &self,
        counted: &mut Counted,
        look: impl FnOnce() -> Result<Files>,
    ) -> Result<(Files, u64)> {
        let files = match &counted.files {
            Some(files) => files.clone(),
            None => {
                self.looks.fetch_add(1, Ordering::AcqRel);
                counted.files.insert(look()?).clone()
            }
        };
        Ok((files, counted.admitted))
    }
}
