//! `kvfs send`, `kvfs receive`: transfer snapshots to another store, as a whole or as the changes
//! since an earlier one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use kvdb::{ReceiveOptions, Received, StreamEnd};
use kvdb_server::Reply;
use serde_json::json;

use crate::destination::{self, Judge, Making};
use crate::failures;
use crate::identity::{self, Identity};
use crate::kv::{Connection, unexpected};
use crate::output::{Exit, Failure, Outcome, Output};
use crate::place;
use crate::sizes;
use crate::sockets;
use crate::store;
use crate::text::with_paths;

/// Write a snapshot as a stream for `kvfs receive`: to a file, a pipe, or another machine.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs snapshot create /mnt monday
  kvfs send /mnt monday | ssh there kvfs receive backup.kvfs
  kvfs snapshot create /mnt tuesday
  kvfs send /mnt tuesday --base monday | ssh there kvfs receive backup.kvfs     # only the changes

The stream carries checksums; the receiver applies it only when it is complete.")]
pub struct SendArgs {
    /// Directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Snapshot to send.
    snapshot: String,
    /// Send only the changes since SNAPSHOT, which the receiver must have.
    #[arg(long, short = 'b', value_name = "SNAPSHOT")]
    base: Option<String>,
    /// Resume at the position that `kvfs receive --positions` prints.
    #[arg(long, value_name = "POSITION")]
    from: Option<String>,
    /// Write to FILE instead of standard output.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    making: Making,
}

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
pub struct ReceiveArgs {
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

/// Counts the bytes passed through on a progress bar.
struct Counted<T>(T, ProgressBar);

impl<T: Write> Write for Counted<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.0.write(bytes)?;
        self.1.inc(n as u64);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<T: Read> Read for Counted<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(bytes)?;
        self.1.inc(n as u64);
        Ok(n)
    }
}

/// Detects the end of the stream that is passed through.
struct Watched<'a, T>(&'a mut T, StreamEnd);

impl<T: Write> Write for Watched<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.0.write(bytes)?;
        self.1.pass(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The origin of a stream.
enum Sending {
    /// A store opened by this process.
    Here(Connection),
    /// The daemon of a mounted store, which has begun to send.
    Daemon(Box<dyn Read>),
}

impl Sending {
    fn of(args: &SendArgs, from: Option<&Received>) -> Outcome<Sending> {
        let connection = Connection::open(&args.target, false)?;
        if let Some(opened) = connection.store() {
            let base = args.base.as_deref();
            opened
                .db
                .may_send(&args.snapshot, base, from)
                .map_err(|e| advised(failures::of_database("cannot send", e)))?;
            return Ok(Sending::Here(connection));
        }
        let position = from.map(Received::to_bytes);
        let mut words: Vec<&[u8]> = vec![b"SNAPSHOT", b"SEND", args.snapshot.as_bytes()];
        for (option, value) in [
            (&b"BASE"[..], args.base.as_deref().map(str::as_bytes)),
            (b"FROM", position.as_deref()),
        ] {
            words.extend(value.into_iter().flat_map(|value| [option, value]));
        }
        let stream = connection.stream(&words).map_err(|failure| {
            advised(Failure { message: format!("cannot send: {}", failure.message), ..failure })
        })?;
        Ok(Sending::Daemon(Box::new(stream)))
    }

    fn close(self) -> Outcome {
        match self {
            Sending::Here(connection) => connection.close(),
            Sending::Daemon(_) => Ok(()),
        }
    }
}

/// Adds a hint if a snapshot does not exist.
fn advised(failure: Failure) -> Failure {
    match failure.exit {
        Exit::NotFound => failure.hint(
            "kvfs snapshot list names those that are there; without --base and --from all of a \
             snapshot is sent, for an empty store or a new clone",
        ),
        _ => failure,
    }
}

pub fn send(args: SendArgs, output: &Output) -> Outcome {
    let from = args.from.as_deref().map(position).transpose()?;
    let judge = Judge::reading(&args.target, args.making);
    // Find the snapshot before an existing output file is truncated.
    let mut source = Sending::of(&args, from.as_ref())?;
    let out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(destination::create(path, args.making, judge)?),
        None if io::stdout().is_terminal() => {
            let what = "a stream of bytes is nothing for a terminal";
            return Err(Failure::new(Exit::Usage, what)
                .hint("pipe it into `kvfs receive`, or give --output FILE"));
        }
        None => Box::new(io::stdout().lock()),
    };
    let bar = output.progress(&args.snapshot, None, true);
    let mut out = Counted(BufWriter::with_capacity(1 << 20, out), bar);
    match &mut source {
        Sending::Here(connection) => {
            if let Some(opened) = connection.store() {
                let base = args.base.as_deref();
                let sent = opened.db.send(&args.snapshot, base, &mut out, from.as_ref());
                sent.map_err(|e| failures::of_database("cannot send", e))?;
            }
        }
        Sending::Daemon(stream) => {
            let mut watched = Watched(&mut out, StreamEnd::default());
            let passed = io::copy(stream, &mut watched);
            passed.map_err(|e| Failure::io("cannot pass the stream on", &e))?;
            if !watched.1.has_come() {
                out.flush().map_err(|e| Failure::io("cannot write the stream", &e))?;
                let what = "the stream broke off: the store's daemon has ended, or could not read \
                            the snapshot";
                return Err(Failure::new(Exit::Failed, what).hint(
                    "the daemon's log says which; a receiver keeps what has come, and goes on from \
                     there with the same stream (kvfs receive --positions)",
                ));
            }
        }
    }
    source.close()?;
    out.flush().map_err(|e| Failure::io("cannot write the stream", &e))?;
    match (args.output, out.1.position()) {
        (Some(file), bytes) => {
            let text = format!("wrote {} to {}", sizes::human_size(bytes), file.display());
            output.print(text, with_paths(json!({"bytes": bytes}), &[("file", Some(&file))]))
        }
        (None, _) => Ok(()),
    }
}

