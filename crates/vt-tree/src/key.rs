//! Operations on keys: the prefix that two keys share, the first eight bytes as a number, and the
//! next possible key.

/// Returns the number of leading bytes that `a` and `b` have in common.
pub(crate) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut n = 0;
    // Compare eight bytes at a time while they are equal.
    while let (Some(x), Some(y)) = (a.get(n..n + 8), b.get(n..n + 8)) {
        let word = |s: &[u8]| s.try_into().map_or(0, u64::from_le_bytes);
        let differ = word(x) ^ word(y);
        if differ != 0 {
            return n + differ.trailing_zeros() as usize / 8;
        }
        n += 8;
    }
    n + a[n..].iter().zip(&b[n..]).take_while(|(x, y)| x == y).count()
}

/// Returns the first eight bytes as a number with the same order. Missing bytes count as zeros.
#[inline]
pub(crate) fn head_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            let mut head = [0; 8];
            head[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(head)
        }
    }
}

/// Returns the smallest key greater than `key`.
pub(crate) fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_prefix_ends_where_the_keys_differ_or_one_ends() {
        let key: Vec<u8> = (0..40).collect();
        for len in 0..40 {
            assert_eq!(shared_prefix(&key, &key[..len]), len);
            let mut other = key.clone();
            other[len] ^= 0x80;
            assert_eq!(shared_prefix(&key, &other), len);
        }
        assert_eq!(shared_prefix(b"", b""), 0);
    }

    #[test]
    fn heads_and_successors_sort_as_keys_do() {
        let keys: [&[u8]; 7] = [b"", b"\0", b"a", b"a\0", b"ab", b"abcdefgh", b"abcdefgh\xff"];
        for pair in keys.windows(2) {
            assert!(head_of(pair[0]) <= head_of(pair[1]), "{pair:?}");
            assert!(pair[0] < &successor(pair[0])[..] && &successor(pair[0])[..] <= pair[1]);
        }
        assert_eq!(head_of(b"abcdefghi"), 0x6162_6364_6566_6768);
        assert_eq!(head_of(b"a"), 0x61 << 56);
    }
}
