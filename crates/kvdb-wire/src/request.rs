//! Requests. The kind of a frame says which request its body contains; `docs/wire.md` specifies
//! every byte. A body is malformed if it is longer or shorter than its request, or has an unknown
//! flag.

use bytes::Bytes;
use kvdb::{DictionaryId, PageRequest, ServedChange};
use zones::varint::{put_bytes, put_u64};

use crate::body::{
    ANSWER_BYTES, Body, MAGIC, MAX_KEYS, MAX_TOKEN, MAX_TUPLES, TransactionKey, flag, put_dict,
};
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
const LIST: u8 = 19;
const REMOVE: u8 = 20;
const HOLD: u8 = 21;
const REVIEW: u8 = 22;

/// Flags of an iteration.
const BACKWARD: u8 = 1;
const KEYS_ONLY: u8 = 2;
/// Flags of a request to begin a transaction.
const SERIALIZABLE: u8 = 1;
const DURABLE: u8 = 2;
const JOINS: u8 = 4;
const TAKES: u8 = 8;
/// Flags of a request to hold the main branch.
const HOLDS: u8 = 1;
const TAKES_OVER: u8 = 2;
/// Flag of a part of a change.
const LAST: u8 = 1;
/// Flag of a list and of a removal: they are of clones, and not of snapshots.
const OF_CLONES: u8 = 1;
/// Flag of a commit and of a snapshot.
const SYNCED: u8 = 1;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first request of a connection.
    Hello {
        /// The version of the client.
        version: u16,
        /// Authenticates the client; may be empty.
        token: Bytes,
    },
    /// Opens a view.
    View {
        /// The name of a snapshot. `None` means the current state of the main branch.
        snapshot: Option<String>,
    },
    /// Reads the values of keys.
    GetMany {
        /// The view.
        view: u64,
        /// The dictionary.
        dict: DictionaryId,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Reads a part of a value.
    GetPart {
        /// The view.
        view: u64,
        /// The dictionary.
        dict: DictionaryId,
        /// The key.
        key: Bytes,
        /// The offset of its first byte.
        offset: u64,
        /// Limit of the bytes.
        length: u32,
    },
    /// Reads a page of tuples. See [`kvdb::PageRequest`].
    Iterate {
        /// The view.
        view: u64,
        /// The dictionary.
        dict: DictionaryId,
        /// Iterates backward from the end.
        backward: bool,
        /// Leaves out the values.
        keys_only: bool,
        /// Limit of the tuples.
        tuples: u32,
        /// Number of bytes after which the page ends.
        bytes: u32,
        /// The least key.
        start: Bytes,
        /// The end of the range. If it is empty, the range ends with the dictionary.
        end: Bytes,
    },
    /// Closes a view.
    Drop {
        /// The view.
        view: u64,
    },
    /// Begins a transaction, or continues an open one. A client that knows its key counts as the
    /// client that has begun it.
    Begin {
        /// Identifies the transaction. The client draws it at random.
        key: TransactionKey,
        /// The transaction locks the data that it reads.
        serializable: bool,
        /// The transaction survives its client and the server.
        durable: bool,
        /// Continues an open transaction, and fails if there is none.
        joins: bool,
        /// Takes the transaction from the client that holds it, which cannot use it after that.
        takes: bool,
        /// Tells this client from other clients that know the key.
        holder: u64,
        /// The transaction ends if it gets no request for this time, in milliseconds. The server
        /// limits the time.
        lease: u32,
        /// The branch of the transaction. If it is empty, the main branch.
        branch: String,
        /// A label for people who look at a list of transactions.
        label: String,
    },
    /// Applies changes to a transaction.
    Apply {
        /// The transaction.
        transaction: u64,
        /// The number of the batch: the batches and savepoints of a transaction are counted from 1,
        /// so that a batch that is sent again is applied once.
        batch: u64,
        /// The changes.
        changes: Vec<ServedChange>,
    },
    /// Commits a transaction.
    Commit {
        /// The key of the transaction.
        key: TransactionKey,
        /// The commit is on disk before the answer.
        synced: bool,
        /// The number of the last batch, by which the server notices that one is missing.
        batches: u64,
    },
    /// Ends a transaction and discards its changes.
    Abort {
        /// The key of the transaction.
        key: TransactionKey,
    },
    /// Syncs a durable transaction: all changes applied to it are on disk before the answer.
    Sync {
        /// The transaction.
        transaction: u64,
    },
    /// Renews the lease of a transaction.
    Lease {
        /// The transaction.
        transaction: u64,
    },
    /// Marks the state of a transaction.
    Savepoint {
        /// The transaction.
        transaction: u64,
        /// Its number in the sequence of batches.
        batch: u64,
    },
    /// Rolls back to a savepoint, which remains.
    RollBack {
        /// The transaction.
        transaction: u64,
        /// Its number in the sequence of batches.
        batch: u64,
        /// The number of the savepoint.
        to: u64,
    },
    /// A part of a batch that is longer than a frame. The batch is applied with its last part.
    ApplyPart {
        /// The transaction.
        transaction: u64,
        /// The number of the batch, which all of its parts carry.
        batch: u64,
        /// The number of the part, from 0.
        part: u32,
        /// Set for the last part.
        last: bool,
        /// The changes of the part.
        changes: Vec<ServedChange>,
    },
    /// Reserves inode numbers, for files created in a transaction.
    Reserve {
        /// The transaction.
        transaction: u64,
        /// The number of inode numbers.
        count: u32,
    },
    /// Makes a snapshot, at most once.
    Snapshot {
        /// Identifies the request, which may be sent again. The client draws it at random.
        key: TransactionKey,
        /// The branch. If it is empty, the main branch.
        branch: String,
        /// The name of the snapshot.
        name: String,
        /// The snapshot is on disk before the answer.
        synced: bool,
    },
    /// Makes a clone of a snapshot, at most once.
    Clone {
        /// Identifies the request, which may be sent again. The client draws it at random.
        key: TransactionKey,
        /// The snapshot.
        snapshot: String,
        /// The name of the clone.
        name: String,
    },
    /// Lists snapshots or clones by name.
    List {
        /// Lists clones.
        clones: bool,
        /// The least name.
        from: String,
    },
    /// Drops a snapshot or a clone, at most once.
    Remove {
        /// Drops a clone.
        clone: bool,
        /// Identifies the request, which may be sent again. The client draws it at random.
        key: TransactionKey,
        /// The name of the snapshot or clone.
        name: String,
    },
    /// Takes the lease of the main branch, or continues to hold it. Commit and abort return it.
    Hold {
        /// Identifies the lease. The client draws it at random.
        key: TransactionKey,
        /// The client holds the lease already; fails if it has lost it.
        joins: bool,
        /// Takes the lease from the client that holds it, even if that one was just heard of.
        takes: bool,
        /// Others may take the lease if its client was not heard of for this time, in milliseconds.
        /// The server limits the time.
        lease: u32,
        /// Tells others who holds the lease.
        label: String,
    },
    /// Asks the host of the files about the changes of a transaction.
    Review {
        /// The transaction.
        transaction: u64,
        /// The offset of the first byte of the answer to send.
        offset: u64,
        /// The question, in the words of the host.
        words: Vec<Bytes>,
    },
}

