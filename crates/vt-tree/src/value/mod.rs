//! Values, either as bytes or as a reference to a large value on the device; their compression, and
//! writing them to the device.

mod choice;
pub(crate) mod compression;
mod placing;

use bytes::Bytes;
use zones::ZoneUse;

pub use choice::ChooseCodec;
pub use compression::{Compression, Packer};
pub(crate) use placing::place_stored;
pub use placing::{place_packed, place_value};

/// A reference to a large value on the device. The value is written once, without a frame; merges
/// move the reference and not the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRef {
    /// Device address, bytes.
    pub addr: u64,
    /// Length of the value, bytes.
    pub len: u32,
    /// Length on the device, bytes. It is less than `len` if, and only if, the value is compressed.
    pub stored: u32,
    /// CRC-32C of the bytes on the device.
    pub crc: u32,
    /// The codec of the bytes on the device.
    pub codec: Compression,
}

/// The alignment, in bytes, of values that are compressed or whose length is not a multiple of a
/// page. Other values are page-aligned.
pub(crate) const SMALL_ALIGN: u32 = 512;

impl ExtentRef {
    /// Returns a reference to a value that is not compressed.
    pub fn plain(addr: u64, len: u32, crc: u32) -> ExtentRef {
        ExtentRef { addr, len, stored: len, crc, codec: Compression::None }
    }

    /// Returns a reference to a compressed value. Returns `None` if `stored` is not shorter than
    /// `len`, or if `codec` is no compression.
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

    /// Returns the address after the last byte of the value on the device.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(u64::from(self.stored))
    }

    /// Returns the alignment of the address.
    pub fn align(&self) -> u32 {
        let page = zones::SECTOR as u32;
        if self.codec == Compression::None && self.len.is_multiple_of(page) {
            page
        } else {
            SMALL_ALIGN
        }
    }

    /// Adds the space that the extent takes on the device to `uses`: its bytes, the padding up to
    /// the next unit of alignment, and the alignment gap after `before`, the previous extent in key
    /// order, if this extent is where it would be written directly after `before`. All of this
    /// space would be needed again if the two were written elsewhere, so none of it counts as a
    /// hole.
    pub(crate) fn add_room(&self, before: Option<&ExtentRef>, uses: &mut ZoneUse) {
        let directly = |before: &&ExtentRef| self.behind(before.end()) == Some(self.addr);
        self.add_room_after(before.filter(directly), uses);
    }

    /// Does the same as [`ExtentRef::add_room`], but adds every gap shorter than a page. Old
    /// entries are counted like this: they were written when the space of deleted values between
    /// short ones was not distinguished from alignment.
    pub(crate) fn add_room_and_short_gaps(&self, before: Option<&ExtentRef>, uses: &mut ZoneUse) {
        self.add_room_after(before.filter(|before| contiguous(before, self)), uses);
    }

    fn add_room_after(&self, before: Option<&ExtentRef>, uses: &mut ZoneUse) {
        let unit = u64::from(SMALL_ALIGN);
        let padded = |e: &ExtentRef| e.end().checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        uses.add_extent(self.addr, padded(self).saturating_sub(self.addr));
        if let Some(before) = before {
            let end = padded(before);
            uses.add_extent(end, self.addr.saturating_sub(end));
        }
    }

    /// Returns the address at which the extent is written directly after one that ends at `end`, or
    /// `None` on overflow.
    pub(crate) fn behind(&self, end: u64) -> Option<u64> {
        end.checked_next_multiple_of(u64::from(self.align()))
    }
}

/// A value in memory, or a reference to one on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The bytes of the value.
    Inline(Bytes),
    /// A reference to a value on the device.
    Extent(ExtentRef),
}

impl Value {
    /// Returns the length of the value in bytes, without reading it.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Value::Inline(b) => b.len(),
            Value::Extent(e) => e.len as usize,
        }
    }
}

/// [`ValueRef::to_value`] copies values shorter than this: a copy takes less time than counting
/// references to a shared buffer, and does not keep the buffer alive.
const COPY_BELOW: usize = 512;

/// A borrowed value, in memory or on the device.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// The bytes, and the buffer that contains them, so that they can be kept without a copy.
    Inline(&'a [u8], &'a Bytes),
    /// A reference to a value on the device.
    Extent(ExtentRef),
}

impl ValueRef<'_> {
    /// Returns an owned value, which may share the buffer.
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

    /// Returns the length of the value in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            ValueRef::Inline(b, _) => b.len(),
            ValueRef::Extent(e) => e.len as usize,
        }
    }
}

/// Returns whether `b` can be read directly after `a` without a seek: `b` begins where `a` ends, up
/// to alignment.
pub fn contiguous(a: &ExtentRef, b: &ExtentRef) -> bool {
    b.addr >= a.end() && b.addr - a.end() < zones::SECTOR
}
