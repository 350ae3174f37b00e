//! `kvfs run kvfs+unix:SOCKET -- COMMAND`: runs a program in a transaction on a server. The
//! transaction is mounted on a directory for this run alone, in which the program works, and which
//! only its user can enter. The daemon of that mount ends with this process, even if that is
//! killed, unless the mount is kept for the user. With `--ask` the changes are reviewed as those of
//! a store that is mounted here (`review::question`): the server lists them.

use std::fs::remove_dir;
use std::path::{Path, PathBuf};

use kvfs_fuse::{Unmount, unmount};
use places::ServedDirectory;
use serde_json::{Value, json};

use super::{Args, Isolation};
use crate::commands::mount::MountsOfProcess;
use crate::commands::umount;
use crate::support::machine::descendants;
use crate::support::machine::sandbox::{self, Namespace};
use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted;
use crate::support::review::changes::{Changes, Choice, Wanted};
use crate::support::review::proposed;
use crate::support::review::question::{Answer, Question};
use crate::support::review::reviewed::{Reviewed, changes_of_server};
use crate::support::serving::guest;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{self, with_paths};

/// Runs the command. Returns the program's exit code.
pub fn run(directory: &ServedDirectory, args: &Args, output: &Output) -> Outcome<sandbox::Code> {
    refuse_of_local_stores(args)?;
    let terminal = match args.end.ask {
        true => Some(Terminal::open("decide beforehand: --commit, --abort, or --keep")?),
        false => None,
    };
    if terminal.is_some() {
        descendants::keep_together()?;
    }
    // While the program runs, it cannot commit the transaction itself and bypass the question.
    let mounts = MountsOfProcess::new(directory, terminal.is_some())?;
    let mut there = There::begin(mounts, args.how.durable)?;
    if let Some(key) = &there.record.key {
        // Print it before the program starts, since a run that is killed prints nothing.
        let how = guest::taken_up(&there.record, key);
        let paths = [("store", Some(&*there.record.store)), ("view", Some(&*there.dir))];
        let value = with_paths(json!({"key": key}), &paths);
        output.note_with(format!("if this is killed, {how} goes on with its transaction"), value);
    }
    let namespace = Namespace::Directory { view: there.dir.clone() };
    let environment = [(mounted::MOUNT, there.dir.clone().into())];
    let code = match sandbox::run(&namespace, &args.command, &environment, None, output) {
        Ok(code) => code,
        Err(failure) => {
            there.abort()?;
            return Err(failure);
        }
    };
    let ended = (code != 0).then(|| format!("The program ended with {code}."));
    let mut asked = terminal.map(|terminal| Question::new(terminal, ended));
    loop {
        let (end, state) = match &mut asked {
            Some(question) => match question.ask(&mut there) {
                Ok(answer) => answer,
                Err(failure) => {
                    // If the list of changes cannot be shown, the program's changes are kept.
                    there.keep()?;
                    return Err(failure.hint(kept(&there.dir)));
                }
            },
            None if args.end.keep => (Answer::Keep, None),
            None if args.end.commit || code == 0 && !args.end.abort => (Answer::Commit, None),
            None => (Answer::Abort, None),
        };
        match (end, &mut asked) {
            (Answer::Keep, _) => {
                there.keep()?;
                let key = there.record.key.as_ref();
                let value = json!({"exit": code, "key": key});
                let value = with_paths(value, &[("view", Some(&*there.dir))]);
                output.print(there.dir.display(), value)?;
            }
            (Answer::Commit, question) => {
                let is_committed = there.commit(args, state.as_deref(), output)?;
                if let (false, Some(question)) = (is_committed, question) {
                    question.say_that_it_changed()?;
                    continue;
                }
            }
            (Answer::Abort, _) => {
                there.abort()?;
                match (args.end.abort, args.end.ask) {
                    (true, _) => {}
                    (_, true) => output.note("nothing was changed"),
                    _ => output.note(format!("aborted (exit code {code}): nothing was changed")),
                }
            }
        }
        return Ok(code);
    }
}

/// Fails if an option is given that requires a store mounted on this machine.
fn refuse_of_local_stores(args: &Args) -> Outcome {
    let refused = |what: &str, why: &str| {
        let what = format!("{what} is for a store that is mounted here: {why}");
        Err(Failure::new(Exit::Usage, what).hint("leave it out, or run the program on the server"))
    };
    let how = &args.how;
    if args.rebase {
        return refused("--rebase", "both sides are brought together where the store is");
    }
    if args.chroot {
        return refused("--chroot", "the program works in the directory of the mount");
    }
    if args.layer {
        return refused("--layer", "a layer is folded into the transaction by its mount's daemon");
    }
    let is_other = how.isolation == Isolation::Ser
        || how.label.is_some()
        || how.idle.is_some()
        || how.no_check
        || how.limit.is_some()
        || how.no_undo;
    match is_other {
        true => refused("this", "of how a transaction is begun, a server takes --durable alone"),
        false => Ok(()),
    }
}

/// The mount of a run.
struct There {
    mounts: MountsOfProcess,
    dir: PathBuf,
    record: Record,
}

