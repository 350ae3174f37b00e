//! `kvfs explore`: runs several attempts at the same task in parallel, and keeps one of them.
//!
//! Each attempt has a transaction of its own. All transactions begin before any of the programs
//! starts, so that they all see the same state and none sees another's changes. The programs are
//! children of this process that run `kvfs txn exec`; one thread waits for each. A single
//! connection begins and ends the transactions: if this process is killed, the daemon aborts them,
//! and the kernel signals the children.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::commands::run::{How, kept};
use crate::support::machine::destination::{self, Judge, Making};
use crate::support::machine::{descendants, sandbox};
use crate::support::mounts::mounted::{Commit, Mounted};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::with_paths;

/// Run a task several times in parallel, each attempt in its own transaction, and keep the best.
#[derive(clap::Args)]
#[command(after_help = "\
Each attempt sees the store as it is at the start, without the changes of the other attempts. In \
addition to the variables that `kvfs run` sets, its environment has KVFS_ATTEMPT, the number of \
the attempt from 1, and KVFS_ATTEMPTS, the number of attempts: use them to choose different \
prompts, seeds or options.

  kvfs explore 4 /mnt --judge 'make -s -C $KVFS_MOUNT test' -- sh fix.sh
  kvfs explore 8 /mnt --first --outputs tries -- solver --seed-from KVFS_ATTEMPT

An attempt succeeds if its program exits with 0. The judge is a shell command that then runs in \
the attempt: it accepts the attempt by exit code 0, and a number in the last line of its output \
is the score. The highest score wins; among equal ones, the first attempt. Files that the judge \
writes are part of the attempt. Without --judge and --first nothing is committed: the successful \
attempts stay open, so that you can inspect them with `kvfs txn diff` and end them with `kvfs txn \
commit` or `abort`.

Inside of a program that `kvfs run` has started, or of an attempt, the attempts are nested \
transactions: they see the changes of the outer transaction so far, and the chosen one is \
committed into it. Attempts that stay open have to be ended before the outer transaction can be \
committed.

The output of each attempt is copied to standard error when it has ended, or written to files \
(--outputs).

