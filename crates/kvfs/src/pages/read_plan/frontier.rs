//! The frontier of a walk: the files that a reader of a tree is expected to read, in order. The
//! caller passes entries of directories to the frontier when they are needed, so this module does
//! not access the store.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::attr::Ino;
use crate::names::listing_order::Entry;

/// The depth of a frontier.
const DEPTH: usize = 32;

/// A directory of a frontier.
struct Frame {
    dir: Ino,
    entries: std::vec::IntoIter<Entry>,
    /// The key in the store from which the directory continues after these entries.
    after: Option<Vec<u8>>,
    /// Subdirectories are part of the frontier.
    descends: bool,
}

/// The next step of a frontier.
pub(crate) enum Next {
    File(Ino),
    /// The entries of this directory come next, from this key on or from the start. The caller
    /// passes them to [`Frontier::enter`].
    Names(Ino, Option<Vec<u8>>),
    End,
}

/// The files that a reader is expected to read, in order. Directories are listed as it reaches
/// them.
#[derive(Default)]
pub(crate) struct Frontier {
    /// Files that were put back.
    first: VecDeque<Ino>,
    /// The innermost directory is the last.
    frames: Vec<Frame>,
    /// The number of files that were returned, and the positions of those whose place among the
    /// others is not asked for yet.
    returned: u64,
    positions: HashMap<Ino, u64>,
    /// Directories that were entered; see [`Frontier::take_entered`].
    entered: Vec<Ino>,
}

impl Frontier {
    pub fn advance(&mut self) -> Next {
        if let Some(ino) = self.first.pop_front() {
            return Next::File(ino);
        }
        while let Some(frame) = self.frames.last_mut() {
            match frame.entries.next() {
                Some(entry) if !entry.is_dir() => {
                    self.returned += 1;
                    self.positions.entry(entry.ino()).or_insert(self.returned);
                    return Next::File(entry.ino());
                }
                Some(entry) if frame.descends => return Next::Names(entry.ino(), None),
                Some(_) => {}
                None => match frame.after.take() {
                    Some(key) => return Next::Names(frame.dir, Some(key)),
                    None => drop(self.frames.pop()),
                },
            }
        }
        Next::End
    }

    /// Adds entries of a directory that [`Frontier::advance`] has asked for, and the key from which
    /// it continues.
    pub fn enter(&mut self, dir: Ino, entries: Vec<Entry>, after: Option<Vec<u8>>) {
        let depth = self.frames.len();
        match self.frames.last_mut() {
            Some(frame) if frame.dir == dir => {
                (frame.entries, frame.after) = (entries.into_iter(), after);
            }
            // A directory of a damaged store may contain itself.
            _ if depth < DEPTH => {
                self.entered.push(dir);
                let entries = entries.into_iter();
                self.frames.push(Frame { dir, entries, after, descends: true });
            }
            _ => {}
        }
    }

    /// Puts back files, in order, that were not announced.
    pub fn put_back(&mut self, files: impl DoubleEndedIterator<Item = Ino>) {
        files.rev().for_each(|ino| self.first.push_front(ino));
    }

    /// Takes the position of a file among all that were returned. A file that was put back has the
    /// position that it had at first.
    pub fn take_position(&mut self, ino: Ino) -> u64 {
        self.positions.remove(&ino).unwrap_or(u64::MAX)
    }

    /// Forgets the positions of files that were neither put back nor asked for.
    pub fn settle(&mut self) {
        let left: HashSet<Ino> = self.first.iter().copied().collect();
        self.positions.retain(|ino, _| left.contains(ino));
    }

    /// Takes the directories that were entered since the last call.
    pub fn take_entered(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.entered)
    }

    /// Adds a directory after all others: the rest of the one that these are in.
    pub fn surround(&mut self, dir: Ino, entries: Vec<Entry>, descends: bool) {
        let entries = entries.into_iter();
        self.frames.insert(0, Frame { dir, entries, after: None, descends });
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.frames.is_empty()
    }
}
