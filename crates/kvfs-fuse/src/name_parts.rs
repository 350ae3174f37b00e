//! Directories and links for names of views with slashes: `.kvfs/clone/agents` and
//! `.kvfs/clone/agents/7` are directories if there is a clone `agents/7/try-2`, and
//! `.kvfs/clone/agents/7/try-2` is a link to the directory of this clone (`view_names`).
//!
//! These directories and links have inode numbers while this process runs. The kernel looks up each
//! of them again at every use, so it needs a message about a new or ended view only for cached
//! listings. Parts that lead to no view any more may be forgotten.

use std::collections::HashMap;

use kvfs::Ino;
use parking_lot::Mutex;

/// The first inode number of the parts.
const FIRST: Ino = 5 << 40;
/// The number of parts from which on parts that lead to no view any more are forgotten from time to
/// time.
const MANY: usize = 4096;

/// A leading part of the name of a view, in the directory of the views of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    /// The directory of the snapshots or of the clones.
    pub kind: Ino,
    /// The path without a final slash. For a link, this is the whole name of the view.
    pub name: String,
    pub link: bool,
}

impl Part {
    /// Returns the directory that contains this part, or `None` if the directory of its kind
    /// contains it.
    pub fn above(&self) -> Option<Part> {
        let (above, _) = self.name.rsplit_once('/')?;
        Some(Part { kind: self.kind, name: above.into(), link: false })
    }

    /// Returns the target of the link.
    pub fn target(&self) -> String {
        let up = "../".repeat(self.name.matches('/').count());
        format!("{up}{}", crate::view_names::directory_name(&self.name))
    }
}

/// Returns whether `ino` is the number of a part of a name.
pub(crate) fn is_part(ino: Ino) -> bool {
    (FIRST..FIRST + (1 << 40)).contains(&ino)
}

/// The parts that have numbers.
#[derive(Default)]
pub(crate) struct NameParts(Mutex<Numbered>);

#[derive(Default)]
struct Numbered {
    numbers: HashMap<Part, Ino>,
    parts: HashMap<Ino, Part>,
    next: Ino,
    /// The number of parts that remained when parts were last forgotten.
    kept: usize,
}

impl NameParts {
    /// Returns the number of a part. `leads` returns whether a part belongs to the name of a view.
    pub fn number(&self, part: Part, leads: impl Fn(&Part) -> bool) -> Ino {
        let mut all = self.0.lock();
        if let Some(number) = all.numbers.get(&part) {
            return *number;
        }
        if all.parts.len() >= (2 * all.kept).max(MANY) {
            all.numbers.retain(|part, _| leads(part));
            let numbers: HashMap<Ino, Part> =
                all.numbers.iter().map(|(part, number)| (*number, part.clone())).collect();
            (all.kept, all.parts) = (numbers.len(), numbers);
        }
        let number = FIRST + all.next;
        all.next += 1;
        all.numbers.insert(part.clone(), number);
        all.parts.insert(number, part);
        number
    }

    /// Returns the numbers of those directories that lead to a view and have a number.
    pub fn above(&self, kind: Ino, view: &str) -> Vec<Ino> {
        let all = self.0.lock();
        let parts = view.match_indices('/').map(|(at, _)| &view[..at]);
        let part = |name: &str| Part { kind, name: name.into(), link: false };
        parts.filter_map(|name| all.numbers.get(&part(name)).copied()).collect()
    }

    /// Returns the part with this number.
    pub fn part(&self, ino: Ino) -> Option<Part> {
        self.0.lock().parts.get(&ino).cloned()
    }
}

/// Returns the entries of `dir` if the views have the names `names`: the next part of each name,
/// without duplicates, with `true` for directories. `dir` is a part of a name, or empty for the
/// directory of a kind.
pub(crate) fn listed<'a>(dir: &str, names: impl Iterator<Item = &'a str>) -> Vec<(String, bool)> {
    let mut found: std::collections::BTreeMap<&str, bool> = std::collections::BTreeMap::new();
    for name in names {
        let below = match dir {
            "" => Some(name),
            dir => name.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(below) = below else { continue };
        let (first, is_dir) = below.split_once('/').map_or((below, false), |(a, _)| (a, true));
        // A view hides the directory of the same name.
        found.entry(first).and_modify(|dir| *dir &= is_dir).or_insert(is_dir);
    }
    found.into_iter().map(|(name, is_dir)| (name.into(), is_dir)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, link: bool) -> Part {
        Part { kind: 4, name: name.into(), link }
    }

    #[test]
    fn links_lead_to_the_directory_that_the_view_has() {
        assert_eq!(part("a/b", true).target(), "../a%2Fb");
        assert_eq!(part("a/b/c", true).target(), "../../a%2Fb%2Fc");
        assert_eq!(part("a/b", false).above(), Some(part("a", false)));
        assert_eq!(part("a", false).above(), None);
    }

    #[test]
    fn what_lies_in_a_directory_is_listed_once() {
        let names = ["a/b/c", "a/b/d", "a/e", "f", "g", "g/h"];
        let of = |dir| listed(dir, names.into_iter());
        let entry = |name: &str, is_dir| (name.to_string(), is_dir);
        assert_eq!(of(""), [entry("a", true), entry("f", false), entry("g", false)]);
        assert_eq!(of("a"), [entry("b", true), entry("e", false)]);
        assert_eq!(of("a/b"), [entry("c", false), entry("d", false)]);
        assert_eq!(of("a/bc"), []);
    }

    #[test]
    fn a_part_keeps_its_number_while_it_leads_somewhere() {
        let parts = NameParts::default();
        let kept = parts.number(part("kept", false), |_| true);
        for n in 0..3 * MANY {
            let number = parts.number(part(&format!("n{n}"), true), |part| part.name == "kept");
            assert!(is_part(number) && number != kept);
            assert_eq!(parts.part(number).unwrap().name, format!("n{n}"));
        }
        assert_eq!(parts.number(part("kept", false), |_| true), kept);
        assert!(parts.0.lock().parts.len() <= MANY + 1);
    }
}
