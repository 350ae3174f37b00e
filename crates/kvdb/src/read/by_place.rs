//! Announces the large values of many ranges by place, for callers that know which keys they are
//! about to read, such as those of the next files of a tree. A cursor announces what follows in key
//! order (`ahead`); here the ranges lie anywhere in the dictionary, and the values anywhere on the
//! device.

use vt_tree::{ExtentRef, ValueRef};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::view::View;

impl View {
    /// Announces to the device that the large values of these ranges, which ascend, are about to be
    /// read. The ranges are looked up in the index, and the values are announced in the order of
    /// their places on the device, neighbours together. A range with more than `each` bytes of
    /// values is left out. So are the ranges beyond a budget, which depends on the memory of the
    /// store and of the host.
    ///
    /// Returns for each range the bytes of its values that were announced, 0 if it has too many or
    /// no large values, and `None` if the budget was used up before. No value is read, and nothing
    /// is locked.
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
        // An update does not change where the value lies that it applies to.
        cursor.keep_updates();
        // Each value with the number of its range.
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
                    // The value was read with its block.
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
                // A range of which a part is not announced counts as beyond the budget.
                of_range => *of_range = None,
            }
        }
        Ok(announced)
    }
}
