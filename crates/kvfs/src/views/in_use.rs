//! The state of a file system that is in use and not in the store, for another process that
//! continues with it.
//!
//! A kernel holds references to inodes of all views, by numbers that it got from this process. A
//! process that takes over the store while the kernel continues must know them as well. Most of
//! this is in the store. In memory alone are
//!
//! - the number of each view, and the numbers of ended views that are not free (`retired`);
//! - the number of the kernel's references to each inode;
//! - the nodes of inodes without a name. Their pages and large attributes are in the store, under
//!   an orphan record, which the next opening would empty;
//! - stranded inodes (`inode_cache`), and files that have lost their end (`lost`).
//!
//! Handles of open files need not be known: an open inode is one with references. Positions in
//! directories are found by the hashes of names, as after any mount (`directory`).

use std::collections::BTreeMap;
use std::sync::Arc;

use env::Env;
use env::sync::MutexGuard;
use kvdb::Kvdb;

use super::notes::{KeptNotes, ViewNotes};
use super::open_views::NumbersInUse;
use super::{Shared, ViewId, Views};
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::{Fs, FsOptions};
use crate::layout::{Layout, put_varint};
use crate::opening::in_use::{MALFORMED, Reader, ViewInUse, put_bytes, put_references};

/// The version of the encoding.
const VERSION: u64 = 1;

/// The state of a file system and its views that is in use. See [`Views::in_use`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct InUse {
    mainline: ViewInUse,
    views: Vec<(u16, ViewId, ViewInUse)>,
    /// References to inodes of views that have ended, by the views' numbers.
    retired: Vec<(u16, Vec<(Ino, u64)>)>,
    /// The number that was given to a view last.
    last: u16,
}

/// While this is held, only calls change views, and not the periodic work of the background.
pub struct Pause<'a>(#[expect(dead_code, reason = "it is held")] MutexGuard<'a, ()>);

impl Fs {
    /// Like [`Fs::open`], for a file system that another process has served until now, with the
    /// state `in_use` that it had last.
    pub fn take_over(
        db: Kvdb,
        env: Arc<dyn Env>,
        options: FsOptions,
        in_use: &InUse,
    ) -> Result<Fs> {
        Fs::open_with(db, env, options, &in_use.mainline)
    }
}

impl Views {
    /// Waits for the periodic work that is in progress, and starts none until the pause ends.
    pub fn pause(&self) -> Pause<'_> {
        Pause(self.shared.background.pause())
    }

    /// Commits and syncs everything, and returns the state for another process that takes the file
    /// system over. No other call may run at the same time; later calls are not included.
    ///
    /// Transactions that are not durable end with this process, and their changes are lost.
    pub fn in_use(&self) -> Result<InUse> {
        let NumbersInUse { open, retired, last } = self.shared.open.in_use();
        let mut views = Vec::new();
        for entry in open {
            views.push((entry.number, entry.view.clone(), entry.fs.in_use()?));
            if let ViewId::Transaction(id) = entry.view {
                let transaction = self.transaction(id)?;
                if transaction.is_durable() {
                    transaction.sync()?;
                }
            }
        }
        let mainline = self.shared.mainline.in_use()?;
        if !self.shared.mainline.core.options.read_only {
            self.shared.db.sync()?;
        }
        Ok(InUse { mainline, views, retired, last })
    }

    /// Like [`Views::new`], for a file system that another process has served until now: its views
    /// continue under their numbers. `mainline` comes from [`Fs::take_over`].
    pub fn take_over(db: Kvdb, mainline: Fs, in_use: &InUse) -> Views {
        Views::with(db, mainline, KeptNotes::default(), |views| reopen_all(&views.shared, in_use))
    }

    /// Like [`Views::take_over`]. From now on this process, which may be killed, keeps notes for a
    /// process that follows it.
    pub fn take_over_noted(db: Kvdb, mainline: Fs, in_use: &InUse, notes: Arc<ViewNotes>) -> Views {
        let views = Views::with(db, mainline, KeptNotes::new(notes.clone()), |views| {
            reopen_all(&views.shared, in_use);
        });
        notes.keep_alone(|number, view| {
            views.shared.open.find(view).is_some_and(|entry| entry.number == number)
        });
        views
    }
}

