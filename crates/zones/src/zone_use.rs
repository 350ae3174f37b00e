//! The bytes that an object (a run, a journal, a snapshot) keeps alive in each zone. Maps of these
//! bytes are stored in manifests, so they have an encoding.

use std::collections::BTreeMap;

use crate::varint::{get_u32, get_u64, put_u64};
use crate::{Error, Result, ZONE_SIZE, ZoneId};

/// A map from zones to the number of bytes alive in them, in ascending order of zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneUse {
    bytes: BTreeMap<ZoneId, u64>,
}

impl ZoneUse {
    /// Creates a map without zones.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a map that counts all bytes of one zone, such as a zone of the journal or the
    /// manifest.
    pub fn whole(zone: ZoneId) -> Self {
        ZoneUse { bytes: BTreeMap::from([(zone, ZONE_SIZE)]) }
    }

    /// Adds bytes alive in a zone. If `bytes` is 0, only adds the zone.
    pub fn add(&mut self, zone: ZoneId, bytes: u64) {
        let sum = self.bytes.entry(zone).or_insert(0);
        *sum = sum.saturating_add(bytes);
    }

    /// Adds an extent. An extent that crosses zones is counted in each of them. An extent beyond
    /// every device is counted in [`ZoneId::NOWHERE`], so that pinning it fails.
    pub fn add_extent(&mut self, addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = addr.saturating_add(len - 1);
        let (first_zone, last_zone) = (ZoneId::of(addr), ZoneId::of(last));
        if last_zone == ZoneId::NOWHERE || len > ZONE_SIZE {
            self.add(ZoneId::NOWHERE, len);
        } else if first_zone == last_zone {
            self.add(first_zone, len);
        } else {
            let here = first_zone.end() - addr;
            self.add(first_zone, here);
            self.add(last_zone, len - here);
        }
    }

    /// Adds the bytes of another map.
    pub fn merge(&mut self, other: &ZoneUse) {
        for (zone, bytes) in other.iter() {
            self.add(zone, bytes);
        }
    }

    /// Returns the number of bytes alive in one zone.
    pub fn get(&self, zone: ZoneId) -> u64 {
        self.bytes.get(&zone).copied().unwrap_or(0)
    }

    /// Returns whether the map has the zone.
    pub fn contains(&self, zone: ZoneId) -> bool {
        self.bytes.contains_key(&zone)
    }

    /// Returns the zones and their bytes, in ascending order of zones.
    pub fn iter(&self) -> impl Iterator<Item = (ZoneId, u64)> + '_ {
        self.bytes.iter().map(|(&zone, &bytes)| (zone, bytes))
    }

    /// Returns the number of zones.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the map has no zones.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes alive in all zones.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.values().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Removes and returns the zones without bytes.
    pub(crate) fn split_off_empty(&mut self) -> ZoneUse {
        let mut empty = ZoneUse::new();
        self.bytes.retain(|&zone, &mut bytes| {
            if bytes == 0 {
                empty.add(zone, 0);
            }
            bytes > 0
        });
        empty
    }

    /// Appends the encoding: the number of zones, then for each zone the distance from the previous
    /// zone and the number of bytes. All numbers are varints.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.bytes.len() as u64);
        let mut before = 0;
        for (zone, bytes) in self.iter() {
            put_u64(out, u64::from(zone.0 - before));
            put_u64(out, bytes);
            before = zone.0;
        }
    }

    /// Decodes a map encoded by [`ZoneUse::encode`], and advances `input` past it.
    pub fn decode(input: &mut &[u8]) -> Result<ZoneUse> {
        let mut rest = *input;
        let count = get_u64(&mut rest)?;
        let mut uses = ZoneUse::new();
        let mut before: Option<u32> = None;
        for _ in 0..count {
            let distance = get_u32(&mut rest)?;
            let zone = match before {
                None => Some(distance),
                Some(before) if distance > 0 => before.checked_add(distance),
                Some(_) => None,
            };
            let zone =
                zone.ok_or_else(|| Error::corrupt("the zones of a zone use are out of order", 0))?;
            uses.bytes.insert(ZoneId(zone), get_u64(&mut rest)?);
            before = Some(zone);
        }
        *input = rest;
        Ok(uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::Random;

    #[test]
    fn extents_are_counted_where_they_lie() {
        let mut uses = ZoneUse::new();
        uses.add_extent(ZONE_SIZE, 100);
        uses.add_extent(2 * ZONE_SIZE - 10, 30);
        uses.add_extent(5, 0);
        assert_eq!(uses.iter().collect::<Vec<_>>(), [(ZoneId(1), 110), (ZoneId(2), 20)]);
        assert_eq!(uses.total_bytes(), 130);
    }

    #[test]
    fn impossible_extents_lie_nowhere() {
        for (addr, len) in
            [(u64::MAX, u64::MAX), (0, u64::MAX), (u64::MAX - 5, 3), (ZONE_SIZE, ZONE_SIZE + 1)]
        {
            let mut uses = ZoneUse::new();
            uses.add_extent(addr, len);
            assert!(uses.contains(ZoneId::NOWHERE), "{addr} {len}");
            assert_eq!(uses.len(), 1);
        }
    }

    #[test]
    fn what_is_encoded_comes_back_and_garbage_never_panics() {
        let mut random = Random::new(3);
        for _ in 0..200 {
            let mut uses = ZoneUse::new();
            for _ in 0..random.below(20) {
                let wide = random.below(40);
                let zone = random.below(1 << (wide % 32));
                uses.add(ZoneId(zone as u32), random.below(1 << wide));
            }
            let mut bytes = Vec::new();
            uses.encode(&mut bytes);
            bytes.push(7);
            let mut input = &bytes[..];
            assert_eq!(ZoneUse::decode(&mut input).unwrap(), uses);
            assert_eq!(input, [7]);
            for cut in 0..bytes.len() - 1 {
                assert!(ZoneUse::decode(&mut &bytes[..cut]).is_err());
            }
            let mut noise = [0; 40];
            random.fill(&mut noise);
            if let Ok(odd) = ZoneUse::decode(&mut &noise[..]) {
                let mut again = Vec::new();
                odd.encode(&mut again);
                assert_eq!(ZoneUse::decode(&mut &again[..]).unwrap(), odd);
            }
        }
    }
}
