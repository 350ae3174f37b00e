//! Reads large values, bypassing the block cache, and compares each value with the checksum in its
//! reference. Values that are neighbours on the device are read together.

use std::time::Instant;

use bytes::Bytes;
use zones::{Purpose, Reading, crc32c};

use super::{BlockCache, ReadMode, room, value_waited};
use crate::item::Lookup;
use crate::update::Update;
use crate::value::compression::unpack_value;
use crate::value::{ExtentRef, Value, contiguous};
use crate::{Error, Result};

/// The length of the longest single read of contiguous extents, in bytes.
const READ_MOST: u64 = 1 << 20;
/// The largest number of spans of a read that may come from a reader which reads places in order,
/// as with small files.
const FEW_SPANS: usize = 4;
/// The largest number of bytes of large values that are read at once.
const READ_TOGETHER: u64 = 8 << 20;

impl BlockCache {
    /// Returns the bytes of a value. A large value is compared with the checksum in its reference.
    pub fn read_value(&self, value: &Value) -> Result<Bytes> {
        match value {
            Value::Inline(b) => Ok(b.clone()),
            Value::Extent(e) => {
                let (data, _) =
                    self.read_raw(Purpose::Pages, e.addr, u64::from(e.stored), ReadMode::Around)?;
                unpack_extent(e, self.checked_value(e, data)?)
            }
        }
    }

    /// Returns the value for the result of a lookup in all sources, including the oldest one. If
    /// the result is an update, reads the value to which the update applies.
    #[inline]
    pub fn resolve(&self, lookup: Lookup) -> Result<Option<Value>> {
        match lookup {
            Lookup::Absent | Lookup::Deleted(_) => Ok(None),
            Lookup::Found(_, value) => Ok(Some(value)),
            Lookup::Updated { base, update, .. } => self.apply(base.as_deref(), &update).map(Some),
        }
    }

    #[cold]
    fn apply(&self, base: Option<&ExtentRef>, update: &Update) -> Result<Value> {
        let base = base.map(|e| self.read_value(&Value::Extent(*e))).transpose()?;
        Ok(Value::Inline(update.apply(base.as_deref())))
    }

    /// Returns the bytes of many large values, in the order of `extents`. The values are read in
    /// device order, with one request for each contiguous span, and all requests are in flight
    /// together.
    pub fn read_values(&self, extents: &[ExtentRef]) -> Result<Vec<Bytes>> {
        let begun = Instant::now();
        let mut values = self.read_stored(extents)?;
        self.note_reader(begun);
        for (e, value) in extents.iter().zip(&mut values) {
            *value = unpack_extent(e, std::mem::take(value))?;
        }
        Ok(values)
    }

    /// Returns the stored bytes of many large values, which may be compressed, in the order of
    /// `extents`. Each value is compared with its checksum.
    pub(crate) fn read_stored(&self, extents: &[ExtentRef]) -> Result<Vec<Bytes>> {
        let mut order: Vec<usize> = (0..extents.len()).collect();
        order.sort_unstable_by_key(|&i| extents[i].addr);
        // Do not read gaps on a solid-state device, because this would only delay the read.
        let gap = if self.seeks_are_dear() { self.seek_bytes() } else { 0 };
        let joins = |a: &ExtentRef, b: &ExtentRef| {
            contiguous(a, b) || b.addr >= a.end() && b.addr - a.end() < gap
        };
        let mut out = vec![Bytes::new(); extents.len()];
        // Limit the requests in flight. The caller limits the memory of the values.
        let mut rest = &order[..];
        while !rest.is_empty() {
            // A span is an address, a length, and a number of values.
            let mut spans: Vec<(u64, u64, usize)> = Vec::new();
            let (mut taken, mut bytes) = (0, 0);
            while let Some(e) = rest.get(taken).map(|&i| &extents[i]) {
                let last = taken.checked_sub(1).map(|l| &extents[rest[l]]);
                let span = spans.last_mut().filter(|(start, ..)| {
                    last.is_some_and(|l| joins(l, e)) && e.end() - *start <= READ_MOST
                });
                // The bytes include the gap before the value.
                let more = span.as_ref().map_or(u64::from(e.stored), |s| e.end() - s.0 - s.1);
                if taken > 0 && bytes + more > READ_TOGETHER {
                    break;
                }
                match span {
                    Some((_, len, values)) => (*len, *values) = (*len + more, *values + 1),
                    None => spans.push((e.addr, more, 1)),
                }
                (taken, bytes) = (taken + 1, bytes + more);
            }
            let mut values = rest[..taken].iter();
            for ((start, _, n), data) in spans.iter().zip(self.read_spans(&spans)?) {
                for &i in values.by_ref().take(*n) {
                    let e = &extents[i];
                    let from = (e.addr - start) as usize;
                    let value = from..from + e.stored as usize;
                    out[i] = match gap {
                        0 => data.slice(value),
                        // Copy the value, because a slice would keep the gaps in memory.
                        _ => Bytes::copy_from_slice(&data[value]),
                    };
                    out[i] = self.checked_value(e, std::mem::take(&mut out[i]))?;
                }
            }
            rest = &rest[taken..];
        }
        Ok(out)
    }

    /// Compares the stored bytes of a value with the checksum of its reference, and returns them.
    fn checked_value(&self, e: &ExtentRef, data: Bytes) -> Result<Bytes> {
        self.checked(Purpose::Pages, e.addr, data, |data| check_extent(e, &data).map(|()| data))
    }

