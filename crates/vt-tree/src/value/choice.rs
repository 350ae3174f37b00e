//! The choice of a codec for each large value that a merge writes.

use std::fmt::Debug;

use super::{Compression, ExtentRef};

/// Chooses the codec of each large value that arrives as bytes, by its key, and is told the result.
/// A merge asks for one value at a time, on the thread that writes them.
pub trait ChooseCodec: Debug + Send + Sync {
    /// Returns the codec to try for the value of `key`.
    fn choose(&self, key: &[u8]) -> Compression;

    /// Records where the value of `key` was written, for which `tried` was chosen. The codec of
    /// `extent` is [`Compression::None`] if `tried` did not make the value short enough.
    fn placed(&self, key: &[u8], tried: Compression, extent: &ExtentRef);
}
