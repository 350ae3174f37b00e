//! Writes large values to the device.

use zones::{ExtentWriter, crc32c};

use super::{Compression, ExtentRef, Packer};
use crate::Result;

/// Writes a large value to its final address, without a frame and aligned. Its checksum is stored
/// only in the reference.
pub fn place_value(writer: &mut ExtentWriter, data: &[u8]) -> Result<ExtentRef> {
    place_stored(writer, ExtentRef::plain(0, data.len() as u32, crc32c(data)), data)
}

/// Writes a large value to its final address, compressed if that makes it short enough.
pub fn place_packed(
    writer: &mut ExtentWriter,
    packer: &mut Packer,
    compression: Compression,
    data: &[u8],
) -> Result<ExtentRef> {
    let packed = packer.pack_value(compression, data).and_then(|stored| {
        Some((
            ExtentRef::packed(
                0,
                data.len() as u32,
                stored.len() as u32,
                crc32c(stored),
                compression,
            )?,
            stored,
        ))
    });
    match packed {
        Some((e, stored)) => place_stored(writer, e, stored),
        None => place_value(writer, data),
    }
}

/// Writes the stored bytes of a value. `e` has every field of the result except the address.
pub(crate) fn place_stored(
    writer: &mut ExtentWriter,
    e: ExtentRef,
    stored: &[u8],
) -> Result<ExtentRef> {
    let addr = writer.place(e.align(), stored.len(), |_, buf| buf.copy_from_slice(stored))?;
    Ok(ExtentRef { addr, ..e })
}
