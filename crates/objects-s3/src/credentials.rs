//! Finds the source of credentials, in the usual order of tools: variables, a web identity, the
//! profile, the container, the instance. The library fetches temporary credentials, and renews
//! them.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};
use object_store::{BackoffConfig, RetryConfig};
use objects::{ObjectsError, Result};

use crate::client::Connector;
use crate::environment::Environment;
use crate::profile::Profile;

/// Sources of credentials that a profile may name and this crate does not support.
const NOT_SUPPORTED: [&str; 5] =
    ["credential_process", "source_profile", "credential_source", "sso_session", "sso_start_url"];

/// The keys that sign requests, or the provider of them.
#[derive(Clone)]
pub(crate) struct Credentials {
    /// The provider, or `None` if requests are not signed.
    pub provider: Option<AwsCredentialProvider>,
    /// The source of the credentials, for messages.
    pub source: String,
}

/// Finds the source of credentials. They are fetched at the first request.
pub(crate) fn find(
    environment: &Environment,
    profile: &Profile,
    region: &str,
    connector: Connector,
) -> Result<Credentials> {
    if environment.says("AWS_SKIP_SIGNATURE") {
        return Ok(Credentials { provider: None, source: "AWS_SKIP_SIGNATURE".into() });
    }
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: std::time::Duration::from_secs(10),
    };
    // The provider does not depend on the bucket.
    let builder = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_region(region)
        .with_retry(retry)
        .with_http_connector(connector);
    let (builder, source) = configure(builder, environment, profile)?;
    // The library's messages may repeat the values that it was given.
    let store = builder.build().map_err(|_| {
        ObjectsError::Invalid(format!("the credentials of {source} cannot be used; check them"))
    })?;
    Ok(Credentials { provider: Some(Arc::clone(store.credentials())), source })
}

/// The variables of keys and their token. A profile has settings of the same names in lower case.
const NAMES: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// A builder that knows the credentials, and their source for messages.
type Configured = (AmazonS3Builder, String);

/// Takes the credentials from the first source that has any.
fn configure(
    builder: AmazonS3Builder,
    environment: &Environment,
    profile: &Profile,
) -> Result<Configured> {
    if let Some(configured) = from_variables(&builder, environment)? {
        return Ok(configured);
    }
    if let Some(configured) = from_profile(&builder, profile)? {
        return Ok(configured);
    }
    from_machine(builder, environment)
}

/// Takes keys or a web identity from variables, if they name any.
fn from_variables(
    builder: &AmazonS3Builder,
    environment: &Environment,
) -> Result<Option<Configured>> {
    let variables = NAMES.map(|name| environment.get(name));
    if let Some(keys) = keys(variables, "the environment", NAMES)? {
        return Ok(Some((with_keys(builder.clone(), keys), "the environment".into())));
    }
    let file = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE");
    if let (Some(file), Some(role)) = (file, environment.get("AWS_ROLE_ARN")) {
        let session = environment.get("AWS_ROLE_SESSION_NAME");
        let builder = with_identity(builder.clone(), file, role, session);
        let builder = match environment.get("AWS_ENDPOINT_URL_STS") {
            Some(url) => builder.with_config(AmazonS3ConfigKey::StsEndpoint, url),
            None => builder,
        };
        return Ok(Some((builder, "the web identity".into())));
    }
    Ok(None)
}

/// Takes keys or a web identity from the profile, if it has any. A profile that names another
/// source is an error, since a later source could belong to another account.
fn from_profile(builder: &AmazonS3Builder, profile: &Profile) -> Result<Option<Configured>> {
    let source = format!("the profile {:?}", profile.name());
    let names = NAMES.map(str::to_ascii_lowercase);
    let settings = names.each_ref().map(|name| profile.get(name));
    if let Some(keys) = keys(settings, &source, names.each_ref().map(String::as_str))? {
        return Ok(Some((with_keys(builder.clone(), keys), source)));
    }
    if let (Some(file), Some(role)) =
        (profile.get("web_identity_token_file"), profile.get("role_arn"))
    {
        let session = profile.get("role_session_name");
        return Ok(Some((with_identity(builder.clone(), file, role, session), source)));
    }
    if let Some(other) = NOT_SUPPORTED.iter().find(|setting| profile.get(setting).is_some()) {
        return Err(ObjectsError::Invalid(format!(
            "{source} gets its credentials by {other}, which is not supported here; put keys into \
             the environment, for example with: eval \"$(aws configure export-credentials \
             --format env)\""
        )));
    }
    Ok(None)
}

/// Lets the container or the instance provide the credentials.
fn from_machine(builder: AmazonS3Builder, environment: &Environment) -> Result<Configured> {
    if let Some(uri) = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        let key = AmazonS3ConfigKey::ContainerCredentialsRelativeUri;
        return Ok((builder.with_config(key, uri), "the container".into()));
    }
    let file = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    if let (Some(uri), Some(file)) = (environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"), file) {
        let builder = builder
            .with_config(AmazonS3ConfigKey::ContainerCredentialsFullUri, uri)
            .with_config(AmazonS3ConfigKey::ContainerAuthorizationTokenFile, file);
        return Ok((builder, "the container".into()));
    }
    if environment.says("AWS_EC2_METADATA_DISABLED") {
        return Err(ObjectsError::Invalid(
            "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a \
             profile that has them by AWS_PROFILE"
                .into(),
        ));
    }
    let builder = match environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
        Some(url) => builder.with_metadata_endpoint(url.trim_end_matches('/')),
        None => builder,
    };
    let source = "the instance's metadata service, as neither the environment nor the profile has \
                  keys,";
    Ok((builder, source.into()))
}

/// Both keys and the token, if there is one, or `None` if there are no keys.
type Keys<'a> = (&'a str, &'a str, Option<&'a str>);

fn keys<'a>(
    [id, secret, token]: [Option<&'a str>; 3],
    source: &str,
    names: [&str; 3],
) -> Result<Option<Keys<'a>>> {
    let (id, secret) = match (id, secret) {
        (None, None) => return Ok(None),
        (Some(id), Some(secret)) => (id, secret),
        (id, _) => {
            let (one, other) = if id.is_some() { (0, 1) } else { (1, 0) };
            return Err(ObjectsError::Invalid(format!(
                "{source} has {} but no {}; set both",
                names[one], names[other]
            )));
        }
    };
    // The values become headers, which cannot have other characters.
    let fits = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    for (value, name) in [Some(id), Some(secret), token].into_iter().zip(names) {
        if !value.is_none_or(fits) {
            return Err(ObjectsError::Invalid(format!(
                "the value of {name} in {source} has a space or another character that no such \
                 value has; copy it again"
            )));
        }
    }
    Ok(Some((id, secret, token)))
}

fn with_identity(
    builder: AmazonS3Builder,
    file: &str,
    role: &str,
    session: Option<&str>,
) -> AmazonS3Builder {
    let builder = builder
        .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, file)
        .with_config(AmazonS3ConfigKey::RoleArn, role);
    match session {
        Some(name) => builder.with_config(AmazonS3ConfigKey::RoleSessionName, name),
        None => builder,
    }
}

fn with_keys(builder: AmazonS3Builder, (id, secret, token): Keys<'_>) -> AmazonS3Builder {
    let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
    match token {
        Some(token) => builder.with_token(token),
        None => builder,
    }
}
