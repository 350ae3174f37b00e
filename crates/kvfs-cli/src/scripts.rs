//! The process in which scripts of clients run: this program again, under a word that is no command
//! for people.

use std::ffi::OsString;

/// The word.
pub(crate) const WORD: &str = "lua-worker";

/// What starts such a process. By this path it is the same program even where a newer one has been
/// installed since.
pub(crate) fn command() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), WORD.into()]
}
