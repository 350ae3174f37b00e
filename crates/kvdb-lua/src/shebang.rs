//! The first line of a script, `#!lua flags=no-writes,…`, which declares its permissions.

/// The declarations of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shebang {
    /// The line is present, so the script is not in the older form without declarations.
    pub given: bool,
    /// The script changes nothing.
    pub no_writes: bool,
    /// Length of the line without its end, bytes, so that the remaining lines keep their numbers.
    pub length: usize,
}

/// The known flags, including those without an effect in this server: it has no replicas, no
/// cluster and no memory limit beyond which writes are refused.
const FLAGS: [&[u8]; 5] =
    [b"no-writes", b"allow-oom", b"allow-stale", b"no-cluster", b"allow-cross-slot-keys"];

/// Parses the first line. An error is in Redis' words.
pub fn read(text: &[u8]) -> Result<Shebang, String> {
    if !text.starts_with(b"#!") {
        return Ok(Shebang::default());
    }
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
    let length = text.iter().position(|byte| *byte == b'\n').ok_or("Invalid script shebang")?;
    let mut words = text[..length].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let engine = words.next().ok_or("Invalid engine in script shebang")?;
    if engine != b"#!lua" {
        return Err(format!("Unexpected engine in script shebang: {}", shown(engine)));
    }
    let mut shebang = Shebang { given: true, no_writes: false, length };
    for word in words {
        let Some(flags) = word.strip_prefix(b"flags=") else {
            return Err(format!("Unknown lua shebang option: {}", shown(word)));
        };
        for flag in flags.split(|byte| *byte == b',').filter(|flag| !flag.is_empty()) {
            if !FLAGS.contains(&flag) {
                return Err(format!("Unexpected flag in script shebang: {}", shown(flag)));
            }
            shebang.no_writes |= flag == b"no-writes";
        }
    }
    Ok(shebang)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_a_script_may_do() {
        assert_eq!(read(b"return 1"), Ok(Shebang::default()));
        let given = |no_writes, length| Ok(Shebang { given: true, no_writes, length });
        assert_eq!(read(b"#!lua\nreturn 1"), given(false, 5));
        assert_eq!(read(b"#!lua flags=allow-oom,no-writes\n"), given(true, 31));
        assert_eq!(read(b"#!lua flags=\n"), given(false, 12));
    }

    #[test]
    fn what_is_wrong_with_it_is_said() {
        let wrong = |text: &[u8]| read(text).expect_err("refused");
        assert_eq!(wrong(b"#!lua"), "Invalid script shebang");
        assert_eq!(wrong(b"#!not-lua\n"), "Unexpected engine in script shebang: #!not-lua");
        assert_eq!(wrong(b"#!lua name=x\n"), "Unknown lua shebang option: name=x");
        assert_eq!(wrong(b"#!lua flags=fast\n"), "Unexpected flag in script shebang: fast");
        assert!(wrong(&[b"#!", &[0xff; 300][..], b"\n"].concat()).len() < 400);
    }
}
