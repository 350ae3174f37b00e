//! Tests of connections from virtual machines. The kernel's loopback stands in for another machine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvdb_wire::{
    Client, ClientOptions, Result, Server, ServerOptions, Socket, Tokens, VsockAddress,
    VsockListener,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::wire::{Store, served, tree};

/// The number of this machine for itself.
const LOCAL: u32 = 1;

/// Returns a listener at any free port, or `None` if the kernel has no such sockets.
fn listener(cid: Option<u32>) -> Option<VsockListener> {
    match VsockListener::bind(cid, 0) {
        Ok(listener) => Some(listener),
        Err(e) => {
            let lacks = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error);
            assert!(lacks.iter().any(|errno| e.raw_os_error() == Some(*errno)), "{e}");
            eprintln!("SKIPPED: no vsock here, or no loopback of it (vsock_loopback): {e}");
            None
        }
    }
}

/// Stops a listener when it is dropped, so that a test that fails ends.
struct Stops<'a>(&'a VsockListener);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn a_listener_that_is_stopped_accepts_no_more() {
    let Some(listener) = listener(None) else { return };
    assert!(listener.port().unwrap() > 0);
    std::thread::scope(|scope| {
        let accepts = scope.spawn(|| listener.accept().unwrap().is_some());
        listener.stop();
        assert!(!accepts.join().unwrap());
    });
    assert!(listener.accept().unwrap().is_none(), "it stays so");
}

#[test]
fn a_tree_over_a_vsock_is_the_tree_of_the_snapshot_for_a_client_with_a_token() {
    let Some(listener) = listener(Some(LOCAL)) else { return };
    let store = Store::with_tree(34, 60);
    let server = Server::without_socket(store.db.clone(), None, ServerOptions::default()).unwrap();
    let hash = Sha256::digest(b"the token of a machine");
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let tokens = Arc::new(Tokens::parse(&format!("{digits} read=*\n")).unwrap());
    let address = VsockAddress { cid: LOCAL, port: listener.port().unwrap() };
    let connect = |token: &'static str| -> Result<Arc<Client>> {
        let token = Bytes::from_static(token.as_bytes());
        let options = ClientOptions { token, ..ClientOptions::default() };
        Client::connect(move |time| Socket::connect_vsock(address, time), options)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some((socket, _)) = listener.accept().unwrap() {
                server.serve_with(socket, &tokens).unwrap();
            }
        });
        let _stops = Stops(&listener);
        let client = connect("the token of a machine").unwrap();
        assert_eq!(tree(&served(&client, "monday")), tree(&store.fs));
        assert!(connect("another token").is_err());
        assert!(connect("").is_err());
    });
    drop(listener);
    let refused = Socket::connect_vsock(address, Duration::from_secs(10));
    assert!(refused.is_err(), "no server listens there now");
}
