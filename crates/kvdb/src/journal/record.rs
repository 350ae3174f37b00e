//! What the journal says: one record for each commit; and marks, which only let the chunk that carries them tell that all before it
//! was synced. In the stream a record is a length (u32) and that many bytes; it may run
//! over chunks and segments. Nothing of a record counts until all of it is there, and so a commit happens whole or not at all.
//!
//! ```text
//! u8      kind: 1, a commit · 2, a mark, nothing follows
//! u64     sequence number of the first change; the others follow one by one
//! varint  number of changes, then each:
//!           u8      1 put · 2 put, value bound to an extent · 3 delete · 4 delete range
//!           varint  dictionary
//!           bytes   key (for 4: start)
//!           1: bytes value · 2: u64 address, u32 length, u32 CRC-32C · 4: bytes end
//! ```
//! (`bytes`: a varint length, then the bytes.)

use bytes::Bytes;
use vt_tree::{ExtentRef, Seq, Value};

use crate::codec::{Reader, put_bytes, put_varint};
use crate::dictionary::DictionaryId;
use crate::error::Result;

const COMMIT: u8 = 1;
const MARK: u8 = 2;
const PUT: u8 = 1;
const PUT_EXTENT: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;

/// Where the first sequence number stands in an encoded record, behind length and kind.
const SEQ_AT: usize = 5;

/// One change, its value bound to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put(Bytes, Value),
    Delete(Bytes),
    DeleteRange(Bytes, Bytes),
}

/// A commit's changes, in order.
pub(crate) type Changes = Vec<(DictionaryId, Op)>;

/// The record of `changes`, its length in front. The sequence number is set later: see [`set_seq`].
pub(crate) fn encode(changes: &Changes) -> Vec<u8> {
    let payload: usize = changes
        .iter()
        .map(|(_, op)| match op {
            Op::Put(k, Value::Inline(v)) => k.len() + v.len(),
            Op::Put(k, Value::Extent(_)) => k.len() + 16,
            Op::Delete(k) => k.len(),
            Op::DeleteRange(s, e) => s.len() + e.len(),
        })
        .sum();
    let mut out = Vec::with_capacity(24 + payload + 16 * changes.len());
    out.extend_from_slice(&[0; 4]);
    out.push(COMMIT);
    out.extend_from_slice(&[0; 8]);
    put_varint(&mut out, changes.len() as u64);
    for (dict, op) in changes {
        out.push(match op {
            Op::Put(_, Value::Inline(_)) => PUT,
            Op::Put(_, Value::Extent(_)) => PUT_EXTENT,
            Op::Delete(_) => DELETE,
            Op::DeleteRange(..) => DELETE_RANGE,
        });
        put_varint(&mut out, u64::from(dict.0));
        match op {
            Op::Put(k, Value::Inline(v)) => {
                put_bytes(&mut out, k);
                put_bytes(&mut out, v);
            }
            Op::Put(k, Value::Extent(e)) => {
                put_bytes(&mut out, k);
                out.extend_from_slice(&e.addr.to_le_bytes());
                out.extend_from_slice(&e.len.to_le_bytes());
                out.extend_from_slice(&e.crc.to_le_bytes());
            }
            Op::Delete(k) => put_bytes(&mut out, k),
            Op::DeleteRange(s, e) => {
                put_bytes(&mut out, s);
                put_bytes(&mut out, e);
            }
        }
    }
    // A record of 4 GiB and more is refused by the commit before anything is written; see `commit`.
    let len = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&len.to_le_bytes());
    out
}

/// A mark, its length in front.
pub(crate) fn mark() -> [u8; 5] {
    [1, 0, 0, 0, MARK]
}

/// Gives the encoded record its first sequence number.
pub(crate) fn set_seq(record: &mut [u8], first: Seq) {
    record[SEQ_AT..SEQ_AT + 8].copy_from_slice(&first.to_le_bytes());
}

/// A commit as the journal told it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub first_seq: Seq,
    pub changes: Changes,
}

impl Record {
    /// Sequence number of the last change.
    pub(crate) fn last_seq(&self) -> Seq {
        self.first_seq + (self.changes.len() as u64).saturating_sub(1)
    }
}

/// Decodes what stands behind the length; `None` for a mark. Keys and values share the record's memory.
pub(crate) fn decode(record: &Bytes) -> Result<Option<Record>> {
    let mut r = Reader::new(record, "a journal record");
    let kind = r.u8()?;
    if kind == MARK {
        return Ok(None);
    }
    if kind != COMMIT {
        return Err(r.corrupt(&format!("kind {kind} is unknown: a newer version wrote it, or it is damaged")));
    }
    let first_seq = r.u64()?;
    let count = r.count(3)?;
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = r.u8()?;
        let dict = DictionaryId(r.varint_u32()?);
        let key = record.slice_ref(r.bytes()?);
        let op = match kind {
            PUT => Op::Put(key, Value::Inline(record.slice_ref(r.bytes()?))),
            PUT_EXTENT => Op::Put(key, Value::Extent(ExtentRef { addr: r.u64()?, len: r.u32()?, crc: r.u32()? })),
            DELETE => Op::Delete(key),
            DELETE_RANGE => Op::DeleteRange(key, record.slice_ref(r.bytes()?)),
            _ => return Err(r.corrupt("a change has an unknown kind")),
        };
        changes.push((dict, op));
    }
    if !r.is_empty() {
        return Err(r.corrupt("something follows the last change"));
    }
    if first_seq.checked_add(changes.len() as u64).is_none() {
        return Err(r.corrupt("its sequence number is out of range"));
    }
    Ok(Some(Record { first_seq, changes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Changes {
        let d = DictionaryId(300);
        vec![
            (d, Op::Put("key".into(), Value::Inline("value".into()))),
            (d, Op::Put("big".into(), Value::Extent(ExtentRef { addr: 1 << 40, len: 70_000, crc: 0xdead_beef }))),
            (DictionaryId(1), Op::Delete(Bytes::new())),
            (DictionaryId(1), Op::DeleteRange("a".into(), "b".into())),
        ]
    }

    fn encoded() -> Bytes {
        let mut bytes = encode(&sample());
        set_seq(&mut bytes, 77);
        assert_eq!(u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len() - 4);
        Bytes::from(bytes).slice(4..)
    }

    #[test]
    fn a_record_survives_the_way_there_and_back() {
        assert_eq!(decode(&encoded()).unwrap(), Some(Record { first_seq: 77, changes: sample() }));
        assert_eq!(decode(&Bytes::copy_from_slice(&mark()[4..])).unwrap(), None);
    }

    #[test]
    fn any_other_bytes_are_an_error_or_another_record_but_no_panic() {
        let good = encoded();
        for len in 0..good.len() {
            assert!(decode(&good.slice(..len)).is_err());
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = good.to_vec();
                bad[at] = value;
                let _ = decode(&Bytes::from(bad));
            }
        }
    }
}
