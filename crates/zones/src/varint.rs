//! LEB128 varints. Each byte has seven bits, least significant first, and its high bit is set if
//! more bytes follow. A varint has at most ten bytes.

/// The error for bytes that are not a varint, because they are truncated or exceed 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed varint")]
pub struct Malformed;

/// Appends `value` to `out`.
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Decodes a varint and advances `input` past it. After an error `input` is unchanged.
pub fn get_u64(input: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for (i, &byte) in input.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == 9 && bits > 1 {
            return Err(Malformed);
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            *input = &input[i + 1..];
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// Decodes a varint that must fit into 32 bits, and advances `input` like [`get_u64`].
pub fn get_u32(input: &mut &[u8]) -> Result<u32, Malformed> {
    let mut rest = *input;
    let value = u32::try_from(get_u64(&mut rest)?).map_err(|_| Malformed)?;
    *input = rest;
    Ok(value)
}

/// Appends the length of `bytes` as a varint, then `bytes`.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Decodes a length, returns that many bytes, and advances `input` past them. Checks that `input`
/// has enough bytes.
pub fn get_bytes<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let mut rest = *input;
    let len = usize::try_from(get_u64(&mut rest)?).map_err(|_| Malformed)?;
    let (bytes, rest) = rest.split_at_checked(len).ok_or(Malformed)?;
    *input = rest;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_comes_back() {
        let mut out = Vec::new();
        let mut values = vec![0, u64::MAX];
        values.extend((0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit) - 1]));
        values.iter().for_each(|&v| put_u64(&mut out, v));
        let mut input = &out[..];
        for v in values {
            assert_eq!(get_u64(&mut input), Ok(v));
        }
        assert!(input.is_empty());
    }

    #[test]
    fn what_is_cut_short_or_too_large_is_an_error_and_takes_nothing() {
        for bad in [
            &[][..],
            &[0x80],
            &[0xff; 9],
            &[0xff; 11],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
        ] {
            let mut input = bad;
            assert_eq!(get_u64(&mut input), Err(Malformed));
            assert_eq!(input, bad);
        }
        let mut input = &[0xff, 0xff, 0xff, 0xff, 0x1f][..];
        assert_eq!(get_u32(&mut input), Err(Malformed));
        assert_eq!(input.len(), 5);
    }

    #[test]
    fn a_length_beyond_the_input_is_an_error() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"zone");
        assert_eq!(get_bytes(&mut &out[..]), Ok(&b"zone"[..]));
        assert_eq!(get_bytes(&mut &out[..4]), Err(Malformed));
        let mut huge = Vec::new();
        put_u64(&mut huge, u64::MAX);
        assert_eq!(get_bytes(&mut &huge[..]), Err(Malformed));
    }
}
