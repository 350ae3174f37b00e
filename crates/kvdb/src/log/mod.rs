//! What the journal and the manifest are laid on: chunks with their checksums, streams of them read
//! back, and the shapes in them.

pub(crate) mod chunk;
pub(crate) mod codec;
pub(crate) mod stream;
