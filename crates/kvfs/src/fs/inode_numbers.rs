//! Inode numbers of an open file system: each is noted in the store before it is used, and what a
//! store says of them is read when it is opened or has become another one. Which number comes next
//! is the business of [`crate::inode_allocator`].

use std::ops::Range;

use kvdb::{Batch, Kvdb, View};

use super::Fs;
use crate::attr::{Ino, ROOT};
use crate::error::{Error, Result};
use crate::inode_allocator::InodeAllocator;
use crate::layout::{self, Attributes, Layout, Numbers};
use crate::reservation::INO_LIMIT;

impl Fs {
    pub(crate) fn new_ino(&self) -> Result<Ino> {
        let ino = self.core.inode_allocator.take();
        self.note_numbers_below(ino.saturating_add(1))?;
        Ok(ino)
    }

    /// A number for something that is made in a directory, which is locked: near those of its other
    /// entries. What is left of the reservation goes into the store with the directory's node.
    pub(crate) fn new_ino_in(&self, dir: Ino, attr: &mut Attributes) -> Result<Ino> {
        let ino = self.core.inode_allocator.take_in(dir, &mut attr.reserved, attr.size);
        self.note_numbers_below(ino.saturating_add(1))?;
        Ok(ino)
    }

    /// Takes `count` numbers that follow one another.
    pub(crate) fn new_inos(&self, count: u64) -> Result<Range<Ino>> {
        let inos = self.core.inode_allocator.take_together(count);
        self.note_numbers_below(inos.end)?;
        Ok(inos)
    }

    /// In the journal the note comes before whatever is made with such a number, in a durable
    /// transaction, too.
    fn note_numbers_below(&self, end: Ino) -> Result<()> {
        if self.core.inode_allocator.is_noted(end) {
            return Ok(());
        }
        let parent = self.core.parent.as_ref().map(|parent| &parent.fs);
        // A rollback, which takes the note back, comes before this or after it. (A call of a view
        // without a parent is inside.)
        let _call = parent.map(Fs::enter).transpose()?;
        self.core.inode_allocator.note(end, |bound| {
            let mut batch = Batch::new();
            batch.put(
                self.core.layout.imap,
                layout::NUMBERS_KEY.to_vec(),
                layout::encode_numbers(self.core.inode_allocator.numbers(bound)),
            );
            parent.unwrap_or(self).apply(batch)
        })
    }

    /// Takes a snapshot in which all reservations are void: after a rollback to it, numbers that
    /// were given out of them since must not be given again, even if nothing else is written before
    /// a kill. The next number that is given here makes them valid again. No call is under way.
    pub(crate) fn without_reservations<T>(
        &self,
        snapshot: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let allocator = &self.core.inode_allocator;
        if let Some(bound) = allocator.noted() {
            let void = layout::encode_numbers(Numbers { bound, first_reserved: bound });
            let mut batch = Batch::new();
            batch.put(self.core.layout.imap, layout::NUMBERS_KEY.to_vec(), void);
            self.apply(batch)?;
            allocator.clear_noted();
        }
        snapshot()
    }
}

/// The allocator of a branch that is opened: its first number lies above all that were given, as
/// far as the store shows them or says so.
pub(super) fn allocator_of(
    db: &Kvdb,
    branch: &str,
    layout: &Layout,
    zone_size: u64,
    read_only: bool,
) -> Result<InodeAllocator> {
    let next = largest_ino(&db.view(), layout)?
        .checked_add(1)
        .filter(|&n| n > ROOT && n < INO_LIMIT)
        .ok_or_else(|| Error::Corrupt {
            ino: u64::MAX,
            what: "an inode number that was never given out".into(),
        })?;
    // A snapshot may hold numbers that are no more, and a rollback brings them back under whatever
    // is open then.
    let (kept, reserved) = if read_only { (0, false) } else { largest_kept(db, branch) };
    // A transaction that goes on from before has given numbers that nothing in the branch has yet.
    let taken = if read_only { 0 } else { largest_taken(db, branch, layout) };
    // And one that cannot go on now has given some that nothing shows.
    let noted = noted(&db.view(), layout)?;
    let found = next.max(kept + 1).max(taken + 1);
    let bound = noted.map_or(0, |noted| noted.bound);
    let allocator = InodeAllocator::from(found.max(bound), zone_size);
    allocator.set_noted_below(bound);
    // Numbers that lie where they cannot were given elsewhere, and a snapshot from elsewhere may
    // have been rolled back to: what directories have reserved is not to be trusted.
    match noted {
        Some(noted) if found <= noted.bound && !reserved => {
            allocator.void_below(noted.first_reserved)
        }
        _ => allocator.void_reservations(),
    }
    Ok(allocator)
}

