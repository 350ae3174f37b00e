//! Tests of the requests that are sent, and of the meaning of each answer, on a server with
//! scripted answers.

use crate::canned;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::canned::{Reply, Server, answer, environment, error, text};
use bytes::Bytes;
use objects::{Condition, Key, Objects, ObjectsError, Part, Patience, Result, Swapped, Tag};
use objects_s3::{S3Config, S3Objects, Timeouts};

const TAG: &str = "ETag: \"t\"\r\n";

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

fn put(objects: &S3Objects, condition: Condition) -> Result<Tag> {
    objects.put(&key("a/b"), Bytes::from("hello"), condition)
}

fn get(objects: &S3Objects) -> Result<objects::Object> {
    objects.get(&key("a/b"), Part::Whole)
}

fn range(objects: &S3Objects, range: std::ops::Range<u64>) -> Result<objects::Object> {
    objects.get(&key("a/b"), Part::Range(range))
}

fn matches_tag() -> Condition {
    Condition::Matches(Tag::new("\"old\""))
}

/// The name of an error's kind.
fn kind<T: std::fmt::Debug>(outcome: Result<T>) -> &'static str {
    match outcome {
        Ok(_) => "Ok",
        Err(ObjectsError::NotFound { .. }) => "NotFound",
        Err(ObjectsError::ConditionFailed { .. }) => "ConditionFailed",
        Err(ObjectsError::Unsure { .. }) => "Unsure",
        Err(ObjectsError::Busy { .. }) => "Busy",
        Err(ObjectsError::OutOfRange { .. }) => "OutOfRange",
        Err(ObjectsError::Denied { .. }) => "Denied",
        Err(ObjectsError::NoBucket { .. }) => "NoBucket",
        Err(ObjectsError::Invalid(_)) => "Invalid",
        Err(ObjectsError::Io { .. }) => "Io",
        Err(ObjectsError::Damaged { .. }) => "Damaged",
        Err(ObjectsError::Secret { .. }) => "Secret",
    }
}

#[test]
fn a_put_is_sent_once_with_its_condition_and_checksums() {
    let server = Server::start(|_, _| answer(200, TAG, ""));
    let objects = server.objects();
    for (n, (condition, none_match, matches)) in [
        (Condition::Always, None, None),
        (Condition::Absent, Some("*"), None),
        (matches_tag(), None, Some("\"old\"")),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(put(&objects, condition).expect("it is answered").as_str(), "\"t\"");
        let requests = server.requests();
        assert_eq!(requests.len(), n + 1);
        let sent = &requests[n];
        assert_eq!((sent.method.as_str(), &sent.body[..]), ("PUT", &b"hello"[..]));
        assert_eq!(sent.target, "/bucket/some/prefix/a/b");
        assert_eq!(sent.header("if-none-match"), none_match);
        assert_eq!(sent.header("if-match"), matches);
        let base64 = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
        assert_eq!(sent.header("x-amz-checksum-sha256"), Some(base64));
        let hex = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(sent.header("x-amz-content-sha256"), Some(hex));
        assert_eq!(sent.header("x-amz-security-token"), Some(canned::TOKEN));
        let authorization = sent.header("authorization").expect("it is signed");
        assert!(authorization.contains(canned::ID), "{authorization}");
        assert!(authorization.contains("/us-east-1/s3/aws4_request"), "{authorization}");
        assert!(authorization.contains("x-amz-checksum-sha256"), "the checksum is signed");
        assert_eq!(sent.header("if-match").is_some(), authorization.contains("if-match"));
    }
}

#[test]
fn an_empty_object_is_put_with_its_length() {
    let server = Server::start(|_, _| answer(200, TAG, ""));
    server.objects().put(&key("a"), Bytes::new(), Condition::Always).expect("it is answered");
    assert_eq!(server.requests()[0].header("content-length"), Some("0"));
}

/// An answer, and what it means to a get, a put, a put with each condition, a delete and a list.
type Row = (u16, &'static str, [&'static str; 6]);

