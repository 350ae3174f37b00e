//! `kvfs run`: runs a program in a transaction. `there` does so for a transaction on a server, and
//! `over` for a folder that is in no store, `layered` with the program's files in a layer of this
//! machine until it has ended.

mod layered;
mod over;
mod there;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvdb_server::Reply;

use crate::commands::mount;
use crate::support::machine::sandbox::{self, Namespace, Overlay};
use crate::support::mounts::mounted::{self, Commit, Mounted, NotCommitted};
use crate::support::mounts::place::View;
use crate::support::review::merge_requests::{Author, Choices, Rebased, rebase_transaction};
use crate::support::review::proposed;
use crate::support::review::question::{Answer, Question};
use crate::support::review::reviewed::OfMount;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::sizes;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{show, with_paths};

use layered::Layered;

/// Run a program in a transaction: commit on exit 0, otherwise discard.
#[derive(clap::Args)]
#[command(after_help = "\
The program and its children see the mounted store at the usual paths, in the state of the \
transaction; other programs do not see their changes before the commit. Programs need not be \
adapted: kvfs run /mnt -- make install

By default exit code 0 commits, and any other aborts. Of two transactions that change the same \
file or key, the first to commit wins (si), or the younger one waits (ser).

Inside of a program that `kvfs run` has started, kvfs run begins a nested transaction: it sees \
the changes of the outer transaction so far, and commits into it. Several nested transactions may \
run at once; of two that change the same file or key, the first to commit wins.

Environment of the program: KVFS_TXN, the number of the transaction; KVFS_SOCKET, the socket of \
the store's daemon; KVFS_MOUNT, the mount point. `kvfs kv` uses the transaction automatically; \
other clients of the socket join it by: TXN JOIN $KVFS_TXN

With --layer the program works at the speed of this machine's own file systems: what it writes \
goes to a scratch directory above the transaction (a kernel overlay), and into the transaction \
when the program has ended, at once. Then all is as without it: review, selection, commit, \
conflicts, undo. Inside, kvfs commands on that mount are refused, since they would not see those \
files, and KVFS_TXN and KVFS_SOCKET are not set. Programs that it leaves running are ended.

For a store on a server (kvfs serve --write), the transaction begins on the server, and is \
mounted on a new directory, KVFS_MOUNT, in which the program runs:

  kvfs run kvfs+unix:/run/my.sock -- make install DESTDIR=.

A path after the address (kvfs+unix:SOCKET:/PATH, kvfs://HOST:PORT/PATH) mounts a directory of the \
store there.

--durable, --commit, --abort, --ask, --keep, --no-keep and --no-sync mean the same there. With \
--durable the command that continues the transaction, if this one is killed, is printed on \
standard error before the program starts. --rebase and --layer are not available.

For a folder of any file system, without a store, --over runs the program over it:

  kvfs run --over project --ask -- make fix
  kvfs undo project                   # takes the last run back

What the program changes is in a layer above the folder until it ends, and then comes into the \
folder as a whole, by renames and a log: the next command completes what was interrupted. Files \
that others have changed during the run are a conflict. Other programs may see a part of the \
changes while they are applied. Programs that still run at the end are ended.

Exit codes: that of the program, or 128 plus the signal that ended it. From kvfs run itself, if \
nothing was changed: 75 others have changed the same files or keys since the start, or needed \
what the transaction had locked: run it again (the transaction is kept open, and its number is \
printed, unless --no-keep is given); 125 something else failed; 126 the program cannot be run; \
127 there is no such program. If the message of a 125 says \"committed\", the commit was made, \
and only its sync failed.")]
pub struct Args {
    /// Directory a store is mounted on; or a clone in it (/mnt/.kvfs/clone/NAME), to begin the
    /// transaction in that clone; or kvfs+unix:SOCKET, served by `kvfs serve --write`; with --over,
    /// a folder of any file system.
    mount: PathBuf,
    /// Run over a folder that is in no store: what the program changes comes into the folder as a
    /// whole, or not at all.
    #[arg(long, conflicts_with_all = [
        "isolation", "idle", "no_check", "durable", "limit", "no_undo", "no_sync", "rebase",
        "chroot", "layer",
    ])]
    over: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    end: End,
    /// Do not wait until the commit is on disk; it gets there within the flush interval.
    #[arg(long)]
    no_sync: bool,
    /// Discard the transaction after a conflict; without this it stays open, with all changes of
    /// the program.
    #[arg(long)]
    no_keep: bool,
    /// Rebase the transaction after a conflict onto the commits of others (kvfs txn rebase), and
    /// commit it. Files and keys that both have changed are still a conflict.
    #[arg(long, conflicts_with_all = ["ask", "abort", "keep"])]
    rebase: bool,
    /// Make the view the root of the program (chroot), for systems without name spaces. The program
    /// must be in the store.
    #[arg(long)]
    chroot: bool,
    /// Keep the program's files in a layer on this machine until it has ended, and then put them
    /// into the transaction: faster for programs that make many files. A change of some bytes in a
    /// file copies the whole file to the scratch directory first (si only).
    #[arg(long)]
    layer: bool,
    /// Make the scratch directory of --layer in DIR, on a file system of this machine with room for
    /// all that the program writes; by default in TMPDIR, next to the store's file, or in /var/tmp.
    #[arg(long, value_name = "DIR", requires = "layer")]
    scratch: Option<PathBuf>,
    /// Program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Options to begin a transaction with.
