//! Tests of pages that a cache has read before a commit and writes while it is notified of the
//! commit, next to changes of the file by other calls at the same time.

use std::sync::Arc;

use crate::world::{USER, World};
use env::sync::Mutex;
use kvdb::Durability;
use kvfs::{
    Allocate, AllocateMode, ChangeSet, CommittedTo, Fs, FsOptions, Ino, ROOT, SetAttr, ViewId,
    Views, Wait, Watcher, WriteHints,
};

type Step = Box<dyn FnOnce(&Fs) + Send>;

/// A cache whose notification of a commit lasts as long as the step takes.
struct Cache(Mutex<Option<Step>>);

impl Watcher for Cache {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        Ok(())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, committed: Option<CommittedTo<'_>>) {
        let step = self.0.lock().take().expect("one commit");
        step(committed.expect("it is committed").fs);
    }
    fn changed(&self, _: u16, _: &Fs, _: &ChangeSet) {}
}

/// Returns the content of a file in which a commit has replaced every `a` by `b`, if a cache is
/// notified of that while `step` runs.
fn content_after(length: usize, step: impl FnOnce(&Fs, Ino) + Send + 'static) -> Vec<u8> {
    let (w, views): (World, Views) = World::with_views(FsOptions::default());
    let f = w.file_with(ROOT, "f", &vec![b'a'; length]);
    let cache = Arc::new(Cache(Mutex::new(Some(Box::new(move |fs| step(fs, f))))));
    let watcher: Arc<dyn Watcher> = cache.clone();
    let id = views.begin(Default::default()).unwrap();
    let t = views.fs(&ViewId::Transaction(id)).unwrap();
    t.write(f, 0, &vec![b'b'; length], Default::default()).unwrap();
    views.watch(&watcher);
    views.commit(id, Durability::Buffered).unwrap();
    assert!(cache.0.lock().is_none());
    w.check();
    w.contents("f")
}

/// A cache writes a page.
fn cached(fs: &Fs, ino: Ino, page: &[u8]) {
    let hints = WriteHints { from_cache: true, ..WriteHints::default() };
    fs.write(ino, 0, page, hints).unwrap();
}

fn cut(fs: &Fs, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(ino, &set, USER).unwrap();
}

#[test]
fn bytes_that_no_program_has_touched_are_left_out() {
    assert_eq!(content_after(8, |fs, f| cached(fs, f, b"aaXaaaaa")), b"bbXbbbbb");
}

#[test]
fn a_file_that_is_written_anew_is_what_was_written() {
    let anew = content_after(8, |fs, f| {
        cut(fs, f, 0);
        cached(fs, f, b"aXaaaaaaaa");
    });
    assert_eq!(anew, b"aXaaaaaaaa");
    let from_the_middle_on = content_after(8, |fs, f| {
        cut(fs, f, 4);
        cached(fs, f, b"aaaaaaaa");
    });
    assert_eq!(from_the_middle_on, b"bbbbaaaa");
}

#[test]
fn what_is_written_into_a_hole_stays() {
    for mode in [AllocateMode::Punch, AllocateMode::Zero] {
        // In the node, and in pages.
        for length in [8, 20_000] {
            let content = content_after(length, move |fs, f| {
                fs.fallocate(f, Allocate { mode, keep_size: true }, 2, 2).unwrap();
                cached(fs, f, b"aaaaaaaa");
            });
            assert_eq!(content[..8], b"bbaabbbb"[..], "{mode:?}");
        }
    }
}

#[test]
fn a_byte_that_is_set_back_is_set_back() {
    let by_a_call = content_after(8, |fs, f| {
        fs.write(f, 1, b"XX", WriteHints::default()).unwrap();
        cached(fs, f, b"aaXaaaaa");
    });
    assert_eq!(by_a_call, b"baXbbbbb");
    let by_a_page = content_after(8, |fs, f| {
        cached(fs, f, b"XaXaaaaa");
        cached(fs, f, b"aaaaaaaa");
    });
    assert_eq!(by_a_page, b"ababbbbb");
}

#[test]
fn what_is_copied_over_the_file_is_not_taken_for_the_commit() {
    const PAGE: usize = 4096;
    for length in [PAGE, 3 * PAGE] {
        let content = content_after(length, move |fs, f| {
            let other = fs.mknod(ROOT, b"other", kvfs::FileKind::File, 0o600, 0, USER).unwrap().ino;
            fs.write(other, 0, &vec![b'c'; length], WriteHints::default()).unwrap();
            let copied = fs.copy_file_range(other, 0, f, 0, length as u64).unwrap();
            assert_eq!(copied, length as u64);
            cached(fs, f, &[b'a'; PAGE]);
        });
        assert!(content[..PAGE].iter().all(|byte| *byte == b'a'));
        assert!(content[PAGE..].iter().all(|byte| *byte == b'c'));
    }
}
