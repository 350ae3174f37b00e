//! The state of the views that outlives this process, in a file that another process holds, like
//! the commits in a [`kvdb::Mirror`]: the number of each view, and the changes of which caches have
//! not been notified yet. A process that continues with the file system after this one was killed
//! opens the views again under their numbers
//! ([`InUse::left_by_killed`](super::InUse::left_by_killed)), and notifies its watchers of the
//! changes ([`Views::tell_left`]).
//!
//! A view is noted before its number is given to any caller, and until its watchers know of its
//! end. A change is noted before it is made, and until the watchers have been notified of it. A
//! change that was noted and never made is reported nevertheless, which only makes caches read
//! again.
//!
//! The file, in the machine's byte order, has u64 magic, u64 start of the log, u64 its end. The log
//! begins at 4096 or after; its entries are *bytes*: varint kind, then
//!
//! ```text
//! 1 a view is open       varint number · view · 16 bytes that tell it from others of its name
//! 2 a number is free     varint number
//! 3 a change is made     varint change · varint number of the view · varint 1: any name may have
//!                        changed · names: varint directory, bytes name · inodes: varint number
//! 4 caches were told     varint change
//! ```
//!
//! Several entries may belong to one change. When the log has grown a lot and no change is in
//! progress, it is started again with only the views, before its start or after its end. A process
//! that is killed may leave an incomplete entry after the end; the head, which is within one page,
//! says where the end is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use env::sync::Mutex;
use kvdb::Kvdb;

use super::in_use::{put_view, take_view, view_number};
use super::{ViewId, Views};
use crate::attr::Ino;
use crate::commit::apply_commit::ChangeSet;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{Layout, put_varint};
use crate::opening::in_use::{MALFORMED, Reader, put_bytes};

const MAGIC: u64 = u64::from_le_bytes(*b"KVVIEW01");
const HEAD: usize = 24;
const LOG_AT: u64 = 4096;
/// The log is started again when it is longer than this, and than twice its initial length.
const GROWN: u64 = 1 << 20;

const OPENED: u64 = 1;
const FREE: u64 = 2;
const CHANGE: u64 = 3;
const TOLD: u64 = 4;

/// The state of the views that outlives the process: see the module.
pub struct ViewNotes {
    log: Mutex<Log>,
}

impl fmt::Debug for ViewNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewNotes").finish_non_exhaustive()
    }
}

/// A view that has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotedView {
    pub view: ViewId,
    identity: [u8; 16],
}

/// A change that an earlier process has made, or was about to make, without telling the watchers.
struct Left {
    id: u64,
    number: u16,
    /// Any name may have changed.
    all: bool,
    changes: ChangeSet,
}

struct Log {
    file: File,
    start: u64,
    tail: u64,
    /// Length of the views' entries at the start of the log.
    begun_with: u64,
    views: BTreeMap<u16, NotedView>,
    /// Changes that are in progress, or left by an earlier process.
    untold: BTreeSet<u64>,
    next: u64,
    left: Vec<Left>,
    /// Views that have ended with an earlier process.
    ended: Vec<(u16, NotedView)>,
}

/// The notes that this process keeps for one that follows it, if it keeps any.
#[derive(Clone, Default)]
pub(crate) struct KeptNotes(Option<Arc<ViewNotes>>);

impl KeptNotes {
    pub fn new(notes: Arc<ViewNotes>) -> KeptNotes {
        KeptNotes(Some(notes))
    }

    /// Notes that a view is about to get a number.
    pub fn opened(&self, db: &Kvdb, number: u16, view: &ViewId) {
        self.0.iter().for_each(|notes| notes.opened(db, number, view));
    }

    /// Notes that a number is free.
    pub fn freed(&self, number: u16) {
        self.0.iter().for_each(|notes| notes.freed(number));
    }

    /// Notes that watchers are going to be notified of these changes of a view.
    pub fn will_tell(&self, number: u16, changes: &ChangeSet) -> Untold {
        self.0.as_ref().map(|notes| notes.begin(number, changes, false)).unwrap_or_default()
    }

    /// Like [`KeptNotes::will_tell`], for a change of names that are not known in advance.
    pub fn will_tell_of_all(&self, number: u16, changes: &ChangeSet) -> Untold {
        self.0.as_ref().map(|notes| notes.begin(number, changes, true)).unwrap_or_default()
    }
}

