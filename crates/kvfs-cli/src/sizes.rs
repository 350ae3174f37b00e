//! Sizes as people write and read them.

/// Parses "4096", "64K", "10G", "1.5T" (powers of 1024; a trailing "B" or "iB" is accepted).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size: write bytes or a number with K, M, G or T");
    let t = text.trim();
    let digits = t.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(t.len());
    let (number, unit) = t.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B')
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes.is_finite() && bytes < i64::MAX as f64 { Ok(bytes as u64) } else { Err(bad()) }
}

/// "1.5 GiB": three digits at most.
pub fn human_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("2TiB"), Ok(2 << 40));
        assert!(parse_size("").is_err());
        assert!(parse_size("ten").is_err());
        assert!(parse_size("10X").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        assert_eq!(human_size(17), "17 B");
        assert_eq!(human_size(1536), "1.5 KiB");
        assert_eq!(human_size(200 << 30), "200 GiB");
    }
}
