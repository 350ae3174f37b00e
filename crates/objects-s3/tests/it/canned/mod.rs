//! An HTTP server with scripted answers, which records the requests that it receives.

// Each test that uses it takes a part of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use objects_s3::{Environment, S3Config, S3Objects, Timeouts};

pub const ID: &str = "AKIDOFTHETEST";
pub const SECRET: &str = "hidden/secret+key";
pub const TOKEN: &str = "hidden-session-token";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// The path, and the query if there is one.
    pub target: String,
    /// The headers by their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// Tells what the server does after it has read a request.
pub enum Reply {
    /// Sends these bytes, and reads the next request.
    Send(Vec<u8>),
    /// Sends these bytes, and closes the connection.
    SendAndClose(Vec<u8>),
    /// Closes the connection.
    Close,
    /// Says nothing, until the client closes the connection.
    Silence,
}

/// An answer with a body and its length.
pub fn answer(status: u16, headers: &str, body: &str) -> Reply {
    Reply::Send(text(status, headers, body).into_bytes())
}

pub fn text(status: u16, headers: &str, body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 {status} Said\r\nContent-Length: {len}\r\n{headers}\r\n{body}")
}

/// An error as S3 writes it. It repeats what a server may repeat of the request.
pub fn error(status: u16, code: &str) -> Reply {
    answer(status, "x-amz-request-id: 1\r\n", &error_body(code))
}

pub fn error_body(code: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>A message \
         with {SECRET}</Message><StringToSign>x-amz-security-token:{TOKEN}</StringToSign></Error>"
    )
}

pub struct Server {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers by this function, which knows how many requests came before. It runs until the test
    /// ends.
    pub fn start(reply: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (reply, kept) = (Arc::new(reply), requests.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (reply, kept) = (reply.clone(), kept.clone());
                thread::spawn(move || serve(stream, &*reply, &kept));
            }
        });
        Server { url, requests }
    }

    /// The requests that came until now.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no test panics with it").clone()
    }

    pub fn config(&self) -> S3Config {
        let timeouts =
            Timeouts { request: std::time::Duration::from_secs(20), ..Timeouts::default() };
        S3Config {
            endpoint: Some(self.url.clone()),
            prefix: "some/prefix".into(),
            timeouts,
            ..S3Config::new("bucket")
        }
    }

    pub fn objects(&self) -> S3Objects {
        S3Objects::new(&self.config(), &environment()).expect("it is a place")
    }
}

/// Keys and a token, and nothing of this machine.
pub fn environment() -> Environment {
    Environment::of([
        ("AWS_ACCESS_KEY_ID", ID),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_SESSION_TOKEN", TOKEN),
    ])
}

fn serve(
    stream: TcpStream,
    reply: &(impl Fn(&Request, usize) -> Reply + ?Sized),
    kept: &Mutex<Vec<Request>>,
) {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        let before = {
            let mut kept = kept.lock().expect("no test panics with it");
            kept.push(request.clone());
            kept.len() - 1
        };
        match reply(&request, before) {
            Reply::Send(bytes) => {
                if writer.write_all(&bytes).is_err() {
                    return;
                }
            }
            Reply::SendAndClose(bytes) => {
                let _ = writer.write_all(&bytes);
                break;
            }
            Reply::Close => break,
            Reply::Silence => {
                let _ = reader.read(&mut [0]);
                break;
            }
        }
    }
    let _ = writer.shutdown(Shutdown::Both);
}

/// The next request, if a whole one comes.
fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        Some(line.trim_end().to_string())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let mut headers = BTreeMap::new();
    loop {
        let line = line()?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let len = headers.get("content-length").map_or(0, |len| len.parse().expect("a length"));
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, target, headers, body })
}
