//! The library `cmsgpack`: conversion of values to and from MessagePack.

use mlua::{Lua, Table, Value};

use crate::arguments::{Fault, bad, function, number, text};

/// Limit on the nesting of tables; deeper ones are encoded as nil.
const DEPTH: usize = 16;
/// Limit on the nesting of structures that are decoded.
const READ_DEPTH: usize = 200;
/// Limit on the encoded text, bytes.
const LONGEST: usize = 64 << 20;
/// Limit on the results of one call.
const MOST: usize = 4000;

pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.set(
        "pack",
        function(lua, |lua, given| {
            if given.is_empty() {
                return Err(bad(0, "pack", "MessagePack pack needs input."));
            }
            let mut out = Vec::new();
            given.iter().try_for_each(|value| pack(value, 0, &mut out))?;
            Ok(Value::String(lua.create_string(out)?))
        })?,
    )?;
    library.set(
        "unpack",
        function(lua, |lua, given| {
            let data = text(given, 1, "unpack")?;
            let (results, _) = unpack(lua, &data, MOST)?;
            Ok(results)
        })?,
    )?;
    library.set("unpack_one", function(lua, |lua, given| some(lua, given, "unpack_one", 1.0))?)?;
    library.set(
        "unpack_limit",
        function(lua, |lua, given| {
            some(lua, given, "unpack_limit", number(given, 2, "unpack_limit")?)
        })?,
    )?;
    library.set("_NAME", "cmsgpack")?;
    Ok(library)
}

/// Decodes up to `limit` values from an offset on. The first result is the offset after them, or -1
/// at the end of the data.
fn some(lua: &Lua, given: &[Value], name: &str, limit: f64) -> Result<Table, Fault> {
    let data = text(given, 1, name)?;
    let place = if name == "unpack_one" { 2 } else { 3 };
    let from = if given.len() >= place { number(given, place, name)? } else { 0.0 };
    if !(0.0..=data.len() as f64).contains(&from) || !(1.0..=1e9).contains(&limit) {
        let length = data.len();
        return Err(format!(
            "Start offset {from} or limit {limit} is not in the input of {length} bytes."
        )
        .into());
    }
    let from = from as usize;
    let (results, used) = unpack(lua, &data[from..], (limit as usize).min(MOST))?;
    let at = from + used;
    let count: i64 = results.raw_get("n")?;
    let behind = if at == data.len() { -1 } else { at as i64 };
    let shifted = lua.create_table()?;
    shifted.raw_set(1, behind)?;
    for i in 1..=count {
        shifted.raw_set(i + 1, results.raw_get::<Value>(i)?)?;
    }
    shifted.raw_set("n", count + 1)?;
    Ok(shifted)
}

