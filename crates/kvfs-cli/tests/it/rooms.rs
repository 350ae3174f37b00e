//! The rooms of a floor: the top-level modules of a crate use one another without a circle, but for
//! the circles listed here.
//!
//! A module *uses* another when it names a path into it, by `use` or in place: `crate::`, `super::`
//! and `self::` are followed, and a name that the root of the crate re-exports counts for the
//! module that has it. Calls of methods are not seen, since no path names their module. Code under
//! `#[cfg(test)]` is left out. The root is a module too, `lib` or `main`, for what is defined in
//! it; that it declares and re-exports modules is not a use of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

const CRATES: &[&str] = &[
    "env",
    "kvdb-lua",
    "objects",
    "zones",
    "vt-tree",
    "kvdb",
    "kvfs",
    "kvfs-fuse",
    "kvdb-server",
    "kvdb-wire",
    "objects-s3",
    "places",
    "kvfs-cli",
];

/// Modules that have nothing but modules. The rooms of a crate with such halls are the modules in
/// them, and not the halls.
const HALLS: &[(&str, &[&str])] = &[("kvfs-cli", &["commands", "support"])];

/// A crate, modules of it each of which leads to all others of them, and why they may.
const CIRCLES: &[(&str, &[&str], &str)] = &[];

type Name = String;

/// The modules and uses that were read of one crate.
struct Crate {
    src: PathBuf,
    /// Modules that have nothing but modules, by their paths from the root.
    halls: BTreeSet<Vec<Name>>,
    root: Name,
    modules: BTreeSet<Name>,
    /// Names that the root takes out of modules, and those modules.
    reexports: BTreeMap<Name, Name>,
    /// Top-level modules, and paths from the root that they name.
    named: BTreeSet<(Name, Vec<Name>)>,
    /// The position of the reader: modules from the root down.
    at: Vec<Name>,
}

fn parse(file: &Path) -> Vec<Item> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display())).items
}

/// `true` for what is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        let words = |list: &syn::MetaList| {
            list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|w| w == "test")
        };
        a.path().is_ident("cfg")
            && a.meta
                .require_list()
                .is_ok_and(|list| words(list) && !list.tokens.to_string().contains("not"))
    })
}

/// Calls `each` with every path of a tree of uses, and with the name that it has here; `*` for a
/// glob.
fn leaves(tree: &UseTree, path: &mut Vec<Name>, each: &mut dyn FnMut(&[Name], &str)) {
    let depth = path.len();
    match tree {
        UseTree::Path(p) => {
            path.push(p.ident.to_string());
            leaves(&p.tree, path, each);
        }
        UseTree::Name(n) if n.ident == "self" => {
            each(path, &path.last().cloned().unwrap_or_default())
        }
        UseTree::Name(n) => {
            path.push(n.ident.to_string());
            each(path, &n.ident.to_string());
        }
        UseTree::Rename(r) => {
            path.push(r.ident.to_string());
            each(path, &r.rename.to_string());
        }
        UseTree::Glob(_) => each(path, "*"),
        UseTree::Group(g) => g.items.iter().for_each(|tree| leaves(tree, path, each)),
    }
    path.truncate(depth);
}

/// Notes a module and those in it that have nothing but modules.
fn note_halls(src: &Path, at: Vec<Name>, halls: &mut BTreeSet<Vec<Name>>) {
    let file = at.iter().fold(src.to_owned(), |directory, name| directory.join(name));
    let items = parse(&file.with_extension("rs"));
    if items.iter().all(|item| matches!(item, Item::Mod(module) if module.content.is_none())) {
        for item in &items {
            if let Item::Mod(module) = item {
                note_halls(src, [&at[..], &[module.ident.to_string()]].concat(), halls);
            }
        }
        halls.insert(at);
    }
}

impl Crate {
    fn read(name: &str) -> Crate {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let root = if src.join("lib.rs").exists() { "lib" } else { "main" };
        let items = parse(&src.join(root).with_extension("rs"));
        let modules = items
            .iter()
            .filter_map(|i| if let Item::Mod(m) = i { Some(m.ident.to_string()) } else { None })
            .collect();
        let (reexports, named) = Default::default();
        let mut halls = BTreeSet::new();
        for (_, names) in HALLS.iter().filter(|(of, _)| *of == name) {
            names.iter().for_each(|hall| note_halls(&src, vec![hall.to_string()], &mut halls));
        }
        let (root, at) = (root.into(), Vec::new());
        let mut this = Crate { src, halls, root, modules, reexports, named, at };
        items.iter().for_each(|item| this.visit_item(item));
        this
    }

