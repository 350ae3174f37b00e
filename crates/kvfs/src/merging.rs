//! The options and results of a merge of two branches, and of the rebase of a transaction.

use kvdb::{Clash, Settled, Transaction, TransactionId, TransactionOptions};

use crate::error::Result;

/// A clone that is brought back into the branch that it was made of, or brought up to it.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// The clone.
    pub clone: String,
    /// The branch that it is merged into, another one than its parent: one with which it shares a
    /// state, as a clone of the same snapshot does. `""`: the main one. `None`: its parent.
    pub into: Option<String>,
    /// Brings what its parent has changed into the clone, instead of the other way round.
    pub rebase: bool,
    /// What is done where both sides have changed the same: at these paths and below, or with these
    /// keys (`dictionary:key`) and dictionaries. The longest path counts. Anything else is a
    /// conflict.
    pub choices: Vec<(Vec<u8>, Choice)>,
    /// Nothing is noted anywhere: the transaction is to be looked at and aborted.
    pub dry_run: bool,
    /// How the transaction is begun; its branch is the one that is merged into.
    pub transaction: TransactionOptions,
}

/// A fork, a store of its own, whose changes are brought into the store that it was made of.
#[derive(Clone, Debug, Default)]
pub struct MergeForkOptions {
    /// How it is called: in messages, and in names of its versions where both are kept.
    pub name: String,
    /// See [`MergeOptions::choices`].
    pub choices: Vec<(Vec<u8>, Choice)>,
    /// No dictionary is made: the transaction is to be looked at and aborted.
    pub dry_run: bool,
    /// How the transaction is begun; its branch is the main one.
    pub transaction: TransactionOptions,
}

/// Whose version is taken where both sides have changed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The version of the branch that is merged into.
    Ours,
    /// The version of the branch that is merged.
    Theirs,
    /// Both, one beside the other: theirs gets another name. Of what can be there only once, ours.
    Both,
}

impl Choice {
    /// The same choice, seen from the other side.
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
    /// The transaction that has the changes. With conflicts it is of no use but to look at.
    pub transaction: TransactionId,
    /// The branch that it commits to; `""`: the main one.
    pub into: String,
    /// The branch whose changes these are.
    pub from: String,
    /// The conflicts for which nothing was chosen.
    pub conflicts: Vec<MergeConflict>,
    /// The number of the newest commit that both sides have. `None`: they are of two stores.
    pub since: Option<u64>,
}

/// The result of a rebase of a transaction.
#[derive(Clone, Debug)]
pub struct Rebased {
    /// The transaction that has its changes now; `None`: there are conflicts.
    pub transaction: Option<TransactionId>,
    /// The conflicts for which nothing was chosen; *ours* is the change of the transaction.
    pub conflicts: Vec<MergeConflict>,
}

/// Something that both sides have changed since they had it in common, each in its own way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergeConflict {
    /// A path from the root, without a slash in front, or a key as `dictionary:key`.
    pub path: Vec<u8>,
    /// It is a key, or a dictionary.
    pub key: bool,
    /// The change of the branch that is merged into.
    pub ours: Deed,
    /// The change of the branch that is merged.
    pub theirs: Deed,
}

impl MergeConflict {
    /// The same conflict, seen from the other side.
    pub(crate) fn swapped(self) -> MergeConflict {
        MergeConflict { ours: self.theirs, theirs: self.ours, ..self }
    }
}

/// The change that a side has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// It was made.
    Made,
    /// Its content or its attributes are others.
    Changed,
    /// It was removed.
    Removed,
    /// It has another path, or one more.
    Moved,
    /// Something was put into it.
    Filled,
}

impl Deed {
    /// In a word.
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

/// Settles keys of dictionaries that both sides have changed, before that is a conflict: for those
/// who keep more in keys than their values say. Told the name of the dictionary and the key.
pub type SettleKeys<'a> = dyn Fn(&str, &Clash<'_>) -> Settled + 'a;

/// Has the last word on a transaction that has got the changes of another one, and may change it.
/// `false`: there are conflicts all the same, which the caller names.
pub type FinishRebase<'a> = dyn Fn(&Transaction) -> Result<bool> + 'a;

/// The choices, by path.
pub(crate) struct Choices(Vec<(Vec<u8>, Choice)>);

impl Choices {
    pub fn new(choices: &[(Vec<u8>, Choice)]) -> Choices {
        let trimmed = |path: &[u8]| {
            let parts: Vec<&[u8]> =
                path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
            parts.join(&b'/')
        };
        let mut all: Vec<_> = choices.iter().map(|(path, one)| (trimmed(path), *one)).collect();
        // The longest first: it counts.
        all.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Choices(all)
    }

    pub fn of(&self, path: &[u8]) -> Option<Choice> {
        let covers = |above: &[u8]| {
            above.is_empty()
                || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        self.0.iter().find(|(above, _)| covers(above)).map(|(_, choice)| *choice)
    }

    /// Of a key, by its name or that of its dictionary.
    pub fn of_key(&self, dictionary: &str, shown: &[u8]) -> Option<Choice> {
        let named = |path: &Vec<u8>| path == shown || path == dictionary.as_bytes();
        let found = self.0.iter().find(|(path, _)| named(path)).map(|(_, choice)| *choice);
        found.or_else(|| self.0.iter().find(|(path, _)| path.is_empty()).map(|(_, all)| *all))
    }
}
