//! The order in which a defragmentation lays the pages of files: that of their names, directory by
//! directory, in which programs read a tree. A file keeps its inode number when it is renamed,
//! moved or linked, and a file that is saved under another name first has a new one, so the keys of
//! pages follow the order in which files were created and not the order of their names.
//!
//! A tree is walked depth first: a subdirectory comes where its name is among those of its
//! directory, as in the walks of `grep -r` and `tar` and in the order of paths of `git`. A file
//! with several names is placed by the first one. The trees of clones follow that of the main
//! branch; files that they share with it lie where it has them.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use kvdb::{DictionaryId, Kvdb, ValueOrder, View, VisitRange};

use crate::attr::{FileKind, Ino, ROOT};
use crate::layout::{self, Layout};

/// The number of trees that are walked. The pages of other clones lie where those that they share
/// with these do, or stay where they are.
const TREES: usize = 64;
/// The number of directories of a tree that are walked. Each takes up to 20 bytes of memory, so
/// that a directory with several names is entered once.
const DIRECTORIES: usize = 2 << 20;

/// Sets the order in which a defragmentation of `db` lays the pages of files: by directory and
/// name. [`Fs::open`](crate::Fs::open) does the same; call it for a store whose file system is not
/// opened.
pub fn lay_by_name(db: &Kvdb) {
    db.set_value_order(Arc::new(NameOrder));
}

struct NameOrder;

/// Returns the dictionaries of the file systems that a view sees: those of the main branch first,
/// then those of clones by number, in which order the store lets them follow.
fn trees(view: &View) -> Vec<Layout> {
    let branches: BTreeSet<String> =
        view.dictionaries().into_iter().map(|info| info.branch).collect();
    let tree = |branch: String| {
        // The branch of the store itself has no files.
        let layout = Layout::of_names(|name| view.dictionary_in(&branch, name))?;
        Some((!branch.is_empty(), layout.dmap, layout))
    };
    let mut trees: Vec<_> = branches.into_iter().filter_map(tree).collect();
    trees.sort_unstable_by_key(|(clone, dmap, _)| (*clone, *dmap));
    trees.into_iter().map(|(.., layout)| layout).collect()
}

impl ValueOrder for NameOrder {
    fn dictionaries(&self, view: &View) -> Vec<DictionaryId> {
        trees(view).into_iter().map(|layout| layout.dmap).collect()
    }

    fn visit(&self, view: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        for layout in trees(view).into_iter().take(TREES) {
            if walk(view, layout, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// Visits the pages of the files of a tree. In a damaged store, names that cannot be read or mean
/// nothing are passed over, and a directory with several names is entered once.
fn walk(view: &View, layout: Layout, visit: &mut VisitRange<'_>) -> kvdb::Result<ControlFlow<()>> {
    let mut entered: HashSet<Ino> = HashSet::new();
    // The directories on the way, each with the key at which the rest of its names begins.
    let mut way = vec![(ROOT, layout::name_key(ROOT, b""))];
    while let Some((dir, rest)) = way.pop() {
        // A tree may have many directories and no files, so this asks whether to continue.
        if visit(layout.dmap, b"", b"")?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let mut names = view.cursor(layout.nmap, &rest, &layout::names_end(dir))?;
        while let Ok(Some(tuple)) = names.next() {
            let Ok(value) = tuple.value() else { continue };
            let Ok((ino, kind)) = layout::decode_name(dir, &value) else { continue };
            match kind {
                FileKind::File => {
                    let (start, end) = (layout::page_key(ino, 0), layout::pages_end(ino));
                    if visit(layout.dmap, &start, &end)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                FileKind::Dir if entered.len() < DIRECTORIES && entered.insert(ino) => {
                    way.push((dir, [&tuple.key[..], &[0]].concat()));
                    way.push((ino, layout::name_key(ino, b"")));
                    break;
                }
                _ => {}
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use env::Simulated;

    use super::*;
    use crate::{Caller, Fs, FsOptions};

    /// A store that is closed waits for the walk.
    #[test]
    fn a_tree_without_files_is_left_when_it_is_told_to_end() {
        let db = Kvdb::in_memory();
        let env = Arc::new(Simulated::new(1));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a fresh store");
        for n in 0..10 {
            let caller = Caller::default();
            fs.mkdir(ROOT, format!("d{n}").as_bytes(), 0o755, caller).expect("there is room");
        }
        fs.shutdown().expect("synced");
        let asked_until = |most: usize| {
            let mut asked = 0;
            let done = NameOrder.visit(&db.view(), &mut |_, start, end| {
                assert_eq!(start, end, "there are no pages");
                asked += 1;
                Ok(if asked == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            done.expect("it is whole");
            asked
        };
        assert!(asked_until(usize::MAX) > 10, "in each directory");
        assert_eq!(asked_until(3), 3);
    }
}
