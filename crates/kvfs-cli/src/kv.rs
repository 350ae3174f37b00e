//! `kvfs kv`: reads and writes the keys and values of a store, mounted or not.
//!
//! A mounted store is accessed through its socket; an unmounted one is opened here. Both run the
//! same commands of `kvdb_server`, so that they behave identically.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use kvdb_server::{Client, Reply};
use serde_json::{Map, Value, json};

use crate::mounted::{self, refused};
use crate::output::{Exit, Failure, Outcome, Output, taken};
use crate::place::{self, View};
use crate::scripts;
use crate::sizes;
use crate::sockets;
use crate::store::{self, Access, Store};
use crate::text;
use crate::waiting;

mod long_value;

use long_value::NewValue;

/// Get, put, delete and list keys of a store.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the directory a store is mounted on, or the file of a store that is not mounted. Keys \
and values are arbitrary bytes; listings escape unprintable bytes (\\n, \\xff), and --json is \
lossless. A range includes START and excludes END; leave a bound out, or pass an empty one, for \
no bound. Writes are on disk when the command ends, unless --no-sync is given. In a program that \
`kvfs run` has started, and for its store, they are part of the transaction instead. Put `--` \
before an argument that begins with a dash: kvfs kv put my.kvfs -- -key -value")]
pub struct Args {
    /// Dictionary to use, a separate key space. Created by the first write.
    #[arg(long, short = 'd', global = true, value_name = "NAME", default_value = "0")]
    dict: String,
    /// Do not wait until a write is on disk; it gets there within the flush interval.
    #[arg(long, global = true)]
    no_sync: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the value of a key and nothing else.
    Get { target: PathBuf, key: OsString },
    /// Set a key. Without VALUE, or if it is `-`, the value is read from standard input. A long
    /// value, up to 1 TiB, is written in pieces that become one value in one transaction.
    Put {
        target: PathBuf,
        key: OsString,
        #[arg(allow_negative_numbers = true)]
        value: Option<OsString>,
        /// Set the key only if it does not exist; otherwise change nothing and exit with 1.
        #[arg(long)]
        new: bool,
    },
    /// Delete keys; exits with 3 if none exists.
    Del {
        target: PathBuf,
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// List the keys, in order.
    Scan {
        target: PathBuf,
        /// List only keys that match: `*`, `?`, `[a-z]`, as in Redis. A literal prefix is looked up
        /// instead of scanned for.
        #[arg(long = "match", value_name = "PATTERN", default_value = "*")]
        pattern: OsString,
    },
    /// List keys and values from START up to END, in order.
    Range {
        target: PathBuf,
        start: Option<OsString>,
        end: Option<OsString>,
        /// List from the last key to the first.
        #[arg(long, short = 'r')]
        reverse: bool,
        /// Print at most N keys.
        #[arg(long, short = 'n', value_name = "N")]
        limit: Option<u64>,
        /// Print only keys, without values.
        #[arg(long, short = 'k')]
        keys: bool,
    },
    /// Delete every key from START up to END, at the cost of one deletion.
    Delrange { target: PathBuf, start: OsString, end: OsString },
    /// Delete every key that begins with PREFIX, at the cost of one deletion.
    #[command(alias = "delprefix")]
    DeletePrefix {
        target: PathBuf,
        /// Prefix of the keys, taken literally. An empty prefix empties the dictionary.
        prefix: OsString,
    },
    /// Estimate the number of keys and bytes from START up to END, without reading them.
    Estimate { target: PathBuf, start: Option<OsString>, end: Option<OsString> },
    /// Add BY to the number stored at a key, and print the sum.
    Incr {
        target: PathBuf,
        key: OsString,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// Count the keys.
    Count { target: PathBuf },
    /// List the dictionaries.
    Dicts { target: PathBuf },
    /// Run any command of the socket, such as `MGET a b`.
    Call {
        target: PathBuf,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Appends a second `--` if the last argument is a `--` that is meant as a key or value: clap would
/// take it as the end of the options, with nothing after it.
pub fn with_dashes(mut arguments: Vec<OsString>) -> Vec<OsString> {
    const TAKE_WORDS: [&str; 4] = ["get", "put", "del", "incr"];
    let mut words = arguments.iter().skip(1).filter(|word| !word.as_bytes().starts_with(b"-"));
    let is_kv = words.next().is_some_and(|word| word == "kv")
        && words.any(|word| TAKE_WORDS.iter().any(|taken| word == taken));
    let dashes = arguments.iter().filter(|word| *word == "--").count();
    if is_kv && dashes == 1 && arguments.last().is_some_and(|word| word == "--") {
        arguments.push("--".into());
    }
    arguments
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let (target, writes) = match &args.action {
        Action::Get { target, .. }
        | Action::Scan { target, .. }
        | Action::Range { target, .. }
        | Action::Estimate { target, .. }
        | Action::Count { target }
        | Action::Dicts { target } => (target, false),
        Action::Put { target, .. }
        | Action::Del { target, .. }
        | Action::Delrange { target, .. }
        | Action::DeletePrefix { target, .. }
        | Action::Incr { target, .. }
        | Action::Call { target, .. } => (target, true),
    };
    let mut value = match &args.action {
        // Read the value before the store is opened, unless it is long: the program at the other
        // end of the pipe may use the store, too.
        Action::Put { value, .. } => NewValue::of(value.as_deref())?,
        _ => NewValue::default(),
    };
    let mut connection = Connection::of_keys(target, writes)?;
    connection.call(&[b"USE", args.dict.as_bytes()])?;
    if writes && !args.no_sync {
        connection.call(&[b"DURABLE", b"yes"])?;
    }
    let done = act(&args, &mut value, &mut connection, output);
    let closed = connection.close();
    done.and(closed)
}

fn act(args: &Args, value: &mut NewValue, connection: &mut Connection, output: &Output) -> Outcome {
    match &args.action {
        Action::Get { key, .. } => match connection.call(&[b"GET", key.as_bytes()])? {
            Reply::Bulk(value) => print_value(key, &value, output),
            _ => Err(no_such_key(&args.dict, &[key])),
        },
        Action::Put { key, new, .. } => {
            match long_value::put(connection, key.as_bytes(), value, *new)? {
                false => Err(Failure::new(Exit::Failed, format!("the key {} exists", quoted(key)))),
                true => output.print("", json!({"put": 1})),
            }
        }
        Action::Del { keys, .. } => {
            let mut words: Vec<&[u8]> = vec![b"DEL"];
            words.extend(keys.iter().map(|k| k.as_bytes()));
            match integer(connection.call(&words)?)? {
                0 => Err(no_such_key(
                    &args.dict,
                    &keys.iter().map(OsString::as_os_str).collect::<Vec<_>>(),
                )),
                n => output.print("", json!({"deleted": n})),
            }
        }
        Action::Scan { pattern, .. } => scan(connection, pattern.as_bytes(), output),
        Action::Range { start, end, reverse, limit, keys, .. } => {
            let bound = |b: &Option<OsString>| {
                b.as_ref().map(|b| b.as_bytes().to_vec()).unwrap_or_default()
            };
            range(
                connection,
                bound(start),
                bound(end),
                *reverse,
                limit.unwrap_or(u64::MAX),
                *keys,
                output,
            )
        }
        Action::Delrange { start, end, .. } => {
            connection.call(&[b"DELRANGE", start.as_bytes(), end.as_bytes(), b"EXACT"])?;
            output.print("", json!({"deleted": true}))
        }
        Action::DeletePrefix { prefix, .. } => {
            connection.call(&[b"DELPREFIX", prefix.as_bytes()])?;
            output.print("", json!({"deleted": true}))
        }
        Action::Estimate { start, end, .. } => {
            let bound = |b: &Option<OsString>| {
                b.as_ref().map(|b| b.as_bytes().to_vec()).unwrap_or_default()
            };
            estimate(connection, &bound(start), &bound(end), output)
        }
        Action::Incr { key, by, .. } => {
            let sum = integer(connection.call(&[
                b"INCRBY",
                key.as_bytes(),
                by.to_string().as_bytes(),
            ])?)?;
            output.print(sum, json!({"value": sum}))
        }
        Action::Count { .. } => {
            let count = integer(connection.call(&[b"DBSIZE"])?)?;
            output.print(count, json!({"keys": count}))
        }
        Action::Dicts { .. } => {
            let names: Vec<String> = bulks(connection.call(&[b"DICTS"])?)?
                .iter()
                .map(|n| String::from_utf8_lossy(n).into_owned())
                .collect();
            let shown = |name: &String| format!("{}\n", text::show(name.as_bytes()));
            output.print(names.iter().map(shown).collect::<String>(), &names)
        }
        Action::Call { words, .. } => {
            let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
            let reply = connection.call(&words)?;
            output.print(reply_text(&reply, 0), reply_json(&reply))
        }
    }
}

/// A connection to a store's commands, whether it is mounted or not.
pub(crate) struct Connection {
    client: Client,
    /// The socket of the daemon, or the store's file.
    at: PathBuf,
    opened: Option<Store>,
}

impl Connection {
    /// Connects to the keys of the store, or of the view, that `target` names.
    fn of_keys(target: &Path, writes: bool) -> Outcome<Connection> {
        let Some(place) = place::of_target(target)? else { return Connection::to(target, writes) };
        let mut connection = Connection::to(target, writes)?;
        match &place.view {
            View::Mainline => {}
            View::Transaction(id) => {
                drop(connection.call(&[b"TXN", b"JOIN", id.to_string().as_bytes()])?)
            }
            View::Snapshot(name) => {
                drop(connection.call(&[b"SNAPSHOT", b"USE", name.as_bytes()])?)
            }
            View::Clone(name) => drop(connection.call(&[b"CLONE", b"USE", name.as_bytes()])?),
            View::Listing => {
                let what =
                    format!("{} leads into a list of views, which has no keys", target.display());
                return Err(Failure::new(Exit::Usage, what)
                    .hint("give one of the views in it, or the directory of the mount"));
            }
        }
        Ok(connection)
    }

    /// Connects to the whole store.
    pub(crate) fn open(target: &Path, writes: bool) -> Outcome<Connection> {
        place::must_be_the_store(target)?;
        Connection::to(target, writes)
    }

    fn to(target: &Path, writes: bool) -> Outcome<Connection> {
        if let Some(socket) = sockets::socket_of(target)? {
            let client = sockets::connect(&socket).map_err(|e| {
                Failure::io(format!("cannot reach the store's daemon at {}", socket.display()), &e)
            })?;
            let entered = mounted::entered(&socket);
            let mut connection = Connection { client, at: socket, opened: None };
            if let Some(id) = entered {
                connection.call(&[b"TXN", b"JOIN", id.to_string().as_bytes()])?;
            }
            return Ok(connection);
        }
        if target.is_dir() {
            let what = format!(
                "{} is neither a store nor the directory of a mounted one with a socket",
                target.display()
            );
            return Err(Failure::new(Exit::NotFound, what)
                .hint("mount the store there, or give the store's file"));
        }
        let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
        let store = store::open_waiting(target, access, None)?;
        Ok(Connection {
            client: Client::local_with_scripts(store.db.clone(), scripts::command()),
            at: target.into(),
            opened: Some(store),
        })
    }

    /// Runs a command; an error reply is a failure.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Outcome<Reply> {
        let _waiting = waiting::on(&self.at);
        answered(self.client.call(words))
    }

    /// Returns whether commands run in a transaction.
    fn is_joined(&mut self) -> Outcome<bool> {
        let _waiting = waiting::on(&self.at);
        let status = self.client.call(&[b"TXN", b"STATUS"]);
        let status = status.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))?;
        // Without a transaction, the reply is null or an error.
        Ok(!matches!(status, Reply::Null | Reply::Error(_)))
    }

    /// Runs a command whose reply is followed by a stream of bytes.
    pub(crate) fn stream(self, words: &[&[u8]]) -> Outcome<impl Read + use<>> {
        let _waiting = waiting::on(&self.at);
        match self
            .client
            .stream(words)
            .map_err(|e| Failure::io("cannot talk to the store's daemon", &e))?
        {
            (Reply::Error(text), _) => Err(refused(&text)),
            (_, stream) => Ok(stream),
        }
    }

    /// Runs a command of a mounted store that is followed by a stream of bytes, which `write`
    /// writes. Returns the reply.
    pub(crate) fn send_stream(
        self,
        words: &[&[u8]],
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Outcome<Reply> {
        let _waiting = waiting::on(&self.at);
        answered(self.client.send_stream(words, write))
    }

    /// Returns the store if it is opened by this process.
    pub(crate) fn store(&self) -> Option<&Store> {
        self.opened.as_ref()
    }

    pub(crate) fn close(self) -> Outcome {
        drop(self.client);
        self.opened.map_or(Ok(()), Store::close)
    }
}

/// Converts an error reply, or a missing one, into a failure.
fn answered(reply: io::Result<Reply>) -> Outcome<Reply> {
    match reply.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))? {
        Reply::Error(text) => Err(refused(&text)),
        reply => Ok(reply),
    }
}

