//! Maps answers, and missing answers, to errors. The table is in the opening comment of the crate.

use http::StatusCode;
use objects::{Key, ObjectsError};

use crate::answer;
use crate::request::{Answer, Lost};

/// A request, as it is named in errors.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Get(Key),
    Put {
        key: Key,
        condition: Sent,
    },
    Delete(Key),
    /// A list of a prefix.
    List(String),
    /// A setting of the bucket.
    Configuration(String),
}

/// The condition that was sent with a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Nothing,
    IfNoneMatch,
    IfMatch,
}

impl Asked {
    /// Returns the key or the prefix.
    fn name(&self) -> String {
        match self {
            Asked::Get(key) | Asked::Put { key, .. } | Asked::Delete(key) => key.to_string(),
            Asked::List(name) | Asked::Configuration(name) => name.clone(),
        }
    }

    fn doing(&self, place: &str) -> String {
        match self {
            Asked::Get(key) => format!("reading {key} in {place}"),
            Asked::Put { key, .. } => format!("putting {key} in {place}"),
            Asked::Delete(key) => format!("deleting {key} in {place}"),
            Asked::List(prefix) => format!("listing {prefix:?} in {place}"),
            Asked::Configuration(what) => format!("asking for the {what} of {place}"),
        }
    }

    /// Returns the error for a request whose outcome is not known, for this reason.
    pub fn unsure(&self, why: impl Into<String>) -> ObjectsError {
        ObjectsError::Unsure { key: self.name(), why: why.into() }
    }

    fn busy(&self, why: impl Into<String>) -> ObjectsError {
        ObjectsError::Busy { key: self.name(), why: why.into() }
    }

    /// Returns the error of a request that has no answer.
    pub fn lost(&self, lost: Lost, place: &str) -> ObjectsError {
        match lost {
            Lost::NotConnected(error) => ObjectsError::io(self.doing(place), error),
            Lost::NoCredentials(why) => ObjectsError::Denied { doing: self.doing(place), why },
            Lost::Invalid(why) => {
                ObjectsError::Invalid(format!("{} cannot succeed: {why}", self.doing(place)))
            }
            Lost::Unanswered(why) => self.unsure(why),
        }
    }

    /// Returns the error for an answer that is not a success. It does not handle 416.
    pub fn refused(&self, answer: &Answer, place: &str) -> ObjectsError {
        let body = answer.body.as_deref().unwrap_or_default();
        let code = answer::code(body);
        let status = answer.status;
        let said = said(status, code);
        let denied = |why: String| ObjectsError::Denied { doing: self.doing(place), why };
        match (status.as_u16(), code) {
            (_, Some("NoSuchBucket")) => ObjectsError::NoBucket { place: place.into() },
            (301 | 302 | 307 | 308, _) | (400, Some("AuthorizationHeaderMalformed")) => {
                elsewhere(answer, body, place)
            }
            (404, Some("NoSuchKey")) => self.missing().unwrap_or_else(|| self.unsure(said)),
            (412, _) => self.failed().unwrap_or_else(|| self.unsure(said)),
            // versitygw answers this for an access key that it does not know.
            (401, _) | (404, Some("XAdminUserNotFound")) => denied(said),
            (403, Some("RequestTimeTooSkewed")) => {
                denied(format!("{said}: the clocks of this machine and of the server differ"))
            }
            (403, _) => denied(said),
            (400, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) => denied(said),
            (429, _) => self.busy(said),
            (503, Some(code)) if code.starts_with("SlowDown") => self.busy(said),
            // The server has compared the bytes with their checksum, and kept nothing.
            (400, Some(code)) if DAMAGED.contains(&code) => {
                self.busy(format!("{said}: the bytes were damaged on their way"))
            }
            // The server has not received the whole request; it does not say whether it has applied
            // any of it.
            (400, Some("RequestTimeout" | "IncompleteBody")) | (408, _) => self.unsure(said),
            // Another request for the object is in progress, and this one may or may not be
            // applied.
            (409, code) if !code.is_some_and(|code| CLASHES.contains(&code)) => self.unsure(said),
            (501, Some(_)) => self.never(&said, place),
            // A reason in the form of S3 comes from the server that would have applied the request.
            // An error without a reason may come from anything on the way.
            (400..=499, Some(_)) if status != StatusCode::NOT_FOUND => self.never(&said, place),
            _ => self.unsure(said),
        }
    }

    fn never(&self, said: &str, place: &str) -> ObjectsError {
        ObjectsError::Invalid(format!("{} cannot succeed: {said}", self.doing(place)))
    }

    /// Returns the error that the object is missing, if that is an answer to the request.
    fn missing(&self) -> Option<ObjectsError> {
        match self {
            Asked::Get(key) | Asked::Put { key, condition: Sent::IfMatch } => {
                Some(ObjectsError::NotFound { key: key.clone() })
            }
            _ => None,
        }
    }

    /// Returns the error that a condition does not hold, if one was sent.
    fn failed(&self) -> Option<ObjectsError> {
        match self {
            Asked::Put { condition: Sent::Nothing, .. } => None,
            Asked::Put { key, .. } => Some(ObjectsError::ConditionFailed { key: key.clone() }),
            _ => None,
        }
    }
}

/// Error codes after which a server has discarded the bytes.
const DAMAGED: [&str; 4] =
    ["BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"];

/// Error codes with status 409 that certainly mean that a name cannot be used: servers that keep
/// their objects in folders return them.
const CLASHES: [&str; 2] = ["ObjectParentIsFile", "ExistingObjectIsDirectory"];

/// Describes the status and the code in words.
fn said(status: StatusCode, code: Option<&str>) -> String {
    match code {
        Some(code) => format!("the server has answered {} {code}", status.as_u16()),
        None => format!("the server has answered {}, without a reason", status.as_u16()),
    }
}

/// Returns the error for a bucket in another region, or at another endpoint.
fn elsewhere(answer: &Answer, body: &[u8], place: &str) -> ObjectsError {
    let header = answer.headers.get("x-amz-bucket-region").and_then(|name| name.to_str().ok());
    let is_region = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    ObjectsError::Invalid(match header.filter(is_region).or_else(|| answer::region(body)) {
        Some(region) => format!("{place} is in the region {region}; set AWS_REGION to that"),
        None => format!("{place} is not at this endpoint; check the endpoint and the region"),
    })
}
