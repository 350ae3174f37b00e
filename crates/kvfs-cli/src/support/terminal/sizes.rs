//! Parses and formats sizes for people.

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

/// A limit of bytes, files, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
}

/// Parses "10G", "100000f" and "10G,100000f".
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    let mut limit = Limit::default();
    for part in text.split(',') {
        let files = part.trim().strip_suffix(['f', 'F']);
        let place = if files.is_some() { &mut limit.files } else { &mut limit.bytes };
        let value = match files {
            Some(number) => number
                .parse()
                .ok()
                .filter(|&files: &u64| files < i64::MAX as u64)
                .ok_or_else(|| format!("'{part}' is no number of files: write 100000f"))?,
            None => parse_size(part)?,
        };
        if place.replace(value).is_some() {
            return Err(format!("'{text}' has two limits of one kind: write 10G,100000f"));
        }
    }
    Ok(limit)
}

/// Formats a size with at most three digits, like "1.5 GiB".
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
    fn a_limit_is_of_bytes_or_of_files_or_of_both() {
        let limit = |bytes, files| Ok(Limit { bytes, files });
        assert_eq!(parse_limit("10G"), limit(Some(10 << 30), None));
        assert_eq!(parse_limit("100000f"), limit(None, Some(100_000)));
        assert_eq!(parse_limit("0f,1K"), limit(Some(1024), Some(0)));
        for bad in ["", "f", "1f,2f", "1G,2G", "1.5f", "-1f", "10G,", "9223372036854775807f"] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        assert_eq!(human_size(17), "17 B");
        assert_eq!(human_size(1536), "1.5 KiB");
        assert_eq!(human_size(200 << 30), "200 GiB");
    }
}
