//! Tells a client what its transaction has changed, for a review before the commit. Changes are
//! listed by the commands of the socket, run in this process, so that a review over a wire shows
//! the same as one of a mounted store. `docs/wire.md` specifies the messages.

use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Error, Kvdb, Result, Transaction, TransactionId};
use kvdb_server::{Client, Describe, Reply};
use kvfs::{FileKind, Views};

use crate::support::serving::transactions::{OverFiles, of_store};

/// Number of bytes of a file that are read at once.
const AT_ONCE: u32 = 1 << 20;
/// The largest file whose content is sent, in bytes, whatever the client asks for: a file with a
/// hole may exceed any memory, at no cost to its author. A review shows no more.
const LARGEST: u64 = 64 << 20;

/// Returns the answer to a question about a transaction.
pub fn answer(
    db: &Kvdb,
    views: &Views,
    transaction: &Transaction,
    words: &[Bytes],
) -> Result<Vec<u8>> {
    let id = transaction.id().0.to_string();
    let id = id.as_bytes();
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    let run = |words: &[&[u8]]| local(db, views).call_unparsed(words).map_err(Error::Io);
    let reply = match words[..] {
        [b"state"] => return run(&[b"TXN", b"STATE", id]),
        [b"files"] => return run(&[b"TXN", b"FILES", id]),
        [b"files", b"collapsed"] => return run(&[b"TXN", b"FILES", id, b"COLLAPSED"]),
        [b"changes"] => return run(&[b"TXN", b"CHANGES", id, b"BEFORE"]),
        [b"changes", b"fields"] => return run(&[b"TXN", b"CHANGES", id, b"BEFORE", b"FIELDS"]),
        [b"read", path, most] => {
            let most = std::str::from_utf8(most).ok().and_then(|most| most.parse().ok());
            let most = most.ok_or_else(|| Error::Invalid("a number of bytes is missing".into()))?;
            read(views, transaction, path, most)?.map_or(Reply::Null, Reply::Bulk)
        }
        [b"take-out", ..] => {
            let reply = take_out(db, views, transaction.id(), &words[1..])?;
            // A client that has the answer does not ask for it again after a restart.
            views.keep(transaction.id()).map_err(of_store)?;
            reply
        }
        _ => return Err(unknown()),
    };
    let mut out = Vec::new();
    encode(&reply, &mut out);
    Ok(out)
}

fn unknown() -> Error {
    Error::Invalid("this server has no answer to that".into())
}

/// Takes changes out of a transaction, as if they had never been made, by the command of the
/// socket: all of them, or none. It makes no difference how often that is asked for.
fn take_out(db: &Kvdb, views: &Views, id: TransactionId, parts: &[&[u8]]) -> Result<Reply> {
    // The client has changed the transaction and bypassed these views. A rollback to the present
    // state makes them read again what they have cached.
    let present = views.savepoint(id).map_err(of_store)?;
    views.rollback_to(id, &present).map_err(of_store)?;
    let (mut client, number) = (local(db, views), id.0.to_string());
    let joined = client.call(&[b"TXN", b"JOIN", number.as_bytes()]).map_err(Error::Io)?;
    if let Reply::Error(_) = joined {
        return Ok(joined);
    }
    let command: &[&[u8]] = &[b"TXN", b"REVERT", b"TOGETHER"];
    client.call(&[command, parts].concat()).map_err(Error::Io)
}

fn local(db: &Kvdb, views: &Views) -> Client {
    let of = db.clone();
    let describe: Describe =
        Arc::new(move |dictionary, start, end| kvfs::describe_keys(&of, dictionary, start, end));
    let over = Arc::new(OverFiles(views.clone()));
    Client::local_over(db.clone(), over, describe)
}

/// Returns the content of a file as it was before the changes of a transaction. Returns `None` if
/// there is no file at the path, or one of more bytes than `most` or [`LARGEST`].
fn read(
    views: &Views,
    transaction: &Transaction,
    path: &[u8],
    most: u64,
) -> Result<Option<Vec<u8>>> {
    let fs = views.beneath(transaction.id()).map_err(of_store)?;
    let file = match fs.resolve(path) {
        Err(kvfs::Error::NotFound | kvfs::Error::NotDirectory) => return Ok(None),
        file => file.map_err(of_store)?,
    };
    if file.kind != FileKind::File || file.size > most.min(LARGEST) {
        return Ok(None);
    }
    let mut content = Vec::new();
    while (content.len() as u64) < file.size {
        let part = fs.read(file.ino, content.len() as u64, AT_ONCE).map_err(of_store)?;
        if part.is_empty() {
            break;
        }
        content.extend_from_slice(&part);
    }
    Ok(Some(content))
}

