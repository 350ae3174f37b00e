//! The encoding of values in replies as RESP2 or RESP3.

use super::Output;

impl Output {
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }
    /// Writes an error. `text` starts with its code (`ERR`, `NOAUTH`, …); line breaks in it are
    /// replaced.
    pub fn error(&mut self, text: &str) {
        let text: Vec<u8> =
            text.bytes().map(|c| if c.is_ascii_control() { b' ' } else { c }).collect();
        self.line(b'-', &text);
    }
    pub fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }
    pub fn bulk(&mut self, value: &[u8]) {
        self.number(b'$', value.len() as i64);
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
    }
    /// Writes a number as a RESP3 double, or as a string in RESP2.
    pub fn double(&mut self, value: f64) {
        let text = number_text(value);
        match self.resp3 {
            true => self.line(b',', text.as_bytes()),
            false => self.bulk(text.as_bytes()),
        }
    }
    /// Writes a number with up to 17 digits after the decimal point, as Redis writes coordinates.
    /// It is a RESP3 double, or a string in RESP2.
    pub fn decimals(&mut self, value: f64) {
        // Both zeros have the same text.
        let text = format!("{:.17}", value + 0.0);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        match self.resp3 {
            true => self.line(b',', text.as_bytes()),
            false => self.bulk(text.as_bytes()),
        }
    }
    /// Writes a text for people, which RESP3 clients show verbatim.
    pub fn verbatim(&mut self, text: &str) {
        if self.resp3 {
            self.number(b'=', text.len() as i64 + 4);
            self.bytes.extend_from_slice(b"txt:");
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text.as_bytes());
        }
    }
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }
    /// Writes a null in place of an array.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }
    pub fn value(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bulk(value),
            None => self.null(),
        }
    }
    /// Writes statistics as an array of names and numbers in alternation.
    pub fn counted(&mut self, fields: &[(&str, u64)]) {
        self.array(fields.len() * 2);
        for &(name, value) in fields {
            self.bulk(name.as_bytes());
            self.integer(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
    /// Writes the header of an array; `len` replies follow.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }
    /// Inserts the header of an array before its `len` replies, which start at `position` and have
    /// all been written.
    pub fn insert_array_header(&mut self, position: usize, len: usize) {
        let end = self.bytes.len();
        self.array(len);
        // The header is appended and rotated to the front, which avoids a second copy of replies
        // that may be long.
        let header = self.bytes.len() - end;
        self.bytes[position..].rotate_right(header);
    }
    /// Inserts the header of a page, with the cursor of the next page, before the reply at
    /// `position` that contains its elements.
    pub fn insert_page_header(&mut self, position: usize, cursor: u64) {
        let end = self.bytes.len();
        self.array(2);
        self.bulk(cursor.to_string().as_bytes());
        let header = self.bytes.len() - end;
        self.bytes[position..].rotate_right(header);
    }
    /// Writes the header of a map; `len` pairs of replies follow.
    pub fn map(&mut self, len: usize) {
        if self.resp3 { self.number(b'%', len as i64) } else { self.number(b'*', len as i64 * 2) }
    }
    /// Writes the header of a set; `len` replies follow.
    pub fn set(&mut self, len: usize) {
        self.number(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }

    pub fn boolean(&mut self, value: bool) {
        match self.resp3 {
            true => self.line(b'#', if value { b"t" } else { b"f" }),
            false => self.integer(i64::from(value)),
        }
    }
    /// Writes an integer of any length, given in decimal digits.
    pub fn big_number(&mut self, digits: &str) {
        match self.resp3 {
            true => self.line(b'(', digits.as_bytes()),
            false => self.bulk(digits.as_bytes()),
        }
    }
    /// Writes the header of an attribute of the next reply, for RESP3 clients; `len` pairs of
    /// replies follow.
    pub fn attribute(&mut self, len: usize) {
        self.number(b'|', len as i64);
    }
    /// Writes the header of a push message, for clients that have requested such messages; `len`
    /// replies follow.
    pub fn push(&mut self, len: usize) {
        self.number(if self.resp3 { b'>' } else { b'*' }, len as i64);
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
    pub(super) fn number(&mut self, kind: u8, value: i64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.bytes.push(kind);
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.bytes.extend_from_slice(&digits[at..]);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// Returns the shortest decimal form that identifies a number, in the format of Redis.
pub fn number_text(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        return match text.split_once('e') {
            Some((digits, power)) if !power.starts_with('-') => format!("{digits}e+{power}"),
            _ => text,
        };
    }
    // Both zeros have the same text.
    format!("{}", value + 0.0)
}
