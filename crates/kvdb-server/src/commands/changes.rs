//! `TXN CHANGES` and `SNAPSHOT CHANGES`: the differences in the keys of the user's dictionaries.
//! Each string has its own row, regardless of the form in which it is stored; a collection or a
//! deadline has a row for its key.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;

use kvdb::{Changed, DictionaryId, Transaction, View};

use super::snapshot::name;
use super::txn::{joined, named, size};
use super::{is, streams};
use crate::dictionaries::{self, Place};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, TYPES_PREFIX, from_sortable, types_name};
use crate::output::{Output, number_text};
use crate::request::Arguments;
use crate::review::{Element, Review, Reviewed, TypedState, has_same};
use crate::session::Session;

/// Parses the options from argument `at` on. Returns for each of `names` whether the option was
/// given.
fn options<const N: usize>(
    args: Arguments<'_>,
    at: usize,
    names: [&str; N],
) -> Result<[bool; N], Failure> {
    let mut given = [false; N];
    for option in args.from(at) {
        let known = names.iter().position(|name| is(option, name)).ok_or(Failure::SYNTAX)?;
        given[known] = true;
    }
    Ok(given)
}

/// A writer of the rows of a list of changes, within a budget.
struct Rows<'a> {
    s: &'a Session,
    out: &'a mut Output,
    count: usize,
}

impl Rows<'_> {
    /// Ends a row: counts the row, sends the output if it is large, and fails if the output
    /// exceeds its budget.
    fn next(&mut self) -> Outcome {
        self.count += 1;
        if self.count.is_multiple_of(256) {
            self.s.check_stopping()?;
        }
        self.out.send_if_large();
        if self.out.is_overfull() {
            return Err(Failure::Limit(format!(
                "more than {} bytes of changes, with the replies to others",
                self.s.shared.limits.whole_replies
            )));
        }
        Ok(())
    }

    /// Writes the row of a string in `SNAPSHOT CHANGES`, with its length before and after.
    fn string(&mut self, dictionary: &str, key: &[u8], sides: [Option<u64>; 2]) -> Outcome {
        self.out.array(4);
        self.out.bulk(dictionary.as_bytes());
        self.out.bulk(key);
        sides.into_iter().for_each(|side| size(side, self.out));
        self.next()
    }

    /// Writes the differences of a key other than the difference of its string. `place` writes
    /// the dictionary, the kind of difference and the key in the order of the command.
    fn reviewed(
        &mut self,
        reviewed: &Reviewed,
        with_fields: bool,
        place: impl Fn(&mut Output, &[u8]),
    ) -> Outcome {
        let (before, after) = (reviewed.before, reviewed.after);
        let kind = |kind: Option<Kind>, out: &mut Output| {
            out.value(kind.map(|kind| kind.name().as_bytes()));
        };
        if reviewed.is_of_collection() {
            self.out.array(8 + usize::from(with_fields));
            place(self.out, b"type");
            kind(before.kind, self.out);
            kind(after.kind, self.out);
            let elements = reviewed.elements;
            for count in [elements.added, elements.removed, elements.changed] {
                size(Some(count), self.out);
            }
            if with_fields {
                let of = after.kind.or(before.kind);
                self.out.array(reviewed.fields.len());
                reviewed.fields.iter().try_for_each(|element| field(element, of, self.out))?;
            }
            self.next()?;
        }
        if reviewed.is_of_deadline() {
            self.out.array(6);
            place(self.out, b"deadline");
            size(before.deadline, self.out);
            size(after.deadline, self.out);
            kind(after.kind, self.out);
            self.next()?;
        }
        Ok(())
    }
}

/// A dictionary in two states, for the listing of a transaction's changes: below the transaction,
/// and in the transaction.
struct Sides<'a> {
    dictionary: &'a str,
    id: DictionaryId,
    before: TypedState<'a>,
    now: TypedState<'a>,
    /// Rows also contain the number of bytes of the string before the transaction.
    with_before: bool,
}

/// Deleted strings that already have rows, so that their pages get none.
#[derive(Default)]
struct Ended<'a> {
    keys: HashSet<&'a [u8]>,
    /// Ranges from the first key up to the second. If the second key is empty, the range has no
    /// end.
    ranges: Vec<(Bytes, Bytes)>,
}

