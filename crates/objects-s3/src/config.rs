//! The user's settings: which bucket, where it is and how it is reached.

use std::time::Duration;

use objects::{Key, ObjectsError, Result};

/// The most bytes of a prefix: with a slash and the longest key, it is a name that servers accept.
const LONGEST_PREFIX: usize = 120;

/// A folder of a bucket. A field that is `None` is taken from the environment, then from the
/// profile, and then from the rule in the field's comment. There are no secrets in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// The name of the bucket.
    pub bucket: String,
    /// The text before all keys, with a slash in between; it may be empty. Otherwise it has the
    /// form of a [`Key`], and at most 120 bytes.
    pub prefix: String,
    /// The URL of the server without the bucket; otherwise it is that of AWS in the region. It has
    /// no user and no password.
    pub endpoint: Option<String>,
    /// The region for signatures; otherwise `us-east-1`.
    pub region: Option<String>,
    /// `true` if the bucket is the first part of the host's name, `false` if it is the first part
    /// of the path. Otherwise it is in the path, except at AWS if its name has no full stop.
    pub virtual_hosted: Option<bool>,
    /// Allows an endpoint without TLS, which is always allowed on the loopback interface.
    pub allow_http: bool,
    /// The timeouts of requests.
    pub timeouts: Timeouts,
}

/// The timeouts after which a request is abandoned. Its outcome is then not known, unless there was
/// no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The timeout of a connection, with its TLS.
    pub connect: Duration,
    /// The timeout of a whole request: connection, sending, and the complete answer.
    pub request: Duration,
}

impl Default for Timeouts {
    /// Returns 5 s for a connection, 60 s for a request: 8 MiB within that time take 1.1 Mbit/s.
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), request: Duration::from_secs(60) }
    }
}

impl S3Config {
    /// Creates a configuration of the bucket that takes everything else from the environment.
    pub fn new(bucket: impl Into<String>) -> S3Config {
        S3Config {
            bucket: bucket.into(),
            prefix: String::new(),
            endpoint: None,
            region: None,
            virtual_hosted: None,
            allow_http: false,
            timeouts: Timeouts::default(),
        }
    }

    /// Parses an address such as `s3://bucket` or `s3://bucket/some/prefix`.
    pub fn from_address(address: &str) -> Result<S3Config> {
        let invalid = || {
            // The message does not repeat the address, which may contain a password.
            ObjectsError::Invalid("this is no address of a bucket; write s3://BUCKET/PREFIX".into())
        };
        let rest = address.strip_prefix("s3://").ok_or_else(invalid)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_bucket(bucket) || prefix.starts_with('/') {
            return Err(invalid());
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix).into();
        let config = S3Config { prefix, ..S3Config::new(bucket) };
        config.checked_prefix()?;
        Ok(config)
    }

    /// Returns the address `s3://bucket/prefix`.
    pub fn address(&self) -> String {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("s3://{}{slash}{}", self.bucket, self.prefix)
    }

    /// Returns the prefix with a slash after it, or an empty text if there is no prefix.
    pub(crate) fn checked_prefix(&self) -> Result<String> {
        if self.prefix.is_empty() {
            return Ok(String::new());
        }
        if self.prefix.len() > LONGEST_PREFIX {
            return Err(ObjectsError::Invalid(format!(
                "the prefix in a bucket has at most {LONGEST_PREFIX} bytes; choose a shorter one"
            )));
        }
        Ok(format!("{}/", Key::new(self.prefix.as_str())?))
    }
}

/// Returns whether this can be the name of a bucket on any server. Most servers are stricter.
pub(crate) fn is_bucket(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    (3..=63).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with(['.', '-'])
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_bucket_and_a_prefix() {
        for (address, bucket, prefix) in [
            ("s3://abc", "abc", ""),
            ("s3://abc/", "abc", ""),
            ("s3://a.b-c/d", "a.b-c", "d"),
            ("s3://abc/d/e/", "abc", "d/e"),
        ] {
            let config = S3Config::from_address(address).expect(address);
            assert_eq!((config.bucket.as_str(), config.prefix.as_str()), (bucket, prefix));
            assert_eq!(config.address(), address.trim_end_matches('/'));
        }
        let long = format!("s3://abc/{}", "a".repeat(121));
        for bad in [
            "",
            "s3:",
            "s3://",
            "s3://ab",
            "s3:///a",
            "abc",
            "S3://abc",
            "https://abc/d",
            "s3://abc//",
            "s3://abc/a b",
            "s3://abc/../d",
            "s3://user:word@abc/d",
            "s3://a..b",
            "s3://.abc",
            "s3://abc?x=1",
            &long,
        ] {
            let error = S3Config::from_address(bad).expect_err(bad).to_string();
            assert!(!error.contains("word"), "{error}");
        }
    }
}
