//! Tests of a KVFS file system through a real mount: behaviour that programs rely on beyond
//! creating, reading and writing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::PathBuf;

use crate::command::{kvfs, succeeds};
use crate::mounted::Mount;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::mount::MountFlags;

/// Bytes that differ everywhere: a page that ends up elsewhere is noticed.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64)
        .flat_map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes())
        .take(length)
        .collect()
}

fn open_rw(path: PathBuf) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// Renames entries while they are listed. Returns the number of listed names.
fn renamed_as_listed(m: &Mount, files: usize) -> usize {
    let dir = m.path("renamed");
    fs::create_dir(&dir).expect("mkdir");
    (0..files).for_each(|n| drop(File::create(dir.join(format!("f{n}"))).expect("made")));
    let mut seen = 0;
    for entry in fs::read_dir(&dir).expect("listed") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        assert!(!name.ends_with(".bak"), "{name} was shown again");
        fs::rename(dir.join(&name), dir.join(format!("{name}.bak"))).expect("renamed");
        seen += 1;
        assert!(seen <= files, "the listing comes to an end");
    }
    let names: BTreeSet<_> =
        fs::read_dir(&dir).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
    let all = (0..files).map(|n| format!("f{n}.bak").into());
    assert_eq!(names, all.collect());
    seen
}

fn a_loop_that_renames_what_it_lists_meets_each_name_once(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    assert_eq!(renamed_as_listed(&m, 2000), 2000);
}

#[test]
#[ignore = "takes a minute: make measurements"]
fn a_loop_that_renames_fifty_thousand_names_as_it_lists_them_meets_each_once() {
    let Some(m) = Mount::in_mode(false) else { return };
    assert_eq!(renamed_as_listed(&m, 50_000), 50_000);
}

fn what_is_allocated_counts_as_taken(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let (file, length) = (open_rw(m.path("a")), 64 << 20);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length).expect("allocated");
    let shown = file.metadata().expect("stat");
    assert_eq!((shown.len(), shown.blocks()), (length, length / 512));
    file.write_all_at(&pattern(1 << 20), 3 << 20).expect("write");
    file.sync_all().expect("synced");
    assert_eq!(file.metadata().expect("stat").blocks(), length / 512);
    file.set_len(0).expect("cut");
    // An empty file shows one block, too, if writes are gathered.
    assert!(file.metadata().expect("stat").blocks() <= 1);
}

fn what_is_written_is_read_again_after_a_remount(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let sizes = [0, 1, 100, 4095, 4096, 4097, 70_000, 3 << 20];
    for size in sizes {
        fs::write(m.path(format!("f{size}")), pattern(size)).expect("write");
    }
    let m = m.again();
    for size in sizes {
        let path = m.path(format!("f{size}"));
        assert_eq!(fs::metadata(&path).expect("stat").len(), size as u64);
        assert!(fs::read(&path).expect("read") == pattern(size), "{size} bytes");
    }
}

fn overwriting_appending_and_truncating(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let mut model = pattern(20_000);
    fs::write(m.path("a"), &model).expect("write");
    let file = open_rw(m.path("a"));
    file.write_all_at(b"middle", 9_999).expect("write");
    model[9_999..10_005].copy_from_slice(b"middle");
    OpenOptions::new()
        .append(true)
        .open(m.path("a"))
        .expect("open")
        .write_all(b"end")
        .expect("append");
    model.extend_from_slice(b"end");
    file.set_len(30_000).expect("grow");
    model.resize(30_000, 0);
    file.set_len(15_001).expect("shrink");
    model.truncate(15_001);
    file.set_len(16_000).expect("grow");
    model.resize(16_000, 0);
    assert!(fs::read(m.path("a")).expect("read") == model);
    let m = {
        drop(file);
        m.again()
    };
    assert!(fs::read(m.path("a")).expect("read") == model);
}

