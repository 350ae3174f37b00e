//! The fuzz crate, a workspace of its own that `make lint-fuzz` alone builds, takes files of this
//! command in as modules. It has every module that these files use, and each of them is one file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, Item, ItemMod, ItemUse, Lit, Meta, UseTree};

/// What a file names right below the root of its crate, tests left out.
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

fn first_names(tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => _ = names.insert(path.ident.to_string()),
        UseTree::Name(name) => _ = names.insert(name.ident.to_string()),
        UseTree::Rename(name) => _ = names.insert(name.ident.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| first_names(tree, names)),
        UseTree::Glob(_) => {}
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
            if let [.., root, a, b, name] = &before[..]
                && (root.as_str(), a.as_str(), b.as_str()) == ("crate", ":", ":")
            {
                self.names.insert(name.clone());
            }
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
            first_names(&path.tree, &mut self.names);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let mut segments = path.segments.iter();
        if segments.next().is_some_and(|first| first.ident == "crate")
            && let Some(name) = segments.next()
        {
            self.names.insert(name.ident.to_string());
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

#[test]
fn the_fuzz_crate_takes_in_every_module_that_its_files_use() {
    let src: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/src");
    let root = parse(&src.join("lib.rs"));
    let mut there = BTreeSet::new();
    let mut files = Vec::new();
    for item in &root {
        match item {
            Item::Mod(item) => {
                there.insert(item.ident.to_string());
                files.extend(path_of(item).map(|path| src.join(path)));
            }
            Item::Fn(item) => _ = there.insert(item.sig.ident.to_string()),
            _ => {}
        }
    }
    assert!(files.len() > 10, "only {} files were found", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let mut named = Named::default();
        parse(&file).iter().for_each(|item| named.visit_item(item));
        let missing = named.names.difference(&there);
        wrong.extend(missing.map(|name| format!("{} uses {name}", file.display())));
        let children = named.children.iter();
        wrong.extend(children.map(|name| format!("{} has a file {name}", file.display())));
    }
    assert!(wrong.is_empty(), "what fuzz/src/lib.rs lacks:\n{}", wrong.join("\n"));
}
