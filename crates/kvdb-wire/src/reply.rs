//! Answers of a server, encoded like requests (`request`).

use bytes::Bytes;
use kvdb::{DictionaryId, MAX_KEY, MAX_VALUE, Space};
use zones::varint::{put_bytes, put_u64};

use crate::body::{
    Body, MAGIC, MAX_CONFLICTS, MAX_DICTIONARIES, MAX_KEYS, MAX_LISTED, MAX_NAME, MAX_TUPLES, flag,
    put_dict, put_value,
};
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureCode};
use crate::frame::MAX_FRAME;

const FAILED: u8 = 128;
const DONE: u8 = 129;
const WELCOME: u8 = 130;
const VIEWED: u8 = 131;
const VALUES: u8 = 132;
const PART: u8 = 133;
const TUPLES: u8 = 134;
const BEGUN: u8 = 135;
const CONFLICT: u8 = 136;
const RESERVED: u8 = 137;
const LISTED: u8 = 138;

/// Flag of the answers to an iteration and to a list.
const ENDED: u8 = 1;

/// A key in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictKey {
    /// Its dictionary.
    pub dict: DictionaryId,
    /// The key.
    pub key: Bytes,
    /// The path of the file that it belongs to, for people. It is empty if that is not known.
    pub place: String,
}

/// A snapshot or a clone in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// The branch that a snapshot was made of, which is empty for the main one; or the snapshot
    /// that a clone was made of, which is empty if it is not known.
    pub of: String,
    /// When a snapshot was made, in nanoseconds since 1970. Of two snapshots made after each other
    /// the later one has the greater number. Zero for a clone.
    pub created: u64,
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The request failed.
    Failed(Failure),
    /// The request is done.
    Done,
    /// The answer to a greeting.
    Welcome {
        /// The version of the server.
        version: u16,
        /// Limit of the pending requests.
        under_way: u32,
        /// Limit of the open views and transactions.
        views: u32,
    },
    /// A view was opened.
    Viewed {
        /// The number of the view.
        view: u64,
        /// The id of the snapshot, or zero for a view of no snapshot.
        snapshot: [u8; 16],
        /// The space of the store.
        space: Space,
        /// The dictionaries of the view.
        dictionaries: Vec<(DictionaryId, String)>,
    },
    /// Values, in the order of their keys. The last keys may be without a value if the answer has
    /// no room for them.
    Values(Vec<Option<Bytes>>),
    /// A part of a value.
    Part {
        /// The length of the whole value.
        length: u64,
        /// The part.
        bytes: Bytes,
    },
    /// Tuples in their order.
    Tuples {
        /// Set if there are no more tuples.
        ended: bool,
        /// Keys and values.
        tuples: Vec<(Bytes, Bytes)>,
    },
    /// A transaction has begun.
    Begun {
        /// Its number on this connection, which is also the number of its view.
        transaction: u64,
        /// Its number in the store.
        id: u64,
        /// The number of the last batch that the server has.
        batches: u64,
        /// The transaction ends if it gets no request for this time, in milliseconds. Zero means no
        /// limit.
        lease: u32,
        /// The space of the store.
        space: Space,
        /// The dictionaries of its branch.
        dictionaries: Vec<(DictionaryId, String)>,
    },
    /// A transaction was not committed, because others have changed the same data since it began.
    /// It remains open.
    Conflict {
        /// A description, for people.
        what: String,
        /// The first keys in conflict, each with the file or other object that it belongs to, if
        /// that is known.
        keys: Vec<ConflictKey>,
    },
    /// Inode numbers were reserved.
    Reserved {
        /// The first of them.
        first: u64,
        /// The number of them.
        count: u32,
    },
    /// Snapshots or clones by name.
    Listed {
        /// Set if there are no more of them.
        ended: bool,
        /// The snapshots or clones.
        all: Vec<Listed>,
    },
}

