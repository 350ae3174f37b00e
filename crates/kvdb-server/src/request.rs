//! The request parser. It parses RESP arrays of bulk strings, and the inline form for people at a
//! terminal.
//!
//! A parser resumes where the bytes ended, so a request that arrives in a thousand pieces costs
//! no more than one that arrives whole. The parser never reserves memory for bytes that are only
//! announced. Arguments are ranges of the caller's buffer; nothing is copied. Error messages are
//! the same as in Redis.

use crate::error_code::ErrorCode;
use crate::limits::Limits;

/// Longest inline request, and longest line inside a RESP array, in bytes.
const LINE_MAX: usize = 64 << 10;
/// Limit on the number of arguments of a client that has not authenticated.
const STRANGER_ARGUMENTS: usize = 10;
/// Limit on the bytes of one argument of a client that has not authenticated.
const STRANGER_ARGUMENT: usize = 16 << 10;

/// An error in the protocol itself. The connection cannot continue, because the start of the next
/// request is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("too big inline request")]
    InlineTooBig,
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    #[error("too big mbulk count string")]
    CountTooBig,
    #[error("invalid multibulk length")]
    InvalidCount,
    #[error("unauthenticated multibulk length")]
    StrangerCount,
    #[error("too big bulk count string")]
    LengthTooBig,
    #[error("expected '$', got '{0}'")]
    ExpectedDollar(char),
    #[error("invalid bulk length")]
    InvalidLength,
    #[error("unauthenticated bulk length")]
    StrangerLength,
    #[error("expected CRLF after a bulk string")]
    ExpectedNewline,
}

/// The reason why a request is refused. The request is skipped, and the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    #[error(
        "{code} an argument of {0} bytes, and one has at most {1}: write a long string in parts, by APPEND or SETRANGE",
        code = ErrorCode::Limit
    )]
    Argument(usize, usize),
    #[error("{code} a request of more than {0} bytes", code = ErrorCode::Limit)]
    Request(usize),
}

/// The longest argument that can be skipped. A longer length is a protocol error.
const LONGEST: i64 = 512 << 20;

/// The result of `Parser::parse` at the front of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request is incomplete. Call `parse` again with the same bytes followed by more.
    More,
    /// An empty request of this many bytes (an empty line, `*0`), which is neither run nor
    /// answered.
    Empty(usize),
    /// A complete request of this many bytes; `Parser::arguments` reads it.
    Request(usize),
    /// The end of a request that is too large, with the number of its final bytes. The earlier
    /// bytes were reported as [`Progress::Empty`].
    Refused(usize, TooLarge),
}

/// The arguments of one request. The first one is the name of the command.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    places: &'a [(u32, u32)],
}

impl<'a> Arguments<'a> {
    pub fn len(&self) -> usize {
        self.places.len()
    }
    /// Returns argument `i`, or `None` if there are fewer.
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        let &(start, len) = self.places.get(i)?;
        self.bytes.get(start as usize..start as usize + len as usize)
    }
    /// Returns argument `i`, or an empty slice if there are fewer arguments, which the arity in
    /// the command table excludes.
    pub fn at(&self, i: usize) -> &'a [u8] {
        self.get(i).unwrap_or_default()
    }
    /// Returns the request that begins with argument `i`.
    pub fn behind(self, i: usize) -> Arguments<'a> {
        Arguments { places: self.places.get(i..).unwrap_or_default(), ..self }
    }
    /// Returns the arguments from `i` on.
    pub fn from(&self, i: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        let places = self.places.get(i..).unwrap_or_default();
        places
            .iter()
            .map(move |&(start, len)| &bytes[start as usize..start as usize + len as usize])
    }
}

/// A request with its own copy of the bytes, which is kept for later.
pub struct Request {
    bytes: Vec<u8>,
    places: Vec<(u32, u32)>,
}

