//! Patterns of `KEYS` and `SCAN … MATCH`, as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and `\`
//! before a literal.
//!
//! The matcher backtracks to the latest `*` only, which is sufficient: so a hostile pattern costs
//! at most the product of the lengths of pattern and key. The literal prefix of a pattern bounds
//! the keys that can match; in an ordered store a scan reads those and no others.

/// Returns whether the whole of `text` matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        if t < text.len()
            && let Some(len) = one(&pattern[p..], text[t])
        {
            p += len;
            t += 1;
            continue;
        }
        match star {
            Some((after, from)) if from < text.len() => {
                p = after;
                t = from + 1;
                star = Some((after, t));
            }
            _ => return false,
        }
    }
}

/// Returns the length of the pattern's first element if that matches `c`. `pattern` does not start
/// with `*`.
fn one(pattern: &[u8], c: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => class(pattern, c),
        b'\\' if pattern.len() > 1 => (pattern[1] == c).then_some(2),
        literal => (literal == c).then_some(1),
    }
}

/// Matches the `[…]` at the start of `pattern` against `c`. A class that is not closed ends with
/// the pattern, as in Redis.
fn class(pattern: &[u8], c: u8) -> Option<usize> {
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
    (found != negated).then_some(i)
}

/// Returns the bytes that every match of `pattern` starts with, and whether the pattern consists of
/// only them and a final `*`.
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

/// Returns the first key after all keys that start with `prefix`; empty (no end) if there is none.
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