Exit codes: 0 one attempt is committed, or successful attempts are left open as intended; 1 no \
attempt was accepted and nothing was changed; 75 others have changed the same files or keys since \
the start: the chosen attempt is kept as an open transaction; 125 something else failed.")]
pub struct Args {
    /// Number of attempts.
    #[arg(value_parser = clap::value_parser!(u16).range(1..=MOST_ATTEMPTS))]
    attempts: u16,
    /// Directory a store is mounted on, or a clone in it (/mnt/.kvfs/clone/NAME).
    mount: PathBuf,
    #[command(flatten)]
    how: How,
    /// Commit the first attempt that succeeds (and that the judge accepts), and stop all others.
    #[arg(long)]
    first: bool,
    /// Shell command that judges an attempt after it has succeeded.
    #[arg(long, value_name = "COMMAND")]
    judge: Option<OsString>,
    /// Run at most N attempts at a time (default: all).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Write the output of attempt 1 to the files 1.out and 1.err in this directory, and so on for
    /// the others. The directory is created if it does not exist.
    #[arg(long, value_name = "DIRECTORY")]
    outputs: Option<PathBuf>,
    /// Do not wait until the commit is on disk; it gets there within the flush interval.
    #[arg(long)]
    no_sync: bool,
    /// Program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Transactions that one call may begin: a store allows a few thousand.
const MOST_ATTEMPTS: i64 = 256;

/// The number of the attempt, from 1.
const ATTEMPT: &str = "KVFS_ATTEMPT";
/// The number of attempts.
const ATTEMPTS: &str = "KVFS_ATTEMPTS";

/// The exit code if no attempt was accepted.
const NONE_ACCEPTED: u8 = 1;

/// An attempt before it runs.
struct Attempt {
    number: usize,
    id: u64,
    /// The captured standard output and standard error.
    streams: [Printed; 2],
}

/// Captured output of an attempt.
struct Printed {
    name: &'static str,
    file: File,
    /// True if it is shown when the attempt has ended.
    shown: bool,
}

/// A finished attempt.
struct Ended {
    number: usize,
    id: u64,
    /// The exit code, or `None` if it was killed because another attempt had won.
    code: Option<i32>,
    took: Duration,
    /// The judge's score, or `None` if the attempt was not accepted or there is no judge.
    score: Option<f64>,
    /// True if its program has succeeded and the judge has accepted it.
    accepted: bool,
    streams: [Printed; 2],
}

/// Exits with the codes that the help lists.
pub fn run(args: Args, output: &Output) -> ExitCode {
    match explore(&args, output) {
        Ok(code) => code,
        Err(failure) => {
            output.print_error(&failure);
            ExitCode::from(match failure.exit {
                Exit::Conflict => Exit::TRY_AGAIN,
                _ => sandbox::NOT_STARTED,
            })
        }
    }
}

fn explore(args: &Args, output: &Output) -> Outcome<ExitCode> {
    let mut mounted = Mounted::find_branch(&args.mount)?;
    let within = mounted.around(&args.mount)?;
    mounted.must_have_views()?;
    // Attempts must not commit by themselves, and the processes that they leave running must be
    // known.
    mounted.seal()?;
    let attempts = begin(args, within, &mut mounted)?;
    let ids: Vec<u64> = attempts.iter().map(|attempt| attempt.id).collect();
    // Where a transaction is shown in place of the store, it also has the views of the attempts.
    let place = if within.is_some() { &mounted.mounted_at } else { &mounted.mount_point };
    let ended = Race::new(args, place).run(attempts, output)?;
    // Processes that are left running could write into the transaction to be committed.
    let left = descendants::end_all();
    if !left.is_empty() {
        let what = format!("these cannot be ended: {}", descendants::told(&left));
        return Err(Failure::new(Exit::Failed, what).hint("nothing was committed"));
    }
    let commits = args.first || args.judge.is_some();
    let winner = if commits { best(&ended) } else { None };
    let open = |one: &Ended| !commits && one.accepted;
    for id in ids {
        let keep = ended.iter().any(|one| one.id == id && open(one));
        if keep {
            mounted.txn(&["KEEP", &id.to_string()])?;
        } else if winner.is_none_or(|at| ended[at].id != id) {
            mounted.txn(&["ABORT", &id.to_string()])?;
        }
    }
    if let Some(at) = winner {
        let Ended { id, number, .. } = ended[at];
        mounted
            .commit(id, Commit { sync: !args.no_sync, stay: true, ..Commit::default() })
            .map_err(|why| kept(&mut mounted, id, &format!("attempt {number}"), why))?;
    }
    let state = |at: usize, one: &Ended| match winner {
        Some(winner) if winner == at => "committed",
        _ if open(one) => "open",
        _ => "aborted",
    };
    let states: Vec<&str> = ended.iter().enumerate().map(|(at, one)| state(at, one)).collect();
    report(&mounted, &ended, &states, winner, output)?;
    let some = states.iter().any(|state| *state != "aborted");
    if !some {
        output.note("no attempt was accepted: nothing was changed");
    }
    Ok(if some { ExitCode::SUCCESS } else { ExitCode::from(NONE_ACCEPTED) })
}

/// Begins all transactions before any program runs: within the transaction `within`, if this
/// process was started in one.
fn begin(args: &Args, within: Option<u64>, mounted: &mut Mounted) -> Outcome<Vec<Attempt>> {
    if let Some(directory) = &args.outputs {
        std::fs::create_dir_all(directory)
            .map_err(|e| Failure::io(format!("cannot make {}", directory.shown()), &e))?;
    }
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let words = words.join(" ");
    let mut attempts = Vec::new();
    for number in 1..=usize::from(args.attempts) {
        let streams = [printed(args, number, "out")?, printed(args, number, "err")?];
        let label = format!("attempt {number} of {}: {words}", args.attempts);
        // Attach the transaction, so that it ends with this connection for whatever reason.
        let id = args.how.begin(mounted, within, true, &label)?;
        attempts.push(Attempt { number, id, streams });
    }
    Ok(attempts)
}

fn printed(args: &Args, number: usize, ending: &str) -> Outcome<Printed> {
    let name = if ending == "out" { "standard output" } else { "standard error" };
    let file = match &args.outputs {
        Some(directory) => {
            let path = directory.join(format!("{number}.{ending}"));
            let judge = Judge::reading(&args.mount, Making::PUBLIC);
            destination::create(&path, Making::PUBLIC, judge)?
        }
        None => temporary()?,
    };
    Ok(Printed { name, file, shown: args.outputs.is_none() })
}

/// Makes a file without a name.
fn temporary() -> Outcome<File> {
    tempfile::tempfile().map_err(|e| Failure::io("cannot make a temporary file", &e))
}

/// The attempts while they run.
struct Race<'a> {
    args: &'a Args,
    /// The directory on which the store is mounted, or the transaction around the attempts.
    mount_point: &'a Path,
    /// Set once an attempt has won: no other is started, and running ones are killed.
    won: AtomicBool,
}

