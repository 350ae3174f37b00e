//! The layer that the journal and the manifest are built on: chunks with their checksums, the
//! reader of their streams and of the records in them, and the encoding of their fields.

pub(crate) mod chunk;
pub(crate) mod codec;
mod read_buffer;
pub(crate) mod records;
pub(crate) mod stream;
