//! The operations on objects as requests to a bucket.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH, RANGE};
use http::{HeaderMap, Method, StatusCode};
use objects::{Condition, Key, Object, Objects, ObjectsError, Page, Part, Result, Tag};

use crate::answer;
use crate::client::{self, Connector, Trust};
use crate::config::S3Config;
use crate::credentials;
use crate::environment::Environment;
use crate::errors::{Asked, Sent};
use crate::place::Place;
use crate::request::{Answer, Ask, SHORT, Sender, header};
use crate::runtime::Engine;

/// An offset beyond the end of every object, far below the numbers that servers cannot read.
const BEYOND: u64 = 1 << 62;
/// The most bytes of a page of a list: 1,000 names of 1,024 bytes, each of which can be written in
/// up to six, and the text around them.
const LIST: u64 = 16 << 20;

/// Objects in a bucket of an S3-compatible server. Every call sends one request, once; a range that
/// begins beyond the end may need a second one, and a list as many as are needed to find an entry.
///
/// It has threads of its own, so it must be created after the last `fork` of the process.
pub struct S3Objects {
    place: Place,
    sender: Sender,
    engine: Arc<Engine>,
    entries: Option<usize>,
}

impl S3Objects {
    /// Creates the place for the bucket and the prefix of an address such as `s3://bucket/prefix`,
    /// with the settings and the credentials of the environment. Nothing is sent.
    pub fn from_address(address: &str, environment: &Environment) -> Result<S3Objects> {
        S3Objects::new(&S3Config::from_address(address)?, environment)
    }

    /// Creates the place for a bucket, with the credentials of the environment, and with its
    /// settings for those that the configuration lacks. Nothing is sent.
    pub fn new(config: &S3Config, environment: &Environment) -> Result<S3Objects> {
        let profile = environment.profile()?;
        let place = Place::of(config, environment, &profile)?;
        let trust = Trust::of(environment)?;
        let connector = Connector::new(&trust, config.timeouts)?;
        let credentials = credentials::find(environment, &profile, &place.region, connector)?;
        let sender = Sender {
            client: client::of_bucket(&trust, config.timeouts)?,
            credentials,
            region: place.region.clone(),
            timeouts: config.timeouts,
        };
        let starting = |error| ObjectsError::io("starting threads for requests", error);
        let engine = Arc::new(Engine::start().map_err(starting)?);
        Ok(S3Objects { place, sender, engine, entries: None })
    }

    /// Limits the pages of lists to this many entries, at least one. Otherwise the server decides;
    /// all known servers use 1,000.
    #[must_use]
    pub fn with_pages_of(self, entries: usize) -> Self {
        S3Objects { entries: Some(entries.max(1)), ..self }
    }

    /// Returns the location of the bucket.
    pub(crate) fn bucket(&self) -> &Place {
        &self.place
    }

    /// Returns the source of the credentials.
    pub(crate) fn source(&self) -> &str {
        &self.sender.credentials.source
    }

