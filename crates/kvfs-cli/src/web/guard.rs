//! Whose questions `kvfs web` answers: those of its own page, by the address at which it was
//! opened, with the token that was printed.
//!
//! Every program of the machine, of any user, can connect to a port of it, and so can every page
//! that a browser shows. The token keeps out the first and the second: the page has it from the
//! part of its address that browsers do not send, and sends it in a header of its own, which no
//! other page can have a browser send here. It is no cookie, which a browser would send to every
//! port of this host, whoever listens there. A name that an attacker makes lead here (DNS
//! rebinding) is not one of ours.

use std::io::{self, Read};
use std::net::SocketAddr;

use crate::http::{Request, Response};

/// The header with the token.
const TOKEN: &str = "x-kvfs-token";

/// Bytes of randomness in a token.
const RANDOM: usize = 24;

/// A new token.
pub fn token() -> io::Result<String> {
    let mut random = [0; RANDOM];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// With every answer: nothing from elsewhere is loaded or run, no other page shows this one or
/// reads what is answered, and nothing of it is kept.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
];

pub struct Guard {
    token: String,
    /// As browsers write where this page is.
    hosts: Vec<String>,
}

impl Guard {
    pub fn new(token: &str, address: SocketAddr) -> Guard {
        let mut hosts = vec![address.to_string(), format!("localhost:{}", address.port())];
        if address.port() == 80 {
            // The port of HTTP is not written.
            hosts.extend(["localhost".into(), address.to_string().replace(":80", "")]);
        }
        Guard { token: token.into(), hosts }
    }

    /// What `inside` answers, if the question is ours.
    pub fn answer(&self, request: &Request, inside: impl FnOnce(&Request) -> Response) -> Response {
        let answer = match self.admit(request) {
            Some(page) => page,
            None => inside(request),
        };
        Response { headers: HEADERS, ..answer }
    }

    /// An answer to what is not let in, or that is anyone's to see; `None`: it is let in.
    fn admit(&self, request: &Request) -> Option<Response> {
        let is_ours = |host: &str| self.hosts.iter().any(|ours| ours == host);
        if !request.header("host").is_some_and(is_ours) {
            return Some(Response::text(421, "this page has another address"));
        }
        let is_our_origin = |origin: &str| origin.strip_prefix("http://").is_some_and(&is_ours);
        let from_here = match request.header("origin") {
            Some(origin) => is_our_origin(origin),
            None => !request.has("origin"),
        } && match request.header("sec-fetch-site") {
            Some(site) => matches!(site, "same-origin" | "none"),
            None => !request.has("sec-fetch-site"),
        };
        if !request.path.starts_with("/api/") {
            return Some(page(request));
        }
        if !from_here {
            return Some(Response::text(403, "another page asks"));
        }
        if !request.header(TOKEN).is_some_and(|token| same(token, &self.token)) {
            return Some(Response::text(
                401,
                "the token is missing or wrong: open the address that kvfs web printed",
            ));
        }
        if request.method == "POST" && request.header("content-type") != Some("application/json") {
            return Some(Response::text(415, "send application/json"));
        }
        None
    }
}

/// Takes as long wherever two texts of one length differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// The page itself, in which nothing is secret.
fn page(request: &Request) -> Response {
    if !matches!(&request.method[..], "GET" | "HEAD") {
        return Response::text(405, "ask with GET");
    }
    match &request.path[..] {
        "/" => Response::new(200, "text/html; charset=utf-8", include_str!("page.html")),
        "/page.css" => Response::new(200, "text/css; charset=utf-8", include_str!("page.css")),
        "/page.js" => Response::new(200, "text/javascript; charset=utf-8", include_str!("page.js")),
        _ => Response::text(404, "there is no such page"),
    }
}
