//! Replies in the form in which a client reads them.

/// A reply. Sets and RESP3 pushes are arrays; a map is the array of its keys and values in
/// alternation.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A null.
    Null,
    /// A short text, such as `OK`.
    Status(String),
    /// An error, whose text begins with its code, such as `ERR …`.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
}
