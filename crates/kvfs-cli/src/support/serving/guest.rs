//! `kvfs mount kvfs+unix:SOCKET DIR`: the files of a snapshot or a transaction, or the main files
//! by their lease, are mounted on this machine, and a server has the store. The daemon of the mount
//! holds the transaction, so it commits or aborts it. `kvfs commit` and `kvfs abort` send it a
//! request at a socket that only its user can use: one line for the request and one for the answer.
//! `kvfs stat` asks there whether the server can be reached.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvdb_server::{PrivateSocket, Reply};
use kvdb_wire::{
    BeginOptions, Client, Outcome as Committed, Reach, ServedTransaction, TransactionKey,
};
use kvfs::{Fs, ViewId, Views};
use places::ServedDirectory;
use places::served::Aborted;
use serde_json::{Value, json};

use crate::support::mounts::daemons::{self, Record};
use crate::support::mounts::mounted::refused;
use crate::support::serving::figures;
use crate::support::serving::told_kernel::ToldKernel;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Limit of the bytes of a request. Paths in hexadecimal digits are most of a long one.
const REQUEST: u64 = 64 << 20;
/// The beginning of a request to copy a tree.
const CLONE_TREE: &str = "clone-tree ";
/// The beginning of a question about the changes of the transaction.
const REVIEW: &str = "review ";
/// The first word of the one among these that changes the transaction.
const TAKE_OUT: &[u8] = b"take-out";
/// The time for which a daemon waits for the rest of a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// The transaction that a mount requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The clone of the transaction. If it is empty, the main files of the store.
    pub branch: String,
    /// The transaction survives the mount and the server.
    pub durable: bool,
    /// The key of an open transaction to take over, instead of beginning one.
    pub key: Option<TransactionKey>,
}

/// Returns a key in hexadecimal digits, as users see it.
pub fn key_text(key: &TransactionKey) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a key.
pub fn parse_key(word: &str) -> Result<TransactionKey, String> {
    let wrong = || "write its key, 32 digits from 0 to f, as the mount has told it".to_string();
    let digits = word.as_bytes();
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong());
    }
    let mut key = [0; 16];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(key)
}

/// Begins the transaction, or takes it up.
pub fn begin(
    client: &Arc<Client>,
    asked: &Asked,
    label: &str,
) -> kvdb_wire::Result<Arc<ServedTransaction>> {
    let begun = match asked.key {
        Some(key) => ServedTransaction::take_up(client, key),
        None => {
            let options = BeginOptions {
                durable: asked.durable,
                branch: asked.branch.clone(),
                label: label.into(),
                ..BeginOptions::default()
            };
            ServedTransaction::begin(client, options)
        }
    };
    begun.map(Arc::new)
}

/// A mount of a snapshot, a transaction or the main files on a server.
#[derive(Clone)]
pub struct Guest {
    pub client: Arc<Client>,
    /// The transaction, or the lease of the main files. `None` if it is a mount of a snapshot.
    pub transaction: Option<Arc<ServedTransaction>>,
    pub fs: Fs,
    pub views: Views,
    /// Set if the mount ends with the process that has begun it.
    pub attached: Arc<AtomicBool>,
    /// The process that alone may end the transaction, as long as the mount ends with it.
    pub sealed_for: Option<i32>,
    /// Set once the server has taken changes out of the transaction, past the files of the mount.
    pub outdated: Arc<AtomicBool>,
    /// Tells the kernel what this process changes by itself.
    pub told: Option<Arc<ToldKernel>>,
}

impl Guest {
    /// Answers the requests of commands until the process ends.
    pub fn listen(self) -> Outcome<PrivateSocket> {
        let cannot = |e: std::io::Error| Failure::io("cannot listen to kvfs commit", &e);
        daemons::make_directory().map_err(cannot)?;
        let socket = PrivateSocket::listen(&socket_of(std::process::id() as i32))
            .map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
        let listener = socket.listener.try_clone().map_err(cannot)?;
        listener.set_nonblocking(false).map_err(cannot)?;
        let answers = move || {
            for stream in listener.incoming() {
                let guest = self.clone();
                // Answer on a thread of its own: a commit may wait for the server, and other
                // requests must still be answered.
                let answered = stream.and_then(|stream| {
                    thread("kvfs-asked").spawn(move || {
                        if let Err(e) = guest.answer(&stream) {
                            tracing::warn!("a request was not answered: {e}");
                        }
                    })
                });
                if let Err(e) = answered {
                    tracing::warn!("a request was not taken: {e}");
                }
            }
        };
        thread("kvfs-commit").spawn(answers).map_err(cannot)?;
        Ok(socket)
    }