#[derive(clap::Args)]
pub struct How {
    /// Isolation level. si: the transaction sees the store as it was at the beginning; of two that
    /// change the same file or key, the first to commit wins. ser: the transaction behaves as if it
    /// ran alone; everything it reads or writes is locked until it ends.
    #[arg(long, short = 'i', value_enum, default_value = "si", value_name = "LEVEL")]
    isolation: Isolation,
    /// Label of the transaction in listings.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Abort the transaction after it was not used for SECONDS.
    #[arg(long, value_name = "SECONDS")]
    idle: Option<f64>,
    /// Skip the check for conflicts of keys: the last to commit wins instead of the first. Use it
    /// only if no other program changes the same keys. Files that both change are still a conflict,
    /// since names, links and contents must be consistent (si only).
    #[arg(long)]
    no_check: bool,
    /// Let the transaction survive a restart of the daemon, even after a crash; its changes are
    /// written twice for that (si only).
    #[arg(long)]
    durable: bool,
    /// Limit the space of the changes in the transaction (10G), the number of files that it creates
    /// (100000f), or both (10G,100000f). Beyond the limit, writes in the transaction fail as on a
    /// full disk (ENOSPC); others are not affected.
    #[arg(long, value_name = "LIMIT", value_parser = sizes::parse_limit)]
    limit: Option<sizes::Limit>,
    /// Make the commit one that `kvfs undo` cannot undo, and keep none of the data that it removes.
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
    /// Commit regardless of the exit code.
    #[arg(long)]
    commit: bool,
    /// Abort regardless of the exit code, for a rehearsal.
    #[arg(long)]
    abort: bool,
    /// Show the changes, and ask whether to commit them.
    #[arg(long)]
    ask: bool,
    /// Leave the transaction open and print its number; end it with `kvfs txn commit` or `abort`.
    #[arg(long)]
    keep: bool,
}