/// A change of a view of which caches are notified later. It is noted until this is dropped, after
/// the notification or if nothing was changed.
#[derive(Default)]
pub struct Untold(Option<(Arc<ViewNotes>, u64, u16)>);

impl Untold {
    /// Notes that these names and inodes are about to change, too.
    pub fn add(&self, names: &[(Ino, &[u8])], inodes: &[Ino]) {
        let Some((notes, id, number)) = &self.0 else { return };
        notes.change(*id, *number, false, names.iter().copied(), inodes.iter().copied());
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if let Some((notes, id, _)) = self.0.take() {
            notes.told(id);
        }
    }
}

fn failed(e: io::Error) -> Error {
    Error::Store(kvdb::Error::Io(e))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| b.try_into().map_or(0, u64::from_ne_bytes))
}

/// Returns an identity that distinguishes a view from earlier and later ones of the same name, or
/// `None` if there is no such view.
pub(crate) fn identity(db: &Kvdb, view: &ViewId) -> Option<[u8; 16]> {
    match view {
        ViewId::Mainline => None,
        // The number of a transaction is never given again.
        ViewId::Transaction(id) => db.transaction(*id).ok().map(|_| [0; 16]),
        ViewId::Snapshot(name) => db.snapshot_label(name).map(|label| label.id),
        ViewId::Clone(name) => {
            Layout::find_in(db, name).map(|layout| u128::from(layout.imap.0).to_ne_bytes())
        }
    }
}

impl ViewNotes {
    /// Reads the notes in this file, which is empty if there are none yet.
    pub fn new(file: File) -> Result<ViewNotes> {
        let mut head = [0; HEAD];
        let read = file.read_at(&mut head, 0).map_err(failed)?;
        let (start, tail) = match (read, word(&head, 0)) {
            (0, _) => (LOG_AT, LOG_AT),
            (HEAD, MAGIC) => (word(&head, 8), word(&head, 16)),
            _ => return Err(Error::Invalid("the notes of views are of another version")),
        };
        let mut log = Log {
            file,
            start,
            tail,
            begun_with: 0,
            views: BTreeMap::new(),
            untold: BTreeSet::new(),
            next: 1,
            left: Vec::new(),
            ended: Vec::new(),
        };
        if tail > log.file.metadata().map_err(failed)?.len().max(LOG_AT) {
            return Err(MALFORMED);
        }
        let mut bytes = vec![0; tail.checked_sub(start).ok_or(MALFORMED)? as usize];
        log.file.read_exact_at(&mut bytes, start).map_err(failed)?;
        let mut reader = Reader(&bytes);
        while !reader.0.is_empty() {
            log.take(reader.bytes()?)?;
        }
        log.untold = log.left.iter().map(|left| left.id).collect();
        log.write_head().map_err(failed)?;
        Ok(ViewNotes { log: Mutex::new(log) })
    }

    /// Returns the views that have numbers.
    pub(crate) fn views(&self) -> Vec<(u16, NotedView)> {
        self.log.lock().views.iter().map(|(number, view)| (*number, view.clone())).collect()
    }

    /// Notes that a view is about to get a number.
    pub(crate) fn opened(&self, db: &Kvdb, number: u16, view: &ViewId) {
        let Some(identity) = identity(db, view) else { return };
        let noted = NotedView { view: view.clone(), identity };
        let mut log = self.log.lock();
        if log.views.get(&number) != Some(&noted) {
            let entry = noted.entry(number);
            log.views.insert(number, noted);
            log.add(&entry);
        }
    }

    /// Notes that a number is free.
    pub(crate) fn freed(&self, number: u16) {
        let mut log = self.log.lock();
        if log.views.remove(&number).is_some() {
            let mut entry = Vec::new();
            put_varint(&mut entry, FREE);
            put_varint(&mut entry, u64::from(number));
            log.add(&entry);
        }
    }

    /// Keeps the noted views that continue; the others have ended.
    pub(crate) fn keep_alone(&self, goes_on: impl Fn(u16, &ViewId) -> bool) {
        let ended = self.views().into_iter().filter(|(number, of)| !goes_on(*number, &of.view));
        self.log.lock().ended = ended.collect();
    }

