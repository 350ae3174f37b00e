//! Tracks files with a lost end. A file has lost its end if a write of a cache was refused, for
//! example for lack of space.
//!
//! A kernel that gathers writes treats a refused page as written, and continues after it. The data
//! that a program appends next would be written alone, after a hole of zeros in place of the
//! refused bytes. So a file that has lost its end accepts no write of a cache that would leave a
//! hole: the file stays as it was when the first bytes were refused, and each sync of later data
//! reports the error. This state ends when the size of the file is set, or when the kernel forgets
//! the file, and with it the size that it assumes.
//!
//! The pieces of a long append arrive at several threads at once. A piece that would leave a hole
//! waits for earlier pieces that are in progress; otherwise a short last piece could take the space
//! that an earlier long piece did not get. A piece is in progress from the moment at which it is
//! announced, in the order in which the kernel sends them: the thread that has taken it may not
//! have begun to write it.

use std::collections::HashSet;

use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Condvar, Mutex};

use crate::attr::Ino;

#[derive(Default)]
pub(crate) struct Lost {
    /// `files` was not empty at some time.
    any: AtomicBool,
    files: Mutex<HashSet<Ino>>,
    /// The writes out of a cache that are in progress, as file and offset.
    under_way: Mutex<Vec<(Ino, u64)>>,
    done: Condvar,
    /// The view has ended, so announced writes may never begin. This is changed under the lock of
    /// `under_way`.
    ended: AtomicBool,
}

/// A write, which is in progress until this value is dropped.
pub(crate) struct UnderWay<'a> {
    lost: &'a Lost,
    write: (Ino, u64),
}

impl Lost {
    pub fn add(&self, ino: Ino) {
        self.files.lock().insert(ino);
        self.any.store(true, Ordering::Release);
    }

    pub fn contains(&self, ino: Ino) -> bool {
        self.any.load(Ordering::Acquire) && self.files.lock().contains(&ino)
    }

    /// Records that the cache and the file have the same end again.
    pub fn remove(&self, ino: Ino) {
        if self.any.load(Ordering::Acquire) {
            self.files.lock().remove(&ino);
        }
    }

    /// Records that the kernel has forgotten references to a file.
    pub fn forgotten(&self, ino: Ino, left: impl FnOnce() -> u64) {
        if self.any.load(Ordering::Acquire) && left() == 0 {
            self.remove(ino);
        }
    }

    pub fn all(&self) -> Vec<Ino> {
        self.files.lock().iter().copied().collect()
    }

    pub fn announce(&self, ino: Ino, offset: u64) {
        self.under_way.lock().push((ino, offset));
    }

    /// Begins a write that was announced.
    pub fn announced(&self, ino: Ino, offset: u64) -> UnderWay<'_> {
        UnderWay { lost: self, write: (ino, offset) }
    }

    /// Records that the view has ended. Announced writes that have not begun will never begin, so
    /// no thread waits for them any more.
    pub fn end(&self) {
        let under_way = self.under_way.lock();
        self.ended.store(true, Ordering::Relaxed);
        drop(under_way);
        self.done.notify_all();
    }

    pub fn begin(&self, ino: Ino, offset: u64) -> UnderWay<'_> {
        self.announce(ino, offset);
        self.announced(ino, offset)
    }
}

impl UnderWay<'_> {
    /// Waits for writes to the file at lower offsets, or for the end of the view. The caller must
    /// not hold any lock, not even the freeze lock.
    pub fn wait_for_those_before(&self) {
        let (ino, offset) = self.write;
        let mut under_way = self.lost.under_way.lock();
        while !self.lost.ended.load(Ordering::Relaxed)
            && under_way.iter().any(|&(of, at)| of == ino && at < offset)
        {
            self.lost.done.wait(&mut under_way);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = self.lost.under_way.lock();
        if let Some(at) = under_way.iter().position(|write| *write == self.write) {
            under_way.swap_remove(at);
        }
        drop(under_way);
        self.lost.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{Caller, Error, FileKind, Fs, FsOptions, ROOT, ViewId, Views, WriteHints};

    #[test]
    fn a_piece_waits_for_those_before_it_and_for_no_others() {
        let lost = Lost::default();
        let (first, before, elsewhere) = (lost.begin(1, 0), lost.begin(1, 100), lost.begin(2, 0));
        first.wait_for_those_before();
        elsewhere.wait_for_those_before();
        let (say, waited) = channel();
        let behind = lost.begin(1, 200);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                behind.wait_for_those_before();
                say.send(()).unwrap();
            });
            drop(first);
            // This write is announced, but not yet begun.
            lost.announce(1, 50);
            assert!(
                waited.recv_timeout(std::time::Duration::from_millis(20)).is_err(),
                "one of two is under way"
            );
            drop(before);
            assert!(
                waited.recv_timeout(std::time::Duration::from_millis(20)).is_err(),
                "one is announced"
            );
            drop(lost.announced(1, 50));
            waited.recv().unwrap();
        });
        assert_eq!(lost.under_way.lock().len(), 1, "the one of the other file");
        drop(elsewhere);
    }

    #[test]
    fn a_write_that_waits_for_an_announced_one_is_stale_when_its_view_ends() {
        let (db, env) = (kvdb::Kvdb::in_memory(), std::sync::Arc::new(env::Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let views = Views::new(db, fs);
        let id = views.begin(Default::default()).unwrap();
        let view = views.fs(&ViewId::Transaction(id)).unwrap();
        let file = view.mknod(ROOT, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
        // The write is announced; it begins after the view has ended, and so never arrives.
        view.announce_cached(file, 0);
        let (say, said) = channel();
        let writer = view.clone();
        std::thread::spawn(move || {
            let hints = WriteHints { from_cache: true, ..Default::default() };
            say.send(writer.write(file, 1 << 20, b"behind it", hints)).unwrap();
        });
        while view.core.lost.under_way.lock().len() < 2 {
            std::thread::yield_now();
        }
        views.abort(id).unwrap();
        let written = said.recv_timeout(std::time::Duration::from_secs(10));
        assert!(matches!(written, Ok(Err(Error::Stale(_)))), "{written:?}");
    }
}
