//! Listing directories.
//!
//! There is no opendir, so a position must mean the same at any later call. Entries lie in the
//! order of their names; the position after an entry is a keyed hash of its name. To go on from a
//! position, its name is looked for
//!
//! 1. among the entries that unfinished listings of this directory emitted last (the usual case:
//!    one goes on where it stopped),
//! 2. among the names that were removed since the directory was first listed,
//! 3. in the directory itself, by hashing its names.
//!
//! Knowing the name, the listing goes on behind it, whether it exists or not: entries present
//! throughout are returned exactly once. Only a position whose entry was removed before the last
//! mount, or that is thousands of removals old, is in none of them; such a listing begins again,
//! since an entry seen twice does less harm than one never seen.
//!
//! A position has two parts, the name's hash and the number of the listing (`listing_table`), which
//! leaves out names that were added after it began. The last entry has a position of its own, after
//! which there is nothing, whatever was added.

use std::hash::Hasher;

use kvdb::{ScopeCursor, Tuple};
use siphasher::sip::SipHasher13;

use crate::attr::{DirEntry, FileKind, Ino};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::layout;
use crate::listing::Emitted;
use crate::listing_table::Listed;

/// Positions after `.` and `..`; those of names come behind.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;
const FIRST_HASH: u64 = 3;
/// After all entries.
const AT_END: u64 = i64::MAX as u64;
/// Bits of a position that are the name's; those above are the number of the listing.
const NAME_BITS: u32 = 48;
/// A directory of so many entries is large: its listing says from the start what it will read.
const LARGE: u64 = 1024;
/// What an entry takes in the store, about, its name and its node each, bytes.
const ENTRY_BYTES: u64 = 32;

impl Fs {
    /// Calls `emit` with the entries behind position `cookie` (0: from the start, with `.` and
    /// `..`) until it returns `false`, which leaves that entry for the next call. With `plus`, each
    /// entry taken adds a reference to its inode, but for `.` and `..`.
    pub fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let _call = self.enter()?;
        let dir = self.inode(ino)?;
        let (parent, entries, unlinked) = {
            let state = dir.state.read();
            match () {
                () if state.gone => return Err(Error::NotFound),
                () if !state.is_dir() => return Err(Error::NotDirectory),
                () => (state.attr.parent, state.attr.size, state.attr.nlink == 0),
            }
        };
        if unlinked {
            // POSIX: a removed directory has no entries, not even these two.
            return Ok(());
        }
        if cookie == AT_END {
            return Ok(());
        }
        // Before the cursor is opened, so that every name removed or added from now on is
        // remembered.
        dir.listing.lock().get_or_insert_default();
        let (number, after) = (cookie >> NAME_BITS, cookie & ((1 << NAME_BITS) - 1));
        let listings = &self.core.listings;
        let known = u16::try_from(number).ok().filter(|number| *number > 0);
        let known = known.and_then(|number| listings.find(ino, number));
        let listing = known.unwrap_or_else(|| listings.begin(ino));
        let first = [(AFTER_DOT, &b"."[..], ino), (AFTER_DOTS, b"..", parent)];
        for (position, name, ino) in first {
            if after < position {
                let attr = if plus { self.attr_of(ino).ok() } else { None };
                let cookie = at(listing, position);
                if !emit(DirEntry { ino, kind: FileKind::Dir, name, cookie, attr }) {
                    return Ok(());
                }
            }
        }

