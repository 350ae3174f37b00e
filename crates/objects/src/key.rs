//! Names of objects. A `Key` is checked on creation, so that no place has to handle names that
//! leave its folder, need escapes in a request, or are too long for a file.

use std::fmt;
use std::sync::Arc;

/// The largest length of a key, in bytes. Servers accept up to 1,024 bytes, and the folder of a
/// bucket may need some of them.
const LONGEST: usize = 900;
/// The largest length of one part, in bytes, which is the longest name of a file.
const LONGEST_PART: usize = 255;

/// The name of an object: 1 to 900 bytes of `a-z A-Z 0-9 - _ . /`. The parts between the slashes
/// have 1 to 255 bytes and are neither `.` nor `..`, so a key neither begins nor ends with a slash.
/// Keys are ordered by their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// The reason why a text is not a key, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{start:?} is no key of an object: {why}")]
pub struct InvalidKey {
    /// The first characters of the text.
    start: String,
    why: &'static str,
}

impl Key {
    /// Checks a name.
    pub fn new(name: impl Into<String>) -> Result<Key, InvalidKey> {
        let name = name.into();
        match objection(&name) {
            None => Ok(Key(name.into())),
            Some(why) => Err(InvalidKey { start: name.chars().take(80).collect(), why }),
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the folders of the key, and the name in the last folder.
    pub(crate) fn split(&self) -> (impl Iterator<Item = &str>, &str) {
        let (folders, name) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        (folders.split('/').filter(|part| !part.is_empty()), name)
    }
}

/// Returns the reason why `name` is not a key, or `None` if it is one.
fn objection(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > LONGEST {
        return Some("a key has 1 to 900 bytes");
    }
    name.split('/').find_map(part_objection)
}

/// Returns the reason why `part` is not a part of a key, or `None` if it is one.
pub(crate) fn part_objection(part: &str) -> Option<&'static str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    match part {
        "" => Some("no part between slashes is empty, and no slash stands at either end"),
        "." | ".." => Some("no part between slashes is . or .."),
        _ if part.len() > LONGEST_PART => Some("a part between slashes has at most 255 bytes"),
        _ if !part.bytes().all(allowed) => Some("it may have a-z, A-Z, 0-9, -, _, . and / only"),
        _ => None,
    }
}

/// Keys and their texts have the same order.
impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::str::FromStr for Key {
    type Err = InvalidKey;
    fn from_str(name: &str) -> Result<Key, InvalidKey> {
        Key::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_cannot_leave_its_folder_or_need_an_escape() {
        let longest = format!("{}/{}", "a".repeat(255), "b/".repeat(321) + "cd");
        assert_eq!(longest.len(), 900);
        for good in ["a", "z/0f/9-A_z.x", "...", "a/..b/.c", longest.as_str()] {
            assert_eq!(Key::new(good).map(|k| k.to_string()).as_deref(), Ok(good));
        }
        let part = "a".repeat(256);
        let long = format!("{longest}e");
        for bad in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "../a", "a/..", "a b", "a\0", "ä",
            "a~", "a%2f", "a\\b", "a\n", &part, &long,
        ] {
            let error = Key::new(bad).expect_err(bad).to_string();
            assert!(error.contains("is no key of an object"), "{error}");
        }
    }

    #[test]
    fn a_key_splits_into_folders_and_a_name() {
        let split = |text: &str| {
            let key = Key::new(text).expect("a key");
            let (folders, name) = key.split();
            (folders.collect::<Vec<_>>().join("+"), name.to_string())
        };
        assert_eq!(split("a"), ("".into(), "a".into()));
        assert_eq!(split("a/b/c"), ("a+b".into(), "c".into()));
    }
}
