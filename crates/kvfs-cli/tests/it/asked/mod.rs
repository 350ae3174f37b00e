//! Runs a command on a terminal of its own, which script(1) makes, and answers as a person does:
//! when the question is visible.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub struct Asked {
    child: Child,
    input: Option<ChildStdin>,
    pieces: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    /// The end of the part of the output that was waited for.
    seen: usize,
}

impl Asked {
    /// `None`, with the reason printed, where there is no script(1).
    pub fn start(program: &str) -> Option<Asked> {
        if Command::new("script").arg("--version").output().is_err() {
            eprintln!("SKIPPED: script(1) is not installed");
            return None;
        }
        let mut child = Command::new("script")
            .args(["-qec", program, "/dev/null"])
            .env("NO_COLOR", "1")
            .env_remove("KVFS_TXN")
            .env_remove("KVFS_SOCKET")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1)");
        let mut out = child.stdout.take().expect("a pipe");
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read) = out.read(&mut piece) {
                if read == 0 || sender.send(piece[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Some(Asked { child, input, pieces, bytes: Vec::new(), seen: 0 })
    }

    /// All output so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.bytes).replace('\r', "")
    }

    /// Waits until this text is shown, after the last text that was waited for.
    #[track_caller]
    pub fn until(&mut self, text: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.bytes[self.seen..]
                .windows(text.len())
                .position(|window| window == text.as_bytes());
            if let Some(at) = found {
                self.seen += at + text.len();
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.pieces.recv_timeout(left) {
                Ok(piece) => self.bytes.extend(piece),
                Err(_) => panic!("{text:?} is not shown: {}", self.shown()),
            }
        }
    }

    /// Types a line.
    pub fn types(&mut self, line: &str) {
        self.presses(&format!("{line}\n"));
    }

    /// Presses keys.
    pub fn presses(&mut self, keys: &str) {
        self.input.as_mut().expect("open").write_all(keys.as_bytes()).expect("it reads");
    }

    /// Answers the next questions.
    #[track_caller]
    pub fn answers(&mut self, answers: &[&str]) {
        for answer in answers {
            self.until(": ");
            while !self.asks() {
                self.until(": ");
            }
            self.types(answer);
        }
    }

    /// Returns whether the last line is a question of ours.
    fn asks(&self) -> bool {
        let line = self.bytes[..self.seen].rsplit(|byte| *byte == b'\n').next();
        let questions = [&b"Commit? "[..], b"Take it? ", b"Which one? "];
        line.is_some_and(|line| questions.iter().any(|question| line.starts_with(question)))
    }

    /// Returns all output and the exit code.
    pub fn ends(mut self) -> (String, i32) {
        let status = loop {
            match self.pieces.recv_timeout(Duration::from_secs(60)) {
                Ok(piece) => self.bytes.extend(piece),
                Err(_) => break self.child.wait().expect("it ends"),
            }
        };
        (self.shown(), status.code().unwrap_or(-1))
    }
}