fn a_shared_mapping_and_the_file_are_one(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let file = open_rw(m.path("a"));
    file.set_len(64 << 10).expect("grow");
    // SAFETY: a fresh mapping at a place the kernel chooses, of a file that stays that long until
    // it is unmapped below.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            64 << 10,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: the mapping is 64 KiB, readable and writable, and nothing else in this process
    // touches it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), 64 << 10) };
    bytes[5_000..5_005].copy_from_slice(b"hello");
    let mut read = [0; 5];
    file.read_exact_at(&mut read, 5_000).expect("read");
    assert_eq!(&read, b"hello", "the file shows what the mapping wrote");
    file.write_all_at(b"world", 40_000).expect("write");
    assert_eq!(&bytes[40_000..40_005], b"world", "the mapping shows what the file was given");
    // SAFETY: the mapping made above; `bytes` is not used any more.
    unsafe {
        assert_eq!(libc::msync(map, 64 << 10, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(map, 64 << 10), 0);
    }
    drop(file);
    let m = m.again();
    let all = fs::read(m.path("a")).expect("read");
    assert_eq!((&all[5_000..5_005], &all[40_000..40_005]), (&b"hello"[..], &b"world"[..]));
}

/// Memory that direct I/O may use.
#[repr(C, align(4096))]
struct Aligned([u8; 64 << 10]);

fn direct_io_bypasses_the_cache_and_agrees_with_it(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(m.path("a"));
    let direct = direct.expect("open with O_DIRECT");
    let mut block = Box::new(Aligned([0; 64 << 10]));
    block.0.copy_from_slice(&pattern(64 << 10));
    assert_eq!(direct.write_at(&block.0, 4096).expect("write"), 64 << 10);
    let mut cached = vec![0; 64 << 10];
    let buffered = open_rw(m.path("a"));
    buffered.read_exact_at(&mut cached, 4096).expect("read");
    assert!(cached == pattern(64 << 10));
    buffered.write_all_at(b"cached", 4096).expect("write");
    block.0.fill(0);
    assert_eq!(direct.read_at(&mut block.0, 4096).expect("read"), 64 << 10);
    assert_eq!(&block.0[..6], b"cached", "a direct read sees what is only in the cache");
    assert!(block.0[6..] == pattern(64 << 10)[6..]);
}

fn names_can_be_moved_replaced_swapped_and_protected(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let rename =
        |a: &str, b: &str, flags| rustix::fs::renameat_with(CWD, m.path(a), CWD, m.path(b), flags);
    fs::write(m.path("a"), "A").expect("write");
    fs::write(m.path("b"), "B").expect("write");
    fs::create_dir(m.path("d")).expect("mkdir");
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).expect("swap");
    assert_eq!(fs::read(m.path("a")).expect("read"), b"B");
    rename("a", "d/x", RenameFlags::empty()).expect("move");
    rename("b", "d/x", RenameFlags::empty()).expect("replace");
    assert_eq!(fs::read(m.path("d/x")).expect("read"), b"A");
    assert!(!m.path("a").exists() && !m.path("b").exists());
    fs::create_dir(m.path("e")).expect("mkdir");
    assert_eq!(rename("e", "d", RenameFlags::empty()), Err(rustix::io::Errno::NOTEMPTY));
    assert_eq!(rename("d", "d/inside", RenameFlags::empty()), Err(rustix::io::Errno::INVAL));
    rename("d", "e", RenameFlags::empty()).expect("a directory over an empty one");
    let m = m.again();
    assert_eq!(fs::read(m.path("e/x")).expect("read"), b"A");
    assert_eq!(fs::read_dir(m.root()).expect("list").count(), 1);
}