    /// Sends one request, once, and returns its answer if there is one.
    pub(crate) fn send(&self, asked: &Asked, ask: Ask) -> Result<Answer> {
        let sender = self.sender.clone();
        match self.engine.run(async move { sender.send(ask).await }) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(lost)) => Err(asked.lost(lost, &self.place.name)),
            None => Err(asked.unsure("the request was abandoned by an error of this program")),
        }
    }

    fn ask(&self, method: Method, key: &Key, longest: u64) -> Ask {
        Ask::new(method, format!("{}/{}{key}", self.place.url, self.place.prefix), longest)
    }

    /// Reads a part of an object. Returns `None` if the object has the tag `unless`.
    fn read(&self, key: &Key, part: &Part, unless: Option<&Tag>) -> Result<Option<Object>> {
        // A range without bytes cannot be requested.
        let longest = match part.within(key, u64::MAX)? {
            range if *part == Part::Whole => range.end,
            // A server that ignores the range sends the whole object.
            range => (range.end - range.start).max(64 << 20),
        };
        let asked = Asked::Get(key.clone());
        let mut ask = self.ask(Method::GET, key, longest);
        if let Some(tag) = unless {
            header(&mut ask.headers, IF_NONE_MATCH, tag.as_str())?;
        }
        if let Part::Range(range) = part {
            header(&mut ask.headers, RANGE, &range_header(range))?;
        }
        let answer = self.send(&asked, ask)?;
        match (answer.status, part) {
            (StatusCode::NOT_MODIFIED, _) => Ok(None),
            (StatusCode::OK | StatusCode::PARTIAL_CONTENT, _) => {
                object(&asked, key, part, answer).map(Some)
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, Part::Range(range)) => {
                Err(self.beyond(&asked, key, range.start, &answer))
            }
            _ => Err(asked.refused(&answer, &self.place.name)),
        }
    }

    /// Returns the error of a range that begins at or after the end of the object.
    fn beyond(&self, asked: &Asked, key: &Key, start: u64, answer: &Answer) -> ObjectsError {
        let body = answer.body.as_deref().unwrap_or_default();
        let len = match answer::length(&answer.headers, body) {
            Some(len) => Ok(len),
            None => self.length(asked, key),
        };
        match len {
            Ok(len) if len <= start => ObjectsError::OutOfRange { key: key.clone(), start, len },
            Ok(_) => asked.unsure("the object has grown since the range was refused"),
            Err(error) => error,
        }
    }

    /// Requests the length of the object.
    fn length(&self, asked: &Asked, key: &Key) -> Result<u64> {
        let answer = self.send(asked, self.ask(Method::HEAD, key, SHORT))?;
        match answer.status {
            StatusCode::OK => answer::content_length(&answer.headers)
                .ok_or_else(|| asked.unsure("the server does not tell the object's length")),
            // An answer to HEAD has no body, and so no reason.
            StatusCode::NOT_FOUND => Err(ObjectsError::NotFound { key: key.clone() }),
            _ => Err(asked.refused(&answer, &self.place.name)),
        }
    }

    /// Returns one page, as the server has it.
    fn page(
        &self,
        asked: &Asked,
        prefix: &str,
        after: &str,
        token: Option<&str>,
    ) -> Result<answer::RawPage> {
        let mut query = vec![("list-type", "2".to_string())];
        query.push(("prefix", format!("{}{prefix}", self.place.prefix)));
        if let Some(entries) = self.entries {
            query.push(("max-keys", entries.to_string()));
        }
        match token {
            Some(token) => query.push(("continuation-token", token.into())),
            None if after.is_empty() => {}
            None => query.push(("start-after", format!("{}{after}", self.place.prefix))),
        }
        let invalid = |_| asked.unsure("the name of the place makes no URL");
        let url = reqwest::Url::parse_with_params(&self.place.url, query).map_err(invalid)?;
        // Some servers do not understand a plus sign for a space when they check signatures.
        let ask = Ask::new(Method::GET, url.as_str().replace('+', "%20"), LIST);
        let answer = self.send(asked, ask)?;
        if answer.status != StatusCode::OK {
            return Err(asked.refused(&answer, &self.place.name));
        }
        let body = answer.body.map_err(|why| asked.unsure(why))?;
        answer::page(&body, &self.place.prefix).map_err(|why| asked.unsure(why))
    }
}

/// Returns whether keys with this prefix can exist.
fn begins_a_key(prefix: &str) -> bool {
    prefix.is_empty() || Key::new(prefix).is_ok() || Key::new(format!("{prefix}a")).is_ok()
}

/// Returns the header for a range. A number that some servers cannot read is replaced by one that
/// has the same meaning, as no object is that long.
fn range_header(range: &Range<u64>) -> String {
    let start = range.start.min(BEYOND);
    if range.end > BEYOND {
        return format!("bytes={start}-");
    }
    format!("bytes={start}-{}", range.end - 1)
}

/// Returns the part in an answer with success.
fn object(asked: &Asked, key: &Key, part: &Part, answer: Answer) -> Result<Object> {
    let Some(tag) = tag(&answer.headers) else {
        return Err(asked.unsure("the answer has no tag"));
    };
    let body = answer.body.map_err(|why| asked.unsure(why))?;
    let got = body.len() as u64;
    let Part::Range(range) = part else {
        return match answer.status {
            StatusCode::OK => Ok(Object { bytes: body, tag, len: got }),
            _ => Err(asked.unsure("the answer has a part of the object instead of all of it")),
        };
    };
    if answer.status == StatusCode::OK {
        // A server may ignore the range, and send the whole object. Its length is that of bytes in
        // memory.
        let range = part.within(key, got)?;
        let bytes = body.slice(range.start as usize..range.end as usize);
        return Ok(Object { bytes, tag, len: got });
    }
    let Some((first, last, len)) = answer::range(&answer.headers) else {
        return Err(asked.unsure("the answer does not tell which part of the object it has"));
    };
    let expected = part.within(key, len)?;
    if first != range.start || last.checked_add(1) != Some(expected.end) {
        return Err(asked.unsure("the answer has another part of the object than was asked for"));
    }
    if got != expected.end - expected.start {
        return Err(asked.unsure("the answer has another length than it says"));
    }
    Ok(Object { bytes: body, tag, len })
}