    /// Notes that a change is about to be made.
    pub(crate) fn begin(
        self: &Arc<ViewNotes>,
        number: u16,
        changes: &ChangeSet,
        all: bool,
    ) -> Untold {
        let id = {
            let mut log = self.log.lock();
            let id = log.next;
            log.next += 1;
            log.untold.insert(id);
            id
        };
        let names = changes.names.iter().map(|(dir, name, _)| (*dir, &**name));
        self.change(id, number, all, names, changes.inodes.iter().map(|(ino, _)| *ino));
        Untold(Some((self.clone(), id, number)))
    }

    fn change<'a>(
        &self,
        id: u64,
        number: u16,
        all: bool,
        names: impl ExactSizeIterator<Item = (Ino, &'a [u8])>,
        inodes: impl ExactSizeIterator<Item = Ino>,
    ) {
        let mut entry = Vec::new();
        for word in [CHANGE, id, u64::from(number), u64::from(all), names.len() as u64] {
            put_varint(&mut entry, word);
        }
        for (dir, name) in names {
            put_varint(&mut entry, dir);
            put_bytes(&mut entry, name);
        }
        put_varint(&mut entry, inodes.len() as u64);
        inodes.for_each(|ino| put_varint(&mut entry, ino));
        self.log.lock().add(&entry);
    }

    fn told(&self, id: u64) {
        let mut log = self.log.lock();
        if log.untold.remove(&id) {
            let mut entry = Vec::new();
            put_varint(&mut entry, TOLD);
            put_varint(&mut entry, id);
            log.add(&entry);
        }
    }
}

impl NotedView {
    fn entry(&self, number: u16) -> Vec<u8> {
        let mut entry = Vec::new();
        put_varint(&mut entry, OPENED);
        put_varint(&mut entry, u64::from(number));
        put_view(&mut entry, &self.view);
        entry.extend_from_slice(&self.identity);
        entry
    }

    /// Returns whether the view still exists, and no other view has its name.
    pub fn is_there(&self, db: &Kvdb) -> bool {
        identity(db, &self.view) == Some(self.identity)
    }
}

impl Log {
    fn write_head(&self) -> io::Result<()> {
        let mut head = [0; HEAD];
        for (at, word) in [MAGIC, self.start, self.tail].into_iter().enumerate() {
            head[at * 8..at * 8 + 8].copy_from_slice(&word.to_ne_bytes());
        }
        self.file.write_all_at(&head, 0)
    }

    fn take(&mut self, entry: &[u8]) -> Result<()> {
        let mut r = Reader(entry);
        match r.number()? {
            OPENED => {
                let (number, view) = (view_number(&mut r)?, take_view(&mut r)?);
                let identity = r.0.try_into().map_err(|_| MALFORMED)?;
                self.views.insert(number, NotedView { view, identity });
            }
            FREE => drop(self.views.remove(&view_number(&mut r)?)),
            CHANGE => {
                let (id, number, all) = (r.number()?, r.small()?, r.number()? != 0);
                let name = |r: &mut Reader<'_>| Ok((r.number()?, r.bytes()?.into(), false));
                let names = r.list(name)?;
                let inodes = r.list(|r| Ok((r.number()?, false)))?;
                self.next = self.next.max(id.saturating_add(1));
                match self.left.iter_mut().find(|left| left.id == id) {
                    Some(left) => {
                        left.changes.names.extend(names);
                        left.changes.inodes.extend(inodes);
                    }
                    None => {
                        let changes = ChangeSet { names, inodes, ..ChangeSet::default() };
                        self.left.push(Left { id, number, all, changes });
                    }
                }
            }
            TOLD => {
                let id = r.number()?;
                self.left.retain(|left| left.id != id);
            }
            _ => return Err(MALFORMED),
        }
        Ok(())
    }

    /// Adds an entry. If that fails, the state noted by it does not outlive a kill.
    fn add(&mut self, entry: &[u8]) {
        if let Err(e) = self.try_add(entry) {
            tracing::error!("what the next process must know of the views cannot be noted: {e}");
        }
    }

