//! `LCS`: finds the longest common subsequence of two strings.

use super::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// The table of the lengths of common subsequences, with an entry for each pair of prefixes.
struct Table {
    width: usize,
    lengths: Vec<u32>,
}

impl Table {
    fn of(a: &[u8], b: &[u8], s: &Session) -> Result<Table, Failure> {
        let width = b.len() + 1;
        let mut table = Table { width, lengths: vec![0; (a.len() + 1) * width] };
        for (i, of_a) in a.iter().enumerate() {
            if i % 64 == 0 {
                s.check_stopping()?;
            }
            for (j, of_b) in b.iter().enumerate() {
                let longest = match of_a == of_b {
                    true => table.at(i, j) + 1,
                    false => table.at(i, j + 1).max(table.at(i + 1, j)),
                };
                table.lengths[(i + 1) * width + j + 1] = longest;
            }
        }
        Ok(table)
    }
    fn at(&self, i: usize, j: usize) -> u32 {
        self.lengths[i * self.width + j]
    }
}

/// A common substring: its start in both strings, and its length.
type Match = (usize, usize, usize);

/// Returns the subsequence, and the matches that form it, in reverse order.
fn trace(table: &Table, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Match>) {
    let (mut i, mut j) = (a.len(), b.len());
    let (mut common, mut matches) = (Vec::new(), Vec::<Match>::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            common.push(a[i - 1]);
            match matches.last_mut() {
                Some(last) if last.0 == i && last.1 == j => {
                    *last = (i - 1, j - 1, last.2 + 1);
                }
                _ => matches.push((i - 1, j - 1, 1)),
            }
            (i, j) = (i - 1, j - 1);
        } else if table.at(i - 1, j) > table.at(i, j - 1) {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    common.reverse();
    (common, matches)
}

/// Executes `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]`.
pub fn lcs(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut len, mut places, mut shortest, mut lengths) = (false, false, 0, false);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "len") => len = true,
            o if is(o, "idx") => places = true,
            o if is(o, "withmatchlen") => lengths = true,
            o if is(o, "minmatchlen") => {
                let least = integer(options.next().ok_or(Failure::SYNTAX)?);
                shortest = least.ok_or(Failure::NOT_AN_INTEGER)?.max(0) as usize;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    if len && places {
        return Err(Failure::request(
            "If you want both the length and indexes, please just use IDX.",
        ));
    }
    let not_strings = |failure: Failure| match failure.is_wrong_type() {
        true => Failure::request("The specified keys must contain string values"),
        false => failure,
    };
    let seen = s.see()?;
    let a = seen.string(args.at(1)).map_err(not_strings)?.1.unwrap_or_default();
    let b = seen.string(args.at(2)).map_err(not_strings)?.1.unwrap_or_default();
    let entries = (a.len() as u64 + 1) * (b.len() as u64 + 1);
    if entries > s.shared.limits.request as u64 / 4 {
        return Err(Failure::request(
            "Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let table = Table::of(&a, &b, s)?;
    let (common, matches) = trace(&table, &a, &b);
    if len {
        out.integer(common.len() as i64);
    } else if places {
        let shown: Vec<_> = matches.into_iter().filter(|s| s.2 >= shortest.max(1)).collect();
        out.map(2);
        out.bulk(b"matches");
        out.array(shown.len());
        for (in_a, in_b, len) in shown {
            out.array(if lengths { 3 } else { 2 });
            for start in [in_a, in_b] {
                out.array(2);
                out.integer(start as i64);
                out.integer((start + len - 1) as i64);
            }
            if lengths {
                out.integer(len as i64);
            }
        }
        out.bulk(b"len");
        out.integer(common.len() as i64);
    } else {
        out.bulk(&common);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_subsequence_and_its_matches_are_those_of_redis() {
        let db = kvdb::Kvdb::in_memory();
        let mut client = crate::client::Client::local(db);
        let mut ask = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            client.call(&words).expect("a reply")
        };
        ask(&["MSET", "a", "ohmytext", "b", "mynewtext"]);
        assert_eq!(ask(&["LCS", "a", "b"]), crate::Reply::Bulk(b"mytext".to_vec()));
        assert_eq!(ask(&["LCS", "a", "b", "LEN"]), crate::Reply::Integer(6));
        let shown =
            format!("{:?}", ask(&["LCS", "a", "b", "IDX", "MINMATCHLEN", "4", "WITHMATCHLEN"]));
        let numbers: Vec<&str> =
            shown.split(|c: char| !c.is_ascii_digit()).filter(|n| n.len() == 1).collect();
        assert_eq!(numbers, ["4", "7", "5", "8", "4", "6"], "{shown}");
    }
}
