//! Keys as numbers. The last bytes of a key are read as a big-endian number or as digits, so that
//! keys that count upwards (such as the pages of a file or the lines of a table) are not stored one
//! by one.

/// The encoding of a number in the last bytes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Radix {
    /// The number is encoded as big-endian bytes.
    Bytes = 0,
    /// The number is encoded as decimal digits.
    Decimal = 1,
    /// The number is encoded as hexadecimal digits with the letters a to f.
    Hex = 2,
}

/// The number in the last `width` bytes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    radix: Radix,
    width: u8,
}

impl Radix {
    const ALL: [Radix; 3] = [Radix::Decimal, Radix::Hex, Radix::Bytes];

    /// Returns the largest width in bytes for which every number fits into 64 bits.
    fn most(self) -> usize {
        match self {
            Radix::Bytes => 8,
            Radix::Decimal => 19,
            Radix::Hex => 16,
        }
    }

    fn is_digit(self, byte: u8) -> bool {
        match self {
            Radix::Bytes => true,
            Radix::Decimal => byte.is_ascii_digit(),
            Radix::Hex => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        }
    }
}

impl Counter {
    /// Returns all ways to read the last bytes of `key` as a number.
    pub fn of(key: &[u8]) -> impl Iterator<Item = Counter> + '_ {
        Radix::ALL.into_iter().filter_map(|radix| {
            let width =
                key.iter().rev().take(radix.most()).take_while(|&&b| radix.is_digit(b)).count();
            (width > 0).then_some(Counter { radix, width: width as u8 })
        })
    }

    /// Decodes a code that `encode` has returned. Returns `None` for other bytes.
    pub fn decode(code: u8) -> Option<Counter> {
        let radix = match code >> 5 {
            0 => Radix::Bytes,
            1 => Radix::Decimal,
            2 => Radix::Hex,
            _ => return None,
        };
        let width = code & 0x1f;
        (width > 0 && usize::from(width) <= radix.most()).then_some(Counter { radix, width })
    }

    pub fn encode(self) -> u8 {
        (self.radix as u8) << 5 | self.width
    }

    pub fn width(self) -> usize {
        self.width.into()
    }

    /// Splits `key` into the bytes before the number and the number. Returns `None` if the key does
    /// not end with a number of this encoding.
    pub fn split(self, key: &[u8]) -> Option<(&[u8], u64)> {
        let (prefix, digits) = key.split_at(key.len().checked_sub(self.width())?);
        let number = match self.radix {
            Radix::Bytes => digits.iter().fold(0, |n, &b| n << 8 | u64::from(b)),
            radix => {
                let base = if radix == Radix::Decimal { 10 } else { 16 };
                let mut n = 0;
                for &b in digits {
                    if !radix.is_digit(b) {
                        return None;
                    }
                    // The number has at most 19 decimal or 16 hexadecimal digits, so it does not
                    // overflow.
                    n = n * base + u64::from(if b <= b'9' { b - b'0' } else { b - b'a' + 10 });
                }
                n
            }
        };
        Some((prefix, number))
    }

    /// Returns the largest number that fits into the width.
    pub fn max(self) -> u64 {
        match self.radix {
            Radix::Bytes if self.width == 8 => u64::MAX,
            Radix::Bytes => (1 << (8 * self.width)) - 1,
            Radix::Decimal => 10u64.pow(self.width.into()) - 1,
            Radix::Hex if self.width == 16 => u64::MAX,
            Radix::Hex => (1 << (4 * self.width)) - 1,
        }
    }

    /// Replaces the number in `key` by `number`, which must fit into the width.
    pub fn write(self, mut number: u64, key: &mut [u8]) {
        let from = key.len() - self.width();
        for b in key[from..].iter_mut().rev() {
            *b = match self.radix {
                Radix::Bytes => number as u8,
                Radix::Decimal => b'0' + (number % 10) as u8,
                Radix::Hex => b"0123456789abcdef"[(number % 16) as usize],
            };
            number = match self.radix {
                Radix::Bytes => number >> 8,
                Radix::Decimal => number / 10,
                Radix::Hex => number >> 4,
            };
        }
    }

    /// Adds `step` to the number in `key`. Returns `false`, and leaves the key unchanged, if the
    /// result does not fit.
    pub fn advance(self, key: &mut [u8], step: u64) -> bool {
        let Some(next) =
            self.split(key).and_then(|(_, n)| n.checked_add(step)).filter(|&n| n <= self.max())
        else {
            return false;
        };
        self.write(next, key);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for (key, want) in [
            (
                &b"page 0099"[..],
                vec![
                    (Radix::Decimal, 4, 99),
                    (Radix::Hex, 4, 0x99),
                    (Radix::Bytes, 8, 0x6167_6520_3030_3939),
                ],
            ),
            (b"\xff\xff", vec![(Radix::Bytes, 2, 0xffff)]),
            (b"beef", vec![(Radix::Hex, 4, 0xbeef), (Radix::Bytes, 4, 0x6265_6566)]),
            (b"", vec![]),
        ] {
            let found: Vec<_> =
                Counter::of(key).map(|c| (c.radix, c.width(), c.split(key).unwrap().1)).collect();
            assert_eq!(found, want);
            for c in Counter::of(key) {
                assert_eq!(Counter::decode(c.encode()), Some(c));
                let mut again = vec![b'?'; key.len()];
                again[..key.len() - c.width()].copy_from_slice(&key[..key.len() - c.width()]);
                c.write(c.split(key).unwrap().1, &mut again);
                assert_eq!(again, key);
            }
        }
    }

    #[test]
    fn counting_carries_and_ends_where_the_width_does() {
        let count = |key: &[u8], i: usize, step| {
            let mut key = key.to_vec();
            let counter = Counter::of(&key).nth(i).unwrap();
            counter.advance(&mut key, step).then_some(key)
        };
        assert_eq!(count(b"a099", 0, 1).unwrap(), b"a100");
        assert_eq!(count(b"x09f", 0, 1).unwrap(), b"x0a0");
        assert_eq!(count(b"\x01\xff", 0, 2).unwrap(), b"\x02\x01");
        assert_eq!(count(b"a999", 0, 1), None);
        assert_eq!(count(&[0xff; 8], 0, 1), None);
        for code in 0..=255 {
            let Some(c) = Counter::decode(code) else { continue };
            let mut key = vec![b'0'; c.width()];
            c.write(c.max(), &mut key);
            assert_eq!(c.split(&key), Some((&b""[..], c.max())));
        }
    }
}