fn links_and_special_files(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    fs::write(m.path("a"), "A").expect("write");
    fs::hard_link(m.path("a"), m.path("b")).expect("link");
    symlink("../some where/else", m.path("s")).expect("symlink");
    rustix::fs::mknodat(
        CWD,
        m.path("p"),
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .expect("mkfifo");
    let (a, b) =
        (fs::metadata(m.path("a")).expect("stat"), fs::metadata(m.path("b")).expect("stat"));
    assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
    fs::remove_file(m.path("a")).expect("unlink");
    assert_eq!(fs::metadata(m.path("b")).expect("stat").nlink(), 1);
    let m = m.again();
    assert_eq!(fs::read(m.path("b")).expect("read"), b"A");
    assert_eq!(
        fs::read_link(m.path("s")).expect("readlink").as_os_str(),
        OsStr::new("../some where/else")
    );
    assert!(fs::symlink_metadata(m.path("p")).expect("stat").file_type().is_fifo());
}

fn extended_attributes_keep_names_values_and_conditions(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    fs::write(m.path("a"), "A").expect("write");
    let set =
        |name: &str, value: &[u8], flags| rustix::fs::setxattr(m.path("a"), name, value, flags);
    set("user.one", b"1", XattrFlags::empty()).expect("set");
    set("user.big", &pattern(60_000), XattrFlags::CREATE).expect("set");
    assert_eq!(set("user.one", b"2", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(set("user.none", b"2", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    set("user.one", b"", XattrFlags::REPLACE).expect("an empty value");
    let m = m.again();
    let mut value = vec![0; 65_536];
    let length = rustix::fs::getxattr(m.path("a"), "user.big", &mut value[..]).expect("get");
    assert!(value[..length] == pattern(60_000));
    assert_eq!(
        rustix::fs::getxattr(m.path("a"), "user.big", &mut value[..10]),
        Err(rustix::io::Errno::RANGE)
    );
    assert_eq!(rustix::fs::getxattr(m.path("a"), "user.one", &mut value[..]), Ok(0));
    let length = rustix::fs::listxattr(m.path("a"), &mut value[..]).expect("list");
    let names: BTreeSet<_> = value[..length].split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
    assert_eq!(names, BTreeSet::from([&b"user.one"[..], b"user.big"]));
    rustix::fs::removexattr(m.path("a"), "user.one").expect("remove");
    assert_eq!(
        rustix::fs::getxattr(m.path("a"), "user.one", &mut value[..]),
        Err(rustix::io::Errno::NODATA)
    );
}

fn ten_thousand_names_are_listed_once_each_while_some_come_and_go(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    fs::create_dir(m.path("d")).expect("mkdir");
    for i in 0..10_000 {
        rustix::fs::mknodat(
            CWD,
            m.path(format!("d/name-{i:05}")),
            rustix::fs::FileType::RegularFile,
            Mode::from_raw_mode(0o644),
            0,
        )
        .expect("mknod");
    }
    let m = m.again();
    let names = |m: &Mount| -> Vec<String> {
        let all = fs::read_dir(m.path("d")).expect("list");
        all.map(|e| e.expect("entry").file_name().into_string().expect("ASCII")).collect()
    };
    let first = names(&m);
    assert_eq!(first.len(), 10_000);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 10_000, "no name twice");
    assert_eq!(names(&m), first, "a second listing, from the cache, is the same");
    // `rm -r` removes listed entries while the listing continues.
    for entry in fs::read_dir(m.path("d")).expect("list") {
        fs::remove_file(entry.expect("entry").path()).expect("unlink");
    }
    assert_eq!(names(&m), Vec::<String>::new());
    fs::remove_dir(m.path("d")).expect("rmdir");
}

fn a_removed_file_lives_while_it_is_open(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let mut file = open_rw(m.path("a"));
    file.write_all(&pattern(100_000)).expect("write");
    fs::remove_file(m.path("a")).expect("unlink");
    file.write_all(b"more").expect("write");
    file.sync_all().expect("sync");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    fs::write(m.path("a"), "another").expect("the name is free");
    let mut all = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("seek");
    file.read_to_end(&mut all).expect("read");
    assert!(all[..100_000] == pattern(100_000) && all[100_000..] == *b"more");
    assert_eq!(fs::read(m.path("a")).expect("read"), b"another");
}

fn a_file_without_a_name_can_be_given_one(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(m.root(), flags, Mode::from_raw_mode(0o600)).expect("O_TMPFILE");
    let mut file = File::from(file);
    file.write_all(b"draft").expect("write");
    assert_eq!(fs::read_dir(m.root()).expect("list").count(), 0);
    let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, by_number, CWD, m.path("final"), AtFlags::SYMLINK_FOLLOW)
        .expect("link");
    drop(file);
    let m = m.again();
    assert_eq!(fs::read(m.path("final")).expect("read"), b"draft");
    assert_eq!(fs::metadata(m.path("final")).expect("stat").nlink(), 1);
}

fn space_is_reserved_punched_and_zeroed(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let file = open_rw(m.path("a"));
    file.write_all_at(&pattern(1 << 20), 0).expect("write");
    let allocate = |flags, offset, length| rustix::fs::fallocate(&file, flags, offset, length);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(punch, 100_000, 500_000).expect("punch");
    allocate(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 900_001, 7).expect("zero");
    allocate(FallocateFlags::empty(), 1 << 20, 4096).expect("extend");
    allocate(FallocateFlags::KEEP_SIZE, 10 << 20, 4096).expect("reserve behind the end");
    assert_eq!(
        allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        Err(rustix::io::Errno::OPNOTSUPP)
    );
    let mut model = pattern(1 << 20);
    model[100_000..600_000].fill(0);
    model[900_001..900_008].fill(0);
    model.resize((1 << 20) + 4096, 0);
    assert!(fs::read(m.path("a")).expect("read") == model);
    drop(file);
    let m = m.again();
    assert!(fs::read(m.path("a")).expect("read") == model);
}

fn holes_take_no_space_and_can_be_found(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let file = open_rw(m.path("a"));
    file.write_all_at(&[1; 8192], 1 << 30).expect("write far away");
    file.sync_all().expect("sync");
    let metadata = file.metadata().expect("stat");
    assert_eq!(metadata.len(), (1 << 30) + 8192);
    assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 30));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 30)), Ok((1 << 30) + 8192));
    assert_eq!(seek(rustix::fs::SeekFrom::Data((1 << 30) + 8192)), Err(rustix::io::Errno::NXIO));
    let mut zeros = vec![9; 4096];
    file.read_exact_at(&mut zeros, 12_345_678).expect("read the hole");
    assert_eq!(zeros, [0; 4096]);
}

