//! Validates the replies of a worker before they are sent to a client.

/// Returns the bytes of a line without its end, and the rest after the line.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    Some((&bytes[..end], bytes[end..].strip_prefix(b"\r\n")?))
}

/// Returns whether the bytes are exactly one reply in RESP3 or RESP2.
pub fn is_one_reply(mut bytes: &[u8], resp3: bool) -> bool {
    // `wanted` is the number of replies that are still expected.
    let mut wanted = 1usize;
    while wanted > 0 {
        // Each reply takes at least three bytes, so this loop terminates.
        if wanted > bytes.len() {
            return false;
        }
        wanted -= 1;
        let Some((head, rest)) = line(bytes) else { return false };
        let Some((&kind, text)) = head.split_first() else { return false };
        if !resp3 && !b"+-:$*".contains(&kind) || text.contains(&b'\n') {
            return false;
        }
        bytes = rest;
        let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
        match kind {
            b'+' | b'-' | b',' | b'(' => {}
            b':' if number().is_some() => {}
            b'_' if text.is_empty() => {}
            b'#' if matches!(text, b"t" | b"f") => {}
            b'$' | b'*' if text == b"-1" => {}
            b'$' | b'=' => {
                let behind = number()
                    .and_then(|length| usize::try_from(length).ok())
                    .and_then(|length| bytes.split_at_checked(length))
                    .and_then(|(_, rest)| rest.strip_prefix(b"\r\n"));
                let Some(behind) = behind else { return false };
                bytes = behind;
            }
            b'*' | b'~' | b'%' => {
                let length = number().and_then(|length| usize::try_from(length).ok());
                let Some(length) = length.filter(|length| *length <= bytes.len()) else {
                    return false;
                };
                wanted += if kind == b'%' { 2 * length } else { length };
            }
            _ => return false,
        }
    }
    bytes.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reply_is_one_reply() {
        for reply in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":-5\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "$0\r\n\r\n",
            "$3\r\na\r\n\r\n",
            "*0\r\n",
            "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        ] {
            for resp3 in [false, true] {
                assert!(is_one_reply(reply.as_bytes(), resp3), "{reply:?}");
            }
            for cut in 0..reply.len() {
                assert!(!is_one_reply(&reply.as_bytes()[..cut], false), "{reply:?} cut at {cut}");
            }
            assert!(!is_one_reply(format!("{reply}{reply}").as_bytes(), false), "two of {reply:?}");
        }
        for reply in ["_\r\n", "#t\r\n", ",1.5\r\n", "(12\r\n", "=5\r\ntxt:a\r\n", "~1\r\n:1\r\n"] {
            assert!(is_one_reply(reply.as_bytes(), true), "{reply:?}");
            assert!(!is_one_reply(reply.as_bytes(), false), "{reply:?} in RESP2");
        }
        assert!(is_one_reply(b"%1\r\n+k\r\n:1\r\n", true));
    }

    #[test]
    fn anything_else_is_none() {
        for bytes in [
            "",
            "OK\r\n",
            "+a\nb\r\n",
            "+a\rb\r\n",
            ":x\r\n",
            "$5\r\nabc\r\n",
            "$-2\r\n",
            "*-2\r\n",
            "*9223372036854775807\r\n",
            "*1000\r\n",
            "%9223372036854775807\r\n",
            ">1\r\n:1\r\n",
            "_x\r\n",
            "#x\r\n",
        ] {
            assert!(!is_one_reply(bytes.as_bytes(), true), "{bytes:?}");
        }
    }
}
