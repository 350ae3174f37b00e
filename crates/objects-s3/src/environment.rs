//! The settings that this crate shares with other tools: variables of the environment, and the two
//! files of profiles that they name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use objects::{ObjectsError, Result};

use crate::profile::{self, Profile};

/// The variables that this crate reads, and through them the files of profiles. Its `Debug` shows
/// only their names, since some values are secrets.
///
/// - `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; `AWS_SKIP_SIGNATURE=true`
///   for public buckets that take no signature
/// - `AWS_REGION`, otherwise `AWS_DEFAULT_REGION`
/// - `AWS_ENDPOINT_URL_S3`, otherwise `AWS_ENDPOINT_URL`; `AWS_ALLOW_HTTP=true`; `AWS_CA_BUNDLE`
/// - `AWS_PROFILE`, `AWS_SHARED_CREDENTIALS_FILE`, `AWS_CONFIG_FILE`, and `HOME` for
///   `~/.aws/credentials` and `~/.aws/config`
/// - the variables that name the role of an instance, a container or a web identity
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Returns the environment of this process, as it is now.
    pub fn of_process() -> Environment {
        let texts = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let ours = |(name, _): &(String, String)| name == "HOME" || name.starts_with("AWS_");
        Environment { variables: std::env::vars_os().filter_map(texts).filter(ours).collect() }
    }

    /// Creates an environment of these variables and no others.
    pub fn of<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Environment {
        let variables = variables.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        Environment { variables }
    }

    /// Returns the value of a variable, if it has one that is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the value of the first of these variables that has one.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Returns whether the variable is `true` or `1`.
    pub(crate) fn says(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
    }

    /// Returns the profile that `AWS_PROFILE` names, from both files; without it, the one named
    /// `default`, which need not exist.
    pub(crate) fn profile(&self) -> Result<Profile> {
        let named = self.get("AWS_PROFILE");
        let mut found = Profile::new(named.unwrap_or("default"));
        let files = [
            ("AWS_CONFIG_FILE", "config", profile::Kind::Config),
            ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile::Kind::Credentials),
        ];
        let mut exists = false;
        // The second file takes precedence.
        for (variable, name, kind) in files {
            let Some(file) = self.file(variable, name) else { continue };
            if let Some(text) = read(&file)? {
                exists |= found.read(&text, kind).map_err(|why| {
                    ObjectsError::Invalid(format!("{} cannot be read: {why}", file.display()))
                })?;
            }
        }
        if named.is_some() && !exists {
            return Err(ObjectsError::Invalid(format!(
                "there is no profile {:?} in the files of credentials and configuration; check \
                 AWS_PROFILE",
                found.name()
            )));
        }
        Ok(found)
    }

    fn file(&self, variable: &str, name: &str) -> Option<PathBuf> {
        let at_home = || Some(Path::new(self.get("HOME")?).join(".aws").join(name));
        self.get(variable).map(PathBuf::from).or_else(at_home)
    }
}

/// Returns the text of a file, or `None` if there is none.
fn read(file: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ObjectsError::io(format!("reading {}", file.display()), error)),
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_that_of_both_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let aws = folder.path().join(".aws");
        std::fs::create_dir(&aws).expect("it is new");
        let config = "[default]\nregion = here\n[profile work]\nregion = there\n";
        std::fs::write(aws.join("config"), config).expect("a file");
        let credentials = "[work]\naws_access_key_id = A\naws_secret_access_key = B\n";
        std::fs::write(aws.join("credentials"), credentials).expect("a file");
        let home = folder.path().to_str().expect("a text");
        let work = Environment::of([("HOME", home), ("AWS_PROFILE", "work")]).profile();
        let work = work.expect("it exists");
        assert_eq!(work.get("region"), Some("there"));
        assert_eq!(work.get("aws_secret_access_key"), Some("B"));
        let default = Environment::of([("HOME", home)]).profile().expect("it exists");
        assert_eq!((default.get("region"), default.get("aws_access_key_id")), (Some("here"), None));
        let missing = Environment::of([("HOME", home), ("AWS_PROFILE", "x")]).profile();
        assert!(missing.expect_err("there is none").to_string().contains("AWS_PROFILE"));
        let nowhere = Environment::of([("HOME", "/nonexistent")]).profile().expect("no profile");
        assert_eq!(nowhere.get("region"), None);
    }

    #[test]
    fn empty_variables_count_as_missing() {
        let environment = Environment::of([("A", ""), ("B", "1"), ("C", "True")]);
        assert_eq!(environment.first(&["A", "B"]), Some("1"));
        assert!(environment.says("C") && environment.says("B") && !environment.says("A"));
        assert_eq!(format!("{environment:?}"), r#"{"A", "B", "C"}"#);
    }
}
