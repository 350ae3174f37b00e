//! Tests of Ctrl-C while a pager shows the output of a command. The pager handles it, and the
//! command ends with the pager, by the signal, as git does.

use std::process::{Command, Stdio};

use crate::asked::Asked;

#[track_caller]
fn succeeds(words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    let output = command.output().expect("kvfs runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_interrupt_is_left_to_the_pager_and_ends_the_command_after_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = directory.path().join("s.kvfs");
    let store = store.to_str().expect("UTF-8");
    succeeds(&["create", store]);
    succeeds(&["kv", "put", store, "key", "before"]);
    succeeds(&["snapshot", "create", store, "one"]);
    succeeds(&["kv", "put", store, "key", "after"]);
    for (typed, code) in [("\x03", 130), ("", 0)] {
        // A pager that continues after an interrupt, as less does, until a line is typed.
        let pager = r"trap '' INT; cat; echo SHOWN; read line </dev/tty; echo ENDS-\$line";
        let program = format!(
            "trap : INT; KVFS_PAGER=\"{pager}\" {} diff {store} one; echo code-$?",
            env!("CARGO_BIN_EXE_kvfs")
        );
        let Some(mut terminal) = Asked::start(&program) else { return };
        terminal.until("SHOWN");
        if !typed.is_empty() {
            terminal.presses(typed);
            // The terminal shows that the signal was sent.
            terminal.until("^C");
        }
        terminal.types("now");
        terminal.until("ENDS-now");
        terminal.until(&format!("code-{code}"));
        let (shown, _) = terminal.ends();
        assert!(shown.contains("key"), "{shown}");
    }
}
