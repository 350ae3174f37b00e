//! Merges a clone into the branch that it was made of, or rebases it onto that branch. The merge of
//! three states ([`Three::merge`]) also rebases transactions.

use std::collections::{BTreeMap, BTreeSet};

use kvdb::{Batch, Clash, DictionaryId, DictionaryInfo, Settled, Transaction, TransactionOptions};

use super::merger::Merger;
use super::{Wait, ancestry, common_states};
use crate::difference::{Numbering, Side};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::Layout;
use crate::merge::merging::{
    Choice, Choices, Conflicts, Deed, MergeConflict, MergeOptions, Merged, SettleKeys,
};
use crate::merge::three_way::{self, Sides};

/// The maximum number of keys of a dictionary that are named in conflicts.
const NAMED: usize = 10_000;
/// The maximum number of bytes of the names of all conflicts of files and keys, except the first
/// name.
const NAMED_BYTES: usize = 16 << 20;

/// A state of a branch.
pub(super) struct State<'a> {
    view: &'a kvdb::View,
    layout: Layout,
    /// The mapping to the inode numbers that are shown.
    pub numbers: Numbering,
    /// The dictionaries of keys, by name.
    pub dictionaries: BTreeMap<String, DictionaryInfo>,
}

/// The three states of a merge.
pub(super) struct Three<'a> {
    pub base: State<'a>,
    pub from: State<'a>,
    pub into: State<'a>,
}

/// The rules that decide changes of both sides.
pub(super) struct Rules<'a> {
    pub choices: &'a Choices,
    pub settle: &'a SettleKeys<'a>,
    /// The suffix for the names of the versions of `from` if both versions are kept.
    pub suffix: &'a str,
}

