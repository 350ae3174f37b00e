//! Shows long text on a terminal through a pager, as git does.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGQUIT};
use signal_hook::flag;

use crate::support::terminal::output::{Outcome, Output};

/// Returns the pager to use: KVFS_PAGER, then PAGER, then less. Returns `None` if the text goes
/// straight to the terminal.
fn chosen() -> Option<String> {
    let set = |name: &str| std::env::var(name).ok();
    let pager = set("KVFS_PAGER").or_else(|| set("PAGER")).unwrap_or_else(|| "less".into());
    let program = pager.split_whitespace().next().filter(|program| *program != "cat")?;
    // Without this check, a missing pager would lose the text.
    let mut look = Command::new("sh");
    look.args(["-c", "command -v \"$1\"", "sh", program]).stdout(Stdio::null());
    look.status().is_ok_and(|status| status.success()).then_some(pager)
}

/// The destination of the text, a pager or standard output.
pub struct Pager<'a> {
    output: &'a Output,
    child: Option<Child>,
    interrupts: Option<Interrupts>,
}

/// Interrupts from the terminal, which all foreground programs receive, and which a pager handles
/// as it likes. If this process died of one first, the shell would take the terminal back, and
/// leave the pager without it: so it dies of the signal after the pager has ended.
struct Interrupts {
    /// The received signal; 0 if there is none.
    came: Arc<AtomicUsize>,
    /// Set when the pager has ended, so that the next signal has its default effect.
    over: Arc<AtomicBool>,
}

impl Interrupts {
    fn hold() -> Interrupts {
        let (came, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGQUIT] {
            // If this fails, the signal ends the command at once.
            let _ = flag::register_conditional_default(signal, over.clone())
                .and_then(|_| flag::register_usize(signal, came.clone(), signal as usize));
        }
        Interrupts { came, over }
    }

    fn came(&self) -> Option<i32> {
        i32::try_from(self.came.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}

impl Pager<'_> {
    /// Starts a pager if it is `wanted` and standard output is a terminal; otherwise writes to
    /// standard output.
    pub fn start(wanted: bool, output: &Output) -> Pager<'_> {
        let pager = Some(wanted && std::io::stdout().is_terminal()).filter(|wanted| *wanted);
        let pager = pager.and_then(|_| chosen());
        let interrupts = pager.is_some().then(Interrupts::hold);
        let child = pager.and_then(|pager| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(&pager).stdin(Stdio::piped());
            if std::env::var_os("LESS").is_none() {
                // Pass colours through, and exit if the text fits on the screen.
                command.env("LESS", "FRX");
            }
            command.spawn().ok()
        });
        Pager { output, child, interrupts }
    }

    /// Writes text. Returns `false` if the user has left or interrupted the pager, and no more text
    /// is needed.
    pub fn write(&mut self, text: &[u8]) -> Outcome<bool> {
        if self.interrupts.as_ref().is_some_and(|interrupts| interrupts.came().is_some()) {
            return Ok(false);
        }
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
        if let Some(interrupts) = self.interrupts.take() {
            interrupts.over.store(true, Ordering::Relaxed);
            if let Some(signal) = interrupts.came() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    }
}
