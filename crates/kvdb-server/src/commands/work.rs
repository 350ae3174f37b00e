//! Options of commands that start work in the background.

use crate::failure::Failure;
use crate::request::{Arguments, integer};

/// Parses the options after the subcommand. Each has a number that is not negative. The number of
/// arguments must be even.
pub fn options<'a>(
    args: Arguments<'a>,
) -> impl Iterator<Item = Result<(&'a [u8], u64), Failure>> + use<'a> {
    (2..args.len()).step_by(2).map(move |at| {
        let number = integer(args.at(at + 1)).and_then(|n| u64::try_from(n).ok());
        Ok((args.at(at), number.ok_or(Failure::NOT_AN_INTEGER)?))
    })
}

/// Returns a limit of bytes per second. Zero means no limit.
pub fn rate(number: u64) -> Option<u64> {
    Some(number).filter(|n| *n > 0)
}
