//! An iterator over a range of keys, which returns several keys at a time, because a call from
//! Python costs more than a key.

use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Iter, Keys, ScopeCursor};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::failure::{Failure, Outcome};
use crate::slot::Slot;

/// Number of bytes of keys and values after which no more keys are returned in one call.
const AT_ONCE: usize = 1 << 20;

enum Source {
    Tuples(Iter),
    Keys(Keys),
    /// A cursor of a view that a server holds, and whether values are requested.
    Served(ScopeCursor, bool),
}

/// A walk over a range in progress.
pub struct Walk {
    source: Source,
    reverse: bool,
}

impl Walk {
    /// Makes a walk. With `reverse` it goes from the last key to the first.
    pub fn new(iter: Iter, reverse: bool, values: bool) -> Walk {
        let source = if values { Source::Tuples(iter) } else { Source::Keys(iter.keys()) };
        Walk { source, reverse }
    }

    /// Makes a walk of a cursor that is at the end at which the walk begins. `reverse` and
    /// `values` have the same meaning as in `new`.
    pub fn served(cursor: ScopeCursor, reverse: bool, values: bool) -> Walk {
        Walk { source: Source::Served(cursor, values), reverse }
    }

    fn step(&mut self) -> Option<kvdb::Result<(Bytes, Option<Bytes>)>> {
        match (&mut self.source, self.reverse) {
            (Source::Tuples(iter), false) => iter.next().map(|t| t.map(|(k, v)| (k, Some(v)))),
            (Source::Tuples(iter), true) => iter.next_back().map(|t| t.map(|(k, v)| (k, Some(v)))),
            (Source::Keys(keys), false) => keys.next().map(|key| key.map(|key| (key, None))),
            (Source::Keys(keys), true) => keys.next_back().map(|key| key.map(|key| (key, None))),
            (Source::Served(cursor, values), reverse) => {
                let values = *values;
                let next = if reverse { cursor.prev() } else { cursor.next() };
                let parts = |tuple: kvdb::Tuple| {
                    let (key, value) = tuple.into_parts()?;
                    Ok((key, values.then_some(value)))
                };
                next.transpose().map(|next| next.and_then(parts))
            }
        }
    }

    fn take(&mut self, most: usize) -> Outcome<Vec<(Bytes, Option<Bytes>)>> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < most && bytes < AT_ONCE {
            let Some(tuple) = self.step() else { break };
            let (key, value) = tuple?;
            bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            taken.push((key, value));
        }
        Ok(taken)
    }
}

/// A range of keys, or `None` if the range must be empty.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Range(Option<Arc<Slot<Walk>>>);

impl Range {
    pub fn new(walk: Option<Arc<Slot<Walk>>>) -> Range {
        Range(walk)
    }

    fn walk<T: Send + Default>(
        &self,
        py: Python<'_>,
        walk: impl FnOnce(&mut Walk) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        let Some(slot) = &self.0 else { return Ok(T::default()) };
        Ok(py.detach(|| match &mut *slot.lock()? {
            Some(under_way) => walk(under_way),
            None => Err(Failure::Closed("the iterator")),
        })?)
    }
}

#[pymethods]
impl Range {
    /// Returns up to `most` keys, or pairs of key and value. An empty list marks the end.
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let taken = self.walk(py, |walk| walk.take(most))?;
        let list = PyList::empty(py);
        for (key, value) in taken {
            let key = PyBytes::new(py, &key);
            match value {
                Some(value) => list.append((key, PyBytes::new(py, &value)))?,
                None => list.append(key)?,
            }
        }
        Ok(list)
    }

    /// Skips up to `most` keys, and returns the number of skipped keys.
    fn skip(&self, py: Python<'_>, most: usize) -> PyResult<usize> {
        self.walk(py, |walk| {
            for done in 0..most {
                match walk.step() {
                    Some(tuple) => drop(tuple?),
                    None => return Ok(done),
                }
            }
            Ok(most)
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match &self.0 {
            Some(slot) => Ok(py.detach(|| slot.take().map(drop))?),
            None => Ok(()),
        }
    }
}
