//! Points at which a test kills the daemon. Without debug assertions they do nothing.

/// Ends this process by SIGKILL at the first point that `KVFS_KILLED_AT=POINT:OPCODES:FILE` names,
/// but not in a later process: FILE, which must not exist, records that it is done. The points are
/// "before" a request is answered, and "after" it is done, when its answer is not sent. Several
/// opcodes stand for one call that the kernel requests by any of them (47+53). The points without a
/// request (opcode 0) are: the kernel has "handed over" its pages, a change is made and the kernel
/// not yet notified ("untold"), and the kernel was notified of it ("told").
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
