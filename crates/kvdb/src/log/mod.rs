//! The layer that the journal and the manifest are built on: chunks with their checksums, the
//! reader of their streams, and the encoding of their fields.

pub(crate) mod chunk;
pub(crate) mod codec;
pub(crate) mod stream;