    fn answer(&self, mut stream: &UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut request = String::new();
        BufReader::new(stream.take(REQUEST)).read_line(&mut request)?;
        let is_sealed = self.is_sealed_for(stream);
        let answer = match (request.trim_end(), &self.transaction) {
            ("status", _) => self.status(is_sealed),
            (request, _)
                if is_sealed && !request.starts_with(CLONE_TREE) && !is_question(request) =>
            {
                let why = "kvfs run asks whether to commit the transaction when the program has \
                           ended, and ends it then";
                json!({"result": "failed", "why": why})
            }
            ("keep", _) => {
                self.attached.store(false, Ordering::Relaxed);
                json!({"result": "kept"})
            }
            (_, None) => json!({"result": "snapshot"}),
            (request, Some(transaction)) if request.starts_with(CLONE_TREE) => {
                self.clone_tree(transaction, &request[CLONE_TREE.len()..])
            }
            (_, Some(lease)) if lease.is_lease() => {
                let why = "the mount has the main files by lease: what is written in it is part of \
                           them without a commit, and kvfs umount ends it";
                json!({"result": "failed", "why": why})
            }
            (request, Some(transaction)) if request.starts_with(REVIEW) => {
                self.review(transaction, &request[REVIEW.len()..])
            }
            (request, Some(transaction)) if request.starts_with("commit") => {
                self.commit(transaction, request)
            }
            ("abort", Some(transaction)) => self.abort(transaction),
            _ => json!({"result": "failed", "why": "there is no such request"}),
        };
        writeln!(stream, "{answer}")
    }

    /// Returns whether the process at the other end may not end the transaction.
    fn is_sealed_for(&self, stream: &UnixStream) -> bool {
        let Some(process) = self.sealed_for.filter(|_| self.attached.load(Ordering::Relaxed))
        else {
            return false;
        };
        let peer = rustix::net::sockopt::socket_peercred(stream);
        !peer.is_ok_and(|peer| peer.pid.as_raw_nonzero().get() == process)
    }

    fn status(&self, is_sealed: bool) -> Value {
        let (state, since) = match self.client.reach() {
            Reach::Connected => ("connected", None),
            Reach::Waiting(since) => ("waiting", Some(since.as_secs())),
            Reach::Gone(since) => ("gone", Some(since.as_secs())),
        };
        let mut all = json!({
            "result": "snapshot",
            "server": {"state": state, "seconds": since},
            "requests": figures::requests(&self.client.counts_by_request()),
        });
        if let Some(transaction) = &self.transaction {
            let over = transaction.over();
            let result = match (transaction.is_lease(), &over) {
                (true, None) => "lease",
                (true, Some(_)) => "lost",
                (false, None) => "open",
                (false, Some(_)) => "over",
            };
            all["result"] = result.into();
            if transaction.is_lease() {
                all["over"] = over.into();
            }
            all["id"] = transaction.id().0.into();
            all["in_doubt"] = transaction.is_in_doubt().into();
            all["durable"] = kvdb::ServedView::is_durable(&**transaction).into();
            // Another mount could commit it by the key.
            all["key"] = (!is_sealed).then(|| key_text(&transaction.key())).into();
        }
        all
    }

