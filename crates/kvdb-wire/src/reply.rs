//! Answers of a server, in the manner of `request`.

use bytes::Bytes;
use kvdb::{DictionaryId, MAX_KEY, MAX_VALUE, Space};
use zones::varint::{put_bytes, put_u64};

use crate::body::{
    Body, MAGIC, MAX_CONFLICTS, MAX_DICTIONARIES, MAX_KEYS, MAX_NAME, MAX_TUPLES, flag, put_dict,
    put_value,
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

/// Of an iteration's answer.
const ENDED: u8 = 1;

/// A key in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictKey {
    /// Its dictionary.
    pub dict: DictionaryId,
    /// The key.
    pub key: Bytes,
    /// The path of the file that it belongs to, for people. Empty: that is not known.
    pub place: String,
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It could not be done.
    Failed(Failure),
    /// It is done.
    Done,
    /// The answer to a greeting.
    Welcome {
        /// The version that is spoken.
        version: u16,
        /// Requests that may be under way.
        under_way: u32,
        /// Views and transactions that may be open.
        views: u32,
    },
    /// A view is open.
    Viewed {
        /// Its number.
        view: u64,
        /// The id of the snapshot; of no snapshot it is zero.
        snapshot: [u8; 16],
        /// The space of the store.
        space: Space,
        /// Its dictionaries.
        dictionaries: Vec<(DictionaryId, String)>,
    },
    /// Values, in the order of their keys. Keys at the end may be without an answer, if there was
    /// no room for it.
    Values(Vec<Option<Bytes>>),
    /// A part of a value.
    Part {
        /// Length of the whole value.
        length: u64,
        /// The part.
        bytes: Bytes,
    },
    /// Tuples in their order.
    Tuples {
        /// There are no more.
        ended: bool,
        /// Keys and values.
        tuples: Vec<(Bytes, Bytes)>,
    },
    /// A transaction has begun.
    Begun {
        /// Its number on this connection, which is also that of the view that it has.
        transaction: u64,
        /// Its number in the store.
        id: u64,
        /// The number of the last batch that it has.
        batches: u64,
        /// It ends when it was not asked of for so many milliseconds; 0: it does not.
        lease: u32,
        /// The space of the store.
        space: Space,
        /// The dictionaries of its branch.
        dictionaries: Vec<(DictionaryId, String)>,
    },
    /// A transaction is not committed, since others have changed the same since it began. It is
    /// open as before.
    Conflict {
        /// A sentence.
        what: String,
        /// The first of the keys, and the file or the like that each of them belongs to, if that is
        /// known.
        keys: Vec<ConflictKey>,
    },
    /// Numbers were taken.
    Reserved {
        /// The first of them.
        first: u64,
        /// How many.
        count: u32,
    },
}

impl Reply {
    /// The kind and the body of its frame.
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
        };
        (kind, out)
    }

    /// Reads the answer of a frame.
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
                // A few bytes may stand for a long key: all of them are bounded like a frame.
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
            _ => return Err(Error::Malformed("an answer of an unknown kind")),
        };
        body.end_of_body()?;
        Ok(reply)
    }
}

/// A text as far as a name may be long: a longer one is cut, since it is for people.
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
