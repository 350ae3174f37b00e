//! Asks the person at the terminal whether to commit a transaction as it was shown: all of it, none
//! of it, or a selection.

use crate::support::machine::descendants;
use crate::support::review::changes::{Changes, Choice, Detail, Style, Wanted};
use crate::support::review::reviewed::Reviewed;
use crate::support::terminal::output::Outcome;
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::text::show_message;

/// The decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Commit the transaction.
    Commit,
    /// Abort the transaction.
    Abort,
    /// Leave the transaction open.
    Keep,
}

/// A question about one transaction.
pub struct Question {
    terminal: Terminal,
    /// A line after the list of changes.
    end: Option<String>,
}

/// The result of going through the changes one by one.
enum Selected {
    /// Changes to be left out of the commit.
    Without(Vec<Choice>),
    /// Nothing was decided.
    Nothing,
}

const HELP: &str = "\
y  commit what is shown, and nothing else
n  abort: nothing was changed
s  go through the changes one by one, and take only some of them
k  keep it without a commit, and print its number, or where it is
d  show the lines that differ
e  end the programs that still run
?  show this\n";

const SELECT_HELP: &str = "\
y  take it
n  leave it out of the commit
a  take it and all that follow
l  leave it and all that follow
d  show the lines that differ in it
q  stop here: take what was taken so far, and leave the rest
b  back to the question, as if nothing was selected
?  show this\n";

impl Question {
    /// Returns a question. `end` is a line after the list of changes.
    pub fn new(terminal: Terminal, end: Option<String>) -> Question {
        Question { terminal, end }
    }

    /// Explains why the question is repeated.
    pub fn say_that_it_changed(&mut self) -> Outcome {
        self.terminal.say("It has changed since it was shown, and is shown again:")
    }

    /// Returns the answer, and the state of the transaction to which it applies.
    pub fn ask(&mut self, reviewed: &mut dyn Reviewed) -> Outcome<(Answer, Option<String>)> {
        let mut changes = reviewed.changes(Wanted::default())?;
        let (detail, style) = (Detail::default(), Detail::default().style_of_terminal());
        let mut shown = changes.text(detail, style);
        if let Some(line) = &self.end {
            shown.extend_from_slice(format!("{}\n", show_message(line)).as_bytes());
        }
        loop {
            self.terminal.show(&shown)?;
            let running = descendants::all_but(reviewed.served_by());
            let end = if running.is_empty() { "" } else { ", [e]nd what runs" };
            if !running.is_empty() {
                let told = descendants::told(&running);
                self.terminal.say(&format!("It has left programs that still run: {told}"))?;
            }
            let question =
                format!("Commit? [y]es, [n]o, [s]elect, [k]eep it open, [d]ifferences{end}: ");
            // The end of the input is not consent.
            let Some(answer) = self.terminal.ask(&question)? else {
                return Ok((Answer::Abort, None));
            };
            shown = match answer.as_str() {
                "y" | "yes" => return Ok((Answer::Commit, changes.state)),
                "n" | "no" => return Ok((Answer::Abort, None)),
                "k" | "keep" => return Ok((Answer::Keep, None)),
                "s" | "select" => {
                    // Include the content of new directories, unless that is too much.
                    let all = reviewed.changes(Wanted { fields: false, all: true });
                    changes = all.unwrap_or(changes);
                    let Selected::Without(left) = self.select(&changes, style)? else {
                        continue;
                    };
                    reviewed.revert(&changes, &left)?;
                    changes = reviewed.changes(Wanted::default())?;
                    changes.text(detail, style)
                }
                "d" | "diff" | "differences" => {
                    changes = reviewed.changes(Wanted::ALL)?;
                    changes.text(detail.with_patch(), style)
                }
                "e" | "end" => {
                    descendants::end_all_but(reviewed.served_by());
                    changes = reviewed.changes(Wanted::default())?;
                    changes.text(detail, style)
                }
                "?" | "h" | "help" => HELP.into(),
                _ => Vec::new(),
            };
        }
    }

    fn select(&mut self, changes: &Changes, style: Style) -> Outcome<Selected> {
        let mut left = Vec::new();
        let mut all = changes.choices().into_iter();
        while let Some(choice) = all.next() {
            self.terminal.show(&changes.describe(&choice, style))?;
            loop {
                let question = "Take it? [y]es, [n]o, [a]ll of the rest, [l]eave the rest, \
                                [d]ifferences, [q]uit, [b]ack, [?]: ";
                match self.terminal.ask(question)?.as_deref() {
                    Some("y" | "yes") => break,
                    Some("n" | "no") => {
                        left.push(choice);
                        break;
                    }
                    Some("a" | "all") => return Ok(Selected::Without(left)),
                    Some("l" | "leave" | "q" | "quit") => {
                        left.push(choice);
                        left.extend(all);
                        return Ok(Selected::Without(left));
                    }
                    Some("b" | "back") | None => return Ok(Selected::Nothing),
                    Some("d" | "diff" | "differences") => {
                        self.terminal.show(&changes.patch_of(&choice, style))?;
                    }
                    Some("?" | "h" | "help") => self.terminal.show(SELECT_HELP.as_bytes())?,
                    Some(_) => {}
                }
            }
        }
        Ok(Selected::Without(left))
    }
}
