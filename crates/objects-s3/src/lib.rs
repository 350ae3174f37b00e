//! Objects in a bucket of an S3-compatible server: [`S3Objects`] implements the interface
//! [`objects::Objects`] over HTTP, and [`probe`] finds out whether a server keeps the conditions on
//! which heads depend.
//!
//! ```no_run
//! use objects::{Condition, Key, Objects};
//! use objects_s3::{Environment, S3Objects, probe};
//!
//! let environment = Environment::of_process();
//! let objects = S3Objects::from_address("s3://bucket/stores", &environment)?;
//! let found = probe(&objects, "")?;
//! assert!(found.is_fine(), "{}", found.verdict());
//! objects.put(&Key::new("m/store/head")?, "one".into(), Condition::Absent)?;
//! # Ok::<(), objects::ObjectsError>(())
//! ```
//!
//! # Requests
//!
//! A call sends its request once. The crate `object_store` finds and renews credentials and signs;
//! this crate does the rest, because the operations of `object_store` have side effects: they
//! follow redirections, replace the status and the headers of a refusal by a text (with them the
//! length after 416, the region after 301, and the difference between a missing object and a
//! missing bucket), and treat the name `a/` in a list as `a`. Callers repeat requests that may be
//! repeated ([`objects::Patience`]), and [`objects::swap`] and [`objects::create`] resolve the
//! rest.
//!
//! Calls block. Two threads of the place carry the requests, so any number of callers may wait at
//! once.
//!
//! # Errors
//!
//! An error other than [`Unsure`] promises that nothing was changed and that no request is in
//! flight that could still change something. So an answer counts as such an error only if it comes
//! from the server that would have applied the request: it is the answer to a request that was sent
//! once, and has a reason in the form of S3, which proxies and balancers on the way do not use.
//!
//! | answer | error | why |
//! |---|---|---|
//! | no connection | [`Io`] | not a byte of the request was sent |
//! | a cut, a timeout, after that | [`Unsure`] | the request may be applied, now or later |
//! | 200 to a put without a tag | [`Unsure`] | it was applied, but the new version has no name |
//! | 301, 307, `AuthorizationHeaderMalformed` | [`Invalid`] | another region, which it names |
//! | 400 of other reasons, 405, 411, 413, 501 | [`Invalid`] | refused before it was applied |
//! | 400 `BadDigest` and its like | [`Busy`] | the bytes were damaged on the way, and thrown away |
//! | 400 `ExpiredToken`, 401, 403 | [`Denied`] | refused before it was applied |
//! | 404 `NoSuchBucket` | [`NoBucket`] | any request |
//! | 404 `NoSuchKey` | [`NotFound`] | a read, and a put with `If-Match` |
//! | 404 without a reason | [`Unsure`] | a missing object is damage, which no proxy may declare |
//! | 409 | [`Unsure`] | another request is in flight, and it is not known which is applied |
//! | 412 | [`ConditionFailed`] | the first answer to a condition that was sent once |
//! | 412 without a condition | [`Unsure`] | it is not about the request |
//! | 416 | [`OutOfRange`] | with the length, for which a second request may be needed |
//! | 429, 503 `SlowDown` | [`Busy`] | refused before it was applied |
//! | 500, other 5xx, 4xx without a reason | [`Unsure`] | something on the way may have said it |
//!
//! # Secrets
//!
//! Keys and tokens appear in no `Debug` and in no error. Errors have the status and the code of an
//! answer, never its text, which may repeat the signed request; no URL, and no message of the
//! library.
//!
//! [`Unsure`]: objects::ObjectsError::Unsure
//! [`Io`]: objects::ObjectsError::Io
//! [`Invalid`]: objects::ObjectsError::Invalid
//! [`Busy`]: objects::ObjectsError::Busy
//! [`Denied`]: objects::ObjectsError::Denied
//! [`NoBucket`]: objects::ObjectsError::NoBucket
//! [`NotFound`]: objects::ObjectsError::NotFound
//! [`ConditionFailed`]: objects::ObjectsError::ConditionFailed
//! [`OutOfRange`]: objects::ObjectsError::OutOfRange

#![warn(missing_docs)]

mod answer;
mod bucket;
mod client;
mod config;
mod credentials;
mod environment;
mod errors;
mod place;
mod probe;
mod profile;
mod request;
mod runtime;
mod s3;

pub use bucket::{Effect, Reached, Rule, Said};
pub use config::{S3Config, Timeouts};
pub use environment::Environment;
pub use probe::{Probe, Races, probe};
pub use s3::S3Objects;