impl Ended<'_> {
    fn has(&self, key: &Bytes) -> bool {
        let within = |(start, end): &(Bytes, Bytes)| start <= key && (end.is_empty() || key < end);
        self.keys.contains(&key[..]) || self.ranges.iter().any(within)
    }
}

impl Rows<'_> {
    /// Writes a row for each changed tuple of a dictionary. `of_keys` has the other differences
    /// by key. Returns the deletions among these rows that may belong to long strings.
    fn tuples<'k>(
        &mut self,
        sides: &Sides<'_>,
        transaction: &Transaction,
        of_keys: &HashMap<&'k [u8], &Reviewed>,
    ) -> Result<Ended<'k>, Failure> {
        let mut ended = Ended::default();
        for change in transaction.changes_in(sides.now.view, &[sides.id])? {
            let change = change?.1;
            let beneath = |key: &[u8]| sides.before.string(key);
            let (what, key): (&[u8], _) = match &change {
                Changed::Put { key, .. } => (b"put", key),
                Changed::Update { key, .. } => (b"update", key),
                Changed::Delete { key } => {
                    // The tuple was deleted in favour of a long string, which gets its own row
                    // below.
                    if sides.now.pages(key)?.is_some() {
                        continue;
                    }
                    // The key has become a collection, and was not a string before.
                    if of_keys.contains_key(&key[..]) && beneath(key)?.is_none() {
                        continue;
                    }
                    (b"delete", key)
                }
                Changed::DeleteRange { start, .. } => (b"delete-range", start),
            };
            // The same bytes were put again, for example by a revert.
            if sides.with_before
                && matches!(change, Changed::Put { .. } | Changed::Update { .. })
                && has_same(sides.before.view, sides.now.view, sides.id, key)?
            {
                continue;
            }
            match (&change, of_keys.get_key_value(&key[..])) {
                (Changed::DeleteRange { start, end }, _) => {
                    ended.ranges.push((start.clone(), end.clone()));
                }
                (_, Some((key, _))) => drop(ended.keys.insert(*key)),
                _ => {}
            }
            let before = match change {
                Changed::DeleteRange { .. } => None,
                _ if sides.with_before => Some(beneath(key)?),
                _ => None,
            };
            self.tuple(sides, &change, (what, &key[..]), before)?;
        }
        Ok(ended)
    }

    /// Writes the row of a changed tuple. `before` is the length of the string before the
    /// transaction, if the row contains this length.
    fn tuple(
        &mut self,
        sides: &Sides<'_>,
        change: &Changed,
        (what, key): (&[u8], &[u8]),
        before: Option<Option<u64>>,
    ) -> Outcome {
        let deletes = matches!(change, Changed::Delete { .. });
        self.out.array(if deletes { 3 } else { 4 } + usize::from(before.is_some()));
        self.out.bulk(sides.dictionary.as_bytes());
        self.out.bulk(what);
        self.out.bulk(key);
        match change {
            Changed::Put { len, .. } => self.out.integer(*len as i64),
            Changed::Update { key, .. } => {
                let len = sides.now.view.value_len(sides.id, key)?.unwrap_or(0);
                self.out.integer(len as i64);
            }
            Changed::Delete { .. } => {}
            Changed::DeleteRange { end, .. } => self.out.bulk(end),
        }
        if let Some(before) = before {
            size(before, self.out);
        }
        self.next()
    }

    /// Writes a row for each long string that differs, unless its deletion already has one.
    fn pages(&mut self, sides: &Sides<'_>, reviewed: &[Reviewed], ended: &Ended<'_>) -> Outcome {
        for reviewed in reviewed.iter().filter(|reviewed| reviewed.is_of_pages()) {
            let (key, len) = (&reviewed.key, reviewed.after.pages());
            let what: &[u8] = match len {
                Some(_) if reviewed.is_same_pages() => b"update",
                Some(_) => b"put",
                None if ended.has(key) => continue,
                None => b"delete",
            };
            self.out.array(3 + usize::from(len.is_some()) + usize::from(sides.with_before));
            self.out.bulk(sides.dictionary.as_bytes());
            self.out.bulk(what);
            self.out.bulk(key);
            if len.is_some() {
                size(len, self.out);
            }
            if sides.with_before {
                size(sides.before.string(key)?, self.out);
            }
            self.next()?;
        }
        Ok(())
    }
}

/// Limit on the number of bytes of a list's element that are shown.
const SHOWN: usize = 256;

