//! The layer below the journal and the manifest: chunks with their checksums, the reader of their
//! streams, and the encoding of their fields.

pub(crate) mod chunk;
pub(crate) mod codec;
pub(crate) mod stream;
