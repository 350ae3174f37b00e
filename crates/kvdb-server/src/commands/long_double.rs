//! The arithmetic of `INCRBYFLOAT`. Numbers have 64 bits of mantissa, as in Redis on most
//! machines (`long double`), so that both compute the same sums. Each operation rounds once, to
//! the nearest number and in a tie to the even one, at the same points as in C.

/// Longest text of a number, in bytes.
const LONGEST: usize = 5 * 1024 - 1;
/// The exponent of the lowest bit of the largest numbers.
const MOST: i32 = 16384 - 64;
/// The exponent of the lowest bit of the smallest numbers.
const LEAST: i32 = -16382 - 63;
/// Largest number of decimals in the output.
const DECIMALS: u32 = 17;

/// A number: `mantissa` times 2 to the power of `exponent`, or infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    negative: bool,
    infinite: bool,
    mantissa: u64,
    exponent: i32,
}

/// An arbitrarily large integer. Its digits have 32 bits; the lowest digit comes first.
#[derive(Clone, Debug)]
struct Whole(Vec<u32>);

impl Whole {
    fn of(mut n: u128) -> Whole {
        let mut digits = Vec::new();
        while n > 0 {
            digits.push(n as u32);
            n >>= 32;
        }
        Whole(digits)
    }
    fn bits(&self) -> u32 {
        let top = self.0.last().map_or(0, |top| 32 - top.leading_zeros());
        (self.0.len().saturating_sub(1)) as u32 * 32 + top
    }
    /// Multiplies by one number and adds another.
    fn scale(&mut self, by: u32, plus: u32) {
        let mut carry = u64::from(plus);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(by);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }
    fn times_ten_to(&mut self, power: u32) {
        (0..power / 9).for_each(|_| self.scale(1_000_000_000, 0));
        (0..power % 9).for_each(|_| self.scale(10, 0));
    }
    fn shift_left(&mut self, by: u32) {
        if !by.is_multiple_of(32) {
            self.scale(1 << (by % 32), 0);
        }
        if !self.0.is_empty() {
            self.0.splice(0..0, std::iter::repeat_n(0, (by / 32) as usize));
        }
    }
    fn bit(&self, at: u32) -> bool {
        self.0.get((at / 32) as usize).is_some_and(|digit| digit >> (at % 32) & 1 == 1)
    }
    /// Returns whether a bit below bit `at` is set.
    fn any_below(&self, at: u32) -> bool {
        let whole = (at / 32) as usize;
        let part = self.0.get(whole).copied().unwrap_or(0) & ((1u32 << (at % 32)) - 1);
        part != 0 || self.0.iter().take(whole).any(|digit| *digit != 0)
    }
    fn is_less(&self, other: &Whole) -> bool {
        self.0.len() < other.0.len()
            || self.0.len() == other.0.len() && self.0.iter().rev().lt(other.0.iter().rev())
    }
    fn subtract(&mut self, other: &Whole) {
        let mut borrow = 0i64;
        for (i, digit) in self.0.iter_mut().enumerate() {
            let left = i64::from(*digit) - i64::from(other.0.get(i).copied().unwrap_or(0)) - borrow;
            borrow = i64::from(left < 0);
            *digit = left as u32;
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
    /// Returns the number in decimal digits.
    fn text(mut self) -> String {
        let mut pieces = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0u64;
            for digit in self.0.iter_mut().rev() {
                rest = rest << 32 | u64::from(*digit);
                *digit = (rest / 1_000_000_000) as u32;
                rest %= 1_000_000_000;
            }
            while self.0.last() == Some(&0) {
                self.0.pop();
            }
            pieces.push(rest);
        }
        let mut text = pieces.pop().map_or("0".to_owned(), |first| first.to_string());
        for piece in pieces.iter().rev() {
            text.push_str(&format!("{piece:09}"));
        }
        text
    }
}

impl LongDouble {
    pub const ZERO: LongDouble =
        LongDouble { negative: false, infinite: false, mantissa: 0, exponent: LEAST };
    const fn infinity(negative: bool) -> LongDouble {
        LongDouble { negative, infinite: true, mantissa: 0, exponent: 0 }
    }

    pub fn is_infinite(self) -> bool {
        self.infinite
    }

