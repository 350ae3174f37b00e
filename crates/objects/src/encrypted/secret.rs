//! The secret of a family of stores, and the keys that are derived from it.

use std::fmt;

use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::secret_id::SecretId;

/// The length of a secret, in bytes.
const LEN: usize = 32;

/// A secret of 256 bits, with which objects are encrypted. Its text is 64 hexadecimal digits.
#[derive(Clone)]
pub struct Secret {
    derives: Prk,
    id: SecretId,
}

impl fmt::Debug for Secret {
    /// Omits the secret, which must not appear in any message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id)
    }
}

impl Secret {
    /// Parses a secret: 64 hexadecimal digits, possibly surrounded by whitespace.
    pub fn parse(text: &str) -> Result<Secret> {
        let wrong =
            || ObjectsError::Invalid("a secret is 64 hexadecimal digits on one line".into());
        let digits = text.trim().as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
        if digits.len() != 2 * LEN {
            return Err(wrong());
        }
        let mut bytes = [0; LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            // Two hexadecimal digits are a number less than 256.
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Secret::of(bytes)
    }

    fn of(bytes: [u8; LEN]) -> Result<Secret> {
        let derives = Salt::new(HKDF_SHA256, b"KVFS objects 1").extract(&bytes);
        let mut id = [0; 8];
        fill(&derives, &[b"id"], &mut id)?;
        Ok(Secret { derives, id: SecretId(id) })
    }

    /// Generates a new secret and returns its text.
    pub fn generate() -> Result<String> {
        let mut bytes = [0; LEN];
        random(&mut bytes)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the identity that distinguishes this secret from others.
    pub fn id(&self) -> SecretId {
        self.id
    }

    /// Returns the encryption key of an object. No two objects have the same encryption key, so the
    /// bytes of one object are not valid in another.
    pub(super) fn key_of(&self, key: &Key) -> Result<LessSafeKey> {
        let mut bytes = [0; LEN];
        fill(&self.derives, &[b"object", key.as_str().as_bytes()], &mut bytes)?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| failed())?;
        Ok(LessSafeKey::new(key))
    }
}

/// The requested length of a derived key.
struct Wanted(usize);

impl KeyType for Wanted {
    fn len(&self) -> usize {
        self.0
    }
}

fn fill(from: &Prk, info: &[&[u8]], out: &mut [u8]) -> Result<()> {
    let derived = from.expand(info, Wanted(out.len())).map_err(|_| failed())?;
    derived.fill(out).map_err(|_| failed())
}

/// Fills `out` with random numbers of the system.
pub(super) fn random(out: &mut [u8]) -> Result<()> {
    SystemRandom::new().fill(out).map_err(|_| failed())
}

pub(super) fn failed() -> ObjectsError {
    ObjectsError::Invalid("the system has no random numbers, or the cipher refuses its key".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_64_digits_and_its_name_hides_it() -> Result<()> {
        let text = Secret::generate()?;
        let secret = Secret::parse(&format!("  {text}\n"))?;
        assert_eq!(Secret::parse(&text.to_uppercase())?.id(), secret.id());
        assert_ne!(Secret::parse(&Secret::generate()?)?.id(), secret.id());
        assert!(!format!("{secret:?}").contains(&text[..8]));
        for wrong in ["", "abc", &text[1..], &format!("{text}00"), &text.replace(&text[..1], "g")] {
            assert!(Secret::parse(wrong).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn the_identity_of_a_known_secret_never_changes() -> Result<()> {
        let known = Secret::parse(&"0123456789abcdef".repeat(4))?;
        assert_eq!(known.id().to_string(), "bd50684589b76ff6");
        Ok(())
    }
}
