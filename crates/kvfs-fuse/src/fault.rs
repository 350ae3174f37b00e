//! Points at which a test kills the daemon. Without debug assertions they do nothing.

/// Ends this process by SIGKILL at the first point that `KVFS_KILLED_AT=POINT:OPCODES:FILE` names,
/// but not in a later process: FILE, which must not exist at first, records that a process was
/// ended. The point "before" is reached before a request is executed, and "after" when the request
/// is executed but its answer is not sent. Several opcodes (47+53) stand for one call that the
/// kernel may request by any of them. Three points belong to no request (opcode 0): at "handed
/// over", the kernel has handed over its pages; at "untold", a change is made and the kernel is not
/// yet notified; at "told", the kernel was notified of the change.
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
