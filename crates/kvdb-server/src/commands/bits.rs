//! Strings as arrays of bits. Bit 0 is the highest bit of the first byte.

use kvdb::Batch;

use super::is;
use super::strings::edit;
use crate::failure::{Failure, Outcome};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Seen, Text};

const OFFSET: Failure =
    Failure::Request(std::borrow::Cow::Borrowed("bit offset is not an integer or out of range"));

/// Parses the index of a bit, which must lie within the longest string that is allowed.
fn offset(s: &Session, text: &[u8]) -> Result<usize, Failure> {
    let bits = s.shared.limits.value as i64 * 8;
    integer(text).filter(|at| (0..bits).contains(at)).map(|at| at as usize).ok_or(OFFSET)
}

fn bit_at(value: &[u8], at: usize) -> u8 {
    value.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1)
}

pub fn setbit(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let at = offset(s, args.at(2))?;
    let bit = integer(args.at(3)).filter(|bit| (0..=1).contains(bit));
    let bit = bit.ok_or(Failure::request("bit is not an integer or out of range"))? as u8;
    let place = (at / 8) as u64;
    let old = edit(s, key, "setbit", |seen, text| {
        let byte = seen.part(key, text, place..place + 1)?.first().copied().unwrap_or(0);
        let mask = 1 << (7 - at % 8);
        let changed = if bit == 1 { byte | mask } else { byte & !mask };
        Ok((Some((place, [changed])), u8::from(byte & mask != 0)))
    })?;
    out.integer(i64::from(old));
    Ok(())
}

pub fn getbit(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, at) = (args.at(1), offset(s, args.at(2))?);
    let (seen, place) = (s.see()?, (at / 8) as u64);
    let byte = seen.part(key, &seen.text(key)?.1, place..place + 1)?;
    out.integer(i64::from(bit_at(&byte, at % 8)));
    Ok(())
}

/// Passes the bytes of a string that contain `bits` to `look` in pieces: the bytes, the index of
/// their first bit, and the range of wanted bits among them. Stops if `look` returns `false`. A
/// hole of zeros that are not stored is passed as its first byte only, because a string of a
/// tebibyte may consist of one page, and its first byte has the same bits as the rest.
fn look_through(
    (seen, key, text): (&Seen<'_>, &[u8], &Text),
    bits: std::ops::Range<usize>,
    mut look: impl FnMut(&[u8], usize, std::ops::Range<usize>) -> bool,
) -> Outcome {
    if bits.is_empty() {
        return Ok(());
    }
    let (first, behind) = (bits.start as u64 / 8, bits.end.div_ceil(8) as u64);
    let mut hand_over = |place: u64, bytes: &[u8]| {
        let base = place as usize * 8;
        look(bytes, base, bits.start.saturating_sub(base)..(bits.end - base).min(bytes.len() * 8))
    };
    let Text::Pages(head) = text else {
        hand_over(first, &seen.part(key, text, first..behind)?);
        return Ok(());
    };
    let mut at = first;
    let goes_on = seen.visit_stored(head, first..behind, |place, bytes| {
        if at < place && !hand_over(at, &[0]) {
            return Ok(false);
        }
        at = place + bytes.len() as u64;
        Ok(hand_over(place, bytes))
    })?;
    if goes_on && at < behind {
        hand_over(at, &[0]);
    }
    Ok(())
}

/// Returns the half-open range of bits that `start` and `end` denote in a value of `len` bytes.
fn bit_range(len: usize, start: i64, end: i64, in_bits: bool) -> std::ops::Range<usize> {
    let units = len as i64 * if in_bits { 8 } else { 1 };
    let place = |i: i64| if i < 0 { i.saturating_add(units).max(0) } else { i };
    let (start, end) = (place(start), place(end).min(units - 1));
    if start > end {
        return 0..0;
    }
    let scale = if in_bits { 1 } else { 8 };
    start as usize * scale..(end as usize + 1) * scale
}

fn unit(text: Option<&[u8]>) -> Result<bool, Failure> {
    match text {
        None => Ok(false),
        Some(o) if is(o, "byte") => Ok(false),
        Some(o) if is(o, "bit") => Ok(true),
        Some(_) => Err(Failure::SYNTAX),
    }
}

/// Executes `BITCOUNT key [start end [BYTE|BIT]]`.
pub fn bitcount(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, seen) = (args.at(1), s.see()?);
    let text = seen.text(key)?.1;
    // As in Redis, the indexes are not checked if the key does not exist.
    if !text.exists() {
        out.integer(0);
        return Ok(());
    }
    let (start, end, in_bits) = match args.len() {
        2 => (0, -1, false),
        4 | 5 => {
            let place = |i| integer(args.at(i)).ok_or(Failure::NOT_AN_INTEGER);
            (place(2)?, place(3)?, unit(args.get(4))?)
        }
        _ => return Err(Failure::SYNTAX),
    };
    // Only `BITCOUNT` checks this: `BITPOS` clamps both indexes to 0 in a shorter value.
    let bits = match start < 0 && end < start {
        true => 0..0,
        false => bit_range(text.len() as usize, start, end, in_bits),
    };
    let mut ones = 0;
    look_through((&seen, key, &text), bits, |bytes, _, bits| {
        ones += count(bytes, bits);
        true
    })?;
    out.integer(ones);
    Ok(())
}

