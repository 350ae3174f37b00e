//! Values: as bytes, or as a reference to the place where a large one lies; how they are
//! compressed, and how they are placed.

pub(crate) mod compression;
mod placing;

use bytes::Bytes;

pub use compression::{Compression, Packer};
pub(crate) use placing::place_stored;
pub use placing::{place_packed, place_value};

/// Where a large value lies: written once, raw; this reference moves instead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRef {
    /// Device address, bytes.
    pub addr: u64,
    /// Length of the value, bytes.
    pub len: u32,
    /// Bytes on the device: as many as the value has, or fewer, just when it is compressed.
    pub stored: u32,
    /// CRC-32C of the bytes on the device.
    pub crc: u32,
    /// How they are compressed.
    pub codec: Compression,
}

/// Values whose length is a multiple of a page are page-aligned; others, compressed ones too, lie
/// on this boundary.
pub(crate) const SMALL_ALIGN: u32 = 512;

impl ExtentRef {
    /// A value that lies there as it is.
    pub fn plain(addr: u64, len: u32, crc: u32) -> ExtentRef {
        ExtentRef { addr, len, stored: len, crc, codec: Compression::None }
    }

    /// A value that is compressed, if it is shorter for it. `None`: there is no such thing.
    pub fn packed(
        addr: u64,
        len: u32,
        stored: u32,
        crc: u32,
        codec: Compression,
    ) -> Option<ExtentRef> {
        (codec != Compression::None && stored > 0 && stored < len).then_some(ExtentRef {
            addr,
            len,
            stored,
            crc,
            codec,
        })
    }

    /// Behind its last byte on the device.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(u64::from(self.stored))
    }

    /// What its address is a multiple of.
    pub fn align(&self) -> u32 {
        let page = zones::SECTOR as u32;
        if self.codec == Compression::None && self.len.is_multiple_of(page) {
            page
        } else {
            SMALL_ALIGN
        }
    }

    /// Where it lies when it follows an extent that ends at `end`.
    pub(crate) fn behind(&self, end: u64) -> Option<u64> {
        end.checked_next_multiple_of(u64::from(self.align()))
    }
}

/// A value, or the place where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Inline(Bytes),
    Extent(ExtentRef),
}

impl Value {
    /// Length of the value in bytes, known without reading it.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Value::Inline(b) => b.len(),
            Value::Extent(e) => e.len as usize,
        }
    }
}

/// Shorter values are copied when they are to be kept: that takes less time than the two counts of
/// a shared buffer, and does not keep the buffer.
const COPY_BELOW: usize = 512;

/// A value where it lies: in memory that somebody else keeps, or on the device.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// The bytes, and a buffer that they are a part of, so that they can be kept without a copy.
    Inline(&'a [u8], &'a Bytes),
    Extent(ExtentRef),
}

impl ValueRef<'_> {
    /// The same, to be kept.
    #[inline]
    pub fn to_value(&self) -> Value {
        match self {
            ValueRef::Inline(bytes, _) if bytes.len() < COPY_BELOW => {
                Value::Inline(Bytes::copy_from_slice(bytes))
            }
            ValueRef::Inline(bytes, buffer) => Value::Inline(buffer.slice_ref(bytes)),
            ValueRef::Extent(e) => Value::Extent(*e),
        }
    }

    /// Length of the value in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            ValueRef::Inline(b, _) => b.len(),
            ValueRef::Extent(e) => e.len as usize,
        }
    }
}
