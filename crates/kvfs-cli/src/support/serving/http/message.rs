//! HTTP/1.1 requests and responses as bytes. The parser is strict, and refuses requests that two
//! programs could read differently: a body must have its length declared exactly once.

use std::io::{self, Read};

/// The limit of a request's head, in bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// The limit of a request's body, in bytes.
const LONGEST_BODY: usize = 64 << 10;

/// A request. Text is as it was sent; nothing is decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// Headers with names in lower case.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the value of a header, or `None` if it is missing or occurs several times.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(other, _)| other == name);
        let first = found.next()?;
        if found.next().is_some() { None } else { Some(&first.1) }
    }

    /// Returns whether a header of this name occurs at least once.
    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(other, _)| other == name)
    }
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// The content type.
    pub kind: &'static str,
    /// Additional headers.
    pub headers: &'static [(&'static str, &'static str)],
    pub body: Vec<u8>,
}

impl Response {
    pub fn new(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status, kind, headers: &[], body: body.into() }
    }

    /// Returns a response with a sentence of plain text.
    pub fn text(status: u16, text: &str) -> Response {
        Response::new(status, "text/plain; charset=utf-8", format!("{text}\n"))
    }

    fn reason(&self) -> &'static str {
        match self.status {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            413 => "Content Too Large",
            415 => "Unsupported Media Type",
            421 => "Misdirected Request",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            _ => "Status",
        }
    }

    /// Encodes the response, without its body for HEAD.
    pub fn encoded(&self, with_body: bool) -> Vec<u8> {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.status,
            self.reason(),
            self.kind,
            self.body.len()
        );
        for (name, value) in self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// Reads a request: its head, and the body that it announces. Returns `Ok(None)` if the client sent
/// nothing, or hung up. The inner error is the response to send.
pub fn read(from: &mut impl Read) -> io::Result<Option<Result<Request, Response>>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() >= LONGEST_HEAD {
            return Ok(Some(Err(Response::text(431, "the head of the request is too long"))));
        }
        match from.read(&mut piece)? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&piece[..read]),
        }
    };
    let rest = bytes.split_off(end + 4);
    let (mut request, length) = match head(&bytes[..end]) {
        Ok(head) => head,
        Err(answer) => return Ok(Some(Err(answer))),
    };
    request.body = rest;
    while request.body.len() < length {
        match from.read(&mut piece)? {
            0 => return Ok(None),
            read => request.body.extend_from_slice(&piece[..read]),
        }
    }
    // A connection has one request; ignore any bytes after it.
    request.body.truncate(length);
    Ok(Some(Ok(request)))
}

/// Parses a request's head, without its final empty line. Also returns the length of the body.
fn head(bytes: &[u8]) -> Result<(Request, usize), Response> {
    let wrong = || Response::text(400, "that is no request");
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let mut request = Request { method: method.into(), path: path.into(), ..Request::default() };
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let is_of_name = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
        // Programs disagree on a blank before the colon, and on a line that continues the previous
        // one.
        if name.is_empty() || !name.bytes().all(is_of_name) || value.contains(['\r', '\n', '\0']) {
            return Err(wrong());
        }
        let value = value.trim_matches([' ', '\t']);
        request.headers.push((name.to_ascii_lowercase(), value.into()));
    }
    if request.has("transfer-encoding") {
        return Err(Response::text(501, "a body is sent with its length"));
    }
    let length = match request.header("content-length") {
        None if request.has("content-length") => return Err(wrong()),
        None => 0,
        Some(digits) if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) => {
            return Err(wrong());
        }
        // A number too large to parse is too long as well.
        Some(digits) => digits.parse().unwrap_or(usize::MAX),
    };
    if length > LONGEST_BODY {
        return Err(Response::text(413, "the body of the request is too long"));
    }
    Ok((request, length))
}

#[cfg(test)]
mod tests {
    use env::Random;

    use super::*;

