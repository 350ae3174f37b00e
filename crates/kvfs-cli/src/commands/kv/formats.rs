//! The forms in which `kvfs kv load` reads keys and values: CSV (RFC 4180), JSON lines, and the
//! commands of RESP that `redis-cli --pipe` takes. Input is not trusted: of a record without an
//! end, at most the length limit of a record is held.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use serde_json::value::RawValue;

use crate::support::terminal::output::{Exit, Failure, Outcome};

/// Limit of one record, in bytes.
const LONGEST: usize = 32 << 20;
/// Limit of the words of one command.
const MOST_WORDS: usize = 64 << 10;

/// An object of JSON, with its values as they are written.
type Object<'a> = BTreeMap<String, &'a RawValue>;

/// The form of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A key and a value on each line, separated by a comma, quoted where necessary.
    Csv,
    /// An object on each line, with "key" and "value", or "key_base64" and "value_base64".
    Jsonl,
    /// Commands of RESP, such as SET and HSET.
    Resp,
}

impl Format {
    /// Returns the form that the end of a file's name says.
    pub fn of_name(name: &str) -> Option<Format> {
        match name.rsplit_once('.')?.1 {
            "csv" => Some(Format::Csv),
            "json" | "jsonl" | "ndjson" => Some(Format::Jsonl),
            "aof" | "resp" => Some(Format::Resp),
            _ => None,
        }
    }
}

/// A record of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// A key and its value.
    Put(Vec<u8>, Vec<u8>),
    /// Another command, and its arguments.
    Command(Vec<Vec<u8>>),
}

/// Reads the records of an input, one after the other.
pub struct Entries<R> {
    input: R,
    format: Format,
    /// The number of lines, or commands, that were read.
    read: u64,
}

impl<R: BufRead> Entries<R> {
    pub fn new(input: R, format: Format) -> Entries<R> {
        Entries { input, format, read: 0 }
    }

    /// Returns the place of the last record: "line 7".
    pub fn place(&self) -> String {
        let what = if self.format == Format::Resp { "command" } else { "line" };
        format!("{what} {}", self.read)
    }

    /// Returns the next record, or `None` at the end of the input.
    pub fn read(&mut self) -> Outcome<Option<Entry>> {
        match self.format {
            Format::Csv => self.csv(),
            Format::Jsonl => self.json(),
            Format::Resp => self.command(),
        }
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::new(Exit::Failed, format!("{}: {what}", self.place()))
    }

    fn unread(&self, error: &std::io::Error) -> Failure {
        Failure::io(format!("cannot read the input after {}", self.place()), error)
    }

    /// Appends a line with its end. Returns `false` at the end of the input.
    fn line(&mut self, record: &mut Vec<u8>) -> Outcome<bool> {
        let room = (LONGEST + 1).saturating_sub(record.len()) as u64;
        let got = self.input.by_ref().take(room).read_until(b'\n', record);
        let got = got.map_err(|e| self.unread(&e))?;
        if record.len() > LONGEST {
            return Err(self.wrong("the record that follows is longer than 32 MiB"));
        }
        Ok(got > 0)
    }

    fn csv(&mut self) -> Outcome<Option<Entry>> {
        let (mut record, mut quotes) = (Vec::new(), 0);
        loop {
            let from = record.len();
            if !self.line(&mut record)? {
                return match record.is_empty() {
                    true => Ok(None),
                    false => Err(self.wrong("a quoted field has no end")),
                };
            }
            self.read += 1;
            quotes += record[from..].iter().filter(|byte| **byte == b'"').count();
            // A line end between quotes is a part of the field.
            if quotes % 2 == 1 {
                continue;
            }
            let line = without_end(&record);
            if line.is_empty() {
                record.clear();
                continue;
            }
            let fields = fields(line);
            let fields = fields.ok_or_else(|| self.wrong("a quote is where none may be"))?;
            return match <[Vec<u8>; 2]>::try_from(fields) {
                Ok([key, value]) => Ok(Some(Entry::Put(key, value))),
                Err(fields) => Err(self.wrong(&format!(
                    "a record is a key and a value, and this one has {} fields",
                    fields.len()
                ))),
            };
        }
    }

