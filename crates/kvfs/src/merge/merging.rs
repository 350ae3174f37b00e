//! The options and results of a merge of two branches, and of the rebase of a transaction.

use std::collections::{BTreeSet, HashMap};

use kvdb::{Clash, Settled, Transaction, TransactionId, TransactionOptions};

use crate::error::Result;

/// Options for merging a clone into its parent, the branch of which it was made, or for rebasing
/// the clone onto its parent.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// The clone.
    pub clone: String,
    /// The branch to merge into, which must share a state with the clone, as a clone of the same
    /// snapshot does. `""` is the main branch, and `None` is the parent.
    pub into: Option<String>,
    /// Brings the changes of the parent into the clone, instead of the changes of the clone into
    /// the parent.
    pub rebase: bool,
    /// The choices for changes that both sides have made: at these paths and below, or for these
    /// keys (`dictionary:key`) and dictionaries. The longest matching path wins. Any other such
    /// change is a conflict.
    pub choices: Vec<(Vec<u8>, Choice)>,
    /// Writes no notes, because the caller inspects the transaction and aborts it.
    pub dry_run: bool,
    /// Options for the transaction; its branch is the one to merge into.
    pub transaction: TransactionOptions,
}

/// Options for merging a fork, a separate store, into the store that it was made of.
#[derive(Clone, Debug, Default)]
pub struct MergeForkOptions {
    /// The name of the fork, in messages and in the names of its versions if both versions are
    /// kept.
    pub name: String,
    /// The choices for changes that both sides have made ([`MergeOptions::choices`]).
    pub choices: Vec<(Vec<u8>, Choice)>,
    /// Makes no dictionary, because the caller inspects the transaction and aborts it.
    pub dry_run: bool,
    /// Options for the transaction; its branch is the main one.
    pub transaction: TransactionOptions,
}

/// The version to take if both sides have made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The version of the branch that is merged into.
    Ours,
    /// The version of the branch that is merged.
    Theirs,
    /// Both versions, next to each other; *theirs* gets another name. If only one version can
    /// exist, *ours* is taken.
    Both,
}

impl Choice {
    /// Returns this choice from the point of view of the other side.
    pub(crate) fn swapped(self) -> Choice {
        match self {
            Choice::Ours => Choice::Theirs,
            Choice::Theirs => Choice::Ours,
            Choice::Both => Choice::Both,
        }
    }
}

/// The result of a merge.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The transaction that has the changes. If there are conflicts, it can only be inspected.
    pub transaction: TransactionId,
    /// The branch to which it commits; `""` is the main branch.
    pub into: String,
    /// The branch that has made the changes.
    pub from: String,
    /// The conflicts for which no choice was given.
    pub conflicts: Vec<MergeConflict>,
    /// The number of such conflicts that are not listed because they are too many. A repeated
    /// conflict of one object may count twice.
    pub more_conflicts: u64,
    /// The number of the newest commit that both sides have, or `None` if the branches belong to
    /// two stores.
    pub since: Option<u64>,
}

/// The result of a rebase of a transaction.
#[derive(Clone, Debug)]
pub struct Rebased {
    /// The transaction that has the changes now, or `None` if there are conflicts.
    pub transaction: Option<TransactionId>,
    /// The conflicts for which no choice was given; *ours* is the change of the transaction.
    pub conflicts: Vec<MergeConflict>,
    /// The number of conflicts that are not named; see [`Merged::more_conflicts`].
    pub more_conflicts: u64,
}

/// An object or a key that both sides have changed in different ways since their common state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergeConflict {
    /// A path from the root, without a leading slash, or a key as `dictionary:key`.
    pub path: Vec<u8>,
    /// The conflict concerns a key or a dictionary.
    pub key: bool,
    /// The change of the branch that is merged into.
    pub ours: Deed,
    /// The change of the branch that is merged.
    pub theirs: Deed,
}

/// The conflicts of a merge.
#[derive(Default)]
pub(crate) struct Conflicts {
    pub named: Vec<MergeConflict>,
    /// The number of conflicts that are not named.
    pub more: u64,
}

impl Conflicts {
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

impl MergeConflict {
    /// Returns this conflict from the point of view of the other side.
    pub(crate) fn swapped(self) -> MergeConflict {
        MergeConflict { ours: self.theirs, theirs: self.ours, ..self }
    }
}

/// The change that a side has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// The object was made.
    Made,
    /// The content or attributes of the object have changed.
    Changed,
    /// The object was removed.
    Removed,
    /// The object has another path, or an additional one.
    Moved,
    /// An entry was added to the directory.
    Filled,
}