fn tag(headers: &HeaderMap) -> Option<Tag> {
    Some(Tag::new(headers.get(ETAG)?.to_str().ok()?))
}

impl Objects for S3Objects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        let object = self.read(key, &part, None)?;
        let asked = Asked::Get(key.clone());
        object.ok_or_else(|| asked.unsure("it is said to be unchanged, which was not asked"))
    }

    fn get_other(&self, key: &Key, part: Part, tag: &Tag) -> Result<Option<Object>> {
        let object = self.read(key, &part, Some(tag))?;
        // Some servers ignore the condition.
        Ok(object.filter(|object| object.tag != *tag))
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        let mut ask = self.ask(Method::PUT, key, SHORT).with_body(bytes);
        let sent = match &condition {
            Condition::Always => Sent::Nothing,
            Condition::Absent => {
                header(&mut ask.headers, IF_NONE_MATCH, "*")?;
                Sent::IfNoneMatch
            }
            Condition::Matches(tag) => {
                header(&mut ask.headers, IF_MATCH, tag.as_str())?;
                Sent::IfMatch
            }
        };
        let asked = Asked::Put { key: key.clone(), condition: sent };
        let answer = self.send(&asked, ask)?;
        if !answer.status.is_success() {
            return Err(asked.refused(&answer, &self.place.name));
        }
        // The put was applied, even if the rest of the answer was lost.
        tag(&answer.headers).ok_or_else(|| asked.unsure("the answer has no tag"))
    }

    fn delete(&self, key: &Key) -> Result<()> {
        let asked = Asked::Delete(key.clone());
        let answer = self.send(&asked, self.ask(Method::DELETE, key, SHORT))?;
        let missing = || {
            let body = answer.body.as_deref().unwrap_or_default();
            answer.status == StatusCode::NOT_FOUND && answer::code(body) == Some("NoSuchKey")
        };
        if answer.status.is_success() || missing() {
            return Ok(());
        }
        Err(asked.refused(&answer, &self.place.name))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        if !begins_a_key(prefix) {
            // Some servers refuse such names, and no server has such keys.
            return Ok(Page::default());
        }
        let asked = Asked::List(prefix.into());
        let mut token: Option<String> = None;
        loop {
            let page = self.page(&asked, prefix, after, token.as_deref())?;
            let mut entries = page.entries;
            entries.retain(|listed| {
                listed.key.as_str() > after && listed.key.as_str().starts_with(prefix)
            });
            if !entries.is_sorted_by(|one, next| one.key < next.key) {
                return Err(ObjectsError::Invalid(format!(
                    "{} lists its objects in another order than that of their names, so a list \
                     cannot be continued; use a general purpose bucket",
                    self.place.name
                )));
            }
            let more = page.token.is_some();
            if !entries.is_empty() || !more {
                return Ok(Page { entries, more });
            }
            // This page had only names of other writers, and a page must have an entry to continue
            // from.
            if page.token == token {
                return Err(asked.unsure("the list repeats itself"));
            }
            token = page.token;
        }
    }

    fn place(&self) -> String {
        self.place.name.clone()
    }
}

impl fmt::Debug for S3Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Objects")
            .field("place", &self.place)
            .field("credentials", &self.sender.credentials.source)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_begins_a_key_or_the_list_is_empty() {
        let part = "a".repeat(255);
        for prefix in ["", "a", "a/", ".", "..", "a/.", "a/b.", &part] {
            assert!(begins_a_key(prefix), "{prefix}");
        }
        for none in ["/", "a//", "a/./", "../", "a b", "\u{e4}", "a?", &format!("{part}a")] {
            assert!(!begins_a_key(none), "{none}");
        }
    }

    #[test]
    fn a_range_is_a_header_that_every_server_can_read() {
        assert_eq!(range_header(&(0..1)), "bytes=0-0");
        assert_eq!(range_header(&(5..100)), "bytes=5-99");
        assert_eq!(range_header(&(5..u64::MAX)), "bytes=5-");
        assert_eq!(range_header(&(u64::MAX - 1..u64::MAX)), format!("bytes={BEYOND}-"));
    }
}
