//! The library `cjson`: conversion of values to and from JSON.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use crate::arguments::{Fault, bad, function, number, text};
use crate::numbers::general;

/// The settings that `cjson.encode_…` and `cjson.decode_…` change.
#[derive(PartialEq)]
pub struct Settings {
    sparse_converts: bool,
    sparse_ratio: u64,
    sparse_safe: u64,
    encode_depth: usize,
    decode_depth: usize,
    precision: usize,
    /// NaN and infinity are written with their JavaScript names.
    invalid_numbers: bool,
}

const DEPTH: usize = 1000;
/// Limit on the encoded text, bytes.
const LONGEST: usize = 64 << 20;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sparse_converts: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: DEPTH,
            decode_depth: DEPTH,
            precision: 14,
            invalid_numbers: false,
        }
    }
}

/// Makes the library, whose functions store the settings of scripts in `settings`.
pub fn library(lua: &Lua, settings: &Rc<RefCell<Settings>>) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.set("null", Value::NULL)?;
    library.set("encode", encoder(lua, settings.clone())?)?;
    library.set("decode", decoder(lua, settings.clone())?)?;
    library.set("encode_sparse_array", sparse_setter(lua, settings.clone())?)?;
    let whole = |name: &'static str, most: usize, field: fn(&mut Settings) -> &mut usize| {
        let set = settings.clone();
        let made = function(lua, move |_, given| {
            let mut set = set.borrow_mut();
            if !given.is_empty() {
                let value = number(given, 1, name)?;
                if !(1.0..=most as f64).contains(&value) {
                    let why = format!("expected integer between 1 and {most}");
                    return Err(bad(1, name, &why));
                }
                *field(&mut set) = value as usize;
            }
            Ok(*field(&mut set) as f64)
        })?;
        library.set(name, made)
    };
    // Greater depths would overflow the stack.
    whole("encode_max_depth", DEPTH, |set| &mut set.encode_depth)?;
    whole("decode_max_depth", DEPTH, |set| &mut set.decode_depth)?;
    whole("encode_number_precision", 16, |set| &mut set.precision)?;
    let set = settings.clone();
    library.set(
        "encode_invalid_numbers",
        function(lua, move |_, given| {
            let mut set = set.borrow_mut();
            if let Some(Value::Boolean(yes)) = given.first() {
                set.invalid_numbers = *yes;
            }
            Ok(set.invalid_numbers)
        })?,
    )?;
    // There is no buffer to keep.
    library.set(
        "encode_keep_buffer",
        function(lua, |_, given| Ok(given.first().cloned().unwrap_or(Value::Boolean(true))))?,
    )?;
    Ok(library)
}

/// Makes `encode`, which writes its argument as JSON.
fn encoder(lua: &Lua, settings: Rc<RefCell<Settings>>) -> mlua::Result<Function> {
    function(lua, move |lua, given| {
        let [value] = given else { return Err(bad(1, "encode", "expected 1 argument")) };
        let mut out = Vec::new();
        encode(value, &settings.borrow(), 1, &mut out)?;
        Ok(Value::String(lua.create_string(out)?))
    })
}

/// Makes `decode`, which parses a text that is one JSON value and nothing else.
fn decoder(lua: &Lua, settings: Rc<RefCell<Settings>>) -> mlua::Result<Function> {
    function(lua, move |lua, given| {
        if given.len() != 1 {
            return Err(bad(1, "decode", "expected 1 argument"));
        }
        let text = text(given, 1, "decode")?;
        let mut reader = Reader { lua, text: &text, at: 0, depth: settings.borrow().decode_depth };
        let value = reader.value(0)?;
        reader.skip();
        match reader.at == text.len() {
            true => Ok(value),
            false => Err(reader.unexpected("the end")),
        }
    })
}

/// Makes `encode_sparse_array`, which changes the settings for sparse arrays that it is passed.
fn sparse_setter(lua: &Lua, settings: Rc<RefCell<Settings>>) -> mlua::Result<Function> {
    function(lua, move |_, given| {
        let mut set = settings.borrow_mut();
        if let Some(Value::Boolean(converts)) = given.first() {
            set.sparse_converts = *converts;
        }
        if given.len() > 1 {
            set.sparse_ratio = number(given, 2, "encode_sparse_array")?.clamp(0.0, 1e9) as u64;
        }
        if given.len() > 2 {
            set.sparse_safe = number(given, 3, "encode_sparse_array")?.clamp(0.0, 1e9) as u64;
        }
        Ok(set.sparse_converts)
    })
}

