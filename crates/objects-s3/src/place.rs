//! The location of a bucket: the user's settings, completed by the environment and the profile.

use objects::{ObjectsError, Result};
use reqwest::Url;

use crate::config::{S3Config, Timeouts, is_bucket};
use crate::environment::Environment;
use crate::profile::Profile;

/// A complete location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The address `s3://bucket/prefix`.
    pub name: String,
    pub bucket: String,
    /// The prefix with a slash after it, or an empty text.
    pub prefix: String,
    /// The URL of the bucket, without a slash at its end.
    pub url: String,
    pub region: String,
    pub timeouts: Timeouts,
}

impl Place {
    /// Completes the user's settings from the environment, and then from the profile.
    pub fn of(config: &S3Config, environment: &Environment, profile: &Profile) -> Result<Place> {
        if !is_bucket(&config.bucket) {
            return Err(ObjectsError::Invalid(
                "the name of a bucket has 3 to 63 letters, digits, hyphens and full stops".into(),
            ));
        }
        let prefix = config.checked_prefix()?;
        let region = config
            .region
            .as_deref()
            .or_else(|| environment.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]))
            .or_else(|| profile.get("region"))
            .unwrap_or("us-east-1");
        if !region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(ObjectsError::Invalid(
                "a region has letters, digits and hyphens only; check AWS_REGION".into(),
            ));
        }
        let endpoint = config
            .endpoint
            .as_deref()
            .or_else(|| environment.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]))
            .or_else(|| profile.get("endpoint_url"));
        let style = || match profile.get("s3.addressing_style") {
            Some("virtual") => Some(true),
            Some("path") => Some(false),
            _ => None,
        };
        // A name with a full stop does not match the certificate of the server.
        let usual = || endpoint.is_none() && !config.bucket.contains('.');
        let virtual_hosted = config.virtual_hosted.or_else(style).unwrap_or_else(usual);
        let end = if region.starts_with("cn-") { ".cn" } else { "" };
        let aws = || format!("https://s3.{region}.amazonaws.com{end}");
        let allow_http = config.allow_http || environment.says("AWS_ALLOW_HTTP");
        let mut url = server(&endpoint.map_or_else(aws, str::to_string), allow_http)?;
        if virtual_hosted {
            let host = format!("{}.{}", config.bucket, url.host_str().unwrap_or_default());
            url.set_host(Some(&host)).map_err(|_| {
                ObjectsError::Invalid(
                    "this endpoint has no name that a bucket could stand before; use path style"
                        .into(),
                )
            })?;
        }
        let mut url = url.as_str().trim_end_matches('/').to_string();
        if !virtual_hosted {
            url = format!("{url}/{}", config.bucket);
        }
        Ok(Place {
            name: config.address(),
            bucket: config.bucket.clone(),
            prefix,
            url,
            region: region.into(),
            timeouts: config.timeouts,
        })
    }
}

