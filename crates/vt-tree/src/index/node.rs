//! Index nodes: entries in key order, all of one level. A node of level 1 points to tuple blocks,
//! one of level 2 to nodes of level 1, and so on.
//!
//! Payload: number of entries (varint), entries.

use bytes::Bytes;
use zones::varint;

use crate::block::KEYS_MOST;
use crate::index::entry::Entry;
use crate::{Error, Result};

/// A decoded index node.
#[derive(Clone, Debug)]
pub struct Node {
    pub entries: Vec<Entry>,
    /// 1 for a leaf index node.
    pub level: u16,
}

impl Node {
    /// Parses a payload. `addr` names the node in errors.
    pub fn parse(data: Bytes, level: u16, addr: u64) -> Result<Node> {
        let corrupt = |what: &str| Error::Corrupt { what: format!("index node: {what}"), addr };
        let mut rest = &data[..];
        let count = varint::get_u64(&mut rest).map_err(|_| corrupt("no entry count"))?;
        let mut at = data.len() - rest.len();
        // An entry takes more than 16 bytes: a larger count is garbage and must not size an
        // allocation.
        if count > data.len() as u64 / 16 {
            return Err(corrupt("impossible entry count"));
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(count as usize);
        let mut keys = 0;
        for _ in 0..count {
            let before = entries.last().map(|e| e.low.clone()).unwrap_or_default();
            let entry = Entry::decode(&data, &mut at, &before)
                .ok_or_else(|| corrupt("an entry does not decode"))?;
            if entries.last().is_some_and(|last| last.high > entry.low) {
                return Err(corrupt("entries overlap or are out of order"));
            }
            // Fences share prefixes, so few bytes may stand for long keys.
            keys += (entry.low.len() + entry.high.len()) as u64;
            if keys > KEYS_MOST {
                return Err(corrupt("its keys take more memory than any writer's"));
            }
            entries.push(entry);
        }
        if at != data.len() {
            return Err(corrupt("bytes behind the last entry"));
        }
        if entries.is_empty() {
            return Err(corrupt("no entries"));
        }
        Ok(Node { entries, level })
    }

    /// Checks that the node lies within the fences of `above`, from which it was read, and that its
    /// sums do not exceed those of `above`. So no node is reached on two paths through a run, every
    /// walk ends, and no sum over a run exceeds that of its root.
    pub fn belongs(&self, above: &Entry) -> Result<()> {
        let corrupt = |what: &str| {
            Err(Error::Corrupt { what: format!("index node: {what}"), addr: above.at.addr })
        };
        let ends = self.entries.first().zip(self.entries.last());
        if ends.is_none_or(|(first, last)| first.low < above.low || last.high > above.high) {
            return corrupt("keys outside its fences");
        }
        let sum = |of: fn(&Entry) -> u64| {
            self.entries.iter().fold(0u64, |sum, e| sum.saturating_add(of(e)))
        };
        let sums: [fn(&Entry) -> u64; 4] =
            [|e| e.items, |e| e.block_bytes, |e| e.value_bytes, |e| e.value_spans];
        if sums.into_iter().any(|of| sum(of) > of(above)) {
            return corrupt("its sums exceed those of its index entry");
        }
        Ok(())
    }

    /// Returns the index of the first entry that ends above `key`: the one that covers it, or the
    /// next; `entries.len()` if there is none.
    pub fn position(&self, key: &[u8]) -> usize {
        self.entries.partition_point(|e| e.high <= key)
    }
}

/// Collects the entries of one node.
#[derive(Default)]
pub struct NodeBuilder {
    pub entries: Vec<Entry>,
    /// The encoded size so far without zone lists; a node is full when this reaches its limit.
    pub size: usize,
    /// An upper bound of the keys in the node's filter.
    pub filtered: u64,
}

impl NodeBuilder {
    pub fn push(&mut self, entry: Entry) {
        debug_assert!(
            self.entries.last().is_none_or(|l| l.high <= entry.low),
            "entries come in order and do not overlap"
        );
        self.size += 40 + entry.low.len() / 2 + entry.high.len() / 2;
        self.filtered += if entry.unfiltered { 0 } else { entry.items };
        self.entries.push(entry);
    }

    pub fn payload(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size + 16);
        varint::put_u64(&mut out, self.entries.len() as u64);
        let mut before: &[u8] = &[];
        for e in &self.entries {
            e.encode(before, &mut out);
            before = &e.low;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::frame::FramePointer;

    /// Each entry takes some forty bytes and has two keys as long as the first one.
    #[test]
    fn a_node_whose_keys_would_fill_the_memory_is_an_error() {
        let node = |entries: u64| {
            let mut b = NodeBuilder::default();
            for i in 0..entries {
                let low = Bytes::from([&[7; 64 << 10][..], &i.to_be_bytes()].concat());
                let high = Bytes::from([&low[..], &[0]].concat());
                let at = FramePointer { addr: 4096 * (i + 1), len: 4096, crc: 0 };
                b.push(Entry::of_one_item(low, high, at));
            }
            Node::parse(Bytes::from(b.payload()), 1, 4096)
        };
        assert!(node(500).is_ok_and(|node| node.entries.len() == 500));
        let long = node(520).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(long.contains("its keys take more memory"), "65 MiB of keys in 85 KiB: {long}");
    }
}
