//! The choice of a codec for each large value that a merge places.

use std::fmt::Debug;

use super::{Compression, ExtentRef};

/// Chooses the codec of each large value that arrives as bytes, by its key, and learns what became
/// of it. A merge asks for one value after the other, on the thread that writes them.
pub trait ChooseCodec: Debug + Send + Sync {
    /// Returns the codec to try for the value of `key`.
    fn choose(&self, key: &[u8]) -> Compression;

    /// Takes note of the place of the value of `key`, for which `tried` was chosen. The codec of
    /// `extent` is [`Compression::None`] if that did not make the value short enough.
    fn placed(&self, key: &[u8], tried: Compression, extent: &ExtentRef);
}