fn cannot(what: &str, why: &str) -> Fault {
    Fault::Message(format!("Cannot serialise {what}: {why}"))
}

fn encode(value: &Value, set: &Settings, depth: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    if out.len() > LONGEST {
        return Err("Cannot serialise, the text is too long".into());
    }
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        value if *value == Value::NULL => out.extend_from_slice(b"null"),
        Value::Boolean(truth) => out.extend_from_slice(truth.to_string().as_bytes()),
        Value::Integer(n) => encode_number(*n as f64, set, out)?,
        Value::Number(n) => encode_number(*n, set, out)?,
        Value::String(text) => encode_text(&text.as_bytes(), out),
        Value::Table(table) => {
            if depth > set.encode_depth {
                let text = format!("Cannot serialise, excessive depth ({depth})");
                return Err(text.into());
            }
            match length_as_array(table, set)? {
                Some(length) => {
                    out.push(b'[');
                    for i in 1..=length {
                        if i > 1 {
                            out.push(b',');
                        }
                        encode(&table.raw_get(i)?, set, depth + 1, out)?;
                    }
                    out.push(b']');
                }
                None => {
                    out.push(b'{');
                    for (i, pair) in table.pairs::<Value, Value>().enumerate() {
                        let (key, value) = pair?;
                        if i > 0 {
                            out.push(b',');
                        }
                        match key {
                            Value::String(key) => encode_text(&key.as_bytes(), out),
                            Value::Integer(_) | Value::Number(_) => {
                                out.push(b'"');
                                encode(&key, set, depth, out)?;
                                out.push(b'"');
                            }
                            _ => {
                                return Err(cannot(
                                    "table",
                                    "table key must be a number or string",
                                ));
                            }
                        }
                        out.push(b':');
                        encode(&value, set, depth + 1, out)?;
                    }
                    out.push(b'}');
                }
            }
        }
        other => return Err(cannot(other.type_name(), "type not supported")),
    }
    Ok(())
}

/// Returns the length of a table that is an array, or `None` if it has other keys, or none.
fn length_as_array(table: &Table, set: &Settings) -> Result<Option<u64>, Fault> {
    let (mut longest, mut items) = (0, 0);
    for pair in table.pairs::<Value, Value>() {
        let at = match pair?.0 {
            Value::Integer(n) if n > 0 => n as u64,
            Value::Number(n) if n >= 1.0 && n.fract() == 0.0 && n < 9e15 => n as u64,
            _ => return Ok(None),
        };
        longest = longest.max(at);
        items += 1;
    }
    if items == 0 {
        return Ok(None);
    }
    let sparse =
        set.sparse_ratio > 0 && longest > items * set.sparse_ratio && longest > set.sparse_safe;
    match (sparse, set.sparse_converts) {
        (false, _) => Ok(Some(longest)),
        (true, true) => Ok(None),
        (true, false) => Err(cannot("table", "excessively sparse array")),
    }
}

fn encode_number(value: f64, set: &Settings, out: &mut Vec<u8>) -> Result<(), Fault> {
    if !value.is_finite() {
        if !set.invalid_numbers {
            return Err(cannot("number", "must not be NaN or Inf"));
        }
        let name: &[u8] = match value {
            v if v.is_nan() => b"NaN",
            v if v > 0.0 => b"Infinity",
            _ => b"-Infinity",
        };
        out.extend_from_slice(name);
        return Ok(());
    }
    out.extend_from_slice(general(value, set.precision).as_bytes());
    Ok(())
}

fn encode_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &c in text {
        match c {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            9 => out.extend_from_slice(b"\\t"),
            10 => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            13 => out.extend_from_slice(b"\\r"),
            0..32 | 127 => out.extend_from_slice(format!("\\u{c:04x}").as_bytes()),
            _ => out.push(c),
        }
    }
    out.push(b'"');
}

