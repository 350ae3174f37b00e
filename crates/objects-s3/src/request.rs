//! One request, which is signed and sent once, and whose answer is read.

use std::error::Error;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::{Client, Response};
use sha2::{Digest, Sha256};

use crate::config::Timeouts;
use crate::credentials::Credentials;

const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-checksum-sha256");

/// The most bytes of an answer that is neither an object nor a list: an error has a few hundred.
pub(crate) const SHORT: u64 = 64 << 10;

/// A request before it is signed.
pub(crate) struct Ask {
    method: Method,
    /// The complete URL. It has no secret.
    url: String,
    pub headers: HeaderMap,
    body: Bytes,
    /// The SHA-256 of the body.
    digest: [u8; 32],
    /// The most bytes of a successful answer that are accepted; a longer one fails.
    longest: u64,
}

impl Ask {
    /// Creates a request without a body.
    pub fn new(method: Method, url: String, longest: u64) -> Ask {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Ask { method, url, headers, digest: Sha256::digest(&body).into(), body, longest }
    }

    /// Adds a body with its checksum, which the server compares: the checksum is in a header of its
    /// own, and signed too.
    pub fn with_body(mut self, body: Bytes) -> Ask {
        self.digest = Sha256::digest(&body).into();
        self.body = body;
        // Base64 uses only characters that any header can have.
        if let Ok(value) = HeaderValue::from_str(&STANDARD.encode(self.digest)) {
            self.headers.insert(CHECKSUM, value);
        }
        self
    }
}

/// An answer, of which at least the first line and the headers have arrived.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The bytes, or the reason why they are incomplete.
    pub body: Result<Bytes, String>,
}

/// The reason why there is no answer.
#[derive(Debug)]
pub(crate) enum Lost {
    /// There was no connection, so nothing was sent.
    NotConnected(io::Error),
    /// There were no credentials, so nothing was sent.
    NoCredentials(String),
    /// The request cannot be sent at all.
    Invalid(String),
    /// The request was sent, or a part of it, without an answer.
    Unanswered(String),
}

/// Sends requests to one bucket.
#[derive(Clone)]
pub(crate) struct Sender {
    pub client: Client,
    pub credentials: Credentials,
    pub region: String,
    /// The timeouts of the client, for messages.
    pub timeouts: Timeouts,
}

impl Sender {
    /// Sends the request once.
    pub async fn send(&self, ask: Ask) -> Result<Answer, Lost> {
        let longest = ask.longest;
        let method = ask.method.clone();
        let request = self.signed(ask).await?;
        let response = self.client.execute(request).await.map_err(|error| self.lost(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let longest = if status.is_success() { longest } else { SHORT };
        let body = self.read(response, longest).await;
        if !status.is_success() {
            let id = headers.get("x-amz-request-id").and_then(|id| id.to_str().ok());
            tracing::debug!(%method, status = status.as_u16(), id, "a request was refused");
        }
        Ok(Answer { status, headers, body })
    }

    async fn signed(&self, ask: Ask) -> Result<reqwest::Request, Lost> {
        let Ask { method, url, headers, body, digest, .. } = ask;
        let invalid = |_| Lost::Invalid("the name of the place makes no URL".into());
        let mut request = reqwest::Request::new(method.clone(), url.parse().map_err(invalid)?);
        *request.headers_mut() = headers;
        if let Some(provider) = &self.credentials.provider {
            // The library's message may repeat the answer of a service.
            let credential = provider.get_credential().await.map_err(|_| {
                Lost::NoCredentials(format!("{} has given none", self.credentials.source))
            })?;
            let mut signed: HttpRequest = http::Request::new(HttpRequestBody::empty());
            *signed.method_mut() = method;
            let invalid = |_| Lost::Invalid("the name of the place makes no URI".into());
            *signed.uri_mut() = url.parse().map_err(invalid)?;
            *signed.headers_mut() = std::mem::take(request.headers_mut());
            AwsAuthorizer::new(&credential, "s3", &self.region)
                .try_authorize(&mut signed, Some(&digest))
                .map_err(|_| Lost::Invalid("the request cannot be signed".into()))?;
            *request.headers_mut() = std::mem::take(signed.headers_mut());
        }
        if *request.method() == Method::PUT {
            // The client omits this header if the length is 0, and servers refuse a put without it.
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        *request.body_mut() = Some(body.into());
        Ok(request)
    }

    async fn read(&self, mut response: Response, longest: u64) -> Result<Bytes, String> {
        let expected = response.content_length().unwrap_or(0).min(longest);
        // No more than the size of a zone is allocated before the bytes have arrived.
        let mut body = BytesMut::with_capacity(expected.min(8 << 20) as usize);
        while let Some(chunk) = response.chunk().await.map_err(|error| self.why(&error))? {
            if (body.len() + chunk.len()) as u64 > longest {
                return Err("the answer is longer than what was asked for".into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Maps an error of a request without an answer. Only an error of the connector occurred before
    /// the first byte was sent.
    fn lost(&self, error: &reqwest::Error) -> Lost {
        if error.is_builder() {
            return Lost::Invalid("the request has a header that cannot be sent".into());
        }
        if !error.is_connect() {
            return Lost::Unanswered(self.why(error));
        }
        let kind = causes(error)
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .map(io::Error::kind)
            .last();
        let kind = match kind {
            _ if error.is_timeout() => io::ErrorKind::TimedOut,
            // These kinds say what is wrong; the first stands for a TLS failure, such as a bad
            // certificate, and does not pass by itself.
            Some(
                kind @ (io::ErrorKind::InvalidData
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::NetworkDown),
            ) => kind,
            // Unresolved names, and connections that end as they begin, are outages.
            _ => io::ErrorKind::NotConnected,
        };
        Lost::NotConnected(io::Error::new(kind, self.why(error)))
    }

    /// Returns the innermost cause. The outer ones have URLs.
    fn why(&self, error: &reqwest::Error) -> String {
        if error.is_timeout() {
            return if error.is_connect() {
                format!("there was no connection within {:?}", self.timeouts.connect)
            } else {
                format!("there was no whole answer within {:?}", self.timeouts.request)
            };
        }
        causes(error).last().map_or_else(|| "the request failed".into(), ToString::to_string)
    }
}

/// Returns the causes of an error, without the error itself. An error of `std::io` does not report
/// the error inside it as its cause, so that one is looked up.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&error| {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inside) => Some(inside as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

/// Adds a header to a request.
pub(crate) fn header(
    headers: &mut HeaderMap,
    name: HeaderName,
    value: &str,
) -> Result<(), objects::ObjectsError> {
    let value = HeaderValue::from_str(value).map_err(|_| {
        objects::ObjectsError::Invalid(format!("the value for the header {name} cannot be sent"))
    })?;
    headers.insert(name, value);
    Ok(())
}