fn count(value: &[u8], bits: std::ops::Range<usize>) -> i64 {
    let (first, last) = (bits.start.div_ceil(8), bits.end / 8);
    if first >= last {
        return bits.map(|at| i64::from(bit_at(value, at))).sum();
    }
    let edges = (bits.start..first * 8).chain(last * 8..bits.end);
    let edges: i64 = edges.map(|at| i64::from(bit_at(value, at))).sum();
    edges + value[first..last].iter().map(|byte| i64::from(byte.count_ones())).sum::<i64>()
}

/// Executes `BITPOS key bit [start [end [BYTE|BIT]]]`.
pub fn bitpos(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let bit = match integer(args.at(2)) {
        Some(bit @ 0..=1) => bit as u8,
        Some(_) => return Err(Failure::request("The bit argument must be 1 or 0.")),
        None => return Err(Failure::NOT_AN_INTEGER),
    };
    let (key, seen) = (args.at(1), s.see()?);
    let text = seen.text(key)?.1;
    if !text.exists() {
        out.integer(if bit == 1 { -1 } else { 0 });
        return Ok(());
    }
    if args.len() > 6 {
        return Err(Failure::SYNTAX);
    }
    let place = |i: usize, usual: i64| {
        args.get(i).map_or(Some(usual), integer).ok_or(Failure::NOT_AN_INTEGER)
    };
    let (start, end, in_bits) = (place(3, 0)?, place(4, -1)?, unit(args.get(5))?);
    let bits = bit_range(text.len() as usize, start, end, in_bits);
    let (behind, empty) = (bits.end, bits.is_empty());
    let mut found = None;
    look_through((&seen, key, &text), bits, |bytes, base, bits| {
        found = first(bytes, bits, bit).map(|at| base + at);
        found.is_none()
    })?;
    out.integer(match found {
        Some(at) => at as i64,
        // The value counts as followed by zeros, unless the command specifies an end.
        None if bit == 0 && args.len() < 5 && !empty => behind as i64,
        None => -1,
    });
    Ok(())
}

fn first(value: &[u8], bits: std::ops::Range<usize>, bit: u8) -> Option<usize> {
    let mut at = bits.start;
    let passed = if bit == 1 { 0x00 } else { 0xff };
    while at < bits.end {
        if at.is_multiple_of(8) && at + 8 <= bits.end && value[at / 8] == passed {
            at += 8;
        } else if bit_at(value, at) == bit {
            return Some(at);
        } else {
            at += 1;
        }
    }
    None
}

/// Executes `BITOP AND|OR|XOR|NOT destination key ...`.
pub fn bitop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let combine: fn(u8, u8) -> u8 = match args.at(1) {
        o if is(o, "and") => |a, b| a & b,
        o if is(o, "or") => |a, b| a | b,
        o if is(o, "xor") => |a, b| a ^ b,
        o if is(o, "not") && args.len() == 4 => |a, _| a,
        o if is(o, "not") => {
            return Err(Failure::request("BITOP NOT must be called with a single source key."));
        }
        _ => return Err(Failure::SYNTAX),
    };
    let (to, not) = (args.at(2), is(args.at(1), "not"));
    s.check_key(to)?;
    let mut space = s.writable()?;
    let combined = |seen: &Seen<'_>, batch: &mut Batch| {
        let mut result: Option<Vec<u8>> = None;
        for key in args.from(3) {
            let value = seen.string(key)?.1.unwrap_or_default();
            match &mut result {
                None => result = Some(value.to_vec()),
                Some(result) => {
                    let len = result.len().max(value.len());
                    result.resize(len, 0);
                    for (i, byte) in result.iter_mut().enumerate() {
                        *byte = combine(*byte, value.get(i).copied().unwrap_or(0));
                    }
                }
            }
        }
        let mut result = result.unwrap_or_default();
        if not {
            result.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let (live, len) = (seen.live(to)?, result.len());
        match len {
            0 if live.exists() => {
                seen.remove(to, &live, batch);
                seen.event(Classes::GENERIC, "del", to);
            }
            0 => {}
            _ if !seen.has_room_for(len) => return Ok(None),
            _ => {
                seen.put_string(to, &live, result, batch)?;
                seen.event(Classes::STRING, "set", to);
            }
        }
        Ok(Some(len))
    };
    let len = loop {
        match s.change(space, args.from(2), combined)? {
            Some(len) => break len,
            // The result is too long for one tuple.
            None => space = s.typed()?,
        }
    };
    out.integer(len as i64);
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// An integer field in an array of bits.
#[derive(Clone, Copy)]
struct Field {
    signed: bool,
    width: u32,
    at: usize,
}

