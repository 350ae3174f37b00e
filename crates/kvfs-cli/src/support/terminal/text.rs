//! Formats bytes as text. Keys, values and names are any bytes: on a terminal they are escaped; in
//! JSON they are a string if they are UTF-8, and otherwise base64 under a key of its own, so that
//! nothing is lost.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value};

/// Formats bytes for one line on a terminal: control characters, backslashes and invalid UTF-8 are
/// escaped (`\n`, `\x1b`).
pub fn show(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() || hides(c) => {
                    c.to_string().bytes().for_each(|b| out.push_str(&format!("\\x{b:02x}")))
                }
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

/// Escapes only characters that would control a terminal, so that text cannot hide the text next to
/// it.
pub fn show_line(line: &str) -> String {
    let mut out = String::new();
    for c in line.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() || hides(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// Formats a one-sentence message on one line: a name in it cannot begin another line.
pub fn show_message(message: &str) -> String {
    show_line(message).replace('\n', "\\n").replace('\t', "\\t")
}

/// Shows a path within text for a terminal.
pub trait Shown {
    /// Formats the path on one line: a name in it can neither act on a terminal nor begin another
    /// line. Bytes that are not UTF-8 become replacement characters.
    fn shown(&self) -> String;
}

impl<T: AsRef<Path> + ?Sized> Shown for T {
    fn shown(&self) -> String {
        show_message(&self.as_ref().to_string_lossy())
    }
}

/// Formats JSON on one line, with escapes for characters that would control a terminal. The value
/// is the same.
pub fn show_json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    let line = serde_json::to_string(value)?;
    if !line.chars().any(|c| c.is_control() || hides(c)) {
        return Ok(line);
    }
    let mut out = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        // Such characters occur only in strings: the rest is printable ASCII.
        if c.is_control() || hides(c) {
            let units = &mut [0; 2];
            c.encode_utf16(units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Ok(out)
}

/// Returns whether a character is invisible, or changes the order in which others are shown.
fn hides(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Puts `bytes` under `key`, or under `key_base64` if they are not UTF-8.
pub fn put(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(key.into(), text.into()),
        Err(_) => object.insert(format!("{key}_base64"), base64(bytes).into()),
    };
}

/// Adds paths to an object, by `put`, or null for a missing one.
pub fn with_paths(mut object: Value, paths: &[(&str, Option<&Path>)]) -> Value {
    if let Value::Object(object) = &mut object {
        for (key, path) in paths {
            match path {
                Some(path) => put(object, key, path.as_os_str().as_bytes()),
                None => drop(object.insert((*key).into(), Value::Null)),
            }
        }
    }
    object
}

/// Encodes base 64 (RFC 4648) with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three
            .iter()
            .enumerate()
            .fold(0u32, |word, (i, b)| word | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= three.len() { digit as char } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(show("grün\n\t\\\x1b[1m".as_bytes()), "grün\\n\\t\\\\\\x1b[1m");
        assert_eq!(show(b"a\xff\x00b"), "a\\xff\\x00b");
    }

    #[test]
    fn nothing_hides_what_stands_beside_it() {
        assert_eq!(show("a\u{202e}b\u{200b}c".as_bytes()), "a\\xe2\\x80\\xaeb\\xe2\\x80\\x8bc");
        assert_eq!(show_line("+a\tb\r\x1b[2K\u{2066}\n"), "+a\tb\\u{d}\\u{1b}[2K\\u{2066}\n");
    }

    #[test]
    fn a_message_is_one_line_and_json_means_what_it_meant() {
        assert_eq!(show_message("no a\n\x1b[2Jkvfs: done"), "no a\\n\\u{1b}[2Jkvfs: done");
        let hostile = "a\n\u{7f}\u{9b}\u{202e}\u{200b}gr\u{fc}n";
        let shown = show_json(&hostile).expect("JSON");
        assert_eq!(shown, "\"a\\n\\u007f\\u009b\\u202e\\u200bgr\u{fc}n\"");
        assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), hostile);
    }

    #[test]
    fn what_is_not_text_keeps_every_byte() {
        for (bytes, want) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), want);
        }
        let mut object = Map::new();
        put(&mut object, "key", b"k");
        put(&mut object, "value", b"\xff\xfe");
        assert_eq!(Value::Object(object).to_string(), r#"{"key":"k","value_base64":"//4="}"#);
    }
}
