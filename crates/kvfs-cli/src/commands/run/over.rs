//! `kvfs run --over DIR -- COMMAND`: runs a program over a folder of any file system, outside of
//! any store. The program sees the folder through an overlay. Its changes are reviewed like those
//! of a transaction, and are applied to the folder as a whole or not at all (`support::over`).

use std::path::PathBuf;

use serde_json::json;

use super::Args;
use crate::support::machine::descendants;
use crate::support::machine::sandbox;
use crate::support::over::differences;
use crate::support::over::folder::Folder;
use crate::support::over::plan::Left;
use crate::support::over::run_folders::some_paths;
use crate::support::over::runs::{Applied, Run};
use crate::support::review::changes::{Changes, Choice, Wanted};
use crate::support::review::question::{Answer, Question};
use crate::support::review::reviewed::Reviewed;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::text::{Shown, with_paths};

/// A run that a person reviews.
struct OfFolder<'a> {
    run: &'a Run<'a>,
    /// The folder and the upper layer.
    roots: (PathBuf, PathBuf),
    left: Left,
}

impl Reviewed for OfFolder<'_> {
    fn changes(&mut self, wanted: Wanted) -> Outcome<Changes> {
        differences::of_run(&self.run.layers, &self.left, wanted.all, self.roots.clone())
    }

    fn revert(&mut self, changes: &Changes, choices: &[Choice]) -> Outcome {
        self.left.extend(changes.paths_of(choices));
        Ok(())
    }
}

/// Runs the command. Returns the program's exit code.
pub fn run(args: &Args, output: &Output) -> Outcome<sandbox::Code> {
    let terminal = match args.end.ask {
        true => Some(Terminal::open("decide beforehand: --commit, --abort, or --keep")?),
        false => None,
    };
    let folder = Folder::of(&args.mount)?;
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let label = args.how.label.clone().unwrap_or_else(|| words.join(" "));
    let run = Run::begin(&folder, output)?;
    descendants::keep_together()?;
    // A shell that has become this process may have left its own children to it.
    let others: Vec<i32> =
        descendants::all_but(None).iter().map(|running| running.process).collect();
    let namespace = run.namespace()?;
    let code = match sandbox::run(&namespace, &args.command, &[], None, output) {
        Ok(code) => code,
        Err(failure) => {
            run.discard()?;
            return Err(failure);
        }
    };
    // A program that still ran could write to files after they have been moved into the folder.
    let running = descendants::all_without(&others);
    if !running.is_empty() {
        output.note(format!("ended what the program has left: {}", descendants::told(&running)));
    }
    let survivors = descendants::end_all_without(&others);
    if !survivors.is_empty() {
        let what = format!("cannot end what still runs: {}", descendants::told(&survivors));
        return Err(run.keep_after(Failure::new(Exit::Failed, what)));
    }
    let (end, left) = match terminal {
        Some(terminal) => match ask(&run, &folder, terminal, code) {
            Ok(answer) => answer,
            Err(failure) => return Err(run.keep_after(failure)),
        },
        None if args.end.keep => (Answer::Keep, Left::new()),
        None if args.end.commit || code == 0 && !args.end.abort => (Answer::Commit, Left::new()),
        None => (Answer::Abort, Left::new()),
    };
    match end {
        Answer::Commit => apply(run, &folder, args, (&left, &label), output)?,
        Answer::Abort => {
            run.discard()?;
            match (args.end.abort, args.end.ask) {
                (true, _) => {}
                (_, true) => output.note("nothing was changed"),
                _ => output.note(format!("aborted (exit code {code}): nothing was changed")),
            }
        }
        Answer::Keep => {
            let kept = run.keep()?;
            let value = with_paths(json!({"exit": code}), &[("layer", Some(&*kept))]);
            output.print(kept.shown(), value)?;
        }
    }
    Ok(code)
}

/// Asks what is to be done. Returns the answer, and what was left out.
fn ask(
    run: &Run<'_>,
    folder: &Folder,
    terminal: Terminal,
    code: sandbox::Code,
) -> Outcome<(Answer, Left)> {
    let ended = (code != 0).then(|| format!("The program ended with {code}."));
    let roots = (folder.path.clone(), run.upper());
    let mut reviewed = OfFolder { run, roots, left: Left::new() };
    let (answer, _) = Question::new(terminal, ended).ask(&mut reviewed)?;
    Ok((answer, reviewed.left))
}

/// Applies the run to the folder, without what was left out.
fn apply(
    run: Run<'_>,
    folder: &Folder,
    args: &Args,
    (left, label): (&Left, &str),
    output: &Output,
) -> Outcome {
    match run.apply(left, label, output) {
        Ok(Applied::Done) => Ok(()),
        Ok(Applied::Nothing) => run.discard(),
        Ok(Applied::Conflict(paths)) => {
            let what = format!("others have changed the same: {}", some_paths(&paths));
            let failure = Failure::new(Exit::Conflict, what);
            let hint = format!("{} was not changed: run it again", folder.path.shown());
            if args.no_keep {
                run.discard()?;
                return Err(failure.hint(hint));
            }
            let kept = run.keep()?;
            Err(failure.hint(format!("{hint}; what it did is in {}", kept.shown())))
        }
        Err(failure) => Err(run.keep_after(failure)),
    }
}
