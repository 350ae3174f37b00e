//! Prints the bytes of a store as they are read, each field with its address and meaning.

use std::fmt::Write;

/// The bytes read so far, in the form of the page.
#[derive(Default)]
pub struct Dump(pub String);

impl Dump {
    pub fn heading(&mut self, text: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        writeln!(self.0, "{gap}{text}").expect("memory");
    }

    /// A line: at most eight bytes are shown, and how many there are if those are not all.
    fn line(&mut self, at: usize, bytes: &[u8], meaning: &str) {
        let mut hex =
            bytes.iter().take(8).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
        if bytes.len() > 8 {
            write!(hex, " … {}", bytes.len()).expect("memory");
        }
        writeln!(self.0, "  {at:07x}  {hex:<30}  {meaning}").expect("memory");
    }
}

/// A position in the store at which fields are read one after the other.
pub struct At<'a> {
    pub image: &'a [u8],
    pub at: usize,
}

impl<'a> At<'a> {
    pub fn bytes(&mut self, len: usize, dump: &mut Dump, meaning: &str) -> &'a [u8] {
        let bytes = &self.image[self.at..self.at + len];
        let shown = match std::str::from_utf8(bytes) {
            Ok(text) if len > 0 && len < 40 && text.bytes().all(|b| b.is_ascii_graphic()) => {
                format!("{meaning}: \"{text}\"")
            }
            _ => meaning.to_string(),
        };
        dump.line(self.at, bytes, &shown);
        self.at += len;
        bytes
    }

    /// An integer of fixed width.
    pub fn int(&mut self, len: usize, dump: &mut Dump, meaning: &str) -> u64 {
        let bytes = &self.image[self.at..self.at + len];
        let n = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        dump.line(self.at, bytes, &format!("{meaning}: {n}"));
        self.at += len;
        n
    }

    /// A number that means nothing to a reader of the page: a checksum, a random number.
    pub fn opaque(&mut self, len: usize, dump: &mut Dump, meaning: &str) -> u64 {
        let bytes = &self.image[self.at..self.at + len];
        dump.line(self.at, bytes, meaning);
        self.at += len;
        bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    pub fn varint(&mut self, dump: &mut Dump, meaning: &str) -> u64 {
        let len =
            self.image[self.at..].iter().position(|b| b & 0x80 == 0).expect("a varint ends") + 1;
        let bytes = &self.image[self.at..self.at + len];
        let n = bytes.iter().rev().fold(0, |n, b| n << 7 | u64::from(b & 0x7f));
        dump.line(self.at, bytes, &format!("{meaning}: {n}"));
        self.at += len;
        n
    }

    /// A length, followed by that number of bytes.
    pub fn counted(&mut self, dump: &mut Dump, meaning: &str) -> &'a [u8] {
        let len = self.varint(dump, &format!("length of the {meaning}"));
        if len == 0 { &[] } else { self.bytes(len as usize, dump, meaning) }
    }
}
