//! Updates: changes of a value that are written without reading it (the *upserts* of BetrFS 0.2,
//! §2.2, KEVIN's commands with offsets). An update is a short sequence of operations: overwrite the
//! bytes at an offset, append bytes, add to a counter. It is stored in a memtable or a run that is
//! newer than the value. Readers apply it, and a merge that reads both folds it into the value.
//!
//! Two updates of one key are composed without knowing the value: the newer operations are appended
//! to the older ones. So the order in which sources are merged makes no difference, and the
//! composition is associative. Operations are total: an operation that cannot be applied (adding to
//! a value that is not a number, or growing it beyond [`LONGEST_UPDATED`]) leaves the value
//! unchanged. Callers that must report this read the value first.
//!
//! Encoding: the operations in sequence, oldest first. Each is a kind (u8), followed for kind 1,
//! add, by the number (varint, zigzag); for kind 2, append, by the bytes (varint length, bytes);
//! for kind 3, patch, by the offset (varint) and the bytes (varint length, bytes).

use bytes::Bytes;
use zones::varint;

use crate::{Error, Result};

/// Maximum length to which an update may extend a value, bytes.
pub const LONGEST_UPDATED: usize = 7 << 20;

const ADD: u8 = 1;
const APPEND: u8 = 2;
const PATCH: u8 = 3;

/// A valid sequence of operations that change a value.
///
/// ```
/// use vt_tree::Update;
///
/// let update = Update::add(40).then(&Update::add(2));
/// assert_eq!(update.apply(None), "42", "a key without a value counts as 0");
/// let update = Update::patch(1, b"XY").unwrap().then(&Update::append(b"!").unwrap());
/// assert_eq!(update.apply(Some(b"abcd")), "aXYd!");
/// assert_eq!(update.apply(None), "\0XY!");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update(Bytes);

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation<'a> {
    Add(i64),
    Append(&'a [u8]),
    Patch(usize, &'a [u8]),
}

impl Update {
    /// Returns an update that adds `n` to a value. The value must be a decimal number as written by
    /// `i64::to_string`, and so is the sum, which wraps around at the ends of `i64`. A missing key
    /// counts as 0.
    pub fn add(n: i64) -> Update {
        Update::of(Operation::Add(n))
    }

    /// Returns an update that appends `bytes`, or `None` if they are longer than a value may be.
    pub fn append(bytes: &[u8]) -> Option<Update> {
        (bytes.len() <= LONGEST_UPDATED).then(|| Update::of(Operation::Append(bytes)))
    }

    /// Returns an update that writes `bytes` at `offset`. A shorter value is first extended with
    /// zeros up to `offset`. Returns `None` if the value would be longer than [`LONGEST_UPDATED`].
    pub fn patch(offset: usize, bytes: &[u8]) -> Option<Update> {
        let end = offset.checked_add(bytes.len())?;
        (end <= LONGEST_UPDATED).then(|| Update::of(Operation::Patch(offset, bytes)))
    }

    fn of(operation: Operation<'_>) -> Update {
        let mut out = Vec::new();
        operation.encode(&mut out);
        Update(Bytes::from(out))
    }

    /// Decodes and checks operations that were read from the device.
    pub fn decode(bytes: &[u8]) -> Result<Update> {
        let mut rest = bytes;
        while !rest.is_empty() {
            Operation::decode(&mut rest)
                .ok_or_else(|| Error::corrupt("update of a value: it does not decode", 0))?;
        }
        match bytes.is_empty() {
            true => Err(Error::corrupt("update of a value: it is empty", 0)),
            false => Ok(Update(Bytes::copy_from_slice(bytes))),
        }
    }

    /// Returns the encoded operations.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Composes this update with `newer`, which is applied after it. Consecutive additions are
    /// combined. A patch replaces earlier patches that it covers, back to the last operation of
    /// another kind.
    pub fn then(&self, newer: &Update) -> Update {
        let mut operations: Vec<Operation<'_>> = self.operations().collect();
        for operation in newer.operations() {
            match (operations.last_mut(), operation) {
                (Some(Operation::Add(sum)), Operation::Add(n)) => *sum = sum.wrapping_add(n),
                (_, Operation::Patch(..)) => {
                    let patches = operations.iter().rev().take_while(|older| older.is_patch());
                    let first = operations.len() - patches.count();
                    let mut at = 0;
                    operations.retain(|older| {
                        at += 1;
                        at <= first || !operation.covers(older)
                    });
                    operations.push(operation);
                }
                _ => operations.push(operation),
            }
        }
        let mut out = Vec::with_capacity(self.0.len() + newer.0.len());
        operations.iter().for_each(|operation| operation.encode(&mut out));
        Update(Bytes::from(out))
    }

    /// Returns the result of applying the update to `value`, which is `None` if the key has no
    /// value.
    pub fn apply(&self, value: Option<&[u8]>) -> Bytes {
        let mut bytes = value.map(<[u8]>::to_vec);
        for operation in self.operations() {
            operation.apply(&mut bytes);
        }
        Bytes::from(bytes.unwrap_or_default())
    }

    /// Returns the length of the result for a value of `len` bytes, where `None` means that the key
    /// has no value. Returns `None` if the length depends on the value itself.
    pub fn applied_len(&self, len: Option<usize>) -> Option<usize> {
        let mut len = len.unwrap_or(0);
        for operation in self.operations() {
            match operation {
                // No number has more than 20 characters, so such a value is not one, and stays
                // unchanged.
                Operation::Add(_) if len > 20 => {}
                Operation::Add(_) => return None,
                Operation::Append(bytes) if len + bytes.len() <= LONGEST_UPDATED => {
                    len += bytes.len();
                }
                Operation::Append(_) => {}
                Operation::Patch(offset, bytes) => len = len.max(offset + bytes.len()),
            }
        }
        Some(len)
    }

    /// Returns whether updates of two writers may be applied in either order with the same result,
    /// without reading the value, so that they do not conflict.
    pub fn commutes(&self) -> bool {
        self.operations().all(|operation| matches!(operation, Operation::Add(_)))
    }

    fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let mut rest = &self.0[..];
        // The operations in an `Update` have been checked, so they decode.
        std::iter::from_fn(move || Operation::decode(&mut rest))
    }
}