    fn try_add(&mut self, entry: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(entry.len() + 4);
        put_bytes(&mut bytes, entry);
        self.file.write_all_at(&bytes, self.tail)?;
        self.tail += bytes.len() as u64;
        self.write_head()?;
        let grown = self.tail - self.start > GROWN.max(2 * self.begun_with);
        if grown && self.untold.is_empty() { self.begin_anew() } else { Ok(()) }
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (number, view) in &self.views {
            put_bytes(&mut bytes, &view.entry(*number));
        }
        self.begun_with = bytes.len() as u64;
        // Until the head is written, the old start and end of the log are in force.
        let fits = LOG_AT + self.begun_with <= self.start;
        self.start = if fits { LOG_AT } else { self.tail };
        self.file.write_all_at(&bytes, self.start)?;
        self.tail = self.start + self.begun_with;
        self.write_head()
    }
}

impl Views {
    /// Notes a change that a caller makes to a view directly. The caller adds names and inodes one
    /// by one ([`Untold::add`]), and later notifies the watchers ([`Views::tell_changed`]).
    pub fn untold(&self, view: &ViewId) -> Result<Untold> {
        Ok(self.shared.notes.will_tell(self.number(view)?, &ChangeSet::default()))
    }

    /// Tells the watchers of names and inodes of a view that a caller has changed directly
    /// ([`Views::untold`]).
    pub fn tell_changed(
        &self,
        view: &ViewId,
        names: Vec<(Ino, Box<[u8]>)>,
        inodes: Vec<Ino>,
    ) -> Result<()> {
        let (fs, number) = (self.fs(view)?, self.number(view)?);
        let names = names.into_iter().map(|(dir, name)| (dir, name, false)).collect();
        let changes = ChangeSet {
            names,
            inodes: inodes.into_iter().map(|ino| (ino, false)).collect(),
            ..ChangeSet::default()
        };
        self.shared.watchers.tell(|watcher| watcher.changed(number, &fs, &changes));
        Ok(())
    }

    /// Tells the watchers of the changes that a killed process has made without telling them.
    pub fn tell_left(&self) {
        let Some(notes) = &self.shared.notes.0 else { return };
        let left = std::mem::take(&mut notes.log.lock().left);
        for Left { id, number, all, mut changes } in left {
            let fs = match number {
                0 => Some(self.shared.mainline.clone()),
                number => self.by_number(number),
            };
            if let Some(fs) = fs {
                let turn = fs.core.superseded.turn();
                if all && let Err(e) = names_now(&fs, &mut changes) {
                    tracing::warn!(
                        "not all names that may have changed can be told to caches: {e}"
                    );
                }
                self.shared.watchers.tell(|watcher| watcher.changed(number, &fs, &changes));
                drop(turn);
            }
            notes.told(id);
        }
    }

    /// Makes caches forget the views that have ended with a killed process. `forget` is called with
    /// the number and the name of each view, and its inodes to which caches refer.
    pub fn forget_ended(&self, forget: impl Fn(u16, &ViewId, Vec<Ino>)) {
        let Some(notes) = &self.shared.notes.0 else { return };
        let ended = std::mem::take(&mut notes.log.lock().ended);
        for (number, noted) in ended {
            forget(number, &noted.view, self.shared.open.left_of(number));
            // The number may belong to another view by now.
            let is_last = notes.log.lock().views.get(&number) == Some(&noted);
            if is_last && self.shared.open.by_number(number).is_none() {
                notes.freed(number);
            }
        }
    }
}

