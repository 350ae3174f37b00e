//! A relay to a server that loses answers: the server applies the request, and the relay cuts the
//! connection before the first byte of the answer arrives.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub struct Relay {
    pub url: String,
    lost: Arc<AtomicU64>,
}

impl Relay {
    /// Relays to a server such as `127.0.0.1:9000`, and loses one of `every` answers.
    pub fn start(server: &str, every: u64) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (answers, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (server, losing) = (server.to_string(), lost.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&server).expect("the server listens");
                let (mut from, mut to) = (client.try_clone(), server.try_clone());
                let (answers, lost) = (answers.clone(), losing.clone());
                thread::spawn(move || {
                    if let (Ok(from), Ok(to)) = (&mut from, &mut to) {
                        let _ = std::io::copy(from, to);
                        let _ = to.shutdown(Shutdown::Write);
                    }
                });
                thread::spawn(move || answer(server, client, every, &answers, &lost));
            }
        });
        Relay { url, lost }
    }

    /// The answers that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }
}

fn answer(
    mut server: TcpStream,
    mut client: TcpStream,
    every: u64,
    answers: &AtomicU64,
    lost: &AtomicU64,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = server.read(&mut buffer) {
        let first = buffer.starts_with(b"HTTP/1.1 ");
        if first && answers.fetch_add(1, Ordering::SeqCst) % every == every - 1 {
            lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if client.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