pub fn receive(mut args: ReceiveArgs, output: &Output) -> Outcome {
    if let Some(file) = args.file.take() {
        let (store, file) = place::store_first(args.store, file);
        (args.store, args.input) = (store, Some(file).filter(|file| file.as_os_str() != "-"));
    }
    let mounted = sockets::socket_of(&args.store)?.is_some();
    if mounted && args.positions {
        return positions_of_mounted(&args, output);
    }
    if mounted && args.clone.is_empty() {
        let what =
            format!("{} is mounted: what is in use cannot be replaced", args.store.display());
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
    let done = if args.positions {
        positions(&opened.db, output)
    } else {
        take(&opened.db, &args, output)
    };
    done.and(opened.close())
}

fn input(args: &ReceiveArgs) -> Outcome<Box<dyn Read>> {
    Ok(match &args.input {
        Some(path) => Box::new(
            File::open(path)
                .map_err(|e| Failure::io(format!("cannot read {}", path.display()), &e))?,
        ),
        None => Box::new(io::stdin().lock()),
    })
}

/// The hint if the base of a stream does not exist.
const WITHOUT_BASE: &str = "nothing was changed; receive that snapshot first (kvfs send without \
                            --base), or send what has changed since one that is here: kvfs \
                            snapshot list names them";

/// Passes the streams to the daemon of a mounted store.
fn take_mounted(args: &ReceiveArgs, output: &Output) -> Outcome {
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

fn take(db: &kvdb::Kvdb, args: &ReceiveArgs, output: &Output) -> Outcome {
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
        let stats = db.receive(&mut input, &options).map_err(|e| {
            let failure = failures::of_database("cannot receive", e);
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

fn positions_of_mounted(args: &ReceiveArgs, output: &Output) -> Outcome {
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

fn position(hex: &str) -> Outcome<Received> {
    let wrong = || {
        Failure::new(
            Exit::Usage,
            "that is no position: give what `kvfs receive --positions` has printed",
        )
    };
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| wrong());
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect::<Outcome<_>>()?;
    Received::from_bytes(&bytes).map_err(|_| wrong())
}