impl Deed {
    /// Returns the change as a word.
    pub fn word(self) -> &'static str {
        match self {
            Deed::Made => "made",
            Deed::Changed => "changed",
            Deed::Removed => "removed",
            Deed::Moved => "moved",
            Deed::Filled => "filled",
        }
    }
}

/// Settles keys of dictionaries that both sides have changed, before they become conflicts, for
/// callers whose keys have more meaning than their values show. The function gets the name of the
/// dictionary, and the key with its values.
pub type SettleKeys<'a> = dyn Fn(&str, &Clash<'_>) -> Settled + 'a;

/// Finishes a transaction that has received the changes of another one, and may change it. Returns
/// `false` if there are conflicts nevertheless, which the caller names.
pub type FinishRebase<'a> = dyn Fn(&Transaction) -> Result<bool> + 'a;

/// The choices, by path. The cost of a look-up depends on the length of the path and the number of
/// different lengths of choices, but not on the number of choices.
pub(crate) struct Choices {
    all: HashMap<Vec<u8>, Choice>,
    /// The lengths of the paths of the choices, the greatest first, because the longest path wins.
    lengths: Vec<usize>,
}

impl Choices {
    pub fn new(choices: &[(Vec<u8>, Choice)]) -> Choices {
        let trimmed = |path: &[u8]| {
            let parts: Vec<&[u8]> =
                path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
            parts.join(&b'/')
        };
        let mut all = HashMap::new();
        for (path, choice) in choices {
            // The first choice for a path wins.
            all.entry(trimmed(path)).or_insert(*choice);
        }
        let lengths: BTreeSet<usize> = all.keys().map(Vec::len).collect();
        Choices { all, lengths: lengths.into_iter().rev().collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn of(&self, path: &[u8]) -> Option<Choice> {
        let ends = |len: &&usize| **len == 0 || path.get(**len).is_none_or(|next| *next == b'/');
        let mut fits = self.lengths.iter().filter(|len| **len <= path.len()).filter(ends);
        fits.find_map(|len| self.all.get(&path[..*len]).copied())
    }

    /// Returns the choice for a key, by the key's name or that of its dictionary.
    pub fn of_key(&self, dictionary: &str, shown: &[u8]) -> Option<Choice> {
        let by = [shown, dictionary.as_bytes(), b""];
        by.into_iter().find_map(|path| self.all.get(path).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(all: &[(&str, Choice)]) -> Choices {
        let all: Vec<_> = all.iter().map(|(path, one)| (path.as_bytes().to_vec(), *one)).collect();
        Choices::new(&all)
    }

    #[test]
    fn the_longest_path_wins_and_of_two_choices_for_one_path_the_first() {
        let all = choices(&[
            ("", Choice::Ours),
            ("/a/", Choice::Theirs),
            ("a//b", Choice::Both),
            ("a/b", Choice::Ours),
        ]);
        for (path, expected) in [
            ("a/b", Choice::Both),
            ("a/b/c", Choice::Both),
            ("a/bc", Choice::Theirs),
            ("a", Choice::Theirs),
            ("ab", Choice::Ours),
            ("", Choice::Ours),
        ] {
            assert_eq!(all.of(path.as_bytes()), Some(expected), "{path}");
        }
        assert_eq!(choices(&[("a", Choice::Ours)]).of(b"ab"), None);
        assert_eq!(choices(&[("a/b", Choice::Ours)]).of(b"a"), None);
        assert_eq!(choices(&[]).of(b"a"), None);
    }

    #[test]
    fn a_key_has_the_choice_of_its_name_before_that_of_its_dictionary() {
        let all = choices(&[("d", Choice::Ours), ("d:key", Choice::Theirs)]);
        assert_eq!(all.of_key("d", b"d:key"), Some(Choice::Theirs));
        assert_eq!(all.of_key("d", b"d:other"), Some(Choice::Ours));
        assert_eq!(all.of_key("e", b"e:key"), None);
        assert_eq!(choices(&[("", Choice::Both)]).of_key("e", b"e:key"), Some(Choice::Both));
    }

    #[test]
    fn many_choices_have_few_lengths_to_look_up() {
        let all: Vec<_> = (0..10_000).map(|n| (format!("d/{n:04}").into(), Choice::Ours)).collect();
        let all = Choices::new(&all);
        assert_eq!(all.lengths, [6]);
        assert_eq!(all.of(b"d/9999"), Some(Choice::Ours));
    }
}
