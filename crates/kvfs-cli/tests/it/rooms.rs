//! Tests of the rooms of a floor: the top-level modules of a crate use one another without cycles,
//! except for the cycles listed in `lists`.
//!
//! A module *uses* another when it names a path into it, by `use` or in place: `crate::`, `super::`
//! and `self::` are followed, and a name that the root of the crate re-exports counts for the
//! module that has it. Code under `#[cfg(test)]` is left out. The root is a module too, `lib` or
//! `main`, for what is defined in it; that it declares and re-exports modules is not a use of them.
//!
//! No path names the module of a method. For the types whose methods live in several rooms, a call
//! of a method is a use of the room that has the method, too: on `self` in an `impl` of the type,
//! on a variable or field of a name that is listed there, or by a path.

mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use lists::{CALLS, CIRCLES, CRATES, HALLS, INNER, SPREAD};

type Name = String;

/// A type and a method of it.
type Method = (Name, Name);

/// The modules, uses and calls that were read of one crate.
struct Crate {
    src: PathBuf,
    /// Modules that contain only modules, by their paths from the root.
    halls: BTreeSet<Vec<Name>>,
    /// The modules of `INNER`, by their paths from the root.
    inner: BTreeSet<Vec<Name>>,
    root: Name,
    modules: BTreeSet<Name>,
    /// Names that the root takes out of modules, and those modules.
    reexports: BTreeMap<Name, Name>,
    /// Top-level modules, and paths from the root that they name.
    named: BTreeSet<(Name, Vec<Name>)>,
    /// The types of this crate in `SPREAD`, and the names that hold one.
    spread: Vec<(&'static str, &'static [&'static str])>,
    /// The methods of these types, and the rooms that have them.
    methods: BTreeMap<Method, Name>,
    /// Rooms, and methods that they call.
    called: BTreeSet<(Name, Method)>,
    /// The position of the reader: modules from the root down.
    at: Vec<Name>,
    /// The type of `SPREAD` in whose `impl` the reader is.
    within: Option<Name>,
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
        let (reexports, named, methods, called) = Default::default();
        let spread = SPREAD.iter().filter(|spread| spread.0 == name);
        let spread = spread.map(|(_, of, names)| (*of, *names)).collect();
        let mut halls = BTreeSet::new();
        for (_, names) in HALLS.iter().filter(|(of, _)| *of == name) {
            names.iter().for_each(|hall| note_halls(&src, vec![hall.to_string()], &mut halls));
        }
        let inner = INNER.iter().filter(|(of, ..)| *of == name).flat_map(|(_, room, modules)| {
            modules.iter().map(|module| vec![room.to_string(), module.to_string()])
        });
        let inner = inner.collect();
        let (root, at, within) = (root.into(), Vec::new(), None);
        let mut this = Crate {
            src,
            halls,
            inner,
            root,
            modules,
            reexports,
            named,
            spread,
            methods,
            called,
            at,
            within,
        };
        items.iter().for_each(|item| this.visit_item(item));
        this
    }

    /// The path from the root for a `path` at the reader's position, or `None` if it leaves the
    /// crate.
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

    /// The room in which the reader stands.
    fn here(&self) -> Name {
        self.room(&self.at).unwrap_or_else(|| self.root.clone())
    }

    fn note(&mut self, path: &[Name]) {
        if let [.., of, method] = path {
            let of = if of == "Self" { self.within.clone() } else { Some(of.clone()) };
            of.into_iter().for_each(|of| self.note_method(of, method.clone()));
        }
        if let Some(path) = self.resolve(path) {
            self.named.insert((self.here(), path));
        }
    }

    fn note_method(&mut self, of: Name, method: Name) {
        if self.spread.iter().any(|(spread, _)| *spread == of) {
            self.called.insert((self.here(), (of, method)));
        }
    }

    /// Notes the call of a method on a variable or a field of this name.
    fn note_call(&mut self, on: &str, is_field: bool, method: Name) {
        if on == "self" && !is_field {
            let within = self.within.clone();
            within.into_iter().for_each(|of| self.note_method(of, method.clone()));
        } else if let Some((of, _)) = self.spread.iter().find(|(_, names)| names.contains(&on)) {
            self.note_method(of.to_string(), method);
        }
    }

    /// Calls of methods in what is given to a macro.
    fn note_calls_in(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_dot = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == '.');
        for (at, four) in tokens.windows(4).enumerate() {
            if let [TokenTree::Ident(on), dot, TokenTree::Ident(method), TokenTree::Group(_)] = four
                && is_dot(dot)
            {
                let is_field = at > 0 && is_dot(&tokens[at - 1]);
                self.note_call(&on.to_string(), is_field, method.to_string());
            }
        }
    }

