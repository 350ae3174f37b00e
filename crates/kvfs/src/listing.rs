//! The names that positions of one directory's listings stand for; see `directory`.

use std::collections::VecDeque;

/// Calls whose entries are remembered until a listing ends, a directory.
const LISTINGS: usize = 8;
/// Entries of one call that are remembered, the last ones.
const REMEMBERED: usize = 2048;
/// Removed names that are remembered, a directory.
const REMOVED: usize = 4096;

/// Positions with their names, of one call of `readdir`.
#[derive(Default)]
pub(crate) struct Emitted {
    /// Each with the end of its name in `names`.
    positions: Vec<(u64, u32)>,
    names: Vec<u8>,
}

impl Emitted {
    pub fn push(&mut self, position: u64, name: &[u8]) {
        if self.positions.len() == REMEMBERED {
            self.positions.clear();
            self.names.clear();
        }
        self.names.extend_from_slice(name);
        self.positions.push((position, self.names.len() as u32));
    }

    fn find(&self, cookie: u64) -> Option<&[u8]> {
        let at = self.positions.iter().rposition(|(position, _)| *position == cookie)?;
        let start = if at == 0 { 0 } else { self.positions[at - 1].1 as usize };
        self.names.get(start..self.positions[at].1 as usize)
    }
}

/// What keeps positions of one directory valid.
#[derive(Default)]
pub(crate) struct Listing {
    emitted: VecDeque<Emitted>,
    removed: VecDeque<(u64, Box<[u8]>)>,
}

impl Listing {
    /// The name at position `cookie`, if it is remembered.
    pub fn find(&self, cookie: u64) -> Option<&[u8]> {
        let emitted = self.emitted.iter().rev().find_map(|emitted| emitted.find(cookie));
        emitted.or_else(|| {
            self.removed.iter().rev().find(|(c, _)| *c == cookie).map(|(_, name)| &**name)
        })
    }

    /// Remembers what one call of `readdir` emitted.
    pub fn push_emitted(&mut self, emitted: Emitted) {
        if self.emitted.len() == LISTINGS {
            self.emitted.pop_front();
        }
        self.emitted.push_back(emitted);
    }

    /// Forgets what was emitted: a listing has reached the end of the directory.
    pub fn clear_emitted(&mut self) {
        self.emitted = VecDeque::new();
    }

    /// Remembers a name that is removed from the directory, and its position.
    pub fn push_removed(&mut self, position: u64, name: &[u8]) {
        if self.removed.len() == REMOVED {
            self.removed.pop_front();
        }
        self.removed.push_back((position, name.into()));
    }
}