const U: &str = "Unsure";
const I: &str = "Invalid";
const D: &str = "Denied";
const B: &str = "Busy";
const F: &str = "ConditionFailed";
const N: &str = "NotFound";
const TABLE: &[Row] = &[
    (404, "NoSuchKey", [N, U, U, N, "Ok", U]),
    (404, "NoSuchBucket", ["NoBucket"; 6]),
    (404, "", [U; 6]),
    (404, "Elsewhere", [U; 6]),
    (412, "PreconditionFailed", [U, U, F, F, U, U]),
    (412, "", [U, U, F, F, U, U]),
    (409, "ConditionalRequestConflict", [U; 6]),
    (409, "OperationAborted", [U; 6]),
    (409, "", [U; 6]),
    (403, "AccessDenied", [D; 6]),
    (403, "SignatureDoesNotMatch", [D; 6]),
    (403, "RequestTimeTooSkewed", [D; 6]),
    (403, "", [D; 6]),
    (401, "", [D; 6]),
    (400, "ExpiredToken", [D; 6]),
    (400, "AuthorizationHeaderMalformed", [I; 6]),
    (400, "InvalidArgument", [I; 6]),
    (400, "KeyTooLongError", [I; 6]),
    (400, "BadDigest", [B; 6]),
    (400, "XAmzContentSHA256Mismatch", [B; 6]),
    (400, "RequestTimeout", [U; 6]),
    (400, "", [U; 6]),
    (405, "MethodNotAllowed", [I; 6]),
    (405, "", [U; 6]),
    (411, "MissingContentLength", [I; 6]),
    (408, "", [U; 6]),
    (429, "", [B; 6]),
    (429, "TooManyRequests", [B; 6]),
    (500, "InternalError", [U; 6]),
    (500, "", [U; 6]),
    (501, "NotImplemented", [I; 6]),
    (501, "", [U; 6]),
    (502, "", [U; 6]),
    (503, "SlowDown", [B; 6]),
    (503, "SlowDownWrite", [B; 6]),
    (503, "ServiceUnavailable", [U; 6]),
    (503, "", [U; 6]),
    (504, "", [U; 6]),
    (301, "PermanentRedirect", [I; 6]),
    (304, "", [U; 6]),
    (100 + 207, "", [I; 6]),
];

#[test]
fn every_answer_has_its_error() {
    for &(status, code, expected) in TABLE {
        let server = Server::start(move |_, _| match code {
            "" if status == 304 => Reply::Send(b"HTTP/1.1 304 Said\r\n\r\n".to_vec()),
            "" => answer(status, "Location: /other\r\n", "<html>Said</html>"),
            code => error(status, code),
        });
        let objects = server.objects();
        let found = [
            kind(get(&objects)),
            kind(put(&objects, Condition::Always)),
            kind(put(&objects, Condition::Absent)),
            kind(put(&objects, matches_tag())),
            kind(objects.delete(&key("a/b"))),
            kind(objects.list("", "")),
        ];
        assert_eq!(found, expected, "{status} {code}");
        assert_eq!(server.requests().len(), 6, "{status} {code}: each was sent once");
    }
}

#[test]
fn a_bucket_elsewhere_names_its_region() {
    let header = "x-amz-bucket-region: eu-west-3\r\n";
    let server = Server::start(move |request, _| match request.method.as_str() {
        "GET" => answer(301, header, &canned::error_body("PermanentRedirect")),
        _ => answer(
            400,
            "",
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>",
        ),
    });
    let objects = server.objects();
    for error in [get(&objects).expect_err("it is elsewhere"), {
        put(&objects, Condition::Always).expect_err("it is elsewhere")
    }] {
        assert!(error.to_string().contains("eu-west-3"), "{error}");
    }
}

#[test]
fn no_answer_leaves_a_put_unknown_and_it_is_not_sent_again() {
    let replies: [fn() -> Reply; 4] = [
        || Reply::Close,
        || Reply::Silence,
        || Reply::SendAndClose(b"HTTP/1.1 2".to_vec()),
        || Reply::SendAndClose(b"HTTP/1.1 200 Said\r\nETag: ".to_vec()),
    ];
    for (n, reply) in replies.into_iter().enumerate() {
        // The first request is answered, so that the connection is a reused one, on which a client
        // might repeat requests.
        let server = Server::start(move |_, before| match before {
            0 => answer(200, TAG, ""),
            _ => reply(),
        });
        let request = Duration::from_millis(400);
        let timeouts = Timeouts { request, ..Timeouts::default() };
        let config = S3Config { timeouts, ..server.config() };
        let objects = S3Objects::new(&config, &environment()).expect("it is a place");
        put(&objects, Condition::Always).expect("it is answered");
        let conditions = [Condition::Absent, matches_tag(), Condition::Always];
        for (m, condition) in conditions.into_iter().enumerate() {
            let start = Instant::now();
            let error = put(&objects, condition).expect_err("it is not answered");
            assert!(!error.is_certain(), "reply {n}: {error}");
            assert!(start.elapsed() < Duration::from_secs(5));
            assert_eq!(server.requests().len(), m + 2, "reply {n}: it was sent once");
        }
        assert_eq!(kind(get(&objects)), "Unsure");
        assert_eq!(kind(objects.delete(&key("a"))), "Unsure");
        assert_eq!(kind(objects.list("", "")), "Unsure");
    }
}