    fn json(&mut self) -> Outcome<Option<Entry>> {
        let mut record = Vec::new();
        loop {
            record.clear();
            if !self.line(&mut record)? {
                return Ok(None);
            }
            self.read += 1;
            // A list of `kvfs --json` is an array with an object on each line.
            let line = record.trim_ascii();
            let line = line.strip_prefix(b"[").unwrap_or(line);
            let line = line.strip_suffix(b"]").unwrap_or(line);
            let line = line.strip_suffix(b",").unwrap_or(line).trim_ascii();
            if line.is_empty() {
                continue;
            }
            let object: Object<'_> = serde_json::from_slice(line)
                .map_err(|e| self.wrong(&format!("this is no JSON object: {e}")))?;
            let part = |name: &str| bytes_of(&object, name);
            return match (part("key"), part("value")) {
                (Some(key), Some(value)) => Ok(Some(Entry::Put(key, value))),
                _ => Err(self.wrong(
                    "the object has no text or number \"key\" and \"value\" (bytes that are no \
                     text: key_base64, value_base64)",
                )),
            };
        }
    }

    fn command(&mut self) -> Outcome<Option<Entry>> {
        let mut head = Vec::new();
        if !self.line(&mut head)? {
            return Ok(None);
        }
        self.read += 1;
        let no_command = "this is no command in RESP: * and the number of its words";
        let words = number(&head, b'*').filter(|words| (1..=MOST_WORDS).contains(words));
        let words = words.ok_or_else(|| self.wrong(no_command))?;
        let (mut command, mut room) = (Vec::new(), LONGEST);
        for _ in 0..words {
            head.clear();
            self.line(&mut head)?;
            let len = number(&head, b'$').ok_or_else(|| {
                self.wrong("this is no word in RESP: $ and the number of its bytes")
            })?;
            let left = room.checked_sub(len);
            room = left.ok_or_else(|| self.wrong("the command is longer than 32 MiB"))?;
            let mut word = Vec::new();
            let got = self.input.by_ref().take(len as u64 + 2).read_to_end(&mut word);
            got.map_err(|e| self.unread(&e))?;
            if word.len() != len + 2 || !word.ends_with(b"\r\n") {
                return Err(self.wrong("a word is shorter or longer than it says"));
            }
            word.truncate(len);
            command.push(word);
        }
        Ok(Some(match <[Vec<u8>; 3]>::try_from(command) {
            Ok([set, key, value]) if set.eq_ignore_ascii_case(b"set") => Entry::Put(key, value),
            Ok(command) => Entry::Command(command.into()),
            Err(command) => Entry::Command(command),
        }))
    }
}

/// Returns a line without its end, which is CRLF or LF.
fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Splits a record of CSV. Returns `None` if a quote is within a field without quotes, or does not
/// end its field.
fn fields(mut rest: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut fields = Vec::new();
    loop {
        let mut field = Vec::new();
        if let Some(mut quoted) = rest.strip_prefix(b"\"") {
            loop {
                let end = quoted.iter().position(|byte| *byte == b'"')?;
                field.extend_from_slice(&quoted[..end]);
                quoted = &quoted[end + 1..];
                // Two quotes stand for one.
                let Some(after) = quoted.strip_prefix(b"\"") else { break };
                field.push(b'"');
                quoted = after;
            }
            rest = quoted;
        } else {
            let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
            if rest[..end].contains(&b'"') {
                return None;
            }
            field.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        fields.push(field);
        match rest.split_first() {
            None => return Some(fields),
            Some((b',', after)) => rest = after,
            Some(_) => return None,
        }
    }
}

/// Returns the bytes that an object has under a name: a text, a number as it is written, or base64.
fn bytes_of(object: &Object<'_>, name: &str) -> Option<Vec<u8>> {
    let text = |value: &RawValue| serde_json::from_str::<String>(value.get()).ok();
    let Some(value) = object.get(name) else {
        return from_base64(&text(object.get(format!("{name}_base64").as_str())?)?);
    };
    match value.get().as_bytes() {
        [b'"', ..] => text(value).map(String::into_bytes),
        // A number that is parsed may lose digits.
        number @ [b'-' | b'0'..=b'9', ..] => Some(number.to_vec()),
        _ => None,
    }
}

/// Decodes base 64 (RFC 4648) with padding.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut word, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        // Fewer than eight bits are left of the digits before.
        word = ((word & 0xff) << 6) | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits) as u8);
        }
    }
    Some(out)
}