    /// Returns the number nearest to `whole` times 2 to the power of `exponent`. If `more` is
    /// set, the exact value is slightly larger than this product.
    fn nearest(negative: bool, whole: &Whole, exponent: i32, more: bool) -> LongDouble {
        // `drop` is the number of low bits to drop.
        let drop = (whole.bits() as i32 - 64).max(LEAST - exponent).max(0) as u32;
        let mut mantissa = 0u128;
        for at in (drop..whole.bits().max(drop)).rev() {
            mantissa = mantissa << 1 | u128::from(whole.bit(at));
        }
        if drop > 0 && whole.bit(drop - 1) {
            let above_half = more || whole.any_below(drop - 1);
            mantissa += u128::from(above_half || mantissa & 1 == 1);
        }
        let mut exponent = exponent + drop as i32;
        if mantissa == 0 {
            return LongDouble { negative, ..LongDouble::ZERO };
        }
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            exponent += 1;
        }
        // The number is normalized, so that each value has one representation.
        let up = (mantissa as u64).leading_zeros().min((exponent - LEAST).max(0) as u32);
        let (mantissa, exponent) = ((mantissa as u64) << up, exponent - up as i32);
        if exponent > MOST {
            return LongDouble::infinity(negative);
        }
        LongDouble { negative, infinite: false, mantissa, exponent }
    }

    /// Returns the nearest double.
    pub fn double(self) -> f64 {
        let half = self.exponent / 2;
        let double = self.mantissa as f64 * 2f64.powi(half) * 2f64.powi(self.exponent - half);
        let double = if self.infinite { f64::INFINITY } else { double };
        if self.negative { -double } else { double }
    }

    /// Parses the whole text in the formats of C's `strtold`: decimal or hexadecimal, or a name
    /// of infinity. Returns `None` if the text is not a number, if the number is too large, or if
    /// it is so small that it underflows to zero.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > LONGEST {
            return None;
        }
        let (negative, text) = match text.split_first()? {
            (b'-', rest) => (true, rest),
            (b'+', rest) => (false, rest),
            _ => (false, text),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(LongDouble::infinity(negative));
        }
        let (base, text) = match text {
            [b'0', b'x' | b'X', rest @ ..] => (16, rest),
            _ => (10, text),
        };
        let mark = if base == 16 { b"pP" } else { b"eE" };
        let (mantissa, exponent) = match text.iter().position(|c| mark.contains(c)) {
            None => (text, 0),
            Some(at) => (&text[..at], exponent_of(&text[at + 1..])?),
        };
        let (mut whole, mut digits, mut behind_point) = (Whole(Vec::new()), 0, None);
        for c in mantissa {
            match char::from(*c).to_digit(base) {
                Some(digit) => {
                    whole.scale(base, digit);
                    digits += 1;
                    behind_point = behind_point.map(|digits: i64| digits + 1);
                }
                None if *c == b'.' && behind_point.is_none() => behind_point = Some(0),
                None => return None,
            }
        }
        if digits == 0 {
            return None;
        }
        if whole.0.is_empty() {
            return Some(LongDouble { negative, ..LongDouble::ZERO });
        }
        let behind_point = behind_point.unwrap_or(0);
        let found = if base == 16 {
            let exponent = (exponent - 4 * behind_point).clamp(-60_000, 60_000);
            LongDouble::nearest(negative, &whole, exponent as i32, false)
        } else {
            // Beyond these powers the number overflows or underflows with any number of digits.
            let power = (exponent - behind_point).clamp(-20_000, 20_000) as i32;
            LongDouble::times_ten_to(negative, whole, power)
        };
        (!found.infinite && found.mantissa != 0).then_some(found)
    }

    fn times_ten_to(negative: bool, mut whole: Whole, power: i32) -> LongDouble {
        if power >= 0 {
            whole.times_ten_to(power as u32);
            return LongDouble::nearest(negative, &whole, 0, false);
        }
        let mut divisor = Whole::of(1);
        divisor.times_ten_to(power.unsigned_abs());
        // The quotient has 66 or 67 bits, and the remainder shows whether it is exact.
        let up = (divisor.bits() + 66).saturating_sub(whole.bits());
        whole.shift_left(up);
        let down = whole.bits() - divisor.bits();
        divisor.shift_left(down);
        let mut quotient = Whole(Vec::new());
        for _ in 0..=down {
            let fits = !whole.is_less(&divisor);
            if fits {
                whole.subtract(&divisor);
            }
            quotient.scale(2, u32::from(fits));
            whole.shift_left(1);
        }
        LongDouble::nearest(negative, &quotient, -(up as i32), !whole.0.is_empty())
    }

    /// Returns the sum, or `None` if the sum is not a finite number.
    pub fn plus(self, other: LongDouble) -> Option<LongDouble> {
        if self.infinite || other.infinite {
            return None;
        }
        let (large, small) =
            if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        let apart = (large.exponent - small.exponent) as u32;
        let mut a = Whole::of(large.mantissa.into());
        let (mut b, exponent, more) = if apart <= 200 {
            a.shift_left(apart);
            (Whole::of(small.mantissa.into()), small.exponent, false)
        } else {
            // The small number affects the result only by the fact that it is not zero.
            a.shift_left(200);
            (Whole::of(u128::from(small.mantissa != 0)), large.exponent - 200, false)
        };
        let negative = if large.negative == small.negative {
            let mut sum = Whole::of(0);
            std::mem::swap(&mut sum, &mut a);
            add(&mut sum, &b);
            a = sum;
            large.negative
        } else if a.is_less(&b) {
            b.subtract(&a);
            a = b;
            small.negative
        } else {
            a.subtract(&b);
            large.negative && !a.0.is_empty()
        };
        let sum = LongDouble::nearest(negative, &a, exponent, more);
        (!sum.infinite).then_some(sum)
    }

    /// Formats the number with up to 17 decimals, without trailing zeros.
    pub fn text(self) -> String {
        let mut whole = Whole::of(self.mantissa.into());
        let (whole, fraction) = if self.exponent >= 0 {
            whole.shift_left(self.exponent as u32);
            (whole.text(), String::new())
        } else {
            whole.times_ten_to(DECIMALS);
            let down = self.exponent.unsigned_abs();
            let mut units = 0u128;
            for at in (down..whole.bits().max(down)).rev() {
                units = units << 1 | u128::from(whole.bit(at));
            }
            if whole.bit(down - 1) {
                units += u128::from(whole.any_below(down - 1) || units & 1 == 1);
            }
            let unit = 10u128.pow(DECIMALS);
            ((units / unit).to_string(), format!("{:017}", units % unit))
        };
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let sign = if self.negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
        format!("{sign}{whole}{point}{fraction}")
    }
}

