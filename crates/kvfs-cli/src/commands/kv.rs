//! `kvfs kv`: reads and writes the keys and values of a store, mounted or not.
//!
//! A mounted store is accessed through its socket; an unmounted one is opened here. Both run the
//! same commands of `kvdb_server`, so that they behave identically.

mod formats;
mod load;
mod long_value;
mod ranges;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Subcommand;
use formats::Format;
use kvdb_server::Reply;
use long_value::NewValue;
use ranges::{range, scan, tuple_json};
use serde_json::json;

use crate::support::mounts::replies::{bulks, integer, reply_json, reply_text, unexpected};
use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::{sizes, text};

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
    Get {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Key to read.
        key: OsString,
    },
    /// Set a key. Without VALUE, or if it is `-`, the value is read from standard input. A long
    /// value, up to 1 TiB, is written in pieces that become one value in one transaction.
    Put {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Key to set.
        key: OsString,
        /// New value; `-` reads it from standard input (default: the same).
        #[arg(allow_negative_numbers = true)]
        value: Option<OsString>,
        /// Set the key only if it does not exist; otherwise change nothing and exit with 1.
        #[arg(long)]
        new: bool,
    },
    /// Set the keys of a file, in any order, all of them or none.
    #[command(after_help = "\
Forms of the input, by --format or the end of its name:
  csv     a key and a value on each line, with a comma between them, quoted where necessary
  jsonl   an object on each line, as `kvfs --json kv range` prints them: key and value, or
          key_base64 and value_base64 for bytes that are no text
  resp    commands as `redis-cli --pipe` takes them, such as SET, HSET and EXPIREAT

All of it is one transaction. If others change one of the keys in the meantime, nothing is loaded, \
and the command can be repeated. In a program that `kvfs run` has started, for its store, the keys \
are set in the transaction one after the other, and those before an error stay there.")]
    Load {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// File to read; `-` is standard input (default: the same).
        input: Option<PathBuf>,
        /// Form of the input (default: by the end of its name).
        #[arg(long)]
        format: Option<Format>,
    },
    /// Delete keys; exits with 3 if none exists.
    Del {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Keys to delete.
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// List the keys, in order.
    Scan {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// List only keys that match: `*`, `?`, `[a-z]`, as in Redis. A literal prefix is looked up
        /// instead of scanned for.
        #[arg(long = "match", value_name = "PATTERN", default_value = "*")]
        pattern: OsString,
    },
    /// List keys and values from START up to END, in order.
    Range {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// First key of the range (default: no bound).
        start: Option<OsString>,
        /// End of the range: the first key after it (default: no bound).
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
    Delrange {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// First key of the range; an empty one means no bound.
        start: OsString,
        /// End of the range: the first key after it; an empty one means no bound.
        end: OsString,
    },
    /// Delete every key that begins with PREFIX, at the cost of one deletion.
    #[command(alias = "delprefix")]
    DeletePrefix {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Prefix of the keys, taken literally. An empty prefix empties the dictionary.
        prefix: OsString,
    },
    /// Estimate the number of keys and bytes from START up to END, without reading them.
    Estimate {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// First key of the range (default: no bound).
        start: Option<OsString>,
        /// End of the range: the first key after it (default: no bound).
        end: Option<OsString>,
    },
    /// Add BY to the number stored at a key, and print the sum.
    Incr {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Key with a whole number; a key that does not exist counts as 0.
        key: OsString,
        /// Number to add, which may be negative.
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// Count the keys.
    Count {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
    },
    /// List the dictionaries.
    Dicts {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
    },
    /// Run any command of the socket, such as `MGET a b`.
    Call {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Name of the command and its arguments.
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
        | Action::Load { target, .. }
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
        Action::Load { input, format, .. } => {
            load::load(connection, input.as_deref(), *format, output)
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

fn quoted(key: &OsStr) -> String {
    format!("'{}'", text::show(key.as_bytes()))
}

fn no_such_key(dict: &str, keys: &[&OsStr]) -> Failure {
    let keys: Vec<String> = keys.iter().map(|k| quoted(k)).collect();
    Failure::new(Exit::NotFound, format!("no such key in dictionary {dict}: {}", keys.join(", ")))
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
