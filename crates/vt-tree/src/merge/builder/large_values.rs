//! Large values: those that arrive as bytes are written; those on the device stay or move, a window
//! of keys at a time. Short ones move into the block of their key if the placement says so.

use super::RunBuilder;
use crate::cache::unpack_extent;
use crate::item::{Body, BodyRef, Item, ItemRef};
use crate::merge::relocation_window::HeldItem;
use crate::value::{Compression, ExtentRef, Value, ValueRef};
use crate::value::{place_packed, place_stored};
use crate::{Error, Result};

impl RunBuilder {
    /// Holds an item back in the relocation window. `placed` tells that the merge has written its
    /// value.
    pub(super) fn wait(&mut self, item: Item, placed: bool) -> Result<()> {
        self.window.push(HeldItem { item, placed });
        if self.window.is_full(&self.placement) { self.judge_window(true) } else { Ok(()) }
    }

    /// Examines all items in the relocation window, and adds them to the run.
    pub(super) fn end_window(&mut self) -> Result<()> {
        if self.window.is_empty() { Ok(()) } else { self.judge_window(false) }
    }

    /// Examines the window like `end_window`. If `more` items follow, some stay in the window.
    fn judge_window(&mut self, more: bool) -> Result<()> {
        for (moves, items) in self.window.judge(&self.placement, more) {
            if moves {
                self.move_values(items.into_iter().map(|held| held.item).collect())?;
                continue;
            }
            for HeldItem { item: i, placed } in items {
                if let Body::Put(Value::Extent(e)) = &i.body
                    && !placed
                {
                    self.stats.stitched += u64::from(e.stored);
                }
                self.add(&i.key, i.seq, i.body.borrow())?;
            }
        }
        Ok(())
    }

    /// Copies the large values among `items` in key order, and adds all items. A value that the
    /// placement gathers is added to its block; every other value is written as stored.
    fn move_values(&mut self, items: Vec<Item>) -> Result<()> {
        let of = |i: &Item| if let Body::Put(Value::Extent(e)) = i.body { Some(e) } else { None };
        // Read in the order of addresses.
        let mut extents: Vec<(ExtentRef, usize)> =
            items.iter().enumerate().filter_map(|(at, i)| Some((of(i)?, at))).collect();
        extents.sort_unstable_by_key(|(e, at)| (e.addr, *at));
        let places: Vec<ExtentRef> = extents.iter().map(|(e, _)| *e).collect();
        let mut values = vec![None; items.len()];
        for ((e, at), value) in extents.iter().zip(self.cache.read_stored(&places)?) {
            self.stats.values_read += u64::from(e.stored);
            values[*at] = Some((*e, value));
        }
        for (i, value) in items.iter().zip(values) {
            match value {
                Some((e, stored)) if self.placement.gathers(&e) => {
                    let value = unpack_extent(&e, stored)?;
                    self.add(&i.key, i.seq, BodyRef::Put(ValueRef::Inline(&value, &value)))?;
                }
                Some((e, stored)) => {
                    let extent = place_stored(&mut self.pages, e, &stored)?;
                    self.stats.values_written += u64::from(extent.stored);
                    self.add(&i.key, i.seq, BodyRef::Put(ValueRef::Extent(extent)))?;
                }
                None if of(i).is_some() => {
                    return Err(Error::corrupt("a value is missing from a group that was read", 0));
                }
                None => self.add(&i.key, i.seq, i.body.borrow())?,
            }
        }
        Ok(())
    }

    /// Writes a large value that has arrived as bytes, and adds its item. If an update has made the
    /// value from a stored one, `kept` is the codec of that value. If `kept` is `None`, the codec
    /// is chosen by key.
    pub(super) fn push_large(
        &mut self,
        item: ItemRef<'_>,
        value: &[u8],
        kept: Compression,
    ) -> Result<()> {
        let extent = self.write_value(item.key, value, kept)?;
        let item = ItemRef { body: BodyRef::Put(ValueRef::Extent(extent)), ..item };
        // Do not end the window here: that would make the values around this one look scattered.
        if self.window.is_empty() {
            self.add(item.key, item.seq, item.body)
        } else {
            self.wait(item.to_item(), true)
        }
    }

    fn write_value(&mut self, key: &[u8], data: &[u8], kept: Compression) -> Result<ExtentRef> {
        let choice = self.choice.as_ref().filter(|_| kept == Compression::None);
        let codec = match (choice, kept) {
            (Some(choice), _) => choice.choose(key),
            (None, Compression::None) => self.compress_values,
            (None, kept) => kept,
        };
        let extent = place_packed(&mut self.pages, &mut self.packer, codec, data)?;
        if let Some(choice) = choice {
            choice.placed(key, codec, &extent);
        }
        self.stats.values_written += u64::from(extent.stored);
        Ok(extent)
    }
}