/// What a state says about the inode numbers that were given. Older stores say nothing; what is
/// malformed is passed by, and found by a check.
pub(crate) fn noted(view: &View, layout: &Layout) -> Result<Option<Numbers>> {
    Ok(view
        .get(layout.imap, &layout::NUMBERS_KEY)?
        .and_then(|value| layout::decode_numbers(&value)))
}

/// The largest inode number in any state that the branch can be rolled back to, and whether numbers
/// that directories have reserved would be valid in one. One that cannot be read, or has impossible
/// numbers, is passed by: the rollback to it says so.
pub(crate) fn largest_kept(db: &Kvdb, branch: &str) -> (Ino, bool) {
    let (mut largest, mut reserved) = (ROOT, false);
    for info in db.snapshots().into_iter().filter(|info| info.branch == branch) {
        let found = db.open_snapshot(&info.name).map_err(Error::from).and_then(|state| {
            let noted =
                Layout::of_state(&state).map(|layout| noted(&state, &layout)).transpose()?;
            Ok((largest_in(&state)?, noted.flatten()))
        });
        match found {
            Ok((ino, noted)) => {
                largest = largest.max(ino);
                reserved |= noted.is_some_and(|noted| noted.first_reserved < noted.bound);
            }
            Err(e) => tracing::warn!("snapshot {:?} cannot be rolled back to: {e}", info.name),
        }
    }
    (largest, reserved)
}

/// The largest inode number in an open transaction of a branch. One that cannot be read, or has
/// impossible numbers, is passed by: it cannot commit.
pub(crate) fn largest_taken(db: &Kvdb, branch: &str, layout: &Layout) -> Ino {
    let mut largest = ROOT;
    for info in db.transactions().into_iter().filter(|info| info.branch == branch) {
        let found = db.transaction(info.id).and_then(|t| t.view()).map_err(Error::from);
        match found.and_then(|view| possible(largest_ino(&view, layout)?)) {
            Ok(ino) => largest = largest.max(ino),
            Err(e) => tracing::warn!("what transaction {} has made cannot be read: {e}", info.id),
        }
    }
    largest
}

fn possible(largest: Ino) -> Result<Ino> {
    if largest < INO_LIMIT - 1 {
        return Ok(largest);
    }
    Err(Error::Corrupt { ino: largest, what: "an inode number that was never given out".into() })
}

/// The largest inode number in a snapshot's state.
pub(crate) fn largest_in(state: &View) -> Result<Ino> {
    let Some(layout) = Layout::of_state(state) else { return Ok(ROOT) };
    possible(largest_ino(state, &layout)?)
}

/// The largest inode number in use: of the nodes, and of the pages too, so that no new file finds
/// old data under its number.
pub(crate) fn largest_ino(view: &View, layout: &Layout) -> Result<Ino> {
    let mut largest = ROOT;
    for dict in [layout.imap, layout.dmap] {
        let mut cursor = view.cursor(dict, &[], &[])?.keys_only();
        cursor.seek_to_end()?;
        if let Some(tuple) = cursor.prev()?
            && let Some((ino, _)) = tuple.key.split_first_chunk::<8>()
        {
            largest = largest.max(u64::from_be_bytes(*ino));
        }
    }
    Ok(largest)
}
