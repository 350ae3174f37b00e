//! Remembers the names of positions in the listings of one directory; see `directory`.

use std::collections::VecDeque;

/// The number of bits of a position that belong to the name. The bits above are the number of the
/// listing.
pub(crate) const NAME_BITS: u32 = 48;
/// The smallest value of the part of a position that belongs to a name. `directory` uses the
/// positions below it.
pub(crate) const FIRST_HASH: u64 = 3;
/// The number of calls per directory whose entries are remembered until a listing ends.
const LISTINGS: usize = 8;
/// The number of entries of a call that are remembered. These are the last entries.
const REMEMBERED: usize = 2048;
/// The number of removed names that are remembered for a directory.
const REMOVED: usize = 4096;

/// Returns the part of a position that belongs to the name. It never equals one of the first
/// positions.
pub(crate) fn position(name: u64) -> u64 {
    (name & ((1 << NAME_BITS) - 1)).max(FIRST_HASH)
}

/// The positions and names that one call of `readdir` has emitted.
#[derive(Default)]
pub(crate) struct Emitted {
    /// The positions, each with the end of its name in `names`.
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

/// The names that keep the positions of one directory valid.
#[derive(Default)]
pub(crate) struct Listing {
    emitted: VecDeque<Emitted>,
    removed: VecDeque<(u64, Box<[u8]>)>,
}

impl Listing {
    /// Returns the name at position `cookie`, if it is remembered.
    pub fn find(&self, cookie: u64) -> Option<&[u8]> {
        let emitted = self.emitted.iter().rev().find_map(|emitted| emitted.find(cookie));
        emitted.or_else(|| {
            self.removed.iter().rev().find(|(c, _)| *c == cookie).map(|(_, name)| &**name)
        })
    }

    /// Remembers the entries that one call of `readdir` has emitted.
    pub fn push_emitted(&mut self, emitted: Emitted) {
        if self.emitted.len() == LISTINGS {
            self.emitted.pop_front();
        }
        self.emitted.push_back(emitted);
    }

    /// Forgets the emitted entries, because a listing has reached the end of the directory.
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