struct Reader<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn skip(&mut self) {
        let rest = &self.text[self.at..];
        let blank = |c: &u8| matches!(c, b' ' | b'\t' | b'\r' | b'\n');
        self.at += rest.iter().take_while(|c| blank(c)).count();
    }
    fn next(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Returns the error for a token other than `wanted`.
    fn unexpected(&self, wanted: &str) -> Fault {
        let found = match self.next() {
            None => "T_END",
            Some(b'{') => "T_OBJ_BEGIN",
            Some(b'}') => "T_OBJ_END",
            Some(b'[') => "T_ARR_BEGIN",
            Some(b']') => "T_ARR_END",
            Some(b'"') => "T_STRING",
            Some(b',') => "T_COMMA",
            Some(b':') => "T_COLON",
            Some(b'0'..=b'9' | b'-') => "T_NUMBER",
            _ => "invalid token",
        };
        let place = self.at + 1;
        Fault::Message(format!("Expected {wanted} but found {found} at character {place}"))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        self.skip();
        if depth > self.depth {
            let place = self.at;
            return Err(format!(
                "Found too many nested data structures ({depth}) at character {place}"
            )
            .into());
        }
        match self.next() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => {
                let text = self.string()?;
                Ok(Value::String(self.lua.create_string(text)?))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in [
                    ("true", Value::Boolean(true)),
                    ("false", Value::Boolean(false)),
                    ("null", Value::NULL),
                    ("NaN", Value::Number(f64::NAN)),
                    ("Infinity", Value::Number(f64::INFINITY)),
                ] {
                    if self.text[self.at..].starts_with(word.as_bytes()) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.unexpected("value"))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        self.at += 1;
        self.skip();
        if self.next() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Table(table));
        }
        loop {
            self.skip();
            if self.next() != Some(b'"') {
                return Err(self.unexpected("object key string"));
            }
            let key = self.string()?;
            self.skip();
            if self.next() != Some(b':') {
                return Err(self.unexpected("colon"));
            }
            self.at += 1;
            let value = self.value(depth)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            self.skip();
            match self.next() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Table(table));
                }
                _ => return Err(self.unexpected("comma or object end")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        self.at += 1;
        self.skip();
        if self.next() == Some(b']') {
            self.at += 1;
            return Ok(Value::Table(table));
        }
        for i in 1.. {
            let value = self.value(depth)?;
            table.raw_set(i, value)?;
            self.skip();
            match self.next() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    break;
                }
                _ => return Err(self.unexpected("comma or array end")),
            }
        }
        Ok(Value::Table(table))
    }

    fn number(&mut self) -> Result<Value, Fault> {
        let rest = &self.text[self.at..];
        let part = |c: &&u8| matches!(c, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = rest.iter().take_while(part).count();
        let value = std::str::from_utf8(&rest[..length]).ok().and_then(|text| text.parse().ok());
        if rest.starts_with(b"-Infinity") {
            self.at += 9;
            return Ok(Value::Number(f64::NEG_INFINITY));
        }
        // A number must not begin with a zero followed by other digits.
        let digits = rest.strip_prefix(b"-").unwrap_or(rest);
        let padded = matches!(digits, [b'0', b'0'..=b'9', ..]);
        match value {
            Some(value) if !padded => {
                self.at += length;
                Ok(Value::Number(value))
            }
            _ => {
                Err(format!("Expected value but found invalid number at character {}", self.at + 1)
                    .into())
            }
        }
    }

    fn string(&mut self) -> Result<Vec<u8>, Fault> {
        let begun = self.at;
        let invalid = |what: &str, at: usize| {
            Fault::Message(format!("Expected value but found {what} at character {}", at + 1))
        };
        let mut out = Vec::new();
        self.at += 1;
        loop {
            let Some(c) = self.next() else {
                return Err(invalid("unexpected end of string", begun));
            };
            self.at += 1;
            match c {
                b'"' => return Ok(out),
                b'\\' => {
                    let escape = self.next();
                    self.at += 1;
                    out.push(match escape {
                        Some(c @ (b'"' | b'\\' | b'/')) => c,
                        Some(b'b') => 8,
                        Some(b'f') => 12,
                        Some(b'n') => b'\n',
                        Some(b'r') => b'\r',
                        Some(b't') => b'\t',
                        Some(b'u') => {
                            let place = self.at - 2;
                            let c = self.escaped_character();
                            let c =
                                c.ok_or_else(|| invalid("invalid unicode escape code", place))?;
                            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                            continue;
                        }
                        _ => return Err(invalid("invalid escape code", self.at - 2)),
                    });
                }
                c => out.push(c),
            }
        }
    }

    /// Parses the hexadecimal digits after `\u`; for a surrogate pair, parses both halves.
    fn escaped_character(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        if !self.text[self.at..].starts_with(b"\\u") {
            return None;
        }
        self.at += 2;
        let second = self.four_digits()?;
        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + low)
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }
}
