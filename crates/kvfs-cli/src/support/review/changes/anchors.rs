//! The anchors of a list: directories that long paths begin at, which would otherwise exceed the
//! length that a system call takes. Paths below the third anchor are listed as `/3/…`; see
//! `kvfs::Difference`.

use std::borrow::Cow;

use kvfs::Difference;
use serde_json::{Map, Value};

use super::file::File;
use super::odd;
use crate::support::terminal::output::Outcome;
use crate::support::terminal::text;

/// The paths of the anchors. A path may itself begin at an earlier anchor.
#[derive(Clone, Default)]
pub(super) struct Anchors(Vec<Vec<u8>>);

impl Anchors {
    /// Adds the next anchor of a list.
    pub fn push(&mut self, name: &[u8], path: Option<Vec<u8>>) -> Outcome {
        let path = path.ok_or_else(odd)?;
        let number = self.0.len() + 1;
        // An anchor may only refer to an earlier one, so that every path ends at the root.
        if name != format!("/{number}").as_bytes() || Difference::parted(&path).0 >= number {
            return Err(odd());
        }
        self.0.push(path);
        Ok(())
    }

    /// Resolves a path to one from the root.
    pub fn whole<'a>(&self, path: &'a [u8]) -> Cow<'a, [u8]> {
        Difference::whole_from(&self.0, path)
    }

    /// Returns the directory of a path, in the form in which it is listed, or `None` if that is the
    /// root.
    pub fn parent<'a>(&'a self, path: &'a [u8]) -> Option<&'a [u8]> {
        let directory = &path[..path.iter().rposition(|byte| *byte == b'/')?];
        match Difference::parted(directory) {
            (number, b"") if number > 0 => self.0.get(number - 1).map(Vec::as_slice),
            _ => Some(directory),
        }
    }

    /// Returns a sort key by which a directory precedes everything below it.
    pub fn depth(path: &[u8]) -> (usize, usize) {
        (Difference::parted(path).0, path.len())
    }

    /// Returns whether a path is longer than a system call takes.
    pub fn is_deep(path: &[u8]) -> bool {
        Difference::parted(path).0 > 0
    }

    /// Returns the lines for the anchors that a file needs and that are not printed yet. The first
    /// `told` anchors are.
    pub fn lines(&self, file: &File, told: &mut usize) -> Vec<String> {
        let paths = [Some(&file.path[..]), file.from.as_deref(), file.linked_to()];
        let needed =
            paths.into_iter().flatten().map(|path| Difference::parted(path).0).max().unwrap_or(0);
        let needed = needed.min(self.0.len());
        let line =
            |number: usize| format!("=  /{:<39}  {}/", number + 1, text::show(&self.0[number]));
        let lines = (*told..needed).map(line).collect();
        *told = needed.max(*told);
        lines
    }

    /// Returns the anchors by name, or `None` if there are none.
    pub fn json(&self) -> Option<Value> {
        let mut all = Map::new();
        for (at, path) in self.0.iter().enumerate() {
            text::put(&mut all, &format!("/{}", at + 1), path);
        }
        (!all.is_empty()).then_some(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_from_a_place_is_whole_again_and_its_directory_is_the_one_that_is_listed() {
        let mut anchors = Anchors::default();
        anchors.push(b"/1", Some(b"a/b".to_vec())).unwrap();
        anchors.push(b"/2", Some(b"/1/c/d".to_vec())).unwrap();
        assert_eq!(&anchors.whole(b"/2/e/f")[..], b"a/b/c/d/e/f");
        assert_eq!(&anchors.whole(b"x/y")[..], b"x/y");
        assert_eq!(anchors.parent(b"/2/e/f"), Some(&b"/2/e"[..]));
        assert_eq!(anchors.parent(b"/2/e"), Some(&b"/1/c/d"[..]));
        assert_eq!(anchors.parent(b"x/y"), Some(&b"x"[..]));
        assert_eq!(anchors.parent(b"x"), None);
    }

    #[test]
    fn a_place_that_begins_at_itself_is_refused() {
        let mut anchors = Anchors::default();
        assert!(anchors.push(b"/1", Some(b"/1/a".to_vec())).is_err());
        assert!(anchors.push(b"/2", Some(b"a".to_vec())).is_err());
        assert!(anchors.push(b"/1", None).is_err());
    }
}
