//! `kvfs run`: a program in a transaction.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use kvdb_server::Reply;

use crate::changes::{Changes, Choice, Detail, Style};
use crate::mounted::{self, Mounted};
use crate::output::{Exit, Failure, Outcome, Output};
use crate::sandbox::{self, Namespace};
use crate::text::with_paths;

/// Run a program in a transaction: its files and keys become part of the store when it succeeds,
/// and never were when it fails.
#[derive(clap::Args)]
#[command(after_help = "\
The program and its children see the mounted store, at the same paths as ever, as the \
transaction sees it; no other program sees what they change before it commits. Programs that \
know nothing of it need nothing: kvfs run /mnt -- make install

By default exit code 0 commits and anything else aborts. Of two transactions that change the \
same file or key, the first to commit wins (si), or the younger one waits (ser).

In the program's environment: KVFS_TXN, the number of the transaction; KVFS_SOCKET, where the \
store's daemon listens; KVFS_MOUNT, where the store is mounted. `kvfs kv` in it works in the \
transaction by itself; other clients of the socket say: TXN JOIN $KVFS_TXN

Exit codes: the program's, or 128 and the signal that ended it. Of kvfs run itself, when nothing \
was changed: 75 others have changed the same in that time, or needed what it had locked, so run \
it again; 125 something else failed; 126 the program cannot be run; 127 there is no such \
program. After 125 the commit is made all the same where the message says \"committed\": then it \
was its sync that failed.")]
pub struct Args {
    /// The directory a store is mounted on.
    mount: PathBuf,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    end: End,
    /// Do not wait until the commit is on disk; it will be there within the flush interval.
    #[arg(long)]
    no_sync: bool,
    /// Make the view the root of the program (chroot), for where name spaces are not to be had. The
    /// program must lie in the store.
    #[arg(long)]
    chroot: bool,
    /// The program and its arguments, behind `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How a transaction is begun.
#[derive(clap::Args)]
pub struct How {
    /// si: it sees the store as it was when it began; of two that change the same the first to
    /// commit wins. ser: as if it ran alone; what it reads or writes is locked until it ends.
    #[arg(long, short = 'i', value_enum, default_value = "si", value_name = "LEVEL")]
    isolation: Isolation,
    /// A name for the listing.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Abort it when it was not used for so long.
    #[arg(long, value_name = "SECONDS")]
    idle: Option<f64>,
    /// The last to commit wins instead of the first: for those who know that no other program
    /// changes the same (si only).
    #[arg(long)]
    no_check: bool,
    /// It survives a restart of the store's daemon, a crash included; what it writes is written
    /// once more for that (si only).
    #[arg(long)]
    durable: bool,
    /// Its commit cannot be undone with `kvfs undo`, and nothing of what it removes is kept for
    /// that.
    #[arg(long)]
    no_undo: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Isolation {
    Si,
    Ser,
}

#[derive(clap::Args)]
#[group(multiple = false)]
struct End {
    /// Commit whatever the exit code.
    #[arg(long)]
    commit: bool,
    /// Abort whatever the exit code: a rehearsal.
    #[arg(long)]
    abort: bool,
    /// Show what was changed, and ask.
    #[arg(long)]
    ask: bool,
    /// Leave the transaction open and print its number; end it with `kvfs txn commit` or `abort`.
    #[arg(long)]
    keep: bool,
}

impl How {
    /// Begins a transaction: its number.
    pub fn begin(&self, mounted: &mut Mounted, attached: bool, label: &str) -> Outcome<u64> {
        let idle = self.idle.map(|seconds| seconds.to_string());
        let mut words = vec!["BEGIN", if self.isolation == Isolation::Ser { "SER" } else { "SI" }];
        words.extend((!self.no_undo).then_some("UNDOABLE"));
        words.extend(["LABEL", self.label.as_deref().unwrap_or(label)]);
        words.extend(idle.iter().flat_map(|seconds| ["IDLE", seconds.as_str()]));
        words.extend(self.no_check.then_some("NOCHECK"));
        words.extend(self.durable.then_some("DURABLE"));
        words.extend(attached.then_some("ATTACHED"));
        match mounted.txn(&words)? {
            Reply::Integer(id) => Ok(id as u64),
            other => Err(Failure::new(
                Exit::Failed,
                format!("the store's daemon gave an unexpected reply: {other:?}"),
            )),
        }
    }
}

/// Where the program is to be, and what it is to be told.
pub fn enter(
    mounted: &Mounted,
    id: u64,
    chroot: bool,
    command: &[OsString],
    output: &Output,
) -> Outcome<sandbox::Code> {
    mounted.must_have_views()?;
    let view = mounted.view(id);
    if !view.is_dir() {
        return Err(Failure::new(Exit::NotFound, format!("{} is not there", view.display())));
    }
    let mut environment = vec![(mounted::TRANSACTION, OsString::from(id.to_string()))];
    let namespace = if chroot {
        // The socket is out of reach there.
        environment.push((mounted::MOUNT, "/".into()));
        Namespace::Root { view }
    } else {
        environment.push((mounted::SOCKET, mounted.socket.clone().into()));
        environment.push((mounted::MOUNT, mounted.mount_point.clone().into()));
        Namespace::Bound { view, mount_point: mounted.mount_point.clone() }
    };
    sandbox::run(&namespace, command, &environment, output)
}

/// Ends with the program's exit code.
pub fn run(args: Args, output: &Output) -> ExitCode {
    match run_and_end(&args, output) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.print_error(&failure);
            ExitCode::from(if failure.exit == Exit::Conflict {
                Exit::TRY_AGAIN
            } else {
                sandbox::NOT_STARTED
            })
        }
    }
}