impl<'a> State<'a> {
    /// Returns a state in which the branch has this name.
    pub fn new(view: &'a kvdb::View, branch: &str, layout: Layout) -> State<'a> {
        let all = view.dictionaries_in(branch).into_iter();
        let keys = all.filter(|info| !info.options.reserved);
        let dictionaries = keys.map(|info| (info.name.clone(), info)).collect();
        State { view, layout, numbers: Numbering::PLAIN, dictionaries }
    }

    /// Returns a state that is kept: its view contains only its branch.
    pub fn kept(view: &'a kvdb::View) -> Result<State<'a>> {
        Ok(State::new(view, "", Layout::of_state(view).ok_or(Error::NotFound)?))
    }

    fn side(&self) -> Side {
        Side { numbers: self.numbers.clone(), ..Side::new(self.view.clone(), self.layout) }
    }
}

impl Merger {
    /// Begins a transaction that brings the changes of a clone into the branch that it was made of,
    /// or the changes of that branch into the clone, when it commits.
    pub fn merge(&self, options: &MergeOptions, settle: &SettleKeys<'_>) -> Result<Merged> {
        let (db, clone) = (&self.db, &options.clone);
        self.mainline.writable()?;
        let (lineage, other) = self.lineage_for(options)?;
        let sides = [clone.clone(), lineage.parent.clone()];
        let [into, from] = if options.rebase { sides } else { [sides[1].clone(), clone.clone()] };
        let relation = self.opener.branch(clone)?.fs.core.layout.imap;
        let from_fs = self.opener.branch(&from)?.fs;
        self.watchers.write_back(Wait::ForAll)?;
        let mark = self.mainline.core.env.random();
        // The current state of the source is kept while the merge is made, and later on.
        let state = from_fs.at_rest(|| match options.dry_run {
            true => Ok(db.view()),
            false => Ok(db.keep_common_state(clone, &from, mark)?),
        })?;
        let begun = self.merge_state(options, settle, &lineage, (&into, &from), (&state, mark));
        let unused = begun.as_ref().is_ok_and(|(merged, _)| !merged.conflicts.is_empty());
        let keep = match &begun {
            Ok((_, marks)) if !unused && !other => marks.clone(),
            // The states in common with the parent stay.
            Ok(_) if !unused => common_states::with(&lineage.kept, mark),
            _ => lineage.kept.clone(),
        };
        if !options.dry_run {
            if begun.is_ok() && !unused {
                // The mark is noted before the transaction commits: until then it has no effect.
                let noted = common_states::note(&from_fs, relation, &keep);
                if let (Err(e), Ok((merged, _))) = (noted, &begun) {
                    self.transactions.abort(merged.transaction)?;
                    return Err(e);
                }
            }
            db.drop_common_states(clone, &keep)?;
            // The clone's own files are those that the common states do not have.
            self.opener.branch(clone)?.fs.core.files.forget();
        }
        begun.map(|(merged, _)| merged)
    }

    /// Returns the state that a clone has in common with the branch to merge into, and whether that
    /// is another branch than its parent.
    fn lineage_for(&self, options: &MergeOptions) -> Result<(kvdb::Lineage, bool)> {
        let (db, clone) = (&self.db, &options.clone);
        let invalid = |why: String| Error::Store(kvdb::Error::Invalid(why));
        let Some(into) = &options.into else { return Ok((db.lineage(clone)?, false)) };
        if !db.has_branch(clone) || !db.has_branch(into) {
            let missing = if db.has_branch(clone) { into } else { clone };
            return Err(kvdb::Error::NoBranch(missing.clone()).into());
        }
        if into == clone {
            return Err(invalid(format!("clone {clone} is not merged into itself")));
        }
        let known = db.lineage(clone);
        if let Ok(lineage) = &known
            && lineage.parent == *into
        {
            return Ok((lineage.clone(), false));
        }
        if options.rebase {
            let why = format!("clone {clone} is rebased onto what it was made of and nothing else");
            return Err(invalid(why));
        }
        let (origin, made_at) = ancestry::shared_state(db, clone, into)?;
        let (kept, kept_at) =
            known.map_or_else(|_| Default::default(), |known| (known.kept, known.kept_at));
        Ok((kvdb::Lineage { parent: into.clone(), origin, made_at, kept, kept_at }, true))
    }

    /// Merges a state of `from`. Returns the marks that both sides have in common after the commit.
    fn merge_state(
        &self,
        options: &MergeOptions,
        settle: &SettleKeys<'_>,
        lineage: &kvdb::Lineage,
        (into, from): (&str, &str),
        (state, mark): (&kvdb::View, u64),
    ) -> Result<(Merged, Vec<u64>)> {
        let db = &self.db;
        let relation = self.opener.branch(&options.clone)?.fs.core.layout.imap;
        // The view of a kept state contains only its branch.
        let from_state = match options.dry_run {
            true => State::new(state, from, self.opener.branch(from)?.fs.core.layout),
            false => State::kept(state)?,
        };
        if !options.dry_run {
            self.make_dictionaries(&from_state, &lineage.origin, into)?;
        }
        let begun = TransactionOptions { branch: into.into(), ..options.transaction.clone() };
        let (transaction, parent) = self.transactions.begin_handed_over(begun)?;
        let mut since = None;
        let merged = || -> Result<(Conflicts, Vec<u64>)> {
            let (view, layout) = (transaction.view()?, parent.fs.core.layout);
            let notes = [
                common_states::marks_of(state, &from_state.layout, relation)?,
                common_states::marks_of(&view, &layout, relation)?,
            ];
            let common = common_states::common(lineage, notes);
            let base = match common.last() {
                Some(mark) => db.common_state(&options.clone, *mark)?,
                None => lineage.origin.clone(),
            };
            let kept = common.last().and_then(|mark| lineage.kept.iter().position(|m| m == mark));
            since = kept.map_or(Some(lineage.made_at), |at| lineage.kept_at.get(at).copied());
            let three = Three {
                base: State::kept(&base)?,
                from: from_state,
                into: State::new(&view, into, layout),
            };
            let rules = Rules {
                choices: &Choices::new(&options.choices),
                settle,
                suffix: &suffix_of(from),
            };
            let conflicts = three.merge(&rules, &parent.fs, &transaction)?;
            let marks = common_states::with(&common, mark);
            if conflicts.is_empty() && !options.dry_run {
                let mut batch = Batch::new();
                common_states::stage(&layout, relation, &marks, &mut batch);
                transaction.apply(batch)?;
            }
            Ok((conflicts, marks))
        };
        let (conflicts, marks) = merged().inspect_err(|_| transaction.abort())?;
        let id = self.transactions.show_begun(transaction, parent)?;
        let (into, from) = (into.to_owned(), from.to_owned());
        let Conflicts { named: conflicts, more: more_conflicts } = conflicts;
        Ok((Merged { transaction: id, into, from, conflicts, more_conflicts, since }, marks))
    }

    /// Makes the dictionaries that `from` has, but neither the branch `into` nor the common origin.
    /// They are empty until the transaction commits.
    pub(super) fn make_dictionaries(
        &self,
        from: &State<'_>,
        origin: &kvdb::View,
        into: &str,
    ) -> Result<()> {
        let db = &self.db;
        let before = State::kept(origin)?.dictionaries;
        for (name, info) in &from.dictionaries {
            if db.dictionary_in(into, name).is_none() && !before.contains_key(name) {
                db.create_dictionary_in(into, name, info.options.clone())?;
            }
        }
        Ok(())
    }
}

impl Three<'_> {
    /// Applies the changes of `from` in a transaction that reads `into`. Returns the conflicts.
    pub fn merge(
        &self,
        rules: &Rules<'_>,
        fs: &Fs,
        transaction: &Transaction,
    ) -> Result<Conflicts> {
        let Three { base, from, into } = self;
        let sides = Sides { base: base.side(), from: from.side(), into: into.side() };
        let mut conflicts = three_way::merge(&sides, rules.choices, rules.suffix, fs, transaction)?;
        self.merge_keys(rules, transaction, &mut conflicts)?;
        Ok(conflicts)
    }

    fn merge_keys(
        &self,
        rules: &Rules<'_>,
        transaction: &Transaction,
        conflicts: &mut Conflicts,
    ) -> Result<()> {
        let (base, from) = (self.base.view, self.from.view);
        let [before, there, into] = [&self.base, &self.from, &self.into].map(|s| &s.dictionaries);
        let names: BTreeSet<&String> = before.keys().chain(there.keys()).collect();
        for name in names {
            let id = |all: &BTreeMap<String, DictionaryInfo>| all.get(name).map(|info| info.id);
            match (id(before), id(there), id(into)) {
                // A dictionary that a view does not have is empty in it.
                (was, Some(is), Some(here)) => {
                    let was = was.unwrap_or(is);
                    let sides = ((base, was), (from, is), here);
                    rules.carry(name, sides, transaction, conflicts)?;
                }
                (Some(was), Some(is), None) => {
                    let changed = base.difference(was, from, is)?.next().transpose()?;
                    if changed.is_some() && rules.choices.of_key(name, b"").is_none() {
                        conflicts.named.push(of_dictionary(name, Deed::Removed, Deed::Changed));
                    }
                }
                (Some(was), None, Some(here)) => {
                    let changed = base.difference(was, self.into.view, here)?.next().transpose()?;
                    match changed.map(|_| rules.choices.of_key(name, b"")) {
                        None | Some(Some(Choice::Theirs)) => self.empty(here, transaction)?,
                        Some(Some(_)) => {}
                        Some(None) => {
                            conflicts.named.push(of_dictionary(name, Deed::Changed, Deed::Removed));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes all keys of a dictionary. The dictionary itself stays, so that this can be undone.
    fn empty(&self, dict: DictionaryId, transaction: &Transaction) -> Result<()> {
        let mut cursor = self.into.view.cursor(dict, &[], &[])?.keys_only();
        cursor.seek_to_end()?;
        if let Some(last) = cursor.prev()? {
            transaction.delete_range(dict, Vec::new(), [&last.key[..], &[0]].concat())?;
        }
        Ok(())
    }
}

impl Rules<'_> {
    fn carry(
        &self,
        name: &str,
        (base, from, here): (
            (&kvdb::View, DictionaryId),
            (&kvdb::View, DictionaryId),
            DictionaryId,
        ),
        transaction: &Transaction,
        conflicts: &mut Conflicts,
    ) -> Result<()> {
        let shown = |key: &[u8]| [name.as_bytes(), b":", key].concat();
        let named: usize = conflicts.named.iter().map(|one| one.path.len()).sum();
        let (mut room, is_first) = (NAMED_BYTES.saturating_sub(named), conflicts.is_empty());
        let (mut found, mut more) = (Vec::new(), 0);
        let mut settle = |clash: Clash<'_>| {
            let settled = (self.settle)(name, &clash);
            if settled != Settled::Conflict {
                return settled;
            }
            let path = shown(clash.key);
            match self.choices.of_key(name, &path) {
                Some(Choice::Theirs) => Settled::Taken,
                Some(Choice::Ours | Choice::Both) => Settled::Left,
                None => {
                    let left = room.checked_sub(path.len());
                    let fits = found.len() < NAMED && left.is_some();
                    if fits || is_first && found.is_empty() {
                        room = left.unwrap_or(0);
                        found.push(of_clash(path, &clash));
                    } else {
                        more += 1;
                    }
                    Settled::Conflict
                }
            }
        };
        transaction.carry(base, from, here, &mut settle)?;
        conflicts.named.append(&mut found);
        conflicts.more += more;
        Ok(())
    }
}

fn of_dictionary(name: &str, ours: Deed, theirs: Deed) -> MergeConflict {
    MergeConflict { path: name.as_bytes().to_vec(), key: true, ours, theirs }
}

fn of_clash(path: Vec<u8>, clash: &Clash<'_>) -> MergeConflict {
    let deed = |now: Option<&[u8]>| match (clash.base, now) {
        (None, _) => Deed::Made,
        (_, None) => Deed::Removed,
        _ => Deed::Changed,
    };
    let (ours, theirs) = (deed(clash.here), deed(clash.changed));
    MergeConflict { path, key: true, ours, theirs }
}

/// Returns the suffix for the names of a branch's versions if both versions are kept.
fn suffix_of(branch: &str) -> String {
    if branch.is_empty() { "main".into() } else { branch.replace('/', "-") }
}