/// Mounts on a directory of its own.
fn mounted_on_new(mount: impl FnOnce(&Path) -> Outcome<Record>) -> Outcome<(PathBuf, Record)> {
    let cannot = |e: std::io::Error| Failure::io("cannot make a directory to mount on", &e);
    let made = tempfile::Builder::new().prefix("kvfs-run-").tempdir().map_err(cannot)?;
    // The mount must not be removed with the directory.
    let dir = made.keep();
    match mount(&dir) {
        Ok(record) => Ok((dir, record)),
        Err(failure) => {
            let _ = remove_dir(&dir);
            Err(failure)
        }
    }
}

impl Reviewed for There {
    fn changes(&mut self, wanted: Wanted) -> Outcome<Changes> {
        changes_of_server(&self.record, &self.dir, wanted)
    }

    /// The server removes these changes and bypasses the mount. So another mount, which has cached
    /// nothing of the earlier state, takes over the transaction.
    fn revert(&mut self, changes: &Changes, choices: &[Choice]) -> Outcome {
        if choices.is_empty() {
            return Ok(());
        }
        let words = changes.words_of(choices)?;
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        // The files of this mount end when the server takes something out.
        let times = changes.times_around(&self.dir, choices);
        guest::review(&self.record, &words)?;
        let status = self.ask("status")?;
        let key = status["key"].as_str().and_then(|key| guest::parse_key(key).ok());
        let odd = || Failure::new(Exit::Failed, "the mount's daemon gave an unexpected reply");
        let key = key.ok_or_else(odd)?;
        let (dir, record) = mounted_on_new(|dir| self.mounts.take_up(dir, key))?;
        self.take_down();
        (self.dir, self.record) = (dir, record);
        changes.revert_directories(&self.dir, &times, choices)
    }

    fn served_by(&self) -> Option<i32> {
        Some(self.record.pid)
    }
}

impl There {
    fn begin(mounts: MountsOfProcess, durable: bool) -> Outcome<There> {
        let (dir, record) = mounted_on_new(|dir| mounts.begin(dir, durable))?;
        Ok(There { mounts, dir, record })
    }

    fn ask(&self, request: &str) -> Outcome<Value> {
        guest::ask(&self.record, request)?.ok_or_else(|| {
            let what = "the daemon of the mount has ended while the program ran, and the \
                        transaction with it";
            Failure::new(Exit::Failed, what).hint("its log says why; a durable one goes on")
        })
    }

    /// Keeps the mount when this process ends.
    fn keep(&self) -> Outcome {
        self.ask("keep").map(drop)
    }

    fn abort(&self) -> Outcome {
        let answer = self.ask("abort")?;
        self.take_down();
        match answer["result"] == "aborted" {
            true => Ok(()),
            false => {
                let why = answer["why"].as_str().unwrap_or("its daemon gave an unexpected reply");
                Err(Failure::new(Exit::Failed, format!("it is not aborted: {why}")))
            }
        }
    }

    fn take_down(&self) {
        // Processes that the program has left running may use the mount.
        if umount::unmount_clean(&self.dir).is_err() {
            let _ = unmount(&self.dir, Unmount::Lazy);
        }
        let _ = remove_dir(&self.dir);
    }

    /// Commits the transaction, if it is in this state. Returns `false` if it is in another one.
    fn commit(&self, args: &Args, state: Option<&str>, output: &Output) -> Outcome<bool> {
        let how = if args.no_sync { "commit" } else { "commit synced" };
        let only_if = state.map(|state| format!(" if {state}")).unwrap_or_default();
        let answer = self.ask(&format!("{how}{only_if}"))?;
        let failure = match answer["result"].as_str() {
            Some("changed") => return Ok(false),
            Some("committed") => {
                self.take_down();
                return match answer["not_synced"].as_str() {
                    None => Ok(true),
                    Some(why) => {
                        let what = format!("committed, and perhaps not on disk there: {why}");
                        Err(Failure::new(Exit::Failed, what))
                    }
                };
            }
            Some("conflict") => {
                let of = |value: &Value| text::show(value.as_str().unwrap_or_default().as_bytes());
                let places = answer["places"].as_array().into_iter().flatten();
                let mut lines: Vec<String> = places.map(of).collect();
                if lines.is_empty() {
                    lines.push(of(&answer["what"]));
                }
                let what = format!("others have changed the same: {}", proposed::some_of(&lines));
                let failure = Failure::new(Exit::Conflict, what);
                if args.no_keep {
                    self.abort()?;
                    return Err(failure.hint("run it again"));
                }
                failure
            }
            result => {
                let why = answer["why"].as_str().unwrap_or("its daemon gave an unexpected reply");
                let what = match result {
                    Some("unknown") => "it is not known whether it has committed",
                    _ => "it is not committed",
                };
                Failure::new(Exit::Failed, format!("{what}: {why}"))
            }
        };
        // Keep the program's changes, since its work may have taken hours.
        self.keep()?;
        if answer["result"] != "unknown" {
            output.note("nothing was changed");
        }
        Err(failure.hint(kept(&self.dir)))
    }
}

fn kept(dir: &Path) -> String {
    let dir = dir.shown();
    format!(
        "what it did is in {dir}: kvfs commit {dir} tries it again, and kvfs abort {dir} ends it"
    )
}