/// Parses a line of RESP: a sign and a number.
fn number(line: &[u8], sign: u8) -> Option<usize> {
    let digits = line.strip_suffix(b"\r\n")?.strip_prefix(&[sign])?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(format: Format, input: &[u8]) -> Result<Vec<Entry>, String> {
        let (mut entries, mut all) = (Entries::new(input, format), Vec::new());
        loop {
            match entries.read() {
                Ok(Some(entry)) => all.push(entry),
                Ok(None) => return Ok(all),
                Err(failure) => return Err(failure.message),
            }
        }
    }

    fn put(key: &str, value: &str) -> Entry {
        Entry::Put(key.into(), value.into())
    }

    #[test]
    fn csv_is_read_with_quotes_line_ends_and_empty_fields() {
        let input = b"a,1\r\n\"b,c\",\"say \"\"x\"\"\"\n\nd,\"two\r\nlines\"\n,\ne,last";
        let want = [
            put("a", "1"),
            put("b,c", "say \"x\""),
            put("d", "two\r\nlines"),
            put("", ""),
            put("e", "last"),
        ];
        assert_eq!(all(Format::Csv, input), Ok(want.into()));
        assert_eq!(all(Format::Csv, b""), Ok(vec![]));
    }

    #[test]
    fn csv_that_is_no_csv_names_its_line() {
        for (input, why) in [
            (&b"a,1\nb\n"[..], "line 2: a record is a key and a value, and this one has 1 fields"),
            (b"a,b,c", "line 1: a record is a key and a value, and this one has 3 fields"),
            (b"a,1\nb,\"2\n3", "line 3: a quoted field has no end"),
            (b"a,b\"c\"", "line 1: a quote is where none may be"),
            (b"\"a\"b,c", "line 1: a quote is where none may be"),
        ] {
            assert_eq!(all(Format::Csv, input), Err(why.into()), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn json_lines_are_read_as_a_listing_has_them() {
        let input =
            b"[{\"key\":\"a\",\"value\":\"1\"},\n{\"key_base64\":\"/w==\",\"value\":7}]\n\n\
                      {\"value_base64\":\"AAE=\",\"key\":\"b\"}\n[]\n";
        let want = [
            put("a", "1"),
            Entry::Put(vec![255], b"7".to_vec()),
            Entry::Put(b"b".to_vec(), vec![0, 1]),
        ];
        assert_eq!(all(Format::Jsonl, input), Ok(want.into()));
        let numbers = b"{\"key\":12345678901234567890123, \"value\": -1.10 }";
        assert_eq!(all(Format::Jsonl, numbers), Ok(vec![put("12345678901234567890123", "-1.10")]));
        for input in [&b"{\"key\":\"a\"}"[..], b"{\"key\":\"a\",\"value\":null}", b"7", b"{\"key\""]
        {
            let said = all(Format::Jsonl, input);
            assert!(said.as_ref().is_err_and(|why| why.starts_with("line 1: ")), "{said:?}");
        }
    }

    #[test]
    fn base64_is_decoded_as_it_is_encoded() {
        for (text, want) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("/+8=", b"\xff\xef"),
        ] {
            assert_eq!(from_base64(text).as_deref(), Some(want), "{text}");
        }
        for wrong in ["Z", "Zg", "Z===", "Zm9\u{e9}", "Zg==Zg=="] {
            assert_eq!(from_base64(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn commands_are_read_as_a_pipe_has_them() {
        let input = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$3\r\n\r\n\0\r\n*2\r\n$3\r\nDEL\r\n$1\r\nx\r\n";
        let want = [put("k", "\r\n\0"), Entry::Command(vec![b"DEL".to_vec(), b"x".to_vec()])];
        assert_eq!(all(Format::Resp, input), Ok(want.into()));
        for input in [
            &b"SET k v\r\n"[..],
            b"*0\r\n",
            b"*99999999999\r\n",
            b"*1\r\n",
            b"*1\r\n$4\r\nPING",
            b"*1\r\n$3\r\nPING\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$99999999999\r\n",
        ] {
            let said = all(Format::Resp, input);
            let named = said.as_ref().is_err_and(|why| why.starts_with("command 1: "));
            assert!(named, "{}: {said:?}", input.escape_ascii());
        }
    }
}
