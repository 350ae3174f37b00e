//! Patterns of `KEYS` and `SCAN … MATCH`, with the syntax of Redis: `*`, `?`, `[a-z]`, `[^a]`,
//! and `\` before a literal.
//!
//! The matcher backtracks only to the latest `*`, which is sufficient. So a hostile pattern costs
//! at most the product of the lengths of pattern and key. The literal prefix of a pattern bounds
//! the keys that can match; in an ordered store a scan reads only these keys.

/// Returns whether the whole of `text` matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut left = usize::MAX;
    matches_within(pattern, text, &mut left).unwrap_or(false)
}

/// Returns the same as `matches`, or `None` if more than `left` bytes of the pattern would have
/// to be compared, including repeated comparisons. Subtracts the number of compared bytes from
/// `left`.
pub fn matches_within(pattern: &[u8], text: &[u8], left: &mut usize) -> Option<bool> {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            if star == Some((p, t)) {
                // Consecutive stars are counted for each text.
                *left = left.checked_sub(1)?;
            }
            p += 1;
            star = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return Some(true);
        }
        if t < text.len()
            && let Some((is_it, len)) = one(&pattern[p..], text[t])
        {
            *left = left.checked_sub(len)?;
            if is_it {
                p += len;
                t += 1;
                continue;
            }
        }
        match star {
            Some((after, from)) if from < text.len() => {
                p = after;
                t = from + 1;
                star = Some((after, t));
            }
            _ => return Some(false),
        }
    }
}

/// Returns whether the first element of the pattern matches `c`, and the length of that element,
/// or `None` at the end of the pattern. `pattern` must not start with `*`.
fn one(pattern: &[u8], c: u8) -> Option<(bool, usize)> {
    Some(match *pattern.first()? {
        b'?' => (true, 1),
        b'[' => class(pattern, c),
        b'\\' if pattern.len() > 1 => (pattern[1] == c, 2),
        literal => (literal == c, 1),
    })
}

/// Matches the `[…]` at the start of `pattern` against `c`, and also returns its length. As in
/// Redis, a class that is not closed ends with the pattern.
fn class(pattern: &[u8], c: u8) -> (bool, usize) {
    let mut i = 1;
    let negated = pattern.get(i) == Some(&b'^');
    i += usize::from(negated);
    let mut found = false;
    loop {
        match &pattern[i.min(pattern.len())..] {
            [] => break,
            [b']', ..] => {
                i += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == c;
                i += 2;
            }
            [low, b'-', high, ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&c);
                i += 3;
            }
            [literal, ..] => {
                found |= *literal == c;
                i += 1;
            }
        }
    }
    (found != negated, i)
}

/// Returns the bytes with which every match of `pattern` starts, and whether the pattern consists
/// only of these bytes and a final `*`.
pub fn literal_prefix(pattern: &[u8]) -> (Vec<u8>, bool) {
    let mut prefix = Vec::new();
    let mut rest = pattern;
    loop {
        rest = match rest {
            [] => return (prefix, false),
            [b'*'] => return (prefix, true),
            [b'*' | b'?' | b'[', ..] => return (prefix, false),
            [b'\\', c, tail @ ..] => {
                prefix.push(*c);
                tail
            }
            [c, tail @ ..] => {
                prefix.push(*c);
                tail
            }
        };
    }
}

/// Returns the first key after all keys that start with `prefix`, or an empty key (no end) if
/// there is none.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_redis() {
        for (pattern, text, want) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h[a-b]llo", "hcllo", false),
            ("[a-]", "-", false),
            ("[\\]]", "]", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("a\\", "a\\", true),
            ("[abc", "c", true),
            ("[", "x", false),
            ("[^", "x", true),
            ("a**b*", "axyzb", true),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("*a*b*c*", "xxaxxcxxbxx", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                want,
                "{pattern:?} on {text:?}"
            );
        }
    }

    #[test]
    fn hostile_patterns_end() {
        let pattern = "a*".repeat(2000) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(10_000).as_bytes()));
    }

    #[test]
    fn a_match_takes_no_more_steps_than_it_is_given() {
        let (pattern, text) = (format!("*{}b*", "a".repeat(100)), "a".repeat(1000));
        let within = |mut most| matches_within(pattern.as_bytes(), text.as_bytes(), &mut most);
        assert_eq!((within(10_000), within(100_000)), (None, Some(false)));
        let class = format!("*[{}]", "b".repeat(100));
        let read = matches_within(class.as_bytes(), b"aaaaaaaaaa", &mut 500);
        assert_eq!(read, None, "a class is read");
        let mut left = 10;
        assert_eq!(matches_within(b"a*c", b"abbbc", &mut left), Some(true));
        assert_eq!(left, 5, "one byte for each of the text");
        assert_eq!(matches_within(b"*", text.as_bytes(), &mut 0), Some(true));
        let stars = [b'*'; 1000];
        let passed = |mut most| matches_within(&stars, b"a", &mut most);
        assert_eq!((passed(500), passed(1000)), (None, Some(true)));
    }

    #[test]
    fn prefixes() {
        assert_eq!(literal_prefix(b"user:*"), (b"user:".to_vec(), true));
        assert_eq!(literal_prefix(b"user:*x"), (b"user:".to_vec(), false));
        assert_eq!(literal_prefix(b"a\\*b?"), (b"a*b".to_vec(), false));
        assert_eq!(literal_prefix(b"*"), (vec![], true));
        assert_eq!(prefix_end(b"ab"), b"ac");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"");
        assert_eq!(prefix_end(b""), b"");
    }
}