#[test]
fn a_connection_that_the_server_has_closed_costs_no_second_put() {
    let server = Server::start(|_, _| Reply::SendAndClose(text(200, TAG, "").into_bytes()));
    let objects = server.objects();
    let mut answered = 0;
    for n in 0..50 {
        match put(&objects, Condition::Absent) {
            Ok(_) => answered += 1,
            Err(ObjectsError::Unsure { .. }) => {}
            Err(error) => panic!("put {n}: {error}"),
        }
    }
    let came = server.requests().len();
    assert!(came <= 50 && answered <= came, "{came} puts came, {answered} were answered");
    assert!(answered >= 25, "{answered}");
}

#[test]
fn without_a_connection_it_is_certain_that_nothing_was_sent() {
    // The port was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let endpoint = Some(format!("http://{}", port.expect("a port")));
    let config = S3Config { endpoint, ..S3Config::new("bucket") };
    let objects = S3Objects::new(&config, &environment()).expect("it is a place");
    let errors = [
        put(&objects, Condition::Absent).expect_err("there is no server"),
        get(&objects).expect_err("there is no server"),
        objects.delete(&key("a")).expect_err("there is no server"),
        objects.list("", "").expect_err("there is no server"),
    ];
    for error in errors {
        assert!(error.is_certain() && error.may_be_retried(), "{error:?}");
        assert!(error.to_string().contains("s3://bucket"), "{error}");
    }
}

#[test]
fn a_host_without_an_address_is_no_connection() {
    let endpoint = Some("https://no-such-host.invalid".into());
    let config = S3Config { endpoint, ..S3Config::new("bucket") };
    let objects = S3Objects::new(&config, &environment()).expect("it is a place");
    let error = put(&objects, Condition::Absent).expect_err("there is no such host");
    assert!(matches!(error, ObjectsError::Io { .. }), "{error:?}");
    assert!(error.may_be_retried(), "{error:?}");
}

#[test]
fn a_server_that_speaks_no_tls_gets_nothing() {
    let server = Server::start(|_, _| answer(200, TAG, ""));
    let endpoint = Some(server.url.replace("http:", "https:"));
    let config = S3Config { endpoint, ..server.config() };
    let objects = S3Objects::new(&config, &environment()).expect("it is a place");
    let error = put(&objects, Condition::Absent).expect_err("there is no TLS");
    assert!(matches!(error, ObjectsError::Io { .. }), "{error:?}");
    assert!(server.requests().is_empty());
}

#[test]
fn an_applied_put_without_a_tag_is_unsure_and_an_answer_cut_after_its_tag_is_not() {
    let bare = Server::start(|_, _| answer(200, "", ""));
    assert_eq!(kind(put(&bare.objects(), Condition::Always)), "Unsure");
    let cut = "HTTP/1.1 200 Said\r\nContent-Length: 9\r\nETag: \"t\"\r\n\r\nabc";
    let cut = Server::start(|_, _| Reply::SendAndClose(cut.as_bytes().to_vec()));
    assert_eq!(put(&cut.objects(), Condition::Always).expect("it was applied").as_str(), "\"t\"");
    let cut = "HTTP/1.1 412 Said\r\nContent-Length: 9\r\n\r\n<Err";
    let cut = Server::start(|_, _| Reply::SendAndClose(cut.as_bytes().to_vec()));
    assert_eq!(kind(put(&cut.objects(), Condition::Absent)), "ConditionFailed");
    assert_eq!(kind(put(&cut.objects(), Condition::Always)), "Unsure");
}