fn quoted(key: &OsStr) -> String {
    format!("'{}'", text::show(key.as_bytes()))
}

fn no_such_key(dict: &str, keys: &[&OsStr]) -> Failure {
    let keys: Vec<String> = keys.iter().map(|k| quoted(k)).collect();
    Failure::new(Exit::NotFound, format!("no such key in dictionary {dict}: {}", keys.join(", ")))
}

pub(crate) fn unexpected(reply: &Reply) -> Failure {
    Failure::new(
        Exit::Failed,
        format!("the store's daemon gave an unexpected reply: {}", reply_json(reply)),
    )
}

fn integer(reply: Reply) -> Outcome<i64> {
    if let Reply::Integer(n) = reply { Ok(n) } else { Err(unexpected(&reply)) }
}

pub(crate) fn bulks(reply: Reply) -> Outcome<Vec<Vec<u8>>> {
    let Reply::Array(items) = reply else { return Err(unexpected(&reply)) };
    let bulk = |item| match item {
        Reply::Bulk(bytes) => Ok(bytes),
        Reply::Error(text) => Err(refused(&text)),
        other => Err(unexpected(&other)),
    };
    items.into_iter().map(bulk).collect()
}

fn print_value(key: &OsStr, value: &[u8], output: &Output) -> Outcome {
    if output.is_json() {
        return output.print("", tuple_json(key.as_bytes(), Some(value)));
    }
    output.print_bytes(value)?;
    // On a terminal, end the line so that the prompt is separate; a pipe gets the value only.
    if io::stdout().is_terminal() && !value.ends_with(b"\n") {
        output.print_bytes(b"\n").map(drop)
    } else {
        Ok(())
    }
}

