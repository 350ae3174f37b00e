//! The account of files: how many a view has of its own, as far as something has asked; see
//! `file_limits`.

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;

/// The files of a view, as far as they were counted.
#[derive(Default)]
pub(crate) struct FileAccount {
    pub counted: Mutex<Counted>,
    /// How often the view was compared with what is beneath it. What was under way at such a
    /// moment may be counted in it, or not.
    looks: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Counted {
    /// `None`: nothing has asked since the state was replaced.
    pub files: Option<Files>,
    /// Files that calls are about to make.
    pub admitted: u64,
}

/// The files that a view has made, and those that it has removed.
#[derive(Clone, Default)]
pub(crate) struct Files {
    pub made: u64,
    /// Of the files that views around it have made: the first number is of those that it began in.
    removed: Vec<u64>,
}

impl Files {
    pub fn remove(&mut self, level: usize) {
        if self.removed.len() <= level {
            self.removed.resize(level + 1, 0);
        }
        self.removed[level] += 1;
    }

    /// How many of the files are removed that the views up to `level` have made.
    pub fn removed_up_to(&self, level: usize) -> u64 {
        self.removed.iter().take(level).sum()
    }
}

/// A moment before a change of the files of a view.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileMoment(u64);

/// Files that a call is about to make, and that have room.
pub(crate) struct AdmittedFiles<'a> {
    account: Option<&'a FileAccount>,
    files: u64,
    at: FileMoment,
}

impl<'a> AdmittedFiles<'a> {
    /// Nothing is counted.
    pub fn uncounted() -> AdmittedFiles<'a> {
        AdmittedFiles { account: None, files: 0, at: FileMoment(0) }
    }

    /// Of an account that is locked.
    pub fn of(account: &'a FileAccount, counted: &mut Counted, files: u64) -> AdmittedFiles<'a> {
        counted.admitted += files;
        AdmittedFiles { account: Some(account), files, at: account.moment() }
    }

    /// They are made.
    pub fn made(mut self) {
        if let Some(account) = self.account.take() {
            let mut counted = account.counted.lock();
            counted.admitted -= self.files;
            match &mut counted.files {
                Some(files) if account.moment() == self.at => files.made += self.files,
                // They were counted, or not.
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

    /// Returns whether anything has asked for the number.
    pub fn is_used(&self) -> bool {
        self.moment() != FileMoment(0)
    }

    /// The state of the view, or one beneath it, is another one.
    pub fn forget(&self) {
        if self.is_used() {
            self.counted.lock().files = None;
        }
    }

    /// Returns what the view has made and removed, and how many files are about to be made. `look`
    /// compares it with what is beneath it.
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