#[test]
fn a_range_is_what_the_answer_says() {
    let content = |range: &str| format!("Content-Range: bytes {range}\r\n{TAG}");
    let ten = "0123456789";
    let cases = [
        (206, content("2-4/10"), "234", Ok("234")),
        (206, content("2-4/4"), "23", Err("Unsure")),
        (206, content("2-3/4"), "23", Ok("23")),
        (206, content("1-3/10"), "123", Err("Unsure")),
        (206, content("2-5/10"), "2345", Err("Unsure")),
        (206, content("2-4/10"), "23", Err("Unsure")),
        (206, content("2-18446744073709551615/10"), "234", Err("Unsure")),
        (206, TAG.into(), "234", Err("Unsure")),
        (206, "Content-Range: bytes 2-4/10\r\n".into(), "234", Err("Unsure")),
        // A server that ignores the range.
        (200, TAG.into(), ten, Ok("234")),
        (200, TAG.into(), "01", Err("OutOfRange")),
        (200, String::new(), ten, Err("Unsure")),
    ];
    for (status, headers, body, expected) in cases {
        let case = format!("{status} {headers} {body}");
        let server = Server::start(move |_, _| answer(status, &headers, body));
        let found = range(&server.objects(), 2..5);
        match expected {
            Ok(bytes) => assert_eq!(found.expect(&case).bytes, bytes, "{case}"),
            Err(error) => assert_eq!(kind(found), error, "{case}"),
        }
        assert_eq!(server.requests()[0].header("range"), Some("bytes=2-4"));
    }
    let server = Server::start(|_, _| answer(206, "Content-Range: bytes 0-1/9\r\n", "01"));
    assert_eq!(kind(get(&server.objects())), "Unsure", "a part is not all");
}

#[test]
fn a_range_beyond_the_end_tells_the_length() {
    let found = |server: &Server| match range(&server.objects(), 10..12) {
        Err(ObjectsError::OutOfRange { start, len, .. }) => (start, len, server.requests().len()),
        other => panic!("{other:?}"),
    };
    let header = Server::start(|_, _| answer(416, "Content-Range: bytes */7\r\n", ""));
    assert_eq!(found(&header), (10, 7, 1));
    let body = "<Error><Code>InvalidRange</Code><ActualObjectSize>8</ActualObjectSize></Error>";
    let body = Server::start(move |_, _| answer(416, "", body));
    assert_eq!(found(&body), (10, 8, 1));
    let neither = |len: u64| {
        Server::start(move |request, _| match request.method.as_str() {
            "HEAD" => {
                let head = format!("HTTP/1.1 200 Said\r\nContent-Length: {len}\r\n{TAG}\r\n");
                Reply::Send(head.into_bytes())
            }
            _ => error(416, "InvalidRange"),
        })
    };
    assert_eq!(found(&neither(9)), (10, 9, 2));
    assert_eq!(kind(range(&neither(11).objects(), 10..12)), "Unsure", "it has grown");
    let gone = Server::start(|request, _| match request.method.as_str() {
        "HEAD" => Reply::Send(b"HTTP/1.1 404 Said\r\nContent-Length: 9\r\n\r\n".to_vec()),
        _ => error(416, "InvalidRange"),
    });
    assert_eq!(kind(range(&gone.objects(), 10..12)), "NotFound");
    let nothing = Server::start(|_, _| Reply::Close);
    assert_eq!(kind(range(&nothing.objects(), 4..4)), "Invalid");
    assert!(nothing.requests().is_empty(), "a range without bytes is not asked for");
}

#[test]
fn an_object_that_comes_short_or_long_is_no_object() {
    let cut = format!("HTTP/1.1 200 Said\r\nContent-Length: 10\r\n{TAG}\r\n01234");
    let cut = Server::start(move |_, _| Reply::SendAndClose(cut.clone().into_bytes()));
    assert_eq!(kind(get(&cut.objects())), "Unsure");
    let chunks = format!("HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n{TAG}\r\n2\r\nab\r\n");
    let cut = chunks.clone();
    let cut = Server::start(move |_, _| Reply::SendAndClose(cut.clone().into_bytes()));
    assert_eq!(kind(get(&cut.objects())), "Unsure");
    let whole = Server::start(move |_, _| Reply::Send((chunks.clone() + "0\r\n\r\n").into_bytes()));
    let object = get(&whole.objects()).expect("it is whole");
    assert_eq!((object.bytes, object.len, object.tag.as_str()), ("ab".into(), 2, "\"t\""));
}

