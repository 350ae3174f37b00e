//! The words of a list of mount options: how a list is split into them, and which of them are meant
//! for other programs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A word as a list of options has it.
pub fn escaped(word: &[u8]) -> OsString {
    let escape = |byte: &u8| if b",\\".contains(byte) { vec![b'\\', *byte] } else { vec![*byte] };
    OsString::from_vec(word.iter().flat_map(escape).collect())
}

/// Splits at commas; `\,` is a comma, `\\` a backslash.
pub fn split(list: OsString) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut word = Vec::new();
    let mut bytes = list.into_vec().into_iter();
    while let Some(b) = bytes.next() {
        match b {
            b',' => words.push(OsString::from_vec(std::mem::take(&mut word))),
            b'\\' => word.extend(bytes.next()),
            b => word.push(b),
        }
    }
    words.push(OsString::from_vec(word));
    words
}

/// Returns whether a word is meant for mount(8), systemd or a reader of `/etc/fstab`.
pub fn is_for_others(name: &str) -> bool {
    let words = [
        "defaults",
        "_netdev",
        "nofail",
        "fail",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "comment",
        "silent",
        "loud",
        "lazytime",
        "nolazytime",
        "helper",
        "uhelper",
    ];
    words.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}
