//! `kvfs dict`: manages the dictionaries of keys and their options, in a store that is mounted or
//! not.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::mounts::mounted::fields;
use crate::support::mounts::replies::bulks;
use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::{sizes, text};

/// List, create, change and drop dictionaries of keys.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file \
of a store that is not mounted. A dictionary is a separate key space, with options for the storage \
of its keys and values; a clone has dictionaries of its own. Changed options are durable when the \
command ends, and apply to later writes; `kvfs compact` rewrites existing data with them. The \
options are those of DICT on the socket. The dictionaries of the file system are not listed and \
cannot be changed. In a program that `kvfs run` has started, these commands change the store \
itself, immediately.

  kvfs dict create my.kvfs log --stitch-at never --compression zstd
  kvfs dict set my.kvfs photos --separate-at 4K    # store values from 4 KiB on outside their block
  kvfs compact my.kvfs photos                      # apply it to existing values
  kvfs dict info my.kvfs photos")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the dictionaries by name, with their options.
    #[command(visible_alias = "ls")]
    List {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
    },
    /// Show the options of a dictionary.
    Info {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Name of the dictionary.
        name: String,
    },
    /// Create a dictionary. Options that are left out are the same as in a dictionary that is
    /// created by its first write.
    Create {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Name of the new dictionary.
        name: String,
        #[command(flatten)]
        options: Options,
    },
    /// Change options of a dictionary; all others stay as they are.
    Set {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Name of the dictionary.
        name: String,
        #[command(flatten)]
        options: Options,
    },
    /// Drop a dictionary with all its keys. Snapshots keep their copies.
    #[command(visible_alias = "rm")]
    Drop {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Name of the dictionary.
        name: String,
    },
}

/// Storage options of a dictionary.
#[derive(clap::Args)]
struct Options {
    /// Store values of at least this length outside their block: bytes, or with a unit (4K).
    /// `adaptive` is 2K, and 512 bytes while the dictionary is being overwritten.
    #[arg(long, value_name = "BYTES|adaptive|never", value_parser = separate_at)]
    separate_at: Option<String>,
    /// In merges, copy spans that are shorter than this, and refer to longer ones. 0 copies only
    /// what must be merged; `never` copies everything, as an LSM-tree does; `adaptive` depends on
    /// the lengths of the existing spans.
    #[arg(long, value_name = "BYTES|adaptive|never", value_parser = stitch_at)]
    stitch_at: Option<String>,
    /// Compression of blocks of keys and small values.
    #[arg(long, value_name = "CODEC", value_parser = ["none", "lz4", "zstd"])]
    compression: Option<String>,
    /// Compression of values outside their block.
    #[arg(long, value_name = "CODEC", value_parser = ["none", "lz4", "zstd"])]
    value_compression: Option<String>,
    /// Rate of false positives of the filters: of 10,000 lookups of missing keys, at most this many
    /// read the device. 0 uses no filters.
    #[arg(long, value_name = "OF-10000", value_parser = clap::value_parser!(u16).range(..=10_000))]
    false_positives: Option<u16>,
    /// Merge a key that both the transaction and others have changed, instead of failing with a
    /// conflict: add both changes to a whole number, keep the larger or the smaller number, or
    /// unite sets of lines.
    #[arg(long, value_name = "RULE", value_parser = ["none", "add", "max", "min", "union"])]
    merge: Option<String>,
}

impl Options {
    /// Returns the options that are set, as words of the socket command.
    fn words(self) -> Vec<String> {
        let given = [
            ("separate-at", self.separate_at),
            ("stitch-at", self.stitch_at),
            ("compression", self.compression),
            ("value-compression", self.value_compression),
            ("false-positives", self.false_positives.map(|rate| rate.to_string())),
            ("merge", self.merge),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [name.into(), value]).collect()
    }
}

fn separate_at(text: &str) -> Result<String, String> {
    match text {
        "adaptive" | "never" => Ok(text.into()),
        // The words are stored as the greatest numbers, which are therefore not accepted.
        _ => match sizes::parse_size(text)? {
            bytes if bytes < 2 << 30 => Ok(bytes.to_string()),
            _ => Err("values are never so long: write less than 2G, or `never`".into()),
        },
    }
}

fn stitch_at(text: &str) -> Result<String, String> {
    match text {
        "adaptive" | "never" => Ok(text.into()),
        _ => sizes::parse_size(text).map(|bytes| bytes.to_string()),
    }
}

pub fn run(args: Args, output: &Output) -> Outcome {
    match args.action {
        Action::List { target } => {
            let mut connection = Connection::of_branch(&target, false)?;
            let listed = list(&mut connection);
            connection.close()?;
            let listed = listed?;
            let width = listed
                .iter()
                .map(|(name, _)| text::show(name.as_bytes()).chars().count())
                .max()
                .unwrap_or(0);
            let lines = listed
                .iter()
                .map(|(name, options)| {
                    format!("{:width$}  {}\n", text::show(name.as_bytes()), line(options))
                })
                .collect::<String>();
            let all = listed
                .iter()
                .map(|(name, options)| json!({"name": name, "options": options}))
                .collect::<Vec<_>>();
            output.print(lines, all)
        }
        Action::Info { target, name } => {
            let options = fields(with(&target, false, &["DICT", "INFO", &name])?)?;
            let lines = options
                .iter()
                .map(|(option, value)| format!("{option:18}{}\n", value.as_str().unwrap_or("?")))
                .collect::<String>();
            output.print(lines, json!({"name": name, "options": options}))
        }
        Action::Create { target, name, options } => {
            change(&target, "CREATE", &name, options.words())?;
            output.print("", json!({"created": name}))
        }
        Action::Set { target, name, options } => {
            let words = options.words();
            if words.is_empty() {
                let what = format!("no option of dictionary {name} is given to be changed");
                return Err(Failure::new(Exit::Usage, what)
                    .hint("kvfs dict set --help lists them; kvfs dict info shows what is set"));
            }
            change(&target, "SET", &name, words)?;
            output.print("", json!({"changed": name}))
        }
        Action::Drop { target, name } => {
            with(&target, true, &["DICT", "DROP", &name])?;
            output.print("", json!({"dropped": name}))
        }
    }
}

fn change(target: &Path, action: &str, name: &str, options: Vec<String>) -> Outcome {
    let mut words = vec!["DICT", action, name];
    words.extend(options.iter().map(String::as_str));
    with(target, true, &words).map(drop)
}

fn list(connection: &mut Connection) -> Outcome<Vec<(String, Map<String, Value>)>> {
    let mut all = Vec::new();
    for name in bulks(connection.call(&[b"DICT", b"LIST"])?)? {
        let options = fields(connection.call(&[b"DICT", b"INFO", &name])?)?;
        all.push((String::from_utf8_lossy(&name).into_owned(), options));
    }
    Ok(all)
}

/// Formats the options as one line.
fn line(options: &Map<String, Value>) -> String {
    let shown =
        options.iter().map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or("?")));
    shown.collect::<Vec<_>>().join(", ")
}

/// Runs one command on the store, or on the clone that the path leads to.
fn with(target: &Path, writes: bool, words: &[&str]) -> Outcome<Reply> {
    let mut connection = Connection::of_branch(target, writes)?;
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = connection.call(&words);
    let closed = connection.close();
    reply.and_then(|reply| closed.map(|()| reply))
}
