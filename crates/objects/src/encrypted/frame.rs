//! The layout of an encrypted object: a header, and then chunks. Each chunk can be decrypted alone,
//! so that a part of the object can be read without the rest. `docs/format.md` specifies it.

use std::ops::Range;

use bytes::Bytes;
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use super::secret::{failed, random};
use crate::error::Result;
use crate::secret_id::SecretId;

/// The beginning of the header, before the identity of the secret.
pub(super) const MAGIC: [u8; 8] = *b"KVFSENC1";
/// The length of the header, in bytes.
pub(super) const HEADER: u64 = 16;
/// The length of a chunk before encryption, in bytes. The last chunk of an object may be shorter.
const CHUNK: u64 = 64 << 10;
const TAG_LEN: usize = 16;
/// The number of bytes that encryption adds to a chunk.
const MORE: u64 = (NONCE_LEN + TAG_LEN) as u64;
/// The number of bytes that a whole chunk takes after encryption.
const STORED: u64 = CHUNK + MORE;

/// Returns the length of an object before encryption, or `None` if no encrypted object has the
/// length `stored`.
pub(super) fn plain_len(stored: u64) -> Option<u64> {
    let chunks = chunks_of(stored)?;
    (stored - HEADER).checked_sub(chunks * MORE)
}

/// Returns the number of chunks of an object that takes `stored` bytes. The number is at least one.
fn chunks_of(stored: u64) -> Option<u64> {
    let chunks = stored.checked_sub(HEADER)?;
    let last = chunks % STORED;
    (chunks > 0 && (last == 0 || last >= MORE)).then(|| chunks.div_ceil(STORED))
}

/// Returns the chunk that has the first byte of a range, and the offset before encryption at which
/// that chunk begins.
pub(super) fn first_chunk(range: &Range<u64>) -> (u64, u64) {
    let first = range.start / CHUNK;
    (first, first * CHUNK)
}

/// Returns the range of stored bytes that contains a range of the object: whole chunks, and the
/// header if the first chunk is among them.
pub(super) fn stored_range(range: &Range<u64>) -> Range<u64> {
    let at = |chunk: u64| HEADER.saturating_add(chunk.saturating_mul(STORED));
    let (first, _) = first_chunk(range);
    // A request must include at least one byte.
    let start = if first == 0 { 0 } else { at(first).min(u64::MAX - 1) };
    start..at(range.end.div_ceil(CHUNK).max(first + 1))
}

/// Returns the identity in the header of an object that begins with these bytes, or `None` if the
/// object is not encrypted.
pub(super) fn header_of(bytes: &[u8]) -> Option<SecretId> {
    let (magic, rest) = bytes.split_first_chunk()?;
    let (id, _) = rest.split_first_chunk()?;
    (*magic == MAGIC).then_some(SecretId(*id))
}

/// Returns the data to which a chunk is bound in addition to the key of its object: its position,
/// and whether it is the last chunk. The latter prevents an object from being cut off between two
/// chunks.
fn bound_to(chunk: u64, is_last: bool) -> Aad<[u8; 9]> {
    let mut bytes = [u8::from(is_last); 9];
    bytes[..8].copy_from_slice(&chunk.to_le_bytes());
    Aad::from(bytes)
}

/// Encrypts an object.
pub(super) fn encrypt(bytes: &[u8], id: SecretId, key: &LessSafeKey) -> Result<Bytes> {
    let chunks = bytes.len().div_ceil(CHUNK as usize).max(1);
    let mut out = Vec::with_capacity(HEADER as usize + bytes.len() + chunks * MORE as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&id.0);
    for number in 0..chunks {
        let start = number * CHUNK as usize;
        let chunk = &bytes[start..bytes.len().min(start + CHUNK as usize)];
        // A nonce is never used twice with one key, because an object that is replaced keeps its
        // encryption key.
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce)?;
        out.extend_from_slice(&nonce);
        let begins = out.len();
        out.extend_from_slice(chunk);
        let aad = bound_to(number as u64, number + 1 == chunks);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = key.seal_in_place_separate_tag(nonce, aad, &mut out[begins..]);
        out.extend_from_slice(sealed.map_err(|_| failed())?.as_ref());
    }
    Ok(out.into())
}

/// Decrypts the chunks from number `first` on of an object that takes `len` bytes in total. The
/// header precedes chunk 0. Returns `None` if the bytes are not the bytes that were encrypted for
/// this position.
pub(super) fn decrypt(stored: Bytes, first: u64, len: u64, key: &LessSafeKey) -> Option<Vec<u8>> {
    let mut bytes = Vec::from(stored);
    let mut from = if first == 0 { HEADER as usize } else { 0 };
    let chunks = chunks_of(len)?;
    let (mut number, mut to) = (first, 0);
    // Decrypted chunks move to the front, over the header and the nonces.
    while from < bytes.len() {
        let end = bytes.len().min(from + STORED as usize);
        let begins = from + NONCE_LEN;
        let nonce = Nonce::try_assume_unique_for_key(bytes.get(from..begins)?).ok()?;
        let aad = bound_to(number, number + 1 == chunks);
        let opened = key.open_in_place(nonce, aad, bytes.get_mut(begins..end)?).ok()?.len();
        bytes.copy_within(begins..begins + opened, to);
        (number, to, from) = (number + 1, to + opened, end);
    }
    bytes.truncate(to);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::Secret;
    use super::*;
    use crate::Key;

    #[test]
    fn lengths_are_known_without_the_bytes() -> Result<()> {
        let secret = Secret::parse(&Secret::generate()?)?;
        let key = secret.key_of(&Key::new("z/a")?)?;
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 17] {
            let stored = encrypt(&vec![7; len as usize], secret.id(), &key)?;
            assert_eq!(plain_len(stored.len() as u64), Some(len));
        }
        for none in [0, 1, HEADER, HEADER + MORE - 1, HEADER + STORED + 5] {
            assert_eq!(plain_len(none), None, "{none}");
        }
        Ok(())
    }

    #[test]
    fn a_range_lies_in_its_chunks() {
        assert_eq!(stored_range(&(0..1)), 0..HEADER + STORED);
        assert_eq!(stored_range(&(CHUNK - 1..CHUNK + 1)), 0..HEADER + 2 * STORED);
        let second = HEADER + STORED..HEADER + 2 * STORED;
        assert_eq!(stored_range(&(CHUNK..2 * CHUNK)), second);
        assert_eq!(stored_range(&(CHUNK + 5..CHUNK + 6)), second);
        let all = stored_range(&(5..u64::MAX));
        assert!(all.start == 0 && all.end > u64::MAX / 2, "{all:?}");
    }
}
