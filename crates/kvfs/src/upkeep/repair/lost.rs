//! Records lost data: the pages of files concerned that have no stand-in, as far as they are known,
//! and the list of losses in the store.

use std::collections::HashSet;

use bytes::Bytes;
use kvdb::ScrubFault;

use super::between::{Between, paged_blocks};
use super::stand_ins::StandIns;
use super::{Losses, Mend};
use crate::attr::Ino;
use crate::error::Result;
use crate::layout::{self, Layout};
use crate::upkeep::describe_keys::describe_keys_in;
use crate::upkeep::losses::{Loss, Pages};

/// The maximum number of pages that are marked as lost in the main branch, and of pages that get
/// stand-ins. If more pages are lost, the rest is listed and reads as zeros.
pub(super) const MOST_PAGES: usize = 1 << 20;
/// Limit of the entries that one repair adds to the list.
const MOST_NOTED: usize = 10_000;

impl Mend<'_> {
    /// Notes the data that was removed from the store, and marks the pages in it. Call after
    /// `nodes` and before `pages`.
    pub(super) fn lost(&mut self, removed: &[ScrubFault], stand_ins: &StandIns) -> Result<()> {
        if self.losses == Losses::Accept {
            return Ok(());
        }
        let mut number = self.first_free()?;
        // Several runs may have lost the same page.
        let mut marked = HashSet::new();
        for (n, fault) in removed.iter().enumerate() {
            let Some(keys) = &fault.keys else { continue };
            let (start, end) = (&keys.start[..], &keys.end[..]);
            let pages = match keys.dictionary == "dmap" {
                true => self.mark_pages(start, end, &mut marked)?,
                false => Vec::new(),
            };
            if n >= MOST_NOTED {
                continue;
            }
            let what = self.describe(&keys.dictionary, start, end);
            let pages = match &pages[..] {
                [one] => Some(*one),
                _ => None,
            };
            let time = u64::try_from(self.now.secs).unwrap_or(0);
            // All states that have the run share its stand-ins. Where some could not be made, the
            // main branch alone has marks.
            let is_marked = keys.dictionary != "dmap" || stand_ins.are_complete(n);
            let newest = self.newest_of_others.filter(|_| !is_marked);
            let of_others = newest.map(|newest| Loss {
                time,
                what: format!(
                    "{what}, in clones and earlier snapshots, which may read zeros there"
                ),
                pages: Some(Pages::unmarked_before(newest)),
            });
            for loss in [Some(Loss { time, what, pages }), of_others].into_iter().flatten() {
                self.batch.put(self.layout.imap, layout::loss_key(number), loss.encode());
                number += 1;
            }
        }
        Ok(())
    }

    /// Marks the missing pages between two keys, but for those in `marked`, and adds them there.
    /// Returns the ranges of pages between the keys, by file.
    fn mark_pages(
        &mut self,
        start: &[u8],
        end: &[u8],
        marked: &mut HashSet<(Ino, u64)>,
    ) -> Result<Vec<Pages>> {
        let content = Bytes::from_static(&layout::LOST_PAGE);
        let mut pages = Vec::new();
        for (ino, from, to) in self.files_between(start, end) {
            for block in from..to {
                let key = layout::page_key(ino, block);
                // The page has a stand-in, or another run has it.
                let there = self.view.value_len(self.layout.dmap, &key);
                if marked.len() == MOST_PAGES || there?.is_some() || !marked.insert((ino, block)) {
                    continue;
                }
                self.batch.put(self.layout.dmap, key.to_vec(), content.clone());
                if let Some(seen) = self.inodes.get_mut(&ino) {
                    seen.pages += 1;
                }
            }
            pages.push(Pages { ino, from, to });
        }
        Ok(pages)
    }

    /// Describes the keys of a dictionary from `start` up to `end`.
    fn describe(&self, dictionary: &str, start: &[u8], end: &[u8]) -> String {
        let files = describe_keys_in(self.view.clone(), self.layout, dictionary, start, end);
        files.unwrap_or_else(|| match end.split_last() {
            Some((0, key)) if key == start => {
                format!("key {} of dictionary {dictionary}", start.escape_ascii())
            }
            _ => format!(
                "keys of dictionary {dictionary} from {} up to {}",
                start.escape_ascii(),
                end.escape_ascii()
            ),
        })
    }

    /// Replaces the lost pages of clones by zeros. Each stays a page, so that their nodes count as
    /// many as before.
    pub(super) fn accept_in(&mut self, clones: &[Layout]) -> Result<()> {
        for layout in clones {
            let mut cursor = self.view.cursor(layout.dmap, &[], &[])?;
            while let Some(tuple) = cursor.next()? {
                if layout::is_lost_page(tuple.value_len() as u64) {
                    self.batch.put(layout.dmap, tuple.key, Bytes::from_static(&[0]));
                }
            }
        }
        Ok(())
    }

    /// Returns the first free number for a note.
    fn first_free(&self) -> Result<u64> {
        let (start, end) = layout::loss_range();
        let mut cursor = self.view.cursor(self.layout.imap, &start, &end)?;
        let mut free = 0;
        while let Some(tuple) = cursor.next()? {
            if let Ok(layout::ImapKey::Loss(number)) = layout::decode_imap_key(&tuple.key) {
                free = number.saturating_add(1);
            }
        }
        Ok(free)
    }

    /// Returns the files with pages between two keys of `dmap`, each with the range of these
    /// blocks.
    fn files_between(&self, start: &[u8], end: &[u8]) -> Vec<(Ino, u64, u64)> {
        let between = Between { start, end };
        let Some(inodes) = between.inodes() else { return Vec::new() };
        let paged = self.inodes.range(inodes).filter_map(|(&ino, seen)| {
            let blocks = between.blocks(ino, paged_blocks(&seen.attr)?);
            (!blocks.is_empty()).then_some((ino, blocks.start, blocks.end))
        });
        paged.collect()
    }
}
