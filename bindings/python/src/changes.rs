//! The differences between two states of the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use kvdb::{DictionaryId, Difference, View};
use kvfs::{FileChange, FileKind};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::failure::{Failure, Outcome};
use crate::shared::{check_name, reserved};
use crate::slot::Slot;

/// The path, the kind (`d`, `f`, `l`, `o`), the bytes before, and the bytes after.
pub type ChangedFile = (Vec<u8>, char, Option<u64>, Option<u64>);

/// Limit on the bytes of the paths in one list for Python, which is kept in memory. The paths of
/// a deep tree can be as long as the square of its depth.
const MOST: usize = 256 << 20;

/// Converts changes of files to the form for Python, in which each has its whole path.
pub fn changed_files(changes: kvfs::Difference) -> Outcome<Vec<ChangedFile>> {
    let mut left = MOST;
    let one = |change: &FileChange| {
        let kind = match change.after.or(change.before).map(|attr| attr.kind) {
            Some(FileKind::Dir) => 'd',
            Some(FileKind::File) => 'f',
            Some(FileKind::Symlink) => 'l',
            _ => 'o',
        };
        let size = |attr: Option<kvfs::Attr>| attr.map(|attr| attr.size);
        let path = changes.whole(&change.path);
        left = left.checked_sub(path.len()).ok_or_else(|| {
            let why = format!("the paths of what differs take more than {} MiB", MOST >> 20);
            kvdb::Error::Limit(why)
        })?;
        Ok((path, kind, size(change.before), size(change.after)))
    };
    changes.iter().map(one).collect()
}

struct Changed {
    dictionary: String,
    key: Bytes,
    sizes: (Option<usize>, Option<usize>),
    values: (Option<Bytes>, Option<Bytes>),
}

/// A comparison of keys in progress.
pub struct Comparison {
    before: View,
    after: View,
    /// The dictionaries that are still to be compared, with their ids on both sides.
    rest: VecDeque<(String, DictionaryId, DictionaryId)>,
    current: Option<(String, Difference)>,
    values: bool,
}

/// Returns the user's dictionaries in a state.
fn dictionaries(state: &View) -> BTreeMap<String, DictionaryId> {
    let all = state.dictionaries().into_iter();
    all.filter(|d| !d.options.reserved && d.branch.is_empty()).map(|d| (d.name, d.id)).collect()
}

impl Comparison {
    /// Compares all dictionaries or only one. With `values` the values are read.
    pub fn of(before: View, after: View, only: Option<&str>, values: bool) -> Outcome<Comparison> {
        if let Some(name) = only {
            check_name(name)?;
            let hidden = |view: &View| {
                view.dictionaries().iter().any(|d| d.name == name && d.options.reserved)
            };
            if hidden(&before) || hidden(&after) {
                return Err(reserved(name));
            }
        }
        let (old, new) = (dictionaries(&before), dictionaries(&after));
        let mut all: BTreeMap<String, (DictionaryId, DictionaryId)> =
            old.iter().map(|(name, id)| (name.clone(), (*id, *id))).collect();
        for (name, id) in new {
            all.entry(name).and_modify(|(_, after)| *after = id).or_insert((id, id));
        }
        let chosen = all.into_iter().filter(|(name, _)| only.is_none_or(|only| only == name));
        let rest = chosen.map(|(name, (old, new))| (name, old, new)).collect();
        Ok(Comparison { before, after, rest, current: None, values })
    }

    fn step(&mut self) -> Outcome<Option<Changed>> {
        loop {
            if let Some((name, difference)) = &mut self.current {
                let Some(change) = difference.next() else {
                    self.current = None;
                    continue;
                };
                let change = change?;
                let size = |tuple: &Option<kvdb::Tuple>| tuple.as_ref().map(|t| t.value_len());
                let value = |tuple: &Option<kvdb::Tuple>| match tuple {
                    Some(tuple) if self.values => tuple.value().map(Some),
                    _ => Ok(None),
                };
                return Ok(Some(Changed {
                    dictionary: name.clone(),
                    sizes: (size(&change.before), size(&change.after)),
                    values: (value(&change.before)?, value(&change.after)?),
                    key: change.key,
                }));
            }
            let Some((name, old, new)) = self.rest.pop_front() else { return Ok(None) };
            self.current = Some((name, self.before.difference(old, &self.after, new)?));
        }
    }
}

/// The changes in the order of dictionaries and keys.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Changes(Arc<Slot<Comparison>>);

impl Changes {
    pub fn new(slot: Arc<Slot<Comparison>>) -> Changes {
        Changes(slot)
    }
}

#[pymethods]
impl Changes {
    /// Returns up to `most` changes: dictionary, key, bytes before and after, values before and
    /// after. An empty list marks the end.
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let slot = &self.0;
        let taken = py.detach(|| -> Outcome<Vec<Changed>> {
            let mut guard = slot.lock()?;
            let comparison = guard.as_mut().ok_or(Failure::Closed("the list of changes"))?;
            let mut taken = Vec::new();
            while taken.len() < most
                && let Some(change) = comparison.step()?
            {
                taken.push(change);
            }
            Ok(taken)
        })?;
        let list = PyList::empty(py);
        for change in taken {
            let bytes = |value: Option<Bytes>| value.map(|value| PyBytes::new(py, &value));
            list.append((
                change.dictionary,
                PyBytes::new(py, &change.key),
                change.sizes.0,
                change.sizes.1,
                bytes(change.values.0),
                bytes(change.values.1),
            ))?;
        }
        Ok(list)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let slot = &self.0;
        Ok(py.detach(|| slot.take().map(drop))?)
    }
}
