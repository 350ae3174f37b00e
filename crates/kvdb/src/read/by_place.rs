//! Announces the large values of many ranges in the order of their locations, for callers that know
//! which keys they are about to read, such as those of the next files of a tree. A cursor announces
//! the values that follow in key order (`ahead`). Here the ranges may be anywhere in the
//! dictionary, and the values anywhere on the device.

use vt_tree::{ExtentRef, ValueRef};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::view::View;

impl View {
    /// Announces to the device that the large values of these ascending ranges are about to be
    /// read. The ranges are looked up in the index, and the values are announced in the order of
    /// their locations on the device, adjacent ones together. Ranges with more than `each` bytes of
    /// values are skipped, and so are the ranges that exceed a budget, which depends on the memory
    /// of the store and of the host.
    ///
    /// Returns for each range the number of bytes announced, 0 if the range was skipped for its
    /// size or has no large values, and `None` if the budget was used up before it. Reads no value,
    /// and takes no lock.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let words = db.open_dictionary("words")?;
    /// words.insert("short", "in memory")?;
    /// let ranges = [("a", "m"), ("m", "z")];
    /// let announced = db.view().announce_by_place(words.id(), &ranges, 1 << 20)?;
    /// assert_eq!(announced, [Some(0), Some(0)]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn announce_by_place<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        ranges: &[(K, K)],
        each: u64,
    ) -> Result<Vec<Option<u64>>> {
        let mut announced = vec![None; ranges.len()];
        let budget = self.cache.by_place_budget();
        let each = each.min(budget);
        let mut cursor = self.tree_cursor(dict, self.inputs(dict)?);
        // Keep updates separate: an update does not change the location of the value that it
        // applies to.
        cursor.keep_updates();
        // Values with the indices of their ranges.
        let mut values: Vec<(ExtentRef, usize)> = Vec::new();
        let mut bytes = 0;
        for (range, (start, end)) in ranges.iter().enumerate() {
            if bytes >= budget {
                break;
            }
            let (first, mut of_range) = (values.len(), 0);
            cursor.seek(start.as_ref());
            while of_range <= each
                && cursor.advance()?
                && let Some(tuple) = cursor.current()
                && tuple.key < end.as_ref()
            {
                of_range += match &tuple.value {
                    ValueRef::Extent(e) => {
                        values.push((*e, range));
                        u64::from(e.stored)
                    }
                    // An inline value has been read with its block.
                    ValueRef::Inline(value, ..) => (tuple.key.len() + value.len()) as u64,
                };
            }
            if of_range > each {
                values.truncate(first);
            } else {
                bytes += of_range;
            }
            announced[range] = Some(0);
        }
        values.sort_unstable_by_key(|(e, _)| e.addr);
        let extents: Vec<ExtentRef> = values.iter().map(|(e, _)| *e).collect();
        let taken = self.cache.announce_by_place(&extents, budget);
        for (i, (e, range)) in values.iter().enumerate() {
            match &mut announced[*range] {
                Some(bytes) if i < taken => *bytes += u64::from(e.stored),
                // A range that is announced only in part counts as beyond the budget.
                of_range => *of_range = None,
            }
        }
        Ok(announced)
    }
}
