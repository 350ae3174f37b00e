//! Formatting of numbers as in C.

/// Formats a number like `%.{digits}g`, with `digits` from 1 to 17: with an exponent only if that
/// is shorter, and without trailing zeros.
pub fn general(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:.*e}", digits.clamp(1, 17) - 1);
    // Rust writes a mantissa and a whole exponent: `1.25e-7`.
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= digits as i32 {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), power.abs());
    }
    let decimals = (digits as i32 - 1 - power).max(0) as usize;
    trimmed(&format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        for (value, digits, text) in [
            (0.0, 17, "0"),
            (-0.0, 17, "-0"),
            (1.0, 14, "1"),
            (3.25, 14, "3.25"),
            (100.0, 2, "1e+02"),
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e-5, 14, "1e-05"),
            (0.0001, 14, "0.0001"),
            (123_456_789_012_345_680.0, 17, "1.2345678901234568e+17"),
            (9_007_199_254_740_992.0, 17, "9007199254740992"),
            (1e300, 14, "1e+300"),
            (-2.5e-10, 14, "-2.5e-10"),
            (0.99999999999999999, 3, "1"),
            (9.9999, 2, "10"),
            (f64::INFINITY, 14, "inf"),
            (f64::NEG_INFINITY, 14, "-inf"),
        ] {
            assert_eq!(general(value, digits), text);
        }
    }
}
