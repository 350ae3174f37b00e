//! The file that `kvfs mount --config` reads: the store, the directory, and the options.
//!
//! ```text
//! # /etc/kvfs/work.conf
//! store = /srv/work.kvfs
//! directory = /mnt/work
//! allow_other
//! scrub = 30
//! ```
//!
//! A line is a name, or a name and a value. The names are those of `-o`, and `store` and
//! `directory`. Nothing is skipped silently: an invalid line is an error with its number.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::support::mounting::{mount_options, mount_words};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// Limit of the bytes of such a file. A longer file is not a configuration.
const LONGEST: u64 = 1 << 20;

/// The content of a configuration file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub store: Option<PathBuf>,
    pub directory: Option<PathBuf>,
    /// The options, each in the form that `-o` takes.
    pub options: Vec<OsString>,
}

impl Config {
    pub fn read(path: &Path) -> Outcome<Config> {
        let cannot = |e: std::io::Error| Failure::io(format!("cannot read {}", path.shown()), &e);
        let metadata = std::fs::metadata(path).map_err(cannot)?;
        if !metadata.is_file() || metadata.len() > LONGEST {
            let what = format!("{} is not a file with options of a mount", path.shown());
            return Err(Failure::new(Exit::Usage, what));
        }
        Config::parse(&std::fs::read(path).map_err(cannot)?, path)
    }

    /// Parses the text. `path` is for messages.
    fn parse(text: &[u8], path: &Path) -> Outcome<Config> {
        let mut config = Config::default();
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            config.take(line).map_err(|failure| {
                let message = format!("{}, line {number}: {}", path.shown(), failure.message);
                Failure { message, ..failure }
            })?;
        }
        Ok(config)
    }

    /// Parses one line.
    fn take(&mut self, line: &[u8]) -> Outcome {
        let (name, value) = match line.iter().position(|byte| *byte == b'=') {
            Some(at) => (line[..at].trim_ascii_end(), Some(line[at + 1..].trim_ascii_start())),
            None => (line, None),
        };
        let shown = String::from_utf8_lossy(name).into_owned();
        let wrong = |what: &str| Failure::new(Exit::Usage, format!("'{shown}' {what}"));
        let place = match name {
            b"store" => Some(&mut self.store),
            b"directory" => Some(&mut self.directory),
            _ => None,
        };
        if let Some(place) = place {
            let value = PathBuf::from(OsString::from_vec(value.unwrap_or_default().to_vec()));
            if !value.is_absolute() {
                return Err(wrong("needs an absolute path"));
            }
            if place.replace(value).is_some() {
                return Err(wrong("is there a second time"));
            }
            return Ok(());
        }
        if mount_words::is_for_others(&shown) {
            return Err(wrong("is a word for fstab, and means nothing here"));
        }
        let mut word = name.to_vec();
        if let Some(value) = value {
            word.push(b'=');
            word.extend_from_slice(value);
        }
        let word = mount_words::escaped(&word);
        mount_options::parse(std::slice::from_ref(&word))?;
        self.options.push(word);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Outcome<Config> {
        Config::parse(text.as_bytes(), Path::new("work.conf"))
    }

    #[test]
    fn a_file_names_store_directory_and_options() {
        let text = "# a comment\n\n store = /srv/a, b.kvfs \ndirectory=/mnt/work\nallow_other\r\nscrub = 30\n\
                    fsname = a,b\\c\n";
        let config = parse(text).expect("it is right");
        assert_eq!(config.store.as_deref(), Some(Path::new("/srv/a, b.kvfs")));
        assert_eq!(config.directory.as_deref(), Some(Path::new("/mnt/work")));
        let options = mount_options::parse(&config.options).expect("they are right");
        assert!(options.mount.allow_other && options.scrub.is_some());
        assert_eq!(options.source, Some(r"a,b\c".into()));
        assert_eq!(parse("").expect("nothing is said"), Config::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, want) in [
            ("ro\nfrobnicate\n", "work.conf, line 2: mount option 'frobnicate': unknown"),
            ("\n\nmemory = lots", "work.conf, line 3: mount option 'memory=lots'"),
            ("memory", "work.conf, line 1: mount option 'memory': needs a value"),
            ("ro = 1", "work.conf, line 1: mount option 'ro=1': takes no value"),
            ("nofail", "work.conf, line 1: 'nofail' is a word for fstab"),
            ("store = work.kvfs", "work.conf, line 1: 'store' needs an absolute path"),
            ("directory", "work.conf, line 1: 'directory' needs an absolute path"),
            ("store=/a\nstore=/b", "work.conf, line 2: 'store' is there a second time"),
            ("= x", "work.conf, line 1: "),
            ("OPTIONS=ro", "work.conf, line 1: mount option 'OPTIONS=ro': unknown"),
        ] {
            let failure = parse(text).expect_err(text);
            assert!(failure.message.starts_with(want), "{text}: {}", failure.message);
            assert_eq!(failure.exit, Exit::Usage);
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused() {
        let mut random = env::Random::new(1);
        for _ in 0..2000 {
            let mut text = vec![0; random.below(60) as usize];
            random.fill(&mut text);
            let _ = Config::parse(&text, Path::new("noise"));
        }
    }
}