/// A page of a list of these names.
fn page(names: &[&str], token: Option<&str>) -> Reply {
    let mut body = String::from("<ListBucketResult>");
    for name in names {
        body += &format!(
            "<Contents><Key>some/prefix/{name}</Key><LastModified>2026-01-02T03:04:05Z\
             </LastModified><Size>3</Size></Contents>"
        );
    }
    body += &format!("<IsTruncated>{}</IsTruncated>", token.is_some());
    if let Some(token) = token {
        body += &format!("<NextContinuationToken>{token}</NextContinuationToken>");
    }
    answer(200, "", &(body + "</ListBucketResult>"))
}

#[test]
fn a_list_goes_on_over_names_of_others() {
    let server = Server::start(|_, before| match before {
        0 => page(&["a b", "c/", "d/../e"], Some("one+/=")),
        1 => page(&[], Some("two")),
        _ => page(&["x/1", "x/2", "x/3 "], None),
    });
    let found = server.objects().list("x/y", "x/\u{e4} &").expect("a list");
    assert_eq!((found.entries.len(), found.more), (0, false), "{found:?}");
    let requests = server.requests();
    let start = "/bucket?list-type=2&prefix=some%2Fprefix%2Fx%2Fy";
    assert_eq!(requests[0].target, format!("{start}&start-after=some%2Fprefix%2Fx%2F%C3%A4%20%26"));
    assert_eq!(requests[1].target, format!("{start}&continuation-token=one%2B%2F%3D"));
}

#[test]
fn a_page_has_entries_or_is_the_last() {
    let server = Server::start(|_, before| match before {
        0 => page(&["a b", "c/", "d/../e"], Some("one+/=")),
        1 => page(&[], Some("two")),
        2 => page(&["x/1", "x/2", "x/3 "], Some("three")),
        _ => page(&["x/0"], None),
    });
    let objects = server.objects().with_pages_of(2);
    let found = objects.list("x/", "x/0").expect("a list");
    let names: Vec<&str> = found.entries.iter().map(|listed| listed.key.as_str()).collect();
    assert_eq!((names, found.more), (vec!["x/1", "x/2"], true));
    assert_eq!(found.entries[0].len, 3);
    assert_eq!(found.entries[0].modified, Duration::from_secs(1_767_323_045));
    assert_eq!(server.requests().len(), 3);
    assert!(server.requests()[0].target.contains("&max-keys=2&"));
    let last = objects.list("x/", "x/2").expect("a list");
    assert_eq!((last.entries.len(), last.more), (0, false), "a server repeats what came before");
}

#[test]
fn a_list_that_is_none_is_an_error() {
    let unsorted = Server::start(|_, _| page(&["b", "a"], None));
    assert_eq!(kind(unsorted.objects().list("", "")), "Invalid");
    let again = Server::start(|_, _| page(&[], Some("same")));
    assert_eq!(kind(again.objects().list("", "")), "Unsure");
    let html = Server::start(|_, _| answer(200, "", "<html>Welcome</html>"));
    assert_eq!(kind(html.objects().list("", "")), "Unsure", "it is no empty list");
    let text = Server::start(|_, _| answer(200, "", "Welcome"));
    assert_eq!(kind(text.objects().list("", "")), "Unsure");
}

#[test]
fn many_reads_are_under_way_at_once() {
    let together = Arc::new(Barrier::new(64));
    let server = Server::start(move |_, _| {
        together.wait();
        answer(200, TAG, "hello")
    });
    let objects = server.objects();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| assert_eq!(get(&objects).expect("it is answered").bytes, "hello"));
        }
    });
    assert_eq!(server.requests().len(), 64);
}

#[test]
fn a_swap_whose_answer_was_lost_is_resolved_by_a_read() {
    let server = Server::start(|request, before| match (request.method.as_str(), before) {
        ("PUT", 0) => Reply::Close,
        ("PUT", _) => error(412, "PreconditionFailed"),
        _ => answer(200, "ETag: \"new\"\r\n", "mine"),
    });
    let patience = Patience { first: Duration::ZERO, ..Patience::default() };
    let judge = |bytes: &[u8]| match bytes {
        b"mine" => objects::Verdict::Mine,
        _ => objects::Verdict::Other,
    };
    let objects = server.objects();
    let old = Tag::new("\"old\"");
    let swapped = objects::swap(&objects, &key("head"), &old, "mine".into(), patience, judge);
    assert_eq!(swapped.expect("it is resolved"), Swapped::Done(Tag::new("\"new\"")));
    assert_eq!(server.requests().len(), 2);
}
