//! The options of dictionaries, in the words of the socket and the command line.

use kvdb::{ADAPTIVE, ADAPTIVE_SEPARATION, Compression, DictionaryOptions, Join};

use crate::failure::{Failure, Outcome};

/// Returns the options with the named ones changed to other values.
pub fn changed(
    mut options: DictionaryOptions,
    words: &[(String, String)],
) -> Outcome<DictionaryOptions> {
    for (option, value) in words {
        let wrong = || Failure::Invalid(format!("option {option} cannot be {value:?}"));
        let number = || value.parse::<i64>().ok().and_then(|n| u64::try_from(n).ok());
        let codec = || match value.as_str() {
            "none" => Ok(Compression::None),
            "lz4" => Ok(Compression::Lz4),
            "zstd" => Ok(Compression::Zstd),
            _ => Err(wrong()),
        };
        match (option.as_str(), value.as_str()) {
            ("separate-at", "never") => options.separate_at = u32::MAX,
            ("separate-at", "adaptive") => options.separate_at = ADAPTIVE_SEPARATION,
            ("separate-at", _) => {
                // The words are stored as the largest numbers, so these numbers are refused.
                let bytes = number().and_then(|n| i32::try_from(n).ok()).ok_or_else(wrong)?;
                options.separate_at = bytes.unsigned_abs();
            }
            ("stitch-at", "adaptive") => options.stitch_at = ADAPTIVE,
            ("stitch-at", "never") => options.stitch_at = u64::MAX,
            ("stitch-at", _) => options.stitch_at = number().ok_or_else(wrong)?,
            ("compression", _) => options.compression = codec()?,
            ("value-compression", _) => options.compress_values = codec()?,
            ("false-positives", _) => {
                let rate = number().and_then(|n| u16::try_from(n).ok());
                options.false_positives = rate.filter(|rate| *rate <= 10_000).ok_or_else(wrong)?;
            }
            ("merge", rule) => options.join = Join::named(rule.as_bytes()).ok_or_else(wrong)?,
            _ => return Err(Failure::Invalid(format!("a dictionary has no option {option}"))),
        }
    }
    Ok(options)
}

/// Returns all options, each with its value.
pub fn listed(options: &DictionaryOptions) -> Vec<(&'static str, String)> {
    let codec = |codec: Compression| match codec {
        Compression::None => "none",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
    };
    let separate_at = match options.separate_at {
        ADAPTIVE_SEPARATION => "adaptive".into(),
        u32::MAX => "never".into(),
        bytes => bytes.to_string(),
    };
    let stitch_at = match options.stitch_at {
        ADAPTIVE => "adaptive".into(),
        u64::MAX => "never".into(),
        bytes => bytes.to_string(),
    };
    vec![
        ("separate-at", separate_at),
        ("stitch-at", stitch_at),
        ("compression", codec(options.compression).into()),
        ("value-compression", codec(options.compress_values).into()),
        ("false-positives", options.false_positives.to_string()),
        ("merge", options.join.name().into()),
    ]
}
