//! When short values go outside their blocks: as a generation is sealed, by what it holds.

use bytes::Bytes;
use vt_tree::{Input, KeyRange, Seq, estimate};

use super::CommitPipeline;
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::manifest::Edit;
use crate::read::generation::Layer;
use crate::read::version::{Tree, Version};
use crate::read::version_set::{Order, VersionEdit};

/// Short values of a memtable that is full of them are this part of it, at the least.
const PART: usize = 4;
/// Keys of a memtable that are looked for in runs.
const SAMPLE: usize = 16;

impl CommitPipeline {
    /// Lets the short values of dictionaries go outside from now on, where commits call for it.
    /// `sealed` is the version whose generation has just been sealed.
    pub(super) fn move_short_values_out(&self, sealed: &Version) -> Result<()> {
        let least = (self.shares.seal_at / PART) as u64;
        let due = |tree: &Tree| {
            tree.short.should_go_outside(tree.info(), || tree.data_bytes(), least)
                && sealed.active(tree).is_some_and(|layer| meets_older_data(tree, layer))
        };
        let due: Vec<(DictionaryId, &Tree)> = sealed
            .in_memory()
            .map(|(dict, tree)| (dict, &**tree))
            .filter(|(_, tree)| due(tree))
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        let noted = self.versions.install(Order::OfPlaces, |state| {
            let infos = due.iter().filter_map(|(dict, _)| state.dictionaries.get(dict));
            let outside =
                |info: &DictionaryInfo| DictionaryInfo { short_outside: true, ..info.clone() };
            VersionEdit::of(infos.map(|d| Edit::Options(outside(&d.info))))
        });
        match noted {
            // They stay inside for as long as the store is so full.
            Err(Error::NoSpace) => return Ok(()),
            noted => noted?,
        }
        due.iter().for_each(|(_, tree)| tree.short.go_outside());
        Ok(())
    }
}

/// Whether most of what the newest layer has lies among data of runs. The rest lies before, behind
/// or between it, as what is appended to ranges does, and is stitched by merges.
fn meets_older_data(tree: &Tree, newest: &Layer) -> bool {
    let keys = newest.memtable.sample(SAMPLE);
    let runs: Vec<Input> = tree.runs().map(|numbered| Input::Run(numbered.run.clone())).collect();
    // A range of one key has something in it where a block covers it.
    let meets = |key: &Bytes| {
        let end = Some(Bytes::from([key, &[0][..]].concat()));
        let there = estimate(&runs, &KeyRange { start: key.clone(), end }, Seq::MAX);
        there.is_ok_and(|there| there.items + there.items_error > 0)
    };
    keys.iter().filter(|key| meets(key)).count() * 2 > keys.len()
}
