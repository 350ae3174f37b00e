//! `TXN REVERT TOGETHER`: removes all of the given changes of files and keys from the joined
//! transaction, or none. As one command it completes whatever happens to the client. If a client
//! sent several commands instead and was killed between a removal and the copy that restores the
//! file, the file would stay removed.

use kvdb::TransactionId;

use super::joined;
use super::savepoints::all_or_none;
use crate::commands::{is, revert};
use crate::dictionaries::Selected;
use crate::failure::{Failure, Outcome};
use crate::files::{FileError, Whose};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// The directory of a view that shows the state beneath its transaction.
const BENEATH: &[u8] = b"/.kvfs/beneath/";

/// The changes to revert.
#[derive(Default)]
struct Parts<'a> {
    /// Paths that are removed.
    removed: Vec<&'a [u8]>,
    /// Paths that get their earlier content. Some of them may also be in `removed`.
    restored: Vec<&'a [u8]>,
    keys: Vec<(Selected, &'a [u8])>,
}

/// `TXN REVERT TOGETHER [REMOVE path | RESTORE path | KEY dictionary key] ...`. `REMOVE` removes
/// the file at a path, if there is one; `RESTORE` restores a path to its state beneath the
/// transaction; `KEY` restores a key in the same way.
pub(super) fn together(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let parts = Parts::of(s, args)?;
    let id = joined(s)?.id();
    all_or_none(s, |s| parts.take_out(s, id))?;
    out.ok();
    Ok(())
}

impl<'a> Parts<'a> {
    fn of(s: &Session, args: Arguments<'a>) -> Result<Parts<'a>, Failure> {
        let mut parts = Parts::default();
        let mut words = args.from(3);
        while let Some(verb) = words.next() {
            let mut next = || words.next().ok_or(Failure::SYNTAX);
            match verb {
                verb if is(verb, "remove") => parts.removed.push(next()?),
                verb if is(verb, "restore") => {
                    let path = next()?;
                    parts.removed.push(path);
                    parts.restored.push(path);
                }
                verb if is(verb, "key") => {
                    let dictionary = Selected::choose(s.db(), next()?)?;
                    parts.keys.push((dictionary, next()?));
                }
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(parts)
    }

    fn take_out(self, s: &mut Session, id: TransactionId) -> Outcome {
        let files = s.shared.owner.files().clone();
        for path in &self.removed {
            match files.remove_tree(Whose::Transaction(id), path) {
                Ok(_) | Err(FileError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // All files are copied by one call, so that hard links among them are preserved.
        let from: Vec<Vec<u8>> =
            self.restored.iter().map(|path| [BENEATH, *path].concat()).collect();
        let places: Vec<(&[u8], &[u8])> =
            from.iter().map(Vec::as_slice).zip(self.restored.iter().copied()).collect();
        if !places.is_empty() {
            files.clone_trees(id, &places)?;
        }
        for (dictionary, key) in self.keys {
            let selected = std::mem::replace(&mut s.dictionary, dictionary);
            let reverted = revert::revert_key(s, key);
            s.dictionary = selected;
            reverted?;
        }
        Ok(())
    }
}