/// Opens the views that were in use under the numbers that they had.
fn reopen_all(shared: &Shared, in_use: &InUse) {
    let open = &shared.open;
    for (number, references) in &in_use.retired {
        open.keep_number(*number, references);
    }
    // Opening a transaction opens the view in which it began, which must get its own number
    // first.
    let is_transaction = |view: &ViewId| matches!(view, ViewId::Transaction(_));
    for transactions in [false, true] {
        let those = in_use.views.iter().filter(|(_, v, _)| is_transaction(v) == transactions);
        for (number, view, of) in those {
            if let Err(e) = reopen(shared, *number, view, of) {
                tracing::warn!("{view:?} does not go on: {e}");
                open.keep_number(*number, &of.references);
            }
        }
    }
    open.go_on_after(in_use.last);
}

/// Opens a view under the number that it had.
fn reopen(shared: &Shared, number: u16, view: &ViewId, in_use: &ViewInUse) -> Result<()> {
    let Shared { db, open, opener, .. } = shared;
    // The next number is the one after the last, and this one is free.
    open.go_on_after(number.wrapping_sub(1));
    let entry = match view {
        ViewId::Transaction(id) => opener.open_transaction(db.transaction(*id)?)?,
        ViewId::Snapshot(name) => opener.open_snapshot(name)?,
        ViewId::Clone(name) => return opener.open_clone(name, in_use).map(drop),
        ViewId::Mainline => return Err(MALFORMED),
    };
    entry.fs.take_up(in_use)
}

pub(super) fn put_view(out: &mut Vec<u8>, view: &ViewId) {
    match view {
        ViewId::Mainline => put_varint(out, 0),
        ViewId::Transaction(id) => {
            put_varint(out, 1);
            put_varint(out, id.0);
        }
        ViewId::Snapshot(name) => {
            put_varint(out, 2);
            put_bytes(out, name.as_bytes());
        }
        ViewId::Clone(name) => {
            put_varint(out, 3);
            put_bytes(out, name.as_bytes());
        }
    }
}

/// Decodes a view other than the mainline.
pub(super) fn take_view(reader: &mut Reader<'_>) -> Result<ViewId> {
    match reader.number()? {
        1 => Ok(ViewId::Transaction(kvdb::TransactionId(reader.number()?))),
        2 => Ok(ViewId::Snapshot(name(reader)?)),
        3 => Ok(ViewId::Clone(name(reader)?)),
        _ => Err(MALFORMED),
    }
}

/// Decodes a number that a view can have.
pub(super) fn view_number(reader: &mut Reader<'_>) -> Result<u16> {
    let number = reader.small()?;
    if (1..=Views::MAX_NUMBER).contains(&number) { Ok(number) } else { Err(MALFORMED) }
}

fn name(reader: &mut Reader<'_>) -> Result<String> {
    String::from_utf8(reader.bytes()?.to_vec()).map_err(|_| MALFORMED)
}

impl InUse {
    /// Returns the state in use of a killed process whose file system wrote through
    /// ([`FsOptions::write_through`]), from its notes and the kernel's references: the number of
    /// references to each inode of a view. Views that no longer exist, such as those of
    /// transactions that are not durable, do not continue: the kernel's inodes of them are stale.
    pub fn left_by_killed(
        db: &Kvdb,
        references: impl IntoIterator<Item = (u16, Ino, u64)>,
        notes: &ViewNotes,
    ) -> Result<InUse> {
        let mut by_view: BTreeMap<u16, Vec<(Ino, u64)>> = BTreeMap::new();
        for (view, ino, count) in references {
            by_view.entry(view).or_default().push((ino, count));
        }
        let noted = notes.views();
        let numbers = by_view.keys().copied().chain(noted.iter().map(|(number, _)| *number));
        let last = numbers.max().unwrap_or(0);
        let mut of = |number| by_view.remove(&number).unwrap_or_default();
        let view = db.view();
        let mainline = ViewInUse::left_by_killed(&view, Layout::find(db), of(0))?;
        let mut views = Vec::new();
        for (number, noted) in noted.into_iter().filter(|(_, noted)| noted.is_there(db)) {
            let (references, view) = (of(number), noted.view);
            let in_use = match &view {
                ViewId::Transaction(id) => {
                    let transaction = db.transaction(*id)?;
                    let layout = Layout::find_in(db, transaction.branch());
                    ViewInUse::left_by_killed(&transaction.view()?, layout, references)?
                }
                ViewId::Clone(name) => {
                    ViewInUse::left_by_killed(&db.view(), Layout::find_in(db, name), references)?
                }
                ViewId::Snapshot(_) | ViewId::Mainline => ViewInUse::with_names(references),
            };
            views.push((number, view, in_use));
        }
        Ok(InUse { mainline, views, retired: by_view.into_iter().collect(), last })
    }

