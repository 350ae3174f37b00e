//! A library of functions: its first line, `#!lua name=…`, and the functions that it registers.

use crate::wire::{read_list, write_list};

/// The flags of a function, in the order of their bits. Those without an effect in this server are
/// known as well: it has no replicas, no cluster and no memory limit beyond which writes are
/// refused.
pub const FLAGS: [&str; 5] =
    ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];
/// The bit of a function that changes nothing.
const NO_WRITES: u8 = 1;
/// The first bit that no flag has.
const END: u8 = 1 << FLAGS.len();

/// The error for a name with other characters.
pub const WRONG_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// A function that a library has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, which is found in upper or lower case.
    pub name: String,
    /// Its description, if it has one.
    pub description: Option<Vec<u8>>,
    /// Its flags, a bit for each of [`FLAGS`].
    pub flags: u8,
}

impl Function {
    /// Returns the flags by their names.
    pub fn flag_names(&self) -> Vec<&'static str> {
        let set = |i: &usize| self.flags & (1u8 << *i) != 0;
        (0..FLAGS.len()).filter(set).map(|i| FLAGS[i]).collect()
    }
    /// Returns whether the function changes nothing.
    pub fn only_reads(&self) -> bool {
        self.flags & NO_WRITES != 0
    }
}

/// Returns whether a name has the characters that names of libraries and functions have.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

/// Encodes functions as a list: of each the name, the flags as a byte, and the description after a
/// byte that is 1, or nothing.
pub fn encode(functions: &[Function]) -> Vec<u8> {
    let mut items: Vec<Vec<u8>> = Vec::with_capacity(3 * functions.len());
    for function in functions {
        items.push(function.name.as_bytes().to_vec());
        items.push(vec![function.flags]);
        let description = function.description.as_ref();
        items.push(description.map_or_else(Vec::new, |text| [&[1], &text[..]].concat()));
    }
    let mut out = Vec::new();
    write_list(items.iter().map(Vec::as_slice), &mut out);
    out
}

/// Decodes what [`encode`] has made. Returns `None` for anything else, and for functions without a
/// valid name or with the same one.
pub fn decode(bytes: &[u8]) -> Option<Vec<Function>> {
    let items = read_list(bytes)?;
    let mut functions: Vec<Function> = Vec::with_capacity(items.len() / 3);
    let mut names = std::collections::HashSet::new();
    let (each, rest) = items.as_chunks::<3>();
    if !rest.is_empty() {
        return None;
    }
    for [name, flags, description] in each {
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name.as_bytes()))?;
        let [flags] = **flags else { return None };
        let description = match description.split_first() {
            None => None,
            Some((1, text)) => Some(text.to_vec()),
            Some(_) => return None,
        };
        if flags >= END || !names.insert(name.to_ascii_lowercase()) {
            return None;
        }
        functions.push(Function { name: name.into(), description, flags });
    }
    Some(functions)
}

/// The first line of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The library's name.
    pub name: String,
    /// Length of the line without its end, bytes, so that the remaining lines keep their numbers.
    pub length: usize,
}

/// Parses the first line. An error is in Redis' words.
pub fn header(text: &[u8]) -> Result<Header, String> {
    if !text.starts_with(b"#!") {
        return Err("Missing library metadata".into());
    }
    let wrong = || "Invalid library metadata".to_string();
    // In Redis the text ends at a zero byte.
    let end = text.iter().position(|byte| matches!(*byte, b'\n' | 0));
    let length = end.filter(|end| text[*end] == b'\n').ok_or_else(wrong)?;
    let words = words(&text[..length]).ok_or_else(wrong)?;
    let (engine, options) = words.split_first().ok_or_else(wrong)?;
    let mut name = None;
    for option in options {
        match option.split_at_checked(5) {
            Some((word, value)) if word.eq_ignore_ascii_case(b"name=") => {
                if name.replace(value).is_some() {
                    return Err(
                        "Invalid metadata value, name argument was given multiple times".into()
                    );
                }
            }
            _ => return Err(format!("Invalid metadata value given: {}", shown(option))),
        }
    }
    let name = name.ok_or("Library name was not given")?;
    if !is_name(name) {
        return Err(WRONG_NAME.into());
    }
    let engine = engine.get(2..).unwrap_or_default();
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(format!("Engine '{}' not found", shown(engine)));
    }
    Ok(Header { name: String::from_utf8_lossy(name).into_owned(), length })
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned()
}

