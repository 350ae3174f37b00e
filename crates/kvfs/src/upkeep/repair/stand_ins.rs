//! Stand-ins for lost pages, in the runs that had them: all states that share a run have lost its
//! pages, and snapshots do not change otherwise.
//!
//! The key of a lost value is known. A lost block of tuples, or a lost part of a tree, is known by
//! its range of keys only; the nodes of the states that have the run say which pages it may have
//! had. So each block below the end of a file with pages, in any of these states, has a stand-in
//! within the range, and a hole there becomes a lost page, too. Newer runs hide stand-ins as they
//! hid the pages. The states that can change are settled afterwards: stand-ins that only others of
//! the states can have had are removed, and the nodes count the rest.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvdb::{Deletion, ScrubFault, StateOfRun};

use super::between::{Between, paged_blocks};
use super::lost::MOST_PAGES;
use super::{Losses, Mend};
use crate::attr::Ino;
use crate::error::Result;
use crate::layout::{self, Attributes, Body, ImapKey, Layout};

/// The stand-ins of a repair.
#[derive(Default)]
pub(super) struct StandIns {
    /// The number of stand-ins for pages of blocks of tuples.
    pages: usize,
    /// For each deletion of the repair, in their order, whether every page that it may have had has
    /// a stand-in.
    complete: Vec<bool>,
}

impl StandIns {
    /// Puts stand-ins in place of the pages that were deleted. Call with each deletion.
    pub fn put(&mut self, deletion: &mut Deletion<'_>) {
        let complete = deletion.keys.dictionary == "dmap" && self.put_pages(deletion);
        self.complete.push(complete);
    }

    /// Returns whether every page that the deletion of this number may have had has a stand-in.
    pub fn are_complete(&self, deletion: usize) -> bool {
        self.complete.get(deletion).is_some_and(|complete| *complete)
    }

    fn put_pages(&mut self, deletion: &mut Deletion<'_>) -> bool {
        let content = Bytes::from_static(&layout::LOST_PAGE);
        let keys = deletion.keys;
        let between = Between { start: &keys.start, end: &keys.end };
        if between.is_page() {
            deletion.put(between.start, content);
            return true;
        }
        let (mut files, mut complete) = (BTreeMap::new(), true);
        for state in deletion.states {
            // Nodes that cannot be read are no reason to leave the other ones out.
            complete &= add_files(state, between, &mut files).is_ok();
        }
        for (ino, blocks) in files {
            for block in between.blocks(ino, blocks) {
                if self.pages == MOST_PAGES {
                    return false;
                }
                self.pages += 1;
                deletion.put(&layout::page_key(ino, block), content.clone());
            }
        }
        complete
    }
}

/// Adds the files of a state that may have pages in a range, each with the number of its blocks.
/// The largest size of all states counts.
fn add_files(
    state: &StateOfRun,
    between: Between<'_>,
    files: &mut BTreeMap<Ino, u64>,
) -> Result<()> {
    let dictionaries = Layout::of_names(|name| state.dictionary(name));
    let (Some(of_state), Some(inodes)) = (dictionaries, between.inodes()) else { return Ok(()) };
    let (start, _) = layout::node_range(*inodes.start());
    let (_, end) = layout::node_range(*inodes.end());
    let mut cursor = state.view.cursor(of_state.imap, &start, &end)?;
    while let Some(tuple) = cursor.next()? {
        let Ok(ImapKey::Node(ino)) = layout::decode_imap_key(&tuple.key) else { continue };
        let Ok((attr, ..)) = layout::decode_node(ino, &tuple.value()?) else { continue };
        if let Some(blocks) = paged_blocks(&attr) {
            let most = files.entry(ino).or_default();
            *most = blocks.max(*most);
        }
    }
    Ok(())
}

