//! Requests: the kind of a frame says which request its body is; `docs/wire.md` has every
//! byte. A body that is longer or shorter than its request is malformed, as is one with a flag that
//! is not known.

use bytes::Bytes;
use kvdb::DictionaryId;
use zones::varint::{put_bytes, put_u64};

use crate::body::{Body, MAGIC, MAX_KEYS, MAX_TOKEN, flag, put_dict};
use crate::changes::Change;
use crate::error::{Error, Result};
use crate::frame::MAX_FRAME;

const HELLO: u8 = 1;
const VIEW: u8 = 2;
const GET_MANY: u8 = 3;
const GET_PART: u8 = 4;
const ITERATE: u8 = 5;
const DROP: u8 = 6;
const BEGIN: u8 = 7;
const APPLY: u8 = 8;
const COMMIT: u8 = 9;
const ABORT: u8 = 10;
const SYNC: u8 = 11;
const SNAPSHOT: u8 = 12;
const CLONE: u8 = 13;

/// Of an iteration.
const BACKWARD: u8 = 1;
const KEYS_ONLY: u8 = 2;
/// Of a transaction.
const SERIALIZABLE: u8 = 1;
/// Of a commit and a snapshot.
const SYNCED: u8 = 1;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first request of a connection.
    Hello {
        /// The version that the client speaks.
        version: u16,
        /// Says who it is; may be empty.
        token: Bytes,
    },
    /// Opens a view.
    View {
        /// A snapshot; `None`: the main branch as it is now.
        snapshot: Option<String>,
    },
    /// The values of keys.
    GetMany {
        /// The view.
        view: u64,
        /// The dictionary.
        dict: DictionaryId,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// A part of a value.
    GetPart {
        /// The view.
        view: u64,
        /// The dictionary.
        dict: DictionaryId,
        /// The key.
        key: Bytes,
        /// Its first byte.
        offset: u64,
        /// At most so many bytes.
        length: u32,
    },
    /// A page of tuples, see [`kvdb::PageRequest`].
    Iterate {
        /// The view.
        view: u64,
        /// The dictionary.
        dict: DictionaryId,
        /// From the end, backward.
        backward: bool,
        /// Values are left out.
        keys_only: bool,
        /// At most so many tuples.
        tuples: u32,
        /// The page ends after so many bytes.
        bytes: u32,
        /// The least key.
        start: Bytes,
        /// The end of the range; empty: the end of the dictionary.
        end: Bytes,
    },
    /// Closes a view.
    Drop {
        /// The view.
        view: u64,
    },
    /// Begins a transaction.
    Begin {
        /// It locks what it reads.
        serializable: bool,
    },
    /// Changes something in a transaction.
    Apply {
        /// The transaction.
        transaction: u64,
        /// Counts the batches of a transaction from 1, so that one that is sent again is applied
        /// once.
        batch: u64,
        /// The changes.
        changes: Vec<Change>,
    },
    /// Commits a transaction.
    Commit {
        /// The transaction.
        transaction: u64,
        /// It is on disk before the answer.
        synced: bool,
    },
    /// Ends a transaction without its changes.
    Abort {
        /// The transaction.
        transaction: u64,
    },
    /// Everything that was committed is on disk before the answer.
    Sync,
    /// Makes a snapshot.
    Snapshot {
        /// Of this branch; empty: the main branch.
        branch: String,
        /// Its name.
        name: String,
        /// It is on disk before the answer.
        synced: bool,
    },
    /// Makes a clone of a snapshot.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// The name of the clone.
        name: String,
    },
}