fn tuple_json(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    text::put(&mut object, "key", key);
    if let Some(value) = value {
        text::put(&mut object, "value", value);
    }
    Value::Object(object)
}

fn scan(connection: &mut Connection, pattern: &[u8], output: &Output) -> Outcome {
    let mut list = List::begin(output)?;
    let mut cursor = b"0".to_vec();
    loop {
        let reply = connection.call(&[b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", b"1000"])?;
        let Reply::Array(mut parts) = reply else { return Err(unexpected(&reply)) };
        let (Some(keys), Some(Reply::Bulk(next))) = (parts.pop(), parts.pop()) else {
            return Err(Failure::new(
                Exit::Failed,
                "the store's daemon gave an unexpected reply to SCAN",
            ));
        };
        for key in bulks(keys)? {
            if !list.item(&text::show(&key), || tuple_json(&key, None))? {
                return Ok(());
            }
        }
        if next == b"0" {
            return list.end();
        }
        cursor = next;
    }
}

/// Lists a range page by page, so that memory stays bounded. Each page reads the state of the store
/// at one moment.
fn range(
    connection: &mut Connection,
    mut start: Vec<u8>,
    mut end: Vec<u8>,
    reverse: bool,
    mut limit: u64,
    keys: bool,
    output: &Output,
) -> Outcome {
    // Pages start small, since values may be large, and grow while their bytes are few.
    let mut page = 16u64;
    let mut list = List::begin(output)?;
    while limit > 0 {
        let count = page.min(limit).to_string();
        let mut words: Vec<&[u8]> =
            vec![b"RANGE", &start, &end, b"EXACT", b"LIMIT", count.as_bytes()];
        words.extend(reverse.then_some(b"REV".as_slice()));
        words.extend(keys.then_some(b"NOVALUES".as_slice()));
        let items = bulks(connection.call(&words)?)?;
        let each = if keys { 1 } else { 2 };
        let found = (items.len() / each) as u64;
        let bytes: usize = items.iter().map(Vec::len).sum();
        for tuple in items.chunks(each) {
            let (key, value) = (&tuple[0], tuple.get(1));
            let line = match value {
                Some(value) => format!("{}\t{}", text::show(key), text::show(value)),
                None => text::show(key),
            };
            if !list.item(&line, || tuple_json(key, value.map(Vec::as_slice)))? {
                return Ok(());
            }
        }
        if found < page.min(limit) {
            break;
        }
        limit -= found;
        let last = &items[items.len() - each];
        if reverse {
            end = last.clone();
            // An empty end would mean no bound; no key is smaller than the empty one.
            if end.is_empty() {
                break;
            }
        } else {
            start = [last, b"\0".as_slice()].concat();
        }
        if bytes < 1 << 20 {
            page = (page * 4).min(4096);
        } else {
            page = (page / 4).max(1);
        }
    }
    list.end()
}

fn estimate(connection: &mut Connection, start: &[u8], end: &[u8], output: &Output) -> Outcome {
    let reply = connection.call(&[b"ESTIMATE", start, end, b"EXACT"])?;
    let figures = match &reply {
        Reply::Array(figures) => figures
            .iter()
            .map(|f| if let Reply::Integer(n) = f { u64::try_from(*n).ok() } else { None })
            .collect(),
        _ => None,
    };
    let figures: Option<Vec<u64>> = figures;
    let Some(&[keys, keys_error, bytes, bytes_error]) = figures.as_deref() else {
        return Err(unexpected(&reply));
    };
    let off = |by: u64, shown: String| {
        if by == 0 { String::new() } else { format!(", off by {shown} at most") }
    };
    let human = sizes::human_size;
    let text = format!(
        "{keys} keys{}\n{}{}\n",
        off(keys_error, keys_error.to_string()),
        human(bytes),
        off(bytes_error, human(bytes_error))
    );
    output.print(
        text,
        json!({"keys": keys, "keys_error": keys_error, "bytes": bytes, "bytes_error": bytes_error}),
    )
}

/// A listing of any length: lines for people, one array for `--json`. If it is dropped before its
/// end, it closes the array, so that the output before an error is valid JSON, too.
pub struct List<'a> {
    output: &'a Output,
    out: io::BufWriter<io::StdoutLock<'static>>,
    first: bool,
    ended: bool,
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if !self.ended && !self.first && self.output.is_json() {
            // The error that ended the listing is reported elsewhere; a closed pipe is not an
            // error.
            let _ = writeln!(self.out, "]").and_then(|()| self.out.flush());
        }
    }
}

