//! Detects gaps between keys, so that no tuple block extends across one.

use crate::key::{head_of, shared_prefix};

/// A distance between keys is a gap if it is this many times the key range of the block.
const GAP: u64 = 16;

/// Returns whether `key` is much farther from `high` than `high` is from `low`. Keys are compared
/// as numbers: of bytes, or of digits where keys consist of them, since 0999 and 1000 are
/// neighbours.
pub(super) fn is_gap(low: &[u8], high: &[u8], key: &[u8]) -> bool {
    let shared = shared_prefix(low, key);
    let rest = |k| <[u8]>::get(k, shared..).unwrap_or_default();
    let (low, high, key) = (rest(low), rest(high), rest(key));
    let wide = |number: &dyn Fn(&[u8]) -> u64| {
        let (low, high, key) = (number(low), number(high), number(key));
        key.saturating_sub(high) / GAP > high.saturating_sub(low)
    };
    let digits = |radix: u32| {
        // Take as many digits as fit into 64 bits.
        let most = if radix == 10 { 19 } else { 16 };
        move |k: &[u8]| {
            let digit =
                |i: usize| k.get(i).and_then(|&b| char::from(b).to_digit(radix)).unwrap_or(0);
            (0..most).fold(0u64, |n, i| n * u64::from(radix) + u64::from(digit(i)))
        }
    };
    let written = |radix: u32| {
        [low, &high[..high.len().saturating_sub(1)], key]
            .iter()
            .all(|k| k.iter().take(16).all(|&b| char::from(b).is_digit(radix)))
    };
    // Keys are never farther apart as digits than as bytes, so check the bytes first.
    wide(&head_of)
        && match () {
            () if written(10) => wide(&digits(10)),
            () if written(16) => wide(&digits(16)),
            () => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_ranges_and_not_between_neighbours() {
        let behind = |k: &str| [k.as_bytes(), &[0]].concat();
        let gap = |low: &str, high: &str, key: &str| {
            is_gap(low.as_bytes(), &behind(high), key.as_bytes())
        };
        assert!(
            !gap("00085", "00099", "00100")
                && !gap("00985", "00999", "01000")
                && !gap("98985", "98999", "99000")
        );
        assert!(!gap("000cc", "000ff", "00100") && !gap("00fcc", "00fff", "01000"));
        assert!(gap("file7/00100", "file7/00190", "file8/00000"));
        assert!(gap("00085", "00099", "00500"));
        let number = |n: u64| n.to_be_bytes();
        assert!(!is_gap(
            &number(0x1_ff00),
            &[&number(0x1_ffff)[..], &[0]].concat(),
            &number(0x2_0000)
        ));
        assert!(is_gap(
            &number(0x1_ff00),
            &[&number(0x1_ffff)[..], &[0]].concat(),
            &number(0x9_0000)
        ));
        assert!(!is_gap(b"", b"", b"") && !is_gap(b"a", b"a\0", b"a\0"));
    }
}