fn ranges_are_copied_within_the_file_system(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    fs::write(m.path("a"), pattern(300_000)).expect("write");
    let (from, to) = (File::open(m.path("a")).expect("open"), open_rw(m.path("b")));
    let (mut offset_in, mut offset_out) = (1_000, 5_000);
    let mut left = 250_000;
    while left > 0 {
        let n = rustix::fs::copy_file_range(
            from.as_fd(),
            Some(&mut offset_in),
            to.as_fd(),
            Some(&mut offset_out),
            left,
        )
        .expect("copy");
        assert!(n > 0);
        left -= n;
    }
    let mut model = vec![0; 5_000];
    model.extend_from_slice(&pattern(300_000)[1_000..251_000]);
    assert!(fs::read(m.path("b")).expect("read") == model);
}

fn writing_takes_the_set_user_id_bit_away(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: takes another user, hence root");
        return;
    }
    fs::write(m.path("a"), "A").expect("write");
    fs::set_permissions(m.path("a"), fs::Permissions::from_mode(0o4755)).expect("chmod");
    assert_eq!(fs::metadata(m.path("a")).expect("stat").mode() & 0o7777, 0o4755);
    std::os::unix::fs::chown(m.path("a"), Some(1), Some(1)).expect("chown");
    assert_eq!(fs::metadata(m.path("a")).expect("stat").mode() & 0o7777, 0o755, "a new owner");
    assert_eq!(m.again().path("a").metadata().expect("stat").uid(), 1);
}