    /// Paths, and calls of methods, in what is given to a macro.
    fn note_tokens(&mut self, tokens: TokenStream) {
        self.note_calls_in(tokens.clone());
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

    /// The room to which a path from the root belongs, or `None` for the root itself.
    fn room(&self, path: &[Name]) -> Option<Name> {
        let mut beginnings = (1..=path.len()).map(|length| &path[..length]);
        if let Some(inner) = beginnings.find(|beginning| self.inner.contains(*beginning)) {
            return Some(inner.join("::"));
        }
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

    /// Rooms that call methods of other rooms, each with one of these methods.
    fn calls(&self) -> BTreeMap<(Name, Name), Method> {
        let calls = self.called.iter();
        let calls = calls.filter_map(|(from, of)| Some((from, self.methods.get(of)?, of)));
        let across = calls.filter(|(from, to, _)| from != to);
        across.map(|(from, to, method)| ((from.clone(), to.clone()), method.clone())).collect()
    }
}

/// The sets of modules in which each module depends on all others.
fn circles(uses: &BTreeMap<Name, BTreeSet<Name>>) -> BTreeSet<Vec<Name>> {
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

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let of = match &*item.self_ty {
            syn::Type::Path(of) => of.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let of = of.filter(|of| self.spread.iter().any(|(spread, _)| *spread == *of));
        if let (Some(of), None) = (&of, &item.trait_) {
            for item in &item.items {
                if let syn::ImplItem::Fn(method) = item
                    && !is_for_tests(&method.attrs)
                {
                    let method = (of.clone(), method.sig.ident.to_string());
                    self.methods.insert(method, self.here());
                }
            }
        }
        let outside = std::mem::replace(&mut self.within, of);
        visit::visit_item_impl(self, item);
        self.within = outside;
    }

    fn visit_impl_item_fn(&mut self, method: &'a syn::ImplItemFn) {
        if !is_for_tests(&method.attrs) {
            visit::visit_impl_item_fn(self, method);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let on = match &*call.receiver {
            syn::Expr::Path(path) => path.path.get_ident().map(|name| (name.to_string(), false)),
            syn::Expr::Field(syn::ExprField { member: syn::Member::Named(name), .. }) => {
                Some((name.to_string(), true))
            }
            _ => None,
        };
        if let Some((on, is_field)) = on {
            self.note_call(&on, is_field, call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
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
                let room = self.room(&path).unwrap_or_else(|| self.root.clone());
                self.reexports.insert(name.to_string(), room);
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
        let circles = circles(&uses);
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

/// The top-level module in which a room is.
fn hall(room: &str) -> Name {
    room.split("::").next().unwrap_or(room).to_string()
}

#[test]
fn the_halls_of_a_floor_form_no_circle() {
    let mut wrong = Vec::new();
    for (name, listed) in HALLS {
        let read = Crate::read(name);
        for hall in *listed {
            if !read.halls.contains(&[hall.to_string()][..]) {
                wrong.push(format!("{name}: {hall} has more than modules, so it is a room"));
            }
        }
        for module in &read.inner {
            let file = module.iter().fold(read.src.clone(), |directory, name| directory.join(name));
            if !file.with_extension("rs").exists() && !file.join("mod.rs").exists() {
                wrong.push(format!("{name}: listed, but there is no such module: {module:?}"));
            }
        }
        let (uses, calls) = (read.uses(), read.calls());
        let mut halls: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        let used = uses.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        for (from, to) in used.chain(calls.keys().map(|call| (&call.0, &call.1))) {
            if hall(from) != hall(to) {
                halls.entry(hall(from)).or_default().insert(hall(to));
            }
        }
        for circle in circles(&halls) {
            wrong.push(format!("{name}: halls and rooms form a circle: {circle:?}"));
            for (from, to) in halls.iter().filter(|(from, _)| circle.contains(from)) {
                let to: Vec<_> = to.iter().filter(|to| circle.contains(to)).collect();
                wrong.push(format!("    {from} uses {to:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_of_methods_close_no_circle() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let read = Crate::read(name);
        let (uses, calls) = (read.uses(), read.calls());
        let listed: Vec<(&str, &str)> =
            CALLS.iter().filter(|call| call.0 == *name).map(|call| (call.1, call.2)).collect();
        // The cycles of paths and calls, without the excluded calls.
        let circles_but_for = |left_out: &[(&str, &str)]| {
            let mut uses = uses.clone();
            for (from, to) in calls.keys() {
                if !left_out.iter().any(|(a, b)| a == from && b == to) {
                    uses.entry(from.clone()).or_default().insert(to.clone());
                }
            }
            circles(&uses)
        };
        for circle in circles_but_for(&listed) {
            wrong.push(format!("{name}: with calls of methods, a circle: {circle:?}"));
            for ((from, to), (of, method)) in &calls {
                if circle.contains(from) && circle.contains(to) {
                    wrong.push(format!("    {from} calls {of}::{method}, which {to} has"));
                }
            }
        }
        for one in &listed {
            let others: Vec<(&str, &str)> =
                listed.iter().filter(|other| *other != one).copied().collect();
            if circles_but_for(&others).is_empty() {
                let (from, to) = one;
                wrong.push(format!("{name}: listed, but {from} may call {to} without a circle"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_call_is_seen_on_self_on_a_known_name_by_a_path_and_in_a_macro() {
    let mut read = Crate::read("kvfs");
    let method = |name: &str| ("Fs".to_string(), name.to_string());
    assert_eq!(read.methods.get(&method("apply")), Some(&"fs".to_string()));
    assert!(read.called.contains(&("commit::dirty".to_string(), method("apply"))), "on `self`");
    assert!(
        read.called.contains(&("commit::sync".to_string(), method("commit_older_than"))),
        "in a closure"
    );
    read.called.clear();
    read.at = vec!["fs".into(), "statfs".into()];
    let text = "impl Fs { fn f(&self, at: At) {
        self.apply(); at.fs.enter(); Fs::open(); Self::build(); vec![self.tick(), at.fs.now()];
        self.core.lock(); at.unlink();
    } }";
    let item: Item = syn::parse_str(text).expect("it is an item");
    read.visit_item(&item);
    let seen: Vec<&str> = read.called.iter().map(|(_, (_, method))| method.as_str()).collect();
    assert_eq!(seen, ["apply", "build", "enter", "now", "open", "tick"]);
}
