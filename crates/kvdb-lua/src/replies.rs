//! Translation of replies of commands into Lua values, and of results of scripts into replies, as
//! in Redis.

use mlua::{Lua, Table, Value};

use crate::numbers::general;

/// Limit on the nesting of replies and of tables.
const DEPTH: usize = 128;
/// Limit on the reply of a script, bytes.
pub const LONGEST: usize = 64 << 20;

/// Parses a reply into a Lua value. An error becomes a table with the field `err`, and `true` is
/// returned with it.
pub fn to_lua(lua: &Lua, mut bytes: &[u8]) -> mlua::Result<(bool, Value)> {
    let failed = bytes.first() == Some(&b'-');
    let value = read(lua, &mut bytes, DEPTH)?;
    Ok((failed, value))
}

fn wrong() -> mlua::Error {
    mlua::Error::RuntimeError("a reply that makes no sense".into())
}

fn field(lua: &Lua, name: &str, value: Value) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

fn line<'a>(bytes: &mut &'a [u8]) -> mlua::Result<&'a [u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n").ok_or_else(wrong)?;
    let line = &bytes[..end];
    *bytes = &bytes[end + 2..];
    Ok(line)
}

/// Returns the table of a string that names its format in its first three bytes, before a colon.
fn verbatim(lua: &Lua, text: &[u8]) -> mlua::Result<Value> {
    let (format, text) = text.split_at_checked(4).ok_or_else(wrong)?;
    let verbatim = lua.create_table()?;
    verbatim.raw_set("format", lua.create_string(&format[..3])?)?;
    verbatim.raw_set("string", lua.create_string(text)?)?;
    field(lua, "verbatim_string", Value::Table(verbatim))
}

fn read(lua: &Lua, bytes: &mut &[u8], depth: usize) -> mlua::Result<Value> {
    let deeper = depth.checked_sub(1).ok_or_else(wrong)?;
    let (kind, text) = line(bytes)?.split_first().ok_or_else(wrong)?;
    let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    let string = |text: &[u8]| Ok::<_, mlua::Error>(Value::String(lua.create_string(text)?));
    match kind {
        b':' => Ok(Value::Number(number().ok_or_else(wrong)? as f64)),
        b'+' => field(lua, "ok", string(text)?),
        b'-' => field(lua, "err", string(text)?),
        b'_' => Ok(Value::Nil),
        b'#' => Ok(Value::Boolean(text == b"t")),
        b',' => {
            let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
            field(lua, "double", Value::Number(value.ok_or_else(wrong)?))
        }
        b'(' => field(lua, "big_number", string(text)?),
        b'$' | b'=' => {
            let Ok(length) = usize::try_from(number().ok_or_else(wrong)?) else {
                return Ok(Value::Boolean(false));
            };
            let (text, rest) = bytes.split_at_checked(length).ok_or_else(wrong)?;
            *bytes = rest.strip_prefix(b"\r\n").ok_or_else(wrong)?;
            if *kind == b'$' { string(text) } else { verbatim(lua, text) }
        }
        b'*' | b'>' => {
            let Ok(length) = usize::try_from(number().ok_or_else(wrong)?) else {
                return Ok(Value::Boolean(false));
            };
            // Each element takes at least three bytes.
            let table = lua.create_table_with_capacity(length.min(bytes.len() / 3), 0)?;
            for i in 1..=length {
                table.raw_set(i, read(lua, bytes, deeper)?)?;
            }
            Ok(Value::Table(table))
        }
        b'|' => {
            // Attributes of the reply that follows. As in Redis, they are hidden from scripts.
            let length = usize::try_from(number().ok_or_else(wrong)?).map_err(|_| wrong())?;
            for _ in 0..length.checked_mul(2).ok_or_else(wrong)? {
                read(lua, bytes, deeper)?;
            }
            read(lua, bytes, deeper)
        }
        b'~' | b'%' => {
            let length = usize::try_from(number().ok_or_else(wrong)?).map_err(|_| wrong())?;
            let table = lua.create_table()?;
            for _ in 0..length {
                let key = read(lua, bytes, deeper)?;
                let value = match kind {
                    b'%' => read(lua, bytes, deeper)?,
                    _ => Value::Boolean(true),
                };
                table.raw_set(key, value)?;
            }
            field(lua, if *kind == b'%' { "map" } else { "set" }, Value::Table(table))
        }
        _ => Err(wrong()),
    }
}

/// The protocol versions for which a reply is written.
#[derive(Clone, Copy)]
pub struct Versions {
    /// The client speaks RESP3.
    pub client: bool,
    /// The script has chosen RESP3, so booleans are written as such.
    pub script: bool,
}

/// The reason why a reply cannot be written.
pub enum Unwritable {
    TooLong,
    Lua(mlua::Error),
}

impl From<mlua::Error> for Unwritable {
    fn from(error: mlua::Error) -> Self {
        Unwritable::Lua(error)
    }
}

