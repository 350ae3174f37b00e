//! Replies, as a client reads them.

/// A reply. Sets and RESP3 pushes are arrays; a map is the array of its keys and values in turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// No value.
    Null,
    /// A short text, such as `OK`.
    Status(String),
    /// Text with its code in front, such as `ERR …`.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
}
