//! Programs that a worker runs.

use std::process::Command;

use super::{TIMED_OUT, Worker};
use crate::call::Name;
use crate::kernel::{Answer, Errno};

impl Worker {
    /// A program that copies a tree. It does not copy a tree into itself, since the depth of the
    /// result is a matter of chance.
    pub(super) fn tree_program(
        &self,
        script: &str,
        from: &Name,
        to: &Name,
        option: &str,
    ) -> Answer<String> {
        const GUARD: &str = "t=$(timeout 20 realpath -m -- \"$2\") || exit; \
            f=$(timeout 20 realpath -m -- \"$1\") || exit; \
            case $t/ in \"$f\"/*) exit 9;; esac; ";
        self.program(&format!("{GUARD}{script}"), from, to, option)
    }

    pub(super) fn program(
        &self,
        script: &str,
        from: &Name,
        to: &Name,
        option: &str,
    ) -> Answer<String> {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args([from.resolve().1, to.resolve().1]).arg(option);
        command.env("LC_ALL", "C").stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let status = command.status().map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(match status.code().unwrap_or(-1) {
            124 => TIMED_OUT.to_owned(),
            code => format!("exit {code}"),
        })
    }
}