/// The names of the kinds of requests in `docs/wire.md`, beginning with kind 1.
pub(crate) const NAMES: [&str; REVIEW as usize] = [
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
    "LIST",
    "REMOVE",
    "HOLD",
    "REVIEW",
];

impl Request {
    /// Returns the request for a page of a view, within the bounds of one answer.
    pub(crate) fn page(view: u64, dict: DictionaryId, page: &PageRequest<'_>) -> Request {
        Request::Iterate {
            view,
            dict,
            backward: page.backward,
            keys_only: page.keys_only,
            tuples: page.tuples.min(MAX_TUPLES),
            bytes: page.bytes.min(ANSWER_BYTES as u32),
            start: Bytes::copy_from_slice(page.start),
            end: Bytes::copy_from_slice(page.end),
        }
    }

    /// Returns the kind and the body of the frame.
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
            Request::Snapshot { key, branch, name, synced } => {
                out.push(flag(*synced, SYNCED));
                out.extend_from_slice(key);
                put_bytes(&mut out, branch.as_bytes());
                put_bytes(&mut out, name.as_bytes());
                SNAPSHOT
            }
            Request::Clone { key, snapshot, name } => {
                out.extend_from_slice(key);
                put_bytes(&mut out, snapshot.as_bytes());
                put_bytes(&mut out, name.as_bytes());
                CLONE
            }
            Request::List { clones, from } => {
                out.push(flag(*clones, OF_CLONES));
                put_bytes(&mut out, from.as_bytes());
                LIST
            }
            Request::Remove { clone, key, name } => {
                out.push(flag(*clone, OF_CLONES));
                out.extend_from_slice(key);
                put_bytes(&mut out, name.as_bytes());
                REMOVE
            }
            Request::Hold { key, joins, takes, lease, label } => {
                out.push(flag(*joins, HOLDS) | flag(*takes, TAKES_OVER));
                out.extend_from_slice(key);
                put_u64(&mut out, u64::from(*lease));
                put_bytes(&mut out, label.as_bytes());
                HOLD
            }
            Request::Review { transaction, offset, words } => {
                put_u64(&mut out, *transaction);
                put_u64(&mut out, *offset);
                put_u64(&mut out, words.len() as u64);
                words.iter().for_each(|word| put_bytes(&mut out, word));
                REVIEW
            }
        };
        (kind, out)
    }

    /// Decodes the body of a frame.
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
                let key = body.fixed()?;
                Request::Snapshot { key, branch: body.name()?, name: body.name()?, synced }
            }
            CLONE => {
                Request::Clone { key: body.fixed()?, snapshot: body.name()?, name: body.name()? }
            }
            LIST => Request::List { clones: body.flags(OF_CLONES)? != 0, from: body.name()? },
            REMOVE => Request::Remove {
                clone: body.flags(OF_CLONES)? != 0,
                key: body.fixed()?,
                name: body.name()?,
            },
            HOLD => {
                let flags = body.flags(HOLDS | TAKES_OVER)?;
                Request::Hold {
                    joins: flags & HOLDS != 0,
                    takes: flags & TAKES_OVER != 0,
                    key: body.fixed()?,
                    lease: body.small()?,
                    label: body.name()?,
                }
            }
            REVIEW => {
                let (transaction, offset) = (body.number()?, body.number()?);
                let count = body.count(MAX_KEYS)?;
                let words = (0..count).map(|_| body.key()).collect::<Result<_>>()?;
                Request::Review { transaction, offset, words }
            }
            _ => return Err(Error::Malformed("a request of an unknown kind")),
        };
        body.end_of_body()?;
        Ok(request)
    }
}
