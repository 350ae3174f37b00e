//! Operations on trees of many files.

use kvfs::{FileKind, ROOT, RenameFlags, Result, Timestamp, ViewId, Whole};

use crate::{EACH, FILES, Step, USER, World, plant};

pub const STEPS: &[Step] = &[
    (&["Fs::walk", "Views::walk"], walk),
    (&["Fs::lookup", "Fs::peek", "Fs::resolve", "Fs::readdir", "Fs::referenced"], look),
    (&["Fs::clone_tree", "Views::clone_tree", "Fs::rename"], clone),
    (&["Fs::remove_tree", "Views::remove_tree"], remove),
    (&["Fs::make_whole", "Fs::link", "Fs::unlink", "Fs::fsyncdir"], one_directory),
    (&["Fs::verify", "verify", "Fs::statistics"], verify),
    (&["Fs::open", "Fs::shutdown", "Views::new", "Views::shutdown"], World::reopen),
    (&["Views::pause", "Views::in_use", "Fs::take_over", "Views::take_over"], World::hand_over),
];

fn walk(w: &mut World) -> Result<()> {
    let tree = w.fs().resolve(b"/tree")?.ino;
    for mut walk in [w.fs().walk(tree)?, w.views.walk(&ViewId::Mainline, b"/tree")?] {
        let mut files = 0;
        while let Some(found) = walk.next()? {
            files += u64::from(found.attr.kind == FileKind::File);
        }
        assert_eq!(files, FILES);
    }
    Ok(())
}

/// Each file is looked up and forgotten.
fn look(w: &mut World) -> Result<()> {
    let fs = w.fs();
    let tree = fs.resolve(b"/tree")?.ino;
    for d in 0..FILES / EACH {
        let dir = fs.lookup(tree, format!("directory {d}").as_bytes())?.ino;
        for f in 0..EACH {
            let name = format!("file {f}");
            let found = fs.lookup(dir, name.as_bytes())?.ino;
            assert_eq!(fs.peek(dir, name.as_bytes())?.map(|(ino, _)| ino), Some(found));
            fs.forget(found, 1);
        }
        let mut names = 0;
        fs.readdir(dir, 0, true, &mut |_| {
            names += 1;
            true
        })?;
        assert!(names >= EACH, "{names}");
        fs.forget(dir, 1);
    }
    fs.referenced();
    Ok(())
}

fn clone(w: &mut World) -> Result<()> {
    let tree = w.fs().resolve(b"/tree")?.ino;
    w.fs().clone_tree(tree, ROOT, b"one")?;
    w.views.clone_tree(&ViewId::Mainline, b"/tree", b"/two")?;
    w.fs().rename(ROOT, b"two", ROOT, b"three", RenameFlags::default())?;
    w.settle()
}

fn remove(w: &mut World) -> Result<()> {
    for name in ["four", "five"] {
        plant(w.fs(), ROOT, name, 4)?;
    }
    w.fs().remove_tree(ROOT, b"four")?;
    w.views.remove_tree(&ViewId::Mainline, b"/five")?;
    w.settle()
}

/// A directory of many names.
fn one_directory(w: &mut World) -> Result<()> {
    let fs = w.fs();
    let dir = fs.mkdir(ROOT, b"flat", 0o755, USER)?.ino;
    let now = Timestamp::default();
    for from in (0..FILES).step_by(100) {
        let whole = |n: u64| Whole {
            parent: dir,
            name: n.to_string().into_bytes().into(),
            kind: FileKind::File,
            perm: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            content: vec![7; 3000].into(),
        };
        fs.make_whole(&(from..from + 100).map(whole).collect::<Vec<_>>())?;
    }
    fs.fsyncdir(dir)?;
    let (first, _) = fs.peek(dir, b"0")?.expect("it was made");
    for n in 0..FILES {
        fs.link(first, dir, format!("link {n}").as_bytes())?;
    }
    fs.fsyncdir(dir)?;
    let mut names = 0;
    let mut cookie = 0;
    loop {
        let before = names;
        fs.readdir(dir, cookie, false, &mut |entry| {
            (names, cookie) = (names + 1, entry.cookie);
            true
        })?;
        if names == before {
            break;
        }
    }
    assert!(names >= 2 * FILES, "{names}");
    for n in 0..FILES {
        fs.unlink(dir, format!("link {n}").as_bytes())?;
    }
    w.settle()
}

fn verify(w: &mut World) -> Result<()> {
    assert!(w.fs().verify()?.is_clean());
    assert!(kvfs::verify(&w.db)?.is_clean());
    w.fs().statistics();
    Ok(())
}