impl Request {
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { bytes: &self.bytes, places: &self.places }
    }
    /// Returns the memory that the request takes, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<(u32, u32)>() + size_of::<Request>()
    }
}

impl Request {
    /// Makes a request of these arguments.
    pub fn of(arguments: &[&[u8]]) -> Request {
        let mut request = Request { bytes: Vec::new(), places: Vec::new() };
        for argument in arguments {
            request.places.push((request.bytes.len() as u32, argument.len() as u32));
            request.bytes.extend_from_slice(argument);
        }
        request
    }
}

impl Arguments<'_> {
    pub fn to_request(self) -> Request {
        let mut request = Request { bytes: Vec::new(), places: Vec::with_capacity(self.len()) };
        for argument in self.from(0) {
            request.places.push((request.bytes.len() as u32, argument.len() as u32));
            request.bytes.extend_from_slice(argument);
        }
        request
    }
}

#[derive(Default)]
pub struct Parser {
    /// The number of remaining arguments of the RESP array, or `None` before its header has been
    /// read.
    left: Option<usize>,
    /// Length of the bulk string whose header has been read.
    bulk: Option<usize>,
    /// Set if the request is too large, so that the rest of it is skipped.
    refused: Option<TooLarge>,
    /// The number of bytes of the current argument that are still to be skipped.
    skip: usize,
    /// Position at which parsing continues, from the start of the request.
    at: usize,
    /// Position at which the search for the end of a line continues.
    searched: usize,
    places: Vec<(u32, u32)>,
    /// Inline arguments with their escapes resolved. RESP arguments stay in the caller's buffer.
    unescaped: Vec<u8>,
    inline: bool,
}

