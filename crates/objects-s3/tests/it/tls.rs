//! Tests of requests over TLS, to a server whose certificate is trusted and to one whose
//! certificate is not.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use objects::{Condition, Key, Objects, ObjectsError, Part};
use objects_s3::{Environment, S3Config, S3Objects};
use rustls::pki_types::PrivateKeyDer;

/// A server with this certificate that answers each request with an object. It counts them.
fn start(certified: &rcgen::CertifiedKey<rcgen::KeyPair>) -> (String, Arc<AtomicUsize>) {
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .expect("a key that fits");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = rustls::ServerConnection::new(config.clone()).expect("a server");
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            if head.ends_with(b"\r\n\r\n") {
                counting.fetch_add(1, Ordering::SeqCst);
                let answer = b"HTTP/1.1 200 Said\r\nETag: \"t\"\r\nConnection: close\r\n\
                               Content-Length: 5\r\n\r\nhello";
                let _ = stream.write_all(answer);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    (format!("https://localhost:{port}"), count)
}

#[test]
fn a_certificate_must_be_trusted() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a key");
    let (url, count) = start(&certified);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bundle.pem");
    std::fs::write(&file, certified.cert.pem()).expect("a file");
    let bundle = file.to_str().expect("a text");
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hidden")];
    let config = S3Config { endpoint: Some(url), ..S3Config::new("bucket") };
    let key = Key::new("a").expect("a key");

    let trusting = Environment::of([keys[0], keys[1], ("AWS_CA_BUNDLE", bundle)]);
    let objects = S3Objects::new(&config, &trusting).expect("it is a place");
    assert_eq!(objects.get(&key, Part::Whole).expect("it is answered").bytes, "hello");
    assert_eq!(count.load(Ordering::SeqCst), 1);

    let objects = S3Objects::new(&config, &Environment::of(keys)).expect("it is a place");
    let error = objects.put(&key, "x".into(), Condition::Absent).expect_err("it is not trusted");
    assert!(matches!(error, ObjectsError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(error.is_certain() && !error.may_be_retried(), "{error}");
    assert_eq!(count.load(Ordering::SeqCst), 1, "nothing was sent");
}