impl<'a> Race<'a> {
    fn new(args: &'a Args, mount_point: &'a Path) -> Race<'a> {
        Race { args, mount_point, won: AtomicBool::new(false) }
    }

    fn is_won(&self) -> bool {
        self.won.load(Ordering::Acquire)
    }

    /// Runs the attempts, at most as many at a time as requested. Returns those that have run, in
    /// their order; with `--first`, at most one of them is accepted.
    fn run(&self, attempts: Vec<Attempt>, output: &Output) -> Outcome<Vec<Ended>> {
        let program =
            std::env::current_exe().map_err(|e| Failure::io("cannot find the kvfs program", &e))?;
        let jobs = self.args.jobs.map_or(attempts.len(), usize::from).min(attempts.len());
        let bar = output.progress("attempts", Some(attempts.len() as u64), false);
        let waiting = Mutex::new(attempts.into_iter());
        let take = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let (sender, receiver) = mpsc::channel();
        let mut all = Vec::new();
        let mut failed = None;
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                let (sender, program, take) = (sender.clone(), &program, &take);
                // A child gets its death signal when the thread that started it ends; this thread
                // waits for it.
                scope.spawn(move || {
                    while !self.is_won()
                        && let Some(attempt) = take()
                        && sender.send(self.attempt(program, attempt)).is_ok()
                    {}
                });
            }
            drop(sender);
            for ended in receiver {
                let shown = ended.and_then(|mut one| {
                    bar.inc(1);
                    if one.code.is_some() {
                        bar.suspend(|| one.show())?;
                    }
                    if self.args.first && one.accepted {
                        one.accepted = !self.won.swap(true, Ordering::AcqRel);
                        descendants::end_all();
                    }
                    all.push(one);
                    Ok(())
                });
                if let Err(e) = shown {
                    failed.get_or_insert(e);
                    self.won.store(true, Ordering::Release);
                    descendants::end_all();
                }
            }
        });
        bar.finish_and_clear();
        all.sort_by_key(|one| one.number);
        failed.map_or(Ok(all), Err)
    }

    /// Runs an attempt and its judge.
    fn attempt(&self, program: &Path, attempt: Attempt) -> Outcome<Ended> {
        let Attempt { number, id, streams } = attempt;
        let begun = Instant::now();
        let [out, err] = &streams;
        let stream = |printed: &Printed| printed.file.try_clone().map(Stdio::from);
        let cannot = |e: io::Error| Failure::io(format!("cannot start attempt {number}"), &e);
        let mut command = self.inside(program, number, id);
        command.args(&self.args.command);
        command.stdout(stream(out).map_err(cannot)?).stderr(stream(err).map_err(cannot)?);
        let mut child = self.start(command).map_err(cannot)?;
        // If all were killed, another thread may have reaped this child already.
        let code = child.wait().ok().and_then(|status| status.code());
        let mut ended = Ended {
            number,
            id,
            code,
            took: begun.elapsed(),
            score: None,
            accepted: false,
            streams,
        };
        if code != Some(0) || self.is_won() {
            return Ok(ended);
        }
        let Some(judge) = &self.args.judge else {
            ended.accepted = true;
            return Ok(ended);
        };
        // Capture into a file instead of a pipe, which processes left by the judge could hold open.
        let mut said = temporary()?;
        let mut command = self.inside(program, number, id);
        command.args(["sh", "-c"]).arg(judge);
        command.stdout(said.try_clone().map_err(cannot)?);
        command.stderr(stream(&ended.streams[1]).map_err(cannot)?);
        let mut child = self.start(command).map_err(cannot)?;
        ended.accepted = child.wait().is_ok_and(|status| status.success());
        let last = end_of(&mut said).map_err(cannot)?;
        ended.score = ended.accepted.then(|| score(&last)).flatten();
        said.rewind()
            .and_then(|()| io::copy(&mut said, &mut ended.streams[0].file))
            .map_err(cannot)?;
        Ok(ended)
    }

    /// Starts a program, and kills it at once if another attempt has won in the meantime.
    fn start(&self, mut command: Command) -> io::Result<Child> {
        let mut child = command.spawn()?;
        if self.is_won() {
            let _ = child.kill();
        }
        Ok(child)
    }

    /// Returns a command that runs in the view of an attempt. The caller appends the program and
    /// its arguments.
    fn inside(&self, program: &Path, number: usize, id: u64) -> Command {
        let mut command = Command::new(program);
        command
            .args(["txn", "exec"])
            .arg(self.mount_point)
            .arg(id.to_string())
            // End the program even if this process is killed.
            .args(["--ends-with", &std::process::id().to_string(), "--"])
            .env(ATTEMPT, number.to_string())
            .env(ATTEMPTS, self.args.attempts.to_string())
            .stdin(Stdio::null());
        command
    }
}