/// Writes the head of a string, an array or a map of `count` elements: the form for few elements,
/// or the one with a length of one byte (if that exists), two or four.
fn head(count: usize, few: Option<(usize, u8)>, wide: [Option<u8>; 3], out: &mut Vec<u8>) {
    match (few, wide) {
        (Some((most, base)), _) if count <= most => out.push(base | count as u8),
        (_, [Some(one), ..]) if count <= 0xff => out.extend_from_slice(&[one, count as u8]),
        (_, [_, Some(two), _]) if count <= 0xffff => {
            out.push(two);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        }
        (_, [.., four]) => {
            out.push(four.unwrap_or_default());
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
}

fn whole(value: i64, out: &mut Vec<u8>) {
    match value {
        0..=0x7f => out.push(value as u8),
        -32..=-1 => out.push(value as i8 as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        -0x80..=-33 => out.extend_from_slice(&[0xd0, value as i8 as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        -0x8000..=-0x81 => {
            out.push(0xd1);
            out.extend_from_slice(&(value as i16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        -0x8000_0000..=-0x8001 => {
            out.push(0xd2);
            out.extend_from_slice(&(value as i32).to_be_bytes());
        }
        _ => {
            out.push(if value < 0 { 0xd3 } else { 0xcf });
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

fn pack(value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    if out.len() > LONGEST {
        return Err("the packed text is too long".into());
    }
    match value {
        Value::Boolean(truth) => out.push(if *truth { 0xc3 } else { 0xc2 }),
        Value::Integer(n) => whole(*n, out),
        Value::Number(n) if n.fract() == 0.0 && n.abs() < 9.2e18 => whole(*n as i64, out),
        Value::Number(n) => match f64::from(*n as f32) == *n {
            true => {
                out.push(0xca);
                out.extend_from_slice(&(*n as f32).to_be_bytes());
            }
            false => {
                out.push(0xcb);
                out.extend_from_slice(&n.to_be_bytes());
            }
        },
        Value::String(text) => {
            let text = text.as_bytes();
            head(text.len(), Some((31, 0xa0)), [Some(0xd9), Some(0xda), Some(0xdb)], out);
            out.extend_from_slice(&text);
        }
        Value::Table(_) if depth == DEPTH => out.push(0xc0),
        Value::Table(table) => {
            let (mut items, mut longest) = (0i64, 0i64);
            let mut array = true;
            for pair in table.pairs::<Value, Value>() {
                items += 1;
                match pair?.0 {
                    Value::Integer(at) if at > 0 => longest = longest.max(at),
                    _ => array = false,
                }
            }
            if array && longest == items {
                head(items as usize, Some((15, 0x90)), [None, Some(0xdc), Some(0xdd)], out);
                for i in 1..=items {
                    pack(&table.raw_get(i)?, depth + 1, out)?;
                }
            } else {
                head(items as usize, Some((15, 0x80)), [None, Some(0xde), Some(0xdf)], out);
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    pack(&key, depth + 1, out)?;
                    pack(&value, depth + 1, out)?;
                }
            }
        }
        _ => out.push(0xc0),
    }
    Ok(())
}

/// Decodes up to `limit` values, and returns them with the number of bytes that they took.
fn unpack(lua: &Lua, data: &[u8], limit: usize) -> Result<(Table, usize), Fault> {
    let mut reader = Reader { lua, data, at: 0 };
    let results = lua.create_table()?;
    let mut count = 0;
    while reader.at < data.len() && count < limit {
        let value = reader.value(0)?;
        count += 1;
        results.raw_set(count, value)?;
    }
    results.raw_set("n", count)?;
    Ok((results, reader.at))
}

struct Reader<'a> {
    lua: &'a Lua,
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let taken = self.data[self.at..].get(..count).ok_or("Missing bytes in input.")?;
        self.at += count;
        Ok(taken)
    }
    /// Reads an unsigned integer of up to eight bytes.
    fn length(&mut self, bytes: usize) -> Result<u64, Fault> {
        Ok(self.take(bytes)?.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }
    fn text(&mut self, length: u64) -> Result<Value, Fault> {
        let text = self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        Ok(Value::String(self.lua.create_string(text)?))
    }
    fn array(&mut self, length: u64, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        for i in 1..=length {
            let value = self.value(depth + 1)?;
            table.raw_set(i, value)?;
        }
        Ok(Value::Table(table))
    }
    fn map(&mut self, length: u64, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        for _ in 0..length {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            let is_nan = matches!(key, Value::Number(n) if n.is_nan());
            if key.is_nil() || is_nan {
                return Err("Bad data format in input.".into());
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        if depth > READ_DEPTH {
            return Err("Bad data format in input: nested too deep.".into());
        }
        let kind = self.take(1)?[0];
        let whole = |value: i64| Ok(Value::Number(value as f64));
        match kind {
            0..=0x7f => whole(kind.into()),
            0x80..=0x8f => self.map(u64::from(kind & 15), depth),
            0x90..=0x9f => self.array(u64::from(kind & 15), depth),
            0xa0..=0xbf => self.text(u64::from(kind & 31)),
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Boolean(kind == 0xc3)),
            0xc4 | 0xd9 => {
                let length = self.length(1)?;
                self.text(length)
            }
            0xc5 | 0xda => {
                let length = self.length(2)?;
                self.text(length)
            }
            0xc6 | 0xdb => {
                let length = self.length(4)?;
                self.text(length)
            }
            0xca => Ok(Value::Number(f32::from_bits(self.length(4)? as u32).into())),
            0xcb => Ok(Value::Number(f64::from_bits(self.length(8)?))),
            0xcc => whole(self.length(1)? as i64),
            0xcd => whole(self.length(2)? as i64),
            0xce => whole(self.length(4)? as i64),
            0xcf => Ok(Value::Number(self.length(8)? as f64)),
            0xd0 => whole(self.length(1)? as i8 as i64),
            0xd1 => whole(self.length(2)? as i16 as i64),
            0xd2 => whole(self.length(4)? as i32 as i64),
            0xd3 => whole(self.length(8)? as i64),
            0xdc => {
                let length = self.length(2)?;
                self.array(length, depth)
            }
            0xdd => {
                let length = self.length(4)?;
                self.array(length, depth)
            }
            0xde => {
                let length = self.length(2)?;
                self.map(length, depth)
            }
            0xdf => {
                let length = self.length(4)?;
                self.map(length, depth)
            }
            0xe0..=0xff => whole(i64::from(kind as i8)),
            _ => Err("Bad data format in input.".into()),
        }
    }
}