impl Request {
    /// The kind and the body of its frame.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let kind = match self {
            Request::Hello { version, token } => {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&version.to_le_bytes());
                put_bytes(&mut out, token);
                HELLO
            }
            Request::View { snapshot } => {
                out.push(u8::from(snapshot.is_some()));
                snapshot.iter().for_each(|name| put_bytes(&mut out, name.as_bytes()));
                VIEW
            }
            Request::GetMany { view, dict, keys } => {
                put_u64(&mut out, *view);
                put_dict(&mut out, *dict);
                put_u64(&mut out, keys.len() as u64);
                keys.iter().for_each(|key| put_bytes(&mut out, key));
                GET_MANY
            }
            Request::GetPart { view, dict, key, offset, length } => {
                put_u64(&mut out, *view);
                put_dict(&mut out, *dict);
                put_bytes(&mut out, key);
                put_u64(&mut out, *offset);
                put_u64(&mut out, u64::from(*length));
                GET_PART
            }
            Request::Iterate { view, dict, backward, keys_only, tuples, bytes, start, end } => {
                put_u64(&mut out, *view);
                put_dict(&mut out, *dict);
                out.push(flag(*backward, BACKWARD) | flag(*keys_only, KEYS_ONLY));
                put_u64(&mut out, u64::from(*tuples));
                put_u64(&mut out, u64::from(*bytes));
                put_bytes(&mut out, start);
                put_bytes(&mut out, end);
                ITERATE
            }
            Request::Drop { view } => {
                put_u64(&mut out, *view);
                DROP
            }
            Request::Begin { serializable } => {
                out.push(flag(*serializable, SERIALIZABLE));
                BEGIN
            }
            Request::Apply { transaction, batch, changes } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *batch);
                put_u64(&mut out, changes.len() as u64);
                changes.iter().for_each(|change| change.put(&mut out));
                APPLY
            }
            Request::Commit { transaction, synced } => {
                put_u64(&mut out, *transaction);
                out.push(flag(*synced, SYNCED));
                COMMIT
            }
            Request::Abort { transaction } => {
                put_u64(&mut out, *transaction);
                ABORT
            }
            Request::Sync => SYNC,
            Request::Snapshot { branch, name, synced } => {
                out.push(flag(*synced, SYNCED));
                put_bytes(&mut out, branch.as_bytes());
                put_bytes(&mut out, name.as_bytes());
                SNAPSHOT
            }
            Request::Clone { snapshot, name } => {
                put_bytes(&mut out, snapshot.as_bytes());
                put_bytes(&mut out, name.as_bytes());
                CLONE
            }
        };
        (kind, out)
    }

    /// Reads the request of a frame.
    pub fn decode(kind: u8, whole: &Bytes) -> Result<Request> {
        let mut body = Body::of(whole);
        let request = match kind {
            HELLO => {
                if body.fixed::<4>()? != MAGIC {
                    return Err(Error::Malformed("a greeting in another language"));
                }
                let version = u16::from_le_bytes(body.fixed()?);
                Request::Hello { version, token: body.bytes(MAX_TOKEN)? }
            }
            VIEW => Request::View {
                snapshot: match body.flags(1)? {
                    0 => None,
                    _ => Some(body.name()?),
                },
            },
            GET_MANY => {
                let (view, dict) = (body.number()?, body.dict()?);
                let count = body.count(MAX_KEYS)?;
                let keys = (0..count).map(|_| body.key()).collect::<Result<_>>()?;
                Request::GetMany { view, dict, keys }
            }
            GET_PART => Request::GetPart {
                view: body.number()?,
                dict: body.dict()?,
                key: body.key()?,
                offset: body.number()?,
                length: body.small()?,
            },
            ITERATE => {
                let (view, dict) = (body.number()?, body.dict()?);
                let flags = body.flags(BACKWARD | KEYS_ONLY)?;
                Request::Iterate {
                    view,
                    dict,
                    backward: flags & BACKWARD != 0,
                    keys_only: flags & KEYS_ONLY != 0,
                    tuples: body.small()?,
                    bytes: body.small()?,
                    start: body.end()?,
                    end: body.end()?,
                }
            }
            DROP => Request::Drop { view: body.number()? },
            BEGIN => Request::Begin { serializable: body.flags(SERIALIZABLE)? != 0 },
            APPLY => {
                let (transaction, batch) = (body.number()?, body.number()?);
                let count = body.count(MAX_FRAME)?;
                let mut changes = Vec::new();
                for _ in 0..count {
                    changes.push(Change::take(whole, &mut body.rest)?);
                }
                Request::Apply { transaction, batch, changes }
            }
            COMMIT => {
                Request::Commit { transaction: body.number()?, synced: body.flags(SYNCED)? != 0 }
            }
            ABORT => Request::Abort { transaction: body.number()? },
            SYNC => Request::Sync,
            SNAPSHOT => {
                let synced = body.flags(SYNCED)? != 0;
                Request::Snapshot { branch: body.name()?, name: body.name()?, synced }
            }
            CLONE => Request::Clone { snapshot: body.name()?, name: body.name()? },
            _ => return Err(Error::Malformed("a request of an unknown kind")),
        };
        body.end_of_body()?;
        Ok(request)
    }
}
