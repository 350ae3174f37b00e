//! The layer below the journal and the manifest. It has the chunks with their checksums, the
//! readers of streams and of the records in them, and the encoding of fields.

pub(crate) mod chunk;
pub(crate) mod codec;
mod read_buffer;
pub(crate) mod records;
pub(crate) mod stream;