impl<'a> List<'a> {
    pub fn begin(output: &'a Output) -> Outcome<Self> {
        let out = io::BufWriter::new(io::stdout().lock());
        Ok(List { output, out, first: true, ended: false })
    }

    /// Writes an item. Returns `false` if the reader has closed the pipe.
    pub fn item(&mut self, line: &str, value: impl FnOnce() -> Value) -> Outcome<bool> {
        let written = if self.output.is_json() {
            let before = if self.first { "[" } else { ",\n" };
            let value = text::show_json(&value()).map_err(io::Error::from);
            value.and_then(|value| write!(self.out, "{before}{value}"))
        } else {
            writeln!(self.out, "{line}")
        };
        self.first = false;
        taken(written)
    }

    /// Writes an item unescaped, for programs; not for JSON.
    pub fn raw(&mut self, item: &[u8], end: u8) -> Outcome<bool> {
        taken(self.out.write_all(item).and_then(|()| self.out.write_all(&[end])))
    }

    pub fn end(mut self) -> Outcome {
        self.ended = true;
        let written = match (self.output.is_json(), self.first) {
            (true, true) => writeln!(self.out, "[]"),
            (true, false) => writeln!(self.out, "]"),
            _ => Ok(()),
        };
        taken(written.and_then(|()| self.out.flush())).map(drop)
    }
}

