//! Admits requests to `kvfs web` only from its own page, at the address at which it was opened,
//! with the token that was printed.
//!
//! Every program of the machine, of any user, can connect to its port, and so can every page that a
//! browser shows. The token keeps both out: the page gets it from the fragment of its address,
//! which browsers do not send, and sends it in a custom header, which no other page can make a
//! browser send here. It is not a cookie, which a browser would send to every port of this host,
//! whatever program listens there. A name that an attacker makes resolve to this machine (DNS
//! rebinding) is not among the accepted hosts.

use std::io::{self, Read};
use std::net::SocketAddr;

use crate::support::serving::http::{Request, Response};

/// The header with the token.
const TOKEN: &str = "x-kvfs-token";

/// Bytes of randomness in a token.
const RANDOM: usize = 24;

/// Makes a new token.
pub fn token() -> io::Result<String> {
    let mut random = [0; RANDOM];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Headers of every answer: nothing from elsewhere is loaded or run, no other page embeds this one
/// or reads the answers, and no answer is stored.
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
    /// The hosts of this page as browsers write them.
    hosts: Vec<String>,
}

impl Guard {
    pub fn new(token: &str, address: SocketAddr) -> Guard {
        let mut hosts = vec![address.to_string(), format!("localhost:{}", address.port())];
        if address.port() == 80 {
            // Browsers omit the default port of HTTP.
            hosts.extend(["localhost".into(), address.to_string().replace(":80", "")]);
        }
        Guard { token: token.into(), hosts }
    }

    /// Returns the answer of `inside` if the request is admitted.
    pub fn answer(&self, request: &Request, inside: impl FnOnce(&Request) -> Response) -> Response {
        let answer = match self.admit(request) {
            Some(page) => page,
            None => inside(request),
        };
        Response { headers: HEADERS, ..answer }
    }

    /// Returns the response to a request that is refused or that is for the public page, or `None`
    /// if the request is admitted.
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

/// Compares two strings in constant time for a given length.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Returns the page itself, which contains no secrets.
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
