//! Which bucket, where it is and how it is reached, as the user says it.

use std::time::Duration;

use objects::{Key, ObjectsError, Result};

/// The most bytes of a prefix: with the longest key and a slash it is a name that servers take.
const LONGEST_PREFIX: usize = 120;

/// A folder of a bucket. Whatever is `None` here comes from the environment, then from the profile,
/// and then from the rules that each field names. There are no secrets in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// The name of the bucket.
    pub bucket: String,
    /// The text before all keys, with a slash in between; it may be empty. Otherwise it has the
    /// form of a [`Key`], and at most 120 bytes.
    pub prefix: String,
    /// The URL of the server without the bucket; else it is that of AWS in the region. It has no
    /// user and no password.
    pub endpoint: Option<String>,
    /// The region that signs; else `us-east-1`.
    pub region: Option<String>,
    /// `true` if the bucket is the first part of the host's name, `false` if it is the first part
    /// of the path; else it is in the path, but at AWS where its name has no full stop.
    pub virtual_hosted: Option<bool>,
    /// Allows an endpoint without TLS. On the loopback interface it is always allowed.
    pub allow_http: bool,
    /// How long is waited.
    pub timeouts: Timeouts,
}

/// After these times a request is given up. Its outcome is then not known, unless there was no
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, with its TLS.
    pub connect: Duration,
    /// For a request in all: connection, what is sent, and the whole answer.
    pub request: Duration,
}

impl Default for Timeouts {
    /// 5 s for a connection, 60 s for a request: 8 MiB within that take 1.1 Mbit/s.
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), request: Duration::from_secs(60) }
    }
}

impl S3Config {
    /// The bucket, and all else as the environment has it.
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

    /// Reads an address such as `s3://bucket` or `s3://bucket/some/prefix`.
    pub fn from_address(address: &str) -> Result<S3Config> {
        let invalid = || {
            // The address is not repeated: one with a password in it would be in the message.
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

    /// `s3://bucket/prefix`.
    pub fn address(&self) -> String {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        format!("s3://{}{slash}{}", self.bucket, self.prefix)
    }

    /// Empty, or the prefix with a slash after it.
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

/// Returns `true` for what can be the name of a bucket anywhere. Servers are stricter.
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
