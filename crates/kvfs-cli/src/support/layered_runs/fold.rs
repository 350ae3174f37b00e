//! The fold: makes what an upper layer changes in the transaction that is its lower layer.
//!
//! It happens in the transaction alone, so that a fold that fails or is killed leaves nothing as
//! soon as the transaction is aborted. Files that were copied up are written into the files that
//! they come from, by the kernel; everything else is sent to the store's daemon in bulk, as
//! `kvfs import` does. No step depends on the kernel's knowledge of an earlier one: files that the
//! daemon makes or removes are not read here afterwards.

use std::io;
use std::os::fd::AsFd;

use indicatif::ProgressBar;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::support::archives::import_items::Item;
use crate::support::archives::import_mounted;
use crate::support::archives::sources::Source;
use crate::support::layered_runs::held::Held;
use crate::support::layered_runs::plan::{Copied, Name, Plan, access};
use crate::support::layered_runs::{in_place, items, origin};
use crate::support::layers::layer::{Attributes, split};
use crate::support::layers::reader::Layers;
use crate::support::machine::beneath;
use crate::support::mounts::mounted::Mounted;
use crate::support::mounts::place::View;
use crate::support::terminal::output::{Outcome, Output};

/// Makes the changes of an upper layer in transaction `id`, whose view is the lower layer. `start`
/// has the attributes that the root of the upper layer had at first. Returns the number of extended
/// attributes that a store does not take.
pub fn fold(
    mounted: &mut Mounted,
    id: u64,
    layers: &Layers,
    start: &Attributes,
    output: &Output,
) -> Outcome<u64> {
    let mut plan = Plan::of(layers, start)?;
    let mut held = Held::default();
    let mut skipped = write_copied(layers, &mut plan, &mut held)?;
    for (path, is_directory) in &plan.removed {
        match is_directory {
            true => remove_tree(mounted, id, path)?,
            false => remove(mounted, id, layers, path)?,
        }
    }
    let Plan { made, links, mut directories, .. } = plan;
    if !made.is_empty() || !links.is_empty() {
        skipped += import(mounted, id, |give| {
            let mut source = Source::new(output, give);
            let bar = ProgressBar::hidden();
            made.iter().try_for_each(|path| items::send(&mut source, layers, path, &bar))?;
            let mut links = links.into_iter();
            links.try_for_each(|(path, to)| source.give(Item::Link { path, to }))
        })?;
    }
    if let Some(name) = held.name() {
        remove_tree(mounted, id, name)?;
        // The root has its time back afterwards.
        directories.insert(Vec::new());
    }
    if !directories.is_empty() {
        for path in &directories {
            remove_xattrs(layers, path)?;
        }
        skipped += import(mounted, id, |give| {
            for path in &directories {
                if let Some(item) = directory(layers, path, start)? {
                    give(item)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(skipped)
}

/// Writes files that were copied up into those that they come from, and plans their new names.
/// Returns the number of extended attributes that were left out.
fn write_copied(layers: &Layers, plan: &mut Plan, held: &mut Held) -> Outcome<u64> {
    let mut skipped = 0;
    for Copied { file, names } in std::mem::take(&mut plan.copied) {
        let Some(first) = names.first() else { continue };
        let cannot = |e: io::Error| layers.upper.failure("cannot read", &first.path, &e);
        if let Some(origin) = origin::open(layers, &first.path, &file).map_err(cannot)? {
            skipped += in_place::write(layers, &first.path, &file, &origin.file)?;
            let identity = (origin.device, origin.inode);
            let mut other_name = None;
            for name in names {
                if name.below.is_some_and(|below| (below.device, below.inode) == identity) {
                    continue;
                }
                let to: Vec<u8> = match &other_name {
                    Some(path) => Vec::clone(path),
                    None => held.hold(&layers.lower, &origin.file)?,
                };
                other_name = Some(to.clone());
                plan.link(name.path, to);
            }
            continue;
        }
        // It is not known which file it is. If one is there, it is taken for it.
        let same = names.iter().position(|name| !name.differs);
        let at = same.or_else(|| names.iter().position(|name| is_taken_for(name, &file)));
        let mut names = names;
        let source = names.swap_remove(at.unwrap_or(0)).path;
        if at.is_some() {
            let cannot = |e: io::Error| layers.lower.failure("cannot open", &source, &e);
            let below = beneath::open(layers.lower.as_fd(), &source, OFlags::PATH, Mode::empty());
            let below = below.map_err(|e| cannot(e.into()))?;
            skipped += in_place::write(layers, &source, &file, &below)?;
        } else {
            plan.make(source.clone());
        }
        names.into_iter().for_each(|name| plan.link(name.path, source.clone()));
    }
    Ok(skipped)
}

/// Returns whether a copy is taken for the lower file at one of its names, whose content differs.
/// One with other names is not: the layer does not keep them together, and the copy may have been
/// moved there in place of one of them. Nothing but a regular file can have got another content.
fn is_taken_for(name: &Name, copy: &Attributes) -> bool {
    let is_alone = |below: Attributes| below.kind == copy.kind && !below.is_linked;
    copy.kind == FileType::RegularFile && name.below.is_some_and(is_alone)
}

/// Removes a file of the lower layer. The directory has the mode that it had before the program,
/// which may have let itself remove names there: then the store's daemon removes this one.
fn remove(mounted: &mut Mounted, id: u64, layers: &Layers, path: &[u8]) -> Outcome {
    let (directory, name) = split(path);
    let removed = layers.lower.directory(directory).and_then(|directory| {
        rustix::fs::unlinkat(&directory, name, AtFlags::empty()).map_err(io::Error::from)
    });
    match removed {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => remove_tree(mounted, id, path),
        removed => removed.map_err(|e| layers.lower.failure("cannot remove", path, &e)),
    }
}

/// Removes a file of the transaction, or a directory with everything in it.
fn remove_tree(mounted: &mut Mounted, id: u64, path: &[u8]) -> Outcome {
    let (path, number) = ([b"/", path].concat(), id.to_string());
    mounted.call(&[b"RMTREE", &path, b"TXN", number.as_bytes()]).map(drop)
}

/// Makes items in the root of the transaction. Returns the number of attributes that were left out.
fn import(
    mounted: &mut Mounted,
    id: u64,
    read: impl FnOnce(&mut dyn FnMut(Item) -> Outcome) -> Outcome,
) -> Outcome<u64> {
    let view = mounted.naming(&View::Transaction(id));
    Ok(import_mounted::import(mounted, b"/", view.as_ref(), read)?.skipped)
}

/// Removes the extended attributes of a directory that the upper layer does not have.
fn remove_xattrs(layers: &Layers, path: &[u8]) -> Outcome {
    let removed = layers
        .lower
        .directory(path)
        .and_then(|directory| in_place::xattrs(layers, path, &directory, false));
    removed.map(drop).map_err(|e| layers.lower.failure("cannot change the attributes of", path, &e))
}

/// Returns the item that sets the attributes of a directory of the transaction to those of the
/// upper layer.
fn directory(layers: &Layers, path: &[u8], start: &Attributes) -> Outcome<Option<Item>> {
    let cannot = |e: io::Error| layers.upper.failure("cannot read", path, &e);
    let found = layers.upper.attributes(path).map_err(cannot)?;
    let Some(file) = found.filter(Attributes::is_directory) else { return Ok(None) };
    let mut meta = items::meta(layers, path, &file).map_err(cannot)?;
    if path.is_empty() && access(&file) == access(start) {
        // The root of the layer may not have been given the owner of the store's.
        let below = layers.lower.attributes(path).map_err(cannot)?;
        if let Some(below) = below {
            (meta.uid, meta.gid) = (below.uid, below.gid);
            meta.perm = (below.mode & 0o7777) as u16;
        }
    }
    Ok(Some(Item::Directory { path: path.to_vec(), meta }))
}
