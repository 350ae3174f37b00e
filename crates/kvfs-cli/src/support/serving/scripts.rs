//! The process in which clients' scripts run: this program again, with a command word that is not
//! meant for people.

use std::ffi::OsString;

/// The command word.
pub(crate) const WORD: &str = "lua-worker";

/// Returns the command that starts such a process. This path refers to the running program, even if
/// a newer one has been installed since.
pub(crate) fn command() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), WORD.into()]
}
