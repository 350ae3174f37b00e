//! Runs the program under test, and reads its output and exit code.

use std::process::{Command, Output, Stdio};

/// The program with these words, outside of any transaction.
pub fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

/// Exit code, standard output and standard error.
pub fn ends(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = crate::place::output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

/// Standard output of a command that must succeed.
#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let (code, out, err) = ends(command);
    assert_eq!(code, Some(0), "{command:?}: {out}{err}");
    out
}
