//! Decides when short values are placed outside their blocks: at the seal of a generation, by its
//! contents.

use bytes::Bytes;
use vt_tree::{Input, KeyRange, Seq, estimate};

use super::Committer;
use crate::dictionary::{Described, DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::manifest::Edit;
use crate::version::Version;
use crate::version::generation::Layer;
use crate::version::tree::Tree;
use crate::version::version_set::{Order, VersionEdit};

/// In a memtable full of short values, these make up at least this fraction of it.
const PART: usize = 4;
/// Number of keys of a memtable that are looked up in runs.
const SAMPLE: usize = 16;

impl Committer {
    /// Places the short values of dictionaries outside from now on, if the commits of the
    /// generation call for it. `sealed` is the version whose generation has just been sealed.
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
        let noted = self.engine.versions.install(Order::OfPlaces, |state| {
            let infos = due.iter().filter_map(|(dict, _)| state.dictionaries.get(dict));
            let outside =
                |info: &Described| DictionaryInfo { short_outside: true, ..info.to_info() };
            VersionEdit::of(infos.map(|d| Edit::Options(outside(&d.info))))
        });
        match noted {
            // Short values stay inside their blocks while the store is this full.
            Err(Error::NoSpace) => return Ok(()),
            noted => noted?,
        }
        due.iter().for_each(|(_, tree)| tree.short.go_outside());
        Ok(())
    }
}

/// Returns whether most keys of the newest layer lie among the data of runs. The others lie before,
/// after or between that data, like keys that are appended to ranges, and merges stitch them.
fn meets_older_data(tree: &Tree, newest: &Layer) -> bool {
    let keys = newest.memtable.sample(SAMPLE);
    let runs: Vec<Input> = tree.runs().map(|numbered| Input::Run(numbered.run.clone())).collect();
    // A range of one key is estimated as non-empty if a block covers it.
    let meets = |key: &Bytes| {
        let end = Some(Bytes::from([key, &[0][..]].concat()));
        let there = estimate(&runs, &KeyRange { start: key.clone(), end }, Seq::MAX);
        there.is_ok_and(|there| there.items + there.items_error > 0)
    };
    keys.iter().filter(|key| meets(key)).count() * 2 > keys.len()
}