/// Appends a reply as RESP2 has it.
fn encode(reply: &Reply, out: &mut Vec<u8>) {
    let mut line = |kind: char, text: &str| {
        // A line end in the text would end it there.
        out.extend_from_slice(format!("{kind}{}\r\n", text.replace(['\r', '\n'], " ")).as_bytes());
    };
    match reply {
        Reply::Null => line('$', "-1"),
        Reply::Status(text) => line('+', text),
        Reply::Error(text) => line('-', text),
        Reply::Integer(n) => line(':', &n.to_string()),
        Reply::Bulk(bytes) => {
            line('$', &bytes.len().to_string());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Array(all) => {
            line('*', &all.len().to_string());
            all.iter().for_each(|one| encode(one, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use kvdb::{CreateOptions, OpenOptions, TransactionOptions};
    use kvfs::{Caller, Fs, FsOptions, ROOT, SetAttr, ViewId};
    use zones::{CrashDevice, Device};

    use super::*;

    #[test]
    fn of_a_file_that_is_mostly_a_hole_no_more_is_read_than_a_review_shows() {
        let db = Kvdb::in_memory();
        let machine = Arc::new(env::Simulated::new(1));
        let fs = Fs::open(db.clone(), machine, FsOptions::default()).expect("a file system");
        let views = Views::new(db, fs.clone());
        let make = |name: &[u8], size| {
            let caller = Caller::default();
            let file = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, caller).expect("made");
            let hole = SetAttr { size: Some(size), ..SetAttr::default() };
            fs.setattr(file.ino, &hole, caller).expect("extended");
        };
        make(b"small", 3);
        make(b"huge", LARGEST + 1);
        fs.sync_all().expect("written");
        let id = views.begin(TransactionOptions::default()).expect("begun");
        let transaction = views.transaction(id).expect("open");
        let read = |path: &[u8]| read(&views, &transaction, path, u64::MAX).expect("asked");
        assert_eq!(read(b"small"), Some(vec![0; 3]));
        assert!(read(b"huge").is_none());
    }

    fn open_options() -> OpenOptions {
        let memory = 16 << 20;
        OpenOptions { memory, threads: false, zero_journal: false, ..OpenOptions::default() }
    }

    fn files(db: &Kvdb) -> (Fs, Views) {
        let machine = Arc::new(env::Simulated::new(1));
        let fs = Fs::open(db.clone(), machine, FsOptions::default()).expect("a file system");
        (fs.clone(), Views::new(db.clone(), fs))
    }

    #[test]
    fn what_was_taken_out_of_a_durable_transaction_stays_out_after_a_power_cut() {
        let (device, machine) = (Arc::new(CrashDevice::new()), Arc::new(env::Simulated::new(1)));
        let create = CreateOptions { open: open_options(), ..CreateOptions::default() };
        let place: Arc<dyn Device> = device.clone();
        let db = Kvdb::create(place, machine.clone(), create).expect("created");
        let (_fs, views) = files(&db);
        let durable = TransactionOptions { durable: true, ..TransactionOptions::default() };
        let id = views.begin(durable).expect("begun");
        let inside = views.fs(&ViewId::Transaction(id)).expect("open");
        for name in [&b"made"[..], b"other"] {
            inside.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).expect("made");
        }
        views.keep(id).expect("synced");
        let words = ["take-out", "remove", "made"].map(|word| Bytes::from_static(word.as_bytes()));
        let transaction = views.transaction(id).expect("open");
        let reply = answer(&db, &views, &transaction, &words).expect("answered");
        assert!(!reply.starts_with(b"-"), "{}", reply.escape_ascii());

        let image: Arc<dyn Device> = Arc::new(device.durable());
        let db = Kvdb::open(image, machine, open_options()).expect("opened").0;
        let (_fs, views) = files(&db);
        let inside = views.fs(&ViewId::Transaction(id)).expect("it goes on");
        assert!(inside.resolve(b"other").is_ok());
        assert!(matches!(inside.resolve(b"made"), Err(kvfs::Error::NotFound)));
    }

    #[test]
    fn a_reply_is_read_as_it_was() {
        let reply = Reply::Array(vec![
            Reply::Null,
            Reply::Status("OK".into()),
            Reply::Error("ERR why".into()),
            Reply::Integer(-7),
            Reply::Bulk(b"\r\n\xff".to_vec()),
            Reply::Array(vec![]),
        ]);
        let mut out = Vec::new();
        encode(&reply, &mut out);
        assert_eq!(kvdb_server::read_reply(&mut &out[..], 0).expect("whole"), reply);
    }
}