impl<'a> Operation<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Operation::Add(n) => {
                out.push(ADD);
                varint::put_u64(out, ((n << 1) ^ (n >> 63)) as u64);
            }
            Operation::Append(bytes) => {
                out.push(APPEND);
                varint::put_bytes(out, bytes);
            }
            Operation::Patch(offset, bytes) => {
                out.push(PATCH);
                varint::put_u64(out, offset as u64);
                varint::put_bytes(out, bytes);
            }
        }
    }

    /// Decodes the first operation of `rest` and removes it. Returns `None` at the end, or if the
    /// operation does not decode.
    fn decode(rest: &mut &'a [u8]) -> Option<Operation<'a>> {
        let (&kind, mut body) = rest.split_first()?;
        let operation = match kind {
            ADD => {
                let n = varint::get_u64(&mut body).ok()?;
                Operation::Add((n >> 1) as i64 ^ -((n & 1) as i64))
            }
            APPEND => Operation::Append(varint::get_bytes(&mut body).ok()?),
            PATCH => {
                let offset = usize::try_from(varint::get_u64(&mut body).ok()?).ok()?;
                let bytes = varint::get_bytes(&mut body).ok()?;
                offset.checked_add(bytes.len()).filter(|&end| end <= LONGEST_UPDATED)?;
                Operation::Patch(offset, bytes)
            }
            _ => return None,
        };
        *rest = body;
        Some(operation)
    }

    fn is_patch(&self) -> bool {
        matches!(self, Operation::Patch(..))
    }

    /// Returns whether this is a patch that overwrites everything that `older`, also a patch, has
    /// written.
    fn covers(&self, older: &Operation<'_>) -> bool {
        match (*self, *older) {
            (Operation::Patch(at, newer), Operation::Patch(from, older)) => {
                at <= from && from + older.len() <= at + newer.len()
            }
            _ => false,
        }
    }

    fn apply(&self, value: &mut Option<Vec<u8>>) {
        match *self {
            Operation::Add(n) => {
                let sum = match value.as_deref() {
                    None => Some(n),
                    Some(bytes) => number(bytes).map(|have| have.wrapping_add(n)),
                };
                if let Some(sum) = sum {
                    *value = Some(sum.to_string().into_bytes());
                }
            }
            Operation::Append(bytes) => {
                let value = value.get_or_insert_default();
                if value.len() + bytes.len() <= LONGEST_UPDATED {
                    value.extend_from_slice(bytes);
                }
            }
            Operation::Patch(offset, bytes) => {
                let value = value.get_or_insert_default();
                let end = offset + bytes.len();
                if value.len() < end {
                    value.resize(end, 0);
                }
                value[offset..end].copy_from_slice(bytes);
            }
        }
    }
}

