//! `kvfs send`: writes a snapshot as a stream, as a whole or as the changes since an earlier one.

use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::PathBuf;

use kvdb::{Received, StreamEnd};
use serde_json::json;

use crate::support::machine::destination::{self, Judge, Making};
use crate::support::stores::connection::Connection;
use crate::support::stores::snapshots::must_be_of_named;
use crate::support::terminal::counted::Counted;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::with_paths;
use crate::support::terminal::{failures, sizes};

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
    /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
    /// store that is not mounted.
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
        must_be_of_named(&args.target, &args.snapshot)?;
        let connection = Connection::of_branch(&args.target, false)?;
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
            let text = format!("wrote {} to {}", sizes::human_size(bytes), file.shown());
            output.print(text, with_paths(json!({"bytes": bytes}), &[("file", Some(&file))]))
        }
        (None, _) => Ok(()),
    }
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
