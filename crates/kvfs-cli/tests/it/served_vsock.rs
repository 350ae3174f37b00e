//! Tests of a store that is served to virtual machines over a vsock, to clients that present a
//! token. The kernel's loopback stands in for another machine.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use kvdb_wire::VsockListener;

use crate::served_place::{Serving, kvfs, said, succeeds};

const TOKEN: &str = "reader-0123456789abcdef";
/// Its SHA-256.
const HASH: &str = "141b7f7299bdf1316de325d8b738aa325ce9978304788867a7e066de2309c17c";

/// A store with the snapshot `monday`, and a list of tokens.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a temporary directory"));
        succeeds(kvfs().arg("create").arg(place.path("store")));
        succeeds(kvfs().args(["snapshot", "create"]).arg(place.path("store")).arg("monday"));
        place.list(&format!("{HASH} read=*\n"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the list of tokens.
    fn list(&self, text: &str) {
        std::fs::write(self.path("tokens"), text).expect("written");
        std::fs::set_permissions(self.path("tokens"), PermissionsExt::from_mode(0o600))
            .expect("set");
    }

    fn serve(&self, at: &str, words: &[&str]) -> Command {
        let mut command = kvfs();
        command.arg("serve").arg(self.path("store")).args(["--listen", at]);
        for word in words {
            command.arg(word).arg(self.path("tokens"));
        }
        command
    }

    /// Begins to serve. Returns the port, too.
    fn begin(&self, at: &str) -> (Serving, u32) {
        let mut child = self.serve(at, &["--tokens"]).stdout(Stdio::piped()).spawn().expect("runs");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("text");
        assert!(line.contains("is served at vsock:"), "{line:?}");
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        (Serving(child), port.unwrap_or_else(|| panic!("{line:?}")))
    }
}

#[track_caller]
fn refused(mut command: Command, what: &str) {
    let output = command.output().expect("kvfs runs");
    assert!(!output.status.success(), "{command:?}");
    assert!(said(&output).contains(what), "{}", said(&output));
}

#[test]
fn a_vsock_that_would_let_anyone_in_is_refused() {
    let place = Place::new();
    refused(place.serve("vsock:7411", &[]), "needs --tokens");
    refused(place.serve("vsock:7411", &["--tokens", "--client-ca"]), "are for tls:");
    refused(place.serve("vsock:", &["--tokens"]), "no address to listen at");
    refused(place.serve("vsock:host:7411", &["--tokens"]), "no address to listen at");
    place.list(&format!("cert:{HASH} read=*\n"));
    refused(place.serve("vsock:7411", &["--tokens"]), "certificates alone");
    place.list("# none\n");
    refused(place.serve("vsock:7411", &["--tokens"]), "has no token");
}

#[test]
fn a_server_of_a_vsock_tells_its_port_and_ends_when_asked() {
    if let Err(e) = VsockListener::bind(None, 0) {
        return eprintln!("SKIPPED: the kernel has no vsock: {e}");
    }
    let place = Place::new();
    let (serving, port) = place.begin("vsock:0");
    assert!(port > 0);
    serving.ends_when_asked();
}

#[test]
fn a_client_with_a_token_lists_the_snapshots_of_a_server_of_a_vsock() {
    if let Err(e) = VsockListener::bind(Some(1), 0) {
        return eprintln!("SKIPPED: the kernel has no loopback of vsocks (vsock_loopback): {e}");
    }
    let place = Place::new();
    let (serving, port) = place.begin("vsock:1:0");
    let list = || {
        let mut command = kvfs();
        command.args(["snapshot", "list"]).arg(format!("kvfs+vsock://1:{port}"));
        command
    };
    let output = succeeds(list().env("KVFS_TOKEN", TOKEN));
    assert!(said(&output).contains("monday"), "{}", said(&output));
    let with = |token: &str| {
        let mut command = list();
        command.env("KVFS_TOKEN", token);
        command
    };
    refused(with("reader-0123456789abcdee"), "the token is none of this server");
    let mut without = list();
    without.env_remove("KVFS_TOKEN").env_remove("KVFS_TOKEN_FILE");
    refused(without, "the token is none of this server");
    serving.ends_when_asked();
}
