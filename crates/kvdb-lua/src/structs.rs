//! The library `struct`: conversion of values to and from bytes in a given layout.

use mlua::{Lua, Table, Value};

use crate::arguments::{Fault, bad, function, number, text};

/// An item of a format, which describes the next value.
enum Item {
    /// An integer of `size` bytes.
    Whole {
        size: usize,
        signed: bool,
    },
    Float,
    Double,
    /// A string up to a zero byte.
    Terminated,
    /// A fixed number of characters; without a number, the previous value contains it.
    Characters(Option<usize>),
    /// A byte that is skipped.
    Padding,
}

/// A format, parsed from left to right.
struct Format<'a> {
    text: &'a [u8],
    little: bool,
    /// Values are aligned to multiples of their size, up to this limit.
    align: usize,
}

/// Size of the largest integer, bytes.
const WIDEST: usize = 32;
/// Limit on the encoded text, bytes.
const LONGEST: usize = 64 << 20;

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Self {
        Format { text, little: true, align: 1 }
    }

    fn count(&mut self) -> Option<usize> {
        let digits = self.text.iter().take_while(|c| c.is_ascii_digit()).count();
        let (number, rest) = self.text.split_at(digits);
        self.text = rest;
        // A number that overflows is too large in any case, so it may saturate.
        (digits > 0).then(|| {
            number
                .iter()
                .fold(0usize, |all, c| all.saturating_mul(10).saturating_add(usize::from(c - b'0')))
        })
    }

    /// Returns the next item, and the number of padding bytes that align it at position `at`.
    fn next(&mut self, at: usize) -> Result<Option<(Item, usize)>, Fault> {
        loop {
            let Some((&c, rest)) = self.text.split_first() else { return Ok(None) };
            self.text = rest;
            let whole = |size, signed| Item::Whole { size, signed };
            let (item, size) = match c {
                b' ' => continue,
                b'<' => {
                    self.little = true;
                    continue;
                }
                b'>' => {
                    self.little = false;
                    continue;
                }
                b'!' => {
                    self.align = self.count().unwrap_or(8);
                    if !self.align.is_power_of_two() || self.align > WIDEST {
                        return Err("alignment is not a power of 2".into());
                    }
                    continue;
                }
                b'b' => (whole(1, true), 1),
                b'B' => (whole(1, false), 1),
                b'h' => (whole(2, true), 2),
                b'H' => (whole(2, false), 2),
                b'l' => (whole(8, true), 8),
                b'L' | b'T' => (whole(8, false), 8),
                b'i' | b'I' => {
                    let size = self.count().unwrap_or(4);
                    if size == 0 || size > WIDEST {
                        let what = format!("integral size {size} is larger than limit of {WIDEST}");
                        return Err(what.into());
                    }
                    (whole(size, c == b'i'), size)
                }
                b'f' => (Item::Float, 4),
                b'd' => (Item::Double, 8),
                b's' => (Item::Terminated, 1),
                b'c' => (Item::Characters(self.count()), 1),
                b'x' => (Item::Padding, 1),
                other => {
                    return Err(format!("invalid format option '{}'", other as char).into());
                }
            };
            let align = self.align.min(size);
            let before = match align.is_power_of_two() {
                true => at.next_multiple_of(align) - at,
                false => 0,
            };
            return Ok(Some((item, before)));
        }
    }
}

pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.set(
        "pack",
        function(lua, |lua, given| {
            let packed = pack(given)?;
            Ok(Value::String(lua.create_string(packed)?))
        })?,
    )?;
    library.set("unpack", function(lua, unpack)?)?;
    library.set(
        "size",
        function(lua, |_, given| {
            let format = text(given, 1, "size")?;
            let (mut format, mut size) = (Format::new(&format), 0usize);
            while let Some((item, before)) = format.next(size)? {
                let more = match item {
                    Item::Whole { size, .. } => size,
                    Item::Float => 4,
                    Item::Double => 8,
                    Item::Characters(Some(count)) if count > 0 => count,
                    Item::Characters(None) => 1,
                    Item::Padding => 1,
                    Item::Terminated | Item::Characters(_) => {
                        return Err(bad(1, "size", "variable-size format in call to 'size'"));
                    }
                };
                size = size.saturating_add(before).saturating_add(more);
            }
            Ok(size as f64)
        })?,
    )?;
    Ok(library)
}

/// Writes the low bytes of an integer, sign-extended.
fn put(value: f64, size: usize, little: bool, out: &mut Vec<u8>) {
    let whole = match value >= 9.2e18 {
        true => value as u64 as i128,
        false => value as i64 as i128,
    };
    let mut bytes = whole.to_le_bytes().to_vec();
    bytes.resize(size.max(16), if whole < 0 { 0xff } else { 0 });
    bytes.truncate(size);
    if !little {
        bytes.reverse();
    }
    out.extend_from_slice(&bytes);
}