        // Names lie together, and mostly the nodes, too.
        let ahead = match entries {
            LARGE.. => entries.saturating_mul(ENTRY_BYTES),
            _ => 0,
        };
        let ended = kvdb::read_onward(ahead, || {
            self.list_names((ino, &dir), (listing, after), plus, emit)
        })?;
        if ended && cookie == 0 {
            // One call was enough, and whoever goes on from one of its positions has stopped
            // within what that returned.
            listings.end(ino, listing);
        }
        Ok(())
    }

    /// The names of a directory after a position of a listing, which is not one of the first.
    /// `true`: it has come to the end.
    fn list_names(
        &self,
        (ino, dir): (Ino, &Inode),
        (listing, after): (Listed, u64),
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let (start, end) = (layout::name_key(ino, b""), layout::names_end(ino));
        let mut cursor = self.core.scope.cursor(self.core.layout.nmap, &start, &end)?;
        if after >= FIRST_HASH {
            let known = dir
                .listing
                .lock()
                .as_ref()
                .and_then(|listing| listing.find(after))
                .map(|name| layout::name_key(ino, name));
            match known {
                Some(mut key) => {
                    // The smallest key behind this one.
                    key.push(0);
                    cursor.seek(&key)?;
                }
                None => {
                    let found = loop {
                        match cursor.next()? {
                            Some(tuple)
                                if position(
                                    self.name_hash(layout::decode_name_key(&tuple.key)?.1),
                                ) == after =>
                            {
                                break true;
                            }
                            Some(_) => {}
                            None => break false,
                        }
                    };
                    if !found {
                        cursor.seek(&start)?;
                    }
                }
            }
        }
        // Names that were added since came after the cursor's opening, or are known by now.
        let added = self.core.listings.has_added(ino, listing);
        let announces = plus && self.core.scope.is_served();
        let mut announced = 0;
        let mut next = || -> Result<Option<(Tuple, u64)>> {
            loop {
                let Some(tuple) = cursor.next()? else { return Ok(None) };
                if announces {
                    if announced == 0 {
                        announced = self.announce_nodes(ino, &tuple, &cursor)?;
                    }
                    announced -= 1;
                }
                let name = self.name_hash(layout::decode_name_key(&tuple.key)?.1);
                if !(added && self.core.listings.is_added(ino, listing, name)) {
                    return Ok(Some((tuple, position(name))));
                }
            }
        };
        let mut emitted = Emitted::default();
        let mut ahead = next()?;
        while let Some((tuple, position)) = ahead {
            // The last entry is known by its position.
            ahead = next()?;
            let cookie = if ahead.is_some() { at(listing, position) } else { AT_END };
            let (_, name) = layout::decode_name_key(&tuple.key)?;
            let (child, kind) = layout::decode_name(ino, &tuple.value()?)?;
            let attr = match plus.then(|| self.reference(child)).transpose() {
                // It vanished since the cursor was opened.
                Err(Error::NotFound | Error::Stale(_)) => None,
                // Of a store that does not answer, each of the next ones would be waited for.
                attr => attr?,
            };
            if !emit(DirEntry { ino: child, kind, name, cookie, attr }) {
                if attr.is_some() {
                    self.release(child, 1);
                }
                let mut listing = dir.listing.lock();
                listing.get_or_insert_default().push_emitted(emitted);
                return Ok(false);
            }
            emitted.push(position, name);
        }
        // The end: only another listing of this directory could continue here, and it can search
        // for its position.
        if let Some(listing) = &mut *dir.listing.lock() {
            listing.clear_emitted();
        }
        Ok(true)
    }

    /// Says that the nodes of these entries are going to be read: of the first one, and of those
    /// that have come with it. Returns how many that are.
    fn announce_nodes(&self, dir: Ino, first: &Tuple, cursor: &ScopeCursor) -> Result<usize> {
        let mut nodes = vec![layout::node_key(layout::decode_name(dir, &first.value()?)?.0)];
        for (_, value) in cursor.fetched() {
            nodes.push(layout::node_key(layout::decode_name(dir, value)?.0));
        }
        let keys: Vec<&[u8]> = nodes.iter().map(|key| &key[..]).collect();
        self.core.scope.announce(self.core.layout.imap, &keys);
        Ok(nodes.len())
    }

    fn name_hash(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.core.hash_key);
        hasher.write(name);
        hasher.finish()
    }

    /// A name that a directory has not got is about to be added to it. Call before the commit; of a
    /// name that replaces another one nothing has to be said.
    pub(crate) fn remember_added(&self, dir: Ino, name: &[u8]) {
        self.core.listings.add(dir, || self.name_hash(name));
    }

    /// A name was removed: listings that stopped at it must find where they were. Call before the
    /// commit that removes it, so that no listing misses it; should that fail, nothing is wrong:
    /// the position of a name is always the same.
    pub(crate) fn remember_removed(&self, dir: &Inode, name: &[u8]) {
        if let Some(listing) = &mut *dir.listing.lock() {
            listing.push_removed(position(self.name_hash(name)), name);
        }
    }
}

/// What a position says of a name: not one of the first.
fn position(name: u64) -> u64 {
    (name & ((1 << NAME_BITS) - 1)).max(FIRST_HASH)
}

/// A position of a listing; positive as a signed offset.
fn at(listing: Listed, position: u64) -> u64 {
    u64::from(listing.number) << NAME_BITS | position
}