impl How {
    /// Begins a transaction. Returns its number.
    pub fn begin(
        &self,
        mounted: &mut Mounted,
        within: Option<u64>,
        attached: bool,
        label: &str,
    ) -> Outcome<u64> {
        if self.no_check && self.isolation == Isolation::Ser {
            let what = "a serializable transaction checks what it has read: --no-check is for si";
            return Err(Failure::new(Exit::Usage, what).hint("leave out one of the two"));
        }
        let around = within.map(|id| id.to_string());
        let idle = self.idle.map(|seconds| seconds.to_string());
        let limit = self.limit.unwrap_or_default();
        let [bytes, files] =
            [limit.bytes, limit.files].map(|most| most.map(|most| most.to_string()));
        let clone = mounted.view.clone_name().map(String::from);
        let mut words = vec!["BEGIN", if self.isolation == Isolation::Ser { "SER" } else { "SI" }];
        words.push("INPLACE");
        words.extend(clone.iter().flat_map(|clone| ["OF", clone]));
        // A commit into an outer transaction is undone by aborting that one.
        words.extend((!self.no_undo && within.is_none()).then_some("UNDOABLE"));
        words.extend(around.iter().flat_map(|id| ["WITHIN", id.as_str()]));
        words.extend(["LABEL", self.label.as_deref().unwrap_or(label)]);
        words.extend(idle.iter().flat_map(|seconds| ["IDLE", seconds.as_str()]));
        words.extend(bytes.iter().flat_map(|bytes| ["LIMIT", bytes.as_str()]));
        words.extend(files.iter().flat_map(|files| ["FILES", files.as_str()]));
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

/// Limit of the rebases of a transaction that others repeatedly commit before.
const REBASES: usize = 16;

/// The value `0` prevents git from making changes that it was not asked for.
const GIT_LOCKS: &str = "GIT_OPTIONAL_LOCKS";

/// Returns the view that a transaction replaces for a program, and its path.
fn replaced(mounted: &mut Mounted, id: u64) -> Outcome<(View, PathBuf)> {
    if mounted.bound && matches!(mounted.view, View::Transaction(_)) {
        return Ok((mounted.view.clone(), mounted.mounted_at.clone()));
    }
    let of = mounted.view_beneath(id)?;
    let place = mounted.path_of(&of);
    Ok((of, place))
}

/// Runs the program in the view of a transaction, with the environment that identifies the
/// transaction. See [`sandbox::run`] for `ends_with`.
pub fn enter(
    mounted: &mut Mounted,
    id: u64,
    chroot: bool,
    ends_with: Option<i32>,
    command: &[OsString],
    output: &Output,
) -> Outcome<sandbox::Code> {
    let how = if chroot { Entered::Chroot } else { Entered::Bound(None) };
    enter_by(mounted, id, how, ends_with, command, output)
}

/// The way in which a program sees a transaction.
enum Entered {
    /// The view is its root.
    Chroot,
    /// The view replaces the store, or the overlay above the view does.
    Bound(Option<Overlay>),
}

fn enter_by(
    mounted: &mut Mounted,
    id: u64,
    how: Entered,
    ends_with: Option<i32>,
    command: &[OsString],
    output: &Output,
) -> Outcome<sandbox::Code> {
    mounted.must_have_views()?;
    let view = mounted.view(id);
    if !view.is_dir() {
        return Err(Failure::new(Exit::NotFound, format!("{} is not there", view.shown())));
    }
    let mut environment: Vec<(&str, OsString)> = Vec::new();
    // A program in an overlay does not find the transaction, which does not have its files yet.
    let is_told = !matches!(how, Entered::Bound(Some(_)));
    if is_told {
        environment.push((mounted::TRANSACTION, id.to_string().into()));
    }
    // `git status` rewrites its index if that was written in the same second as a file was changed.
    // A user who only looks does not want to commit that.
    if std::env::var_os(GIT_LOCKS).is_none() {
        environment.push((GIT_LOCKS, "0".into()));
    }
    let namespace = match how {
        Entered::Chroot => {
            // The socket cannot be reached in a chroot.
            environment.push((mounted::MOUNT, "/".into()));
            Namespace::Root { view }
        }
        Entered::Bound(overlay) => {
            if is_told {
                environment.push((mounted::SOCKET, mounted.socket.clone().into()));
            }
            let (of, place) = replaced(mounted, id)?;
            environment.push((mounted::MOUNT, place.clone().into()));
            Namespace::Bound { view, of, mount_point: mounted.mount_point.clone(), place, overlay }
        }
    };
    sandbox::run(&namespace, command, &environment, ends_with, output)
}

/// Runs the command, and exits with the program's exit code.
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

/// Adds to the failure of a run in a folder that is in no store that it may run over the folder.
fn tell_of_over(mut failure: Failure, folder: &Path) -> Failure {
    if failure.exit == Exit::NotFound && folder.is_dir() {
        let more = format!("without a store: kvfs run --over {} -- COMMAND", folder.shown());
        failure.hint = Some(match failure.hint.take() {
            Some(hint) => format!("{hint}; {more}"),
            None => more,
        });
    }
    failure
}

fn run_and_end(args: &Args, output: &Output) -> Outcome<sandbox::Code> {
    if args.over {
        return over::run(args, output);
    }
    if let Some(server) = mount::address(&args.mount) {
        return there::run(&server?, args, output);
    }
    let found = Mounted::find_branch(&args.mount);
    let mut mounted = found.map_err(|failure| tell_of_over(failure, &args.mount))?;
    let within = mounted.around(&args.mount)?;
    mounted.must_have_views()?;
    if args.layer {
        layered::refuse_others(args)?;
    }
    let terminal = match args.end.ask {
        true => Some(Terminal::open("decide beforehand: --commit, --abort, or --keep")?),
        false => None,
    };
    let label =
        args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    if terminal.is_some() || args.layer {
        // Prevents the program from committing the transaction itself, and from changing the store
        // in a way that bypasses the question or the layer.
        mounted.seal()?;
    }
    // Attached: if this process is killed, the transaction ends with it.
    let mut id = args.how.begin(&mut mounted, within, true, &label)?;
    let number = id.to_string();
    let (code, layer) = match start(&mut mounted, id, args, output) {
        Ok(started) => started,
        Err(failure) => {
            mounted.txn(&["ABORT", &number])?;
            return Err(failure);
        }
    };
    find_again(&mut mounted, id, terminal.is_some())?;
    if let Some(layer) = layer {
        let is_refused = args.end.abort || code != 0 && !args.end.commit && !args.end.keep;
        let wanted = terminal.is_some() || !is_refused;
        if let Err(failure) = layer.end(&mut mounted, wanted, output) {
            // If the daemon has ended, so has the transaction.
            let _ = mounted.txn(&["ABORT", &number]);
            return Err(failure);
        }
    }
    let ended = (code != 0).then(|| format!("The program ended with {code}."));
    let mut asked = terminal.map(|terminal| Question::new(terminal, ended));
    let (end, state) = loop {
        let (end, state) = match &mut asked {
            Some(question) => {
                let asked = question.ask(&mut OfMount { mounted: &mut mounted, id });
                asked.map_err(|failure| {
                    // If the list of changes cannot be shown, the program's changes are kept.
                    match mounted.txn(&["KEEP", &number]) {
                        Ok(_) => failure.hint(format!("it is kept as transaction {id}")),
                        Err(_) => failure,
                    }
                })?
            }
            None if args.end.keep => (Answer::Keep, None),
            None if args.end.commit || code == 0 && !args.end.abort => (Answer::Commit, None),
            None => (Answer::Abort, None),
        };
        let (Answer::Commit, Some(question)) = (end, &mut asked) else { break (end, state) };
        match commit(&mut mounted, id, args, state.as_deref()) {
            Err(NotCommitted::Changed(_)) => {
                question.say_that_it_changed()?;
            }
            done => {
                return done
                    .map(|()| code)
                    .map_err(|why| not_committed(&mut mounted, id, args, why));
            }
        }
    };
    match end {
        Answer::Commit => commit_rebased(&mut mounted, &mut id, args, state.as_deref())
            .map_err(|why| not_committed(&mut mounted, id, args, why))?,
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

/// Runs the program, above the transaction if that is wanted. Returns its exit code and the layer.
fn start(
    mounted: &mut Mounted,
    id: u64,
    args: &Args,
    output: &Output,
) -> Outcome<(sandbox::Code, Option<Layered>)> {
    let layer = args.layer.then(|| Layered::make(args, mounted, id)).transpose()?;
    let overlay = layer.as_ref().map(Layered::overlay).transpose()?;
    let how = if args.chroot { Entered::Chroot } else { Entered::Bound(overlay) };
    Ok((enter_by(mounted, id, how, None, &args.command, output)?, layer))
}

/// Fails if the transaction has ended with the store's daemon. `sealed` is set if processes that
/// the program has started were kept from ending the transaction; another daemon does not know of
/// that seal.
fn find_again(mounted: &mut Mounted, id: u64, sealed: bool) -> Outcome {
    if mounted.connect_again()? {
        return Ok(());
    }
    let mount = mounted.mount_point.display().to_string();
    match mounted.txn(&["STATUS", &id.to_string()]) {
        Ok(_) if !sealed => Ok(()),
        Ok(_) => {
            let what = "the store's daemon ended while the program ran, and another one goes on";
            Err(Failure::new(Exit::Failed, what)
                .hint(format!("it is kept as transaction {id}: see kvfs txn diff {mount} {id}")))
        }
        Err(failure) if failure.exit == Exit::NotFound => {
            let what = format!(
                "the store's daemon ended while the program ran, and transaction {id} with it"
            );
            Err(Failure::new(Exit::Failed, what).hint(
                "what the program did in it is gone; with --durable it goes on where the mount \
                 has a keeper",
            ))
        }
        Err(failure) => Err(failure),
    }
}

fn commit(
    mounted: &mut Mounted,
    id: u64,
    args: &Args,
    state: Option<&str>,
) -> Result<(), NotCommitted> {
    let stay = !args.no_keep || args.rebase;
    let how = Commit { sync: !args.no_sync, state, stay, ..Commit::default() };
    let commit = |mounted: &mut Mounted| mounted.commit(id, how);
    let failure = match commit(mounted) {
        Err(NotCommitted::Failed(failure)) => failure,
        done => return done,
    };
    if mounted.connect_again().unwrap_or(true) {
        return Err(NotCommitted::Failed(failure));
    }
    // The daemon was killed during the commit. If the transaction is still open, it was not
    // committed.
    match mounted.txn(&["STATUS", &id.to_string()]) {
        Ok(_) => commit(mounted),
        Err(_) => Err(NotCommitted::Failed(failure.hint(format!(
            "the store's daemon ended during the commit: kvfs history {} shows whether it is there",
            mounted.mount_point.shown()
        )))),
    }
}

/// Commits. If `--rebase` is given, rebases the transaction whenever others have committed changes
/// of the same files and keys before it, up to a limit; then `id` becomes the number of the rebased
/// transaction.
fn commit_rebased(
    mounted: &mut Mounted,
    id: &mut u64,
    args: &Args,
    state: Option<&str>,
) -> Result<(), NotCommitted> {
    for _ in 0..REBASES {
        let failure = match commit(mounted, *id, args, state) {
            Err(NotCommitted::Conflict(failure)) if args.rebase => failure,
            done => return done,
        };
        let choices = Choices::default();
        match rebase_transaction(*id, &choices, |words| mounted.call(words)) {
            Ok(Rebased::Done(new)) => *id = new,
            Ok(Rebased::Against(conflicts, more)) => {
                let ours = format!("transaction {id}");
                let all: Vec<String> =
                    conflicts.iter().map(|one| one.line(&ours, "what is there now")).collect();
                let total = all.len().saturating_add(usize::try_from(more).unwrap_or(usize::MAX));
                let what = format!("both have changed {}", proposed::some_of_all(&all, total));
                return Err(NotCommitted::Conflict(Failure::new(Exit::Conflict, what)));
            }
            // The transaction is over or cannot be rebased, so only the conflict is reported.
            Err(_) => return Err(NotCommitted::Conflict(failure)),
        }
    }
    commit(mounted, *id, args, state)
}

/// Keeps the program's changes after a conflict, unless the user does not want that.
fn not_committed(mounted: &mut Mounted, id: u64, args: &Args, why: NotCommitted) -> Failure {
    let what = match why {
        NotCommitted::Conflict(failure) if args.no_keep => {
            // The transaction has already ended, unless it was to be rebased.
            let _ = mounted.txn(&["ABORT", &id.to_string()]);
            return failure;
        }
        // The nested transactions may still be in use.
        NotCommitted::Nested(_) => "commit it when they have ended; what it did",
        _ => "run it again; what it did",
    };
    kept(mounted, id, what, why)
}

/// Adds to the message of a conflict who has changed the same files, as far as that is known and
/// the message does not name the commit already: it does so for the first files and keys.
fn said_by_whom(mounted: &mut Mounted, id: u64, failure: Failure) -> Failure {
    let Ok(Reply::Array(all)) = mounted.txn(&["AGAINST", &id.to_string()]) else { return failure };
    let line = |one: &Reply| match one {
        Reply::Array(parts) => match &parts[..] {
            [Reply::Bulk(path), by] => {
                let by = Author::of(by).ok().flatten()?;
                let is_named = failure.message.contains(&format!("(by commit {},", by.commit));
                (!is_named).then(|| format!("/{} ({})", show(path), by.words_with_age()))
            }
            _ => None,
        },
        _ => None,
    };
    let lines: Vec<String> = all.iter().filter_map(line).collect();
    match lines.is_empty() {
        true => failure,
        false => failure.with(&format!("others have also changed {}", proposed::some_of(&lines))),
    }
}

/// Keeps a transaction after its commit was refused, because its work may have taken hours. The
/// message says that `what` is kept.
pub fn kept(mounted: &mut Mounted, id: u64, what: &str, why: NotCommitted) -> Failure {
    let (failure, rebase) = match why {
        NotCommitted::Conflict(failure) => (said_by_whom(mounted, id, failure), true),
        NotCommitted::Nested(failure) => (failure, false),
        why => return why.into(),
    };
    // A serializable transaction that was ended in favour of another one is over.
    if mounted.txn(&["KEEP", &id.to_string()]).is_err() {
        return failure;
    }
    let mount = mounted.mount_point.shown();
    let rebase = match rebase {
        true => format!("kvfs txn rebase {mount} {id} brings it up to what is there now, "),
        false => String::new(),
    };
    failure.hint(format!(
        "{what} is kept as transaction {id}: kvfs txn diff {mount} {id} shows it, its files are in \
         {}, {rebase}and kvfs txn abort {mount} {id} ends it",
        mounted.view(id).shown()
    ))
}
