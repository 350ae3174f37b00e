//! Long text on a terminal goes through a pager, as with git.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command, Stdio};

use crate::output::{Outcome, Output};

/// The pager that is chosen: KVFS_PAGER, then PAGER, then less. `None`: the text goes straight to
/// the terminal.
fn chosen() -> Option<String> {
    let set = |name: &str| std::env::var(name).ok();
    let pager = set("KVFS_PAGER").or_else(|| set("PAGER")).unwrap_or_else(|| "less".into());
    let program = pager.split_whitespace().next().filter(|program| *program != "cat")?;
    // One that is not there must take nothing away.
    let mut look = Command::new("sh");
    look.args(["-c", "command -v \"$1\"", "sh", program]).stdout(Stdio::null());
    look.status().is_ok_and(|status| status.success()).then_some(pager)
}

/// Where text goes, piece by piece.
pub struct Pager<'a> {
    output: &'a Output,
    child: Option<Child>,
}

impl Pager<'_> {
    /// A pager if it is `wanted` and standard output is a terminal; else standard output.
    pub fn start(wanted: bool, output: &Output) -> Pager<'_> {
        let pager = Some(wanted && std::io::stdout().is_terminal()).filter(|wanted| *wanted);
        let child = pager.and_then(|_| chosen()).and_then(|pager| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(&pager).stdin(Stdio::piped());
            if std::env::var_os("LESS").is_none() {
                // Colours as they are; what fits on the screen is not waited for.
                command.env("LESS", "FRX");
            }
            command.spawn().ok()
        });
        Pager { output, child }
    }

    /// Whether more is wanted: who leaves the pager early has seen enough.
    pub fn write(&mut self, text: &[u8]) -> Outcome<bool> {
        match self.child.as_mut().and_then(|child| child.stdin.as_mut()) {
            Some(pipe) => Ok(pipe.write_all(text).is_ok()),
            None => self.output.print_bytes(text),
        }
    }
}

impl Drop for Pager<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}