    fn ask(bytes: &[u8]) -> Option<Result<Request, Response>> {
        read(&mut &bytes[..]).expect("memory does not fail")
    }

    #[track_caller]
    fn refused(bytes: &[u8]) -> u16 {
        match ask(bytes) {
            Some(Err(answer)) => answer.status,
            other => panic!("{}: {other:?}", bytes.escape_ascii()),
        }
    }

    #[test]
    fn a_request_is_read_as_it_was_sent() {
        let sent = b"POST /a/b?c=d HTTP/1.1\r\nHost: here\r\nX-Name:\t a: b \r\ncontent-LENGTH: 3\r\n\r\nxyzw";
        let request = ask(sent).expect("a request").expect("a good one");
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/a/b"));
        assert_eq!(request.header("host"), Some("here"));
        assert_eq!(request.header("x-name"), Some("a: b"));
        assert_eq!(request.header("none"), None);
        assert_eq!(request.body, b"xyz", "what comes behind the body is not a part of it");
        for end in 0..sent.len() - 1 {
            assert_eq!(ask(&sent[..end]), None, "one that is not whole is not answered: {end}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (head, status) in [
            ("Content-Length: 1\r\nContent-Length: 1", 400),
            ("Content-Length: 1\r\ncontent-length: 2", 400),
            ("Content-Length: +1", 400),
            ("Content-Length: -1", 400),
            ("Content-Length: 1, 1", 400),
            ("Content-Length:", 400),
            ("Content-Length: 65537", 413),
            ("Content-Length: 99999999999999999999999", 413),
            ("Transfer-Encoding: chunked", 501),
            ("Host : here", 400),
            (" folded: line", 400),
            ("no colon", 400),
            (": no name", 400),
            ("Host: a\nb: c", 400),
            ("Host: a\rb: c", 400),
            ("Host: a\0", 400),
            ("Hö: a", 400),
        ] {
            assert_eq!(
                refused(format!("GET / HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()),
                status,
                "{head}"
            );
        }
        let twice = b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
        let twice = ask(twice).expect("a request").expect("it can be read");
        assert_eq!((twice.header("host"), twice.has("host")), (None, true));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(2 * LONGEST_HEAD));
        assert_eq!(refused(long.as_bytes()), 431);
    }

    /// Any bytes, in pieces of any size, are a request, an error or nothing, independent of the
    /// pieces.
    #[test]
    fn whatever_is_sent_is_answered_or_not_the_same_in_all_pieces() {
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let most = self.1.min(self.0.len()).min(buffer.len());
                buffer[..most].copy_from_slice(&self.0[..most]);
                self.0 = &self.0[most..];
                Ok(most)
            }
        }
        let words: [&[u8]; 18] = [
            b"GET",
            b"POST",
            b" ",
            b"/",
            b"HTTP/1.1",
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
            b":",
            b"Host",
            b"Content-Length",
            b"Transfer-Encoding",
            b"17",
            b"0",
            b"\xff\xfe",
            b"?",
            b"\0",
        ];
        let cases = std::env::var("KVFS_TEST_CASES").ok().and_then(|n| n.parse().ok());
        for seed in 0..cases.unwrap_or(3000) {
            let mut random = Random::new(seed);
            let mut bytes = Vec::new();
            for _ in 0..random.below(30) {
                if random.one_in(6) {
                    let mut noise = vec![0; random.below(20) as usize];
                    random.fill(&mut noise);
                    bytes.extend_from_slice(&noise);
                } else {
                    bytes.extend_from_slice(words[random.below(words.len() as u64) as usize]);
                }
            }
            let whole = ask(&bytes);
            if let Some(Ok(request)) = &whole {
                assert!(request.body.len() <= LONGEST_BODY, "seed {seed}");
            }
            let size = 1 + random.below(9) as usize;
            let pieces = read(&mut Pieces(&bytes, size)).expect("memory does not fail");
            assert_eq!(pieces, whole, "seed {seed}, pieces of {size}");
        }
    }
}
