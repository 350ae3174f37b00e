//! The sequence of the numbered batches of a transaction, or of the lease of the main branch. The
//! client numbers them from 1, without gaps, and each one is applied once, in this order, however
//! often and however late it arrives.

use crate::failure::{Failure, FailureCode};

/// The batch that was refused last. Its client may have made another batch of the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub number: u64,
    /// The number of the connection on which it arrived. A batch of the same number on an older
    /// connection is stale.
    pub connection: u64,
}

/// Returns whether the batch of this number is the next one after number `last`, and not one that
/// was already applied. `connection` is that on which it arrived. Fails if it is neither.
pub(crate) fn is_next(
    number: u64,
    connection: u64,
    last: u64,
    refused: Option<Refused>,
) -> Result<bool, Failure> {
    let invalid = |what: String| Err(Failure { code: FailureCode::Invalid, what });
    if (1..=last).contains(&number) {
        return Ok(false);
    }
    if Some(number) != last.checked_add(1) {
        return invalid(format!("batch {number} came, and the last one was {last}"));
    }
    let is_late = |of: Refused| of.number == number && connection < of.connection;
    match refused.is_some_and(is_late) {
        true => invalid(format!("batch {number} was refused on a later connection")),
        false => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once_and_none_is_left_out() {
        let refused = Some(Refused { number: 4, connection: 7 });
        let next = |number, connection| is_next(number, connection, 3, refused).ok();
        for applied in 1..=3 {
            assert_eq!(next(applied, 1), Some(false));
        }
        assert_eq!((next(0, 9), next(5, 9)), (None, None));
        assert_eq!((next(4, 6), next(4, 7), next(4, 8)), (None, Some(true), Some(true)));
        assert_eq!(is_next(4, 1, 3, None).ok(), Some(true));
        assert_eq!(is_next(0, 1, u64::MAX, None).ok(), None, "there is no next one");
    }
}