/// Returns the number that `bytes` represent, if they are in the form that `i64::to_string` writes.
fn number(bytes: &[u8]) -> Option<i64> {
    let n: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (n.to_string().as_bytes() == bytes).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn update() -> impl Strategy<Value = Update> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..12);
        let one = prop_oneof![
            prop_oneof![any::<i64>(), -3..3i64].prop_map(Update::add),
            bytes().prop_map(|b| Update::append(&b).unwrap()),
            (0..40usize, bytes()).prop_map(|(at, b)| Update::patch(at, &b).unwrap()),
        ];
        proptest::collection::vec(one, 1..6)
            .prop_map(|all| all.iter().skip(1).fold(all[0].clone(), |a, b| a.then(b)))
    }

    fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
        prop_oneof![
            Just(None),
            any::<i64>().prop_map(|n| Some(n.to_string().into_bytes())),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Some),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn updates_composed_do_what_they_do_one_after_the_other(a in update(), b in update(), c in update(), value in value()) {
            let value = value.as_deref();
            let steps = c.apply(Some(&b.apply(Some(&a.apply(value)))));
            prop_assert_eq!(&a.then(&b).then(&c).apply(value), &steps);
            prop_assert_eq!(&a.then(&b.then(&c)).apply(value), &steps);
        }

        #[test]
        fn the_length_is_known_without_the_value_or_not_at_all(a in update(), value in value()) {
            if let Some(len) = a.applied_len(value.as_ref().map(Vec::len)) {
                prop_assert_eq!(len, a.apply(value.as_deref()).len());
            }
        }

        #[test]
        fn an_update_survives_the_way_to_the_device_and_back(a in update()) {
            prop_assert_eq!(Update::decode(a.bytes()).unwrap(), a);
        }

        #[test]
        fn any_bytes_decode_or_are_an_error(bytes in proptest::collection::vec(prop_oneof![0..5u8, any::<u8>()], 0..40)) {
            if let Ok(update) = Update::decode(&bytes) {
                prop_assert!(update.apply(None).len() <= LONGEST_UPDATED);
                prop_assert!(update.apply(Some(b"17")).len() <= LONGEST_UPDATED);
            }
        }
    }

    #[test]
    fn what_cannot_be_done_leaves_the_value() {
        assert_eq!(Update::add(1).apply(Some(b"one")), "one");
        assert_eq!(Update::add(1).apply(Some(b"")), "");
        assert_eq!(Update::add(1).apply(Some(b"+7")), "+7", "no number that a sum is written as");
        assert_eq!(Update::add(1).apply(Some(b"-1")), "0");
        assert_eq!(
            Update::add(1).apply(Some(i64::MAX.to_string().as_bytes())),
            i64::MIN.to_string()
        );
        let full = vec![1; LONGEST_UPDATED];
        assert_eq!(Update::append(b"x").unwrap().apply(Some(&full)).len(), LONGEST_UPDATED);
        assert_eq!(Update::patch(LONGEST_UPDATED, b"x"), None);
        assert_eq!(Update::patch(usize::MAX, b"x"), None);
    }

    #[test]
    fn counters_and_rewritten_ranges_do_not_grow() {
        let (mut sum, mut patch) = (Update::add(1), Update::patch(8, b"abcd").unwrap());
        for i in 0..1000u32 {
            sum = sum.then(&Update::add(1));
            patch = patch.then(&Update::patch(8, &i.to_le_bytes()).unwrap());
        }
        assert_eq!(sum.bytes().len(), Update::add(1001).bytes().len());
        assert_eq!(patch.bytes().len(), 7);
        // Patches alternate, like writes to the fields of a page header.
        let mut fields = Update::patch(100, b"once").unwrap();
        for i in 0..1000u32 {
            for at in [8, 40, 60] {
                fields = fields.then(&Update::patch(at, &i.to_le_bytes()).unwrap());
            }
        }
        assert_eq!(fields.bytes().len(), 4 * 7);
        // A patch does not replace one before an append, since the position of the append depends
        // on the value.
        let grown = Update::patch(4, b"x").unwrap().then(&Update::append(b"y").unwrap());
        assert_eq!(grown.then(&Update::patch(4, b"z").unwrap()).apply(None), "\0\0\0\0zy");
    }

    #[test]
    fn only_additions_commute() {
        assert!(Update::add(1).then(&Update::add(-5)).commutes());
        assert!(!Update::append(b"x").unwrap().commutes());
        assert!(!Update::add(1).then(&Update::patch(0, b"7").unwrap()).commutes());
    }
}
