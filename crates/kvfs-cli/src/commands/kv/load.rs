//! `kvfs kv load`: sets the keys of a file, in any order, as one change. The pairs go to the store
//! in commands of many, into a transaction whose changes the store writes into runs as they grow,
//! so their number is limited by the store alone.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde_json::json;

use super::formats::{Entries, Entry, Format};
use crate::support::mounts::replies::integer;
use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Limits of the pairs, and of their bytes, that one command sets.
const MOST_PAIRS: usize = 1024;
const MOST_BYTES: usize = 1 << 20;

/// The commands that an input may have. They change keys and nothing else.
const COMMANDS: &[&str] = &[
    "append",
    "del",
    "expire",
    "expireat",
    "geoadd",
    "hexpireat",
    "hmset",
    "hpexpireat",
    "hset",
    "incrby",
    "lpush",
    "mset",
    "persist",
    "pexpire",
    "pexpireat",
    "pfadd",
    "psetex",
    "restore",
    "rpush",
    "sadd",
    "select",
    "set",
    "setex",
    "setrange",
    "unlink",
    "xadd",
    "zadd",
];

/// Loads a file, or standard input, into the connection's dictionary.
pub fn load(
    connection: &mut Connection,
    file: Option<&Path>,
    format: Option<Format>,
    output: &Output,
) -> Outcome {
    let file = file.filter(|file| *file != Path::new("-"));
    let name = file.and_then(Path::file_name).and_then(OsStr::to_str);
    let format = format.or_else(|| name.and_then(Format::of_name)).ok_or_else(|| {
        Failure::new(Exit::Usage, "the name of the input does not say in which form it is")
            .hint("say it: --format csv, jsonl or resp")
    })?;
    let input: Box<dyn BufRead> = match file {
        Some(file) => Box::new(BufReader::with_capacity(
            1 << 20,
            File::open(file)
                .map_err(|e| Failure::io(format!("cannot read {}", file.shown()), &e))?,
        )),
        None => Box::new(BufReader::with_capacity(1 << 20, io::stdin().lock())),
    };
    let mut entries = Entries::new(input, format);
    if connection.is_joined()? {
        let loaded = all(connection, &mut entries, output);
        let loaded = loaded
            .map_err(|failure| failure.with("what comes before that is set in the transaction"))?;
        return said(loaded, output);
    }
    let id = integer(connection.call(&[b"TXN", b"BEGIN", b"LABEL", b"kv load", b"ATTACHED"])?)?;
    connection.call(&[b"TXN", b"JOIN", id.to_string().as_bytes()])?;
    let loaded = all(connection, &mut entries, output).map_err(|failure| {
        // The transaction is attached: if this fails, it ends with the connection.
        let _ = connection.call(&[b"TXN", b"ABORT"]);
        failure.with("nothing was loaded")
    })?;
    let committed = connection.call(&[b"TXN", b"COMMIT"]);
    committed.map_err(|failure| uncommitted(connection, failure))?;
    said(loaded, output)
}

/// Completes the failure of the commit: after an error of the connection or of a sync, the commit
/// may have been made.
fn uncommitted(connection: &mut Connection, failure: Failure) -> Failure {
    let is_open = connection.call(&[b"TXN", b"ABORT"]).is_ok();
    match is_open || failure.exit == Exit::Conflict {
        true => failure.with("nothing was loaded"),
        false => failure.with("all of it was loaded, or nothing"),
    }
}

fn said(loaded: u64, output: &Output) -> Outcome {
    output.print(format!("{loaded} loaded"), json!({"loaded": loaded}))
}

/// Loads all records, and returns their number.
fn all<R: BufRead>(
    connection: &mut Connection,
    entries: &mut Entries<R>,
    output: &Output,
) -> Outcome<u64> {
    let bar = output.progress("loaded", None, false);
    let (mut pairs, mut bytes, mut loaded) = (Vec::new(), 0, 0);
    loop {
        let entry = entries.read()?;
        let at_end = entry.is_none();
        let mut command = None;
        match entry {
            Some(Entry::Put(key, value)) => {
                bytes += key.len() + value.len();
                pairs.push((key, value));
            }
            Some(Entry::Command(words)) => command = Some(words),
            None => {}
        }
        let full = pairs.len() >= MOST_PAIRS || bytes >= MOST_BYTES;
        if full || at_end || command.is_some() {
            put(connection, &pairs).map_err(|failure| up_to(failure, entries))?;
            (pairs, bytes) = (Vec::new(), 0);
        }
        if let Some(words) = command {
            run(connection, &words).map_err(|failure| up_to(failure, entries))?;
        }
        if at_end {
            return Ok(loaded);
        }
        loaded += 1;
        bar.inc(1);
    }
}

/// Says where in the input a command has failed.
fn up_to<R: BufRead>(failure: Failure, entries: &Entries<R>) -> Failure {
    failure.with(&format!("the input was read up to {}", entries.place()))
}

fn put(connection: &mut Connection, pairs: &[(Vec<u8>, Vec<u8>)]) -> Outcome {
    if pairs.is_empty() {
        return Ok(());
    }
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    words.extend(pairs.iter().flat_map(|(key, value)| [&key[..], &value[..]]));
    connection.call(&words).map(drop)
}

fn run(connection: &mut Connection, words: &[Vec<u8>]) -> Outcome {
    let name = words.first().map(Vec::as_slice).unwrap_or_default();
    if !COMMANDS.iter().any(|command| name.eq_ignore_ascii_case(command.as_bytes())) {
        let what = format!("{} is no command that a load may run", text::show(name));
        return Err(Failure::new(Exit::Failed, what)
            .hint("it takes those that set keys, fields, elements and deadlines"));
    }
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    connection.call(&words).map(drop)
}
