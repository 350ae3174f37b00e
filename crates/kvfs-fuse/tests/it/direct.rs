//! Tests of direct I/O next to reads through the page cache. A reader that begins after a direct
//! write has ended sees that write.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::real::{BOTH, Real};

const LENGTH: usize = 1 << 20;

#[repr(align(4096))]
struct Buffer([u8; LENGTH]);

/// `struct iocb` and `struct io_event` of Linux' aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    flags_of_io: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

/// Writes by the kernel's asynchronous I/O and waits for its end.
fn write_asynchronously(context: u64, file: &File, data: &Buffer) {
    const WRITE: u16 = 1;
    let control = Control {
        opcode: WRITE,
        descriptor: file.as_raw_fd() as u32,
        buffer: data.0.as_ptr() as u64,
        bytes: LENGTH as u64,
        ..Default::default()
    };
    let all = [&raw const control];
    let mut event = Event::default();
    // SAFETY: control, buffer and event live until the end of the write, which is waited for.
    unsafe {
        assert_eq!(
            libc::syscall(libc::SYS_io_submit, context, 1, all.as_ptr()),
            1,
            "{}",
            std::io::Error::last_os_error()
        );
        let none = std::ptr::null::<libc::timespec>();
        assert_eq!(libc::syscall(libc::SYS_io_getevents, context, 1, 1, &raw mut event, none), 1);
    }
    assert_eq!(event.result, LENGTH as i64);
}

#[test]
fn a_read_after_an_asynchronous_direct_write_sees_it() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let path = m.path("f");
        fs::write(&path, vec![0; LENGTH]).expect("write");
        let direct =
            File::options().write(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
        let mut context: u64 = 0;
        // SAFETY: it fills in a number.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) }, 0);
        let mut data = Box::new(Buffer([0; LENGTH]));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let file = File::open(&path).expect("open");
                    let mut some = vec![0; 64 << 10];
                    while !stop.load(Ordering::Relaxed) {
                        for at in (0..LENGTH).step_by(some.len()) {
                            file.read_exact_at(&mut some, at as u64).expect("read");
                        }
                    }
                });
            }
            let file = File::open(&path).expect("open");
            let mut seen = vec![0; LENGTH];
            let mut stale = 0;
            for round in 1..=300_u32 {
                data.0.fill(round as u8);
                write_asynchronously(context, &direct, &data);
                file.read_exact_at(&mut seen, 0).expect("read");
                stale += u32::from(seen.iter().any(|b| *b != round as u8));
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(stale, 0, "reads that were stale, write-back: {write_back}");
        });
        // SAFETY: no operation in it is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    }
}