/// Writes an element, and the length of its value or its score on both sides. The element is
/// identified by its name. In a list it is identified by the beginning of its value, because its
/// number means nothing to a reader, and in a stream by its role.
fn field(element: &Element, kind: Option<Kind>, out: &mut Output) -> Outcome {
    let (name, sides) = element.shown()?;
    out.array(3);
    if kind == Some(Kind::List) {
        let value = sides[1].as_ref().or(sides[0].as_ref());
        let value = value.map_or(&b""[..], |value| &value[..value.len().min(SHOWN)]);
        out.bulk(value);
    } else if kind == Some(Kind::Stream) {
        out.bulk(&streams::shown_name(&name));
    } else {
        out.bulk(&name);
    }
    for side in &sides {
        match (side, kind) {
            (Some(score), Some(Kind::SortedSet)) => {
                let score = score[..].try_into().map(from_sortable).unwrap_or_default();
                out.bulk(number_text(score).as_bytes());
            }
            (side, _) => size(side.as_ref().map(|value| value.len() as u64), out),
        }
    }
    Ok(())
}

/// `TXN CHANGES [id] [BEFORE] [FIELDS]` lists the keys that the transaction has changed. Each row
/// is an array of dictionary, `put`, key, bytes of the value; or dictionary, `update`, key, bytes
/// of the value as the transaction sees it; or dictionary, `delete`, key; or dictionary,
/// `delete-range`, start, end. With `BEFORE`, each row except `delete-range` also has the bytes
/// of the string before the transaction, or nil if there was none, and strings whose value is
/// unchanged are left out.
///
/// The row of a collection is dictionary, `type`, key, type before and after (nil if there was no
/// key), elements added, removed and changed, and with `FIELDS` an array of these elements, each
/// with its name and its value before and now. The row of a deadline is dictionary, `deadline`,
/// key, milliseconds since 1970 before and after (nil if there was none), type.
pub fn of_transaction(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    const OPTIONS: [&str; 2] = ["before", "fields"];
    let numbered = args.get(2).is_some_and(|arg| !OPTIONS.iter().any(|name| is(arg, name)));
    let transaction = if numbered { named(s, args, 2)? } else { joined(s)?.clone() };
    let [before, fields] = options(args, 2 + usize::from(numbered), OPTIONS)?;
    out.whole(|out| {
        let position = out.position();
        let mut rows = Rows { s, out, count: 0 };
        // The listing may take longer than the idle limit of the transaction.
        transaction.in_use(|| list(&transaction, before, fields, &mut rows))?;
        let count = rows.count;
        out.insert_array_header(position, count);
        Ok(())
    })
}

fn list(
    transaction: &Transaction,
    with_before: bool,
    with_fields: bool,
    rows: &mut Rows<'_>,
) -> Outcome {
    let s = rows.s;
    let place = Place::of(transaction);
    let ids: HashMap<String, DictionaryId> =
        place.all(s.db()).into_iter().map(|info| (info.name, info.id)).collect();
    let view = transaction.view()?;
    let base = view.beneath();
    let check = || s.check_stopping();
    for (dictionary, id) in dictionaries::listed_at(&place, s.db()) {
        let types = ids.get(&types_name(&dictionary)).copied();
        let side = |view| TypedState { view, strings: Some(id), types };
        let most = s.shared.limits.whole_replies;
        let review = Review::new(side(&base), side(&view), with_fields, most, &check);
        let reviewed = review.of_transaction(transaction)?;
        let of_keys: HashMap<&[u8], &Reviewed> =
            reviewed.iter().map(|reviewed| (&reviewed.key[..], reviewed)).collect();
        let sides = Sides {
            dictionary: &dictionary,
            id,
            before: side(&base),
            now: side(&view),
            with_before,
        };
        let ended = rows.tuples(&sides, transaction, &of_keys)?;
        rows.pages(&sides, &reviewed, &ended)?;
        for reviewed in &reviewed {
            rows.reviewed(reviewed, with_fields, |out, what| {
                out.bulk(dictionary.as_bytes());
                out.bulk(what);
                out.bulk(&reviewed.key);
            })?;
        }
    }
    Ok(())
}