/// Parses the URL of a server. Errors do not repeat it, as it may contain a password.
fn server(endpoint: &str, allow_http: bool) -> Result<Url> {
    let invalid = |why: &str| {
        ObjectsError::Invalid(format!(
            "the endpoint {why}; write https://HOST or https://HOST:PORT, and check the \
             environment (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL) and the profile (endpoint_url)"
        ))
    };
    let url = Url::parse(endpoint).map_err(|_| invalid("is no URL"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(invalid("is no URL of HTTP"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("has a user or a password, which belong into the credentials"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("has a query or a fragment"));
    }
    if url.scheme() == "http" && !allow_http && !is_loopback(&url) {
        return Err(invalid(
            "has no TLS, so others on the way could read and replace data (AWS_ALLOW_HTTP=true \
             allows it)",
        ));
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.ends_with(".localhost")
        || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(config: S3Config, variables: &[(&str, &str)], profile: &str) -> Result<Place> {
        let mut read = Profile::new("default");
        read.read(profile, crate::profile::Kind::Config).expect("it is well formed");
        Place::of(&config, &Environment::of(variables.iter().copied()), &read)
    }

    fn url(config: S3Config, variables: &[(&str, &str)], profile: &str) -> String {
        place(config, variables, profile).expect("it is a place").url
    }

    #[test]
    fn the_url_is_of_the_path_or_of_the_host() {
        let config = || S3Config::new("abc");
        assert_eq!(url(config(), &[], ""), "https://abc.s3.us-east-1.amazonaws.com");
        let dotted = S3Config::new("a.bc");
        assert_eq!(url(dotted, &[], ""), "https://s3.us-east-1.amazonaws.com/a.bc");
        let region = [("AWS_DEFAULT_REGION", "x-1")];
        assert_eq!(url(config(), &region, ""), "https://abc.s3.x-1.amazonaws.com");
        let china = [("AWS_REGION", "cn-north-1")];
        assert_eq!(url(config(), &china, ""), "https://abc.s3.cn-north-1.amazonaws.com.cn");
        let at = |endpoint: &str| S3Config { endpoint: Some(endpoint.into()), ..config() };
        assert_eq!(url(at("http://127.0.0.1:9000/"), &[], ""), "http://127.0.0.1:9000/abc");
        assert_eq!(url(at("https://h.org/s3"), &[], ""), "https://h.org/s3/abc");
        let hosted = S3Config { virtual_hosted: Some(true), ..at("https://h.org:1/") };
        assert_eq!(url(hosted, &[], ""), "https://abc.h.org:1");
        let style = "[default]\ns3 =\n  addressing_style = virtual\n";
        assert_eq!(url(at("https://h.org"), &[], style), "https://abc.h.org");
        let address = S3Config { virtual_hosted: Some(true), ..at("https://127.0.0.1") };
        place(address, &[], "").expect_err("an address has no names before it");
    }

    #[test]
    fn the_user_goes_before_the_environment_and_the_profile() {
        let profile = "[default]\nregion = p-1\nendpoint_url = https://p.org\n";
        let variables = [
            ("AWS_REGION", "e-1"),
            ("AWS_DEFAULT_REGION", "e-2"),
            ("AWS_ENDPOINT_URL", "https://e2.org"),
            ("AWS_ENDPOINT_URL_S3", "https://e.org"),
        ];
        let region = |config, variables: &[(&str, &str)]| {
            let place = place(config, variables, profile).expect("a place");
            (place.region, place.url)
        };
        let said = S3Config {
            region: Some("u-1".into()),
            endpoint: Some("https://u.org".into()),
            ..S3Config::new("abc")
        };
        assert_eq!(region(said, &variables), ("u-1".into(), "https://u.org/abc".into()));
        let silent = || S3Config::new("abc");
        assert_eq!(region(silent(), &variables), ("e-1".into(), "https://e.org/abc".into()));
        assert_eq!(region(silent(), &variables[1..3]), ("e-2".into(), "https://e2.org/abc".into()));
        assert_eq!(region(silent(), &[]), ("p-1".into(), "https://p.org/abc".into()));
    }

    #[test]
    fn an_endpoint_needs_tls_but_on_this_machine() {
        let at =
            |endpoint: &str| S3Config { endpoint: Some(endpoint.into()), ..S3Config::new("abc") };
        for allowed in ["http://localhost:1", "http://127.3.2.1", "http://[::1]:1", "https://h.org"]
        {
            place(at(allowed), &[], "").expect(allowed);
        }
        place(at("http://h.org"), &[], "").expect_err("it has no TLS");
        place(at("http://h.org"), &[("AWS_ALLOW_HTTP", "true")], "").expect("it is allowed");
        place(S3Config { allow_http: true, ..at("http://h.org") }, &[], "").expect("it is allowed");
        for bad in [
            "h.org",
            "ftp://h.org",
            "https://user:hidden@h.org",
            "https://hidden@h.org",
            "https://h.org?hidden",
            "https://h.org#hidden",
            "https://",
        ] {
            let error = place(at(bad), &[], "").expect_err(bad).to_string();
            assert!(error.contains("endpoint") && !error.contains("hidden"), "{error}");
        }
    }
}