impl Mend<'_> {
    /// Settles the stand-ins of clones: removes those that only other states can have had, and
    /// makes nodes count the rest. Without nodes that were lost, too, nothing can be said of
    /// pages, so they stay then.
    pub(super) fn settle(&mut self, clones: &[Layout], removed: &[ScrubFault]) -> Result<()> {
        if self.losses == Losses::Accept {
            return Ok(());
        }
        let of = |fault: &ScrubFault, dictionary: &str| {
            fault.keys.as_ref().is_some_and(|keys| keys.dictionary == dictionary)
        };
        if removed.iter().any(|fault| of(fault, "imap")) {
            return Ok(());
        }
        // Several runs may have lost the same block.
        let ranges: BTreeSet<(Bytes, Bytes)> = removed
            .iter()
            .filter(|fault| of(fault, "dmap"))
            .filter_map(|fault| fault.keys.as_ref())
            .filter(|keys| !Between { start: &keys.start, end: &keys.end }.is_page())
            .map(|keys| (keys.start.clone(), keys.end.clone()))
            .collect();
        for clone in clones {
            for ino in self.remove_strays(*clone, &ranges)? {
                self.count_pages(*clone, ino)?;
            }
        }
        self.may_be_stray = ranges;
        Ok(())
    }

    /// Removes the lost pages of a clone in these ranges that none of its files has. Returns the
    /// files that have one.
    fn remove_strays(
        &mut self,
        clone: Layout,
        ranges: &BTreeSet<(Bytes, Bytes)>,
    ) -> Result<BTreeSet<Ino>> {
        let mut files = BTreeSet::new();
        for (start, end) in ranges {
            let mut cursor = self.view.cursor(clone.dmap, start, end)?;
            let mut file = (0, 0);
            while let Some(tuple) = cursor.next()? {
                if !layout::is_lost_page(tuple.value_len() as u64) {
                    continue;
                }
                let Ok((ino, block)) = layout::decode_page_key(&tuple.key) else { continue };
                if file.0 != ino {
                    let node = self.node_of(clone, ino)?;
                    file = (ino, node.and_then(|(attr, ..)| paged_blocks(&attr)).unwrap_or(0));
                }
                if block < file.1 {
                    files.insert(ino);
                } else {
                    self.batch.delete(clone.dmap, tuple.key);
                }
            }
        }
        Ok(files)
    }

    /// Makes the node of a file of a clone count the pages that are stored.
    fn count_pages(&mut self, clone: Layout, ino: Ino) -> Result<()> {
        let Some((mut attr, xattrs, content)) = self.node_of(clone, ino)? else { return Ok(()) };
        let Some(blocks) = paged_blocks(&attr) else { return Ok(()) };
        let (start, end) = (layout::page_key(ino, 0), layout::page_key(ino, blocks));
        let (mut cursor, mut pages) = (self.view.cursor(clone.dmap, &start, &end)?, 0);
        while cursor.next()?.is_some() {
            pages += 1;
        }
        if attr.body != Body::Paged(pages) {
            attr.body = Body::Paged(pages);
            let node = layout::encode_node(&attr, xattrs.as_ref(), &content);
            self.batch.put(clone.imap, layout::node_key(ino), node);
        }
        Ok(())
    }

    fn node_of(
        &self,
        clone: Layout,
        ino: Ino,
    ) -> Result<Option<(Attributes, Option<layout::Xattrs>, Bytes)>> {
        let value = self.view.get(clone.imap, &layout::node_key(ino))?;
        Ok(value.and_then(|value| layout::decode_node(ino, &value).ok()))
    }

    /// Returns whether a lost page of the main branch is a stand-in for a page that only other
    /// states can have had.
    pub(super) fn is_stray(&self, key: &[u8]) -> bool {
        let of_no_file = layout::decode_page_key(key)
            .is_ok_and(|(ino, _)| !self.inodes.contains_key(&ino) && !self.orphans.contains(&ino));
        of_no_file && self.may_be_stray.iter().any(|(start, end)| Between { start, end }.has(key))
    }
}