    /// The path from the root that `path` is where the reader stands; `None` where it leads out of
    /// the crate.
    fn resolve(&self, path: &[Name]) -> Option<Vec<Name>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&self.at[..], rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|s| *s == "super").count();
                Some([&self.at[..self.at.len().checked_sub(ups)?], &path[ups..]].concat())
            }
            _ if self.at.is_empty() && self.modules.contains(first) => Some(path.to_vec()),
            _ => None,
        }
    }

    fn note(&mut self, path: &[Name]) {
        if let Some(path) = self.resolve(path) {
            let from = self.room(&self.at).unwrap_or_else(|| self.root.clone());
            self.named.insert((from, path));
        }
    }

    /// Paths in what is given to a macro.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<Name> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(name) if path.last().is_none_or(|last| last == "::") => {
                    path.push(name.to_string())
                }
                TokenTree::Punct(p) if p.as_char() == ':' => {
                    match path.last().map(String::as_str) {
                        Some(":") => *path.last_mut().expect("it has a last") = "::".into(),
                        Some(_) => path.push(":".into()),
                        None => {}
                    }
                }
                other => {
                    self.note_path_of(&mut path);
                    match other {
                        TokenTree::Group(group) => self.note_tokens(group.stream()),
                        TokenTree::Ident(name) => path.push(name.to_string()),
                        TokenTree::Punct(_) | TokenTree::Literal(_) => {}
                    }
                }
            }
        }
        self.note_path_of(&mut path);
    }

    fn note_path_of(&mut self, tokens: &mut Vec<Name>) {
        tokens.retain(|t| !t.starts_with(':'));
        if tokens.len() > 1 {
            self.note(tokens);
        }
        tokens.clear();
    }

    /// The room in which a path from the root leads; `None` for the root itself.
    fn room(&self, path: &[Name]) -> Option<Name> {
        let depth =
            (1..path.len()).take_while(|depth| self.halls.contains(&path[..*depth])).count();
        path.get(..=depth).map(|room| room.join("::"))
    }

    /// The room that has what a path from the root names.
    fn owner(&self, path: &[Name]) -> Name {
        let Some(first) = path.first() else { return self.root.clone() };
        match self.modules.contains(first) {
            true => self.room(path).unwrap_or_else(|| self.root.clone()),
            false => self.reexports.get(first).unwrap_or(&self.root).clone(),
        }
    }

    fn uses(&self) -> BTreeMap<Name, BTreeSet<Name>> {
        let mut uses: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        for (from, path) in &self.named {
            let to = self.owner(path);
            if *from != to {
                uses.entry(from.clone()).or_default().insert(to);
            }
        }
        uses
    }

    /// The sets of modules each of which leads to all others of its set.
    fn circles(&self) -> BTreeSet<Vec<Name>> {
        let uses = self.uses();
        let reached = |from: &Name| {
            let mut seen: BTreeSet<&Name> = BTreeSet::new();
            let mut left: Vec<&Name> = uses.get(from).into_iter().flatten().collect();
            while let Some(module) = left.pop() {
                if seen.insert(module) {
                    left.extend(uses.get(module).into_iter().flatten());
                }
            }
            seen
        };
        let all: BTreeMap<&Name, BTreeSet<&Name>> =
            uses.keys().map(|from| (from, reached(from))).collect();
        let leads = |a: &Name, b: &Name| all.get(a).is_some_and(|reached| reached.contains(b));
        all.keys()
            .filter(|a| leads(a, a))
            .map(|a| {
                let same = all.keys().filter(|b| leads(a, b) && leads(b, a));
                same.map(|name| (**name).clone()).collect()
            })
            .collect()
    }
}

impl<'a> Visit<'a> for Crate {
    fn visit_item(&mut self, item: &'a Item) {
        let (Item::Fn(syn::ItemFn { attrs, .. })
        | Item::Impl(syn::ItemImpl { attrs, .. })
        | Item::Mod(syn::ItemMod { attrs, .. })
        | Item::Use(syn::ItemUse { attrs, .. })) = item
        else {
            return visit::visit_item(self, item);
        };
        if !is_for_tests(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        self.at.push(module.ident.to_string());
        match &module.content {
            Some((_, items)) => items.iter().for_each(|item| self.visit_item(item)),
            None => {
                let directory =
                    self.at.iter().fold(self.src.clone(), |directory, name| directory.join(name));
                let file = Some(directory.with_extension("rs")).filter(|f| f.exists());
                let items = parse(&file.unwrap_or_else(|| directory.join("mod.rs")));
                // A file is read as a module in place is.
                items.iter().for_each(|item| self.visit_item(item));
            }
        }
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let at_root = self.at.is_empty();
        let reexport = at_root && !matches!(item.vis, Visibility::Inherited);
        leaves(&item.tree, &mut Vec::new(), &mut |path, name| {
            if !reexport {
                return self.note(path);
            }
            if let Some(path) = self.resolve(path).filter(|path| self.modules.contains(&path[0])) {
                assert_ne!(
                    name, "*",
                    "the root re-exports names one by one, so that it is seen where they are"
                );
                self.reexports.insert(name.to_string(), path[0].clone());
            }
        });
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<Name> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if names.len() > 1 {
            self.note(&names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.note_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

#[test]
fn what_commands_share_uses_no_command() {
    let mut wrong = Vec::new();
    for (from, to) in Crate::read("kvfs-cli").uses() {
        let commands = to.iter().filter(|to| to.starts_with("commands::"));
        wrong.extend(
            commands
                .filter(|_| from.starts_with("support::"))
                .map(|to| format!("{from} uses {to}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rooms_of_a_floor_form_no_circle() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let read = Crate::read(name);
        let uses = read.uses();
        let circles = read.circles();
        println!(
            "{name}: {} modules, {} circles of {} modules",
            read.modules.len(),
            circles.len(),
            circles.iter().flatten().count()
        );
        let listed: BTreeSet<Vec<&str>> =
            CIRCLES.iter().filter(|c| c.0 == *name).map(|c| c.1.to_vec()).collect();
        let found: BTreeSet<Vec<&str>> =
            circles.iter().map(|c| c.iter().map(|m| m.as_str()).collect()).collect();
        for circle in found.difference(&listed) {
            wrong.push(format!("{name}: a circle that is not listed: {circle:?}"));
            for (from, to) in uses.iter().filter(|(from, _)| circle.contains(&from.as_str())) {
                let to: Vec<_> = to.iter().filter(|to| circle.contains(&to.as_str())).collect();
                wrong.push(format!("    {from} uses {to:?}"));
            }
        }
        wrong.extend(
            listed
                .difference(&found)
                .map(|circle| format!("{name}: listed, but there is no such circle: {circle:?}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
