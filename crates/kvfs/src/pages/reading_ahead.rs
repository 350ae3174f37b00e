//! Announces the files that a reader of a tree is expected to read next (`read_plan`): their names
//! and pages are looked up, and the pages are announced to the device together, by place.
//!
//! The order of a tree's files by name has little to do with the places of their pages once the
//! tree was saved, moved or checked out over and over. Read one by one, each of them costs the
//! device a seek. Looked up together, they are read in one pass over the device.

use std::time::Instant;

use kvdb::{Scope, View};

use crate::attr::{FileKind, Ino};
use crate::error::Result;
use crate::layout::{self, Layout};
use crate::names::listing_order::Entry;
use crate::pages::read_plan::{Extension, Frontier, Next, ReadPlans};

/// The size in bytes up to which a file is announced as a whole. Larger files are read in order,
/// and their reads announce the following pages.
const SMALL: u64 = 256 << 10;
/// The number of times that more files are looked up if those before had no pages: the content of
/// very small files is in their nodes.
const ROUNDS: usize = 4;
/// The number of directories that are listed at a time, and of names that are listed together.
const DIRECTORIES: usize = 64;
const NAMES: usize = 1024;

/// Reads ahead for the readers of a view.
pub(crate) struct ReadingAhead {
    scope: Scope,
    layout: Layout,
    pub plans: ReadPlans,
}

impl ReadingAhead {
    /// Reads ahead in `scope`, whose files are in the dictionaries of `layout`.
    pub fn new(scope: Scope, layout: Layout) -> ReadingAhead {
        ReadingAhead { scope, layout, plans: ReadPlans::default() }
    }

    /// Prepares a read at `offset`, and announces what is likely to be read after this file.
    /// Returns the directory in the order of whose listing the file is read, if there is one: the
    /// caller passes it to [`ReadingAhead::timed`]. Call under the freeze lock.
    pub fn will_read(&self, ino: Ino, offset: u64) -> Option<Ino> {
        // A served view is read by requests, which know no places.
        if offset > 0 || self.scope.is_served() {
            return None;
        }
        let step = self.plans.begins(ino);
        if let Some(extension) = step.extension {
            self.extend(extension);
        }
        step.dir
    }

    /// Runs `read`, which reads `len` bytes from the start of a file in the listing of `dir`, and
    /// notes whether it had to wait for the device.
    pub fn timed<T>(&self, dir: Ino, len: u64, read: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let data = read();
        if kvdb::value_waited(begun, len) {
            self.plans.waited(dir);
        }
        data
    }

    /// Announces the next files of a walk.
    fn extend(&self, mut extension: Extension) {
        let mut announced = Vec::new();
        if let Err(e) = self.announce_files(&mut extension, &mut announced) {
            // If the reader gets to this place, its own read returns the error.
            tracing::debug!("nothing is read ahead: {e}");
            extension.frontier = Frontier::default();
        }
        self.plans.extended(extension, announced);
    }

    fn announce_files(
        &self,
        extension: &mut Extension,
        announced: &mut Vec<(Ino, u64)>,
    ) -> Result<()> {
        let view = self.scope.view()?;
        for _ in 0..ROUNDS {
            let wanted = extension.files.saturating_sub(announced.len());
            let files = self.next_files(&view, &mut extension.frontier, wanted)?;
            if files.is_empty() {
                break;
            }
            let mut by_key = files.clone();
            by_key.sort_unstable();
            by_key.dedup();
            let ranges: Vec<_> = by_key
                .iter()
                .map(|&ino| (layout::page_key(ino, 0), layout::page_key(ino + 1, 0)))
                .collect();
            let bytes = view.announce_by_place(self.layout.dmap, &ranges, SMALL)?;
            let of = |ino: &Ino| by_key.binary_search(ino).map_or(Some(0), |at| bytes[at]);
            let beyond = files.iter().copied().filter(|ino| of(ino).is_none());
            let beyond: Vec<Ino> = beyond.collect();
            let pages = files.iter().map(|ino| (*ino, of(ino).unwrap_or(0)));
            announced.extend(pages.filter(|(_, bytes)| *bytes > 0));
            if !beyond.is_empty() {
                extension.frontier.put_back(beyond.into_iter());
                extension.is_cut = true;
                break;
            }
            // If none of the files is small, more files are not worth their lookups.
            if announced.is_empty() || announced.len() * 2 >= extension.files {
                break;
            }
        }
        Ok(())
    }

    /// Takes up to `most` files from the frontier.
    fn next_files(&self, view: &View, frontier: &mut Frontier, most: usize) -> Result<Vec<Ino>> {
        let (mut files, mut listed) = (Vec::new(), 0);
        while files.len() < most {
            match frontier.advance() {
                Next::File(ino) => files.push(ino),
                Next::Names(dir, from) => {
                    let (entries, after) = self.entries(view, dir, from)?;
                    frontier.enter(dir, entries, after);
                    listed += 1;
                    if listed == DIRECTORIES {
                        break;
                    }
                }
                Next::End => break,
            }
        }
        Ok(files)
    }

    /// Lists files and subdirectories of a directory, from a key on or from the start. Returns the
    /// key from which the rest can be listed, if there is more.
    fn entries(
        &self,
        view: &View,
        dir: Ino,
        from: Option<Vec<u8>>,
    ) -> Result<(Vec<Entry>, Option<Vec<u8>>)> {
        let start = from.unwrap_or_else(|| layout::name_key(dir, b""));
        let mut cursor = view.cursor(self.layout.nmap, &start, &layout::names_end(dir))?;
        let (mut entries, mut last) = (Vec::new(), Vec::new());
        for _ in 0..NAMES {
            let Some(tuple) = cursor.next()? else { return Ok((entries, None)) };
            let (ino, kind) = layout::decode_name(dir, &tuple.value()?)?;
            match kind {
                FileKind::File => entries.push(Entry::new(ino, false)),
                FileKind::Dir => entries.push(Entry::new(ino, true)),
                _ => {}
            }
            last = tuple.key.to_vec();
        }
        // The smallest key after the last one.
        last.push(0);
        Ok((entries, Some(last)))
    }
}