/// Returns the user's dictionaries of a branch in one state by name, each with its types
/// dictionary.
fn dictionaries_of(
    state: &View,
    branch: &str,
) -> BTreeMap<String, (DictionaryId, Option<DictionaryId>)> {
    let all: BTreeMap<String, DictionaryId> = state
        .dictionaries()
        .into_iter()
        .filter(|d| !d.options.reserved && d.branch == branch)
        .map(|d| (d.name, d.id))
        .collect();
    let users = all.iter().filter(|(name, _)| !name.starts_with(TYPES_PREFIX));
    users.map(|(name, id)| (name.clone(), (*id, all.get(&types_name(name)).copied()))).collect()
}

/// `SNAPSHOT CHANGES before [after] [FIELDS]` lists each string that differs as an array of
/// dictionary, key, bytes before and bytes after, each nil if the string did not exist. Without
/// `after` the snapshot is compared with the current state of the store, or of the clone from
/// which the snapshot was taken. The row of a collection or a deadline is dictionary, key, `type`
/// or `deadline`, and the same fields that follow in `TXN CHANGES`.
pub fn of_snapshots(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    // If a snapshot has the name of the option, the option must be given in addition.
    let last = args.len() - 1;
    let with_fields = last > 2 && is(args.at(last), "fields");
    if args.len() - usize::from(with_fields) > 4 {
        return Err(Failure::SYNTAX);
    }
    let before = s.db().open_snapshot(name(args.at(2))?)?;
    let (after, branch) = match args.get(3).filter(|_| !with_fields || last > 3) {
        // The contents of a snapshot are listed under the main branch.
        Some(after) => (s.db().open_snapshot(name(after)?)?, String::new()),
        None => {
            let snapshot = name(args.at(2))?;
            let of = s.db().snapshot_label(snapshot).map(|label| label.branch);
            // If the clone no longer exists, the snapshot is compared with the store.
            (s.db().view(), of.filter(|name| s.db().has_branch(name)).unwrap_or_default())
        }
    };
    between(s, &before, (&after, &branch), with_fields, out)
}

/// Lists the differences between a snapshot and a branch in another state, in the format of a
/// comparison of two snapshots.
pub fn between(
    s: &mut Session,
    before: &View,
    after: (&View, &str),
    with_fields: bool,
    out: &mut Output,
) -> Outcome {
    out.whole(|out| {
        let position = out.position();
        let mut rows = Rows { s, out, count: 0 };
        list_states(before, after, with_fields, &mut rows)?;
        let count = rows.count;
        out.insert_array_header(position, count);
        Ok(())
    })
}

/// Lists the differences between a snapshot and a branch in another state.
fn list_states(
    before: &View,
    (after, new): (&View, &str),
    with_fields: bool,
    rows: &mut Rows<'_>,
) -> Outcome {
    let s = rows.s;
    let (old, new) = (dictionaries_of(before, ""), dictionaries_of(after, new));
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let check = || s.check_stopping();
    for dictionary in names {
        let (was, is) = (old.get(dictionary), new.get(dictionary));
        let Some((first, second)) = was.or(is).zip(is.or(was)) else { continue };
        let side = |view, ids: Option<&(DictionaryId, Option<DictionaryId>)>| TypedState {
            view,
            strings: ids.map(|ids| ids.0),
            types: ids.and_then(|ids| ids.1),
        };
        for change in before.difference(first.0, after, second.0)? {
            let change = change?;
            // If the string is long on one side, the tuple has the length of the other side only.
            let [old, new] =
                [(&change.before, side(before, was)), (&change.after, side(after, is))].map(
                    |(tuple, state)| match tuple {
                        Some(tuple) => Ok(Some(tuple.value_len() as u64)),
                        None => state.pages(&change.key),
                    },
                );
            rows.string(dictionary, &change.key, [old?, new?])?;
        }
        let most = s.shared.limits.whole_replies;
        let review = Review::new(side(before, was), side(after, is), with_fields, most, &check);
        let reviewed = review.of_states()?;
        for reviewed in reviewed.iter().filter(|reviewed| reviewed.is_of_pages()) {
            // Strings that are tuples on one side already have a row.
            let key = &reviewed.key;
            if side(before, was).tuple(key)?.is_none() && side(after, is).tuple(key)?.is_none() {
                let sides = [reviewed.before.pages(), reviewed.after.pages()];
                rows.string(dictionary, key, sides)?;
            }
        }
        for reviewed in &reviewed {
            rows.reviewed(reviewed, with_fields, |out, what| {
                out.bulk(dictionary.as_bytes());
                out.bulk(&reviewed.key);
                out.bulk(what);
            })?;
        }
    }
    Ok(())
}
