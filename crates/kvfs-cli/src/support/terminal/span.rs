//! Parses and formats lengths of time for people.

use std::time::Duration;

const UNITS: [(char, u64); 5] =
    [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600), ('w', 7 * 24 * 3600)];

/// Parses "90s", "30m", "24h", "7d", "2w".
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let bad =
        || format!("'{text}' is no length of time: write a number with s, m, h, d or w, as 7d");
    let unit = text.chars().last().ok_or_else(bad)?;
    let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
    let number = &text[..text.len() - unit.len_utf8()];
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = number.parse().map_err(|_| bad())?;
    // Some centuries, which all clocks can represent.
    let most = 400 * 365 * 24 * 3600;
    let span = number.checked_mul(*seconds).filter(|span| *span <= most).ok_or_else(bad)?;
    Ok(Duration::from_secs(span))
}

/// Formats a span in the largest unit in which it is a whole number, like "7d".
pub fn human_span(span: Duration) -> String {
    let seconds = span.as_secs();
    let mut units = UNITS.iter().rev();
    let fits = units.find(|(_, unit)| seconds > 0 && seconds.is_multiple_of(*unit));
    let (name, unit) = fits.copied().unwrap_or(('s', 1));
    format!("{}{name}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown() {
        for (text, seconds) in
            [("0s", 0), ("90s", 90), ("30m", 1800), ("24h", 86_400), ("2w", 1_209_600)]
        {
            assert_eq!(parse_span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (seconds, text) in
            [(0, "0s"), (90, "90s"), (120, "2m"), (86_400, "1d"), (90_000, "25h")]
        {
            assert_eq!(human_span(Duration::from_secs(seconds)), text);
        }
        for wrong in ["", "h", "24", "-1d", "+1d", "1.5h", "7 d", "9999999999w", "7y", "7ä"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }
}
