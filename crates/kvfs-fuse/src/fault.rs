//! Where a test has the daemon killed. Without debug assertions there is nothing here.

/// `KVFS_KILLED_AT=POINT:OPCODES:FILE` has this process end by SIGKILL at the first such point, and
/// that of no process that comes later: FILE, which must not exist, says that it is done. The
/// points are "before" a request is answered, and "after" it is done, when its answer is not sent.
/// Several opcodes stand for one call that the kernel asks for by any of them (47+53). Without a
/// request (opcode 0): when the kernel has "handed over" what it holds, when a change is made and
/// "untold", and when the kernel was "told" of it.
pub(crate) fn point(name: &str, opcode: u32) {
    #[cfg(debug_assertions)]
    {
        use std::sync::OnceLock;
        static AT: OnceLock<Option<(String, Vec<u32>, std::path::PathBuf)>> = OnceLock::new();
        let at = AT.get_or_init(|| {
            let at = std::env::var("KVFS_KILLED_AT").ok()?;
            let mut parts = at.splitn(3, ':');
            let (point, opcodes) = (parts.next()?.to_string(), parts.next()?.split('+'));
            let opcodes = opcodes.filter_map(|opcode| opcode.parse().ok()).collect();
            Some((point, opcodes, parts.next()?.into()))
        });
        if let Some((point, of, file)) = at
            && point == name
            && of.contains(&opcode)
            && std::fs::File::create_new(file).is_ok()
        {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = (name, opcode);
}