/// Appends the result of a script as a reply.
pub fn from_lua(
    value: &Value,
    versions: Versions,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    if out.len() > LONGEST {
        return Err(Unwritable::TooLong);
    }
    match value {
        Value::String(text) => bulk(b'$', &text.as_bytes(), out),
        Value::Integer(number) => header(b':', *number, out),
        // The same as C's conversion for values in range; Rust's conversion also defines the
        // others.
        Value::Number(number) => header(b':', *number as i64, out),
        Value::Boolean(truth) => match (versions.script, versions.client) {
            (true, true) => out.extend_from_slice(if *truth { b"#t\r\n" } else { b"#f\r\n" }),
            (true, false) => header(b':', i64::from(*truth), out),
            (false, _) if *truth => header(b':', 1, out),
            (false, _) => null(versions, out),
        },
        Value::Table(table) => match depth.checked_sub(1) {
            None => out.extend_from_slice(b"-ERR reached lua stack limit\r\n"),
            Some(depth) => from_table(table, versions, depth, out)?,
        },
        _ => null(versions, out),
    }
    Ok(())
}

/// Returns the result of a script as one reply.
pub fn reply(value: &Value, versions: Versions) -> Result<Vec<u8>, Unwritable> {
    let mut out = Vec::new();
    from_lua(value, versions, DEPTH, &mut out)?;
    Ok(out)
}

fn header(kind: u8, number: i64, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn bulk(kind: u8, text: &[u8], out: &mut Vec<u8>) {
    header(kind, text.len() as i64, out);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn null(versions: Versions, out: &mut Vec<u8>) {
    out.extend_from_slice(if versions.client { b"_\r\n" } else { b"$-1\r\n" });
}

/// Replaces line breaks in `text`, so that it is one line.
pub fn one_line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|c| if matches!(c, b'\r' | b'\n') { b' ' } else { *c }).collect()
}

fn text_line(kind: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&one_line(text));
    out.extend_from_slice(b"\r\n");
}

/// Appends the reply of a table. A field with a known name decides its type, and the first name
/// that is found counts, in the order of Redis; a table without one is an array.
fn from_table(
    table: &Table,
    versions: Versions,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), Unwritable> {
    if from_scalar(table, versions, out)? || from_pairs(table, versions, depth, out)? {
        return Ok(());
    }
    // The array ends at the first nil.
    let mut count = 0;
    while !table.raw_get::<Value>(count + 1)?.is_nil() {
        count += 1;
    }
    header(b'*', count, out);
    for i in 1..=count {
        from_lua(&table.raw_get(i)?, versions, depth, out)?;
    }
    Ok(())
}

/// Appends the reply of a table that stands for one text or number, and returns whether it does.
fn from_scalar(table: &Table, versions: Versions, out: &mut Vec<u8>) -> mlua::Result<bool> {
    let named = |name: &str| table.raw_get::<Value>(name);
    if let Value::String(text) = named("err")? {
        text_line(b'-', &text.as_bytes(), out);
        return Ok(true);
    }
    if let Value::String(text) = named("ok")? {
        text_line(b'+', &text.as_bytes(), out);
        return Ok(true);
    }
    let double = match named("double")? {
        Value::Number(number) => Some(number),
        Value::Integer(number) => Some(number as f64),
        _ => None,
    };
    if let Some(number) = double {
        let text = general(number, 17);
        match versions.client {
            true => text_line(b',', text.as_bytes(), out),
            false => bulk(b'$', text.as_bytes(), out),
        }
        return Ok(true);
    }
    if let Value::String(text) = named("big_number")? {
        match versions.client {
            true => text_line(b'(', &text.as_bytes(), out),
            false => bulk(b'$', &one_line(&text.as_bytes()), out),
        }
        return Ok(true);
    }
    if let Value::Table(verbatim) = named("verbatim_string")?
        && let (Value::String(format), Value::String(text)) =
            (verbatim.raw_get("format")?, verbatim.raw_get("string")?)
    {
        match versions.client {
            true => {
                let mut whole = format.as_bytes().to_vec();
                whole.resize(3, b' ');
                whole.push(b':');
                whole.extend_from_slice(&text.as_bytes());
                bulk(b'=', &whole, out);
            }
            false => bulk(b'$', &text.as_bytes(), out),
        }
        return Ok(true);
    }
    Ok(false)
}

/// Appends the reply of a table that stands for a map or a set, and returns whether it does.
fn from_pairs(
    table: &Table,
    versions: Versions,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<bool, Unwritable> {
    if let Value::Table(map) = table.raw_get::<Value>("map")? {
        let pairs: Vec<_> = map.pairs::<Value, Value>().collect::<Result<_, _>>()?;
        match versions.client {
            true => header(b'%', pairs.len() as i64, out),
            false => header(b'*', 2 * pairs.len() as i64, out),
        }
        for (key, value) in pairs {
            from_lua(&key, versions, depth, out)?;
            from_lua(&value, versions, depth, out)?;
        }
        return Ok(true);
    }
    if let Value::Table(set) = table.raw_get::<Value>("set")? {
        let pairs: Vec<_> = set.pairs::<Value, Value>().collect::<Result<_, _>>()?;
        header(if versions.client { b'~' } else { b'*' }, pairs.len() as i64, out);
        for (key, _) in pairs {
            from_lua(&key, versions, depth, out)?;
        }
        return Ok(true);
    }
    Ok(false)
}