impl Parser {
    /// Continues to parse `bytes`, which begins at the start of the request. `trusted` lifts the
    /// small limits of an unauthenticated client.
    pub fn parse(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        trusted: bool,
    ) -> Result<Progress, ProtocolError> {
        if self.left.is_none() {
            match bytes.first() {
                None => return Ok(Progress::More),
                Some(b'*') => {
                    let Some(line) = self.line(bytes, ProtocolError::CountTooBig)? else {
                        return Ok(Progress::More);
                    };
                    let count = integer(&line[1..]).ok_or(ProtocolError::InvalidCount)?;
                    if count > limits.arguments as i64 {
                        return Err(ProtocolError::InvalidCount);
                    }
                    if count > STRANGER_ARGUMENTS as i64 && !trusted {
                        return Err(ProtocolError::StrangerCount);
                    }
                    if count <= 0 {
                        return Ok(Progress::Empty(self.finish()));
                    }
                    self.places.clear();
                    self.inline = false;
                    self.left = Some(count as usize);
                }
                Some(_) => return self.parse_inline(bytes),
            }
        }
        while let Some(left) = self.left.filter(|left| *left > 0) {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len() - self.at);
                (self.at, self.skip) = (self.at + passed, self.skip - passed);
                self.searched = self.at;
                if self.skip > 0 {
                    return Ok(self.pass_over());
                }
                // The next bytes are the CRLF after the argument.
                self.bulk = Some(0);
            }
            let len = match self.bulk {
                Some(len) => len,
                None => {
                    match bytes.get(self.at) {
                        Some(b'$') => {}
                        Some(&c) => return Err(ProtocolError::ExpectedDollar(printable(c))),
                        None => return Ok(Progress::More),
                    }
                    let Some(line) = self.line(bytes, ProtocolError::LengthTooBig)? else {
                        return Ok(Progress::More);
                    };
                    let len = integer(&line[1..]).filter(|len| (0..=LONGEST).contains(len));
                    let len = len.ok_or(ProtocolError::InvalidLength)? as usize;
                    if len > STRANGER_ARGUMENT && !trusted {
                        return Err(ProtocolError::StrangerLength);
                    }
                    if self.refused.is_none() {
                        self.refused = match len > limits.argument {
                            true => Some(TooLarge::Argument(len, limits.argument)),
                            false if self.at + len + 2 > limits.request => {
                                Some(TooLarge::Request(limits.request))
                            }
                            false => None,
                        };
                    }
                    if self.refused.is_some() && len > 0 {
                        self.skip = len;
                        continue;
                    }
                    self.bulk = Some(len);
                    len
                }
            };
            let Some(end) = bytes.get(self.at + len..self.at + len + 2) else {
                return Ok(Progress::More);
            };
            if end != b"\r\n" {
                return Err(ProtocolError::ExpectedNewline);
            }
            if self.refused.is_none() {
                self.places.push((self.at as u32, len as u32));
            }
            self.at += len + 2;
            self.searched = self.at;
            self.bulk = None;
            self.left = Some(left - 1);
        }
        match self.refused.take() {
            None => Ok(Progress::Request(self.finish())),
            Some(why) => {
                self.places.clear();
                Ok(Progress::Refused(self.finish(), why))
            }
        }
    }

    /// Reports the bytes that have been skipped, so that the caller can release them.
    fn pass_over(&mut self) -> Progress {
        self.searched = 0;
        match std::mem::take(&mut self.at) {
            0 => Progress::More,
            passed => Progress::Empty(passed),
        }
    }

    /// Returns the arguments of the request that `parse` has just completed. `bytes` must be the
    /// same buffer.
    pub fn arguments<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        Arguments { bytes: if self.inline { &self.unescaped } else { bytes }, places: &self.places }
    }

    /// Frees the memory that was allocated for an unusually large request.
    pub fn shrink(&mut self) {
        if self.places.capacity() > 4096 {
            self.places = Vec::new();
        }
    }

    fn finish(&mut self) -> usize {
        let len = self.at;
        (self.left, self.bulk, self.at, self.searched) = (None, None, 0, 0);
        len
    }

    /// Returns the line from `self.at` without its CRLF, and moves past it.
    fn line<'a>(
        &mut self,
        bytes: &'a [u8],
        too_big: ProtocolError,
    ) -> Result<Option<&'a [u8]>, ProtocolError> {
        let from = self.searched.max(self.at);
        let Some(end) = bytes[from..].iter().position(|b| *b == b'\n').map(|i| from + i) else {
            self.searched = bytes.len();
            return if bytes.len() - self.at > LINE_MAX { Err(too_big) } else { Ok(None) };
        };
        let line = &bytes[self.at..end];
        if line.len() > LINE_MAX {
            return Err(too_big);
        }
        self.at = end + 1;
        self.searched = self.at;
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    fn parse_inline(&mut self, bytes: &[u8]) -> Result<Progress, ProtocolError> {
        let Some(line) = self.line(bytes, ProtocolError::InlineTooBig)? else {
            return Ok(Progress::More);
        };
        self.places.clear();
        self.unescaped.clear();
        self.inline = true;
        split_inline(line, &mut self.unescaped, &mut self.places)
            .ok_or(ProtocolError::UnbalancedQuotes)?;
        let len = self.finish();
        Ok(if self.places.is_empty() { Progress::Empty(len) } else { Progress::Request(len) })
    }
}

/// Splits a line at white space, except inside `"…"` with escapes (`\n`, `\x00`, …) and `'…'`.
/// Returns `None` if the quotes do not balance.
fn split_inline(line: &[u8], out: &mut Vec<u8>, places: &mut Vec<(u32, u32)>) -> Option<()> {
    let mut rest = line;
    loop {
        while let Some((c, tail)) = rest.split_first()
            && blank(c)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(());
        }
        let start = out.len();
        // A quote may open anywhere in a word, and must be followed by white space where it
        // closes.
        while let Some((&c, tail)) = rest.split_first() {
            rest = match c {
                b'"' => {
                    let tail = quoted(tail, out)?;
                    followed_by_space(tail)?
                }
                b'\'' => {
                    let tail = single_quoted(tail, out)?;
                    followed_by_space(tail)?
                }
                c if blank(&c) => break,
                c => {
                    out.push(c);
                    tail
                }
            };
        }
        places.push((start as u32, (out.len() - start) as u32));
    }
}

