//! Requests: the kind of a frame says which request its body is; `docs/wire.md` has every
//! byte. A body that is longer or shorter than its request is malformed, as is one with a flag that
//! is not known.

use bytes::Bytes;
use kvdb::{DictionaryId, ServedChange};
use zones::varint::{put_bytes, put_u64};

use crate::body::{Body, MAGIC, MAX_KEYS, MAX_TOKEN, TransactionKey, flag, put_dict};
use crate::changes::{put_changes, take_changes};
use crate::error::{Error, Result};

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
const LEASE: u8 = 14;
const SAVEPOINT: u8 = 15;
const ROLL_BACK: u8 = 16;
const RESERVE: u8 = 17;
const APPLY_PART: u8 = 18;

/// Of an iteration.
const BACKWARD: u8 = 1;
const KEYS_ONLY: u8 = 2;
/// Of a transaction.
const SERIALIZABLE: u8 = 1;
const DURABLE: u8 = 2;
const JOINS: u8 = 4;
const TAKES: u8 = 8;
/// Of a part of a change.
const LAST: u8 = 1;
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
    /// Begins a transaction, or goes on with one: who knows its key is who has begun it.
    Begin {
        /// Tells it from all others. The client draws it.
        key: TransactionKey,
        /// It locks what it reads.
        serializable: bool,
        /// It survives its client and the server.
        durable: bool,
        /// It must be there, and none is begun.
        joins: bool,
        /// Another client may have it, which may not go on with it then.
        takes: bool,
        /// Tells this client from others that know the key.
        holder: u64,
        /// It ends when it was not asked of for so many milliseconds. The server has limits.
        lease: u32,
        /// The branch that it is of; empty: the main branch.
        branch: String,
        /// For people who look at a list of transactions.
        label: String,
    },
    /// Changes something in a transaction.
    Apply {
        /// The transaction.
        transaction: u64,
        /// Counts the batches and savepoints of a transaction from 1, so that one that is sent
        /// again is applied once.
        batch: u64,
        /// The changes.
        changes: Vec<ServedChange>,
    },
    /// Commits a transaction.
    Commit {
        /// The key of the transaction.
        key: TransactionKey,
        /// It is on disk before the answer.
        synced: bool,
        /// The number of the last batch, so that none is missing.
        batches: u64,
    },
    /// Ends a transaction without its changes.
    Abort {
        /// The key of the transaction.
        key: TransactionKey,
    },
    /// Syncs a durable transaction: all that was applied in it is on disk before the answer.
    Sync {
        /// The transaction.
        transaction: u64,
    },
    /// Says that the client is still there.
    Lease {
        /// The transaction.
        transaction: u64,
    },
    /// Marks a state of a transaction.
    Savepoint {
        /// The transaction.
        transaction: u64,
        /// Numbered as a batch is.
        batch: u64,
    },
    /// Goes back to a savepoint, which stays.
    RollBack {
        /// The transaction.
        transaction: u64,
        /// Numbered as a batch is.
        batch: u64,
        /// The number of the savepoint.
        to: u64,
    },
    /// A part of a batch that is longer than a frame. It is applied with its last part.
    ApplyPart {
        /// The transaction.
        transaction: u64,
        /// The number of the batch, which all of its parts have.
        batch: u64,
        /// The number of the part, from 0.
        part: u32,
        /// There are no more.
        last: bool,
        /// Its changes.
        changes: Vec<ServedChange>,
    },
    /// Takes numbers of inodes, for what is made in a transaction.
    Reserve {
        /// The transaction.
        transaction: u64,
        /// How many.
        count: u32,
    },
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

/// The kinds of requests, from 1 on, by the names that `docs/wire.md` has for them.
pub(crate) const NAMES: [&str; APPLY_PART as usize] = [
    "HELLO",
    "VIEW",
    "GETMANY",
    "GETPART",
    "ITERATE",
    "DROP",
    "BEGIN",
    "APPLY",
    "COMMIT",
    "ABORT",
    "SYNC",
    "SNAPSHOT",
    "CLONE",
    "LEASE",
    "SAVEPOINT",
    "ROLLBACK",
    "RESERVE",
    "APPLYPART",
];

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
            Request::Begin {
                key,
                serializable,
                durable,
                joins,
                takes,
                holder,
                lease,
                branch,
                label,
            } => {
                let flags = flag(*serializable, SERIALIZABLE)
                    | flag(*durable, DURABLE)
                    | flag(*joins, JOINS)
                    | flag(*takes, TAKES);
                out.push(flags);
                out.extend_from_slice(key);
                put_u64(&mut out, *holder);
                put_u64(&mut out, u64::from(*lease));
                put_bytes(&mut out, branch.as_bytes());
                put_bytes(&mut out, label.as_bytes());
                BEGIN
            }
            Request::Apply { transaction, batch, changes } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *batch);
                put_changes(&mut out, changes);
                APPLY
            }
            Request::ApplyPart { transaction, batch, part, last, changes } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *batch);
                put_u64(&mut out, u64::from(*part));
                out.push(flag(*last, LAST));
                put_changes(&mut out, changes);
                APPLY_PART
            }
            Request::Commit { key, synced, batches } => {
                out.push(flag(*synced, SYNCED));
                out.extend_from_slice(key);
                put_u64(&mut out, *batches);
                COMMIT
            }
            Request::Abort { key } => {
                out.extend_from_slice(key);
                ABORT
            }
            Request::Sync { transaction } => {
                put_u64(&mut out, *transaction);
                SYNC
            }
            Request::Lease { transaction } => {
                put_u64(&mut out, *transaction);
                LEASE
            }
            Request::Savepoint { transaction, batch } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *batch);
                SAVEPOINT
            }
            Request::RollBack { transaction, batch, to } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *batch);
                put_u64(&mut out, *to);
                ROLL_BACK
            }
            Request::Reserve { transaction, count } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, u64::from(*count));
                RESERVE
            }
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
            BEGIN => {
                let flags = body.flags(SERIALIZABLE | DURABLE | JOINS | TAKES)?;
                Request::Begin {
                    serializable: flags & SERIALIZABLE != 0,
                    durable: flags & DURABLE != 0,
                    joins: flags & JOINS != 0,
                    takes: flags & TAKES != 0,
                    key: body.fixed()?,
                    holder: body.number()?,
                    lease: body.small()?,
                    branch: body.name()?,
                    label: body.name()?,
                }
            }
            APPLY => {
                let (transaction, batch) = (body.number()?, body.number()?);
                Request::Apply { transaction, batch, changes: take_changes(&mut body)? }
            }
            APPLY_PART => {
                let (transaction, batch) = (body.number()?, body.number()?);
                let (part, last) = (body.small()?, body.flags(LAST)? != 0);
                let changes = take_changes(&mut body)?;
                Request::ApplyPart { transaction, batch, part, last, changes }
            }
            COMMIT => Request::Commit {
                synced: body.flags(SYNCED)? != 0,
                key: body.fixed()?,
                batches: body.number()?,
            },
            ABORT => Request::Abort { key: body.fixed()? },
            SYNC => Request::Sync { transaction: body.number()? },
            LEASE => Request::Lease { transaction: body.number()? },
            SAVEPOINT => Request::Savepoint { transaction: body.number()?, batch: body.number()? },
            ROLL_BACK => Request::RollBack {
                transaction: body.number()?,
                batch: body.number()?,
                to: body.number()?,
            },
            RESERVE => Request::Reserve { transaction: body.number()?, count: body.small()? },
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
