//! Lists directories.
//!
//! There is no opendir, so a position must mean the same in any later call. Entries are ordered by
//! name; the position after an entry is a keyed hash of its name. To continue from a position, the
//! listing searches for the position's name
//!
//! 1. among the entries that unfinished listings of this directory emitted last (the usual case: a
//!    listing continues where it stopped),
//! 2. among the names that were removed since the directory was first listed,
//! 3. in the directory itself, by hashing its names.
//!
//! Once the name is known, the listing continues after it, whether the name still exists or not:
//! entries present throughout are returned exactly once. The search fails only for a position whose
//! entry was removed before the last mount, or thousands of removals ago. Such a listing begins
//! again, because an entry that is returned twice does less harm than an entry that is never
//! returned.
//!
//! A position has two parts: the hash of the name, and the number of the listing (`listing_table`),
//! which excludes names that were added after the listing began. The last entry has a special
//! position after which the listing ends, even if names were added.

use kvdb::{ScopeCursor, Tuple};

use crate::attr::{DirEntry, FileKind, Ino};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::inode::listing::{Emitted, FIRST_HASH, NAME_BITS, position};
use crate::layout::{self, Attributes};
use crate::names::listing_order::Entry;
use crate::names::listing_table::Listed;

/// The positions after `.` and `..`. Positions of names are larger.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;
/// The position after all entries.
const AT_END: u64 = i64::MAX as u64;
/// The number of entries from which on a directory is large. The listing of a large directory
/// announces all its reads from the start.
const LARGE: u64 = 1024;
/// The approximate size of a name in the store, in bytes. The second size is that of a node.
const ENTRY_BYTES: u64 = 32;

impl Fs {
    /// Calls `emit` with the entries after position `cookie` (0: from the start, with `.` and `..`)
    /// until it returns `false`, which leaves that entry for the next call. With `plus`, each entry
    /// taken adds a reference to its inode, except for `.` and `..`.
    pub fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let _call = self.enter()?;
        let dir = self.inode(ino)?;
        let Attributes { parent, size: entries, nlink, .. } = {
            let state = dir.state.read();
            match () {
                () if state.gone => return Err(Error::NotFound),
                () if !state.is_dir() => return Err(Error::NotDirectory),
                () => state.attr,
            }
        };
        // According to POSIX, a removed directory has no entries, not even `.` and `..`.
        if nlink == 0 || cookie == AT_END {
            return Ok(());
        }
        // Registers the listing before the cursor is opened, so that every name removed or added
        // from now on is remembered.
        dir.listing.lock().get_or_insert_default();
        let (listing, after) = self.listing_at(ino, cookie);
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

        // The order of the listing predicts the next reads.
        let mut order: Vec<Entry> = Vec::new();
        let mut end = if cookie == 0 { at(listing, AFTER_DOTS) } else { cookie };
        let mut emit = |entry: DirEntry<'_>| {
            let is_dir = entry.kind == FileKind::Dir;
            let may_be_read = is_dir || entry.kind == FileKind::File;
            let listed = may_be_read.then(|| Entry::new(entry.ino, is_dir));
            let after = entry.cookie;
            let taken = emit(entry);
            if taken {
                end = after;
                order.extend(listed);
            }
            taken
        };
        // Names are stored next to one another, and so are the nodes in most cases.
        let ahead = match entries {
            LARGE.. => entries.saturating_mul(ENTRY_BYTES),
            _ => 0,
        };
        let ended = kvdb::read_onward(ahead, || {
            self.list_names((ino, &dir), (listing, after), plus, &mut emit)
        })?;
        self.core.reading_ahead.plans.listed(ino, (cookie, end), &order);
        if ended && cookie == 0 {
            // This call returned all entries. A later call can only continue from a position within
            // these entries.
            self.core.listings.end(ino, listing);
        }
        Ok(())
    }

    /// Returns the listing that continues at a cookie, or a new one, and the position after which
    /// it continues.
    fn listing_at(&self, ino: Ino, cookie: u64) -> (Listed, u64) {
        let (number, after) = (cookie >> NAME_BITS, cookie & ((1 << NAME_BITS) - 1));
        let listings = &self.core.listings;
        let known = u16::try_from(number).ok().filter(|number| *number > 0);
        let known = known.and_then(|number| listings.find(ino, number));
        (known.unwrap_or_else(|| listings.begin(ino)), after)
    }

    /// Lists the names of a directory after a position of a listing. The entries `.` and `..` were
    /// listed before. Returns `true` at the end of the directory.
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
            self.seek_after((ino, dir), after, &mut cursor)?;
        }
        // This is read after the cursor was opened: names added since the listing began are known
        // by now, or were added after the cursor was opened.
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
                let name = self.core.listings.name_hash(layout::decode_name_key(&tuple.key)?.1);
                if !(added && self.core.listings.is_added(ino, listing, name)) {
                    return Ok(Some((tuple, position(name))));
                }
            }
        };
        let mut emitted = Emitted::default();
        let mut ahead = next()?;
        while let Some((tuple, position)) = ahead {
            // The next entry is read first, since the last entry gets a special position.
            ahead = next()?;
            let cookie = if ahead.is_some() { at(listing, position) } else { AT_END };
            let (_, name) = layout::decode_name_key(&tuple.key)?;
            let (child, kind) = layout::decode_name(ino, &tuple.value()?)?;
            let attr = match plus.then(|| self.reference(child)).transpose() {
                // The inode was removed since the cursor was opened.
                Err(Error::NotFound | Error::Stale(_)) => None,
                // Any other error ends the listing, because with a store that does not answer,
                // every further entry would wait.
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
        // At the end, only another listing of this directory could use these positions, and that
        // listing can search for its position.
        if let Some(listing) = &mut *dir.listing.lock() {
            listing.clear_emitted();
        }
        Ok(true)
    }

    /// Moves a cursor over the names of a directory to the name after a position. If the name at
    /// the position is not known, all names are searched for it. If no name has this position, the
    /// cursor begins again.
    fn seek_after(
        &self,
        (ino, dir): (Ino, &Inode),
        after: u64,
        cursor: &mut ScopeCursor,
    ) -> Result<()> {
        let known = dir
            .listing
            .lock()
            .as_ref()
            .and_then(|listing| listing.find(after))
            .map(|name| layout::name_key(ino, name));
        if let Some(mut key) = known {
            // This is the smallest key after the key of the name.
            key.push(0);
            return Ok(cursor.seek(&key)?);
        }
        while let Some(tuple) = cursor.next()? {
            let (_, name) = layout::decode_name_key(&tuple.key)?;
            if position(self.core.listings.name_hash(name)) == after {
                return Ok(());
            }
        }
        Ok(cursor.seek(&layout::name_key(ino, b""))?)
    }

    /// Announces that the nodes of the first entry and of the entries fetched with it will be read.
    /// Returns the number of entries announced.
    fn announce_nodes(&self, dir: Ino, first: &Tuple, cursor: &ScopeCursor) -> Result<usize> {
        let mut nodes = vec![layout::node_key(layout::decode_name(dir, &first.value()?)?.0)];
        for (_, value) in cursor.fetched() {
            nodes.push(layout::node_key(layout::decode_name(dir, value)?.0));
        }
        let keys: Vec<&[u8]> = nodes.iter().map(|key| &key[..]).collect();
        self.core.scope.announce(self.core.layout.imap, &keys);
        Ok(nodes.len())
    }
}

/// Returns a position of a listing; it is positive as a signed offset.
fn at(listing: Listed, position: u64) -> u64 {
    u64::from(listing.number) << NAME_BITS | position
}
