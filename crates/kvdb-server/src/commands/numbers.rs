//! Counters: values that are decimal numbers.

use bytes::Bytes;
use kvdb::{Batch, Update};

use super::strings::rewrite;
use crate::failure::{Failure, Outcome};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::Seen;

pub fn incr(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    add(s, args.at(1), 1, out)
}

pub fn decr(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    add(s, args.at(1), -1, out)
}

pub fn incrby(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    add(s, args.at(1), by, out)
}

pub fn decrby(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let by = by.checked_neg().ok_or(Failure::request("decrement would overflow"))?;
    add(s, args.at(1), by, out)
}

fn add(s: &Session, key: &[u8], by: i64, out: &mut Output) -> Outcome {
    s.check_key(key)?;
    let space = s.writable()?;
    // Two transactions that add to one key both commit. `EXEC` gives answers that must hold.
    let commutes = s.is_joined();
    let change = |seen: &Seen<'_>, batch: &mut Batch| {
        let (live, value) = seen.number(key, Failure::NOT_AN_INTEGER)?;
        let old = value.as_deref().map_or(Some(0), integer).ok_or(Failure::NOT_AN_INTEGER)?;
        let sum =
            old.checked_add(by).ok_or(Failure::request("increment or decrement would overflow"))?;
        // What has expired is still there: it must be put, not added to.
        match commutes && (live.exists() || live.head.is_none()) {
            true => batch.update(space.strings, Bytes::copy_from_slice(key), Update::add(by)),
            false => seen.change_string(key, &live, sum.to_string(), batch),
        }
        seen.event(Classes::STRING, "incrby", key);
        Ok(sum)
    };
    let sum = match commutes {
        true => s.change_commuting(space, [key], change)?,
        false => s.change(space, [key], change)?,
    };
    out.integer(sum);
    Ok(())
}

pub fn incrbyfloat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if is_infinite(args.at(2)) {
        return Err(Failure::request("increment would produce NaN or Infinity"));
    }
    let by = Decimal::parse(args.at(2)).ok_or(Failure::NOT_A_FLOAT)?;
    let sum = rewrite(
        s,
        args.at(1),
        || Failure::NOT_A_FLOAT,
        "incrbyfloat",
        |old| {
            let old =
                old.map_or(Some(Decimal::Exact(0)), Decimal::parse).ok_or(Failure::NOT_A_FLOAT)?;
            let sum =
                old.plus(by).ok_or(Failure::request("increment would produce NaN or Infinity"))?;
            Ok((Some(sum.clone().into_bytes()), sum))
        },
    )?;
    out.bulk(sum.as_bytes());
    Ok(())
}

/// Whether a text means infinity, which is a number but none to count with.
pub fn is_infinite(text: &[u8]) -> bool {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    number.is_some_and(f64::is_infinite)
}

/// A number as `INCRBYFLOAT` sees it: exact where 17 decimals suffice, so that 0.1 + 0.2 is 0.3,
/// and a double elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decimal {
    /// In units of 10⁻¹⁷.
    Exact(i128),
    Double(f64),
}

const DECIMALS: u32 = 17;
const UNIT: i128 = 10i128.pow(DECIMALS);

impl Decimal {
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        // What Rust reads as a double is what is a number; names of infinity and of what is none
        // are not.
        let double: f64 = text.parse().ok()?;
        if !text.bytes().all(|c| c.is_ascii_digit() || b"+-.eE".contains(&c)) {
            return None;
        }
        match Self::exact(text) {
            Some(units) => Some(Decimal::Exact(units)),
            None => double.is_finite().then_some(Decimal::Double(double)),
        }
    }

    /// `text`, known to be a number, in units; `None` where that would not be exact.
    fn exact(text: &str) -> Option<i128> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let fraction = fraction.trim_end_matches('0');
        let negative = whole.starts_with('-');
        let mut units: i128 = 0;
        for digit in whole.trim_start_matches(['-', '+']).bytes().chain(fraction.bytes()) {
            units = units.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
        }
        let shift = (DECIMALS as i32).checked_add(exponent)?.checked_sub(fraction.len() as i32)?;
        if shift < 0 && units != 0 {
            return None;
        }
        let factor = 10i128.checked_pow(shift.max(0) as u32);
        let units = if units == 0 { 0 } else { units.checked_mul(factor?)? };
        Some(if negative { -units } else { units })
    }

    fn double(self) -> f64 {
        match self {
            Decimal::Exact(units) => units as f64 / UNIT as f64,
            Decimal::Double(value) => value,
        }
    }

    /// The sum as text; `None` where it is not finite.
    pub fn plus(self, other: Self) -> Option<String> {
        if let (Decimal::Exact(a), Decimal::Exact(b)) = (self, other)
            && let Some(sum) = a.checked_add(b)
        {
            let (whole, fraction) =
                (sum.unsigned_abs() / UNIT as u128, sum.unsigned_abs() % UNIT as u128);
            let fraction = format!("{fraction:017}");
            let fraction = fraction.trim_end_matches('0');
            let sign = if sum < 0 { "-" } else { "" };
            let point = if fraction.is_empty() { "" } else { "." };
            return Some(format!("{sign}{whole}{point}{fraction}"));
        }
        let sum = self.double() + other.double();
        sum.is_finite().then(|| format!("{sum}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        Decimal::parse(a.as_bytes())?.plus(Decimal::parse(b.as_bytes())?)
    }

    #[test]
    fn sums_are_those_of_redis() {
        for (a, b, want) in [
            ("10.50", "0.1", "10.6"),
            ("10.6", "-5", "5.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("3", "1.1", "4.1"),
            ("-1.5", "1.5", "0"),
            ("-0.25", "0", "-0.25"),
            ("1e-5", "0", "0.00001"),
            (".5", "5.", "5.5"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(want), "{a} + {b}");
        }
        assert_eq!(sum("1e30", "0").as_deref(), Some("1000000000000000000000000000000"));
        assert_eq!(sum("1e308", "1e308"), None);
        assert_eq!(sum("1e-300", "1e-300").as_deref().map(|s| s.parse::<f64>()), Some(Ok(2e-300)));
        assert_eq!(sum("1e2147483647", "0"), None);
        assert_eq!(sum("0e2147483647", "1").as_deref(), Some("1"));
    }

    #[test]
    fn what_is_no_number() {
        for text in [
            "", "abc", "inf", "-inf", "nan", "1e", " 1", "1 ", "1,5", "0x10", "infinity", "1e400",
            "--1", "+-1",
        ] {
            assert_eq!(Decimal::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