    fn read_spans(&self, spans: &[(u64, u64, usize)]) -> Result<Vec<Bytes>> {
        let rooms = spans.iter().map(|&(addr, len, _)| room("a value", addr, len));
        let mut bufs = rooms.collect::<Result<Vec<Vec<u8>>>>()?;
        let mut reads: Vec<Reading<'_>> = spans
            .iter()
            .zip(&mut bufs)
            .map(|(s, buf)| Reading { offset: s.0, buf: buf.as_mut_slice() })
            .collect();
        let begun = Instant::now();
        self.zones.read_many(Purpose::Pages, &mut reads)?;
        if value_waited(begun, spans.iter().map(|s| s.1).sum()) && spans.len() <= FEW_SPANS {
            spans.iter().for_each(|s| self.go_on(Purpose::Pages, s.0, s.1, ReadMode::Onward));
        }
        Ok(bufs.into_iter().map(Bytes::from).collect())
    }
}

pub(super) fn check_extent(e: &ExtentRef, data: &[u8]) -> Result<()> {
    if crc32c(data) == e.crc {
        return Ok(());
    }
    Err(Error::Corrupt {
        what: format!("value of {} bytes: checksum does not match its bytes", e.len),
        addr: e.addr,
    })
}

/// Returns the value whose bytes on the device are `stored`.
pub(crate) fn unpack_extent(e: &ExtentRef, stored: Bytes) -> Result<Bytes> {
    unpack_value(e.codec, stored, e.len).map_err(|what| Error::Corrupt {
        what: format!("value of {} bytes: {what}", e.len),
        addr: e.addr,
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::value::place_value;
    use zones::{Device, FormatOptions, MemoryDevice, Zones};

    /// A device that counts reads.
    #[derive(Default)]
    struct Reads {
        memory: MemoryDevice,
        count: AtomicU64,
    }

    impl Device for Reads {
        fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.count.fetch_add(1, Relaxed);
            self.memory.read_at(purpose, offset, buf)
        }
        fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
            self.memory.write_at(purpose, offset, buf)
        }
        fn sync(&self) -> io::Result<()> {
            self.memory.sync()
        }
        fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
            self.memory.discard(offset, len)
        }
        fn len(&self) -> io::Result<u64> {
            self.memory.len()
        }
        fn grow(&self, new_len: u64) -> io::Result<()> {
            self.memory.grow(new_len)
        }
    }

    #[test]
    fn gaps_are_read_over_where_a_seek_costs_more() {
        let device = Arc::new(Reads::default());
        let zones = Zones::format(device.clone(), FormatOptions::default()).unwrap();
        let cache = BlockCache::new(zones.clone(), 1 << 20);
        let mut writer = zones.extent_writer(Purpose::Pages, zones::Priority::User);
        let data = |i: usize| vec![i as u8; 4096];
        let places: Vec<ExtentRef> =
            (0..1000).map(|i| place_value(&mut writer, &data(i)).unwrap()).collect();
        let _pin = writer.finish().unwrap();
        // Read every eighth value, with gaps of 28 KiB and four megabytes in total.
        let wanted: Vec<ExtentRef> = places.iter().copied().step_by(8).collect();
        let reads = |seek_bytes| {
            cache.set_seek_bytes(seek_bytes);
            device.count.store(0, Relaxed);
            let got = cache.read_values(&wanted).unwrap();
            assert!(got.iter().map(|v| v.to_vec()).eq((0..1000).step_by(8).map(data)));
            device.count.load(Relaxed)
        };
        assert_eq!(reads(8 << 10), wanted.len() as u64);
        assert!(reads(1 << 20) <= 5, "a megabyte a read");
    }

    #[test]
    fn values_come_in_the_order_asked_for_and_each_is_checked() {
        let zones = Zones::format(Arc::new(MemoryDevice::new()), FormatOptions::default()).unwrap();
        let cache = BlockCache::new(zones.clone(), 1 << 20);
        let mut writer = zones.extent_writer(Purpose::Pages, zones::Priority::User);
        let data = |i: usize| vec![i as u8; [4096, 700, 9000, 1][i % 4]];
        let mut places: Vec<ExtentRef> =
            (0..40).map(|i| place_value(&mut writer, &data(i)).unwrap()).collect();
        let _pin = writer.finish().unwrap();
        // Read the values in descending device order, one of them twice, with gaps.
        let order: Vec<usize> = (0..40).rev().filter(|i| i % 5 != 3).chain([7]).collect();
        let wanted: Vec<ExtentRef> = order.iter().map(|&i| places[i]).collect();
        let got = cache.read_values(&wanted).unwrap();
        assert!(got.iter().map(|v| v.to_vec()).eq(order.iter().map(|&i| data(i))));
        assert!(cache.read_values(&[]).unwrap().is_empty());
        places[5].crc ^= 1;
        let wrong = cache.read_values(&places).unwrap_err();
        assert!(matches!(wrong, Error::Corrupt { addr, .. } if addr == places[5].addr), "{wrong}");
        // A reference made of random bytes results in an error and not in a panic.
        for (addr, len) in [(u64::MAX - 5, 4096), (0, u32::MAX), (1 << 50, 1)] {
            places[5] = ExtentRef::plain(addr, len, 0);
            assert!(cache.read_values(&places).is_err());
        }
    }
}
