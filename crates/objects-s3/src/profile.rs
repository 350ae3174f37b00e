//! Files of profiles: sections in brackets, and lines `name = value` in them. A line that is
//! indented belongs to the setting before it, and is read as `setting.name`.

use std::collections::BTreeMap;
use std::fmt;

/// The kind of file: the kinds differ in how a section names its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `~/.aws/credentials`: `[name]`.
    Credentials,
    /// `~/.aws/config`: `[default]` and `[profile name]`.
    Config,
}

/// The settings of one profile. Some are secrets, so its `Debug` shows only their names.
pub(crate) struct Profile {
    name: String,
    settings: BTreeMap<String, String>,
}

impl Profile {
    /// Creates a profile without settings.
    pub fn new(name: &str) -> Profile {
        Profile { name: name.into(), settings: BTreeMap::new() }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value of a setting, if it is not empty.
    pub fn get(&self, setting: &str) -> Option<&str> {
        self.settings.get(setting).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Adds the settings of the profile from the text. Returns whether the text has a section for
    /// it. The error names a line, but not its text, which may be a secret.
    pub fn read(&mut self, text: &str, kind: Kind) -> Result<bool, String> {
        let (mut mine, mut exists, mut above) = (false, false, None);
        for (number, line) in text.lines().enumerate() {
            let indented = line.starts_with([' ', '\t']);
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            if let Some(section) = line.strip_prefix('[') {
                let section = section.strip_suffix(']').ok_or_else(|| {
                    format!("line {} opens a section without closing it", number + 1)
                })?;
                mine = profile_of(section, kind) == Some(self.name.as_str());
                exists |= mine;
                above = None;
                continue;
            }
            if !mine {
                continue;
            }
            let Some((name, value)) = line.split_once('=') else {
                return Err(format!("line {} is neither a section nor a setting", number + 1));
            };
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_string());
            match (&above, indented) {
                (Some(above), true) => self.settings.insert(format!("{above}.{name}"), value),
                _ => {
                    above = value.is_empty().then(|| name.clone());
                    self.settings.insert(name, value)
                }
            };
        }
        Ok(exists)
    }
}

/// Returns the profile that a section belongs to.
fn profile_of(section: &str, kind: Kind) -> Option<&str> {
    let section = section.trim();
    let name = match kind {
        Kind::Config if section != "default" => {
            section.strip_prefix("profile").filter(|rest| rest.starts_with([' ', '\t']))?
        }
        _ => section,
    };
    Some(name.trim().trim_matches('"'))
}

/// Returns the line without its comment, which is a line that begins with `#` or `;`, or the text
/// from one of them on after a space.
fn without_comment(line: &str) -> &str {
    let begins = |(at, character): &(usize, char)| {
        matches!(character, '#' | ';') && (*at == 0 || line[..*at].ends_with([' ', '\t']))
    };
    line.char_indices().find(begins).map_or(line, |(at, _)| &line[..at])
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("settings", &self.settings.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str, kind: Kind) -> Profile {
        let mut profile = Profile::new(name);
        assert!(profile.read(text, kind).expect("it is well formed"), "{name} has a section");
        profile
    }

    #[test]
    fn sections_name_profiles_as_their_file_does() {
        let text = "[default]\nregion=a\n[profile  b]\nregion = b\n[b]\nregion = c\n\
                    [profile \"d e\"]\nregion = d\n[profiles f]\nregion = f\n";
        for (name, region) in [("default", "a"), ("b", "b"), ("d e", "d")] {
            assert_eq!(read(name, text, Kind::Config).get("region"), Some(region));
        }
        assert_eq!(read("b", text, Kind::Credentials).get("region"), Some("c"));
        let mut missing = Profile::new("f");
        assert_eq!(missing.read(text, Kind::Config), Ok(false));
    }

    #[test]
    fn settings_are_trimmed_and_comments_left_out() {
        let text = "# a comment\r\n[a]\r\n; another\r\nAWS_Access_Key_Id\t=  AK#1;2 # the key\r\n\
                    aws_secret_access_key = a/b+c==\r\nempty =\r\n\r\ns3 =\r\n  \
                    addressing_style = virtual\r\n\tx = y\r\nregion = z\r\n";
        let profile = read("a", text, Kind::Credentials);
        assert_eq!(profile.get("aws_access_key_id"), Some("AK#1;2"));
        assert_eq!(profile.get("aws_secret_access_key"), Some("a/b+c=="));
        assert_eq!(profile.get("s3.addressing_style"), Some("virtual"));
        assert_eq!((profile.get("s3.x"), profile.get("region")), (Some("y"), Some("z")));
        assert_eq!((profile.get("empty"), profile.get("x")), (None, None));
    }

    #[test]
    fn the_last_of_two_settings_counts() {
        let mut profile = read("a", "[a]\nregion = 1\nx = 1\n[b]\n[a]\nx = 2\n", Kind::Credentials);
        profile.read("[a]\nregion = 3\n", Kind::Credentials).expect("it is well formed");
        assert_eq!((profile.get("region"), profile.get("x")), (Some("3"), Some("2")));
    }

    #[test]
    fn errors_and_debug_have_no_values() {
        let mut profile = Profile::new("a");
        for bad in ["[a\nhidden", "[a]\nhidden words\n"] {
            let error = profile.read(bad, Kind::Credentials).expect_err(bad);
            assert!(error.contains("line ") && !error.contains("hidden"), "{error}");
        }
        profile.read("[a]\naws_secret_access_key = hidden", Kind::Credentials).expect("a profile");
        let debug = format!("{profile:?}");
        assert!(debug.contains("aws_secret_access_key") && !debug.contains("hidden"), "{debug}");
    }

    #[test]
    fn no_text_panics() {
        for text in
            ["[", "]", "[]", "=", "[a]\n=", "[a]\n = \n x", "\u{e4} #\u{e4}", "[a]\n\u{a0}=#"]
        {
            let _ = Profile::new("a").read(text, Kind::Config);
            let _ = Profile::new("a").read(text, Kind::Credentials);
        }
    }
}