enum FieldChange {
    Get,
    Set(i64),
    Add(i64),
}

impl Field {
    fn parse(s: &Session, kind: &[u8], place: &[u8]) -> Result<Field, Failure> {
        let wrong = Failure::request(
            "Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        );
        let (signed, width) = match kind.split_first() {
            Some((b'i', width)) => (true, integer(width)),
            Some((b'u', width)) => (false, integer(width)),
            _ => return Err(wrong),
        };
        let most = if signed { 64 } else { 63 };
        let Some(width) = width.filter(|width| (1..=most).contains(width)) else {
            return Err(wrong);
        };
        let at = match place.strip_prefix(b"#") {
            Some(place) => integer(place).and_then(|n| n.checked_mul(width)),
            None => integer(place),
        };
        let bits = s.shared.limits.value as i64 * 8;
        let at = at.filter(|at| *at >= 0 && *at <= bits - width).ok_or(OFFSET)?;
        Ok(Field { signed, width: width as u32, at: at as usize })
    }
    fn get(&self, value: &[u8]) -> i64 {
        let mut number: u64 = 0;
        for at in self.at..self.at + self.width as usize {
            number = number << 1 | u64::from(bit_at(value, at));
        }
        self.cut(number)
    }
    /// Truncates a number to the low bits that the field has.
    fn cut(&self, number: u64) -> i64 {
        let spare = 64 - self.width;
        match self.signed {
            true => (number << spare) as i64 >> spare,
            false => (number << spare >> spare) as i64,
        }
    }
    /// Returns the number of bytes of the string up to the end of the field.
    fn end(&self) -> usize {
        (self.at + self.width as usize).div_ceil(8)
    }
    /// Writes a number into `value`, which extends at least to the end of the field.
    fn put(&self, value: &mut [u8], number: i64) {
        for i in 0..self.width as usize {
            let at = self.at + i;
            let bit = (number as u64 >> (self.width as usize - 1 - i) & 1) as u8;
            let mask = 1 << (7 - at % 8);
            let byte = &mut value[at / 8];
            *byte = if bit == 1 { *byte | mask } else { *byte & !mask };
        }
    }
    /// Returns the stored form of a sum, which may overflow.
    fn fit(&self, sum: i128, overflow: Overflow) -> Option<i64> {
        let (low, high) = match self.signed {
            true => (-(1i128 << (self.width - 1)), (1i128 << (self.width - 1)) - 1),
            false => (0, (1i128 << self.width) - 1),
        };
        match overflow {
            _ if (low..=high).contains(&sum) => Some(sum as i64),
            Overflow::Wrap => Some(self.cut(sum as u64)),
            Overflow::Saturate => Some(sum.clamp(low, high) as i64),
            Overflow::Fail => None,
        }
    }
}

/// A field, the access to the field, and the treatment of a number that does not fit into it.
type Step = (Field, FieldChange, Overflow);

/// Parses the steps of a `BITFIELD`. Also returns whether any of them writes.
fn parse_steps(s: &Session, args: Arguments<'_>) -> Result<(Vec<Step>, bool), Failure> {
    let mut steps = Vec::new();
    let (mut overflow, mut writes) = (Overflow::Wrap, false);
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or(Failure::SYNTAX);
        match word {
            o if is(o, "overflow") => {
                overflow = match next()? {
                    o if is(o, "wrap") => Overflow::Wrap,
                    o if is(o, "sat") => Overflow::Saturate,
                    o if is(o, "fail") => Overflow::Fail,
                    _ => return Err(Failure::request("Invalid OVERFLOW type specified")),
                };
            }
            o if is(o, "get") => {
                steps.push((Field::parse(s, next()?, next()?)?, FieldChange::Get, overflow));
            }
            o if is(o, "set") || is(o, "incrby") => {
                let field = Field::parse(s, next()?, next()?)?;
                let number = integer(next()?).ok_or(Failure::NOT_AN_INTEGER)?;
                let change = match is(o, "set") {
                    true => FieldChange::Set(number),
                    false => FieldChange::Add(number),
                };
                steps.push((field, change, overflow));
                writes = true;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    Ok((steps, writes))
}

/// Runs the steps on `window`, which contains all of their fields. Returns the result of each
/// step, and whether a field was written.
fn run_steps(steps: &[Step], window: &mut [u8]) -> (Vec<Option<i64>>, bool) {
    let mut changed = false;
    let mut results = Vec::with_capacity(steps.len());
    for (field, change, overflow) in steps {
        let before = field.get(window);
        let (sum, result) = match change {
            FieldChange::Get => {
                results.push(Some(before));
                continue;
            }
            FieldChange::Set(number) => (i128::from(*number), Some(before)),
            FieldChange::Add(by) => (i128::from(before) + i128::from(*by), None),
        };
        let fits = field.fit(sum, *overflow);
        if let Some(number) = fits {
            field.put(window, number);
            changed = true;
        }
        results.push(fits.and(result.or(fits)));
    }
    (results, changed)
}

/// Executes `BITFIELD key [GET type offset | [OVERFLOW WRAP|SAT|FAIL] SET|INCRBY type offset
/// number ...]`.
pub fn bitfield(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut steps, writes) = parse_steps(s, args)?;
    // All fields lie in these bytes. The fields that may be written end at `wanted`; the value is
    // extended to that length even if no field is written.
    let low = steps.iter().map(|(field, ..)| field.at / 8).min().unwrap_or(0);
    let high = steps.iter().map(|(field, ..)| field.end()).max().unwrap_or(0);
    let wanted = steps.iter().filter(|step| !matches!(step.1, FieldChange::Get));
    let wanted = wanted.map(|(field, ..)| field.end()).max().unwrap_or(0);
    if high.saturating_sub(low) > s.shared.limits.request {
        return Err(Failure::Limit("the fields lie too far apart for one command".into()));
    }
    for (field, ..) in &mut steps {
        field.at -= low * 8;
    }
    let key = args.at(1);
    let run = |seen: &Seen<'_>, text: &Text| {
        let mut window = seen.part(key, text, low as u64..high as u64)?.to_vec();
        if window.len() < wanted.saturating_sub(low) {
            window.resize(wanted - low, 0);
        }
        let (results, written) = run_steps(&steps, &mut window);
        let changed = written || text.len() < wanted as u64;
        window.truncate(wanted.saturating_sub(low));
        Ok((changed.then_some((low as u64, window)), results))
    };
    let results = match writes {
        true => edit(s, key, "setbit", run)?,
        false => {
            let seen = s.see()?;
            let text = seen.text(key)?.1;
            run(&seen, &text)?.1
        }
    };
    out.array(results.len());
    for result in results {
        match result {
            Some(number) => out.integer(number),
            None => out.null(),
        }
    }
    Ok(())
}

/// Executes `BITFIELD_RO key [GET type offset ...]`.
pub fn bitfield_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.from(2).step_by(3).any(|word| !is(word, "get")) {
        return Err(Failure::request("BITFIELD_RO only supports the GET subcommand"));
    }
    bitfield(s, args, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_and_found_as_one_by_one() {
        let value = [0b1010_0000, 0xff, 0x00, 0b0000_0001];
        for start in 0..=32 {
            for end in start..=32 {
                let ones = (start..end).filter(|at| bit_at(&value, *at) == 1).count();
                assert_eq!(count(&value, start..end), ones as i64, "{start}..{end}");
                for bit in [0, 1] {
                    let want = (start..end).find(|at| bit_at(&value, *at) == bit);
                    assert_eq!(first(&value, start..end, bit), want, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_every_width_are_read_as_they_were_put() {
        for width in 1..=64 {
            for signed in [false, true] {
                if width == 64 && !signed {
                    continue;
                }
                let field = Field { signed, width, at: 3 };
                let mut value = vec![0xff; field.end()];
                for number in [0i64, 1, -1, i64::MAX, i64::MIN, 0x1234_5678_9abc] {
                    let cut = field.cut(number as u64);
                    field.put(&mut value, cut);
                    assert_eq!(field.get(&value), cut, "{width} {signed} {number}");
                    assert_eq!(value[0] >> 5, 0b111, "what is in front stays");
                }
            }
        }
        let field = Field { signed: true, width: 8, at: 0 };
        assert_eq!(field.fit(200, Overflow::Wrap), Some(-56));
        assert_eq!(field.fit(200, Overflow::Saturate), Some(127));
        assert_eq!(field.fit(200, Overflow::Fail), None);
    }
}