fn run_and_end(args: &Args, output: &Output) -> Outcome<sandbox::Code> {
    let mut mounted = Mounted::find(&args.mount)?;
    if let Some(id) = mounted.entered() {
        let what =
            format!("this already runs in transaction {id} of {}", mounted.mount_point.display());
        return Err(Failure::new(Exit::Usage, what)
            .hint("a transaction in a transaction is not possible; run the program as it is"));
    }
    mounted.must_have_views()?;
    let mut terminal = if args.end.ask { Some(Terminal::open()?) } else { None };
    let label =
        args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    // Attached: if we are killed, it ends with us.
    let id = args.how.begin(&mut mounted, true, &label)?;
    let code = match enter(&mounted, id, args.chroot, &args.command, output) {
        Ok(code) => code,
        Err(failure) => {
            mounted.txn(&["ABORT", &id.to_string()])?;
            return Err(failure);
        }
    };
    let number = id.to_string();
    let end = match &mut terminal {
        Some(terminal) => terminal.ask(&mut mounted, id, code)?,
        None if args.end.keep => Answer::Keep,
        None if args.end.commit || code == 0 && !args.end.abort => Answer::Commit,
        None => Answer::Abort,
    };
    match end {
        Answer::Commit => {
            let mut words = vec!["COMMIT", &number];
            words.extend((!args.no_sync).then_some("SYNC"));
            mounted.txn(&words)?;
        }
        Answer::Abort => {
            mounted.txn(&["ABORT", &number])?;
            match (args.end.abort, args.end.ask) {
                (true, _) => {}
                (_, true) => output.note("nothing was changed"),
                _ => output.note(format!("aborted (exit code {code}): nothing was changed")),
            }
        }
        Answer::Keep => {
            mounted.txn(&["KEEP", &number])?;
            let value = serde_json::json!({"id": id, "exit": code});
            output.print(id, with_paths(value, &[("view", Some(&mounted.view(id)))]))?;
        }
    }
    Ok(code)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Commit,
    Abort,
    Keep,
}

/// Where the question is asked: the terminal, wherever standard input and output lead to.
struct Terminal {
    input: BufReader<std::fs::File>,
    output: std::fs::File,
}

impl Terminal {
    fn open() -> Outcome<Terminal> {
        let cannot = |e: std::io::Error| {
            Failure::io("cannot ask: there is no terminal", &e)
                .hint("decide beforehand: --commit, --abort, or --keep")
        };
        let output =
            std::fs::File::options().read(true).write(true).open("/dev/tty").map_err(cannot)?;
        if !output.is_terminal() {
            return Err(cannot(std::io::ErrorKind::Unsupported.into()));
        }
        let input = BufReader::new(output.try_clone().map_err(cannot)?);
        Ok(Terminal { input, output })
    }

    fn ask(&mut self, mounted: &mut Mounted, id: u64, code: sandbox::Code) -> Outcome<Answer> {
        let cannot = |e: std::io::Error| Failure::io("cannot ask on the terminal", &e);
        let mut changes = Changes::of(mounted, id, false)?;
        let (detail, style) = (Detail::default(), Detail::default().style_of_terminal());
        let mut shown = changes.text(detail, style);
        if code != 0 {
            shown.extend_from_slice(format!("The program ended with {code}.\n").as_bytes());
        }
        loop {
            self.output.write_all(&shown).map_err(cannot)?;
            // The end of the input is no consent.
            let question = "Commit? [y]es, [n]o, [s]elect, [k]eep it open, [d]ifferences: ";
            let Some(answer) = self.answer(question)? else { return Ok(Answer::Abort) };
            shown = match answer.as_str() {
                "y" | "yes" => return Ok(Answer::Commit),
                "n" | "no" => return Ok(Answer::Abort),
                "k" | "keep" => return Ok(Answer::Keep),
                "s" | "select" => {
                    let Some(left) = self.select(&changes, style)? else { continue };
                    changes.revert(mounted, id, &left)?;
                    changes = Changes::of(mounted, id, false)?;
                    changes.text(detail, style)
                }
                "d" | "diff" | "differences" => {
                    Changes::of(mounted, id, true)?.text(detail.with_patch(), style)
                }
                _ => Vec::new(),
            };
        }
    }

    /// The answer to a question; `None`: the input has ended.
    fn answer(&mut self, question: &str) -> Outcome<Option<String>> {
        let cannot = |e: std::io::Error| Failure::io("cannot ask on the terminal", &e);
        write!(self.output, "{question}").map_err(cannot)?;
        self.output.flush().map_err(cannot)?;
        let mut line = String::new();
        let read = self.input.read_line(&mut line).map_err(cannot)?;
        Ok((read > 0).then(|| line.trim().to_ascii_lowercase()))
    }

    /// What is to be left out of the commit; `None`: nothing was decided.
    fn select(&mut self, changes: &Changes, style: Style) -> Outcome<Option<Vec<Choice>>> {
        let cannot = |e: std::io::Error| Failure::io("cannot ask on the terminal", &e);
        let mut left = Vec::new();
        let mut all = changes.choices().into_iter();
        while let Some(choice) = all.next() {
            self.output.write_all(&changes.describe(&choice, style)).map_err(cannot)?;
            loop {
                let question =
                    "Take it? [y]es, [n]o, [a]ll of the rest, [l]eave the rest, [b]ack: ";
                match self.answer(question)?.as_deref() {
                    Some("y" | "yes") => break,
                    Some("n" | "no") => {
                        left.push(choice);
                        break;
                    }
                    Some("a" | "all") => return Ok(Some(left)),
                    Some("l" | "leave") => {
                        left.push(choice);
                        left.extend(all);
                        return Ok(Some(left));
                    }
                    Some("b" | "back") | None => return Ok(None),
                    Some(_) => {}
                }
            }
        }
        Ok(Some(left))
    }
}