    /// Commits the transaction as the request says: `commit`, with `synced`, and with `if` and the
    /// state that it must be in.
    fn commit(&self, transaction: &ServedTransaction, request: &str) -> Value {
        let words: Vec<&str> = request.split(' ').skip(1).collect();
        let (synced, state) = match words[..] {
            [] => (false, None),
            ["synced"] => (true, None),
            ["if", state] => (false, Some(state)),
            ["synced", "if", state] => (true, Some(state)),
            _ => return json!({"result": "failed", "why": "there is no such commit"}),
        };
        let is_shown = || -> kvfs::Result<bool> {
            let Some(state) = state else { return Ok(true) };
            let found = transaction.review(&[Bytes::from_static(b"state")])?;
            let found = kvdb_server::read_reply(&mut &found[..], 0).map_err(kvdb::Error::Io)?;
            Ok(found == Reply::Bulk(state.into()))
        };
        let committed = match self.is_outdated() {
            // The files have ended, and all that was written in them is with the server.
            true => is_shown().and_then(|is_shown| match is_shown {
                true => Ok(Some(transaction.commit(synced)?)),
                false => Ok(None),
            }),
            false => self
                .views
                .hand_over_written()
                .and_then(|()| places::served::commit_if(&self.fs, transaction, synced, is_shown)),
        };
        let id = transaction.id().0;
        let committed = match committed {
            Ok(None) => return json!({"result": "changed", "id": id}),
            Ok(Some(committed)) => Ok(committed),
            Err(e) => Err(e),
        };
        match committed {
            Ok(Committed::Committed) => json!({"result": "committed", "id": id}),
            Ok(Committed::NotSynced(why)) => {
                json!({"result": "committed", "id": id, "not_synced": why})
            }
            Ok(Committed::Conflict { what, keys }) => {
                let mut places: Vec<String> = keys.into_iter().map(|key| key.place).collect();
                places.retain(|place| !place.is_empty());
                places.dedup();
                json!({"result": "conflict", "id": id, "what": what, "places": places})
            }
            Err(e) => {
                let result = if transaction.is_in_doubt() { "unknown" } else { "failed" };
                json!({"result": result, "id": id, "why": why(transaction, &e)})
            }
        }
    }

    /// Copies a tree of the mount by reference. `paths`: both paths from the root of the mount, in
    /// hexadecimal digits.
    fn clone_tree(&self, transaction: &ServedTransaction, paths: &str) -> Value {
        let paths = paths.split(' ').map(bytes_of).collect::<Option<Vec<_>>>();
        let Some([from, to]) = paths.as_deref() else {
            return json!({"result": "failed", "why": "a copy takes two paths"});
        };
        match self.views.clone_tree(&ViewId::Mainline, from, to) {
            Ok(stats) => json!({
                "result": "copied", "directories": stats.directories, "files": stats.files,
                "bytes": stats.bytes,
            }),
            Err(e) => json!({"result": "failed", "why": why(transaction, &e)}),
        }
    }

    /// Asks the server about the changes of the transaction, all of which were sent before. `words`
    /// are the host's, in hexadecimal digits.
    fn review(&self, transaction: &ServedTransaction, words: &str) -> Value {
        let words = words.split(' ').map(|word| bytes_of(word).map(Bytes::from));
        let Some(words) = words.collect::<Option<Vec<Bytes>>>() else {
            return json!({"result": "failed", "why": "these are no words"});
        };
        let found = match (self.is_outdated(), words.first()) {
            (true, _) => transaction.review(&words).map_err(kvfs::Error::from),
            (false, Some(verb)) if verb == TAKE_OUT => self.take_out(transaction, &words),
            (false, _) => {
                let written = self.views.hand_over_written().and_then(|()| self.fs.sync_all());
                written.and_then(|()| Ok(transaction.review(&words)?))
            }
        };
        match found {
            Ok(reply) => json!({"result": "reviewed", "reply": digits_of(&reply)}),
            Err(e) => json!({"result": "failed", "why": why(transaction, &e)}),
        }
    }

    /// Has the server take changes out of the transaction. This bypasses the mount, whose caches,
    /// and those of the kernel, keep the old files. So the files become stale: programs get ESTALE.
    /// Another mount takes over the transaction. If none does, it can still be reviewed, committed
    /// and aborted here.
    fn take_out(&self, transaction: &ServedTransaction, words: &[Bytes]) -> kvfs::Result<Vec<u8>> {
        self.views.hand_over_written()?;
        let (taken_out, is_outdated) = self.fs.end_served(|| {
            let taken_out = transaction.review(words);
            let is_outdated = match &taken_out {
                Ok(reply) => !reply.starts_with(b"-"),
                // Without an answer it may be done.
                Err(error) => matches!(error, kvdb::Error::Io(_)),
            };
            Ok(((taken_out, is_outdated), is_outdated))
        })?;
        if is_outdated {
            self.outdated.store(true, Ordering::Relaxed);
            if let Some(told) = &self.told {
                told.drop_all(&self.fs);
            }
        }
        Ok(taken_out?)
    }

    fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    fn abort(&self, transaction: &ServedTransaction) -> Value {
        let id = transaction.id().0;
        match places::served::abort(&self.client, &self.fs, transaction) {
            Ok(Aborted::There) => json!({"result": "aborted", "id": id}),
            Ok(Aborted::Later(e)) => {
                json!({"result": "aborted", "id": id, "later": e.to_string()})
            }
            Err(e) if transaction.is_in_doubt() => {
                let why = why(transaction, &e.into());
                let why = format!("a commit was asked for, whose outcome is not known: {why}");
                json!({"result": "failed", "id": id, "why": why})
            }
            Err(e) => {
                json!({"result": "failed", "id": id, "why": why(transaction, &e.into())})
            }
        }
    }

    /// Handles the end of the mount. The data written in a durable transaction is kept, and so is
    /// data under a lease, which is returned; any other transaction ends.
    pub fn leave(&self) -> Outcome {
        let Some(transaction) = &self.transaction else { return Ok(()) };
        if transaction.is_lease() {
            return self.give_back(transaction);
        }
        if transaction.over().is_some() {
            return Ok(());
        }
        if kvdb::ServedView::is_durable(&**transaction) {
            let key = key_text(&transaction.key());
            // Files that have ended write nothing more. What they wrote last may wait to be sent,
            // if the server did not answer when changes were to be taken out.
            let written = match self.is_outdated() {
                true => transaction.send().map_err(kvfs::Error::from),
                false => self.fs.shutdown(),
            };
            return written.map_err(|e| {
                let what = format!("what was written last in transaction {key} is lost: {e}");
                Failure::new(Exit::Failed, what)
            });
        }
        transaction.leave();
        Ok(())
    }

    /// Returns the lease with everything that was written under it. Fails in the same way whether
    /// the lease was lost before, is lost now, or cannot be returned: only this error tells the
    /// user which data may be lost with the mount.
    fn give_back(&self, lease: &ServedTransaction) -> Outcome {
        let given_back = match lease.over() {
            Some(why) => Err(format!("the lease of the main files is lost: {why}")),
            None => {
                let written = self.fs.shutdown().map_err(|e| e.to_string());
                written.and_then(|()| lease.give_back().map_err(|e| e.to_string()))
            }
        };
        given_back.map_err(|why| {
            let what = format!("what was written since the last sync may be lost: {why}");
            Failure::new(Exit::Failed, what)
        })
    }
}

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into())
}

fn why(transaction: &ServedTransaction, error: &kvfs::Error) -> String {
    match (transaction.over(), transaction.refused()) {
        (Some(why), _) => format!("transaction {} is over: {why}", transaction.id()),
        (None, Some(why)) => format!("{error}: {why}"),
        (None, None) => error.to_string(),
    }
}

fn socket_of(daemon: i32) -> PathBuf {
    daemons::directory().join(format!("{daemon}.sock"))
}

/// Returns whether a request changes nothing.
fn is_question(request: &str) -> bool {
    let verb = request.strip_prefix(REVIEW).and_then(|words| words.split(' ').next());
    verb.and_then(bytes_of).is_some_and(|verb| verb != TAKE_OUT)
}

/// Returns the directory of a server that a mount shows, or `None` if it is another kind of mount.
pub fn shown_by(record: &Record) -> Option<ServedDirectory> {
    ServedDirectory::parse(&record.store).ok().flatten()
}

/// Returns whether a mount is one from a server.
pub fn is_served(record: &Record) -> bool {
    shown_by(record).is_some()
}