fn pack(given: &[Value]) -> Result<Vec<u8>, Fault> {
    let format = text(given, 1, "pack")?;
    let (mut format, mut out, mut at) = (Format::new(&format), Vec::new(), 2);
    while let Some((item, before)) = format.next(out.len())? {
        out.resize(out.len() + before, 0);
        if matches!(item, Item::Padding) {
            out.push(0);
            continue;
        }
        match item {
            Item::Whole { size, .. } => {
                put(number(given, at, "pack")?, size, format.little, &mut out)
            }
            Item::Float => {
                let value = number(given, at, "pack")? as f32;
                let bytes = if format.little { value.to_le_bytes() } else { value.to_be_bytes() };
                out.extend_from_slice(&bytes);
            }
            Item::Double => {
                let value = number(given, at, "pack")?;
                let bytes = if format.little { value.to_le_bytes() } else { value.to_be_bytes() };
                out.extend_from_slice(&bytes);
            }
            Item::Terminated | Item::Characters(_) | Item::Padding => {
                let value = text(given, at, "pack")?;
                let count = match item {
                    Item::Characters(None) => 1,
                    Item::Characters(Some(count)) if count > 0 => count,
                    _ => value.len(),
                };
                let value =
                    value.get(..count).ok_or_else(|| bad(at, "pack", "string too short"))?;
                out.extend_from_slice(value);
                if matches!(item, Item::Terminated) {
                    out.push(0);
                }
            }
        }
        if out.len() > LONGEST {
            return Err("the packed text is too long".into());
        }
        at += 1;
    }
    Ok(out)
}

/// Decodes an integer from its low bytes, eight at most. The conversion to a Lua number may round.
fn get(bytes: &[u8], signed: bool, little: bool) -> f64 {
    let mut low = [0; 8];
    for (i, byte) in low.iter_mut().enumerate().take(bytes.len()) {
        *byte = if little { bytes[i] } else { bytes[bytes.len() - 1 - i] };
    }
    let value = u64::from_le_bytes(low);
    if !signed {
        return value as f64;
    }
    let unused = 64 - 8 * bytes.len().min(8) as u32;
    ((value << unused) as i64 >> unused) as f64
}

/// Decodes a floating-point number of four bytes. Returns `None` if there are not four.
fn single(bytes: &[u8], little: bool) -> Option<f64> {
    let bytes = bytes.try_into().ok()?;
    let value = if little { f32::from_le_bytes(bytes) } else { f32::from_be_bytes(bytes) };
    Some(f64::from(value))
}

/// Decodes a floating-point number of eight bytes. Returns `None` if there are not eight.
fn double(bytes: &[u8], little: bool) -> Option<f64> {
    let bytes = bytes.try_into().ok()?;
    Some(if little { f64::from_le_bytes(bytes) } else { f64::from_be_bytes(bytes) })
}

fn unpack(lua: &Lua, given: &[Value]) -> Result<Table, Fault> {
    let (format, data) = (text(given, 1, "unpack")?, text(given, 2, "unpack")?);
    let from = if given.len() > 2 { number(given, 3, "unpack")? } else { 1.0 };
    if !(1.0..=9e15).contains(&from) {
        return Err(bad(3, "unpack", "offset must be 1 or greater"));
    }
    let (mut format, mut at) = (Format::new(&format), from as usize - 1);
    let results = lua.create_table()?;
    let mut count = 0;
    let short = || bad(2, "unpack", "data string too short");
    while let Some((item, before)) = format.next(at)? {
        at = at.saturating_add(before);
        let rest = data.get(at..).ok_or_else(short)?;
        let size = match item {
            Item::Whole { size, .. } => size,
            Item::Float => 4,
            Item::Double => 8,
            Item::Padding => 1,
            Item::Characters(None) => 1,
            Item::Characters(Some(0)) => {
                // The previous value is the length, and not a result.
                let last: Option<f64> = results.raw_get(count)?;
                let last = last.filter(|n| count > 0 && *n >= 0.0);
                let size = last.ok_or("format `c0' needs a previous size")?;
                results.raw_set(count, Value::Nil)?;
                count -= 1;
                size as usize
            }
            Item::Characters(Some(size)) => size,
            Item::Terminated => {
                let end = rest.iter().position(|byte| *byte == 0);
                end.ok_or("unfinished string in data")?
            }
        };
        let bytes = rest.get(..size).ok_or_else(short)?;
        at += size + usize::from(matches!(item, Item::Terminated));
        let little = format.little;
        let value = match item {
            Item::Padding => continue,
            Item::Whole { signed, .. } => Value::Number(get(bytes, signed, little)),
            Item::Float => Value::Number(single(bytes, little).ok_or_else(short)?),
            Item::Double => Value::Number(double(bytes, little).ok_or_else(short)?),
            Item::Terminated | Item::Characters(_) => Value::String(lua.create_string(bytes)?),
        };
        count += 1;
        results.raw_set(count, value)?;
        if count > 1000 {
            return Err("too many results to unpack".into());
        }
    }
    count += 1;
    results.raw_set(count, at as f64 + 1.0)?;
    results.raw_set("n", count)?;
    Ok(results)
}