/// Returns the end of a judge's output, long enough for a score.
fn end_of(said: &mut File) -> io::Result<Vec<u8>> {
    const ROOM: u64 = 4096;
    let length = said.seek(SeekFrom::End(0))?;
    said.seek(SeekFrom::Start(length.saturating_sub(ROOM)))?;
    let mut end = Vec::new();
    said.take(ROOM).read_to_end(&mut end)?;
    Ok(end)
}

/// Parses the number in the last line of a judge's output.
fn score(said: &[u8]) -> Option<f64> {
    let said = String::from_utf8_lossy(said);
    let last = said.lines().rfind(|line| !line.trim().is_empty())?;
    last.trim().parse().ok().filter(|score: &f64| !score.is_nan())
}

/// Returns the attempt to commit: the accepted one with the highest score, or the first of those
/// with equal scores. A missing score counts as 0.
fn best(ended: &[Ended]) -> Option<usize> {
    let score = |one: &Ended| one.score.unwrap_or(0.0);
    let accepted = ended.iter().enumerate().filter(|(_, one)| one.accepted);
    accepted.rev().max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b))).map(|(at, _)| at)
}

impl Ended {
    /// Shows the output of the attempt, unless it was written to files.
    fn show(&mut self) -> Outcome {
        for printed in self.streams.iter_mut().filter(|printed| printed.shown) {
            let cannot = |e: io::Error| Failure::io("cannot show what an attempt has printed", &e);
            let length = printed.file.seek(SeekFrom::End(0)).map_err(cannot)?;
            if length == 0 {
                continue;
            }
            printed.file.seek(SeekFrom::Start(0)).map_err(cannot)?;
            let mut to = io::stderr().lock();
            // A broken pipe only means that the reader of standard error has ended.
            let shown = writeln!(to, "--- attempt {}, {}", self.number, printed.name)
                .and_then(|()| io::copy(&mut printed.file, &mut to).map(drop));
            if shown.is_err_and(|e| e.kind() != io::ErrorKind::BrokenPipe) {
                return Err(Failure::new(Exit::Failed, "cannot write to standard error"));
            }
        }
        Ok(())
    }
}

fn report(
    mounted: &Mounted,
    ended: &[Ended],
    states: &[&str],
    winner: Option<usize>,
    output: &Output,
) -> Outcome {
    let mut text =
        format!("{:>7}  {:>4}  {:>9}  {:>9}  STATE\n", "ATTEMPT", "EXIT", "TIME", "SCORE");
    let mut values = Vec::new();
    for (one, state) in ended.iter().zip(states) {
        let code = one.code.map_or_else(|| "-".into(), |code| code.to_string());
        let score = one.score.map_or_else(|| "-".into(), |score| score.to_string());
        let id =
            if *state == "open" { format!(" as transaction {}", one.id) } else { String::new() };
        let took = format!("{:.1} s", one.took.as_secs_f64());
        text.push_str(&format!(
            "{:>7}  {code:>4}  {took:>9}  {score:>9}  {state}{id}\n",
            one.number
        ));
        let value = json!({
            "attempt": one.number, "id": one.id, "exit": one.code, "score": one.score,
            "seconds": one.took.as_secs_f64(), "state": state,
        });
        let view = (*state == "open").then(|| mounted.view(one.id));
        values.push(with_paths(value, &[("view", view.as_deref())]));
    }
    let committed = winner.map_or(Value::Null, |at| json!(ended[at].number));
    output.print(text, json!({"attempts": values, "committed": committed}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: usize, accepted: bool, score: Option<f64>) -> Ended {
        let file = || tempfile::tempfile().expect("a file");
        let stream = || Printed { name: "standard output", file: file(), shown: true };
        Ended {
            number,
            id: number as u64,
            code: Some(0),
            took: Duration::from_secs(10 - number as u64),
            score,
            accepted,
            streams: [stream(), stream()],
        }
    }

    #[test]
    fn the_highest_score_wins_and_the_first_of_equal_ones() {
        let all = [
            ended(1, false, None),
            ended(2, true, Some(3.0)),
            ended(3, true, Some(7.5)),
            ended(4, true, Some(7.5)),
            ended(5, true, None),
        ];
        assert_eq!(best(&all), Some(2));
        assert_eq!(best(&all[..2]), Some(1));
        assert_eq!(best(&all[..1]), None);
        let negative = [ended(1, true, Some(-1.0)), ended(2, true, None)];
        assert_eq!(best(&negative), Some(1));
    }

    #[test]
    fn a_score_is_the_number_of_the_last_line() {
        assert_eq!(score(b"3 tests\n 12.5 \n\n"), Some(12.5));
        assert_eq!(score(b"12\nall is well\n"), None);
        assert_eq!(score(b"NaN\n"), None);
        assert_eq!(score(b""), None);
    }
}
