//! `kvfs receive`: receives the streams of `kvfs send` into a store.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use kvdb::{ReceiveOptions, Received};
use kvdb_server::Reply;
use serde_json::json;

use crate::support::machine::identity::{self, Identity};
use crate::support::mounts::replies::unexpected;
use crate::support::mounts::{place, sockets};
use crate::support::stores::connection::Connection;
use crate::support::stores::store::{self, Store};
use crate::support::terminal::counted::Counted;
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// Receive a `kvfs send` stream.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs send /mnt monday | kvfs receive backup.kvfs                   # a store that is not mounted
  kvfs send /mnt monday | kvfs receive /backup --clone mnt           # a clone in a mounted store

Receiving sets the store, or the clone, to the state of the snapshot. A stream of a whole \
snapshot requires an empty store or a new clone; a stream of changes requires a store or clone \
that has the base, unchanged. A stream that is interrupted or damaged changes nothing, and the \
part that was received is kept: the same stream resumes it, from its beginning or from the \
position that --positions prints. If a file or pipe has several streams, all are received in \
order. The clone of a mounted store appears at its .kvfs/clone/NAME; files that are open in a \
clone become invalid when it is replaced.")]
pub struct Args {
    /// File of a store, or the directory that it is mounted on, which requires --clone.
    store: PathBuf,
    /// File to read the stream from (default: standard input).
    #[arg(conflicts_with = "input")]
    file: Option<PathBuf>,
    /// Receive into a clone of this name instead of the store itself.
    #[arg(long, value_name = "NAME", default_value = "")]
    clone: String,
    /// Name of the received snapshot in this store.
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// Discard local changes.
    #[arg(long)]
    replace: bool,
    /// The same as FILE.
    #[arg(long, short = 'i', value_name = "FILE")]
    input: Option<PathBuf>,
    /// Print the positions up to which interrupted streams were received, and exit.
    #[arg(long)]
    positions: bool,
}

pub fn run(mut args: Args, output: &Output) -> Outcome {
    if let Some(file) = args.file.take() {
        let (store, file) = place::store_first(args.store, file);
        (args.store, args.input) = (store, Some(file).filter(|file| file.as_os_str() != "-"));
    }
    let mounted = sockets::socket_of(&args.store)?.is_some();
    if mounted && args.positions {
        return positions_of_mounted(&args, output);
    }
    if mounted && args.clone.is_empty() {
        let what = format!("{} is mounted: what is in use cannot be replaced", args.store.shown());
        return Err(Failure::new(Exit::Busy, what)
            .hint("receive into a clone (--clone NAME), or unmount it first"));
    }
    let input =
        args.input.as_deref().map_or_else(|| Identity::of_open(io::stdin()), Identity::of_path);
    identity::must_be_another(
        &args.store,
        input,
        args.input.as_deref().unwrap_or(Path::new("standard input")),
    )?;
    if mounted {
        return take_mounted(&args, output);
    }
    let opened = store::open_waiting(&args.store, store::Access::ReadWrite, None)?;
    let done =
        if args.positions { positions(&opened.db, output) } else { take(&opened, &args, output) };
    done.and(opened.close())
}

fn input(args: &Args) -> Outcome<Box<dyn Read>> {
    Ok(match &args.input {
        Some(path) => Box::new(
            File::open(path)
                .map_err(|e| Failure::io(format!("cannot read {}", path.shown()), &e))?,
        ),
        None => Box::new(io::stdin().lock()),
    })
}

/// The hint if the base of a stream does not exist.
const WITHOUT_BASE: &str = "nothing was changed; receive that snapshot first (kvfs send without \
                            --base), or send what has changed since one that is here: kvfs \
                            snapshot list names them";

/// Passes the streams to the daemon of a mounted store.
fn take_mounted(args: &Args, output: &Output) -> Outcome {
    let mut input = input(args)?;
    let bar = output.progress("receiving", None, true);
    let mut words: Vec<&[u8]> = vec![b"SNAPSHOT", b"RECEIVE", args.clone.as_bytes()];
    if let Some(name) = &args.name {
        words.extend([b"AS", name.as_bytes()]);
    }
    if args.replace {
        words.push(b"REPLACE");
    }
    let mut unread = None;
    let taken = Connection::open(&args.store, false)?.send_stream(&words, |daemon| {
        let mut piece = vec![0; 1 << 20];
        loop {
            match input.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(got) => {
                    daemon.write_all(&piece[..got])?;
                    bar.inc(got as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The daemon sees an interrupted stream.
                Err(error) => {
                    unread = Some(error);
                    return Ok(());
                }
            }
        }
    });
    if let Some(error) = unread {
        return Err(Failure::io("cannot read the stream", &error));
    }
    let reply = taken.map_err(|failure| match failure.exit {
        Exit::NotFound => failure.hint(WITHOUT_BASE),
        _ => failure,
    })?;
    let Reply::Array(all) = reply else { return Err(unexpected(&reply)) };
    for received in &all {
        let Some(Reply::Bulk(snapshot)) = field(received, "snapshot") else {
            return Err(unexpected(received));
        };
        let snapshot = String::from_utf8_lossy(snapshot);
        let (tuples, chunks) = (count(received, "tuples")?, count(received, "chunks")?);
        said(output, &snapshot, tuples, chunks)?;
    }
    Ok(())
}

/// Returns the value of a field in a map.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let Reply::Array(all) = reply else { return None };
    let pairs = all.chunks_exact(2);
    pairs.into_iter().find(|pair| pair[0] == Reply::Bulk(name.into())).map(|pair| &pair[1])
}