    /// Encodes the state for [`InUse::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, VERSION);
        self.mainline.encode(&mut out);
        put_varint(&mut out, self.views.len() as u64);
        for (number, view, in_use) in &self.views {
            put_varint(&mut out, u64::from(*number));
            put_view(&mut out, view);
            in_use.encode(&mut out);
        }
        put_varint(&mut out, self.retired.len() as u64);
        for (number, references) in &self.retired {
            put_varint(&mut out, u64::from(*number));
            put_references(&mut out, references);
        }
        put_varint(&mut out, u64::from(self.last));
        out
    }

    /// Decodes the bytes of [`InUse::encode`], from this process or another one of the same
    /// version.
    pub fn decode(bytes: &[u8]) -> Result<InUse> {
        let mut reader = Reader(bytes);
        if reader.number()? != VERSION {
            return Err(Error::Invalid("what is in use was noted by another version"));
        }
        let mainline = ViewInUse::decode(&mut reader)?;
        let views = reader.list(|r| {
            let (number, view) = (view_number(r)?, take_view(r)?);
            Ok((number, view, ViewInUse::decode(r)?))
        })?;
        let retired = reader.list(|r| Ok((view_number(r)?, r.references()?)))?;
        let last = reader.small()?;
        match reader.0.is_empty() && last <= Views::MAX_NUMBER {
            true => Ok(InUse { mainline, views, retired, last }),
            false => Err(MALFORMED),
        }
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use kvdb::{Durability, TransactionOptions};

    use super::*;
    use crate::{Caller, FileKind, ROOT};

    fn open(db: &Kvdb, in_use: &InUse) -> (Fs, Views) {
        let env = Arc::new(Simulated::new(1));
        let fs = Fs::take_over(db.clone(), env, FsOptions::default(), in_use).unwrap();
        (fs.clone(), Views::take_over(db.clone(), fs, in_use))
    }

    fn file(fs: &Fs, name: &[u8], data: &[u8]) -> Ino {
        let ino = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
        fs.write(ino, 0, data, Default::default()).unwrap();
        ino
    }

    /// Returns a file system with every kind of state in use.
    fn used(db: &Kvdb) -> (InUse, Vec<Ino>) {
        let (fs, views) = open(db, &InUse::default());
        let named = file(&fs, b"named", b"n");
        let small = file(&fs, b"small", b"content");
        let large = file(&fs, b"large", &[7; 20_000]);
        fs.sync_all().unwrap();
        fs.write(large, 30_000, b"later", Default::default()).unwrap();
        fs.unlink(ROOT, b"small").unwrap();
        fs.unlink(ROOT, b"large").unwrap();
        fs.write(small, 7, b"!", Default::default()).unwrap();
        fs.core.lost.add(named);
        let durable = TransactionOptions { durable: true, ..Default::default() };
        let ended = views.begin(durable.clone()).unwrap();
        let inside = views.fs(&ViewId::Transaction(ended)).unwrap();
        inside.lookup(ROOT, b"named").unwrap();
        let id = views.begin(durable).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        let gone = file(&inside, b"gone", &[9; 20_000]);
        inside.unlink(ROOT, b"gone").unwrap();
        views.snapshot(&ViewId::Mainline, "then", Durability::Buffered).unwrap();
        let then = views.fs(&ViewId::Snapshot("then".into())).unwrap();
        then.lookup(ROOT, b"named").unwrap();
        views.abort(ended).unwrap();
        (views.in_use().unwrap(), vec![named, small, large, gone])
    }

    #[test]
    fn another_one_goes_on_with_all_that_is_in_use() {
        let db = Kvdb::in_memory();
        let (in_use, inos) = used(&db);
        let [named, small, large, gone] = inos[..] else { panic!("four files") };
        let numbers: Vec<u16> = in_use.views.iter().map(|(number, ..)| *number).collect();
        assert_eq!((numbers, in_use.retired.len(), in_use.last), (vec![2, 3], 1, 3));
        let (fs, views) = open(&db, &InUse::decode(&in_use.encode()).unwrap());
        assert_eq!(&fs.read(small, 0, 100).unwrap()[..], b"content!");
        assert_eq!(fs.read(large, 19_999, 1).unwrap()[..], [7]);
        assert_eq!(&fs.read(large, 30_000, 100).unwrap()[..], b"later");
        assert_eq!(fs.getattr(large).unwrap().nlink, 0);
        let inside = views.by_number(2).unwrap();
        assert_eq!(inside.read(gone, 0, 1).unwrap()[..], [9]);
        assert!(views.by_number(3).unwrap().is_referenced(named));
        assert!(fs.core.lost.contains(named));
        // The state is the same again, apart from the root, which every opening reads.
        assert_eq!(views.in_use().unwrap(), in_use);
        // Returning the last references has the same effects as before.
        for ino in [small, large] {
            fs.forget(ino, 1);
        }
        views.forget(1, named, 1);
        views.forget(2, gone, 1);
        assert_eq!(views.numbers_taken(), 2);
        views.abort(views.list()[0].id).unwrap();
        fs.sync_all().unwrap();
        let report = fs.verify().unwrap();
        assert_eq!((report.findings, report.orphans), (vec![], 0));
    }

    #[test]
    fn a_view_that_is_gone_leaves_its_number_taken() {
        let db = Kvdb::in_memory();
        let (in_use, inos) = used(&db);
        db.drop_snapshot("then").unwrap();
        let (_, views) = open(&db, &in_use);
        assert!(views.by_number(3).is_none());
        assert_eq!(views.numbers_taken(), 3);
        views.forget(3, inos[0], 1);
        assert_eq!(views.numbers_taken(), 2);
    }

    /// The only remains of the process are its commits and the kernel's references.
    #[test]
    fn another_one_goes_on_where_the_first_was_killed() {
        let db = Kvdb::in_memory();
        let env = Arc::new(Simulated::new(1));
        let through = FsOptions { write_through: true, ..FsOptions::default() };
        let fs = Fs::open(db.clone(), env.clone(), through.clone()).unwrap();
        let notes = tempfile::tempfile().unwrap();
        let noted = || Arc::new(ViewNotes::new(notes.try_clone().unwrap()).unwrap());
        let views = Views::take_over_noted(db.clone(), fs.clone(), &InUse::default(), noted());
        let named = file(&fs, b"named", b"n");
        let small = file(&fs, b"small", b"content");
        let large = file(&fs, b"large", &[7; 20_000]);
        let closed = file(&fs, b"closed", &[7; 20_000]);
        let changes = crate::SetAttr { mode: Some(0o600), ..Default::default() };
        fs.setattr(named, &changes, Caller::default()).unwrap();
        fs.setxattr(named, b"user.a", b"value", crate::XattrFlags::Any).unwrap();
        for name in [&b"small"[..], b"large", b"closed"] {
            fs.unlink(ROOT, name).unwrap();
        }
        fs.write(small, 7, b"!", Default::default()).unwrap();
        fs.write(large, 30_000, b"later", Default::default()).unwrap();
        let never = fs.tmpfile(ROOT, 0o600, Caller::default()).unwrap().ino;
        fs.write(never, 0, b"never", Default::default()).unwrap();
        let dir = fs.mkdir(ROOT, b"d", 0o755, Caller::default()).unwrap().ino;
        fs.rmdir(ROOT, b"d").unwrap();
        let id = views.begin(TransactionOptions::default()).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        inside.lookup(ROOT, b"named").unwrap();
        // This durable transaction continues, with a file that was removed while it was open.
        let durable = TransactionOptions { durable: true, ..Default::default() };
        let lasting = views.begin(durable).unwrap();
        let inside = views.fs(&ViewId::Transaction(lasting)).unwrap();
        let gone = file(&inside, b"gone", &[9; 20_000]);
        inside.unlink(ROOT, b"gone").unwrap();
        inside.write(gone, 30_000, b"later", Default::default()).unwrap();
        // This transaction ends with the process.
        db.transaction(id).unwrap().abort();

        let references = [
            (0, named, 1),
            (0, small, 2),
            (0, large, 1),
            (0, never, 1),
            (0, dir, 1),
            (1, named, 1),
            (2, gone, 1),
        ];
        let next = noted();
        let in_use = InUse::left_by_killed(&db, references, &next).unwrap();
        let fs = Fs::take_over(db.clone(), env, through, &in_use).unwrap();
        let views = Views::take_over_noted(db, fs.clone(), &in_use, next);
        let inside = views.by_number(2).unwrap();
        assert_eq!(inside.read(gone, 19_999, 1).unwrap()[..], [9]);
        assert_eq!(&inside.read(gone, 30_000, 100).unwrap()[..], b"later");
        assert_eq!(inside.getattr(gone).unwrap().nlink, 0);
        views.forget(2, gone, 1);
        views.abort(lasting).unwrap();
        let ended = std::sync::Mutex::new(Vec::new());
        views.forget_ended(|number, view, inodes| {
            ended.lock().unwrap().push((number, view.clone(), inodes));
        });
        let ended = ended.into_inner().unwrap();
        assert_eq!(ended, [(1, ViewId::Transaction(id), vec![named])]);
        assert_eq!(&fs.read(named, 0, 100).unwrap()[..], b"n");
        assert_eq!(fs.getattr(named).unwrap().perm, 0o600);
        assert_eq!(&fs.getxattr(named, b"user.a").unwrap()[..], b"value");
        assert_eq!(&fs.read(small, 0, 100).unwrap()[..], b"content!");
        assert_eq!(&fs.read(large, 30_000, 100).unwrap()[..], b"later");
        assert_eq!(fs.read(large, 19_999, 1).unwrap()[..], [7]);
        assert_eq!(&fs.read(never, 0, 100).unwrap()[..], b"never");
        assert_eq!(fs.getattr(dir).unwrap().kind, FileKind::Dir);
        assert!(fs.getattr(closed).is_err(), "the kernel does not refer to it");
        // Inodes of the transaction are stale, and the number of its view stays taken.
        assert!(views.by_number(1).is_none());
        assert_eq!(views.numbers_taken(), 1);
        views.forget(1, named, 1);
        assert_eq!(views.numbers_taken(), 0);
        fs.link(never, ROOT, b"now").unwrap();
        for (ino, count) in [(small, 2), (large, 1), (never, 2), (dir, 1)] {
            fs.forget(ino, count);
        }
        let report = fs.verify().unwrap();
        assert_eq!((report.findings, report.orphans), (vec![], 0));
        let now = fs.lookup(ROOT, b"now").unwrap().ino;
        assert_eq!(&fs.read(now, 0, 100).unwrap()[..], b"never");
    }

    #[test]
    fn whatever_bytes_come_none_of_them_panics() {
        let bytes = used(&Kvdb::in_memory()).0.encode();
        for length in 0..bytes.len() {
            assert!(InUse::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                if let Ok(in_use) = InUse::decode(&bytes) {
                    // The state either cannot be distinguished from one of this file system, or is
                    // refused.
                    let env = Arc::new(Simulated::new(1));
                    let db = Kvdb::in_memory();
                    if let Ok(fs) = Fs::take_over(db.clone(), env, FsOptions::default(), &in_use) {
                        Views::take_over(db, fs, &in_use);
                    }
                }
            }
        }
    }
}