/// Splits a line into words, which may be in quotes. Returns `None` if the quotes do not balance.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let is_blank = |c: &u8| c.is_ascii_whitespace() || *c == 0x0b;
    let (mut words, mut rest) = (Vec::new(), line);
    loop {
        let begin = rest.iter().position(|c| !is_blank(c)).unwrap_or(rest.len());
        rest = &rest[begin..];
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some((&c, tail)) = rest.split_first() {
            match c {
                b'"' | b'\'' => {
                    let (inner, after) = quoted(tail, c)?;
                    word.extend_from_slice(&inner);
                    if after.first().is_some_and(|next| !is_blank(next)) {
                        return None;
                    }
                    rest = after;
                }
                c if is_blank(&c) => break,
                c => {
                    word.push(c);
                    rest = tail;
                }
            }
        }
        words.push(word);
    }
}

/// Returns the text up to the closing quote, and what follows it. A backslash stands for the next
/// character: in names no other one is of use.
fn quoted(mut rest: &[u8], quote: u8) -> Option<(Vec<u8>, &[u8])> {
    let mut inner = Vec::new();
    loop {
        match rest {
            [c, tail @ ..] if *c == quote => return Some((inner, tail)),
            [b'\\', c, tail @ ..] => {
                inner.push(*c);
                rest = tail;
            }
            [c, tail @ ..] => {
                inner.push(*c);
                rest = tail;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_library() {
        let named = |name: &str, length| Ok(Header { name: name.into(), length });
        assert_eq!(header(b"#!lua name=mine\nreturn"), named("mine", 15));
        assert_eq!(header(b"#!LUA NAME=a_1\n"), named("a_1", 14));
        assert_eq!(header(b"#!lua \"name=mine\"\n"), named("mine", 17));
    }

    #[test]
    fn what_is_wrong_with_it_is_said_in_the_words_of_redis() {
        for (text, why) in [
            ("", "Missing library metadata"),
            ("return 1", "Missing library metadata"),
            ("#!lua name=x", "Invalid library metadata"),
            ("#!lua \"name=\n", "Invalid library metadata"),
            ("#!lua name='x'y\n", "Invalid library metadata"),
            ("#!lua\n", "Library name was not given"),
            ("#!\n", "Library name was not given"),
            ("#! lua name=x\n", "Invalid metadata value given: lua"),
            ("#!lua foo=bar\n", "Invalid metadata value given: foo=bar"),
            (
                "#!lua name=x name=y\n",
                "Invalid metadata value, name argument was given multiple times",
            ),
            ("#!js name=a\n", "Engine 'js' not found"),
            ("#!lua name=a-b\n", WRONG_NAME),
            ("#!lua name=\n", WRONG_NAME),
            ("#!lua name=\"x y\"\n", WRONG_NAME),
        ] {
            assert_eq!(header(text.as_bytes()), Err(why.into()), "{text:?}");
        }
        let long = [b"#!", &[0xff; 300][..], b" name=a\n"].concat();
        assert!(header(&long).expect_err("no engine").len() < 400);
    }

    #[test]
    fn functions_are_read_as_they_were_written() {
        let functions = vec![
            Function { name: "one".into(), description: None, flags: 0 },
            Function { name: "Two_2".into(), description: Some(b"".to_vec()), flags: 31 },
            Function { name: "3".into(), description: Some(b"x\xff".to_vec()), flags: 1 },
        ];
        let bytes = encode(&functions);
        assert_eq!(decode(&bytes).as_ref(), Some(&functions));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(functions[1].flag_names(), FLAGS);
        assert!(!functions[0].only_reads() && functions[2].only_reads());
        for wrong in [
            Function { name: "a-b".into(), ..functions[0].clone() },
            Function { name: "ONE".into(), ..functions[0].clone() },
            Function { name: "four".into(), description: None, flags: 32 },
        ] {
            let all = [functions[0].clone(), wrong];
            assert_eq!(decode(&encode(&all)), None, "{all:?}");
        }
    }
}
