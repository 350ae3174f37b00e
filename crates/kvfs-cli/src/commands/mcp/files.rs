//! Files as tools: read anywhere, written in transactions. No symbolic link is followed, so that
//! nothing outside of the store is reachable.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::arguments::{Arguments, Told, cut, shown};
use super::session::Session;
use crate::support::machine::beneath;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns the path in the store, with single slashes between names.
fn path(given: &Arguments<'_>) -> Outcome<String> {
    let parts = given.text("path").unwrap_or("").split('/');
    let parts: Vec<&str> = parts.filter(|part| !matches!(*part, "" | ".")).collect();
    let path = parts.join("/");
    if parts.contains(&"..") || parts.first() == Some(&".kvfs") {
        return Err(Failure::new(Exit::Usage, format!("{path} leads out of the store"))
            .hint("other states are named by `transaction` and `snapshot`"));
    }
    Ok(path)
}

/// Returns the root of the state that the arguments refer to.
fn root(session: &Session, given: &Arguments<'_>) -> Outcome<PathBuf> {
    let mount_point = &session.mounted.mount_point;
    match (given.number("transaction"), given.text("snapshot")) {
        (Some(_), Some(_)) => Err(Failure::new(
            Exit::Usage,
            "`transaction` and `snapshot` are two states: give one of them",
        )),
        (Some(id), None) => {
            let view = session.mounted.view(id);
            if view.is_dir() {
                Ok(view)
            } else {
                Err(Failure::new(Exit::NotFound, format!("there is no transaction {id}")))
            }
        }
        (None, Some(name)) => {
            let view = mount_point.join(".kvfs/snapshot").join(name);
            if !name.is_empty() && !name.contains('/') && !name.starts_with('.') && view.is_dir() {
                Ok(view)
            } else {
                Err(Failure::new(Exit::NotFound, format!("there is no snapshot {name}")))
            }
        }
        (None, None) => Ok(mount_point.clone()),
    }
}

fn directory(session: &Session, given: &Arguments<'_>) -> Outcome<OwnedFd> {
    let root = root(session, given)?;
    rustix::fs::open(&root, DIRECTORY, Mode::empty())
        .map_err(|e| Failure::io(format!("cannot open {}", root.shown()), &e.into()))
}

fn cannot(doing: &str, path: &str) -> impl Fn(Errno) -> Failure {
    let doing = format!("cannot {doing} {path}");
    move |e| beneath::failure(&doing, e.into())
}

pub fn read(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let path = &path(given)?;
    let cannot = cannot("read", path);
    let directory = directory(session, given)?;
    let it = beneath::open(
        &directory,
        path.as_bytes(),
        OFlags::RDONLY | OFlags::NONBLOCK,
        Mode::empty(),
    )
    .map_err(&cannot)?;
    let stat = rustix::fs::fstat(&it).map_err(&cannot)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Failure::new(Exit::Usage, format!("cannot read {path}: it is no file")));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let offset = given.number("offset").unwrap_or(0);
    // Base 64 makes it longer.
    let most = session.limits.output as u64 * 3 / 4;
    let limit = given.number("limit").unwrap_or(most).min(most);
    let mut file = File::from(it);
    let io = |e: std::io::Error| Failure::io(format!("cannot read {path}"), &e);
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(io)?;
    let end = offset.saturating_add(bytes.len() as u64);
    if end < size {
        // Do not split a character, unless it is the first one.
        if let Err(e) = std::str::from_utf8(&bytes)
            && e.error_len().is_none()
            && e.valid_up_to() > 0
        {
            bytes.truncate(e.valid_up_to());
        }
    }
    let end = offset.saturating_add(bytes.len() as u64);
    let mut text = shown(&bytes);
    if end < size {
        text.push_str(&format!(
            "\n[truncated: the file has {size} bytes; go on with offset {end}]\n"
        ));
    }
    Ok(text.into())
}

pub fn write(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let path = &path(given)?;
    let content = given.bytes("content")?;
    let cannot = cannot("write", path);
    let mut at = directory(session, given)?;
    let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.is_empty() {
        return Err(Failure::new(Exit::Usage, "the file must have a name"));
    }
    for parent in parents.split('/').filter(|part| !part.is_empty()) {
        match rustix::fs::mkdirat(&at, parent, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(cannot(e)),
        }
        at = beneath::open(&at, parent.as_bytes(), DIRECTORY, Mode::empty()).map_err(&cannot)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
    let it =
        beneath::open(&at, name.as_bytes(), flags, Mode::from_raw_mode(0o666)).map_err(&cannot)?;
    let stat = rustix::fs::fstat(&it).map_err(&cannot)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Failure::new(Exit::Usage, format!("cannot write {path}: it is no file")));
    }
    if given.flag("executable") {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | (stat.st_mode & 0o444) >> 2);
        rustix::fs::fchmod(&it, mode).map_err(&cannot)?;
    }
    let mut file = File::from(it);
    let written = file.set_len(0).and_then(|()| file.write_all(&content));
    written.map_err(|e| Failure::io(format!("cannot write {path}"), &e))?;
    Ok(format!("wrote {} bytes to {path}\n", content.len()).into())
}

pub fn list(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let top = &path(given)?;
    let root = directory(session, given)?;
    let most = session.limits.output;
    let (mut out, mut todo) = (String::new(), vec![top.as_bytes().to_vec()]);
    let mut left_out = 0u64;
    while let Some(at) = todo.pop() {
        let is_top = at == top.as_bytes();
        let shown = if at.is_empty() { "the root".into() } else { text::show(&at) };
        let cannot = cannot("list", &shown);
        let name = if at.is_empty() { &b"."[..] } else { &at[..] };
        let directory = match beneath::open(&root, name, DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            // The directory was removed in the meantime.
            Err(Errno::NOENT) if !is_top => continue,
            Err(e) if !is_top => {
                out.push_str(&format!("[{}]\n", cannot(e).message));
                continue;
            }
            Err(e) => return Err(cannot(e)),
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory).map_err(&cannot)? {
            let name = entry.map_err(&cannot)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." && !(at.is_empty() && name == b".kvfs") {
                names.push(name);
            }
        }
        names.sort_unstable();
        let mut directories = Vec::new();
        for name in names {
            let Ok(stat) = rustix::fs::statat(&directory, &name[..], AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            let below = if at.is_empty() || is_top && !given.flag("recursive") {
                text::show(&name)
            } else {
                format!("{shown}/{}", text::show(&name))
            };
            let line = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let slash: &[u8] = if at.is_empty() { b"" } else { b"/" };
                    directories.push([&at, slash, &name].concat());
                    format!("directory            {below}/\n")
                }
                FileType::RegularFile => format!("file  {:>10}  {below}\n", stat.st_size),
                FileType::Symlink => format!("link              {below}\n"),
                _ => format!("other             {below}\n"),
            };
            if out.len() + line.len() > most {
                left_out += 1;
            } else {
                out.push_str(&line);
            }
        }
        if given.flag("recursive") && left_out == 0 {
            todo.extend(directories.into_iter().rev());
        }
    }
    if left_out > 0 {
        out.push_str(&format!("[truncated: {left_out} entries or more are left out]\n"));
    }
    if out.is_empty() {
        out.push_str("it is empty\n");
    }
    Ok(cut(&out, most + 128).into())
}
