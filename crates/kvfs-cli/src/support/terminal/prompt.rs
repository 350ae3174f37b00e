//! Asks the person at the terminal, wherever standard input and output are redirected to.
//!
//! An answer counts only if it was typed after the question was shown: earlier input, typed while a
//! program ran or a list was prepared, is discarded, since it cannot refer to the question.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::fd::AsRawFd;

use crate::support::terminal::output::{Failure, Outcome};
use crate::support::terminal::text::show_message;

pub struct Terminal {
    input: BufReader<File>,
    output: File,
}

impl Terminal {
    /// Opens the terminal. `hint` is the remedy if there is none.
    pub fn open(hint: &str) -> Outcome<Terminal> {
        let cannot =
            |e: std::io::Error| Failure::io("cannot ask: there is no terminal", &e).hint(hint);
        let output = File::options().read(true).write(true).open("/dev/tty").map_err(cannot)?;
        if !output.is_terminal() {
            return Err(cannot(std::io::ErrorKind::Unsupported.into()));
        }
        let input = BufReader::new(output.try_clone().map_err(cannot)?);
        Ok(Terminal { input, output })
    }

    /// Shows text that is escaped for a terminal already.
    pub fn show(&mut self, text: &[u8]) -> Outcome {
        self.output.write_all(text).map_err(|e| cannot(&e))
    }

    /// Shows a line.
    pub fn say(&mut self, line: &str) -> Outcome {
        self.show(format!("{}\n", show_message(line)).as_bytes())
    }

    /// Asks a question. Returns the answer in lower case, or `None` at the end of the input.
    pub fn ask(&mut self, question: &str) -> Outcome<Option<String>> {
        self.forget_what_was_typed();
        write!(self.output, "{question}").map_err(|e| cannot(&e))?;
        self.output.flush().map_err(|e| cannot(&e))?;
        let mut line = Vec::new();
        let read = self.input.read_until(b'\n', &mut line).map_err(|e| cannot(&e))?;
        Ok((read > 0).then(|| String::from_utf8_lossy(&line).trim().to_ascii_lowercase()))
    }

    fn forget_what_was_typed(&mut self) {
        let ahead = self.input.buffer().len();
        self.input.consume(ahead);
        // SAFETY: the descriptor is that of the terminal, which is open. A process that is not in
        // its foreground would be stopped by this call if it did not ignore that signal.
        unsafe {
            let before = libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            libc::tcflush(self.output.as_raw_fd(), libc::TCIFLUSH);
            libc::signal(libc::SIGTTOU, before);
        }
    }
}

fn cannot(error: &std::io::Error) -> Failure {
    Failure::io("cannot ask on the terminal", error)
}