fn followed_by_space(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(blank).then_some(rest)
}

fn blank(c: &u8) -> bool {
    c.is_ascii_whitespace() || matches!(c, 0 | 0x0b)
}

fn quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'"', tail @ ..] => return Some(tail),
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |c: &u8| (*c as char).to_digit(16).unwrap_or(0) as u8;
                out.push(digit(high) << 4 | digit(low));
                tail
            }
            [b'\\', c, tail @ ..] => {
                out.push(match c {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    c => *c,
                });
                tail
            }
            [c, tail @ ..] => {
                out.push(*c);
                tail
            }
            [] => return None,
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\'', tail @ ..] => return Some(tail),
            [b'\\', b'\'', tail @ ..] => {
                out.push(b'\'');
                tail
            }
            [c, tail @ ..] => {
                out.push(*c);
                tail
            }
            [] => return None,
        }
    }
}

fn printable(c: u8) -> char {
    if c.is_ascii_graphic() { c as char } else { '?' }
}

/// Parses a decimal integer in the only form that Redis accepts: no sign except a minus, no
/// leading zero, and no other characters around it.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', digits)) => (true, digits),
        _ => (false, text),
    };
    match digits {
        b"0" => return (!negative).then_some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: i64 = 0;
    for c in digits {
        let digit = c.is_ascii_digit().then(|| i64::from(c - b'0'))?;
        value = value.checked_mul(10)?;
        value = if negative { value.checked_sub(digit)? } else { value.checked_add(digit)? };
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let (mut parser, mut rest, mut out) = (Parser::default(), bytes, Vec::new());
        loop {
            match parser.parse(rest, &Limits::default(), true)? {
                Progress::More => return Ok(out),
                Progress::Empty(n) => rest = &rest[n..],
                Progress::Request(n) => {
                    out.push(parser.arguments(rest).from(0).map(<[u8]>::to_vec).collect());
                    rest = &rest[n..];
                }
                Progress::Refused(_, why) => panic!("{why}"),
            }
        }
    }

    fn words(line: &str) -> Option<Vec<Vec<u8>>> {
        all(format!("{line}\n").as_bytes()).ok().map(|mut r| r.pop().unwrap_or_default())
    }

    #[test]
    fn arrays_and_lines_may_follow_each_other() {
        let got = all(
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\nset a b\n",
        )
        .expect("well formed");
        let want: Vec<Vec<&[u8]>> =
            vec![vec![b"GET", b"k"], vec![b"PING"], vec![b""], vec![b"set", b"a", b"b"]];
        assert_eq!(got, want);
    }

    #[test]
    fn inline_quotes() {
        assert_eq!(
            words(r#"set "a b" 'c d'"#),
            Some(vec![b"set".to_vec(), b"a b".to_vec(), b"c d".to_vec()])
        );
        assert_eq!(
            words(r#"x "\x00\xfF\n\"\\""#),
            Some(vec![b"x".to_vec(), vec![0, 255, 10, b'"', b'\\']])
        );
        assert_eq!(
            words(r"x '\'' '\n'"),
            Some(vec![b"x".to_vec(), b"'".to_vec(), b"\\n".to_vec()])
        );
        assert_eq!(words(r#"x """#), Some(vec![b"x".to_vec(), vec![]]));
        assert_eq!(words(r#"x "a"b"#), None);
        assert_eq!(words(r#"x "a"#), None);
        assert_eq!(words("x 'a"), None);
        assert_eq!(words("x\0 a\0b"), Some(vec![b"x".to_vec(), b"a".to_vec(), b"b".to_vec()]));
    }

    #[test]
    fn hostile_lengths_are_refused_before_a_byte_is_reserved() {
        let fails = |bytes: &[u8]| all(bytes).expect_err("must be refused");
        assert_eq!(fails(b"*2147483648\r\n"), ProtocolError::InvalidCount);
        assert_eq!(fails(b"*99999999999999999999999\r\n"), ProtocolError::InvalidCount);
        assert_eq!(fails(b"*x\r\n"), ProtocolError::InvalidCount);
        assert_eq!(fails(b"*1\r\n$536870913\r\n"), ProtocolError::InvalidLength);
        assert_eq!(fails(b"*1\r\n$-1\r\n"), ProtocolError::InvalidLength);
        assert_eq!(fails(b"*1\r\n$9223372036854775808\r\n"), ProtocolError::InvalidLength);
        assert_eq!(fails(b"*1\r\n:1\r\n"), ProtocolError::ExpectedDollar(':'));
        assert_eq!(fails(b"*1\r\n$1\r\nabc\r\n"), ProtocolError::ExpectedNewline);
        assert_eq!(fails(&[b'x'; LINE_MAX + 1]), ProtocolError::InlineTooBig);
        let mut parser = Parser::default();
        assert_eq!(
            parser.parse(b"*131072\r\n$4194304\r\n", &Limits::default(), true),
            Ok(Progress::More)
        );
        assert!(parser.places.capacity() < 100, "nothing is reserved for what was only announced");
        let strangers = |bytes: &[u8]| Parser::default().parse(bytes, &Limits::default(), false);
        assert_eq!(strangers(b"*11\r\n"), Err(ProtocolError::StrangerCount));
        assert_eq!(strangers(b"*1\r\n$16385\r\n"), Err(ProtocolError::StrangerLength));
    }

    #[test]
    fn a_request_is_bounded_as_a_whole() {
        let limits = Limits { request: 100, ..Limits::default() };
        let mut bytes = b"*3\r\n".to_vec();
        for _ in 0..3 {
            bytes.extend_from_slice(b"$40\r\n");
            bytes.extend_from_slice(&[b'v'; 40]);
            bytes.extend_from_slice(b"\r\n");
        }
        let refused = TooLarge::Request(100);
        assert_eq!(passed_over(&bytes, &limits), Ok((bytes.len(), refused)));
    }

    /// Returns the length of a request that is skipped, and the reason.
    fn passed_over(bytes: &[u8], limits: &Limits) -> Result<(usize, TooLarge), ProtocolError> {
        let (mut parser, mut at) = (Parser::default(), 0);
        loop {
            match parser.parse(&bytes[at..], limits, true)? {
                Progress::Empty(passed) => at += passed,
                Progress::Refused(last, why) => return Ok((at + last, why)),
                other => panic!("{other:?} at {at}"),
            }
        }
    }

    #[test]
    fn an_argument_that_is_too_long_is_passed_over_as_it_comes() {
        let limits = Limits { argument: 10, ..Limits::default() };
        let mut parser = Parser::default();
        let mut parse = |bytes: &[u8]| parser.parse(bytes, &limits, true);
        assert_eq!(parse(b"*3\r\n$3\r\nSET\r\n$30\r\n"), Ok(Progress::Empty(18)));
        for _ in 0..2 {
            assert_eq!(parse(b"0123456789"), Ok(Progress::Empty(10)));
        }
        assert_eq!(parse(b""), Ok(Progress::More));
        assert_eq!(parse(b"0123456789\r"), Ok(Progress::More));
        let last = b"0123456789\r\n$2\r\nEX\r\nPING\r\n";
        let refused = Progress::Refused(last.len() - 6, TooLarge::Argument(30, 10));
        assert_eq!(parse(last), Ok(refused));
        assert_eq!(parse(b"PING\r\n"), Ok(Progress::Request(6)));
    }

    #[test]
    fn integers_have_one_form() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("+1", None),
            ("01", None),
            ("-0", None),
            ("", None),
            ("-", None),
            (" 1", None),
            ("1 ", None),
            ("1x", None),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text:?}");
        }
    }
}