fn count(reply: &Reply, name: &str) -> Outcome<u64> {
    match field(reply, name) {
        Some(Reply::Integer(n)) => Ok(n.unsigned_abs()),
        _ => Err(unexpected(reply)),
    }
}

fn said(output: &Output, snapshot: &str, tuples: u64, chunks: u64) -> Outcome {
    let text = format!("received snapshot {snapshot}: {tuples} tuples");
    output.print(text, json!({"snapshot": snapshot, "tuples": tuples, "chunks": chunks}))
}

/// The reason why a stream did not replace the existing state.
enum Refused {
    Store(kvdb::Error),
    Lease(Failure),
}

impl From<kvdb::Error> for Refused {
    fn from(error: kvdb::Error) -> Refused {
        Refused::Store(error)
    }
}

fn take(store: &Store, args: &Args, output: &Output) -> Outcome {
    let db = &store.db;
    let input = input(args)?;
    let bar = output.progress("receiving", None, true);
    let mut options = ReceiveOptions {
        branch: args.clone.clone(),
        snapshot: args.name.clone(),
        replace: args.replace,
    };
    // A new store has a file system without files, which a stream may replace.
    options.replace |= args.clone.is_empty() && is_new(db)?;
    let mut input = Counted(BufReader::with_capacity(1 << 20, input), bar);
    let mut received = 0;
    loop {
        let taken = db.receive_within(&mut input, &options, |replace| {
            // The client that has the lease of the main files would continue over other files than
            // those that it has read. After the first stream it no longer has the lease.
            if args.clone.is_empty() && received == 0 {
                store.end_lease().map_err(Refused::Lease)?;
            }
            replace().map_err(Refused::Store)
        });
        let stats = taken.map_err(|refused| {
            let failure = match refused {
                Refused::Store(e) => failures::of_database("cannot receive", e),
                Refused::Lease(failure) => return failure,
            };
            match received {
                0 if failure.exit == Exit::NotFound => failure.hint(WITHOUT_BASE),
                0 => failure.hint("nothing was changed; the same stream goes on with what has come (see --positions)"),
                n => failure.hint(format!("{n} streams before this one were received and stay; this one changed nothing")),
            }
        })?;
        received += 1;
        said(output, &stats.snapshot, stats.tuples, stats.chunks)?;
        // Several streams may follow one another in one pipe: none of them may be lost.
        if input.0.fill_buf().map_err(|e| Failure::io("cannot read the stream", &e))?.is_empty() {
            return Ok(());
        }
        if let Some(name) = &options.snapshot {
            let what = format!(
                "more follows behind the stream that was received as {name}, and was not taken"
            );
            return Err(Failure::new(Exit::Failed, what)
                .hint("--as names one snapshot: receive streams one by one, or without it"));
        }
        options.replace = args.replace;
    }
}

/// Returns whether the store has no snapshot, no key, no file and no library of functions.
fn is_new(db: &kvdb::Kvdb) -> Outcome<bool> {
    let cannot = |e| failures::of_database("cannot look into the store", e);
    let view = db.view();
    let mut names = 0;
    for dictionary in db.dictionaries() {
        let is_of_users = !dictionary.options.reserved || dictionary.name == ":functions";
        if dictionary.name == "nmap" || is_of_users {
            names += view.scan(dictionary.id, b"", b"", 1).map_err(cannot)?.len();
        }
    }
    Ok(names == 0 && db.snapshot_labels().is_empty())
}

fn positions(db: &kvdb::Kvdb, output: &Output) -> Outcome {
    let all = db.receiving().map_err(|e| failures::of_database("cannot look into the store", e))?;
    list_positions(&all, output)
}

fn positions_of_mounted(args: &Args, output: &Output) -> Outcome {
    let reply = Connection::open(&args.store, false)?.call(&[b"SNAPSHOT", b"RECEIVING"])?;
    let Reply::Array(all) = &reply else { return Err(unexpected(&reply)) };
    let position = |one| match field(one, "position") {
        Some(Reply::Bulk(bytes)) => Received::from_bytes(bytes).map_err(|_| unexpected(one)),
        _ => Err(unexpected(one)),
    };
    list_positions(&all.iter().map(position).collect::<Outcome<Vec<_>>>()?, output)
}

fn list_positions(all: &[Received], output: &Output) -> Outcome {
    let hex =
        |r: &Received| r.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let value: Vec<_> = all
        .iter()
        .map(|r| json!({"position": hex(r), "chunks": r.chunks, "tuples": r.tuples}))
        .collect();
    output.print(all.iter().map(|r| hex(r) + "\n").collect::<String>(), value)
}
