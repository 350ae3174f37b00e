//! Operations on the content of one large file.

use kvfs::{Allocate, AllocateMode, FileKind, ROOT, Result, SetAttr, Whence, XattrFlags};

use crate::{LARGE, Step, USER, World, fill};

pub const STEPS: &[Step] = &[
    (&["Fs::write", "Fs::write_for", "Fs::fsync", "Fs::begin_fsync"], write),
    (&["Fs::read", "Fs::read_for", "Fs::read_into", "Fs::read_into_for", "Fs::seek"], read),
    (&["Fs::copy_file_range", "Fs::copy_file_range_for", "Fs::mknod"], copy),
    (&["Fs::fallocate", "Fs::fallocate_for"], allocate),
    (&["Fs::setattr", "Fs::statfs", "Fs::files_of_its_own", "Fs::sync_store"], cut),
    (&["Fs::setxattr", "Fs::getxattr", "Fs::listxattr", "Fs::removexattr"], xattrs),
];

fn write(w: &mut World) -> Result<()> {
    fill(w.fs(), w.large, 2)?;
    w.fs().fsync(w.large, false)?;
    // Visits scattered pages, in no order.
    for page in (0..LARGE >> 12).map(|n| n * 7919 % (LARGE >> 12)) {
        w.fs().write_for(w.large, page << 12, &[3; 4096], Default::default())?;
    }
    w.fs().begin_fsync(w.large)?;
    w.settle()
}

fn read(w: &mut World) -> Result<()> {
    let mut room = vec![0; 1 << 20];
    for offset in (0..LARGE).step_by(1 << 20) {
        assert_eq!(w.fs().read(w.large, offset, 1 << 20)?.len(), 1 << 20);
        assert_eq!(w.fs().read_for(w.large, offset, 4096, Default::default())?.len(), 4096);
        assert_eq!(w.fs().read_into(w.large, offset, &mut room)?, 1 << 20);
        assert_eq!(w.fs().read_into_for(w.large, offset, &mut room, Default::default())?, 1 << 20);
    }
    assert_eq!(w.fs().seek(w.large, 0, Whence::Hole)?, LARGE);
    Ok(())
}

fn copy(w: &mut World) -> Result<()> {
    for (name, offset) in [(&b"copy"[..], 0), (b"shifted", 100)] {
        let to = w.fs().mknod(ROOT, name, FileKind::File, 0o644, 0, USER)?.ino;
        let mut at = 0;
        while at < LARGE {
            let most = (LARGE - at).min(64 << 20);
            at += w.fs().copy_file_range(w.large, at, to, at + offset, most)?;
        }
        let hints = Default::default();
        w.fs().copy_file_range_for((w.large, 0), (to, 1 << 30), LARGE, hints)?;
        w.fs().unlink(ROOT, name)?;
        w.fs().forget(to, 1);
        w.settle()?;
    }
    Ok(())
}

fn allocate(w: &mut World) -> Result<()> {
    for mode in [AllocateMode::Zero, AllocateMode::Punch, AllocateMode::Allocate] {
        let how = Allocate { mode, keep_size: true };
        w.fs().fallocate(w.large, how, 5000, LARGE - 10_000)?;
        w.fs().fallocate_for(w.large, how, 0, LARGE, Default::default())?;
    }
    w.settle()?;
    fill(w.fs(), w.large, 4)?;
    w.settle()
}

fn cut(w: &mut World) -> Result<()> {
    for size in [LARGE - 1, 0, 1 << 40, 0] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        w.fs().setattr(w.large, &set, USER)?;
        w.fs().statfs()?;
        w.fs().sync_store()?;
    }
    fill(w.fs(), w.large, 5)?;
    w.settle()
}

fn xattrs(w: &mut World) -> Result<()> {
    let value = vec![6; 60_000];
    for n in 0..100 {
        let name = format!("user.{n}");
        w.fs().setxattr(w.large, name.as_bytes(), &value, XattrFlags::default())?;
    }
    w.settle()?;
    assert!(!w.fs().listxattr(w.large)?.is_empty());
    for n in 0..100 {
        let name = format!("user.{n}");
        assert_eq!(w.fs().getxattr(w.large, name.as_bytes())?, value);
        w.fs().removexattr(w.large, name.as_bytes())?;
    }
    w.settle()
}