fn times_are_kept_to_the_nanosecond(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    fs::write(m.path("a"), "A").expect("write");
    let time = |tv_sec, tv_nsec| rustix::fs::Timespec { tv_sec, tv_nsec };
    let times = rustix::fs::Timestamps {
        last_access: time(-5, 999_999_999),
        last_modification: time(1_234_567_890, 123_456_789),
    };
    rustix::fs::utimensat(CWD, m.path("a"), &times, AtFlags::empty()).expect("utimensat");
    let m = m.again();
    let s = fs::metadata(m.path("a")).expect("stat");
    assert_eq!((s.atime(), s.atime_nsec()), (-5, 999_999_999));
    assert_eq!((s.mtime(), s.mtime_nsec()), (1_234_567_890, 123_456_789));
}

/// `docs/fuse.md` names these calls, which the kernel answers without the daemon.
fn calls_that_the_kernel_answers_itself_do_what_the_documents_say(write_back: bool) {
    let Some(m) = Mount::in_mode(write_back) else { return };
    let file = open_rw(m.path("a"));
    file.write_all_at(b"before", 0).expect("written");
    rustix::fs::syncfs(&file).expect("syncfs");

    // A file supports poll(2), and is always ready.
    let epoll = rustix::event::epoll::create(CreateFlags::CLOEXEC).expect("an epoll");
    rustix::event::epoll::add(&epoll, &file, EventData::new_u64(7), EventFlags::IN)
        .expect("ext4 says EPERM here");
    let mut events = Vec::with_capacity(2);
    rustix::event::epoll::wait(&epoll, spare_capacity(&mut events), None).expect("waited");
    let found: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
    assert_eq!(found, [7]);
    drop(file);

    // Without write access through the kernel, keys can still be put.
    let root = m.root();
    rustix::mount::mount_remount(&root, MountFlags::RDONLY, c"").expect("remounted");
    let refused = fs::write(m.path("b"), "B").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    let path = root.to_str().expect("text");
    succeeds(&mut kvfs(&["kv", "put", path, "key", "value"]));
    assert_eq!(succeeds(&mut kvfs(&["kv", "get", path, "key"])).trim_end(), "value");
    rustix::mount::mount_remount(&root, MountFlags::empty(), c"").expect("remounted");
    fs::write(m.path("b"), "B").expect("writable again");
    assert_eq!(fs::read(m.path("a")).expect("read"), b"before");
}

/// Runs every test with write-through, and with writes that the kernel gathers.
macro_rules! in_both_modes {
    ($($test:ident),* $(,)?) => {
        mod through {
            $(#[test]
            fn $test() {
                super::$test(false);
            })*
        }
        mod gathered {
            $(#[test]
            fn $test() {
                super::$test(true);
            })*
        }
    };
}

in_both_modes!(
    what_is_written_is_read_again_after_a_remount,
    a_loop_that_renames_what_it_lists_meets_each_name_once,
    what_is_allocated_counts_as_taken,
    overwriting_appending_and_truncating,
    a_shared_mapping_and_the_file_are_one,
    direct_io_bypasses_the_cache_and_agrees_with_it,
    names_can_be_moved_replaced_swapped_and_protected,
    links_and_special_files,
    extended_attributes_keep_names_values_and_conditions,
    ten_thousand_names_are_listed_once_each_while_some_come_and_go,
    a_removed_file_lives_while_it_is_open,
    a_file_without_a_name_can_be_given_one,
    space_is_reserved_punched_and_zeroed,
    holes_take_no_space_and_can_be_found,
    ranges_are_copied_within_the_file_system,
    writing_takes_the_set_user_id_bit_away,
    times_are_kept_to_the_nanosecond,
    calls_that_the_kernel_answers_itself_do_what_the_documents_say,
);