fn reply_text(reply: &Reply, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    match reply {
        Reply::Null => format!("{indent}(nil)\n"),
        Reply::Status(s) => format!("{indent}{s}\n"),
        Reply::Error(e) => format!("{indent}(error) {e}\n"),
        Reply::Integer(i) => format!("{indent}{i}\n"),
        // Text of several lines, like that of INFO, is shown as lines.
        Reply::Bulk(b) => match std::str::from_utf8(b) {
            Ok(s) if !s.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) => {
                format!("{indent}{}\n", s.replace("\r\n", "\n"))
            }
            _ => format!("{indent}{}\n", text::show(b)),
        },
        Reply::Array(items) => items
            .iter()
            .map(|item| match item {
                // An element of an array is shown on one line.
                Reply::Bulk(b) => format!("{indent}{}\n", text::show(b)),
                item => reply_text(item, depth + usize::from(matches!(item, Reply::Array(_)))),
            })
            .collect(),
    }
}

fn reply_json(reply: &Reply) -> Value {
    match reply {
        Reply::Null => Value::Null,
        Reply::Status(s) => s.as_str().into(),
        Reply::Error(e) => json!({"error": e}),
        Reply::Integer(i) => (*i).into(),
        Reply::Bulk(b) => match std::str::from_utf8(b) {
            Ok(s) => s.into(),
            Err(_) => {
                let mut object = Map::new();
                text::put(&mut object, "value", b);
                Value::Object(object)
            }
        },
        Reply::Array(items) => items.iter().map(reply_json).collect(),
    }
}
