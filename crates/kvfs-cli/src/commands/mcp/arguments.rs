//! The arguments of a tool, checked against its parameters, and helpers for text in answers.

use serde_json::{Map, Value, json};

use super::tools::{Kind, Tool};
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The result of a tool.
pub struct Told {
    pub text: String,
    /// True if the tool ran, but its operation failed.
    pub failed: bool,
}

impl From<String> for Told {
    fn from(text: String) -> Told {
        Told { text, failed: false }
    }
}

pub struct Arguments<'a>(&'a Map<String, Value>);

impl<'a> Arguments<'a> {
    /// Checks the arguments. Returns a description of the error if one is missing, unknown or of
    /// the wrong kind.
    pub fn of(tool: &Tool, given: &'a Value) -> Result<Arguments<'a>, String> {
        let object = given.as_object().ok_or("`arguments` is an object")?;
        for (name, value) in object {
            let taken = tool.takes.iter().find(|p| p.name == name);
            let Some(taken) = taken else {
                let all: Vec<&str> = tool.takes.iter().map(|p| p.name).collect();
                return Err(format!(
                    "{} takes no `{}`; it takes: {}",
                    tool.name,
                    name.chars().take(64).collect::<String>(),
                    all.join(", ")
                ));
            };
            let fits = match taken.kind {
                Kind::Text => value.is_string(),
                Kind::Number => value.is_u64(),
                Kind::Flag => value.is_boolean(),
                Kind::Texts => value
                    .as_array()
                    .is_some_and(|all| !all.is_empty() && all.iter().all(Value::is_string)),
                Kind::Choice(choices) => value.as_str().is_some_and(|v| choices.contains(&v)),
            };
            if !fits {
                return Err(format!("`{name}` of {}: {}", tool.name, taken.kind.says()));
            }
        }
        match tool.takes.iter().find(|p| p.needed && !object.contains_key(p.name)) {
            Some(missing) => {
                Err(format!("{} needs `{}`: {}", tool.name, missing.name, missing.about))
            }
            None => Ok(Arguments(object)),
        }
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub fn texts(&self, name: &str) -> Vec<&'a str> {
        let all = self.0.get(name).and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Returns a required argument.
    pub fn needed(&self, name: &str) -> Outcome<&'a str> {
        self.text(name).ok_or_else(|| Failure::new(Exit::Usage, format!("`{name}` is missing")))
    }

    pub fn transaction(&self) -> Outcome<u64> {
        self.number("transaction")
            .ok_or_else(|| Failure::new(Exit::Usage, "`transaction` is missing"))
    }

    /// Returns the bytes of a value passed as text, or in base 64 as `NAME_base64`.
    pub fn bytes(&self, name: &str) -> Outcome<Vec<u8>> {
        let encoded = format!("{name}_base64");
        match (self.text(name), self.text(&encoded)) {
            (Some(text), None) => Ok(text.as_bytes().to_vec()),
            (None, Some(text)) => decoded(text)
                .ok_or_else(|| Failure::new(Exit::Usage, format!("`{encoded}` is not in base 64"))),
            _ => Err(Failure::new(
                Exit::Usage,
                format!("either `{name}` or `{encoded}` must be given"),
            )),
        }
    }
}

/// Decodes base 64 (RFC 4648) with padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let bare = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    if !text.len().is_multiple_of(4) || bare.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(bare.len() / 4 * 3 + 2);
    for four in bare.as_bytes().chunks(4) {
        let mut word = 0u32;
        for byte in four {
            word = word << 6 | u32::from(digit(*byte)?);
        }
        word <<= 6 * (4 - four.len());
        out.extend_from_slice(&word.to_be_bytes()[1..four.len()]);
    }
    Some(out)
}

/// Truncates text to this many bytes, at a line end if one is near, and appends a note.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.into();
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line = text[..end].rfind('\n').map_or(end, |at| at + 1);
    let end = if end - line < 4096 && line > 0 { line } else { end };
    let left_out = text.len() - end;
    let line = if text[..end].ends_with('\n') { "" } else { "\n" };
    format!("{}{line}[truncated: {left_out} of {} bytes are left out]\n", &text[..end], text.len())
}

/// Formats bytes for a model: as text, or in base 64 with a prefix that says so.
pub fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let mut object = Map::new();
            crate::support::terminal::text::put(&mut object, "value", bytes);
            let encoded = object.remove("value_base64").unwrap_or(json!(""));
            format!("base64:{}", encoded.as_str().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_read_as_it_is_written() {
        for len in 0..40u8 {
            let bytes: Vec<u8> = (0..len).map(|n| n.wrapping_mul(83) ^ 0xff).collect();
            let mut object = Map::new();
            // Make the bytes invalid UTF-8, so that they are encoded.
            let bytes = [&bytes[..], b"\xff"].concat();
            crate::support::terminal::text::put(&mut object, "v", &bytes);
            let text = object["v_base64"].as_str().expect("text").to_string();
            assert_eq!(decoded(&text).as_deref(), Some(&bytes[..]), "{text}");
        }
        for wrong in ["a", "ab", "abc", "ab=", "a===", "!!!!", "ab==cd==", "ab c"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn text_is_cut_with_a_word() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(
            cut("one\ntwo\nthree", 9),
            "one\ntwo\n[truncated: 5 of 13 bytes are left out]\n"
        );
        assert_eq!(cut("äöü", 3), "ä\n[truncated: 4 of 6 bytes are left out]\n");
    }
}
