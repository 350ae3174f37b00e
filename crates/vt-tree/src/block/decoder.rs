//! Decodes items one by one, starting at a restart point. The input is not trusted: if bytes cannot
//! be decoded, the result is `None`.

use zones::varint;

use super::{
    ASCENDS, DELETE, DELETE_RANGE, EXTENT, FOLLOWS, HAS_PACKED, HAS_SEQ, INLINE, KIND, PACKED,
    PACKED_FOLLOWS, UPDATE,
};
use crate::block::restart_interval::BodyPlace;
use crate::item::Seq;
use crate::value::Compression;
use crate::value::ExtentRef;

/// The head of an item, which is everything before its body.
pub(super) struct Head {
    pub shared: usize,
    pub suffix: (usize, usize),
    pub kind: u8,
    /// `true` if the bytes are an update rather than a value.
    pub update: bool,
    pub ascends: bool,
    pub packed: bool,
    pub seq: Seq,
}

pub(super) struct Decoder<'a> {
    pub data: &'a [u8],
    pub at: usize,
    pub extent: Option<ExtentRef>,
}

impl Decoder<'_> {
    #[inline]
    fn varint(&mut self) -> Option<u64> {
        // Nearly all values are below 128.
        let first = *self.data.get(self.at)?;
        if first < 0x80 {
            self.at += 1;
            return Some(u64::from(first));
        }
        let mut rest = self.data.get(self.at..)?;
        let before = rest.len();
        let v = varint::get_u64(&mut rest).ok()?;
        self.at += before - rest.len();
        Some(v)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        let end = self.at.checked_add(len).filter(|&e| e <= self.data.len())?;
        let start = self.at;
        self.at = end;
        Some((start, end))
    }

    #[inline]
    pub fn head(&mut self, key_len: usize) -> Option<Head> {
        let shared = usize::try_from(self.varint()?).ok().filter(|&s| s <= key_len)?;
        let unshared = usize::try_from(self.varint()?).ok()?;
        let flags = self.data.get(self.at).copied()?;
        self.at += 1;
        let suffix = self.take(unshared)?;
        let seq = if flags & HAS_SEQ != 0 { self.varint()? } else { 0 };
        Some(Head {
            shared,
            suffix,
            kind: flags & KIND,
            update: flags & (KIND | UPDATE) == INLINE | UPDATE,
            ascends: flags & ASCENDS != 0,
            packed: flags & HAS_PACKED != 0,
            seq,
        })
    }

    #[inline]
    fn bytes(&mut self) -> Option<(u32, u32)> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (s, e) = self.take(len)?;
        // The offsets fit into 32 bits, because a block is shorter than a zone.
        Some((s as u32, e as u32))
    }

    fn crc(&mut self) -> Option<u32> {
        let (s, e) = self.take(4)?;
        Some(u32::from_le_bytes(self.data[s..e].try_into().ok()?))
    }

    /// Completes an extent that follows the previous one. The address of `e` is the end of the
    /// previous extent, and the checksum is read next.
    fn behind(&mut self, e: ExtentRef) -> Option<ExtentRef> {
        Some(ExtentRef { addr: e.behind(e.addr)?, crc: self.crc()?, ..e })
    }

    fn extent(&mut self, e: ExtentRef) -> Option<BodyPlace> {
        // Reject larger addresses, so that later sums of address and length do not overflow a u64.
        if e.addr > u64::MAX / 2 {
            return None;
        }
        self.extent = Some(e);
        Some(BodyPlace::Extent(e))
    }

    #[inline]
    pub fn place(&mut self, head: &Head) -> Option<BodyPlace> {
        Some(match head.kind {
            INLINE => {
                let (s, e) = self.bytes()?;
                if head.update { BodyPlace::Update(s, e) } else { BodyPlace::Inline(s, e) }
            }
            EXTENT | FOLLOWS => {
                let e = if head.kind == EXTENT {
                    ExtentRef::plain(
                        self.varint()?,
                        u32::try_from(self.varint()?).ok()?,
                        self.crc()?,
                    )
                } else {
                    let last = self.extent?;
                    self.behind(ExtentRef::plain(last.end(), last.len, 0))?
                };
                self.extent(e)?
            }
            PACKED => {
                let (addr, len) = (self.varint()?, u32::try_from(self.varint()?).ok()?);
                let (code, _) = self.take(1)?;
                let codec = Compression::of_code(self.data[code])?;
                let e = ExtentRef::packed(
                    addr,
                    len,
                    u32::try_from(self.varint()?).ok()?,
                    self.crc()?,
                    codec,
                )?;
                self.extent(e)?
            }
            PACKED_FOLLOWS => {
                let last = self.extent?;
                let stored = u32::try_from(self.varint()?).ok()?;
                let e =
                    self.behind(ExtentRef::packed(last.end(), last.len, stored, 0, last.codec)?)?;
                self.extent(e)?
            }
            DELETE => BodyPlace::Delete,
            DELETE_RANGE => {
                let (s, e) = self.bytes()?;
                BodyPlace::DeleteRange(s, e)
            }
            _ => return None,
        })
    }
}
