//! Long text on a terminal goes through a pager, as with git.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGQUIT};
use signal_hook::flag;

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
    interrupts: Option<Interrupts>,
}

/// What a terminal sends to all programs in the foreground. A pager does with it what it likes, and
/// would be left alone with the terminal, which the shell takes back, if this process ended of it
/// first: so it ends of it when the pager has ended.
struct Interrupts {
    /// The one that came; 0: none.
    came: Arc<AtomicUsize>,
    /// The pager has ended, and the next one does what it does without us.
    over: Arc<AtomicBool>,
}

impl Interrupts {
    fn hold() -> Interrupts {
        let (came, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGQUIT] {
            // Where that is not possible it ends the command at once.
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
    /// A pager if it is `wanted` and standard output is a terminal; else standard output.
    pub fn start(wanted: bool, output: &Output) -> Pager<'_> {
        let pager = Some(wanted && std::io::stdout().is_terminal()).filter(|wanted| *wanted);
        let pager = pager.and_then(|_| chosen());
        let interrupts = pager.is_some().then(Interrupts::hold);
        let child = pager.and_then(|pager| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(&pager).stdin(Stdio::piped());
            if std::env::var_os("LESS").is_none() {
                // Colours as they are; what fits on the screen is not waited for.
                command.env("LESS", "FRX");
            }
            command.spawn().ok()
        });
        Pager { output, child, interrupts }
    }

    /// Whether more is wanted: who leaves the pager early, or interrupts it, has seen enough.
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