impl Reply {
    /// Returns the kind and the body of the frame.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let kind = match self {
            Reply::Failed(Failure { code, what }) => {
                out.push(code.code());
                put_bytes(&mut out, within_name(what));
                FAILED
            }
            Reply::Done => DONE,
            Reply::Welcome { version, under_way, views } => {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&version.to_le_bytes());
                put_u64(&mut out, u64::from(*under_way));
                put_u64(&mut out, u64::from(*views));
                WELCOME
            }
            Reply::Viewed { view, snapshot, space, dictionaries } => {
                put_u64(&mut out, *view);
                out.extend_from_slice(snapshot);
                put_store(&mut out, space, dictionaries);
                VIEWED
            }
            Reply::Values(values) => {
                put_u64(&mut out, values.len() as u64);
                values.iter().for_each(|value| put_value(&mut out, value));
                VALUES
            }
            Reply::Part { length, bytes } => {
                put_u64(&mut out, *length);
                put_bytes(&mut out, bytes);
                PART
            }
            Reply::Tuples { ended, tuples } => {
                out.push(flag(*ended, ENDED));
                put_u64(&mut out, tuples.len() as u64);
                let mut last: &[u8] = &[];
                for (key, value) in tuples {
                    let shared = last.iter().zip(key.iter()).take_while(|(a, b)| a == b).count();
                    put_u64(&mut out, shared as u64);
                    put_bytes(&mut out, &key[shared..]);
                    put_bytes(&mut out, value);
                    last = key;
                }
                TUPLES
            }
            Reply::Begun { transaction, id, batches, lease, space, dictionaries } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *id);
                put_u64(&mut out, *batches);
                put_u64(&mut out, u64::from(*lease));
                put_store(&mut out, space, dictionaries);
                BEGUN
            }
            Reply::Conflict { what, keys } => {
                put_bytes(&mut out, within_name(what));
                put_u64(&mut out, keys.len() as u64);
                for ConflictKey { dict, key, place } in keys {
                    put_dict(&mut out, *dict);
                    put_bytes(&mut out, key);
                    put_bytes(&mut out, within_name(place));
                }
                CONFLICT
            }
            Reply::Reserved { first, count } => {
                put_u64(&mut out, *first);
                put_u64(&mut out, u64::from(*count));
                RESERVED
            }
            Reply::Listed { ended, all } => {
                out.push(flag(*ended, ENDED));
                put_u64(&mut out, all.len() as u64);
                for Listed { name, of, created } in all {
                    put_bytes(&mut out, name.as_bytes());
                    put_bytes(&mut out, of.as_bytes());
                    put_u64(&mut out, *created);
                }
                LISTED
            }
        };
        (kind, out)
    }

    /// Decodes the body of a frame.
    pub fn decode(kind: u8, whole: &Bytes) -> Result<Reply> {
        let mut body = Body::of(whole);
        let reply = match kind {
            FAILED => {
                let code = FailureCode::of(body.byte()?);
                Reply::Failed(Failure { code, what: body.name()? })
            }
            DONE => Reply::Done,
            WELCOME => {
                if body.fixed::<4>()? != MAGIC {
                    return Err(Error::Malformed("a greeting in another language"));
                }
                Reply::Welcome {
                    version: u16::from_le_bytes(body.fixed()?),
                    under_way: body.small()?,
                    views: body.small()?,
                }
            }
            VIEWED => {
                let (view, snapshot) = (body.number()?, body.fixed()?);
                let (space, dictionaries) = take_store(&mut body)?;
                Reply::Viewed { view, snapshot, space, dictionaries }
            }
            VALUES => {
                let count = body.count(MAX_KEYS)?;
                Reply::Values((0..count).map(|_| body.value()).collect::<Result<_>>()?)
            }
            PART => Reply::Part { length: body.number()?, bytes: body.bytes(MAX_VALUE)? },
            TUPLES => {
                let ended = body.flags(ENDED)? != 0;
                let count = body.count(MAX_TUPLES as usize)?;
                let mut tuples: Vec<(Bytes, Bytes)> = Vec::new();
                // A few bytes may encode a long key, so the keys together are limited to the size
                // of a frame.
                let mut room = MAX_FRAME;
                for _ in 0..count {
                    let shared = body.small()? as usize;
                    let rest = body.key()?;
                    let last: &[u8] = tuples.last().map_or(&[], |(key, _)| key);
                    let Some(first) = last.get(..shared) else {
                        return Err(Error::Malformed("a key that shares more than there is"));
                    };
                    let key = match first {
                        [] => rest,
                        first if first.len() + rest.len() <= MAX_KEY => {
                            [first, &rest].concat().into()
                        }
                        _ => return Err(Error::Malformed("a key that is too long")),
                    };
                    room = room
                        .checked_sub(key.len())
                        .ok_or(Error::Malformed("keys that are too long together"))?;
                    tuples.push((key, body.bytes(MAX_VALUE)?));
                }
                Reply::Tuples { ended, tuples }
            }
            BEGUN => {
                let (transaction, id, batches) = (body.number()?, body.number()?, body.number()?);
                let lease = body.small()?;
                let (space, dictionaries) = take_store(&mut body)?;
                Reply::Begun { transaction, id, batches, lease, space, dictionaries }
            }
            CONFLICT => {
                let what = body.name()?;
                let count = body.count(MAX_CONFLICTS)?;
                let one = |_| {
                    let (dict, key) = (body.dict()?, body.key()?);
                    Ok(ConflictKey { dict, key, place: body.name()? })
                };
                Reply::Conflict { what, keys: (0..count).map(one).collect::<Result<_>>()? }
            }
            RESERVED => Reply::Reserved { first: body.number()?, count: body.small()? },
            LISTED => {
                let ended = body.flags(ENDED)? != 0;
                let count = body.count(MAX_LISTED)?;
                let one = |_| {
                    let (name, of) = (body.name()?, body.name()?);
                    Ok(Listed { name, of, created: body.number()? })
                };
                Reply::Listed { ended, all: (0..count).map(one).collect::<Result<_>>()? }
            }
            _ => return Err(Error::Malformed("an answer of an unknown kind")),
        };
        body.end_of_body()?;
        Ok(reply)
    }
}

/// Truncates a text to the limit of a name. The rest is not essential, since the text is for
/// people.
fn within_name(text: &str) -> &[u8] {
    let mut end = text.len().min(MAX_NAME);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

fn put_store(out: &mut Vec<u8>, space: &Space, dictionaries: &[(DictionaryId, String)]) {
    put_u64(out, space.total);
    put_u64(out, space.free);
    put_u64(out, dictionaries.len() as u64);
    for (id, name) in dictionaries {
        put_dict(out, *id);
        put_bytes(out, name.as_bytes());
    }
}

type OfStore = (Space, Vec<(DictionaryId, String)>);

fn take_store(body: &mut Body<'_>) -> Result<OfStore> {
    let space = Space { total: body.number()?, free: body.number()? };
    let count = body.count(MAX_DICTIONARIES)?;
    let one = |_| Ok((body.dict()?, body.name()?));
    Ok((space, (0..count).map(one).collect::<Result<_>>()?))
}
