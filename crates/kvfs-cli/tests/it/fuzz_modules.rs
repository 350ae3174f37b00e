//! The fuzz crate is a workspace of its own that only `make lint-fuzz` builds, and it includes
//! files of this command as modules. The test checks that it has every module that these files use,
//! and that each of them is one file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, Item, ItemMod, ItemUse, Lit, Meta, UseTree};

/// The modules that a file names by their paths from the root of its crate, without its tests: a
/// module is the path up to the last name but one, or up to the last where that is a module.
#[derive(Default)]
struct Named {
    names: BTreeSet<String>,
    /// Modules that lie in files of their own.
    children: BTreeSet<String>,
}

fn is_for_tests(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|a| {
        a.path().is_ident("cfg")
            && a.meta.require_list().is_ok_and(|list| list.tokens.to_string().starts_with("test"))
    })
}

fn paths_of(tree: &UseTree, before: &str, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => paths_of(&path.tree, &format!("{before}{}::", path.ident), names),
        UseTree::Name(name) if name.ident == "self" => {
            _ = names.insert(before.trim_end_matches(':').into())
        }
        UseTree::Name(name) => _ = names.insert(format!("{before}{}", name.ident)),
        UseTree::Rename(name) => _ = names.insert(format!("{before}{}", name.ident)),
        UseTree::Group(group) => group.items.iter().for_each(|tree| paths_of(tree, before, names)),
        UseTree::Glob(_) => _ = names.insert(before.trim_end_matches(':').into()),
    }
}

impl Named {
    /// Paths in what is given to a macro.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut before = Vec::new();
        for token in tokens {
            if let TokenTree::Group(group) = &token {
                self.note_tokens(group.stream());
            }
            before.push(token.to_string());
        }
        // Words and colons from each `crate` on are a path.
        for (at, _) in before.iter().enumerate().filter(|(_, word)| *word == "crate") {
            let is_part = |word: &&String| {
                *word == ":" || word.chars().all(|c| c.is_alphanumeric() || c == '_')
            };
            let path: String = before[at + 1..].iter().take_while(is_part).map(|w| &**w).collect();
            self.names.insert(path.trim_matches(':').into());
        }
    }
}

impl<'a> Visit<'a> for Named {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if item.content.is_none() {
            self.children.insert(item.ident.to_string());
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if let UseTree::Path(path) = &item.tree
            && path.ident == "crate"
        {
            paths_of(&path.tree, "", &mut self.names);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let [first, rest @ ..] = &segments[..]
            && first == "crate"
        {
            self.names.insert(rest.join("::"));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.note_tokens(call.tokens.clone());
    }
}

fn parse(file: &Path) -> Vec<Item> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display())).items
}

/// The file that a module is taken from, if an attribute says so.
fn path_of(item: &ItemMod) -> Option<String> {
    item.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(value) => match &value.lit {
                Lit::Str(path) => Some(path.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// Notes the modules and functions of the fuzz crate by their paths, and the files of modules.
fn note(items: &[Item], before: &str, there: &mut BTreeSet<String>, files: &mut Vec<String>) {
    for item in items {
        match item {
            Item::Mod(item) => {
                let name = format!("{before}{}", item.ident);
                match &item.content {
                    Some((_, items)) => note(items, &format!("{name}::"), there, files),
                    None => files.extend(path_of(item)),
                }
                there.insert(name);
            }
            Item::Fn(item) => _ = there.insert(format!("{before}{}", item.sig.ident)),
            _ => {}
        }
    }
}

#[test]
fn the_fuzz_crate_takes_in_every_module_that_its_files_use() {
    let src: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/src");
    let root = parse(&src.join("lib.rs"));
    let (mut there, mut files) = (BTreeSet::new(), Vec::new());
    note(&root, "", &mut there, &mut files);
    assert!(files.len() > 10, "only {} files were found", files.len());
    let mut wrong = Vec::new();
    for file in files.into_iter().map(|path| src.join(path)) {
        let mut named = Named::default();
        parse(&file).iter().for_each(|item| named.visit_item(item));
        // A path names something in a module that is a file, or the module.
        let halls = ["", "commands", "support"];
        let is_there = |name: &&String| {
            let mut path: &str = name;
            loop {
                if there.contains(path) {
                    let is_room = path.starts_with("support::") && path.split("::").count() == 2;
                    return !halls.contains(&path) && !is_room;
                }
                let Some((module, _)) = path.rsplit_once("::") else { return false };
                path = module;
            }
        };
        let missing = named.names.iter().filter(|name| !is_there(name));
        wrong.extend(missing.map(|name| format!("{} uses {name}", file.display())));
        let children = named.children.iter();
        wrong.extend(children.map(|name| format!("{} has a file {name}", file.display())));
    }
    assert!(wrong.is_empty(), "what fuzz/src/lib.rs lacks:\n{}", wrong.join("\n"));
}