/// Adds the current names of a view.
fn names_now(fs: &Fs, changes: &mut ChangeSet) -> Result<()> {
    let _call = fs.enter()?;
    fs.add_known_names(&mut changes.names)?;
    changes.names.sort_unstable();
    changes.names.dedup();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(file: &File) -> ViewNotes {
        ViewNotes::new(file.try_clone().expect("a descriptor")).expect("it is whole")
    }

    fn left(notes: &ViewNotes) -> Vec<(u16, bool, usize, usize)> {
        let log = notes.log.lock();
        let one = |l: &Left| (l.number, l.all, l.changes.names.len(), l.changes.inodes.len());
        log.left.iter().map(one).collect()
    }

    #[test]
    fn what_was_not_told_is_left_to_the_next_one() {
        let file = tempfile::tempfile().expect("a file");
        let notes = Arc::new(again(&file));
        let changes = ChangeSet {
            names: vec![(1, b"a".as_slice().into(), true)],
            inodes: vec![(1, false), (7, true)],
            ..ChangeSet::default()
        };
        drop(notes.begin(0, &changes, false));
        let untold = notes.begin(3, &changes, false);
        untold.add(&[(9, b"b"), (9, b"c")], &[9]);
        let of_all = notes.begin(0, &ChangeSet::default(), true);
        let next = Arc::new(again(&file));
        assert_eq!(left(&next), [(3, false, 3, 3), (0, true, 0, 0)]);
        // The number of a change that the previous process has noted is not given again.
        drop(next.begin(0, &changes, false));
        assert_eq!(left(&again(&file)), [(3, false, 3, 3), (0, true, 0, 0)]);
        drop((untold, of_all));
        assert_eq!(left(&again(&file)), []);
    }

    #[test]
    fn views_are_noted_until_their_numbers_are_free() {
        let (file, db) = (tempfile::tempfile().expect("a file"), Kvdb::in_memory());
        let options = kvdb::TransactionOptions { detached: true, ..Default::default() };
        let id = db.begin_with(options).expect("begun").id();
        db.snapshot("s").expect("made");
        let (transaction, snapshot) = (ViewId::Transaction(id), ViewId::Snapshot("s".into()));
        let notes = again(&file);
        notes.opened(&db, 3, &transaction);
        notes.opened(&db, 7, &snapshot);
        notes.opened(&db, 8, &ViewId::Snapshot("none".into()));
        let noted = |notes: &ViewNotes| {
            let views = notes.views().into_iter();
            views.map(|(n, of)| (n, of.view.clone(), of.is_there(&db))).collect::<Vec<_>>()
        };
        let both = [(3, transaction.clone(), true), (7, snapshot.clone(), true)];
        assert_eq!(noted(&again(&file)), both);
        notes.freed(3);
        assert_eq!(noted(&again(&file)), [(7, snapshot.clone(), true)]);
        // A later snapshot of the same name is not mistaken for it.
        db.drop_snapshot("s").expect("dropped");
        db.snapshot("s").expect("made");
        assert_eq!(noted(&again(&file)), [(7, snapshot, false)]);
    }

    #[test]
    fn a_log_that_has_grown_begins_anew_with_what_it_says() {
        let (file, db) = (tempfile::tempfile().expect("a file"), Kvdb::in_memory());
        db.snapshot("s").expect("made");
        let notes = Arc::new(again(&file));
        notes.opened(&db, 7, &ViewId::Snapshot("s".into()));
        let name: Box<[u8]> = vec![b'n'; 200].into();
        let names = (0..1000).map(|dir| (dir, name.clone(), false)).collect();
        let changes = ChangeSet { names, ..ChangeSet::default() };
        (0..100).for_each(|_| drop(notes.begin(0, &changes, false)));
        let untold = notes.begin(0, &changes, false);
        let next = again(&file);
        assert_eq!((next.views().len(), left(&next)), (1, vec![(0, false, 1000, 0)]));
        assert!(file.metadata().expect("attributes").len() < 4 * GROWN);
        drop(untold);
    }

    #[test]
    fn notes_that_are_cut_or_overwritten_are_an_error_and_no_panic() {
        let (file, db) = (tempfile::tempfile().expect("a file"), Kvdb::in_memory());
        db.snapshot("s").expect("made");
        let notes = Arc::new(again(&file));
        notes.opened(&db, 7, &ViewId::Snapshot("s".into()));
        let untold = notes.begin(7, &ChangeSet::default(), false);
        untold.add(&[(9, b"b")], &[9]);
        let end = notes.log.lock().tail;
        let mut refused = 0;
        for at in (0..HEAD as u64).chain(LOG_AT..end) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("read");
            file.write_all_at(&[!byte[0]], at).expect("written");
            let copy = file.try_clone().expect("a descriptor");
            refused += usize::from(ViewNotes::new(copy).is_err());
            file.write_all_at(&byte, at).expect("written");
        }
        assert!(refused > 0);
    }
}
