//! The texts in answers: codes of errors, lengths, and lists.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use objects::{Key, Listed};
use serde::Deserialize;

/// Returns the code of an error, such as `NoSuchKey`. No other part of an error's text is ever
/// shown: it may repeat the request with its signature.
pub(crate) fn code(body: &[u8]) -> Option<&str> {
    let is_code = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
    element(body, "Code").filter(|code| code.len() <= 64 && code.bytes().all(is_code))
}

/// Returns the region that an error names.
pub(crate) fn region(body: &[u8]) -> Option<&str> {
    let is_region = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    element(body, "Region").filter(|region| region.len() <= 64 && region.bytes().all(is_region))
}

/// Returns the length of an object that a range did not fit.
pub(crate) fn length(headers: &HeaderMap, body: &[u8]) -> Option<u64> {
    let header = || headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes */");
    header().or_else(|| element(body, "ActualObjectSize"))?.trim().parse().ok()
}

/// Returns the range in an answer, as first and last byte, and the length of the object:
/// `bytes 0-9/100`.
pub(crate) fn range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim();
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?, len.trim().parse().ok()?))
}

/// Returns the length in an answer to HEAD.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// Returns the text of the first element of that name which has no elements inside.
fn element<'a>(body: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inside, _) = rest.split_once('<')?;
    rest[inside.len()..].starts_with(&format!("</{name}>")).then(|| inside.trim())
}

/// A page of a list as sent by the server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RawPage {
    /// The objects whose names are keys below the prefix of the place.
    pub entries: Vec<Listed>,
    /// The token that continues the list, if there is more of it.
    pub token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", rename = "ListBucketResult")]
struct ListBucketResult {
    #[serde(default)]
    contents: Vec<Contents>,
    is_truncated: bool,
    #[serde(default)]
    next_continuation_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
    last_modified: String,
}

/// Parses a page of a list. Names that are not keys are left out: others may have put them. The
/// error is the end of a sentence, without text of the answer.
pub(crate) fn page(body: &[u8], prefix: &str) -> Result<RawPage, &'static str> {
    // The library does not check the name of the outermost element, and a page for browsers must
    // not be taken for an empty list: objects that are not listed may be deleted.
    if !is_document(body, "ListBucketResult") {
        return Err("the answer is no list");
    }
    let read: ListBucketResult =
        quick_xml::de::from_reader(body).map_err(|_| "the answer is no list")?;
    let mut entries = Vec::with_capacity(read.contents.len());
    for contents in read.contents {
        let Some(name) = contents.key.strip_prefix(prefix) else { continue };
        let Ok(key) = Key::new(name) else { continue };
        let modified = chrono::DateTime::parse_from_rfc3339(&contents.last_modified)
            .map_err(|_| "a time in the list cannot be read")?;
        let millis = u64::try_from(modified.timestamp_millis()).unwrap_or(0);
        entries.push(Listed { key, len: contents.size, modified: Duration::from_millis(millis) });
    }
    let token = read.next_continuation_token.filter(|token| !token.is_empty());
    if read.is_truncated && token.is_none() {
        return Err("the list ends early, without saying how it goes on");
    }
    Ok(RawPage { entries, token: token.filter(|_| read.is_truncated) })
}

/// Returns whether the outermost element has this name.
pub(crate) fn is_document(body: &[u8], name: &str) -> bool {
    let text = body.trim_ascii_start();
    let text = match text.strip_prefix(b"<?xml") {
        Some(rest) => {
            rest.windows(2).position(|two| two == b"?>").map_or(rest, |at| &rest[at + 2..])
        }
        None => text,
    };
    let rest = text.trim_ascii_start().strip_prefix(b"<");
    rest.is_some_and(|rest| rest.starts_with(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_code_is_a_word_and_nothing_else_is_shown() {
        let error = b"<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>m</Message>";
        assert_eq!(code(error), Some("NoSuchKey"));
        assert_eq!(code(b"<Code> a.B1 </Code>"), Some("a.B1"));
        for none in [
            &b""[..],
            b"<Code>",
            b"<Code></x>",
            b"<Code>a b</Code>",
            b"<Code><x/></Code>",
            b"<html>404</html>",
            b"\xff<Code>a</Code>",
            "<Code>\u{e4}</Code>".as_bytes(),
        ] {
            assert_eq!(code(none), None, "{none:?}");
        }
        assert_eq!(region(b"<Region>eu-west-1</Region>"), Some("eu-west-1"));
    }

    #[test]
    fn lengths_and_ranges_are_those_of_the_answer() {
        let with = |value: &'static str| {
            HeaderMap::from_iter([(CONTENT_RANGE, HeaderValue::from_static(value))])
        };
        assert_eq!(length(&with("bytes */10"), b""), Some(10));
        let body = b"<ActualObjectSize>7</ActualObjectSize>";
        assert_eq!(length(&HeaderMap::new(), body), Some(7));
        assert_eq!(length(&with("bytes */x"), b""), None);
        assert_eq!(range(&with("bytes 2-4/10")), Some((2, 4, 10)));
        for bad in ["", "bytes", "bytes 1", "bytes 1-2", "bytes 1-2/*", "bytes -1-2/3", "2-4/10"] {
            assert_eq!(range(&with(bad)), None, "{bad}");
        }
    }

    const LIST: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult \
        xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>p/</Prefix>\
        <Contents><Key>p/a</Key><Size>3</Size><LastModified>1970-01-01T00:00:01.500Z\
        </LastModified><ETag>&quot;x&quot;</ETag></Contents><KeyCount>4</KeyCount>\
        <Contents><Key>p/</Key><Size>0</Size><LastModified>x</LastModified></Contents>\
        <Contents><Key>p/d/</Key><Size>0</Size><LastModified>x</LastModified></Contents>\
        <Contents><Key>q/e</Key><Size>0</Size><LastModified>x</LastModified></Contents>\
        <Contents><Key>p/f &amp; g</Key><Size>0</Size><LastModified>x</LastModified></Contents>";

    #[test]
    fn a_page_has_what_are_keys_below_the_prefix() {
        let list = format!("{LIST}<IsTruncated>false</IsTruncated></ListBucketResult>");
        let found = page(list.as_bytes(), "p/").expect("it is a list");
        let a = Listed {
            key: Key::new("a").expect("a key"),
            len: 3,
            modified: Duration::from_millis(1500),
        };
        assert_eq!(found, RawPage { entries: vec![a], token: None });
        let more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t&lt;\
            </NextContinuationToken></ListBucketResult>";
        let found = page(format!("{LIST}{more}").as_bytes(), "p/").expect("it is a list");
        assert_eq!(found.token.as_deref(), Some("t<"));
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        let early = format!("{LIST}<IsTruncated>true</IsTruncated></ListBucketResult>");
        let time = LIST.replace("p/f &amp; g", "p/f") + "</ListBucketResult>";
        for bad in [
            &early,
            &time,
            LIST,
            "<html></html>",
            "",
            "{}",
            "<?xml",
            "<ListBucketResult></ListBucketResult>",
        ] {
            assert!(page(bad.as_bytes(), "p/").is_err(), "{bad}");
        }
    }
}
