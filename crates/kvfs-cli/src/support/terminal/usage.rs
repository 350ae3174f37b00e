//! Reports a wrong command line in the requested format.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use crate::support::terminal::output::{Exit, Failure, Output};
use crate::support::terminal::text;

/// Reports an error of the command line, as JSON if `--json` is among its words. Also shows help
/// and the version, which clap returns as errors.
pub fn wrong(error: clap::Error, arguments: &[OsString]) -> ExitCode {
    let json = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    // A shell pattern may have inserted a name chosen by another user.
    let is_plain = |word: &OsString| text::show(word.as_bytes()).len() == word.len();
    if !json && arguments.iter().all(is_plain) || !error.use_stderr() {
        error.exit();
    }
    let told = error.render().to_string();
    // The first paragraph describes the error; the others describe the usage.
    let (what, rest) = told.split_once("\n\n").unwrap_or((&told, ""));
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let failure = Failure::new(Exit::Usage, words(what));
    let hint = words(rest);
    let failure = if hint.is_empty() { failure } else { failure.hint(hint) };
    Output::new(json).print_error(&failure);
    ExitCode::from(Exit::Usage as u8)
}