/// Sends a request to the daemon of a mount from a server. Returns `None` if it is another kind of
/// mount.
pub fn ask(record: &Record, request: &str) -> Outcome<Option<Value>> {
    if !is_served(record) {
        return Ok(None);
    }
    let cannot = |e: std::io::Error| {
        let at = record.mount_point.shown();
        Failure::io(format!("the daemon of the mount on {at} does not answer"), &e)
    };
    let mut stream = match UnixStream::connect(socket_of(record.pid)) {
        // The daemon has ended.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        stream => stream.map_err(cannot)?,
    };
    writeln!(stream, "{request}").map_err(cannot)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(cannot)?;
    let odd = |_| Failure::new(Exit::Failed, "the mount's daemon gave an unexpected reply");
    serde_json::from_str(&answer).map(Some).map_err(odd)
}

/// Asks the daemon of a mount from a server to copy a tree by reference, by paths from the root of
/// the mount. Returns `None` if it is another kind of mount.
pub fn clone_tree(record: &Record, from: &Path, to: &Path) -> Outcome<Option<Value>> {
    let digits = |path: &Path| digits_of(path.as_os_str().as_bytes());
    ask(record, &format!("{CLONE_TREE}{} {}", digits(from), digits(to)))
}

/// Asks the server of a mount about the changes of its transaction. The words are in
/// `docs/wire.md`.
pub fn review(record: &Record, words: &[&[u8]]) -> Outcome<Reply> {
    let words: Vec<String> = words.iter().map(|word| digits_of(word)).collect();
    let ended = || {
        let what = "the daemon of the mount has ended, and the transaction with it";
        Failure::new(Exit::Failed, what).hint("its log says why; a durable one goes on")
    };
    let answer = ask(record, &format!("{REVIEW}{}", words.join(" ")))?.ok_or_else(ended)?;
    let reply = answer["reply"].as_str().and_then(bytes_of).ok_or_else(|| {
        let why = answer["why"].as_str().unwrap_or("the mount is no transaction of a server");
        Failure::new(Exit::Failed, why)
    })?;
    let odd = |e| Failure::io("the server gave an unexpected reply", &e);
    match kvdb_server::read_reply(&mut &reply[..], 0).map_err(odd)? {
        Reply::Error(text) => Err(refused(&text)),
        reply => Ok(reply),
    }
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses bytes in hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())
}

/// Returns the command that takes over the durable transaction of a mount.
pub fn taken_up(record: &Record, key: &str) -> String {
    let store = text::show(record.store.as_os_str().as_bytes());
    format!("kvfs mount {store} DIR --txn --key {key}")
}

/// Describes what happens to an open transaction when its mount ends. Only the daemon reports the
/// end of a lease.
pub fn left_by(record: &Record, status: &Value) -> Option<String> {
    if status["result"] != "open" {
        return None;
    }
    let id = &status["id"];
    Some(match status["durable"] == true {
        true => {
            format!("transaction {id} goes on: {}", taken_up(record, status["key"].as_str()?))
        }
        false if status["in_doubt"] == true => format!(
            "transaction {id} was asked to commit, and it is not known whether it has: look at the \
             store"
        ),
        false => format!("transaction {id} was aborted, and what was written in it is gone"),
    })
}

/// Returns the record of the mount at a directory.
pub fn record_at(dir: &Path) -> Outcome<Record> {
    let none = || {
        let what = format!("no store is mounted on {}", dir.shown());
        Failure::new(Exit::NotFound, what)
    };
    let path = crate::support::machine::paths::full_path(dir)
        .or_else(|_| crate::support::machine::paths::path_beside(dir));
    let path = path.map_err(|e| Failure::io(format!("cannot use {}", dir.shown()), &e))?;
    let entry = kvfs_fuse::mounts::mount_at(&path)
        .map_err(|e| Failure::io("cannot read the table of mounts", &e))?
        .ok_or_else(none)?;
    Record::read(&entry.device).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_are_digits_of_a_request() {
        assert_eq!(bytes_of("612f20ff0a"), Some(b"a/ \xff\n".to_vec()));
        assert_eq!(bytes_of(""), Some(Vec::new()));
        assert_eq!((bytes_of("616"), bytes_of("6g"), bytes_of("é")), (None, None, None));
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = std::array::from_fn(|i| (i * 17) as u8);
        assert_eq!(parse_key(&key_text(&key)), Ok(key));
        for wrong in ["", "12", &"g".repeat(32), &"é".repeat(16), &"0".repeat(33)] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