fn add(to: &mut Whole, more: &Whole) {
    let mut carry = 0u64;
    for i in 0..to.0.len().max(more.0.len()) {
        if i == to.0.len() {
            to.0.push(0);
        }
        carry += u64::from(to.0[i]) + u64::from(more.0.get(i).copied().unwrap_or(0));
        to.0[i] = carry as u32;
        carry >>= 32;
    }
    if carry > 0 {
        to.0.push(carry as u32);
    }
}

fn exponent_of(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0i64, |n, c| (n * 10 + i64::from(c - b'0')).min(1_000_000));
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        let sum = LongDouble::parse(a.as_bytes())?.plus(LongDouble::parse(b.as_bytes())?)?;
        Some(sum.text())
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
            ("-0", "0", "0"),
            ("-0.25", "0", "-0.25"),
            ("1e-5", "0", "0.00001"),
            (".5", "5.", "5.5"),
            ("0x1p3", "0x.8", "8.5"),
            ("0x1p-20", "0", "0.00000095367431641"),
            ("0x10", "-0x1.8p1", "13"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e-18", "0", "0"),
            ("-1e-18", "0", "0"),
            ("1e-300", "0", "0"),
            ("9007199254740993", "0.5", "9007199254740993.5"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551615", "2", "18446744073709551616"),
            ("1e20", "0.1", "100000000000000000000"),
            ("1e30", "0", "1000000000000000000024696061952"),
            ("0.1234567890123456789", "0", "0.12345678901234568"),
            ("123456789.123456789", "0.30000000000000004", "123456789.42345678900164785"),
            ("0e2147483647", "1", "1"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(want), "{a} + {b}");
        }
        assert_eq!(sum("1e4932", "1e4932"), None);
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1e400", "0").map(|text| text.len()), Some(401));
        assert_eq!(sum("3.6e-4951", "0").as_deref(), Some("0"));
    }

    #[test]
    fn what_is_no_number() {
        for text in [
            "",
            "abc",
            "nan",
            "1e",
            " 1",
            "1 ",
            "1,5",
            "0x",
            "0x.",
            ".",
            "--1",
            "+-1",
            "0x1p",
            "1e4933",
            "1e-5000",
            "1e2147483647",
            "1.2.3",
            "e5",
            "+",
            "0x1e+5",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn doubles_are_read_and_shown_as_they_are() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let double = f64::from_bits(state ^ state >> 29);
            if !double.is_finite() || double.abs() < 1e-300 {
                continue;
            }
            let read = LongDouble::parse(format!("{double:e}").as_bytes()).expect("a number");
            // With 64 bits of mantissa, the nearest double is the original one.
            let shown = read.double();
            assert!((shown / double - 1.0).abs() < 1e-15, "{double:e} {shown:e}");
        }
    }
}
